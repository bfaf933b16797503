//! Checks of the sections against one another. The schema has checked each by itself before.
//!
//! A check stays silent if it would have to guess a value that was left out because it was wrong: one mistake
//! is one error.

use std::collections::HashMap;
use std::net::SocketAddr;

use plimsoll_brain::Knobs;

use super::place::Spot;
use super::problem::{Problem, quoted};
use super::{
    Binding, Config, Group, Listener, MemberProtocol, Outlier, Protocol, Rebind, TimeSpan, acme, affinity,
    discover, door, fleet, formula, group, hand_over, health, monitor, scaler, store, suggest, tls, trace,
    xds,
};

/// Adds the problems to `found`; the places are those of `text`.
pub(super) fn check(config: &Config, spots: &Spot, text: &str, found: &mut Vec<Problem>) {
    let lends = lends(config) || config.admin.control.tls().is_some() || config.shares();
    if config.listeners.is_empty() && !lends && !spots.broken("listener") && !spots.broken("admin") {
        let problem =
            Problem::error(spots.key("listener").value(), "no [[listener]]: nothing would be served");
        let hint = match config.admin.reports.0 {
            None => "add [[listener]] with an address and a group, or [admin] reports to lend members",
            Some(_) => "add [[listener]] with an address and a group, or take out `lend = false`",
        };
        found.push(problem.hint(hint));
    }
    let groups = spots.key("group");
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, group) in config.groups.iter().enumerate() {
        let spot = groups.item(index);
        match names.get(group.name.0.as_str()) {
            Some(first) => found.push(
                Problem::error(spot.key("name").value(), format!("a second group named `{}`", group.name))
                    .also(groups.item(*first).key("name").value(), "the first is here"),
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
    door::check(&config.admin.doors(), spots.key("admin"), found);
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
                None if spots.broken("group") => {}
                None => {
                    let known: Vec<&str> = config.groups.iter().map(|group| group.name.0.as_str()).collect();
                    let hint = match known.as_slice() {
                        [] => format!("add [[group]] with name = \"{group}\""),
                        known => suggest::hint(&group.0, known).replace("allowed:", "groups:"),
                    };
                    let message = format!("there is no group named `{group}`");
                    found.push(Problem::error(at.value(), message).hint(hint));
                }
            }
        }
    }
    if spots.broken("listener") {
        return;
    }
    for (index, group) in config.groups.iter().enumerate() {
        if !config.listeners.iter().any(|listener| listener.leads_to(&group.name))
            && !config.listeners.is_empty()
            && !self::lends(config)
        {
            let message = format!("no listener sends clients to group `{}`", group.name);
            found.push(Problem::warning(groups.item(index).key("name").value(), message));
        }
    }
}

/// Returns `true` if members are lent by leases: then a group can be used without a listener, too.
fn lends(config: &Config) -> bool {
    config.admin.reports.0.is_some() && config.admin.lend
}

