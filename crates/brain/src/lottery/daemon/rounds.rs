//! The messages between daemons: reports each quarter of a second, commits, tables.
//!
//! A daemon draws for itself with the weight that it last *sent*, as that is what the others draw with.
//! (AGS's daemons knew their own present load, and the others' of a second ago; that alone made 20 to 30 % of
//! its duplicates.)

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use super::Daemon;
use crate::hash::unit;
use crate::lottery::message::{
    Commit, Fetch, Hearsay, IDS, Look, Message, Report, Share, Standing, Table, To, UNKNOWN,
};
use crate::lottery::table::News;
use crate::{Time, mix};

/// The reports in which an answered id is listed.
const LISTED: u8 = 2;

/// The time for which a part of a table is awaited.
const FETCH: Duration = Duration::from_secs(1);

/// The cost of a part of a table for its asker, in requests: it is as long as ten.
const TABLE: u32 = 10;

/// A requested part of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetched {
    from: SocketAddr,
    at: Time,
    id: u64,
    part: u16,
}

impl Daemon {
    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(due) = self.poll_timeout() {
            self.lagged(now, now.since(due));
        }
        self.climbed(now);
        while let Some(repeat) = self.repeats.front().copied().filter(|repeat| repeat.due <= now) {
            self.repeats.pop_front();
            self.commit(repeat.id, &repeat.others);
        }
        if self.state == Standing::Joining && now >= self.joined {
            self.state = Standing::Up;
            self.since = now;
            self.next_report = now;
        }
        if now >= self.next_report {
            self.table.sweep(self.read(now));
            self.report(now);
        }
    }

    /// Returns the time up to which it has read its messages. Silence after that may be an unread message.
    pub(super) fn read(&self, now: Time) -> Time {
        now - self.lag.now(now)
    }

    /// Sends a report; from now on it draws with the reported weights.
    fn report(&mut self, now: Time) {
        let services = self.services.iter_mut().map(|local| {
            local.sent = local.weight(self.since, now, self.config.slow_start);
            Share {
                service: local.service,
                capacity: local.capacity,
                weight: local.sent,
                load: local.gauge.load(now).unwrap_or(UNKNOWN),
                in_flight: local.in_flight,
            }
        });
        let services: Vec<Share> = services.collect();
        self.seq = self.seq.saturating_add(1);
        let ids = self.recent.iter().rev().take(IDS).map(|(id, _)| *id).collect();
        for (_, listed) in self.recent.iter_mut().rev().take(IDS) {
            *listed += 1;
        }
        self.recent.retain(|(_, listed)| *listed < LISTED);
        let (member, incarnation, seq) = (self.config.member, self.config.incarnation, self.seq);
        let (state, heard) = (self.state, Vec::new());
        let mut report = Report { member, incarnation, seq, state, digest: 0, services, ids, heard };
        self.table.hear(now, &report);
        report.digest = self.table.digest;
        self.statistics.reports += 1;
        self.tell(now, report);
        self.reported = now;
        // Daemons that start together must not report together.
        let spread = 0.9 + 0.2 * unit(mix(self.config.seed ^ mix(u64::from(seq))));
        self.next_report = now + self.config.interval.mul_f64(spread);
    }

    /// Sends a report to all, or to the next destinations, with relayed reports.
    fn tell(&mut self, now: Time, mut report: Report) {
        if self.config.multicast {
            return self.send(To::Everyone, Message::Report(report));
        }
        let audience = self.spread.audience(now, &report, self.table.daemons().count());
        // Also in reports to all, as daemons that were away need them most.
        report.heard = self.table.gossip(now, report.room());
        let Some(count) = audience else { return self.send(To::Everyone, Message::Report(report)) };
        for _ in 0..count {
            let seed = self.config.seed;
            let Some(member) = self.spread.next(seed, self.table.others()) else { return };
            // One that has left since the round began.
            let Some(to) = self.table.listed(member).map(|listed| listed.address) else { continue };
            self.send(To::Address(to), Message::Report(report.clone()));
        }
    }

    /// Handles the report of another daemon.
    pub(super) fn reported(&mut self, now: Time, from: SocketAddr, report: &Report) {
        if report.member == self.config.member {
            return;
        }
        self.table.outdate(report.member, report.incarnation, Some(from));
        match self.table.hear(now, report) {
            // Relayed reports of an unknown sender are ignored until it is known.
            News::Stranger => {
                self.inquire(now, from);
                return;
            }
            News::Old => {
                self.statistics.stale += 1;
                return;
            }
            News::Fresh => self.statistics.heard += 1,
            News::Later => {
                self.statistics.heard += 1;
                self.inquire(now, from);
            }
        }
        self.hearsay(now, from, &report.heard);
        self.table.compare(report.member, report.digest);
        for id in report.ids.iter().take(IDS) {
            // Ids of requests that did not come here are useless: they are for all, and many.
            if self.memory.find(now, *id).is_some() {
                self.answered(now, report.member, *id, false);
            }
        }
    }

    /// Handles relayed reports.
    fn hearsay(&mut self, now: Time, from: SocketAddr, heard: &[Hearsay]) {
        let (mut strangers, mut later) = (false, None);
        for said in heard.iter().filter(|said| said.member != self.config.member) {
            self.table.outdate(said.member, said.incarnation, None);
            match self.table.hear_of(now, said) {
                News::Stranger => strangers = true,
                News::Fresh => self.statistics.heard += 1,
                News::Later => {
                    self.statistics.heard += 1;
                    later = self.table.listed(said.member).map(|listed| listed.address).or(later);
                }
                // Most relayed reports are known.
                News::Old => {}
            }
        }
        // The relaying daemon may not know either what a member offers in its later life.
        if let Some(daemon) = later.or_else(|| strangers.then_some(from)) {
            self.inquire(now, daemon);
        }
    }

    /// Records from the membership protocol that a member is present, in this life, with the address of its
    /// daemon.
    ///
    /// If that is not known here its daemon is queried. It is to be called again as long as it holds: a query
    /// may be lost.
    pub fn alive(&mut self, now: Time, member: u16, incarnation: u32, address: SocketAddr) {
        let known = self.table.incarnation(member).is_some_and(|known| known >= incarnation);
        if member == self.config.member || known {
            return;
        }
        self.inquire(now, address);
    }

    /// Requests the table of a daemon, unless another request is open, or it was queried too often: it may
    /// not even be one.
    fn inquire(&mut self, now: Time, daemon: SocketAddr) {
        if self.fetched.is_some_and(|fetched| now.since(fetched.at) < FETCH) {
            return;
        }
        if self.strangers.admit(now, daemon.ip(), 1) {
            self.fetch(now, daemon, 0);
        } else {
            self.statistics.limited += 1;
        }
    }

    pub(super) fn committed(&mut self, now: Time, commit: &Commit) {
        let known = self.table.incarnation(commit.member);
        if commit.member == self.config.member || known.is_none_or(|known| commit.incarnation < known) {
            return;
        }
        for id in commit.ids.iter().take(IDS) {
            self.answered(now, commit.member, *id, true);
        }
    }

    /// Records that `member` has answered request `id`. `committed`: by a commit, not by a report.
    fn answered(&mut self, now: Time, member: u16, id: u64, committed: bool) {
        let record = self.memory.enter(now, id);
        let before = record.by();
        let first = before.is_none();
        let won = record.said.is_some();
        let mut delay = None;
        match before {
            Some((by, when)) if by == member => {
                // Two commits arrived, so the first to arrive was the first sent. If one of them had been
                // lost, the delay of the other would be unknown, and a step that sets the pause between them
                // would feed on it.
                if committed {
                    // A winner that only got the second attempt waited for the client.
                    if record.expected(member) && record.attempt == 0 {
                        delay = Some(when.since(record.since));
                    }
                    record.commit(member, now);
                }
            }
            _ => record.commit(member, now),
        }
        self.statistics.duplicates += u64::from(first && won);
        if let Some(delay) = delay {
            self.measure(delay);
        }
        self.settle(id);
    }

    /// Lists `id` in the next reports.
    pub(super) fn remember(&mut self, id: u64) {
        if self.recent.len() >= 2 * IDS {
            self.recent.pop_front();
        }
        self.recent.push_back((id, 0));
    }

    pub(super) fn asked_for_table(&mut self, now: Time, from: SocketAddr, back: To, fetch: Fetch) {
        if fetch.generation == self.table.generation {
            return;
        }
        if !self.sources.admit(now, from.ip(), TABLE) {
            self.statistics.limited += 1;
            return;
        }
        if let Some(part) = self.table.part(fetch) {
            self.send(back, Message::Table(part));
        }
    }

    /// Handles a request for a drum, from outside the lottery. While it collects members it cannot answer.
    pub(super) fn looked_at(&mut self, now: Time, from: SocketAddr, back: To, look: Look) {
        if matches!(self.state, Standing::Joining | Standing::Leaving) {
            return;
        }
        if !self.sources.admit(now, from.ip(), TABLE) {
            self.statistics.limited += 1;
            return;
        }
        if let Some(part) = self.table.places(self.read(now), look) {
            self.send(back, Message::Drum(part));
        }
    }

    /// Records descriptions of unknown members from the queried daemon, and requests the next part. The
    /// membership protocol decides on deaths.
    pub(super) fn told_table(&mut self, now: Time, from: SocketAddr, table: Table) {
        let Some(Fetched { from: asked, at, id, part }) = self.fetched else { return };
        if (asked, id, part) != (from, table.id, table.part) || now.since(at) >= FETCH {
            return;
        }
        self.fetched = None;
        for listed in table.members {
            if listed.member != self.config.member {
                self.table.describe(listed, false);
            }
        }
        // If the other's table changed meanwhile a member may be missing: it is still unknown when it
        // reports.
        if let Some(next) = part.checked_add(1).filter(|next| *next < table.parts) {
            self.fetch(now, from, next);
        }
    }

    fn fetch(&mut self, now: Time, from: SocketAddr, part: u16) {
        self.fetches += 1;
        let id = self.config.secret.hash(&self.fetches.to_be_bytes());
        self.fetched = Some(Fetched { from, at: now, id, part });
        let generation = self.table.generation;
        self.send(To::Address(from), Message::Fetch(Fetch { id, generation, part }));
    }
}
