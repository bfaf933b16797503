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
    pool.deposit(call.started_at);
    let admission =
        admission::try_admit(core, &pool, pool.view(), hash_key(&call, &pool), &[], WORK, call.started_at);
    if let AdmissionOutcome::Admitted(in_flight) = admission {
        let Some(connection) = pool.iiop.pool.find_reusable(
            in_flight.member(),
            &sharing_key(&call),
            max_connections(&in_flight),
        ) else {
            session.record_waiting(&call);
            tokio::task::spawn_local(relay(call, Some(in_flight)));
            return None;
        };
        connection.send(call, in_flight, core.now());
        return Some(connection);
    }
    session.record_waiting(&call);
    tokio::task::spawn_local(relay(call, None));
    None
}

/// Finds a member for a request, unless `trip` already has one, and a connection to it, and sends the
/// request.
pub(super) async fn relay(mut call: GiopCall, mut reserved: Option<InFlight>) {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let no_deadline = Time(u64::MAX);
    let mut last_reason = Reason::NoMember;
    loop {
        let admitted = match reserved.take() {
            Some(in_flight) => Ok(in_flight),
            None => admit(core, &pool, &timer, hash_key(&call, &pool), &call.tried, WORK, no_deadline).await,
        };
        let in_flight = match admitted {
            Ok(in_flight) => in_flight,
            Err(Reason::NoMember) => return call.reply_failure(last_reason),
            Err(reason) => return call.reply_failure(reason),
        };
        if !session.is_wanted(&call) {
            return in_flight.abandon();
        }
        let key = sharing_key(&call);
        let failure = match pool.iiop.pool.route(in_flight.member(), &key, max_connections(&in_flight)) {
            ConnectionRoute::Existing(connection) => return connection.send(call, in_flight, core.now()),
            ConnectionRoute::Connect(ticket) => {
                match connect(core, &in_flight, &timer, no_deadline, &session.peer).await {
                    Ok(socket) => {
                        let connection =
                            ticket.complete(core, socket, ConnectionLimits::from_in_flight(&in_flight));
                        if !session.is_wanted(&call) {
                            return in_flight.abandon();
                        }
                        return connection.send(call, in_flight, core.now());
                    }
                    Err(reason) => {
                        ticket.fail(reason);
                        Some(reason)
                    }
                }
            }
            ConnectionRoute::Await(attempt) => match attempt.wait_until_done().await {
                // The task that made the attempt has recorded the failure: it counts once.
                Some(reason) if reason != Reason::Exhausted => {
                    last_reason = reason;
                    if !can_retry(&mut call, &pool, in_flight, core.tick()) {
                        return call.reply_failure(last_reason);
                    }
                    continue;
                }
                failure => failure,
            },
            ConnectionRoute::AfterClose => {
                pool.iiop.pool.wait_for_close().await;
                None
            }
            ConnectionRoute::AtLimit => {
                last_reason = Reason::Exhausted;
                if !can_retry(&mut call, &pool, in_flight, core.tick()) {
                    return call.reply_failure(last_reason);
                }
                continue;
            }
        };
        last_reason = match failure {
            None => {
                reserved = Some(in_flight);
                continue;
            }
            // Further attempts would only blame the other members, too.
            Some(Reason::Exhausted) => {
                in_flight.abandon();
                return call.reply_failure(Reason::Exhausted);
            }
            Some(reason) => reason,
        };
        let now = core.tick();
        if !fail_and_can_retry(&mut call, &pool, in_flight, FailureCause::Reason(last_reason), now) {
            return call.reply_failure(last_reason);
        }
    }
}

/// Handles a member's reply.
pub(super) fn handle_reply(
    mut call: GiopCall,
    in_flight: InFlight,
    message: &mut [u8],
    fragment_len: Option<usize>,
    now: Time,
) {
    let verdict = match GiopMessage::parse(message) {
        Ok(GiopMessage { header, content: MessageContent::Reply(reply) }) => {
            let own_key = in_flight.settings().iiop.as_ref().and_then(|iiop| iiop.key.as_deref());
            let order = header.format().order;
            let (verdict, is_permanent) =
                (reply_verdict(&reply, order, own_key), reply.status == ReplyStatus::ForwardPermanent);
            if is_permanent && own_key.is_some() {
                // Not permanent: a client that takes it as such never returns to the group.
                let status = ReplyStatus::Forward as u32;
                let bytes = if order == ByteOrder::Big { status.to_be_bytes() } else { status.to_le_bytes() };
                // After the header and the request ID, since 1.2, the only version with it.
                message[16..20].copy_from_slice(&bytes);
            }
            verdict
        }
        _ => ReplyVerdict::Executed,
    };
    call.meter.end(verdict != ReplyVerdict::Failed, now);
    match verdict {
        ReplyVerdict::Refused => {
            let pool = call.session.listener.pool();
            if fail_and_can_retry(&mut call, &pool, in_flight, FailureCause::FailedCall, now) {
                tokio::task::spawn_local(relay(call, None));
                return;
            }
        }
        ReplyVerdict::Failed => in_flight.finish_failure(FailureCause::FailedCall, now),
        ReplyVerdict::Executed if call.kind == CallKind::Locate => in_flight.abandon(),
        ReplyVerdict::Executed => in_flight.finish_success(now),
    }
    call.reply(message, fragment_len);
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

fn reply_verdict(reply: &GiopReply<'_>, order: ByteOrder, own_key: Option<&[u8]>) -> ReplyVerdict {
    if reply.status != ReplyStatus::SystemException {
        // The reply forwards the client back to the group, which is this balancer.
        let points_here = reply
            .forward(order)
            .and_then(|ior| ior.first_iiop_profile())
            .is_some_and(|profile| Some(&*profile.key) == own_key);
        return if points_here { ReplyVerdict::Refused } else { ReplyVerdict::Executed };
    }
    let Some(exception) = reply.exception(order) else { return ReplyVerdict::Failed };
    match (exception.name(), exception.completed) {
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
    in_flight: InFlight,
    cause: FailureCause,
    now: Time,
) -> bool {
    let (attempts, member) = (in_flight.settings().retry.attempts, in_flight.member());
    in_flight.finish_failure(cause, now);
    try_next_member(call, pool, attempts, member, now)
}

/// Decides as [`fail_and_can_retry`], without a finding about the member, or after it was recorded.
fn can_retry(call: &mut GiopCall, pool: &GroupPool, in_flight: InFlight, now: Time) -> bool {
    let (attempts, member) = (in_flight.settings().retry.attempts, in_flight.member());
    in_flight.abandon();
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

fn max_connections(in_flight: &InFlight) -> usize {
    in_flight.settings().iiop.as_ref().map_or(1, |iiop| iiop.connections)
}

fn sharing_key(call: &GiopCall) -> SharingKey {
    SharingKey { version: call.format.version, code_sets: call.session.code_sets() }
}

fn hash_key(call: &GiopCall, pool: &GroupPool) -> u64 {
    match pool.view().published.plan.strategy().reads_key {
        true => crate::settings::hash_key::client_key(call.session.peer.client.ip()),
        false => 0,
    }
}
