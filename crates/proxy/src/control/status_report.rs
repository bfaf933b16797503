//! The status: the counters of all cores, summed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::status::{
    BindingStatus, GroupStatus, ListenerStatus, MemberStatus, MemoryStatus, StatusReport, UrgencyStatus,
};
use plimsoll_brain::{MemberId, MemberSpec, Urgency, Vitals};

use crate::control::engine_shared::EngineShared;
use crate::control::{ControlPlane, GroupState, ListenerState};
use crate::net::reason;
use crate::runtime::sync::lock;
use crate::upstream::group::{GroupCounters, MemberCoreCounters, MemberRecord, SharedGroup};
use crate::upstream::stats::{Counter, HistogramSum};
use crate::{BindingMode, ListenerSettings};

/// The version of the shape of [`StatusReport`].
const SCHEMA: u32 = 1;
/// The bounds of the exported latency histogram, in seconds.
const BOUNDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The counters of one member since it was added.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberCounters {
    /// The name, as configured.
    pub name: Arc<str>,
    /// The requests, sessions or flows in flight.
    pub in_flight: u32,
    /// The number of those that have ended.
    pub requests: u64,
    /// The sum of their durations, in seconds.
    pub seconds: f64,
}

/// A snapshot of a group, for the autoscaler.
#[derive(Clone, Debug)]
pub struct GroupSnapshot {
    /// The group's part of the status.
    pub status: GroupStatus,
    /// The requests since the start, by latency; [`GroupSnapshot::bucket_seconds`] returns the latency of
    /// each entry.
    pub latency_counts: Vec<u64>,
    /// The utilization of each member's processors, from agents' recent reports.
    pub processors: BTreeMap<String, f64>,
    /// For each member, the requests per second from other balancers, and the requests waiting there for room
    /// at it; only members with any.
    pub other_balancers: BTreeMap<String, (f64, f64)>,
}

impl GroupSnapshot {
    /// Returns the latency in seconds of each entry of `latency_counts`, ascending.
    pub fn bucket_seconds() -> Vec<f64> {
        HistogramSum::bucket_middles()
    }
}

pub(crate) fn status(inner: &EngineShared) -> StatusReport {
    let now = inner.clock.now();
    let error = lock(&inner.reload_error).clone();
    let (threads, listeners, group_names, urgency_groups) = {
        let control = lock(&inner.control);
        let group_names: Vec<_> =
            control.settings.groups.iter().map(|group| Arc::clone(&group.spec.name)).collect();
        let urgency_listeners =
            control.settings.listeners.iter().filter(|listener| listener.priority.is_some());
        let urgency_groups: BTreeSet<Arc<str>> =
            urgency_listeners.flat_map(ListenerSettings::reachable_groups).cloned().collect();
        (control.cores, listeners(&control), group_names, urgency_groups)
    };
    // Locks for each group separately: for all of many groups, it would delay changes.
    let group_status = |name: &Arc<str>| {
        Some(group(lock(&inner.control).groups.get(name)?, urgency_groups.contains(name), now))
    };
    let groups = group_names.iter().filter_map(group_status).collect();
    let (budget, used, rejected) = inner.limits.memory.status();
    StatusReport {
        memory: MemoryStatus { budget_bytes: budget as u64, kept_bytes: used as u64, refused: rejected },
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: now.since(inner.started_at).as_secs_f64(),
        threads,
        stopping: inner.stopping.load(Relaxed),
        last_reload_successful: error.is_none(),
        last_reload_error: error,
        reloads: inner.reloads.load(Relaxed),
        listeners,
        groups,
        access_log_dropped: inner.access_dropped.load(Relaxed),
        // The caller that reads certificates fills this in.
        certificates: Vec::new(),
        fleet: None,
        store: None,
        spans_exported: inner.spans.exported.load(Relaxed),
        spans_dropped: inner.spans.dropped.load(Relaxed),
    }
}

pub(crate) fn buckets(inner: &EngineShared, group: &str) -> Vec<(f64, u64)> {
    match lock(&inner.control).groups.get(group) {
        Some(group_state) => latency(&group_state.group).below(&BOUNDS),
        None => Vec::new(),
    }
}

