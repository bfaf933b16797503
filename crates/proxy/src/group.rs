//! A group as shared by all cores: the plan in force, and counters that each core writes for itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use plimsoll_brain::{Event, EventKind, MemberId, Plan, Time, Urgency, Vitals};
use tokio::sync::{mpsc, watch};

use crate::GroupSettings;
use crate::metered::{HostMeter, SideCar};
use crate::moves::Moves;
use crate::reason::{REASONS, Reason};
use crate::room::Room;
use crate::stats::{Count, Histogram, Levels};

/// The state of a group that the cores read and the control thread publishes.
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    published: ArcSwap<Published>,
    version: AtomicU64,
    /// Notifies tasks that wait for a new publication.
    changes: watch::Sender<()>,
    /// The number of sessions begun, over all cores: the turns of their choices.
    sessions: AtomicU64,
    pub(crate) room: Room,
    /// The counters of each core.
    pub(crate) tallies: Box<[Tally]>,
    /// The counters of the previous process; the control plane writes them.
    before: OnceLock<Box<Tally>>,
    wires: Wires,
    /// Present if this process is the side-car of the group's server.
    pub(crate) side_car: Option<Arc<SideCar>>,
}

/// A plan and its context; never changed once published.
pub(crate) struct Published {
    pub(crate) plan: Plan,
    /// The records in the order of the plan's members.
    pub(crate) records: Vec<Arc<Record>>,
    /// Members outside of the plan, by name: their sessions may still return.
    pub(crate) others: Vec<(Arc<str>, Arc<Record>)>,
    /// Those of the others that keep their sessions.
    pub(crate) draining: Vec<MemberId>,
    /// Those of the others that still accept the sessions bound to them. This plan is not used for choices.
    pub(crate) kept: Option<Arc<Self>>,
    pub(crate) settings: Arc<GroupSettings>,
}

/// The signal that a member's requests failed in a way that may get it ejected.
pub(crate) struct Strike {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    /// Whether the sequential test gave the signal, and not the length of the streak.
    pub(crate) suspicion: bool,
}

/// A sample of a member's load report in a response, with more than the choice needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The group.
    pub group: Arc<str>,
    /// The member, as configured.
    pub member: Arc<str>,
    /// The values by name: fields of the report by their own, others after the name of their map
    /// (`utilization.`, `named_metrics.`). Finite.
    pub values: Vec<(String, f64)>,
}

/// The bounded channels from the cores to the slow path.
#[derive(Clone)]
pub(crate) struct Wires {
    pub(crate) strikes: mpsc::Sender<Strike>,
    pub(crate) said: mpsc::Sender<Said>,
    pub(crate) notes: mpsc::Sender<Event>,
}

/// One core's counters of a group.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Work begun at members; it shows groups without activity, which need not be examined.
    pub(crate) begun: Count,
    /// The latency of whole requests, from the first byte of the head to the last of the response.
    pub(crate) latency: Histogram,
    /// The waits of requests that waited for a member, whatever the outcome.
    pub(crate) waits: Histogram,
    /// The outcomes, by urgency, of requests that gave one and found no room.
    pub(crate) urgencies: [Waited; Urgency::COUNT],
    pub(crate) rejected: [Count; REASONS],
    pub(crate) retries: Count,
    pub(crate) retries_denied: Count,
}

/// The outcomes of requests that found no room.
#[derive(Default)]
pub(crate) struct Waited {
    pub(crate) served: Count,
    pub(crate) refused: Count,
}

/// The counters of a member, while it is in the group.
pub(crate) struct Record {
    pub(crate) id: MemberId,
    pub(crate) vitals: Arc<Vitals>,
    /// The cause of the last failure: [`Blame::code`](crate::blame::Blame::code), 0 before the first.
    pub(crate) blame: AtomicU32,
    /// The counters of each core, created when it first uses the member.
    stripes: Box<[OnceLock<Arc<Stripe>>]>,
    /// The counters of the previous process; the control plane writes them.
    before: OnceLock<Box<Stripe>>,
    /// The counters of the slow path.
    pub(crate) lent: Lent,
}

/// The leases of a member.
#[derive(Default)]
pub(crate) struct Lent {
    /// The number of leases in force.
    pub(crate) held: AtomicU64,
    /// The number of leases that moved to other members at renewal.
    pub(crate) moved: AtomicU64,
    /// The targets of those moves, until they are reported.
    pub(crate) moves: Moves,
}

