//! Tests of the configuration as a whole. Checks of single values stand with their types.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insta::assert_snapshot;

use super::*;

mod any;
mod schema;

const HERE: Machine = Machine { threads: 1, max_connections: 99 };

/// The least that is a configuration.
const LEAST: &str = r#"[[listener]]
address = "127.0.0.1:8080"
group = "web"
[[group]]
name = "web"
members = ["127.0.0.1:1"]
"#;

/// Every key there is, none at its default.
const ALL: &str = r#"threads = 3
max_connections = 5000
drain_deadline = "1m30s"

[access_log]
path = "/tmp/access.log"
sample = 0.5

[admin]
listen = "off"
control = "unix:/tmp/x.sock"
reports = "127.0.0.1:9901"

[[listener]]
address = "[::1]:8443"
protocol = "http"
group = "web"
binding = "per_request"
backlog = 100
accept_proxy = true
forwarded = "forwarded"
trusted = ["10.0.0.0/8", "::1"]
max_head = 2048
[listener.timeouts]
head = "1s"
idle = "2s"
body = "3s"
tunnel = "4s"

[[listener]]
address = "127.0.0.1:0"
protocol = "udp"
group = "web"
max_flows = 77

[[listener]]
address = "127.0.0.1:0"
protocol = "tcp"
group = "web"
binding = "on_demand"
rebind = "agent"
move_idle = "5s"

[[group]]
name = "web"
strategy = { least_request = { choices = 3 } }
max_connections = 9
slow_start = "0s"
when_all_down = "fail_open"
queue = 5
queue_timeout = "6s"
report_header = "pass"
pool = 7
pool_idle = "8s"
send_proxy = "v1"
members = ["app:80", { address = "[2001:db8::1]:81", capacity = 2.5, max_connections = 4, public = "https://one.example:81" }]
[group.health]
http = "/up"
interval = "9s"
timeout = "10s"
rise = 11
fall = 12
host = "h"
expect = 204
[group.timeouts]
connect = "13s"
per_try = "14s"
total = "15s"
idle = "16s"
[group.retry]
attempts = 0
budget = 0.25
min_per_second = 18
[group.outlier]
consecutive = 19
false_alarm = 1e-7
interval = "20s"
deviations = 2
min_requests = 21
ejection = "22s"
max_ejection = "23s"
max_ejected = 0.75
[group.monitor]
metric = "cpu * 0.5"
source = "pull"
interval = "24s"
port = 25
path = "/l"
timeout = "26s"

[[group]]
name = "sticky"
strategy = "rendezvous"
key = "cookie:Id"
members = ["app:80"]
outlier = false
[group.health]
tcp = true
[group.monitor]
source = "prometheus"
url = "http://m:27/{member}"
"#;

fn read(text: &str) -> Result<File, Problems> {
    parse("plimsoll.toml", text.as_bytes().to_vec())
}

