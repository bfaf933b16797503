//! Sending reports to other balancers.
//!
//! Each round looks at the members, in turn if there are many, and reports those that have changed
//! significantly. Unchanged members are reported again every [`SWEEP`]. Both stay within the allowed bytes:
//! the next round begins with the entry that does not fit now. A balancer without changes sends an empty
//! report ten times a second.

use alloc::vec::Vec;
use core::time::Duration;

use super::word::{MOST, Report, Reported, Section, WORDS, Word, millis, parts};
use super::{Cursor, Fleet, HORIZON, LOOKS, Own};
use crate::Time;
use crate::member::suspicion::DOUBTFUL;

/// The last report about a member.
#[derive(Clone, Debug)]
pub(super) struct Told {
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

impl Told {
    /// Returns the demand by which the member's limit is divided.
    pub(super) fn demand(&self) -> f64 {
        self.mean + self.waiting
    }
}

impl Fleet {
    /// Returns the reports to send to each other balancer now, each in a datagram of its own; none without
    /// others. It is to be called every [`Settings::interval`](super::Settings::interval), or later.
    pub fn round(&mut self, now: Time) -> Vec<Report> {
        let heard = self.peers.values().filter(|peer| peer.there()).count();
        let passed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let rate = self.settings.bytes_per_second / heard.max(1) as f64;
        // Unused bytes accumulate for a quarter of a second; a datagram is always possible.
        self.tokens = (self.tokens + rate * passed).min((rate / 4.0).max(2.0 * DATAGRAM));
        let mut reports = Vec::new();
        let mut pen =
            Pen { tokens: self.tokens, report: Report::default(), room: MOST, reports: &mut reports };
        while let Some((at, member)) = self.urgent.pop_first() {
            let Some(group) = self.groups.get_mut(at).filter(|_| heard > 0) else { continue };
            let Some(own) = group.members.get_mut(member) else { continue };
            if !pen.write(group.id, group.rate, own.word(group.waiting, now)) {
                self.urgent.insert((at, member));
                break;
            }
            own.told = Some(own.telling(group.waiting, now));
        }
        let mut looked = 0;
        while looked < self.members.min(LOOKS) {
            let Cursor { group: at, member } = self.told;
            let Some(group) = self.groups.get_mut(at) else {
                self.told = Cursor::default();
                if self.groups.is_empty() {
                    break;
                }
                continue;
            };
            if member == 0 {
                group.rate = group.members.iter().map(|own| own.rate).sum();
            }
            let Some(own) = group.members.get_mut(member) else {
                self.told = Cursor { group: at + 1, member: 0 };
                continue;
            };
            own.look(now);
            looked += 1;
            let due = own.due(group.waiting, self.renewed, now);
            // Unchanged entries use half of the bytes: the rest is for changes.
            let tells = match due {
                Due::Changed => true,
                Due::Again => pen.tokens > rate / 8.0,
                Due::No => false,
            };
            if heard > 0 && tells {
                let word = own.word(group.waiting, now);
                if !pen.write(group.id, group.rate, word) {
                    break;
                }
                own.told = Some(own.telling(group.waiting, now));
            }
            self.told.member += 1;
        }
        self.tokens = pen.end();
        if heard > 0 && reports.is_empty() && self.spoke.is_none_or(|spoke| now.since(spoke) >= QUIET) {
            reports.push(Report::default());
            self.tokens -= DATAGRAM - MOST as f64;
        }
        if !reports.is_empty() {
            self.spoke = Some(now);
        }
        reports
    }
}

/// The reason to report a member.
enum Due {
    Changed,
    /// It was not reported for a while.
    Again,
    No,
}

/// A writer of entries into reports within the allowed bytes.
struct Pen<'r> {
    tokens: f64,
    report: Report,
    /// The bytes left in the report.
    room: usize,
    reports: &'r mut Vec<Report>,
}

impl Pen<'_> {
    fn write(&mut self, group: u64, rate: f64, word: Word) -> bool {
        let rate = parts(rate, 4.0);
        let open = self.report.sections.last();
        let open = open.is_some_and(|section| section.group == group && section.words.len() < WORDS);
        let mut bytes = word.size() + if open { 0 } else { Section::head(rate) };
        if bytes > self.room && !self.report.is_empty() {
            self.close();
            bytes = word.size() + Section::head(rate);
        }
        let begins = self.report.is_empty();
        let price = bytes as f64 + if begins { DATAGRAM - MOST as f64 } else { 0.0 };
        if price > self.tokens {
            return false;
        }
        self.tokens -= price;
        self.room -= bytes.min(self.room);
        match self.report.sections.last_mut() {
            Some(section) if section.group == group && section.words.len() < WORDS && !begins => {
                section.words.push(word);
            }
            _ => self.report.sections.push(Section { group, rate, words: [word].into() }),
        }
        true
    }

    fn close(&mut self) {
        self.room = MOST;
        self.reports.push(core::mem::take(&mut self.report));
    }

    /// Returns the bytes that are left.
    fn end(mut self) -> f64 {
        if !self.report.is_empty() {
            self.close();
        }
        self.tokens
    }
}

