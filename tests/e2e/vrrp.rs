//! Two balancers with one address between them, which keepalived (VRRP) moves: each host is a network namespace, joined to the others
//! by a bridge. The recipe is that of `docs/guide/high-availability.md`.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Folder, Process, Run, binary, found, part, until};

/// The address that clients know.
const SHARED: &str = "198.18.0.100";

/// A network namespace, held by a process that sleeps in it.
pub(crate) struct Host {
    pub(crate) name: &'static str,
    pub(crate) holder: Process,
}

impl Host {
    pub(crate) fn new(name: &'static str, folder: &Path) -> Self {
        let host =
            Self { name, holder: Process::start(&part("unshare"), &["--net", "sleep", "600"], folder) };
        until("a network namespace", || {
            let own = std::fs::read_link("/proc/self/ns/net").unwrap();
            let space = std::fs::read_link(format!("/proc/{}/ns/net", host.holder.pid()));
            space.is_ok_and(|space| space != own)
        });
        host
    }

    fn space(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.holder.pid())
    }

    /// Runs a program there and waits for it.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str], folder: &Path) -> Run {
        let space = self.space();
        let run = Run::of(&part("nsenter"), &[&[space.as_str(), "--"], words].concat(), folder);
        assert_eq!(run.code, Some(0), "{}: {words:?}: {}{}", self.name, run.out, run.err);
        run
    }

    /// Starts one.
    pub(crate) fn start(&self, words: &[&str], folder: &Path) -> Process {
        let space = self.space();
        Process::start(&part("nsenter"), &[&[space.as_str(), "--"], words].concat(), folder)
    }

    fn has_address(&self, folder: &Path) -> bool {
        self.run(&["ip", "-4", "address", "show", "dev", "eth0"], folder).out.contains(SHARED)
    }
}

/// Two balancers and a client on a network of their own.
struct Lab {
    folder: Folder,
    hub: Host,
    client: Host,
    balancers: [Host; 2],
    /// Of each balancer: the member beside it, the balancer under its shell, keepalived.
    parts: Vec<[Process; 3]>,
}

