//! `server` lines and related lines as a group.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::super::intermediate::{DraftGroup, DraftMember, DraftMemberTls, DraftStrategy, ImportDraft};
use super::super::normalize::SYSTEM_CA;
use super::super::value;
use super::section::{self, HaproxySection, HaproxySections};
use super::{FrontendSettings, UNIT, health_check, unsupported};

/// The settings of one server; those of the group here have to be alike in all.
#[derive(Clone, Debug, Default)]
pub(super) struct HaproxyServer {
    pub(super) line: usize,
    pub(super) name: String,
    address: String,
    /// Whether it stands for all addresses of a name.
    template: bool,
    weight: u64,
    limit: Option<u64>,
    pub(super) check: bool,
    backup: bool,
    disabled: bool,
    send_proxy: Option<u8>,
    /// The setting `proto`, which precedes the agreement of TLS.
    h2: Option<bool>,
    /// The setting `alpn`, with `ssl`.
    alpn: AlpnOffer,
    check_tls: bool,
    /// The setting `ssl`; without it other settings of TLS have no effect.
    uses_tls: bool,
    member_tls: DraftMemberTls,
    /// The interval of its checks.
    pub(super) interval: Option<Duration>,
    pub(super) rise: Option<u64>,
    pub(super) fall: Option<u64>,
    slow_start: Option<Duration>,
    cookie: bool,
}

/// The protocols that are offered to members for the agreement of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AlpnOffer {
    #[default]
    Http1,
    Http2,
    Either,
}

impl HaproxyServer {
    fn h2(&self) -> bool {
        self.h2.unwrap_or(self.uses_tls && self.alpn == AlpnOffer::Http2)
    }

    fn tls(&self) -> Option<&DraftMemberTls> {
        self.uses_tls.then_some(&self.member_tls)
    }
}

/// Returns the group of a section; `None` if it has no servers.
pub(super) fn group(
    section: &HaproxySection,
    sections: &HaproxySections,
    groups: &BTreeMap<String, String>,
    draft: &mut ImportDraft,
    frontend_settings: &mut FrontendSettings,
) -> Option<DraftGroup> {
    if section.servers.is_empty() {
        if section.kind == section::SectionKind::Backend {
            draft.note(section.line, format!("backend {}", section.name), "it has no servers");
            section.mark_all_used();
        }
        return None;
    }
    if section.kind == section::SectionKind::Backend && section.is_disabled() {
        draft.note(section.line, format!("backend {}", section.name), "it is disabled");
        section.mark_all_used();
        return None;
    }
    let name = groups.get(&section.name)?.clone();
    let mut group = DraftGroup { line: section.line, name, ..DraftGroup::default() };
    let servers = servers(section, sections, draft);
    strategy(&mut group, section, draft);
    let servers = active_servers(&mut group, servers, draft);
    apply_common(&mut group, &servers, draft);
    health_check::health(&mut group, section, &servers, draft);
    timeouts(&mut group, section);
    read_stickiness(&mut group, section, &servers, draft, frontend_settings);
    if section.http() && section.option("forwardfor") {
        frontend_settings.forwarded.insert(group.name.clone());
    }
    Some(group)
}

fn servers(
    section: &HaproxySection,
    sections: &HaproxySections,
    draft: &mut ImportDraft,
) -> Vec<HaproxyServer> {
    let port = usual_port(section, sections);
    // HAProxy verifies members, unless it is configured not to.
    let member_tls = DraftMemberTls { verify: !sections.skips_verification, ..DraftMemberTls::default() };
    let mut default_server = HaproxyServer { weight: 1, member_tls, ..HaproxyServer::default() };
    // Each counts for the servers below it.
    let mut default_lines = section.default_server.iter().peekable();
    let mut servers = Vec::new();
    for line in &section.servers {
        while let Some(default_line) = default_lines.next_if(|line_before| line_before.line < line.line) {
            (default_server.line, default_server.name) = (default_line.line, DEFAULT.to_owned());
            parameters(&mut default_server, default_line.consume()[1..].iter().map(String::as_str), draft);
        }
        let words: Vec<&str> = line.consume().iter().map(String::as_str).collect();
        let (template, name, address, rest) = match words.as_slice() {
            ["server-template", prefix, _, address, rest @ ..] => (true, prefix, address, rest),
            ["server", name, address, rest @ ..] => (false, name, address, rest),
            _ => {
                draft.note(line.line, &line.text, "it is not complete");
                continue;
            }
        };
        let Some(address_text) = value::member(address, port) else {
            draft.note(line.line, format!("{} {name} {address}", words[0]), "is no host with a port");
            continue;
        };
        let host = address_text.rsplit_once(':').map_or("", |(host, _)| host.trim_matches(['[', ']']));
        if template && host.parse::<IpAddr>().is_ok() {
            draft.note(line.line, &line.text, "it is no name that has addresses");
            continue;
        }
        let mut server = HaproxyServer {
            line: line.line,
            name: format!("server {name}"),
            address: address_text,
            template,
            ..default_server.clone()
        };
        parameters(&mut server, rest.iter().copied(), draft);
        servers.push(server);
    }
    servers
}

