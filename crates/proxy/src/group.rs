//! A group as all cores share it: the plan in force, and counts that each core writes for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use plimsoll_brain::{MemberId, Plan, Time, Vitals};
use tokio::sync::{Notify, mpsc};

use crate::GroupSettings;
use crate::metered::SideCar;
use crate::reason::{REASONS, Reason};
use crate::stats::{Count, Histogram};

/// What the cores read of a group, and the control thread publishes.
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    published: ArcSwap<Published>,
    version: AtomicU64,
    /// Requests that wait for a member below its limit, over all cores.
    pub(crate) waiting: AtomicU32,
    /// Told when a member below its limit may have come free.
    pub(crate) freed: Notify,
    /// One for each core.
    pub(crate) tallies: Box<[Tally]>,
    strikes: mpsc::Sender<Strike>,
    /// If this process is the side-car of the group's server.
    pub(crate) side_car: Option<Arc<SideCar>>,
}

/// A plan and what belongs to it; never changed once published.
pub(crate) struct Published {
    pub(crate) plan: Plan,
    /// In the order of the plan's members.
    pub(crate) records: Vec<Arc<Record>>,
    /// Not in the plan, but what they have they keep.
    pub(crate) draining: Vec<MemberId>,
    pub(crate) settings: Arc<GroupSettings>,
}

/// A member's requests failed in a way that may get it ejected.
pub(crate) struct Strike {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    /// By the sequential test, and not by the length of the streak?
    pub(crate) suspicion: bool,
}

/// What one core counts of a group.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Whole requests, from the first byte of the head to the last of the answer.
    pub(crate) latency: Histogram,
    pub(crate) rejected: [Count; REASONS],
    pub(crate) retries: Count,
    pub(crate) retries_denied: Count,
}

/// What is counted of a member for as long as it is in the group.
pub(crate) struct Record {
    pub(crate) id: MemberId,
    pub(crate) vitals: Arc<Vitals>,
    /// One for each core.
    pub(crate) stripes: Box<[Arc<Stripe>]>,
}

/// What one core counts of a member.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Stripe {
    pub(crate) requests: Count,
    pub(crate) failures: Count,
    /// Answers by class; the first counts requests without an answer.
    pub(crate) answers: [Count; 6],
    pub(crate) connects: Count,
    pub(crate) idle: Count,
    pub(crate) bytes_out: Count,
    pub(crate) bytes_in: Count,
    pub(crate) latency: Histogram,
    /// Sessions that left it because it was under alert.
    pub(crate) moved: Count,
}

impl Record {
    pub(crate) fn new(id: MemberId, vitals: Arc<Vitals>, cores: usize) -> Arc<Self> {
        Arc::new(Self { id, vitals, stripes: per_core(cores) })
    }
}

impl Group {
    pub(crate) fn new(first: Published, cores: usize, strikes: mpsc::Sender<Strike>) -> Arc<Self> {
        Arc::new(Self {
            side_car: first.settings.side_car.as_ref().map(|_| Arc::new(SideCar::new(Time(0)))),
            name: Arc::clone(&first.settings.spec.name),
            published: ArcSwap::from_pointee(first),
            version: AtomicU64::new(1),
            waiting: AtomicU32::new(0),
            freed: Notify::new(),
            tallies: per_core(cores),
            strikes,
        })
    }

    pub(crate) fn publish(&self, next: Published) {
        self.published.store(Arc::new(next));
        self.version.fetch_add(1, Ordering::Release);
        self.freed.notify_waiters();
    }

    /// Changes whenever something new is published.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn published(&self) -> Arc<Published> {
        self.published.load_full()
    }

    /// Asks the control thread to eject a member. If it is that busy, the next failure asks again.
    pub(crate) fn strike(&self, member: MemberId, suspicion: bool) {
        let _ = self.strikes.try_send(Strike { group: Arc::clone(&self.name), member, suspicion });
    }

    pub(crate) fn reject(&self, core: usize, reason: Reason) {
        self.tallies[core].rejected[reason as usize].add(1);
    }
}

fn per_core<T: Default>(cores: usize) -> Box<[T]> {
    (0..cores).map(|_| T::default()).collect()
}
