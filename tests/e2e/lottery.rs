//! A cluster without a balancer: `plimsoll lottery` beside each server, `plimsoll pick` for its clients. All
//! are on loopback.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use plimsoll_client::{Client, ClientSettings, KeySource};
use plimsoll_wire::rfs::{
    AnswerMode, AnswerStatus, DatagramKey, EncodeDatagram as _, KeyRing, LotteryMessage, LotteryRequest,
    NodeReport, NodeState, SECRET_LEN, service_id,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{
    Folder, Member, PATIENCE, Process, Run, binary, curl, found, free_port, get, refusing, until,
};

/// A daemon that runs.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) status: SocketAddr,
}

/// Daemons that have the same keys.
pub(crate) struct Cluster {
    pub(crate) folder: Folder,
    pub(crate) daemons: Vec<Daemon>,
    host: &'static str,
}

impl Cluster {
    pub(crate) fn new(host: &'static str) -> Self {
        Self { folder: Folder::new(), daemons: Vec::new(), host }
    }

    /// Starts a daemon for each of these services; all find each other by the first one.
    #[track_caller]
    pub(crate) fn start(host: &'static str, services: &[&str]) -> Self {
        let mut cluster = Self::new(host);
        for service in services {
            cluster.join(&["--service", service, "--slow-start", "0s"]);
        }
        cluster.wait();
        cluster
    }

    /// Starts one more daemon; the first one makes the keys.
    #[track_caller]
    pub(crate) fn join(&mut self, args: &[&str]) {
        let first = self.daemons.first().map_or_else(String::new, |first| first.address.to_string());
        let peers: &[&str] = if first.is_empty() { &[] } else { &["--peers", &first] };
        let args = [peers, args].concat();
        self.lone(&args);
    }

    /// Starts a daemon without the address of another.
    #[track_caller]
    pub(crate) fn lone(&mut self, args: &[&str]) {
        let member = (self.daemons.len() + 1).to_string();
        let listen = format!("{}:0", self.host);
        let always = ["lottery", "--member", &member, "--listen", &listen, "--keys", "keys"];
        self.run(&[&always[..], &["--status", "127.0.0.1:0"], args].concat());
    }

    #[track_caller]
    pub(crate) fn run(&mut self, args: &[&str]) {
        let process = Process::start(&binary(), args, self.folder.path());
        let address = |before: &str| {
            let line = process.line(before);
            line.split_once(before).unwrap().1.split(": ").next().unwrap().parse().unwrap()
        };
        let (status, address) = (address("listening status "), address("listening lottery "));
        self.daemons.push(Daemon { process, address, status });
    }

    /// Returns the options that give the next daemon a control socket for commands.
    pub(crate) fn control(&self, name: &str) -> [String; 2] {
        ["--control".into(), format!("unix:{}", self.folder.join(name).display())]
    }

    /// Runs a command against a daemon that was started with [`Cluster::control`].
    #[track_caller]
    pub(crate) fn tell(&self, name: &str, what: &[&str]) -> Run {
        let control = self.control(name);
        let run = Run::plimsoll(
            &[&["lottery"], what, &control.each_ref().map(String::as_str)].concat(),
            self.folder.path(),
        );
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        run
    }

    /// Waits until each daemon knows all others and refers to a service.
    #[track_caller]
    pub(crate) fn wait(&self) {
        let all = self.daemons.len() as f64 - 1.0;
        for (one, daemon) in self.daemons.iter().enumerate() {
            until("all are heard of", || daemon.number("lottery_members") == Some(all));
            until("somebody serves", || self.pick(&[one], &[]).code == Some(0));
        }
    }

    /// Picks by these daemons, and counts by address. Silence means that the machine stood still; the picks
    /// are repeated then.
    #[track_caller]
    pub(crate) fn picks(&self, of: &[usize], args: &[&str]) -> BTreeMap<String, usize> {
        let run = found("an answer", || Some(self.pick(of, args)).filter(|run| run.code != Some(3)));
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        let mut picks = BTreeMap::new();
        run.out.lines().for_each(|line| *picks.entry(line.to_owned()).or_default() += 1);
        picks
    }

    pub(crate) fn pick(&self, of: &[usize], args: &[&str]) -> Run {
        let daemons = self.addresses(of);
        let args = [&["pick", "web", "--daemon", &daemons, "--keys", "keys"], args].concat();
        Run::plimsoll(&args, self.folder.path())
    }

