//! The messages between daemons: reports each quarter of a second, commits, tables.
//!
//! A daemon draws for itself with the weight that it last *sent*, as that is what the others draw with.
//! (AGS's daemons knew their own present load, and the others' of a second ago; that alone made 20 to 30 % of
//! its duplicates.)

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::LotteryNode;
use crate::hash::unit;
use crate::lottery::membership::ReportNovelty;
use crate::lottery::message::{
    AnswerCommit, CandidateQuery, LotteryMessage, MAX_IDS, MessageTarget, NodeReport, NodeState,
    RelayedReport, ServiceState, TableFetch, TablePart, UNKNOWN_LOAD,
};
use crate::{Time, mix};

/// The reports in which an answered id is listed.
const LISTING_REPORTS: u8 = 2;

/// The time for which a part of a table is awaited.
const FETCH_TIMEOUT: Duration = Duration::from_secs(1);

/// The cost of a part of a table for its asker, in requests: it is as long as ten.
const TABLE_COST: u32 = 10;

/// A requested part of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFetch {
    from: SocketAddr,
    at: Time,
    id: u64,
    part: u16,
}

impl LotteryNode {
    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(due) = self.poll_timeout() {
            self.record_lag(now, now.since(due));
        }
        self.answer_deferred(now);
        while let Some(repeat) = self.repeats.front().copied().filter(|repeat| repeat.due <= now) {
            self.repeats.pop_front();
            self.queue_commits(repeat.id, &repeat.others);
        }
        if self.state == NodeState::Joining && now >= self.joined {
            self.state = NodeState::Up;
            self.since = now;
            self.next_report = now;
        }
        if now >= self.next_report {
            self.table.sweep(self.read_until(now));
            self.send_report(now);
        }
    }

    /// Returns the time up to which it has read its messages. Silence after that may be an unread message.
    pub(super) fn read_until(&self, now: Time) -> Time {
        now - self.lag.current(now)
    }

    /// Sends a report; from now on it draws with the reported weights.
    fn send_report(&mut self, now: Time) {
        let services = self.services.iter_mut().map(|local_service| {
            local_service.sent_weight = local_service.weight(self.since, now, self.config.slow_start);
            ServiceState {
                service: local_service.service,
                capacity: local_service.capacity,
                weight: local_service.sent_weight,
                load: local_service.gauge.load(now).unwrap_or(UNKNOWN_LOAD),
                in_flight: local_service.in_flight,
            }
        });
        let services: Vec<ServiceState> = services.collect();
        self.seq = self.seq.saturating_add(1);
        let ids = self.recent.iter().rev().take(MAX_IDS).map(|(id, _)| *id).collect();
        for (_, list_count) in self.recent.iter_mut().rev().take(MAX_IDS) {
            *list_count += 1;
        }
        self.recent.retain(|(_, list_count)| *list_count < LISTING_REPORTS);
        let (member, incarnation, seq) = (self.config.member, self.config.incarnation, self.seq);
        let (state, relayed_reports) = (self.state, Vec::new());
        let mut report =
            NodeReport { member, incarnation, seq, state, digest: 0, services, ids, heard: relayed_reports };
        self.table.record_report(now, &report);
        report.digest = self.table.digest;
        self.statistics.reports += 1;
        self.distribute_report(now, report);
        self.last_report = now;
        // Daemons that start together must not report together.
        let jitter = 0.9 + 0.2 * unit(mix(self.config.seed ^ mix(u64::from(seq))));
        self.next_report = now + self.config.interval.mul_f64(jitter);
    }

    /// Sends a report to all, or to the next destinations, with relayed reports.
    fn distribute_report(&mut self, now: Time, mut report: NodeReport) {
        if self.config.multicast {
            return self.send(MessageTarget::AllNodes, LotteryMessage::Report(report));
        }
        let target_count = self.fanout.target_count(now, &report, self.table.node_addresses().count());
        // Also in reports to all, as daemons that were away need them most.
        report.heard = self.table.reports_to_relay(now, report.relay_capacity());
        let Some(count) = target_count else {
            return self.send(MessageTarget::AllNodes, LotteryMessage::Report(report));
        };
        for _ in 0..count {
            let seed = self.config.seed;
            let Some(member) = self.fanout.next_target(seed, self.table.peer_ids()) else { return };
            // One that has left since the round began.
            let Some(to) = self.table.description(member).map(|description| description.address) else {
                continue;
            };
            self.send(MessageTarget::Address(to), LotteryMessage::Report(report.clone()));
        }
    }

    /// Handles the report of another daemon.
    pub(super) fn handle_report(&mut self, now: Time, from: SocketAddr, report: &NodeReport) {
        if report.member == self.config.member {
            return;
        }
        self.table.supersede(report.member, report.incarnation, Some(from));
        match self.table.record_report(now, report) {
            // Relayed reports of an unknown sender are ignored until it is known.
            ReportNovelty::UnknownMember => {
                self.query_table(now, from);
                return;
            }
            ReportNovelty::Stale => {
                self.statistics.stale_reports += 1;
                return;
            }
            ReportNovelty::Fresh => self.statistics.heard += 1,
            ReportNovelty::NewIncarnation => {
                self.statistics.heard += 1;
                self.query_table(now, from);
            }
        }
        self.handle_relayed(now, from, &report.heard);
        self.table.record_digest(report.member, report.digest);
        for id in report.ids.iter().take(MAX_IDS) {
            // Ids of requests that did not come here are useless: they are for all, and many.
            if self.dedup.find(now, *id).is_some() {
                self.record_answer(now, report.member, *id, false);
            }
        }
    }

    /// Handles relayed reports.
    fn handle_relayed(&mut self, now: Time, from: SocketAddr, reports: &[RelayedReport]) {
        let (mut has_unknown, mut updated_address) = (false, None);
        for report in reports.iter().filter(|report| report.member != self.config.member) {
            self.table.supersede(report.member, report.incarnation, None);
            match self.table.record_relayed(now, report) {
                ReportNovelty::UnknownMember => has_unknown = true,
                ReportNovelty::Fresh => self.statistics.heard += 1,
                ReportNovelty::NewIncarnation => {
                    self.statistics.heard += 1;
                    updated_address = self
                        .table
                        .description(report.member)
                        .map(|description| description.address)
                        .or(updated_address);
                }
                // Most relayed reports are known.
                ReportNovelty::Stale => {}
            }
        }
        // The relaying daemon may not know either what a member offers in its later life.
        if let Some(address) = updated_address.or_else(|| has_unknown.then_some(from)) {
            self.query_table(now, address);
        }
    }

    /// Records from the membership protocol that a member is present, in this life, with the address of its
    /// daemon.
    ///
    /// If that is not known here its daemon is queried. It is to be called again as long as it holds: a query
    /// may be lost.
    pub fn member_alive(&mut self, now: Time, member: u16, incarnation: u32, address: SocketAddr) {
        let is_known =
            self.table.incarnation(member).is_some_and(|known_incarnation| known_incarnation >= incarnation);
        if member == self.config.member || is_known {
            return;
        }
        self.query_table(now, address);
    }

    /// Requests the table of a daemon, unless another request is open, or it was queried too often: it may
    /// not even be one.
    fn query_table(&mut self, now: Time, address: SocketAddr) {
        if self.open_fetch.is_some_and(|open_fetch| now.since(open_fetch.at) < FETCH_TIMEOUT) {
            return;
        }
        if self.unknown_source_limits.admit(now, address.ip(), 1) {
            self.fetch_part(now, address, 0);
        } else {
            self.statistics.rate_limited += 1;
        }
    }

    pub(super) fn handle_commit(&mut self, now: Time, commit: &AnswerCommit) {
        let known_incarnation = self.table.incarnation(commit.member);
        if commit.member == self.config.member
            || known_incarnation.is_none_or(|known_incarnation| commit.incarnation < known_incarnation)
        {
            return;
        }
        for id in commit.ids.iter().take(MAX_IDS) {
            self.record_answer(now, commit.member, *id, true);
        }
    }

    /// Records that `member` has answered request `id`. `committed`: by a commit, not by a report.
    fn record_answer(&mut self, now: Time, member: u16, id: u64, by_commit: bool) {
        let record = self.dedup.find_or_insert(now, id);
        let previous_commit = record.committed_by();
        let is_first = previous_commit.is_none();
        let has_answered = record.answer.is_some();
        let mut delay = None;
        match previous_commit {
            Some((committer, committed_at)) if committer == member => {
                // Two commits arrived, so the first to arrive was the first sent. If one of them had been
                // lost, the delay of the other would be unknown, and a step that sets the pause between them
                // would feed on it.
                if by_commit {
                    // A winner that only got the second attempt waited for the client.
                    if record.take_expected(member) && record.attempt == 0 {
                        delay = Some(committed_at.since(record.since));
                    }
                    record.record_commit(member, now);
                }
            }
            _ => record.record_commit(member, now),
        }
        self.statistics.duplicates += u64::from(is_first && has_answered);
        if let Some(delay) = delay {
            self.record_commit_delay(delay);
        }
        self.remove_pending(id);
    }

    /// Lists `id` in the next reports.
    pub(super) fn list_answered(&mut self, id: u64) {
        if self.recent.len() >= 2 * MAX_IDS {
            self.recent.pop_front();
        }
        self.recent.push_back((id, 0));
    }

    pub(super) fn handle_fetch(
        &mut self,
        now: Time,
        from: SocketAddr,
        reply_to: MessageTarget,
        fetch: TableFetch,
    ) {
        if fetch.generation == self.table.generation {
            return;
        }
        if !self.source_limits.admit(now, from.ip(), TABLE_COST) {
            self.statistics.rate_limited += 1;
            return;
        }
        if let Some(table_part) = self.table.table_part(fetch) {
            self.send(reply_to, LotteryMessage::Table(table_part));
        }
    }

    /// Handles a request for a candidate set, from outside the lottery. While it collects members it cannot
    /// answer.
    pub(super) fn handle_candidate_query(
        &mut self,
        now: Time,
        from: SocketAddr,
        reply_to: MessageTarget,
        query: CandidateQuery,
    ) {
        if matches!(self.state, NodeState::Joining | NodeState::Leaving) {
            return;
        }
        if !self.source_limits.admit(now, from.ip(), TABLE_COST) {
            self.statistics.rate_limited += 1;
            return;
        }
        if let Some(candidate_set) = self.table.candidate_set(self.read_until(now), query) {
            self.send(reply_to, LotteryMessage::CandidateSet(candidate_set));
        }
    }

    /// Records descriptions of unknown members from the queried daemon, and requests the next part. The
    /// membership protocol decides on deaths.
    pub(super) fn handle_table(&mut self, now: Time, from: SocketAddr, table: TablePart) {
        let Some(OpenFetch { from: expected_from, at: fetched_at, id, part }) = self.open_fetch else {
            return;
        };
        if (expected_from, id, part) != (from, table.id, table.part) || now.since(fetched_at) >= FETCH_TIMEOUT
        {
            return;
        }
        self.open_fetch = None;
        for description in table.members {
            if description.member != self.config.member {
                self.table.describe(description, false);
            }
        }
        // If the other's table changed meanwhile a member may be missing: it is still unknown when it
        // reports.
        if let Some(next) = part.checked_add(1).filter(|next| *next < table.parts) {
            self.fetch_part(now, from, next);
        }
    }

    fn fetch_part(&mut self, now: Time, from: SocketAddr, part: u16) {
        self.fetches += 1;
        let id = self.config.secret.hash(&self.fetches.to_be_bytes());
        self.open_fetch = Some(OpenFetch { from, at: now, id, part });
        let generation = self.table.generation;
        self.send(MessageTarget::Address(from), LotteryMessage::Fetch(TableFetch { id, generation, part }));
    }
}
