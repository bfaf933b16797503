//! `plimsoll agent` with several side-cars. The capacity that one server of a host may promise depends on the
//! others; each is reported separately, and the host once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{
    Answer, Balancer, Folder, Member, Process, Run, Script, Wire, binary, found, get, until, web,
};

/// An agent with side-cars for several servers.
struct Host {
    process: Process,
    /// The addresses of its side-cars, in order.
    addresses: Vec<SocketAddr>,
    agent: SocketAddr,
    _folder: Folder,
}

impl Host {
    /// Starts an agent. `servers` lists a prefix (`tcp:` or nothing) and the address of each server.
    #[track_caller]
    fn start(servers: &[(&str, SocketAddr)], args: &[&str]) -> Self {
        let folder = Folder::new();
        let mut all = vec!["agent".to_owned(), "--listen=127.0.0.1:0".to_owned()];
        all.extend(servers.iter().map(|(kind, server)| format!("--side-car={kind}127.0.0.1:0={server}")));
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut process = Process::start(&binary(), &all, folder.path());
        let addresses = found("side-cars that listen", || {
            assert!(!process.ended(), "the agent did not start: {process}");
            let lines = process.lines();
            let said = lines.iter().filter_map(|line| line.split_once("listening side-car "));
            let all: Vec<_> = said.filter_map(|(_, said)| said.split(' ').nth(1)?.parse().ok()).collect();
            (all.len() == servers.len()).then_some(all)
        });
        let agent = process.line("listening agent ");
        let agent = agent.split_once("listening agent ").unwrap().1.split(": ").next().unwrap();
        Self { agent: agent.parse().unwrap(), process, addresses, _folder: folder }
    }

    /// Returns the agent's answer at a path.
    fn load(&self, path: &str) -> Value {
        let answer = get(self.agent, path);
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_str(&answer.text()).unwrap()
    }

    /// Waits until the host has `count` requests in flight.
    #[track_caller]
    fn until_in_flight(&self, count: u32) {
        until(&format!("{count} in flight at the host"), || {
            self.load("/load")["values"]["host_in_flight"]["value"] == f64::from(count)
        });
    }
}

/// A server that answers only while it is open, one request at a time.
struct Gate {
    script: Script,
    open: Arc<AtomicBool>,
}

impl Gate {
    fn start() -> Self {
        let open = Arc::new(AtomicBool::new(false));
        let look = Arc::clone(&open);
        let work = Mutex::new(());
        let script = Script::start(move |wire| -> std::io::Result<()> {
            while wire.head()?.is_some() {
                until("it may answer", || look.load(Ordering::SeqCst));
                let turn = work.lock().unwrap();
                // sleeps: the server's service time
                std::thread::sleep(Duration::from_millis(2));
                drop(turn);
                wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            }
            Ok(())
        });
        Self { script, open }
    }

    fn open(&self, open: bool) {
        self.open.store(open, Ordering::SeqCst);
    }
}

/// Requests in flight at the host, as the agent shows them.
fn in_flight(host: &Host) -> f64 {
    host.load("/load")["values"]["host_in_flight"]["value"].as_f64().unwrap()
}

fn asked(address: SocketAddr) -> Wire {
    let mut wire = Wire::connect(address);
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wire
}

fn report(answer: &Answer) -> String {
    answer.field("endpoint-load-metrics").unwrap_or_default().to_owned()
}

