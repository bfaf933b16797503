//! Describes the changes from one configuration to another.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use plimsoll_brain::{GroupSpec, MemberSpec};

use crate::control::explain::describe_strategy;
use crate::{
    BindingMode, CorbaObject, GroupSettings, IiopSettings, ListenerSettings, Settings, ZoneSettings,
};

/// Returns the changes from one configuration to another, one line each, in the order of the new one.
pub(super) fn differences(before: &Settings, after: &Settings, same: &[Option<usize>]) -> Vec<String> {
    let mut changes = Vec::new();
    let name = |listener: &ListenerSettings| format!("listener {} {}", listener.label(), listener.address);
    for (place, listener) in after.listeners.iter().enumerate() {
        match same[place].map(|open| &before.listeners[open]) {
            None => changes.push(format!("+ {} -> {}", name(listener), listener.group)),
            Some(open) if open.group != listener.group => {
                changes.push(format!("~ {}: {} -> {}", name(listener), open.group, listener.group));
            }
            Some(open) => {
                let keys = listener_keys(open, listener);
                if !keys.is_empty() {
                    changes.push(format!("~ {}: {}", name(listener), keys.join(", ")));
                }
            }
        }
    }
    let stay: HashSet<usize> = same.iter().flatten().copied().collect();
    for (place, open) in before.listeners.iter().enumerate() {
        if !stay.contains(&place) {
            changes.push(format!("- {}", name(open)));
        }
    }
    let named = |settings: &'_ Settings| -> HashMap<Arc<str>, Arc<GroupSettings>> {
        settings.groups.iter().map(|group| (Arc::clone(&group.spec.name), Arc::clone(group))).collect()
    };
    let (old, new) = (named(before), named(after));
    for group in &after.groups {
        match old.get(&group.spec.name) {
            None => {
                let members = match group.spec.members.len() {
                    1 => "1 member".to_owned(),
                    many => format!("{many} members"),
                };
                changes.push(format!("+ group {} ({members})", group.spec.name));
            }
            Some(other) if super::same(other, group) => {}
            Some(other) => group_differences(other, group, &mut changes),
        }
    }
    for group in &before.groups {
        if !new.contains_key(&group.spec.name) {
            changes.push(format!("- group {}", group.spec.name));
        }
    }
    let log = |settings: &Settings| settings.access_log.as_ref().map(|log| log.path.display().to_string());
    if before.access_log != after.access_log {
        changes.push(format!("~ access log: {}", log(after).unwrap_or_else(|| "off".into())));
    }
    if before.tracing != after.tracing {
        let said = after.tracing.as_ref().map(|tracing| format!("on, {} of new traces", tracing.sample));
        changes.push(format!("~ tracing: {}", said.unwrap_or_else(|| "off".into())));
    }
    for (key, old, new) in [
        ("drain_deadline", before.drain_deadline, after.drain_deadline),
        ("upgrade_deadline", before.upgrade_deadline, after.upgrade_deadline),
    ] {
        if old != new {
            changes.push(format!("~ {key}: {old:?} -> {new:?}"));
        }
    }
    if before.max_connections != after.max_connections {
        changes.push(format!("~ max_connections: {} -> {}", before.max_connections, after.max_connections));
    }
    if before.max_memory != after.max_memory {
        changes.push(format!("~ max_memory: {} -> {}", before.max_memory, after.max_memory));
    }
    changes
}

fn group_differences(before: &GroupSettings, after: &GroupSettings, changes: &mut Vec<String>) {
    let name = &after.spec.name;
    let named = |group: &GroupSettings| -> HashMap<Arc<str>, MemberSpec> {
        group.spec.members.iter().map(|member| (Arc::clone(&member.name), member.clone())).collect()
    };
    let (old, new) = (named(before), named(after));
    // A limit that all members share is shown as the group's.
    let stay =
        after.spec.members.iter().filter_map(|member| Some((old.get(&member.name)?.limit, member.limit)));
    let limits: HashSet<(u32, u32)> = stay.collect();
    let limit = limits.iter().next().filter(|(old, new)| limits.len() == 1 && old != new).copied();
    if let Some((old, new)) = limit {
        let said = |limit: u32| if limit == u32::MAX { "none".to_owned() } else { limit.to_string() };
        changes.push(format!("~ group {name}: max_connections {} -> {}", said(old), said(new)));
    }
    let differ = |one: &MemberSpec, other: &MemberSpec| {
        let one = MemberSpec { limit: if limit.is_some() { other.limit } else { one.limit }, ..one.clone() };
        one != *other
            || member_settings(before, after, &one.name) != member_settings(after, before, &one.name)
    };
    for member in &after.spec.members {
        match old.get(&member.name) {
            None => changes.push(format!("+ group {name}: member {}", member.name)),
            Some(other) if other.capacity != member.capacity => changes.push(format!(
                "~ group {name}: member {}: capacity {} -> {}",
                member.name, other.capacity, member.capacity
            )),
            Some(other) if differ(other, member) => {
                changes.push(format!("~ group {name}: member {}", member.name));
            }
            Some(_) => {}
        }
    }
    for member in &before.spec.members {
        if !new.contains_key(&member.name) {
            changes.push(format!("- group {name}: member {}", member.name));
        }
    }
    let strategy = |group: &GroupSettings| (group.spec.strategy.name, group.spec.params.clone());
    if strategy(before) != strategy(after) {
        let said = |group: &GroupSettings| describe_strategy(group.spec.strategy, &group.spec.params);
        // The settings of both strategies are shown only if the names do not differ.
        let (old, new) = match before.spec.strategy.name == after.spec.strategy.name {
            true => (said(before), said(after)),
            false => (before.spec.strategy.name.to_owned(), after.spec.strategy.name.to_owned()),
        };
        changes.push(format!("~ group {name}: strategy {old} -> {new}"));
    }
    let keys = group_keys(before, after);
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
    let own = without_objects(&group.iiop) == without_objects(&other.iiop);
    let object = group.iiop.as_ref().filter(|_| own).and_then(|iiop| iiop.objects.get(member));
    (group.public.get(member).map(|public| &**public), group.hosts.get(member), object)
}