/// Checks that no address is used twice.
fn check_addresses(config: &Config, spots: &Spot, found: &mut Vec<Problem>) {
    let listeners = spots.key("listener");
    let mut taken: HashMap<(SocketAddr, &str), usize> = HashMap::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let spot = listeners.item(index);
        if listener.address.0.port() == 0 || spot.broken("protocol") {
            continue;
        }
        let place = (listener.address.0, listener.protocol.transport());
        match taken.get(&place) {
            Some(first) => found.push(
                Problem::error(
                    spot.key("address").value(),
                    format!("a second listener on {} ({})", listener.address, listener.protocol.transport()),
                )
                .also(listeners.item(*first).key("address").value(), "the first is here"),
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
            let at = listeners.item(*index).key("address").value();
            let message = format!("{address} is also the address of the admin side");
            let hint = format!("move one of them, or set {key} = \"off\" in [admin]");
            let mut problem = Problem::error(at, message).hint(hint);
            if admin.has(key) {
                problem = problem.also(admin.key(key).value(), "here");
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
            let problem = Problem::error(admin.key(key).value(), message);
            found.push(problem.hint(format!("give it a port of its own, such as {port}")));
        }
    }
}

fn check_listener(listener: &Listener, spot: &Spot, found: &mut Vec<Problem>) {
    if spot.broken("protocol") {
        return;
    }
    let protocol = listener.protocol;
    check_binding(listener, spot, found);
    affinity::check(listener, spot, found);
    tls::check(listener, spot, found);
    xds::check(listener, spot, found);
    if protocol == Protocol::Dns && listener.domain.is_none() && !spot.broken("domain") {
        let problem =
            Problem::error(spot.value(), "a dns listener needs the `domain` that stands for its group");
        found.push(problem.hint("add domain = \"web.example.\""));
    }
    if listener.ttl.0.subsec_nanos() != 0 {
        found.push(Problem::error(spot.key("ttl").value(), "`ttl` is a whole number of seconds"));
    }
    if listener.accept_proxy && matches!(protocol, Protocol::Udp | Protocol::Dns) {
        let message = format!("accept_proxy is not supported for {}", protocol.name());
        found.push(Problem::error(spot.name("accept_proxy"), message).hint("take it out"));
    }
    let mut idle = |table: &Spot, key: &str, of: &[Protocol]| {
        if table.has(key) && !of.contains(&protocol) {
            let message = format!("`{key}` has no effect: this listener speaks {}", protocol.name());
            found.push(Problem::warning(table.name(key), message));
        }
    };
    for key in ["forwarded", "half_close", "trusted", "max_head", "priority", "upgrades"] {
        idle(spot, key, &[Protocol::Http, Protocol::Https]);
    }
    let streams =
        [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::Iiop, Protocol::Dns, Protocol::Xds];
    idle(spot, "backlog", &streams);
    idle(spot, "groups", &[Protocol::Xds]);
    idle(spot, "domain", &[Protocol::Dns]);
    for key in ["ttl", "answer_rate", "answer_slip"] {
        idle(spot, key, &[Protocol::Dns]);
    }
    idle(spot, "public", &[Protocol::Iiop]);
    idle(spot, "max_flows", &[Protocol::Udp]);
    idle(spot, "move_idle", &[Protocol::Tcp]);
    if spot.has("timeouts") {
        let spot = spot.key("timeouts");
        idle(spot, "head", &[Protocol::Http, Protocol::Https, Protocol::Xds]);
        idle(spot, "body", &[Protocol::Http, Protocol::Https, Protocol::Iiop, Protocol::Xds]);
        idle(spot, "tunnel", &[Protocol::Http, Protocol::Https]);
    }
}

/// The strategy of a group whose members come from a lottery.
pub(super) const LOTTERY: &str = "lottery";

/// Checks a group whose members and their shares come from a lottery.
fn check_drawn(group: &Group, spot: &Spot, found: &mut Vec<Problem>) {
    if spot.has("members") {
        let problem = Problem::error(spot.name("members"), "either `members` or `lottery`, not both");
        found.push(problem.also(spot.name("lottery"), "its members are those that are drawn"));
    }
    if spot.has("strategy") && !spot.broken("strategy") && group.strategy.name() != LOTTERY {
        let message = "members of a lottery are chosen as often as the lottery draws them";
        let problem = Problem::error(spot.name("strategy"), message);
        found.push(problem.hint("take it out, or write strategy = \"lottery\""));
    }
}

fn check_binding(listener: &Listener, spot: &Spot, found: &mut Vec<Problem>) {
    if spot.broken("binding") {
        return;
    }
    let protocol = listener.protocol;
    let binding = listener.binding.unwrap_or_else(|| protocol.binding());
    if binding != Binding::PerRequest && protocol == Protocol::Dns {
        let message = "clients of a dns listener are not bound: each question is a choice";
        found.push(Problem::error(spot.key("binding").value(), message).hint("take it out"));
        return;
    }
    if binding == Binding::PerRequest && matches!(protocol, Protocol::Tcp | Protocol::Udp) {
        let message = format!("binding `{}` is not supported for {}", binding.name(), protocol.name());
        let hint = format!("{} can be bound per_session or on_demand", protocol.name());
        found.push(Problem::error(spot.key("binding").value(), message).hint(hint));
        return;
    }
    for key in ["rebind", "move_idle"].into_iter().filter(|key| spot.has(key)) {
        if binding != Binding::OnDemand {
            let message = format!("`{key}` has no effect: clients are bound {}", binding.name());
            let problem = Problem::warning(spot.name(key), message);
            found.push(problem.hint("it is for binding = \"on_demand\""));
        }
    }
    if !protocol.is_http() && matches!(listener.rebind, Rebind::Close | Rebind::Redirect) {
        let rebind = listener.rebind.name();
        let message = format!("rebind `{rebind}` is not supported for {}", protocol.name());
        let problem = Problem::error(spot.key("rebind").value(), message);
        found.push(problem.hint("silent and agent are"));
    }
}

fn check_group(group: &Group, spot: &Spot, text: &str, found: &mut Vec<Problem>) {
    let members = spot.key("members");
    if group.lottery.is_some() {
        check_drawn(group, spot, found);
    }
    discover::check(group, spot, found);
    scaler::check(group, spot, found);
    hand_over::check(group, spot, found);
    tls::check_members(group, spot, found);
    if spot.has("members") && group.members.is_empty() && !spot.broken("members") {
        found.push(Problem::error(members.value(), format!("group `{}` has no members", group.name)));
    }
    let mut first = HashMap::new();
    let mut located = HashMap::new();
    let named = |spot: &'_ Spot| spot.key(if spot.has("ior") { "ior" } else { "address" }).clone();
    for (index, member) in group.members.iter().enumerate() {
        let spot = members.item(index);
        let Some(address) = member.address() else {
            if !spot.broken("address") && !spot.broken("ior") {
                let problem = Problem::error(spot.value(), "a member without an `address`");
                found.push(problem.hint("write \"host:port\", or its object reference as `ior`"));
            }
            continue;
        };
        match first.get(address) {
            Some(other) => {
                let message = format!("member {address} is in group `{}` twice", group.name);
                let place = named(members.item(*other)).value();
                found.push(Problem::error(named(spot).value(), message).also(place, "the first is here"));
            }
            None => drop(first.insert(address, index)),
        }
        if let Some(location) = member.table().location {
            if let Some(other) = located.get(&location) {
                let message = format!("a second member at `{location}` in group `{}`", group.name);
                let place = members.item(*other).key("location").value();
                let problem = Problem::error(spot.key("location").value(), message);
                found.push(problem.also(place, "the first is here"));
            } else {
                located.insert(location, index);
            }
        }
        for key in ["address", "key"].into_iter().filter(|key| spot.has("ior") && spot.has(key)) {
            let message = format!("either `ior` or `{key}`, not both");
            let problem = Problem::error(spot.name(key), message);
            found.push(problem.also(spot.name("ior"), "this says where the object is"));
        }
    }
    if let Some((strategy, knobs)) = group.strategy.find().filter(|_| group.lottery.is_none()) {
        check_knobs(strategy, &knobs, spot.key("strategy"), found);
        if strategy.reads_load && !usable_without_loads(strategy) && group.monitor.is_none() {
            let message = format!("strategy `{}` has no loads to go by: no [group.monitor]", strategy.name);
            let hint = "say where members' load comes from, such as { source = \"push\", metric = \"cpu\" }";
            found.push(Problem::warning(spot.key("strategy").value(), message).hint(hint));
        }
        group::check(group, strategy, spot, found);
    } else if !spot.broken("strategy") && group.lottery.is_none() {
        let message = format!("unknown strategy {}", quoted(group.strategy.name()));
        found.push(Problem::error(spot.key("strategy").value(), message));
    }
    if let Some(health) = &group.health {
        health::check(health, spot.key("health"), "[group.health]", health::OF_GROUPS, found);
    }
    formula::check_weight(group, spot, text, found);
    if let Some(monitor) = &group.monitor {
        monitor::check(monitor, spot.key("monitor"), text, found);
        if monitor.source.streams() && group.tls.is_some() && monitor.port.is_none() {
            let message =
                "members are asked for reports without TLS, and are reached by TLS at their own port";
            let problem = Problem::error(spot.key("monitor").key("source").value(), message);
            found.push(problem.hint("give `port`: one of theirs that serves the same without TLS"));
        }
    }
    check_timeouts(group, spot.key("timeouts"), found);
    health::check_protocol(group, spot, found);
    if let Outlier::Table(outlier) = &group.outlier
        && spot.has("outlier")
    {
        let (at, spot) = (spot.name("outlier"), spot.key("outlier"));
        not_above(spot, ("ejection", outlier.ejection), ("max_ejection", outlier.max_ejection), found);
        if outlier.consecutive == 0 && outlier.deviations == 0.0 {
            let message = "both `consecutive` and `deviations` are 0: no member would ever be ejected";
            found.push(Problem::warning(at, message).hint("write outlier = false"));
        }
    }
}

/// Checks for settings that contradict one another.
fn check_knobs(strategy: &plimsoll_brain::Strategy, knobs: &Knobs, spot: &Spot, found: &mut Vec<Problem>) {
    let Some(clash) = (strategy.clash)(knobs) else { return };
    let spot = spot.key(strategy.name);
    let written = |knob: &&str| spot.has(knob);
    let other = clash.with.filter(written);
    let knob = Some(clash.knob).filter(written).or(other);
    let at = knob.map_or_else(|| spot.value(), |knob| spot.key(knob).value());
    let mut problem = Problem::error(at, clash.why).hint(clash.hint);
    if let Some(other) = other.filter(|other| Some(*other) != knob) {
        problem = problem.also(spot.key(other).value(), "here");
    }
    found.push(problem);
}

/// Returns `true` if the strategy has a substitute for members that report nothing.
fn usable_without_loads(strategy: &plimsoll_brain::Strategy) -> bool {
    strategy.name == "weighted_round_robin" || strategy.name == plimsoll_brain::strategy::EXPRESSION.name
}

fn check_timeouts(group: &Group, spot: &Spot, found: &mut Vec<Problem>) {
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
    spot: &Spot,
    (low, less): (&str, TimeSpan),
    (high, more): (&str, TimeSpan),
    found: &mut Vec<Problem>,
) {
    if less <= more || spot.broken(low) || spot.broken(high) {
        return;
    }
    let message = format!("`{low}` ({less}) must not be longer than `{high}` ({more})");
    let (key, other) = if spot.has(low) { (low, high) } else { (high, low) };
    let mut problem = Problem::error(spot.key(key).value(), message);
    if spot.has(other) {
        problem = problem.also(spot.key(other).value(), "here");
    } else {
        problem = problem.hint(format!("`{other}` is at its default"));
    }
    found.push(problem);
}

/// Checks a listener and its group against one another.
fn check_pair(listener: &Listener, at: &Spot, group: &Group, spot: &Spot, found: &mut Vec<Problem>) {
    use plimsoll_proxy::Key;
    if at.broken("protocol") {
        return;
    }
    let protocol = listener.protocol;
    // DNS and xDS only name members, which clients reach on another way.
    if !matches!(protocol, Protocol::Dns | Protocol::Xds) {
        check_circle(listener, at, group, spot, found);
    }
    let on_demand = listener.binding == Some(Binding::OnDemand);
    if on_demand && group.monitor.is_none() {
        let message = format!("nobody will be under alert: group `{}` has no [group.monitor]", group.name);
        let hint = "say where its members' load comes from, such as { source = \"push\", metric = \"cpu\" }";
        found.push(Problem::warning(at.key("binding").value(), message).hint(hint));
    }
    if on_demand && protocol.is_http() && listener.rebind == Rebind::Redirect {
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
            let problem = Problem::warning(at.key("rebind").value(), message);
            let place = spot.key("members").item(*first).value();
            found.push(problem.also(place, "here").hint("sessions that go there stay behind this listener"));
        }
    }
    if on_demand
        && protocol.is_http()
        && listener.rebind == Rebind::Agent
        && group.protocol == MemberProtocol::H2
    {
        let message = format!(
            "clients that come through this listener stay with their members: group `{}` speaks h2, where one connection has the \
             requests of many clients, and a member cannot send one of them away by closing it",
            group.name
        );
        let problem = Problem::warning(at.key("rebind").value(), message);
        let place = spot.key("protocol").value();
        found.push(problem.also(place, "here").hint("silent, close and redirect move them"));
    }
    if let (Protocol::Iiop, Some(health)) = (protocol, &group.health)
        && health.http.is_some()
    {
        let message = format!("group `{}` is checked by http, and its clients speak iiop", group.name);
        let hint =
            "iiop = true asks members for their objects; leave it if they do answer http on the same port";
        let place = spot.key("health").key("http").value();
        found.push(Problem::warning(place, message).hint(hint));
    }
    if protocol == Protocol::Iiop && !group.discover.is_empty() {
        let message = format!("members of group `{}` are found, and have no objects", group.name);
        let problem = Problem::error(at.key("protocol").value(), message);
        found.push(problem.hint("list them with their objects, or let them register at the load manager"));
    }
    let reads_key = group.strategy.find().is_some_and(|(strategy, _)| strategy.reads_key);
    if !protocol.is_http() && reads_key && group.key.0 != Key::Client {
        let message = format!(
            "group `{}` takes its key from `{}`, which {} does not have",
            group.name,
            group.key,
            protocol.name()
        );
        let hint = match protocol {
            Protocol::Xds => "clients of this listener choose by weight",
            _ => "clients of this listener are told apart by their address",
        };
        found.push(
            Problem::warning(at.key("group").value(), message)
                .hint(hint)
                .also(spot.key("key").value(), "here"),
        );
    }
    if protocol == Protocol::Udp && group.send_proxy.is_some() {
        let message = format!("`send_proxy` has no effect for the udp listener on {}", listener.address);
        found.push(Problem::warning(spot.name("send_proxy"), message));
    }
}

/// Checks that no listener is its own member: it would pass each client to itself until all connections are
/// used up.
fn check_circle(listener: &Listener, at: &Spot, group: &Group, spot: &Spot, found: &mut Vec<Problem>) {
    for (index, member) in group.members.iter().enumerate() {
        if let Some(address) = member.address().filter(|address| address.is_at(listener.address.0)) {
            let message = format!("member {address} is the listener on {} itself", listener.address);
            let place = spot.key("members").item(index).key("address").value();
            let problem =
                Problem::error(place, message).hint("write where the server is, or listen elsewhere");
            found.push(problem.also(at.key("address").value(), "the listener is here"));
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
