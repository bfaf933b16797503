//! From a request to a response: choose, connect, relay; retry where that is safe and allowed.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use plimsoll_brain::{MemberId, Time, Urgency};
use plimsoll_wire::priority;

use super::bound_connection::RedirectLocation;
use super::exchange::MAX_PIPELINED;
use super::outcome::{CompletedExchange, ExchangeFailure};
use super::{ByteStream, HttpSession, ParsedRequest};
use crate::net::acme_challenge;
use crate::net::connection::PeerConnection;
use crate::net::reason::Reason;
use crate::protocol::http2;
use crate::upstream::admission::{self, AdmissionRequest};
use crate::upstream::connect::connect_member;
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool};
use crate::upstream::request_record::{ChoiceReason, NO_ROOM};
use crate::upstream::side_car::MeterGuard;
use crate::upstream::thread_context::ThreadContext;

/// The maximum number of members that refuse a request before it waits, of members that decline it, and of
/// stale connections.
const MAX_IMMEDIATE_REFUSALS: u8 = 4;

/// The maximum number of refusals of a request that may wait. Near capacity, one balancer of many rarely gets
/// a free slot first, which is no sign for the next slot. A timeout ends the wait; this limit ends it only
/// where members always refuse.
const MAX_REFUSALS: u8 = 128;

/// A future that few requests await. On the heap, created and polled out of line, as it would make all others
/// larger and slower.
pub(super) type ColdFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The reason why a request has to wait.
enum WaitCause {
    /// Every member is at its limit.
    AllAtLimit,
    /// No member has room, as far as is known.
    NoRoom,
    /// Members have just refused the request.
    Refused,
}

/// The outcome of the attempts to have a request answered.
pub(super) enum DispatchOutcome {
    Answered(CompletedExchange),
    /// The balancer answers the request itself.
    Rejected(Reason),
    /// The client is redirected there.
    Redirected(RedirectLocation),
    /// The client has gone, or its response broke off: nothing can be sent any more.
    ClientGone,
}

impl<S: ByteStream> HttpSession<S> {
    /// Gets a request answered; returns `false` if the connection ends with it.
    pub(super) async fn handle_request(&mut self, request: &mut ParsedRequest) -> bool {
        self.answered_locally = false;
        if let Some(response) = acme_challenge::asked(&request.outgoing) {
            self.leave_route(request);
            return self.answer_acme_challenge(request, &response).await;
        }
        if let Some(extras) = &mut request.extras
            && let Some(reply) = extras.route.as_mut().and_then(|route| route.reply.take())
        {
            return self.answer_route(request, reply).await;
        }
        let pool = self.listener.pool();
        let outcome = self.dispatch(&pool, request).await;
        let now = self.core.now();
        if let Some((urgency, served)) = request.wait_urgency.get() {
            let urgency_counters = &pool.counters().urgencies[usize::from(urgency.value())];
            if served { urgency_counters.served.add(1) } else { urgency_counters.rejected.add(1) }
        }
        let keep_alive = match outcome {
            DispatchOutcome::Answered(completed) => {
                pool.counters().latency.record(completed.ended_at.since(request.started_at));
                self.log_request(request, completed.status, None, now);
                if !completed.keep_client {
                    self.stream.part();
                    if !request.body.is_done() {
                        self.linger().await;
                    }
                }
                completed.keep_client
            }
            DispatchOutcome::Rejected(reason) => {
                // Not included in the latencies: fast rejections during an overload are not a fast service.
                pool.group.record_rejection(self.core.index, reason);
                self.log_request(request, reason.status().0, Some(reason), now);
                self.reject(request, reason).await
            }
            DispatchOutcome::Redirected(location) => {
                self.log_request(request, 307, None, now);
                self.redirect(request, &location).await
            }
            DispatchOutcome::ClientGone => {
                self.log_request(request, 0, None, now);
                false
            }
        };
        self.core.recycle(std::mem::take(&mut request.outgoing));
        self.leave_route(request);
        keep_alive
    }

