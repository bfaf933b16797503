//! Computed processor sharing: jobs that share the cores of an emulated machine.
//!
//! A server with `cores` processors and n jobs gives each job the rate `speed * min(1, cores / n)`. All jobs
//! progress at the same rate, so one number describes the progress of all: *virtual time*, the work done for
//! a job that is present from the beginning.
//!
//! A job that arrives at virtual time v with work w is done at v + w, whatever arrives and ends in between.
//! The jobs end in the order of that number (Parekh and Gallager's view of generalised processor sharing,
//! 1993). An arrival, an end or a change of speed changes only the rate of virtual time. Nothing is computed
//! for the jobs that wait, and no processor time is burned.

use std::collections::BTreeMap;

/// The jobs of one server. Times are seconds since an arbitrary origin and never go back.
#[derive(Debug)]
pub(super) struct ProcessorSharing<T> {
    cores: f64,
    speed: f64,
    /// The time at which virtual time was last computed, followed by its value then.
    now: f64,
    virtual_time: f64,
    /// The jobs by their ends in virtual time.
    jobs: BTreeMap<JobTicket, T>,
    started_jobs: u64,
    /// The core seconds in use.
    busy_core_seconds: f64,
}

/// The identity of a job. Tickets are ordered by the jobs' ends: the bits of positive floating-point numbers
/// have the order of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobTicket {
    end: u64,
    number: u64,
}

impl<T> ProcessorSharing<T> {
    /// Creates a server without jobs at time 0. `cores` is above 0, `speed` at least 0.
    pub(super) fn new(cores: f64, speed: f64) -> Self {
        Self {
            cores,
            speed,
            now: 0.0,
            virtual_time: 0.0,
            jobs: BTreeMap::new(),
            started_jobs: 0,
            busy_core_seconds: 0.0,
        }
    }

    /// Returns the number of jobs in service.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns the core seconds in use up to the last change.
    pub(super) fn core_seconds(&self) -> f64 {
        self.busy_core_seconds
    }

    /// Begins a job with `work` seconds of work.
    pub(super) fn begin(&mut self, now: f64, work: f64, job: T) -> JobTicket {
        self.advance_virtual_time(now);
        let ticket =
            JobTicket { end: (self.virtual_time + work.max(0.0)).to_bits(), number: self.started_jobs };
        self.started_jobs += 1;
        self.jobs.insert(ticket, job);
        ticket
    }

    /// Cancels a job, if it has not ended.
    pub(super) fn cancel(&mut self, now: f64, ticket: JobTicket) -> Option<T> {
        self.advance_virtual_time(now);
        self.jobs.remove(&ticket)
    }

    /// Changes the speed from now on.
    pub(super) fn set_speed(&mut self, now: f64, speed: f64) {
        self.advance_virtual_time(now);
        self.speed = speed;
    }

    /// Returns the time at which the next job ends if nothing else happens before.
    pub(super) fn next_end(&self) -> Option<f64> {
        let (first_ticket, _) = self.jobs.first_key_value()?;
        let remaining_work = f64::from_bits(first_ticket.end) - self.virtual_time;
        let rate = self.rate();
        (rate > 0.0).then(|| self.now + remaining_work.max(0.0) / rate)
    }

    /// Returns the next job that has ended by `now`; the caller repeats the call until `None`. The other jobs
    /// speed up from the time of the end, however late the call.
    pub(super) fn pop_ended(&mut self, now: f64) -> Option<T> {
        let end = self.next_end().filter(|end| *end <= now);
        let Some(end) = end else {
            self.advance_virtual_time(now);
            return None;
        };
        self.add_core_seconds(end);
        let (ticket, job) = self.jobs.pop_first()?;
        self.virtual_time = f64::from_bits(ticket.end).max(self.virtual_time);
        self.now = self.now.max(end);
        self.reset_if_idle();
        Some(job)
    }

    fn rate(&self) -> f64 {
        self.speed * (self.cores / self.jobs.len() as f64).min(1.0)
    }

