//! A group as shared by all cores: the plan in force, and counters that each core writes for itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use plimsoll_brain::{Event, EventKind, MemberId, Plan, Time, Urgency, Vitals};
use tokio::sync::{mpsc, watch};

use crate::GroupSettings;
use crate::net::reason::{REASONS, Reason};
use crate::upstream::rebind_events::RebindCounts;
use crate::upstream::side_car::{HostMeter, SideCar};
use crate::upstream::stats::{Counter, Histogram, LatencyByConcurrency};
use crate::upstream::wait_queue::GroupWaitQueue;

/// The state of a group that the cores read and the control thread publishes.
pub(crate) struct SharedGroup {
    pub(crate) name: Arc<str>,
    published: ArcSwap<PublishedPlan>,
    version: AtomicU64,
    /// Notifies tasks that wait for a new publication.
    changes: watch::Sender<()>,
    /// The number of sessions begun, over all cores: the turns of their choices.
    sessions: AtomicU64,
    pub(crate) wait_queue: GroupWaitQueue,
    /// The counters of each core.
    pub(crate) counters: Box<[GroupCounters]>,
    /// The counters of the previous process; the control plane writes them.
    predecessor: OnceLock<Box<GroupCounters>>,
    channels: ControlChannels,
    /// Present if this process is the side-car of the group's server.
    pub(crate) side_car: Option<Arc<SideCar>>,
}

/// A plan and its context; never changed once published.
pub(crate) struct PublishedPlan {
    pub(crate) plan: Plan,
    /// The records in the order of the plan's members.
    pub(crate) records: Vec<Arc<MemberRecord>>,
    /// Members outside of the plan, by name: their sessions may still return.
    pub(crate) others: Vec<(Arc<str>, Arc<MemberRecord>)>,
    /// Those of the others that keep their sessions.
    pub(crate) draining: Vec<MemberId>,
    /// Those of the others that still accept the sessions bound to them. This plan is not used for choices.
    pub(crate) draining_plan: Option<Arc<Self>>,
    pub(crate) settings: Arc<GroupSettings>,
}

/// The signal that a member's requests failed in a way that may get it ejected.
pub(crate) struct FailureSignal {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    /// Whether the sequential test gave the signal, and not the length of the streak.
    pub(crate) suspicion: bool,
}

/// A sample of a member's load report in a response, with more than the choice needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportSample {
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
pub(crate) struct ControlChannels {
    pub(crate) failures: mpsc::Sender<FailureSignal>,
    pub(crate) reports: mpsc::Sender<ReportSample>,
    pub(crate) events: mpsc::Sender<Event>,
}

/// One core's counters of a group.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct GroupCounters {
    /// Work begun at members; it shows groups without activity, which need not be examined.
    pub(crate) begun: Counter,
    /// The latency of whole requests, from the first byte of the head to the last of the response.
    pub(crate) latency: Histogram,
    /// The waits of requests that waited for a member, whatever the outcome.
    pub(crate) waits: Histogram,
    /// The outcomes, by urgency, of requests that gave one and found no room.
    pub(crate) urgencies: [WaitOutcomes; Urgency::COUNT],
    pub(crate) rejected: [Counter; REASONS],
    pub(crate) retries: Counter,
    pub(crate) retries_denied: Counter,
}

/// The outcomes of requests that found no room.
#[derive(Default)]
pub(crate) struct WaitOutcomes {
    pub(crate) served: Counter,
    pub(crate) rejected: Counter,
}

/// The counters of a member, while it is in the group.
pub(crate) struct MemberRecord {
    pub(crate) id: MemberId,
    pub(crate) vitals: Arc<Vitals>,
    /// The cause of the last failure:
    /// [`FailureCause::code`](crate::upstream::failure_cause::FailureCause::code), 0 before the first.
    pub(crate) last_failure: AtomicU32,
    /// The counters of each core, created when it first uses the member.
    core_counters: Box<[OnceLock<Arc<MemberCoreCounters>>]>,
    /// The counters of the previous process; the control plane writes them.
    predecessor: OnceLock<Box<MemberCoreCounters>>,
    /// The counters of the slow path.
    pub(crate) leases: LeaseCounters,
}

/// The leases of a member.
#[derive(Default)]
pub(crate) struct LeaseCounters {
    /// The number of leases in force.
    pub(crate) held: AtomicU64,
    /// The number of leases that moved to other members at renewal.
    pub(crate) moved: AtomicU64,
    /// The targets of those moves, until they are reported.
    pub(crate) rebinds: RebindCounts,
}

