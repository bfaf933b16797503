//! A group as the slow path sees it: its analyzer, and what is counted of its members.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use plimsoll_brain::{Analyzer, Member, MemberId, MemberSpec, State, Time, Totals};

use super::slow::Pace;
use super::{Journal, Refusals, SlowMembers};
use crate::GroupSettings;
use crate::blame::Blame;
use crate::group::{Group, Published, Record, Wires};
use crate::hand_over::HandOvers;
use crate::history::{History, TIMED};
use crate::load_line::{MIDDLES, Survey};
use crate::metered::HostMeter;
use crate::moves::{self, Targets};
use crate::neighbours::Hosts;
use crate::pool::own_seed;
use crate::publication::{kept, publication};
use crate::report;
use crate::rest::Rest;

/// A group as the slow path sees it.
pub(crate) struct Ruled {
    pub(crate) analyzer: Analyzer,
    pub(crate) group: Arc<Group>,
    pub(crate) settings: Arc<GroupSettings>,
    /// The last that were given: the same, if not the very same.
    pub(crate) given: Arc<GroupSettings>,
    pub(super) records: BTreeMap<MemberId, Arc<Record>>,
    /// Sessions that left members, as far as events told of them.
    pub(crate) told: BTreeMap<MemberId, u64>,
    pub(crate) refusals: Refusals,
    pub(crate) slow: SlowMembers,
    ids: BTreeMap<Arc<str>, MemberId>,
    pub(crate) hand_overs: HandOvers,
    pub(crate) load_line: Survey,
    pub(crate) history: History,
    /// Where its members are.
    pub(crate) hosts: Hosts,
    /// Does a listener bind its clients such that an alert moves them?
    pub(crate) on_demand: bool,
    /// Has somebody a lease?
    pub(crate) lent: bool,
    /// How long nothing has happened.
    pub(crate) rest: Rest,
    /// When its traffic is looked at next.
    watched: Time,
}

impl Ruled {
    pub(crate) fn new(
        settings: Arc<GroupSettings>,
        cores: usize,
        wires: Wires,
        host: &Arc<HostMeter>,
        rest: Rest,
        now: Time,
    ) -> Self {
        let mut analyzer = Analyzer::new(settings.spec.clone(), now);
        analyzer.seat(own_seed());
        analyzer.fill(settings.max_rate, now);
        let mut records = BTreeMap::new();
        let first = publication(&mut analyzer, &mut records, &settings, cores, now);
        let first = first.unwrap_or_else(|| Published {
            plan: plimsoll_brain::Plan::new(settings.spec.strategy, settings.spec.knobs.clone(), Vec::new()),
            records: Vec::new(),
            others: Vec::new(),
            draining: Vec::new(),
            kept: None,
            settings: Arc::clone(&settings),
        });
        let group = Group::new(first, cores, wires, host);
        let ids = ids(&analyzer);
        let hosts = Hosts::new(&analyzer, &settings);
        Self {
            analyzer,
            group,
            given: Arc::clone(&settings),
            settings,
            records,
            told: BTreeMap::new(),
            refusals: Refusals::default(),
            slow: SlowMembers::default(),
            ids,
            hand_overs: HandOvers::default(),
            load_line: Survey::default(),
            history: History::default(),
            hosts,
            on_demand: false,
            lent: false,
            rest,
            watched: now,
        }
    }

    /// Puts other settings in force; members that stay keep their state and counts.
    pub(crate) fn update(&mut self, settings: Arc<GroupSettings>, cores: usize, now: Time) {
        self.rest.wake();
        self.analyzer.update(settings.spec.clone(), now);
        self.analyzer.fill(settings.max_rate, now);
        self.ids = ids(&self.analyzer);
        self.hosts = Hosts::new(&self.analyzer, &settings);
        (self.settings, self.given) = (Arc::clone(&settings), settings);
        let next = publication(&mut self.analyzer, &mut self.records, &self.settings, cores, now);
        let next = next.unwrap_or_else(|| {
            let before = self.group.published();
            Published {
                plan: before.plan.clone(),
                records: before.records.clone(),
                others: before.others.clone(),
                draining: before.draining.clone(),
                kept: kept(&self.analyzer, &self.records, &self.settings, &before.plan),
                settings: Arc::clone(&self.settings),
            }
        });
        self.group.publish(next);
    }

