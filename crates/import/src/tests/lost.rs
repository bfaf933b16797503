//! The parts that are easily lost on the way: demands for certificates, and settings that make a balancer
//! work.

use super::super::{ImportSource, import};
use super::{import_text, imported_text};

#[test]
fn haproxy_strict() {
    let text = include_str!("../../../../tests/import/strict.haproxy.cfg");
    insta::assert_snapshot!(imported_text(ImportSource::Haproxy, text));
}

#[test]
fn nginx_strict() {
    let text = include_str!("../../../../tests/import/strict.nginx.conf");
    insta::assert_snapshot!(imported_text(ImportSource::Nginx, text));
}

#[test]
fn nginx_dump() {
    let text = include_str!("../../../../tests/import/dump.nginx.conf");
    insta::assert_snapshot!(imported_text(ImportSource::Nginx, text));
}

/// Returns a server of NGINX's at an address with TLS, with more.
fn server(listen: &str, extra: &str) -> String {
    format!(
        "server {{ listen {listen} ssl; ssl_certificate /a; ssl_certificate_key /b; {extra} \
         location / {{ proxy_pass http://10.0.0.1:80; }} }}\n"
    )
}

const PROVED: &str = "ssl_verify_client on; ssl_client_certificate /ca;";

#[test]
fn nobody_comes_in_without_what_was_asked_for() {
    let (open_server, closed_server) = (server("443", ""), server("443", PROVED));
    for text in [format!("{open_server}{closed_server}"), format!("{closed_server}{open_server}")] {
        let (toml, notes) = import_text(ImportSource::Nginx, &text);
        assert!(toml.contains("client_ca = \"/ca\"") && !toml.contains("optional"), "{toml}");
        assert!(notes.iter().any(|note| note.contains("have to show certificates")), "{notes:?}");
    }
    // An optional certificate does not relax a required one.
    let optional_server = server("443", "ssl_verify_client optional; ssl_client_certificate /ca;");
    let (toml, _) = import_text(ImportSource::Nginx, &format!("{optional_server}{closed_server}"));
    assert!(toml.contains("client_ca") && !toml.contains("optional"), "{toml}");
    let (toml, _) = import_text(ImportSource::Nginx, &format!("{open_server}{optional_server}"));
    assert!(toml.contains("client_certificate = \"optional\""), "{toml}");
    // Without the file no certificate is valid, and the demands of one address hold for the general one.
    for (first, second) in [
        ("443", "ssl_verify_client on;"),
        ("10.0.0.1:443", "ssl_verify_client on;"),
        ("[::1]:443", "ssl_verify_client on; ssl_client_certificate /x/;"),
    ] {
        let wildcard = if first.starts_with('[') { "[::]:443" } else { "443" };
        let text = format!("{}{}{}", server(wildcard, ""), server(first, second), server("444", ""));
        let (toml, notes) = import_text(ImportSource::Nginx, &text);
        assert!(toml.contains(":444\"") && !toml.contains(":443\""), "{first}: {toml}");
        assert!(notes.iter().any(|note| note.contains("443")), "{notes:?}");
    }
    let text = "frontend a\n bind 10.0.0.9:443 ssl crt /a.pem verify required ca-file /ca\n use_backend l if \
                { path /x }\n\
                listen l\n bind :443 ssl crt /a.pem\n bind :444\n server s 10.0.0.1:80\n";
    let (toml, notes) = import_text(ImportSource::Haproxy, text);
    assert!(toml.contains(":444\"") && !toml.contains(":443\""), "{toml} {notes:?}");
    // The same for HAProxy, with one of [::], which takes IPv4 here.
    let text = "listen a\n bind [::]:443 ssl crt /a.pem\n server s 10.0.0.1:80\n\
                listen b\n bind :443 ssl crt /a.pem verify required ca-file /ca\n server s 10.0.0.2:80\n";
    let (reason, notes) = import(ImportSource::Haproxy, "x", text, false).unwrap_err();
    assert!(reason.contains("no listener") && notes.iter().any(|note| note.line == 2), "{notes:?}");
}

