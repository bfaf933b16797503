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
    health, monitor, scaler, store, suggest, tls, trace, xds,
};

/// Adds the problems to `found`; the places are those of `text`.
pub(super) fn check(config: &Config, spots: &SpanTree, text: &str, found: &mut Vec<ConfigDiagnostic>) {
    let lends = lends_members(config) || config.admin.control.tls().is_some() || config.shares_config();
    if config.listeners.is_empty() && !lends && !spots.is_broken("listener") && !spots.is_broken("admin") {
        let problem = ConfigDiagnostic::error(
            spots.key("listener").value_span(),
            "no [[listener]]: nothing would be served",
        );
        let hint = match config.admin.reports.0 {
            None => "add [[listener]] with an address and a group, or [admin] reports to lend members",
            Some(_) => "add [[listener]] with an address and a group, or take out `leases = false`",
        };
        found.push(problem.hint(hint));
    }
    let groups = spots.key("group");
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, group) in config.groups.iter().enumerate() {
        let spot = groups.item(index);
        match names.get(group.name.0.as_str()) {
            Some(first) => found.push(
                ConfigDiagnostic::error(
                    spot.key("name").value_span(),
                    format!("a second group named `{}`", group.name),
                )
                .with_related(groups.item(*first).key("name").value_span(), "the first is here"),
            ),
            None => drop(names.insert(&group.name.0, index)),
        }
        check_group(group, spot, text, found);
    }
    check_addresses(config, spots, found);
    if let Some(tracing) = &config.tracing {
        trace::check(tracing, spots.key("tracing"), found);
    }
    fleet::check(config, spots, found);
    admin_endpoints::check(&config.admin.control_section(), spots.key("admin"), found);
    acme::check(config, spots, found);
    store::check(config, spots, found);
    for (index, listener) in config.listeners.iter().enumerate() {
        let spot = spots.key("listener").item(index);
        check_listener(listener, spot, found);
        let named = listener.tls.iter().flat_map(|tls| tls.names.iter().map(|named| &named.group));
        let at = |place| spot.key("tls").key("names").item(place).key("group");
        let named = named.enumerate().map(|(place, group)| (group, at(place)));
        let others = listener.groups.iter().enumerate();
        let others = others.map(|(place, group)| (group, spot.key("groups").item(place)));
        for (group, at) in [(&listener.group, spot.key("group"))].into_iter().chain(named).chain(others) {
            match names.get(group.0.as_str()) {
                Some(index) => check_pair(listener, spot, &config.groups[*index], groups.item(*index), found),
                None if spots.is_broken("group") => {}
                None => {
                    let known: Vec<&str> = config.groups.iter().map(|group| group.name.0.as_str()).collect();
                    let hint = match known.as_slice() {
                        [] => format!("add [[group]] with name = \"{group}\""),
                        known => suggest::hint(&group.0, known).replace("allowed:", "groups:"),
                    };
                    let message = format!("there is no group named `{group}`");
                    found.push(ConfigDiagnostic::error(at.value_span(), message).hint(hint));
                }
            }
        }
    }
    if spots.is_broken("listener") {
        return;
    }
    for (index, group) in config.groups.iter().enumerate() {
        if !config.listeners.iter().any(|listener| listener.leads_to(&group.name))
            && !config.listeners.is_empty()
            && !lends_members(config)
        {
            let message = format!("no listener sends clients to group `{}`", group.name);
            found.push(ConfigDiagnostic::warning(groups.item(index).key("name").value_span(), message));
        }
    }
}

/// Returns `true` if members are lent by leases: then a group can be used without a listener, too.
fn lends_members(config: &Config) -> bool {
    config.admin.reports.0.is_some() && config.admin.leases
}

