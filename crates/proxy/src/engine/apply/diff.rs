//! Describes the changes from one configuration to another.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use plimsoll_brain::{GroupSpec, MemberSpec};

use crate::control::explain::describe_strategy;
use crate::{
    BindingMode, CorbaObject, GroupSettings, IiopSettings, ListenerSettings, RouteSettings, Settings,
    ZoneSettings,
};

/// Returns the changes from one configuration to another, one line each, in the order of the new one.
pub(super) fn differences(
    previous: &Settings,
    next: &Settings,
    reused_sockets: &[Option<usize>],
) -> Vec<String> {
    let mut changes = Vec::new();
    let describe =
        |listener: &ListenerSettings| format!("listener {} {}", listener.label(), listener.address);
    for (index, listener) in next.listeners.iter().enumerate() {
        match reused_sockets[index].map(|open_index| &previous.listeners[open_index]) {
            None => changes.push(format!("+ {} -> {}", describe(listener), listener.group)),
            Some(open_listener) if open_listener.group != listener.group => {
                changes.push(format!(
                    "~ {}: {} -> {}",
                    describe(listener),
                    open_listener.group,
                    listener.group
                ));
            }
            Some(open_listener) => {
                let keys = listener_keys(open_listener, listener);
                if !keys.is_empty() {
                    changes.push(format!("~ {}: {}", describe(listener), keys.join(", ")));
                }
            }
        }
        if let Some(open_listener) = reused_sockets[index].map(|open_index| &previous.listeners[open_index]) {
            route_differences(&describe(listener), open_listener, listener, &mut changes);
        }
    }
    let kept: HashSet<usize> = reused_sockets.iter().flatten().copied().collect();
    for (index, open) in previous.listeners.iter().enumerate() {
        if !kept.contains(&index) {
            changes.push(format!("- {}", describe(open)));
        }
    }
    let groups_by_name = |settings: &'_ Settings| -> HashMap<Arc<str>, Arc<GroupSettings>> {
        settings.groups.iter().map(|group| (Arc::clone(&group.spec.name), Arc::clone(group))).collect()
    };
    let (old, new) = (groups_by_name(previous), groups_by_name(next));
    for group in &next.groups {
        match old.get(&group.spec.name) {
            None => {
                let members = match group.spec.members.len() {
                    1 => "1 member".to_owned(),
                    count => format!("{count} members"),
                };
                changes.push(format!("+ group {} ({members})", group.spec.name));
            }
            Some(old_group) if super::same_settings(old_group, group) => {}
            Some(old_group) => group_differences(old_group, group, &mut changes),
        }
    }
    for group in &previous.groups {
        if !new.contains_key(&group.spec.name) {
            changes.push(format!("- group {}", group.spec.name));
        }
    }
    let log_path =
        |settings: &Settings| settings.access_log.as_ref().map(|log| log.path.display().to_string());
    if previous.access_log != next.access_log {
        changes.push(format!("~ access log: {}", log_path(next).unwrap_or_else(|| "off".into())));
    }
    if previous.tracing != next.tracing {
        let description =
            next.tracing.as_ref().map(|tracing| format!("on, {} of new traces", tracing.sample));
        changes.push(format!("~ tracing: {}", description.unwrap_or_else(|| "off".into())));
    }
    for (key, old, new) in [
        ("drain_deadline", previous.drain_deadline, next.drain_deadline),
        ("upgrade_deadline", previous.upgrade_deadline, next.upgrade_deadline),
    ] {
        if old != new {
            changes.push(format!("~ {key}: {old:?} -> {new:?}"));
        }
    }
    if previous.max_connections != next.max_connections {
        changes.push(format!("~ max_connections: {} -> {}", previous.max_connections, next.max_connections));
    }
    if previous.max_memory != next.max_memory {
        changes.push(format!("~ max_memory: {} -> {}", previous.max_memory, next.max_memory));
    }
    changes
}

