//! From a piece of work to a member that may take it: at once, or after a wait.
//!
//! There are two waits. Where every member is at its configured limit, the work waits in the group's queue, as long as
//! the configuration says. Where the strategy finds that one more would be too much for each of them, it waits in the
//! group's line, as long as that may still help. See [`Room`](crate::room::Room).

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

/// What somebody wants who may wait for it.
pub(crate) struct Wish<'a> {
    pub(crate) key: u64,
    /// Members that are not to be asked.
    pub(crate) tried: &'a [MemberId],
    /// If it was asked.
    pub(crate) urgency: Option<Urgency>,
    /// When no answer is of use any more.
    pub(crate) deadline: Time,
    pub(crate) work: Work,
    /// When it came: the time that it may wait for room begins there.
    pub(crate) since: Time,
    /// Is a look at once in vain? Members have just said so themselves.
    pub(crate) refused: bool,
    /// Has it waited before? All its waits count as one.
    pub(crate) waited: &'a Cell<bool>,
}

impl Wish<'_> {
    fn waited(&self, pool: &Pool, span: Duration) {
        let waits = &pool.tally().waits;
        if self.waited.replace(true) { waits.prolong(span) } else { waits.record(span) }
    }
}

/// Finds a member that is below its limit now. Nobody overtakes those who are in the queue already: they make it
/// [`Admission::Full`]. Where some that wait are more urgent than others nobody looks before it is known how urgent it is:
/// that makes it [`Admission::Shed`], and [`line_up`] looks.
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
        // Where one found room there may be more.
        pool.group.room.ring();
    }
    admission
}

/// Why nobody may look for a member while others wait. Out of line: mostly nobody does.
#[cold]
#[inline(never)]
fn behind(pool: &Pool) -> Option<Admission> {
    match pool.contended() {
        true => Some(Admission::Full),
        false => pool.group.room.ranked().then_some(Admission::Shed),
    }
}

/// Finds a member for a new session while one is under alert, where its sessions come back as new ones: as likely as
/// members lack load. `None` if none does, or the strategy has a member for each key: then it chooses.
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
/// There is no member but those `tried`, the queue is full, or the wait was too long or would be in vain.
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
    // A place given up before this wait was counted was told to nobody: whoever waits alone looks once more.
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

/// Waits in the line for a member to have room, as long as that may help. Where those that wait are not equally urgent, one
/// that none outranks looks for itself first. `gone`: has the client gone? Asked whenever the task is woken.
///
/// # Errors
/// As [`admit`]; a client that has gone is turned away as any other.
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
                // Where one found room there may be more.
                room.ring();
                return Ok(trip);
            }
            Admission::Nobody => return Err(Reason::NoMember),
            Admission::Full | Admission::Shed => {}
        }
    }
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let begun = core.now();
    // One that is sent on later than this would not be answered in time.
    let last = latest(wish.deadline, pool.quickest(begun));
    if begun >= last {
        return Err(too_late(wish, begun));
    }
    let pace = pool.pace();
    let lined = room.line(core, &waker, urgency, pace, wish.since).ok_or(Reason::Shed)?;
    let end = last.min(lined.until());
    // The seldomer the longer it waits: each look may be refused, and so many are the most.
    let apart = |now: Time| pace.sojourn.max(OFTEN).max(now.since(wish.since) / 2);
    timer.set(end.min(begun + apart(begun)));
    // As in the queue.
    let mut look = !wish.refused && lined.alone();
    let found = poll_fn(|cx| {
        let now = core.tick();
        if gone(cx) {
            return Poll::Ready(Err(Reason::Shed));
        }
        // The last to ask is whoever nobody told of anything: what is known of members changes with time, too.
        let late = timer.fired() && now >= end;
        if timer.fired() && !late {
            // Where next to nothing of ours is with the members, hardly anything ends that could tell of room.
            look |= pool.view().published.plan.blind();
            room.call_starved(now);
            timer.set(end.min(now + apart(now)));
        }
        loop {
            match lined.turn() {
                Turn::Go => return Poll::Ready(Err(Reason::Shed)),
                Turn::Wait if !late && !std::mem::take(&mut look) => return Poll::Pending,
                // What may have come free since nobody was told of it is not for this one.
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

/// Nobody looks more often by itself.
const OFTEN: Duration = Duration::from_millis(20);

/// When a request is sent on at the latest that is likely to take so long.
fn latest(deadline: Time, takes: Duration) -> Time {
    Time(deadline.0.saturating_sub(u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX)))
}

/// Why nobody waits any longer.
fn too_late(wish: &Wish<'_>, now: Time) -> Reason {
    if now >= wish.deadline { Reason::TotalTimeout } else { Reason::Shed }
}
