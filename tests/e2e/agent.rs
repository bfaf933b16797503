//! `plimsoll agent`: its measurements and received reports reach every reachable balancer; balancers that
//! hang, are down or send nonsense do not delay the others.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage::{Folder, Process, Run, Script, Wire, binary, curl, deaf, found, get, refusing, until};

/// A balancer that records received reports.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<Value>>>);

impl Reports {
    /// Receives reports on a connection and answers each with these bytes.
    fn take(&self, wire: &mut Wire, answer: &str) -> std::io::Result<()> {
        while let Some(head) = wire.head()? {
            let body = wire.body(&head, false)?;
            assert!(head.starts_with("POST /v1/report HTTP/1.1\r\n"), "{head}");
            self.0.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            wire.try_send(answer)?;
        }
        Ok(())
    }

    /// Starts such a balancer.
    fn served(&self, answer: &'static str) -> Script {
        let reports = self.clone();
        Script::start(move |wire| reports.take(wire, answer))
    }

    fn all(&self) -> Vec<Value> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for a report that satisfies `holds`.
    #[track_caller]
    fn one(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        found(what, || self.all().into_iter().find(&holds))
    }

    /// Waits for `count` reports.
    #[track_caller]
    fn wait(&self, count: usize) {
        until(&format!("{count} reports"), || self.all().len() >= count);
    }
}

const TAKEN: &str = "HTTP/1.1 204 No Content\r\n\r\n";

/// A running agent for the member 10.0.0.1:80.
struct Agent {
    process: Process,
    _folder: Folder,
}

impl Agent {
    #[track_caller]
    fn start(args: &[&str]) -> Self {
        let folder = Folder::new();
        let args = [&["agent", "--member", "10.0.0.1:80"], args].concat();
        let process = Process::start(&binary(), &args, folder.path());
        Self { process, _folder: folder }
    }

    /// Returns the address on which the agent listens.
    #[track_caller]
    fn address(&self) -> SocketAddr {
        let line = self.process.line("listening agent ");
        line.split_once("listening agent ").unwrap().1.split(": ").next().unwrap().parse().unwrap()
    }

    fn said(&self, text: &str) -> usize {
        self.process.lines().iter().filter(|line| line.contains(text)).count()
    }

    /// Returns the agent's count of reports that failed at a balancer; the agent must listen.
    #[track_caller]
    fn failures(&self, of: SocketAddr) -> usize {
        let page = get(self.address(), "/metrics").text();
        let series = format!("plimsoll_agent_report_failures_total{{target=\"{}\"}} ", url(of));
        page.lines().find_map(|line| line.strip_prefix(series.as_str())?.parse().ok()).unwrap()
    }

