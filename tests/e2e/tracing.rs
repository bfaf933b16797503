//! Traces: the fields that members get, and the spans that a collector of OpenTelemetry gets.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::Value;

use crate::sharing::asked_by;
use crate::stage::{Balancer, Folder, Member, Run, Script, curl, found, groups, nobody, until, web};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector.
struct Collector {
    child: Child,
    orders: ChildStdin,
    port: u16,
    lines: Arc<Mutex<Vec<Value>>>,
    /// The number of orders that the collector has confirmed.
    confirmed: Arc<AtomicUsize>,
}

impl Collector {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/otlp/collector.py");
        let mut command = Command::new("/usr/bin/python3");
        let mut child = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut said = BufReader::new(out).lines().map_while(Result::ok);
        let port = said.next().unwrap().parse().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let confirmed = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&confirmed);
        std::thread::spawn(move || {
            said.for_each(|line| match line.strip_prefix("answer ") {
                Some(_) => drop(count.fetch_add(1, SeqCst)),
                None => kept.lock().unwrap().push(serde_json::from_str(&line).unwrap()),
            });
        });
        Self { child, orders, port, lines, confirmed }
    }

    /// Makes the collector answer all that comes after the return with this status.
    #[track_caller]
    fn answer(&mut self, status: u16) {
        let before = self.confirmed.load(SeqCst);
        writeln!(self.orders, "answer {status}").unwrap();
        until("it is confirmed", || self.confirmed.load(SeqCst) > before);
    }

    /// Returns the table of tracing for a file. The collector may answer late: nothing is sent to it again.
    fn table(&self, rest: &str) -> String {
        format!(
            "\n[tracing]\nendpoint = \"http://127.0.0.1:{}\"\nservice = \"edge\"\nheaders = [\"X-Key: \
             secret\"]\ntimeout = \"50s\"\n{rest}\n",
            self.port
        )
    }

    /// Returns the spans that have come so far.
    #[track_caller]
    fn spans(&self) -> Vec<Value> {
        let spans = self.lines.lock().unwrap().clone();
        assert!(spans.iter().all(|span| span["error"].is_number()), "{spans:?}");
        spans
    }

    /// Waits until a path has `count` spans; returns them, the server's first.
    #[track_caller]
    fn of(&self, path: &str, count: usize) -> Vec<Value> {
        let of = |span: &Value| span["attributes"]["url.path"] == path;
        let spans = found(&format!("{count} spans of {path}"), || {
            let spans: Vec<Value> = self.spans().into_iter().filter(of).collect();
            (spans.len() >= count).then_some(spans)
        });
        assert_eq!(spans.len(), count, "{spans:?}");
        let (server, mut clients): (Vec<Value>, Vec<Value>) =
            spans.into_iter().partition(|span| span["kind"] == 2);
        clients.sort_by_key(|span| span["start"].as_u64());
        [server, clients].concat()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the request that a member gets, by a path of its own.
#[track_caller]
fn told(address: SocketAddr, path: &str, args: &[&str]) -> String {
    let url = format!("http://{address}{path}");
    let got = curl(&[args, &[&url]].concat(), b"");
    assert_eq!(got.code, Some(0), "{}", got.talk);
    String::from_utf8(got.body).unwrap().to_lowercase()
}

/// Returns the values of a field in it.
fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

fn parent(sampled: bool) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-0{}", u8::from(sampled))
}

fn echo() -> Member {
    Member::start(&["--echo", "http"])
}

#[test]
fn without_tracing_a_trace_passes_as_it_came() {
    let member = echo();
    let inner = Balancer::start(&web(&[member.address], ""));
    let outer = Balancer::start(&web(&[inner.address()], "protocol = \"h2\""));
    for address in [inner.address(), outer.address()] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let fields = ["-H", &parent(true), "-H", "tracestate: a=1,b=2", "-H", "tracestate: c=3"];
            let text = told(address, "/", &[&[version], &fields[..]].concat());
            assert_eq!(values(&text, "traceparent"), [format!("00-{TRACE}-{PARENT}-01")], "{text}");
            assert_eq!(values(&text, "tracestate"), ["a=1,b=2", "c=3"], "{text}");
            // An invalid field passes unchanged.
            let text = told(address, "/", &[version, "-H", "traceparent: nonsense"]);
            assert_eq!(values(&text, "traceparent"), ["nonsense"], "{text}");
            assert!(values(&told(address, "/", &[version]), "traceparent").is_empty());
        }
    }
}