    async fn dispatch(&mut self, pool: &Rc<GroupPool>, request: &mut ParsedRequest) -> DispatchOutcome {
        pool.deposit(request.started_at);
        if let Some(side_car) = &pool.group.side_car {
            if let Some(outcome) = self.shed_client(side_car, request) {
                return outcome;
            }
            request.meter = match request.body.is_done() {
                true => MeterGuard::begin(side_car, true, request.started_at),
                false => MeterGuard::begin_arriving(side_car),
            };
            if !request.meter.rejection_header().is_empty() {
                return DispatchOutcome::Rejected(Reason::Shed);
            }
        }
        let deadline = {
            let total = request.view.published.settings.timeouts.total;
            let deadline = if total.is_zero() { Time(u64::MAX) } else { request.started_at + total };
            match self.stream.call() {
                None => deadline,
                Some(call) => {
                    call.timeout.map_or(deadline, |timeout| deadline.min(request.started_at + timeout))
                }
            }
        };
        let mut tried: Vec<MemberId> = Vec::new();
        let mut last_reason = Reason::NoMember;
        let mut new_connection = false;
        let (mut refusals, mut was_refused) = (0, false);
        let mut stale_retries: u8 = 0;
        let mut decline_count = 0;
        // `tried` contains first the members that failed, then those that declined, then those that refused.
        let mut retries: u16 = 0;
        let mut uncharged_retries: u16 = 0;
        let mut now = request.started_at;
        let mut is_first = true;
        loop {
            let view = if std::mem::take(&mut is_first) { Rc::clone(&request.view) } else { pool.view() };
            // The result is not bound to a variable, which would enlarge every connection beside all that
            // follows.
            let in_flight = match match &self.binding {
                _ if was_refused && refusals >= MAX_IMMEDIATE_REFUSALS => AdmissionOutcome::Overloaded,
                None => {
                    admission::try_admit(&self.core, pool, view, request.key, &tried, request.work(), now)
                }
                Some(_) => match self.admit_bound(pool, view, request, &tried, now) {
                    Ok(admission) => admission,
                    Err(location) => return DispatchOutcome::Redirected(location),
                },
            } {
                AdmissionOutcome::Admitted(in_flight) => in_flight,
                AdmissionOutcome::NoCandidate
                    if (1..MAX_IMMEDIATE_REFUSALS).contains(&decline_count)
                        && last_reason == Reason::Reset =>
                {
                    // These members did not process it, perhaps for a reason that has passed, such as an
                    // upgrade: another attempt, with any member.
                    uncharged_retries = 0;
                    tried.truncate(usize::from(retries));
                    continue;
                }
                AdmissionOutcome::NoCandidate if last_reason != Reason::Shed => {
                    return DispatchOutcome::Rejected(last_reason);
                }
                refusal => {
                    let full = matches!(refusal, AdmissionOutcome::Full);
                    drop(refusal);
                    // Members that refused may have room by then. Those that declined had room all the time.
                    tried.truncate(usize::from(retries + uncharged_retries));
                    let cause = match was_refused {
                        _ if full => WaitCause::AllAtLimit,
                        false => WaitCause::NoRoom,
                        true => WaitCause::Refused,
                    };
                    match self.wait(pool, request, &tried, deadline, cause).await {
                        Ok(in_flight) => {
                            if let Some(record) = request.record() {
                                record.record_wait(full);
                            }
                            in_flight
                        }
                        Err(Reason::NoMember) => return DispatchOutcome::Rejected(last_reason),
                        Err(reason) => return DispatchOutcome::Rejected(reason),
                    }
                }
            };
            was_refused = false;
            if let Some(extras) = &mut request.extras
                && let Some(record) = &mut extras.record
            {
                let choice_reason =
                    self.binding.as_ref().map_or(ChoiceReason::Strategy, |binding| binding.borrow().choice);
                record.record_choice(&self.core, &in_flight, choice_reason, &mut request.outgoing, now);
            }
            request.retry_allowed = u32::from(retries) < in_flight.settings().retry.attempts;
            let failure = match self.try_member(request, &in_flight, deadline, new_connection).await {
                // The member has no room, contrary to what was known here. That is no failure, and no retry
                // that adds to an overload.
                Ok(completed) if completed.member_refused => {
                    // The connection remains usable.
                    (was_refused, new_connection, stale_retries) = (true, false, 0);
                    request.wait_urgency.set(request.wait_urgency.get().map(|(urgency, _)| (urgency, false)));
                    refusals += 1;
                    if let Some(record) = request.record() {
                        record.record_failure(NO_ROOM, completed.ended_at);
                    }
                    tried.push(in_flight.member());
                    now = completed.ended_at;
                    in_flight.finish_refused();
                    last_reason = Reason::Shed;
                    if refusals == MAX_REFUSALS || !request.is_repeatable() {
                        return DispatchOutcome::Rejected(Reason::Shed);
                    }
                    continue;
                }
                Ok(completed) => {
                    let member = in_flight.member();
                    match self.stream.call() {
                        None => in_flight.finish_with_status(completed.status, completed.ended_at),
                        Some(call) => in_flight.finish_call(
                            completed.status,
                            call.is_member_failure(),
                            completed.ended_at,
                        ),
                    }
                    if !completed.keep_member && self.binding.is_some() {
                        self.record_member_close(member);
                    }
                    return DispatchOutcome::Answered(completed);
                }
                Err(failure) => failure,
            };
            now = self.core.tick();
            if let Some(record) = request.record() {
                record.record_failure(failure.label(), now);
            }
            let (reason, unsent) = match failure {
                // With the begin of a response, the client got what it wanted: that is no finding about the
                // member.
                ExchangeFailure::ClientLeft(answered) => {
                    in_flight.counters().client_left.add(1);
                    if !answered {
                        in_flight.client_left(now);
                    }
                    return DispatchOutcome::ClientGone;
                }
                ExchangeFailure::RequestRejected(reason) => {
                    in_flight.abandon();
                    return DispatchOutcome::Rejected(reason);
                }
                ExchangeFailure::ResponseTruncated => {
                    in_flight.finish_failure(FailureCause::IncompleteResponse, now);
                    self.stream.fail(false);
                    return DispatchOutcome::ClientGone;
                }
                // The member is not to blame for such a short timeout of the client.
                ExchangeFailure::ClientDeadline(answered) => {
                    in_flight.client_left(now);
                    if !answered {
                        return DispatchOutcome::Rejected(Reason::TotalTimeout);
                    }
                    self.stream.fail(true);
                    return DispatchOutcome::ClientGone;
                }
                ExchangeFailure::IdleTimeout => {
                    in_flight.finish_neutral(now);
                    self.stream.fail(true);
                    return DispatchOutcome::ClientGone;
                }
                ExchangeFailure::MemberDown => {
                    tried.insert(usize::from(retries), in_flight.member());
                    // The member's health checks have reported the failure.
                    in_flight.abandon();
                    retries = retries.saturating_add(1);
                    (last_reason, new_connection) = (Reason::AnswerTimeout, false);
                    continue;
                }
                ExchangeFailure::Declined => {
                    // The member did not process the request, so it is not to blame; but others may accept it
                    // at once.
                    tried.insert(usize::from(retries + uncharged_retries), in_flight.member());
                    in_flight.abandon();
                    uncharged_retries += 1;
                    decline_count += 1;
                    last_reason = Reason::Reset;
                    if decline_count >= MAX_IMMEDIATE_REFUSALS || request.streamed {
                        return DispatchOutcome::Rejected(Reason::Reset);
                    }
                    continue;
                }
                ExchangeFailure::StaleConnection(unprocessed) => {
                    // The member closed a connection that was kept for long enough, or that it accepted
                    // while it stopped: no failure, unless it does so always. An HTTP/2 connection that the
                    // member announced as closing is not used again anyway.
                    new_connection = !unprocessed;
                    stale_retries += 1;
                    if !request.streamed
                        && (unprocessed || request.method.is_idempotent())
                        && stale_retries < MAX_IMMEDIATE_REFUSALS
                    {
                        in_flight.abandon();
                        continue;
                    }
                    (Reason::Reset, unprocessed)
                }
                // Further attempts would only blame the other members, too.
                ExchangeFailure::MemberFailed(Reason::Exhausted, _) => {
                    in_flight.abandon();
                    return DispatchOutcome::Rejected(Reason::Exhausted);
                }
                ExchangeFailure::MemberFailed(reason, unsent) => (reason, unsent),
            };
            let retry = in_flight.settings().retry;
            let member = in_flight.member();
            in_flight.finish_failure(FailureCause::Reason(reason), now);
            let allowed = u32::from(retries) < retry.attempts
                && !request.streamed
                && (unsent || request.method.is_idempotent())
                && now < deadline
                && pool.withdraw(now);
            if !allowed {
                return DispatchOutcome::Rejected(reason);
            }
            tried.insert(usize::from(retries), member);
            retries = retries.saturating_add(1);
            last_reason = reason;
            new_connection = false;
        }
    }

