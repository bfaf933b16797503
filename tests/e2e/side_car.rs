//! `plimsoll agent --side-car`: what it carries is untouched, what it measures is added to answers and
//! reported, and alerts are obeyed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::Value;

use crate::overload::under_way;
use crate::stage::{
    Folder, Load, Member, Process, Run, Script, Wire, binary, curl, found, free_port, listening, until, web,
};

/// A balancer that keeps the reports it gets, and answers as a test sets.
struct Balancer {
    script: Script,
    reports: Arc<Mutex<Vec<Value>>>,
    answer: Arc<Mutex<String>>,
}

impl Balancer {
    fn start() -> Self {
        let reports: Arc<Mutex<Vec<Value>>> = Arc::default();
        let answer = Arc::new(Mutex::new("HTTP/1.1 204 No Content\r\n\r\n".to_owned()));
        let (keep, say) = (Arc::clone(&reports), Arc::clone(&answer));
        let script = Script::start(move |wire| -> std::io::Result<()> {
            while let Some(head) = wire.head()? {
                let body = wire.body(&head, false)?;
                keep.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                wire.try_send(say.lock().unwrap().clone())?;
            }
            Ok(())
        });
        Self { script, reports, answer }
    }

    /// Makes all answers carry an alert from now on.
    fn alert(&self, share: f64, epoch: u64) {
        let body = format!("{{\"shed\": {{\"share\": {share}, \"epoch\": {epoch}}}}}");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        *self.answer.lock().unwrap() = answer;
    }

    /// Waits for a report of a number for which `holds` returns `true`.
    #[track_caller]
    fn told(&self, name: &str, holds: impl Fn(f64) -> bool) {
        until(name, || self.heard(name, &holds));
    }

    /// Returns `true` if there was such a report.
    fn heard(&self, name: &str, holds: impl Fn(f64) -> bool) -> bool {
        let reports = self.reports.lock().unwrap();
        reports.iter().any(|report| report["values"][name].as_f64().is_some_and(&holds))
    }
}

/// An agent that stands before a server.
pub(crate) struct SideCar {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    _folder: Folder,
}

impl SideCar {
    #[track_caller]
    pub(crate) fn start(place: &str, args: &[&str]) -> Self {
        let folder = Folder::new();
        let args = [&["agent", "--side-car", place], args].concat();
        let mut process = Process::start(&binary(), &args, folder.path());
        let address = found("a side-car that listens", || {
            assert!(!process.ended(), "the side-car did not start: {process}");
            let lines = process.lines();
            lines
                .iter()
                .find_map(|line| line.split_once("listening side-car ")?.1.split(' ').nth(1)?.parse().ok())
        });
        Self { process, address, _folder: folder }
    }

