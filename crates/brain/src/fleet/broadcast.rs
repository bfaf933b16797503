//! Sending reports to other balancers.
//!
//! Each round looks at the members, in turn if there are many, and reports those that have changed
//! significantly. Unchanged members are reported again every [`REFRESH_INTERVAL`]. Both stay within the
//! allowed bytes: the next round begins with the entry that does not fit now. A balancer without changes
//! sends an empty report ten times a second.

use alloc::vec::Vec;
use core::time::Duration;

use super::report::{
    FleetReport, GroupSection, MAX_REPORT_BYTES, MAX_SECTION_ENTRIES, MemberEntry, MonitorLoad, millis,
    quantize,
};
use super::{Fleet, HORIZON, LocalMember, MAX_MEMBERS_PER_ROUND, MemberCursor};
use crate::Time;
use crate::member::failure_detector::NOTIFY_THRESHOLD;

/// The last report about a member.
#[derive(Clone, Debug)]
pub(super) struct SentReport {
    pub(super) at: Time,
    pub(super) in_flight: u32,
    /// The mean of the requests in flight, and the waiting requests.
    pub(super) mean: f64,
    pub(super) waiting: f64,
    ejected: bool,
    suspected: bool,
    check: Time,
    reading: Time,
    load: Time,
}

impl SentReport {
    /// Returns the demand by which the member's limit is divided.
    pub(super) fn demand(&self) -> f64 {
        self.mean + self.waiting
    }
}

impl Fleet {
    /// Returns the reports to send to each other balancer now, each in a datagram of its own; none without
    /// others. It is to be called every [`FleetSettings::interval`](super::FleetSettings::interval), or
    /// later.
    pub fn poll_reports(&mut self, now: Time) -> Vec<FleetReport> {
        let present_peers = self.peers.values().filter(|peer| peer.is_present()).count();
        let elapsed = now.since(self.tokens_at).as_secs_f64();
        self.tokens_at = self.tokens_at.max(now);
        let rate = self.settings.bytes_per_second / present_peers.max(1) as f64;
        // Unused bytes accumulate for a quarter of a second; a datagram is always possible.
        self.tokens = (self.tokens + rate * elapsed).min((rate / 4.0).max(2.0 * MAX_DATAGRAM_BYTES));
        let mut reports = Vec::new();
        let mut writer = ReportWriter {
            tokens: self.tokens,
            report: FleetReport::default(),
            remaining_bytes: MAX_REPORT_BYTES,
            reports: &mut reports,
        };
        while let Some((group_index, member)) = self.urgent.pop_first() {
            let Some(group) = self.groups.get_mut(group_index).filter(|_| present_peers > 0) else {
                continue;
            };
            let Some(local_member) = group.members.get_mut(member) else { continue };
            if !writer.write(group.id, group.rate, local_member.entry(group.waiting, now)) {
                self.urgent.insert((group_index, member));
                break;
            }
            local_member.last_report = Some(local_member.sent_report(group.waiting, now));
        }
        let mut examined = 0;
        while examined < self.member_count.min(MAX_MEMBERS_PER_ROUND) {
            let MemberCursor { group: group_index, member } = self.report_cursor;
            let Some(group) = self.groups.get_mut(group_index) else {
                self.report_cursor = MemberCursor::default();
                if self.groups.is_empty() {
                    break;
                }
                continue;
            };
            if member == 0 {
                group.rate = group.members.iter().map(|local_member| local_member.rate).sum();
            }
            let Some(local_member) = group.members.get_mut(member) else {
                self.report_cursor = MemberCursor { group: group_index + 1, member: 0 };
                continue;
            };
            local_member.update_means(now);
            examined += 1;
            let report_due = local_member.report_due(group.waiting, self.renewed_at, now);
            // Unchanged entries use half of the bytes: the rest is for changes.
            let should_report = match report_due {
                ReportDue::Changed => true,
                ReportDue::Refresh => writer.tokens > rate / 8.0,
                ReportDue::NotDue => false,
            };
            if present_peers > 0 && should_report {
                let entry = local_member.entry(group.waiting, now);
                if !writer.write(group.id, group.rate, entry) {
                    break;
                }
                local_member.last_report = Some(local_member.sent_report(group.waiting, now));
            }
            self.report_cursor.member += 1;
        }
        self.tokens = writer.into_tokens();
        if present_peers > 0
            && reports.is_empty()
            && self.last_report.is_none_or(|last_report| now.since(last_report) >= IDLE_INTERVAL)
        {
            reports.push(FleetReport::default());
            self.tokens -= MAX_DATAGRAM_BYTES - MAX_REPORT_BYTES as f64;
        }
        if !reports.is_empty() {
            self.last_report = Some(now);
        }
        reports
    }
}

