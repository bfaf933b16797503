//! The life of a lottery's daemons: they die, are drained, get new settings, and get in each other's way.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;

use crate::lottery::{Cluster, got};
use crate::stage::{Process, curl, curl_status, free_port, until};

/// Returns `true` if each of these daemons sees so many others alive.
fn see(cluster: &Cluster, of: &[usize], others: f64) -> bool {
    of.iter().all(|one| cluster.daemons[*one].number("lottery_alive") == Some(others))
}

#[test]
fn a_crash_is_known_to_all_and_nobody_is_sent_to_the_dead() {
    let services = [1, 2, 3, 4, 5].map(|port| format!("web=127.0.0.1:{port}"));
    let mut cluster = Cluster::start("127.0.0.1", &services.each_ref().map(String::as_str));
    until("all see one another", || see(&cluster, &[0, 1, 2, 3, 4], 4.0));
    until("each serves", || cluster.picks(&[0], &["-n", "200"]).len() == 5);
    cluster.daemons[4].process.kill();
    // Daemons learn it from one another by gossip: that takes a second in virtual time (`plimsoll_cluster`,
    // `lottery::gossip::tests`).
    until("all others know", || see(&cluster, &[0, 1, 2, 3], 3.0));
    until("the others serve, and they alone", || {
        let picks = cluster.picks(&[0, 1, 2, 3], &["-n", "400"]);
        (got(&picks, "127.0.0.1:5"), picks.len()) == (0, 4)
    });
    // The daemon comes back under the same number.
    cluster.daemons.pop();
    cluster.join(&["--service", "web=127.0.0.1:5", "--slow-start", "0s"]);
    until("all see it again", || see(&cluster, &[0, 1, 2, 3, 4], 4.0));
    until("it serves again", || got(&cluster.picks(&[0], &["-n", "100"]), "127.0.0.1:5") > 0);
}

#[test]
fn each_crash_of_five_is_known_to_all_who_are_left() {
    let services = [1, 2, 3, 4, 5, 6, 7].map(|port| format!("web=127.0.0.1:{port}"));
    let mut cluster = Cluster::start("127.0.0.1", &services.each_ref().map(String::as_str));
    until("all see one another", || see(&cluster, &[0, 1, 2, 3, 4, 5, 6], 6.0));
    for last in (2..7).rev() {
        cluster.daemons[last].process.kill();
        let others: Vec<usize> = (0..last).collect();
        until("all others know", || see(&cluster, &others, last as f64 - 1.0));
    }
}