/// One core's counters of a member.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Stripe {
    pub(crate) requests: Count,
    pub(crate) failures: Count,
    /// Requests whose client left before the end of the response; these count as neither requests nor
    /// failures.
    pub(crate) left: Count,
    /// Responses by class; the first counts requests without a response.
    pub(crate) answers: [Count; 6],
    pub(crate) connects: Count,
    pub(crate) idle: Count,
    pub(crate) bytes_out: Count,
    pub(crate) bytes_in: Count,
    /// The bytes of relayed streams in both directions: TCP sessions, and requests that were upgraded.
    pub(crate) bytes_relayed: Count,
    pub(crate) latency: Histogram,
    pub(crate) levels: Levels,
    /// The time of the last report sample, in nanoseconds; 0 for never.
    pub(crate) sampled: AtomicU64,
    /// The sessions that left the member because it was under alert.
    pub(crate) moved: Count,
    /// The targets of those moves, until they are reported.
    pub(crate) moves: Moves,
}

impl Record {
    pub(crate) fn new(id: MemberId, vitals: Arc<Vitals>, cores: usize) -> Arc<Self> {
        Arc::new(Self {
            id,
            vitals,
            blame: AtomicU32::new(0),
            stripes: per_core(cores),
            before: OnceLock::new(),
            lent: Lent::default(),
        })
    }

    /// Returns a core's counters of the member.
    pub(crate) fn stripe(&self, core: usize) -> &Arc<Stripe> {
        self.stripes[core].get_or_init(Arc::default)
    }

    /// Returns the counters of this process.
    pub(crate) fn own(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.iter().filter_map(|stripe| stripe.get().map(|stripe| &**stripe))
    }

    /// Returns all counters, with those of the previous process.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Stripe> {
        self.own().chain(self.before.get().map(|stripe| &**stripe))
    }

    /// Returns the counters of the previous process, which only the control plane writes.
    pub(crate) fn before(&self) -> &Stripe {
        self.before.get_or_init(Box::default)
    }
}

impl Group {
    /// Creates a group. `host` is the meter of side-cars that share their host.
    pub(crate) fn new(first: Published, cores: usize, wires: Wires, host: &Arc<HostMeter>) -> Arc<Self> {
        let side_car = first.settings.side_car.as_ref().map(|settings| {
            let host = settings.shares_host.then(|| Arc::clone(host));
            Arc::new(SideCar::new(host, Time(0)))
        });
        Arc::new(Self {
            side_car,
            name: Arc::clone(&first.settings.spec.name),
            published: ArcSwap::from_pointee(first),
            version: AtomicU64::new(1),
            changes: watch::Sender::new(()),
            sessions: AtomicU64::new(0),
            room: Room::default(),
            tallies: per_core(cores),
            before: OnceLock::new(),
            wires,
        })
    }

    /// Returns all counters, with those of the previous process.
    pub(crate) fn all_tallies(&self) -> impl Iterator<Item = &Tally> {
        self.tallies.iter().chain(self.before.get().map(|tally| &**tally))
    }

    /// Returns the amount of work begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.begun.value()).fold(0, u64::wrapping_add)
    }

    /// Returns the counters of the previous process, which only the control plane writes.
    pub(crate) fn before(&self) -> &Tally {
        self.before.get_or_init(Box::default)
    }

    pub(crate) fn publish(&self, next: Published) {
        self.published.store(Arc::new(next));
        self.version.fetch_add(1, Ordering::Release);
        self.changes.send_replace(());
        self.room.ring_all();
    }

    /// Returns the turn of the next session. Sessions are few enough for all cores to share one sequence, and
    /// too few for a sequence per core.
    pub(crate) fn turn(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a number that changes with each publication.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns a receiver that is notified of each publication.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn published(&self) -> Arc<Published> {
        self.published.load_full()
    }

    /// Asks the control thread to eject a member. If its queue is full, the next failure asks again.
    pub(crate) fn strike(&self, member: MemberId, suspicion: bool) {
        let _ = self.wires.strikes.try_send(Strike { group: Arc::clone(&self.name), member, suspicion });
    }

    /// Passes on a sample of a member's report. If the queue is full, the sample is dropped and the next one
    /// serves.
    pub(crate) fn pass_on(&self, member: Arc<str>, values: Vec<(String, f64)>) {
        let _ = self.wires.said.try_send(Said { group: Arc::clone(&self.name), member, values });
    }

    /// Requests that an event be written; it is dropped if the queue is full.
    pub(crate) fn note(&self, kind: EventKind, why: String) {
        let group = Arc::clone(&self.name);
        let _ = self.wires.notes.try_send(Event { kind, group, member: None, why, inputs: Vec::new() });
    }

    pub(crate) fn reject(&self, core: usize, reason: Reason) {
        self.tallies[core].rejected[reason as usize].add(1);
    }

    /// Returns the number of rejections for this reason in this process.
    pub(crate) fn rejected(&self, reason: Reason) -> u64 {
        self.tallies.iter().map(|tally| tally.rejected[reason as usize].value()).sum()
    }
}

fn per_core<T: Default>(cores: usize) -> Box<[T]> {
    (0..cores).map(|_| T::default()).collect()
}