    /// Publishes a new plan if there is one, and writes down what happened.
    pub(crate) fn settle(&mut self, cores: usize, now: Time, journal: &mut Journal) {
        if let Some(next) = publication(&mut self.analyzer, &mut self.records, &self.settings, cores, now) {
            self.group.publish(next);
        }
        while let Some(event) = self.analyzer.poll_event() {
            journal.write(event);
        }
    }

    pub(crate) fn id(&self, member: &str) -> Option<MemberId> {
        self.ids.get(member).copied()
    }

    /// The member at an address, or all of them at a host.
    pub(super) fn at(&self, place: &str) -> Vec<MemberId> {
        let bare = place.strip_prefix('[').and_then(|place| place.strip_suffix(']')).unwrap_or(place);
        let (address, ip) = (place.parse::<SocketAddr>().ok(), bare.parse::<IpAddr>().ok());
        let here = |spec: &MemberSpec| {
            let host = spec.name.rsplit_once(':').map_or(&*spec.name, |(host, _)| host);
            match (address, ip) {
                (Some(address), _) => spec.address == address,
                (None, Some(ip)) => spec.address.ip().to_canonical() == ip.to_canonical(),
                (None, None) => host.eq_ignore_ascii_case(place),
            }
        };
        self.analyzer.members().filter(|(_, spec, _)| here(spec)).map(|(id, ..)| id).collect()
    }

    pub(crate) fn record(&self, member: MemberId) -> Option<&Arc<Record>> {
        self.records.get(&member)
    }

    /// Writes down where sessions went since the last time.
    pub(super) fn tell_moves(&mut self, journal: &mut Journal) {
        self.told.retain(|member, _| self.records.contains_key(member));
        for (id, record) in &self.records {
            if report::moved(record) == self.told.get(id).copied().unwrap_or_default() {
                continue;
            }
            let told = self.told.entry(*id).or_default();
            // A core may be between counting a session and saying where it went: then the next time tells.
            let mut targets = Targets::new();
            record.own().for_each(|stripe| stripe.moves.take(&mut targets));
            record.lent.moves.take(&mut targets);
            if targets.is_empty() {
                continue;
            }
            *told = told.wrapping_add(targets.values().sum());
            let total = *told;
            let name = |wanted: MemberId| {
                self.analyzer
                    .members()
                    .find(|(id, ..)| *id == wanted)
                    .map(|(_, spec, _)| spec.name.to_string())
            };
            let alert = self.analyzer.last_alert(*id);
            let from = name(*id).unwrap_or_default();
            journal.write(moves::event((&self.group.name, &from), &targets, alert, total, name));
        }
    }

    /// Writes down that requests are refused since the last time, or are not any more.
    pub(super) fn tell_refusals(&mut self, now: Time, journal: &mut Journal) {
        let refused = Refusals::REASONS.map(|reason| self.group.rejected(reason));
        let own = self.records.values().flat_map(|record| record.own());
        let ended = own.map(|stripe| stripe.requests.value()).fold(0, u64::wrapping_add);
        let in_flight = self.analyzer.members().map(|(_, _, vitals)| vitals.in_flight()).sum();
        if let Some(mut event) = self.refusals.look((refused, ended), in_flight, &self.group.name, now) {
            let spec = &self.settings.spec;
            let rejects = spec.knobs.named(spec.strategy, "reject").is_some_and(|reject| reject > 0.0);
            if rejects && event.kind == plimsoll_brain::EventKind::Shedding {
                event.why.push_str(", or their loads are at `reject`");
            }
            journal.write(event);
        }
        let refused = self.refusals.lately();
        if refused > 0 {
            self.refusals.attribute(refused, &self.without_room(now));
        }
    }