#[test]
fn a_daemon_whose_peers_come_later_finds_them() {
    let mut cluster = Cluster::new("127.0.0.1");
    let place = format!("127.0.0.1:{}", free_port());
    let first = [
        "lottery",
        "--member",
        "1",
        "--listen",
        &place,
        "--keys",
        "keys",
        "--status",
        "127.0.0.1:0",
        "--service",
        "web=127.0.0.1:1",
        "--slow-start",
        "0s",
    ];
    cluster.run(&first);
    cluster.join(&["--service", "web=127.0.0.1:2", "--slow-start", "0s"]);
    until("both see each other", || see(&cluster, &[0, 1], 1.0));
    // The second daemon is alone, and then its only peer comes back at its address.
    cluster.daemons[0].process.kill();
    until("it is alone", || cluster.daemons[1].number("lottery_alive") == Some(0.0));
    let second = cluster.daemons.pop();
    cluster.daemons.pop();
    cluster.run(&first);
    cluster.daemons.extend(second);
    until("both see each other again", || see(&cluster, &[0, 1], 1.0));
    until("both serve", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
}

#[test]
fn of_two_daemons_with_one_number_the_later_one_ends_and_says_why() {
    let mut cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1", "web=127.0.0.1:2"]);
    until("both see each other", || see(&cluster, &[0, 1], 1.0));
    let (keys, first) = (cluster.folder.read("keys"), cluster.daemons[0].address.to_string());
    assert!(!keys.is_empty());
    // Of two daemons that begin in the same second it is unknown which is later.
    let second = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let begun = second();
    until("the next second", || second() > begun);
    cluster.run(&[
        "lottery",
        "--member",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--keys",
        "keys",
        "--status",
        "127.0.0.1:0",
        "--peers",
        &first,
        "--service",
        "web=127.0.0.1:3",
        "--slow-start",
        "0s",
    ]);
    let second = cluster.daemons[1].address.to_string();
    assert_eq!(cluster.daemons[2].process.end(), Some(2));
    let said = cluster.daemons[2].process.line("give this one a number of its own");
    assert!(said.contains(&format!("member 2 is another daemon, at {second}")), "{said}");
    cluster.daemons[1].process.line("is member 2, too");
    until("the first of the two serves again", || {
        let picks = cluster.picks(&[0], &["-n", "100"]);
        got(&picks, "127.0.0.1:2") > 0 && got(&picks, "127.0.0.1:3") == 0
    });
}

#[test]
fn a_load_that_is_told_no_more_is_not_known() {
    let service = |port| format!("web=127.0.0.1:{port},load=busy / 4");
    let cluster = Cluster::start("127.0.0.1", &[&service(1), "web=127.0.0.1:2"]);
    let target = format!("http://{}/v1/report", cluster.daemons[0].status);
    assert_eq!(curl_status(&["-d", "name=busy&value=60", &target], b""), 204);
    let daemon = &cluster.daemons[0];
    until("the loaded one gets little", || {
        (1..70).contains(&got(&cluster.picks(&[0, 1], &["-n", "300"]), "127.0.0.1:1"))
    });
    assert_eq!(daemon.number("lottery_loads_lost"), Some(0.0));
    // It takes ten seconds until the number is old, and three until the load is not known.
    until("it is lost", || daemon.number("lottery_loads_lost") == Some(1.0));
    daemon.process.line("the load of 1 service is not known any more");
    until("both get the same", || {
        (100..200).contains(&got(&cluster.picks(&[0, 1], &["-n", "300"]), "127.0.0.1:1"))
    });
}

#[test]
fn a_daemon_is_drained_by_its_owner_and_taken_back() {
    let mut cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1"]);
    let control = cluster.control("two.sock");
    let control = control.each_ref().map(String::as_str);
    cluster.join(&[&["--service", "web=127.0.0.1:2", "--slow-start", "0s"], &control[..]].concat());
    cluster.wait();
    until("both serve", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    let mode = std::fs::metadata(cluster.folder.join("two.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else's");
    // Any account on the host reaches the address of the numbers: nothing can be done there, with a control
    // socket or without.
    for daemon in &cluster.daemons {
        for path in ["/v1/drain", "/v1/undrain", "/v1/reload", "/v1/stop", "/v1/keys/accept"] {
            let url = format!("http://{}{path}", daemon.status);
            assert_eq!(curl_status(&["-X", "POST", &url], b""), 405, "{path}");
        }
        assert_eq!(daemon.number("lottery_draining"), Some(0.0));
    }
    cluster.tell("two.sock", &["drain"]);
    let daemon = &cluster.daemons[1];
    until("it is drained", || daemon.number("lottery_draining") == Some(1.0));
    until("nothing goes there", || got(&cluster.picks(&[0, 1], &["-n", "100"]), "127.0.0.1:2") == 0);
    cluster.tell("two.sock", &["undrain"]);
    until("it serves again", || got(&cluster.picks(&[0, 1], &["-n", "100"]), "127.0.0.1:2") > 0);
}

#[test]
fn a_daemon_reads_its_file_again() {
    let mut cluster = Cluster::new("127.0.0.1");
    let file = |rest: &str| {
        format!(
            "member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"keys\"\nslow_start = \"0s\"\nstatus = \
             \"127.0.0.1:0\"\n{rest}"
        )
    };
    let service =
        |name: &str, port: u16| format!("[[service]]\nname = \"{name}\"\nserver = \"127.0.0.1:{port}\"\n");
    cluster.folder.write("one.toml", file(&service("web", 1)));
    cluster.run(&["lottery", "--config", "one.toml"]);
    cluster.join(&["--service", "web=127.0.0.1:2", "--slow-start", "0s"]);
    cluster.wait();
    until("both serve", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    let hang_up = |cluster: &Cluster, said: &str| {
        cluster.daemons[0].process.signal(Signal::HUP);
        cluster.daemons[0].process.line(said)
    };
    // A mistake in the file changes nothing.
    cluster.folder.write("one.toml", file("[[service]]\nname = \"web\"\n"));
    let said = hang_up(&cluster, "not reloaded");
    assert!(said.contains("one.toml") && said.contains("missing key"), "{said}");
    until("both serve still", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    // The file has another address for the same service, and another service.
    cluster.folder.write("one.toml", file(&format!("{}{}", service("web", 3), service("mail", 4))));
    hang_up(&cluster, "+ service mail: server 127.0.0.1:4");
    cluster.daemons[0].process.line("~ service web: server 127.0.0.1:1 -> 127.0.0.1:3");
    until("the other daemon knows the new place", || {
        let picks = cluster.picks(&[1], &["-n", "100"]);
        got(&picks, "127.0.0.1:3") > 0 && got(&picks, "127.0.0.1:1") == 0
    });
    // Another key: first all know it, then daemons seal with it, then the old one goes. No daemon starts
    // anew.
    let old = cluster.folder.read("keys").lines().nth(1).unwrap().to_owned();
    let new = format!("4294967295 {}", "5".repeat(64));
    let number = old.split(' ').next().unwrap().to_owned();
    for (keys, said) in [
        (format!("{old}\n{new}\n"), format!("~ keys: {number} -> {number}, 4294967295")),
        (format!("{new}\n{old}\n"), format!("~ keys: {number}, 4294967295 -> 4294967295, {number}")),
        (format!("{new}\n"), format!("~ keys: 4294967295, {number} -> 4294967295")),
    ] {
        cluster.folder.write("keys", &keys);
        for daemon in &cluster.daemons {
            daemon.process.signal(Signal::HUP);
            daemon.process.line(&said);
        }
        assert_eq!(cluster.picks(&[0, 1], &["-n", "100"]).values().sum::<usize>(), 100);
    }
    until("both serve still", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    for daemon in &cluster.daemons {
        assert_eq!(daemon.number("lottery_forged"), Some(0.0));
    }
    let told =
        curl(&["-d", "name=x&value=1", &format!("http://{}/v1/report", cluster.daemons[0].status)], b"");
    assert_eq!(told.code, Some(0), "{}", told.talk);
}

#[test]
fn servers_of_grpc_say_how_each_service_is() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/health.py");
    let mut cluster = Cluster::new("127.0.0.1");
    let mut server = Process::start(Path::new("/usr/bin/python3"), &[script], cluster.folder.path());
    let port = server.line("port ").split_once(' ').unwrap().1.to_owned();
    let service = |name: &str, asked: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nserver = \"127.0.0.1:{port}\"\n\
             health = {{ grpc = \"{asked}\", interval = \"200ms\" }}\n"
        )
    };
    cluster.folder.write(
        "one.toml",
        format!(
            "member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"keys\"\nslow_start = \"0s\"\nstatus = \
             \"127.0.0.1:0\"\n{}{}",
            service("web", ""),
            service("shop", "shop")
        ),
    );
    cluster.run(&["lottery", "--config", "one.toml"]);
    cluster.daemons[0].process.line("is down: its health check fails: says NOT_SERVING");
    until("the server as a whole serves", || cluster.pick(&[0], &[]).code == Some(0));
    server.kill();
    until("it is gone", || cluster.pick(&[0], &[]).code != Some(0));
    cluster.daemons[0].process.line("is down: its health check fails: connection refused");
}
