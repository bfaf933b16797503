//! Checks of the sections against one another. The schema has checked each by itself before.
//!
//! A check stays silent if it would have to guess a value that was left out because it was wrong: one mistake
//! is one error.

use std::collections::HashMap;
use std::net::SocketAddr;

use plimsoll_brain::StrategyParams;

use super::diagnostic::{ConfigDiagnostic, quoted};
use super::spans::SpanTree;
use super::{
    BindingMode, Config, GroupConfig, ListenerConfig, ListenerProtocol, MemberProtocol, OutlierConfig,
    RebindMode, TimeSpan, acme, admin_endpoints, affinity, discover, drain_hook, expression, fleet, group,
    health, monitor, route, scaler, store, suggest, tls, trace, xds,
};

/// Adds the problems to `found`; the places are those of `text`.
pub(super) fn check(
    config: &Config,
    root_spans: &SpanTree,
    text: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let has_open_groups =
        lends_members(config) || config.admin.control.tls().is_some() || config.shares_config();
    if config.listeners.is_empty()
        && !has_open_groups
        && !root_spans.is_broken("listener")
        && !root_spans.is_broken("admin")
    {
        let problem = ConfigDiagnostic::error(
            root_spans.key("listener").value_span(),
            "no [[listener]]: nothing would be served",
        );
        let hint = match config.admin.reports.0 {
            None => "add [[listener]] with an address and a group, or [admin] reports to lend members",
            Some(_) => "add [[listener]] with an address and a group, or take out `leases = false`",
        };
        diagnostics.push(problem.hint(hint));
    }
    let groups = root_spans.key("group");
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, group) in config.groups.iter().enumerate() {
        let spans = groups.item(index);
        match names.get(group.name.0.as_str()) {
            Some(first) => diagnostics.push(
                ConfigDiagnostic::error(
                    spans.key("name").value_span(),
                    format!("a second group named `{}`", group.name),
                )
                .with_related(groups.item(*first).key("name").value_span(), "the first is here"),
            ),
            None => drop(names.insert(&group.name.0, index)),
        }
        check_group(group, spans, text, diagnostics);
    }
    check_addresses(config, root_spans, diagnostics);
    if let Some(tracing) = &config.tracing {
        trace::check(tracing, root_spans.key("tracing"), diagnostics);
    }
    fleet::check(config, root_spans, diagnostics);
    admin_endpoints::check(&config.admin.control_section(), root_spans.key("admin"), diagnostics);
    acme::check(config, root_spans, diagnostics);
    store::check(config, root_spans, diagnostics);
    for (index, listener) in config.listeners.iter().enumerate() {
        let spans = root_spans.key("listener").item(index);
        check_listener(listener, spans, diagnostics);
        if listener.main_group().is_none() && config.groups.is_empty() && !root_spans.is_broken("group") {
            let message = "the answers of this listener count at a group, and the file has no [[group]]";
            let problem = ConfigDiagnostic::error(spans.value_span(), message);
            diagnostics.push(problem.hint("add a [[group]], even if no request goes there"));
        }
        let tls_name = listener.tls.iter().flat_map(|tls| tls.names.iter().map(|tls_name| &tls_name.group));
        let name_spans = |name_index| spans.key("tls").key("names").item(name_index).key("group");
        let tls_groups = tls_name.enumerate().map(|(name_index, group)| (group, name_spans(name_index)));
        let other_groups = listener.groups.iter().enumerate();
        let more_groups =
            other_groups.map(|(group_index, group)| (group, spans.key("groups").item(group_index)));
        let own_group = listener.group.iter().map(|group| (group, spans.key("group")));
        let route_groups = route::groups(listener, spans);
        for (group, group_spans) in own_group.chain(tls_groups).chain(more_groups).chain(route_groups) {
            match names.get(group.0.as_str()) {
                Some(index) => {
                    check_pair(listener, spans, &config.groups[*index], groups.item(*index), diagnostics)
                }
                None if root_spans.is_broken("group") => {}
                None => {
                    let group_names: Vec<&str> =
                        config.groups.iter().map(|group| group.name.0.as_str()).collect();
                    let hint = match group_names.as_slice() {
                        [] => format!("add [[group]] with name = \"{group}\""),
                        group_names => suggest::hint(&group.0, group_names).replace("allowed:", "groups:"),
                    };
                    let message = format!("there is no group named `{group}`");
                    diagnostics.push(ConfigDiagnostic::error(group_spans.value_span(), message).hint(hint));
                }
            }
        }
    }
    if root_spans.is_broken("listener") {
        return;
    }
    for (index, group) in config.groups.iter().enumerate() {
        if !config.listeners.iter().any(|listener| listener.leads_to(&group.name))
            && !config.listeners.is_empty()
            && !lends_members(config)
        {
            let message = format!("no listener sends clients to group `{}`", group.name);
            diagnostics.push(ConfigDiagnostic::warning(groups.item(index).key("name").value_span(), message));
        }
    }
}

