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
const MINIMAL: &str = "max = 3\ntarget = { headroom = 0.3 }";

fn errors(group: &str, scaler: &str) -> String {
    match parse("x", text(group, scaler).into_bytes()) {
        Ok(file) => file.warnings.to_string(),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn what_is_left_out_has_defaults() {
    let scaler = format!("{MINIMAL}\nprocess = {{ command = [\"serve\", \"{{port}}\"] }}");
    let file = parse("x", text(HEALTH, &scaler).into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
    let [scaling] = <[_; 1]>::try_from(file.scalings()).unwrap();
    assert_eq!(
        (scaling.rules.min, scaling.rules.max, scaling.rules.target),
        (1, 3, ScaleTarget::HeadRoom(0.3))
    );
    assert_eq!((scaling.rules.step_up, scaling.rules.step_down, scaling.rules.unit_capacity), (4, 1, 1.0));
    assert_eq!((scaling.rules.cool_up, scaling.rules.cool_down), (Duration::ZERO, Duration::from_secs(60)));
    assert_eq!(
        (scaling.interval, scaling.leaves_members, scaling.dry_run),
        (Duration::from_secs(1), false, false)
    );
    let ProviderKind::Process(process) = &scaling.provider else { panic!("{:?}", scaling.provider) };
    assert_eq!((process.listen.ports, process.stop_timeout.as_secs()), (None, 10));
    // The scaler is a source of members.
    let [discovery] = <[_; 1]>::try_from(file.discoveries()).unwrap();
    assert_eq!(discovery.sources[0].kind.to_string(), "scaler process");
    assert_eq!(discovery.sources.first(), scaling.source.as_ref());
}

#[test]
fn a_command_alone_is_that_of_processes() {
    let nested_text = format!("{MINIMAL}\nprocess = {{ command = [\"serve\", \"{{port}}\"] }}");
    let short_text = format!("{MINIMAL}\ncommand = [\"serve\", \"{{port}}\"]");
    let parse_scaler = |scaler: &str| {
        let file =
            parse("x", text(HEALTH, scaler).into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
        (
            file.scalings(),
            file.discoveries().into_iter().map(|discovery| discovery.sources).collect::<Vec<_>>(),
        )
    };
    assert_eq!(parse_scaler(&short_text), parse_scaler(&nested_text));
}

#[test]
fn what_is_wrong_is_said_with_what_to_write() {
    let process = "process = { command = [\"serve\", \"{port}\"] }";
    let with_minimal = |rest: &str| format!("{MINIMAL}\n{rest}");
    for (group, scaler, expected) in [
        (HEALTH, "max = 3".into(), "`target`"),
        (HEALTH, with_minimal(""), "add command = [\"…\", \"{port}\"]"),
        (
            HEALTH,
            with_minimal(&format!("{process}\nadvice = true")),
            "either `process` or `advice`, not both",
        ),
        (
            HEALTH,
            with_minimal(&format!("{process}\ncommand = [\"serve\", \"{{port}}\"]")),
            "either `command` or `process`, not both",
        ),
        (HEALTH, with_minimal("command = [\"serve\"]"), "all processes would listen at one port"),
        (HEALTH, with_minimal("command = [\"\", \"{port}\"]"), "`command` has no program"),
        (
            HEALTH,
            with_minimal("on_stop = \"leave\"\ncommand = [\"serve\", \"{port}\"]"),
            "there is no `state`",
        ),
        ("", with_minimal(process), "there is no [group.health]"),
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
        (HEALTH, with_minimal("process = { command = [] }"), "`command`"),
        (
            HEALTH,
            with_minimal("process = { command = [\"serve\"] }"),
            "all processes would listen at one port",
        ),
        (HEALTH, with_minimal("process = { command = [\"\", \"{port}\"] }"), "`command` has no program"),
        (
            HEALTH,
            with_minimal("process = { command = [\"s\", \"{port}\"], ports = \"9-8\" }"),
            "has its last port before its first",
        ),
        (
            HEALTH,
            with_minimal("process = { command = [\"s\", \"{port}\"], ports = \"8-9\" }"),
            "fewer than the 3 members",
        ),
        (
            HEALTH,
            with_minimal("process = { command = [\"s\", \"{port}\"], host = \"0.0.0.0\" }"),
            "is no address that a member could be reached at",
        ),
        (HEALTH, with_minimal(&format!("on_stop = \"leave\"\n{process}")), "there is no `state`"),
        (
            HEALTH,
            with_minimal("systemd = { unit = \"web.service\", first_port = 80 }"),
            "is no template of services",
        ),
        (
            HEALTH,
            with_minimal("systemd = { unit = \"web@.service\", first_port = 65534 }"),
            "fewer ports than the 3 members",
        ),
        ("", with_minimal("kubernetes = { name = \"web\" }"), "does not say who the members are"),
        ("members = [\"a:1\"]", with_minimal("advice = true\ndrain = \"1s\""), "`drain` has no effect"),
        (
            "lottery = { service = \"web\", daemons = [\"d:7447\"], keys = \"/keys\" }",
            with_minimal(process),
            "either `scaler` or `lottery`",
        ),
    ] {
        let error_text = errors(group, &scaler);
        assert!(error_text.contains(expected), "{scaler}\n{error_text}");
    }
}

#[test]
fn the_examples_of_the_guide_are_right() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/scaler.md");
    let guide_text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        guide_text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        let scaler = if block.contains("[group.scaler]\n") {
            ""
        } else {
            "[group.scaler]\nmax = 3\ntarget = { headroom = 0.3 }\n"
        };
        let config_text = match block.contains("[[group]]") {
            true => block.to_owned(),
            false => format!("[[group]]\nname = \"web\"\nhealth = {{ http = \"/\" }}\n{scaler}{block}"),
        };
        let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{config_text}");
        let file = parse("scaler.md", text.into_bytes()).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(file.warnings.list(), []);
        assert_eq!(file.scalings().len(), 1);
    }
}
