//! What there is to be seen: the counts of all cores, summed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::Urgency;
use plimsoll_brain::status::{
    BindingStatus, GroupStatus, ListenerStatus, MemberStatus, Status, UrgencyStatus,
};

use crate::control::{Control, Opened, Ruled};
use crate::group::{Record, Stripe, Tally};
use crate::inner::{Inner, lock};
use crate::reason;
use crate::stats::{Count, Merged};
use crate::{Binding, ListenerSettings};

/// Version of the shape of [`Status`].
const SCHEMA: u32 = 1;
/// Bounds of the latency histogram that is exported, in seconds.
const BOUNDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted of one member since it joined.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberCounters {
    /// As configured.
    pub name: Arc<str>,
    /// Requests, sessions or flows it works on now.
    pub in_flight: u32,
    /// Those that have ended.
    pub requests: u64,
    /// Seconds that these took, added up.
    pub seconds: f64,
}

pub(crate) fn status(inner: &Inner) -> Status {
    let control = lock(&inner.control);
    let now = inner.clock.now();
    let error = lock(&inner.reload_error).clone();
    Status {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: now.0 as f64 / 1e9,
        threads: control.cores,
        stopping: inner.stopping.load(Relaxed),
        last_reload_successful: error.is_none(),
        last_reload_error: error,
        reloads: inner.reloads.load(Relaxed),
        listeners: listeners(&control),
        groups: control
            .settings
            .groups
            .iter()
            .filter_map(|settings| control.groups.get(&settings.spec.name))
            .map(|ruled| {
                let of = |listener: &&ListenerSettings| listener.leads_to(&ruled.group.name);
                let mut listeners = control.settings.listeners.iter().filter(of);
                group(ruled, listeners.any(|listener| listener.priority.is_some()), now)
            })
            .collect(),
        access_log_dropped: inner.access_dropped.load(Relaxed),
        // Whoever reads certificates fills it in.
        certificates: Vec::new(),
        spans_exported: inner.spans.exported.load(Relaxed),
        spans_dropped: inner.spans.dropped.load(Relaxed),
    }
}

pub(crate) fn buckets(inner: &Inner, group: &str) -> Vec<(f64, u64)> {
    match lock(&inner.control).groups.get(group) {
        Some(ruled) => latency(&ruled.group.tallies).below(&BOUNDS),
        None => Vec::new(),
    }
}

/// See [`Engine::counters`](crate::Engine::counters).
pub(crate) fn counters(inner: &Inner, group: &str) -> Vec<MemberCounters> {
    let control = lock(&inner.control);
    let Some(ruled) = control.groups.get(group) else { return Vec::new() };
    let members = ruled.analyzer.members().filter_map(|(id, spec, vitals)| {
        let stripes = &ruled.record(id)?.stripes;
        Some(MemberCounters {
            name: Arc::clone(&spec.name),
            in_flight: vitals.in_flight(),
            requests: stripes.iter().map(|stripe| stripe.requests.value()).sum(),
            seconds: stripes.iter().map(|stripe| stripe.latency.seconds()).sum(),
        })
    });
    members.collect()
}

pub(crate) fn latency(tallies: &[Tally]) -> Merged {
    Merged::of(tallies.iter().map(|tally| &tally.latency))
}

fn listeners(control: &Control) -> Vec<ListenerStatus> {
    let of = control.settings.listeners.iter().zip(&control.listeners);
    of.map(|(settings, open)| {
        let sum = |count: fn(&crate::listener::DoorCount) -> &Count| -> u64 {
            open.door.counts.iter().map(|of_core| count(of_core).value()).sum()
        };
        ListenerStatus {
            address: open.door.address.to_string(),
            protocol: settings.label().to_owned(),
            group: settings.group.to_string(),
            binding: match settings.affinity {
                Some(_) => "affinity".to_owned(),
                None => binding(settings.binding).to_owned(),
            },
            bindings: bindings(control, settings, open),
            connections: sum(|count| &count.open),
            accepted: sum(|count| &count.accepted),
            refused: sum(|count| &count.refused),
            disabled: open.disabled,
        }
    })
    .collect()
}