/// Returns `true` if members are lent by leases: then a group can be used without a listener, too.
fn lends_members(config: &Config) -> bool {
    config.admin.reports.0.is_some() && config.admin.leases
}

/// Checks that no address is used twice.
fn check_addresses(config: &Config, root_spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let listeners = root_spans.key("listener");
    let mut listeners_by_address: HashMap<(SocketAddr, &str), usize> = HashMap::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let spans = listeners.item(index);
        if listener.address.0.port() == 0 || spans.is_broken("protocol") {
            continue;
        }
        let socket_key = (listener.address.0, listener.protocol.transport());
        match listeners_by_address.get(&socket_key) {
            Some(first) => diagnostics.push(
                ConfigDiagnostic::error(
                    spans.key("address").value_span(),
                    format!("a second listener on {} ({})", listener.address, listener.protocol.transport()),
                )
                .with_related(listeners.item(*first).key("address").value_span(), "the first is here"),
            ),
            None => drop(listeners_by_address.insert(socket_key, index)),
        }
    }
    let admin = root_spans.key("admin");
    for (key, address) in [
        ("listen", config.admin.listen.0),
        ("reports", config.admin.reports.0),
        ("load_manager", config.admin.load_manager.0),
        ("control", config.admin.control.tls()),
    ] {
        if let Some(address) = address
            && let Some(index) = listeners_by_address.get(&(address, "tcp"))
        {
            let span = listeners.item(*index).key("address").value_span();
            let message = format!("{address} is also the address of the admin side");
            let hint = format!("move one of them, or set {key} = \"off\" in [admin]");
            let mut problem = ConfigDiagnostic::error(span, message).hint(hint);
            if admin.has_key(key) {
                problem = problem.with_related(admin.key(key).value_span(), "here");
            }
            diagnostics.push(problem);
        }
    }
    let admin_addresses = [
        ("listen", config.admin.listen.0, "9900"),
        ("reports", config.admin.reports.0, "9901"),
        ("load_manager", config.admin.load_manager.0, "9904"),
        ("control", config.admin.control.tls(), "9905"),
    ];
    for (admin_index, (key, address, port)) in admin_addresses.into_iter().enumerate() {
        let has_same_address = |candidate: &&(&str, Option<SocketAddr>, &str)| {
            address.is_some_and(|address| address.port() != 0) && candidate.1 == address
        };
        if let Some((other_key, ..)) = admin_addresses[..admin_index].iter().find(has_same_address) {
            let message = format!("`{key}` is also the address of `{other_key}`");
            let problem = ConfigDiagnostic::error(admin.key(key).value_span(), message);
            diagnostics.push(problem.hint(format!("give it a port of its own, such as {port}")));
        }
    }
}