    /// Starts an agent before a server of HTTP, reporting to a balancer.
    #[track_caller]
    fn before(server: SocketAddr, balancer: &Balancer) -> Self {
        let target = format!("http://{}", balancer.script.address);
        let args = ["--member", "10.0.0.1:80", "--report-to", &target, "--interval", "100ms"];
        Self::start(&format!("127.0.0.1:0={server}"), &args)
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn what_it_carries_is_untouched_and_what_it_sees_is_said_with_each_answer() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&asked);
    let server = Script::start(move |wire| -> std::io::Result<()> {
        while let Some(head) = wire.head()? {
            keep.lock().unwrap().push(head);
            wire.try_send(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-own: y\r\n\
                           endpoint-load-metrics: JSON {\"cpu_utilization\": 0.25}\r\n\r\nok",
            )?;
        }
        Ok(())
    });
    let side_car = SideCar::start(&format!("http:127.0.0.1:0={}", server.address), &[]);
    let mut wire = Wire::connect(side_car.address);
    for _ in 0..3 {
        wire.send(
            "GET /a HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.1.1.1\r\nX-Forwarded-Proto: https\r\n\r\n",
        );
        let answer = wire.answer().unwrap();
        assert_eq!((answer.status, answer.text(), answer.field("x-own")), (200, "ok".into(), Some("y")));
        let report = answer.field("endpoint-load-metrics").unwrap();
        for part in [
            "TEXT named_metrics.rif=0, named_metrics.knee=",
            ", named_metrics.work=",
            ".slot=1",
            "cpu_utilization=0.25",
        ] {
            assert!(report.contains(part), "{report}");
        }
    }
    let heads = asked.lock().unwrap();
    assert_eq!(heads.len(), 3);
    for head in heads.iter() {
        assert!(head.contains("X-Forwarded-For: 10.1.1.1\r\nX-Forwarded-Proto: https\r\n"), "{head}");
        assert!(!head.contains("127.0.0.1"), "{head}");
    }
    assert_eq!(server.accepted(), 1);
}

/// Not even a request that may be sent only once is lost with a server: the server has not seen it.
#[test]
fn a_server_that_is_gone_costs_nobody_anything_and_is_told_of() {
    // The server comes back at its address, whose port is reserved for it meanwhile.
    let place = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (gone, other) = (Member::start_at(place, &[]), Member::start(&[]));
    let side_car = SideCar::start(&format!("127.0.0.1:0={}", gone.address), &[]);
    let balancer = crate::stage::Balancer::start(&web(&[side_car.address, other.address], ""));
    let ask = |times: usize| {
        for _ in 0..times {
            let mut wire = Wire::connect(balancer.address());
            wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
            assert_eq!(wire.answer().unwrap().status, 200);
        }
    };
    ask(20);
    let server = gone.address;
    drop(gone);
    // The side-car reports it by itself, too. It has no connection left then that was open when the server
    // went, on which a request might have been seen.
    let mut wire = Wire::connect(side_car.address);
    wire.send(GET);
    let answer = wire.answer().unwrap();
    assert_eq!((answer.status, answer.field("plimsoll-reason")), (502, Some("connect_failed")));
    assert!(answer.field("endpoint-load-metrics").unwrap().ends_with(", named_metrics.away=1"));
    ask(40);
    let said = |word: &str| format!("the server {server} {word}");
    until("it is told of", || {
        side_car.process.lines().iter().any(|line| line.contains(&said("cannot be reached")))
    });
    let _back = Member::start_at(server, &[]);
    until("it is told that it is back", || {
        ask(2);
        side_car.process.lines().iter().any(|line| line.contains(&said("can be reached again")))
    });
}

#[test]
fn what_it_sees_is_reported_with_the_rest() {
    let server = Member::start(&["--service", "const:20ms"]);
    let balancer = Balancer::start();
    let mut side_car = SideCar::before(server.address, &balancer);
    let mut wire = Wire::connect(side_car.address);
    let mut ask = || {
        wire.send(GET);
        assert_eq!(wire.answer().unwrap().status, 200);
    };
    // The machine's other work makes the server slower, never quicker.
    let numbers = [
        ("cpu", 0.0..=1.0),
        ("in_flight", 1.0..=1.0),
        ("requests_per_second", 1e-9..=50.1),
        ("latency", 0.02..=f64::INFINITY),
        ("sojourn", 0.02..=f64::INFINITY),
        ("knee", 1.0..=f64::INFINITY),
    ];
    (0..60).for_each(|_| ask());
    for (name, range) in numbers {
        until(name, || {
            ask();
            balancer.heard(name, |number| range.contains(&number))
        });
    }
    balancer.told("requests_per_second", |rate| rate == 0.0);
    side_car.process.signal(Signal::TERM);
    assert_eq!(side_car.process.end(), Some(0));
}

#[test]
fn on_an_alert_connections_come_to_an_end_at_the_boundary_of_a_request() {
    let server = Member::start(&[]);
    let balancer = Balancer::start();
    let side_car = SideCar::before(server.address, &balancer);
    let ask = |wire: &mut Wire| {
        wire.send(GET);
        let answer = wire.answer().unwrap();
        assert_eq!(answer.status, 200);
        answer.field("connection") == Some("close")
    };
    let mut wires: Vec<Wire> = (0..3).map(|_| Wire::connect(side_car.address)).collect();
    assert!(!wires.iter_mut().any(ask));
    balancer.alert(1.0, 7);
    side_car.process.line("100 % of the connections");
    for wire in &mut wires {
        until("the last answer", || ask(wire));
        wire.closed();
    }
    // An alert is obeyed once for each epoch, however often it comes.
    let mut fresh = Wire::connect(side_car.address);
    let seen = balancer.reports.lock().unwrap().len();
    until("more reports", || balancer.reports.lock().unwrap().len() > seen + 3);
    assert!(!ask(&mut fresh));
    balancer.alert(1.0, 8);
    until("the last answer", || ask(&mut fresh));
}

#[test]
fn a_balancer_that_finds_the_server_overloaded_has_its_side_car_send_connections_away() {
    let (one, other) = (Member::start(&[]), Member::start(&[]));
    let rest = "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\n";
    let members = [one.address, other.address];
    let balancer = crate::stage::Balancer::start(&listening("binding = \"on_demand\"", &members, rest));
    let reports = format!("http://{}", balancer.reports());
    let name = one.address.to_string();
    let args = ["-m", &name, "-r", &reports, "--interval", "100ms", "--listen", "127.0.0.1:0"];
    let side_car = SideCar::start(&format!("127.0.0.1:0={name}"), &args);
    let agent = side_car.process.line("listening agent ");
    let agent = agent.split_once("listening agent ").unwrap().1.split(": ").next().unwrap().to_owned();
    let mut wires: Vec<Wire> = (0..20).map(|_| Wire::connect(side_car.address)).collect();
    until("an alert that is obeyed", || {
        let told = curl(&["-d", "load=1.2", &format!("http://{agent}/v1/report")], b"");
        assert_eq!(told.code, Some(0), "{}", told.talk);
        curl(&["-d", &format!("member={}&load=0.2", other.address), &format!("{reports}/v1/report")], b"");
        let left = |wire: &mut Wire| {
            wire.send(GET);
            wire.answer().unwrap().field("connection") == Some("close")
        };
        wires.iter_mut().any(left)
    });
    side_car.process.line("of the connections to go elsewhere");
}

#[test]
fn plain_connections_are_carried_counted_and_sent_away_when_they_are_quiet() {
    let server = Member::start(&["--echo", "tcp"]);
    let balancer = Balancer::start();
    let target = format!("http://{}", balancer.script.address);
    let place = format!("tcp:127.0.0.1:0={}", server.address);
    let report = ["--member", "10.0.0.1:80", "--report-to", &target, "--interval", "100ms"];
    let side_car = SideCar::start(&place, &[&report[..], &["--shed-idle", "50ms"]].concat());
    let mut wire = Wire::connect(side_car.address);
    wire.send("something");
    assert_eq!(wire.exactly(9).unwrap(), b"something");
    balancer.told("in_flight", |count| count == 1.0);
    balancer.alert(1.0, 1);
    wire.closed();
    balancer.told("requests_per_second", |rate| rate > 0.0);
}

/// Two unequal servers, which reject nothing themselves, and a balancer before them.
struct Overloaded {
    balancer: crate::stage::Balancer,
    _servers: [Member; 2],
    _side_cars: Vec<SideCar>,
}

impl Overloaded {
    fn start(strategy: &str, side_cars: bool) -> Self {
        // The servers serve 100 and 300 requests a second.
        let servers = ["2", "6"].map(|workers| {
            Member::start(&["--service", "exp:20ms", "--workers", workers, "--queue", "100000"])
        });
        let mut members = servers.each_ref().map(|server| server.address);
        let start = |server: &SocketAddr| SideCar::start(&format!("127.0.0.1:0={server}"), &[]);
        let side_cars: Vec<SideCar> =
            if side_cars { members.iter().map(start).collect() } else { Vec::new() };
        members.iter_mut().zip(&side_cars).for_each(|(member, side_car)| *member = side_car.address);
        let balancer = crate::stage::Balancer::start(&web(&members, &format!("strategy = \"{strategy}\"\n")));
        Self { balancer, _servers: servers, _side_cars: side_cars }
    }