/// Adds the routes of a listener that were added, removed or changed, by name.
fn route_differences(
    listener: &str,
    previous: &ListenerSettings,
    next: &ListenerSettings,
    changes: &mut Vec<String>,
) {
    if previous.routes == next.routes {
        return;
    }
    let routes_of = |settings: &'_ ListenerSettings| -> Vec<RouteSettings> {
        settings.routes.iter().flat_map(|routes| routes.routes()).cloned().collect()
    };
    let (old, new) = (routes_of(previous), routes_of(next));
    let by_name = |routes: &'_ [RouteSettings]| -> HashMap<Arc<str>, RouteSettings> {
        routes.iter().map(|route| (Arc::clone(&route.name), route.clone())).collect()
    };
    let (old_by_name, new_by_name) = (by_name(&old), by_name(&new));
    let count = changes.len();
    for route in &new {
        match old_by_name.get(&route.name) {
            None => changes.push(format!("+ {listener}: route {}", route.name)),
            Some(old_route) if old_route != route => {
                changes.push(format!("~ {listener}: route {}", route.name));
            }
            Some(_) => {}
        }
    }
    let removed = old.iter().filter(|route| !new_by_name.contains_key(&route.name));
    changes.extend(removed.map(|route| format!("- {listener}: route {}", route.name)));
    if changes.len() == count {
        changes.push(format!("~ {listener}: order of routes, or requests that no route takes"));
    }
}

fn group_differences(previous: &GroupSettings, next: &GroupSettings, changes: &mut Vec<String>) {
    let name = &next.spec.name;
    let members_by_name = |group: &GroupSettings| -> HashMap<Arc<str>, MemberSpec> {
        group.spec.members.iter().map(|member| (Arc::clone(&member.name), member.clone())).collect()
    };
    let (old, new) = (members_by_name(previous), members_by_name(next));
    // A limit that all members share is shown as the group's.
    let kept_limits =
        next.spec.members.iter().filter_map(|member| Some((old.get(&member.name)?.limit, member.limit)));
    let limits: HashSet<(u32, u32)> = kept_limits.collect();
    let limit = limits.iter().next().filter(|(old, new)| limits.len() == 1 && old != new).copied();
    if let Some((old, new)) = limit {
        let limit_text = |limit: u32| if limit == u32::MAX { "none".to_owned() } else { limit.to_string() };
        changes.push(format!("~ group {name}: max_connections {} -> {}", limit_text(old), limit_text(new)));
    }
    let differs = |old_member: &MemberSpec, new_member: &MemberSpec| {
        let old_member = MemberSpec {
            limit: if limit.is_some() { new_member.limit } else { old_member.limit },
            ..old_member.clone()
        };
        old_member != *new_member
            || member_settings(previous, next, &old_member.name)
                != member_settings(next, previous, &old_member.name)
    };
    for member in &next.spec.members {
        match old.get(&member.name) {
            None => changes.push(format!("+ group {name}: member {}", member.name)),
            Some(old_member) if old_member.capacity != member.capacity => changes.push(format!(
                "~ group {name}: member {}: capacity {} -> {}",
                member.name, old_member.capacity, member.capacity
            )),
            Some(old_member) if differs(old_member, member) => {
                changes.push(format!("~ group {name}: member {}", member.name));
            }
            Some(_) => {}
        }
    }
    for member in &previous.spec.members {
        if !new.contains_key(&member.name) {
            changes.push(format!("- group {name}: member {}", member.name));
        }
    }
    let strategy = |group: &GroupSettings| (group.spec.strategy.name, group.spec.params.clone());
    if strategy(previous) != strategy(next) {
        let describe = |group: &GroupSettings| describe_strategy(group.spec.strategy, &group.spec.params);
        // The settings of both strategies are shown only if the names do not differ.
        let (old, new) = match previous.spec.strategy.name == next.spec.strategy.name {
            true => (describe(previous), describe(next)),
            false => (previous.spec.strategy.name.to_owned(), next.spec.strategy.name.to_owned()),
        };
        changes.push(format!("~ group {name}: strategy {old} -> {new}"));
    }
    let keys = group_keys(previous, next);
    if !keys.is_empty() {
        changes.push(format!("~ group {name}: {}", keys.join(", ")));
    }
}

/// Returns a member's settings that are not part of its strategy specification: its public address, its host
/// and its object. The object is returned only if it differs from that of the `other` group.
fn member_settings<'a>(
    group: &'a GroupSettings,
    other: &GroupSettings,
    member: &str,
) -> (Option<&'a str>, Option<&'a Arc<str>>, Option<&'a CorbaObject>) {
    let same_iiop = without_objects(&group.iiop) == without_objects(&other.iiop);
    let object = group.iiop.as_ref().filter(|_| same_iiop).and_then(|iiop| iiop.objects.get(member));
    (group.public.get(member).map(|public| &**public), group.hosts.get(member), object)
}

/// Returns the settings without the members' objects.
fn without_objects(iiop: &Option<IiopSettings>) -> Option<IiopSettings> {
    iiop.as_ref().map(|iiop| IiopSettings { objects: BTreeMap::new(), ..iiop.clone() })
}

