//! The destinations of a report without multicast, where each destination costs a packet.
//!
//! If all n daemons reported to all, that would cost 4 n (n - 1) packets a second. Among a hundred that is
//! three for each request, at a hundred requests a second and daemon. So a daemon reports to as many as its
//! requests pay for: a packet for each [`REQUESTS_PER_PACKET`] that it answers, at least one with each
//! report, and all if that suffices. Otherwise reports are relayed: a report contains those that its sender
//! received, the latest first (push gossip: Demers et al., *Epidemic algorithms for replicated database
//! maintenance*, 1987).
//!
//! - The destinations take turns, in a random order that is new in each round.
//! - Urgent reports go to all at once: that a daemon comes, drains or leaves, and that it can or cannot serve
//!   a service any more.
//! - If clients ask all daemons (the ladder), all need the same information, and all get every report,
//!   whatever the cost.
//!
//! Weights are then older, by the time that reports take to spread: about 1.5 s among a hundred daemons that
//! report to one or two each quarter of a second. Shares hardly depend on it, as a weight falls by less than
//! the load rises: the loop has a gain below one.

use alloc::vec::Vec;
use core::time::Duration;

use super::message::{NodeReport, NodeState};
use crate::{Time, mix};

/// The requests that pay for a packet.
const REQUESTS_PER_PACKET: f64 = 25.0;

/// The time after a client has asked all for which all get every report.
const ASK_ALL_WINDOW: Duration = Duration::from_secs(10);

/// The time over which the rate of requests is smoothed.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// The next destinations, and the budget.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportFanout {
    /// The requests since the last report, and the recent rate.
    request_count: u32,
    rate: f64,
    rate_updated_at: Time,
    /// The packets that are paid for and were not sent.
    credit: f64,
    /// The last time at which a client asked all.
    last_ask_all: Option<Time>,
    /// The last report to all: the state and the available services.
    last_broadcast: Option<(u32, NodeState, Vec<u32>)>,
    /// The members still to come in this round.
    order: Vec<u16>,
    rounds: u64,
}

impl ReportFanout {
    /// Records that a request was answered.
    pub(super) fn record_answer(&mut self) {
        self.request_count = self.request_count.saturating_add(1);
    }

    /// Records that a client asked all.
    pub(super) fn record_ask_all(&mut self, now: Time) {
        self.last_ask_all = Some(now);
    }

    /// Returns how many of `others` get the present report: `None` for all, or as many as are paid for.
    pub(super) fn target_count(
        &mut self,
        now: Time,
        report: &NodeReport,
        other_count: usize,
    ) -> Option<usize> {
        let elapsed = now.since(self.rate_updated_at).as_secs_f64();
        let weight = elapsed / (elapsed + RATE_WINDOW.as_secs_f64());
        if elapsed > 0.0 {
            self.rate += weight * (f64::from(core::mem::take(&mut self.request_count)) / elapsed - self.rate);
        }
        self.rate_updated_at = now;
        // The unused budget of a second is not saved up.
        let packet_rate = self.rate / REQUESTS_PER_PACKET;
        self.credit = (self.credit + packet_rate * elapsed).min(packet_rate.max(1.0));
        let offered_services =
            report.services.iter().filter(|service| service.weight > 0).map(|service| service.service);
        let broadcast = (report.incarnation, report.state, offered_services.collect());
        let is_urgent = self.last_broadcast.as_ref() != Some(&broadcast);
        if is_urgent {
            self.last_broadcast = Some(broadcast);
        }
        let asked_all = self.last_ask_all.is_some_and(|asked_at| now.since(asked_at) < ASK_ALL_WINDOW);
        let affordable = (self.credit as usize).max(1);
        if is_urgent || asked_all || affordable >= other_count {
            self.credit = (self.credit - other_count as f64).max(0.0);
            return None;
        }
        self.credit = (self.credit - affordable as f64).max(0.0);
        Some(affordable)
    }

    /// Returns the next of `members`.
    pub(super) fn next_target(&mut self, seed: u64, members: impl Iterator<Item = u16>) -> Option<u16> {
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
    use crate::lottery::message::ServiceState;

    fn report(state: NodeState, weight: u16) -> NodeReport {
        let services = vec![ServiceState { service: 80, capacity: 4, weight, load: 0, in_flight: 0 }];
        NodeReport {
            member: 1,
            incarnation: 1,
            seq: 1,
            state,
            digest: 0,
            services,
            ids: vec![],
            heard: vec![],
        }
    }

    /// Returns the packets in a minute of four reports a second, at this rate of requests.
    fn packets(fanout: &mut ReportFanout, rate: u32, other_count: usize) -> usize {
        let start_nanos = fanout.rate_updated_at.0;
        let time_of = |report_number: u64| Time(start_nanos + report_number * 250_000_000);
        let mut sum = 0;
        for report_number in 1..=240 {
            (0..rate / 4).for_each(|_| fanout.record_answer());
            sum += fanout
                .target_count(time_of(report_number), &report(NodeState::Up, 9), other_count)
                .unwrap_or(other_count);
        }
        sum
    }

    #[test]
    fn what_requests_pay_for_is_sent_and_no_more() {
        let mut fanout = ReportFanout::default();
        assert_eq!(fanout.target_count(Time(0), &report(NodeState::Up, 9), 99), None, "news for all");
        assert_eq!(packets(&mut fanout, 0, 99), 240, "one with each report");
        packets(&mut fanout, 400, 99);
        let sent = packets(&mut fanout, 400, 99);
        assert!((950..=970).contains(&sent), "a packet for 25 of 400 a second: {sent}");
        packets(&mut fanout, 40_000, 99);
        assert_eq!(packets(&mut fanout, 40_000, 99), 240 * 99, "all");
        // The high rate is forgotten.
        packets(&mut fanout, 0, 99);
        assert_eq!(packets(&mut fanout, 0, 99), 240);
    }

    #[test]
    fn what_cannot_wait_is_for_all() {
        let mut fanout = ReportFanout::default();
        let time_at = |millis: u64| Time(millis * 1_000_000);
        let mut reaches_all = |millis, state, weight| {
            fanout.target_count(time_at(millis), &report(state, weight), 99).is_none()
        };
        assert!(reaches_all(0, NodeState::Joining, 9));
        assert!(
            reaches_all(250, NodeState::Up, 9) && !reaches_all(500, NodeState::Up, 40),
            "a weight can wait"
        );
        assert!(reaches_all(750, NodeState::Up, 0), "that it cannot do it any more cannot");
        assert!(
            !reaches_all(1000, NodeState::Up, 0)
                && reaches_all(1250, NodeState::Up, 9)
                && reaches_all(1500, NodeState::Draining, 9)
        );
        assert!(!reaches_all(1750, NodeState::Draining, 9));
        fanout.record_ask_all(time_at(1800));
        let mut reaches_all =
            |millis| fanout.target_count(time_at(millis), &report(NodeState::Draining, 9), 99).is_none();
        assert!(
            reaches_all(2000) && reaches_all(11_000) && !reaches_all(12_000),
            "where all are asked all have to know"
        );
    }

    #[test]
    fn each_has_its_turn() {
        let mut fanout = ReportFanout::default();
        let mut draw_round = |count: u16| {
            let mut targets: Vec<u16> = (0..count).filter_map(|_| fanout.next_target(7, 0..count)).collect();
            let order = targets.clone();
            targets.sort_unstable();
            assert_eq!(targets, (0..count).collect::<Vec<u16>>());
            order
        };
        assert_ne!(draw_round(50), draw_round(50));
        assert_eq!(ReportFanout::default().next_target(7, 0..0), None);
    }
}