fn errors(text: &str) -> String {
    read(text).expect_err("a file that is wrong").to_string()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn nowhere(_: &MemberAddress) -> io::Result<std::net::SocketAddr> {
    Ok(([192, 0, 2, 1], 7).into())
}

#[test]
fn a_typo_is_shown_with_what_was_meant() {
    assert_snapshot!(errors(&LEAST.replace("members", "membres")), @r#"
    error: plimsoll.toml:6:1: unknown key `membres` in [[group]]
        6 | membres = ["127.0.0.1:1"]
          | ^^^^^^^ did you mean `members`?   allowed: health, key, max_connections, members, monitor, name, outlier, pool, pool_idle, queue, queue_timeout, report_header, retry, send_proxy, slow_start, strategy, timeouts, when_all_down
    1 error
    "#);
    assert_snapshot!(errors(&format!("{LEAST}strategy = {{ least_request = {{ choises = 3 }} }}")), @r#"
    error: plimsoll.toml:7:32: unknown key `choises` in [group.strategy.least_request]
        7 | strategy = { least_request = { choises = 3 } }
          |                                ^^^^^^^ did you mean `choices`?   allowed: choices
    1 error
    "#);
}

#[test]
fn every_error_is_reported_at_once() {
    let text = r#"threads = 0
[[listener]]
address = ":8080"
group = "web"
protocol = "tcpp"
[[listener]]
address = "127.0.0.1:80"
group = "wbe"
[[group]]
name = "web"
members = ["127.0.0.1", { address = "127.0.0.1:1", weight = 3, capacity = -1 }]
[group.timeouts]
connect = 5
"#;
    assert_snapshot!(errors(text), @r#"
    error: plimsoll.toml:1:11: `threads` must be at least 1
        1 | threads = 0
          |           ^
    error: plimsoll.toml:3:11: `address`: `:8080` names no address: write "0.0.0.0:8080" (IPv4) or "[::]:8080" (all)
        3 | address = ":8080"
          |           ^^^^^^^ an IP address and a port, such as "0.0.0.0:8080"
    error: plimsoll.toml:5:12: unknown protocol `tcpp`
        5 | protocol = "tcpp"
          |            ^^^^^^ did you mean `tcp`?   allowed: http, tcp, udp
    error: plimsoll.toml:8:9: there is no group named `wbe`
        8 | group = "wbe"
          |         ^^^^^ did you mean `web`?   groups: web
    error: plimsoll.toml:11:12: `members`: `127.0.0.1` has no port
       11 | members = ["127.0.0.1", { address = "127.0.0.1:1", weight = 3, capacity = -1 }]
          |            ^^^^^^^^^^^ a host and a port, such as "10.0.0.1:80"
    error: plimsoll.toml:11:52: unknown key `weight` in [group.members]
       11 | members = ["127.0.0.1", { address = "127.0.0.1:1", weight = 3, capacity = -1 }]
          |                                                    ^^^^^^ did you mean `capacity`?   allowed: address, capacity, max_connections, public
    error: plimsoll.toml:11:75: `capacity` must be at least 0.001
       11 | members = ["127.0.0.1", { address = "127.0.0.1:1", weight = 3, capacity = -1 }]
          |                                                                           ^^
    error: plimsoll.toml:13:11: `connect` must be a duration in quotes, not an integer
       13 | connect = 5
          |           ^ write "5s" or "5ms"
    8 errors
    "#);
}

#[test]
fn sections_are_held_against_one_another() {
    let text = r#"[admin]
listen = "127.0.0.1:80"
[[listener]]
address = "127.0.0.1:80"
group = "a"
binding = "per_session"
[[listener]]
address = "127.0.0.1:80"
protocol = "tcp"
group = "a"
max_flows = 1
binding = "per_request"
[[listener]]
address = "127.0.0.1:80"
protocol = "udp"
group = "a"
accept_proxy = true
[[group]]
name = "a"
key = "path"
members = ["x:1", "X:1"]
send_proxy = "v2"
[group.health]
rise = 1
[group.timeouts]
per_try = "5s"
total = "4s"
[group.outlier]
ejection = "10m"
[[group]]
name = "a"
members = ["x:1"]
health = { http = "/", tcp = true }
"#;
    assert_snapshot!(errors(text), @r#"
    error: plimsoll.toml:4:11: 127.0.0.1:80 is also the address of the admin side
        4 | address = "127.0.0.1:80"
          |           ^^^^^^^^^^^^^^ move one of them, or set listen = "off" in [admin]
        2 | listen = "127.0.0.1:80"
          |          ^^^^^^^^^^^^^^ here
    error: plimsoll.toml:8:11: a second listener on 127.0.0.1:80 (tcp)
        8 | address = "127.0.0.1:80"
          |           ^^^^^^^^^^^^^^
        4 | address = "127.0.0.1:80"
          |           ^^^^^^^^^^^^^^ the first is here
    warning: plimsoll.toml:11:1: `max_flows` has no effect: this listener speaks tcp
       11 | max_flows = 1
          | ^^^^^^^^^
    error: plimsoll.toml:12:11: binding `per_request` is not supported for tcp
       12 | binding = "per_request"
          |           ^^^^^^^^^^^^^ tcp can be bound per_session or on_demand
    error: plimsoll.toml:17:1: accept_proxy is not supported for udp
       17 | accept_proxy = true
          | ^^^^^^^^^^^^ take it out
    warning: plimsoll.toml:20:1: `key` has no effect: strategy `adaptive` does not hash
       20 | key = "path"
          | ^^^ strategies that do: rendezvous, maglev
    error: plimsoll.toml:21:19: member x:1 is in group `a` twice
       21 | members = ["x:1", "X:1"]
          |                   ^^^^^
       21 | members = ["x:1", "X:1"]
          |            ^^^^^ the first is here
    warning: plimsoll.toml:22:1: `send_proxy` has no effect for the udp listener on 127.0.0.1:80
       22 | send_proxy = "v2"
          | ^^^^^^^^^^
    error: plimsoll.toml:23:1: [group.health] does not say how to check
       23 | [group.health]
          | ^^^^^^^^^^^^^^ add http = "/healthz" or tcp = true
    error: plimsoll.toml:26:11: `per_try` (5s) must not be longer than `total` (4s)
       26 | per_try = "5s"
          |           ^^^^
       27 | total = "4s"
          |         ^^^^ here
    error: plimsoll.toml:29:12: `ejection` (10m) must not be longer than `max_ejection` (5m)
       29 | ejection = "10m"
          |            ^^^^^ `max_ejection` is at its default
    error: plimsoll.toml:31:8: a second group named `a`
       31 | name = "a"
          |        ^^^
       19 | name = "a"
          |        ^^^ the first is here
    error: plimsoll.toml:33:24: either `http` or `tcp`, not both
       33 | health = { http = "/", tcp = true }
          |                        ^^^
       33 | health = { http = "/", tcp = true }
          |            ^^^^ an http check connects, too
    10 errors, 3 warnings
    "#);
}

#[test]
fn bindings_are_held_against_protocol_and_group() {
    let text = r#"[[listener]]
address = "127.0.0.1:80"
group = "a"
rebind = "close"
[[listener]]
address = "127.0.0.1:81"
protocol = "tcp"
group = "a"
binding = "on_demand"
rebind = "redirect"
move_idle = "5s"
[[listener]]
address = "127.0.0.1:82"
group = "a"
binding = "on_demand"
rebind = "redirect"
move_idle = "5s"
[[group]]
name = "a"
members = [{ address = "x:1", public = "http://x" }, "y:1"]
"#;
    assert_snapshot!(errors(text), @r#"
    warning: plimsoll.toml:4:1: `rebind` has no effect: clients are bound per_request
        4 | rebind = "close"
          | ^^^^^^ it is for binding = "on_demand"
    warning: plimsoll.toml:9:11: nobody will be under alert: group `a` has no [group.monitor]
        9 | binding = "on_demand"
          |           ^^^^^^^^^^^ say where its members' load comes from, such as { source = "push", metric = "cpu" }
    error: plimsoll.toml:10:10: rebind `redirect` is not supported for tcp
       10 | rebind = "redirect"
          |          ^^^^^^^^^^ silent and agent are
    warning: plimsoll.toml:15:11: nobody will be under alert: group `a` has no [group.monitor]
       15 | binding = "on_demand"
          |           ^^^^^^^^^^^ say where its members' load comes from, such as { source = "push", metric = "cpu" }
    warning: plimsoll.toml:16:10: clients cannot be sent to member y:1: it has no `public` address
       16 | rebind = "redirect"
          |          ^^^^^^^^^^ sessions that go there stay behind this listener
       20 | members = [{ address = "x:1", public = "http://x" }, "y:1"]
          |                                                      ^^^^^ here
    warning: plimsoll.toml:17:1: `move_idle` has no effect: this listener speaks http
       17 | move_idle = "5s"
          | ^^^^^^^^^
    1 error, 5 warnings
    "#);
}

#[test]
fn what_comes_later_says_so() {
    let text = LEAST.replace("group = \"web\"", "group = \"web\"\nprotocol = \"https\"")
        + "[group.monitor]\nmetric = \"cpu\"\n[admin.access]\nx = 1\n";
    assert_snapshot!(errors(&text), @r#"
    error: plimsoll.toml:4:12: protocol `https` is not supported yet
        4 | protocol = "https"
          |            ^^^^^^^ supported: http, tcp, udp
    error: plimsoll.toml:10:8: `access` is not supported yet in [admin]
       10 | [admin.access]
          |        ^^^^^^ take it out
    2 errors
    "#);
}

#[test]
fn broken_text_is_placed_too() {
    assert_snapshot!(errors("[[listener]\naddress = \"x\ngroup = 1 2\n"), @r#"
    error: plimsoll.toml:1:12: unclosed array table, expected `]`
        1 | [[listener]
          |            ^
    1 error
    "#);
    assert_snapshot!(parse("x.toml", b"# \xc3\xa4\n  a = \xff\n".to_vec()).unwrap_err(), @r#"
    error: x.toml:2:7: not UTF-8 text
        2 |   a = �
          |       ^ save the file as UTF-8
    1 error
    "#);
    assert_snapshot!(errors(""), @r#"
    error: plimsoll.toml:1:1: no [[listener]]: nothing would be served
        1 |
          | ^ add [[listener]] with an address and a group
    1 error
    "#);
    assert_snapshot!(errors("listener = 3\ngroup = [1]\n"), @r#"
    error: plimsoll.toml:1:12: `listener` must be an array, not an integer
        1 | listener = 3
          |            ^
    error: plimsoll.toml:2:10: `group` must be a table, not an integer
        2 | group = [1]
          |          ^
    2 errors
    "#);
}

#[test]
fn strategies_come_from_the_brain() {
    let with = |strategy: &str| format!("{LEAST}strategy = {strategy}\n");
    for strategy in plimsoll_brain::strategy::ALL {
        assert!(read(&with(&format!("\"{}\"", strategy.name))).is_ok(), "{}", strategy.name);
        for knob in strategy.knobs {
            let set =
                |value: f64| with(&format!("{{ {} = {{ {} = {value:?} }} }}", strategy.name, knob.name));
            for value in [knob.min, knob.default, knob.max] {
                let file = read(&set(value)).expect("a value within the bounds");
                let settings = file.settings(HERE, nowhere).unwrap();
                let index = strategy.knobs.iter().position(|other| other.name == knob.name).unwrap();
                assert_eq!(settings.groups[0].spec.knobs.0[index], value);
            }
            assert!(errors(&set(knob.max * 2.0 + 1.0)).contains("must be at most"), "{}", knob.name);
            assert!(errors(&set(knob.min - 1.0)).contains("must be at least"), "{}", knob.name);
        }
    }
    let error = errors(&with("\"leastconn\""));
    assert!(
        error.contains("unknown strategy `leastconn`") && error.contains("`least_connections`?"),
        "{error}"
    );
    let error = errors(&with("{ random = {}, round_robin = {} }"));
    assert!(error.contains("exactly one strategy"), "{error}");
    assert!(errors(&with("{}")).contains("exactly one strategy"));
}

#[test]
fn expressions_are_checked_where_they_stand() {
    let weight = |text: &str| format!("{LEAST}strategy = {{ expression = {{ weight = {text} }} }}");
    let file = read(&weight("\"capacity / (1 + cpu)\"")).unwrap();
    let (strategy, _) = file.config.groups[0].strategy.find().unwrap();
    assert_eq!(strategy.name, "expression");
    let watched = file.watched(&file.settings(HERE, nowhere).unwrap());
    assert_eq!(watched[0].weight.as_ref().unwrap().text(), "capacity / (1 + cpu)");
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
    assert_snapshot!(errors(&format!("{LEAST}strategy = {{ expression = {{ weigth = \"1\" }} }}")), @r#"
    error: plimsoll.toml:7:29: unknown key `weigth` in [group.strategy.expression]
        7 | strategy = { expression = { weigth = "1" } }
          |                             ^^^^^^ did you mean `weight`?   allowed: weight
    1 error
    "#);
    let metric = |text: &str| format!("{LEAST}[group.monitor]\n{text}");
    assert_snapshot!(errors(&metric("metric = 'cpu|maximum'\nsource = \"psuh\"")), @r#"
    error: plimsoll.toml:8:15: `cpu|maximum` is not an expression: filter maximum is unknown
        8 | metric = 'cpu|maximum'
          |               ^^^^^^^ such as cpu * 0.7 + in_flight / 100
    error: plimsoll.toml:9:10: unknown source `psuh`
        9 | source = "psuh"
          |          ^^^^^^ did you mean `push`?   allowed: push, pull, passive, orca, prometheus
    2 errors
    "#);
    let both = errors(&metric("source = \"pull\"\nport = 9\nurl = \"http://m/\""));
    assert!(both.contains("either `url` or `port`, not both"), "{both}");
    let warned = read(&metric("port = 9\npath = \"/x\"")).unwrap().warnings.to_string();
    assert_snapshot!(warned, @r#"
    warning: plimsoll.toml:8:1: `port` has no effect: nobody is asked
        8 | port = 9
          | ^^^^ sources that are asked: pull, prometheus
    warning: plimsoll.toml:9:1: `path` has no effect: nobody is asked
        9 | path = "/x"
          | ^^^^ sources that are asked: pull, prometheus
    2 warnings
    "#);
}

#[test]
fn a_strategy_is_read_by_itself() {
    let read = |text: &str| strategy(text).map(|strategy| strategy.filled());
    assert_eq!(read("random").unwrap().name(), "random");
    assert_eq!(read(" \"random\" ").unwrap().name(), "random");
    let (found, knobs) = read("{ least_request = { choices = 3 } }").unwrap().find().unwrap();
    assert_eq!((found.name, knobs.0), ("least_request", vec![3.0]));
    assert!(read("{ expression = { weight = 'cpu' } }").unwrap().weight().is_some());
    for (text, why) in [
        ("least_conn", "did you mean `least_connections`?"),
        ("", "unknown strategy"),
        ("expression", "write strategy = { expression"),
        ("{ least_request = { choices = 99 } }", "must be at most 16"),
        ("{ least_request = { choices = 3 }", ""),
        ("{ expression = { weight = 'cpu +' } }", "is not an expression"),
        ("random\"}]\nthreads = 0 #", "unknown strategy"),
    ] {
        let said = read(text).unwrap_err();
        assert!(said.contains(why) && !said.contains('\n'), "{text}: {said}");
    }
}

#[test]
fn defaults_are_as_documented() {
    let settings =
        read(LEAST).unwrap().settings(Machine { threads: 2, max_connections: 1234 }, nowhere).unwrap();
    assert_eq!(settings.threads, 2);
    assert_eq!(settings.max_connections, 1234);
    assert_snapshot!(format!("{:#?}", settings.listeners[0]), @r#"
    ListenerSettings {
        address: 127.0.0.1:8080,
        protocol: Http,
        group: "web",
        binding: PerRequest,
        move_idle: 0ns,
        backlog: 4096,
        accept_proxy: false,
        timeouts: ClientTimeouts {
            head: 10s,
            idle: 60s,
            body: 30s,
            tunnel: 3600s,
        },
        max_head: 32768,
        forwarded: XForwarded,
        trusted: [],
        max_flows: 16384,
    }
    "#);
    let group = &settings.groups[0];
    assert_eq!(group.spec.strategy.name, "adaptive");
    assert_snapshot!(
        format!("{:#?}\n{:#?}\n{:#?}\n{:?}", group.spec.outlier, group.timeouts, group.retry, group.spec.slow_start),
        @r#"
    Some(
        OutlierSpec {
            false_alarm: 1e-6,
            consecutive: 5,
            interval: 10s,
            deviations: 1.9,
            min_requests: 100,
            ejection: 10s,
            max_ejection: 300s,
            max_ejected: 0.5,
        },
    )
    MemberTimeouts {
        connect: 1s,
        per_try: 0ns,
        total: 0ns,
        idle: 60s,
    }
    RetrySettings {
        attempts: 2,
        budget: 0.2,
        min_per_second: 10.0,
    }
    10s
    "#
    );
    let tcp = read(&LEAST.replace("group = \"web\"", "group = \"web\"\nprotocol = \"tcp\"")).unwrap();
    let tcp = tcp.settings(HERE, nowhere).unwrap();
    assert_eq!(tcp.listeners[0].timeouts.idle, Duration::from_secs(3600));
}

#[test]
fn every_key_reaches_the_settings() {
    let file = read(ALL).expect("valid");
    assert_snapshot!(file.warnings, @r#"
    warning: plimsoll.toml:55:1: `send_proxy` has no effect for the udp listener on 127.0.0.1:0
       55 | send_proxy = "v1"
          | ^^^^^^^^^^
    warning: plimsoll.toml:92:8: no listener sends clients to group `sticky`
       92 | name = "sticky"
          |        ^^^^^^^^
    2 warnings
    "#);
    let settings = file.settings(HERE, nowhere).unwrap();
    let watched = file.watched(&settings);
    let monitor = format!("{:?}", watched[0].monitor);
    assert_eq!(
        monitor,
        "Some(MonitorSettings { source: Pull, metric: Expression(\"cpu * 0.5\"), interval: 24s, target: Target { \
         host: None, port: Some(25), path: \"/l\", timeout: 26s } })"
    );
    assert_eq!((&*watched[0].members[1].name, watched[0].members[1].capacity), ("[2001:db8::1]:81", 2.5));
    let target = &watched[1].monitor.as_ref().unwrap().target;
    assert_eq!((target.host.as_deref(), target.port, &*target.path), (Some("m"), Some(27), "/{member}"));
    assert_eq!(watched[1].weight, None);
    let mut shown = format!(
        "{} {} {:?} {:?}\n{:#?}\n",
        settings.threads,
        settings.max_connections,
        settings.drain_deadline,
        settings.access_log,
        settings.listeners
    );
    for group in settings.groups {
        let spec = group.spec;
        shown += &format!(
            "{} {} {:?} {:?} {:?}\n{:#?}\n{:?}\n{:?}\n",
            spec.name,
            spec.strategy.name,
            spec.knobs.0,
            spec.slow_start,
            spec.when_all_down,
            spec.members,
            spec.health,
            spec.outlier
        );
        shown += &format!(
            "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{} {:?} {} {:?} {:?}\n",
            group.public,
            group.probe,
            group.key,
            group.timeouts,
            group.retry,
            group.queue,
            group.queue_timeout,
            group.pool,
            group.pool_idle,
            group.send_proxy
        );
    }
    assert_snapshot!("all_settings", shown);
    assert_eq!(
        file.admin(),
        AdminConfig {
            listen: None,
            control: Some("/tmp/x.sock".into()),
            reports: Some(([127, 0, 0, 1], 9901).into()),
            written: true
        }
    );
}

#[test]
fn what_is_shown_can_be_read_again() {
    for text in [LEAST, ALL] {
        let filled = read(text).unwrap().config.filled(HERE);
        let shown = toml::to_string_pretty(&filled).unwrap();
        let again = read(&shown).unwrap_or_else(|problems| panic!("{problems}{shown}"));
        assert_eq!(again.config, filled, "{shown}");
        assert_eq!(again.config.filled(HERE), filled, "nothing is left to fill");
    }
}

#[test]
fn names_that_cannot_be_looked_up_are_placed() {
    let file = read(&LEAST.replace("127.0.0.1:1", "no.such.name:1")).unwrap();
    let problems = file.settings(HERE, |_| Err(io::Error::other("not known"))).unwrap_err();
    assert_snapshot!(problems, @r#"
    error: plimsoll.toml:6:12: cannot look up `no.such.name`: not known
        6 | members = ["no.such.name:1"]
          |            ^^^^^^^^^^^^^^^^ correct the name, or write an IP address
    1 error
    "#);
}

#[test]
fn look_ups_prefer_ipv4() {
    let address = |text: &str| look_up(&text.parse().unwrap()).unwrap().to_string();
    assert_eq!(address("127.0.0.1:80"), "127.0.0.1:80");
    assert_eq!(address("[::1]:80"), "[::1]:80");
    assert_eq!(address("localhost:80"), "127.0.0.1:80");
}

#[test]
fn examples_are_valid() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let file = super::read(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(file.warnings.to_string(), "", "{}", path.display());
            file.settings(HERE, nowhere).unwrap();
            count += 1;
        }
    }
    assert!(count >= 5);
}
