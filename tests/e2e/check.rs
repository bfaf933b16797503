//! `plimsoll check`: a file alone, a running balancer, members that are down, and its exit codes and those of
//! `status` for scripts.

use serde_json::Value;

use crate::stage::{Balancer, Folder, Member, Run, refusing, until, web};

fn check(folder: &Folder, args: &[&str]) -> Run {
    Run::plimsoll(&[&["check"], args].concat(), folder.path())
}

/// Returns the findings of a part.
fn part<'v>(document: &'v Value, name: &str) -> Vec<&'v Value> {
    let parts = document["parts"].as_array().unwrap();
    let found =
        parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no {name} in {document}"));
    found["findings"].as_array().unwrap().iter().collect()
}

/// Writes a file with a free control socket and admin address.
fn file(folder: &Folder, members: &[std::net::SocketAddr], rest: &str) {
    let text = web(members, rest);
    let control = folder.join("control.sock");
    let admin = format!("\n[admin]\nlisten = \"127.0.0.1:0\"\ncontrol = \"unix:{}\"\n", control.display());
    folder.write("plimsoll.toml", text + &admin);
}

#[test]
fn a_file_alone_is_enough() {
    let (folder, member) = (Folder::new(), Member::start(&[]));
    file(&folder, &[member.address], "[group.health]\nhttp = \"/healthz\"\n");
    let good = check(&folder, &[]);
    assert_eq!(good.code, Some(0), "{}{}", good.out, good.err);
    for part in [
        "configuration\n  ✓ ok ",
        "limits",
        "permissions",
        "control access",
        "clock",
        "members\n  ✓ ok    web: 1 member",
    ] {
        assert!(good.out.contains(part), "{part}: {}", good.out);
    }
    assert!(good.out.contains("- skip  no balancer runs at unix:"), "{}", good.out);
    let json = check(&folder, &["-o", "json"]).json();
    assert_eq!((&json["ok"], &json["schema"]), (&Value::Bool(true), &Value::from(1)));
    assert_eq!(part(&json, "balancer")[0]["outcome"], "skip");
}

#[test]
fn a_member_that_is_away_fails_with_a_hint() {
    let (folder, (_socket, away)) = (Folder::new(), refusing());
    file(&folder, &[away], "[group.health]\ntcp = true\n");
    let bad = check(&folder, &["--short"]);
    assert_eq!(bad.code, Some(1), "{}", bad.out);
    assert!(bad.out.contains(&format!("✗ fail  web {away}: ")), "{}", bad.out);
    assert!(bad.out.contains("nothing listens there") && bad.out.contains("see docs/guide/"), "{}", bad.out);
    assert!(!bad.out.contains("✓"), "--short says nothing of what is good: {}", bad.out);
    assert_eq!(check(&folder, &["--offline"]).code, Some(0));
}

#[test]
fn each_way_to_fail_has_its_code() {
    let folder = Folder::new();
    let nothing = check(&folder, &[]);
    assert_eq!(nothing.code, Some(2), "{}{}", nothing.out, nothing.err);
    folder.write("plimsoll.toml", "[[listener]]\naddress = 5\n");
    let wrong = check(&folder, &[]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.out);
    assert!(wrong.out.contains("plimsoll.toml:2:11"), "{}", wrong.out);
    let member = Member::start(&[]);
    file(&folder, &[member.address], "");
    let control = format!("unix:{}", folder.join("nobody.sock").display());
    let away = check(&folder, &["--control", &control]);
    assert_eq!(away.code, Some(3), "{}", away.out);
    let missing = check(&folder, &["-c", "missing.toml"]);
    assert_eq!(missing.code, Some(2), "{}{}", missing.out, missing.err);
}

