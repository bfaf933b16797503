//! The Supervisor over TLS, several at once; and its file, which is in force as a whole or not at all.

use serde_json::{Value, json};

use crate::access::Domain;
use crate::stage::{Folder, Run, until};
use crate::supervise::{House, lottery, own, process};

/// Starts a Supervisor under control of the persons that `access.toml` of the domain names: alice operates,
/// bob looks.
fn house(domain: &Domain, processes: &str) -> (House, String) {
    let folder = Folder::new();
    let control = format!("control = \"unix:{}\"\n", folder.join("s.sock").display());
    let several = format!(
        "control = [\"unix:{}\", \"tls://127.0.0.1:0\"]\naudit = \"{}\"\n",
        folder.join("s.sock").display(),
        folder.join("audit.log").display()
    );
    let text =
        own(&folder).replace(&control, &several) + &domain.doors("supervise", "access.toml") + processes;
    folder.write("supervise.toml", text);
    let house = House::run_in(folder);
    let said = house.process.line("listening control tls://");
    let address = said.split("tls://").nth(1).unwrap().split(": ").next().unwrap();
    let host = format!("https://{address}");
    (house, host)
}

fn audited(house: &House) -> Vec<Value> {
    let text = house.folder.read("audit.log");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn several_supervisors_are_looked_at_and_told_at_once() {
    let domain = Domain::new();
    let (one, first) = house(&domain, &lottery("l", 1));
    let (two, second) = house(&domain, &lottery("l", 1));
    let both = format!("{first},{second}");
    let by = |who: &str, args: &[&str]| domain.by(who, &[&["supervise"], args, &["--host", &both]].concat());
    let (before, other) = (one.runs("l", None), two.runs("l", None));
    until("all is well", || by("bob", &["status"]).code == Some(0));
    let said = by("bob", &["status", "-o", "json"]).json();
    for place in 0..2 {
        let process = &said[place]["result"]["processes"][0];
        assert_eq!(
            (&process["name"], &process["command"]),
            (&json!("l"), &json!(["lottery"])),
            "no arguments"
        );
    }
    let refused = by("bob", &["stop", "l"]);
    assert_eq!(
        (refused.code, refused.err.matches("may not process-stop").count()),
        (Some(1), 2),
        "{}",
        refused.err
    );
    let run = by("alice", &["restart", "l", "--wait"]);
    assert_eq!((run.code, run.err.matches("running, pid").count()), (Some(0), 2), "{}", run.err);
    assert!(one.runs("l", Some(before)) != before && two.runs("l", Some(other)) != other);
    let said = by("alice", &["status", "-o", "json"]).json();
    assert!(said[0]["result"]["processes"][0]["command"].as_array().unwrap().len() > 1, "{said}");
    // An operator can neither end the Supervisor nor have it read its file.
    assert_eq!(by("alice", &["shutdown"]).code, Some(1));
    assert_eq!(by("alice", &["reload"]).code, Some(1));
    let lines = audited(&one);
    let had = |verb: &str, result: &str| {
        lines.iter().any(|line| line["verb"] == verb && line["result"] == result && line["kind"] == "spiffe")
    };
    assert!(
        had("process-restart", "done") && had("process-stop", "refused") && had("shutdown", "refused"),
        "{lines:?}"
    );
    // The owner can, over the socket.
    assert_eq!(one.well(&["reload"]).err, "reloaded: nothing is different\n");
    one.process.signal(rustix::process::Signal::HUP);
    until("the signal is written down", || audited(&one).iter().any(|line| line["kind"] == "signal"));
    let plain = Run::plimsoll(&["supervise", "status", "--host", &first], domain.folder.path());
    assert!(plain.code == Some(2) && plain.err.contains("needs --ca"), "{}", plain.err);
}

#[test]
fn of_a_file_that_is_refused_nothing_is_in_force() {
    let folder = Folder::new();
    let (logs, other) = (folder.join("logs"), folder.join("other"));
    for logs in [&logs, &other] {
        std::fs::create_dir(logs).unwrap();
    }
    // A folder is where the log of the last process should be.
    std::fs::create_dir(other.join("z.log")).unwrap();
    let begin = |logs: &std::path::Path| format!("{}log_dir = \"{}\"\n", own(&folder), logs.display());
    let text = begin(&logs) + &lottery("a", 1) + &lottery("goes", 2) + &lottery("z", 3);
    folder.write("supervise.toml", &text);
    let next = begin(&other) + &lottery("a", 7) + &lottery("comes", 4) + &lottery("z", 3);
    let house = House::run_in(folder);
    let pids = ["a", "goes", "z"].map(|name| house.runs(name, None));
    house.folder.write("supervise.toml", next);
    let run = house.run(&["reload"]);
    assert!(
        run.code == Some(2) && run.err.contains("cannot open the log of z"),
        "{:?} {}",
        run.code,
        run.err
    );
    assert_eq!(house.of("a")["outdated"], false, "its new command is not in force");
    let status = house.run(&["status", "-o", "json"]).json();
    let names: Vec<&Value> = status["processes"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["a", "goes", "z"]);
    assert_eq!(["a", "goes", "z"].map(|name| house.runs(name, None)), pids);
    // Their output goes to the same place as before.
    house.well(&["restart", "a", "--wait"]);
    until("it has said something", || {
        house.folder.read("logs/a.log").matches("listening lottery").count() == 2
    });
    std::fs::remove_dir(house.folder.join("other/z.log")).unwrap();
    house.well(&["reload"]);
    house.runs("comes", None);
    assert_eq!(house.of("a")["outdated"], true);
}

#[test]
fn a_supervisor_over_tls_is_held_against_what_it_needs() {
    let folder = Folder::new();
    let check = |own: &str| {
        let text = format!("[supervise]\n{own}{}", process("web", &["up"], ""));
        folder.write("supervise.toml", text);
        Run::plimsoll(&["supervise", "--check"], folder.path())
    };
    let run = check("control = \"tls://127.0.0.1:9906\"\n");
    assert!(run.code == Some(2) && run.err.contains("needs a unix socket beside"), "{}", run.err);
    assert!(run.err.contains("[supervise.tls]"), "{}", run.err);
    let run = check(
        "control = [\"unix:/x.sock\"]\naccess = \
         { role = [{ name = \"x\", verbs = [\"shutdown\"], groups = [\"web\"] }] }\n",
    );
    assert!(run.code == Some(2) && run.err.contains("`shutdown` is about the whole process"), "{}", run.err);
}
