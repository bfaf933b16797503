//! The law of the importer: a word changes the result, or there is a note on its line, or a list has it as
//! without effect on traffic.

use super::super::{ImportSource, haproxy, import, nginx};

const HAPROXY: &str = include_str!("../../../../tests/import/haproxy.words");
const NGINX: &str = include_str!("../../../../tests/import/nginx.words");

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Returns the result of a text, and the lines that have notes.
fn import_lines(source: ImportSource, text: &str) -> (Option<String>, Vec<usize>) {
    match import(source, "x", text, false) {
        Ok(result) => (Some(result.text), result.notes.iter().map(|note| note.line).collect()),
        Err((_, notes)) => (None, notes.iter().map(|note| note.line).collect()),
    }
}

/// Inserts a line into a text behind another, and checks the law.
fn is_accounted_for(source: ImportSource, text: &str, line_number: usize, line: &str) -> bool {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(line_number, line);
    let (changed_text, notes) = import_lines(source, &lines.join("\n"));
    notes.contains(&(line_number + 1)) || changed_text != import_lines(source, text).0
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
    let mut missed = Vec::new();
    for line in lines(HAPROXY).filter(|line| !SO_ALREADY.contains(line)) {
        let (section_kind, words) = line.split_once(' ').unwrap();
        let first = words.split(' ').next().unwrap();
        let option = words.strip_prefix("option ").unwrap_or_default();
        let is_harmless = match section_kind {
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
            let is_noted = match section_kind {
                "global" => is_accounted_for(ImportSource::Haproxy, &text, 2, words),
                // The places are defaults, a frontend, a backend and a section that is both.
                "proxy" => [4, 7, 8, 12].iter().all(|line_number| {
                    is_accounted_for(ImportSource::Haproxy, &text, *line_number, &format!(" {words}"))
                }),
                _ => {
                    let insertion = if section_kind == "server" { " check ssl\n" } else { " crt /a.pem\n" };
                    // Sections of tcp have no cookies.
                    if words.starts_with("cookie") && mode == "tcp" {
                        continue;
                    }
                    let text = text.replace("backend b\n server", "backend b\n cookie C insert\n server");
                    let changed_text =
                        text.replacen(insertion, &format!("{} {words}\n", insertion.trim_end()), 1);
                    let line = text[..text.find(insertion).unwrap()].lines().count();
                    let (new_text, notes) = import_lines(ImportSource::Haproxy, &changed_text);
                    notes.contains(&line) || new_text != import_lines(ImportSource::Haproxy, &text).0
                }
            };
            if !is_noted && !is_harmless {
                missed.push(format!("{mode}: {line}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
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
    let mut missed = Vec::new();
    for name in lines(NGINX) {
        let line = match name {
            name if name.ends_with('}') => name.to_owned(),
            name if name.contains(' ') || name == "ip_hash" || name == "least_conn" => format!("{name};"),
            name => format!("{name} 7;"),
        };
        let first = name.split(' ').next().unwrap();
        // The places are the top, http or stream, an upstream, a server, and a location.
        for (text, line_numbers) in [(http, &[2, 3, 4, 8, 12][..]), (stream, &[2, 3, 4, 8])] {
            for line_number in line_numbers {
                let is_harmless = nginx::unsupported::HARMLESS.contains(&first)
                    || (OF_NO_EFFECT.contains(&name) && *line_number != 2)
                    || (*line_number == 4 && first == "zone");
                if !is_accounted_for(ImportSource::Nginx, text, *line_number, &line) && !is_harmless {
                    missed.push(format!("{line_number}: {line}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
