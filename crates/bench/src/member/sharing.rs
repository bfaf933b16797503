//! Processor sharing, computed: jobs that share the cores of a machine that is not there.
//!
//! A server with `cores` processors and n jobs gives each of them the rate `speed` while there are processors enough,
//! and `speed * cores / n` when there are not. All jobs go at the same rate, so one number tells how far every one of
//! them has come: *virtual time*, the work that a job present since the beginning would have got done. A job that comes
//! at virtual time v with work w is done at v + w, whatever comes and goes in between, and the jobs end in the order of
//! that number (Parekh and Gallager's view of generalised processor sharing, 1993). An arrival, an end or another speed
//! changes only how fast virtual time passes; nothing is computed for the jobs that wait, and no processor is burned.

use std::collections::BTreeMap;

/// The jobs of one server. Times are seconds since any beginning and never go back.
#[derive(Debug)]
pub(super) struct Sharing<T> {
    cores: f64,
    speed: f64,
    /// When virtual time was computed last, and what it was then.
    now: f64,
    done: f64,
    /// By when they end, in virtual time.
    jobs: BTreeMap<Ticket, T>,
    count: u64,
    /// Seconds of all cores in which they were in use.
    busy: f64,
}

/// Names a job. In the order in which they end: of positive numbers the bits have their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    end: u64,
    number: u64,
}

impl<T> Sharing<T> {
    /// Without jobs, at time 0. `cores` above 0, `speed` from 0 on.
    pub(super) fn new(cores: f64, speed: f64) -> Self {
        Self { cores, speed, now: 0.0, done: 0.0, jobs: BTreeMap::new(), count: 0, busy: 0.0 }
    }

    /// Jobs in service.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Core seconds in which cores were in use, up to the last change.
    pub(super) fn busy(&self) -> f64 {
        self.busy
    }

    /// Begins a job with so many seconds of work.
    pub(super) fn begin(&mut self, now: f64, work: f64, job: T) -> Ticket {
        self.pass(now);
        let ticket = Ticket { end: (self.done + work.max(0.0)).to_bits(), number: self.count };
        self.count += 1;
        self.jobs.insert(ticket, job);
        ticket
    }

    /// Takes a job out before its end, if it has not ended.
    pub(super) fn cancel(&mut self, now: f64, ticket: Ticket) -> Option<T> {
        self.pass(now);
        self.jobs.remove(&ticket)
    }

    /// Jobs go so fast from now on.
    pub(super) fn change(&mut self, now: f64, speed: f64) {
        self.pass(now);
        self.speed = speed;
    }

    /// When the next job ends, if nothing else happens before.
    pub(super) fn next(&self) -> Option<f64> {
        let (first, _) = self.jobs.first_key_value()?;
        let left = f64::from_bits(first.end) - self.done;
        let rate = self.rate();
        (rate > 0.0).then(|| self.now + left.max(0.0) / rate)
    }

    /// The next job that has ended by `now`; to be asked until there is none. What ends lets the others go faster from
    /// the very moment, however late that is noticed.
    pub(super) fn ended(&mut self, now: f64) -> Option<T> {
        let end = self.next().filter(|end| *end <= now);
        let Some(end) = end else {
            self.pass(now);
            return None;
        };
        self.work(end);
        let (first, job) = self.jobs.pop_first()?;
        self.done = f64::from_bits(first.end).max(self.done);
        self.now = self.now.max(end);
        self.rest();
        Some(job)
    }

    fn rate(&self) -> f64 {
        self.speed * (self.cores / self.jobs.len() as f64).min(1.0)
    }

    /// Cores are in use until `now`.
    fn work(&mut self, now: f64) {
        self.busy += (now - self.now).max(0.0) * self.cores.min(self.jobs.len() as f64);
    }

    /// Virtual time passes until `now`. Who has ended by then must have been taken out.
    fn pass(&mut self, now: f64) {
        if now > self.now {
            self.work(now);
            if !self.jobs.is_empty() {
                self.done += (now - self.now) * self.rate();
            }
            self.now = now;
        }
        self.rest();
    }