fn binding(binding: Binding) -> &'static str {
    match binding {
        Binding::PerRequest => "per_request",
        Binding::PerSession => "per_session",
        Binding::OnDemand(_) => "on_demand",
    }
}

/// Nothing where a member is chosen for each request.
fn bindings(control: &Control, settings: &ListenerSettings, open: &Opened) -> Vec<BindingStatus> {
    let binds = settings.binding != Binding::PerRequest || settings.affinity.is_some();
    let ruled = control.groups.get(&settings.group).filter(|_| binds);
    let members = ruled.into_iter().flat_map(|ruled| {
        ruled.analyzer.members().filter_map(|(id, spec, _)| Some((spec.name.to_string(), ruled.record(id)?)))
    });
    members
        .map(|(member, record)| {
            let (bound, moved) = open.door.ties.counts(record);
            BindingStatus { member, bound, moved }
        })
        .collect()
}

/// `asks`: are requests asked how urgent they are?
fn group(ruled: &Ruled, asks: bool, now: plimsoll_brain::Time) -> GroupStatus {
    let tallies = &ruled.group.tallies;
    let sum = |count: &dyn Fn(&Tally) -> u64| -> u64 { tallies.iter().map(count).sum() };
    let members: Vec<MemberStatus> = ruled
        .analyzer
        .status(now)
        .into_iter()
        .map(|(id, mut status)| {
            if let Some(record) = ruled.record(id) {
                fill(&mut status, record);
            }
            status.load_line = ruled.load_line.member(id);
            status
        })
        .collect();
    let rejected = reason::ALL
        .iter()
        .map(|reason| (reason.label().to_owned(), sum(&|tally| tally.rejected[*reason as usize].value())))
        .collect();
    GroupStatus {
        name: ruled.group.name.to_string(),
        strategy: ruled.settings.spec.strategy.name.to_owned(),
        // Whoever holds the data plane knows.
        balancing_disabled: false,
        verdict: ruled.analyzer.verdict(),
        healthy: !ruled.group.published().plan.members().is_empty(),
        load: ruled.analyzer.load(now),
        members,
        rejected,
        retries: sum(&|tally| tally.retries.value()),
        retries_denied: sum(&|tally| tally.retries_denied.value()),
        hand_overs: ruled.hand_overs.done,
        hand_overs_failed: ruled.hand_overs.failed,
        queued: ruled.group.room.waiting(),
        waits: Merged::of(tallies.iter().map(|tally| &tally.waits)).latency(),
        urgencies: (0..Urgency::COUNT)
            .filter(|_| asks)
            .map(|urgency| UrgencyStatus {
                urgency: urgency as u8,
                served: sum(&|tally| tally.urgencies[urgency].served.value()),
                refused: sum(&|tally| tally.urgencies[urgency].refused.value()),
            })
            .collect(),
        latency: latency(tallies).latency(),
        load_line: ruled.load_line.status(),
        discovery: Vec::new(),
    }
}

/// Sessions that a member under alert sent elsewhere.
pub(crate) fn moved(record: &Record) -> u64 {
    let sessions: u64 = record.stripes.iter().map(|stripe| stripe.moved.value()).sum();
    sessions + record.lent.moved.load(Relaxed)
}

fn fill(status: &mut MemberStatus, record: &Record) {
    let sum = |count: &dyn Fn(&Stripe) -> &Count| -> u64 {
        record.stripes.iter().map(|stripe| count(stripe).value()).fold(0, u64::wrapping_add)
    };
    status.idle_connections = sum(&|stripe| &stripe.idle);
    status.requests = sum(&|stripe| &stripe.requests);
    status.failures = sum(&|stripe| &stripe.failures);
    status.connects = sum(&|stripe| &stripe.connects);
    status.bytes_out = sum(&|stripe| &stripe.bytes_out);
    status.bytes_in = sum(&|stripe| &stripe.bytes_in);
    status.moved = moved(record);
    status.leases = record.lent.held.load(Relaxed);
    status.answers = CLASSES
        .iter()
        .enumerate()
        .map(|(class, label)| ((*label).to_owned(), sum(&|stripe| &stripe.answers[class])))
        .collect::<BTreeMap<_, _>>();
    status.latency = Merged::of(record.stripes.iter().map(|stripe| &stripe.latency)).latency();
}