fn check_listener(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if spans.is_broken("protocol") {
        return;
    }
    let protocol = listener.protocol;
    check_binding(listener, spans, diagnostics);
    affinity::check(listener, spans, diagnostics);
    tls::check(listener, spans, diagnostics);
    xds::check(listener, spans, diagnostics);
    route::check(listener, spans, diagnostics);
    if protocol == ListenerProtocol::Dns && listener.domain.is_none() && !spans.is_broken("domain") {
        let problem = ConfigDiagnostic::error(
            spans.value_span(),
            "a dns listener needs the `domain` that stands for its group",
        );
        diagnostics.push(problem.hint("add domain = \"web.example.\""));
    }
    if listener.ttl.0.subsec_nanos() != 0 {
        diagnostics.push(ConfigDiagnostic::error(
            spans.key("ttl").value_span(),
            "`ttl` is a whole number of seconds",
        ));
    }
    if listener.accept_proxy && matches!(protocol, ListenerProtocol::Udp | ListenerProtocol::Dns) {
        let message = format!("accept_proxy is not supported for {}", protocol.name());
        diagnostics
            .push(ConfigDiagnostic::error(spans.key_span("accept_proxy"), message).hint("take it out"));
    }
    let mut idle = |table: &SpanTree, key: &str, expected_protocols: &[ListenerProtocol]| {
        if table.has_key(key) && !expected_protocols.contains(&protocol) {
            let message = format!("`{key}` has no effect: this listener speaks {}", protocol.name());
            diagnostics.push(ConfigDiagnostic::warning(table.key_span(key), message));
        }
    };
    for key in ["forwarded", "half_close", "trusted", "max_header_bytes", "priority", "upgrades"] {
        idle(spans, key, &[ListenerProtocol::Http, ListenerProtocol::Https]);
    }
    let streams = [
        ListenerProtocol::Http,
        ListenerProtocol::Https,
        ListenerProtocol::Tcp,
        ListenerProtocol::Iiop,
        ListenerProtocol::Dns,
        ListenerProtocol::Xds,
    ];
    idle(spans, "backlog", &streams);
    idle(spans, "groups", &[ListenerProtocol::Xds]);
    idle(spans, "domain", &[ListenerProtocol::Dns]);
    for key in ["ttl", "answer_rate", "answer_slip"] {
        idle(spans, key, &[ListenerProtocol::Dns]);
    }
    idle(spans, "public", &[ListenerProtocol::Iiop]);
    idle(spans, "max_flows", &[ListenerProtocol::Udp]);
    idle(spans, "rebind_idle", &[ListenerProtocol::Tcp]);
    if spans.has_key("timeouts") {
        let spans = spans.key("timeouts");
        idle(spans, "head", &[ListenerProtocol::Http, ListenerProtocol::Https, ListenerProtocol::Xds]);
        idle(
            spans,
            "body",
            &[ListenerProtocol::Http, ListenerProtocol::Https, ListenerProtocol::Iiop, ListenerProtocol::Xds],
        );
        idle(spans, "tunnel", &[ListenerProtocol::Http, ListenerProtocol::Https]);
    }
}

/// The strategy of a group whose members come from a lottery.
pub(super) const LOTTERY: &str = "lottery";

/// Checks a group whose members and their shares come from a lottery.
fn check_lottery(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if spans.has_key("members") {
        let problem =
            ConfigDiagnostic::error(spans.key_span("members"), "either `members` or `lottery`, not both");
        diagnostics
            .push(problem.with_related(spans.key_span("lottery"), "its members are those that are drawn"));
    }
    if spans.has_key("strategy") && !spans.is_broken("strategy") && group.strategy.name() != LOTTERY {
        let message = "members of a lottery are chosen as often as the lottery draws them";
        let problem = ConfigDiagnostic::error(spans.key_span("strategy"), message);
        diagnostics.push(problem.hint("take it out, or write strategy = \"lottery\""));
    }
}

fn check_binding(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if spans.is_broken("binding") {
        return;
    }
    let protocol = listener.protocol;
    let binding = listener.binding.unwrap_or_else(|| protocol.binding());
    if binding != BindingMode::PerRequest && protocol == ListenerProtocol::Dns {
        let message = "clients of a dns listener are not bound: each question is a choice";
        diagnostics
            .push(ConfigDiagnostic::error(spans.key("binding").value_span(), message).hint("take it out"));
        return;
    }
    if binding == BindingMode::PerRequest && matches!(protocol, ListenerProtocol::Tcp | ListenerProtocol::Udp)
    {
        let message = format!("binding `{}` is not supported for {}", binding.name(), protocol.name());
        let hint = format!("{} can be bound per_session or on_demand", protocol.name());
        diagnostics.push(ConfigDiagnostic::error(spans.key("binding").value_span(), message).hint(hint));
        return;
    }
    for key in ["rebind", "rebind_idle"].into_iter().filter(|key| spans.has_key(key)) {
        if binding != BindingMode::OnDemand {
            let message = format!("`{key}` has no effect: clients are bound {}", binding.name());
            let problem = ConfigDiagnostic::warning(spans.key_span(key), message);
            diagnostics.push(problem.hint("it is for binding = \"on_demand\""));
        }
    }
    if !protocol.is_http() && matches!(listener.rebind, RebindMode::Close | RebindMode::Redirect) {
        let rebind = listener.rebind.name();
        let message = format!("rebind `{rebind}` is not supported for {}", protocol.name());
        let problem = ConfigDiagnostic::error(spans.key("rebind").value_span(), message);
        diagnostics.push(problem.hint("silent and agent are"));
    }
}

