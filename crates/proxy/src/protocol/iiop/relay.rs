//! Relayed requests: the choice of a member for each, a connection to it, and the verdict on its reply.
//!
//! A request that no member has begun may be tried with another member. This is so if the connection could
//! not be made, or if the member replies TRANSIENT or NO_RESOURCES with COMPLETED_NO. The retry budget bounds
//! it.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use plimsoll_brain::{MemberId, Time};
use plimsoll_wire::giop::{ByteOrder, CompletionStatus, GiopMessage, GiopReply, MessageContent, ReplyStatus};

use super::call::{CallKind, GiopCall};
use super::connection::{ConnectionLimits, GiopConnection, SharingKey};
use super::pool::ConnectionRoute;
use crate::net::reason::Reason;
use crate::upstream::admission::{self, admit};
use crate::upstream::connect::connect;
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, WorkKind};

/// The description of a call for the choice of a member: a refusal for lack of room is not distinguished from
/// a failure.
const WORK: WorkKind = WorkKind::Request { at_most_once: false, resendable: false, binds: false };

/// Sends a request at once if a member and a connection to it are available, else as soon as they are.
/// Returns the connection if the request was sent.
pub(super) fn begin_relay(call: GiopCall) -> Option<Rc<GiopConnection>> {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    pool.deposit(call.begun);
    let admission =
        admission::try_admit(core, &pool, pool.view(), hash_key(&call, &pool), &[], WORK, call.begun);
    if let AdmissionOutcome::Admitted(trip) = admission {
        let Some(line) = pool.iiop.pool.find_reusable(trip.member(), &sharing_key(&call), most(&trip)) else {
            session.record_waiting(&call);
            tokio::task::spawn_local(relay(call, Some(trip)));
            return None;
        };
        line.send(call, trip, core.now());
        return Some(line);
    }
    session.record_waiting(&call);
    tokio::task::spawn_local(relay(call, None));
    None
}

/// Finds a member for a request, unless `trip` already has one, and a connection to it, and sends the
/// request.
pub(super) async fn relay(mut call: GiopCall, mut trip: Option<InFlight>) {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let never = Time(u64::MAX);
    let mut last = Reason::NoMember;
    loop {
        let admitted = match trip.take() {
            Some(trip) => Ok(trip),
            None => admit(core, &pool, &timer, hash_key(&call, &pool), &call.tried, WORK, never).await,
        };
        let found = match admitted {
            Ok(trip) => trip,
            Err(Reason::NoMember) => return call.reply_failure(last),
            Err(reason) => return call.reply_failure(reason),
        };
        if !session.is_wanted(&call) {
            return found.abandon();
        }
        let manner = sharing_key(&call);
        let failed = match pool.iiop.pool.route(found.member(), &manner, most(&found)) {
            ConnectionRoute::Existing(line) => return line.send(call, found, core.now()),
            ConnectionRoute::Connect(making) => {
                match connect(core, &found, &timer, never, &session.peer).await {
                    Ok(socket) => {
                        let line = making.complete(core, socket, ConnectionLimits::of(&found));
                        if !session.is_wanted(&call) {
                            return found.abandon();
                        }
                        return line.send(call, found, core.now());
                    }
                    Err(reason) => {
                        making.fail(reason);
                        Some(reason)
                    }
                }
            }
            ConnectionRoute::Await(attempt) => match attempt.wait_until_done().await {
                // The task that made the attempt has recorded the failure: it counts once.
                Some(reason) if reason != Reason::Exhausted => {
                    last = reason;
                    if !can_retry(&mut call, &pool, found, core.tick()) {
                        return call.reply_failure(last);
                    }
                    continue;
                }
                failed => failed,
            },
            ConnectionRoute::AfterClose => {
                pool.iiop.pool.wait_for_close().await;
                None
            }
            ConnectionRoute::AtLimit => {
                last = Reason::Exhausted;
                if !can_retry(&mut call, &pool, found, core.tick()) {
                    return call.reply_failure(last);
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
                found.abandon();
                return call.reply_failure(Reason::Exhausted);
            }
            Some(reason) => reason,
        };
        let now = core.tick();
        if !fail_and_can_retry(&mut call, &pool, found, FailureCause::Reason(last), now) {
            return call.reply_failure(last);
        }
    }
}

/// Handles a member's reply.
pub(super) fn handle_reply(
    mut call: GiopCall,
    trip: InFlight,
    message: &mut [u8],
    piece: Option<usize>,
    now: Time,
) {
    let judged = match GiopMessage::parse(message) {
        Ok(GiopMessage { header, content: MessageContent::Reply(reply) }) => {
            let own = trip.settings().iiop.as_ref().and_then(|iiop| iiop.key.as_deref());
            let order = header.format().order;
            let (judged, for_good) =
                (reply_verdict(&reply, order, own), reply.status == ReplyStatus::ForwardPermanent);
            if for_good && own.is_some() {
                // Not permanent: a client that takes it as such never returns to the group.
                let status = ReplyStatus::Forward as u32;
                let bytes = if order == ByteOrder::Big { status.to_be_bytes() } else { status.to_le_bytes() };
                // After the header and the request ID, since 1.2, the only version with it.
                message[16..20].copy_from_slice(&bytes);
            }
            judged
        }
        _ => ReplyVerdict::Executed,
    };
    call.meter.end(judged != ReplyVerdict::Failed, now);
    match judged {
        ReplyVerdict::Refused => {
            let pool = call.session.listener.pool();
            if fail_and_can_retry(&mut call, &pool, trip, FailureCause::FailedCall, now) {
                tokio::task::spawn_local(relay(call, None));
                return;
            }
        }
        ReplyVerdict::Failed => trip.finish_failure(FailureCause::FailedCall, now),
        ReplyVerdict::Executed if call.kind == CallKind::Locate => trip.abandon(),
        ReplyVerdict::Executed => trip.finish_success(now),
    }
    call.reply(message, piece);
}

/// The verdict of a reply on the member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyVerdict {
    /// The member executed the request, or reported the client's error.
    Executed,
    /// The member has not begun the request, and will not.
    Refused,
    /// The member failed.
    Failed,
}

