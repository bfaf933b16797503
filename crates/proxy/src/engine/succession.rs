//! One process takes over from another without anybody noticing: what is left, how it is taken, and how the one before ends.
//!
//! The process before gives copies of its sockets ([`Engine::sockets`]). The next one prepares everything but accepts nobody
//! ([`Engine::prepare`]), so whatever goes wrong until then concerns nobody. Then it is told what is known and counted
//! ([`Engine::legacy`], [`Engine::recall`]), and opens ([`Engine::open`]). From here on both accept on the same sockets, until
//! the one before leaves ([`Engine::retire`]): it accepts nothing more, ends connections between requests, and lets the rest
//! go on until the deadline. No socket is ever closed in between, and so no queue of clients that wait to be accepted.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use plimsoll_brain::{Event, EventKind, Past};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Engine;
use crate::bind::{Bound, deal};
use crate::control::{Control, Refusals, Stamped};
use crate::counts::Counts;
use crate::inner::lock;
use crate::load_line::Survey;
use crate::udp::{FlowAbout, Lent, LentFlow};
use crate::worker::Order;
use crate::{StartError, report, tls};

/// For a thread to tell its flows.
const LENDING: Duration = Duration::from_secs(1);

/// What a data plane begins with that is not its own.
#[derive(Debug, Default)]
pub struct Estate {
    /// The moment that the process before counts time from ([`Engine::begin`]).
    pub begin: Option<u64>,
    /// Sockets that others bound. Those that no listener is for are closed.
    pub sockets: Vec<Bound>,
}

/// What is known and counted, for the process that takes over. What that does not understand of it, it does without.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Legacy {
    reloads: u64,
    access_dropped: u64,
    spans_exported: u64,
    spans_dropped: u64,
    seq: u64,
    events: Vec<Value>,
    /// What is known of members, by group.
    groups: BTreeMap<String, BTreeMap<String, Value>>,
    leases: Vec<Value>,
    counts: Value,
}

impl Legacy {
    /// What was counted.
    pub fn counts(&self) -> Counts {
        known(self.counts.clone()).unwrap_or_default()
    }
}

impl Engine {
    /// Returns once each member's first check has ended, where members are checked: before that nobody can be sent to it.
    pub async fn checked(&self) {
        loop {
            // Whatever ends from here on is not missed.
            let ended = self.0.checked.notified();
            if !lock(&self.0.control).groups.values().any(|ruled| ruled.analyzer.awaits_checks()) {
                return;
            }
            ended.await;
        }
    }

    /// Accepts on all listeners; nothing if it does already.
    ///
    /// # Errors
    /// There are no more files, or a thread cannot be told.
    pub fn open(&self) -> Result<(), StartError> {
        let mut control = lock(&self.0.control);
        control.journal.speak();
        if !std::mem::take(&mut control.held) {
            return Ok(());
        }
        let (cores, names) = (control.cores, control.listener_names());
        let mut flows = std::mem::take(&mut control.flows);
        for (place, name) in names.iter().enumerate() {
            let settings = control.settings.listeners[place].clone();
            let open = &mut control.listeners[place];
            let address = open.door.address;
            let hands = deal(&settings, address, &mut open.sockets, cores)
                .map_err(|source| StartError::Bind { address, source })?;
            let (Some(groups), open) = (control.groups_of(&settings), &control.listeners[place]) else {
                continue;
            };
            let own =
                flows.extract_if(.., |flow| settings.protocol.datagrams() && flow.about.listener == *name);
            let own =
                own.map(|LentFlow { about: FlowAbout { place, client, local, member, .. }, socket }| {
                    (place, Lent { client, local, member, socket })
                });
            if !open.disabled && !control.listen(open, &settings, &groups, hands, own.collect()) {
                return Err(StartError::Stuck);
            }
        }
        Ok(())
    }

    /// The moment that time is counted from, on the system's monotonic clock, in nanoseconds.
    pub fn begin(&self) -> u64 {
        self.0.clock.begin()
    }