#[test]
fn a_request_is_a_span_and_its_member_is_told_of_it() {
    let collector = Collector::start();
    let member = echo();
    let balancer = Balancer::start(&(web(&[member.address], "") + &collector.table("sample = 1.0")));
    for (number, version) in ["--http1.1", "--http2-prior-knowledge"].into_iter().enumerate() {
        let path = format!("/traced{number}");
        let asked = format!("{path}?token=1");
        let fields =
            ["-H", &parent(true), "-H", "tracestate: a=1", "-A", "me/1", "-H", "Host: shop.example:81"];
        let text = told(balancer.address(), &asked, &[&[version], &fields[..]].concat());
        let [server, client] = &collector.of(&path, 2)[..] else { panic!() };
        // The member is the child of the try, the try of the request, the request of its caller.
        let given = format!("00-{TRACE}-{}-01", client["span"].as_str().unwrap());
        assert_eq!((values(&text, "traceparent"), values(&text, "tracestate")), (vec![&*given], vec!["a=1"]));
        assert_eq!((&client["parent"], &server["parent"]), (&server["span"], &Value::from(PARENT)));
        assert_eq!((&client["trace"], &server["trace"]), (&Value::from(TRACE), &Value::from(TRACE)));
        assert_eq!(
            (&server["kind"], &client["kind"], &server["state"]),
            (&2.into(), &3.into(), &"a=1".into())
        );
        assert_eq!((&server["name"], &server["service"]), (&"GET".into(), &"edge".into()));
        assert_eq!((&server["flags"], &client["flags"]), (&0x301.into(), &0x101.into()));
        assert_eq!((&server["error"], &client["error"]), (&0.into(), &0.into()));
        let said = &server["attributes"];
        for (key, value) in [
            ("http.request.method", Value::from("GET")),
            ("http.response.status_code", 200.into()),
            ("url.scheme", "http".into()),
            ("server.address", "shop.example".into()),
            ("server.port", 81.into()),
            ("client.address", "127.0.0.1".into()),
            ("user_agent.original", "me/1".into()),
            ("network.protocol.version", ["1.1", "2"][number].into()),
            ("plimsoll.group", "web".into()),
            ("plimsoll.member", member.address.to_string().into()),
            ("plimsoll.strategy", "adaptive".into()),
            ("plimsoll.choice", "only".into()),
            ("plimsoll.retries", 0.into()),
        ] {
            assert_eq!(said[key], value, "{key}: {said}");
        }
        assert_eq!(client["attributes"]["server.port"], member.address.port());
        let number = |span: &Value, key: &str| span[key].as_u64().unwrap();
        let unix =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!(number(server, "start") <= number(client, "start"), "{server} {client}");
        assert!(
            number(client, "start") <= number(client, "end")
                && number(client, "end") <= number(server, "end")
        );
        // bound: a safety net, the same clock
        assert!(unix.abs_diff(number(server, "end")) < 120_000_000_000, "{unix} {server}");
    }
    assert!(!collector.spans().iter().any(|span| span.to_string().contains("token")), "queries stay here");
    until("they are counted", || balancer.metric("plimsoll_spans_exported_total") == 4.0);
    assert_eq!(balancer.metric("plimsoll_spans_dropped_total"), 0.0);
}

