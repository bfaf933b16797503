//! Requests that are relayed: a member for each, a connection to it, and what its reply means.
//!
//! A request that no member has begun may be tried with another: the connection could not be made, or the member says
//! TRANSIENT, or that it has no resources, with COMPLETED_NO. The retry budget bounds it.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use plimsoll_brain::{MemberId, Time};
use plimsoll_wire::giop::{Completed, Content, Message, Order, Reply, Status};

use super::call::{Ask, Call};
use super::line::{Line, Manner, Settings};
use super::lines::Way;
use crate::admit::{self, admit};
use crate::blame::Blame;
use crate::connect::connect;
use crate::pool::{Admission, Pool, Work};
use crate::reason::Reason;
use crate::trip::Trip;

/// A call, as a member is asked for: one that refuses it for want of room is not told from one that fails it.
const WORK: Work = Work::Request { once: false, again: false, binds: false };

/// Sends a request at once if a member and a connection to it are at hand, else as soon as they are; the connection, if
/// it has been sent.
pub(super) fn begin(call: Call) -> Option<Rc<Line>> {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    pool.deposit(call.begun);
    let admission = admit::at_once(core, &pool, pool.view(), key(&call, &pool), &[], WORK, call.begun);
    if let Admission::Trip(trip) = admission {
        let Some(line) = pool.iiop.lines.find(trip.member(), &manner(&call), most(&trip)) else {
            session.waits(&call);
            tokio::task::spawn_local(relay(call, Some(trip)));
            return None;
        };
        line.send(call, trip, core.now());
        return Some(line);
    }
    session.waits(&call);
    tokio::task::spawn_local(relay(call, None));
    None
}

/// Finds a member for a request, if `trip` is not one already, and a connection to it, and sends it.
pub(super) async fn relay(mut call: Call, mut trip: Option<Trip>) {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let never = Time(u64::MAX);
    let mut last = Reason::NoMember;
    loop {
        let admitted = match trip.take() {
            Some(trip) => Ok(trip),
            None => admit(core, &pool, &timer, key(&call, &pool), &call.tried, WORK, never).await,
        };
        let found = match admitted {
            Ok(trip) => trip,
            Err(Reason::NoMember) => return call.refuse(last),
            Err(reason) => return call.refuse(reason),
        };
        if !session.wants(&call) {
            return found.abandoned();
        }
        let manner = manner(&call);
        let failed = match pool.iiop.lines.way(found.member(), &manner, most(&found)) {
            Way::Line(line) => return line.send(call, found, core.now()),
            Way::Make(making) => match connect(core, &found, &timer, never, &session.peer).await {
                Ok(socket) => {
                    let line = making.made(core, socket, Settings::of(&found));
                    if !session.wants(&call) {
                        return found.abandoned();
                    }
                    return line.send(call, found, core.now());
                }
                Err(reason) => {
                    making.failed(reason);
                    Some(reason)
                }
            },
            Way::Await(attempt) => match attempt.over().await {
                // Whoever made it has said so of the member: it failed once.
                Some(reason) if reason != Reason::Exhausted => {
                    last = reason;
                    if !pass_over(&mut call, &pool, found, core.tick()) {
                        return call.refuse(last);
                    }
                    continue;
                }
                failed => failed,
            },
            Way::Later => {
                pool.iiop.lines.gone().await;
                None
            }
            Way::Full => {
                last = Reason::Exhausted;
                if !pass_over(&mut call, &pool, found, core.tick()) {
                    return call.refuse(last);
                }
                continue;
            }
        };
        last = match failed {
            None => {
                trip = Some(found);
                continue;
            }
            // Trying the others would only blame them too.
            Some(Reason::Exhausted) => {
                found.abandoned();
                return call.refuse(Reason::Exhausted);
            }
            Some(reason) => reason,
        };
        let now = core.tick();
        if !again(&mut call, &pool, found, Blame::Reason(last), now) {
            return call.refuse(last);
        }
    }
}

