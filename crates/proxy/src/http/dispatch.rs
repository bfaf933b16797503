//! From a request to a response: choose, connect, relay; retry where that is safe and allowed.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use plimsoll_brain::{MemberId, Time, Urgency};
use plimsoll_wire::priority;

use super::bound::Location;
use super::ending::{End, Failure};
use super::exchange::AHEAD;
use super::{Asked, Session, Stream};
use crate::account::{Choice, NO_ROOM};
use crate::admit::{self, Wish};
use crate::blame::Blame;
use crate::challenge;
use crate::connect::link;
use crate::core::Core;
use crate::http2;
use crate::link::Link;
use crate::metered::Metered;
use crate::pool::{Admission, Pool};
use crate::reason::Reason;
use crate::trip::Trip;

/// The maximum number of members that refuse a request before it waits, of members that decline it, and of
/// stale connections.
const REFUSALS: u8 = 4;

/// The maximum number of refusals of a request that may wait. Near capacity, one balancer of many rarely gets
/// a free slot first, which is no sign for the next slot. A timeout ends the wait; this limit ends it only
/// where members always refuse.
const MOST_REFUSALS: u8 = 128;

/// A future that few requests await. On the heap, created and polled out of line, as it would make all others
/// larger and slower.
type Seldom<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The reason why a request has to wait.
enum Known {
    /// Every member is at its limit.
    Full,
    /// No member has room, as far as is known.
    Shed,
    /// Members have just refused the request.
    Refused,
}

/// The outcome of the attempts to have a request answered.
pub(super) enum Outcome {
    Answered(End),
    /// The balancer answers the request itself.
    Reject(Reason),
    /// The client is redirected there.
    Redirected(Location),
    /// The client has gone, or its response broke off: nothing can be sent any more.
    Lost,
}

impl<S: Stream> Session<S> {
    /// Gets a request answered; returns `false` if the connection ends with it.
    pub(super) async fn answer(&mut self, asked: &mut Asked) -> bool {
        self.answered_alone = false;
        if let Some(answer) = challenge::asked(&asked.out) {
            return self.vouch(asked, &answer).await;
        }
        let pool = self.listener.pool();
        let outcome = self.attempts(&pool, asked).await;
        let now = self.core.now();
        if let Some((urgency, found)) = asked.ranked.get() {
            let waited = &pool.tally().urgencies[usize::from(urgency.value())];
            if found { waited.served.add(1) } else { waited.refused.add(1) }
        }
        let go_on = match outcome {
            Outcome::Answered(end) => {
                pool.tally().latency.record(end.at.since(asked.begun));
                self.log(asked, end.status, None, now);
                if !end.keep_client {
                    self.stream.part();
                    if !asked.body.done() {
                        self.linger().await;
                    }
                }
                end.keep_client
            }
            Outcome::Reject(reason) => {
                // Not included in the latencies: fast rejections during an overload are not a fast service.
                pool.group.reject(self.core.index, reason);
                self.log(asked, reason.status().0, Some(reason), now);
                self.reject(asked, reason).await
            }
            Outcome::Redirected(location) => {
                self.log(asked, 307, None, now);
                self.redirect(asked, &location).await
            }
            Outcome::Lost => {
                self.log(asked, 0, None, now);
                false
            }
        };
        self.core.recycle(std::mem::take(&mut asked.out));
        go_on
    }