    /// Returns a client of these daemons, with a file of keys. It asks for minutes before it gives up: no
    /// machine stands still for so long.
    pub(crate) fn client(&self, of: &[usize], keys: &str) -> Client {
        let daemons = of.iter().map(|one| self.daemons[*one].address).collect();
        let settings = ClientSettings::new(daemons, KeySource::File(self.folder.join(keys)));
        Client::open(ClientSettings { attempts: u8::MAX, ..settings }).unwrap()
    }

    /// Returns the addresses of these daemons, separated by commas.
    pub(crate) fn addresses(&self, of: &[usize]) -> String {
        let addresses: Vec<String> = of.iter().map(|one| self.daemons[*one].address.to_string()).collect();
        addresses.join(",")
    }

    fn keys(&self) -> KeyRing {
        self.folder.read("keys").parse().unwrap()
    }
}

impl Daemon {
    /// Returns the number that the daemon shows under a name.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let known: Value = serde_json::from_str(&get(self.status, "/load").text()).unwrap();
        known["values"][name]["value"].as_f64()
    }
}

/// Returns how many of all picks this address got.
pub(crate) fn got(picks: &BTreeMap<String, usize>, address: &str) -> usize {
    picks.get(address).copied().unwrap_or_default()
}

#[test]
fn shares_follow_capacities() {
    let services = [1, 2, 4].map(|capacity| format!("web=127.0.0.1:{capacity},capacity={capacity}"));
    let services: Vec<&str> = services.iter().map(String::as_str).collect();
    let cluster = Cluster::start("127.0.0.1", &services);
    for mode in [&[][..], &["--lottery"]] {
        // A machine that stands still makes suspects, whose share others serve until it goes on; the picks
        // are repeated then.
        until("shares as the capacities", || {
            let picks = cluster.picks(&[0, 1, 2], &[mode, &["-n", "1050"]].concat());
            [1, 2, 4].iter().all(|capacity| {
                let part = *capacity as f64 / 7.0;
                let off = got(&picks, &format!("127.0.0.1:{capacity}")) as f64 - 1050.0 * part;
                // The range is six standard deviations: one in a thousand million is further off.
                off.abs() <= 6.0 * (1050.0 * part * (1.0 - part)).sqrt()
            })
        });
    }
    for count in ["lottery_referred", "lottery_won"] {
        let all = || cluster.daemons.iter().filter_map(|one| one.number(count)).sum::<f64>();
        until("both ways were used", || all() >= 1000.0);
    }
}

#[test]
fn a_daemon_that_dies_costs_no_client_an_error() {
    let host = if UdpSocket::bind("[::1]:0").is_ok() { "[::1]" } else { "127.0.0.1" };
    let servers = [1, 2, 3].map(|port| format!("web={host}:{port}"));
    let mut cluster = Cluster::start(host, &servers.each_ref().map(String::as_str));
    let dead = format!("{host}:3");
    until("each serves", || cluster.picks(&[0, 1, 2], &["-n", "100"]).len() == 3);
    cluster.daemons[2].process.kill();
    let client = cluster.client(&[2, 0, 1], "keys");
    (0..100).for_each(|_| drop(client.pick(service_id("web"), b"").unwrap()));
    until("nothing goes to the dead", || got(&cluster.picks(&[0, 1], &["-n", "100"]), &dead) == 0);
    // Clients know the dead daemon until it is forgotten, and ask others at once.
    cluster.picks(&[2, 0], &["-n", "20"]);
}

#[test]
fn a_daemon_that_stood_still_lets_others_answer_first() {
    let servers = [1, 2, 3].map(|port| format!("web=127.0.0.1:{port}"));
    let cluster = Cluster::start("127.0.0.1", &servers.each_ref().map(String::as_str));
    let ask = || cluster.picks(&[0, 1, 2], &["--lottery", "-n", "100"]);
    until("each answers", || ask().len() == 3);
    let stopped = &cluster.daemons[2];
    let number = |name: &str| stopped.number(name).unwrap();
    // Numbers are published at intervals: those seen here are later than this point.
    let counted = |daemon: &Daemon| {
        let before = daemon.number("lottery_received");
        until("it has told what it counted", || daemon.number("lottery_received") > before);
    };
    let referred = || {
        cluster.daemons[..2].iter().for_each(counted);
        cluster.daemons[..2].iter().filter_map(|one| one.number("lottery_referred")).sum::<f64>()
    };
    let before = referred();
    counted(stopped);
    let (won, received, malformed) =
        (number("lottery_won"), number("lottery_received"), number("lottery_malformed"));
    stopped.process.signal(Signal::STOP);
    let (asked, mut its) = (2000, 0);
    for _ in 0..asked / 100 {
        its += got(&ask(), "127.0.0.1:3");
    }
    // Its server runs: where neither answered in time one of them may have referred to it.
    let by_others = referred() - before;
    assert!(its as f64 <= by_others, "{its} in place of {by_others}");
    stopped.process.signal(Signal::CONT);
    // Requests have waited for the daemon in its socket, as many as the kernel keeps, and the messages of the
    // others behind each. What is sent now is the last of all.
    let last = UdpSocket::bind("127.0.0.1:0").unwrap();
    until("it has read them", || {
        last.send_to(b"hello", stopped.address).unwrap();
        number("lottery_malformed") > malformed
    });
    assert!(number("lottery_received") - received >= 100.0);
    // A third of all requests was its own when it was asked. No client waits any more for what it answered
    // now.
    let late = number("lottery_won") - won;
    assert!(late <= f64::from(asked) / 30.0, "{late} of {asked}");
    until("it answers again", || got(&ask(), "127.0.0.1:3") > 0);
}

