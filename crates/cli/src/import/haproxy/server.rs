//! `server` lines and what is about them as a group.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::draft::{Draft, Group, Health, Kind, Member, MemberTls, Strategy};
use super::super::fit::SYSTEM;
use super::super::value;
use super::section::{Section, Sections};
use super::{OfListeners, UNIT};

/// What one server says; what is of the group here has to be alike in all.
#[derive(Clone, Debug, Default)]
struct Server {
    line: usize,
    name: String,
    address: Option<String>,
    weight: u64,
    limit: Option<u64>,
    check: bool,
    backup: bool,
    disabled: bool,
    send_proxy: Option<u8>,
    h2: bool,
    tls: Option<MemberTls>,
    /// Of its checks.
    interval: Option<Duration>,
    rise: Option<u64>,
    fall: Option<u64>,
    slow_start: Option<Duration>,
    cookie: bool,
}

/// The group of a section; none if it has no servers.
pub(super) fn group(
    section: &Section,
    sections: &Sections,
    groups: &BTreeMap<String, String>,
    draft: &mut Draft,
    of_listeners: &mut OfListeners,
) -> Option<Group> {
    if section.servers.is_empty() {
        return None;
    }
    let name = groups.get(&section.name)?.clone();
    let mut group = Group { line: section.line, name, ..Group::default() };
    let port = usual_port(section, sections);
    let mut servers = Vec::new();
    for (line, words) in &section.servers {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["server-template", prefix, _, address, ..] => match value::member(address, port) {
                Some(name) => group.dns.push(name),
                None => {
                    draft.note(*line, format!("server-template {prefix} {address}"), "is no name with a port")
                }
            },
            ["server", name, address, rest @ ..] => {
                let mut server =
                    Server { line: *line, name: (*name).to_owned(), weight: 1, ..Server::default() };
                server.address = value::member(address, port);
                if server.address.is_none() {
                    draft.note(*line, format!("server {name} {address}"), "is no host with a port");
                    continue;
                }
                parameters(&mut server, section.default_server.iter().map(String::as_str), draft);
                parameters(&mut server, rest.iter().copied(), draft);
                servers.push(server);
            }
            _ => draft.note(*line, words.join(" "), "it is not complete"),
        }
    }
    strategy(&mut group, section, draft);
    let servers = in_use(&mut group, servers, draft);
    alike(&mut group, &servers, draft);
    health(&mut group, section, &servers, draft);
    timeouts(&mut group, section);
    sticks(&mut group, section, &servers, draft, of_listeners);
    if section.option("forwardfor") {
        of_listeners.forwarded.insert(group.name.clone());
    }
    Some(group)
}

/// Where a server that names no port is: at that of the clients, if there is only one.
fn usual_port(section: &Section, sections: &Sections) -> Option<u16> {
    let leads = |one: &&Section| {
        one.kind.accepts()
            && (one.name == section.name || one.first("default_backend") == Some(&section.name))
    };
    let binds = sections.list.iter().filter(leads).flat_map(|one| &one.binds);
    let places = binds.filter_map(|(_, words)| value::listen(words.first()?, false));
    let ports: std::collections::BTreeSet<u16> = places.map(|address| address.port()).collect();
    if ports.len() == 1 { ports.first().copied() } else { None }
}

/// Parameters with a value that means nothing here, with why.
const VALUED: [(&str, &str); 14] = [
    ("maxqueue", "how many wait is bounded for the group: queue"),
    ("port", "checks go to the member's own port"),
    ("addr", "checks go to the member's own address"),
    ("check-sni", "checks ask by the name that traffic asks by"),
    ("check-alpn", "checks speak what traffic speaks"),
    (
        "resolvers",
        "names are looked up at start and reload; write discover = [{ dns = \"name:port\" }] to follow one",
    ),
    ("resolve-prefer", "the first IPv4 address is taken"),
    ("init-addr", "a name that cannot be looked up is an error at start"),
    ("observe", "failures of traffic always count ([group.outlier])"),
    ("on-error", "failures of traffic always count ([group.outlier])"),
    ("error-limit", "failures of traffic always count ([group.outlier])"),
    ("on-marked-down", "sessions end by themselves, or by binding = \"on_demand\""),
    ("source", "the kernel chooses the address that members see"),
    ("track", "each group checks its members itself"),
];

