//! The messages for wrong files: every snapshot is what a user reads.

use super::*;

#[test]
fn a_typo_is_shown_with_what_was_meant() {
    assert_snapshot!(errors(&MINIMAL.replace("members", "membres")), @r#"
    error: plimsoll.toml:6:1: unknown key `membres` in [[group]]
        6 | membres = ["127.0.0.1:1"]
          | ^^^^^^^ did you mean `members`?   allowed: admission, aperture, discover, drain_hook, health, iiop, key, load_report_header, lottery, max_connections, max_idle_connections, max_rate, members, monitor, name, objective, on_drain, outlier, pool_idle_timeout, protocol, queue, queue_timeout, retry, scaler, send_proxy, slow_start, strategy, timeouts, tls, when_all_down
    1 error
    "#);
    assert_snapshot!(errors(&format!("{MINIMAL}strategy = {{ least_request = {{ choises = 3 }} }}")), @r#"
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
          |            ^^^^^^ did you mean `tcp`?   allowed: http, https, tcp, udp, iiop, dns, xds
    error: plimsoll.toml:8:9: there is no group named `wbe`
        8 | group = "wbe"
          |         ^^^^^ did you mean `web`?   groups: web
    error: plimsoll.toml:11:12: `members`: `127.0.0.1` has no port
       11 | members = ["127.0.0.1", { address = "127.0.0.1:1", weight = 3, capacity = -1 }]
          |            ^^^^^^^^^^^ a host and a port, such as "10.0.0.1:80"
    error: plimsoll.toml:11:52: unknown key `weight` in [group.members]
       11 | members = ["127.0.0.1", { address = "127.0.0.1:1", weight = 3, capacity = -1 }]
          |                                                    ^^^^^^ did you mean `capacity`?   allowed: address, capacity, host, ior, key, location, max_connections, public
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
          | ^^^^^^^^^^^^^^ add http = "/healthz", grpc = "", tcp = true or iiop = true
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
          |            ^^^^ this check connects, too
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
rebind_idle = "5s"
[[listener]]
address = "127.0.0.1:82"
group = "a"
binding = "on_demand"
rebind = "redirect"
rebind_idle = "5s"
[[group]]
name = "a"
members = [{ address = "x:1", public = "http://x" }, "y:1", "z:1"]
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
    warning: plimsoll.toml:16:10: clients cannot be sent to 2 members, y:1, z:1: they have no `public` address
       16 | rebind = "redirect"
          |          ^^^^^^^^^^ sessions that go there stay behind this listener
       20 | members = [{ address = "x:1", public = "http://x" }, "y:1", "z:1"]
          |                                                      ^^^^^ here
    warning: plimsoll.toml:17:1: `rebind_idle` has no effect: this listener speaks http
       17 | rebind_idle = "5s"
          | ^^^^^^^^^^^
    1 error, 5 warnings
    "#);
}

#[test]
fn members_of_http2_cannot_send_one_of_many_clients_away() {
    let text = |rebind: &str, protocol: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:80\"\ngroup = \"a\"\nbinding = \"on_demand\"\nrebind = \
             \"{rebind}\"\n\
             [[group]]\nname = \"a\"\nmembers = [\"127.0.0.1:1\"]\nprotocol = \"{protocol}\"\n\
             monitor = {{ source = \"push\", metric = \"cpu\" }}\n"
        )
    };
    let warnings_of = |rebind, protocol| read(&text(rebind, protocol)).unwrap().warnings.to_string();
    let error_text = warnings_of("agent", "h2");
    assert!(
        error_text.contains("plimsoll.toml:5:10: clients that come through this listener stay"),
        "{error_text}"
    );
    for (rebind, protocol) in [("agent", "http1"), ("silent", "h2"), ("close", "h2")] {
        assert_eq!(warnings_of(rebind, protocol), "", "{rebind} {protocol}");
    }
}

