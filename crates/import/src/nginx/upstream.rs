//! `upstream` blocks as groups.

use super::super::intermediate::{DraftGroup, DraftMember, DraftStrategy, ImportDraft};
use super::super::loss::LossClass;
use super::super::value;
use super::tokenizer::NginxDirective;
use super::{UNIT, UpstreamGroups, unsupported};

/// Reads the upstreams of a context.
pub(super) fn read(
    context_directives: &[NginxDirective],
    streams: bool,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) {
    for directive in context_directives.iter().filter(|directive| directive.name == "upstream") {
        let name = directive.first();
        let Some(block) = &directive.block else { continue };
        directive.mark_used();
        if upstreams.groups.contains_key(name) {
            draft.note(directive.line, directive.text(), "a second upstream of this name");
            directive.mark_all_used();
            continue;
        }
        let mut group_name = value::name(name);
        // Different names may become equal here.
        while upstreams.groups.values().any(|group| group.name == group_name) {
            group_name = value::name(&format!("g{group_name}"));
            if group_name.len() > 50 {
                break;
            }
        }
        let group = group(directive.line, group_name, block, streams, draft);
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
    for directive in block {
        directive.mark_all_used();
        match &*directive.name {
            "server" => servers.extend(server(directive, streams, &mut group, draft)),
            "least_conn" => group.strategy = DraftStrategy::LeastConnections,
            "random" if directive.first() == "two" => group.strategy = DraftStrategy::LeastRequest(2),
            "random" => group.strategy = DraftStrategy::Random,
            "ip_hash" => {
                let reason = "the key is the whole address: of IPv4 there it is the first three numbers";
                hash_by(&mut group, "client", directive, reason, draft);
            }
            "hash" => match key(directive.first()) {
                Some(key) if directive.first() == "$request_uri" => {
                    let reason = "the key is the path without its query: what differs by that alone stays \
                        together";
                    hash_by(&mut group, &key, directive, reason, draft);
                }
                Some(key) => {
                    let reason =
                        "the same keys stay together, at other members than there: the hash is another";
                    hash_by(&mut group, &key, directive, reason, draft);
                }
                None => draft.note(
                    directive.line,
                    directive.text(),
                    "there is no such key here: members take turns \
                    (client, path, header and cookie are keys)",
                ),
            },
            "keepalive" if directive.first().parse::<u64>().is_ok() => {
                group.max_idle_connections = directive.first().parse().ok()
            }
            "zone" => {}
            "include" => draft.note_as(
                LossClass::Changed,
                directive.line,
                directive.text(),
                unsupported::unused_reason("include", streams),
            ),
            "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {
                draft.note(
                    directive.line,
                    directive.text(),
                    "idle connections are kept for pool_idle_timeout",
                );
            }
            "sticky" | "sticky_cookie_insert" => {
                draft.note(
                    directive.line,
                    directive.text(),
                    "write affinity = { cookie = \"NAME\" } at the listener",
                );
            }
            "least_time" => {
                group.strategy = DraftStrategy::LeastConnections;
                draft.note(
                    directive.line,
                    directive.text(),
                    "adaptive and peak_ewma go by times; least_connections is \
                    what was written",
                );
            }
            _ => draft.note(directive.line, directive.text(), "there is nothing like it here"),
        }
    }
    apply_servers(&mut group, servers, draft);
    group
}

fn hash_by(
    group: &mut DraftGroup,
    key: &str,
    directive: &NginxDirective,
    reason: &str,
    draft: &mut ImportDraft,
) {
    group.strategy = DraftStrategy::Rendezvous(0.0);
    group.key = Some(key.to_owned());
    draft.note(directive.line, directive.text(), reason);
}

/// Returns a variable as a key.
fn key(text: &str) -> Option<String> {
    match text {
        "$remote_addr" | "$binary_remote_addr" => Some("client".to_owned()),
        "$request_uri" | "$uri" | "$document_uri" => Some("path".to_owned()),
        _ => {
            let header = text.strip_prefix("$http_").map(|name| format!("header:{}", name.replace('_', "-")));
            let header_key =
                header.or_else(|| text.strip_prefix("$cookie_").map(|name| format!("cookie:{name}")));
            header_key.filter(|key| !key.contains('$') && !key.ends_with(':'))
        }
    }
}