/// Returns the port of a server without one: that of the clients, if there is only one.
fn usual_port(section: &HaproxySection, sections: &HaproxySections) -> Option<u16> {
    let is_frontend = |candidate: &&HaproxySection| {
        candidate.kind.has_binds()
            && (candidate.name == section.name || candidate.first("default_backend") == Some(&section.name))
    };
    let binds = sections.sections.iter().filter(is_frontend).flat_map(|frontend| &frontend.binds);
    let bind_addresses = binds.filter_map(|bind| value::listen(bind.peek().get(1)?, false));
    let ports: std::collections::BTreeSet<u16> = bind_addresses.map(|address| address.port()).collect();
    if ports.len() == 1 { ports.first().copied() } else { None }
}

fn parameters<'w>(server: &mut HaproxyServer, words: impl Iterator<Item = &'w str>, draft: &mut ImportDraft) {
    let mut words = words;
    let (line, name) = (server.line, server.name.clone());
    while let Some(word) = words.next() {
        let mut note_unsupported =
            |subject: &str, reason: &str| draft.note(line, format!("{name} … {subject}"), reason);
        let mut value = || words.next().unwrap_or_default();
        match word {
            "weight" => set_number(&mut server.weight, word, value(), &mut note_unsupported),
            "maxconn" => set_parsed(&mut server.limit, word, value().parse().ok(), &mut note_unsupported),
            "check" => server.check = true,
            "no-check" => server.check = false,
            "backup" => server.backup = true,
            "no-backup" => server.backup = false,
            "disabled" => server.disabled = true,
            "enabled" => server.disabled = false,
            "send-proxy" => server.send_proxy = Some(1),
            "send-proxy-v2" => server.send_proxy = Some(2),
            "send-proxy-v2-ssl" | "send-proxy-v2-ssl-cn" => {
                server.send_proxy = Some(2);
                note_unsupported(word, "the header has addresses, and nothing of TLS");
            }
            "no-send-proxy" | "no-send-proxy-v2" | "no-send-proxy-v2-ssl" | "no-send-proxy-v2-ssl-cn" => {
                server.send_proxy = None;
            }
            "ssl" => server.uses_tls = true,
            "no-ssl" => server.uses_tls = false,
            "verify" => server.member_tls.verify = value() != "none",
            "ca-file" => {
                let file = value();
                server.member_tls.ca = Some(if file == "@system-ca" { SYSTEM_CA } else { file }.to_owned());
            }
            "crt" => {
                let file = value();
                server.member_tls.client_certificate = Some((file.to_owned(), file.to_owned()));
            }
            "verifyhost" => server.member_tls.server_name = Some(value().to_owned()),
            "sni" => {
                let version_text = value();
                match version_text.strip_prefix("str(").and_then(|rest| rest.strip_suffix(')')) {
                    Some(name) => server.member_tls.server_name = Some(name.to_owned()),
                    None => note_unsupported(
                        &format!("sni {version_text}"),
                        "members are asked by one name: server_name",
                    ),
                }
            }
            "proto" => match value() {
                "h2" => server.h2 = Some(true),
                "h1" | "none" => server.h2 = Some(false),
                protocol_name => {
                    note_unsupported(&format!("{word} {protocol_name}"), "members speak HTTP/1.1 or HTTP/2")
                }
            },
            "alpn" => {
                let protocols = value();
                let is_offered = |name: &str| protocols.split(',').any(|protocol| protocol == name);
                match (is_offered("h2"), is_offered("http/1.1")) {
                    (true, true) => server.alpn = AlpnOffer::Either,
                    (true, false) => server.alpn = AlpnOffer::Http2,
                    (false, true) => server.alpn = AlpnOffer::Http1,
                    (false, false) => {
                        note_unsupported(&format!("{word} {protocols}"), "members speak HTTP/1.1 or HTTP/2")
                    }
                }
            }
            "check-ssl" => server.check_tls = true,
            // Each address of its name is a member here, and is followed.
            "resolvers" | "resolve-prefer" | "resolve-net" | "resolve-opts" | "init-addr"
                if server.template =>
            {
                value();
            }
            "inter" => {
                set_parsed(&mut server.interval, word, value::time(value(), UNIT), &mut note_unsupported)
            }
            "rise" => set_parsed(&mut server.rise, word, value().parse().ok(), &mut note_unsupported),
            "fall" => set_parsed(&mut server.fall, word, value().parse().ok(), &mut note_unsupported),
            "slowstart" => {
                set_parsed(&mut server.slow_start, word, value::time(value(), UNIT), &mut note_unsupported)
            }
            "cookie" => server.cookie = !value().is_empty(),
            "id" => drop(value()),
            word if unsupported::HARMLESS_OF_SERVER.contains(&word) => {}
            _ => {
                if let Some((_, reason)) =
                    unsupported::SERVER_FLAGS.iter().find(|(keyword, _)| *keyword == word)
                {
                    note_unsupported(word, reason);
                } else if let Some((_, reason)) =
                    unsupported::SERVER_VALUES.iter().find(|(keyword, _)| *keyword == word)
                {
                    let value = value();
                    note_unsupported(&format!("{word} {value}"), reason);
                } else {
                    note_unsupported(word, "there is nothing like it here");
                }
            }
        }
    }
    if server.check_tls && !server.uses_tls && server.name != DEFAULT {
        draft.note(
            line,
            format!("{name} … check-ssl"),
            "checks speak what traffic speaks: without ssl no TLS",
        );
    }
}

