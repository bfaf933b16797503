//! Access rules are lost with their listeners, and not without.

use super::super::{ImportResult, ImportSource, LossClass, import};

fn made(from: ImportSource, text: &str, open: bool) -> ImportResult {
    import(from, "x", text, open).unwrap_or_else(|(why, notes)| panic!("{why} {notes:?}\n{text}"))
}

/// Returns the lines of the result that are no comments.
fn served(made: &ImportResult) -> String {
    made.text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Asserts that no client is let in where line `at` is lost, except with `open`; the list begins with that
/// line.
fn shut(from: ImportSource, text: &str, at: usize, port: u16) {
    let here = format!("\"0.0.0.0:{port}\"");
    let closed = made(from, text, false);
    assert!(!served(&closed).contains(&here), "{text}\n{}", closed.text);
    assert!(served(&closed).contains("0.0.0.0:99\""), "another listener stays: {text}\n{}", closed.text);
    assert!(closed.text.contains(&format!("#   line {at}: ")), "the reason: {}", closed.text);
    assert!(closed.text.contains("# [[listener]]\n") && closed.text.contains(&format!("# address = {here}")));
    assert_eq!(closed.notes[0].class, LossClass::Security, "{:?}", closed.notes);
    let lines: Vec<usize> =
        closed.notes.iter().filter(|note| note.class == LossClass::Security).map(|note| note.line).collect();
    assert!(lines.contains(&at), "{at}: {:?}", closed.notes);
    let first_other = closed.notes.iter().position(|note| note.class != LossClass::Security);
    assert!(first_other.is_none_or(|other| other == lines.len()), "{:?}", closed.notes);
    let open = made(from, text, true);
    assert!(served(&open).contains(&here), "--open: {text}\n{}", open.text);
    assert_eq!(open.notes[0].class, LossClass::Security, "{:?}", open.notes);
}

#[test]
fn no_listener_of_haproxy_is_opened() {
    let other = "listen other\n mode http\n bind :99\n server s 10.0.0.9:80\n";
    for rule in [
        "http-request deny if { src 10.0.0.0/8 }",
        "http-request auth unless { http_auth(users) }",
        "http-request tarpit if x",
        "http-request reject if x",
        "http-request silent-drop if x",
        "http-request return status 403 if x",
        "http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }",
        "http-request redirect scheme https unless { ssl_fc }",
        "http-request lua.auth-intercept a b c",
        "http-request set-header X-Client %[ssl_c_s_dn]",
        "http-request del-header X-Auth-User",
        "http-response deny if x",
        "tcp-request connection reject if { src -f /x }",
        "tcp-request content reject if x",
        "tcp-request session reject if x",
        "redirect scheme https if !{ ssl_fc }",
        "block if x",
        "reqideny ^x",
        "rate-limit sessions 9",
        "filter spoe engine coraza config /x",
    ] {
        let frontend = format!(
            "{other}frontend f\n mode http\n bind :80\n {rule}\n default_backend b\nbackend b\n server a \
             10.0.0.1:80\n"
        );
        shut(ImportSource::Haproxy, &frontend, 8, 80);
        let backend = format!(
            "{other}frontend f\n mode http\n bind :80\n default_backend b\nbackend b\n mode http\n {rule}\n \
             server a 10.0.0.1:80\n"
        );
        shut(ImportSource::Haproxy, &backend, 11, 80);
        let defaults = format!(
            "{other}defaults d\n mode http\n {rule}\nlisten l from d\n bind :80\n server a 10.0.0.1:80\n"
        );
        shut(ImportSource::Haproxy, &defaults, 7, 80);
    }
    for bind in
        ["interface eth1", "namespace blue", "ssl crt /a.pem strict-sni", "ssl crt /a.pem crl-file /b.pem"]
    {
        let text = format!("{other}listen l\n mode http\n bind :80 {bind}\n server a 10.0.0.1:80\n");
        shut(ImportSource::Haproxy, &text, 7, 80);
    }
    // The condition leads to a backend that refuses, or has no servers.
    for refusing in [" http-request deny\n server a 10.0.0.2:80\n", "\n"] {
        let text = format!(
            "{other}frontend f\n mode http\n bind :80\n use_backend no if {{ path /admin }}\n \
             default_backend b\n\
             backend b\n server a 10.0.0.1:80\nbackend no\n mode http\n{refusing}"
        );
        shut(ImportSource::Haproxy, &text, 8, 80);
    }
}

#[test]
fn no_listener_of_nginx_is_opened() {
    let other = "server { listen 99; location / { proxy_pass http://10.0.0.9:80; } }\n";
    let to = "proxy_pass http://10.0.0.1:80;";
    for rule in [
        "deny all;",
        "allow 10.0.0.0/8;",
        "auth_basic closed;",
        "auth_request /auth;",
        "auth_jwt x;",
        "satisfy any;",
        "limit_req zone=a;",
        "limit_conn a 9;",
        "access_by_lua_block { x }",
        "modsecurity on;",
        "include snippets/internal.conf;",
        "if ($bad) { return 403; }",
        "if ($scheme = http) { return 301 https://$host$request_uri; }",
        "limit_except GET { deny all; }",
        "internal;",
        "secure_link $arg_a;",
    ] {
        let line = |http: &str, server: &str, location: &str| {
            format!(
                "http {{\n{other}{http}\nserver {{\nlisten 80;\n{server}\nlocation / {{\n{location}\n{to} }} \
                 }} }}"
            )
        };
        shut(ImportSource::Nginx, &line("", rule, ""), 6, 80);
        shut(ImportSource::Nginx, &line("", "", rule), 8, 80);
        // The requests of the place go to the group of the others.
        let place = format!("location /admin {{ {rule} {to} }}");
        shut(ImportSource::Nginx, &line("", &place, ""), 6, 80);
        // The rule is of another server of this address.
        let second = format!("server {{ listen 80; server_name b.example; {rule} location / {{ {to} }} }}");
        shut(ImportSource::Nginx, &line(&second, "", ""), 3, 80);
    }
    let refused = format!(
        "http {{\n{other}server {{ listen 80 default_server; return 444; }}\nserver {{ listen 80; \
         server_name a.b; location / {{ {to} }} }} }}"
    );
    shut(ImportSource::Nginx, &refused, 3, 80);
    let stream =
        format!("stream {{\nserver {{ listen 99; {to} }}\nserver {{\nlisten 80;\ndeny 10.0.0.1;\n{to} }} }}")
            .replace("http://", "");
    shut(ImportSource::Nginx, &stream, 5, 80);
    // The rule is around a server: in force if the server has none of its own.
    let around = |own: &str| {
        format!(
            "http {{\nauth_basic closed;\nserver {{ listen 99; auth_basic off; location / {{ {to} }} \
             }}\nserver {{ listen 80; {own} location / {{ {to} }} }} }}"
        )
    };
    shut(ImportSource::Nginx, &around(""), 2, 80);
    assert!(served(&made(ImportSource::Nginx, &around("auth_basic off;"), false)).contains("0.0.0.0:80\""));
}

#[test]
fn a_listener_with_tls_does_without_the_redirect_to_it() {
    let text = "listen l\n mode http\n bind :80\n bind :443 ssl crt /a.pem\n redirect scheme https if \
        !{ ssl_fc }\n server a 10.0.0.1:80\n";
    let made = made(ImportSource::Haproxy, text, false);
    assert!(
        served(&made).contains("0.0.0.0:443\"") && !served(&made).contains("0.0.0.0:80\""),
        "{}",
        made.text
    );
}

#[test]
fn rules_alone_are_comments_alone() {
    let text = "listen l\n mode http\n bind :80\n http-request deny\n server a 10.0.0.1:80\n";
    let made = made(ImportSource::Haproxy, text, false);
    assert!(served(&made).trim().is_empty(), "{}", made.text);
    // The comments are the result with --open.
    let opened = import(ImportSource::Haproxy, "x", text, true).unwrap().text;
    let uncommented: Vec<&str> = made.text.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    for line in opened.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert!(uncommented.contains(&line), "{line}: {}", made.text);
    }
}

