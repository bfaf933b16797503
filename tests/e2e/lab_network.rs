//! The lab on hosts that are network namespaces: cables are pulled, and packets are delayed. Where namespaces
//! cannot be made, the lab reports that.

use crate::lab::{SMALL, children, json};
use crate::stage::{Folder, Process, Run, binary, found, part};
use std::fs;

use serde_json::Value;

/// Returns an experiment with two members and a balancer on hosts of their own, of which one member is cut
/// off for three seconds.
fn hosts() -> String {
    let mut text = SMALL.replace("concurrency = 8", "rate = 100").replace("500ms", "6s");
    text = text.replace("full = [1, 2]\nquick = [1, 2]", "full = [2]\nquick = [2]");
    // Ticks take half a second.
    text = text.replace("full = 5, quick = 5", "full = 12, quick = 12");
    text += "[network]\nnamespaces = true\n[balancer]\nhealth_interval = \"50ms\"\nslow_start = \
             \"0s\"\nper_try = \"1s\"\n\
             plimsoll = { group = { retry = { budget = 1.0, min_per_second = 1000 } } }\n";
    for (act, at) in [("cut_off", "1s"), ("join", "4s")] {
        text += &format!("[[fault]]\nact = \"{act}\"\nat = {{ full = \"{at}\", quick = \"{at}\" }}\n");
    }
    text
}

/// Asserts that a run reports everywhere that it cannot have its network, and proves nothing.
fn skipped(run: &Run, folder: &Folder) {
    assert_eq!(run.code, Some(0), "{} {}", run.out, run.err);
    assert!(run.err.contains("SKIPPED, nothing was run") && run.out.contains("not decided"), "{}", run.err);
    let claims = json(&folder.join("plimsoll-lab/hosts-quick/claims.json"));
    let told = (&claims["pass"], &claims["claims"][0]["pass"], &claims["claims"][0]["decided"]);
    assert_eq!(told, (&false.into(), &false.into(), &false.into()), "{claims}");
    assert!(claims["skipped"].is_string() && claims["points"][0] == 0, "{claims}");
    let page = fs::read_to_string(folder.join("plimsoll-lab/hosts-quick/report.html")).unwrap();
    assert!(page.contains("SKIPPED: ") && page.contains("? not decided"), "no banner");
}

#[test]
fn a_member_is_cut_off_the_network_and_joins_it_again() {
    let folder = Folder::new();
    folder.write("hosts.toml", hosts());
    let possible = Run::of(&part("unshare"), &["--net", "true"], folder.path()).code == Some(0);
    if !possible {
        return skipped(&Run::plimsoll(&["lab", "run", "hosts.toml"], folder.path()), &folder);
    }
    let mut run = Process::start(&binary(), &["lab", "run", "hosts.toml"], folder.path());
    run.line("1/1, about");
    let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let places = found("the processes of the point", || {
        let mut places: Vec<_> = children(run.pid()).into_iter().filter_map(of).collect();
        places.sort();
        places.dedup();
        (places.len() == 3).then_some(places)
    });
    assert!(!places.contains(&of(std::process::id()).unwrap()), "{places:?}");
    assert!(matches!(run.end(), Some(0 | 1)), "{run}");
    let point = json(&folder.join("plimsoll-lab/hosts-quick/points/001-endpoints=2/point.json"));
    assert_eq!(point["estimates"]["success"][0], 1.0, "{point}");
    let ticks = point["outcome"]["timelines"][0].as_array().unwrap();
    let arrived = |member: &str, from: f64, to: f64| -> u64 {
        let began = |tick: &Value| tick["at"].as_f64().unwrap() - tick["seconds"].as_f64().unwrap();
        let within = |tick: &&Value| began(tick) >= from && tick["at"].as_f64().unwrap() <= to;
        ticks.iter().filter(within).filter_map(|tick| tick["arrived"][member].as_u64()).sum()
    };
    assert!(arrived("m1", 0.0, 1.1) > 0, "{ticks:?}");
    // The member is cut off a second later on any machine, and never joined again too soon.
    assert_eq!(arrived("m1", 1.95, 3.9), 0, "{ticks:?}");
    assert!(arrived("m2", 0.95, 4.5) > 0, "{ticks:?}");
}

#[test]
fn a_network_that_cannot_be_had_is_told_and_decides_nothing() {
    let folder = Folder::new();
    folder.write("hosts.toml", hosts());
    let program = binary();
    let lab = [program.to_str().unwrap(), "lab", "run", "hosts.toml", "-q"];
    let run = if rustix::process::geteuid().is_root() {
        // Root without these capabilities, as in most containers.
        let drop = ["--bounding-set=-sys_admin,-net_admin", "--inh-caps=-sys_admin,-net_admin", "--"];
        Run::of(&part("setpriv"), &[&drop[..], &lab].concat(), folder.path())
    } else {
        Run::of(&program, &lab[1..], folder.path())
    };
    skipped(&run, &folder);
    // A skipped claim stays skipped in a later report.
    let again = Run::plimsoll(&["lab", "report"], folder.path());
    skipped(&again, &folder);
}

#[test]
fn a_delay_is_kept_or_its_want_is_told() {
    let folder = Folder::new();
    let text = hosts().replace("namespaces = true", "namespaces = true\ndelay = \"5ms\"");
    folder.write("hosts.toml", text.split("[[fault]]").next().unwrap());
    let run = Run::plimsoll(&["lab", "run", "hosts.toml"], folder.path());
    if run.err.contains("SKIPPED") {
        assert!(run.err.contains("netem") || run.err.contains("namespace"), "{}", run.err);
        return skipped(&run, &folder);
    }
    // The path from the client over the balancer to the member and back has four delays, beside 10 ms of
    // service.
    let point = json(&folder.join("plimsoll-lab/hosts-quick/points/001-endpoints=2/point.json"));
    assert!(point["estimates"]["response"][0].as_f64().unwrap() > 0.030, "{point}");
}