/// The name of lines that stand for all servers.
const DEFAULT: &str = "default-server";

fn set_number(target: &mut u64, word: &str, value: &str, note_unsupported: &mut impl FnMut(&str, &str)) {
    match value.parse() {
        Ok(parsed) => *target = parsed,
        Err(_) => note_unsupported(&format!("{word} {value}"), "it is no number"),
    }
}

fn set_parsed<T>(
    target: &mut Option<T>,
    word: &str,
    value: Option<T>,
    note_unsupported: &mut impl FnMut(&str, &str),
) {
    match value {
        Some(value) => *target = Some(value),
        None => note_unsupported(word, "its value cannot be read"),
    }
}

/// Returns the servers that get work. One with spares behind it is filled in their order; several with spares
/// are not.
fn active_servers(
    group: &mut DraftGroup,
    servers: Vec<HaproxyServer>,
    draft: &mut ImportDraft,
) -> Vec<HaproxyServer> {
    let mut enabled_servers = Vec::new();
    for server in servers {
        if server.disabled {
            draft.note(server.line, &server.name, "it is disabled");
        } else if server.weight == 0 {
            draft.note(server.line, &server.name, "a weight of 0 gets nothing: drain it when it runs");
        } else {
            enabled_servers.push(server);
        }
    }
    let (backups, primaries): (Vec<HaproxyServer>, Vec<HaproxyServer>) =
        enabled_servers.into_iter().partition(|server| server.backup);
    let mut active = primaries;
    let has_template = active.iter().chain(&backups).any(|server| server.template);
    if active.len() <= 1 && !backups.is_empty() && !has_template {
        if let Some(first_primary) = active.first().filter(|first_primary| first_primary.limit.is_some()) {
            let reason = "what is more than that goes to the spare, where there it waits";
            draft.note(first_primary.line, format!("{} … maxconn", first_primary.name), reason);
        }
        group.strategy = DraftStrategy::FirstAvailable;
        active.extend(backups);
    } else {
        for backup_server in backups {
            let reason = "there are spares only behind one member (strategy first_available)";
            draft.note(backup_server.line, format!("{} … backup", backup_server.name), reason);
        }
    }
    for server in &active {
        if server.template {
            group.dns.push(server.address.clone());
            apply_to_resolved(group, server, &active, draft);
            continue;
        }
        let weight = server.weight as f64;
        let capacity = if group.strategy == DraftStrategy::FirstAvailable { 1.0 } else { weight };
        group.members.push(DraftMember { address: server.address.clone(), capacity, limit: server.limit });
    }
    // Weights that are all equal are no weights.
    if let Some(weight) = group.members.first().map(|member| member.capacity)
        && group.members.iter().all(|member| member.capacity == weight)
    {
        group.members.iter_mut().for_each(|member| member.capacity = 1.0);
    }
    active
}

