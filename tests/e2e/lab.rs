//! The lab from end to end: it runs, reports, resumes, fails and is interrupted.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Folder, Process, Run, binary, found, part, until};

/// An experiment with one point each for one and two members behind the balancer, half a second long.
pub(crate) const SMALL: &str = r#"
title = "Small"
about = "A test."
differs = "It differs because it is small."

[members]
service = "const:10ms"
workers = 2

[load]
concurrency = 8

[plan]
repetitions = { full = 1, quick = 1 }
batches = { full = 5, quick = 5 }
warmup = { full = "0", quick = "0" }
duration = { full = "9s", quick = "500ms" }

[[factor]]
vary = "endpoints"
full = [1, 2]
quick = [1, 2]

[[figure]]
name = "response"
title = "Response <time>"
x = "endpoints"
y = "response"
paper = "It falls."

[[claim]]
says = "No request fails"
test = { at_least = { metric = "success", value = 1 } }
"#;

pub(crate) fn json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn the_smoke_experiment_runs_and_reports() {
    let folder = Folder::new();
    let run = Run::plimsoll(&["lab", "run", "smoke", "--quick", "--out", "results"], folder.path());
    // Claims may fail on a machine that is busy with other tests; the report must exist.
    assert!(matches!(run.code, Some(0 | 1)), "{:?} {}", run.code, run.err);
    assert!(run.err.contains("2 points, about ") && run.err.contains("2/2"), "{}", run.err);
    let results = folder.join("results/smoke-quick");
    let claims = json(&results.join("claims.json"));
    assert_eq!(claims["points"], serde_json::json!([2, 2]), "{claims}");
    assert_eq!(claims["claims"].as_array().unwrap().len(), 2);
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("emulated servers") && !page.contains("<script"));
    assert!(fs::read_to_string(results.join("response.svg")).unwrap().starts_with("<svg"));
    let file = json(&results.join("run.json"));
    assert_eq!(file["binary_sha256"].as_str().unwrap().len(), 64);
    let point = json(&results.join("points/002-endpoints=2-concurrency=8/point.json"));
    assert_eq!(point["outcome"]["samples"]["response"].as_array().unwrap().len(), 5);
    assert!(point["configurations"]["plimsoll.toml"].is_string(), "{point}");
    // The report alone, from another folder, has the same outcome.
    let again = Run::plimsoll(&["lab", "report", "--out", "results", "-o", "json"], folder.path());
    assert_eq!((again.code, &again.json()[0]["claims"]), (run.code, &claims["claims"]));
    // A comparison with itself finds no difference.
    let same =
        Run::plimsoll(&["lab", "compare", "results/smoke-quick", "results/smoke-quick"], folder.path());
    assert!(
        same.code == Some(0) && same.out.contains("+0.0 %") && !same.out.contains("differ"),
        "{}",
        same.out
    );
}

