//! Names and knobs of strategies are the brain's; expressions are checked against the language.

use super::*;

#[test]
fn strategies_come_from_the_brain() {
    let with_strategy = |strategy: &str| format!("{MINIMAL}strategy = {strategy}\n");
    for strategy in plimsoll_brain::strategy::ALL {
        assert!(read(&with_strategy(&format!("\"{}\"", strategy.name))).is_ok(), "{}", strategy.name);
        for param in strategy.params {
            let with_param = |value: f64| {
                with_strategy(&format!("{{ {} = {{ {} = {value:?} }} }}", strategy.name, param.name))
            };
            for value in [param.min, param.default, param.max] {
                let file = read(&with_param(value)).expect("a value within the bounds");
                let settings = file.settings(TEST_MACHINE, failing_resolver).unwrap();
                let index =
                    strategy.params.iter().position(|candidate| candidate.name == param.name).unwrap();
                assert_eq!(settings.groups[0].spec.params.0[index], value);
            }
            assert!(errors(&with_param(param.max * 2.0 + 1.0)).contains("must be at most"), "{}", param.name);
            assert!(errors(&with_param(param.min - 1.0)).contains("must be at least"), "{}", param.name);
        }
    }
    let error = errors(&with_strategy("\"leastconn\""));
    assert!(
        error.contains("unknown strategy `leastconn`") && error.contains("`least_connections`?"),
        "{error}"
    );
    assert!(error.contains(", expression\n"), "{error}");
    let error = errors(&with_strategy("{ adaptive = { x = 1 } }"));
    assert!(
        error.contains("unknown key `x`") && error.contains("^ `adaptive` has no settings: take it out"),
        "{error}"
    );
    // An operator writes it like this.
    let parse_error = parse_strategy("{").unwrap_err();
    assert!(
        parse_error.starts_with("{, column 2: ") && parse_error.contains("such as random, or {"),
        "{parse_error}"
    );
    let parse_error = parse_strategy("{ random = x }").unwrap_err();
    assert!(parse_error.starts_with("{ random = x }, column 12: "), "{parse_error}");
    let parse_error = parse_strategy("rnadom").unwrap_err();
    assert!(parse_error.starts_with("unknown strategy `rnadom`: did you mean `random`?"), "{parse_error}");
    let error = errors(&with_strategy("{ random = {}, round_robin = {} }"));
    assert!(error.contains("exactly one strategy"), "{error}");
    assert!(errors(&with_strategy("{}")).contains("exactly one strategy"));
}

