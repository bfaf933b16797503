//! `upstream` blocks as groups.

use super::super::draft::{Draft, Group, Member, Strategy};
use super::super::loss::Class;
use super::super::value;
use super::words::Directive;
use super::{UNIT, Upstreams, why};

/// Reads the upstreams of a context.
pub(super) fn read(inside: &[Directive], streams: bool, upstreams: &mut Upstreams, draft: &mut Draft) {
    for one in inside.iter().filter(|one| one.name == "upstream") {
        let name = one.first();
        let Some(block) = &one.block else { continue };
        one.take();
        if upstreams.groups.contains_key(name) {
            draft.note(one.line, one.said(), "a second upstream of this name");
            one.leave();
            continue;
        }
        let mut called = value::name(name);
        // Different names may become equal here.
        while upstreams.groups.values().any(|group| group.name == called) {
            called = value::name(&format!("g{called}"));
            if called.len() > 50 {
                break;
            }
        }
        let group = group(one.line, called, block, streams, draft);
        upstreams.groups.insert(name.to_owned(), group);
    }
}

/// Returns the group of a `proxy_pass` that names a server itself.
pub(super) fn single(line: usize, address: &str) -> Group {
    let member = Member { address: address.to_owned(), capacity: 1.0, limit: None };
    Group { line, name: value::name(address), members: vec![member], ..Group::default() }
}

struct Server {
    line: usize,
    member: Member,
    backup: bool,
    /// Whether its addresses are members, in place of itself.
    resolved: bool,
    fails: Option<u64>,
    span: Option<std::time::Duration>,
    slow_start: Option<std::time::Duration>,
    said: String,
}

fn group(line: usize, name: String, block: &[Directive], streams: bool, draft: &mut Draft) -> Group {
    let mut group = Group { line, name, ..Group::default() };
    let mut servers = Vec::new();
    for one in block {
        one.leave();
        match &*one.name {
            "server" => servers.extend(server(one, streams, &mut group, draft)),
            "least_conn" => group.strategy = Strategy::LeastConnections,
            "random" if one.first() == "two" => group.strategy = Strategy::LeastRequest(2),
            "random" => group.strategy = Strategy::Random,
            "ip_hash" => {
                let why = "the key is the whole address: of IPv4 there it is the first three numbers";
                by(&mut group, "client", one, why, draft);
            }
            "hash" => match key(one.first()) {
                Some(key) if one.first() == "$request_uri" => {
                    let why = "the key is the path without its query: what differs by that alone stays together";
                    by(&mut group, &key, one, why, draft);
                }
                Some(key) => {
                    let why = "the same keys stay together, at other members than there: the hash is another";
                    by(&mut group, &key, one, why, draft);
                }
                None => draft.note(one.line, one.said(), "there is no such key here: members take turns (client, path, header and cookie are keys)"),
            },
            "keepalive" if one.first().parse::<u64>().is_ok() => group.pool = one.first().parse().ok(),
            "zone" => {}
            "include" => draft.note_as(Class::Changed, one.line, one.said(), why::unused("include", streams)),
            "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {
                draft.note(one.line, one.said(), "idle connections are kept for pool_idle");
            }
            "sticky" | "sticky_cookie_insert" => {
                draft.note(one.line, one.said(), "write affinity = { cookie = \"NAME\" } at the listener");
            }
            "least_time" => {
                group.strategy = Strategy::LeastConnections;
                draft.note(one.line, one.said(), "adaptive and peak_ewma go by times; least_connections is what was written");
            }
            _ => draft.note(one.line, one.said(), "there is nothing like it here"),
        }
    }
    settle(&mut group, servers, draft);
    group
}

fn by(group: &mut Group, key: &str, one: &Directive, why: &str, draft: &mut Draft) {
    group.strategy = Strategy::Rendezvous(0.0);
    group.key = Some(key.to_owned());
    draft.note(one.line, one.said(), why);
}

/// Returns a variable as a key.
fn key(text: &str) -> Option<String> {
    match text {
        "$remote_addr" | "$binary_remote_addr" => Some("client".to_owned()),
        "$request_uri" | "$uri" | "$document_uri" => Some("path".to_owned()),
        _ => {
            let header = text.strip_prefix("$http_").map(|name| format!("header:{}", name.replace('_', "-")));
            let found = header.or_else(|| text.strip_prefix("$cookie_").map(|name| format!("cookie:{name}")));
            found.filter(|key| !key.contains('$') && !key.ends_with(':'))
        }
    }
}

