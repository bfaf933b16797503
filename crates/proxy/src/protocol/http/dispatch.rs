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
type ColdFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

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
    pub(super) async fn handle_request(&mut self, asked: &mut ParsedRequest) -> bool {
        self.answered_locally = false;
        if let Some(answer) = acme_challenge::asked(&asked.outgoing) {
            return self.answer_acme_challenge(asked, &answer).await;
        }
        let pool = self.listener.pool();
        let outcome = self.dispatch(&pool, asked).await;
        let now = self.core.now();
        if let Some((urgency, found)) = asked.wait_urgency.get() {
            let waited = &pool.counters().urgencies[usize::from(urgency.value())];
            if found { waited.served.add(1) } else { waited.rejected.add(1) }
        }
        let go_on = match outcome {
            DispatchOutcome::Answered(end) => {
                pool.counters().latency.record(end.ended_at.since(asked.begun));
                self.log_request(asked, end.status, None, now);
                if !end.keep_client {
                    self.stream.part();
                    if !asked.body.is_done() {
                        self.linger().await;
                    }
                }
                end.keep_client
            }
            DispatchOutcome::Rejected(reason) => {
                // Not included in the latencies: fast rejections during an overload are not a fast service.
                pool.group.record_rejection(self.core.index, reason);
                self.log_request(asked, reason.status().0, Some(reason), now);
                self.reject(asked, reason).await
            }
            DispatchOutcome::Redirected(location) => {
                self.log_request(asked, 307, None, now);
                self.redirect(asked, &location).await
            }
            DispatchOutcome::ClientGone => {
                self.log_request(asked, 0, None, now);
                false
            }
        };
        self.core.recycle(std::mem::take(&mut asked.outgoing));
        go_on
    }

    async fn dispatch(&mut self, pool: &Rc<GroupPool>, asked: &mut ParsedRequest) -> DispatchOutcome {
        pool.deposit(asked.begun);
        if let Some(side_car) = &pool.group.side_car {
            if let Some(outcome) = self.shed_client(side_car, asked) {
                return outcome;
            }
            asked.meter = match asked.body.is_done() {
                true => MeterGuard::begin(side_car, true, asked.begun),
                false => MeterGuard::begin_arriving(side_car),
            };
            if !asked.meter.rejection_header().is_empty() {
                return DispatchOutcome::Rejected(Reason::Shed);
            }
        }
        let deadline = {
            let total = asked.view.published.settings.timeouts.total;
            let deadline = if total.is_zero() { Time(u64::MAX) } else { asked.begun + total };
            match self.stream.call() {
                None => deadline,
                Some(call) => call.timeout.map_or(deadline, |timeout| deadline.min(asked.begun + timeout)),
            }
        };
        let mut tried: Vec<MemberId> = Vec::new();
        let mut last = Reason::NoMember;
        let mut fresh = false;
        let (mut refusals, mut refused) = (0, false);
        let mut stale: u8 = 0;
        let mut declined = 0;
        // `tried` contains first the members that failed, then those that declined, then those that refused.
        let mut retries: u16 = 0;
        let mut spared: u16 = 0;
        let mut now = asked.begun;
        let mut first = true;
        loop {
            let view = if std::mem::take(&mut first) { Rc::clone(&asked.view) } else { pool.view() };
            // The result is not bound to a variable, which would enlarge every connection beside all that
            // follows.
            let trip = match match &self.binding {
                _ if refused && refusals >= MAX_IMMEDIATE_REFUSALS => AdmissionOutcome::Overloaded,
                None => admission::try_admit(&self.core, pool, view, asked.key, &tried, asked.work(), now),
                Some(_) => match self.admit_bound(pool, view, asked, &tried, now) {
                    Ok(admission) => admission,
                    Err(location) => return DispatchOutcome::Redirected(location),
                },
            } {
                AdmissionOutcome::Admitted(trip) => trip,
                AdmissionOutcome::NoCandidate
                    if (1..MAX_IMMEDIATE_REFUSALS).contains(&declined) && last == Reason::Reset =>
                {
                    // These members did not process it, perhaps for a reason that has passed, such as an
                    // upgrade: another attempt, with any member.
                    spared = 0;
                    tried.truncate(usize::from(retries));
                    continue;
                }
                AdmissionOutcome::NoCandidate if last != Reason::Shed => {
                    return DispatchOutcome::Rejected(last);
                }
                none => {
                    let full = matches!(none, AdmissionOutcome::Full);
                    drop(none);
                    // Members that refused may have room by then. Those that declined had room all the time.
                    tried.truncate(usize::from(retries + spared));
                    let known = match refused {
                        _ if full => WaitCause::AllAtLimit,
                        false => WaitCause::NoRoom,
                        true => WaitCause::Refused,
                    };
                    match self.wait(pool, asked, &tried, deadline, known).await {
                        Ok(trip) => {
                            if let Some(account) = &mut asked.record {
                                account.record_wait(full);
                            }
                            trip
                        }
                        Err(Reason::NoMember) => return DispatchOutcome::Rejected(last),
                        Err(reason) => return DispatchOutcome::Rejected(reason),
                    }
                }
            };
            refused = false;
            if let Some(account) = &mut asked.record {
                let how = self.binding.as_ref().map_or(ChoiceReason::Strategy, |bond| bond.borrow().choice);
                account.record_choice(&self.core, &trip, how, &mut asked.outgoing, now);
            }
            asked.retry_allowed = u32::from(retries) < trip.settings().retry.attempts;
            let failure = match self.try_member(asked, &trip, deadline, fresh).await {
                // The member has no room, contrary to what was known here. That is no failure, and no retry
                // that adds to an overload.
                Ok(end) if end.member_refused => {
                    // The connection remains usable.
                    (refused, fresh, stale) = (true, false, 0);
                    asked.wait_urgency.set(asked.wait_urgency.get().map(|(urgency, _)| (urgency, false)));
                    refusals += 1;
                    if let Some(account) = &mut asked.record {
                        account.record_failure(NO_ROOM, end.ended_at);
                    }
                    tried.push(trip.member());
                    now = end.ended_at;
                    trip.finish_refused();
                    last = Reason::Shed;
                    if refusals == MAX_REFUSALS || !asked.is_repeatable() {
                        return DispatchOutcome::Rejected(Reason::Shed);
                    }
                    continue;
                }
                Ok(end) => {
                    let member = trip.member();
                    match self.stream.call() {
                        None => trip.finish_with_status(end.status, end.ended_at),
                        Some(call) => trip.finish_call(end.status, call.is_member_failure(), end.ended_at),
                    }
                    if !end.keep_member && self.binding.is_some() {
                        self.record_member_close(member);
                    }
                    return DispatchOutcome::Answered(end);
                }
                Err(failure) => failure,
            };
            now = self.core.tick();
            if let Some(account) = &mut asked.record {
                account.record_failure(failure.label(), now);
            }
            let (reason, unsent) = match failure {
                // With the begin of a response, the client got what it wanted: that is no finding about the
                // member.
                ExchangeFailure::ClientLeft(answered) => {
                    trip.counters().client_left.add(1);
                    if !answered {
                        trip.client_left(now);
                    }
                    return DispatchOutcome::ClientGone;
                }
                ExchangeFailure::RequestRejected(reason) => {
                    trip.abandon();
                    return DispatchOutcome::Rejected(reason);
                }
                ExchangeFailure::ResponseTruncated => {
                    trip.finish_failure(FailureCause::IncompleteResponse, now);
                    self.stream.fail(false);
                    return DispatchOutcome::ClientGone;
                }
                // The member is not to blame for such a short timeout of the client.
                ExchangeFailure::ClientDeadline(answered) => {
                    trip.client_left(now);
                    if !answered {
                        return DispatchOutcome::Rejected(Reason::TotalTimeout);
                    }
                    self.stream.fail(true);
                    return DispatchOutcome::ClientGone;
                }
                ExchangeFailure::IdleTimeout => {
                    trip.finish_neutral(now);
                    self.stream.fail(true);
                    return DispatchOutcome::ClientGone;
                }
                ExchangeFailure::MemberDown => {
                    tried.insert(usize::from(retries), trip.member());
                    // The member's health checks have reported the failure.
                    trip.abandon();
                    retries = retries.saturating_add(1);
                    (last, fresh) = (Reason::AnswerTimeout, false);
                    continue;
                }
                ExchangeFailure::Declined => {
                    // The member did not process the request, so it is not to blame; but others may accept it
                    // at once.
                    tried.insert(usize::from(retries + spared), trip.member());
                    trip.abandon();
                    spared += 1;
                    declined += 1;
                    last = Reason::Reset;
                    if declined >= MAX_IMMEDIATE_REFUSALS || asked.streamed {
                        return DispatchOutcome::Rejected(Reason::Reset);
                    }
                    continue;
                }
                ExchangeFailure::StaleConnection(untouched) => {
                    // The member closed a connection that was kept for long enough, or that it accepted
                    // while it stopped: no failure, unless it does so always. An HTTP/2 connection that the
                    // member announced as closing is not used again anyway.
                    fresh = !untouched;
                    stale += 1;
                    if !asked.streamed
                        && (untouched || asked.method.is_idempotent())
                        && stale < MAX_IMMEDIATE_REFUSALS
                    {
                        trip.abandon();
                        continue;
                    }
                    (Reason::Reset, untouched)
                }
                // Further attempts would only blame the other members, too.
                ExchangeFailure::MemberFailed(Reason::Exhausted, _) => {
                    trip.abandon();
                    return DispatchOutcome::Rejected(Reason::Exhausted);
                }
                ExchangeFailure::MemberFailed(reason, unsent) => (reason, unsent),
            };
            let retry = trip.settings().retry;
            let member = trip.member();
            trip.finish_failure(FailureCause::Reason(reason), now);
            let allowed = u32::from(retries) < retry.attempts
                && !asked.streamed
                && (unsent || asked.method.is_idempotent())
                && now < deadline
                && pool.withdraw(now);
            if !allowed {
                return DispatchOutcome::Rejected(reason);
            }
            tried.insert(usize::from(retries), member);
            retries = retries.saturating_add(1);
            last = reason;
            fresh = false;
        }
    }

    /// Waits for a member: in the wait queue if all are at their limit, else in the admission line.
    #[cold]
    #[inline(never)]
    fn wait<'a>(
        &'a mut self,
        pool: &'a GroupPool,
        asked: &'a ParsedRequest,
        tried: &'a [MemberId],
        deadline: Time,
        known: WaitCause,
    ) -> ColdFuture<'a, Result<InFlight, Reason>> {
        Box::pin(async move {
            let urgency = match asked.wait_urgency.get() {
                Some((urgency, _)) => Some(urgency),
                None => self.urgency(asked),
            };
            let wish = AdmissionRequest {
                key: asked.key,
                tried,
                urgency,
                deadline,
                work: asked.work(),
                since: asked.begun,
                recently_refused: matches!(known, WaitCause::Refused),
                has_waited: &asked.waited,
            };
            let queued = match known {
                WaitCause::AllAtLimit => admission::wait_in_queue(&self.core, pool, &self.timer, &wish).await,
                WaitCause::NoRoom | WaitCause::Refused => Err(Reason::Shed),
            };
            let found = match queued {
                Err(Reason::Shed) => {
                    let Self { core, timer, stream, watched, unread, .. } = self;
                    let watch = asked.body.is_done();
                    let gone =
                        |cx: &mut Context<'_>| watch && is_client_closed(core, stream, watched, unread, cx);
                    admission::wait_in_line(core, pool, timer, &wish, gone).await
                }
                queued => queued,
            };
            asked.wait_urgency.set(urgency.map(|urgency| (urgency, found.is_ok())));
            found.inspect(|trip| self.bind_after_wait(asked, trip))
        })
    }

    /// Returns the urgency that a request states, if the listener reads it. Only requests that find no room
    /// need it: it is read from the head for the member, so that others carry nothing of it.
    #[cold]
    #[inline(never)]
    fn urgency(&self, asked: &ParsedRequest) -> Option<Urgency> {
        let settings = self.listener.settings();
        let name = settings.priority.as_deref()?;
        let said = match &asked.passthrough_call {
            None => priority::urgency_in_head(&asked.outgoing, name),
            Some(framed) => {
                let values = framed.head.headers.get_all(name).iter();
                values.filter_map(|value| priority::urgency(value.as_bytes())).next_back()
            }
        };
        Some(said.and_then(Urgency::new).unwrap_or_default())
    }

    /// Opens a new connection to a member, or a stream on one.
    #[cold]
    #[inline(never)]
    fn connect_member<'a>(
        &'a self,
        trip: &'a InFlight,
        deadline: Time,
    ) -> ColdFuture<'a, Result<PeerConnection, Reason>> {
        Box::pin(async move {
            match trip.settings().http2 {
                true => http2::reach(&self.core, trip, &self.timer, deadline, &self.peer).await,
                false => connect_member(&self.core, trip, &self.timer, deadline, &self.peer).await,
            }
        })
    }

    /// Returns the failure for a connection that was not made: an expired client timeout is no failure of the
    /// member, nor is an HTTP/2 connection that a stopping process still accepted.
    #[cold]
    fn connect_failure(&self, asked: &ParsedRequest, reason: Reason) -> ExchangeFailure {
        let waited = self.core.tick().since(asked.begun);
        let hasty = self.stream.call().is_some_and(|call| call.is_expired(waited));
        match reason {
            Reason::TotalTimeout if hasty => ExchangeFailure::ClientDeadline(false),
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
        asked: &'a mut ParsedRequest,
        trip: &'a InFlight,
        deadline: Time,
        fresh: bool,
    ) -> impl Future<Output = Result<CompletedExchange, ExchangeFailure>> + use<'a, S> {
        async move {
            let second = trip.settings().http2;
            // As above.
            let (mut member, reused) = match match second {
                _ if fresh => None,
                true => http2::existing_stream(&self.core, trip),
                false => trip.upstream.check_out(),
            } {
                Some(stream) => (stream, true),
                none => {
                    drop(none);
                    let made = self.connect_member(trip, deadline).await;
                    (made.map_err(|reason| self.connect_failure(asked, reason))?, false)
                }
            };
            if !second && asked.passthrough_call.is_some() {
                asked.convert_to_text();
            }
            let end = self.exchange(asked, &mut member, trip, deadline, reused).await?;
            let settings = trip.settings();
            if second {
                if let Some(report) = member.take_report() {
                    // A forwarded response is no refusal, whatever its report states.
                    let _ = trip.record_report(&report, None, self.core.now());
                }
            } else if end.keep_member && settings.send_proxy.is_none() {
                trip.upstream.check_in(member, self.core.now(), settings.pool);
            }
            Ok(end)
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
            let most = (MAX_PIPELINED - unread.len()).min(buffer.len());
            match stream.poll_recv(cx, &mut buffer[..most], watched) {
                Poll::Ready(Ok(came)) if came > 0 => unread.extend_from_slice(&buffer[..came]),
                Poll::Ready(_) => return true,
                Poll::Pending => return false,
            }
        }
        false
    })
}