/// Returns the settings without the members' objects.
fn without_objects(iiop: &Option<IiopSettings>) -> Option<IiopSettings> {
    iiop.as_ref().map(|iiop| IiopSettings { objects: BTreeMap::new(), ..iiop.clone() })
}

/// Returns the keys of a `[[group]]` whose values differ, except for members and the strategy. Each field is
/// named once, so that a new one is not forgotten.
fn group_keys(before: &GroupSettings, after: &GroupSettings) -> Vec<&'static str> {
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
    } = before;
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
        ("health", *health == after.spec.health && *probe == after.probe),
        ("outlier", *outlier == after.spec.outlier),
        ("slow_start", *slow_start == after.spec.slow_start),
        ("when_all_down", *when_all_down == after.spec.when_all_down),
        ("admission", *admission == after.spec.admission),
        ("objective", *objective == after.spec.objective),
        ("aperture", *aperture == after.spec.aperture),
        ("iiop", without_objects(iiop) == without_objects(&after.iiop)),
        ("key", *key == after.key),
        ("timeouts", *timeouts == after.timeouts),
        ("retry", *retry == after.retry),
        ("load_report_header", *strip_reports == after.strip_reports),
        ("drain_hook", *hand_over == after.hand_over),
        ("on_drain", *keeps_drained == after.keeps_drained),
        ("max_rate", *max_rate == after.max_rate),
        ("queue", *queue == after.queue),
        ("queue_timeout", *queue_timeout == after.queue_timeout),
        ("max_idle_connections", *pool == after.pool),
        ("pool_idle_timeout", *pool_idle == after.pool_idle),
        ("send_proxy", *send_proxy == after.send_proxy),
        ("tls", *tls == after.tls),
        ("protocol", *http2 == after.http2),
    ];
    differing(&keys)
}

/// Returns the keys of a `[[listener]]` whose values differ, except for its group.
fn listener_keys(before: &ListenerSettings, after: &ListenerSettings) -> Vec<&'static str> {
    let ListenerSettings {
        // These identify the listener.
        address: _,
        backlog: _,
        group: _,
        protocol,
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
    } = before;
    let keys = [
        ("protocol", *protocol == after.protocol),
        ("groups", *others == after.others),
        match (binding, after.binding) {
            (BindingMode::OnDemand(one), BindingMode::OnDemand(other)) => ("rebind", *one == other),
            (one, other) => ("binding", *one == other),
        },
        ("affinity", *affinity == after.affinity),
        ("public", *public == after.public),
        ("rebind_idle", *move_idle == after.move_idle),
        ("accept_proxy", *accept_proxy == after.accept_proxy),
        ("priority", *priority == after.priority),
        ("timeouts", *timeouts == after.timeouts),
        ("max_header_bytes", *max_head == after.max_head),
        ("half_close", *half_close == after.half_close),
        ("upgrades", *upgrades == after.upgrades),
        ("forwarded", *forwarded == after.forwarded),
        ("trusted", *trusted == after.trusted),
        ("max_flows", *max_flows == after.max_flows),
        // The zone's answers for its name.
        ("domain or ttl", named(zone) == named(&after.zone)),
        ("answer_rate or answer_slip", rates(zone) == rates(&after.zone)),
        ("tls", *tls == after.tls),
    ];
    differing(&keys)
}

fn named(zone: &Option<ZoneSettings>) -> Option<(&str, u32)> {
    zone.as_ref().map(|zone| (&*zone.domain, zone.ttl))
}

fn rates(zone: &Option<ZoneSettings>) -> Option<(u32, u32)> {
    zone.as_ref().map(|zone| (zone.rate, zone.slip))
}

fn differing(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    keys.iter().filter(|(_, same)| !same).map(|(key, _)| *key).collect()
}
