//! The slow path's state of a group: its analyzer, and counters of its members.

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

/// The slow path's state of a group.
pub(crate) struct Ruled {
    pub(crate) analyzer: Analyzer,
    pub(crate) group: Arc<Group>,
    pub(crate) settings: Arc<GroupSettings>,
    /// The settings as last given: equal to `settings`, but perhaps another allocation.
    pub(crate) given: Arc<GroupSettings>,
    pub(super) records: BTreeMap<MemberId, Arc<Record>>,
    /// The sessions that left members, as far as events have reported them.
    pub(crate) told: BTreeMap<MemberId, u64>,
    pub(crate) refusals: Refusals,
    pub(crate) slow: SlowMembers,
    ids: BTreeMap<Arc<str>, MemberId>,
    pub(crate) hand_overs: HandOvers,
    pub(crate) load_line: Survey,
    pub(crate) history: History,
    /// The hosts of the members.
    pub(crate) hosts: Hosts,
    /// Whether a listener binds clients in such a way that an alert moves them.
    pub(crate) on_demand: bool,
    /// Whether a client holds a lease.
    pub(crate) lent: bool,
    /// The time for which the group has been idle.
    pub(crate) rest: Rest,
    /// The time of the next traffic sample.
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

    /// Applies other settings; members that stay keep their state and counters.
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

    /// Publishes a new plan if there is one, and writes the events.
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

    /// Returns the member at an address, or all members at a host.
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

    /// Writes an event for each member whose sessions moved since the last call, with their targets.
    pub(super) fn tell_moves(&mut self, journal: &mut Journal) {
        self.told.retain(|member, _| self.records.contains_key(member));
        for (id, record) in &self.records {
            if report::moved(record) == self.told.get(id).copied().unwrap_or_default() {
                continue;
            }
            let told = self.told.entry(*id).or_default();
            // A core may be between counting a session and recording its target; then the next call reports
            // it.
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

    /// Writes an event if shedding has begun or ended since the last call.
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

    /// Writes events for members that have become slow, or no longer are, since the last call. `requests` is
    /// `true` if response times show a member's speed.
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

    /// Restores the slow members that the previous process recorded.
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
    /// Counts another second, and returns `true` if the group is to be examined.
    pub(super) fn stirs(&mut self) -> bool {
        let (analyzer, lent) = (&self.analyzer, self.lent);
        let busy = || lent || analyzer.members().any(|(_, _, vitals)| vitals.in_flight() > 0);
        self.rest.look(self.group.begun(), busy)
    }

    /// Returns `true` if there has been no traffic for a while, so that the group need not be examined.
    pub(super) fn rests(&self) -> bool {
        self.rest.rests(self.group.begun())
    }

    /// Samples the traffic if it is time, and returns the time until the next sample.
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
    /// Refills the members' request budgets if their rate per second is limited, and wakes as many waiting
    /// requests. Returns the time until the next refill.
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

/// The interval of refills where the request rate is limited.
const RATED: Duration = Duration::from_millis(10);

/// The interval of checks for a limit on the request rate.
const UNRATED: Duration = Duration::from_secs(1);

/// The time within which traffic of an idle group is noticed.
const UNWATCHED: Duration = Duration::from_millis(100);

/// Returns the cause of a member's last failure.
pub(super) fn blame(record: &Record) -> Option<Cow<'static, str>> {
    Some(Blame::of(record.blame.load(Relaxed))?.words())
}

fn ids(analyzer: &Analyzer) -> BTreeMap<Arc<str>, MemberId> {
    analyzer.members().map(|(id, spec, _)| (Arc::clone(&spec.name), id)).collect()
}
