//! A group as all cores share it: the plan in force, and counts that each core writes for itself.

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

/// What the cores read of a group, and the control thread publishes.
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    published: ArcSwap<Published>,
    version: AtomicU64,
    /// For those who wait for something new.
    changes: watch::Sender<()>,
    /// Sessions begun, over all cores: the turns of their choices.
    sessions: AtomicU64,
    pub(crate) room: Room,
    /// One for each core.
    pub(crate) tallies: Box<[Tally]>,
    /// What a process before this one counted; the control plane writes it.
    before: OnceLock<Box<Tally>>,
    wires: Wires,
    /// If this process is the side-car of the group's server.
    pub(crate) side_car: Option<Arc<SideCar>>,
}

/// A plan and what belongs to it; never changed once published.
pub(crate) struct Published {
    pub(crate) plan: Plan,
    /// In the order of the plan's members.
    pub(crate) records: Vec<Arc<Record>>,
    /// Not in the plan, by name: sessions may come that are theirs.
    pub(crate) others: Vec<(Arc<str>, Arc<Record>)>,
    /// Those of them that keep what they have.
    pub(crate) draining: Vec<MemberId>,
    /// Those of them that sessions may still come to which are bound to them. Nobody is chosen by this plan.
    pub(crate) kept: Option<Arc<Self>>,
    pub(crate) settings: Arc<GroupSettings>,
}

/// A member's requests failed in a way that may get it ejected.
pub(crate) struct Strike {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    /// By the sequential test, and not by the length of the streak?
    pub(crate) suspicion: bool,
}

/// What a member said with an answer, beyond what the choice needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// Of the group.
    pub group: Arc<str>,
    /// As configured.
    pub member: Arc<str>,
    /// By name: fields of the report by their own, others after the name of their map (`utilization.`,
    /// `named_metrics.`). Finite.
    pub values: Vec<(String, f64)>,
}

/// What cores tell the slow path, as far as there is room.
#[derive(Clone)]
pub(crate) struct Wires {
    pub(crate) strikes: mpsc::Sender<Strike>,
    pub(crate) said: mpsc::Sender<Said>,
    pub(crate) notes: mpsc::Sender<Event>,
}

/// What one core counts of a group.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Pieces of work begun with members, so that who looks at groups need not look at those where nothing happens.
    pub(crate) begun: Count,
    /// Whole requests, from the first byte of the head to the last of the answer.
    pub(crate) latency: Histogram,
    /// Of those that waited for a member: for how long, whatever came of it.
    pub(crate) waits: Histogram,
    /// By urgency, of requests that said one and found no room.
    pub(crate) urgencies: [Waited; Urgency::COUNT],
    pub(crate) rejected: [Count; REASONS],
    pub(crate) retries: Count,
    pub(crate) retries_denied: Count,
}

/// What came of requests that found no room.
#[derive(Default)]
pub(crate) struct Waited {
    pub(crate) served: Count,
    pub(crate) refused: Count,
}

/// What is counted of a member for as long as it is in the group.
pub(crate) struct Record {
    pub(crate) id: MemberId,
    pub(crate) vitals: Arc<Vitals>,
    /// Why its last failure was one: [`Blame::code`](crate::blame::Blame::code), 0 before the first.
    pub(crate) blame: AtomicU32,
    /// One for each core, made when that first has to do with the member.
    stripes: Box<[OnceLock<Arc<Stripe>>]>,
    /// What a process before this one counted; the control plane writes it.
    before: OnceLock<Box<Stripe>>,
    /// What the slow path counts.
    pub(crate) lent: Lent,
}

/// Leases of a member.
#[derive(Default)]
pub(crate) struct Lent {
    /// In force.
    pub(crate) held: AtomicU64,
    /// That went to other members when they were renewed.
    pub(crate) moved: AtomicU64,
    /// Where those went, until it was told.
    pub(crate) moves: Moves,
}

