//! `plimsoll load`: the rate is kept, the figures are honest, and a run that proves nothing is reported as
//! such.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::stage::{Folder, Member, Process, Run, binary, nobody};

fn load(args: &[&str]) -> Run {
    load_in(&Folder::new(), args)
}

fn load_in(folder: &Folder, args: &[&str]) -> Run {
    // Other tests run beside this one: the punctuality of the generator and of others is not tested here.
    let mut all = vec!["load", "-q", "--tolerance", "60s"];
    for patient in ["--timeout", "--connect-timeout"] {
        if !args.contains(&patient) {
            all.extend([patient, "60s"]);
        }
    }
    Run::plimsoll(&[&all, args].concat(), folder.path())
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/")
}

fn number(json: &Value) -> f64 {
    json.as_f64().unwrap_or_else(|| panic!("{json} is no number"))
}

#[test]
fn what_is_asked_for_is_sent_and_counted() {
    let member = Member::start(&["--name", "m", "--service", "const:5ms", "--workers", "100"]);
    let run = load(&[
        &url(member.address),
        "--rate",
        "400",
        "--arrival",
        "constant",
        "--duration",
        "1500ms",
        "-o",
        "json",
    ]);
    let json = run.json();
    assert_eq!(run.code, Some(0), "{json}");
    assert_eq!((&json["due"], &json["ok"], &json["cut"]), (&600.into(), &600.into(), &0.into()));
    assert_eq!((&json["verdict"], &json["failed"]), (&"valid".into(), &serde_json::json!({})));
    assert!((number(&json["offered_per_second"]) - 400.0).abs() < 1.0, "{json}");
    let latency = &json["latency_seconds"];
    assert!(number(&latency["p50"]) >= 0.005 && number(&latency["p50"]) <= number(&latency["max"]));
    assert_eq!(json["members"]["m"]["ok"], 600);
    let slices = json["timeline"].as_array().unwrap();
    assert_eq!(slices.iter().map(|slice| slice["due"].as_u64().unwrap()).sum::<u64>(), 600);
}

#[test]
fn the_rate_does_not_fall_when_nobody_accepts() {
    // Four connections wait in the kernel, which drops the SYN of every other.
    let deaf = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    deaf.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    deaf.listen(3).unwrap();
    let address = deaf.local_addr().unwrap().as_socket().unwrap();
    let run = load(&[
        &url(address),
        "--rate",
        "300",
        "--arrival",
        "constant",
        "--duration",
        "2s",
        "--no-keepalive",
        "--connect-timeout",
        "300ms",
        "--timeout",
        "4s",
        "-o",
        "json",
    ]);
    let json = run.json();
    assert_eq!((run.code, &json["due"], &json["ok"]), (Some(0), &600.into(), &0.into()), "{json}");
    // A generator that waited for the pending connections would start others only after their timeout.
    assert_eq!((&json["failed"]["timeout"], &json["failed"]["connect_timeout"]), (&4.into(), &596.into()));
    let slices = json["timeline"].as_array().unwrap();
    assert_eq!(slices.iter().map(|slice| slice["due"].as_u64().unwrap()).sum::<u64>(), 600);
    assert!(number(&json["latency_seconds"]["p50"]) >= 4.0, "failures count as slow, not as fast");
}

#[test]
fn a_slow_server_is_asked_as_often_and_its_waits_are_counted() {
    // Forty requests a second are the capacity of the member.
    let member = Member::start(&["--service", "const:100ms", "--workers", "4", "--queue", "10000"]);
    let run = load(&[
        &url(member.address),
        "--rate",
        "200",
        "--arrival",
        "constant",
        "--duration",
        "2s",
        "--timeout",
        "1s",
        "-o",
        "json",
    ]);
    let json = run.json();
    assert_eq!((&json["due"], &json["verdict"]), (&400.into(), &"valid".into()), "{json}");
    assert!(json["failed"]["timeout"].as_u64().unwrap() > 200, "{json}");
    assert!(number(&json["latency_seconds"]["p90"]) >= 1.0);
}

