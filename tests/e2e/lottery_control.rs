//! Daemons of a lottery under control: over TLS and a unix socket, several at once, with keys that are
//! changed without a gap.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use plimsoll_wire::rfs::service_id;
use serde_json::{Value, json};

use crate::access::Domain;
use crate::lottery::{Cluster, Daemon};
use crate::stage::{Folder, Process, Run, binary, curl_status, until};

/// The key with which a cluster of a test begins.
const KEY: &str = "1700000000 5151515151515151515151515151515151515151515151515151515151515151\n";

/// Daemons with files of their own, as on hosts of their own.
struct Fleet {
    domain: Domain,
    cluster: Cluster,
    hosts: Vec<String>,
}

impl Fleet {
    /// Starts `count` daemons that know one another, each with a service `web` and a file of keys of its own.
    fn start(count: usize) -> Self {
        let domain = Domain::new();
        domain.folder.write(
            "root.toml",
            "[[grant]]\nidentity = \"spiffe://example.org/ops/*\"\nrole = \
            \"admin\"\n[[grant]]\nidentity = \"spiffe://example.org/view/*\"\nrole = \"viewer\"\n",
        );
        let mut fleet = Self { domain, cluster: Cluster::new("127.0.0.1"), hosts: Vec::new() };
        fleet.cluster.folder.write("keys", KEY);
        (1..=count).for_each(|member| fleet.join(member));
        fleet.cluster.wait();
        fleet
    }

    fn join(&mut self, member: usize) {
        let folder = &self.cluster.folder;
        let peers: Vec<SocketAddr> = self.cluster.daemons.iter().map(|daemon| daemon.address).collect();
        let peers: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
        folder.write(&format!("{member}.keys"), KEY);
        let text = format!(
            "member = {member}\nlisten = \"127.0.0.1:0\"\npeers = {peers:?}\nkeys = \
             \"{member}.keys\"\nslow_start = \"0s\"\n\
             status = \"127.0.0.1:0\"\n[[service]]\nname = \"web\"\nserver = \"127.0.0.1:{member}\"\n\
             [admin]\ncontrol = [\"unix:{}\", \"tls://127.0.0.1:0\"]\naudit = \"{}\"\n{}",
            folder.join(&format!("{member}.sock")).display(),
            folder.join(&format!("{member}.audit")).display(),
            self.domain.doors("admin", "root.toml"),
        );
        let file = format!("{member}.toml");
        folder.write(&file, text);
        self.cluster.run(&["lottery", "--config", &file]);
        let said = self.cluster.daemons.last().unwrap().process.line("listening control tls://");
        let address = said.split("tls://").nth(1).unwrap().split(": ").next().unwrap();
        self.hosts.push(format!("https://{address}"));
    }

    /// Runs a command against hosts, as this person.
    fn by(&self, name: &str, args: &[&str], hosts: &[usize]) -> Run {
        let hosts: Vec<&str> = hosts.iter().map(|host| self.hosts[*host].as_str()).collect();
        let hosts = hosts.join(",");
        self.domain.by(name, &[&["lottery"], args, &["--host", &hosts]].concat())
    }

    fn keys(&self, file: &str) -> Vec<u32> {
        let text = self.cluster.folder.read(file);
        let line = |line: &str| line.split(' ').next()?.parse().ok();
        text.lines().filter_map(line).collect()
    }

