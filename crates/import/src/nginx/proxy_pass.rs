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
    outer_directives: &[&NginxDirective],
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Option<ProxyTarget> {
    if let Some(proxy_pass) = block.iter().find(|directive| directive.name == "proxy_pass") {
        let reason = "it is a server of stream: put this text into stream { … }";
        draft.note_as(LossClass::Changed, proxy_pass.line, server.text(), reason);
        return None;
    }
    let mut root_location = None;
    for candidate in block.iter().filter(|candidate| candidate.name == "location") {
        let is_root = candidate.args == ["/"] || candidate.args == ["^~", "/"];
        if is_root && root_location.is_none() {
            root_location = Some(*candidate);
        } else {
            let reason = "everything that a listener gets goes to one group: paths are not told apart";
            draft.note_as(access_rules::class(candidate), candidate.line, candidate.text(), reason);
            for rule in access_rules::block_rules(candidate) {
                let reason = "an access rule for a path: paths are not told apart";
                draft.note_as(LossClass::Security, rule.line, rule.text, reason);
            }
            candidate.mark_all_used();
        }
    }
    let Some(location) = root_location else {
        draft.note(server.line, server.text(), "it has no location / that sends everything to one place");
        return None;
    };
    let location_directives: Vec<&NginxDirective> = location.block.iter().flatten().collect();
    location.mark_used();
    let scope = DirectiveScope { levels: [&location_directives, block, outer_directives] };
    let Some(proxy_pass) =
        location_directives.iter().find(|directive| ["proxy_pass", "grpc_pass"].contains(&&*directive.name))
    else {
        draft.note(location.line, location.text(), "it sends nothing to a member (proxy_pass, grpc_pass)");
        return None;
    };
    proxy_pass.mark_used();
    let (scheme, rest) = proxy_pass.first().split_once("://").unwrap_or_else(|| ("http", proxy_pass.first()));
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
    if !path.is_empty() {
        draft.note(proxy_pass.line, proxy_pass.text(), "paths are passed on as they are");
    }
    let grpc = proxy_pass.name == "grpc_pass";
    let is_tls = ["https", "grpcs"].contains(&scheme);
    mark_defaults(&scope);
    let time_of = |http: &str, grpc_name: &str| scope.time(if grpc { grpc_name } else { http });
    let connection_settings = ConnectionSettings {
        connect: time_of("proxy_connect_timeout", "grpc_connect_timeout"),
        idle: time_of("proxy_read_timeout", "grpc_read_timeout"),
        attempts: max_attempts(&scope),
        tls: is_tls.then(|| scope.member_tls(host)),
        h2: grpc,
        send_proxy: None,
    };
    let default_port = if is_tls { 443 } else { 80 };
    let group = group(proxy_pass, host, Some(default_port), connection_settings, upstreams, draft)?;
    let forwarded = read_header_fields(proxy_pass, &scope, draft);
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
    let Some(proxy_pass) = scope.find("proxy_pass") else {
        draft.note(server.line, server.text(), "it sends nothing to a member (proxy_pass)");
        return None;
    };
    let connection_settings = ConnectionSettings {
        connect: scope.time("proxy_connect_timeout"),
        idle: None,
        attempts: max_attempts(scope),
        tls: scope.is_on("proxy_ssl").then(|| scope.member_tls(proxy_pass.first())),
        h2: false,
        send_proxy: scope.is_on("proxy_protocol").then_some(1),
    };
    let group = group(proxy_pass, proxy_pass.first(), None, connection_settings, upstreams, draft)?;
    Some(ProxyTarget { group, forwarded: false, timeouts: (None, scope.time("proxy_timeout"), None, None) })
}

/// Returns the time that a connection is kept between requests.
fn keepalive_time(scope: &DirectiveScope<'_>, draft: &mut ImportDraft) -> Option<Duration> {
    let time = scope.time("keepalive_timeout")?;
    if time.is_zero()
        && let Some(directive) = scope.find("keepalive_timeout")
    {
        draft.note(directive.line, directive.text(), "connections are kept until timeouts.idle is over");
        return None;
    }
    Some(time)
}

/// Marks directives that set the behaviour that always holds here.
fn mark_defaults(scope: &DirectiveScope<'_>) {
    for (name, equal_name) in
        [("proxy_send_timeout", "proxy_read_timeout"), ("grpc_send_timeout", "grpc_read_timeout")]
    {
        if scope.has_equal_values(name, equal_name) {
            scope.find(name);
        }
    }
    if scope.has_value("proxy_http_version", "1.1") {
        scope.find("proxy_http_version");
    }
}

/// Returns the tries after the first; NGINX's number includes that one, and 0 is no limit.
fn max_attempts(scope: &DirectiveScope<'_>) -> Option<u64> {
    if scope.has_value("proxy_next_upstream", "off") {
        scope.find("proxy_next_upstream");
        scope.find("proxy_next_upstream_tries");
        return Some(0);
    }
    scope.number("proxy_next_upstream_tries")?.checked_sub(1)
}

