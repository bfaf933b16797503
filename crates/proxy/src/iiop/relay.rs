//! Relayed requests: the choice of a member for each, a connection to it, and the verdict on its reply.
//!
//! A request that no member has begun may be tried with another member. This is so if the connection could
//! not be made, or if the member replies TRANSIENT or NO_RESOURCES with COMPLETED_NO. The retry budget bounds
//! it.

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

/// The description of a call for the choice of a member: a refusal for lack of room is not distinguished from
/// a failure.
const WORK: Work = Work::Request { once: false, again: false, binds: false };

/// Sends a request at once if a member and a connection to it are available, else as soon as they are.
/// Returns the connection if the request was sent.
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

/// Finds a member for a request, unless `trip` is one, and a connection to it, and sends the request.
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
                // The task that made the attempt has recorded the failure: it counts once.
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
            // Further attempts would only blame the other members, too.
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

/// Handles a member's reply.
pub(super) fn answered(mut call: Call, trip: Trip, message: &mut [u8], piece: Option<usize>, now: Time) {
    let judged = match Message::parse(message) {
        Ok(Message { header, content: Content::Reply(reply) }) => {
            let own = trip.settings().iiop.as_ref().and_then(|iiop| iiop.key.as_deref());
            let order = header.form().order;
            let (judged, for_good) = (judge(&reply, order, own), reply.status == Status::ForwardForGood);
            if for_good && own.is_some() {
                // Not permanent: a client that takes it as such never returns to the group.
                let status = Status::Forward as u32;
                let bytes = if order == Order::Big { status.to_be_bytes() } else { status.to_le_bytes() };
                // After the header and the request ID, since 1.2, the only version with it.
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

/// The verdict of a reply on the member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// The member executed the request, or reported the client's error.
    Fine,
    /// The member has not begun the request, and will not.
    Refused,
    /// The member failed.
    Failed,
}

fn judge(reply: &Reply<'_>, order: Order, own: Option<&[u8]>) -> Judged {
    if reply.status != Status::SystemException {
        // The reply forwards the client back to the group, which is this balancer.
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
        // The request was wrong: any member would reply so.
        _ => Judged::Fine,
    }
}

/// Records that a member failed a request; returns `true` if the request may be tried with another.
fn again(call: &mut Call, pool: &Pool, trip: Trip, blame: Blame, now: Time) -> bool {
    let (attempts, member) = (trip.settings().retry.attempts, trip.member());
    trip.failed(blame, now);
    next(call, pool, attempts, member, now)
}

/// Decides as [`again`], without a finding about the member, or after it was recorded.
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