    /// Counts the cores as in use until `now`.
    fn add_core_seconds(&mut self, now: f64) {
        self.busy_core_seconds += (now - self.now).max(0.0) * self.cores.min(self.jobs.len() as f64);
    }

    /// Advances virtual time until `now`. The caller has removed jobs that end before.
    fn advance_virtual_time(&mut self, now: f64) {
        if now > self.now {
            self.add_core_seconds(now);
            if !self.jobs.is_empty() {
                self.virtual_time += (now - self.now) * self.rate();
            }
            self.now = now;
        }
        self.reset_if_idle();
    }

    /// Resets virtual time if there is no job, which preserves its precision.
    fn reset_if_idle(&mut self) {
        if self.jobs.is_empty() {
            self.virtual_time = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An event at a server.
    #[derive(Clone, Debug)]
    enum ServerEvent {
        Begin(f64),
        /// Cancels the n-th job that began, if it still runs.
        Cancel(usize),
        Speed(f64),
    }

    /// Returns the end of each job, by virtual time; `None` for cancelled jobs.
    fn processor_sharing_ends(cores: f64, events: &[(f64, ServerEvent)]) -> Vec<Option<f64>> {
        let mut sharing = ProcessorSharing::new(cores, 1.0);
        let mut ends = Vec::new();
        let mut tickets = Vec::new();
        let run_until = |sharing: &mut ProcessorSharing<usize>, ends: &mut Vec<Option<f64>>, now: f64| {
            while let Some(end) = sharing.next_end().filter(|end| *end <= now) {
                // The call is late, as with a timer on a busy machine.
                let job = sharing.pop_ended(now).unwrap();
                ends[job] = Some(end);
            }
        };
        for (time, event) in events {
            run_until(&mut sharing, &mut ends, *time);
            match event {
                ServerEvent::Begin(work) => {
                    ends.push(None);
                    tickets.push(sharing.begin(*time, *work, ends.len() - 1));
                }
                ServerEvent::Cancel(number) => {
                    if let Some(ticket) = tickets.get(*number) {
                        sharing.cancel(*time, *ticket);
                    }
                }
                ServerEvent::Speed(speed) => sharing.set_speed(*time, *speed),
            }
        }
        run_until(&mut sharing, &mut ends, f64::MAX);
        assert_eq!(sharing.len(), 0);
        ends
    }

    /// Computes the same by brute force: the work left of every job, from each event to the next.
    fn brute_force_ends(cores: f64, events: &[(f64, ServerEvent)]) -> Vec<Option<f64>> {
        let mut remaining_work: Vec<f64> = Vec::new();
        let mut ends: Vec<Option<f64>> = Vec::new();
        let mut active_jobs: Vec<usize> = Vec::new();
        let mut events = events.iter().peekable();
        let (mut now, mut speed) = (0.0, 1.0);
        loop {
            let rate = speed * (cores / active_jobs.len() as f64).min(1.0);
            let next_job =
                active_jobs.iter().copied().min_by(|a, b| remaining_work[*a].total_cmp(&remaining_work[*b]));
            let job_end = next_job.map(|job| now + remaining_work[job] / rate);
            let event = events.next_if(|(time, _)| job_end.is_none_or(|job_end| *time <= job_end));
            let Some(next_event) = event.map(|(time, _)| *time).or(job_end) else { return ends };
            active_jobs.iter().for_each(|job| remaining_work[*job] -= rate * (next_event - now));
            now = next_event;
            match event {
                Some((_, ServerEvent::Begin(work))) => {
                    active_jobs.push(remaining_work.len());
                    remaining_work.push(*work);
                    ends.push(None);
                }
                Some((_, ServerEvent::Cancel(number))) => active_jobs.retain(|job| job != number),
                Some((_, ServerEvent::Speed(new_speed))) => speed = *new_speed,
                None => {
                    ends[next_job.unwrap()] = Some(now);
                    active_jobs.retain(|job| Some(*job) != next_job);
                }
            }
        }
    }

    #[test]
    fn cores_are_in_use_as_far_as_there_are_jobs() {
        let mut sharing = ProcessorSharing::new(2.0, 1.0);
        sharing.begin(1.0, 1.0, 'a');
        for job in ['b', 'c'] {
            sharing.begin(1.5, 1.0, job);
        }
        // One job alone for half a second, then three share two cores: the first is done at 2.25.
        assert_eq!(sharing.pop_ended(10.0), Some('a'));
        assert!((sharing.core_seconds() - 2.0).abs() < 1e-9, "{}", sharing.core_seconds());
        while sharing.pop_ended(10.0).is_some() {}
        assert!((sharing.core_seconds() - 3.0).abs() < 1e-9, "all their work: {}", sharing.core_seconds());
    }

    /// The unit of the times of events, in seconds, so that some coincide; then the maximum number of events,
    /// and the tolerance for rounding.
    const TICK: f64 = 2e-5;
    const MAX_EVENTS: usize = 24;
    const ROUNDING: f64 = 1e-9;

    fn event() -> impl Strategy<Value = ServerEvent> {
        prop_oneof![
            6 => (0.0005..0.03f64).prop_map(ServerEvent::Begin),
            1 => (0..MAX_EVENTS).prop_map(ServerEvent::Cancel),
            1 => (0.2..2.0f64).prop_map(ServerEvent::Speed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn jobs_end_when_brute_force_says_so(
            cores in 0.5..8.0f64,
            gaps in prop::collection::vec((0..300u64, event()), 1..MAX_EVENTS),
        ) {
            let mut ticks = 0;
            let events: Vec<(f64, ServerEvent)> = gaps
                .into_iter()
                .map(|(gap, event)| {
                    ticks += gap;
                    (ticks as f64 * TICK, event)
                })
                .collect();
            let actual_ends = processor_sharing_ends(cores, &events);
            let expected_ends = brute_force_ends(cores, &events);
            prop_assert_eq!(actual_ends.len(), expected_ends.len());
            for (actual, expected) in actual_ends.iter().zip(&expected_ends) {
                match (actual, expected) {
                    (Some(actual_end), Some(expected_end)) => {
                        prop_assert!(
                            (actual_end - expected_end).abs() < ROUNDING,
                            "{} {}",
                            actual_end,
                            expected_end
                        );
                    }
                    (None, None) => {}
                    // A cancelled job may have ended in the same moment.
                    _ => {
                        let cancelled_end = actual.or(*expected);
                        prop_assert!(
                            is_at_cancellation(&events, cancelled_end),
                            "{:?} {:?}",
                            actual,
                            expected
                        );
                    }
                }
            }
        }
    }

    fn is_at_cancellation(events: &[(f64, ServerEvent)], end: Option<f64>) -> bool {
        let coincides = |time: f64| end.is_some_and(|end| (end - time).abs() < ROUNDING);
        events.iter().any(|(at, event)| matches!(event, ServerEvent::Cancel(_)) && coincides(*at))
    }

    #[test]
    fn two_hundred_jobs_on_four_cores() {
        let mut sharing = ProcessorSharing::new(4.0, 1.5);
        for job in 0..200 {
            sharing.begin(1.0, 0.015, job);
        }
        // 3 s of work at 6 a second.
        let end = sharing.next_end().unwrap();
        assert!((end - 1.5).abs() < 1e-9, "{end}");
        assert_eq!(sharing.pop_ended(1.49), None);
        let ended_jobs = std::iter::from_fn(|| sharing.pop_ended(1.6)).collect::<Vec<_>>();
        assert_eq!(ended_jobs, (0..200).collect::<Vec<_>>());
        assert!(sharing.next_end().is_none());
    }

    #[test]
    fn nothing_ends_at_speed_zero() {
        let mut sharing = ProcessorSharing::new(2.0, 0.0);
        sharing.begin(0.0, 1.0, ());
        assert!(sharing.next_end().is_none() && sharing.pop_ended(1e9).is_none());
        sharing.set_speed(1e9, 1.0);
        assert_eq!(sharing.next_end(), Some(1e9 + 1.0));
    }
}