/// Checks that no address is used twice.
fn check_addresses(config: &Config, spots: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    let listeners = spots.key("listener");
    let mut taken: HashMap<(SocketAddr, &str), usize> = HashMap::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let spot = listeners.item(index);
        if listener.address.0.port() == 0 || spot.is_broken("protocol") {
            continue;
        }
        let place = (listener.address.0, listener.protocol.transport());
        match taken.get(&place) {
            Some(first) => found.push(
                ConfigDiagnostic::error(
                    spot.key("address").value_span(),
                    format!("a second listener on {} ({})", listener.address, listener.protocol.transport()),
                )
                .with_related(listeners.item(*first).key("address").value_span(), "the first is here"),
            ),
            None => drop(taken.insert(place, index)),
        }
    }
    let admin = spots.key("admin");
    for (key, address) in [
        ("listen", config.admin.listen.0),
        ("reports", config.admin.reports.0),
        ("load_manager", config.admin.load_manager.0),
        ("control", config.admin.control.tls()),
    ] {
        if let Some(address) = address
            && let Some(index) = taken.get(&(address, "tcp"))
        {
            let at = listeners.item(*index).key("address").value_span();
            let message = format!("{address} is also the address of the admin side");
            let hint = format!("move one of them, or set {key} = \"off\" in [admin]");
            let mut problem = ConfigDiagnostic::error(at, message).hint(hint);
            if admin.has_key(key) {
                problem = problem.with_related(admin.key(key).value_span(), "here");
            }
            found.push(problem);
        }
    }
    let doors = [
        ("listen", config.admin.listen.0, "9900"),
        ("reports", config.admin.reports.0, "9901"),
        ("load_manager", config.admin.load_manager.0, "9904"),
        ("control", config.admin.control.tls(), "9905"),
    ];
    for (place, (key, address, port)) in doors.into_iter().enumerate() {
        let same = |other: &&(&str, Option<SocketAddr>, &str)| {
            address.is_some_and(|address| address.port() != 0) && other.1 == address
        };
        if let Some((other, ..)) = doors[..place].iter().find(same) {
            let message = format!("`{key}` is also the address of `{other}`");
            let problem = ConfigDiagnostic::error(admin.key(key).value_span(), message);
            found.push(problem.hint(format!("give it a port of its own, such as {port}")));
        }
    }
}

fn check_listener(listener: &ListenerConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    if spot.is_broken("protocol") {
        return;
    }
    let protocol = listener.protocol;
    check_binding(listener, spot, found);
    affinity::check(listener, spot, found);
    tls::check(listener, spot, found);
    xds::check(listener, spot, found);
    if protocol == ListenerProtocol::Dns && listener.domain.is_none() && !spot.is_broken("domain") {
        let problem = ConfigDiagnostic::error(
            spot.value_span(),
            "a dns listener needs the `domain` that stands for its group",
        );
        found.push(problem.hint("add domain = \"web.example.\""));
    }
    if listener.ttl.0.subsec_nanos() != 0 {
        found.push(ConfigDiagnostic::error(
            spot.key("ttl").value_span(),
            "`ttl` is a whole number of seconds",
        ));
    }
    if listener.accept_proxy && matches!(protocol, ListenerProtocol::Udp | ListenerProtocol::Dns) {
        let message = format!("accept_proxy is not supported for {}", protocol.name());
        found.push(ConfigDiagnostic::error(spot.key_span("accept_proxy"), message).hint("take it out"));
    }
    let mut idle = |table: &SpanTree, key: &str, of: &[ListenerProtocol]| {
        if table.has_key(key) && !of.contains(&protocol) {
            let message = format!("`{key}` has no effect: this listener speaks {}", protocol.name());
            found.push(ConfigDiagnostic::warning(table.key_span(key), message));
        }
    };
    for key in ["forwarded", "half_close", "trusted", "max_header_bytes", "priority", "upgrades"] {
        idle(spot, key, &[ListenerProtocol::Http, ListenerProtocol::Https]);
    }
    let streams = [
        ListenerProtocol::Http,
        ListenerProtocol::Https,
        ListenerProtocol::Tcp,
        ListenerProtocol::Iiop,
        ListenerProtocol::Dns,
        ListenerProtocol::Xds,
    ];
    idle(spot, "backlog", &streams);
    idle(spot, "groups", &[ListenerProtocol::Xds]);
    idle(spot, "domain", &[ListenerProtocol::Dns]);
    for key in ["ttl", "answer_rate", "answer_slip"] {
        idle(spot, key, &[ListenerProtocol::Dns]);
    }
    idle(spot, "public", &[ListenerProtocol::Iiop]);
    idle(spot, "max_flows", &[ListenerProtocol::Udp]);
    idle(spot, "rebind_idle", &[ListenerProtocol::Tcp]);
    if spot.has_key("timeouts") {
        let spot = spot.key("timeouts");
        idle(spot, "head", &[ListenerProtocol::Http, ListenerProtocol::Https, ListenerProtocol::Xds]);
        idle(
            spot,
            "body",
            &[ListenerProtocol::Http, ListenerProtocol::Https, ListenerProtocol::Iiop, ListenerProtocol::Xds],
        );
        idle(spot, "tunnel", &[ListenerProtocol::Http, ListenerProtocol::Https]);
    }
}

