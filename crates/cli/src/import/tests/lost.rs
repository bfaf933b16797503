//! What is easily lost on the way: proofs of who somebody is, and what makes a balancer work.

use super::super::{From, import};
use super::{made, shown};

#[test]
fn haproxy_strict() {
    let text = include_str!("../../../../../tests/import/strict.haproxy.cfg");
    insta::assert_snapshot!(shown(From::Haproxy, text));
}

#[test]
fn nginx_strict() {
    let text = include_str!("../../../../../tests/import/strict.nginx.conf");
    insta::assert_snapshot!(shown(From::Nginx, text));
}

#[test]
fn nginx_dump() {
    let text = include_str!("../../../../../tests/import/dump.nginx.conf");
    insta::assert_snapshot!(shown(From::Nginx, text));
}

/// A server of NGINX's at an address with TLS, with more.
fn server(listen: &str, more: &str) -> String {
    format!(
        "server {{ listen {listen} ssl; ssl_certificate /a; ssl_certificate_key /b; {more} \
         location / {{ proxy_pass http://10.0.0.1:80; }} }}\n"
    )
}

const PROVED: &str = "ssl_verify_client on; ssl_client_certificate /ca;";

#[test]
fn nobody_comes_in_without_what_was_asked_for() {
    let (free, shut) = (server("443", ""), server("443", PROVED));
    for text in [format!("{free}{shut}"), format!("{shut}{free}")] {
        let (toml, notes) = made(From::Nginx, &text);
        assert!(toml.contains("client_ca = \"/ca\"") && !toml.contains("optional"), "{toml}");
        assert!(notes.iter().any(|note| note.contains("have to show certificates")), "{notes:?}");
    }
    // Those that may are no reason to let in those that must.
    let may = server("443", "ssl_verify_client optional; ssl_client_certificate /ca;");
    let (toml, _) = made(From::Nginx, &format!("{may}{shut}"));
    assert!(toml.contains("client_ca") && !toml.contains("optional"), "{toml}");
    let (toml, _) = made(From::Nginx, &format!("{free}{may}"));
    assert!(toml.contains("client_certificate = \"optional\""), "{toml}");
    // Nobody can prove anything without the file, and an address in general has what one of it has.
    for (first, second) in [
        ("443", "ssl_verify_client on;"),
        ("10.0.0.1:443", "ssl_verify_client on;"),
        ("[::1]:443", "ssl_verify_client on; ssl_client_certificate /x/;"),
    ] {
        let wide = if first.starts_with('[') { "[::]:443" } else { "443" };
        let text = format!("{}{}{}", server(wide, ""), server(first, second), server("444", ""));
        let (toml, notes) = made(From::Nginx, &text);
        assert!(toml.contains(":444\"") && !toml.contains(":443\""), "{first}: {toml}");
        assert!(notes.iter().any(|note| note.contains("443")), "{notes:?}");
    }
    let text = "frontend a\n bind 10.0.0.9:443 ssl crt /a.pem verify required ca-file /ca\n use_backend l if { path /x }\n\
                listen l\n bind :443 ssl crt /a.pem\n bind :444\n server s 10.0.0.1:80\n";
    let (toml, notes) = made(From::Haproxy, text);
    assert!(toml.contains(":444\"") && !toml.contains(":443\""), "{toml} {notes:?}");
    // HAProxy's, and one of [::], which takes IPv4 here.
    let text = "listen a\n bind [::]:443 ssl crt /a.pem\n server s 10.0.0.1:80\n\
                listen b\n bind :443 ssl crt /a.pem verify required ca-file /ca\n server s 10.0.0.2:80\n";
    let (why, notes) = import(From::Haproxy, "x", text).unwrap_err();
    assert!(why.contains("no listener") && notes.iter().any(|note| note.line == 2), "{notes:?}");
}

