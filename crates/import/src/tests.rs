use proptest::prelude::*;

use super::*;

mod lost;
mod shut;
mod words;

fn import_text(source: ImportSource, text: &str) -> (String, Vec<String>) {
    let result =
        import(source, "x.cfg", text, false).unwrap_or_else(|(reason, notes)| panic!("{reason} {notes:?}"));
    let notes =
        result.notes.iter().map(|note| format!("{}: {}: {}", note.line, note.subject, note.reason)).collect();
    (result.text, notes)
}

fn imported_text(source: ImportSource, text: &str) -> String {
    let (text, notes) = import_text(source, text);
    format!("{text}---\n{}", notes.join("\n"))
}

#[test]
fn haproxy_web() {
    insta::assert_snapshot!(imported_text(
        ImportSource::Haproxy,
        include_str!("../../../tests/import/web.haproxy.cfg")
    ));
}

#[test]
fn haproxy_mixed() {
    insta::assert_snapshot!(imported_text(
        ImportSource::Haproxy,
        include_str!("../../../tests/import/mixed.haproxy.cfg")
    ));
}

#[test]
fn nginx_web() {
    insta::assert_snapshot!(imported_text(
        ImportSource::Nginx,
        include_str!("../../../tests/import/web.nginx.conf")
    ));
}

#[test]
fn nginx_stream() {
    insta::assert_snapshot!(imported_text(
        ImportSource::Nginx,
        include_str!("../../../tests/import/stream.nginx.conf")
    ));
}

#[test]
fn nothing_to_carry_over_is_an_error() {
    for (source, text) in [
        (ImportSource::Haproxy, ""),
        (
            ImportSource::Haproxy,
            "frontend f\n bind :80\n use_backend b if { path /a }\nbackend b\n server s 10.0.0.1:80\n",
        ),
        (ImportSource::Nginx, "http { server { listen 80; location / { root /srv; } } }"),
    ] {
        let (reason, notes) = import(source, "x", text, false).unwrap_err();
        assert!(reason.contains("no listener"), "{reason}");
        assert!(text.is_empty() || !notes.is_empty());
    }
}

#[test]
fn balances_have_their_strategies() {
    for (balance, strategy) in [
        ("roundrobin", "\"round_robin\""),
        ("static-rr", "\"round_robin\""),
        ("leastconn", "\"least_connections\""),
        ("first", "\"first_available\""),
        ("source", "{ rendezvous = { load_factor = 0 } }"),
        ("random", "{ least_request = { choices = 2 } }"),
        ("random(1)", "\"random\""),
        ("random(4)", "{ least_request = { choices = 4 } }"),
        ("rdp-cookie", "\"round_robin\""),
    ] {
        let text = format!(
            "listen l\n bind :80\n balance {balance}\n server a 10.0.0.1:80\n server b 10.0.0.2:80\n"
        );
        let (output, _) = import_text(ImportSource::Haproxy, &text);
        assert!(output.contains(&format!("strategy = {strategy}\n")), "{balance}: {output}");
    }
    for (method, strategy, key) in [
        ("", "\"round_robin\"", ""),
        ("least_conn;", "\"least_connections\"", ""),
        ("random;", "\"random\"", ""),
        ("random two least_conn;", "{ least_request = { choices = 2 } }", ""),
        ("ip_hash;", "{ rendezvous = { load_factor = 0 } }", ""),
        ("hash $request_uri consistent;", "{ rendezvous = { load_factor = 0 } }", "key = \"path\""),
        ("hash $http_x_user;", "{ rendezvous = { load_factor = 0 } }", "key = \"header:x-user\""),
        ("hash $cookie_id;", "{ rendezvous = { load_factor = 0 } }", "key = \"cookie:id\""),
    ] {
        let text = format!(
            "http {{ upstream u {{ {method} server 10.0.0.1; server 10.0.0.2:81; }} server {{ listen 80; \
             location / {{ proxy_pass http://u; }} }} }}"
        );
        let (output, _) = import_text(ImportSource::Nginx, &text);
        assert!(
            output.contains(&format!("strategy = {strategy}\n")) && output.contains(key),
            "{method}: {output}"
        );
    }
}

