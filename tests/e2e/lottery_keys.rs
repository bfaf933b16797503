//! Clients of a lottery with keys of their own are served as before, and cannot pass for a daemon.

use std::net::UdpSocket;

use plimsoll_wire::rfs::{AnswerCommit, EncodeDatagram as _, KeyRing, KeyRole, NodeReport, NodeState};
use rustix::process::Signal;

use crate::lottery::{Cluster, got};
use crate::stage::{Balancer, Folder, Run, get, until};

/// Starts a cluster of two with the file `clients`, which has nothing but the clients' key.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new("127.0.0.1");
    let clients = format!("9 {} client\n", "b".repeat(64));
    cluster.folder.write("keys", format!("7 {}\n{clients}", "a".repeat(64)));
    cluster.folder.write("clients", clients);
    for server in ["web=127.0.0.1:1", "web=127.0.0.1:2"] {
        cluster.join(&["--service", server, "--slow-start", "0s"]);
    }
    cluster.wait();
    cluster
}

#[test]
fn keys_are_rotated_without_a_gap() {
    let mut cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1"]);
    let old = cluster.folder.read("keys");
    let key = old.lines().nth(1).unwrap();
    let new = format!("4294967295 {}", "5".repeat(64));
    cluster.folder.write("keys", format!("{new}\n{key}\n"));
    cluster.join(&["--service", "web=127.0.0.1:2", "--slow-start", "0s"]);
    // The first daemon cannot open what the second seals yet.
    until("the new key is not known", || {
        cluster.daemons[0].number("lottery_unknown_key").is_some_and(|count| count > 0.0)
    });
    assert_eq!(cluster.pick(&[0], &[]).code, Some(3));
    // The key is known to all before any daemon seals with it.
    cluster.folder.write("keys", format!("{key}\n{new}\n"));
    cluster.daemons.pop();
    cluster.join(&["--service", "web=127.0.0.1:2", "--slow-start", "0s"]);
    let two = cluster.daemons[1].status;
    until("both serve", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    assert!(get(two, "/metrics").text().contains("lottery_members"));
}

#[test]
fn a_client_with_a_key_for_clients_picks_and_follows() {
    let cluster = cluster();
    let daemons = cluster.addresses(&[0, 1]);
    let pick = |keys: &str, more: &[&str]| {
        let args = ["pick", "web", "--daemon", &daemons, "--keys", keys, "-n", "100"];
        Run::plimsoll(&[&args, more].concat(), cluster.folder.path())
    };
    // The client asks one daemon, or all; a file of both kinds of keys works as before.
    for (keys, more) in [("clients", &[][..]), ("clients", &["--lottery"]), ("keys", &[])] {
        until("both are picked", || {
            let run = pick(keys, more);
            // Silence means that the machine stood still.
            if run.code == Some(3) {
                return false;
            }
            assert_eq!(run.code, Some(0), "{keys}: {}{}", run.out, run.err);
            ["127.0.0.1:1", "127.0.0.1:2"].iter().all(|server| run.out.contains(server))
        });
    }
    // A balancer follows the daemons with the same key.
    let folder = Folder::new();
    folder.write("clients", cluster.folder.read("clients"));
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n\
         lottery = {{ service = \"web\", daemons = [\"{}\"], keys = \"clients\" }}\n",
        cluster.daemons[0].address
    );
    let balancer = Balancer::start_in(folder, &text);
    until("it has both", || balancer.group("web")["members"].as_array().unwrap().len() == 2);
    // No message was misused.
    for daemon in &cluster.daemons {
        for count in ["lottery_misused", "lottery_forged", "lottery_unknown_key", "lottery_unsent"] {
            assert_eq!(daemon.number(count), Some(0.0), "{count}");
        }
    }
    // A daemon does not start with it.
    let args = ["lottery", "-m", "3", "-l", "127.0.0.1:0", "-k", "clients"];
    let run = Run::plimsoll(&args, cluster.folder.path());
    assert!(run.code == Some(2) && run.err.contains("are for clients"), "{:?} {}", run.code, run.err);
}

#[test]
fn a_balancer_that_follows_reads_keys_again_that_change() {
    let cluster = cluster();
    let keys = cluster.folder.join("clients");
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n\
         lottery = {{ service = \"web\", daemons = [\"{}\", \"{}\"], keys = \"{}\" }}\n",
        cluster.daemons[0].address,
        cluster.daemons[1].address,
        keys.display()
    );
    let balancer = Balancer::start_in(Folder::new(), &text);
    let members = || balancer.group("web")["members"].as_array().unwrap().len();
    until("it has both", || members() == 2);
    // The other key is beside the old one at first, then alone.
    let (daemons, old) = (format!("7 {}\n", "a".repeat(64)), format!("9 {} client\n", "b".repeat(64)));
    let new = format!("10 {} client\n", "c".repeat(64));
    cluster.folder.write("keys", format!("{daemons}{old}{new}"));
    for daemon in &cluster.daemons {
        daemon.process.signal(Signal::HUP);
    }
    cluster.folder.write("new", &new);
    let takes = |keys: &str, one: &usize| {
        let daemon = cluster.addresses(&[*one]);
        let args = ["pick", "web", "--daemon", &daemon, "--keys", keys];
        Run::plimsoll(&args, cluster.folder.path()).code == Some(0)
    };
    until("both keys count", || [0, 1].iter().all(|one| takes("new", one)));
    cluster.folder.write("clients", &new);
    balancer.process.line("read again: [10]");
    cluster.folder.write("keys", format!("{daemons}{new}"));
    cluster.folder.write("old", &old);
    for daemon in &cluster.daemons {
        daemon.process.signal(Signal::HUP);
        daemon.process.line("~ keys for clients: 9, 10 -> 10");
    }
    let unknown = || cluster.daemons[0].number("lottery_unknown_key");
    let before = unknown();
    // The balancer goes on to follow, and has asked no daemon with a key that does not count any more.
    cluster.daemons[1].process.signal(Signal::TERM);
    until("it has one", || members() == 1);
    let received = || cluster.daemons[0].number("lottery_received");
    let then = received();
    until("what was counted is told", || received() > then);
    assert_eq!(unknown(), before);
    assert!(!takes("old", &0));
}

#[test]
fn who_says_with_a_key_for_clients_that_a_daemon_leaves_changes_nothing() {
    let cluster = cluster();
    until("both are picked", || cluster.picks(&[0], &["-n", "100"]).len() == 2);
    let daemon = &cluster.daemons[0];
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(daemon.address).unwrap();
    let now = this_second();
    let leaving = |keys: &KeyRing| {
        let (state, services, ids) = (NodeState::Leaving, vec![], vec![]);
        let report = NodeReport {
            member: 2,
            incarnation: now,
            seq: 1 << 30,
            state,
            digest: 0,
            services,
            ids,
            heard: vec![],
        };
        let mut out = Vec::new();
        report.encode(keys, &mut out).unwrap();
        out
    };
    let clients: KeyRing = cluster.folder.read("clients").parse().unwrap();
    assert_eq!(clients.role(), KeyRole::Client);
    let mut commit = Vec::new();
    AnswerCommit { member: 2, incarnation: now, ids: vec![1] }.encode(&clients, &mut commit).unwrap();
    for datagram in [leaving(&clients), commit] {
        socket.send(&datagram).unwrap();
    }
    until("they are dropped and counted", || daemon.number("lottery_misused") == Some(2.0));
    // A daemon that stood still is passed over until it goes on.
    until("it is there", || daemon.number("lottery_members") == Some(1.0));
    until("it serves on", || got(&cluster.picks(&[0], &["-n", "200"]), "127.0.0.1:2") > 20);
    // A message sealed with a key for daemons would have been accepted.
    let daemons: KeyRing = cluster.folder.read("keys").parse().unwrap();
    socket.send(&leaving(&daemons)).unwrap();
    until("it is gone", || got(&cluster.picks(&[0], &["-n", "100"]), "127.0.0.1:2") == 0);
    assert_eq!(daemon.number("lottery_misused"), Some(2.0));
}

/// Returns the seconds since 1970.
fn this_second() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u32::try_from(since.as_secs()).unwrap()
}