#[test]
fn callers_decide_and_others_are_drawn() {
    let mut collector = Collector::start();
    let member = echo();
    let with = |sample: &str| web(&[member.address], "") + &collector.table(&format!("sample = {sample}"));
    let texts = [with("0.0"), with("1.0")];
    let mut balancer = Balancer::start(&texts[0]);
    let address = balancer.address();
    // The caller does not trace the request.
    let text = told(address, "/unsampled", &["-H", &parent(false), "-H", "tracestate: a=1"]);
    assert_eq!(values(&text, "traceparent"), [format!("00-{TRACE}-{PARENT}-00")]);
    assert_eq!(values(&text, "tracestate"), ["a=1"]);
    // The request is not sampled, and the field for the member says so; a request without a trace has no
    // state.
    for fields in [&[][..], &["-H", "traceparent: 00-0-0-01", "-H", "tracestate: a=1"]] {
        let text = told(address, "/none", fields);
        let [given] = values(&text, "traceparent")[..] else { panic!("{text}") };
        assert!(given.len() == 55 && given.ends_with("-00") && !given.contains(TRACE), "{given}");
        assert!(values(&text, "tracestate").is_empty(), "{text}");
    }
    let text = told(address, "/sampled", &["-H", &parent(true)]);
    assert!(values(&text, "traceparent")[0].starts_with(&format!("00-{TRACE}-")), "{text}");
    collector.of("/sampled", 2);
    balancer.reload(&texts[1]);
    let text = told(address, "/drawn", &[]);
    let [server, client] = &collector.of("/drawn", 2)[..] else { panic!() };
    let given = format!("00-{}-{}-01", server["trace"].as_str().unwrap(), client["span"].as_str().unwrap());
    assert_eq!(values(&text, "traceparent"), [given]);
    assert_eq!((&server["parent"], &server["flags"]), (&"".into(), &0x101.into()));
    for path in ["/unsampled", "/none"] {
        assert!(!collector.spans().iter().any(|span| span["attributes"]["url.path"] == path), "{path}");
    }
    // Tracing is off again: the fields pass unchanged.
    balancer.reload(&web(&[member.address], ""));
    assert!(values(&told(address, "/off", &[]), "traceparent").is_empty());
    // Spans in flight at the end are sent before it.
    balancer.reload(&texts[1]);
    told(address, "/last", &[]);
    balancer.process.signal(Signal::TERM);
    assert_eq!(balancer.process.end(), Some(0));
    collector.of("/last", 2);
    collector.answer(200);
}

#[test]
fn each_try_is_a_span_and_so_is_a_refusal() {
    let collector = Collector::start();
    let (_kept, gone) = nobody();
    let there = Script::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned());
    let rest = "strategy = \"first_available\"\noutlier = false\n";
    let text = web(&[gone, there.address], rest) + &collector.table("sample = 1.0");
    let balancer = Balancer::start(&text);
    told(balancer.address(), "/retried", &[]);
    let [server, failed, client] = &collector.of("/retried", 3)[..] else { panic!() };
    assert_eq!((&failed["parent"], &client["parent"]), (&server["span"], &server["span"]));
    assert_ne!(failed["span"], client["span"]);
    let said = |span: &Value, key: &str| span["attributes"][key].clone();
    assert_eq!((said(failed, "error.type"), &failed["error"]), ("connect_failed".into(), &2.into()));
    assert_eq!(
        (said(failed, "plimsoll.member"), said(failed, "plimsoll.choice")),
        (gone.to_string().into(), "strategy".into())
    );
    assert_eq!(said(failed, "http.response.status_code"), Value::Null);
    assert_eq!(
        (said(client, "plimsoll.choice"), said(client, "http.request.resend_count")),
        ("retry".into(), 1.into())
    );
    assert_eq!((said(server, "plimsoll.retries"), &server["error"]), (1.into(), &0.into()));
    assert_eq!(said(server, "plimsoll.member"), there.address.to_string());

    balancer.run(&["drain", &there.address.to_string()]);
    balancer.run(&["drain", &gone.to_string()]);
    told(balancer.address(), "/refused", &["-X", "BREW"]);
    let [server] = &collector.of("/refused", 1)[..] else { panic!() };
    assert_eq!(
        (said(server, "plimsoll.reason"), said(server, "error.type")),
        ("no_member".into(), "no_member".into())
    );
    assert_eq!((said(server, "http.response.status_code"), &server["error"]), (503.into(), &2.into()));
    assert_eq!((said(server, "http.request.method"), &server["name"]), ("_OTHER".into(), &"HTTP".into()));
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_requests() {
    let mut collector = Collector::start();
    let member = Member::start(&[]);
    // The strategy rejects nothing, however slow the machine is.
    let text = web(&[member.address], "strategy = \"least_connections\"\n");
    let balancer = Balancer::start(&(text + &collector.table("sample = 1.0")));
    // Spans that the collector defers are sent again.
    collector.answer(503);
    told(balancer.address(), "/later", &[]);
    balancer.process.line("cannot send spans to");
    collector.answer(200);
    collector.of("/later", 2);
    // Spans that it refuses are not sent again.
    collector.answer(400);
    told(balancer.address(), "/unwanted", &[]);
    let dropped = || balancer.metric("plimsoll_spans_dropped_total");
    until("they are dropped", || dropped() == 2.0);
    let warned = |text: &str| balancer.process.lines().iter().filter(|line| line.contains(text)).count();
    until("that is told", || warned("cannot send spans to") == 2);
    collector.answer(503);
    until("more than may wait are dropped", || {
        asked_by(balancer.address(), 8, 500);
        dropped() > 100.0
    });
    assert_eq!(warned("cannot send spans to"), 2, "once for each time that it began");
    assert_eq!(balancer.metric("plimsoll_spans_exported_total"), 2.0);
}

