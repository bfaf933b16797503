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
    fn record_wait(&self, pool: &GroupPool, span: Duration) {
        let waits = &pool.counters().waits;
        if self.has_waited.replace(true) { waits.add_time(span) } else { waits.record(span) }
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
    let calm = pool.group.wait_queue.is_empty();
    if !calm && let Some(no) = blocked_by_waiting(pool) {
        return no;
    }
    let admission = pool.admit_in_view(view, key, core.random_bits(), now, tried, work);
    if !calm && let AdmissionOutcome::Admitted(_) = &admission {
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
    plan.target(core.random_bits(), &[], now).and_then(|place| pool.admit_to(view, place, now))
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
    let waited = Cell::default();
    let wish = AdmissionRequest {
        key,
        tried,
        urgency: None,
        deadline,
        work,
        since: core.now(),
        recently_refused: false,
        has_waited: &waited,
    };
    match try_admit(core, pool, pool.view(), key, tried, work, core.now()) {
        AdmissionOutcome::Admitted(trip) => Ok(trip),
        AdmissionOutcome::NoCandidate => Err(Reason::NoMember),
        AdmissionOutcome::Overloaded => wait_in_line(core, pool, timer, &wish, |_| false).await,
        AdmissionOutcome::Full => wait_in_queue(core, pool, timer, &wish).await,
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
    wish: &AdmissionRequest<'_>,
) -> Result<InFlight, Reason> {
    let (most, patience) = {
        let view = pool.view();
        (view.published.settings.queue, view.published.settings.queue_timeout)
    };
    let queued = pool.group.wait_queue.enter_queue(most).ok_or(Reason::QueueFull)?;
    timer.set(wish.deadline.min(core.now() + patience));
    let mut freed = Box::pin(queued.freed());
    // A slot released before this wait was counted notified no task: a task that waits alone tries once more.
    let mut look = pool.group.wait_queue.queued() == 1;
    let begun = core.now();
    let found = poll_fn(|cx| {
        loop {
            if timer.fired() {
                let late = core.tick() >= wish.deadline;
                return Poll::Ready(Err(if late { Reason::TotalTimeout } else { Reason::QueueTimeout }));
            }
            if freed.as_mut().poll(cx).is_ready() {
                freed.set(queued.freed());
            } else if !std::mem::take(&mut look) {
                return Poll::Pending;
            }
            match pool.admit(wish.key, core.random_bits(), core.tick(), wish.tried, wish.work) {
                AdmissionOutcome::Admitted(trip) => return Poll::Ready(Ok(trip)),
                AdmissionOutcome::NoCandidate => return Poll::Ready(Err(Reason::NoMember)),
                AdmissionOutcome::Overloaded => return Poll::Ready(Err(Reason::Shed)),
                AdmissionOutcome::Full => {}
            }
        }
    })
    .await;
    wish.record_wait(pool, core.now().since(begun));
    found
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
    wish: &AdmissionRequest<'_>,
    mut gone: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<InFlight, Reason> {
    let room = &pool.group.wait_queue;
    let urgency = wish.urgency.unwrap_or_default();
    if !wish.recently_refused && room.has_urgent() && !room.is_outranked(urgency) {
        match pool.admit(wish.key, core.random_bits(), core.now(), wish.tried, wish.work) {
            AdmissionOutcome::Admitted(trip) => {
                // If one found room there may be more.
                room.wake_one();
                return Ok(trip);
            }
            AdmissionOutcome::NoCandidate => return Err(Reason::NoMember),
            AdmissionOutcome::Full | AdmissionOutcome::Overloaded => {}
        }
    }
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let begun = core.now();
    // A request that is forwarded later than this would not be answered in time.
    let last = latest_start(wish.deadline, pool.min_duration(begun));
    if begun >= last {
        return Err(timeout_reason(wish, begun));
    }
    let pace = pool.drain_rate();
    let lined = room.line(core, &waker, urgency, pace, wish.since).ok_or(Reason::Shed)?;
    let end = last.min(lined.until());
    // Attempts become rarer the longer the wait: each may be refused, and this limits their number.
    let apart = |now: Time| pace.sojourn.max(MIN_ATTEMPT_INTERVAL).max(now.since(wish.since) / 2);
    timer.set(end.min(begun + apart(begun)));
    // As in the queue.
    let mut look = !wish.recently_refused && lined.is_alone();
    let found = poll_fn(|cx| {
        let now = core.tick();
        if gone(cx) {
            return Poll::Ready(Err(Reason::Shed));
        }
        // The last attempt needs no notification: the knowledge about members changes with time, too.
        let late = timer.fired() && now >= end;
        if timer.fired() && !late {
            // If hardly any of this process's work is at the members, hardly any end of work signals room.
            look |= pool.view().published.plan.is_nearly_idle();
            room.wake_starved(now);
            timer.set(end.min(now + apart(now)));
        }
        loop {
            match lined.turn() {
                WaitVerdict::GiveUp => return Poll::Ready(Err(Reason::Shed)),
                WaitVerdict::Wait if !late && !std::mem::take(&mut look) => return Poll::Pending,
                // Room that was released without a notification since then is not for this one.
                WaitVerdict::Wait if room.is_outranked(urgency) => {
                    return if late { Poll::Ready(Err(timeout_reason(wish, now))) } else { Poll::Pending };
                }
                WaitVerdict::TryAgain | WaitVerdict::Wait => {}
            }
            let found = match room.is_starved(now) {
                true => pool.admit_regardless(wish.key, core.random_bits(), now, wish.tried, wish.work),
                false => pool.admit(wish.key, core.random_bits(), now, wish.tried, wish.work),
            };
            match found {
                AdmissionOutcome::Admitted(trip) => return Poll::Ready(Ok(trip)),
                AdmissionOutcome::NoCandidate => return Poll::Ready(Err(Reason::NoMember)),
                AdmissionOutcome::Full | AdmissionOutcome::Overloaded if late => {
                    return Poll::Ready(Err(timeout_reason(wish, now)));
                }
                AdmissionOutcome::Full | AdmissionOutcome::Overloaded => {}
            }
        }
    })
    .await;
    if found.is_ok() {
        lined.mark_served();
    }
    wish.record_wait(pool, core.now().since(begun));
    found
}

/// The minimum time between two attempts without a notification.
const MIN_ATTEMPT_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the latest time at which a request may be forwarded that is expected to take `takes`.
fn latest_start(deadline: Time, takes: Duration) -> Time {
    Time(deadline.0.saturating_sub(u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX)))
}

/// Returns the reason why a wait has ended.
fn timeout_reason(wish: &AdmissionRequest<'_>, now: Time) -> Reason {
    if now >= wish.deadline { Reason::TotalTimeout } else { Reason::Shed }
}