fn server(
    directive: &NginxDirective,
    streams: bool,
    group: &mut DraftGroup,
    draft: &mut ImportDraft,
) -> Option<UpstreamServer> {
    let default_port = if streams { None } else { Some(80) };
    let Some(address) = value::member(directive.first(), default_port) else {
        draft.note(directive.line, directive.text(), "is no host with a port");
        return None;
    };
    let member = DraftMember { address, capacity: 1.0, limit: None };
    let mut server = UpstreamServer {
        line: directive.line,
        member,
        backup: false,
        resolves_name: false,
        max_fails: None,
        fail_timeout: None,
        slow_start: None,
        text: directive.text(),
    };
    let (mut is_resolved, mut is_down) = (false, false);
    for word in directive.args.get(1..).unwrap_or_default() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let parsed_number = value.parse::<u32>().ok();
        match (name, parsed_number, value::time(value, UNIT)) {
            ("weight", Some(weight), _) => server.member.capacity = f64::from(weight),
            ("max_conns", Some(limit), _) => server.member.limit = Some(limit.into()),
            ("max_fails", Some(max_fails), _) => server.max_fails = Some(max_fails.into()),
            ("fail_timeout", _, Some(span)) => server.fail_timeout = Some(span),
            ("slow_start", _, Some(span)) => server.slow_start = Some(span),
            ("backup", ..) => server.backup = true,
            ("down", ..) => is_down = true,
            ("resolve", ..) => is_resolved = true,
            ("drain", ..) => draft.note(
                directive.line,
                format!("server {} … drain", directive.first()),
                "plimsoll drain does that while it runs",
            ),
            _ => draft.note(
                directive.line,
                format!("server {} … {word}", directive.first()),
                "there is nothing like it here",
            ),
        }
    }
    if is_down {
        draft.note(directive.line, directive.text(), "it is down");
        return None;
    }
    if is_resolved {
        if server.backup {
            draft.note(
                directive.line,
                directive.text(),
                "there are spares only behind one member (strategy first_available)",
            );
            return None;
        }
        group.dns.push(server.member.address.clone());
        if server.member.capacity != 1.0 || server.member.limit.is_some() {
            let reason =
                "members that are found by a name have no weights, and the max_connections of the group";
            draft.note(directive.line, directive.text(), reason);
        }
    }
    server.resolves_name = is_resolved;
    Some(server)
}

/// Separates the spares, and applies the settings that are the group's here.
fn apply_servers(group: &mut DraftGroup, servers: Vec<UpstreamServer>, draft: &mut ImportDraft) {
    let (backups, mut active): (Vec<UpstreamServer>, Vec<UpstreamServer>) =
        servers.into_iter().partition(|server| server.backup);
    if active.len() <= 1 && !backups.is_empty() && !active.iter().any(|server| server.resolves_name) {
        if let Some(first_active) = active.first().filter(|first_active| first_active.member.limit.is_some())
        {
            let reason = "what is more than max_conns goes to the spare, too";
            draft.note(first_active.line, first_active.text.clone(), reason);
        }
        if let [_, extra_backups @ ..] = backups.as_slice() {
            for extra_backup in extra_backups {
                let reason = "spares get work one after the other, and not in turn";
                draft.note(extra_backup.line, extra_backup.text.clone(), reason);
            }
        }
        group.strategy = DraftStrategy::FirstAvailable;
        active.extend(backups);
    } else {
        for backup_server in backups {
            draft.note(
                backup_server.line,
                backup_server.text,
                "there are spares only behind one member (strategy first_available)",
            );
        }
    }
    if let Some(first_active) = active.first() {
        if let Some(max_fails) = first_active.max_fails {
            group.ejection = Some((max_fails, first_active.fail_timeout));
        }
        group.slow_start = first_active.slow_start;
        let failure_settings =
            |server: &UpstreamServer| (server.max_fails, server.fail_timeout, server.slow_start);
        for server in
            active.iter().filter(|server| failure_settings(server) != failure_settings(first_active))
        {
            draft.note(
                server.line,
                server.text.clone(),
                "max_fails, fail_timeout and slow_start are of the group: as the first server has them",
            );
        }
        if first_active.max_fails.is_none() && first_active.fail_timeout.is_some() {
            let reason = "fail_timeout without max_fails is for one failure: write consecutive and \
                ejection in [group.outlier]";
            draft.note(first_active.line, first_active.text.clone(), reason);
        }
    }
    if group.strategy == DraftStrategy::FirstAvailable {
        active.iter_mut().for_each(|server| server.member.capacity = 1.0);
    }
    let members = active.into_iter().filter(|server| !server.resolves_name);
    group.members.extend(members.map(|server| server.member));
}