/// Returns the group of a name or an address, with its settings here; the first to set something counts.
fn group(
    proxy_pass: &NginxDirective,
    host: &str,
    default_port: Option<u16>,
    connection_settings: ConnectionSettings,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Option<String> {
    if !upstreams.groups.contains_key(host) {
        let Some(address) = value::member(host, default_port) else {
            draft.note(
                proxy_pass.line,
                proxy_pass.text(),
                "there is no upstream of this name, and it is no host with a port",
            );
            return None;
        };
        let mut group = upstream::single(proxy_pass.line, &address);
        if upstreams.groups.values().any(|existing| existing.name == group.name) {
            group.name = value::name(&format!("{}-alone", group.name));
        }
        upstreams.groups.insert(host.to_owned(), group);
    }
    let key = reached_group(host, &connection_settings, upstreams)?;
    let is_first = upstreams.configured_keys.insert(key.clone());
    let group = upstreams.groups.get_mut(&key)?;
    let now = ConnectionSettings {
        connect: group.connect,
        idle: group.idle,
        attempts: group.attempts,
        tls: group.tls.clone(),
        h2: group.h2,
        send_proxy: group.send_proxy,
    };
    if is_first {
        (group.connect, group.idle, group.attempts) =
            (connection_settings.connect, connection_settings.idle, connection_settings.attempts);
        (group.tls, group.h2, group.send_proxy) =
            (connection_settings.tls, connection_settings.h2, connection_settings.send_proxy);
    } else if now != connection_settings {
        let reason = "times and tries are of the group: as the first server that sends there has them";
        draft.note(proxy_pass.line, proxy_pass.text(), reason);
    }
    Some(group.name.clone())
}

/// Returns the key of the group whose members are reached in this way: itself, or another one with the same
/// members.
fn reached_group(
    host: &str,
    connection_settings: &ConnectionSettings,
    upstreams: &mut UpstreamGroups,
) -> Option<String> {
    let variant_of = |tls: &Option<DraftMemberTls>, h2: bool, proxy: Option<u8>| (tls.clone(), h2, proxy);
    let variant =
        variant_of(&connection_settings.tls, connection_settings.h2, connection_settings.send_proxy);
    for suffix_number in 0.. {
        // No name in the text has a space.
        let key = if suffix_number == 0 { host.to_owned() } else { format!("{host} {suffix_number}") };
        let Some(group) = upstreams.groups.get(&key) else {
            let mut copied_group = upstreams.groups.get(host)?.clone();
            let variant_name = match variant {
                (Some(_), ..) => "tls",
                (_, true, _) => "h2",
                (.., Some(_)) => "proxy",
                _ => "plain",
            };
            let mut name = value::name(&format!("{}-{variant_name}", copied_group.name));
            while upstreams.groups.values().any(|existing| existing.name == name) {
                name = value::name(&format!("{name}-{suffix_number}"));
            }
            copied_group.name = name;
            upstreams.groups.insert(key.clone(), copied_group);
            return Some(key);
        };
        if !upstreams.configured_keys.contains(&key)
            || variant_of(&group.tls, group.h2, group.send_proxy) == variant
        {
            return Some(key);
        }
    }
    None
}

/// Reads the fields that requests get on their way; returns `true` if members get the client's address.
fn read_header_fields(
    proxy_pass: &NginxDirective,
    scope: &DirectiveScope<'_>,
    draft: &mut ImportDraft,
) -> bool {
    let (mut forwarded, mut sets_host) = (false, false);
    for header_field in
        scope.all(if proxy_pass.name == "grpc_pass" { "grpc_set_header" } else { "proxy_set_header" })
    {
        let value = header_field.args.get(1).map_or("", String::as_str);
        match (header_field.first().to_ascii_lowercase().as_str(), value) {
            ("host", "$host" | "$http_host" | "$host:$server_port") => sets_host = true,
            ("host", _) => {
                sets_host = true;
                draft.note(
                    header_field.line,
                    header_field.text(),
                    "members get the Host that the client asked for",
                );
            }
            ("x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host", value) if value.contains('$') => {
                forwarded = true;
            }
            ("x-real-ip", _) => {
                forwarded = true;
                draft.note(header_field.line, header_field.text(), "X-Forwarded-For says it");
            }
            // These fields are of one hop: the client's values are passed on as far as possible.
            ("upgrade", _) => {}
            ("connection", value) if !value.eq_ignore_ascii_case("close") => {}
            _ => draft.note(
                header_field.line,
                header_field.text(),
                "there are no rules on single requests here",
            ),
        }
    }
    if !sets_host {
        draft.note(
            proxy_pass.line,
            proxy_pass.text(),
            "members get the Host that the client asked for, and not the name that stands here",
        );
    }
    forwarded
}
