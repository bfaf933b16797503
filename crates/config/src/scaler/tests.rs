use std::time::Duration;

use plimsoll_brain::autoscale::ScaleTarget;
use plimsoll_cluster::scaler::ProviderKind;

use super::super::parse;

fn text(group: &str, scaler: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \
         \"web\"\n{group}\n[group.scaler]\n{scaler}\n"
    )
}

const HEALTH: &str = "health = { tcp = true }";
const PLAIN: &str = "max = 3\ntarget = { headroom = 0.3 }";

fn errors(group: &str, scaler: &str) -> String {
    match parse("x", text(group, scaler).into_bytes()) {
        Ok(file) => file.warnings.to_string(),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn what_is_left_out_has_defaults() {
    let scaler = format!("{PLAIN}\nprocess = {{ command = [\"serve\", \"{{port}}\"] }}");
    let file = parse("x", text(HEALTH, &scaler).into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
    let [one] = <[_; 1]>::try_from(file.scalings()).unwrap();
    assert_eq!((one.rules.min, one.rules.max, one.rules.target), (1, 3, ScaleTarget::HeadRoom(0.3)));
    assert_eq!((one.rules.step_up, one.rules.step_down, one.rules.unit_capacity), (4, 1, 1.0));
    assert_eq!((one.rules.cool_up, one.rules.cool_down), (Duration::ZERO, Duration::from_secs(60)));
    assert_eq!((one.interval, one.leaves_members, one.dry_run), (Duration::from_secs(1), false, false));
    let ProviderKind::Process(process) = &one.provider else { panic!("{:?}", one.provider) };
    assert_eq!((process.listen.ports, process.stop_timeout.as_secs()), (None, 10));
    // The scaler is a source of members.
    let [found] = <[_; 1]>::try_from(file.discoveries()).unwrap();
    assert_eq!(found.sources[0].kind.to_string(), "scaler process");
    assert_eq!(found.sources.first(), one.source.as_ref());
}

#[test]
fn a_command_alone_is_that_of_processes() {
    let long = format!("{PLAIN}\nprocess = {{ command = [\"serve\", \"{{port}}\"] }}");
    let short = format!("{PLAIN}\ncommand = [\"serve\", \"{{port}}\"]");
    let of = |scaler: &str| {
        let file =
            parse("x", text(HEALTH, scaler).into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
        (file.scalings(), file.discoveries().into_iter().map(|found| found.sources).collect::<Vec<_>>())
    };
    assert_eq!(of(&short), of(&long));
}

#[test]
fn what_is_wrong_is_said_with_what_to_write() {
    let process = "process = { command = [\"serve\", \"{port}\"] }";
    let with = |rest: &str| format!("{PLAIN}\n{rest}");
    for (group, scaler, said) in [
        (HEALTH, "max = 3".into(), "`target`"),
        (HEALTH, with(""), "add command = [\"…\", \"{port}\"]"),
        (HEALTH, with(&format!("{process}\nadvice = true")), "either `process` or `advice`, not both"),
        (
            HEALTH,
            with(&format!("{process}\ncommand = [\"serve\", \"{{port}}\"]")),
            "either `command` or `process`, not both",
        ),
        (HEALTH, with("command = [\"serve\"]"), "all processes would listen at one port"),
        (HEALTH, with("command = [\"\", \"{port}\"]"), "`command` has no program"),
        (HEALTH, with("on_stop = \"leave\"\ncommand = [\"serve\", \"{port}\"]"), "there is no `state`"),
        ("", with(process), "there is no [group.health]"),
        (HEALTH, format!("max = 3\ntarget = {{}}\n{process}"), "`target` aims at nothing"),
        (
            HEALTH,
            format!("max = 3\ntarget = {{ headroom = 0.3, utilization = 0.7 }}\n{process}"),
            "aims at more than one thing",
        ),
        (HEALTH, format!("max = 3\ntarget = {{ headroom = 1.0 }}\n{process}"), "`headroom`"),
        (
            HEALTH,
            format!("min = 4\nmax = 3\ntarget = {{ headroom = 0.3 }}\n{process}"),
            "`min` (4) must not be above `max` (3)",
        ),
        (HEALTH, with("process = { command = [] }"), "`command`"),
        (HEALTH, with("process = { command = [\"serve\"] }"), "all processes would listen at one port"),
        (HEALTH, with("process = { command = [\"\", \"{port}\"] }"), "`command` has no program"),
        (
            HEALTH,
            with("process = { command = [\"s\", \"{port}\"], ports = \"9-8\" }"),
            "has its last port before its first",
        ),
        (
            HEALTH,
            with("process = { command = [\"s\", \"{port}\"], ports = \"8-9\" }"),
            "fewer than the 3 members",
        ),
        (
            HEALTH,
            with("process = { command = [\"s\", \"{port}\"], host = \"0.0.0.0\" }"),
            "is no address that a member could be reached at",
        ),
        (HEALTH, with(&format!("on_stop = \"leave\"\n{process}")), "there is no `state`"),
        (HEALTH, with("systemd = { unit = \"web.service\", first_port = 80 }"), "is no template of services"),
        (
            HEALTH,
            with("systemd = { unit = \"web@.service\", first_port = 65534 }"),
            "fewer ports than the 3 members",
        ),
        ("", with("kubernetes = { name = \"web\" }"), "does not say who the members are"),
        ("members = [\"a:1\"]", with("advice = true\ndrain = \"1s\""), "`drain` has no effect"),
        (
            "lottery = { service = \"web\", daemons = [\"d:7447\"], keys = \"/keys\" }",
            with(process),
            "either `scaler` or `lottery`",
        ),
    ] {
        let told = errors(group, &scaler);
        assert!(told.contains(said), "{scaler}\n{told}");
    }
}

#[test]
fn the_examples_of_the_guide_are_right() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/scaler.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        let scaler = if block.contains("[group.scaler]\n") {
            ""
        } else {
            "[group.scaler]\nmax = 3\ntarget = { headroom = 0.3 }\n"
        };
        let whole = match block.contains("[[group]]") {
            true => block.to_owned(),
            false => format!("[[group]]\nname = \"web\"\nhealth = {{ http = \"/\" }}\n{scaler}{block}"),
        };
        let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{whole}");
        let file = parse("scaler.md", text.into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(file.warnings.list(), []);
        assert_eq!(file.scalings().len(), 1);
    }
}
