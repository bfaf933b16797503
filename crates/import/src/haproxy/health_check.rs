//! `check` of servers, `option httpchk` and `http-check` as health checks of a group.

use super::super::intermediate::{DraftGroup, DraftHealth, DraftProbe, ImportDraft};
use super::section::HaproxySection;
use super::server::HaproxyServer;

/// Reads the checks of a group, if one of its servers is checked.
pub(super) fn health(
    group: &mut DraftGroup,
    section: &HaproxySection,
    servers: &[HaproxyServer],
    draft: &mut ImportDraft,
) {
    let Some(first) = servers.iter().find(|server| server.check) else { return };
    for server in servers {
        if !server.check {
            draft.note(server.line, &server.name, "all members of a group are checked, this one, too");
        } else if (server.interval, server.rise, server.fall) != (first.interval, first.rise, first.fall) {
            let why = format!("all members of a group are checked alike: as {}", first.name);
            draft.note(server.line, format!("{}: inter, rise, fall", server.name), why);
        }
    }
    let mut health = DraftHealth {
        kind: DraftProbe::Tcp,
        interval: first.interval,
        // A check without a timeout of its own has the time until the next.
        timeout: section.timeout(&["check"]).or(first.interval),
        rise: first.rise,
        fall: first.fall,
        host: None,
        expect: None,
    };
    if section.option("httpchk") {
        read_probe(&mut health, section, draft);
    } else {
        section.option("tcp-check");
        for line in &section.checks {
            if line.peek().first().is_some_and(|word| word == "http-check") {
                draft.note(line.line, &line.text, "it is of option httpchk, which is not in force");
                continue;
            }
            draft.note(line.line, &line.text, "checks connect (tcp), or ask for a path (http)");
        }
    }
    group.health = Some(health);
}

/// Reads `option httpchk` and the lines of `http-check`.
fn read_probe(health: &mut DraftHealth, section: &HaproxySection, draft: &mut ImportDraft) {
    let line = section.line_of("option httpchk");
    let words: Vec<&str> =
        section.get("option httpchk").unwrap_or_default().iter().map(String::as_str).collect();
    let (mut method, mut path) = match words.as_slice() {
        [] => ("OPTIONS", "/"),
        [path] => ("OPTIONS", *path),
        [method, path, ..] => (*method, *path),
    };
    let mut expected = false;
    for check in &section.checks {
        if check.peek().first().is_some_and(|word| word == "tcp-check") {
            draft.note(check.line, &check.text, "it is of option tcp-check, which is not in force");
            check.mark_used();
            continue;
        }
        let number = &check.line;
        let words: Vec<&str> = check.consume().iter().map(String::as_str).collect();
        match words.as_slice() {
            ["http-check", "send", rest @ ..] => {
                let mut rest = rest.iter();
                while let Some(word) = rest.next() {
                    match *word {
                        "meth" => method = rest.next().copied().unwrap_or(method),
                        "uri" => path = rest.next().copied().unwrap_or(path),
                        "ver" => drop(rest.next()),
                        "hdr" => match (rest.next(), rest.next()) {
                            (Some(name), Some(value)) if name.eq_ignore_ascii_case("host") => {
                                health.host = Some((*value).to_owned());
                            }
                            (name, _) => {
                                let what = format!("http-check send … hdr {}", name.unwrap_or(&""));
                                draft.note(*number, what, "checks have no fields of their own but Host");
                            }
                        },
                        other => {
                            draft.note(*number, format!("http-check send … {other}"), "checks have no body")
                        }
                    }
                }
            }
            ["http-check", "expect", "status", status] if status.parse::<u64>().is_ok() && !expected => {
                (health.expect, expected) = (status.parse().ok(), true);
            }
            ["http-check", "connect", ..] => {
                let why = "checks go to the member's own address and port, as traffic does";
                draft.note(*number, words.join(" "), why);
            }
            ["http-check", "disable-on-404" | "send-state"] => {
                draft.note(*number, words.join(" "), "drain members with plimsoll drain")
            }
            _ => draft.note(
                *number,
                words.join(" "),
                "a check passes by its status: 200 to 399, or one (expect)",
            ),
        }
    }
    if method != "GET" {
        draft.note(line, format!("option httpchk {method}"), "checks ask by GET");
    }
    // Behind the version there may be fields, each on a line of its own.
    let behind = words.get(2..).unwrap_or_default().join(" ");
    for field in behind.split(['\r', '\n']).skip(1).filter(|field| !field.is_empty()) {
        match field.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("host") => {
                health.host = Some(value.trim().to_owned())
            }
            _ => draft.note(
                line,
                format!("option httpchk … {field}"),
                "checks have no fields of their own but Host",
            ),
        }
    }
    health.kind = DraftProbe::Http(path.to_owned());
}
