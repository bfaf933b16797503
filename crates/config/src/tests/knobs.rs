//! Settings that contradict one another, each valid by itself.

use insta::assert_snapshot;
use plimsoll_proxy::SessionLoad;

use super::{MINIMAL, TEST_MACHINE, errors, failing_resolver, read};

#[test]
fn knobs_that_cannot_go_together() {
    let strategy = |text: &str| format!("{MINIMAL}monitor = {{}}\nstrategy = {text}");
    assert_snapshot!(errors(&strategy("{ least_loaded = { reject = 35000, critical = 25000 } }")), @r#"
    error: plimsoll.toml:8:58: `critical` (25000) must be above `reject` (35000)
        8 | strategy = { least_loaded = { reject = 35000, critical = 25000 } }
          |                                                          ^^^^^ between the two a member keeps what it has and gets nothing new
        8 | strategy = { least_loaded = { reject = 35000, critical = 25000 } }
          |                                        ^^^^^ here
    1 error
    "#);
    assert_snapshot!(errors(&strategy("{ rendezvous = { load_factor = 0.5 } }")), @r#"
    error: plimsoll.toml:8:43: `load_factor` (0.5) is below 1: no member could have its share
        8 | strategy = { rendezvous = { load_factor = 0.5 } }
          |                                           ^^^ write 0 for no bound, or 1.25
    1 error
    "#);
    assert_snapshot!(errors(&strategy("{ prequal = { pool = 4, probes = 5 } }")), @r#"
    error: plimsoll.toml:8:45: `probes` (5) must not be above `pool` (4)
        8 | strategy = { prequal = { pool = 4, probes = 5 } }
          |                                             ^ results for which there is no room would never be used
        8 | strategy = { prequal = { pool = 4, probes = 5 } }
          |                                 ^ here
    1 error
    "#);
    for valid_strategy in [
        "{ least_loaded = { reject = 25000, critical = 35000, dampening = 0.1 } }",
        "{ least_loaded = { reject = 25000 } }",
        "{ least_loaded = { critical = 1 } }",
        "{ rendezvous = { load_factor = 0 } }",
        "{ prequal = { pool = 4, probes = 4 } }",
    ] {
        assert_eq!(read(&strategy(valid_strategy)).unwrap().warnings.to_string(), "", "{valid_strategy}");
    }
    // An operator writes it like this.
    let said = crate::parse_strategy("{ least_loaded = { reject = 2, critical = 2 } }").unwrap_err();
    assert!(said.contains("`critical` (2) must be above `reject` (2)"), "{said}");
}

#[test]
fn loads_that_nobody_tells() {
    assert_snapshot!(errors(&format!("{MINIMAL}monitor = {{ source = \"passive\" }}")), @r#"
    error: plimsoll.toml:7:22: `cpu` is not known: the source is `passive`
        7 | monitor = { source = "passive" }
          |                      ^^^^^^^^^ the balancer's own figures: in_flight, requests_per_second, latency, capacity
    1 error
    "#);
    let metric = "monitor = { source = \"passive\", metric = \"in_flight + cpu\" }";
    assert_snapshot!(errors(&format!("{MINIMAL}{metric}")), @r#"
    error: plimsoll.toml:7:55: `cpu` is not known: the source is `passive`
        7 | monitor = { source = "passive", metric = "in_flight + cpu" }
          |                                                       ^^^ the balancer's own figures: in_flight, requests_per_second, latency, capacity
    1 error
    "#);
    // The part of a session can be known if a load is requests, from whatever source.
    let is_known = |source: &str, metric: &str| {
        let file = format!("{MINIMAL}monitor = {{ source = \"{source}\", metric = \"{metric}\" }}");
        read(&file).unwrap().settings(TEST_MACHINE, failing_resolver).unwrap().groups[0].session_load
    };
    assert_eq!(is_known("passive", "in_flight"), SessionLoad::Unknown);
    assert_eq!(is_known("passive", "requests_per_second"), SessionLoad::Own);
    assert_eq!(is_known("passive", "requests_per_second / capacity"), SessionLoad::Own);
    assert_eq!(is_known("push", "requests_per_second"), SessionLoad::Rate);
    assert_eq!(is_known("prometheus", "rps/capacity"), SessionLoad::RateForSize);
    assert_eq!(is_known("orca", "rps_fractional / capacity"), SessionLoad::RateForSize);
    assert_eq!(is_known("push", "requests_per_second / cpus"), SessionLoad::Unknown);
    assert_eq!(is_known("push", "cpu"), SessionLoad::Unknown);
    let warnings = read(&format!("{MINIMAL}strategy = \"least_loaded\"")).unwrap().warnings.to_string();
    assert_snapshot!(warnings, @r#"
    warning: plimsoll.toml:7:12: strategy `least_loaded` has no loads to go by: no [group.monitor]
        7 | strategy = "least_loaded"
          |            ^^^^^^^^^^^^^^ say where members' load comes from, such as { source = "push", metric = "cpu" }
    1 warning
    "#);
}

#[test]
fn members_are_asked_for_reports_where_they_can_be() {
    let monitor =
        |group: &str, rest: &str| format!("{MINIMAL}{group}[group.monitor]\nsource = \"orca-oob\"\n{rest}");
    assert_snapshot!(errors(&monitor("tls = { verify = false }\n", "")), @r#"
    error: plimsoll.toml:9:10: members are asked for reports without TLS, and are reached by TLS at their own port
        9 | source = "orca-oob"
          |          ^^^^^^^^^^ give `port`: one of theirs that serves the same without TLS
    1 error
    "#);
    assert!(read(&monitor("tls = { verify = false }\n", "port = 9")).is_ok());
    assert_snapshot!(read(&monitor("", "url = \"http://m/\"")).unwrap().warnings.to_string(), @r#"
    warning: plimsoll.toml:9:1: `url` has no effect: of members that report on a stream each is asked for its own
        9 | url = "http://m/"
          | ^^^ source = "orca-oob" has `port` and `timeout`
    1 warning
    "#);
}