#[test]
fn few_connections_hide_no_wait() {
    let member = Member::start(&["--service", "const:50ms", "--workers", "4", "--queue", "10000"]);
    let run = load(&[
        &url(member.address),
        "--rate",
        "100",
        "--arrival",
        "constant",
        "--duration",
        "2s",
        "--connections",
        "2",
        "-o",
        "json",
    ]);
    let json = run.json();
    // 200 requests at 40 a second: the last waits for three seconds, the middle one for half of that. A
    // request alone takes a fraction.
    assert_eq!((&json["ok"], &json["verdict"]), (&200.into(), &"valid".into()), "{json}");
    let (latency, service) = (&json["latency_seconds"], &json["service_seconds"]);
    assert!(number(&latency["p50"]) >= 1.2 && number(&latency["max"]) > 2.5, "{json}");
    // bound: a third of what was waited for in the same run
    assert!(number(&service["p50"]) < number(&latency["p50"]) / 3.0, "{json}");
    assert!(json["waited"].as_u64().unwrap() > 150, "{json}");
}

#[test]
fn thresholds_set_the_exit_code() {
    let member = Member::start(&["--service", "const:20ms", "--workers", "100"]);
    let target = url(member.address);
    let common = [target.as_str(), "--rate", "50", "--duration", "500ms"];
    let kept = load(&[&common[..], &["--fail-if", "p99>50s", "--fail-if", "failed>0"]].concat());
    assert_eq!(kept.code, Some(0), "{}{}", kept.out, kept.err);
    assert_eq!(kept.out.matches("passed").count(), 2, "{}", kept.out);
    let missed = load(&[&common[..], &["--fail-if", "p50>10ms", "-o", "json"]].concat());
    assert_eq!((missed.code, &missed.json()["thresholds"][0]["met"]), (Some(1), &false.into()));
    // The last request is due long before the end of the run; the rate is that of the whole run.
    let few = load(&[
        &target,
        "--rate",
        "1",
        "--arrival",
        "constant",
        "--duration",
        "2900ms",
        "--fail-if",
        "completed<1.3",
    ]);
    assert!(few.code == Some(1) && few.out.contains("offered 1.0/s   completed 1.0/s"), "{}", few.out);
}

#[test]
fn a_generator_that_was_late_says_that_the_run_is_invalid() {
    let member = Member::start(&["--workers", "100"]);
    let folder = Folder::new();
    let target = url(member.address);
    let mut generator = Process::start(
        &binary(),
        &["load", &target, "--rate", "50", "--duration", "30s", "--save", "result.json"],
        folder.path(),
    );
    // The run lasts longer than a busy machine takes to hand this line on.
    generator.line("for 30.0 s");
    generator.signal(Signal::STOP);
    // sleeps: how long it stands still
    std::thread::sleep(Duration::from_secs(1));
    generator.signal(Signal::CONT);
    assert_eq!(generator.end(), Some(1));
    let json: Value = serde_json::from_str(&folder.read("result.json")).unwrap();
    assert_eq!(json["verdict"], "invalid", "{json}");
    assert!(json["reason"].as_str().unwrap().contains("left on time, 99 % must"), "{json}");
}

#[test]
fn an_interrupted_run_tells_what_there_is() {
    let member = Member::start(&["--workers", "100"]);
    let folder = Folder::new();
    let target = url(member.address);
    let mut generator = Process::start(
        &binary(),
        &[
            "load",
            &target,
            "--rate",
            "100",
            "--arrival",
            "constant",
            "--duration",
            "1h",
            "--tolerance",
            "60s",
            "--save",
            "result.json",
        ],
        folder.path(),
    );
    generator.line("offered ");
    generator.signal(Signal::INT);
    assert_eq!(generator.end(), Some(130));
    let json: Value = serde_json::from_str(&folder.read("result.json")).unwrap();
    assert_eq!((&json["interrupted"], &json["verdict"]), (&true.into(), &"valid".into()));
    let (due, seconds) = (number(&json["due"]), number(&json["seconds"]));
    assert!(due > 0.0, "{json}");
    assert!((number(&json["offered_per_second"]) - due / seconds).abs() < 1.0, "{json}");
}