fn check_group(group: &GroupConfig, spans: &SpanTree, text: &str, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let members = spans.key("members");
    if group.lottery.is_some() {
        check_lottery(group, spans, diagnostics);
    }
    discover::check(group, spans, diagnostics);
    scaler::check(group, spans, diagnostics);
    drain_hook::check(group, spans, diagnostics);
    tls::check_members(group, spans, diagnostics);
    if spans.has_key("members") && group.members.is_empty() && !spans.is_broken("members") {
        diagnostics.push(ConfigDiagnostic::error(
            members.value_span(),
            format!("group `{}` has no members", group.name),
        ));
    }
    let mut first_addresses = HashMap::new();
    let mut members_by_location = HashMap::new();
    let address_spans =
        |spans: &'_ SpanTree| spans.key(if spans.has_key("ior") { "ior" } else { "address" }).clone();
    for (index, member) in group.members.iter().enumerate() {
        let spans = members.item(index);
        let Some(address) = member.address() else {
            if !spans.is_broken("address") && !spans.is_broken("ior") {
                let problem = ConfigDiagnostic::error(spans.value_span(), "a member without an `address`");
                diagnostics.push(problem.hint("write \"host:port\", or its object reference as `ior`"));
            }
            continue;
        };
        match first_addresses.get(address) {
            Some(other_index) => {
                let message = format!("member {address} is in group `{}` twice", group.name);
                let other_span = address_spans(members.item(*other_index)).value_span();
                diagnostics.push(
                    ConfigDiagnostic::error(address_spans(spans).value_span(), message)
                        .with_related(other_span, "the first is here"),
                );
            }
            None => drop(first_addresses.insert(address, index)),
        }
        if let Some(location) = member.table().location {
            if let Some(other_index) = members_by_location.get(&location) {
                let message = format!("a second member at `{location}` in group `{}`", group.name);
                let other_span = members.item(*other_index).key("location").value_span();
                let problem = ConfigDiagnostic::error(spans.key("location").value_span(), message);
                diagnostics.push(problem.with_related(other_span, "the first is here"));
            } else {
                members_by_location.insert(location, index);
            }
        }
        for key in ["address", "key"].into_iter().filter(|key| spans.has_key("ior") && spans.has_key(key)) {
            let message = format!("either `ior` or `{key}`, not both");
            let problem = ConfigDiagnostic::error(spans.key_span(key), message);
            diagnostics.push(problem.with_related(spans.key_span("ior"), "this says where the object is"));
        }
    }
    if let Some((strategy, params)) = group.strategy.find().filter(|_| group.lottery.is_none()) {
        check_params(strategy, &params, spans.key("strategy"), diagnostics);
        if strategy.reads_load && !usable_without_loads(strategy) && group.monitor.is_none() {
            let message = format!("strategy `{}` has no loads to go by: no [group.monitor]", strategy.name);
            let hint = "say where members' load comes from, such as { source = \"push\", metric = \"cpu\" }";
            diagnostics
                .push(ConfigDiagnostic::warning(spans.key("strategy").value_span(), message).hint(hint));
        }
        group::check(group, strategy, spans, diagnostics);
    } else if !spans.is_broken("strategy") && group.lottery.is_none() {
        let message = format!("unknown strategy {}", quoted(group.strategy.name()));
        diagnostics.push(ConfigDiagnostic::error(spans.key("strategy").value_span(), message));
    }
    if let Some(health) = &group.health {
        health::check(health, spans.key("health"), "[group.health]", health::GROUP_CHECK_HINT, diagnostics);
    }
    expression::check_weight(group, spans, text, diagnostics);
    if let Some(monitor) = &group.monitor {
        monitor::check(monitor, spans.key("monitor"), text, diagnostics);
        if monitor.source.streams() && group.tls.is_some() && monitor.port.is_none() {
            let message =
                "members are asked for reports without TLS, and are reached by TLS at their own port";
            let problem = ConfigDiagnostic::error(spans.key("monitor").key("source").value_span(), message);
            diagnostics.push(problem.hint("give `port`: one of theirs that serves the same without TLS"));
        }
    }
    check_timeouts(group, spans.key("timeouts"), diagnostics);
    health::check_protocol(group, spans, diagnostics);
    if let OutlierConfig::Table(outlier) = &group.outlier
        && spans.has_key("outlier")
    {
        let (outlier_span, spans) = (spans.key_span("outlier"), spans.key("outlier"));
        check_not_longer(
            spans,
            ("ejection", outlier.ejection),
            ("max_ejection", outlier.max_ejection),
            diagnostics,
        );
        if outlier.consecutive == 0 && outlier.deviations == 0.0 {
            let message = "both `consecutive` and `deviations` are 0: no member would ever be ejected";
            diagnostics.push(ConfigDiagnostic::warning(outlier_span, message).hint("write outlier = false"));
        }
    }
}