/// Implements [`Engine::member_counters`](crate::Engine::member_counters).
pub(crate) fn counters(inner: &EngineShared, group: &str) -> Vec<MemberCounters> {
    let control = lock(&inner.control);
    let Some(group_state) = control.groups.get(group) else { return Vec::new() };
    let members = group_state.analyzer.members().filter_map(|(id, spec, vitals)| {
        let record = group_state.record(id)?;
        Some(MemberCounters {
            name: Arc::clone(&spec.name),
            in_flight: vitals.in_flight(),
            requests: record.all_counters().map(|counters| counters.requests.value()).sum(),
            seconds: record.all_counters().map(|counters| counters.latency.seconds()).sum(),
        })
    });
    members.collect()
}

/// Implements [`Engine::group_snapshot`](crate::Engine::group_snapshot).
pub(crate) fn group_snapshot(inner: &EngineShared, name: &str) -> Option<GroupSnapshot> {
    let control = lock(&inner.control);
    let group_state = control.groups.get(name)?;
    let now = inner.clock.now();
    Some(GroupSnapshot {
        status: group(group_state, false, now),
        latency_counts: latency(&group_state.group).counts().to_vec(),
        processors: group_state.processors(now),
        other_balancers: other_balancers(group_state),
    })
}

/// Returns the members' work for other balancers.
fn other_balancers(group_state: &GroupState) -> BTreeMap<String, (f64, f64)> {
    let peer_load = |(_, spec, vitals): (MemberId, &MemberSpec, &Arc<Vitals>)| {
        let rate_and_waiting = vitals.peer_rate_and_waiting();
        (rate_and_waiting != (0.0, 0.0)).then(|| (spec.name.to_string(), rate_and_waiting))
    };
    group_state.analyzer.members().filter_map(peer_load).collect()
}

pub(crate) fn latency(group: &SharedGroup) -> HistogramSum {
    HistogramSum::merge(group.all_counters().map(|counters| &counters.latency))
}

fn listeners(control: &ControlPlane) -> Vec<ListenerStatus> {
    let listeners = control.settings.listeners.iter().zip(&control.listeners);
    listeners
        .map(|(settings, state)| {
            let sum = |count: fn(&crate::listener::ListenerCounters) -> &Counter| -> u64 {
                state.shared.all_counters().map(|counters| count(counters).value()).sum()
            };
            ListenerStatus {
                address: state.shared.address.to_string(),
                protocol: settings.label().to_owned(),
                group: settings.group.to_string(),
                others: other_groups(settings),
                binding: match settings.affinity {
                    Some(_) => "affinity".to_owned(),
                    None => binding(settings.binding).to_owned(),
                },
                bindings: bindings(control, settings, state),
                connections: connections(state),
                accepted: sum(|count| &count.accepted),
                refused: sum(|count| &count.refused),
                disabled: state.disabled,
            }
        })
        .collect()
}

/// Returns the groups beside its own that clients of a listener may use, each once.
fn other_groups(settings: &ListenerSettings) -> Vec<String> {
    let mut others: Vec<String> = Vec::new();
    for group in settings.reachable_groups().filter(|group| **group != settings.group) {
        if !others.iter().any(|other| **other == **group) {
            others.push(group.to_string());
        }
    }
    others
}

/// Returns the number of open connections or flows of a listener.
pub(crate) fn connections(listener: &ListenerState) -> u64 {
    listener.shared.all_counters().map(|counters| counters.open.value()).sum()
}

fn binding(binding: BindingMode) -> &'static str {
    match binding {
        BindingMode::PerRequest => "per_request",
        BindingMode::PerSession => "per_session",
        BindingMode::OnDemand(_) => "on_demand",
    }
}

/// Returns the bound sessions by member, for members with any. Empty if a member is chosen for each request.
pub(crate) fn bindings(
    control: &ControlPlane,
    settings: &ListenerSettings,
    state: &ListenerState,
) -> Vec<BindingStatus> {
    let keeps_bindings = settings.binding != BindingMode::PerRequest || settings.affinity.is_some();
    let group_state = control.groups.get(&settings.group).filter(|_| keeps_bindings);
    let members = group_state.into_iter().flat_map(|group_state| {
        group_state
            .analyzer
            .members()
            .filter_map(|(id, spec, _)| Some((spec.name.to_string(), group_state.record(id)?)))
    });
    members
        .map(|(member, record)| {
            let (bound, moved) = state.shared.bindings.counts(record);
            BindingStatus { member, bound, moved }
        })
        .collect()
}

