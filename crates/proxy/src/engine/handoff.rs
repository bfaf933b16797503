//! Handoff: one process takes over from another without any effect on clients.
//!
//! 1. The old process gives copies of its sockets ([`Engine::sockets`]).
//! 2. The new one prepares everything but accepts no connection ([`Engine::prepare`]), so a failure up to
//!    here has no effect.
//! 3. It receives the old one's state and counters ([`Engine::handoff_state`], [`Engine::resume`]), and opens
//!    ([`Engine::open`]). From here on both processes accept on the same sockets.
//! 4. The old process leaves ([`Engine::retire`]): it accepts nothing more, closes connections between
//!    requests, and lets the rest continue until the deadline.
//!
//! No socket is closed in between, so no queue of waiting clients is lost.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use plimsoll_brain::{Event, EventKind, MemberHandoff};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Engine;
use crate::StartError;
use crate::control::bind::{ListenerSockets, distribute};
use crate::control::counter_snapshot::CounterSnapshot;
use crate::control::load_line::GroupLoadLine;
use crate::control::status_report;
use crate::control::{ControlPlane, SequencedEvent, SheddingTracker};
use crate::net::tls;
use crate::protocol::udp::{FlowDescription, HandoffFlow, ResumableFlow};
use crate::runtime::sync::lock;
use crate::worker::WorkerCommand;

/// The time limit for a thread to list its flows.
const FLOW_LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// The inherited state with which a data plane begins.
#[derive(Debug, Default)]
pub struct InheritedState {
    /// The start of the old process's clock ([`Engine::clock_start`]).
    pub clock_start: Option<u64>,
    /// Sockets that others bound. Those without a listener are closed.
    pub sockets: Vec<ListenerSockets>,
}

/// The state and counters for the new process. It ignores parts that it does not understand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoffState {
    reloads: u64,
    access_dropped: u64,
    spans_exported: u64,
    spans_dropped: u64,
    seq: u64,
    events: Vec<Value>,
    /// The state of members, by group.
    groups: BTreeMap<String, BTreeMap<String, Value>>,
    leases: Vec<Value>,
    counts: Value,
}

impl HandoffState {
    /// Returns the counters.
    pub fn counts(&self) -> CounterSnapshot {
        parse_part(self.counts.clone()).unwrap_or_default()
    }
}

impl Engine {
    /// Returns once each checked member's first health check has ended; until then the members get no
    /// requests.
    pub async fn until_checked(&self) {
        loop {
            // Any check that ends from here on is noticed.
            let probes_finished = self.0.probes_finished.notified();
            if !lock(&self.0.control).groups.values().any(|group_state| group_state.analyzer.awaits_checks())
            {
                return;
            }
            probes_finished.await;
        }
    }

    /// Accepts on all listeners; does nothing if they already accept.
    ///
    /// # Errors
    /// The process has no more file descriptors, or a thread cannot be reached.
    pub fn open(&self) -> Result<(), StartError> {
        let mut control = lock(&self.0.control);
        control.event_log.start_logging();
        if !std::mem::take(&mut control.held) {
            return Ok(());
        }
        let (cores, names) = (control.cores, control.listener_names());
        let mut flows = std::mem::take(&mut control.inherited_flows);
        for (index, name) in names.iter().enumerate() {
            let settings = control.settings.listeners[index].clone();
            let listener = &mut control.listeners[index];
            let address = listener.shared.address;
            let core_sockets = distribute(&settings, address, &mut listener.sockets, cores)
                .map_err(|source| StartError::Bind { address, source })?;
            let (Some(groups), listener) = (control.groups_of(&settings), &control.listeners[index]) else {
                continue;
            };
            let listener_flows = flows
                .extract_if(.., |flow| settings.protocol.is_datagram() && flow.description.listener == *name);
            let resumable_flows = listener_flows.map(
                |HandoffFlow {
                     description: FlowDescription { place: socket_index, client, local, member, .. },
                     socket,
                 }| { (socket_index, ResumableFlow { client, local, member, socket }) },
            );
            if !listener.disabled
                && !control.start_listener(
                    listener,
                    &settings,
                    &groups,
                    core_sockets,
                    resumable_flows.collect(),
                )
            {
                return Err(StartError::Stuck);
            }
        }
        Ok(())
    }

    /// Returns the start of the clock, on the system's monotonic clock, in nanoseconds.
    pub fn clock_start(&self) -> u64 {
        self.0.clock.start_nanos()
    }