#[test]
fn weights_share_the_requests() {
    let members = ["a", "b"].map(|name| Member::start(&["--name", name, "--workers", "100"]));
    let [a, b] = &members;
    let run = load(&[
        &format!("3={}", url(a.address)),
        &url(b.address),
        "--rate",
        "2000",
        "--duration",
        "1s",
        "-o",
        "json",
    ]);
    // The range is five standard deviations of 2000 requests on each side.
    let share = number(&run.json()["members"]["a"]["share"]);
    assert!((0.70..0.80).contains(&share), "{share}");
}

#[test]
fn an_access_log_is_replayed() {
    let member = Member::start(&["--workers", "100", "--body", "10"]);
    let folder = Folder::new();
    let line = |second: u32, request: &str, rest: &str| {
        format!("10.0.0.1 - - [12/Jun/1996:10:00:{second:02} +0200] \"{request}\" 200 99{rest}\n")
    };
    let log: String = (0..40)
        .map(|n| match n % 4 {
            0 => line(n / 4, "GET /index.html HTTP/1.0", ""),
            1 => line(n / 4, "GET /cgi-bin/form?x=1 HTTP/1.0", " \"-\" \"Browser 1.0\""),
            2 => line(n / 4, "GET /a.gif HTTP/1.0", " \"http://x/\" \"Browser \\\"1.0\\\"\""),
            _ => "not a line of a log\n".to_owned(),
        })
        .collect();
    folder.write("access.log", log);
    let target = url(member.address);
    let all = Run::plimsoll(
        &[
            "load",
            "--tolerance",
            "60s",
            "--timeout",
            "60s",
            "--connect-timeout",
            "60s",
            &target,
            "--replay",
            "access.log",
            "--speed",
            "20",
            "-o",
            "json",
        ],
        folder.path(),
    );
    let json = all.json();
    assert_eq!((all.code, &json["due"], &json["ok"]), (Some(0), &30.into(), &30.into()), "{json}");
    assert!(all.err.contains("10 "), "lines left out are told: {}", all.err);
    let some = load_in(
        &folder,
        &[&target, "--replay", "access.log", "--rate", "50", "--workload", "static", "-o", "json"],
    );
    let json = some.json();
    assert_eq!(json["ok"], 20, "{json}");
    assert!((40.0..60.0).contains(&number(&json["offered_per_second"])), "{json}");
}

#[test]
fn a_log_whose_times_jump_is_told() {
    let member = Member::start(&["--workers", "100"]);
    let folder = Folder::new();
    let line = |year: u32, second: u32| {
        format!("::1 - - [12/Jun/{year}:10:00:{second:02} +0200] \"GET / HTTP/1.0\" 200 9\n")
    };
    let target = url(member.address);
    let args = ["load", "--tolerance", "60s", &target, "--replay", "access.log", "--duration", "1s"];
    folder.write("access.log", line(1996, 0) + &line(1997, 1) + &line(1996, 2));
    let run = Run::plimsoll(&args, folder.path());
    let told = "access.log: line 2 is 365 d after the line above it (and 1 more)";
    assert_eq!(run.err.matches("above it").count(), 1, "{}", run.err);
    assert!(run.code == Some(0) && run.err.contains(told), "{:?} {}", run.code, run.err);
    folder.write("access.log", line(1996, 0) + &line(1996, 1));
    let run = Run::plimsoll(&args, folder.path());
    assert!(run.code == Some(0) && !run.err.contains("above it"), "{:?} {}", run.code, run.err);
}

#[test]
fn echo_servers_and_closed_loops() {
    for scheme in ["tcp", "udp"] {
        let member = Member::start(&["--echo", scheme]);
        let target = format!("{scheme}://{}", member.address);
        let run = load(&[&target, "--rate", "100", "--duration", "500ms", "--bytes", "1000", "-o", "json"]);
        let json = run.json();
        assert_eq!((&json["ok"], run.code), (&json["due"], Some(0)), "{scheme}: {json}");
        // About 50 are due, by chance. The buffer of a server that stands still holds that many datagrams;
        // the kernel would drop many more.
        assert!(json["due"].as_u64().unwrap() > 10);
    }
    let member = Member::start(&["--service", "const:10ms", "--workers", "100"]);
    let run = load(&[&url(member.address), "--concurrency", "5", "--duration", "1s", "-o", "json"]);
    let json = run.json();
    // Five clients each get an answer every 10 ms or later.
    assert!(
        (1..=500).contains(&json["ok"].as_u64().unwrap()) && json["failed"] == serde_json::json!({}),
        "{json}"
    );
    assert_eq!(json["closed"], true);
}