    /// Checks that all reports to a balancer used one connection. The agent opens another only after it gave
    /// one up, which may happen when the machine stands still for seconds.
    #[track_caller]
    fn keeps_its_connection(&self, balancer: &Script) {
        // In this order: a connection that is counted here was given up before the failures are.
        let made = balancer.accepted();
        let failures = self.failures(balancer.address);
        assert!(
            (1..=1 + failures).contains(&made),
            "{made} connections, {failures} failures: {}",
            self.process
        );
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn once(args: &[&str]) -> Run {
    Run::plimsoll(&[&["agent", "--once"], args].concat(), Folder::new().path())
}

#[test]
fn load_is_pushed_over_one_connection() {
    let reports = Reports::default();
    let balancer = reports.served(TAKEN);
    let to = url(balancer.address);
    let args = ["--group", "web", "--report-to", &to, "--interval", "100ms", "--listen", "127.0.0.1:0"];
    let agent = Agent::start(&args);
    // After the machine stood still, reports contain the age of their values.
    let now =
        || reports.all().into_iter().filter(|report| report.get("age_seconds").is_none()).collect::<Vec<_>>();
    until("ten reports", || now().len() >= 10);
    for report in now() {
        assert_eq!((&report["group"], &report["member"]), (&json!("web"), &json!("10.0.0.1:80")));
        let values = &report["values"];
        for share in ["cpu", "cpu_host", "memory"] {
            assert!((0.0..=1.0).contains(&values[share].as_f64().unwrap()), "{share}: {report}");
        }
        for number in ["cpus", "run_queue", "load_average", "tcp_sockets"] {
            assert!(values[number].as_f64().unwrap() >= 0.0, "{number}: {report}");
        }
    }
    agent.keeps_its_connection(&balancer);
    let mut process = agent.process;
    process.signal(Signal::TERM);
    assert_eq!(process.end(), Some(0));
}

#[test]
fn what_a_program_tells_is_passed_on_at_once() {
    let reports = Reports::default();
    let balancer = reports.served(TAKEN);
    let agent = Agent::start(&["-r", &url(balancer.address), "--interval", "1h", "--listen", "127.0.0.1:0"]);
    let target = format!("{}/v1/report", url(agent.address()));
    let told = curl(&["-d", "name=queue&value=7", "-w", "%{http_code}", &target], b"");
    assert_eq!(String::from_utf8(told.body).unwrap(), "204", "{}", told.talk);
    let report = reports.one("the queue", |report| report["values"].get("queue").is_some());
    assert_eq!(report["values"]["queue"], 7.0);
    // A significant change is reported at once, too; here it is sent as JSON.
    let body = r#"{"member": "10.0.0.1:80", "values": {"queue": 70, "busy": 0.5}}"#;
    curl(&["-d", body, &target], b"");
    reports.one("the longer queue", |report| {
        report["values"]["queue"] == 70.0 && report["values"]["busy"] == 0.5
    });
}

#[test]
fn who_hangs_or_is_down_delays_no_other() {
    let reports = Reports::default();
    let good = reports.served(TAKEN);
    let hung = Script::start(Wire::rest);
    let (_socket, _waiting, deaf) = deaf();
    let (_held, down) = refusing();
    let nonsense = Script::answering("SSH-2.0-OpenSSH_9.2\r\n");
    let targets = [hung.address, deaf, down, nonsense.address, good.address].map(url).join(",");
    let agent = Agent::start(&["--report-to", &targets, "--interval", "100ms", "--listen", "127.0.0.1:0"]);
    reports.wait(30);
    for target in [hung.address, deaf, down, nonsense.address] {
        until("two failures", || agent.failures(target) >= 2);
        let told = format!("reports to {} do not arrive", url(target));
        agent.process.line(&told);
        // A failure is logged again only after another outcome, such as no answer while the machine stands
        // still.
        let lines = agent.process.lines();
        let reasons: Vec<&str> = lines.iter().filter_map(|line| Some(line.split_once(&told)?.1)).collect();
        assert!(reasons.windows(2).all(|pair| pair[0] != pair[1]), "{}", agent.process);
    }
    until("two do not answer", || agent.said("no answer in 2 s") >= 2);
    // If the others disturbed this connection, it would fail as often as theirs. Where the machine stands
    // still some reports may fail all the same.
    until("nearly all that is said to the good one arrives", || {
        agent.failures(good.address) * 10 <= reports.all().len()
    });
    agent.keeps_its_connection(&good);
}

#[test]
fn a_balancer_that_comes_back_is_told_everything() {
    let (socket, address) = refusing();
    let agent = Agent::start(&["-r", &url(address), "--interval", "100ms", "--listen", "127.0.0.1:0"]);
    let body = "name=queue&value=7&age_seconds=5";
    curl(&["-d", body, &format!("{}/v1/report", url(agent.address()))], b"");
    agent.process.line("do not arrive: cannot connect");
    socket.listen(16).unwrap();
    let reports = Reports::default();
    let keep = reports.clone();
    thread::spawn(move || {
        for stream in TcpListener::from(socket).incoming().map_while(Result::ok) {
            // One report per connection: each time the balancer is a new process, in effect.
            let mut wire = Wire::over(stream);
            if let Ok(Some(head)) = wire.head()
                && let Ok(body) = wire.body(&head, false)
            {
                keep.0.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                let _ = wire.try_send("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
            }
        }
    });
    agent.process.line("arrive again");
    // An old value carries its age, and does not age the others.
    let old = |report: &Value| report["values"].get("queue").is_some();
    let report = reports.one("the queue", old);
    assert!(report["age_seconds"].as_f64().unwrap() >= 5.0, "{report}");
    // Values read while the machine stands still carry their age, too.
    let fresh = reports.one("what is fresh", |report| {
        report["values"].get("cpus").is_some() && report.get("age_seconds").is_none()
    });
    assert!(fresh["values"].get("queue").is_none(), "{fresh}");
    until("it is told again to who may have forgotten it", || {
        reports.all().iter().filter(|report| old(report)).count() >= 2
    });
}

#[test]
fn a_refusal_is_told_with_its_reason() {
    let reports = Reports::default();
    let why = "there is no member 10.0.0.1:80 in web; there is: 10.0.0.2:80";
    let answer = format!(
        "HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: {}\r\n\r\n{{\"error\":\"{why}\"}}",
        why.len() + 12
    );
    let balancer = reports.served(answer.leak());
    let agent = Agent::start(&["-r", &url(balancer.address), "--interval", "100ms"]);
    agent.process.line(&format!("it answered 422: {why}"));
    reports.wait(3);
    // It is logged again only after another outcome: no answer at all, as the machine stood still.
    let (told, made) = (agent.said("it answered 422"), balancer.accepted());
    until("no more than one, and one after each time that it stood still", || {
        let stood = agent.said("no answer in 2 s");
        (1..=1 + stood).contains(&told) && (1..=1 + stood).contains(&made)
    });
}

#[test]
fn a_control_socket_can_be_reported_to() {
    let folder = Folder::new();
    let path = folder.join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _agent = Agent::start(&["-r", &format!("unix:{}", path.display()), "--interval", "100ms"]);
    let (mut stream, _) = listener.accept().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.ends_with("}}") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    // The connection may have been given up where the machine stood still.
    let _ = stream.write_all(TAKEN.as_bytes());
    assert!(text.starts_with("POST /v1/report HTTP/1.1\r\n") && text.contains("\"cpu\":"), "{text}");
}

#[test]
fn load_can_be_pulled() {
    let begun = Instant::now();
    let agent = Agent::start(&["--group", "web", "--listen", "127.0.0.1:0", "--interval", "100ms"]);
    let address = agent.address();
    let load = || -> Value { serde_json::from_slice(&get(address, "/load").body).unwrap() };
    until("a share of the processors", || load()["values"].get("cpu").is_some());
    let load = load();
    assert_eq!((&load["group"], &load["member"]), (&json!("web"), &json!("10.0.0.1:80")));
    let cpu = &load["values"]["cpu"];
    assert!((0.0..=1.0).contains(&cpu["value"].as_f64().unwrap()), "{load}");
    // bound: the time that the agent has been there
    let whole = begun.elapsed().as_secs_f64();
    assert!((0.0..whole).contains(&cpu["age_seconds"].as_f64().unwrap()), "{load}");
    assert_eq!(cpu.as_object().unwrap().len(), 2, "{load}");
    assert_eq!((get(address, "/healthz").status, get(address, "/healthz").text()), (200, "ok\n".into()));
    let page = get(address, "/metrics");
    assert_eq!(page.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(page.text().contains("plimsoll_agent_value{name=\"cpu\",source=\"sensed\"} "), "{}", page.text());
    assert!(get(address, "/").text().contains("/load"));
    assert_eq!((get(address, "/nothing").status, get(address, "/v1/report").status), (404, 405));
}

#[test]
fn what_is_wrong_is_refused_in_a_sentence() {
    let agent = Agent::start(&["--listen", "127.0.0.1:0"]);
    let target = format!("{}/v1/report", url(agent.address()));
    let long = format!("name={}&value=1", "a".repeat(20_000));
    for (body, status, why) in [
        ("name=queue", "400", "a name needs a value"),
        ("name=queue&value=NaN", "400", "`NaN` is no number"),
        ("{\"values\": {\"queue\": 1e999}}", "400", "out of range"),
        ("nmae=queue&value=1", "400", "nmae: `queue` is no number"),
        ("name=two+words&value=1", "422", "is no name for a number"),
        ("name=queue&value=1&member=10.0.0.9%3A80", "422", "reports for member 10.0.0.1:80"),
        (&long, "413", "at most 16384 bytes"),
    ] {
        let refused = curl(&["-d", "@-", "-w", "%{http_code}", &target], body.as_bytes());
        let said = String::from_utf8(refused.body).unwrap();
        assert!(said.ends_with(status) && said.contains(why), "{body:.40}: {said} {}", refused.talk);
    }
    let page = ["-d", "name=queue&value=1", "-H", "origin: http://example.org", &target];
    let refused = String::from_utf8(curl(&page, b"").body).unwrap();
    assert!(refused.contains("web pages may not report"), "{refused}");
}

#[test]
fn a_page_of_the_servers_is_scraped() {
    let count = Arc::new(AtomicU64::new(1000));
    let counter = count.clone();
    let page = Script::start(move |wire| {
        while let Some(head) = wire.head()? {
            assert!(head.starts_with("GET /metrics HTTP/1.1\r\n"), "{head}");
            let count = counter.fetch_add(50, Ordering::SeqCst);
            let page = format!(
                "# TYPE http_requests_total counter\nhttp_requests_total{{code=\"200\"}} {count}\n\
                 http_requests_total{{code=\"500\"}} 3\njobs 4\n"
            );
            wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len()))?;
        }
        std::io::Result::Ok(())
    });
    let reports = Reports::default();
    let balancer = reports.served(TAKEN);
    let scraped = format!("{}/metrics", url(page.address));
    let begun = Instant::now();
    let agent = Agent::start(&[
        "-r",
        &url(balancer.address),
        "--interval",
        "200ms",
        "--scrape",
        &scraped,
        "--metric",
        "requests_per_second=rate(http_requests_total{code=\"200\"})",
        "--metric",
        "jobs",
        "--metric",
        "nothing",
    ]);
    let rate = |report: &Value| report["values"]["requests_per_second"].as_f64();
    let report = reports.one("a rate", |report| rate(report).is_some());
    // 250 a second without delays; the minimum is 50 over the whole elapsed time.
    assert!(rate(&report).unwrap() >= 50.0 / begun.elapsed().as_secs_f64(), "{report}");
    reports.one("a gauge", |report| report["values"]["jobs"] == 4.0);
    agent.process.line(&format!("cannot read nothing on {scraped}: there is no such series"));
    until("more pages", || count.load(Ordering::SeqCst) > 1500);
    assert_eq!(agent.said("cannot read nothing"), 1);
    // The agent opens another connection only after it gave one up, which it logs the first time.
    let made = page.accepted();
    until("one connection", || made == 1 || agent.said("no answer in 2 s") > 0);
}

#[test]
fn once_says_what_there_is_and_what_is_not() {
    let here = once(&["-o", "json"]);
    let json = here.json();
    assert_eq!(here.code, Some(0), "{}", here.err);
    let cpu = &json["values"]["cpu"];
    assert!((0.0..=1.0).contains(&cpu["value"].as_f64().unwrap()) && cpu["source"] == "sensed", "{json}");
    assert!(json["unread"].is_array());
    let table = once(&["--interval", "100ms"]);
    assert!(table.out.starts_with("NAME ") && table.out.contains("\ncpu "), "{}", table.out);

    let folder = Folder::new();
    for (file, text) in [
        ("proc/loadavg", "0.50 0.40 0.30 3/90 7\n"),
        ("proc/meminfo", "garbage\n"),
        ("group/memory.current", "750\n"),
        ("group/memory.max", "1000\n"),
        ("group/cpu.max", "150000 100000\n"),
        ("group/cpu.stat", "usage_usec 5\n"),
    ] {
        std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
        folder.write(file, text);
    }
    let (proc, group) = (folder.join("proc"), folder.join("group"));
    let paths = ["--proc", proc.to_str().unwrap(), "--cgroup", group.to_str().unwrap()];
    let run = once(&[&paths[..], &["--interval", "100ms", "-o", "json"]].concat());
    let json = run.json();
    assert_eq!(run.code, Some(0), "{}", run.err);
    for (name, expected) in [
        ("run_queue", 2.0),
        ("load_average", 0.5),
        ("memory", 0.75),
        ("memory_cgroup", 0.75),
        ("cpus", 1.5),
        ("cpu", 0.0),
    ] {
        assert_eq!(json["values"][name]["value"], expected, "{name}: {json}");
    }
    let unread: Vec<_> =
        json["unread"].as_array().unwrap().iter().map(|unread| unread["what"].as_str().unwrap()).collect();
    for file in ["stat", "meminfo", "pressure/cpu", "net/sockstat"] {
        assert!(unread.contains(&&*proc.join(file).display().to_string()), "{file} of {unread:?}");
    }
    let nothing = once(&["--proc", "/no/such/folder", "--interval", "100ms", "-o", "json"]);
    assert_eq!((nothing.code, &nothing.json()["values"]), (Some(1), &json!({})));
}

#[test]
fn a_wrong_command_line_is_told_in_one_line() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (args, code, why) in [
        (&[][..], 2, "--report-to"),
        (&["-m", "a:80"], 2, "--report-to"),
        (&["-r", "http://127.0.0.1:1"], 2, "--member"),
        (&["-m", "a:80", "-r", "127.0.0.1:1"], 2, "give http://HOST:PORT or unix:/PATH"),
        (&["--once", "-i", "1ms"], 2, "100ms to 1h"),
        (&["--once", "--scrape", "http://127.0.0.1:1/"], 2, "--metric"),
        (&["--once", "--scrape", "http://127.0.0.1:1/", "--metric", "a=rate(b"], 2, "is no metric"),
        (&["--once", "--cgroup", "/no/such/group"], 2, "cannot read the control group /no/such/group"),
        (&["--listen", &taken], 1, "choose another port"),
    ] {
        let run = Run::plimsoll(&[&["agent"], args].concat(), folder.path());
        assert!(run.code == Some(code) && run.err.contains(why), "{args:?}: {:?} {}", run.code, run.err);
    }
}