    /// Waits for a member: in the wait queue if all are at their limit, else in the admission line.
    #[cold]
    #[inline(never)]
    fn wait<'a>(
        &'a mut self,
        pool: &'a GroupPool,
        request: &'a ParsedRequest,
        tried: &'a [MemberId],
        deadline: Time,
        cause: WaitCause,
    ) -> ColdFuture<'a, Result<InFlight, Reason>> {
        Box::pin(async move {
            let urgency = match request.wait_urgency.get() {
                Some((urgency, _)) => Some(urgency),
                None => self.urgency(request),
            };
            let admission_request = AdmissionRequest {
                key: request.key,
                tried,
                urgency,
                deadline,
                work: request.work(),
                since: request.started_at,
                recently_refused: matches!(cause, WaitCause::Refused),
                has_waited: &request.waited,
            };
            let queued = match cause {
                WaitCause::AllAtLimit => {
                    admission::wait_in_queue(&self.core, pool, &self.timer, &admission_request).await
                }
                WaitCause::NoRoom | WaitCause::Refused => Err(Reason::Shed),
            };
            let admitted = match queued {
                Err(Reason::Shed) => {
                    let Self { core, timer, stream, watched, unread, .. } = self;
                    let watch_client = request.body.is_done();
                    let client_gone = |cx: &mut Context<'_>| {
                        watch_client && is_client_closed(core, stream, watched, unread, cx)
                    };
                    admission::wait_in_line(core, pool, timer, &admission_request, client_gone).await
                }
                queued => queued,
            };
            request.wait_urgency.set(urgency.map(|urgency| (urgency, admitted.is_ok())));
            admitted.inspect(|in_flight| self.bind_after_wait(request, in_flight))
        })
    }

    /// Returns the urgency that a request states, if the listener reads it. Only requests that find no room
    /// need it: it is read from the head for the member, so that others carry nothing of it.
    #[cold]
    #[inline(never)]
    fn urgency(&self, request: &ParsedRequest) -> Option<Urgency> {
        let settings = self.listener.settings();
        let name = settings.priority.as_deref()?;
        let urgency = match &request.passthrough_call {
            None => priority::urgency_in_head(&request.outgoing, name),
            Some(call) => {
                let values = call.head.headers.get_all(name).iter();
                values.filter_map(|value| priority::urgency(value.as_bytes())).next_back()
            }
        };
        Some(urgency.and_then(Urgency::new).unwrap_or_default())
    }

    /// Opens a new connection to a member, or a stream on one.
    #[cold]
    #[inline(never)]
    fn connect_member<'a>(
        &'a self,
        in_flight: &'a InFlight,
        deadline: Time,
    ) -> ColdFuture<'a, Result<PeerConnection, Reason>> {
        Box::pin(async move {
            match in_flight.settings().http2 {
                true => http2::reach(&self.core, in_flight, &self.timer, deadline, &self.peer).await,
                false => connect_member(&self.core, in_flight, &self.timer, deadline, &self.peer).await,
            }
        })
    }

    /// Returns the failure for a connection that was not made: an expired client timeout is no failure of the
    /// member, nor is an HTTP/2 connection that a stopping process still accepted.
    #[cold]
    fn connect_failure(&self, request: &ParsedRequest, reason: Reason) -> ExchangeFailure {
        let elapsed = self.core.tick().since(request.started_at);
        let deadline_expired = self.stream.call().is_some_and(|call| call.is_expired(elapsed));
        match reason {
            Reason::TotalTimeout if deadline_expired => ExchangeFailure::ClientDeadline(false),
            // The member announced the end of an HTTP/2 connection before a request could be sent on it.
            Reason::Reset => ExchangeFailure::StaleConnection(true),
            reason => ExchangeFailure::MemberFailed(reason, true),
        }
    }

    /// Sends the request to one member.
    #[expect(
        clippy::manual_async_fn,
        reason = "as an `async fn` it keeps its arguments twice, in each connection"
    )]
    fn try_member<'a>(
        &'a mut self,
        request: &'a mut ParsedRequest,
        in_flight: &'a InFlight,
        deadline: Time,
        new_connection: bool,
    ) -> impl Future<Output = Result<CompletedExchange, ExchangeFailure>> + use<'a, S> {
        async move {
            let is_http2 = in_flight.settings().http2;
            // As above.
            let (mut member, reused) = match match is_http2 {
                _ if new_connection => None,
                true => http2::existing_stream(&self.core, in_flight),
                false => in_flight.upstream.check_out(),
            } {
                Some(stream) => (stream, true),
                none => {
                    drop(none);
                    let connect_result = self.connect_member(in_flight, deadline).await;
                    (connect_result.map_err(|reason| self.connect_failure(request, reason))?, false)
                }
            };
            if !is_http2 && request.passthrough_call.is_some() {
                request.convert_to_text();
            }
            let completed = self.exchange(request, &mut member, in_flight, deadline, reused).await?;
            let settings = in_flight.settings();
            if is_http2 {
                if let Some(report) = member.take_report() {
                    // A forwarded response is no refusal, whatever its report states.
                    let _ = in_flight.record_report(&report, None, self.core.now());
                }
            } else if completed.keep_member && settings.send_proxy.is_none() {
                in_flight.upstream.check_in(member, self.core.now(), settings.pool);
            }
            Ok(completed)
        }
    }
}

/// Returns `true` if a waiting client has closed its side; then it has most likely given up. Bytes that it
/// sends ahead are kept.
fn is_client_closed<S: ByteStream>(
    core: &ThreadContext,
    stream: &mut S,
    watched: &mut bool,
    unread: &mut Vec<u8>,
    cx: &mut Context<'_>,
) -> bool {
    core.with_buffers(|buffer, _| {
        while unread.len() < MAX_PIPELINED {
            let max_len = (MAX_PIPELINED - unread.len()).min(buffer.len());
            match stream.poll_recv(cx, &mut buffer[..max_len], watched) {
                Poll::Ready(Ok(received)) if received > 0 => unread.extend_from_slice(&buffer[..received]),
                Poll::Ready(_) => return true,
                Poll::Pending => return false,
            }
        }
        false
    })
}
