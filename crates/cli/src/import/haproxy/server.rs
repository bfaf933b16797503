//! `server` lines and related lines as a group.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::super::draft::{Draft, Group, Member, MemberTls, Strategy};
use super::super::fit::SYSTEM;
use super::super::value;
use super::section::{self, Section, Sections};
use super::{OfListeners, UNIT, check, why};

/// The settings of one server; those of the group here have to be alike in all.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
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
    agreed: Agreed,
    check_tls: bool,
    /// The setting `ssl`; without it other settings of TLS have no effect.
    secure: bool,
    proof: MemberTls,
    /// The interval of its checks.
    pub(super) interval: Option<Duration>,
    pub(super) rise: Option<u64>,
    pub(super) fall: Option<u64>,
    slow_start: Option<Duration>,
    cookie: bool,
}

/// The protocols that are offered to members for the agreement of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Agreed {
    #[default]
    Http1,
    Http2,
    Either,
}

impl Server {
    fn h2(&self) -> bool {
        self.h2.unwrap_or(self.secure && self.agreed == Agreed::Http2)
    }

    fn tls(&self) -> Option<&MemberTls> {
        self.secure.then_some(&self.proof)
    }
}

/// Returns the group of a section; `None` if it has no servers.
pub(super) fn group(
    section: &Section,
    sections: &Sections,
    groups: &BTreeMap<String, String>,
    draft: &mut Draft,
    of_listeners: &mut OfListeners,
) -> Option<Group> {
    if section.servers.is_empty() {
        if section.kind == section::Kind::Backend {
            draft.note(section.line, format!("backend {}", section.name), "it has no servers");
            section.leave();
        }
        return None;
    }
    if section.kind == section::Kind::Backend && section.disabled() {
        draft.note(section.line, format!("backend {}", section.name), "it is disabled");
        section.leave();
        return None;
    }
    let name = groups.get(&section.name)?.clone();
    let mut group = Group { line: section.line, name, ..Group::default() };
    let servers = servers(section, sections, draft);
    strategy(&mut group, section, draft);
    let servers = in_use(&mut group, servers, draft);
    alike(&mut group, &servers, draft);
    check::health(&mut group, section, &servers, draft);
    timeouts(&mut group, section);
    sticks(&mut group, section, &servers, draft, of_listeners);
    if section.http() && section.option("forwardfor") {
        of_listeners.forwarded.insert(group.name.clone());
    }
    Some(group)
}

fn servers(section: &Section, sections: &Sections, draft: &mut Draft) -> Vec<Server> {
    let port = usual_port(section, sections);
    // HAProxy verifies members, unless it is configured not to.
    let proof = MemberTls { verify: !sections.unproved, ..MemberTls::default() };
    let mut usual = Server { weight: 1, proof, ..Server::default() };
    // Each counts for the servers below it.
    let mut usually = section.default_server.iter().peekable();
    let mut servers = Vec::new();
    for line in &section.servers {
        while let Some(before) = usually.next_if(|one| one.line < line.line) {
            (usual.line, usual.name) = (before.line, DEFAULT.to_owned());
            parameters(&mut usual, before.take()[1..].iter().map(String::as_str), draft);
        }
        let words: Vec<&str> = line.take().iter().map(String::as_str).collect();
        let (template, name, address, rest) = match words.as_slice() {
            ["server-template", prefix, _, address, rest @ ..] => (true, prefix, address, rest),
            ["server", name, address, rest @ ..] => (false, name, address, rest),
            _ => {
                draft.note(line.line, &line.said, "it is not complete");
                continue;
            }
        };
        let Some(found) = value::member(address, port) else {
            draft.note(line.line, format!("{} {name} {address}", words[0]), "is no host with a port");
            continue;
        };
        let host = found.rsplit_once(':').map_or("", |(host, _)| host.trim_matches(['[', ']']));
        if template && host.parse::<IpAddr>().is_ok() {
            draft.note(line.line, &line.said, "it is no name that has addresses");
            continue;
        }
        let mut server = Server {
            line: line.line,
            name: format!("server {name}"),
            address: found,
            template,
            ..usual.clone()
        };
        parameters(&mut server, rest.iter().copied(), draft);
        servers.push(server);
    }
    servers
}

/// Returns the port of a server without one: that of the clients, if there is only one.
fn usual_port(section: &Section, sections: &Sections) -> Option<u16> {
    let leads = |one: &&Section| {
        one.kind.accepts()
            && (one.name == section.name || one.first("default_backend") == Some(&section.name))
    };
    let binds = sections.list.iter().filter(leads).flat_map(|one| &one.binds);
    let places = binds.filter_map(|bind| value::listen(bind.look().get(1)?, false));
    let ports: std::collections::BTreeSet<u16> = places.map(|address| address.port()).collect();
    if ports.len() == 1 { ports.first().copied() } else { None }
}