    async fn attempts(&mut self, pool: &Rc<Pool>, asked: &mut Asked) -> Outcome {
        pool.deposit(asked.begun);
        if let Some(side_car) = &pool.group.side_car {
            if let Some(outcome) = self.sent_away(side_car, asked) {
                return outcome;
            }
            asked.metered = match asked.body.done() {
                true => Metered::begin(side_car, true, asked.begun),
                false => Metered::begin_coming(side_car),
            };
            if !asked.metered.refusal().is_empty() {
                return Outcome::Reject(Reason::Shed);
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
            let trip = match match &self.bond {
                _ if refused && refusals >= REFUSALS => Admission::Shed,
                None => admit::at_once(&self.core, pool, view, asked.key, &tried, asked.work(), now),
                Some(_) => match self.admit_bound(pool, view, asked, &tried, now) {
                    Ok(admission) => admission,
                    Err(location) => return Outcome::Redirected(location),
                },
            } {
                Admission::Trip(trip) => trip,
                Admission::Nobody if (1..REFUSALS).contains(&declined) && last == Reason::Reset => {
                    // These members did not process it, perhaps for a reason that has passed, such as an
                    // upgrade: another attempt, with any member.
                    spared = 0;
                    tried.truncate(usize::from(retries));
                    continue;
                }
                Admission::Nobody if last != Reason::Shed => return Outcome::Reject(last),
                none => {
                    let full = matches!(none, Admission::Full);
                    drop(none);
                    // Members that refused may have room by then. Those that declined had room all the time.
                    tried.truncate(usize::from(retries + spared));
                    let known = match refused {
                        _ if full => Known::Full,
                        false => Known::Shed,
                        true => Known::Refused,
                    };
                    match self.wait(pool, asked, &tried, deadline, known).await {
                        Ok(trip) => {
                            if let Some(account) = &mut asked.account {
                                account.waited(full);
                            }
                            trip
                        }
                        Err(Reason::NoMember) => return Outcome::Reject(last),
                        Err(reason) => return Outcome::Reject(reason),
                    }
                }
            };
            refused = false;
            if let Some(account) = &mut asked.account {
                let how = self.bond.as_ref().map_or(Choice::Strategy, |bond| bond.borrow().how);
                account.chosen(&self.core, &trip, how, &mut asked.out, now);
            }
            asked.spare = u32::from(retries) < trip.settings().retry.attempts;
            let failure = match self.attempt(asked, &trip, deadline, fresh).await {
                // The member has no room, contrary to what was known here. That is no failure, and no retry
                // that adds to an overload.
                Ok(end) if end.refused => {
                    // The connection remains usable.
                    (refused, fresh, stale) = (true, false, 0);
                    asked.ranked.set(asked.ranked.get().map(|(urgency, _)| (urgency, false)));
                    refusals += 1;
                    if let Some(account) = &mut asked.account {
                        account.failed(NO_ROOM, end.at);
                    }
                    tried.push(trip.member());
                    now = end.at;
                    trip.refused();
                    last = Reason::Shed;
                    if refusals == MOST_REFUSALS || !asked.repeatable() {
                        return Outcome::Reject(Reason::Shed);
                    }
                    continue;
                }
                Ok(end) => {
                    let member = trip.member();
                    match self.stream.call() {
                        None => trip.answered(end.status, end.at),
                        Some(call) => trip.called(end.status, call.failed(), end.at),
                    }
                    if !end.keep_member && self.bond.is_some() {
                        self.closed_by(member);
                    }
                    return Outcome::Answered(end);
                }
                Err(failure) => failure,
            };
            now = self.core.tick();
            if let Some(account) = &mut asked.account {
                account.failed(failure.label(), now);
            }
            let (reason, unsent) = match failure {
                // With the begin of a response, the client got what it wanted: that is no finding about the
                // member.
                Failure::Client(answered) => {
                    trip.stripe().left.add(1);
                    if !answered {
                        trip.left(now);
                    }
                    return Outcome::Lost;
                }
                Failure::Refused(reason) => {
                    trip.abandoned();
                    return Outcome::Reject(reason);
                }
                Failure::Broken => {
                    trip.failed(Blame::Broken, now);
                    self.stream.fail(false);
                    return Outcome::Lost;
                }
                // The member is not to blame for such a short timeout of the client.
                Failure::Expired(answered) => {
                    trip.left(now);
                    if !answered {
                        return Outcome::Reject(Reason::TotalTimeout);
                    }
                    self.stream.fail(true);
                    return Outcome::Lost;
                }
                Failure::Quiet => {
                    trip.over(now);
                    self.stream.fail(true);
                    return Outcome::Lost;
                }
                Failure::Down => {
                    tried.insert(usize::from(retries), trip.member());
                    // The member's health checks have reported the failure.
                    trip.abandoned();
                    retries = retries.saturating_add(1);
                    (last, fresh) = (Reason::AnswerTimeout, false);
                    continue;
                }
                Failure::Declined => {
                    // The member did not process the request, so it is not to blame; but others may accept it
                    // at once.
                    tried.insert(usize::from(retries + spared), trip.member());
                    trip.abandoned();
                    spared += 1;
                    declined += 1;
                    last = Reason::Reset;
                    if declined >= REFUSALS || asked.streamed {
                        return Outcome::Reject(Reason::Reset);
                    }
                    continue;
                }
                Failure::Stale(untouched) => {
                    // The member closed a connection that was kept for long enough, or that it accepted
                    // while it stopped: no failure, unless it does so always. An HTTP/2 connection that the
                    // member announced as closing is not used again anyway.
                    fresh = !untouched;
                    stale += 1;
                    if !asked.streamed && (untouched || asked.method.idempotent()) && stale < REFUSALS {
                        trip.abandoned();
                        continue;
                    }
                    (Reason::Reset, untouched)
                }
                // Further attempts would only blame the other members, too.
                Failure::Member(Reason::Exhausted, _) => {
                    trip.abandoned();
                    return Outcome::Reject(Reason::Exhausted);
                }
                Failure::Member(reason, unsent) => (reason, unsent),
            };
            let retry = trip.settings().retry;
            let member = trip.member();
            trip.failed(Blame::Reason(reason), now);
            let allowed = u32::from(retries) < retry.attempts
                && !asked.streamed
                && (unsent || asked.method.idempotent())
                && now < deadline
                && pool.withdraw(now);
            if !allowed {
                return Outcome::Reject(reason);
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
        pool: &'a Pool,
        asked: &'a Asked,
        tried: &'a [MemberId],
        deadline: Time,
        known: Known,
    ) -> Seldom<'a, Result<Trip, Reason>> {
        Box::pin(async move {
            let urgency = match asked.ranked.get() {
                Some((urgency, _)) => Some(urgency),
                None => self.urgency(asked),
            };
            let wish = Wish {
                key: asked.key,
                tried,
                urgency,
                deadline,
                work: asked.work(),
                since: asked.begun,
                refused: matches!(known, Known::Refused),
                waited: &asked.waited,
            };
            let queued = match known {
                Known::Full => admit::wait(&self.core, pool, &self.timer, &wish).await,
                Known::Shed | Known::Refused => Err(Reason::Shed),
            };
            let found = match queued {
                Err(Reason::Shed) => {
                    let Self { core, timer, stream, watched, unread, .. } = self;
                    let watch = asked.body.done();
                    let gone = |cx: &mut Context<'_>| watch && ended(core, stream, watched, unread, cx);
                    admit::line_up(core, pool, timer, &wish, gone).await
                }
                queued => queued,
            };
            asked.ranked.set(urgency.map(|urgency| (urgency, found.is_ok())));
            found.inspect(|trip| self.hold(asked, trip))
        })
    }

    /// Returns the urgency that a request states, if the listener reads it. Only requests that find no room
    /// need it: it is read from the head for the member, so that others carry nothing of it.
    #[cold]
    #[inline(never)]
    fn urgency(&self, asked: &Asked) -> Option<Urgency> {
        let settings = self.listener.settings();
        let name = settings.priority.as_deref()?;
        let said = match &asked.framed {
            None => priority::of_head(&asked.out, name),
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
    fn reach<'a>(&'a self, trip: &'a Trip, deadline: Time) -> Seldom<'a, Result<Link, Reason>> {
        Box::pin(async move {
            match trip.settings().http2 {
                true => http2::reach(&self.core, trip, &self.timer, deadline, &self.peer).await,
                false => link(&self.core, trip, &self.timer, deadline, &self.peer).await,
            }
        })
    }

    /// Returns the failure for a connection that was not made: an expired client timeout is no failure of the
    /// member, nor is an HTTP/2 connection that a stopping process still accepted.
    #[cold]
    fn unreached(&self, asked: &Asked, reason: Reason) -> Failure {
        let waited = self.core.tick().since(asked.begun);
        let hasty = self.stream.call().is_some_and(|call| call.expired(waited));
        match reason {
            Reason::TotalTimeout if hasty => Failure::Expired(false),
            // The member announced the end of an HTTP/2 connection before a request could be sent on it.
            Reason::Reset => Failure::Stale(true),
            reason => Failure::Member(reason, true),
        }
    }

    /// Sends the request to one member.
    #[expect(
        clippy::manual_async_fn,
        reason = "as an `async fn` it keeps its arguments twice, in each connection"
    )]
    fn attempt<'a>(
        &'a mut self,
        asked: &'a mut Asked,
        trip: &'a Trip,
        deadline: Time,
        fresh: bool,
    ) -> impl Future<Output = Result<End, Failure>> + use<'a, S> {
        async move {
            let second = trip.settings().http2;
            // As above.
            let (mut member, reused) = match match second {
                _ if fresh => None,
                true => http2::at_hand(&self.core, trip),
                false => trip.upstream.check_out(),
            } {
                Some(stream) => (stream, true),
                none => {
                    drop(none);
                    let made = self.reach(trip, deadline).await;
                    (made.map_err(|reason| self.unreached(asked, reason))?, false)
                }
            };
            if !second && asked.framed.is_some() {
                asked.tell();
            }
            let end = self.exchange(asked, &mut member, trip, deadline, reused).await?;
            let settings = trip.settings();
            if second {
                if let Some(report) = member.report() {
                    // A forwarded response is no refusal, whatever its report states.
                    let _ = trip.hear(&report, None, self.core.now());
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
fn ended<S: Stream>(
    core: &Core,
    stream: &mut S,
    watched: &mut bool,
    unread: &mut Vec<u8>,
    cx: &mut Context<'_>,
) -> bool {
    core.lend(|buffer, _| {
        while unread.len() < AHEAD {
            let most = (AHEAD - unread.len()).min(buffer.len());
            match stream.poll_recv(cx, &mut buffer[..most], watched) {
                Poll::Ready(Ok(came)) if came > 0 => unread.extend_from_slice(&buffer[..came]),
                Poll::Ready(_) => return true,
                Poll::Pending => return false,
            }
        }
        false
    })
}