/// The reason to report a member.
enum ReportDue {
    Changed,
    /// It was not reported for a while.
    Refresh,
    NotDue,
}

/// A writer of entries into reports within the allowed bytes.
struct ReportWriter<'r> {
    tokens: f64,
    report: FleetReport,
    /// The bytes left in the report.
    remaining_bytes: usize,
    reports: &'r mut Vec<FleetReport>,
}

impl ReportWriter<'_> {
    fn write(&mut self, group: u64, rate: f64, entry: MemberEntry) -> bool {
        let rate = quantize(rate, 4.0);
        let last_section = self.report.sections.last();
        let extends_section = last_section
            .is_some_and(|section| section.group == group && section.entries.len() < MAX_SECTION_ENTRIES);
        let mut bytes = entry.size() + if extends_section { 0 } else { GroupSection::header_size(rate) };
        if bytes > self.remaining_bytes && !self.report.is_empty() {
            self.finish_report();
            bytes = entry.size() + GroupSection::header_size(rate);
        }
        let starts_report = self.report.is_empty();
        let cost =
            bytes as f64 + if starts_report { MAX_DATAGRAM_BYTES - MAX_REPORT_BYTES as f64 } else { 0.0 };
        if cost > self.tokens {
            return false;
        }
        self.tokens -= cost;
        self.remaining_bytes -= bytes.min(self.remaining_bytes);
        match self.report.sections.last_mut() {
            Some(section)
                if section.group == group
                    && section.entries.len() < MAX_SECTION_ENTRIES
                    && !starts_report =>
            {
                section.entries.push(entry);
            }
            _ => self.report.sections.push(GroupSection { group, rate, entries: [entry].into() }),
        }
        true
    }

    fn finish_report(&mut self) {
        self.remaining_bytes = MAX_REPORT_BYTES;
        self.reports.push(core::mem::take(&mut self.report));
    }

    /// Returns the bytes that are left.
    fn into_tokens(mut self) -> f64 {
        if !self.report.is_empty() {
            self.finish_report();
        }
        self.tokens
    }
}

impl LocalMember {
    /// Updates the means.
    fn update_means(&mut self, now: Time) {
        let (begun, in_flight) = (self.vitals.begun(), f64::from(self.vitals.in_flight()));
        let begun_since = f64::from(begun.wrapping_sub(core::mem::replace(&mut self.begun_at_sample, begun)));
        let Some(previous_sample) = self.sampled_at.replace(now) else {
            self.mean_in_flight = in_flight;
            return;
        };
        let seconds = now.since(previous_sample).as_secs_f64();
        if seconds > 0.0 {
            let weight = 1.0 - libm::exp(-seconds / HORIZON);
            self.mean_in_flight += (in_flight - self.mean_in_flight) * weight;
            self.rate += (begun_since / seconds - self.rate) * weight;
        } else {
            // They are counted the next time.
            self.begun_at_sample = begun.wrapping_sub(begun_since as u32);
        }
    }

    /// Returns whether and why the member is to be reported.
    fn report_due(&self, waiting: f64, renewed_at: Time, now: Time) -> ReportDue {
        let Some(last_report) = &self.last_report else { return ReportDue::Changed };
        if last_report.at < renewed_at || self.has_changed(last_report, waiting, now) {
            return ReportDue::Changed;
        }
        if now.since(last_report.at) >= REFRESH_INTERVAL { ReportDue::Refresh } else { ReportDue::NotDue }
    }