    /// Returns the members that take no request at the moment, each with the reason.
    fn without_room(&self, now: Time) -> Vec<(MemberId, &'static str)> {
        let published = self.group.published();
        let planned: BTreeMap<MemberId, &Member> =
            published.plan.members().iter().map(|member| (member.id, member)).collect();
        let reason = |(id, state): (MemberId, State)| {
            let reason = match planned.get(&id) {
                Some(member) => published.plan.full(member, now)?.label(),
                None => state.shown().1,
            };
            Some((id, reason))
        };
        self.analyzer.states().filter_map(reason).collect()
    }

    /// Writes down which members are slow since the last time, or are not any more. `requests`: do times say
    /// how quick they are?
    pub(super) fn tell_slow(&mut self, requests: bool, now: Time, journal: &mut Journal) {
        let pace = |(id, spec, _): (MemberId, &MemberSpec, _)| {
            let (answers, median) = self.history.pace(id, &MIDDLES);
            let median = median.filter(|_| requests);
            Pace { member: id, name: Arc::clone(&spec.name), answers, median }
        };
        let paces: Vec<Pace> = self.analyzer.members().take(TIMED).map(pace).collect();
        for event in self.slow.look(&paces, &self.group.name, now) {
            journal.write(event);
        }
    }

    /// Goes on with what a process before this one wrote down of its members.
    pub(crate) fn recall_slow(&mut self, journal: &Journal, now: Time) {
        let slow = journal.begun_of(&self.group.name, SlowMembers::KINDS);
        let slow: Vec<MemberId> = slow.iter().filter_map(|name| self.id(name)).collect();
        self.slow.recall(slow, now);
    }

    pub(super) fn totals(&self) -> Vec<(MemberId, Totals)> {
        let total = |record: &Record| Totals {
            requests: record.all().map(|stripe| stripe.requests.value()).sum(),
            failures: record.all().map(|stripe| stripe.failures.value()).sum(),
        };
        self.records.iter().map(|(member, record)| (*member, total(record))).collect()
    }
}

impl Ruled {
    /// Another second is over: is there anything to look at?
    pub(super) fn stirs(&mut self) -> bool {
        let (analyzer, lent) = (&self.analyzer, self.lent);
        let busy = || lent || analyzer.members().any(|(_, _, vitals)| vitals.in_flight() > 0);
        self.rest.look(self.group.begun(), busy)
    }

    /// Returns whether there has been no traffic for a while, so that nothing needs to be looked at.
    pub(super) fn rests(&self) -> bool {
        self.rest.rests(self.group.begun())
    }

    /// Looks at its traffic, if it is time to; for how long not again.
    pub(super) fn watch(&mut self, requests: bool, lag: Duration, now: Time) -> Duration {
        self.analyzer.lagged(lag);
        if self.rests() {
            return UNWATCHED;
        }
        if self.watched > now {
            return self.watched.since(now);
        }
        let rest = self.analyzer.watch(requests, now);
        self.watched = now + rest;
        rest
    }
}

impl Ruled {
    /// Lets its members be given what they may be by now, if there is a limit on how many a second that is, and calls as many of those that
    /// wait. For how long not again.
    pub(super) fn fill(&mut self, now: Time) -> Duration {
        if self.settings.max_rate.is_none() {
            return UNRATED;
        }
        let room = self.analyzer.fill(self.settings.max_rate, now);
        let waiting = u32::try_from(self.group.room.waiting()).unwrap_or(u32::MAX);
        (0..room.min(waiting)).for_each(|_| self.group.room.ring());
        RATED
    }
}

/// How often members are let have more, where there is a limit on their requests a second.
const RATED: Duration = Duration::from_millis(10);

/// How often it is looked whether there is one.
const UNRATED: Duration = Duration::from_secs(1);

/// The time within which traffic of a group at rest is noticed.
const UNWATCHED: Duration = Duration::from_millis(100);

/// Why a member's last failure was one.
pub(super) fn blame(record: &Record) -> Option<Cow<'static, str>> {
    Some(Blame::of(record.blame.load(Relaxed))?.words())
}

fn ids(analyzer: &Analyzer) -> BTreeMap<Arc<str>, MemberId> {
    analyzer.members().map(|(id, spec, _)| (Arc::clone(&spec.name), id)).collect()
}