#[test]
fn a_listener_is_not_its_own_member() {
    let own_member =
        MINIMAL.replace("[\"127.0.0.1:1\"]", "[\"127.0.0.1:1\", { address = \"127.0.0.1:8080\" }]");
    assert_snapshot!(errors(&own_member), @r#"
    error: plimsoll.toml:6:39: member 127.0.0.1:8080 is the listener on 127.0.0.1:8080 itself
        6 | members = ["127.0.0.1:1", { address = "127.0.0.1:8080" }]
          |                                       ^^^^^^^^^^^^^^^^ write where the server is, or listen elsewhere
        2 | address = "127.0.0.1:8080"
          |           ^^^^^^^^^^^^^^^^ the listener is here
    1 error
    "#);
    let wildcard_member =
        own_member.replace("address = \"127.0.0.1:8080\"\ngroup", "address = \"[::]:8080\"\ngroup");
    assert!(errors(&wildcard_member).contains("member 127.0.0.1:8080 is the listener on [::]:8080 itself"));
    // A client that asks for names gets another server's port.
    let dns = own_member
        .replace("group = \"web\"", "group = \"web\"\nprotocol = \"dns\"\ndomain = \"web.example.\"");
    read(&dns).unwrap();
}

#[test]
fn listeners_of_xds_are_held_against_what_they_can() {
    let result_of = |rest: &str| {
        let text =
            MINIMAL.replace("group = \"web\"", &format!("group = \"web\"\nprotocol = \"xds\"\n{rest}"));
        match read(&text) {
            Ok(file) => file.warnings.to_string(),
            Err(problems) => problems.to_string(),
        }
    };
    assert_eq!(result_of(""), "");
    for (rest, expected) in [
        ("groups = [\"wbe\"]", "there is no group named `wbe`"),
        ("groups = [\"web\"]", "group `web` is the listener's own already"),
        ("groups = [\"a\", \"a\"]", "group `a` is there twice"),
        ("binding = \"per_session\"", "binding `per_session` is not supported for xds"),
        ("binding = \"on_demand\"\nrebind = \"close\"", "rebind `close` is not supported for xds"),
        ("max_header_bytes = 2048", "`max_header_bytes` has no effect: this listener speaks xds"),
        ("half_close = true", "`half_close` has no effect"),
        ("upgrades = []", "`upgrades` has no effect"),
        ("public = \"a:1\"", "`public` has no effect"),
    ] {
        let error_text = result_of(rest);
        assert!(error_text.contains(expected), "{rest}: {error_text}");
    }
}

#[test]
fn objectives_are_for_those_who_wait_and_apertures_for_those_without_an_order() {
    for (rest, expected) in [
        ("objective = \"1s\"", ""),
        ("objective = \"1s\"\nstrategy = \"random\"\nadmission = true", ""),
        ("objective = \"1s\"\nstrategy = \"random\"", "`objective` has no effect: nobody waits for room"),
        ("objective = \"1s\"\nadmission = false", "`objective` has no effect: nobody waits for room"),
        ("objective = \"0s\"", "1ms"),
        ("aperture = 12\nstrategy = \"maglev\"", "balancers do not agree on who is first for `maglev`"),
    ] {
        let outcome = match read(&format!("{MINIMAL}{rest}\n")) {
            Ok(file) => file.warnings.to_string(),
            Err(problems) => problems.to_string(),
        };
        assert!(outcome.contains(expected) && outcome.is_empty() == expected.is_empty(), "{rest}: {outcome}");
    }
}

#[test]
fn control_over_tls_is_held_against_what_it_needs() {
    let tls = "tls = { certificate = \"/a.pem\", key = \"/a.key\", client_ca = \"/ca.pem\", \
               trust_domain = \"example.org\" }\n";
    let grant = "[[admin.access.grant]]\nidentity = \"jwt:a\"\nrole = \"viewer\"\n";
    let result_of = |admin: &str| match read(&format!("{MINIMAL}[admin]\n{admin}")) {
        Ok(file) => file.warnings.to_string(),
        Err(problems) => problems.to_string(),
    };
    let tls_address = "control = \"tls://127.0.0.1:9905\"\n";
    assert_eq!(result_of(&format!("{tls_address}{tls}{grant}")), "");
    for (admin, expected) in [
        (format!("{tls_address}{grant}"), "needs a certificate"),
        (format!("{tls_address}{tls}"), "there is no grant"),
        (format!("{tls}{grant}"), "`tls` has no effect: no control over TLS"),
        (
            format!("{tls_address}{}{grant}", tls.replace(", trust_domain = \"example.org\"", "")),
            "needs a `trust_domain`",
        ),
        (
            format!("{tls_address}{}{grant}", tls.replace(", client_ca = \"/ca.pem\"", "")),
            "nobody could prove who they are",
        ),
        (
            format!(
                "{tls_address}{tls}access = {{ file = \"/x\", grant = [{{ identity = \"jwt:a\", \
                 role = \"viewer\" }}] }}\n"
            ),
            "and here as well",
        ),
        (format!("{tls_address}{tls}{}", grant.replace("viewer", "veiwer")), "did you mean `viewer`?"),
        (format!("{tls_address}{tls}{}", grant.replace("jwt:a", "alice")), "neither spiffe://"),
        (
            format!(
                "{tls_address}{tls}{grant}[[admin.access.role]]\nname = \"admin\"\nverbs = \
                 [\"drain\"]\ngroups = \"all\"\n"
            ),
            "there is a role `admin` already",
        ),
        (
            format!(
                "{tls_address}{tls}{grant}[[admin.access.role]]\nname = \"x\"\nverbs = [\"drain\", \
                 \"stop\"]\ngroups = [\"web\"]\n"
            ),
            "is about the whole process",
        ),
        (
            format!(
                "{tls_address}{tls}{grant}[[admin.access.role]]\nname = \"x\"\nverbs = [\"fly\"]\n\
                 groups = []\n"
            ),
            "is not a verb; there are: index, ",
        ),
        (
            format!("{tls_address}{tls}jwt = {{ issuer = \"a\", audience = \"b\" }}\n{grant}"),
            "no keys by which",
        ),
        (
            format!(
                "{tls_address}{tls}jwt = {{ issuer = \"a\", audience = \"b\", jwks_file = \"/x\", jwks_url = \
                 \"https://x/\" }}\n{grant}"
            ),
            "and at `jwks_url` as well",
        ),
        (
            format!(
                "{tls_address}{tls}jwt = {{ issuer = \"a\", audience = \"b\", jwks_url = \"http://x/\" \
                 }}\n{grant}"
            ),
            "whoever is on the way",
        ),
        (
            format!(
                "{tls_address}{tls}jwt = {{ issuer = \"a\", audience = \"b\", jwks_file = \"/x\", \
                 jwks_ca = \"/y\" }}\n{grant}"
            ),
            "`jwks_ca` has no effect",
        ),
        (
            format!(
                "{tls_address}{tls}jwt = {{ issuer = \"a\", audience = \"b\", jwks_url = \"ftp://x/\" \
                 }}\n{grant}"
            ),
            "neither with https://",
        ),
        (
            format!("{tls_address}{tls}{grant}[[admin.access.role]]\nname = \"x\"\nverbs = [\"drain\"]\n"),
            "missing key `groups`",
        ),
        ("control = [\"unix:/a\", \"unix:/b\"]\n".to_owned(), "a second address of its kind"),
        ("control = [\"unix:/a\", \"off\"]\n".to_owned(), "`off` stands alone"),
        (format!("control = \"tls://127.0.0.1:9900\"\n{tls}{grant}"), "is also the address of `listen`"),
        (
            format!("control = \"tls://127.0.0.1:8080\"\n{tls}{grant}"),
            "is also the address of the admin side",
        ),
    ] {
        let error_text = result_of(&admin);
        assert!(
            error_text.contains(expected) && error_text.contains("plimsoll.toml:"),
            "{admin}: {error_text}"
        );
    }
}

#[test]
fn tickets_are_taken_by_a_build_that_has_kerberos() {
    let error_text = match read(&format!(
        "{MINIMAL}[admin]\ncontrol = \"tls://127.0.0.1:9905\"\ntls = {{ certificate = \"/a.pem\", key = \
         \"/a.key\" }}\n\
         kerberos = {{ keytab = \"/k\" }}\n[[admin.access.grant]]\nidentity = \"krb5:a@B\"\nrole = \
         \"viewer\"\n"
    )) {
        Ok(file) => file.warnings.to_string(),
        Err(problems) => problems.to_string(),
    };
    if plimsoll_kerberos::BUILT_IN {
        assert_eq!(error_text, "");
    } else {
        assert!(
            error_text.contains("built without Kerberos") && error_text.contains("--features kerberos"),
            "{error_text}"
        );
    }
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
          | ^ add [[listener]] with an address and a group, or [admin] reports to lend members
    1 error
    "#);
    let errors_text = errors("[listener]\naddress = \"127.0.0.1:80\"\n");
    assert!(
        errors_text.contains("write [[listener]], with two brackets: there may be several"),
        "{errors_text}"
    );
    let errors_text = errors("[[group]]\nname = \"a\"\nmembers = \"a:1\"\n");
    assert!(errors_text.contains("write [\"a:1\"]"), "{errors_text}");
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
fn objects_are_no_addresses_and_not_asked_by_http() {
    let text = r#"[[listener]]
address = "127.0.0.1:81"
protocol = "iiop"
group = "a"
[[group]]
name = "a"
members = ["corbaloc:iiop:1.2@x:1/A"]
[group.health]
http = "/"
"#;
    assert_snapshot!(errors(text), @r#"
    error: plimsoll.toml:7:12: `members`: `corbaloc:iiop:1.2@x:1/A` is an object reference: write { ior = "…" } with it
        7 | members = ["corbaloc:iiop:1.2@x:1/A"]
          |            ^^^^^^^^^^^^^^^^^^^^^^^^^ a host and a port, such as "10.0.0.1:80"
    warning: plimsoll.toml:9:8: group `a` is checked by http, and its clients speak iiop
        9 | http = "/"
          |        ^^^ iiop = true asks members for their objects; leave it if they do answer http on the same port
    1 error, 1 warning
    "#);
}

#[test]
fn sessions_are_handed_over_or_stay() {
    let conflicting_text = format!(
        "{MINIMAL}on_drain = \"stay\"\n[group.drain_hook]\nurl = \"http://127.0.0.1:7000/hand-over\"\n"
    );
    assert_snapshot!(errors(&conflicting_text), @r#"
    error: plimsoll.toml:7:12: sessions of a member that is drained cannot both be handed over and stay
        7 | on_drain = "stay"
          |            ^^^^^^ take out `on_drain`, or [group.drain_hook]
        8 | [group.drain_hook]
          |        ^^^^^^^^^^ this says who hands them over
    1 error
    "#);
}