fn parameters<'w>(server: &mut Server, mut words: impl Iterator<Item = &'w str>, draft: &mut Draft) {
    let line = server.line;
    while let Some(word) = words.next() {
        let mut tls = |change: &dyn Fn(&mut MemberTls)| change(server.tls.get_or_insert_with(proved));
        match word {
            "weight" => server.weight = words.next().and_then(|word| word.parse().ok()).unwrap_or(1),
            "maxconn" => server.limit = words.next().and_then(|word| word.parse().ok()),
            "check" => server.check = true,
            "no-check" => server.check = false,
            "backup" => server.backup = true,
            "no-backup" => server.backup = false,
            "disabled" => server.disabled = true,
            "enabled" => server.disabled = false,
            "send-proxy" => server.send_proxy = Some(1),
            "send-proxy-v2" | "send-proxy-v2-ssl" | "send-proxy-v2-ssl-cn" => server.send_proxy = Some(2),
            "ssl" => tls(&|_| {}),
            "no-ssl" => server.tls = None,
            "verify" => {
                let none = words.next() == Some("none");
                tls(&|tls| tls.verify = !none);
            }
            "ca-file" => {
                let file = words.next().unwrap_or_default();
                let file = if file == "@system-ca" { SYSTEM } else { file };
                tls(&|tls| tls.ca = Some(file.to_owned()));
            }
            "crt" => {
                let file = words.next().unwrap_or_default();
                tls(&|tls| tls.own = Some((file.to_owned(), file.to_owned())));
            }
            "sni" | "verifyhost" => {
                let asked = words.next().unwrap_or_default();
                let fixed = asked.strip_prefix("str(").and_then(|rest| rest.strip_suffix(')'));
                match fixed.or_else(|| (word == "verifyhost").then_some(asked)) {
                    Some(name) => tls(&|tls| tls.server_name = Some(name.to_owned())),
                    None => {
                        draft.note(line, format!("sni {asked}"), "members are asked by one name: server_name")
                    }
                }
            }
            "alpn" | "proto" | "check-proto" => {
                let list = words.next().unwrap_or_default();
                server.h2 |= word != "check-proto" && list.split(',').next() == Some("h2");
            }
            "inter" => server.interval = words.next().and_then(|word| value::time(word, UNIT)),
            "rise" => server.rise = words.next().and_then(|word| word.parse().ok()),
            "fall" => server.fall = words.next().and_then(|word| word.parse().ok()),
            "slowstart" => server.slow_start = words.next().and_then(|word| value::time(word, UNIT)),
            "cookie" => server.cookie = words.next().is_some(),
            "id" | "minconn" | "pool-max-conn" | "pool-purge-delay" | "pool-low-conn" => drop(words.next()),
            // Of checks that are slower for a while: ours go on at their pace.
            "fastinter" | "downinter" | "agent-inter" => drop(words.next()),
            "check-ssl" | "no-check-ssl" | "check-send-proxy" | "non-stick" | "tfo" | "no-tls-tickets" => {}
            "agent-check" | "agent-port" | "agent-addr" | "agent-send" => {
                if word != "agent-check" {
                    words.next();
                }
                draft.note(
                    line,
                    format!("server {} … {word}", server.name),
                    "members report their load by plimsoll agent, or in answers",
                );
            }
            _ => match VALUED.iter().find(|(known, _)| *known == word) {
                Some((_, why)) => {
                    let value = words.next().unwrap_or_default();
                    draft.note(line, format!("server {} … {word} {value}", server.name), *why);
                }
                None => draft.note(
                    line,
                    format!("server {} … {word}", server.name),
                    "there is nothing like it here",
                ),
            },
        }
    }
}

/// HAProxy believes none without proof, unless it is told to.
fn proved() -> MemberTls {
    MemberTls { verify: true, ..MemberTls::default() }
}

/// Those that get work. One with spares behind it is filled in their order; several with spares are not.
fn in_use(group: &mut Group, servers: Vec<Server>, draft: &mut Draft) -> Vec<Server> {
    let mut kept = Vec::new();
    for server in servers {
        if server.disabled {
            draft.note(server.line, format!("server {}", server.name), "it is disabled");
        } else if server.weight == 0 {
            draft.note(
                server.line,
                format!("server {}", server.name),
                "a weight of 0 gets nothing: drain it when it runs",
            );
        } else {
            kept.push(server);
        }
    }
    let (spares, first): (Vec<Server>, Vec<Server>) = kept.into_iter().partition(|server| server.backup);
    let mut used = first;
    if used.len() <= 1 && !spares.is_empty() {
        group.strategy = Strategy::FirstAvailable;
        used.extend(spares);
    } else {
        for spare in spares {
            let why = "there are spares only behind one member (strategy first_available)";
            draft.note(spare.line, format!("server {} … backup", spare.name), why);
        }
    }
    for server in &used {
        let Some(address) = server.address.clone() else { continue };
        let capacity = if group.strategy == Strategy::FirstAvailable { 1.0 } else { server.weight as f64 };
        group.members.push(Member { address, capacity, limit: server.limit });
    }
    // Weights that are all alike are no weights.
    if let Some(weight) = group.members.first().map(|member| member.capacity)
        && group.members.iter().all(|member| member.capacity == weight)
    {
        group.members.iter_mut().for_each(|member| member.capacity = 1.0);
    }
    used
}