#[test]
fn calls_of_grpc_are_spans_of_their_methods() {
    let collector = Collector::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/group.py");
    let mut command = Command::new("/usr/bin/python3");
    let mut child = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ports = said.next().unwrap();
    let members: Vec<SocketAddr> =
        ports.split(' ').map(|port| SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))).collect();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n";
    let group = groups(&[("web", &members)], "protocol = \"h2\"\nstrategy = \"round_robin\"\n");
    let balancer = Balancer::start(&format!("{listener}{group}{}", collector.table("sample = 1.0")));
    writeln!(orders, "call {} 3", balancer.address()).unwrap();
    assert_eq!(said.next().as_deref(), Some("1 1 1"));
    let spans = collector.of("/t/Unary", 6);
    let mut by_member: BTreeMap<String, usize> = BTreeMap::new();
    for span in &spans {
        assert_eq!(span["name"], "t/Unary", "{span}");
        let said = &span["attributes"];
        assert_eq!(
            (&said["rpc.system"], &said["rpc.service"], &said["rpc.method"]),
            (&"grpc".into(), &"t".into(), &"Unary".into())
        );
        assert_eq!((&said["rpc.grpc.status_code"], &span["error"]), (&0.into(), &0.into()), "{span}");
        *by_member.entry(said["plimsoll.member"].to_string()).or_default() += 1;
    }
    assert!(by_member.len() == 3 && by_member.values().all(|spans| *spans == 2), "{by_member:?}");
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn what_is_wrong_with_tracing_is_told() {
    let folder = Folder::new();
    for (table, why) in [
        ("sample = 1.0", "missing key `endpoint`"),
        ("endpoint = \"127.0.0.1:4318\"", "plimsoll.toml:11:12"),
        ("endpoint = \"http://a\"\nsample = 2.0", "`sample`"),
        ("endpoint = \"http://a\"\nheaders = [\"x\"]", "has no `:`"),
        ("endpoint = \"http://a\"\ntimeout = \"1ms\"", "100ms"),
        (
            "endpoint = \"https://a\"\nca = \"/nowhere/ca.pem\"",
            "cannot read the authorities in /nowhere/ca.pem",
        ),
    ] {
        let text = web(&[([127, 0, 0, 1], 1).into()], "");
        folder.write("plimsoll.toml", format!("{text}\n[tracing]\n{table}\n"));
        let run = Run::plimsoll(&["config", "check"], folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{table}: {:?} {}", run.code, run.err);
    }
}
