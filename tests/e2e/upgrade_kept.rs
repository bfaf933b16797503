//! The state that a new process keeps while its origin is away: sources of members that fail, a store in
//! etcd.

use std::net::SocketAddr;

use crate::stage::{Balancer, Etcd, Folder, Load, Member, get, members_list, until};
use crate::upgrade::Line;

fn list(members: &[SocketAddr]) -> String {
    format!("members = {}\n", members_list(members))
}

/// Returns a file with one listener, on group `web`; each group has its sources, and rejects no request,
/// however many come at once.
fn text(groups: &[(&str, &str)]) -> String {
    let one = |(name, sources): &(&str, &str)| {
        format!(
            "[[group]]\nname = \"{name}\"\nslow_start = \"0s\"\nadmission = false\ntimeouts = {{ connect = \
             \"20s\" }}\ndiscover = [{sources}]\n"
        )
    };
    let groups: String = groups.iter().map(one).collect();
    format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{groups}")
}

/// Returns a source.
fn file(folder: &Folder, name: &str) -> String {
    format!("{{ file = \"{}\", interval = \"100ms\" }}", folder.join(name).display())
}

/// Returns the members of a group.
fn members(balancer: &Balancer, group: &str) -> Vec<String> {
    let group = balancer.group(group);
    let mut names: Vec<String> = group["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn names(members: &[SocketAddr]) -> Vec<String> {
    let mut names: Vec<String> = members.iter().map(ToString::to_string).collect();
    names.sort();
    names
}

fn error(balancer: &Balancer, group: &str) -> String {
    balancer.group(group)["discovery"][0]["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_source_that_fails_empties_no_group_of_the_next_process() {
    let three = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| three[at].address);
    let folder = Folder::new();
    let [web, api, old] = ["web", "api", "old"].map(|name| file(&folder, name));
    let both = text(&[("web", &web), ("api", &api), ("old", &old)]);
    folder.write(
        "web",
        format!("members = [{{ address = \"{a}\", capacity = 2.5, max_connections = 7 }}, \"{b}\"]"),
    );
    folder.write("api", list(&[b]));
    folder.write("old", list(&[c]));
    let balancer = Balancer::start_in(folder, &both);
    let mut line = Line { pids: vec![balancer.process.pid()], balancer };
    assert_eq!(members(&line.balancer, "web"), names(&[a, b]));
    let folder = line.balancer.folder();
    for gone in ["web", "old"] {
        std::fs::remove_file(folder.join(gone)).unwrap();
    }
    folder.write("api", list(&[]));
    for (group, why) in [("web", "No such file"), ("api", "not believed"), ("old", "No such file")] {
        until("a source that fails", || error(&line.balancer, group).contains(why));
    }
    let mut load = Load::start(line.balancer.address(), "GET", 100.0);
    load.more(20);
    // Two upgrades: state that was taken over is passed on, too.
    for _ in 0..2 {
        line.upgrade();
        assert_eq!(members(&line.balancer, "web"), names(&[a, b]));
        assert_eq!(members(&line.balancer, "api"), names(&[b]));
        let member = line.balancer.member(a);
        assert_eq!((member["capacity"].as_f64(), member["limit"].as_u64()), (Some(2.5), Some(7)));
        load.more(20);
    }
    assert_eq!(get(line.balancer.address(), "/").status, 200);
    assert!(error(&line.balancer, "web").contains("No such file"), "it says so");
    // A source that is another one now has no members yet.
    let folder = line.balancer.folder();
    let other = file(folder, "other");
    line.balancer.write(&text(&[("web", &web), ("api", &api), ("old", &other)]));
    line.upgrade();
    assert_eq!(members(&line.balancer, "old"), names(&[]));
    assert_eq!(members(&line.balancer, "web"), names(&[a, b]));
    // A list of the source itself applies.
    line.balancer.folder().write("web", list(&[b, c]));
    until("what the source says", || members(&line.balancer, "web") == names(&[b, c]));
    until("no error", || error(&line.balancer, "web").is_empty());
    load.more(20);
    load.stop_unharmed();
}

/// Returns `true` if the store can be used.
fn usable(balancer: &Balancer) -> bool {
    balancer.status()["store"]["error"].is_null()
}

#[track_caller]
fn told(balancer: &Balancer, args: &[&str]) {
    let run = balancer.run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
}

#[test]
fn while_etcd_is_away_the_next_process_goes_on_with_what_was_seen_of_it() {
    let mut etcd = Etcd::start(1);
    let three = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| three[at].address);
    let config = format!(
        "[store]\netcd = \"/plimsoll/\"\n[etcd]\nendpoints = {}\ntimeout = \"20s\"\n{}[[group]]\nname = \
         \"fixed\"\nmembers = {}\n",
        etcd.endpoints(),
        text(&[("web", "{ registered = true }")]),
        members_list(&[c])
    );
    let mut line = Line::start(&config);
    for member in [a, b] {
        told(&line.balancer, &["add", "member", &member.to_string(), "--group", "web"]);
    }
    told(&line.balancer, &["drain", &a.to_string()]);
    told(&line.balancer, &["disable", "member", &c.to_string()]);
    let stands = |line: &Line, a_is: &str, c_is: &str| {
        let state = |group: &str, member: SocketAddr| {
            let group = line.balancer.group(group);
            let all = group["members"].as_array().unwrap();
            let found = all.iter().find(|one| one["name"] == member.to_string());
            found.and_then(|one| one["state"].as_str()).unwrap_or("absent").to_owned()
        };
        let found = members(&line.balancer, "web") == names(&[a, b]);
        found && state("web", a) == a_is && state("fixed", c) == c_is
    };
    until("all is in force", || stands(&line, "draining", "disabled"));
    let mut load = Load::start(line.balancer.address(), "GET", 100.0);
    etcd.kill(0);
    until("the store is lost", || !usable(&line.balancer));
    // Two upgrades: state that was taken over is passed on, too.
    for _ in 0..2 {
        line.upgrade();
        assert!(stands(&line, "draining", "disabled"), "{}", line.balancer.status());
        assert!(!usable(&line.balancer));
        load.more(20);
    }
    // Nothing can be changed as long as the others would not know of it.
    let refused = line.balancer.run(&["undrain", &a.to_string()]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.out, refused.err);
    // Once etcd is there, its state applies.
    etcd.restart(0);
    etcd.healthy();
    etcd.ctl(&["del", &format!("/plimsoll/disable/member/fixed/{c}")]);
    until("the store is back", || usable(&line.balancer));
    until("what is there now", || stands(&line, "draining", "up"));
    told(&line.balancer, &["undrain", &a.to_string()]);
    until("it is done", || stands(&line, "up", "up"));
    load.more(20);
    load.stop_unharmed();
}