#[test]
fn a_port_that_is_taken_and_a_folder_that_is_not_there() {
    let (folder, taken) = (Folder::new(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let text = web(&["127.0.0.1:1".parse().unwrap()], "")
        .replace("127.0.0.1:0", &taken.local_addr().unwrap().to_string());
    let admin = "\n[admin]\nlisten = \"127.0.0.1:0\"\ncontrol = \"unix:/nowhere/at/all.sock\"\n";
    folder.write("plimsoll.toml", format!("access_log.path = \"/nowhere/access.log\"\n{text}{admin}"));
    let run = check(&folder, &["--offline"]);
    assert_eq!(run.code, Some(1), "{}", run.out);
    for what in [
        "somebody else listens there",
        "cannot make the control socket in /nowhere/at",
        "/nowhere/access.log cannot be written",
    ] {
        assert!(run.out.contains(what), "{what}: {}", run.out);
    }
}

#[test]
fn a_balancer_that_runs_is_asked() {
    let mut members = Member::several(2, &[]);
    let addresses = [members[0].address, members[1].address];
    let text = web(
        &addresses,
        "[group.monitor]\nmetric = \"cpu\"\n[group.health]\ntcp = true\ninterval = \"50ms\"\ntimeout = \
         \"30s\"\n",
    );
    let balancer = Balancer::start(&text);
    until("both are up", || balancer.run(&["status", "--fail-below", "100%"]).code == Some(0));
    let json = balancer.run(&["check", "-o", "json"]).json();
    assert_eq!(part(&json, "balancer")[0]["outcome"], "ok", "{json}");
    assert_eq!(part(&json, "health").last().unwrap()["outcome"], "ok", "{json}");
    assert_eq!(part(&json, "versions")[0]["outcome"], "ok", "{json}");
    // No member reports, although the configuration expects it.
    let reports = part(&json, "reports");
    assert!(reports.iter().all(|finding| finding["outcome"] == "fail"), "{json}");
    assert_eq!(balancer.run(&["check"]).code, Some(1));

    members[0].process.kill();
    until("it is down", || balancer.run(&["status", "--fail-below", "2"]).code == Some(1));
    let run = balancer.run(&["check"]);
    assert!(run.out.contains(&format!("web {} is down for ", addresses[0])), "{}", run.out);
    assert!(run.out.contains("plimsoll explain group web"), "{}", run.out);

    balancer.write("nonsense = 1");
    assert_eq!(balancer.run(&["reload"]).code, Some(2));
    let control = format!("unix:{}", balancer.folder().join("control.sock").display());
    let run = balancer.run(&["check", "--control", &control]);
    assert_eq!(run.code, Some(2), "the file is wrong now: {}", run.out);
    assert!(run.out.contains("the last reload was refused"), "{}", run.out);
}

#[test]
fn scripts_ask_status_for_what_they_need() {
    let mut members = Member::several(2, &[]);
    let text = web(
        &[members[0].address, members[1].address],
        "[group.health]\ntcp = true\ninterval = \"50ms\"\ntimeout = \"30s\"\nfall = 1\n",
    );
    let balancer = Balancer::start(&text);
    until("both are up", || balancer.run(&["status", "web", "--fail-below", "2"]).code == Some(0));
    members[1].process.kill();
    until("one is down", || balancer.run(&["status", "--fail-below", "2"]).code == Some(1));
    let half = balancer.run(&["status", "--fail-below", "50%", "-o", "json"]);
    assert_eq!(half.code, Some(0), "one of two is half");
    assert_eq!(half.json()["groups"][0]["name"], "web");
    let few = balancer.run(&["status", "--fail-below", "51%"]);
    assert_eq!(few.code, Some(1));
    assert!(few.err.contains("web: 1 of 2 members can be used"), "{}", few.err);
    let down = balancer.run(&["status"]);
    assert_eq!((down.code, down.err.contains("web: 1 of 2 members down")), (Some(1), true), "{}", down.err);
    assert_eq!(balancer.run(&["status", "mail"]).code, Some(2));
    assert_eq!(balancer.run(&["status", "--fail-below", "many"]).code, Some(2));
    let nobody = balancer.run(&["status", "--control", "unix:/nowhere.sock", "--fail-below", "1"]);
    assert_eq!(nobody.code, Some(3));
}