/// The strategy of a group whose members come from a lottery.
pub(super) const LOTTERY: &str = "lottery";

/// Checks a group whose members and their shares come from a lottery.
fn check_lottery(group: &GroupConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    if spot.has_key("members") {
        let problem =
            ConfigDiagnostic::error(spot.key_span("members"), "either `members` or `lottery`, not both");
        found.push(problem.with_related(spot.key_span("lottery"), "its members are those that are drawn"));
    }
    if spot.has_key("strategy") && !spot.is_broken("strategy") && group.strategy.name() != LOTTERY {
        let message = "members of a lottery are chosen as often as the lottery draws them";
        let problem = ConfigDiagnostic::error(spot.key_span("strategy"), message);
        found.push(problem.hint("take it out, or write strategy = \"lottery\""));
    }
}

fn check_binding(listener: &ListenerConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    if spot.is_broken("binding") {
        return;
    }
    let protocol = listener.protocol;
    let binding = listener.binding.unwrap_or_else(|| protocol.binding());
    if binding != BindingMode::PerRequest && protocol == ListenerProtocol::Dns {
        let message = "clients of a dns listener are not bound: each question is a choice";
        found.push(ConfigDiagnostic::error(spot.key("binding").value_span(), message).hint("take it out"));
        return;
    }
    if binding == BindingMode::PerRequest && matches!(protocol, ListenerProtocol::Tcp | ListenerProtocol::Udp)
    {
        let message = format!("binding `{}` is not supported for {}", binding.name(), protocol.name());
        let hint = format!("{} can be bound per_session or on_demand", protocol.name());
        found.push(ConfigDiagnostic::error(spot.key("binding").value_span(), message).hint(hint));
        return;
    }
    for key in ["rebind", "rebind_idle"].into_iter().filter(|key| spot.has_key(key)) {
        if binding != BindingMode::OnDemand {
            let message = format!("`{key}` has no effect: clients are bound {}", binding.name());
            let problem = ConfigDiagnostic::warning(spot.key_span(key), message);
            found.push(problem.hint("it is for binding = \"on_demand\""));
        }
    }
    if !protocol.is_http() && matches!(listener.rebind, RebindMode::Close | RebindMode::Redirect) {
        let rebind = listener.rebind.name();
        let message = format!("rebind `{rebind}` is not supported for {}", protocol.name());
        let problem = ConfigDiagnostic::error(spot.key("rebind").value_span(), message);
        found.push(problem.hint("silent and agent are"));
    }
}