fn reply_verdict(reply: &GiopReply<'_>, order: ByteOrder, own: Option<&[u8]>) -> ReplyVerdict {
    if reply.status != ReplyStatus::SystemException {
        // The reply forwards the client back to the group, which is this balancer.
        let home = reply
            .forward(order)
            .and_then(|ior| ior.first_iiop_profile())
            .is_some_and(|profile| Some(&*profile.key) == own);
        return if home { ReplyVerdict::Refused } else { ReplyVerdict::Executed };
    }
    let Some(why) = reply.exception(order) else { return ReplyVerdict::Failed };
    match (why.name(), why.completed) {
        ("TRANSIENT" | "NO_RESOURCES" | "NO_MEMORY" | "COMM_FAILURE", CompletionStatus::No) => {
            ReplyVerdict::Refused
        }
        (
            "TRANSIENT" | "NO_RESOURCES" | "NO_MEMORY" | "COMM_FAILURE" | "INTERNAL" | "INITIALIZE"
            | "TIMEOUT" | "IMP_LIMIT" | "UNKNOWN" | "PERSIST_STORE",
            _,
        ) => ReplyVerdict::Failed,
        // The request was wrong: any member would reply so.
        _ => ReplyVerdict::Executed,
    }
}

/// Records that a member failed a request; returns `true` if the request may be tried with another.
fn fail_and_can_retry(
    call: &mut GiopCall,
    pool: &GroupPool,
    trip: InFlight,
    blame: FailureCause,
    now: Time,
) -> bool {
    let (attempts, member) = (trip.settings().retry.attempts, trip.member());
    trip.finish_failure(blame, now);
    try_next_member(call, pool, attempts, member, now)
}

/// Decides as [`fail_and_can_retry`], without a finding about the member, or after it was recorded.
fn can_retry(call: &mut GiopCall, pool: &GroupPool, trip: InFlight, now: Time) -> bool {
    let (attempts, member) = (trip.settings().retry.attempts, trip.member());
    trip.abandon();
    try_next_member(call, pool, attempts, member, now)
}

fn try_next_member(
    call: &mut GiopCall,
    pool: &GroupPool,
    attempts: u32,
    member: MemberId,
    now: Time,
) -> bool {
    let attempts = attempts as usize;
    if call.tried.len() >= attempts || !pool.withdraw(now) {
        return false;
    }
    call.tried.push(member);
    true
}

fn most(trip: &InFlight) -> usize {
    trip.settings().iiop.as_ref().map_or(1, |iiop| iiop.connections)
}

fn sharing_key(call: &GiopCall) -> SharingKey {
    SharingKey { version: call.form.version, code_sets: call.session.code_sets() }
}

fn hash_key(call: &GiopCall, pool: &GroupPool) -> u64 {
    match pool.view().published.plan.strategy().reads_key {
        true => crate::settings::hash_key::client_key(call.session.peer.client.ip()),
        false => 0,
    }
}
