//! Admission: finds a member for a piece of work, at once or after a wait.
//!
//! There are two kinds of waits:
//!
//! - If every member is at its configured limit, the work waits in the group's wait queue, up to the
//!   configured time.
//! - If the strategy finds that every member would be overloaded by more work, it waits in the group's
//!   admission line, for as long as that may still help.
//!
//! See [`GroupWaitQueue`](crate::upstream::wait_queue::GroupWaitQueue).

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::{MemberId, Time, Urgency, WaitVerdict};

use crate::net::reason::Reason;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, PlanView, WorkKind};
use crate::upstream::thread_context::ThreadContext;

/// A request for admission that may wait.
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) key: u64,
    /// The members that must not be chosen.
    pub(crate) tried: &'a [MemberId],
    /// The urgency, if it is known.
    pub(crate) urgency: Option<Urgency>,
    /// The time after which a response is useless.
    pub(crate) deadline: Time,
    pub(crate) work: WorkKind,
    /// The arrival time, from which the time limit of waiting for room counts.
    pub(crate) since: Time,
    /// Whether an immediate attempt would be in vain, because members have just reported that they have no
    /// room.
    pub(crate) recently_refused: bool,
    /// Whether the work has waited before. All its waits count as one.
    pub(crate) has_waited: &'a Cell<bool>,
}

impl AdmissionRequest<'_> {
    fn record_wait(&self, pool: &GroupPool, duration: Duration) {
        let waits = &pool.counters().waits;
        if self.has_waited.replace(true) { waits.add_time(duration) } else { waits.record(duration) }
    }
}

/// Finds a member that is below its limit now. New work does not overtake work in the queue: a queue that is
/// not empty gives [`AdmissionOutcome::Full`]. Where waiting work differs in urgency, an attempt needs the
/// work's urgency. The result then is [`AdmissionOutcome::Overloaded`], and [`wait_in_line`] makes the
/// attempt.
pub(crate) fn try_admit(
    core: &ThreadContext,
    pool: &GroupPool,
    view: Rc<PlanView>,
    key: u64,
    tried: &[MemberId],
    work: WorkKind,
    now: Time,
) -> AdmissionOutcome {
    let queue_is_empty = pool.group.wait_queue.is_empty();
    if !queue_is_empty && let Some(outcome) = blocked_by_waiting(pool) {
        return outcome;
    }
    let admission = pool.admit_in_view(view, key, core.random_bits(), now, tried, work);
    if !queue_is_empty && let AdmissionOutcome::Admitted(_) = &admission {
        // If one found room there may be more.
        pool.group.wait_queue.wake_one();
    }
    admission
}

/// Returns the reason why no attempt is allowed while other work waits. Out of line, as mostly none waits.
#[cold]
#[inline(never)]
fn blocked_by_waiting(pool: &GroupPool) -> Option<AdmissionOutcome> {
    match pool.has_waiting() {
        true => Some(AdmissionOutcome::Full),
        false => pool.group.wait_queue.has_urgent().then_some(AdmissionOutcome::Overloaded),
    }
}

/// Finds a member for a new session while a member is under alert, where its sessions come back as new ones.
/// Members are chosen in proportion to the load that they lack. Returns `None` if no member lacks load, or if
/// the strategy assigns keys to members: then the strategy chooses.
pub(crate) fn admit_returning(
    core: &ThreadContext,
    pool: &GroupPool,
    view: &Rc<PlanView>,
    now: Time,
) -> Option<InFlight> {
    let plan = &view.published.plan;
    if !view.alert || plan.strategy().reads_key || pool.has_waiting() {
        return None;
    }
    plan.target(core.random_bits(), &[], now).and_then(|index| pool.admit_to(view, index, now))
}

