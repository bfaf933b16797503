//! Admission: finds a member for a piece of work, at once or after a wait.
//!
//! There are two kinds of waits:
//!
//! - If every member is at its configured limit, the work waits in the group's wait queue, up to the
//!   configured time.
//! - If the strategy finds that every member would be overloaded by more work, it waits in the group's
//!   admission line, for as long as that may still help.
//!
//! See [`Room`](crate::room::Room).

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::{MemberId, Time, Turn, Urgency};

use crate::core::Core;
use crate::pool::{Admission, Pool, View, Work};
use crate::reason::Reason;
use crate::trip::Trip;
use crate::wheel::Timer;

/// A request for admission that may wait.
pub(crate) struct Wish<'a> {
    pub(crate) key: u64,
    /// The members that must not be chosen.
    pub(crate) tried: &'a [MemberId],
    /// The urgency, if it is known.
    pub(crate) urgency: Option<Urgency>,
    /// The time after which a response is useless.
    pub(crate) deadline: Time,
    pub(crate) work: Work,
    /// The arrival time, from which the time limit of waiting for room counts.
    pub(crate) since: Time,
    /// Whether an immediate attempt would be in vain, because members have just reported that they have no
    /// room.
    pub(crate) refused: bool,
    /// Whether the work has waited before. All its waits count as one.
    pub(crate) waited: &'a Cell<bool>,
}

impl Wish<'_> {
    fn waited(&self, pool: &Pool, span: Duration) {
        let waits = &pool.tally().waits;
        if self.waited.replace(true) { waits.prolong(span) } else { waits.record(span) }
    }
}

/// Finds a member that is below its limit now. New work does not overtake work in the queue: a queue that is
/// not empty gives [`Admission::Full`]. Where waiting work differs in urgency, an attempt needs the work's
/// urgency. The result then is [`Admission::Shed`], and [`line_up`] makes the attempt.
pub(crate) fn at_once(
    core: &Core,
    pool: &Pool,
    view: Rc<View>,
    key: u64,
    tried: &[MemberId],
    work: Work,
    now: Time,
) -> Admission {
    let calm = pool.group.room.calm();
    if !calm && let Some(no) = behind(pool) {
        return no;
    }
    let admission = pool.admit_by(view, key, core.chance(), now, tried, work);
    if !calm && let Admission::Trip(_) = &admission {
        // If one found room there may be more.
        pool.group.room.ring();
    }
    admission
}

/// Returns the reason why no attempt is allowed while other work waits. Out of line, as mostly none waits.
#[cold]
#[inline(never)]
fn behind(pool: &Pool) -> Option<Admission> {
    match pool.contended() {
        true => Some(Admission::Full),
        false => pool.group.room.ranked().then_some(Admission::Shed),
    }
}

/// Finds a member for a new session while a member is under alert, where its sessions come back as new ones.
/// Members are chosen in proportion to the load that they lack. Returns `None` if no member lacks load, or if
/// the strategy assigns keys to members: then the strategy chooses.
pub(crate) fn returning(core: &Core, pool: &Pool, view: &Rc<View>, now: Time) -> Option<Trip> {
    let plan = &view.published.plan;
    if !view.alert || plan.strategy().reads_key || pool.contended() {
        return None;
    }
    plan.target(core.chance(), &[], now).and_then(|place| pool.admit_to(view, place, now))
}

/// Finds a member that is below its limit and has room; waits for one, until `deadline` at most.
///
/// # Errors
/// There is no member but those in `tried`, the queue is full, or the wait was too long or would be in vain.
pub(crate) async fn admit(
    core: &Core,
    pool: &Pool,
    timer: &Timer,
    key: u64,
    tried: &[MemberId],
    work: Work,
    deadline: Time,
) -> Result<Trip, Reason> {
    let waited = Cell::default();
    let wish = Wish {
        key,
        tried,
        urgency: None,
        deadline,
        work,
        since: core.now(),
        refused: false,
        waited: &waited,
    };
    match at_once(core, pool, pool.view(), key, tried, work, core.now()) {
        Admission::Trip(trip) => Ok(trip),
        Admission::Nobody => Err(Reason::NoMember),
        Admission::Shed => line_up(core, pool, timer, &wish, |_| false).await,
        Admission::Full => wait(core, pool, timer, &wish).await,
    }
}