#[test]
fn a_claim_that_fails_is_exit_code_1_and_told() {
    let folder = Folder::new();
    folder.write("hopeless.toml", SMALL.replace("value = 1 ", "value = 2 "));
    let run = Run::plimsoll(&["lab", "run", "hopeless.toml"], folder.path());
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains("0 of 2 points at or above 2"), "{}", run.err);
    let page = fs::read_to_string(folder.join("plimsoll-lab/hopeless-quick/report.html")).unwrap();
    // The exit code is 0 if the claim is known to differ.
    folder.write(
        "known.toml",
        SMALL.replace("value = 1 ", "value = 2 ").replace("[[claim]]", "[[claim]]\nrequired = false"),
    );
    let run = Run::plimsoll(&["lab", "run", "known.toml"], folder.path());
    assert!(run.code == Some(0) && run.out.contains("differs"), "{:?} {} {}", run.code, run.out, run.err);
    for part in
        ["✘ FAIL", "0 of 2 points", "It differs because it is small.", "Response &lt;time&gt;", "It falls."]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_mistake_in_the_file_is_shown_with_its_place() {
    let folder = Folder::new();
    folder.write("wrong.toml", SMALL.replace("concurrency = 8", "concurency = 8"));
    let run = Run::plimsoll(&["lab", "run", "wrong.toml"], folder.path());
    assert_eq!(run.code, Some(2));
    assert!(run.err.contains("wrong.toml:11:1") && run.err.contains("^^^^^^^^^^"), "{}", run.err);
    let run = Run::plimsoll(&["lab", "run", "nosuch"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("smoke"), "{}", run.err);
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let folder = Folder::new();
    folder.write("small.toml", SMALL);
    fs::create_dir_all(folder.join("plimsoll-lab/small-quick")).unwrap();
    folder.write("plimsoll-lab/small-quick/thesis.txt", "years of work");
    let run = Run::plimsoll(&["lab", "run", "small.toml"], folder.path());
    assert!(run.code == Some(1) && run.err.contains("something else"), "{}", run.err);
    assert!(folder.join("plimsoll-lab/small-quick/thesis.txt").exists());
}

#[test]
fn other_balancers_are_configured_and_used() {
    let folder = Folder::new();
    let levels = r#"["haproxy", "nginx:round_robin", "plimsoll:round_robin"]"#;
    let text = SMALL.replace(
        "vary = \"endpoints\"\nfull = [1, 2]\nquick = [1, 2]",
        "vary = \"endpoints\"\nfull = [2]\nquick = [2]",
    );
    // Such a figure keeps what came to each member.
    let figure = "x = \"seconds\"\ny = \"arrivals\"\nseries = \"balancer\"";
    let text = text.replace("x = \"endpoints\"\ny = \"response\"", figure);
    folder.write(
        "others.toml",
        format!("{text}[[factor]]\nvary = \"balancer\"\nfull = {levels}\nquick = {levels}\n"),
    );
    let run = Run::plimsoll(&["lab", "run", "others.toml"], folder.path());
    assert_eq!(run.code, Some(0), "{} {}", run.out, run.err);
    let points = folder.join("plimsoll-lab/others-quick/points");
    let files = [
        "001-endpoints=2-balancer=haproxy/haproxy.cfg",
        "002-endpoints=2-balancer=nginx-round_robin/nginx.conf",
    ];
    for file in files {
        assert!(points.join(file).exists(), "{file}");
        let folder = points.join(file.split('/').next().unwrap());
        // Clients went through the balancer to both members.
        let point = json(&folder.join("point.json"));
        let ticks = point["outcome"]["timelines"][0].as_array().unwrap();
        for member in ["m1", "m2"] {
            let arrived: u64 = ticks.iter().filter_map(|tick| tick["arrived"][member].as_u64()).sum();
            assert!(arrived > 0, "{file}: {member}: {ticks:?}");
        }
    }
}

/// Returns an experiment with one point for each balancer, with members that share their cores.
fn unequal(levels: &str, claim: &str) -> String {
    let text = SMALL.replace(
        "[members]\nservice = \"const:10ms\"\nworkers = 2\n",
        "[[members]]\ncores = 2\nservice = \"const:10ms\"\n[[members]]\ncores = 1\nspeed = 2\nservice = \
         \"const:10ms\"\n\
         antagonist = \"on:1s,off:1s,low:0.9,high:1\"\n",
    );
    let text = text.replace("concurrency = 8", "share = 0.3");
    let text = text.replace(
        "repetitions = { full = 1, quick = 1 }",
        "interleaved = true\nrepetitions = { full = 2, quick = 2 }",
    );
    let text = text.replace("batches = { full = 5, quick = 5 }", "batches = { full = 3, quick = 3 }");
    let text = text.replace(
        "\"endpoints\"\nfull = [1, 2]\nquick = [1, 2]",
        &format!("\"balancer\"\nfull = {levels}\nquick = {levels}"),
    );
    let text = text.replace("x = \"endpoints\"\ny = \"response\"", "x = \"seconds\"\ny = \"response\"");
    text.replace("{ at_least = { metric = \"success\", value = 1 } }", claim)
}

const RATIO: &str = r#"{ ratio_to_best = { metric = "success", series = "balancer", of = "plimsoll", among = ["haproxy:random(2)", "envoy:ROUND_ROBIN"], at_least = 0.5 } }"#;

#[test]
fn what_left_late_is_run_again_and_not_counted() {
    let folder = Folder::new();
    let claim = "{ at_least = { metric = \"success\", value = 0 } }";
    let text = unequal(r#"["plimsoll"]"#, claim).replace("quick = \"500ms\"", "quick = \"4s\"");
    let plan = "interleaved = true\nrepetitions = { full = 2, quick = 2 }\nbatches = { full = 3, quick = 3 }";
    let once = "repetitions = { full = 1, quick = 1 }\nbatches = { full = 5, quick = 5 }";
    let text = text.replace(plan, once);
    folder.write("late.toml", text);
    let mut lab = Process::start(&binary(), &["lab", "run", "late.toml", "--quick"], folder.path());
    let point = folder.join("plimsoll-lab/late-quick/points/001-balancer=plimsoll");
    until("the repetition begins", || point.join("m1.log").exists());
    // The generator is in this process. It stands still again and again until the lab runs its point again,
    // which begins with an empty folder. From there on the generator runs undisturbed.
    let mark = point.join("first");
    fs::write(&mark, "").unwrap();
    until("the repetition is run again", || {
        lab.signal(Signal::STOP);
        // sleeps: how long it stands still
        thread::sleep(Duration::from_millis(200));
        lab.signal(Signal::CONT);
        // sleeps: how long it goes on
        thread::sleep(Duration::from_millis(300));
        !mark.exists()
    });
    lab.end();
    let outcome = &json(&point.join("point.json"))["outcome"];
    assert!(outcome["again"].as_u64() >= Some(1), "{outcome}");
    assert_eq!(outcome["samples"]["p99"].as_array().unwrap().len(), 5, "of the last time only");
    let page = fs::read_to_string(folder.join("plimsoll-lab/late-quick/report.html")).unwrap();
    assert!(page.contains("Run again because requests left late"), "{page}");
}

#[test]
fn balancers_take_turns_and_one_that_is_missing_leaves_its_claim_open() {
    let folder = Folder::new();
    folder.write("turns.toml", unequal(r#"["plimsoll", "haproxy:random(2)", "envoy:ROUND_ROBIN"]"#, RATIO));
    // The PATH has no Envoy, and the binary has none beside it.
    let program = folder.install(&binary(), "bin/here/plimsoll");
    let out = std::process::Command::new(part("setpriv"))
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&program)
        .args(["lab", "run", "turns.toml"])
        .env("PATH", "/usr/sbin:/nowhere")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    // An undecided claim does not fail the run. A load that was late on a busy machine does.
    assert!(out.status.code() == Some(0) || err.contains("INVALID"), "{err}");
    assert!(err.contains("2 balancers in turn") && err.contains("SKIPPED: envoy:ROUND_ROBIN"), "{err}");
    assert!(err.contains("the capacity is 395 requests/s"), "{err}");
    let run = folder.join("plimsoll-lab/turns-quick");
    let claims = json(&run.join("claims.json"));
    assert_eq!(
        (&claims["claims"][0]["decided"], &claims["claims"][0]["pass"]),
        (&false.into(), &false.into())
    );
    assert_eq!(claims["points"], serde_json::json!([2, 2]), "{claims}");
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("? not decided") && page.contains("envoy is not installed"), "{page}");
    for name in ["001-balancer=plimsoll", "002-balancer=haproxy-random-2-"] {
        let point = json(&run.join("points").join(name).join("point.json"));
        assert_eq!(point["outcome"]["samples"]["p99"].as_array().unwrap().len(), 6, "{name}");
        assert!(run.join("points").join(name).join("2/m2.log").exists());
    }
}

#[test]
fn envoy_is_configured_and_used() {
    let folder = Folder::new();
    let claim = r#"{ at_least = { metric = "success", value = 0.5 } }"#;
    folder.write("envoy.toml", unequal(r#"["envoy:LEAST_REQUEST"]"#, claim));
    let run = Run::plimsoll(&["lab", "run", "envoy.toml"], folder.path());
    assert!(matches!(run.code, Some(0 | 1)), "{:?} {}", run.code, run.err);
    if run.err.contains("SKIPPED") {
        eprintln!("Envoy is not installed (scripts/install-bench-peers envoy): nothing was tested");
        return;
    }
    let point = folder.join("plimsoll-lab/envoy-quick/points/001-balancer=envoy-LEAST_REQUEST");
    assert!(point.join("1/envoy.yaml").exists());
    let success = json(&point.join("point.json"))["estimates"]["success"][0].as_f64().unwrap();
    assert!(success > 0.9, "{success}");
}

#[test]
fn groups_share_hosts_that_tell_all_of_them_what_they_have() {
    let folder = Folder::new();
    let text = SMALL.replace(
        "[load]\n",
        "[balancer]\ngroups = 2\nplimsoll = \
         { group = { monitor = { metric = \"in_flight\", interval = \"250ms\" } } }\n\n[load]\n",
    );
    let text = text.replace("service = \"const:10ms\"\nworkers = 2", "count = 2\nservice = \"const:10ms\"");
    let text = text.replace("quick = \"500ms\"", "quick = \"2s\"");
    let levels = r#"["plimsoll:least_loaded", "plimsoll:least_loaded+hidden"]"#;
    let text = text.replace(
        "\"endpoints\"\nfull = [1, 2]\nquick = [1, 2]",
        &format!("\"balancer\"\nfull = {levels}\nquick = {levels}"),
    );
    let text = text.replace("x = \"endpoints\"\ny = \"response\"", "x = \"seconds\"\ny = \"arrivals\"");
    let text = text.replace("metric = \"success\", value = 1", "metric = \"swing\", value = 0");
    folder.write("hosts.toml", text);
    let run = Run::plimsoll(&["lab", "run", "hosts.toml"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let points = folder.join("plimsoll-lab/hosts-quick/points");
    for (name, shared) in
        [("001-balancer=plimsoll-least_loaded", true), ("002-balancer=plimsoll-least_loaded-hidden", false)]
    {
        let status = json(&points.join(name).join("status.json"));
        let groups = status["groups"].as_array().unwrap();
        assert_eq!(groups.len(), 2, "{status}");
        for member in groups.iter().flat_map(|group| group["members"].as_array().unwrap()) {
            assert!(!member["load"].is_null(), "it was told of: {member}");
            assert_eq!(member["host"]["name"].is_string(), shared, "{member}");
        }
        // Each listener has its share, and the server counts all requests, whichever listener sent them.
        let requests = |group: &Value| -> u64 {
            group["members"]
                .as_array()
                .unwrap()
                .iter()
                .map(|member| member["requests"].as_u64().unwrap())
                .sum()
        };
        assert!(groups.iter().all(|group| requests(group) > 0), "{status}");
        let ticks = json(&points.join(name).join("point.json"))["outcome"]["timelines"][0].clone();
        let arrived = &ticks[0]["arrived"];
        assert_eq!(arrived.as_object().unwrap().len(), 2, "{ticks}");
    }
}

#[test]
fn members_are_slowed_stopped_killed_started_and_added() {
    let folder = Folder::new();
    let mut text = SMALL.replace("concurrency = 8", "rate = 100").replace("500ms", "7s");
    text = text.replace("[plan]\n", "[plan]\ntick = { full = \"250ms\", quick = \"250ms\" }\n");
    text = text.replace("endpoints\"\nfull = [1, 2]\nquick = [1, 2]", "endpoints\"\nfull = [2]\nquick = [2]");
    text = text.replace("value = 1 ", "value = 0.5 ");
    text += "[balancer]\nhealth_interval = \"50ms\"\nslow_start = \"0s\"\n";
    let faults = [
        ("slow", 1, "100ms"),
        ("fail", 2, "200ms"),
        ("stop", 2, "300ms"),
        ("continue", 2, "600ms"),
        ("kill", 1, "1s"),
        ("start", 1, "4s"),
        ("add", 1, "4500ms"),
    ];
    for (act, member, at) in faults {
        let factor = if act == "slow" { "factor = 2\n" } else { "" };
        text += &format!(
            "[[fault]]\nact = \"{act}\"\nmember = {member}\n{factor}at = {{ full = \"{at}\", quick = \
             \"{at}\" }}\n"
        );
    }
    folder.write("faults.toml", text);
    let run = Run::plimsoll(&["lab", "run", "faults.toml"], folder.path());
    assert!(matches!(run.code, Some(0 | 1)) && run.err.contains("1/1"), "{:?} {}", run.code, run.err);
    let point = folder.join("plimsoll-lab/faults-quick/points/001-endpoints=2/point.json");
    assert!(point.exists(), "{}", run.err);
    let point = json(&point);
    let ticks = point["outcome"]["timelines"][0].as_array().unwrap();
    let arrived = |member: &str, from: f64, to: f64| -> u64 {
        let began = |tick: &Value| tick["at"].as_f64().unwrap() - tick["seconds"].as_f64().unwrap();
        let within = |tick: &&Value| began(tick) >= from && tick["at"].as_f64().unwrap() <= to;
        ticks.iter().filter(within).filter_map(|tick| tick["arrived"][member].as_u64()).sum()
    };
    assert!(arrived("m1", 0.0, 1.0) > 0, "{ticks:?}");
    // The member is killed a second later on any machine, and never started again too soon.
    assert_eq!(arrived("m1", 2.0, 3.9), 0, "{ticks:?}");
    assert!(arrived("m2", 0.7, 9.0) > 0 && arrived("m3", 4.5, 16.0) > 0, "{ticks:?}");
}

/// Returns the process ids of the children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn an_interrupted_run_leaves_nothing_running_and_goes_on() {
    let folder = Folder::new();
    folder.write("small.toml", SMALL);
    let args = ["lab", "run", "small.toml", "--full", "--resume"];
    let mut first = Process::start(&binary(), &args, folder.path());
    let points = folder.join("plimsoll-lab/small-full/points");
    let done = points.join("001-endpoints=1/point.json");
    let processes = found("the second point is under way", || {
        let processes = children(first.pid());
        (done.exists() && processes.len() == 3).then_some(processes)
    });
    first.signal(Signal::INT);
    assert_eq!(first.end(), Some(130), "{first}");
    for pid in processes {
        until("its processes have ended", || !Path::new(&format!("/proc/{pid}")).exists());
    }
    // The second run measures only the second point.
    let before = fs::metadata(&done).unwrap().modified().unwrap();
    let run = Run::plimsoll(&args, folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("2 points, 1 of them done") && run.err.contains("2/2"), "{}", run.err);
    assert_eq!(fs::metadata(&done).unwrap().modified().unwrap(), before);
    // Another experiment does not resume from it, and does not harm it either.
    folder.write("small.toml", SMALL.replace("9s", "1s"));
    let run = Run::plimsoll(&args, folder.path());
    assert!(run.code == Some(2) && run.err.contains("another experiment file"), "{}", run.err);
    assert!(done.exists());
    let run = Run::plimsoll(&args[..4], folder.path());
    assert!(run.code == Some(0) && run.err.contains("small-full.1"), "{}", run.err);
    assert!(folder.join("plimsoll-lab/small-full.1/points/001-endpoints=1/point.json").exists());
}

/// Waits until a process whose parent has ended has ended, too.
#[track_caller]
fn gone(pid: u32) {
    until("its processes have ended", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The system where the tests run may have no process that reaps it.
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// Runs the small experiment with this balancer until it carries load. Returns the run and the processes of
/// the point with their children.
fn under_way(balancer: &str, folder: &Folder) -> (Process, Vec<u32>) {
    folder.write("small.toml", format!("{SMALL}[balancer]\nkind = \"{balancer}\"\n"));
    let mut run = Process::start(&binary(), &["lab", "run", "small.toml", "--full"], folder.path());
    let processes = found("a point is under way", || {
        assert!(!run.ended(), "{run}");
        let mut processes = children(run.pid());
        let names: Vec<String> = processes
            .iter()
            .map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default())
            .collect();
        processes.extend(processes.clone().into_iter().flat_map(children));
        let log = folder.join(&format!("plimsoll-lab/small-full/points/001-endpoints=1/{balancer}.log"));
        let up = log.exists() && names.iter().any(|name| name.trim() == balancer);
        // The load runs on a thread of the runner.
        let threads = fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap();
        let mut threads = threads.map(|task| fs::read_to_string(task.unwrap().path().join("comm")));
        let loaded = threads.any(|name| name.is_ok_and(|name| name.trim() == "load"));
        (up && loaded && processes.len() >= 2).then_some(processes)
    });
    (run, processes)
}

#[test]
fn processes_die_with_the_runner() {
    for balancer in ["plimsoll", "nginx", "haproxy"] {
        let folder = Folder::new();
        let (mut run, processes) = under_way(balancer, &folder);
        run.kill();
        processes.into_iter().for_each(gone);
    }
}

#[test]
fn a_run_that_is_told_to_end_leaves_no_nginx() {
    let folder = Folder::new();
    let (mut run, processes) = under_way("nginx", &folder);
    run.signal(Signal::TERM);
    assert_eq!(run.end(), Some(130), "{run}");
    processes.into_iter().for_each(gone);
}

#[test]
fn the_processor_time_of_the_balancer_is_what_its_process_used() {
    let folder = Folder::new();
    // The members burn the processor; none of that is the balancer's.
    let text = SMALL.replace("workers = 2", "workers = 2\nburn = true").replace("const:10ms", "const:500us");
    let text = text.replace("full = [1, 2]\nquick = [1, 2]", "full = [1]\nquick = [0, 1]");
    folder.write("cpu.toml", text.replace("500ms", "2s"));
    let mut run = Process::start(&binary(), &["lab", "run", "cpu.toml"], folder.path());
    // The hundredths of a second that the balancer has used: the first and the last value seen.
    let mut used = (0.0f64, 0.0f64);
    // The time of the last look, and the seconds between two looks, or after the last one.
    let (mut last, mut unseen) = (None::<Instant>, 0.0f64);
    until("the run is over", || {
        let mut there = false;
        for pid in children(run.pid()) {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<f64> = stat.split(' ').filter_map(|field| field.parse().ok()).collect();
            if words.contains("\0up\0") && fields.len() > 12 {
                // The numbers are the pid, then from the parent's on; user and system time are the 10th and
                // 11th after it.
                let now = fields[11] + fields[12];
                used = (if used.0 == 0.0 { now.max(f64::MIN_POSITIVE) } else { used.0 }, now);
                there = true;
            }
        }
        // The time used after the last look is unknown.
        if there {
            last = Some(Instant::now());
        } else if let Some(seen) = last.take() {
            unseen = seen.elapsed().as_secs_f64();
        }
        run.ended()
    });
    assert!(matches!(run.end(), Some(0 | 1)), "{run}");
    let points = folder.join("plimsoll-lab/cpu-quick/points");
    let alone = json(&points.join("001-endpoints=0/point.json"));
    assert_eq!(alone["estimates"]["balancer_cpu"][0], 0.0, "{alone}");
    let point = json(&points.join("002-endpoints=1/point.json"));
    let told = point["estimates"]["balancer_cpu"][0].as_f64().unwrap();
    let ticks = point["outcome"]["timelines"][0].as_array().unwrap();
    let requests: u64 = ticks.iter().map(|tick| tick["ok"].as_u64().unwrap()).sum();
    let told = told * requests as f64 / 1e6;
    let seen = (used.1 - used.0) / 100.0;
    assert!(seen > 0.1, "too little to compare: {used:?}");
    let most = unseen * thread::available_parallelism().unwrap().get() as f64;
    assert!(
        (0.6 * seen - 0.05..1.4 * seen + 0.05 + most).contains(&told),
        "{told} s, but the kernel says {seen} s, and at most {most} s that nobody saw"
    );
}