/// Returns the status of a group. `asks` is `true` if requests' urgency is read.
fn group(group_state: &GroupState, reads_urgency: bool, now: plimsoll_brain::Time) -> GroupStatus {
    let all_counters = || group_state.group.all_counters();
    let sum = |count: &dyn Fn(&GroupCounters) -> u64| -> u64 { all_counters().map(count).sum() };
    let members: Vec<MemberStatus> = group_state
        .analyzer
        .status(now)
        .into_iter()
        .map(|(id, mut status)| {
            if let Some(record) = group_state.record(id) {
                fill_counters(&mut status, record);
            }
            status.refused = group_state.shedding.member_rejections(id);
            status.slow_seconds =
                group_state.slow_members.since(id).map(|since| now.since(since).as_secs_f64());
            status.load_line = group_state.load_line.member(id);
            status.host = group_state.hosts.shared_status(id).cloned();
            status
        })
        .collect();
    let rejected = reason::ALL
        .iter()
        .map(|reason| {
            (reason.label().to_owned(), sum(&|counters| counters.rejected[*reason as usize].value()))
        })
        .collect();
    GroupStatus {
        name: group_state.group.name.to_string(),
        strategy: group_state.settings.spec.strategy.name.to_owned(),
        // The owner of the data plane fills this in.
        balancing_disabled: false,
        verdict: group_state.analyzer.verdict(),
        healthy: !group_state.group.published().plan.members().is_empty(),
        load: group_state.analyzer.load(now),
        members,
        rejected,
        shedding_seconds: group_state.shedding.since().map(|since| now.since(since).as_secs_f64()),
        shedding_share: group_state.shedding.share(),
        shedding_reason: group_state.shedding.reason().map(|reason| reason.label().to_owned()),
        retries: sum(&|counters| counters.retries.value()),
        retries_denied: sum(&|counters| counters.retries_denied.value()),
        hand_overs: group_state.hooks.succeeded,
        hand_overs_failed: group_state.hooks.failed,
        queued: group_state.group.wait_queue.waiting(),
        waits: HistogramSum::merge(all_counters().map(|counters| &counters.waits)).latency(),
        urgencies: (0..Urgency::COUNT)
            .filter(|_| reads_urgency)
            .map(|urgency| UrgencyStatus {
                urgency: urgency as u8,
                served: sum(&|counters| counters.urgencies[urgency].served.value()),
                refused: sum(&|counters| counters.urgencies[urgency].rejected.value()),
            })
            .collect(),
        latency: latency(&group_state.group).latency(),
        load_line: group_state.load_line.status(),
        // The caller that queries sources and starts members fills these in.
        discovery: Vec::new(),
        scaler: None,
    }
}

/// Returns the number of sessions and leases that moved from a member under alert.
pub(crate) fn moved_sessions(record: &MemberRecord) -> u64 {
    let sessions: u64 = record.all_counters().map(|counters| counters.moved.value()).sum();
    sessions + record.leases.moved.load(Relaxed)
}

fn fill_counters(status: &mut MemberStatus, record: &MemberRecord) {
    let sum = |count: &dyn Fn(&MemberCoreCounters) -> &Counter| -> u64 {
        record.all_counters().map(|counters| count(counters).value()).fold(0, u64::wrapping_add)
    };
    status.idle_connections = sum(&|counters| &counters.idle);
    status.requests = sum(&|counters| &counters.requests);
    status.failures = sum(&|counters| &counters.failures);
    status.clients_left = sum(&|counters| &counters.client_left);
    status.connects = sum(&|counters| &counters.connects);
    status.bytes_out = sum(&|counters| &counters.bytes_out);
    status.bytes_in = sum(&|counters| &counters.bytes_in);
    status.moved = moved_sessions(record);
    status.leases = record.leases.held.load(Relaxed);
    status.answers = CLASSES
        .iter()
        .enumerate()
        .map(|(class, label)| ((*label).to_owned(), sum(&|counters| &counters.responses[class])))
        .collect::<BTreeMap<_, _>>();
    status.latency = HistogramSum::merge(record.all_counters().map(|counters| &counters.latency)).latency();
}