#[test]
fn expressions_are_checked_where_they_stand() {
    let weight = |text: &str| format!("{MINIMAL}strategy = {{ expression = {{ weight = {text} }} }}");
    let file = read(&weight("\"capacity / (1 + cpu)\"")).unwrap();
    let (strategy, _) = file.config.groups[0].strategy.find().unwrap();
    assert_eq!(strategy.name, "expression");
    let cluster_groups = file.watched_groups(&file.settings(TEST_MACHINE, failing_resolver).unwrap());
    assert_eq!(cluster_groups[0].weight.as_ref().unwrap().text(), "capacity / (1 + cpu)");
    assert_snapshot!(errors(&weight("\"capacity / / cpu\"")), @r#"
    error: plimsoll.toml:7:50: `capacity / / cpu` is not an expression: unexpected `/`
        7 | strategy = { expression = { weight = "capacity / / cpu" } }
          |                                                  ^ such as cpu * 0.7 + in_flight / 100
    1 error
    "#);
    assert_snapshot!(errors(&weight("\"\"")), @r#"
    error: plimsoll.toml:7:38: `weight`: `` is empty
        7 | strategy = { expression = { weight = "" } }
          |                                      ^^ a name or an expression, such as "capacity / (1 + cpu)"
    1 error
    "#);
    assert_snapshot!(errors(&format!("{MINIMAL}strategy = {{ expression = {{ weigth = \"1\" }} }}")), @r#"
    error: plimsoll.toml:7:29: unknown key `weigth` in [group.strategy.expression]
        7 | strategy = { expression = { weigth = "1" } }
          |                             ^^^^^^ did you mean `weight`?   allowed: weight
    1 error
    "#);
    let metric = |text: &str| format!("{MINIMAL}[group.monitor]\n{text}");
    assert_snapshot!(errors(&metric("metric = 'cpu|maximum'\nsource = \"psuh\"")), @r#"
    error: plimsoll.toml:8:15: `cpu|maximum` is not an expression: filter maximum is unknown
        8 | metric = 'cpu|maximum'
          |               ^^^^^^^ such as cpu * 0.7 + in_flight / 100
    error: plimsoll.toml:9:10: unknown source `psuh`
        9 | source = "psuh"
          |          ^^^^^^ did you mean `push`?   allowed: push, pull, passive, orca, orca-oob, prometheus
    2 errors
    "#);
    let errors_text = errors(&metric("source = \"pull\"\nport = 9\nurl = \"http://m/\""));
    assert!(errors_text.contains("either `url` or `port`, not both"), "{errors_text}");
    let warnings = read(&metric("port = 9\npath = \"/x\"")).unwrap().warnings.to_string();
    assert_snapshot!(warnings, @r#"
    warning: plimsoll.toml:8:1: `port` has no effect: nobody is asked
        8 | port = 9
          | ^^^^ sources that are asked: pull, prometheus, orca-oob
    warning: plimsoll.toml:9:1: `path` has no effect: nobody is asked
        9 | path = "/x"
          | ^^^^ sources that are asked: pull, prometheus, orca-oob
    2 warnings
    "#);
}

#[test]
fn expressions_may_have_several_lines() {
    let weight = |text: &str| format!("{MINIMAL}strategy = {{ expression = {{ weight = {text} }} }}");
    assert_snapshot!(errors(&weight("\"\"\"\ncapacity /\n  (1 + cpuu|foo)\"\"\"")), @r#"
    error: plimsoll.toml:9:13: `capacity / (1 + cpuu|foo)` is not an expression: filter foo is unknown
        9 |   (1 + cpuu|foo)""" } }
          |             ^^^ such as cpu * 0.7 + in_flight / 100
    1 error
    "#);
    assert_snapshot!(errors(&weight("'''capacity /\r\n  (1 + cpuu|foo)'''")), @r#"
    error: plimsoll.toml:8:13: `capacity / (1 + cpuu|foo)` is not an expression: filter foo is unknown
        8 |   (1 + cpuu|foo)''' } }
          |             ^^^ such as cpu * 0.7 + in_flight / 100
    1 error
    "#);
}

#[test]
fn what_nobody_tells_gives_no_weight_and_a_constant_no_load() {
    let passive_monitor = "monitor = { source = \"passive\", metric = \"in_flight\" }\n";
    let weight = |text: &str| {
        format!("{MINIMAL}{passive_monitor}strategy = {{ expression = {{ weight = \"{text}\" }} }}")
    };
    assert_snapshot!(errors(&weight("capacity / (1 + queue)")), @r#"
    error: plimsoll.toml:8:55: `queue` is not known: the source is `passive`
        8 | strategy = { expression = { weight = "capacity / (1 + queue)" } }
          |                                                       ^^^^^ the balancer's own figures: in_flight, requests_per_second, latency, capacity
    1 error
    "#);
    for valid_expression in [
        "capacity / (1 + in_flight)",
        "capacity / (1 + queue|default(0))",
        "1 if cpu is not defined else cpu",
    ] {
        assert_eq!(read(&weight(valid_expression)).unwrap().warnings.to_string(), "", "{valid_expression}");
    }
    // Members report it, or it is kept without a monitor.
    read(&weight("queue").replace("passive", "push")).unwrap();
    read(&weight("queue").replace(passive_monitor, "")).unwrap();
    assert_snapshot!(errors(&format!("{MINIMAL}monitor = {{ metric = \"1\" }}")), @r#"
    error: plimsoll.toml:7:22: `1` is the same for all members: no load can be told by it
        7 | monitor = { metric = "1" }
          |                      ^^^ name what members differ in, such as cpu * 0.7 + in_flight / 100
    1 error
    "#);
}
