//! Two balancers share one address, which keepalived (VRRP) moves: each host is a network namespace, joined
//! to the others by a bridge. The recipe is that of `docs/guide/high-availability.md`.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Folder, Process, Run, binary, part, until};

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
            // sleeps: for longer than any test
            Self { name, holder: Process::start(&part("unshare"), &["--net", "sleep", "3600"], folder) };
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

    /// Starts a program there.
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
    /// The processes of each balancer: the member beside it, the balancer under its shell, keepalived.
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

    /// Starts the processes of the two hosts, and waits until the first has the address.
    fn begin(&mut self) {
        for (number, host) in self.balancers.iter().enumerate() {
            let place = self.folder.join(host.name);
            std::fs::create_dir(&place).unwrap();
            let member =
                host.start(&[binary().to_str().unwrap(), "member", "--listen", "127.0.0.1:9001"], &place);
            let file = format!(
                "[[listener]]\naddress = \"0.0.0.0:8080\"\ngroup = \"web\"\n[[group]]\nname = \
                 \"web\"\nadmission = false\ntimeouts = {{ connect = \"20s\" }}\n\
                 members = [\"127.0.0.1:9001\"]\n[admin]\nlisten = \"off\"\ncontrol = \"unix:{}/c.sock\"\n",
                place.display()
            );
            std::fs::write(place.join("plimsoll.toml"), file).unwrap();
            std::fs::write(place.join("vrrp"), "0\n").unwrap();
            // The script does the work of ExecStopPost= of the unit: however the balancer ends, keepalived
            // learns of it at once. The balancer ends with the shell, as everything here ends with the test.
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

    /// Starts load on the address, until it is stopped. However long the address takes to move, no waiting
    /// client gives up.
    fn load(&self, rate: &str, more: &str, report: &str) -> Process {
        let script = format!(
            "exec \"$0\" load http://{SHARED}:8080/ --rate {rate} --duration 10m --connect-timeout 100s \
             --timeout 100s {more} -o json >{report}"
        );
        self.client.start(&["sh", "-c", &script, binary().to_str().unwrap()], self.folder.path())
    }

    /// Ends load and returns its report.
    #[track_caller]
    fn report(&self, mut load: Process, name: &str) -> Value {
        load.signal(Signal::INT);
        assert_eq!(load.end(), Some(130), "{load}");
        serde_json::from_str(&self.folder.read(name)).unwrap()
    }

    /// Returns the number of requests that the member of a balancer has ended, if the balancer is there.
    fn served(&self, name: &str) -> Option<u64> {
        let control = format!("unix:{}", self.folder.join(name).join("c.sock").display());
        let run = Run::plimsoll(&["members", "web", "-o", "json", "--control", &control], self.folder.path());
        (run.code == Some(0)).then(|| run.json()["groups"][0]["members"][0]["requests"].as_u64().unwrap_or(0))
    }

    /// Waits until a balancer has served so many more requests.
    #[track_caller]
    fn serves(&self, name: &str, more: u64) {
        let before = self.served(name).unwrap_or(0);
        until(&format!("{more} more requests at {name}"), || {
            self.served(name).is_some_and(|requests| requests >= before + more)
        });
    }
}

/// Returns the configuration of the guide, with paths of the test, and with more time between advertisements:
/// a balancer that stands still for a moment is not declared dead.
fn keepalived(priority: usize, place: &Path) -> String {
    format!(
        "global_defs {{\n  vrrp_version 3\n}}\n\
         vrrp_track_file balancer {{\n  file {}/vrrp\n}}\n\
         vrrp_instance web \
         {{\n  state BACKUP\n  interface eth0\n  virtual_router_id 51\n  priority {priority}\n  \
         advert_int 1\n  virtual_ipaddress {{\n    {SHARED}/24\n  }}\n  track_file \
         {{\n    balancer weight 1\n  }}\n}}\n",
        place.display()
    )
}

/// Returns the rules for nft of the guide: a client that connects to the address where no balancer listens
/// gets no answer, and tries again.
fn rules_of_packets() -> String {
    let first = format!("ip daddr {SHARED} tcp dport 8080 tcp flags & (syn | ack) == syn");
    format!(
        "table ip plimsoll {{\n  chain input {{\n    type filter hook input priority filter\n    {first} \
         socket transparent {{ 0, 1 }} accept\n    \
         {first} drop\n  }}\n}}\n"
    )
}

/// A program that asks twice from one port, and each time waits for the balancer to close.
const FROM_ONE_PORT: &str = "\
import socket, sys
for _ in range(2):
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wire.settimeout(60)
        wire.bind(('', 45678))
        wire.connect((sys.argv[1], 8080))
        wire.sendall(b'GET / HTTP/1.1\\r\\nHost: web\\r\\nConnection: close\\r\\n\\r\\n')
        answer = b''.join(iter(lambda: wire.recv(65536), b''))
        assert answer.startswith(b'HTTP/1.1 200 '), answer
";

/// Returns the number of requests that failed, in whatever way.
fn failed(report: &Value) -> u64 {
    report["failed"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

/// Returns the number of connections to the port of a host's balancer that its kernel holds, those included
/// that the balancer has not seen yet.
fn in_hand(host: &Host) -> u64 {
    let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", host.holder.pid())).unwrap();
    // The columns are number, local address, remote address and state. 8080 is 1F90; 0A listens, and 06 has
    // ended.
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let in_hand = |columns: &Vec<String>| {
        columns.get(1).is_some_and(|local| local.ends_with(":1F90"))
            && columns.get(3).is_some_and(|state| state != "0A" && state != "06")
    };
    table.lines().map(columns).filter(in_hand).count() as u64
}

/// Returns `true` if network namespaces are possible here. If not, it prints that, and the test shows
/// nothing.
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
    // Some connections stay, and new ones come all the time.
    let kept = lab.load("100", "", "kept.json");
    let fresh = lab.load("50", "--header 'Connection: close'", "fresh.json");
    lab.serves("one", 200);
    let pid: i32 = std::fs::read_to_string(place.join("one/up.pid")).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    until("the other has the address", || lab.balancers[1].has_address(&place));
    lab.serves("other", 200);
    let (kept, fresh) = (lab.report(kept, "kept.json"), lab.report(fresh, "fresh.json"));
    let lost = failed(&kept) + failed(&fresh);
    eprintln!("of {} and {} requests {lost} failed", kept["due"], fresh["due"]);
    // The balancer's connections were broken. However long the address takes to move, no client is refused
    // meanwhile, and none waits in vain.
    for report in [&kept, &fresh] {
        let kinds = report["failed"].as_object().unwrap();
        let broken = |(kind, count): (&String, &Value)| *count == 0 || kind == "closed";
        assert!(kinds.iter().all(broken), "{report}");
    }
}

#[test]
fn the_address_moves_when_the_machine_dies() {
    if !possible() {
        return;
    }
    let mut lab = Lab::new();
    lab.begin();
    let place = lab.folder.path().to_owned();
    // A port that a client uses again within a minute still belongs to the rest of its last connection, which
    // the balancer closed first. The balancer must answer all the same.
    let words = [part("python3").display().to_string(), "-c".into(), FROM_ONE_PORT.into(), SHARED.into()];
    lab.client.run(&words.each_ref().map(String::as_str), &place);
    let fresh = lab.load("50", "--header 'Connection: close'", "fresh.json");
    lab.serves("one", 50);
    lab.hub.run(&["ip", "link", "set", "p-one", "down"], &place);
    // Nothing reaches the balancer any more: its connections now are those that it had when it died.
    let under_way = in_hand(&lab.balancers[0]);
    until("the other has the address", || lab.balancers[1].has_address(&place));
    lab.serves("other", 100);
    let fresh = lab.report(fresh, "fresh.json");
    let lost = failed(&fresh);
    eprintln!("the machine died with {under_way} connections; {lost} of {} requests failed", fresh["due"]);
    // Later clients only waited for their packets to be sent again.
    assert!(lost <= under_way, "{lost} failed, {under_way} were under way: {fresh}");
}