/// What one core counts of a member.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Stripe {
    pub(crate) requests: Count,
    pub(crate) failures: Count,
    /// Requests whose client went away before the end of its answer; they are none of the others.
    pub(crate) left: Count,
    /// Answers by class; the first counts requests without an answer.
    pub(crate) answers: [Count; 6],
    pub(crate) connects: Count,
    pub(crate) idle: Count,
    pub(crate) bytes_out: Count,
    pub(crate) bytes_in: Count,
    /// Both ways, of byte streams: sessions of tcp, and what becomes of a request that is upgraded.
    pub(crate) bytes_relayed: Count,
    pub(crate) latency: Histogram,
    pub(crate) levels: Levels,
    /// When all that it said with an answer was last looked at, nanoseconds; 0 for never.
    pub(crate) sampled: AtomicU64,
    /// Sessions that left it because it was under alert.
    pub(crate) moved: Count,
    /// Where those went, until it was told.
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

    /// What a core counts of it.
    pub(crate) fn stripe(&self, core: usize) -> &Arc<Stripe> {
        self.stripes[core].get_or_init(Arc::default)
    }

    /// All that this process counted of it.
    pub(crate) fn own(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.iter().filter_map(|stripe| stripe.get().map(|stripe| &**stripe))
    }

    /// All that is counted of it.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Stripe> {
        self.own().chain(self.before.get().map(|stripe| &**stripe))
    }

    /// Where the control plane, and nobody else, adds what a process before this one counted.
    pub(crate) fn before(&self) -> &Stripe {
        self.before.get_or_init(Box::default)
    }
}

impl Group {
    /// `host` is the meter for side-cars that share theirs.
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

    /// All that is counted of it.
    pub(crate) fn all_tallies(&self) -> impl Iterator<Item = &Tally> {
        self.tallies.iter().chain(self.before.get().map(|tally| &**tally))
    }

    /// Pieces of work begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.begun.value()).fold(0, u64::wrapping_add)
    }

    /// Where the control plane, and nobody else, adds what a process before this one counted.
    pub(crate) fn before(&self) -> &Tally {
        self.before.get_or_init(Box::default)
    }

    pub(crate) fn publish(&self, next: Published) {
        self.published.store(Arc::new(next));
        self.version.fetch_add(1, Ordering::Release);
        self.changes.send_replace(());
        self.room.ring_all();
    }

    /// The turn of the next session. There are few enough for all cores to share it, and too few for each core to go round
    /// by itself.
    pub(crate) fn turn(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes whenever something new is published.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Wakes when something new is published.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn published(&self) -> Arc<Published> {
        self.published.load_full()
    }

    /// Asks the control thread to eject a member. If it is that busy, the next failure asks again.
    pub(crate) fn strike(&self, member: MemberId, suspicion: bool) {
        let _ = self.wires.strikes.try_send(Strike { group: Arc::clone(&self.name), member, suspicion });
    }

    /// Passes on what a member said. If nobody has time for it, the next word will do.
    pub(crate) fn pass_on(&self, member: Arc<str>, values: Vec<(String, f64)>) {
        let _ = self.wires.said.try_send(Said { group: Arc::clone(&self.name), member, values });
    }

    /// Has it written down that something happened. If there is no room for it, then not.
    pub(crate) fn note(&self, kind: EventKind, why: String) {
        let group = Arc::clone(&self.name);
        let _ = self.wires.notes.try_send(Event { kind, group, member: None, why, inputs: Vec::new() });
    }

    pub(crate) fn reject(&self, core: usize, reason: Reason) {
        self.tallies[core].rejected[reason as usize].add(1);
    }

    /// How often it was for this reason, in this process.
    pub(crate) fn rejected(&self, reason: Reason) -> u64 {
        self.tallies.iter().map(|tally| tally.rejected[reason as usize].value()).sum()
    }
}

fn per_core<T: Default>(cores: usize) -> Box<[T]> {
    (0..cores).map(|_| T::default()).collect()
}