#[test]
fn what_a_service_says_comes_with_each_answer() {
    let cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1,info=zone=a", "web=127.0.0.1:2"]);
    until("both are picked", || {
        let run = cluster.pick(&[0, 1], &["-n", "50", "-o", "json"]);
        // Silence means that the machine stood still.
        if run.code == Some(3) {
            return false;
        }
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        let picks = run.json()["picks"].as_array().unwrap().clone();
        let says = |pick: &Value| match pick["address"].as_str().unwrap() {
            "127.0.0.1:1" => "zone=a",
            _ => "",
        };
        assert!(picks.iter().all(|pick| pick["info"] == says(pick)), "{picks:?}");
        ["127.0.0.1:1", "127.0.0.1:2"].iter().all(|one| picks.iter().any(|pick| pick["address"] == *one))
    });
}

#[test]
fn who_leaves_gets_nothing() {
    let mut cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1", "web=127.0.0.1:2"]);
    until("each serves", || cluster.picks(&[0, 1], &["-n", "100"]).len() == 2);
    cluster.daemons[1].process.signal(Signal::TERM);
    assert_eq!(cluster.daemons[1].process.end(), Some(0));
    // Its farewell came before these requests.
    assert_eq!(cluster.picks(&[0], &["-n", "200"]), BTreeMap::from([("127.0.0.1:1".to_owned(), 200)]));
    // The daemon comes back under the same number.
    cluster.daemons.pop();
    cluster.join(&["--service", "web=127.0.0.1:2", "--slow-start", "0s"]);
    until("it serves again", || cluster.picks(&[0], &["-n", "100"]).len() == 2);
}

#[test]
fn a_server_that_is_down_gets_nothing() {
    // One of the servers comes back at its address, whose port is reserved for it meanwhile.
    let mut members = [0; 2].map(|_| Member::start_at(SocketAddr::from(([127, 0, 0, 1], free_port())), &[]));
    let (_held, refusing) = refusing();
    let mut cluster = Cluster::new("127.0.0.1");
    let servers = [members[0].address, members[1].address, refusing];
    for (number, server) in servers.iter().enumerate() {
        let (name, peers) = (format!("{number}.toml"), cluster.daemons.first().map(|one| one.address));
        let peers = peers.map_or_else(String::new, |first| format!("\"{first}\""));
        let check = if number == 0 { "tcp = true" } else { "http = \"/\"" };
        cluster.folder.write(
            &name,
            format!(
                "member = {}\nlisten = \"127.0.0.1:0\"\npeers = [{peers}]\nkeys = \"keys\"\nslow_start = \
                 \"0s\"\n\
                 status = \"127.0.0.1:0\"\n[[service]]\nname = \"web\"\nserver = \"{server}\"\n\
                 health = {{ {check}, interval = \"50ms\", rise = 1, fall = 2 }}\n",
                number + 1
            ),
        );
        cluster.run(&["lottery", "--config", &name]);
    }
    cluster.wait();
    let [one, two, never] = servers.map(|server| server.to_string());
    until("both serve", || {
        let picks = cluster.picks(&[0, 1, 2], &["-n", "100"]);
        assert_eq!(got(&picks, &never), 0, "it was never there");
        picks.len() == 2
    });
    members[1].process.kill();
    until("only one serves", || got(&cluster.picks(&[0, 1, 2], &["-n", "100"]), &one) == 100);
    members[1].restart();
    until("both serve again", || got(&cluster.picks(&[0, 1, 2], &["-n", "100"]), &two) > 0);
}