#[test]
fn members_are_reached_as_they_were() {
    let listen_section = |server: &str| format!("listen l\n mode http\n bind :80\n{server}\n");
    for (server, tls) in [
        (" server a 10.0.0.1:80 check check-ssl verify none", None),
        (" default-server verify none\n server a 10.0.0.1:80 check", None),
        (" server a 10.0.0.1:80 ca-file /x crt /y sni str(z.example)", None),
        (" server a 10.0.0.1:80 ssl no-ssl verify none", None),
        (" server a 10.0.0.1:80 ssl verify none", Some("tls = { verify = false }")),
        (" default-server ssl ca-file /x\n server a 10.0.0.1:80", Some("tls = { ca = \"/x\" }")),
        (" server-template a 3 a.example:80 ssl ca-file /x", Some("tls = { ca = \"/x\" }")),
    ] {
        let (toml, _) = import_text(ImportSource::Haproxy, &listen_section(server));
        match tls {
            Some(tls) => assert!(toml.contains(tls), "{server}: {toml}"),
            None => assert!(!toml.contains("tls"), "{server}: {toml}"),
        }
    }
    let (toml, _) = import_text(
        ImportSource::Haproxy,
        &format!("global\n ssl-server-verify none\n{}", listen_section(" server a 10.0.0.1:80 ssl")),
    );
    assert!(toml.contains("tls = { verify = false }"), "{toml}");
    let double_templates = " server-template a 3 a.example:80\n server-template b 3 a.example:80";
    let (_, notes) = import_text(ImportSource::Haproxy, &listen_section(double_templates));
    assert!(notes[0].contains("a second source"), "{notes:?}");
    // An unknown word does not take a known one with it.
    let (toml, notes) = import_text(
        ImportSource::Haproxy,
        "listen l\n bind :443 frobnicate ssl crt /a.pem\n server a 10.0.0.1:80\n",
    );
    assert!(toml.contains("[listener.tls]") && notes[0].contains("frobnicate"), "{toml} {notes:?}");
}

#[test]
fn no_time_is_a_long_time() {
    let listen = |extra: &str| format!("listen l\n bind :80\n{extra}\n server a 10.0.0.1:80\n");
    for (extra, idle) in [
        (" timeout client 0", "idle = \"365d\""),
        (" timeout client 0\n timeout tunnel 0", "idle = \"365d\""),
        (" timeout client 50s\n timeout tunnel 0", "idle = \"50s\""),
        (" timeout client 0\n timeout tunnel 1h", "idle = \"1h\""),
    ] {
        let (toml, _) = import_text(ImportSource::Haproxy, &listen(extra));
        assert!(toml.contains(idle), "{extra}: {toml}");
    }
}