impl Lab {
    fn new() -> Self {
        let folder = Folder::new();
        let host = |name| Host::new(name, folder.path());
        let (hub, client, balancers) = (host("hub"), host("client"), [host("one"), host("other")]);
        hub.run(&["ip", "link", "add", "br0", "type", "bridge"], folder.path());
        hub.run(&["ip", "link", "set", "br0", "up"], folder.path());
        for (number, host) in [&client, &balancers[0], &balancers[1]].into_iter().enumerate() {
            let (port, pid) = (format!("p-{}", host.name), host.holder.pid().to_string());
            let pair = ["ip", "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &pid];
            hub.run(&pair, folder.path());
            hub.run(&["ip", "link", "set", &port, "master", "br0", "up"], folder.path());
            let address = format!("198.18.0.{}/24", number + 1);
            host.run(&["ip", "link", "set", "lo", "up"], folder.path());
            host.run(&["ip", "address", "add", &address, "dev", "eth0"], folder.path());
            host.run(&["ip", "link", "set", "eth0", "up"], folder.path());
        }
        Self { folder, hub, client, balancers, parts: Vec::new() }
    }

    /// Starts what runs on each of the two hosts, and waits until the first has the address.
    fn begin(&mut self) {
        for (number, host) in self.balancers.iter().enumerate() {
            let place = self.folder.join(host.name);
            std::fs::create_dir(&place).unwrap();
            let member =
                host.start(&[binary().to_str().unwrap(), "member", "--listen", "127.0.0.1:9001"], &place);
            let file = format!(
                "[[listener]]\naddress = \"0.0.0.0:8080\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n\
                 members = [\"127.0.0.1:9001\"]\n[admin]\nlisten = \"off\"\ncontrol = \"unix:{}/c.sock\"\n",
                place.display()
            );
            std::fs::write(place.join("plimsoll.toml"), file).unwrap();
            std::fs::write(place.join("vrrp"), "0\n").unwrap();
            // What ExecStopPost= of the unit does: however the balancer ends, keepalived hears of it at once.
            // It ends with the shell, as everything here ends with the test.
            let script = "setpriv --pdeathsig KILL \"$0\" up & echo $! >up.pid; wait $!; echo -254 >vrrp";
            let up = host.start(&["sh", "-c", script, binary().to_str().unwrap()], &place);
            up.line("listening http");
            let rules = place.join("rules.nft");
            std::fs::write(&rules, rules_of_packets()).unwrap();
            host.run(&[part("nft").to_str().unwrap(), "-f", rules.to_str().unwrap()], &place);
            let conf = place.join("keepalived.conf");
            std::fs::write(&conf, keepalived(150 - 50 * number, &place)).unwrap();
            let words = [
                part("keepalived").to_str().unwrap().to_owned(),
                "--dont-fork".into(),
                "--log-console".into(),
                format!("--use-file={}", conf.display()),
                format!("--pid={}", place.join("k.pid").display()),
                format!("--vrrp_pid={}", place.join("v.pid").display()),
            ];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let keeper = host.start(&words, &place);
            self.parts.push([member, up, keeper]);
        }
        until("the first has the address", || self.balancers[0].has_address(self.folder.path()));
        until("the other has not", || !self.balancers[1].has_address(self.folder.path()));
    }

    fn load(&self, target: &str, report: &str) -> Process {
        let script = format!("exec \"$0\" load {target} -o json >{report}");
        self.client.start(&["sh", "-c", &script, binary().to_str().unwrap()], self.folder.path())
    }

    fn report(&self, name: &str) -> Value {
        serde_json::from_str(&self.folder.read(name)).unwrap()
    }
}

/// The configuration of the guide, with paths of the test.
fn keepalived(priority: usize, place: &Path) -> String {
    format!(
        "global_defs {{\n  vrrp_version 3\n}}\n\
         vrrp_track_file balancer {{\n  file {}/vrrp\n}}\n\
         vrrp_instance web {{\n  state BACKUP\n  interface eth0\n  virtual_router_id 51\n  priority {priority}\n  \
         advert_int 0.2\n  virtual_ipaddress {{\n    {SHARED}/24\n  }}\n  track_file {{\n    balancer weight 1\n  }}\n}}\n",
        place.display()
    )
}

/// The rules for nft of the guide: whoever asks for the address where nobody listens gets no answer, and asks again.
fn rules_of_packets() -> String {
    let first = format!("ip daddr {SHARED} tcp dport 8080 tcp flags & (syn | ack) == syn");
    format!(
        "table ip plimsoll {{\n  chain input {{\n    type filter hook input priority filter\n    {first} socket transparent {{ 0, 1 }} accept\n    \
         {first} drop\n  }}\n}}\n"
    )
}

/// Asks twice from one port, and each time waits for the balancer to close.
const FROM_ONE_PORT: &str = "\
import socket, sys
for _ in range(2):
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wire.settimeout(5)
        wire.bind(('', 45678))
        wire.connect((sys.argv[1], 8080))
        wire.sendall(b'GET / HTTP/1.1\\r\\nHost: web\\r\\nConnection: close\\r\\n\\r\\n')
        answer = b''.join(iter(lambda: wire.recv(65536), b''))
        assert answer.startswith(b'HTTP/1.1 200 '), answer
";

/// Requests that failed, in whatever way.
fn failed(report: &Value) -> u64 {
    report["failed"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

/// Can there be network namespaces here? If not that is said, and nothing is shown.
pub(crate) fn possible() -> bool {
    let run = Run::of(&part("unshare"), &["--net", "true"], Path::new("/"));
    if run.code != Some(0) {
        eprintln!("SKIPPED, nothing was run: no network namespace may be made here: {}", run.err.trim());
    }
    run.code == Some(0)
}

#[test]
fn the_address_moves_when_the_balancer_is_killed() {
    if !possible() {
        return;
    }
    let mut lab = Lab::new();
    lab.begin();
    let place = lab.folder.path().to_owned();
    // Connections that stay, and new ones all the time.
    let url = format!("http://{SHARED}:8080/");
    let kept =
        lab.load(&format!("{url} --rate 100 --duration 14s --connect-timeout 8s --timeout 10s"), "kept.json");
    let fresh = lab.load(
        &format!(
            "{url} --rate 50 --duration 14s --connect-timeout 8s --timeout 10s --header 'Connection: close'"
        ),
        "fresh.json",
    );
    until("load arrives", || {
        let control = format!("unix:{}", place.join("one/c.sock").display());
        let run = Run::plimsoll(&["members", "web", "-o", "json", "--control", &control], &place);
        run.code == Some(0) && run.json()["groups"][0]["members"][0]["requests"].as_u64() > Some(100)
    });
    let control = format!("unix:{}", place.join("one/c.sock").display());
    let counted = Instant::now();
    let carried = Run::plimsoll(&["status", "-o", "json", "--control", &control], &place).json()["listeners"]
        [0]["connections"]
        .as_u64()
        .unwrap();
    let pid: i32 = std::fs::read_to_string(place.join("one/up.pid")).unwrap().trim().parse().unwrap();
    let killed = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    until("the other has the address", || lab.balancers[1].has_address(&place));
    let moved = killed.elapsed();
    for mut load in [kept, fresh] {
        load.end();
    }

    let (kept, fresh) = (lab.report("kept.json"), lab.report("fresh.json"));
    let (ok, lost) =
        (kept["ok"].as_u64().unwrap() + fresh["ok"].as_u64().unwrap(), failed(&kept) + failed(&fresh));
    eprintln!(
        "killed with {carried} connections; the address moved in {} ms; of {} requests {lost} failed",
        moved.as_millis(),
        ok + lost
    );
    assert!(moved < Duration::from_secs(5), "{moved:?}");
    // A request of each connection that it carried, and of those that were made between the count and the end of it: the generator may
    // be late, and make all at once that are due. However long the address takes to move, nobody is refused meanwhile.
    let came = (150.0 * (killed.duration_since(counted).as_secs_f64() + 0.25)).ceil() as u64;
    assert!(
        lost <= carried + came,
        "{lost} failed, {carried} connections were carried, {came} may have come meanwhile: {kept} {fresh}"
    );
    let refused = [&kept, &fresh].map(|report| report["failed"]["connect"].as_u64().unwrap_or(0));
    assert_eq!(refused, [0, 0], "{kept} {fresh}");
    assert!(ok > 1200, "{kept} {fresh}");
}

#[test]
fn the_address_moves_when_the_machine_dies() {
    if !possible() {
        return;
    }
    let mut lab = Lab::new();
    lab.begin();
    let place = lab.folder.path().to_owned();
    let url = format!("http://{SHARED}:8080/");
    // A port that a client uses again within a minute is found as what is left of its last connection, which the balancer closed first,
    // and that is no reason to say nothing.
    let words = [part("python3").display().to_string(), "-c".into(), FROM_ONE_PORT.into(), SHARED.into()];
    lab.client.run(&words.each_ref().map(String::as_str), &place);
    let fresh = lab.load(
        &format!(
            "{url} --rate 50 --duration 12s --connect-timeout 8s --timeout 10s --header 'Connection: close'"
        ),
        "fresh.json",
    );
    let arrived = || {
        let control = format!("unix:{}", place.join("one/c.sock").display());
        let run = Run::plimsoll(&["members", "web", "-o", "json", "--control", &control], &place);
        (run.code == Some(0)).then(|| run.json()["groups"][0]["members"][0]["requests"].as_u64().unwrap_or(0))
    };
    found("load arrives", || arrived().filter(|requests| *requests > 50));
    let died = Instant::now();
    lab.hub.run(&["ip", "link", "set", "p-one", "down"], &place);
    until("the other has the address", || lab.balancers[1].has_address(&place));
    let moved = died.elapsed();
    let mut fresh = fresh;
    fresh.end();
    let fresh = lab.report("fresh.json");
    let lost = failed(&fresh);
    eprintln!("the machine died; the address moved in {} ms; {lost} requests failed", moved.as_millis());
    assert!(moved < Duration::from_secs(6), "{moved:?}");
    // Those that were under way when it died; whoever came after it only waited for its packets to be sent again.
    assert!(lost <= 10, "{fresh}");
}