#[test]
fn who_is_loaded_gets_less() {
    let service = |port| format!("web=127.0.0.1:{port},load=busy / 4");
    let cluster = Cluster::start("127.0.0.1", &[&service(1), &service(2)]);
    let tell = |of: usize, busy: &str| {
        let target = format!("http://{}/v1/report", cluster.daemons[of].status);
        let told = curl(&["-d", &format!("name=busy&value={busy}"), "-w", "%{http_code}", &target], b"");
        assert_eq!(String::from_utf8(told.body).unwrap(), "204", "{}", told.talk);
    };
    tell(0, "0");
    tell(1, "15");
    // One server has four times its capacity in flight, the other a quarter of it.
    until("the loaded one gets little", || {
        let picks = cluster.picks(&[0, 1], &["-n", "500"]);
        (1..100).contains(&got(&picks, "127.0.0.1:2"))
    });
}

#[test]
fn what_is_forged_or_sent_again_is_dropped_and_counted() {
    let cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1"]);
    let (daemon, keys) = (&cluster.daemons[0], cluster.keys());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(daemon.address).unwrap();
    let counted = |name: &str, least: f64| {
        until(name, || daemon.number(name).is_some_and(|count| count >= least));
    };
    let report = |keys: &KeyRing| {
        let mut out = Vec::new();
        let (services, ids) = (Vec::new(), Vec::new());
        let state = NodeState::Up;
        let report =
            NodeReport { member: 9, incarnation: 1, seq: 5, state, digest: 0, services, ids, heard: vec![] };
        report.encode(keys, &mut out).unwrap();
        out
    };
    let good = report(&keys);
    for _ in 0..3 {
        socket.send(&good).unwrap();
    }
    counted("lottery_replayed", 2.0);
    let mut changed = good.clone();
    changed[20] ^= 1;
    socket.send(&changed).unwrap();
    counted("lottery_forged", 1.0);
    let number =
        cluster.folder.read("keys").lines().nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    socket.send(&report(&KeyRing::new(DatagramKey::new(number, &[0; SECRET_LEN])))).unwrap();
    counted("lottery_forged", 2.0);
    socket.send(&report(&KeyRing::new(DatagramKey::new(number + 1, &[0; SECRET_LEN])))).unwrap();
    counted("lottery_unknown_key", 1.0);
    socket.send(b"hello").unwrap();
    counted("lottery_malformed", 1.0);
    daemon.process.line("no key of keys has sealed");
    assert_eq!(daemon.number("lottery_replayed"), Some(2.0), "and nothing else was");
}

