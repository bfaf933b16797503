//! The law of the importer: a word changes the result, or there is a note on its line, or a list has it as
//! without effect on traffic.

use super::super::{ImportSource, haproxy, import, nginx};

const HAPROXY: &str = include_str!("../../../../tests/import/haproxy.words");
const NGINX: &str = include_str!("../../../../tests/import/nginx.words");

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Returns the result of a text, and the lines that have notes.
fn made(from: ImportSource, text: &str) -> (Option<String>, Vec<usize>) {
    match import(from, "x", text, false) {
        Ok(imported) => (Some(imported.text), imported.notes.iter().map(|note| note.line).collect()),
        Err((_, notes)) => (None, notes.iter().map(|note| note.line).collect()),
    }
}

/// Inserts a line into a text behind another, and checks the law.
fn law(from: ImportSource, text: &str, behind: usize, line: &str) -> bool {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(behind, line);
    let (with, notes) = made(from, &lines.join("\n"));
    notes.contains(&(behind + 1)) || with != made(from, text).0
}

/// The words for defaults, and those without effect unless others are there.
const SO_ALREADY: [&str; 27] = [
    "proxy option tcp-check",
    "proxy default-server verify none",
    "proxy default-server check",
    "bind ca-file /ca.pem",
    "server alpn http/1.1",
    "global ssl-server-verify required",
    "proxy enabled",
    "proxy no option forwardfor",
    "server check",
    "server enabled",
    "server verify required",
    "server no-backup",
    "server no-check-send-proxy",
    "server no-send-proxy",
    "server no-send-proxy-v2",
    "server no-send-proxy-v2-ssl",
    "server no-send-proxy-v2-ssl-cn",
    "server id 7",
    "server no-sslv3",
    "server no-tlsv10",
    "server no-tlsv11",
    "server ssl",
    "bind ssl",
    "bind name 7",
    "bind id 7",
    "bind npn http/1.1",
    "bind alpn h2",
];

#[test]
fn no_word_of_haproxy_is_passed_over() {
    let text = |mode: &str| {
        format!(
            "global\n maxconn 100\ndefaults\n mode {mode}\nfrontend f\n bind :80 ssl crt /a.pem\n \
             default_backend b\n\
             backend b\n server a 10.0.0.1:80 check ssl\n server b 10.0.0.2:80 check ssl\n\
             listen l\n bind :8080\n server c 10.0.0.3:80\n"
        )
    };
    let mut passed = Vec::new();
    for line in lines(HAPROXY).filter(|line| !SO_ALREADY.contains(line)) {
        let (of, words) = line.split_once(' ').unwrap();
        let first = words.split(' ').next().unwrap();
        let option = words.strip_prefix("option ").unwrap_or_default();
        let harmless = match of {
            "global" => haproxy::unsupported::HARMLESS_GLOBALS.contains(&first),
            "proxy" => {
                haproxy::unsupported::HARMLESS.contains(&first)
                    || haproxy::unsupported::HARMLESS_OPTIONS.contains(&option)
            }
            "server" => haproxy::unsupported::HARMLESS_OF_SERVER.contains(&first),
            _ => haproxy::unsupported::HARMLESS_OF_BIND.contains(&first),
        };
        for mode in ["http", "tcp"] {
            let text = text(mode);
            let holds = match of {
                "global" => law(ImportSource::Haproxy, &text, 2, words),
                // The places are defaults, a frontend, a backend and a section that is both.
                "proxy" => [4, 7, 8, 12]
                    .iter()
                    .all(|behind| law(ImportSource::Haproxy, &text, *behind, &format!(" {words}"))),
                _ => {
                    let at = if of == "server" { " check ssl\n" } else { " crt /a.pem\n" };
                    // Sections of tcp have no cookies.
                    if words.starts_with("cookie") && mode == "tcp" {
                        continue;
                    }
                    let text = text.replace("backend b\n server", "backend b\n cookie C insert\n server");
                    let with = text.replacen(at, &format!("{} {words}\n", at.trim_end()), 1);
                    let line = text[..text.find(at).unwrap()].lines().count();
                    let (new, notes) = made(ImportSource::Haproxy, &with);
                    notes.contains(&line) || new != made(ImportSource::Haproxy, &text).0
                }
            };
            if !holds && !harmless {
                passed.push(format!("{mode}: {line}"));
            }
        }
    }
    assert!(passed.is_empty(), "{passed:#?}");
}

/// The words without effect in the texts below: there is one server, no certificates are checked, and a
/// server's own settings replace those around it.
const OF_NO_EFFECT: [&str; 7] = [
    "server_name",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "proxy_ssl_trusted_certificate",
    "proxy_pass",
    "ssl_certificate",
    "ssl_certificate_key",
];

#[test]
fn no_directive_of_nginx_is_passed_over() {
    let http = "events {\n}\nhttp {\n upstream u {\n  server 10.0.0.1:80;\n  server 10.0.0.2:80;\n }\n\
                server {\n  listen 443 ssl;\n  ssl_certificate /a;\n  ssl_certificate_key /b;\n  \
                location / {\n   proxy_pass https://u;\n  }\n }\n}\n";
    let stream = "events {\n}\nstream {\n upstream u {\n  server 10.0.0.1:80;\n  server 10.0.0.2:80;\n }\n\
                  server {\n  listen 443;\n  proxy_pass u;\n }\n}\n";
    let mut passed = Vec::new();
    for name in lines(NGINX) {
        let line = match name {
            name if name.ends_with('}') => name.to_owned(),
            name if name.contains(' ') || name == "ip_hash" || name == "least_conn" => format!("{name};"),
            name => format!("{name} 7;"),
        };
        let first = name.split(' ').next().unwrap();
        // The places are the top, http or stream, an upstream, a server, and a location.
        for (text, places) in [(http, &[2, 3, 4, 8, 12][..]), (stream, &[2, 3, 4, 8])] {
            for behind in places {
                let harmless = nginx::unsupported::HARMLESS.contains(&first)
                    || (OF_NO_EFFECT.contains(&name) && *behind != 2)
                    || (*behind == 4 && first == "zone");
                if !law(ImportSource::Nginx, text, *behind, &line) && !harmless {
                    passed.push(format!("{behind}: {line}"));
                }
            }
        }
    }
    assert!(passed.is_empty(), "{passed:#?}");
}