    /// With no job virtual time may begin again, which keeps its digits.
    fn rest(&mut self) {
        if self.jobs.is_empty() {
            self.done = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What happens to a server.
    #[derive(Clone, Debug)]
    enum Event {
        Begin(f64),
        /// The job that began as the n-th is cancelled, if there is one.
        Cancel(usize),
        Speed(f64),
    }

    /// When each job ended; `None` for those cancelled. By virtual time.
    fn computed(cores: f64, events: &[(f64, Event)]) -> Vec<Option<f64>> {
        let mut sharing = Sharing::new(cores, 1.0);
        let mut ends = Vec::new();
        let mut tickets = Vec::new();
        let until = |sharing: &mut Sharing<usize>, ends: &mut Vec<Option<f64>>, now: f64| {
            while let Some(end) = sharing.next().filter(|end| *end <= now) {
                // Noticed late, as by a timer on a busy machine.
                let job = sharing.ended(now).unwrap();
                ends[job] = Some(end);
            }
        };
        for (at, event) in events {
            until(&mut sharing, &mut ends, *at);
            match event {
                Event::Begin(work) => {
                    ends.push(None);
                    tickets.push(sharing.begin(*at, *work, ends.len() - 1));
                }
                Event::Cancel(number) => {
                    if let Some(ticket) = tickets.get(*number) {
                        sharing.cancel(*at, *ticket);
                    }
                }
                Event::Speed(speed) => sharing.change(*at, *speed),
            }
        }
        until(&mut sharing, &mut ends, f64::MAX);
        assert_eq!(sharing.len(), 0);
        ends
    }

    /// The same by brute force: the work left of every job, from each thing that happens to the next.
    fn counted_down(cores: f64, events: &[(f64, Event)]) -> Vec<Option<f64>> {
        let mut left: Vec<f64> = Vec::new();
        let mut ends: Vec<Option<f64>> = Vec::new();
        let mut present: Vec<usize> = Vec::new();
        let mut events = events.iter().peekable();
        let (mut now, mut speed) = (0.0, 1.0);
        loop {
            let rate = speed * (cores / present.len() as f64).min(1.0);
            let first = present.iter().copied().min_by(|a, b| left[*a].total_cmp(&left[*b]));
            let end = first.map(|job| now + left[job] / rate);
            let event = events.next_if(|(at, _)| end.is_none_or(|end| *at <= end));
            let Some(until) = event.map(|(at, _)| *at).or(end) else { return ends };
            present.iter().for_each(|job| left[*job] -= rate * (until - now));
            now = until;
            match event {
                Some((_, Event::Begin(work))) => {
                    present.push(left.len());
                    left.push(*work);
                    ends.push(None);
                }
                Some((_, Event::Cancel(number))) => present.retain(|job| job != number),
                Some((_, Event::Speed(new))) => speed = *new,
                None => {
                    ends[first.unwrap()] = Some(now);
                    present.retain(|job| Some(*job) != first);
                }
            }
        }
    }

    #[test]
    fn cores_are_in_use_as_far_as_there_are_jobs() {
        let mut sharing = Sharing::new(2.0, 1.0);
        sharing.begin(1.0, 1.0, 'a');
        for job in ['b', 'c'] {
            sharing.begin(1.5, 1.0, job);
        }
        // One alone for half a second, then three share two: the first is done at 2.25.
        assert_eq!(sharing.ended(10.0), Some('a'));
        assert!((sharing.busy() - 2.0).abs() < 1e-9, "{}", sharing.busy());
        while sharing.ended(10.0).is_some() {}
        assert!((sharing.busy() - 3.0).abs() < 1e-9, "all their work: {}", sharing.busy());
    }

    /// Unit of the times of events, seconds: some of them are the same. Most events, and what rounding may cost.
    const TICK: f64 = 2e-5;
    const MOST: usize = 24;
    const ROUNDING: f64 = 1e-9;

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => (0.0005..0.03f64).prop_map(Event::Begin),
            1 => (0..MOST).prop_map(Event::Cancel),
            1 => (0.2..2.0f64).prop_map(Event::Speed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn jobs_end_when_brute_force_says_so(
            cores in 0.5..8.0f64,
            gaps in prop::collection::vec((0..300u64, event()), 1..MOST),
        ) {
            let mut ticks = 0;
            let events: Vec<(f64, Event)> = gaps
                .into_iter()
                .map(|(gap, event)| {
                    ticks += gap;
                    (ticks as f64 * TICK, event)
                })
                .collect();
            let (computed, counted) = (computed(cores, &events), counted_down(cores, &events));
            prop_assert_eq!(computed.len(), counted.len());
            for (computed, counted) in computed.iter().zip(&counted) {
                match (computed, counted) {
                    (Some(computed), Some(counted)) => {
                        prop_assert!((computed - counted).abs() < ROUNDING, "{} {}", computed, counted);
                    }
                    (None, None) => {}
                    // One that was cancelled may have ended in the same moment.
                    _ => {
                        let end = computed.or(*counted);
                        prop_assert!(at_a_cancellation(&events, end), "{:?} {:?}", computed, counted);
                    }
                }
            }
        }
    }

    fn at_a_cancellation(events: &[(f64, Event)], end: Option<f64>) -> bool {
        let at_once = |at: f64| end.is_some_and(|end| (end - at).abs() < ROUNDING);
        events.iter().any(|(at, event)| matches!(event, Event::Cancel(_)) && at_once(*at))
    }

    #[test]
    fn two_hundred_jobs_on_four_cores() {
        let mut sharing = Sharing::new(4.0, 1.5);
        for job in 0..200 {
            sharing.begin(1.0, 0.015, job);
        }
        // 3 s of work at 6 a second.
        let end = sharing.next().unwrap();
        assert!((end - 1.5).abs() < 1e-9, "{end}");
        assert_eq!(sharing.ended(1.49), None);
        let all = std::iter::from_fn(|| sharing.ended(1.6)).collect::<Vec<_>>();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert!(sharing.next().is_none());
    }

    #[test]
    fn nothing_ends_at_speed_zero() {
        let mut sharing = Sharing::new(2.0, 0.0);
        sharing.begin(0.0, 1.0, ());
        assert!(sharing.next().is_none() && sharing.ended(1e9).is_none());
        sharing.change(1e9, 1.0);
        assert_eq!(sharing.next(), Some(1e9 + 1.0));
    }
}