    /// Starts a load of 130 % of the servers' capacity.
    fn load(&self) -> Load {
        Load::start(self.balancer.address(), "GET", 520.0)
    }
}

#[test]
fn in_overload_what_is_accepted_is_served_as_if_there_were_none() {
    // Both run at the same time, so that each has the same machine: the capacity is the throughput of the one
    // where all requests wait.
    let (kept, queued) = (Overloaded::start("adaptive", true), Overloaded::start("least_connections", false));
    let (mut load, all) = (kept.load(), queued.load());
    load.more(3_100);
    let [few, many] = [&kept, &queued].map(|one| under_way(&one.balancer));
    let (load, all) = (load.stop(), all.stop());
    eprintln!("{} answers and {few} under way, {} and {many} where all wait", load.ok, all.ok);
    // The ratio is 0.88 alone, 0.77 to 0.83 beside builds, and 0.33 where busy loops take most of the
    // machine. The estimate of a server that lets requests wait in order is below its capacity
    // (`meter/knee.rs`), the more so the less reliable its times are.
    assert!(4 * load.ok >= all.ok, "{} answers of {}", load.ok, all.ok);
    // The queue in front of the servers grows by 120 in each second otherwise. Where the side-cars wait for a
    // processor, requests wait in front of them.
    assert!(3 * few < 2 * many, "{few} are under way, without side-cars {many}");
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let run = |args: &[&str]| Run::plimsoll(&[&["agent"], args].concat(), Folder::new().path());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("{}=127.0.0.1:1", taken.local_addr().unwrap());
    for (args, code, why) in [
        (&["--side-car", "0.0.0.0:80"][..], 2, "expected [http:|tcp:]ADDRESS=SERVER"),
        (&["--side-car", "127.0.0.1:0=127.0.0.1:1", "--once"], 2, "cannot be used with"),
        (&["--listen", "127.0.0.1:0", "--refuse"], 2, "--side-car"),
        (&["--side-car", "127.0.0.1:0=127.0.0.1:1", "--shed-idle", "1ms"], 2, "expected 10ms or more"),
        (&["--side-car", "127.0.0.1:0=127.0.0.1:1", "--group-url", "lb.example"], 2, "begin with http://"),
        (&["--side-car", "tcp:127.0.0.1:0=127.0.0.1:1", "--group-url", "http://lb"], 2, "no --side-car is"),
        (&["--listen", "127.0.0.1:0", "--group-url", "http://lb"], 2, "--side-car"),
        (&["--side-car", &place], 1, "127.0.0.1:"),
    ] {
        let run = run(args);
        assert_eq!(run.code, Some(code), "{args:?}: {}", run.err);
        assert!(run.err.contains(why), "{args:?}: {}", run.err);
    }
}