    /// Returns `true` if the member has changed significantly since its last report.
    fn has_changed(&self, last_report: &SentReport, waiting: f64, now: Time) -> bool {
        let in_flight = self.vitals.in_flight();
        let difference = in_flight.abs_diff(last_report.in_flight);
        // A change of less than a sixteenth does not matter.
        if difference > 0 && difference >= last_report.in_flight / 16 {
            return true;
        }
        let differs = |current: f64, previous: f64| (current - previous).abs() > previous.max(2.0) / 16.0;
        differs(self.mean_in_flight, last_report.mean)
            || differs(waiting, last_report.waiting)
            || self.remaining_ejection(now).is_some() != last_report.ejected
            || self.is_suspected() != last_report.suspected
            || self.last_check.is_some_and(|(_, at)| at > last_report.check)
            || self.load.is_some_and(|load| load.at > last_report.load)
            || self.fresh_reading(now).is_some_and(|(_, at)| at > last_report.reading + MIN_READING_INTERVAL)
    }

    fn entry(&self, waiting: f64, now: Time) -> MemberEntry {
        let latency = self.latency();
        MemberEntry {
            member: self.id,
            in_flight: self.vitals.in_flight(),
            mean: quantize(self.mean_in_flight, 16.0),
            waiting: quantize(waiting, 16.0),
            rate: quantize(self.rate, 4.0),
            latency: quantize(latency.unwrap_or(0.0), 1e6),
            suspicion: if self.is_suspected() {
                quantize(self.vitals.failure_detector.sum(), 8.0).min(255) as u8
            } else {
                0
            },
            ejected: self.remaining_ejection(now).map(millis),
            check: self.last_check.map(|(passed, at)| (passed, millis(now.since(at)))),
            reading: self.fresh_reading(now).map(|(reading, at)| (reading, millis(now.since(at)))),
            load: self.load.filter(|load| now.since(load.at) <= MAX_LOAD_AGE).map(|load| MonitorLoad {
                value: load.value as f32,
                of_host: load.of_host,
                age: millis(now.since(load.at)),
            }),
        }
    }

    fn sent_report(&self, waiting: f64, now: Time) -> SentReport {
        SentReport {
            at: now,
            in_flight: self.vitals.in_flight(),
            mean: self.mean_in_flight,
            waiting,
            ejected: self.remaining_ejection(now).is_some(),
            suspected: self.is_suspected(),
            check: self.last_check.map_or(Time(0), |(_, at)| at),
            reading: self.fresh_reading(now).map_or(Time(0), |(_, at)| at),
            load: self.load.map_or(Time(0), |load| load.at),
        }
    }

    /// Returns the remaining time of this balancer's own ejection.
    fn remaining_ejection(&self, now: Time) -> Option<Duration> {
        self.ejected_until.map(|until| until.since(now)).filter(|remaining| !remaining.is_zero())
    }

    /// Returns `true` if outcomes here nearly suffice to eject it. Notifications of others alone do not reach
    /// that sum.
    fn is_suspected(&self) -> bool {
        self.vitals.failure_detector.sum() > NOTIFY_THRESHOLD
    }

    /// Returns the member's own load report to this balancer, if it is recent enough for others.
    fn fresh_reading(&self, now: Time) -> Option<(crate::meter::Reading, Time)> {
        let view = self.vitals.last_report.view()?;
        let is_own = view.at != self.relayed_report_at && now.since(view.at) <= MAX_READING_AGE;
        is_own.then_some((view.reading, view.at))
    }

    /// Returns the recent latency of a request there, seconds, by Little's law: requests in flight divided by
    /// their rate.
    fn latency(&self) -> Option<f64> {
        (self.rate > MIN_LATENCY_RATE).then(|| self.mean_in_flight / self.rate)
    }
}

/// The requests a second below which no latency is computed.
const MIN_LATENCY_RATE: f64 = 0.5;

/// The maximum bytes of a datagram on the network: head, name, seal, UDP and IP around the report.
pub(super) const MAX_DATAGRAM_BYTES: f64 = MAX_REPORT_BYTES as f64 + 168.0;

/// The interval in which everything is reported, as far as the allowed bytes suffice.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The interval of reports without changes.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// The minimum interval of a member's load reports.
const MIN_READING_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum age of a load report of the member, and of a monitor's, that is sent.
const MAX_READING_AGE: Duration = Duration::from_secs(5);
const MAX_LOAD_AGE: Duration = Duration::from_secs(60);
