//! A guard of one piece of work at one member: counted in flight from the choice of the member until the
//! guard is dropped, whatever happens in between.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};
use plimsoll_wire::load_report::{self, LoadReport, NotProcessed};

use crate::GroupSettings;
use crate::net::reason::Reason;
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::group::{MemberCoreCounters, SharedGroup};
use crate::upstream::pool::{PlanView, Upstream};
use crate::upstream::thread_context::ThreadContext;

/// The guard of one request, session or flow.
pub(crate) struct InFlight {
    group: Arc<SharedGroup>,
    view: Rc<PlanView>,
    /// The member's index in the plan of the choice.
    index: u32,
    /// The requests in flight at the member at the begin, including this one.
    level: u32,
    /// Whether the member refused the work, so that its end should wake no task in the wait queue.
    refused: bool,
    phase: Cell<ExchangePhase>,
    /// The time since which the response's head is awaited; once it has arrived, the time that it took, in
    /// nanoseconds.
    awaiting_since: Cell<u64>,
    pub(crate) upstream: Rc<Upstream>,
    pub(crate) begun: Time,
}

/// The current part of an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExchangePhase {
    /// The request's body is being sent: the member need not respond yet.
    Sending,
    /// The member has the request, and the response's head is awaited.
    Awaiting,
    /// The head has arrived; still counted as awaiting, as most responses end with it.
    Answered,
    /// More follows the head: a body, a stream, a tunnel.
    Streaming,
}

impl ExchangePhase {
    /// Returns `true` if [`Vitals`](plimsoll_brain::Vitals) counts it among the work that awaits no head.
    fn is_streaming(self) -> bool {
        matches!(self, Self::Sending | Self::Streaming)
    }
}

impl InFlight {
    /// Creates the guard. The member's count was already increased, as choosing and counting must be one
    /// step.
    pub(crate) fn begin(
        group: Arc<SharedGroup>,
        view: Rc<PlanView>,
        upstream: Rc<Upstream>,
        index: usize,
        level: u32,
        started_at: Time,
    ) -> Self {
        // A plan has fewer members than that.
        Self {
            group,
            view,
            index: index as u32,
            level,
            refused: false,
            phase: Cell::new(ExchangePhase::Awaiting),
            awaiting_since: Cell::new(started_at.0),
            upstream,
            begun: started_at,
        }
    }

    /// Releases the plan of the choice: this work may take hours, and plans are large.
    pub(crate) fn release_plan(&mut self) {
        self.view = self.view.without_members();
    }

    /// Records the progress of an exchange that waits for an event. `sent` is `true` if the request is
    /// complete; `answered`, if the response's head has arrived. Only requests that await a head are load.
    #[inline]
    pub(crate) fn update_phase(&self, sent: bool, answered: bool, core: &ThreadContext) {
        let phase = match (answered, sent) {
            (true, _) => ExchangePhase::Streaming,
            (false, true) => ExchangePhase::Awaiting,
            (false, false) => ExchangePhase::Sending,
        };
        if phase != self.phase.get() {
            self.set_phase(phase, core);
        }
    }

    #[cold]
    #[inline(never)]
    fn set_phase(&self, phase: ExchangePhase, core: &ThreadContext) {
        let vitals = &self.upstream.record.vitals;
        let now = core.tick();
        if phase == ExchangePhase::Streaming {
            self.record_head(now);
        }
        match (self.phase.replace(phase).is_streaming(), phase.is_streaming()) {
            (false, true) => vitals.begin_streaming(),
            (true, false) => {
                vitals.end_streaming();
                self.awaiting_since.set(now.0);
            }
            _ => {}
        }
    }

    /// Records that the response's head has arrived, by `now` at the latest.
    #[inline]
    pub(crate) fn record_head(&self, now: Time) {
        match self.phase.get() {
            ExchangePhase::Awaiting => self.phase.set(ExchangePhase::Answered),
            ExchangePhase::Sending => self.phase.set(ExchangePhase::Streaming),
            ExchangePhase::Answered | ExchangePhase::Streaming => return,
        }
        self.awaiting_since.set(now.0.saturating_sub(self.awaiting_since.get()));
    }

    /// Returns the time to the response's head, if that has arrived.
    fn time_to_head(&self) -> Option<Duration> {
        let has_head = matches!(self.phase.get(), ExchangePhase::Answered | ExchangePhase::Streaming);
        has_head.then(|| Duration::from_nanos(self.awaiting_since.get()))
    }

    pub(crate) fn member(&self) -> MemberId {
        self.upstream.record.id
    }

    /// Returns the member's index in the plan of the choice.
    pub(crate) fn place(&self) -> usize {
        self.index as usize
    }

    /// Returns the view of the choice, until it is released.
    pub(crate) fn view(&self) -> &Rc<PlanView> {
        &self.view
    }

    /// Returns the member's name; empty once the plan is released.
    pub(crate) fn name(&self) -> &str {
        self.view.published.plan.members().get(self.place()).map_or("", |member| &member.name)
    }