/// Applies a server's settings to the group, for members that are found by a name.
fn apply_to_resolved(
    group: &mut DraftGroup,
    server: &HaproxyServer,
    active_servers: &[HaproxyServer],
    draft: &mut ImportDraft,
) {
    if active_servers.iter().all(|other| other.limit == server.limit) {
        group.limit = server.limit;
    } else {
        let reason =
            "members that are found by a name have the max_connections of the group: as all of them have it";
        draft.note(server.line, format!("{} … maxconn", server.name), reason);
    }
    if active_servers.iter().any(|other| other.weight != server.weight) {
        let reason = "members that are found by a name have no weights: they get as much as one of weight 1";
        draft.note(server.line, format!("{} … weight {}", server.name, server.weight), reason);
    }
}

/// Applies the settings that are the group's here, and should be alike in all of its servers.
fn apply_common(group: &mut DraftGroup, servers: &[HaproxyServer], draft: &mut ImportDraft) {
    let Some(first_server) = servers.first() else { return };
    (group.send_proxy, group.h2, group.tls) =
        (first_server.send_proxy, first_server.h2(), first_server.tls().cloned());
    group.slow_start = first_server.slow_start;
    if first_server.tls().is_some_and(|tls| tls.verify && tls.server_name.is_none()) {
        let reason =
            "its certificate must be for the host in its address, too, or for another: tls.server_name";
        draft.note(first_server.line, format!("{} … verify required", first_server.name), reason);
    }
    if first_server.h2.is_none() && first_server.uses_tls && first_server.alpn == AlpnOffer::Either {
        let reason = "members are spoken to by HTTP/1.1, or all of them by HTTP/2: protocol = \"h2\"";
        draft.note(first_server.line, format!("{} … alpn h2,http/1.1", first_server.name), reason);
    }
    for server in &servers[1..] {
        if (server.send_proxy, server.h2(), server.tls())
            != (first_server.send_proxy, first_server.h2(), first_server.tls())
        {
            let reason = format!("all members of a group are reached alike: as {}", first_server.name);
            draft.note(server.line, format!("{}: ssl, alpn, send-proxy", server.name), reason);
        }
        if server.slow_start != first_server.slow_start {
            let reason = format!("all members of a group start alike: as {}", first_server.name);
            draft.note(server.line, format!("{}: slowstart", server.name), reason);
        }
    }
}

fn strategy(group: &mut DraftGroup, section: &HaproxySection, draft: &mut ImportDraft) {
    let balance = section.get("balance").unwrap_or_default();
    let line = section.line_of("balance");
    let words: Vec<&str> = balance.iter().map(String::as_str).collect();
    let hash_by = |key: &str| {
        let bound_percent = section.number::<f64>("hash-balance-factor");
        (
            DraftStrategy::Rendezvous(bound_percent.map_or(0.0, |percent| percent / 100.0)),
            Some(key.to_owned()),
        )
    };
    let (strategy, key) = match words.as_slice() {
        [] | ["roundrobin" | "static-rr", ..] => (DraftStrategy::RoundRobin, None),
        ["leastconn", ..] => (DraftStrategy::LeastConnections, None),
        ["first", ..] => (DraftStrategy::FirstAvailable, None),
        ["source", ..] => hash_by("client"),
        ["uri", ..] => hash_by("path"),
        [algorithm, ..] if algorithm.starts_with("random") => {
            let draw_count =
                algorithm.strip_prefix("random(").and_then(|rest| rest.strip_suffix(')')?.parse().ok());
            match draw_count {
                Some(1) => (DraftStrategy::Random, None),
                None if *algorithm != "random" => {
                    draft.note(
                        line,
                        format!("balance {algorithm}"),
                        "it is no number: the better of two gets it",
                    );
                    (DraftStrategy::LeastRequest(2), None)
                }
                draw_count => (DraftStrategy::LeastRequest(draw_count.unwrap_or(2)), None),
            }
        }
        [algorithm, ..] if algorithm.starts_with("hdr(") => {
            let name = algorithm.trim_start_matches("hdr(").trim_end_matches(')');
            hash_by(&format!("header:{name}"))
        }
        [algorithm, rest @ ..] => {
            let subject = format!("balance {algorithm} {}", rest.join(" "));
            draft.note(
                line,
                subject,
                "there is no such key here: members take turns (client, path, header and cookie are keys)",
            );
            (DraftStrategy::RoundRobin, None)
        }
    };
    if key.is_some() {
        let reason = match words.as_slice() {
            ["uri", rest @ ..] if rest.contains(&"whole") => {
                "the key is the path without its query: what differs by that alone stays together"
            }
            ["uri", _, ..] => {
                "the key is the whole path: what has only its beginning in common does not stay together"
            }
            _ => "the same keys stay together, at other members than there: the hash is another",
        };
        draft.note(line, format!("balance {}", words.join(" ")), reason);
    }
    (group.strategy, group.key) = (strategy, key);
}

