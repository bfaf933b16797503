//! Access rules are lost with their listeners, and not without.

use super::super::{ImportResult, ImportSource, LossClass, import};

fn import_text(source: ImportSource, text: &str, keeps_exposed: bool) -> ImportResult {
    import(source, "x", text, keeps_exposed)
        .unwrap_or_else(|(reason, notes)| panic!("{reason} {notes:?}\n{text}"))
}

/// Returns the lines of the result that are no comments.
fn served_addresses(result: &ImportResult) -> String {
    result.text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Asserts that no client is let in where line `at` is lost, except with `open`; the list begins with that
/// line.
fn assert_not_exposed(source: ImportSource, text: &str, rule_line: usize, port: u16) {
    let address_text = format!("\"0.0.0.0:{port}\"");
    let result = import_text(source, text, false);
    assert!(!served_addresses(&result).contains(&address_text), "{text}\n{}", result.text);
    assert!(
        served_addresses(&result).contains("0.0.0.0:99\""),
        "another listener stays: {text}\n{}",
        result.text
    );
    assert!(result.text.contains(&format!("#   line {rule_line}: ")), "the reason: {}", result.text);
    assert!(
        result.text.contains("# [[listener]]\n")
            && result.text.contains(&format!("# address = {address_text}"))
    );
    assert_eq!(result.notes[0].class, LossClass::Security, "{:?}", result.notes);
    let lines: Vec<usize> =
        result.notes.iter().filter(|note| note.class == LossClass::Security).map(|note| note.line).collect();
    assert!(lines.contains(&rule_line), "{rule_line}: {:?}", result.notes);
    let first_harmless = result.notes.iter().position(|note| note.class != LossClass::Security);
    assert!(first_harmless.is_none_or(|other| other == lines.len()), "{:?}", result.notes);
    let exposed = import_text(source, text, true);
    assert!(served_addresses(&exposed).contains(&address_text), "--open: {text}\n{}", exposed.text);
    assert_eq!(exposed.notes[0].class, LossClass::Security, "{:?}", exposed.notes);
}

#[test]
fn no_listener_of_haproxy_is_opened() {
    let other_section = "listen other\n mode http\n bind :99\n server s 10.0.0.9:80\n";
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
            "{other_section}frontend f\n mode http\n bind :80\n {rule}\n default_backend b\nbackend b\n \
             server a 10.0.0.1:80\n"
        );
        assert_not_exposed(ImportSource::Haproxy, &frontend, 8, 80);
        let backend = format!(
            "{other_section}frontend f\n mode http\n bind :80\n default_backend b\nbackend b\n mode http\n \
             {rule}\n server a 10.0.0.1:80\n"
        );
        assert_not_exposed(ImportSource::Haproxy, &backend, 11, 80);
        let defaults = format!(
            "{other_section}defaults d\n mode http\n {rule}\nlisten l from d\n bind :80\n \
             server a 10.0.0.1:80\n"
        );
        assert_not_exposed(ImportSource::Haproxy, &defaults, 7, 80);
    }
    for bind in
        ["interface eth1", "namespace blue", "ssl crt /a.pem strict-sni", "ssl crt /a.pem crl-file /b.pem"]
    {
        let text = format!("{other_section}listen l\n mode http\n bind :80 {bind}\n server a 10.0.0.1:80\n");
        assert_not_exposed(ImportSource::Haproxy, &text, 7, 80);
    }
    // The condition leads to a backend that refuses, or has no servers.
    for refusing_lines in [" http-request deny\n server a 10.0.0.2:80\n", "\n"] {
        let text = format!(
            "{other_section}frontend f\n mode http\n bind :80\n use_backend no if {{ path /admin }}\n \
             default_backend b\n\
             backend b\n server a 10.0.0.1:80\nbackend no\n mode http\n{refusing_lines}"
        );
        assert_not_exposed(ImportSource::Haproxy, &text, 8, 80);
    }
}