#[test]
fn files_of_a_dump_have_an_end() {
    let dump_text = |files: &[(&str, &str)]| -> String {
        files.iter().map(|(name, text)| format!("# configuration file /n/{name}:\n{text}\n")).collect()
    };
    let web_text = "http { server { listen 80; location / { proxy_pass http://10.0.0.1; } } }";
    // The files form a ring, and each includes the next twice: 2 to the power of their number.
    let mut files = vec![("main".to_owned(), format!("{web_text}\ninclude f0;"))];
    for number in 0..40 {
        let next = (number + 1) % 40;
        files.push((format!("f{number}"), format!("a 1;\ninclude f{next};\nb {{ include f{next}; }}")));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let (toml, notes) = import_text(ImportSource::Nginx, &dump_text(&files));
    assert!(toml.contains("10.0.0.1:80"), "{toml}");
    assert!(notes.iter().any(|note| note.contains("files within one another")), "{}", notes.len());
    let (_, notes) = import_text(ImportSource::Nginx, &dump_text(&[("main", web_text), ("a", "include a;")]));
    assert!(
        notes.iter().any(|note| note.starts_with("3: # configuration file /n/a:: no other file includes it")),
        "{notes:?}"
    );
    let (_, notes) = import_text(
        ImportSource::Nginx,
        &dump_text(&[("main", &format!("{web_text} include a;")), ("a", "include a;")]),
    );
    assert!(notes.iter().any(|note| note.starts_with("4: include a: /n/a includes itself")), "{notes:?}");
    // A text without marks is one file.
    let (_, notes) = import_text(ImportSource::Nginx, &format!("include a;\n{web_text}"));
    assert!(notes[0].starts_with("1: include a: other files are not read"), "{notes:?}");
}

/// Returns the result of a backend, and of the frontend before it.
fn backend(lines: &str) -> (String, Vec<String>) {
    import_text(ImportSource::Haproxy, &format!("listen l\n bind :80\n{lines}\n server a 10.0.0.1:80\n"))
}

#[test]
fn a_table_does_not_make_a_spare_a_member_like_others() {
    let (output, notes) = backend(" stick on src\n server b 10.0.0.2:80 backup");
    assert!(output.contains("first_available") && !output.contains("rendezvous"), "{output}");
    assert!(notes.iter().any(|note| note.contains("stick on src")), "{notes:?}");
    let (_, notes) = backend(" server b 10.0.0.2:80 backup\n default-server maxconn 7");
    assert!(notes.iter().any(|note| note.contains("maxconn: what is more than that")), "{notes:?}");
}

#[test]
fn the_last_way_of_checking_is_the_one() {
    for (check_option, note_count) in [("tcp-check", 0), ("mysql-check user x", 1)] {
        let (output, notes) = import_text(
            ImportSource::Haproxy,
            &format!(
                "defaults\n mode tcp\n option httpchk GET /h\nlisten l\n bind :80\n option \
                 {check_option}\n server a 10.0.0.1:80 check inter 1s\n"
            ),
        );
        assert!(output.contains("tcp = true") && !output.contains("http = "), "{output}");
        assert!(output.contains("timeout = \"1s\""), "{output}");
        assert_eq!(notes.len(), note_count, "{notes:?}");
    }
}

#[test]
fn servers_have_the_usual_that_stands_above_them() {
    let (output, _) = backend(
        " balance leastconn\n server x 10.0.0.7:80\n default-server maxconn 10 weight 7\n server y \
         10.0.0.8:80",
    );
    assert!(output.contains("\"10.0.0.7:80\"") && !output.contains("10.0.0.7:80\", "), "{output}");
    assert_eq!(output.matches("max_connections = 10").count(), 2, "{output}");
}

#[test]
fn http2_is_for_members_that_are_offered_nothing_else() {
    for (server, h2, note_count) in [
        ("ssl verify none alpn h2,http/1.1", false, 1),
        ("ssl verify none alpn h2", true, 0),
        ("alpn h2", false, 0),
        ("proto h2", true, 0),
    ] {
        let text = format!("listen l\n bind :80\n mode http\n server a 10.0.0.1:80 {server}\n");
        let (output, notes) = import_text(ImportSource::Haproxy, &text);
        assert_eq!(output.contains("protocol = \"h2\""), h2, "{server}: {output}");
        assert_eq!(notes.len(), note_count, "{server}: {notes:?}");
    }
}

#[test]
fn a_text_that_is_not_whole_is_an_error() {
    for (source, text, expected) in [
        (
            ImportSource::Nginx,
            "http { server { listen 80; location / { proxy_pass http://10.0.0.1; } ",
            "line 1: server",
        ),
        (
            ImportSource::Nginx,
            "http { server { listen 80; location / { proxy_pass http://10.0.0.1; } } } }",
            "closes nothing",
        ),
        (ImportSource::Haproxy, "listen l\n bind :80\n server a 10.0.0.1:80\n description \"x\n", "line 4: "),
    ] {
        let (reason, _) = import(source, "x", text, false).unwrap_err();
        assert!(reason.contains(expected) && reason.ends_with("the text is not whole"), "{reason}");
    }
}

#[test]
fn what_follows_a_mistyped_section_is_not_of_the_one_before() {
    let text = "listen l\n  bind :80\n  server a 10.0.0.1:80\nbakend c\n  server q 10.0.0.9:80\n";
    let (text, notes) = import_text(ImportSource::Haproxy, text);
    assert!(!text.contains("10.0.0.9"), "{text}");
    assert!(notes[0].contains("there is no section `bakend`"), "{notes:?}");
}

#[test]
fn files_are_in_the_folders_that_are_named_for_them() {
    let text = "global\n crt-base /etc/ssl/private\n ca-base /etc/ssl/cas/\nlisten l\n \
                bind :443 ssl crt site.pem crt /x/other.pem crt folder.d/all\n \
                server a a.example:80 ssl ca-file in.pem\n";
    let (output, notes) = import_text(ImportSource::Haproxy, text);
    for file in ["/etc/ssl/private/site.pem", "/x/other.pem", "/etc/ssl/cas/in.pem"] {
        assert!(output.contains(&format!("\"{file}\"")), "{file}: {output}");
    }
    assert!(notes.iter().any(|note| note.contains("crt folder.d/all: it looks like a folder")), "{notes:?}");
}

fn upstream(block_start: &str, servers: &str) -> String {
    format!("{block_start} upstream app.example {{ server 10.0.0.1:1; server 10.0.0.2:1; }} {servers}")
}

#[test]
fn members_of_nginx_are_who_they_are_called() {
    let pass_directive = "proxy_pass https://app.example;";
    for (extra_lines, name) in [
        ("proxy_ssl_verify on; proxy_ssl_trusted_certificate /c;", Some("app.example")),
        ("proxy_ssl_server_name on;", Some("app.example")),
        ("proxy_ssl_verify on; proxy_ssl_name in.example;", Some("in.example")),
        ("", None),
    ] {
        let text = upstream(
            "http {",
            &format!("server {{ listen 80; location / {{ {extra_lines} {pass_directive} }} }} }}"),
        );
        let (output, _) = import_text(ImportSource::Nginx, &text);
        match name {
            Some(name) => {
                assert!(output.contains(&format!("server_name = \"{name}\"")), "{extra_lines}: {output}")
            }
            None => assert!(!output.contains("server_name"), "{output}"),
        }
    }
}

#[test]
fn an_upstream_that_is_reached_in_two_ways_is_two_groups() {
    let servers = "server { listen 8000; proxy_protocol on; proxy_pass app.example; } \
                   server { listen 8001; proxy_pass app.example; } \
                   server { listen 8002; proxy_ssl on; proxy_pass app.example; } \
                   server { listen 8003; proxy_pass app.example; } }";
    let (output, notes) = import_text(ImportSource::Nginx, &upstream("stream {", servers));
    assert_eq!(output.matches("[[group]]").count(), 3, "{output}");
    assert_eq!(output.matches("send_proxy").count(), 1, "{output}");
    assert_eq!(output.matches("tls = ").count(), 1, "{output}");
    assert_eq!(output.matches("group = \"app.example-plain\"").count(), 2, "{output}");
    assert!(notes.is_empty(), "{notes:?}");
}

#[test]
fn requests_are_not_tried_again_where_nginx_does_not() {
    let text = "http { upstream u { hash $request_uri; server 10.0.0.1; server 10.0.0.2; } \
                server { location / { proxy_set_header Host $host; proxy_next_upstream off; \
                proxy_pass http://u; } } }";
    let (output, notes) = import_text(ImportSource::Nginx, text);
    assert!(output.contains("attempts = 0") && output.contains("0.0.0.0:80"), "{output}");
    assert!(notes.len() == 1 && notes[0].contains("path without its query"), "{notes:?}");
}