    /// Returns copies of the sockets of all listeners, for another process.
    ///
    /// # Errors
    /// The process has no more file descriptors.
    pub fn sockets(&self) -> io::Result<Vec<ListenerSockets>> {
        let control = lock(&self.0.control);
        let listeners = control.settings.listeners.iter().zip(&control.listeners);
        let listener_sockets = listeners.map(|(settings, listener)| {
            let descriptors = listener.sockets.iter().map(|socket| Ok(OwnedFd::from(socket.try_clone()?)));
            Ok(ListenerSockets {
                address: settings.address,
                bound: listener.shared.address,
                datagrams: settings.protocol.is_datagram(),
                disabled: listener.disabled,
                sockets: descriptors.collect::<io::Result<_>>()?,
            })
        });
        listener_sockets.collect()
    }

    /// Returns the current state and counters.
    pub fn handoff_state(&self) -> HandoffState {
        // Serialized after the lock is released: with many members that takes long, and other tasks wait for
        // the slow path.
        let (seq, events, groups, leases, counts) = {
            let control = lock(&self.0.control);
            let (seq, events) = control.event_log.snapshot();
            let groups = control.groups.iter().map(|(name, group_state)| {
                let members =
                    group_state.analyzer.handoff().map(|(name, history)| (name.to_string(), history));
                (name.to_string(), members.collect::<Vec<_>>())
            });
            (seq, events.clone(), groups.collect::<Vec<_>>(), control.lease_snapshots(), control.counts())
        };
        let serialize_members = |members: Vec<(String, MemberHandoff)>| {
            members.iter().map(|(name, history)| (name.clone(), serialize_part(history))).collect()
        };
        HandoffState {
            reloads: self.0.reloads.load(Relaxed),
            access_dropped: self.0.access_dropped.load(Relaxed),
            spans_exported: self.0.spans.exported.load(Relaxed),
            spans_dropped: self.0.spans.dropped.load(Relaxed),
            seq,
            events: events.iter().map(serialize_part).collect(),
            groups: groups.into_iter().map(|(name, members)| (name, serialize_members(members))).collect(),
            leases: leases.iter().map(serialize_part).collect(),
            counts: serialize_part(&counts),
        }
    }

    /// Returns the current counters.
    pub fn counts(&self) -> CounterSnapshot {
        lock(&self.0.control).counts()
    }

    /// Continues with the state and counters of the old process, and returns its counters. To be called
    /// before [`Engine::open`].
    pub fn resume(&self, predecessor: HandoffState) -> CounterSnapshot {
        self.0.reloads.fetch_add(predecessor.reloads, Relaxed);
        self.0.access_dropped.fetch_add(predecessor.access_dropped, Relaxed);
        self.0.spans.exported.fetch_add(predecessor.spans_exported, Relaxed);
        self.0.spans.dropped.fetch_add(predecessor.spans_dropped, Relaxed);
        let now = self.0.clock.now();
        let counts = parse_part::<CounterSnapshot>(predecessor.counts).unwrap_or_default();
        let mut control = lock(&self.0.control);
        control.event_log.resume(
            predecessor.seq,
            predecessor.events.into_iter().filter_map(parse_part::<SequencedEvent>).collect(),
        );
        let mut groups = predecessor.groups;
        let ControlPlane { groups: group_states, cores, event_log, .. } = &mut *control;
        for (name, group_state) in group_states {
            let mut members = groups.remove(&**name).unwrap_or_default();
            group_state.analyzer.restore(|member| parse_part::<MemberHandoff>(members.remove(member)?), now);
            // The counters of the old process did not grow within an instant.
            group_state.load_line = GroupLoadLine::default();
            group_state.shedding.resume(event_log.last_kind(name, &SheddingTracker::KINDS), now);
            group_state.resume_slow(event_log, now);
            group_state.publish_changes(*cores, now, event_log);
        }
        control.add_counts(&counts);
        control.resume_leases(predecessor.leases.into_iter().filter_map(parse_part), now);
        drop(control);
        self.0.wake.notify_one();
        counts
    }