    /// Copies of the sockets of all listeners, for another process.
    ///
    /// # Errors
    /// There are no more files.
    pub fn sockets(&self) -> io::Result<Vec<Bound>> {
        let control = lock(&self.0.control);
        let of = control.settings.listeners.iter().zip(&control.listeners);
        let bound = of.map(|(settings, open)| {
            let copies = open.sockets.iter().map(|socket| Ok(OwnedFd::from(socket.try_clone()?)));
            Ok(Bound {
                address: settings.address,
                bound: open.door.address,
                datagrams: settings.protocol.datagrams(),
                disabled: open.disabled,
                sockets: copies.collect::<io::Result<_>>()?,
            })
        });
        bound.collect()
    }

    /// What is known and counted now.
    pub fn legacy(&self) -> Legacy {
        // Written out only afterwards: with many members that takes long, and others wait for the slow path meanwhile.
        let (seq, events, groups, leases, counts) = {
            let control = lock(&self.0.control);
            let (seq, events) = control.journal.past();
            let groups = control.groups.iter().map(|(name, ruled)| {
                let members = ruled.analyzer.past().map(|(name, past)| (name.to_string(), past));
                (name.to_string(), members.collect::<Vec<_>>())
            });
            (seq, events.clone(), groups.collect::<Vec<_>>(), control.leases_left(), control.counts())
        };
        let members =
            |all: Vec<(String, Past)>| all.iter().map(|(name, past)| (name.clone(), json(past))).collect();
        Legacy {
            reloads: self.0.reloads.load(Relaxed),
            access_dropped: self.0.access_dropped.load(Relaxed),
            spans_exported: self.0.spans.exported.load(Relaxed),
            spans_dropped: self.0.spans.dropped.load(Relaxed),
            seq,
            events: events.iter().map(json).collect(),
            groups: groups.into_iter().map(|(name, all)| (name, members(all))).collect(),
            leases: leases.iter().map(json).collect(),
            counts: json(&counts),
        }
    }

    /// What is counted so far.
    pub fn counts(&self) -> Counts {
        lock(&self.0.control).counts()
    }

    /// Goes on with what a process before this one knew and counted. To be called before [`Engine::open`]. Returns what was
    /// counted there.
    pub fn recall(&self, legacy: Legacy) -> Counts {
        self.0.reloads.fetch_add(legacy.reloads, Relaxed);
        self.0.access_dropped.fetch_add(legacy.access_dropped, Relaxed);
        self.0.spans.exported.fetch_add(legacy.spans_exported, Relaxed);
        self.0.spans.dropped.fetch_add(legacy.spans_dropped, Relaxed);
        let now = self.0.clock.now();
        let counts = known::<Counts>(legacy.counts).unwrap_or_default();
        let mut control = lock(&self.0.control);
        control.journal.recall(legacy.seq, legacy.events.into_iter().filter_map(known::<Stamped>).collect());
        let mut groups = legacy.groups;
        let Control { groups: ruled, cores, journal, .. } = &mut *control;
        for (name, ruled) in ruled {
            let mut members = groups.remove(&**name).unwrap_or_default();
            ruled.analyzer.recall(|member| known::<Past>(members.remove(member)?), now);
            // What was counted elsewhere did not come in an instant.
            ruled.load_line = Survey::default();
            ruled.refusals.recall(journal.last_of(name, &Refusals::KINDS), now);
            ruled.recall_slow(journal, now);
            ruled.settle(*cores, now, journal);
        }
        control.add_counts(&counts);
        control.take_leases(legacy.leases.into_iter().filter_map(known), now);
        drop(control);
        self.0.wake.notify_one();
        counts
    }

    /// Lends all flows of datagrams to another process. Until they are taken back ([`Engine::take_back_flows`]), or this process
    /// leaves its sockets, datagrams of clients wait.
    pub fn lend_flows(&self) -> Vec<LentFlow> {
        let (reply, lent) = mpsc::channel();
        let names: BTreeMap<u64, String> = {
            let control = lock(&self.0.control);
            control.order_all(|| Order::Lend(reply.clone()));
            control.listeners.iter().map(|open| open.id).zip(control.listener_names()).collect()
        };
        drop(reply);
        let mut flows = Vec::new();
        // Who is hopelessly behind keeps what it has until it leaves.
        while let Ok(of_core) = lent.recv_timeout(LENDING) {
            flows.extend(of_core.into_iter().filter_map(
                |(id, place, Lent { client, local, member, socket })| {
                    let listener = names.get(&id)?.clone();
                    Some(LentFlow { about: FlowAbout { listener, place, client, local, member }, socket })
                },
            ));
        }
        flows
    }