fn server(one: &Directive, streams: bool, group: &mut Group, draft: &mut Draft) -> Option<Server> {
    let usual = if streams { None } else { Some(80) };
    let Some(address) = value::member(one.first(), usual) else {
        draft.note(one.line, one.said(), "is no host with a port");
        return None;
    };
    let member = Member { address, capacity: 1.0, limit: None };
    let mut server = Server {
        line: one.line,
        member,
        backup: false,
        resolved: false,
        fails: None,
        span: None,
        slow_start: None,
        said: one.said(),
    };
    let (mut resolved, mut down) = (false, false);
    for word in one.args.get(1..).unwrap_or_default() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = value.parse::<u32>().ok();
        match (name, number, value::time(value, UNIT)) {
            ("weight", Some(weight), _) => server.member.capacity = f64::from(weight),
            ("max_conns", Some(limit), _) => server.member.limit = Some(limit.into()),
            ("max_fails", Some(fails), _) => server.fails = Some(fails.into()),
            ("fail_timeout", _, Some(span)) => server.span = Some(span),
            ("slow_start", _, Some(span)) => server.slow_start = Some(span),
            ("backup", ..) => server.backup = true,
            ("down", ..) => down = true,
            ("resolve", ..) => resolved = true,
            ("drain", ..) => draft.note(
                one.line,
                format!("server {} … drain", one.first()),
                "plimsoll drain does that while it runs",
            ),
            _ => draft.note(
                one.line,
                format!("server {} … {word}", one.first()),
                "there is nothing like it here",
            ),
        }
    }
    if down {
        draft.note(one.line, one.said(), "it is down");
        return None;
    }
    if resolved {
        if server.backup {
            draft.note(
                one.line,
                one.said(),
                "there are spares only behind one member (strategy first_available)",
            );
            return None;
        }
        group.dns.push(server.member.address.clone());
        if server.member.capacity != 1.0 || server.member.limit.is_some() {
            let why =
                "members that are found by a name have no weights, and the max_connections of the group";
            draft.note(one.line, one.said(), why);
        }
    }
    server.resolved = resolved;
    Some(server)
}

/// Separates the spares, and applies the settings that are the group's here.
fn settle(group: &mut Group, servers: Vec<Server>, draft: &mut Draft) {
    let (spares, mut used): (Vec<Server>, Vec<Server>) =
        servers.into_iter().partition(|server| server.backup);
    if used.len() <= 1 && !spares.is_empty() && !used.iter().any(|server| server.resolved) {
        if let Some(first) = used.first().filter(|first| first.member.limit.is_some()) {
            let why = "what is more than max_conns goes to the spare, too";
            draft.note(first.line, first.said.clone(), why);
        }
        if let [_, others @ ..] = spares.as_slice() {
            for spare in others {
                let why = "spares get work one after the other, and not in turn";
                draft.note(spare.line, spare.said.clone(), why);
            }
        }
        group.strategy = Strategy::FirstAvailable;
        used.extend(spares);
    } else {
        for spare in spares {
            draft.note(
                spare.line,
                spare.said,
                "there are spares only behind one member (strategy first_available)",
            );
        }
    }
    if let Some(first) = used.first() {
        if let Some(fails) = first.fails {
            group.eject = Some((fails, first.span));
        }
        group.slow_start = first.slow_start;
        let own = |server: &Server| (server.fails, server.span, server.slow_start);
        for server in used.iter().filter(|server| own(server) != own(first)) {
            draft.note(
                server.line,
                server.said.clone(),
                "max_fails, fail_timeout and slow_start are of the group: as the first server has them",
            );
        }
        if first.fails.is_none() && first.span.is_some() {
            let why = "fail_timeout without max_fails is for one failure: write consecutive and ejection in [group.outlier]";
            draft.note(first.line, first.said.clone(), why);
        }
    }
    if group.strategy == Strategy::FirstAvailable {
        used.iter_mut().for_each(|server| server.member.capacity = 1.0);
    }
    let found = used.into_iter().filter(|server| !server.resolved);
    group.members.extend(found.map(|server| server.member));
}