    fn audited(&self, member: usize) -> Vec<Value> {
        let text = self.cluster.folder.read(&format!("{member}.audit"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn keys_are_changed_over_control_while_clients_pick() {
    let fleet = Fleet::start(3);
    let (old, all) = (1_700_000_000, [0, 1, 2]);
    // A client that never stops has a file of keys of its own.
    let (stop, picked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let client = {
        let (stop, picked) = (stop.clone(), picked.clone());
        let client = fleet.cluster.client(&all, "keys");
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                client.pick(service_id("web"), b"").unwrap();
                picked.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    until("it picks", || picked.load(Ordering::Relaxed) > 0);
    let file = fleet.cluster.folder.join("keys").display().to_string();
    let rotate = ["keys", "rotate", "--file", &file, "--settle", "1500ms", "-o", "json"];
    for round in 1..=2 {
        let before = fleet.keys("keys");
        let run = fleet.by("alice", &rotate, &all);
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        let now = fleet.keys("keys");
        assert!(now.len() == 1 && now[0] > before[0], "round {round}: {before:?} {now:?}");
        for (place, member) in (1..=3).enumerate() {
            assert_eq!(fleet.keys(&format!("{member}.keys")), now);
            let said = &run.json()[place];
            assert_eq!((&said["ok"], &said["result"]["keys"]), (&json!(true), &json!(now)), "{said}");
        }
        for step in ["is accepted by 3 hosts", "is sent with by 3 hosts", "is forgotten by 3 hosts"] {
            assert!(run.err.contains(step), "{}", run.err);
        }
    }
    let after = picked.load(Ordering::Relaxed);
    until("it picks with the new key", || picked.load(Ordering::Relaxed) >= after + 10_000);
    stop.store(true, Ordering::Relaxed);
    client.join().unwrap();
    for daemon in &fleet.cluster.daemons {
        assert_eq!(daemon.number("lottery_forged"), Some(0.0));
        until("all are there", || daemon.number("lottery_members") == Some(2.0));
    }
    // A client that has only the old key is a stranger.
    fleet.cluster.folder.write("old", KEY);
    let daemons = fleet.cluster.addresses(&all);
    let run = Run::plimsoll(&["pick", "web", "-d", &daemons, "-k", "old"], fleet.cluster.folder.path());
    assert_eq!(run.code, Some(3), "{}", run.err);
    assert!(!fleet.keys("1.keys").contains(&old));

    // No secret is anywhere but in the files of keys.
    let text = fleet.cluster.folder.read("keys");
    let secret = text.lines().last().unwrap().split(' ').nth(1).unwrap();
    assert_eq!(secret.len(), 64);
    for member in 1..=3 {
        let log = fleet.cluster.daemons[member - 1].process.lines().join("\n");
        let audit = fleet.cluster.folder.read(&format!("{member}.audit"));
        assert!(!log.contains(secret) && !audit.contains(secret));
        let verbs: Vec<Value> = fleet.audited(member).iter().map(|line| line["verb"].clone()).collect();
        assert_eq!(
            &verbs[..6],
            ["key-accept", "key-accept", "key-seal", "key-seal", "key-retire", "key-retire"]
        );
        assert!(fleet.audited(member).iter().all(|line| line["who"] == "spiffe://example.org/ops/alice"));
        assert!(audit.contains(&format!("key {}", fleet.keys("keys")[0])), "{audit}");
    }
}

#[test]
fn keys_for_clients_are_made_and_changed_apart_from_those_for_daemons() {
    let fleet = Fleet::start(2);
    let (all, old) = ([0, 1], 1_700_000_000);
    let rotate = ["keys", "rotate", "--clients", "--settle", "1500ms"];
    let run = fleet.by("alice", &rotate, &all);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let first = fleet.keys("1.keys");
    assert!(first.len() == 2 && first[0] == old && first[1] > old, "{first:?}");
    assert!(
        run.out.contains(&format!("member 1: sends with {old}, for clients {}", first[1])),
        "{}",
        run.out
    );
    // Clients get these keys, as the guide describes.
    let theirs = |text: String| -> String {
        text.lines().filter(|line| line.ends_with(" client")).map(|line| format!("{line}\n")).collect()
    };
    fleet.cluster.folder.write("clients", theirs(fleet.cluster.folder.read("2.keys")));
    let daemons = fleet.cluster.addresses(&all);
    let pick = |count: &str| {
        let args = ["pick", "web", "-d", &daemons, "-k", "clients", "-n", count];
        Run::plimsoll(&args, fleet.cluster.folder.path())
    };
    let file = fleet.cluster.folder.join("clients").display().to_string();
    // The key is changed under a client that runs; those for daemons stay.
    let (client, over) = (fleet.cluster.client(&all, "clients"), AtomicBool::new(false));
    let run = thread::scope(|scope| {
        let client = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                client.pick(service_id("web"), b"").unwrap();
            }
        });
        let run = fleet.by("alice", &[&rotate[..], &["--file", &file]].concat(), &all);
        over.store(true, Ordering::Relaxed);
        client.join().unwrap();
        run
    });
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let second = fleet.keys("clients");
    assert!(second.len() == 1 && second[0] > first[1], "{second:?}");
    assert_eq!(fleet.keys("2.keys"), [old, second[0]]);
    until("they are served", || pick("50").code == Some(0));
    // A key for daemons gets into no file that has none.
    let run = fleet.by("alice", &["keys", "rotate", "--settle", "1ms", "--file", &file], &all);
    assert!(run.code == Some(1) && run.err.contains("for clients only"), "{:?} {}", run.code, run.err);
    assert_eq!((fleet.keys("1.keys"), fleet.keys("clients")), (vec![old, second[0]], second.clone()));
    let run = fleet.by("alice", &["keys", "rotate", "--settle", "1ms"], &all);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let third = fleet.keys("1.keys");
    assert!(third.len() == 2 && third[0] != old && third.contains(&second[0]), "{third:?}");
    until("they are served still", || pick("50").code == Some(0));
    for daemon in &fleet.cluster.daemons {
        assert_eq!(daemon.number("lottery_misused"), Some(0.0));
        until("both are there", || daemon.number("lottery_members") == Some(1.0));
    }
}

#[test]
fn a_change_of_keys_stops_where_a_host_does_not_take_it_and_is_begun_again() {
    let mut fleet = Fleet::start(3);
    let old = vec![1_700_000_000];
    let rotate = ["keys", "rotate", "--settle", "1ms"];
    // A daemon would be cut off.
    let run = fleet.by("alice", &rotate, &[0, 1]);
    assert!(run.code == Some(1) && run.err.contains("member 3 is there"), "{:?} {}", run.code, run.err);
    // This person may only look.
    let run = fleet.by("bob", &rotate, &[0, 1, 2]);
    assert!(run.code == Some(1) && run.err.contains("may not key-accept"), "{:?} {}", run.code, run.err);
    assert_eq!(fleet.by("bob", &["keys", "show"], &[0]).code, Some(0));
    // A daemon that cannot write its file takes nothing, and then no daemon seals with the key.
    let keys = fleet.cluster.folder.join("3.keys");
    std::fs::remove_file(&keys).unwrap();
    let run = fleet.by("alice", &rotate, &[0, 1, 2]);
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("1 of 3 hosts did not take it") && run.err.contains("3.keys"), "{}", run.err);
    let half = fleet.keys("1.keys");
    assert_eq!((half.len(), half[0], fleet.keys("2.keys").len()), (2, old[0], 2), "accepted, not sent with");
    fleet.cluster.picks(&[0, 1, 2], &["-n", "50"]);
    // The change is tried twice more: the keys left behind do no harm.
    let run = fleet.by("alice", &rotate, &[0, 1, 2]);
    assert_eq!((run.code, fleet.keys("1.keys").len()), (Some(1), 3), "{}", run.err);
    fleet.cluster.folder.write("3.keys", KEY);
    let run = fleet.by("alice", &rotate, &[0, 1, 2]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let new = fleet.keys("3.keys");
    assert!(new.len() == 1 && new != old && fleet.keys("1.keys") == new && fleet.keys("2.keys") == new);
    // A host is gone.
    fleet.cluster.daemons[2].process.kill();
    for daemon in &fleet.cluster.daemons[..2] {
        until("it is known to be gone", || daemon.number("lottery_members") == Some(1.0));
    }
    let run = fleet.by("alice", &rotate, &[0, 1, 2]);
    assert!(run.code == Some(1) && run.err.contains("nothing was changed"), "{:?} {}", run.code, run.err);
    assert_eq!(fleet.keys("1.keys"), new);
    assert_eq!(fleet.by("alice", &rotate, &[0, 1]).code, Some(0));
}

#[test]
fn daemons_are_looked_at_and_told_by_those_who_may() {
    let fleet = Fleet::start(2);
    let status = |who: &str| fleet.by(who, &["status", "-o", "json"], &[0, 1]);
    until("both are heard of and up", || {
        let run = status("bob");
        run.code == Some(0) && (0..2).all(|place| run.json()[place]["result"]["members"][0]["state"] == "up")
    });
    let said = status("bob").json();
    let one = &said[0]["result"];
    assert_eq!((&one["member"], &one["services"][0]["name"]), (&json!(1), &json!("web")));
    assert_eq!((&one["sealing_key"], &one["pending"]), (&json!(1_700_000_000), &json!(0)));
    assert_eq!(
        (&one["members"][0]["member"], &one["digest_disagreement"]),
        (&json!(2), &one["digest_disagreement"])
    );
    // A client that asked while a daemon was still to join was answered by all daemons in place of one.
    let answered = ["won", "referred"].map(|kind| one["counts"][kind].as_u64().unwrap());
    assert!(answered.iter().sum::<u64>() > 0 && one["counts"]["duplicates"].is_u64(), "{one}");
    let table = fleet.by("bob", &["status"], &[0]);
    assert!(
        table.out.contains("member 1 at 127.0.0.1:") && table.out.contains("sends with key"),
        "{}",
        table.out
    );

    let refused = fleet.by("bob", &["drain"], &[0, 1]);
    assert_eq!((refused.code, refused.err.matches("may not drain").count()), (Some(1), 2), "{}", refused.err);
    assert_eq!(fleet.by("eve", &["status"], &[0]).code, Some(1));
    let run = fleet.by("alice", &["drain"], &[1]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    until("nothing goes there", || {
        let picks = fleet.cluster.picks(&[0, 1], &["-n", "100"]);
        !picks.contains_key("127.0.0.1:2")
    });
    assert_eq!(fleet.by("bob", &["status"], &[1]).code, Some(1), "one that is drained is not well");
    assert_eq!(fleet.by("alice", &["undrain"], &[1]).code, Some(0));
    until("it serves again", || fleet.cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    // An account on the host does not suffice to drain by the address of the numbers.
    let Daemon { status, .. } = &fleet.cluster.daemons[0];
    assert_eq!(curl_status(&["-X", "POST", &format!("http://{status}/v1/drain")], b""), 405);
    // A balancer's drain of a member does not apply to a daemon.
    let run = fleet.domain.by("alice", &["drain", "127.0.0.1:1", "--host", &fleet.hosts[0]]);
    assert!(run.code == Some(1) && run.err.contains("drained as a whole"), "{:?} {}", run.code, run.err);
    // The owner controls the daemon over the socket that the file names.
    let here = |args: &[&str]| {
        let (command, rest) = args.split_first().unwrap();
        Run::plimsoll(&[&["lottery", command], rest, &["-c", "1.toml"]].concat(), fleet.cluster.folder.path())
    };
    let run = here(&["reload"]);
    assert_eq!((run.code, &*run.err), (Some(0), "reloaded: nothing is different\n"), "{}", run.err);
    let text = fleet.cluster.folder.read("1.toml");
    fleet.cluster.folder.write("1.toml", text.replace("slow_start = \"0s\"", "slow_start = \"1s\""));
    let run = here(&["reload"]);
    assert!(run.code == Some(0) && run.out.contains("~ slow_start"), "{}{}", run.out, run.err);
    fleet.cluster.folder.write("1.toml", text.replace("member = 1", "membre = 1"));
    let run = here(&["reload"]);
    assert!(run.code == Some(2) && run.err.contains("1.toml:1:1"), "{:?} {}", run.code, run.err);
    fleet.cluster.folder.write("1.toml", text);
    let status = here(&["status", "-o", "json"]).json();
    assert!(status["reload_error"].as_str().unwrap().contains("1.toml:1:1"), "{status}");

    let mut fleet = fleet;
    let run = fleet.by("alice", &["stop", "--wait"], &[1]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert_eq!(fleet.cluster.daemons[1].process.end(), Some(0));
    let lines = fleet.audited(2);
    let done =
        |verb: &str, result: &str| lines.iter().any(|line| line["verb"] == verb && line["result"] == result);
    assert!(done("drain", "done") && done("undrain", "done") && done("stop", "done"), "{lines:?}");
    assert!(done("drain", "refused"), "{lines:?}");
    fleet.cluster.daemons[0].process.signal(rustix::process::Signal::TERM);
    assert_eq!(fleet.cluster.daemons[0].process.end(), Some(0));
    let lines = fleet.audited(1);
    assert!(lines.iter().any(|line| line["kind"] == "signal" && line["verb"] == "stop"), "{lines:?}");
    assert!(lines.iter().any(|line| line["kind"] == "unix" && line["verb"] == "reload"), "{lines:?}");
}

#[test]
fn a_lost_file_of_keys_is_not_made_anew_where_there_are_others() {
    let folder = Folder::new();
    let args = ["lottery", "-m", "1", "-l", "127.0.0.1:0", "-k", "keys", "--peers", "127.0.0.1:9"];
    let run = Run::plimsoll(&args, folder.path());
    assert!(run.code == Some(2) && run.err.contains("--new-keys"), "{:?} {}", run.code, run.err);
    assert!(!folder.join("keys").exists());
    let process = Process::start(&binary(), &[&args[..], &["--new-keys"]].concat(), folder.path());
    process.line("listening lottery ");
    assert!(folder.join("keys").exists());
}

#[test]
fn a_daemon_under_control_is_held_against_what_it_needs() {
    let folder = Folder::new();
    let file = |admin: &str| {
        folder.write(
            "l.toml",
            format!("member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"keys\"\n[admin]\n{admin}"),
        );
        Run::plimsoll(&["lottery", "--check", "-c", "l.toml"], folder.path())
    };
    let run = file("control = \"tls://127.0.0.1:0\"\n");
    assert!(
        run.code == Some(2) && run.err.contains("l.toml:5:11") && run.err.contains("[admin.tls]"),
        "{}",
        run.err
    );
    let run = file("control = \"unix:/x.sock\"\n[admin.access]\nfile = \"none.toml\"\n");
    assert!(run.code == Some(2) && run.err.contains("none.toml"), "{:?} {}", run.code, run.err);
    assert_eq!(file("control = \"unix:/x.sock\"\n").code, Some(0));
    let run = Run::plimsoll(&["lottery", "status"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("which daemon"), "{:?} {}", run.code, run.err);
}