    /// Goes on with the flows that were lent.
    pub fn take_back_flows(&self) {
        lock(&self.0.control).order_all(|| Order::TakeBack);
    }

    /// Goes on with flows of a process before this one. To be called before [`Engine::open`].
    pub fn recall_flows(&self, flows: Vec<LentFlow>) {
        lock(&self.0.control).flows = flows;
    }

    /// Connections of clients that are open at the listeners; flows, where they take datagrams.
    pub fn connections(&self) -> u64 {
        lock(&self.0.control).listeners.iter().map(report::connections).sum()
    }

    /// Adds what a process that was taken over from has counted since it was last told, and what it still has in flight.
    pub fn add_counts(&self, counts: &Counts) {
        lock(&self.0.control).add_counts(counts);
    }

    /// The process that was taken over from has ended: nothing is in flight there.
    pub fn predecessor_ended(&self) {
        let mut control = lock(&self.0.control);
        control.elsewhere.clear();
        control.listeners.iter().for_each(|open| open.door.ties.ended());
    }

    /// Leaves the sockets to another process: accepts nothing more, and ends connections between requests.
    pub fn leave(&self) {
        let mut control = lock(&self.0.control);
        // Whoever comes back to a connection later than that finds it closed, as it may at any time.
        let parting = control.settings.drain_deadline.min(control.settings.upgrade_deadline) / 2;
        if !self.0.stopping.swap(true, Relaxed) {
            control.listeners.iter_mut().for_each(|open| open.sockets.clear());
            control.order_all(|| Order::Stop { parting, left: true });
        }
    }

    /// The same, and lets what is left end until the deadline of the settings; how many connections were cut. Must be called
    /// within a tokio runtime that has timers.
    pub async fn retire(&self) -> u64 {
        self.leave();
        let deadline = self.0.clock.now() + lock(&self.0.control).settings.upgrade_deadline;
        self.wind_up(deadline).await
    }

    /// Does it stop, or has it left its sockets to another process?
    pub fn stopping(&self) -> bool {
        self.0.stopping.load(Relaxed)
    }

    /// Writes down what became of an upgrade.
    pub fn upgraded(&self, kind: EventKind, why: String) {
        let event = Event { kind, group: "".into(), member: None, why, inputs: Vec::new() };
        lock(&self.0.control).journal.write(event);
    }

    /// The keys by which clients resume their sessions of TLS, for another process of ours: secrets.
    pub fn ticket_keys() -> Value {
        serde_json::to_value(tls::ticket_keys()).unwrap_or(Value::Null)
    }

    /// Goes on with the keys of a process before this one. To be called before listeners with TLS are made.
    pub fn recall_ticket_keys(keys: Value) {
        if let Some(keys) = known(keys) {
            tls::recall_ticket_keys(keys);
        }
    }
}

impl Control {
    /// What listeners are called where one process tells another of them.
    pub(crate) fn listener_names(&self) -> Vec<String> {
        let mut seen = BTreeMap::<String, usize>::new();
        let names = self.settings.listeners.iter().map(|listener| {
            let transport = if listener.protocol.datagrams() { "udp" } else { "tcp" };
            let name = format!("{transport} {}", listener.address);
            let rank = seen.entry(name.clone()).or_default();
            *rank += 1;
            format!("{name} {rank}")
        });
        names.collect()
    }
}

/// A part, for another version.
fn json(part: &impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or(Value::Null)
}

/// A part of what another version wrote, if it is understood.
fn known<T: for<'de> Deserialize<'de>>(part: Value) -> Option<T> {
    serde_json::from_value(part)
        .inspect_err(|error| tracing::debug!("a part of what was left is not understood: {error}"))
        .ok()
}