fn check_group(group: &GroupConfig, spot: &SpanTree, text: &str, found: &mut Vec<ConfigDiagnostic>) {
    let members = spot.key("members");
    if group.lottery.is_some() {
        check_lottery(group, spot, found);
    }
    discover::check(group, spot, found);
    scaler::check(group, spot, found);
    drain_hook::check(group, spot, found);
    tls::check_members(group, spot, found);
    if spot.has_key("members") && group.members.is_empty() && !spot.is_broken("members") {
        found.push(ConfigDiagnostic::error(
            members.value_span(),
            format!("group `{}` has no members", group.name),
        ));
    }
    let mut first = HashMap::new();
    let mut located = HashMap::new();
    let named = |spot: &'_ SpanTree| spot.key(if spot.has_key("ior") { "ior" } else { "address" }).clone();
    for (index, member) in group.members.iter().enumerate() {
        let spot = members.item(index);
        let Some(address) = member.address() else {
            if !spot.is_broken("address") && !spot.is_broken("ior") {
                let problem = ConfigDiagnostic::error(spot.value_span(), "a member without an `address`");
                found.push(problem.hint("write \"host:port\", or its object reference as `ior`"));
            }
            continue;
        };
        match first.get(address) {
            Some(other) => {
                let message = format!("member {address} is in group `{}` twice", group.name);
                let place = named(members.item(*other)).value_span();
                found.push(
                    ConfigDiagnostic::error(named(spot).value_span(), message)
                        .with_related(place, "the first is here"),
                );
            }
            None => drop(first.insert(address, index)),
        }
        if let Some(location) = member.table().location {
            if let Some(other) = located.get(&location) {
                let message = format!("a second member at `{location}` in group `{}`", group.name);
                let place = members.item(*other).key("location").value_span();
                let problem = ConfigDiagnostic::error(spot.key("location").value_span(), message);
                found.push(problem.with_related(place, "the first is here"));
            } else {
                located.insert(location, index);
            }
        }
        for key in ["address", "key"].into_iter().filter(|key| spot.has_key("ior") && spot.has_key(key)) {
            let message = format!("either `ior` or `{key}`, not both");
            let problem = ConfigDiagnostic::error(spot.key_span(key), message);
            found.push(problem.with_related(spot.key_span("ior"), "this says where the object is"));
        }
    }
    if let Some((strategy, knobs)) = group.strategy.find().filter(|_| group.lottery.is_none()) {
        check_params(strategy, &knobs, spot.key("strategy"), found);
        if strategy.reads_load && !usable_without_loads(strategy) && group.monitor.is_none() {
            let message = format!("strategy `{}` has no loads to go by: no [group.monitor]", strategy.name);
            let hint = "say where members' load comes from, such as { source = \"push\", metric = \"cpu\" }";
            found.push(ConfigDiagnostic::warning(spot.key("strategy").value_span(), message).hint(hint));
        }
        group::check(group, strategy, spot, found);
    } else if !spot.is_broken("strategy") && group.lottery.is_none() {
        let message = format!("unknown strategy {}", quoted(group.strategy.name()));
        found.push(ConfigDiagnostic::error(spot.key("strategy").value_span(), message));
    }
    if let Some(health) = &group.health {
        health::check(health, spot.key("health"), "[group.health]", health::GROUP_CHECK_HINT, found);
    }
    expression::check_weight(group, spot, text, found);
    if let Some(monitor) = &group.monitor {
        monitor::check(monitor, spot.key("monitor"), text, found);
        if monitor.source.streams() && group.tls.is_some() && monitor.port.is_none() {
            let message =
                "members are asked for reports without TLS, and are reached by TLS at their own port";
            let problem = ConfigDiagnostic::error(spot.key("monitor").key("source").value_span(), message);
            found.push(problem.hint("give `port`: one of theirs that serves the same without TLS"));
        }
    }
    check_timeouts(group, spot.key("timeouts"), found);
    health::check_protocol(group, spot, found);
    if let OutlierConfig::Table(outlier) = &group.outlier
        && spot.has_key("outlier")
    {
        let (at, spot) = (spot.key_span("outlier"), spot.key("outlier"));
        not_above(spot, ("ejection", outlier.ejection), ("max_ejection", outlier.max_ejection), found);
        if outlier.consecutive == 0 && outlier.deviations == 0.0 {
            let message = "both `consecutive` and `deviations` are 0: no member would ever be ejected";
            found.push(ConfigDiagnostic::warning(at, message).hint("write outlier = false"));
        }
    }
}

/// Checks for settings that contradict one another.
fn check_params(
    strategy: &plimsoll_brain::Strategy,
    knobs: &StrategyParams,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) {
    let Some(clash) = (strategy.conflict)(knobs) else { return };
    let spot = spot.key(strategy.name);
    let written = |knob: &&str| spot.has_key(knob);
    let other = clash.conflicts_with.filter(written);
    let knob = Some(clash.param).filter(written).or(other);
    let at = knob.map_or_else(|| spot.value_span(), |knob| spot.key(knob).value_span());
    let mut problem = ConfigDiagnostic::error(at, clash.why).hint(clash.hint);
    if let Some(other) = other.filter(|other| Some(*other) != knob) {
        problem = problem.with_related(spot.key(other).value_span(), "here");
    }
    found.push(problem);
}

/// Returns `true` if the strategy has a substitute for members that report nothing.
fn usable_without_loads(strategy: &plimsoll_brain::Strategy) -> bool {
    strategy.name == "weighted_round_robin" || strategy.name == plimsoll_brain::strategy::EXPRESSION.name
}

fn check_timeouts(group: &GroupConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    let timeouts = &group.timeouts;
    let total = timeouts.total;
    if total.0.is_zero() {
        return;
    }
    for (key, value) in [("connect", timeouts.connect), ("per_try", timeouts.per_try)] {
        not_above(spot, (key, value), ("total", total), found);
    }
}

/// Checks that the first is not longer than the second.
fn not_above(
    spot: &SpanTree,
    (low, less): (&str, TimeSpan),
    (high, more): (&str, TimeSpan),
    found: &mut Vec<ConfigDiagnostic>,
) {
    if less <= more || spot.is_broken(low) || spot.is_broken(high) {
        return;
    }
    let message = format!("`{low}` ({less}) must not be longer than `{high}` ({more})");
    let (key, other) = if spot.has_key(low) { (low, high) } else { (high, low) };
    let mut problem = ConfigDiagnostic::error(spot.key(key).value_span(), message);
    if spot.has_key(other) {
        problem = problem.with_related(spot.key(other).value_span(), "here");
    } else {
        problem = problem.hint(format!("`{other}` is at its default"));
    }
    found.push(problem);
}

