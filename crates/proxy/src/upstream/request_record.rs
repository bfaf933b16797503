//! The record of a request until it ends, for the access log and its trace: the chosen members, the reasons,
//! and the outcomes.
//!
//! Most requests have no record and pay one check for its absence. The code for the others is out of line.

use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_brain::Time;
use plimsoll_wire::http1::RequestHead;
use plimsoll_wire::trace_context::{self, TraceParent};

use crate::upstream::access_log::{AccessLogEntry, LogContext, RequestOutcome};
use crate::upstream::in_flight::InFlight;
use crate::upstream::thread_context::ThreadContext;
use crate::upstream::trace::{ConnectionAttributes, RequestTrace};

/// The maximum size of a group for which the figures of a choice are looked up: some figures need a pass over
/// all members.
const MAX_MEMBERS_FOR_FIGURES: usize = 64;

/// The record of a request.
pub(crate) struct RequestRecord {
    /// The line of the access log, if the request is to be logged.
    log_entry: Option<AccessLogEntry>,
    trace: Option<RequestTrace>,
    /// The trace context that the client sent.
    context: Option<TraceParent>,
    /// The kind of wait that led to the next member, if the request waited for one.
    wait_reason: Option<ChoiceReason>,
    pub(crate) attempts: Vec<RequestAttempt>,
}

/// One attempt to serve a request by a member.
#[derive(Clone, Debug)]
pub(crate) struct RequestAttempt {
    pub(crate) member: Arc<str>,
    pub(crate) address: SocketAddr,
    pub(crate) strategy: &'static str,
    pub(crate) choice: ChoiceReason,
    /// The strategy's figures of the member, including this request.
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) begun: Time,
    /// The span of the attempt, if the request is traced.
    pub(crate) span: [u8; 8],
    /// The time and reason of a failure without a forwarded response. An attempt whose response is forwarded
    /// ends with the request.
    pub(crate) failure: Option<(Time, &'static str)>,
}

/// The reason why a request was sent to its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChoiceReason {
    /// The strategy chose the member.
    #[default]
    Strategy,
    /// The group has no other member.
    OnlyMember,
    /// The connection is bound to the member.
    Session,
    /// The client's cookie names the member.
    Cookie,
    /// The session was moved to this member from another.
    Moved,
    /// The member fell below its limit while the request waited in the wait queue.
    WaitQueue,
    /// The member had room while the request waited in the admission line.
    AdmissionLine,
    /// Another member failed before.
    Retry,
    /// Another member declined the request before.
    Declined,
}

impl ChoiceReason {
    /// Returns the name in the access log.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Strategy => "strategy",
            Self::OnlyMember => "only",
            Self::Session => "session",
            Self::Cookie => "cookie",
            Self::Moved => "moved",
            Self::WaitQueue => "queue",
            Self::AdmissionLine => "line",
            Self::Retry => "retry",
            Self::Declined => "declined",
        }
    }
}

impl RequestRecord {
    /// Creates a record of this request, if one is required. `out` is the request head for the member; it may
    /// be changed.
    #[inline(always)]
    pub(crate) fn begin(
        core: &ThreadContext,
        request: &RequestHead<'_, '_>,
        out: &mut Vec<u8>,
    ) -> Option<Box<Self>> {
        if core.is_recording.get() { Self::create(core, request, out) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn create(core: &ThreadContext, request: &RequestHead<'_, '_>, out: &mut Vec<u8>) -> Option<Box<Self>> {
        let should_log = core.access_log.should_log(core);
        let context = trace_context::parent_in_head(out);
        let trace = core.tracer.begin(core, context, out);
        if !should_log && trace.is_none() {
            return None;
        }
        let log_entry = should_log.then(|| AccessLogEntry::from_request(request));
        let trace = trace.map(|trace| trace.with_request(request));
        Some(Box::new(Self { log_entry, trace, context, wait_reason: None, attempts: Vec::new() }))
    }

    /// Sets the target in the access log; the request's own may have been changed for the member.
    pub(crate) fn set_target(&mut self, target: &[u8]) {
        if let Some(log_entry) = &mut self.log_entry
            && log_entry.target.as_bytes() != target
        {
            log_entry.target = String::from_utf8_lossy(target).into_owned();
        }
    }

    /// Records that a member was chosen. `how` is the reason, if the client was bound to the member. `out` is
    /// the request head for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_choice(
        &mut self,
        core: &ThreadContext,
        in_flight: &InFlight,
        choice_reason: ChoiceReason,
        out: &mut [u8],
        now: Time,
    ) {
        let plan = &in_flight.view().published.plan;
        let members = plan.members();
        let Some(member) = members.get(in_flight.place()) else { return };
        let previous_failure = self.attempts.last().and_then(|previous| previous.failure);
        let choice = match (self.wait_reason.take(), previous_failure) {
            (_, Some((_, DECLINED | NO_ROOM))) => ChoiceReason::Declined,
            // The pooled connection was stale: the same member again is not another choice.
            (_, Some((_, STALE))) => self.attempts.last().map_or(choice_reason, |previous| previous.choice),
            (_, Some(_)) => ChoiceReason::Retry,
            (Some(wait_reason), None) => wait_reason,
            (None, None) if choice_reason == ChoiceReason::Strategy && members.len() == 1 => {
                ChoiceReason::OnlyMember
            }
            (None, None) => choice_reason,
        };
        let figures =
            if members.len() <= MAX_MEMBERS_FOR_FIGURES { plan.explain(member, now) } else { Vec::new() };
        let span = self.trace.as_ref().map_or([0; 8], |trace| trace.begin_attempt(core, out));
        self.attempts.push(RequestAttempt {
            member: Arc::clone(&member.name),
            address: in_flight.upstream.address.get(),
            strategy: plan.strategy().name,
            choice,
            figures,
            begun: now,
            span,
            failure: None,
        });
    }

    /// Records that the request waited for its next member.
    pub(crate) fn record_wait(&mut self, queued: bool) {
        self.wait_reason = Some(if queued { ChoiceReason::WaitQueue } else { ChoiceReason::AdmissionLine });
    }

    /// Records that the last chosen member gave no response that was forwarded.
    pub(crate) fn record_failure(&mut self, reason: &'static str, now: Time) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.failure = Some((now, reason));
        }
    }

    /// Ends the record: writes the line and sends the spans.
    pub(crate) fn end(
        self: Box<Self>,
        core: &ThreadContext,
        connection: &ConnectionAttributes<'_>,
        outcome: &RequestOutcome,
        started_at: Time,
        now: Time,
    ) {
        let Self { log_entry, trace, context, attempts, .. } = *self;
        if let Some(log_entry) = &log_entry {
            let ids = match &trace {
                Some(trace) => Some(trace.ids()),
                None => context.map(|context| (trace_context::hex(&context.trace), None)),
            };
            core.log(
                log_entry,
                connection.client,
                connection.group,
                outcome,
                &LogContext { ids, route: connection.route, attempts: &attempts, begun: started_at },
            );
        }
        if let Some(trace) = trace {
            core.tracer.end(core, trace.end(connection, outcome, attempts, started_at, now));
        }
    }
}

/// The member did not process the request.
pub(crate) const DECLINED: &str = "declined";
/// The member reported that it has no room.
pub(crate) const NO_ROOM: &str = "no_room";
/// The pooled connection had been closed.
pub(crate) const STALE: &str = "stale";