/// Waits in the queue for a member to come below its limit, if the group has a queue.
///
/// # Errors
/// As [`admit`].
pub(crate) async fn wait(core: &Core, pool: &Pool, timer: &Timer, wish: &Wish<'_>) -> Result<Trip, Reason> {
    let (most, patience) = {
        let view = pool.view();
        (view.published.settings.queue, view.published.settings.queue_timeout)
    };
    let queued = pool.group.room.queue(most).ok_or(Reason::QueueFull)?;
    timer.set(wish.deadline.min(core.now() + patience));
    let mut freed = Box::pin(queued.freed());
    // A slot released before this wait was counted notified no task: a task that waits alone tries once more.
    let mut look = pool.group.room.queued() == 1;
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
            match pool.admit(wish.key, core.chance(), core.tick(), wish.tried, wish.work) {
                Admission::Trip(trip) => return Poll::Ready(Ok(trip)),
                Admission::Nobody => return Poll::Ready(Err(Reason::NoMember)),
                Admission::Shed => return Poll::Ready(Err(Reason::Shed)),
                Admission::Full => {}
            }
        }
    })
    .await;
    wish.waited(pool, core.now().since(begun));
    found
}

/// Waits in the admission line for a member to have room, for as long as that may help. If the waiting work
/// differs in urgency, work that no other outranks makes an attempt first. `gone` returns `true` if the
/// client has gone; it is called at each wake-up.
///
/// # Errors
/// As [`admit`]; a client that has gone is rejected like any other.
pub(crate) async fn line_up(
    core: &Core,
    pool: &Pool,
    timer: &Timer,
    wish: &Wish<'_>,
    mut gone: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<Trip, Reason> {
    let room = &pool.group.room;
    let urgency = wish.urgency.unwrap_or_default();
    if !wish.refused && room.ranked() && !room.outranked(urgency) {
        match pool.admit(wish.key, core.chance(), core.now(), wish.tried, wish.work) {
            Admission::Trip(trip) => {
                // If one found room there may be more.
                room.ring();
                return Ok(trip);
            }
            Admission::Nobody => return Err(Reason::NoMember),
            Admission::Full | Admission::Shed => {}
        }
    }
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let begun = core.now();
    // A request that is forwarded later than this would not be answered in time.
    let last = latest(wish.deadline, pool.quickest(begun));
    if begun >= last {
        return Err(too_late(wish, begun));
    }
    let pace = pool.pace();
    let lined = room.line(core, &waker, urgency, pace, wish.since).ok_or(Reason::Shed)?;
    let end = last.min(lined.until());
    // Attempts become rarer the longer the wait: each may be refused, and this limits their number.
    let apart = |now: Time| pace.sojourn.max(OFTEN).max(now.since(wish.since) / 2);
    timer.set(end.min(begun + apart(begun)));
    // As in the queue.
    let mut look = !wish.refused && lined.alone();
    let found = poll_fn(|cx| {
        let now = core.tick();
        if gone(cx) {
            return Poll::Ready(Err(Reason::Shed));
        }
        // The last attempt needs no notification: the knowledge about members changes with time, too.
        let late = timer.fired() && now >= end;
        if timer.fired() && !late {
            // If hardly any of this process's work is at the members, hardly any end of work signals room.
            look |= pool.view().published.plan.blind();
            room.call_starved(now);
            timer.set(end.min(now + apart(now)));
        }
        loop {
            match lined.turn() {
                Turn::Go => return Poll::Ready(Err(Reason::Shed)),
                Turn::Wait if !late && !std::mem::take(&mut look) => return Poll::Pending,
                // Room that was released without a notification since then is not for this one.
                Turn::Wait if room.outranked(urgency) => {
                    return if late { Poll::Ready(Err(too_late(wish, now))) } else { Poll::Pending };
                }
                Turn::Look | Turn::Wait => {}
            }
            let found = match room.starved(now) {
                true => pool.insist(wish.key, core.chance(), now, wish.tried, wish.work),
                false => pool.admit(wish.key, core.chance(), now, wish.tried, wish.work),
            };
            match found {
                Admission::Trip(trip) => return Poll::Ready(Ok(trip)),
                Admission::Nobody => return Poll::Ready(Err(Reason::NoMember)),
                Admission::Full | Admission::Shed if late => {
                    return Poll::Ready(Err(too_late(wish, now)));
                }
                Admission::Full | Admission::Shed => {}
            }
        }
    })
    .await;
    if found.is_ok() {
        lined.serve();
    }
    wish.waited(pool, core.now().since(begun));
    found
}

/// The minimum time between two attempts without a notification.
const OFTEN: Duration = Duration::from_millis(20);

/// Returns the latest time at which a request may be forwarded that is expected to take `takes`.
fn latest(deadline: Time, takes: Duration) -> Time {
    Time(deadline.0.saturating_sub(u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX)))
}

/// Returns the reason why a wait has ended.
fn too_late(wish: &Wish<'_>, now: Time) -> Reason {
    if now >= wish.deadline { Reason::TotalTimeout } else { Reason::Shed }
}