/// Checks a listener and its group against one another.
fn check_pair(
    listener: &ListenerConfig,
    at: &SpanTree,
    group: &GroupConfig,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) {
    use plimsoll_proxy::HashKeySource;
    if at.is_broken("protocol") {
        return;
    }
    let protocol = listener.protocol;
    // DNS and xDS only name members, which clients reach on another way.
    if !matches!(protocol, ListenerProtocol::Dns | ListenerProtocol::Xds) {
        check_not_own_member(listener, at, group, spot, found);
    }
    let on_demand = listener.binding == Some(BindingMode::OnDemand);
    if on_demand && group.monitor.is_none() {
        let message = format!("nobody will be under alert: group `{}` has no [group.monitor]", group.name);
        let hint = "say where its members' load comes from, such as { source = \"push\", metric = \"cpu\" }";
        found.push(ConfigDiagnostic::warning(at.key("binding").value_span(), message).hint(hint));
    }
    if on_demand && protocol.is_http() && listener.rebind == RebindMode::Redirect {
        let bare = group.members.iter().enumerate().filter(|(_, member)| member.table().public.is_none());
        let bare: Vec<(usize, String)> = bare.map(|(index, member)| (index, member.name())).collect();
        if let Some((first, name)) = bare.first() {
            let message = match &bare[1..] {
                [] => format!("clients cannot be sent to member {name}: it has no `public` address"),
                others => format!(
                    "clients cannot be sent to {} members, {name}{}: they have no `public` address",
                    bare.len(),
                    some_more(others.iter().map(|(_, name)| name.as_str())),
                ),
            };
            let problem = ConfigDiagnostic::warning(at.key("rebind").value_span(), message);
            let place = spot.key("members").item(*first).value_span();
            found.push(
                problem.with_related(place, "here").hint("sessions that go there stay behind this listener"),
            );
        }
    }
    if on_demand
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
        let problem = ConfigDiagnostic::warning(at.key("rebind").value_span(), message);
        let place = spot.key("protocol").value_span();
        found.push(problem.with_related(place, "here").hint("silent, close and redirect move them"));
    }
    if let (ListenerProtocol::Iiop, Some(health)) = (protocol, &group.health)
        && health.http.is_some()
    {
        let message = format!("group `{}` is checked by http, and its clients speak iiop", group.name);
        let hint =
            "iiop = true asks members for their objects; leave it if they do answer http on the same port";
        let place = spot.key("health").key("http").value_span();
        found.push(ConfigDiagnostic::warning(place, message).hint(hint));
    }
    if protocol == ListenerProtocol::Iiop && !group.discover.is_empty() {
        let message = format!("members of group `{}` are found, and have no objects", group.name);
        let problem = ConfigDiagnostic::error(at.key("protocol").value_span(), message);
        found.push(problem.hint("list them with their objects, or let them register at the load manager"));
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
        found.push(
            ConfigDiagnostic::warning(at.key("group").value_span(), message)
                .hint(hint)
                .with_related(spot.key("key").value_span(), "here"),
        );
    }
    if protocol == ListenerProtocol::Udp && group.send_proxy.is_some() {
        let message = format!("`send_proxy` has no effect for the udp listener on {}", listener.address);
        found.push(ConfigDiagnostic::warning(spot.key_span("send_proxy"), message));
    }
}

/// Checks that no listener is its own member: it would pass each client to itself until all connections are
/// used up.
fn check_not_own_member(
    listener: &ListenerConfig,
    at: &SpanTree,
    group: &GroupConfig,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) {
    for (index, member) in group.members.iter().enumerate() {
        if let Some(address) = member.address().filter(|address| address.is_at(listener.address.0)) {
            let message = format!("member {address} is the listener on {} itself", listener.address);
            let place = spot.key("members").item(index).key("address").value_span();
            let problem = ConfigDiagnostic::error(place, message)
                .hint("write where the server is, or listen elsewhere");
            found.push(problem.with_related(at.key("address").value_span(), "the listener is here"));
        }
    }
}

/// Returns the names in one line: `, b:1, c:1 and 2 more`
fn some_more<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 7;
    let left = names.len().saturating_sub(SHOWN);
    let mut list: String = names.take(SHOWN).flat_map(|name| [", ", name]).collect();
    if left > 0 {
        list += &format!(" and {left} more");
    }
    list
}