/// A member's reply has come.
pub(super) fn answered(mut call: Call, trip: Trip, message: &mut [u8], piece: Option<usize>, now: Time) {
    let judged = match Message::parse(message) {
        Ok(Message { header, content: Content::Reply(reply) }) => {
            let own = trip.settings().iiop.as_ref().and_then(|iiop| iiop.key.as_deref());
            let order = header.form().order;
            let (judged, for_good) = (judge(&reply, order, own), reply.status == Status::ForwardForGood);
            if for_good && own.is_some() {
                // For now: a client that takes it for good never comes back to the group.
                let status = Status::Forward as u32;
                let bytes = if order == Order::Big { status.to_be_bytes() } else { status.to_le_bytes() };
                // Behind the header and the id, since 1.2, which alone has it.
                message[16..20].copy_from_slice(&bytes);
            }
            judged
        }
        _ => Judged::Fine,
    };
    call.metered.end(judged != Judged::Failed, now);
    match judged {
        Judged::Refused => {
            let pool = call.session.listener.pool();
            if again(&mut call, &pool, trip, Blame::Call, now) {
                tokio::task::spawn_local(relay(call, None));
                return;
            }
        }
        Judged::Failed => trip.failed(Blame::Call, now),
        Judged::Fine if call.kind == Ask::Locate => trip.abandoned(),
        Judged::Fine => trip.succeeded(now),
    }
    call.reply(message, piece);
}

/// What a reply says of the member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// It did what was asked, or said what is wrong with that.
    Fine,
    /// It has not begun, and will not now.
    Refused,
    /// It could not.
    Failed,
}

fn judge(reply: &Reply<'_>, order: Order, own: Option<&[u8]>) -> Judged {
    if reply.status != Status::SystemException {
        // Back to the group, which is here.
        let home =
            reply.forward(order).and_then(|ior| ior.iiop()).is_some_and(|profile| Some(&*profile.key) == own);
        return if home { Judged::Refused } else { Judged::Fine };
    }
    let Some(why) = reply.exception(order) else { return Judged::Failed };
    match (why.name(), why.completed) {
        ("TRANSIENT" | "NO_RESOURCES" | "NO_MEMORY" | "COMM_FAILURE", Completed::No) => Judged::Refused,
        (
            "TRANSIENT" | "NO_RESOURCES" | "NO_MEMORY" | "COMM_FAILURE" | "INTERNAL" | "INITIALIZE"
            | "TIMEOUT" | "IMP_LIMIT" | "UNKNOWN" | "PERSIST_STORE",
            _,
        ) => Judged::Failed,
        // What was asked was wrong: any member would say so.
        _ => Judged::Fine,
    }
}

/// A member did not take a request: is it to be tried with another?
fn again(call: &mut Call, pool: &Pool, trip: Trip, blame: Blame, now: Time) -> bool {
    let (attempts, member) = (trip.settings().retry.attempts, trip.member());
    trip.failed(blame, now);
    next(call, pool, attempts, member, now)
}

/// The same where that says nothing about the member, or has been said.
fn pass_over(call: &mut Call, pool: &Pool, trip: Trip, now: Time) -> bool {
    let (attempts, member) = (trip.settings().retry.attempts, trip.member());
    trip.abandoned();
    next(call, pool, attempts, member, now)
}

fn next(call: &mut Call, pool: &Pool, attempts: u32, member: MemberId, now: Time) -> bool {
    let attempts = attempts as usize;
    if call.tried.len() >= attempts || !pool.withdraw(now) {
        return false;
    }
    call.tried.push(member);
    true
}

fn most(trip: &Trip) -> usize {
    trip.settings().iiop.as_ref().map_or(1, |iiop| iiop.connections)
}

fn manner(call: &Call) -> Manner {
    Manner { version: call.form.version, code_sets: call.session.code_sets() }
}

fn key(call: &Call, pool: &Pool) -> u64 {
    match pool.view().published.plan.strategy().reads_key {
        true => crate::key::of_client(call.session.peer.client.ip()),
        false => 0,
    }
}
