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
    let Some(first_checked) = servers.iter().find(|server| server.check) else { return };
    for server in servers {
        if !server.check {
            draft.note(server.line, &server.name, "all members of a group are checked, this one, too");
        } else if (server.interval, server.rise, server.fall)
            != (first_checked.interval, first_checked.rise, first_checked.fall)
        {
            let reason = format!("all members of a group are checked alike: as {}", first_checked.name);
            draft.note(server.line, format!("{}: inter, rise, fall", server.name), reason);
        }
    }
    let mut health = DraftHealth {
        kind: DraftProbe::Tcp,
        interval: first_checked.interval,
        // A check without a timeout of its own has the time until the next.
        timeout: section.timeout(&["check"]).or(first_checked.interval),
        rise: first_checked.rise,
        fall: first_checked.fall,
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
    let mut has_expect = false;
    for check in &section.checks {
        if check.peek().first().is_some_and(|word| word == "tcp-check") {
            draft.note(check.line, &check.text, "it is of option tcp-check, which is not in force");
            check.mark_used();
            continue;
        }
        let line_number = &check.line;
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
                                let subject = format!("http-check send … hdr {}", name.unwrap_or(&""));
                                draft.note(
                                    *line_number,
                                    subject,
                                    "checks have no fields of their own but Host",
                                );
                            }
                        },
                        argument => draft.note(
                            *line_number,
                            format!("http-check send … {argument}"),
                            "checks have no body",
                        ),
                    }
                }
            }
            ["http-check", "expect", "status", status] if status.parse::<u64>().is_ok() && !has_expect => {
                (health.expect, has_expect) = (status.parse().ok(), true);
            }
            ["http-check", "connect", ..] => {
                let reason = "checks go to the member's own address and port, as traffic does";
                draft.note(*line_number, words.join(" "), reason);
            }
            ["http-check", "disable-on-404" | "send-state"] => {
                draft.note(*line_number, words.join(" "), "drain members with plimsoll drain")
            }
            _ => draft.note(
                *line_number,
                words.join(" "),
                "a check passes by its status: 200 to 399, or one (expect)",
            ),
        }
    }
    if method != "GET" {
        draft.note(line, format!("option httpchk {method}"), "checks ask by GET");
    }
    // Behind the version there may be fields, each on a line of its own.
    let expected_value = words.get(2..).unwrap_or_default().join(" ");
    for field in expected_value.split(['\r', '\n']).skip(1).filter(|field| !field.is_empty()) {
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