#[test]
fn servers_of_a_host_refuse_what_is_too_much_for_all_of_them() {
    let servers = [Gate::start(), Gate::start()];
    let host = Host::start(&servers.each_ref().map(|server| ("", server.script.address)), &[]);
    // Bursts of requests to the first server, until evidence bounds its knee; the host, of which it is all,
    // has the same.
    servers.iter().for_each(|server| server.open(true));
    for size in [1, 6, 2, 8].into_iter().cycle() {
        let mut burst: Vec<Wire> = (0..size).map(|_| asked(host.addresses[0])).collect();
        let reports: Vec<String> = burst.iter_mut().map(|wire| report(&wire.answer().unwrap())).collect();
        if reports.iter().all(|report| report.contains("knee=") && !report.contains("open=1")) {
            break;
        }
    }
    host.until_in_flight(0);
    servers.iter().for_each(|server| server.open(false));
    // The first request goes to the first server, which is far from full, all others to the second, whose own
    // knee is open.
    let mut waiting = vec![asked(host.addresses[0])];
    host.until_in_flight(1);
    let refused = found("one that is refused", || {
        let wire = asked(host.addresses[1]);
        let mut refused = false;
        until("it is held or refused", || {
            refused = wire.has_answer();
            refused || in_flight(&host) == waiting.len() as f64 + 1.0
        });
        if refused {
            return Some(wire);
        }
        waiting.push(wire);
        assert!(waiting.len() < 64, "64 requests are not too many");
        None
    });
    let counts = [1, waiting.len() - 1];
    let mut refused = [asked(host.addresses[0]), refused];
    for (wire, own) in refused.iter_mut().zip(counts) {
        let answer = wire.answer().unwrap();
        assert_eq!((answer.status, answer.reason()), (503, Some("shed")));
        let report = report(&answer);
        assert!(report.contains(&format!("rif={own},")) && report.contains("full=1"), "{report}");
    }
    until("each server is told of what it has itself", || {
        let load = host.load("/load");
        let in_flight = |server: usize| {
            load["servers"][host.addresses[server].to_string()]["values"]["in_flight"]["value"].as_f64()
        };
        [in_flight(0), in_flight(1)] == counts.map(|count| Some(count as f64))
    });
    servers.iter().for_each(|server| server.open(true));
    assert!(waiting.iter_mut().all(|wire| wire.answer().unwrap().status == 200));
    host.until_in_flight(0);
    assert_eq!(asked(host.addresses[0]).answer().unwrap().status, 200);
}

#[test]
fn a_slot_is_promised_only_if_the_host_has_one_too() {
    let (server, neighbour) = (Member::start(&[]), Gate::start());
    let host = Host::start(&[("", server.address), ("", neighbour.script.address)], &[]);
    let promised = || report(&asked(host.addresses[0]).answer().unwrap()).contains("slot=1");
    assert!(promised(), "nobody else is there");
    let mut waiting = [(); 2].map(|()| asked(host.addresses[1]));
    host.until_in_flight(2);
    assert!(!promised(), "the neighbour has both places of the host");
    neighbour.open(true);
    assert!(waiting.iter_mut().all(|wire| wire.answer().unwrap().status == 200));
    // Slots promised to the neighbour's clients expire.
    until("a slot", promised);
}