#[test]
fn no_listener_of_nginx_is_opened() {
    let other_section = "server { listen 99; location / { proxy_pass http://10.0.0.9:80; } }\n";
    let pass_line = "proxy_pass http://10.0.0.1:80;";
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
                "http {{\n{other_section}{http}\nserver {{\nlisten 80;\n{server}\nlocation / \
                 {{\n{location}\n{pass_line} }} }} }}"
            )
        };
        assert_not_exposed(ImportSource::Nginx, &line("", rule, ""), 6, 80);
        assert_not_exposed(ImportSource::Nginx, &line("", "", rule), 8, 80);
        // The requests of the place go to the group of the others.
        let location_text = format!("location /admin {{ {rule} {pass_line} }}");
        assert_not_exposed(ImportSource::Nginx, &line("", &location_text, ""), 6, 80);
        // The rule is of another server of this address.
        let second_server =
            format!("server {{ listen 80; server_name b.example; {rule} location / {{ {pass_line} }} }}");
        assert_not_exposed(ImportSource::Nginx, &line(&second_server, "", ""), 3, 80);
    }
    let refusing_text = format!(
        "http {{\n{other_section}server {{ listen 80 default_server; return 444; }}\nserver {{ listen 80; \
         server_name a.b; location / {{ {pass_line} }} }} }}"
    );
    assert_not_exposed(ImportSource::Nginx, &refusing_text, 3, 80);
    let stream = format!(
        "stream {{\nserver {{ listen 99; {pass_line} }}\nserver {{\nlisten 80;\ndeny 10.0.0.1;\n{pass_line} \
         }} }}"
    )
    .replace("http://", "");
    assert_not_exposed(ImportSource::Nginx, &stream, 5, 80);
    // The rule is around a server: in force if the server has none of its own.
    let nested_text = |server_rule: &str| {
        format!(
            "http {{\nauth_basic closed;\nserver {{ listen 99; auth_basic off; location / {{ {pass_line} }} \
             }}\nserver {{ listen 80; {server_rule} location / {{ {pass_line} }} }} }}"
        )
    };
    assert_not_exposed(ImportSource::Nginx, &nested_text(""), 2, 80);
    assert!(
        served_addresses(&import_text(ImportSource::Nginx, &nested_text("auth_basic off;"), false))
            .contains("0.0.0.0:80\"")
    );
}

#[test]
fn a_listener_with_tls_does_without_the_redirect_to_it() {
    let text = "listen l\n mode http\n bind :80\n bind :443 ssl crt /a.pem\n redirect scheme https if \
        !{ ssl_fc }\n server a 10.0.0.1:80\n";
    let result = import_text(ImportSource::Haproxy, text, false);
    assert!(
        served_addresses(&result).contains("0.0.0.0:443\"")
            && !served_addresses(&result).contains("0.0.0.0:80\""),
        "{}",
        result.text
    );
}

#[test]
fn rules_alone_are_comments_alone() {
    let text = "listen l\n mode http\n bind :80\n http-request deny\n server a 10.0.0.1:80\n";
    let result = import_text(ImportSource::Haproxy, text, false);
    assert!(served_addresses(&result).trim().is_empty(), "{}", result.text);
    // The comments are the result with --open.
    let exposed_text = import(ImportSource::Haproxy, "x", text, true).unwrap().text;
    let uncommented: Vec<&str> = result.text.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    for line in exposed_text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert!(uncommented.contains(&line), "{line}: {}", result.text);
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
    let served_text = served_addresses(&import_text(ImportSource::Haproxy, &text("b"), false));
    assert!(!served_text.contains("0.0.0.0:80\"") && served_text.contains("0.0.0.0:99\""), "{served_text}");
    assert!(
        served_addresses(&import_text(ImportSource::Haproxy, &text("d"), false)).contains("0.0.0.0:80\"")
    );
    assert!(served_addresses(&import_text(ImportSource::Haproxy, &text("b"), true)).contains("0.0.0.0:80\""));
}

#[test]
fn nothing_of_effect_is_lost() {
    let text = "global\n log /dev/log local0\n user haproxy\n daemon\nlisten l\n mode http\n log global\n \
        option httplog\n bind :80\n option forwardfor\n server a 10.0.0.1:80\n";
    let result = import_text(ImportSource::Haproxy, text, false);
    assert!(
        !result.notes.is_empty() && result.notes.iter().all(|note| note.class == LossClass::Harmless),
        "{:?}",
        result.notes
    );
}

#[test]
fn a_fragment_of_stream_is_told_where_it_belongs() {
    let fragment = "upstream db { server 10.0.0.1:5432; }\nserver { listen 5432; proxy_pass db; }\n";
    let (reason, notes) = import(ImportSource::Nginx, "x", fragment, false).unwrap_err();
    assert!(reason.contains("no listener"), "{reason}");
    assert!(
        notes.iter().any(|note| note.line == 2 && note.reason.contains("put this text into stream {")),
        "{notes:?}"
    );
    let whole_text = format!("stream {{ {fragment} }}");
    assert!(
        served_addresses(&import_text(ImportSource::Nginx, &whole_text, false))
            .contains("protocol = \"tcp\"")
    );
}