/// Returns the keys of a `[[group]]` whose values differ, except for members and the strategy. Each field is
/// named once, so that a new one is not forgotten.
fn group_keys(previous: &GroupSettings, next: &GroupSettings) -> Vec<&'static str> {
    let GroupSettings {
        spec,
        public: _,
        hosts: _,
        // A change of a name's addresses is reported when it happens.
        addresses: _,
        probe,
        iiop,
        key,
        timeouts,
        retry,
        strip_reports,
        // These are derived from the group's monitor and from the group's purpose.
        sample_reports: _,
        session_load: _,
        side_car: _,
        hand_over,
        keeps_drained,
        max_rate,
        queue,
        queue_timeout,
        pool,
        pool_idle,
        send_proxy,
        tls,
        http2,
    } = previous;
    let GroupSpec {
        name: _,
        strategy: _,
        params: _,
        members: _,
        health,
        outlier,
        slow_start,
        when_all_down,
        admission,
        objective,
        aperture,
    } = spec;
    let keys = [
        ("health", *health == next.spec.health && *probe == next.probe),
        ("outlier", *outlier == next.spec.outlier),
        ("slow_start", *slow_start == next.spec.slow_start),
        ("when_all_down", *when_all_down == next.spec.when_all_down),
        ("admission", *admission == next.spec.admission),
        ("objective", *objective == next.spec.objective),
        ("aperture", *aperture == next.spec.aperture),
        ("iiop", without_objects(iiop) == without_objects(&next.iiop)),
        ("key", *key == next.key),
        ("timeouts", *timeouts == next.timeouts),
        ("retry", *retry == next.retry),
        ("load_report_header", *strip_reports == next.strip_reports),
        ("drain_hook", *hand_over == next.hand_over),
        ("on_drain", *keeps_drained == next.keeps_drained),
        ("max_rate", *max_rate == next.max_rate),
        ("queue", *queue == next.queue),
        ("queue_timeout", *queue_timeout == next.queue_timeout),
        ("max_idle_connections", *pool == next.pool),
        ("pool_idle_timeout", *pool_idle == next.pool_idle),
        ("send_proxy", *send_proxy == next.send_proxy),
        ("tls", *tls == next.tls),
        ("protocol", *http2 == next.http2),
    ];
    differing(&keys)
}

/// Returns the keys of a `[[listener]]` whose values differ, except for its group.
fn listener_keys(previous: &ListenerSettings, next: &ListenerSettings) -> Vec<&'static str> {
    let ListenerSettings {
        // These identify the listener.
        address: _,
        backlog: _,
        group: _,
        protocol,
        // Shown by name.
        routes: _,
        others,
        binding,
        affinity,
        public,
        move_idle,
        accept_proxy,
        priority,
        timeouts,
        max_head,
        half_close,
        upgrades,
        forwarded,
        trusted,
        max_flows,
        zone,
        tls,
    } = previous;
    let keys = [
        ("protocol", *protocol == next.protocol),
        ("groups", *others == next.others),
        match (binding, next.binding) {
            (BindingMode::OnDemand(old), BindingMode::OnDemand(new)) => ("rebind", *old == new),
            (old, new) => ("binding", *old == new),
        },
        ("affinity", *affinity == next.affinity),
        ("public", *public == next.public),
        ("rebind_idle", *move_idle == next.move_idle),
        ("accept_proxy", *accept_proxy == next.accept_proxy),
        ("priority", *priority == next.priority),
        ("timeouts", *timeouts == next.timeouts),
        ("max_header_bytes", *max_head == next.max_head),
        ("half_close", *half_close == next.half_close),
        ("upgrades", *upgrades == next.upgrades),
        ("forwarded", *forwarded == next.forwarded),
        ("trusted", *trusted == next.trusted),
        ("max_flows", *max_flows == next.max_flows),
        // The zone's answers for its name.
        ("domain or ttl", zone_name(zone) == zone_name(&next.zone)),
        ("answer_rate or answer_slip", answer_limits(zone) == answer_limits(&next.zone)),
        ("tls", *tls == next.tls),
    ];
    differing(&keys)
}

fn zone_name(zone: &Option<ZoneSettings>) -> Option<(&str, u32)> {
    zone.as_ref().map(|zone| (&*zone.domain, zone.ttl))
}

fn answer_limits(zone: &Option<ZoneSettings>) -> Option<(u32, u32)> {
    zone.as_ref().map(|zone| (zone.rate, zone.slip))
}

fn differing(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    keys.iter().filter(|(_, same)| !same).map(|(key, _)| *key).collect()
}
