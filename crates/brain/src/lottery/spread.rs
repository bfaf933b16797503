//! To whom a report goes where there is no multicast, and each costs a packet for everybody who is to hear it.
//!
//! Of n daemons all telling all would cost 4 n (n - 1) packets a second: among a hundred three for each request, at a hundred requests a
//! second and daemon. So a daemon tells as many as its requests pay for: a packet for each [`SHARE`] that it answers, at least one with
//! each report, and all if that reaches. Where it does not, each hears of most others by others: a report passes on what its sender
//! heard, the news first (push gossip: Demers et al., *Epidemic algorithms for replicated database maintenance*, 1987).
//!
//! * Whom it tells: one after the other, in an order by chance that is a new one each time all had their turn.
//! * What cannot wait goes to all at once: that it comes, drains or leaves, and that it can do a service or cannot any more.
//! * Where clients ask all at once (the ladder) everybody has to know the same, and everybody is told, whatever it costs.
//!
//! What a member wants is older then, by the time that news takes to get round: about 1.5 s among a hundred daemons that tell one or two each
//! quarter of a second. Shares hardly depend on it, as a weight falls by less than the load rises: the loop has a gain below one.

use alloc::vec::Vec;
use core::time::Duration;

use super::message::{Report, Standing};
use crate::{Time, mix};

/// Requests that pay for a packet.
const SHARE: f64 = 25.0;

/// For how long after a client has asked all at once everybody is told.
const LADDER: Duration = Duration::from_secs(10);

/// Over which the rate of requests is smoothed.
const SMOOTH: Duration = Duration::from_secs(1);

/// Who is told next, and what it may cost.
#[derive(Clone, Debug, Default)]
pub(super) struct Spread {
    /// Requests since the last report, and how many a second there were of late.
    count: u32,
    rate: f64,
    at: Time,
    /// Packets that are paid for and were not sent.
    credit: f64,
    /// When a client asked all at once last.
    ladder: Option<Time>,
    /// What everybody was told last: the state and the services that it can do.
    told: Option<(u32, Standing, Vec<u32>)>,
    /// Those who have not had their turn.
    order: Vec<u16>,
    rounds: u64,
}

impl Spread {
    /// A request was answered.
    pub(super) fn answered(&mut self) {
        self.count = self.count.saturating_add(1);
    }

    /// A client asked all at once.
    pub(super) fn climbed(&mut self, now: Time) {
        self.ladder = Some(now);
    }

    /// How many of `others` hear a report that is made now: all, or as many as are paid for.
    pub(super) fn audience(&mut self, now: Time, report: &Report, others: usize) -> Option<usize> {
        let gone = now.since(self.at).as_secs_f64();
        let part = gone / (gone + SMOOTH.as_secs_f64());
        if gone > 0.0 {
            self.rate += part * (f64::from(core::mem::take(&mut self.count)) / gone - self.rate);
        }
        self.at = now;
        // What was not used in a second is not saved up.
        let paid = self.rate / SHARE;
        self.credit = (self.credit + paid * gone).min(paid.max(1.0));
        let able = report.services.iter().filter(|share| share.weight > 0).map(|share| share.service);
        let told = (report.incarnation, report.state, able.collect());
        let urgent = self.told.as_ref() != Some(&told);
        if urgent {
            self.told = Some(told);
        }
        let ladder = self.ladder.is_some_and(|at| now.since(at) < LADDER);
        let few = (self.credit as usize).max(1);
        if urgent || ladder || few >= others {
            self.credit = (self.credit - others as f64).max(0.0);
            return None;
        }
        self.credit = (self.credit - few as f64).max(0.0);
        Some(few)
    }

    /// The next whose turn it is, of `members`.
    pub(super) fn next(&mut self, seed: u64, members: impl Iterator<Item = u16>) -> Option<u16> {
        if self.order.is_empty() {
            self.rounds += 1;
            let round = mix(seed ^ self.rounds);
            self.order = members.collect();
            self.order.sort_unstable_by_key(|member| mix(round ^ u64::from(*member)));
        }
        self.order.pop()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::lottery::message::Share;

    fn report(state: Standing, weight: u16) -> Report {
        let services = vec![Share { service: 80, capacity: 4, weight, load: 0, in_flight: 0 }];
        Report { member: 1, incarnation: 1, seq: 1, state, digest: 0, services, ids: vec![], heard: vec![] }
    }

    /// Packets in a minute of four reports a second, at so many requests a second.
    fn packets(spread: &mut Spread, rate: u32, others: usize) -> usize {
        let from = spread.at.0;
        let quarter = |turn: u64| Time(from + turn * 250_000_000);
        let mut sum = 0;
        for turn in 1..=240 {
            (0..rate / 4).for_each(|_| spread.answered());
            sum += spread.audience(quarter(turn), &report(Standing::Up, 9), others).unwrap_or(others);
        }
        sum
    }

    #[test]
    fn what_requests_pay_for_is_sent_and_no_more() {
        let mut spread = Spread::default();
        assert_eq!(spread.audience(Time(0), &report(Standing::Up, 9), 99), None, "news for all");
        assert_eq!(packets(&mut spread, 0, 99), 240, "one with each report");
        packets(&mut spread, 400, 99);
        let sent = packets(&mut spread, 400, 99);
        assert!((950..=970).contains(&sent), "a packet for 25 of 400 a second: {sent}");
        packets(&mut spread, 40_000, 99);
        assert_eq!(packets(&mut spread, 40_000, 99), 240 * 99, "all");
        // And it forgets that it had so many.
        packets(&mut spread, 0, 99);
        assert_eq!(packets(&mut spread, 0, 99), 240);
    }

    #[test]
    fn what_cannot_wait_is_for_all() {
        let mut spread = Spread::default();
        let at = |millis: u64| Time(millis * 1_000_000);
        let mut all =
            |millis, state, weight| spread.audience(at(millis), &report(state, weight), 99).is_none();
        assert!(all(0, Standing::Joining, 9));
        assert!(all(250, Standing::Up, 9) && !all(500, Standing::Up, 40), "a weight can wait");
        assert!(all(750, Standing::Up, 0), "that it cannot do it any more cannot");
        assert!(
            !all(1000, Standing::Up, 0) && all(1250, Standing::Up, 9) && all(1500, Standing::Draining, 9)
        );
        assert!(!all(1750, Standing::Draining, 9));
        spread.climbed(at(1800));
        let mut all = |millis| spread.audience(at(millis), &report(Standing::Draining, 9), 99).is_none();
        assert!(all(2000) && all(11_000) && !all(12_000), "where all are asked all have to know");
    }

    #[test]
    fn each_has_its_turn() {
        let mut spread = Spread::default();
        let mut round = |count: u16| {
            let mut all: Vec<u16> = (0..count).filter_map(|_| spread.next(7, 0..count)).collect();
            let order = all.clone();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<u16>>());
            order
        };
        assert_ne!(round(50), round(50));
        assert_eq!(Spread::default().next(7, 0..0), None);
    }
}
