//! From a request to an answer: choose, connect, relay; try again where that is safe and allowed.

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

/// Members that may refuse a request before it is to wait. Members that may decline it.
const REFUSALS: u8 = 4;

/// Members that may refuse a request that may wait. Near the capacity a balancer of many is seldom the first at a place that came free,
/// which says nothing of the next one: what ends its wait is time. This ends it only where members always refuse.
const MOST_REFUSALS: u8 = 128;

/// What few requests have to wait for. On the heap, made and polled out of line: all the others would be larger and slower for it.
type Seldom<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Why a request is to wait.
enum Known {
    /// Every member is at its limit.
    Full,
    /// No member has room, by what is known of them.
    Shed,
    /// Members have just said so themselves.
    Refused,
}

/// How an attempt to have a request answered ended.
pub(super) enum Outcome {
    Answered(End),
    /// Answer it ourselves.
    Reject(Reason),
    /// Send the client there.
    Redirected(Location),
    /// The client is gone, or its answer broke off: nothing can be said any more.
    Lost,
}

impl<S: Stream> Session<S> {
    /// Has a request answered; false if the connection ends with it.
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
                // Not among the latencies: an overload that is refused quickly is not a fast service.
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
        // In `tried` are first those that failed, then those that declined, then those that refused it.
        let mut retries: u16 = 0;
        let mut spared: u16 = 0;
        let mut now = asked.begun;
        let mut first = true;
        loop {
            let view = if std::mem::take(&mut first) { Rc::clone(&asked.view) } else { pool.view() };
            // What is found is no variable: each connection would have room for it beside all that comes of it.
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
                    // They did nothing with it, and may have had a reason that has gone: once more, whoever it is.
                    (declined, spared) = (REFUSALS, 0);
                    tried.truncate(usize::from(retries));
                    continue;
                }
                Admission::Nobody if last != Reason::Shed => return Outcome::Reject(last),
                none => {
                    let full = matches!(none, Admission::Full);
                    drop(none);
                    // Those that refused it may have room by then. Those that declined it have had room all the time.
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
                // The member has no room, whatever was known of it here: no fault, and no retry that makes things worse.
                Ok(end) if end.refused => {
                    // Its connection is as good as any.
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
                // Of an answer that had begun it has what it wanted: nothing is said of the member by that.
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
                // What the client asks for in so short a time the member may not be blamed for.
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
                    // Its health checks have said what there is to say.
                    trip.abandoned();
                    retries = retries.saturating_add(1);
                    (last, fresh) = (Reason::AnswerTimeout, false);
                    continue;
                }
                Failure::Declined => {
                    // Asked for nothing, it is not to be blamed; but others may take it at once.
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
                    // The member closed a connection it had kept for long enough: no fault of anybody. One of HTTP/2 that it said so
                    // of is not used again anyway.
                    fresh = !untouched;
                    stale += 1;
                    if !asked.streamed && (untouched || asked.method.idempotent()) && stale < REFUSALS {
                        trip.abandoned();
                        continue;
                    }
                    (Reason::Reset, false)
                }
                // Trying the others would only blame them too.
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

    /// Waits for a member: in the queue where all are at their limit, else in the line.
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

    /// How urgent a request says it is, where the listener wants to know. Only those that find no room are asked: it is read
    /// from the head for the member, so that others carry nothing of it.
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

    /// A new connection to a member, or a stream on one.
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

    /// What it is that no connection came about: the client's own haste is no fault of the member.
    #[cold]
    fn unreached(&self, asked: &Asked, reason: Reason) -> Failure {
        let waited = self.core.tick().since(asked.begun);
        let hasty = self.stream.call().is_some_and(|call| call.expired(waited));
        if reason == Reason::TotalTimeout && hasty {
            Failure::Expired(false)
        } else {
            Failure::Member(reason, true)
        }
    }

    /// Gives the request to one member.
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
                    // An answer that was passed on is no refusal, whatever it says of itself.
                    let _ = trip.hear(&report, None, self.core.now());
                }
            } else if end.keep_member && settings.send_proxy.is_none() {
                trip.upstream.check_in(member, self.core.now(), settings.pool);
            }
            Ok(end)
        }
    }
}

/// Has a client that waits ended its side? Then it has most likely given up. What it sends ahead is kept.
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