fn parameters<'w>(server: &mut Server, words: impl Iterator<Item = &'w str>, draft: &mut Draft) {
    let mut words = words;
    let (line, name) = (server.line, server.name.clone());
    while let Some(word) = words.next() {
        let mut otherwise = |what: &str, why: &str| draft.note(line, format!("{name} … {what}"), why);
        let mut value = || words.next().unwrap_or_default();
        match word {
            "weight" => number(&mut server.weight, word, value(), &mut otherwise),
            "maxconn" => some(&mut server.limit, word, value().parse().ok(), &mut otherwise),
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
                otherwise(word, "the header has addresses, and nothing of TLS");
            }
            "no-send-proxy" | "no-send-proxy-v2" | "no-send-proxy-v2-ssl" | "no-send-proxy-v2-ssl-cn" => {
                server.send_proxy = None;
            }
            "ssl" => server.secure = true,
            "no-ssl" => server.secure = false,
            "verify" => server.proof.verify = value() != "none",
            "ca-file" => {
                let file = value();
                server.proof.ca = Some(if file == "@system-ca" { SYSTEM } else { file }.to_owned());
            }
            "crt" => {
                let file = value();
                server.proof.own = Some((file.to_owned(), file.to_owned()));
            }
            "verifyhost" => server.proof.server_name = Some(value().to_owned()),
            "sni" => {
                let asked = value();
                match asked.strip_prefix("str(").and_then(|rest| rest.strip_suffix(')')) {
                    Some(name) => server.proof.server_name = Some(name.to_owned()),
                    None => otherwise(&format!("sni {asked}"), "members are asked by one name: server_name"),
                }
            }
            "proto" => match value() {
                "h2" => server.h2 = Some(true),
                "h1" | "none" => server.h2 = Some(false),
                other => otherwise(&format!("{word} {other}"), "members speak HTTP/1.1 or HTTP/2"),
            },
            "alpn" => {
                let list = value();
                let offers = |name: &str| list.split(',').any(|one| one == name);
                match (offers("h2"), offers("http/1.1")) {
                    (true, true) => server.agreed = Agreed::Either,
                    (true, false) => server.agreed = Agreed::Http2,
                    (false, true) => server.agreed = Agreed::Http1,
                    (false, false) => {
                        otherwise(&format!("{word} {list}"), "members speak HTTP/1.1 or HTTP/2")
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
            "inter" => some(&mut server.interval, word, value::time(value(), UNIT), &mut otherwise),
            "rise" => some(&mut server.rise, word, value().parse().ok(), &mut otherwise),
            "fall" => some(&mut server.fall, word, value().parse().ok(), &mut otherwise),
            "slowstart" => some(&mut server.slow_start, word, value::time(value(), UNIT), &mut otherwise),
            "cookie" => server.cookie = !value().is_empty(),
            "id" => drop(value()),
            word if why::HARMLESS_OF_SERVER.contains(&word) => {}
            _ => {
                if let Some((_, why)) = why::FLAGS_OF_SERVER.iter().find(|(known, _)| *known == word) {
                    otherwise(word, why);
                } else if let Some((_, why)) = why::OF_SERVER.iter().find(|(known, _)| *known == word) {
                    let value = value();
                    otherwise(&format!("{word} {value}"), why);
                } else {
                    otherwise(word, "there is nothing like it here");
                }
            }
        }
    }
    if server.check_tls && !server.secure && server.name != DEFAULT {
        draft.note(
            line,
            format!("{name} … check-ssl"),
            "checks speak what traffic speaks: without ssl no TLS",
        );
    }
}

/// The name of lines that stand for all servers.
const DEFAULT: &str = "default-server";

fn number(place: &mut u64, word: &str, value: &str, otherwise: &mut impl FnMut(&str, &str)) {
    match value.parse() {
        Ok(number) => *place = number,
        Err(_) => otherwise(&format!("{word} {value}"), "it is no number"),
    }
}

fn some<T>(place: &mut Option<T>, word: &str, value: Option<T>, otherwise: &mut impl FnMut(&str, &str)) {
    match value {
        Some(value) => *place = Some(value),
        None => otherwise(word, "its value cannot be read"),
    }
}

/// Returns the servers that get work. One with spares behind it is filled in their order; several with spares
/// are not.
fn in_use(group: &mut Group, servers: Vec<Server>, draft: &mut Draft) -> Vec<Server> {
    let mut kept = Vec::new();
    for server in servers {
        if server.disabled {
            draft.note(server.line, &server.name, "it is disabled");
        } else if server.weight == 0 {
            draft.note(server.line, &server.name, "a weight of 0 gets nothing: drain it when it runs");
        } else {
            kept.push(server);
        }
    }
    let (spares, first): (Vec<Server>, Vec<Server>) = kept.into_iter().partition(|server| server.backup);
    let mut used = first;
    let several = used.iter().chain(&spares).any(|server| server.template);
    if used.len() <= 1 && !spares.is_empty() && !several {
        if let Some(first) = used.first().filter(|first| first.limit.is_some()) {
            let why = "what is more than that goes to the spare, where there it waits";
            draft.note(first.line, format!("{} … maxconn", first.name), why);
        }
        group.strategy = Strategy::FirstAvailable;
        used.extend(spares);
    } else {
        for spare in spares {
            let why = "there are spares only behind one member (strategy first_available)";
            draft.note(spare.line, format!("{} … backup", spare.name), why);
        }
    }
    for server in &used {
        if server.template {
            group.dns.push(server.address.clone());
            of_found(group, server, &used, draft);
            continue;
        }
        let weight = server.weight as f64;
        let capacity = if group.strategy == Strategy::FirstAvailable { 1.0 } else { weight };
        group.members.push(Member { address: server.address.clone(), capacity, limit: server.limit });
    }
    // Weights that are all equal are no weights.
    if let Some(weight) = group.members.first().map(|member| member.capacity)
        && group.members.iter().all(|member| member.capacity == weight)
    {
        group.members.iter_mut().for_each(|member| member.capacity = 1.0);
    }
    used
}

/// Applies a server's settings to the group, for members that are found by a name.
fn of_found(group: &mut Group, server: &Server, used: &[Server], draft: &mut Draft) {
    if used.iter().all(|other| other.limit == server.limit) {
        group.limit = server.limit;
    } else {
        let why =
            "members that are found by a name have the max_connections of the group: as all of them have it";
        draft.note(server.line, format!("{} … maxconn", server.name), why);
    }
    if used.iter().any(|other| other.weight != server.weight) {
        let why = "members that are found by a name have no weights: they get as much as one of weight 1";
        draft.note(server.line, format!("{} … weight {}", server.name, server.weight), why);
    }
}

/// Applies the settings that are the group's here, and should be alike in all of its servers.
fn alike(group: &mut Group, servers: &[Server], draft: &mut Draft) {
    let Some(first) = servers.first() else { return };
    (group.send_proxy, group.h2, group.tls) = (first.send_proxy, first.h2(), first.tls().cloned());
    group.slow_start = first.slow_start;
    if first.tls().is_some_and(|proof| proof.verify && proof.server_name.is_none()) {
        let why = "its certificate must be for the host in its address, too, or for another: tls.server_name";
        draft.note(first.line, format!("{} … verify required", first.name), why);
    }
    if first.h2.is_none() && first.secure && first.agreed == Agreed::Either {
        let why = "members are spoken to by HTTP/1.1, or all of them by HTTP/2: protocol = \"h2\"";
        draft.note(first.line, format!("{} … alpn h2,http/1.1", first.name), why);
    }
    for server in &servers[1..] {
        if (server.send_proxy, server.h2(), server.tls()) != (first.send_proxy, first.h2(), first.tls()) {
            let why = format!("all members of a group are reached alike: as {}", first.name);
            draft.note(server.line, format!("{}: ssl, alpn, send-proxy", server.name), why);
        }
        if server.slow_start != first.slow_start {
            let why = format!("all members of a group start alike: as {}", first.name);
            draft.note(server.line, format!("{}: slowstart", server.name), why);
        }
    }
}

fn strategy(group: &mut Group, section: &Section, draft: &mut Draft) {
    let balance = section.get("balance").unwrap_or_default();
    let line = section.line_of("balance");
    let words: Vec<&str> = balance.iter().map(String::as_str).collect();
    let by = |key: &str| {
        let bound = section.number::<f64>("hash-balance-factor");
        (Strategy::Rendezvous(bound.map_or(0.0, |percent| percent / 100.0)), Some(key.to_owned()))
    };
    let (strategy, key) = match words.as_slice() {
        [] | ["roundrobin" | "static-rr", ..] => (Strategy::Turns, None),
        ["leastconn", ..] => (Strategy::LeastConnections, None),
        ["first", ..] => (Strategy::FirstAvailable, None),
        ["source", ..] => by("client"),
        ["uri", ..] => by("path"),
        [word, ..] if word.starts_with("random") => {
            let draws = word.strip_prefix("random(").and_then(|rest| rest.strip_suffix(')')?.parse().ok());
            match draws {
                Some(1) => (Strategy::Random, None),
                None if *word != "random" => {
                    draft.note(line, format!("balance {word}"), "it is no number: the better of two gets it");
                    (Strategy::LeastRequest(2), None)
                }
                draws => (Strategy::LeastRequest(draws.unwrap_or(2)), None),
            }
        }
        [word, ..] if word.starts_with("hdr(") => {
            let name = word.trim_start_matches("hdr(").trim_end_matches(')');
            by(&format!("header:{name}"))
        }
        [word, rest @ ..] => {
            let what = format!("balance {word} {}", rest.join(" "));
            draft.note(
                line,
                what,
                "there is no such key here: members take turns (client, path, header and cookie are keys)",
            );
            (Strategy::Turns, None)
        }
    };
    if key.is_some() {
        let why = match words.as_slice() {
            ["uri", rest @ ..] if rest.contains(&"whole") => {
                "the key is the path without its query: what differs by that alone stays together"
            }
            ["uri", _, ..] => {
                "the key is the whole path: what has only its beginning in common does not stay together"
            }
            _ => "the same keys stay together, at other members than there: the hash is another",
        };
        draft.note(line, format!("balance {}", words.join(" ")), why);
    }
    (group.strategy, group.key) = (strategy, key);
}

fn timeouts(group: &mut Group, section: &Section) {
    group.connect = section.timeout(&["connect"]);
    // A session of tcp ends by its listener's timeout. A value here has no effect there, or is the same; or
    // it is noted.
    let tunnel = section.look_timeout("tunnel");
    if section.http() {
        group.idle = section.timeout(&["server"]);
    } else if tunnel.is_some() || section.look_timeout("server") == section.look_timeout("client") {
        section.timeout(&["server"]);
    }
    group.queue_timeout = section.timeout(&["queue", "connect"]);
    group.attempts = section.number("retries");
    for option in ["httpclose", "http-server-close", "forceclose"] {
        if section.option(option) {
            group.pool = Some(0);
        }
    }
}

/// Reads the rules that keep clients at a server: a cookie, or a table.
fn sticks(
    group: &mut Group,
    section: &Section,
    servers: &[Server],
    draft: &mut Draft,
    of_listeners: &mut OfListeners,
) {
    let line = section.line_of("cookie");
    if section.http()
        && servers.iter().any(|server| server.cookie)
        && let Some([name, rest @ ..]) = section.get("cookie")
    {
        if rest.iter().any(|word| word == "insert") {
            of_listeners.cookies.insert(group.name.clone(), name.clone());
            draft.note(
                line,
                format!("cookie {name} {}", rest.join(" ")),
                "it is signed here, names no server, and is HttpOnly, for the whole host and as long as the client keeps it: clients get a new one once",
            );
        } else {
            draft.note(
                line,
                format!("cookie {name} {}", rest.join(" ")),
                "cookies of the servers' own are not changed: write cookie NAME insert, or affinity here",
            );
        }
    }
    for line in &section.sticks {
        let (line, words, said) = (line.line, line.take(), line.said.clone());
        if words.get(1).is_none_or(|word| word != "on")
            || group.key.is_some()
            || group.strategy == Strategy::FirstAvailable
        {
            draft.note(line, said, "there are no tables: one key is what clients stay together by");
            continue;
        }
        let by = words.iter().find_map(|word| match &**word {
            "src" => Some("client".to_owned()),
            other => {
                let inside = |name: &str| Some(other.strip_prefix(name)?.strip_suffix(')')?.to_owned());
                let cookie =
                    inside("req.cook(").or_else(|| inside("cookie(")).map(|name| format!("cookie:{name}"));
                cookie.or_else(|| {
                    inside("req.hdr(").or_else(|| inside("hdr(")).map(|name| format!("header:{name}"))
                })
            }
        });
        match by {
            Some(key) => {
                group.strategy = Strategy::Rendezvous(0.0);
                group.key = Some(key);
                draft.note(
                    line,
                    said,
                    "there is no table: the member follows from a hash, as long as it is there",
                );
            }
            None => draft.note(
                line,
                said,
                "there are no tables: client, header and cookie are keys of strategy rendezvous",
            ),
        }
    }
}