#[test]
fn a_spare_stands_behind_one_member() {
    let text = "listen l\n bind :80\n server a 10.0.0.1:80\n server b 10.0.0.2:80 backup\n";
    let (with_backup, notes) = import_text(ImportSource::Haproxy, text);
    assert!(with_backup.contains("first_available") && notes.is_empty(), "{with_backup} {notes:?}");
    let (with_two_members, notes) =
        import_text(ImportSource::Haproxy, &format!("{text} server c 10.0.0.3:80\n"));
    assert!(
        with_two_members.contains("round_robin") && !with_two_members.contains("10.0.0.2"),
        "{with_two_members}"
    );
    assert!(notes[0].contains("backup"), "{notes:?}");
}

#[test]
fn defaults_are_those_of_their_place() {
    let text = "defaults a\n mode http\n timeout connect 3s\ndefaults b\n mode tcp\n\
                listen x from a\n bind :80\n server s 10.0.0.1:80\n\
                listen y\n bind :81\n server s 10.0.0.1:81\n";
    let (output, _) = import_text(ImportSource::Haproxy, text);
    let (x, y) = output.split_at(output.find(":81\"").unwrap());
    assert!(!x.contains("\"tcp\"") && y.contains("protocol = \"tcp\""), "{output}");
    assert_eq!(output.matches("connect = \"3s\"").count(), 1);
}

/// Returns words of both languages in random order.
fn arbitrary_text() -> impl Strategy<Value = String> {
    let words = prop_oneof![
        Just("global\n"),
        Just("defaults\n mode http\n"),
        Just("frontend f\n"),
        Just("backend b\n"),
        Just("listen l\n"),
        Just(" bind :80 ssl crt /a.pem\n"),
        Just(" bind [::]:81,:82-85\n"),
        Just(" default_backend b\n"),
        Just(" use_backend b if x\n"),
        Just(" acl x ssl_fc_sni a.example\n"),
        Just(" server s 10.0.0.1:80 check weight 7 maxconn 0\n"),
        Just(" server t host backup cookie t sni str() verify none\n"),
        Just(" balance hdr(\u{e4})\n"),
        Just(" balance uri\n"),
        Just(" option httpchk GET /\u{e4}\n"),
        Just(" timeout server 0\n"),
        Just(" timeout client 99999999999\n"),
        Just(" cookie = insert\n"),
        Just(" stick on src\n"),
        Just(" retries 999\n"),
        Just(" http-check expect status 9\n"),
        Just("http {"),
        Just("stream {"),
        Just("upstream u {"),
        Just("server {"),
        Just("location / {"),
        Just("}"),
        Just("listen 80 ssl;"),
        Just("listen [::]:53 udp;"),
        Just("ssl_certificate /a;"),
        Just("ssl_certificate_key /b;"),
        Just("server 10.0.0.1 weight=0 max_fails=99999 fail_timeout=9w;"),
        Just("server u.x:1 resolve;"),
        Just("proxy_pass http://u;"),
        Just("proxy_pass https://$x;"),
        Just("proxy_pass 10.0.0.9:9;"),
        Just("hash $http_;"),
        Just("keepalive 99999999;"),
        Just("proxy_ssl on;"),
        Just("server_name a.b A.b *.c _;"),
        Just(" bind [::]:443 ssl crt /a.pem verify required ca-file /ca\n"),
        Just(" server-template t 3 t.example:80 ssl maxconn 7 weight 9\n"),
        Just(" default-server ssl verify none check-ssl\n"),
        Just(" no option httpchk\n"),
        Just("ssl_verify_client on;"),
        Just("ssl_client_certificate /c;"),
        Just("\n# configuration file /n/a.conf:\n"),
        Just("\n# configuration file /n/b.conf:\n"),
        Just("include *.conf;"),
        Just("'"),
        Just("\\"),
        Just("{"),
        Just(";"),
        Just("#"),
        Just("\n"),
    ];
    proptest::collection::vec(prop_oneof![9 => words.prop_map(str::to_owned), 1 => "\\PC{0,12}"], 0..60)
        .prop_map(|words| words.concat())
}

proptest! {
    /// Any text has an accepted result, or none.
    #[test]
    fn any_text(text in arbitrary_text()) {
        for from in [ImportSource::Haproxy, ImportSource::Nginx] {
            if let Err((why, _)) = import(from, "x", &text, false) {
                prop_assert!(!why.contains("would be refused"), "{why}\n{text}");
            }
        }
    }
}