impl Own {
    /// Updates the means.
    fn look(&mut self, now: Time) {
        let (begun, in_flight) = (self.vitals.begun(), f64::from(self.vitals.in_flight()));
        let came = f64::from(begun.wrapping_sub(core::mem::replace(&mut self.begun, begun)));
        let Some(before) = self.at.replace(now) else {
            self.mean = in_flight;
            return;
        };
        let seconds = now.since(before).as_secs_f64();
        if seconds > 0.0 {
            let part = 1.0 - libm::exp(-seconds / HORIZON);
            self.mean += (in_flight - self.mean) * part;
            self.rate += (came / seconds - self.rate) * part;
        } else {
            // They are counted the next time.
            self.begun = begun.wrapping_sub(came as u32);
        }
    }

    /// Returns whether and why the member is to be reported.
    fn due(&self, waiting: f64, renewed: Time, now: Time) -> Due {
        let Some(told) = &self.told else { return Due::Changed };
        if told.at < renewed || self.changed(told, waiting, now) {
            return Due::Changed;
        }
        if now.since(told.at) >= SWEEP { Due::Again } else { Due::No }
    }

    /// Returns `true` if the member has changed significantly since its last report.
    fn changed(&self, told: &Told, waiting: f64, now: Time) -> bool {
        let in_flight = self.vitals.in_flight();
        let apart = in_flight.abs_diff(told.in_flight);
        // A change of less than a sixteenth does not matter.
        if apart > 0 && apart >= told.in_flight / 16 {
            return true;
        }
        let other = |now: f64, then: f64| (now - then).abs() > then.max(2.0) / 16.0;
        other(self.mean, told.mean)
            || other(waiting, told.waiting)
            || self.ejected(now).is_some() != told.ejected
            || self.suspected() != told.suspected
            || self.check.is_some_and(|(_, at)| at > told.check)
            || self.load.is_some_and(|load| load.at > told.load)
            || self.reading(now).is_some_and(|(_, at)| at > told.reading + READING)
    }

    fn word(&self, waiting: f64, now: Time) -> Word {
        let latency = self.latency();
        Word {
            member: self.id,
            in_flight: self.vitals.in_flight(),
            mean: parts(self.mean, 16.0),
            waiting: parts(waiting, 16.0),
            rate: parts(self.rate, 4.0),
            latency: parts(latency.unwrap_or(0.0), 1e6),
            suspicion: if self.suspected() {
                parts(self.vitals.suspicion.sum(), 8.0).min(255) as u8
            } else {
                0
            },
            ejected: self.ejected(now).map(millis),
            check: self.check.map(|(passed, at)| (passed, millis(now.since(at)))),
            reading: self.reading(now).map(|(reading, at)| (reading, millis(now.since(at)))),
            load: self.load.filter(|load| now.since(load.at) <= OLDEST).map(|load| Reported {
                value: load.value as f32,
                of_host: load.of_host,
                age: millis(now.since(load.at)),
            }),
        }
    }

    fn telling(&self, waiting: f64, now: Time) -> Told {
        Told {
            at: now,
            in_flight: self.vitals.in_flight(),
            mean: self.mean,
            waiting,
            ejected: self.ejected(now).is_some(),
            suspected: self.suspected(),
            check: self.check.map_or(Time(0), |(_, at)| at),
            reading: self.reading(now).map_or(Time(0), |(_, at)| at),
            load: self.load.map_or(Time(0), |load| load.at),
        }
    }

    /// Returns the remaining time of this balancer's own ejection.
    fn ejected(&self, now: Time) -> Option<Duration> {
        self.ejected.map(|until| until.since(now)).filter(|left| !left.is_zero())
    }

    /// Returns `true` if outcomes here nearly suffice to eject it. Notifications of others alone do not reach
    /// that sum.
    fn suspected(&self) -> bool {
        self.vitals.suspicion.sum() > DOUBTFUL
    }

    /// Returns the member's own load report to this balancer, if it is recent enough for others.
    fn reading(&self, now: Time) -> Option<(crate::meter::Reading, Time)> {
        let view = self.vitals.heard.view()?;
        let own = view.at != self.borrowed && now.since(view.at) <= STALE;
        own.then_some((view.reading, view.at))
    }

    /// Returns the recent latency of a request there, seconds, by Little's law: requests in flight divided by
    /// their rate.
    fn latency(&self) -> Option<f64> {
        (self.rate > RARE).then(|| self.mean / self.rate)
    }
}

/// The requests a second below which no latency is computed.
const RARE: f64 = 0.5;

/// The maximum bytes of a datagram on the network: head, name, seal, UDP and IP around the report.
pub(super) const DATAGRAM: f64 = MOST as f64 + 168.0;

/// The interval in which everything is reported, as far as the allowed bytes suffice.
const SWEEP: Duration = Duration::from_secs(1);

/// The interval of reports without changes.
const QUIET: Duration = Duration::from_millis(100);

/// The minimum interval of a member's load reports.
const READING: Duration = Duration::from_millis(20);

/// The maximum age of a load report of the member, and of a monitor's, that is sent.
const STALE: Duration = Duration::from_secs(5);
const OLDEST: Duration = Duration::from_secs(60);