#[test]
fn members_are_reached_as_they_were() {
    let listen = |server: &str| format!("listen l\n mode http\n bind :80\n{server}\n");
    for (server, tls) in [
        (" server a 10.0.0.1:80 check check-ssl verify none", None),
        (" default-server verify none\n server a 10.0.0.1:80 check", None),
        (" server a 10.0.0.1:80 ca-file /x crt /y sni str(z.example)", None),
        (" server a 10.0.0.1:80 ssl no-ssl verify none", None),
        (" server a 10.0.0.1:80 ssl verify none", Some("tls = { verify = false }")),
        (" default-server ssl ca-file /x\n server a 10.0.0.1:80", Some("tls = { ca = \"/x\" }")),
        (" server-template a 3 a.example:80 ssl ca-file /x", Some("tls = { ca = \"/x\" }")),
    ] {
        let (toml, _) = made(From::Haproxy, &listen(server));
        match tls {
            Some(tls) => assert!(toml.contains(tls), "{server}: {toml}"),
            None => assert!(!toml.contains("tls"), "{server}: {toml}"),
        }
    }
    let (toml, _) = made(
        From::Haproxy,
        &format!("global\n ssl-server-verify none\n{}", listen(" server a 10.0.0.1:80 ssl")),
    );
    assert!(toml.contains("tls = { verify = false }"), "{toml}");
    let twice = " server-template a 3 a.example:80\n server-template b 3 a.example:80";
    let (_, notes) = made(From::Haproxy, &listen(twice));
    assert!(notes[0].contains("a second source"), "{notes:?}");
    // A word that is not known takes none with it that is.
    let (toml, notes) =
        made(From::Haproxy, "listen l\n bind :443 frobnicate ssl crt /a.pem\n server a 10.0.0.1:80\n");
    assert!(toml.contains("[listener.tls]") && notes[0].contains("frobnicate"), "{toml} {notes:?}");
}

#[test]
fn no_time_is_a_long_time() {
    let listen = |more: &str| format!("listen l\n bind :80\n{more}\n server a 10.0.0.1:80\n");
    for (more, idle) in [
        (" timeout client 0", "idle = \"365d\""),
        (" timeout client 0\n timeout tunnel 0", "idle = \"365d\""),
        (" timeout client 50s\n timeout tunnel 0", "idle = \"50s\""),
        (" timeout client 0\n timeout tunnel 1h", "idle = \"1h\""),
    ] {
        let (toml, _) = made(From::Haproxy, &listen(more));
        assert!(toml.contains(idle), "{more}: {toml}");
    }
}

#[test]
fn files_of_a_dump_have_an_end() {
    let dump = |files: &[(&str, &str)]| -> String {
        files.iter().map(|(name, text)| format!("# configuration file /n/{name}:\n{text}\n")).collect()
    };
    let web = "http { server { listen 80; location / { proxy_pass http://10.0.0.1; } } }";
    // Round and round, and each twice of the next: 2 to the power of how many there are.
    let mut files = vec![("main".to_owned(), format!("{web}\ninclude f0;"))];
    for number in 0..40 {
        let next = (number + 1) % 40;
        files.push((format!("f{number}"), format!("a 1;\ninclude f{next};\nb {{ include f{next}; }}")));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let (toml, notes) = made(From::Nginx, &dump(&files));
    assert!(toml.contains("10.0.0.1:80"), "{toml}");
    assert!(notes.iter().any(|note| note.contains("files within one another")), "{}", notes.len());
    let (_, notes) = made(From::Nginx, &dump(&[("main", web), ("a", "include a;")]));
    assert!(
        notes.iter().any(|note| note.starts_with("3: # configuration file /n/a:: no other file includes it")),
        "{notes:?}"
    );
    let (_, notes) = made(From::Nginx, &dump(&[("main", &format!("{web} include a;")), ("a", "include a;")]));
    assert!(notes.iter().any(|note| note.starts_with("4: include a: /n/a includes itself")), "{notes:?}");
    // A text without marks is one file.
    let (_, notes) = made(From::Nginx, &format!("include a;\n{web}"));
    assert!(notes[0].starts_with("1: include a: other files are not read"), "{notes:?}");
}
