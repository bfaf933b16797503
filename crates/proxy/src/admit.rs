//! From a piece of work to a member that may take it: at once, or after a wait in the group's queue.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use plimsoll_brain::{MemberId, Time};

use crate::core::Core;
use crate::pool::{Admission, Pool, View, Waiting};
use crate::reason::Reason;
use crate::trip::Trip;
use crate::wheel::Timer;

/// Finds a member that is below its limit now. Nobody overtakes those who wait already: they make it
/// [`Admission::Full`].
pub(crate) fn at_once(
    core: &Core,
    pool: &Pool,
    view: Rc<View>,
    key: u64,
    tried: &[MemberId],
    now: Time,
) -> Admission {
    match pool.contended() {
        true => Admission::Full,
        false => pool.admit_by(view, key, core.chance(), now, tried),
    }
}

/// Finds a member for a new session while one is under alert, where its sessions come back as new ones: as likely as
/// members lack load. `None` if none does, or the strategy has a member for each key: then it chooses.
pub(crate) fn returning(core: &Core, pool: &Pool, view: &Rc<View>, now: Time) -> Option<Trip> {
    let plan = &view.published.plan;
    if !view.alert || plan.strategy().reads_key || pool.contended() {
        return None;
    }
    plan.target(core.chance(), &[]).and_then(|place| pool.admit_to(view, place, now))
}

/// Finds a member that is below its limit; waits for one if the group has a queue, until `deadline` at most.
///
/// # Errors
/// There is no member but those `tried`, the queue is full, or the wait was too long.
pub(crate) async fn admit(
    core: &Core,
    pool: &Pool,
    timer: &Timer,
    key: u64,
    tried: &[MemberId],
    deadline: Time,
) -> Result<Trip, Reason> {
    match at_once(core, pool, pool.view(), key, tried, core.now()) {
        Admission::Trip(trip) => Ok(trip),
        Admission::Nobody => Err(Reason::NoMember),
        Admission::Shed => Err(Reason::Shed),
        Admission::Full => wait(core, pool, timer, key, tried, deadline).await,
    }
}

/// Waits for a member to come below its limit, if the group has a queue.
///
/// # Errors
/// As [`admit`].
pub(crate) async fn wait(
    core: &Core,
    pool: &Pool,
    timer: &Timer,
    key: u64,
    tried: &[MemberId],
    deadline: Time,
) -> Result<Trip, Reason> {
    let (most, patience) = {
        let view = pool.view();
        (view.published.settings.queue, view.published.settings.queue_timeout)
    };
    let waiting = Waiting::enter(&pool.group, most).ok_or(Reason::QueueFull)?;
    timer.set(deadline.min(core.now() + patience));
    let mut freed = Box::pin(waiting.freed());
    // A place given up before this wait was counted was told to nobody: whoever waits alone looks once more.
    let mut look = pool.group.waiting.load(Relaxed) == 1;
    poll_fn(|cx| {
        loop {
            if timer.fired() {
                let late = core.tick() >= deadline;
                return Poll::Ready(Err(if late { Reason::TotalTimeout } else { Reason::QueueTimeout }));
            }
            if freed.as_mut().poll(cx).is_ready() {
                freed.set(waiting.freed());
            } else if !std::mem::take(&mut look) {
                return Poll::Pending;
            }
            match pool.admit(key, core.chance(), core.tick(), tried) {
                Admission::Trip(trip) => return Poll::Ready(Ok(trip)),
                Admission::Nobody => return Poll::Ready(Err(Reason::NoMember)),
                Admission::Shed => return Poll::Ready(Err(Reason::Shed)),
                Admission::Full => {}
            }
        }
    })
    .await
}