    /// Returns the member's name, for a longer-lived owner; `None` once the plan is released.
    pub(crate) fn shared_name(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.view.published.plan.members().get(self.place())?.name))
    }

    pub(crate) fn settings(&self) -> &GroupSettings {
        &self.view.published.settings
    }

    pub(crate) fn counters(&self) -> &MemberCoreCounters {
        self.upstream.counters()
    }

    /// Records a load report in a response, the value of the header. Returns the reason why the server has
    /// not seen the request, if the report states one. `said` is the result of [`load_report::parse_fast`] on
    /// it, if that was called.
    pub(crate) fn record_report(
        &self,
        value: &[u8],
        report: Option<LoadReport>,
        now: Time,
    ) -> Option<NotProcessed> {
        let sampled = self.should_sample(now);
        match &report {
            Some(report) if !sampled => self.apply_report(report, now),
            None if !sampled && let Some(report) = load_report::parse_fast(value) => {
                self.apply_report(&report, now)
            }
            _ => self.record_any_report(value, sampled, now),
        }
    }

    /// Passes a report to the brain; returns the reason why the member's server has not seen the request, if
    /// any.
    #[inline]
    fn apply_report(&self, report: &LoadReport, now: Time) -> Option<NotProcessed> {
        let plan = &self.view.published.plan;
        plan.record_report(&mut self.upstream.picker.borrow_mut(), self.place(), &report.reading, now);
        report.not_processed
    }

    /// Records a report in any form. Out of line: most members use a single form.
    #[inline(never)]
    fn record_any_report(&self, value: &[u8], sampled: bool, now: Time) -> Option<NotProcessed> {
        let mut sample = sampled.then(Vec::new);
        let report = load_report::read(value, |metric| {
            if let Some(sample) = &mut sample {
                sample.extend(metric.figure().map(|name| (name, metric.value)));
            }
        });
        // The value may be invalid or something else, which is ignored.
        let report = report.ok()?;
        let plan = &self.view.published.plan;
        if let Some(values) = sample.filter(|values| !values.is_empty())
            && let Some(member) = plan.members().get(self.place())
        {
            self.group.send_report(Arc::clone(&member.name), values);
        }
        self.apply_report(&report?, now)
    }

    /// Returns `true` if a complete report is to be sampled this time.
    fn should_sample(&self, now: Time) -> bool {
        let Some(sample_interval) = self.settings().sample_interval() else { return false };
        let last_sample = &self.counters().last_sample;
        let sampled_at = last_sample.load(Relaxed);
        let due = sampled_at == 0 || now.since(Time(sampled_at)) >= sample_interval;
        if due {
            last_sample.store(now.0.max(1), Relaxed);
        }
        due
    }

    /// Ends the work with a status; 5xx counts as a failure.
    pub(crate) fn finish_with_status(self, status: u16, now: Time) {
        self.counters().responses[usize::from(status / 100).min(5)].add(1);
        self.finish((status >= 500).then_some(FailureCause::Status(status)), now);
    }

    /// Ends a gRPC call, which failed or not by the status in its response.
    pub(crate) fn finish_call(self, status: u16, failed: bool, now: Time) {
        self.counters().responses[usize::from(status / 100).min(5)].add(1);
        let cause = match status {
            500.. => Some(FailureCause::Status(status)),
            _ => failed.then_some(FailureCause::FailedCall),
        };
        self.finish(cause, now);
    }

    /// Ends successful work (TCP, UDP: without a status).
    pub(crate) fn finish_success(self, now: Time) {
        self.counters().responses[0].add(1);
        self.finish(None, now);
    }

    /// Ends failed work: no connection, no response, or a broken one.
    pub(crate) fn finish_failure(self, cause: FailureCause, now: Time) {
        self.counters().responses[0].add(1);
        self.finish(Some(cause), now);
    }

    /// Ends work without a finding about the member: counted only.
    pub(crate) fn finish_neutral(self, now: Time) {
        let counters = self.counters();
        counters.responses[0].add(1);
        counters.requests.add(1);
        counters.latency.record(now.since(self.begun));
    }

    /// Counts a client that was redirected to the member; counted now, as the end is unknown.
    pub(crate) fn record_redirect(&self, now: Time) {
        let counters = self.counters();
        counters.responses[0].add(1);
        counters.requests.add(1);
        counters.latency.record(now.since(self.begun));
    }

    /// Records the result and the duration of a query whether the member is there.
    pub(crate) fn asked(&self, latency: Duration, connected: bool, now: Time) {
        self.record_outcome(
            latency,
            (!connected).then_some(FailureCause::Reason(Reason::ConnectFailed)),
            now,
        );
    }

    /// Ends work without a result, for which the member is not to blame, such as on a stale connection.
    pub(crate) fn abandon(self) {
        if self.time_to_head().is_none() {
            self.upstream.record.vitals.record_unserved();
        }
    }

    /// Ends work that the member refused for lack of room. Its end frees no room, unless it had the last
    /// place that the configuration permits.
    pub(crate) fn finish_refused(mut self) {
        let member = self.view.published.plan.members().get(self.place());
        self.refused = member.is_some_and(|member| self.level < member.max_in_flight());
        self.abandon();
    }

    /// Ends work whose client left before the response.
    pub(crate) fn client_left(self, now: Time) {
        if self.time_to_head().is_some() {
            return;
        }
        let picker_state = &mut self.upstream.picker.borrow_mut();
        self.view.published.plan.client_left(
            picker_state,
            &self.upstream.record.vitals,
            now.since(self.begun),
            now,
        );
    }

    fn finish(self, cause: Option<FailureCause>, now: Time) {
        let counters = self.counters();
        let latency = now.since(self.begun);
        counters.requests.add(1);
        counters.latency.record(latency);
        if cause.is_some() {
            counters.failures.add(1);
        } else {
            counters.latency_by_concurrency.record(self.level, latency);
        }
        self.record_outcome(self.time_to_head().unwrap_or(latency), cause, now);
    }

    /// Passes the outcome to the brain.
    #[inline]
    fn record_outcome(&self, latency: Duration, cause: Option<FailureCause>, now: Time) {
        let vitals = &self.upstream.record.vitals;
        let plan = &self.view.published.plan;
        let is_suspect =
            plan.observe(&mut self.upstream.picker.borrow_mut(), vitals, latency, cause.is_some(), now);
        if let Some(cause) = cause {
            self.upstream.record.last_failure.store(cause.code(), Relaxed);
            if is_suspect {
                self.group.signal_failure(self.member(), true);
            }
            let streak = vitals.record_failure();
            let limit = self.settings().spec.outlier.as_ref().map_or(0, |outlier| outlier.consecutive);
            if limit > 0 && streak >= limit {
                self.group.signal_failure(self.member(), false);
            }
        } else {
            vitals.record_success();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let vitals = &self.upstream.record.vitals;
        if self.phase.get().is_streaming() {
            vitals.end_streaming();
        }
        vitals.end();
        let wait_queue = &self.group.wait_queue;
        // A task that is woken in vain goes to the end of the queue.
        if !wait_queue.is_empty() && !vitals.is_rate_exhausted() {
            if self.refused { wait_queue.wake_queue() } else { wait_queue.wake_one() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::{Poll, Waker};
    use std::time::Duration;

    use plimsoll_brain::{DrainRate, Urgency, WaitVerdict};

    use super::*;
    use crate::test_util::{in_flight_of, pool, pool_with_reports, run};

    /// Records the same report with 1000 responses, one per millisecond; returns the samples.
    fn sampled_reports(sample: Option<Duration>, header: &'static [u8]) -> Vec<Vec<(String, f64)>> {
        run(|core| async move {
            let (pool, mut reports) = pool_with_reports(&core, sample);
            let in_flight = in_flight_of(&pool);
            for millisecond in 0..1000 {
                assert_eq!(in_flight.record_report(header, None, Time(1 + millisecond * 1_000_000)), None);
            }
            std::iter::from_fn(|| Some(reports.try_recv().ok()?.values)).collect()
        })
    }

    #[test]
    fn with_one_that_was_refused_no_room_comes_free_but_a_place_below_the_limit_does() {
        run(|core| async move {
            let pool = pool(&core);
            let [refused, other] = [(); 2].map(|()| in_flight_of(&pool));
            let wait_queue = &pool.group.wait_queue;
            let one_second = Duration::from_secs(1);
            let drain_rate = DrainRate { sojourn: one_second, in_flight: 9, wait: one_second };
            let ticket = wait_queue
                .line(&core, Waker::noop(), Urgency::default(), drain_rate, core.now())
                .expect("a place");
            let queued = wait_queue.enter_queue(1).expect("a place");
            let mut slot_freed = pin!(queued.slot_freed());
            assert!(poll_once(slot_freed.as_mut()).await.is_none());
            refused.finish_refused();
            assert_eq!((ticket.turn(), poll_once(slot_freed).await), (WaitVerdict::Wait, Some(())));
            other.abandon();
            assert_eq!(ticket.turn(), WaitVerdict::TryAgain);
            // If it had the last permitted place, another task may take it.
            let mut above_limit = in_flight_of(&pool);
            above_limit.level = u32::MAX;
            above_limit.finish_refused();
            assert_eq!(ticket.turn(), WaitVerdict::TryAgain);
        });
    }

    /// Returns the future's result, if it is ready.
    async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|cx| {
            Poll::Ready(match future.as_mut().poll(cx) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn what_a_member_says_is_looked_at_now_and_then() {
        let report = b"TEXT cpu_utilization=0.5, named_metrics.x=7, utilization.q=0.25, request_cost.y=3";
        let sampled = sampled_reports(Some(Duration::from_millis(100)), report);
        assert_eq!(sampled.len(), 10);
        let names: Vec<&str> = sampled[0].iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["cpu_utilization", "named_metrics.x", "utilization.q"],
            "no single request's cost"
        );
        assert!(sampled_reports(None, report).is_empty(), "nobody asked");
        assert!(sampled_reports(Some(Duration::from_millis(100)), b"TEXT cpu_utilization=much").is_empty());
        // Without a receiver: samples beyond the queue are dropped.
        assert_eq!(sampled_reports(Some(Duration::ZERO), report).len(), 100);
    }
}
