//! `upstream` blocks as groups.

use super::super::intermediate::{DraftGroup, DraftMember, DraftStrategy, ImportDraft};
use super::super::loss::LossClass;
use super::super::value;
use super::tokenizer::NginxDirective;
use super::{UNIT, UpstreamGroups, unsupported};

/// Reads the upstreams of a context.
pub(super) fn read(
    inside: &[NginxDirective],
    streams: bool,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) {
    for one in inside.iter().filter(|one| one.name == "upstream") {
        let name = one.first();
        let Some(block) = &one.block else { continue };
        one.mark_used();
        if upstreams.groups.contains_key(name) {
            draft.note(one.line, one.text(), "a second upstream of this name");
            one.mark_all_used();
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
pub(super) fn single(line: usize, address: &str) -> DraftGroup {
    let member = DraftMember { address: address.to_owned(), capacity: 1.0, limit: None };
    DraftGroup { line, name: value::name(address), members: vec![member], ..DraftGroup::default() }
}

struct UpstreamServer {
    line: usize,
    member: DraftMember,
    backup: bool,
    /// Whether its addresses are members, in place of itself.
    resolves_name: bool,
    max_fails: Option<u64>,
    fail_timeout: Option<std::time::Duration>,
    slow_start: Option<std::time::Duration>,
    text: String,
}

fn group(
    line: usize,
    name: String,
    block: &[NginxDirective],
    streams: bool,
    draft: &mut ImportDraft,
) -> DraftGroup {
    let mut group = DraftGroup { line, name, ..DraftGroup::default() };
    let mut servers = Vec::new();
    for one in block {
        one.mark_all_used();
        match &*one.name {
            "server" => servers.extend(server(one, streams, &mut group, draft)),
            "least_conn" => group.strategy = DraftStrategy::LeastConnections,
            "random" if one.first() == "two" => group.strategy = DraftStrategy::LeastRequest(2),
            "random" => group.strategy = DraftStrategy::Random,
            "ip_hash" => {
                let why = "the key is the whole address: of IPv4 there it is the first three numbers";
                hash_by(&mut group, "client", one, why, draft);
            }
            "hash" => match key(one.first()) {
                Some(key) if one.first() == "$request_uri" => {
                    let why = "the key is the path without its query: what differs by that alone stays \
                        together";
                    hash_by(&mut group, &key, one, why, draft);
                }
                Some(key) => {
                    let why = "the same keys stay together, at other members than there: the hash is another";
                    hash_by(&mut group, &key, one, why, draft);
                }
                None => draft.note(
                    one.line,
                    one.text(),
                    "there is no such key here: members take turns \
                    (client, path, header and cookie are keys)",
                ),
            },
            "keepalive" if one.first().parse::<u64>().is_ok() => {
                group.max_idle_connections = one.first().parse().ok()
            }
            "zone" => {}
            "include" => draft.note_as(
                LossClass::Changed,
                one.line,
                one.text(),
                unsupported::unused_reason("include", streams),
            ),
            "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {
                draft.note(one.line, one.text(), "idle connections are kept for pool_idle_timeout");
            }
            "sticky" | "sticky_cookie_insert" => {
                draft.note(one.line, one.text(), "write affinity = { cookie = \"NAME\" } at the listener");
            }
            "least_time" => {
                group.strategy = DraftStrategy::LeastConnections;
                draft.note(
                    one.line,
                    one.text(),
                    "adaptive and peak_ewma go by times; least_connections is \
                    what was written",
                );
            }
            _ => draft.note(one.line, one.text(), "there is nothing like it here"),
        }
    }
    apply_servers(&mut group, servers, draft);
    group
}

fn hash_by(group: &mut DraftGroup, key: &str, one: &NginxDirective, why: &str, draft: &mut ImportDraft) {
    group.strategy = DraftStrategy::Rendezvous(0.0);
    group.key = Some(key.to_owned());
    draft.note(one.line, one.text(), why);
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

fn server(
    one: &NginxDirective,
    streams: bool,
    group: &mut DraftGroup,
    draft: &mut ImportDraft,
) -> Option<UpstreamServer> {
    let usual = if streams { None } else { Some(80) };
    let Some(address) = value::member(one.first(), usual) else {
        draft.note(one.line, one.text(), "is no host with a port");
        return None;
    };
    let member = DraftMember { address, capacity: 1.0, limit: None };
    let mut server = UpstreamServer {
        line: one.line,
        member,
        backup: false,
        resolves_name: false,
        max_fails: None,
        fail_timeout: None,
        slow_start: None,
        text: one.text(),
    };
    let (mut resolved, mut down) = (false, false);
    for word in one.args.get(1..).unwrap_or_default() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = value.parse::<u32>().ok();
        match (name, number, value::time(value, UNIT)) {
            ("weight", Some(weight), _) => server.member.capacity = f64::from(weight),
            ("max_conns", Some(limit), _) => server.member.limit = Some(limit.into()),
            ("max_fails", Some(fails), _) => server.max_fails = Some(fails.into()),
            ("fail_timeout", _, Some(span)) => server.fail_timeout = Some(span),
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
        draft.note(one.line, one.text(), "it is down");
        return None;
    }
    if resolved {
        if server.backup {
            draft.note(
                one.line,
                one.text(),
                "there are spares only behind one member (strategy first_available)",
            );
            return None;
        }
        group.dns.push(server.member.address.clone());
        if server.member.capacity != 1.0 || server.member.limit.is_some() {
            let why =
                "members that are found by a name have no weights, and the max_connections of the group";
            draft.note(one.line, one.text(), why);
        }
    }
    server.resolves_name = resolved;
    Some(server)
}

/// Separates the spares, and applies the settings that are the group's here.
fn apply_servers(group: &mut DraftGroup, servers: Vec<UpstreamServer>, draft: &mut ImportDraft) {
    let (spares, mut used): (Vec<UpstreamServer>, Vec<UpstreamServer>) =
        servers.into_iter().partition(|server| server.backup);
    if used.len() <= 1 && !spares.is_empty() && !used.iter().any(|server| server.resolves_name) {
        if let Some(first) = used.first().filter(|first| first.member.limit.is_some()) {
            let why = "what is more than max_conns goes to the spare, too";
            draft.note(first.line, first.text.clone(), why);
        }
        if let [_, others @ ..] = spares.as_slice() {
            for spare in others {
                let why = "spares get work one after the other, and not in turn";
                draft.note(spare.line, spare.text.clone(), why);
            }
        }
        group.strategy = DraftStrategy::FirstAvailable;
        used.extend(spares);
    } else {
        for spare in spares {
            draft.note(
                spare.line,
                spare.text,
                "there are spares only behind one member (strategy first_available)",
            );
        }
    }
    if let Some(first) = used.first() {
        if let Some(fails) = first.max_fails {
            group.eject = Some((fails, first.fail_timeout));
        }
        group.slow_start = first.slow_start;
        let own = |server: &UpstreamServer| (server.max_fails, server.fail_timeout, server.slow_start);
        for server in used.iter().filter(|server| own(server) != own(first)) {
            draft.note(
                server.line,
                server.text.clone(),
                "max_fails, fail_timeout and slow_start are of the group: as the first server has them",
            );
        }
        if first.max_fails.is_none() && first.fail_timeout.is_some() {
            let why = "fail_timeout without max_fails is for one failure: write consecutive and ejection in \
                [group.outlier]";
            draft.note(first.line, first.text.clone(), why);
        }
    }
    if group.strategy == DraftStrategy::FirstAvailable {
        used.iter_mut().for_each(|server| server.member.capacity = 1.0);
    }
    let found = used.into_iter().filter(|server| !server.resolves_name);
    group.members.extend(found.map(|server| server.member));
}