#[test]
fn each_server_is_reported_and_alerted_for_itself_and_the_host_once() {
    let (server, stream) = (Member::start(&[]), Member::start(&["--echo", "tcp"]));
    let reports: Arc<Mutex<Vec<Value>>> = Arc::default();
    // The member that the balancer reports as overloaded.
    let alerted: Arc<Mutex<Option<String>>> = Arc::default();
    let (keep, alert) = (Arc::clone(&reports), Arc::clone(&alerted));
    let balancer = Script::start(move |wire| -> std::io::Result<()> {
        while let Some(head) = wire.head()? {
            let report: Value = serde_json::from_slice(&wire.body(&head, false)?).unwrap();
            let wanted = alert.lock().unwrap().clone();
            // As a balancer does: a report for the host is answered for the member with most to shed.
            let its = wanted.is_some_and(|wanted| wanted.starts_with(report["member"].as_str().unwrap()));
            keep.lock().unwrap().push(report);
            let shed = "{\"shed\": {\"share\": 1.0, \"epoch\": 3}}";
            wire.try_send(match its {
                true => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{shed}", shed.len()),
                false => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            })?;
        }
        Ok(())
    });
    let target = format!("--report-to=http://{}", balancer.address);
    let args = ["--member=10.0.0.1", &target, "--interval=100ms", "--shed-idle=50ms", "--refuse"];
    let mut host = Host::start(&[("", server.address), ("tcp:", stream.address)], &args);
    let names: Vec<String> = host.addresses.iter().map(|one| format!("10.0.0.1:{}", one.port())).collect();
    let mut echo = Wire::connect(host.addresses[1]);
    echo.send("something");
    assert_eq!(echo.exactly(9).unwrap(), b"something");
    let told = |member: &str, name: &str, wanted: f64| {
        until(&format!("{name} of {member}"), || {
            let reports = reports.lock().unwrap();
            reports.iter().any(|one| one["member"] == member && one["values"][name] == wanted)
        });
    };
    told("10.0.0.1", "host_in_flight", 1.0);
    told("10.0.0.1", "host_knee", 2.0);
    told(&names[0], "in_flight", 0.0);
    told(&names[0], "knee", 2.0);
    told(&names[1], "in_flight", 1.0);
    until("the host's processors", || {
        let reports = reports.lock().unwrap();
        reports.iter().any(|one| one["member"] == "10.0.0.1" && one["values"]["cpu"].is_f64())
    });
    for one in reports.lock().unwrap().iter() {
        let (member, values) = (one["member"].as_str().unwrap(), one["values"].as_object().unwrap());
        let whole = member == "10.0.0.1";
        assert!(whole || names.iter().any(|name| name == member), "{one}");
        let of_host = |name: &String| name.starts_with("host_") || name.starts_with("cpu");
        assert!(values.keys().all(|name| !of_host(name) || whole), "{one}");
        assert!(!whole || !values.contains_key("in_flight"), "{one}");
    }
    // A balancer that pulls requests a member, and gets the host's values with it.
    let pulled = host.load(&format!("/load?member={}", names[1]))["values"].clone();
    assert!(pulled["in_flight"]["value"] == 1.0 && pulled["host_in_flight"]["value"] == 1.0, "{pulled}");
    assert_eq!(get(host.agent, "/load?member=10.0.0.2:80").status, 404);
    let metrics = get(host.agent, "/metrics").text();
    let line =
        format!("plimsoll_agent_value{{name=\"in_flight\",source=\"told\",member=\"{}\"}} 1", names[1]);
    assert!(metrics.contains(&line), "{metrics}");
    // Only the server under alert sends its connections away.
    let mut other = Wire::connect(host.addresses[0]);
    *alerted.lock().unwrap() = Some(names[1].clone());
    echo.closed();
    host.process.line(&format!("100 % of the connections of {} to go elsewhere", names[1]));
    other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = other.answer().unwrap();
    assert_eq!((answer.status, answer.field("connection")), (200, None));
    assert_eq!(host.process.lines().iter().filter(|line| line.contains("of the connections")).count(), 1);
    drop(other);
    host.process.signal(Signal::TERM);
    assert_eq!(host.process.end(), Some(0));
}

#[test]
fn a_balancer_finds_the_numbers_of_each_member_and_those_of_the_host_at_all() {
    let servers = [Member::start(&[]), Member::start(&[])];
    let host = Host::start(&servers.each_ref().map(|server| ("", server.address)), &[]);
    let text = web(&host.addresses, "[group.monitor]\nsource = \"pull\"\nmetric = \"host_in_flight\"\n");
    let port = host.agent.port();
    let text = format!("{text}port = {port}\npath = \"/load?member={{member}}\"\ninterval = \"100ms\"\n");
    let balancer = Balancer::start(&text);
    until("both have been asked", || {
        let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
        let members = explained["members"].as_array().unwrap();
        let has = |member: &Value, name: &str| {
            member["facts"].as_array().unwrap().iter().any(|fact| fact["name"] == name)
        };
        members.len() == 2
            && members.iter().all(|member| has(member, "in_flight") && has(member, "host_knee"))
    });
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    for (args, why) in [
        (&["--member=10.0.0.1:80"][..], "--member 10.0.0.1:80 has a port"),
        (&["--report-to=http://127.0.0.1:1"], "called? Give its host's name"),
        (&["--iiop=127.0.0.1:0=127.0.0.1:1"], "cannot be used with"),
    ] {
        let all = [&["agent", "--side-car=0.0.0.0:0=127.0.0.1:1", "--side-car=0.0.0.0:0=127.0.0.1:2"], args];
        let run = Run::plimsoll(&all.concat(), Folder::new().path());
        assert_eq!(run.code, Some(2), "{args:?}: {}", run.err);
        assert!(run.err.contains(why), "{args:?}: {}", run.err);
    }
}