/// Finds a member that is below its limit and has room; waits for one, until `deadline` at most.
///
/// # Errors
/// There is no member but those in `tried`, the queue is full, or the wait was too long or would be in vain.
pub(crate) async fn admit(
    core: &ThreadContext,
    pool: &GroupPool,
    timer: &Timer,
    key: u64,
    tried: &[MemberId],
    work: WorkKind,
    deadline: Time,
) -> Result<InFlight, Reason> {
    let has_waited = Cell::default();
    let request = AdmissionRequest {
        key,
        tried,
        urgency: None,
        deadline,
        work,
        since: core.now(),
        recently_refused: false,
        has_waited: &has_waited,
    };
    match try_admit(core, pool, pool.view(), key, tried, work, core.now()) {
        AdmissionOutcome::Admitted(in_flight) => Ok(in_flight),
        AdmissionOutcome::NoCandidate => Err(Reason::NoMember),
        AdmissionOutcome::Overloaded => wait_in_line(core, pool, timer, &request, |_| false).await,
        AdmissionOutcome::Full => wait_in_queue(core, pool, timer, &request).await,
    }
}

/// Waits in the queue for a member to come below its limit, if the group has a queue.
///
/// # Errors
/// As [`admit`].
pub(crate) async fn wait_in_queue(
    core: &ThreadContext,
    pool: &GroupPool,
    timer: &Timer,
    request: &AdmissionRequest<'_>,
) -> Result<InFlight, Reason> {
    let (max_queued, queue_timeout) = {
        let view = pool.view();
        (view.published.settings.queue, view.published.settings.queue_timeout)
    };
    let queued = pool.group.wait_queue.enter_queue(max_queued).ok_or(Reason::QueueFull)?;
    timer.set(request.deadline.min(core.now() + queue_timeout));
    let mut slot_freed = Box::pin(queued.slot_freed());
    // A slot released before this wait was counted notified no task: a task that waits alone tries once more.
    let mut attempt_now = pool.group.wait_queue.queued() == 1;
    let started_at = core.now();
    let admitted = poll_fn(|cx| {
        loop {
            if timer.fired() {
                let past_deadline = core.tick() >= request.deadline;
                return Poll::Ready(Err(if past_deadline {
                    Reason::TotalTimeout
                } else {
                    Reason::QueueTimeout
                }));
            }
            if slot_freed.as_mut().poll(cx).is_ready() {
                slot_freed.set(queued.slot_freed());
            } else if !std::mem::take(&mut attempt_now) {
                return Poll::Pending;
            }
            match pool.admit(request.key, core.random_bits(), core.tick(), request.tried, request.work) {
                AdmissionOutcome::Admitted(in_flight) => return Poll::Ready(Ok(in_flight)),
                AdmissionOutcome::NoCandidate => return Poll::Ready(Err(Reason::NoMember)),
                AdmissionOutcome::Overloaded => return Poll::Ready(Err(Reason::Shed)),
                AdmissionOutcome::Full => {}
            }
        }
    })
    .await;
    request.record_wait(pool, core.now().since(started_at));
    admitted
}

