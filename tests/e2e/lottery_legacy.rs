//! Clients that know nothing of the lottery: any number of balancers follow it, and share nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::lottery::Cluster;
use crate::stage::{Balancer, Folder, Member, Run, curl, until};

/// Starts a balancer whose group is the service `web` of these daemons.
fn balancer(cluster: &Cluster, protocol: &str) -> Balancer {
    let folder = Folder::new();
    folder.write("keys", cluster.folder.read("keys"));
    let daemons: Vec<String> = cluster.daemons.iter().map(|one| format!("\"{}\"", one.address)).collect();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\ngroup = \
         \"web\"\n[[group]]\nname = \"web\"\n\
         lottery = {{ service = \"web\", daemons = [{}], keys = \"keys\" }}\n",
        daemons.join(", ")
    );
    Balancer::start_in(folder, &text)
}

fn members(balancer: &Balancer) -> BTreeMap<String, u64> {
    let group = balancer.group("web");
    let members = group["members"].as_array().unwrap().iter();
    members
        .map(|member| (member["name"].as_str().unwrap().to_owned(), member["requests"].as_u64().unwrap()))
        .collect()
}

/// Counts the statuses that a plain client gets for so many requests, each over a connection of its own.
#[track_caller]
fn statuses(address: SocketAddr, count: usize) -> BTreeMap<String, usize> {
    let url = format!("http://{address}/[1-{count}]");
    let curled = curl(&["-H", "connection: close", "-o", "/dev/null", "-w", "%{http_code}\n", &url], b"");
    let mut statuses = BTreeMap::new();
    for status in String::from_utf8(curled.body).unwrap().lines() {
        *statuses.entry(status.to_owned()).or_default() += 1;
    }
    statuses
}

#[test]
fn plain_clients_are_served_by_the_lottery_and_notice_no_crash() {
    let mut servers = Member::several(3, &[]);
    let mut cluster = Cluster::new("127.0.0.1");
    for (server, capacity) in servers.iter().zip([100, 200, 400]) {
        let service = format!("web={},capacity={capacity},health=/", server.address);
        cluster.join(&["--service", &service, "--slow-start", "0s"]);
    }
    cluster.wait();
    let balancers = [balancer(&cluster, "http"), balancer(&cluster, "http"), balancer(&cluster, "tcp")];
    for balancer in &balancers {
        until("it has the lottery's members", || members(balancer).len() == 3);
    }
    // A member whose daemon stood still may be away for a moment, and begins to count anew.
    let shares = |balancer: &Balancer, before: &BTreeMap<String, u64>| {
        let now = members(balancer);
        let share = |one: &Member| {
            let name = one.address.to_string();
            now.get(&name).zip(before.get(&name)).map_or(0, |(now, before)| now.saturating_sub(*before))
        };
        servers.iter().map(share).collect::<Vec<_>>()
    };
    for balancer in &balancers {
        until("shares follow the capacities", || {
            let before = members(balancer);
            assert_eq!(statuses(balancer.address(), 280), BTreeMap::from([("200".to_owned(), 280)]));
            let got = shares(balancer, &before);
            // Rounds of each thread begin anew with each new weight.
            got.iter().zip([40_u64, 80, 160]).all(|(got, due)| got.abs_diff(due) <= 16)
        });
    }
    // The daemon that all ask first dies, and its server.
    cluster.daemons[0].process.kill();
    servers[0].process.kill();
    let dead = servers[0].address.to_string();
    for balancer in &balancers {
        until("the dead is no member any more", || {
            let members = members(balancer);
            members.len() == 2 && !members.contains_key(&dead)
        });
    }
    for balancer in &balancers {
        let retries = balancer.group("web")["retries"].as_u64();
        assert_eq!(statuses(balancer.address(), 300), BTreeMap::from([("200".to_owned(), 300)]));
        assert_eq!(balancer.group("web")["retries"].as_u64(), retries, "none had to be tried again");
    }
    // Without any daemon the balancers go on with what they know.
    for daemon in &mut cluster.daemons[1..] {
        daemon.process.kill();
    }
    balancers[0].process.line("no daemon of the lottery answers");
    assert_eq!(statuses(balancers[0].address(), 50), BTreeMap::from([("200".to_owned(), 50)]));
}

#[test]
fn who_is_drained_in_the_lottery_gets_nothing_from_balancers() {
    let servers = Member::several(2, &[]);
    let services = [0, 1].map(|one: usize| format!("web={}", servers[one].address));
    let mut cluster = Cluster::new("127.0.0.1");
    let control = cluster.control("one.sock");
    let control = control.each_ref().map(String::as_str);
    cluster.join(&[&["--service", &services[0], "--slow-start", "0s"], &control[..]].concat());
    cluster.join(&["--service", &services[1], "--slow-start", "0s"]);
    cluster.wait();
    let balancer = balancer(&cluster, "http");
    until("it has both", || members(&balancer).len() == 2);
    cluster.tell("one.sock", &["drain"]);
    until("it has one", || members(&balancer).len() == 1);
    assert!(members(&balancer).contains_key(&servers[1].address.to_string()));
    // A reload keeps the members that are drawn.
    let said = balancer.run(&["reload"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(statuses(balancer.address(), 20), BTreeMap::from([("200".to_owned(), 20)]));
}

#[test]
fn what_is_wrong_with_a_lottery_is_told_before_anything_starts() {
    let folder = Folder::new();
    let file = |rest: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n{rest}\n"
        )
    };
    let lottery = "lottery = { service = \"web\", daemons = [\"127.0.0.1:1\"], keys = \"none\" }";
    for (rest, why) in [
        ("", "missing key `members`"),
        (&format!("members = [\"a:1\"]\n{lottery}"), "either `members` or `lottery`"),
        (&format!("strategy = \"random\"\n{lottery}"), "as often as the lottery draws them"),
        ("lottery = { service = \"web\", daemons = [], keys = \"none\" }", "must not be empty"),
    ] {
        folder.write("plimsoll.toml", file(rest));
        let run = Run::plimsoll(&["config", "check"], folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{rest}: {:?} {}", run.code, run.err);
    }
    folder.write("plimsoll.toml", file(lottery));
    let run = Run::plimsoll(&["config", "check"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let run = Run::plimsoll(&["config", "show"], folder.path());
    folder.write("plimsoll.toml", &run.out);
    assert_eq!(Run::plimsoll(&["config", "check"], folder.path()).code, Some(0), "{}", run.out);
    let run = Run::plimsoll(&["up"], folder.path());
    assert!(
        run.code == Some(2) && run.err.contains("cannot read the keys none"),
        "{:?} {}",
        run.code,
        run.err
    );
}