fn timeouts(group: &mut DraftGroup, section: &HaproxySection) {
    group.connect = section.timeout(&["connect"]);
    // A session of tcp ends by its listener's timeout. A value here has no effect there, or is the same; or
    // it is noted.
    let tunnel = section.peek_timeout("tunnel");
    if section.http() {
        group.idle = section.timeout(&["server"]);
    } else if tunnel.is_some() || section.peek_timeout("server") == section.peek_timeout("client") {
        section.timeout(&["server"]);
    }
    group.queue_timeout = section.timeout(&["queue", "connect"]);
    group.attempts = section.number("retries");
    for option in ["httpclose", "http-server-close", "forceclose"] {
        if section.option(option) {
            group.max_idle_connections = Some(0);
        }
    }
}

/// Reads the rules that keep clients at a server: a cookie, or a table.
fn read_stickiness(
    group: &mut DraftGroup,
    section: &HaproxySection,
    servers: &[HaproxyServer],
    draft: &mut ImportDraft,
    frontend_settings: &mut FrontendSettings,
) {
    let line = section.line_of("cookie");
    if section.http()
        && servers.iter().any(|server| server.cookie)
        && let Some([name, rest @ ..]) = section.get("cookie")
    {
        if rest.iter().any(|word| word == "insert") {
            frontend_settings.cookies.insert(group.name.clone(), name.clone());
            draft.note(
                line,
                format!("cookie {name} {}", rest.join(" ")),
                "it is signed here, names no server, and is HttpOnly, for the whole host and as long as the \
                 client keeps it: clients get a new one once",
            );
        } else {
            draft.note(
                line,
                format!("cookie {name} {}", rest.join(" ")),
                "cookies of the servers' own are not changed: write cookie NAME insert, or affinity here",
            );
        }
    }
    for line in &section.stick_rules {
        let (line, words, statement) = (line.line, line.consume(), line.text.clone());
        if words.get(1).is_none_or(|word| word != "on")
            || group.key.is_some()
            || group.strategy == DraftStrategy::FirstAvailable
        {
            draft.note(line, statement, "there are no tables: one key is what clients stay together by");
            continue;
        }
        let hash_key = words.iter().find_map(|word| match &**word {
            "src" => Some("client".to_owned()),
            expression => {
                let argument_of =
                    |name: &str| Some(expression.strip_prefix(name)?.strip_suffix(')')?.to_owned());
                let cookie = argument_of("req.cook(")
                    .or_else(|| argument_of("cookie("))
                    .map(|name| format!("cookie:{name}"));
                cookie.or_else(|| {
                    argument_of("req.hdr(")
                        .or_else(|| argument_of("hdr("))
                        .map(|name| format!("header:{name}"))
                })
            }
        });
        match hash_key {
            Some(key) => {
                group.strategy = DraftStrategy::Rendezvous(0.0);
                group.key = Some(key);
                draft.note(
                    line,
                    statement,
                    "there is no table: the member follows from a hash, as long as it is there",
                );
            }
            None => draft.note(
                line,
                statement,
                "there are no tables: client, header and cookie are keys of strategy rendezvous",
            ),
        }
    }
}