#[test]
fn no_answer_is_longer_than_its_question() {
    let cluster = Cluster::start(
        "127.0.0.1",
        &["web=127.0.0.1:1", "web=127.0.0.1:2", "web=127.0.0.1:3", "web=127.0.0.1:4"],
    );
    until("each serves", || cluster.picks(&[0], &["-n", "100"]).len() == 4);
    let keys = cluster.keys();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(cluster.daemons[0].address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let ask = |id: u64, room: u16| {
        let request = LotteryRequest {
            id,
            service: service_id("web"),
            attempt: 0,
            mode: AnswerMode::Referral,
            generation: 0,
            client_time: 7,
            avoid: Vec::new(),
            info: Vec::new(),
            max_answer_bytes: room,
        };
        let mut out = Vec::new();
        request.encode(&keys, &mut out).unwrap();
        let mut buffer = [0; 2000];
        for _ in 0..PATIENCE.as_millis() / 200 {
            socket.send(&out).unwrap();
            if let Ok(len) = socket.recv(&mut buffer) {
                assert!(len <= out.len(), "{len} for {}", out.len());
                let message = keys.open(&buffer[..len]).unwrap().message().unwrap();
                let LotteryMessage::Answer(answer) = message else { panic!("{message:?}") };
                // An answer that was delayed for a while may come late.
                if answer.id == id {
                    assert_eq!((answer.status, answer.client_time), (AnswerStatus::Ok, 7));
                    return answer;
                }
            }
        }
        panic!("no answer");
    };
    let first = ask(1, 128);
    assert_eq!(ask(1, 128), first, "the same when asked again");
    assert_eq!((ask(2, 128).fallbacks.len(), ask(3, 600).fallbacks.len()), (3, 3));
}

#[test]
fn daemons_find_one_another_by_multicast() {
    let mut cluster = Cluster::new("127.0.0.1");
    let group = format!("239.255.74.47:{}", free_port());
    for server in ["web=127.0.0.1:1", "web=127.0.0.1:2"] {
        cluster.lone(&["--multicast", &group, "--new-keys", "--service", server, "--slow-start", "0s"]);
    }
    cluster.wait();
    until("both serve", || cluster.picks(&[0], &["-n", "100"]).len() == 2);
}

#[test]
fn who_asks_in_vain_is_told_why() {
    let cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1"]);
    until("it serves", || cluster.pick(&[0], &[]).code == Some(0));
    let pick = |args: &[&str]| Run::plimsoll(&[&["pick"], args].concat(), cluster.folder.path());
    let daemon = cluster.daemons[0].address.to_string();
    // Silence means that the machine stood still.
    let answered = |args: &[&str]| found("an answer", || Some(pick(args)).filter(|run| run.code != Some(3)));
    let run = answered(&["mail", "-d", &daemon, "-k", "keys"]);
    assert!(run.code == Some(1) && run.err.contains("no member offers it"), "{:?} {}", run.code, run.err);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let run = pick(&["web", "-d", &silent.local_addr().unwrap().to_string(), "-k", "keys"]);
    assert!(
        run.code == Some(3) && run.err.contains("no daemon answered") && run.out.is_empty(),
        "{}",
        run.err
    );
    cluster.folder.write("other", format!("7 {}", "6".repeat(64)));
    let run = pick(&["web", "-d", &daemon, "-k", "other"]);
    assert!(run.code == Some(3) && run.err.contains("with the keys of other"), "{}", run.err);
    cluster.folder.write("bad", "7 66");
    let run = pick(&["web", "-d", &daemon, "-k", "bad"]);
    assert!(run.code == Some(2) && run.err.contains("bad: line 1: the secret is not"), "{}", run.err);
    let id = format!("id:{}", service_id("web"));
    let run = answered(&[&id, "-d", &daemon, "-k", "keys", "-n", "2", "-o", "json"]);
    assert_eq!(run.json()["picks"][1]["address"], "127.0.0.1:1");
}

#[test]
fn what_is_wrong_is_told_before_anything_starts() {
    let folder = Folder::new();
    folder.write("wrong.toml", "member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"keys\"\npeer = []\n");
    let run = Run::plimsoll(&["lottery", "-c", "wrong.toml"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("wrong.toml:4:1"), "{:?} {}", run.code, run.err);
    for (args, why) in [
        (&["-m", "1", "-l", "127.0.0.1:0", "-k", "keys", "-s", "web"][..], "NAME=HOST:PORT"),
        (&["-m", "1", "-l", "0.0.0.0:0", "-k", "keys"], "address"),
        (&["-m", "0", "-l", "127.0.0.1:0", "-k", "keys"], "member"),
        (&["-m", "1", "-l", "127.0.0.1:0"], "--keys"),
        (&["-c", "wrong.toml", "-m", "1"], "--config"),
        (&["-m", "1", "-l", "127.0.0.1:0", "-k", "keys", "--rate", "20000000", "--check"], "rate"),
    ] {
        let run = Run::plimsoll(&[&["lottery"], args].concat(), folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{args:?}: {:?} {}", run.code, run.err);
    }
    let check = |args: &[&str]| Run::plimsoll(&[&["lottery", "--check"], args].concat(), folder.path());
    let run = check(&["-c", "wrong.toml"]);
    assert!(run.code == Some(2) && run.err.contains("wrong.toml:4:1"), "{:?} {}", run.code, run.err);
    let run = check(&["-c", "wrong.toml", "-o", "json"]);
    assert_eq!((run.code, &run.json()["problems"][0]["line"]), (Some(2), &4.into()), "{}", run.out);
    folder.write("keyless.toml", "member = 1\nlisten = \"127.0.0.1:0\"\n");
    let run = check(&["-c", "keyless.toml"]);
    assert!(run.code == Some(2) && run.err.contains("keys = \"/etc/plimsoll/lottery.keys\""), "{}", run.err);
    folder.write(
        "health.toml",
        "member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"keys\"\n[[service]]\nname = \"web\"\nserver = \
         \"127.0.0.1:1\"\n\
         health = {}\n",
    );
    let run = check(&["-c", "health.toml"]);
    assert!(
        run.code == Some(2) && run.err.contains("tcp = true") && !run.err.contains("iiop"),
        "{}",
        run.err
    );
    let service = "web=127.0.0.1:1,load=[cpu, busy / 4]|max,capacity=7";
    let run = check(&["-m", "7", "-l", "127.0.0.1:0", "-k", "keys", "--rate", "5", "-s", service]);
    assert!(
        run.code == Some(0) && run.err.contains("ok (member 7, 1 service)"),
        "{:?} {}",
        run.code,
        run.err
    );
    assert!(!folder.join("keys").exists(), "nothing was made");
}