/// Checks for settings that contradict one another.
fn check_params(
    strategy: &plimsoll_brain::Strategy,
    params: &StrategyParams,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let Some(conflict) = (strategy.conflict)(params) else { return };
    let spans = spans.key(strategy.name);
    let is_written = |param: &&str| spans.has_key(param);
    let other_param = conflict.conflicts_with.filter(is_written);
    let param = Some(conflict.param).filter(is_written).or(other_param);
    let span = param.map_or_else(|| spans.value_span(), |param| spans.key(param).value_span());
    let mut problem = ConfigDiagnostic::error(span, conflict.why).hint(conflict.hint);
    if let Some(other_param) = other_param.filter(|other_param| Some(*other_param) != param) {
        problem = problem.with_related(spans.key(other_param).value_span(), "here");
    }
    diagnostics.push(problem);
}

/// Returns `true` if the strategy has a substitute for members that report nothing.
fn usable_without_loads(strategy: &plimsoll_brain::Strategy) -> bool {
    strategy.name == "weighted_round_robin" || strategy.name == plimsoll_brain::strategy::EXPRESSION.name
}

fn check_timeouts(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let timeouts = &group.timeouts;
    let total_timeout = timeouts.total;
    if total_timeout.0.is_zero() {
        return;
    }
    for (key, value) in [("connect", timeouts.connect), ("per_try", timeouts.per_try)] {
        check_not_longer(spans, (key, value), ("total", total_timeout), diagnostics);
    }
}

/// Checks that the first is not longer than the second.
fn check_not_longer(
    spans: &SpanTree,
    (lower_key, lower): (&str, TimeSpan),
    (upper_key, upper): (&str, TimeSpan),
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    if lower <= upper || spans.is_broken(lower_key) || spans.is_broken(upper_key) {
        return;
    }
    let message = format!("`{lower_key}` ({lower}) must not be longer than `{upper_key}` ({upper})");
    let (key, other_key) =
        if spans.has_key(lower_key) { (lower_key, upper_key) } else { (upper_key, lower_key) };
    let mut problem = ConfigDiagnostic::error(spans.key(key).value_span(), message);
    if spans.has_key(other_key) {
        problem = problem.with_related(spans.key(other_key).value_span(), "here");
    } else {
        problem = problem.hint(format!("`{other_key}` is at its default"));
    }
    diagnostics.push(problem);
}