/// What is of the group here, and should be alike in all of its servers.
fn alike(group: &mut Group, servers: &[Server], draft: &mut Draft) {
    let Some(first) = servers.first() else { return };
    (group.send_proxy, group.h2, group.tls) = (first.send_proxy, first.h2, first.tls.clone());
    group.slow_start = first.slow_start;
    for server in &servers[1..] {
        if (server.send_proxy, server.h2, &server.tls) != (first.send_proxy, first.h2, &first.tls) {
            let why = format!("all members of a group are reached alike: as {}", first.name);
            draft.note(server.line, format!("server {}: ssl, alpn, send-proxy", server.name), why);
        }
    }
}

fn strategy(group: &mut Group, section: &Section, draft: &mut Draft) {
    let balance = section.get("balance").unwrap_or_default();
    let line = section.line_of("balance");
    let words: Vec<&str> = balance.iter().map(String::as_str).collect();
    let bound = section.first("hash-balance-factor").and_then(|word| word.parse::<f64>().ok());
    let hashed = Strategy::Rendezvous(bound.map_or(0.0, |percent| percent / 100.0));
    let by = |key: &str| (hashed.clone(), Some(key.to_owned()));
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
        let why = "the same keys stay together, at other members than there: the hash is another";
        draft.note(line, format!("balance {}", words.join(" ")), why);
    }
    (group.strategy, group.key) = (strategy, key);
}

fn health(group: &mut Group, section: &Section, servers: &[Server], draft: &mut Draft) {
    let Some(first) = servers.iter().find(|server| server.check) else { return };
    for server in servers {
        if !server.check {
            draft.note(
                server.line,
                format!("server {}", server.name),
                "all members of a group are checked, this one, too",
            );
        } else if (server.interval, server.rise, server.fall) != (first.interval, first.rise, first.fall) {
            let why = format!("all members of a group are checked alike: as {}", first.name);
            draft.note(server.line, format!("server {}: inter, rise, fall", server.name), why);
        }
    }
    let mut health = Health {
        kind: Kind::Tcp,
        interval: first.interval,
        timeout: section.timeout("check").or_else(|| section.timeout("connect")),
        rise: first.rise,
        fall: first.fall,
        host: None,
        expect: None,
    };
    if section.option("httpchk") {
        asked(&mut health, section, draft);
    } else {
        for (line, words) in &section.checks {
            draft.note(*line, words.join(" "), "checks connect (tcp), or ask for a path (http)");
        }
    }
    group.health = Some(health);
}

/// `option httpchk` and the lines of `http-check`.
fn asked(health: &mut Health, section: &Section, draft: &mut Draft) {
    let line = section.line_of("option httpchk");
    let words: Vec<&str> =
        section.get("option httpchk").unwrap_or_default().iter().map(String::as_str).collect();
    let (mut method, mut path) = match words.as_slice() {
        [] => ("OPTIONS", "/"),
        [path] => ("OPTIONS", *path),
        [method, path, ..] => (*method, *path),
    };
    let mut expected = false;
    for (number, words) in &section.checks {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
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
    if let [_, _, version, ..] = words.as_slice()
        && let Some((_, host)) = version.split_once("Host:")
    {
        health.host = Some(host.trim().to_owned());
    }
    health.kind = Kind::Http(path.to_owned());
}

fn timeouts(group: &mut Group, section: &Section) {
    group.connect = section.timeout("connect");
    group.idle = section.timeout("server").filter(|_| section.http());
    group.queue_timeout = section.timeout("queue").or(group.connect);
    group.attempts = section.first("retries").and_then(|word| word.parse().ok());
    if ["httpclose", "http-server-close", "forceclose"].iter().any(|option| section.option(option)) {
        group.pool = Some(0);
    }
}

/// What keeps clients at a server: a cookie, or a table.
fn sticks(
    group: &mut Group,
    section: &Section,
    servers: &[Server],
    draft: &mut Draft,
    of_listeners: &mut OfListeners,
) {
    let line = section.line_of("cookie");
    if let Some([name, rest @ ..]) = section.get("cookie")
        && servers.iter().any(|server| server.cookie)
    {
        if rest.iter().any(|word| word == "insert") {
            of_listeners.cookies.insert(group.name.clone(), name.clone());
            draft.note(
                line,
                format!("values of the cookie {name}"),
                "it is signed here, and names no server: clients get a new one once",
            );
        } else {
            draft.note(
                line,
                format!("cookie {name} {}", rest.join(" ")),
                "cookies of the servers' own are not changed: write cookie NAME insert, or affinity here",
            );
        }
    }
    if let Some(words) = section.get("stick") {
        let line = section.line_of("stick");
        let said = format!("stick {}", words.join(" "));
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