#[test]
fn a_wider_listener_does_not_get_the_clients_of_a_place_with_rules() {
    let text = |group: &str| {
        format!(
            "frontend a\n mode http\n bind 10.0.0.9:80\n http-request deny if x\n default_backend b\n\
         frontend c\n mode http\n bind :80\n bind :99\n default_backend {group}\n\
         backend b\n server a 10.0.0.1:80\nbackend d\n server a 10.0.0.2:80\n"
        )
    };
    let shared = served(&made(ImportSource::Haproxy, &text("b"), false));
    assert!(!shared.contains("0.0.0.0:80\"") && shared.contains("0.0.0.0:99\""), "{shared}");
    assert!(served(&made(ImportSource::Haproxy, &text("d"), false)).contains("0.0.0.0:80\""));
    assert!(served(&made(ImportSource::Haproxy, &text("b"), true)).contains("0.0.0.0:80\""));
}

#[test]
fn nothing_of_effect_is_lost() {
    let text = "global\n log /dev/log local0\n user haproxy\n daemon\nlisten l\n mode http\n log global\n \
        option httplog\n bind :80\n option forwardfor\n server a 10.0.0.1:80\n";
    let made = made(ImportSource::Haproxy, text, false);
    assert!(
        !made.notes.is_empty() && made.notes.iter().all(|note| note.class == LossClass::Harmless),
        "{:?}",
        made.notes
    );
}

#[test]
fn a_fragment_of_stream_is_told_where_it_belongs() {
    let fragment = "upstream db { server 10.0.0.1:5432; }\nserver { listen 5432; proxy_pass db; }\n";
    let (why, notes) = import(ImportSource::Nginx, "x", fragment, false).unwrap_err();
    assert!(why.contains("no listener"), "{why}");
    assert!(
        notes.iter().any(|note| note.line == 2 && note.why.contains("put this text into stream {")),
        "{notes:?}"
    );
    let whole = format!("stream {{ {fragment} }}");
    assert!(served(&made(ImportSource::Nginx, &whole, false)).contains("protocol = \"tcp\""));
}
