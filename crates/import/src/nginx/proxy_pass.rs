//! The target of a server: its one `proxy_pass`, and the directives beside it.

use std::time::Duration;

use super::super::intermediate::{DraftMemberTls, ImportDraft};
use super::super::loss::LossClass;
use super::super::value;
use super::inheritance::DirectiveScope;
use super::tokenizer::NginxDirective;
use super::{UpstreamGroups, access_rules, upstream};

/// The timeouts of a listener: head, idle, body, tunnel.
pub(super) type TimeoutSettings = (Option<Duration>, Option<Duration>, Option<Duration>, Option<Duration>);

/// A target.
pub(super) struct ProxyTarget {
    /// The name of the group here.
    pub(super) group: String,
    /// Whether members get the client's address.
    pub(super) forwarded: bool,
    pub(super) timeouts: TimeoutSettings,
}

/// The settings of a place for its group.
#[derive(Clone, Debug, Default, PartialEq)]
struct ConnectionSettings {
    connect: Option<Duration>,
    idle: Option<Duration>,
    attempts: Option<u64>,
    tls: Option<DraftMemberTls>,
    h2: bool,
    send_proxy: Option<u8>,
}

/// Reads the target of a server of `http`: the location `/`.
pub(super) fn of_http(
    server: &NginxDirective,
    block: &[&NginxDirective],
    around: &[&NginxDirective],
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Option<ProxyTarget> {
    if let Some(pass) = block.iter().find(|one| one.name == "proxy_pass") {
        let why = "it is a server of stream: put this text into stream { … }";
        draft.note_as(LossClass::Changed, pass.line, server.text(), why);
        return None;
    }
    let mut all = None;
    for one in block.iter().filter(|one| one.name == "location") {
        let whole = one.args == ["/"] || one.args == ["^~", "/"];
        if whole && all.is_none() {
            all = Some(*one);
        } else {
            let why = "everything that a listener gets goes to one group: paths are not told apart";
            draft.note_as(access_rules::class(one), one.line, one.text(), why);
            for rule in access_rules::block_rules(one) {
                let why = "an access rule for a path: paths are not told apart";
                draft.note_as(LossClass::Security, rule.line, rule.text, why);
            }
            one.mark_all_used();
        }
    }
    let Some(location) = all else {
        draft.note(server.line, server.text(), "it has no location / that sends everything to one place");
        return None;
    };
    let inner: Vec<&NginxDirective> = location.block.iter().flatten().collect();
    location.mark_used();
    let scope = DirectiveScope { levels: [&inner, block, around] };
    let Some(pass) = inner.iter().find(|one| ["proxy_pass", "grpc_pass"].contains(&&*one.name)) else {
        draft.note(location.line, location.text(), "it sends nothing to a member (proxy_pass, grpc_pass)");
        return None;
    };
    pass.mark_used();
    let (scheme, rest) = pass.first().split_once("://").unwrap_or_else(|| ("http", pass.first()));
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
    if !path.is_empty() {
        draft.note(pass.line, pass.text(), "paths are passed on as they are");
    }
    let grpc = pass.name == "grpc_pass";
    let secure = ["https", "grpcs"].contains(&scheme);
    mark_defaults(&scope);
    let of = |http: &str, grpc_name: &str| scope.time(if grpc { grpc_name } else { http });
    let said = ConnectionSettings {
        connect: of("proxy_connect_timeout", "grpc_connect_timeout"),
        idle: of("proxy_read_timeout", "grpc_read_timeout"),
        attempts: tries(&scope),
        tls: secure.then(|| scope.member_tls(host)),
        h2: grpc,
        send_proxy: None,
    };
    let usual = if secure { 443 } else { 80 };
    let group = group(pass, host, Some(usual), said, upstreams, draft)?;
    let forwarded = read_header_fields(pass, &scope, draft);
    let timeouts = (
        scope.time("client_header_timeout"),
        keepalive_time(&scope, draft),
        scope.time("client_body_timeout"),
        scope.time("proxy_read_timeout"),
    );
    Some(ProxyTarget { group, forwarded, timeouts })
}

/// Reads the target of a server of `stream`.
pub(super) fn of_stream(
    server: &NginxDirective,
    scope: &DirectiveScope<'_>,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Option<ProxyTarget> {
    let Some(pass) = scope.find("proxy_pass") else {
        draft.note(server.line, server.text(), "it sends nothing to a member (proxy_pass)");
        return None;
    };
    let said = ConnectionSettings {
        connect: scope.time("proxy_connect_timeout"),
        idle: None,
        attempts: tries(scope),
        tls: scope.is_on("proxy_ssl").then(|| scope.member_tls(pass.first())),
        h2: false,
        send_proxy: scope.is_on("proxy_protocol").then_some(1),
    };
    let group = group(pass, pass.first(), None, said, upstreams, draft)?;
    Some(ProxyTarget { group, forwarded: false, timeouts: (None, scope.time("proxy_timeout"), None, None) })
}

/// Returns the time that a connection is kept between requests.
fn keepalive_time(scope: &DirectiveScope<'_>, draft: &mut ImportDraft) -> Option<Duration> {
    let time = scope.time("keepalive_timeout")?;
    if time.is_zero()
        && let Some(one) = scope.find("keepalive_timeout")
    {
        draft.note(one.line, one.text(), "connections are kept until timeouts.idle is over");
        return None;
    }
    Some(time)
}

/// Marks directives that set the behaviour that always holds here.
fn mark_defaults(scope: &DirectiveScope<'_>) {
    for (name, other) in
        [("proxy_send_timeout", "proxy_read_timeout"), ("grpc_send_timeout", "grpc_read_timeout")]
    {
        if scope.has_equal_values(name, other) {
            scope.find(name);
        }
    }
    if scope.has_value("proxy_http_version", "1.1") {
        scope.find("proxy_http_version");
    }
}

/// Returns the tries after the first; NGINX's number includes that one, and 0 is no limit.
fn tries(scope: &DirectiveScope<'_>) -> Option<u64> {
    if scope.has_value("proxy_next_upstream", "off") {
        scope.find("proxy_next_upstream");
        scope.find("proxy_next_upstream_tries");
        return Some(0);
    }
    scope.number("proxy_next_upstream_tries")?.checked_sub(1)
}

/// Returns the group of a name or an address, with its settings here; the first to set something counts.
fn group(
    pass: &NginxDirective,
    host: &str,
    usual: Option<u16>,
    said: ConnectionSettings,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Option<String> {
    if !upstreams.groups.contains_key(host) {
        let Some(address) = value::member(host, usual) else {
            draft.note(
                pass.line,
                pass.text(),
                "there is no upstream of this name, and it is no host with a port",
            );
            return None;
        };
        let mut group = upstream::single(pass.line, &address);
        if upstreams.groups.values().any(|other| other.name == group.name) {
            group.name = value::name(&format!("{}-alone", group.name));
        }
        upstreams.groups.insert(host.to_owned(), group);
    }
    let key = reached_group(host, &said, upstreams)?;
    let first = upstreams.configured.insert(key.clone());
    let group = upstreams.groups.get_mut(&key)?;
    let now = ConnectionSettings {
        connect: group.connect,
        idle: group.idle,
        attempts: group.attempts,
        tls: group.tls.clone(),
        h2: group.h2,
        send_proxy: group.send_proxy,
    };
    if first {
        (group.connect, group.idle, group.attempts) = (said.connect, said.idle, said.attempts);
        (group.tls, group.h2, group.send_proxy) = (said.tls, said.h2, said.send_proxy);
    } else if now != said {
        let why = "times and tries are of the group: as the first server that sends there has them";
        draft.note(pass.line, pass.text(), why);
    }
    Some(group.name.clone())
}

/// Returns the key of the group whose members are reached in this way: itself, or another one with the same
/// members.
fn reached_group(host: &str, said: &ConnectionSettings, upstreams: &mut UpstreamGroups) -> Option<String> {
    let way = |tls: &Option<DraftMemberTls>, h2: bool, proxy: Option<u8>| (tls.clone(), h2, proxy);
    let wanted = way(&said.tls, said.h2, said.send_proxy);
    for number in 0.. {
        // No name in the text has a space.
        let key = if number == 0 { host.to_owned() } else { format!("{host} {number}") };
        let Some(group) = upstreams.groups.get(&key) else {
            let mut other = upstreams.groups.get(host)?.clone();
            let how = match wanted {
                (Some(_), ..) => "tls",
                (_, true, _) => "h2",
                (.., Some(_)) => "proxy",
                _ => "plain",
            };
            let mut name = value::name(&format!("{}-{how}", other.name));
            while upstreams.groups.values().any(|one| one.name == name) {
                name = value::name(&format!("{name}-{number}"));
            }
            other.name = name;
            upstreams.groups.insert(key.clone(), other);
            return Some(key);
        };
        if !upstreams.configured.contains(&key) || way(&group.tls, group.h2, group.send_proxy) == wanted {
            return Some(key);
        }
    }
    None
}

/// Reads the fields that requests get on their way; returns `true` if members get the client's address.
fn read_header_fields(pass: &NginxDirective, scope: &DirectiveScope<'_>, draft: &mut ImportDraft) -> bool {
    let (mut forwarded, mut host) = (false, false);
    for one in scope.all(if pass.name == "grpc_pass" { "grpc_set_header" } else { "proxy_set_header" }) {
        let value = one.args.get(1).map_or("", String::as_str);
        match (one.first().to_ascii_lowercase().as_str(), value) {
            ("host", "$host" | "$http_host" | "$host:$server_port") => host = true,
            ("host", _) => {
                host = true;
                draft.note(one.line, one.text(), "members get the Host that the client asked for");
            }
            ("x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host", value) if value.contains('$') => {
                forwarded = true;
            }
            ("x-real-ip", _) => {
                forwarded = true;
                draft.note(one.line, one.text(), "X-Forwarded-For says it");
            }
            // These fields are of one hop: the client's values are passed on as far as possible.
            ("upgrade", _) => {}
            ("connection", value) if !value.eq_ignore_ascii_case("close") => {}
            _ => draft.note(one.line, one.text(), "there are no rules on single requests here"),
        }
    }
    if !host {
        draft.note(
            pass.line,
            pass.text(),
            "members get the Host that the client asked for, and not the name that stands here",
        );
    }
    forwarded
}