/// Checks a listener and its group against one another.
fn check_pair(
    listener: &ListenerConfig,
    listener_spans: &SpanTree,
    group: &GroupConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    use plimsoll_proxy::HashKeySource;
    if listener_spans.is_broken("protocol") {
        return;
    }
    let protocol = listener.protocol;
    // DNS and xDS only name members, which clients reach on another way.
    if !matches!(protocol, ListenerProtocol::Dns | ListenerProtocol::Xds) {
        check_not_own_member(listener, listener_spans, group, spans, diagnostics);
    }
    let is_on_demand = listener.binding == Some(BindingMode::OnDemand);
    if is_on_demand && group.monitor.is_none() {
        let message = format!("nobody will be under alert: group `{}` has no [group.monitor]", group.name);
        let hint = "say where its members' load comes from, such as { source = \"push\", metric = \"cpu\" }";
        diagnostics
            .push(ConfigDiagnostic::warning(listener_spans.key("binding").value_span(), message).hint(hint));
    }
    if is_on_demand && protocol.is_http() && listener.rebind == RebindMode::Redirect {
        let unpublished =
            group.members.iter().enumerate().filter(|(_, member)| member.table().public.is_none());
        let unpublished_members: Vec<(usize, String)> =
            unpublished.map(|(index, member)| (index, member.name())).collect();
        if let Some((first, name)) = unpublished_members.first() {
            let message = match &unpublished_members[1..] {
                [] => format!("clients cannot be sent to member {name}: it has no `public` address"),
                other_members => format!(
                    "clients cannot be sent to {} members, {name}{}: they have no `public` address",
                    unpublished_members.len(),
                    abbreviated_list(other_members.iter().map(|(_, name)| name.as_str())),
                ),
            };
            let problem = ConfigDiagnostic::warning(listener_spans.key("rebind").value_span(), message);
            let member_span = spans.key("members").item(*first).value_span();
            diagnostics.push(
                problem
                    .with_related(member_span, "here")
                    .hint("sessions that go there stay behind this listener"),
            );
        }
    }
    if is_on_demand
        && protocol.is_http()
        && listener.rebind == RebindMode::Agent
        && group.protocol == MemberProtocol::H2
    {
        let message = format!(
            "clients that come through this listener stay with their members: group `{}` speaks h2, where \
             one connection has the \
             requests of many clients, and a member cannot send one of them away by closing it",
            group.name
        );
        let problem = ConfigDiagnostic::warning(listener_spans.key("rebind").value_span(), message);
        let protocol_span = spans.key("protocol").value_span();
        diagnostics
            .push(problem.with_related(protocol_span, "here").hint("silent, close and redirect move them"));
    }
    if let (ListenerProtocol::Iiop, Some(health)) = (protocol, &group.health)
        && health.http.is_some()
    {
        let message = format!("group `{}` is checked by http, and its clients speak iiop", group.name);
        let hint =
            "iiop = true asks members for their objects; leave it if they do answer http on the same port";
        let probe_span = spans.key("health").key("http").value_span();
        diagnostics.push(ConfigDiagnostic::warning(probe_span, message).hint(hint));
    }
    if protocol == ListenerProtocol::Iiop && !group.discover.is_empty() {
        let message = format!("members of group `{}` are found, and have no objects", group.name);
        let problem = ConfigDiagnostic::error(listener_spans.key("protocol").value_span(), message);
        diagnostics
            .push(problem.hint("list them with their objects, or let them register at the load manager"));
    }
    let reads_key = group.strategy.find().is_some_and(|(strategy, _)| strategy.reads_key);
    if !protocol.is_http() && reads_key && group.key.0 != HashKeySource::Client {
        let message = format!(
            "group `{}` takes its key from `{}`, which {} does not have",
            group.name,
            group.key,
            protocol.name()
        );
        let hint = match protocol {
            ListenerProtocol::Xds => "clients of this listener choose by weight",
            _ => "clients of this listener are told apart by their address",
        };
        diagnostics.push(
            ConfigDiagnostic::warning(listener_spans.key("group").value_span(), message)
                .hint(hint)
                .with_related(spans.key("key").value_span(), "here"),
        );
    }
    if protocol == ListenerProtocol::Udp && group.send_proxy.is_some() {
        let message = format!("`send_proxy` has no effect for the udp listener on {}", listener.address);
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span("send_proxy"), message));
    }
}

/// Checks that no listener is its own member: it would pass each client to itself until all connections are
/// used up.
fn check_not_own_member(
    listener: &ListenerConfig,
    listener_spans: &SpanTree,
    group: &GroupConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    for (index, member) in group.members.iter().enumerate() {
        if let Some(address) = member.address().filter(|address| address.is_at(listener.address.0)) {
            let message = format!("member {address} is the listener on {} itself", listener.address);
            let address_span = spans.key("members").item(index).key("address").value_span();
            let problem = ConfigDiagnostic::error(address_span, message)
                .hint("write where the server is, or listen elsewhere");
            diagnostics.push(
                problem.with_related(listener_spans.key("address").value_span(), "the listener is here"),
            );
        }
    }
}

/// Returns the names in one line: `, b:1, c:1 and 2 more`
fn abbreviated_list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 7;
    let omitted_count = names.len().saturating_sub(SHOWN);
    let mut listing: String = names.take(SHOWN).flat_map(|name| [", ", name]).collect();
    if omitted_count > 0 {
        listing += &format!(" and {omitted_count} more");
    }
    listing
}