/// Waits in the admission line for a member to have room, for as long as that may help. If the waiting work
/// differs in urgency, work that no other outranks makes an attempt first. `gone` returns `true` if the
/// client has gone; it is called at each wake-up.
///
/// # Errors
/// As [`admit`]; a client that has gone is rejected like any other.
pub(crate) async fn wait_in_line(
    core: &ThreadContext,
    pool: &GroupPool,
    timer: &Timer,
    request: &AdmissionRequest<'_>,
    mut client_is_gone: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<InFlight, Reason> {
    let wait_queue = &pool.group.wait_queue;
    let urgency = request.urgency.unwrap_or_default();
    if !request.recently_refused && wait_queue.has_urgent() && !wait_queue.is_outranked(urgency) {
        match pool.admit(request.key, core.random_bits(), core.now(), request.tried, request.work) {
            AdmissionOutcome::Admitted(in_flight) => {
                // If one found room there may be more.
                wait_queue.wake_one();
                return Ok(in_flight);
            }
            AdmissionOutcome::NoCandidate => return Err(Reason::NoMember),
            AdmissionOutcome::Full | AdmissionOutcome::Overloaded => {}
        }
    }
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let started_at = core.now();
    // A request that is forwarded later than this would not be answered in time.
    let start_before = latest_start(request.deadline, pool.min_duration(started_at));
    if started_at >= start_before {
        return Err(timeout_reason(request, started_at));
    }
    let drain_rate = pool.drain_rate();
    let ticket = wait_queue.line(core, &waker, urgency, drain_rate, request.since).ok_or(Reason::Shed)?;
    let wait_until = start_before.min(ticket.until());
    // Attempts become rarer the longer the wait: each may be refused, and this limits their number.
    let attempt_interval =
        |now: Time| drain_rate.sojourn.max(MIN_ATTEMPT_INTERVAL).max(now.since(request.since) / 2);
    timer.set(wait_until.min(started_at + attempt_interval(started_at)));
    // As in the queue.
    let mut attempt_now = !request.recently_refused && ticket.is_alone();
    let admitted = poll_fn(|cx| {
        let now = core.tick();
        if client_is_gone(cx) {
            return Poll::Ready(Err(Reason::Shed));
        }
        // The last attempt needs no notification: the knowledge about members changes with time, too.
        let is_last_attempt = timer.fired() && now >= wait_until;
        if timer.fired() && !is_last_attempt {
            // If hardly any of this process's work is at the members, hardly any end of work signals room.
            attempt_now |= pool.view().published.plan.is_nearly_idle();
            wait_queue.wake_starved(now);
            timer.set(wait_until.min(now + attempt_interval(now)));
        }
        loop {
            match ticket.turn() {
                WaitVerdict::GiveUp => return Poll::Ready(Err(Reason::Shed)),
                WaitVerdict::Wait if !is_last_attempt && !std::mem::take(&mut attempt_now) => {
                    return Poll::Pending;
                }
                // Room that was released without a notification since then is not for this one.
                WaitVerdict::Wait if wait_queue.is_outranked(urgency) => {
                    return if is_last_attempt {
                        Poll::Ready(Err(timeout_reason(request, now)))
                    } else {
                        Poll::Pending
                    };
                }
                WaitVerdict::TryAgain | WaitVerdict::Wait => {}
            }
            let outcome = match wait_queue.is_starved(now) {
                true => {
                    pool.admit_regardless(request.key, core.random_bits(), now, request.tried, request.work)
                }
                false => pool.admit(request.key, core.random_bits(), now, request.tried, request.work),
            };
            match outcome {
                AdmissionOutcome::Admitted(in_flight) => return Poll::Ready(Ok(in_flight)),
                AdmissionOutcome::NoCandidate => return Poll::Ready(Err(Reason::NoMember)),
                AdmissionOutcome::Full | AdmissionOutcome::Overloaded if is_last_attempt => {
                    return Poll::Ready(Err(timeout_reason(request, now)));
                }
                AdmissionOutcome::Full | AdmissionOutcome::Overloaded => {}
            }
        }
    })
    .await;
    if admitted.is_ok() {
        ticket.mark_served();
    }
    request.record_wait(pool, core.now().since(started_at));
    admitted
}

/// The minimum time between two attempts without a notification.
const MIN_ATTEMPT_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the latest time at which a request may be forwarded that is expected to take `takes`.
fn latest_start(deadline: Time, min_duration: Duration) -> Time {
    Time(deadline.0.saturating_sub(u64::try_from(min_duration.as_nanos()).unwrap_or(u64::MAX)))
}

/// Returns the reason why a wait has ended.
fn timeout_reason(request: &AdmissionRequest<'_>, now: Time) -> Reason {
    if now >= request.deadline { Reason::TotalTimeout } else { Reason::Shed }
}