    /// Lends all datagram flows to another process. Clients' datagrams wait until the flows are taken back
    /// ([`Engine::take_back_flows`]), or until this process leaves its sockets.
    pub fn lend_flows(&self) -> Vec<HandoffFlow> {
        let (reply, flow_receiver) = mpsc::channel();
        let names: BTreeMap<u64, String> = {
            let control = lock(&self.0.control);
            control.send_to_workers(|| WorkerCommand::Lend(reply.clone()));
            control.listeners.iter().map(|listener| listener.id).zip(control.listener_names()).collect()
        };
        drop(reply);
        let mut flows = Vec::new();
        // A thread that is far behind keeps its flows until it leaves.
        while let Ok(core_flows) = flow_receiver.recv_timeout(FLOW_LIST_TIMEOUT) {
            flows.extend(core_flows.into_iter().filter_map(
                |(id, socket_index, ResumableFlow { client, local, member, socket })| {
                    let listener = names.get(&id)?.clone();
                    Some(HandoffFlow {
                        description: FlowDescription { listener, place: socket_index, client, local, member },
                        socket,
                    })
                },
            ));
        }
        flows
    }

    /// Resumes the flows that were lent.
    pub fn take_back_flows(&self) {
        lock(&self.0.control).send_to_workers(|| WorkerCommand::TakeBack);
    }

    /// Continues the flows of the old process. To be called before [`Engine::open`].
    pub fn resume_flows(&self, flows: Vec<HandoffFlow>) {
        lock(&self.0.control).inherited_flows = flows;
    }

    /// Returns the number of client connections that are open at the listeners; for datagrams, of flows.
    pub fn connections(&self) -> u64 {
        lock(&self.0.control).listeners.iter().map(status_report::connections).sum()
    }

    /// Adds the counters of the old process since its last report, and its work in flight.
    pub fn add_counts(&self, counts: &CounterSnapshot) {
        lock(&self.0.control).add_counts(counts);
    }

    /// Records that the old process has ended: nothing is in flight there.
    pub fn predecessor_ended(&self) {
        let mut control = lock(&self.0.control);
        control.predecessor_load.clear();
        control.listeners.iter().for_each(|listener| listener.shared.bindings.clear_predecessor());
    }

    /// Leaves the sockets to another process: accepts nothing more, and closes connections between requests.
    pub fn leave_sockets(&self) {
        let mut control = lock(&self.0.control);
        // A client that uses its connection later than that finds it closed, as may happen at any time.
        let idle_grace = control.settings.drain_deadline.min(control.settings.upgrade_deadline) / 2;
        if !self.0.stopping.swap(true, Relaxed) {
            control.listeners.iter_mut().for_each(|listener| listener.sockets.clear());
            control.send_to_workers(|| WorkerCommand::Stop { idle_grace, handed_off: true });
        }
    }

    /// Leaves the sockets as [`Engine::leave_sockets`], and lets the rest end until the configured deadline.
    /// Returns the number of connections that were cut. Must be called within a tokio runtime that has
    /// timers.
    pub async fn retire(&self) -> u64 {
        self.leave_sockets();
        let deadline = self.0.clock.now() + lock(&self.0.control).settings.upgrade_deadline;
        self.shut_down(deadline).await
    }

    /// Returns `true` if the data plane is stopping, or has left its sockets to another process.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Relaxed)
    }

    /// Writes an event about the outcome of an upgrade.
    pub fn write_upgrade_event(&self, kind: EventKind, message: String) {
        let event = Event { kind, group: "".into(), member: None, why: message, inputs: Vec::new() };
        lock(&self.0.control).event_log.write(event);
    }

    /// Returns the secret keys by which clients resume their TLS sessions, for another process of this
    /// balancer.
    pub fn ticket_keys() -> Value {
        serde_json::to_value(tls::ticket_keys()).unwrap_or(Value::Null)
    }

    /// Continues with the keys of the old process. To be called before listeners with TLS are created.
    pub fn resume_ticket_keys(keys: Value) {
        if let Some(keys) = parse_part(keys) {
            tls::restore_ticket_keys(keys);
        }
    }
}

impl ControlPlane {
    /// Returns the listeners' names in messages between processes.
    pub(crate) fn listener_names(&self) -> Vec<String> {
        let mut counts = BTreeMap::<String, usize>::new();
        let names = self.settings.listeners.iter().map(|listener| {
            let transport = if listener.protocol.is_datagram() { "udp" } else { "tcp" };
            let name = format!("{transport} {}", listener.address);
            let rank = counts.entry(name.clone()).or_default();
            *rank += 1;
            format!("{name} {rank}")
        });
        names.collect()
    }
}

/// Serializes a part, for another version.
fn serialize_part(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Parses a part that another version wrote, if it is understood.
fn parse_part<T: for<'de> Deserialize<'de>>(value: Value) -> Option<T> {
    serde_json::from_value(value)
        .inspect_err(|error| tracing::debug!("a part of what was left is not understood: {error}"))
        .ok()
}