/// One core's counters of a member.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct MemberCoreCounters {
    pub(crate) requests: Counter,
    pub(crate) failures: Counter,
    /// Requests whose client left before the end of the response; these count as neither requests nor
    /// failures.
    pub(crate) client_left: Counter,
    /// Responses by class; the first counts requests without a response.
    pub(crate) responses: [Counter; 6],
    pub(crate) connects: Counter,
    pub(crate) idle: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) bytes_in: Counter,
    /// The bytes of relayed streams in both directions: TCP sessions, and requests that were upgraded.
    pub(crate) bytes_relayed: Counter,
    pub(crate) latency: Histogram,
    pub(crate) latency_by_concurrency: LatencyByConcurrency,
    /// The time of the last report sample, in nanoseconds; 0 for never.
    pub(crate) last_sample: AtomicU64,
    /// The sessions that left the member because it was under alert.
    pub(crate) moved: Counter,
    /// The targets of those moves, until they are reported.
    pub(crate) rebinds: RebindCounts,
}

impl MemberRecord {
    pub(crate) fn new(id: MemberId, vitals: Arc<Vitals>, cores: usize) -> Arc<Self> {
        Arc::new(Self {
            id,
            vitals,
            last_failure: AtomicU32::new(0),
            core_counters: per_core(cores),
            predecessor: OnceLock::new(),
            leases: LeaseCounters::default(),
        })
    }

    /// Returns a core's counters of the member.
    pub(crate) fn core_counters(&self, core: usize) -> &Arc<MemberCoreCounters> {
        self.core_counters[core].get_or_init(Arc::default)
    }

    /// Returns the counters of this process.
    pub(crate) fn own_counters(&self) -> impl Iterator<Item = &MemberCoreCounters> {
        self.core_counters.iter().filter_map(|counters| counters.get().map(|stripe| &**stripe))
    }

    /// Returns all counters, with those of the previous process.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = &MemberCoreCounters> {
        self.own_counters().chain(self.predecessor.get().map(|counters| &**counters))
    }

    /// Returns the counters of the previous process, which only the control plane writes.
    pub(crate) fn predecessor_counters(&self) -> &MemberCoreCounters {
        self.predecessor.get_or_init(Box::default)
    }
}

impl SharedGroup {
    /// Creates a group. `host` is the meter of side-cars that share their host.
    pub(crate) fn new(
        plan: PublishedPlan,
        cores: usize,
        channels: ControlChannels,
        host: &Arc<HostMeter>,
    ) -> Arc<Self> {
        let side_car = plan.settings.side_car.as_ref().map(|settings| {
            let host = settings.shares_host.then(|| Arc::clone(host));
            Arc::new(SideCar::new(host, Time(0)))
        });
        Arc::new(Self {
            side_car,
            name: Arc::clone(&plan.settings.spec.name),
            published: ArcSwap::from_pointee(plan),
            version: AtomicU64::new(1),
            changes: watch::Sender::new(()),
            sessions: AtomicU64::new(0),
            wait_queue: GroupWaitQueue::default(),
            counters: per_core(cores),
            predecessor: OnceLock::new(),
            channels,
        })
    }

    /// Returns all counters, with those of the previous process.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = &GroupCounters> {
        self.counters.iter().chain(self.predecessor.get().map(|counters| &**counters))
    }

    /// Returns the amount of work begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.counters.iter().map(|counters| counters.begun.value()).fold(0, u64::wrapping_add)
    }

    /// Returns the counters of the previous process, which only the control plane writes.
    pub(crate) fn predecessor_counters(&self) -> &GroupCounters {
        self.predecessor.get_or_init(Box::default)
    }

    pub(crate) fn publish(&self, plan: PublishedPlan) {
        self.published.store(Arc::new(plan));
        self.version.fetch_add(1, Ordering::Release);
        self.changes.send_replace(());
        self.wait_queue.wake_all();
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

    pub(crate) fn published(&self) -> Arc<PublishedPlan> {
        self.published.load_full()
    }

    /// Asks the control thread to eject a member. If its queue is full, the next failure asks again.
    pub(crate) fn signal_failure(&self, member: MemberId, suspicion: bool) {
        let _ = self.channels.failures.try_send(FailureSignal {
            group: Arc::clone(&self.name),
            member,
            suspicion,
        });
    }

    /// Passes on a sample of a member's report. If the queue is full, the sample is dropped and the next one
    /// serves.
    pub(crate) fn send_report(&self, member: Arc<str>, values: Vec<(String, f64)>) {
        let _ =
            self.channels.reports.try_send(ReportSample { group: Arc::clone(&self.name), member, values });
    }

    /// Requests that an event be written; it is dropped if the queue is full.
    pub(crate) fn send_event(&self, kind: EventKind, message: String) {
        let group = Arc::clone(&self.name);
        let _ = self.channels.events.try_send(Event {
            kind,
            group,
            member: None,
            why: message,
            inputs: Vec::new(),
        });
    }

    pub(crate) fn record_rejection(&self, core: usize, reason: Reason) {
        self.counters[core].rejected[reason as usize].add(1);
    }

    /// Returns the number of rejections for this reason in this process.
    pub(crate) fn rejected(&self, reason: Reason) -> u64 {
        self.counters.iter().map(|counters| counters.rejected[reason as usize].value()).sum()
    }
}

fn per_core<T: Default>(cores: usize) -> Box<[T]> {
    (0..cores).map(|_| T::default()).collect()
}