#[test]
fn results_are_pages_distributions_and_sums() {
    let member = Member::start(&["--workers", "100"]);
    let folder = Folder::new();
    let target = url(member.address);
    for (form, file) in [("html", "one.json"), ("hgrm", "two.json")] {
        let run =
            load_in(&folder, &[&target, "--rate", "300", "--duration", "500ms", "--save", file, "-o", form]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        let sign = if form == "html" { "<!doctype html>" } else { "       Value     Percentile" };
        assert!(run.out.starts_with(sign), "{}", run.out);
    }
    let sum = load_in(&folder, &["--merge", "one.json", "--merge", "two.json", "-o", "json"]).json();
    let parts: Vec<Value> = ["one.json", "two.json"]
        .iter()
        .map(|file| serde_json::from_str(&folder.read(file)).unwrap())
        .collect();
    let due = |json: &Value| json["due"].as_u64().unwrap();
    assert_eq!(due(&sum), due(&parts[0]) + due(&parts[1]));
    let max = |json: &Value| number(&json["latency_seconds"]["max"]);
    assert_eq!(max(&sum), max(&parts[0]).max(max(&parts[1])));
    assert!(sum["verdict"] == "valid" && parts[0]["seed"] != parts[1]["seed"], "{} {}", parts[0], parts[1]);
    // A sum is late or interrupted if one of its parts is.
    let mut late = parts[1].clone();
    (late["reason"], late["interrupted"]) = ("it was late".into(), true.into());
    late["seed"] = parts[0]["seed"].clone();
    folder.write("late.json", late.to_string());
    let run = load_in(&folder, &["--merge", "one.json", "--merge", "late.json", "-o", "json"]);
    let sum: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&sum["reason"], &sum["interrupted"]), (&"late.json: it was late".into(), &true.into()));
    assert!(run.err.contains("one.json and late.json have the same seed"), "{}", run.err);
    folder.write("bad.json", "{}\n");
    let bad = load_in(&folder, &["--merge", "bad.json"]);
    assert!(bad.code == Some(2) && bad.err.contains("bad.json: missing field"), "{}", bad.err);
}

#[test]
fn bad_input_is_told_in_one_line() {
    let (_held, nobody) = nobody();
    let silent = load(&[&url(nobody), "--rate", "50", "--duration", "200ms"]);
    assert!(silent.code == Some(3) && silent.err.contains("is anything listening there?"), "{}", silent.err);
    for (args, expected) in [
        (&["http://127.0.0.1:1/"][..], "--rate"),
        (&["http://127.0.0.1:1/", "--rate", "x"], "`x` is not a rate"),
        (&["ftp://127.0.0.1/", "--rate", "1"], "expected http://"),
        (&["http://127.0.0.1:1/", "tcp://127.0.0.1:1", "--rate", "1"], "the same scheme"),
        (&["0=http://127.0.0.1:1/", "--rate", "1"], "WEIGHT=URL"),
        (&["http://127.0.0.1:1/", "--rate", "1", "--fail-if", "p99>x"], "not a duration"),
        (&["http://127.0.0.1:1/", "--replay", "no.log"], "cannot read no.log"),
        (&["http://127.0.0.1:1/", "--rate", "1", "-H", "x"], "NAME: VALUE"),
        (&["http://127.0.0.1:1/", "--rate", "1", "--save", "no/such/place"], "another file for --save"),
        (&["http://127.0.0.1:1/", "--replay", "a.log", "--body", "x"], "cannot be used with"),
        (&["http://127.0.0.1:1/", "--rate", "1..2", "--bursts", "1s/1s"], "--bursts needs"),
    ] {
        let run = load(args);
        assert!(run.code == Some(2) && run.err.contains(expected), "{args:?}: {:?} {}", run.code, run.err);
    }
    let other = Run::plimsoll(&["config", "schema", "-o", "html"], Folder::new().path());
    assert!(other.code == Some(2) && other.err.contains("table and json"), "{}", other.err);
}
