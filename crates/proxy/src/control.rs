//! The slow path: analyzers, plans, listeners. Behind one lock that the data path never takes.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_brain::{
    Analyzer, Event, EventKind, Knobs, Load, MemberId, MemberSpec, Shed, Strategy, Time, Totals, Usage,
};
use tokio::sync::broadcast;

use crate::group::{Group, Published, Record, Strike, Wires};
use crate::hand_over::{self, HandOvers};
use crate::lease::Desk;
use crate::listener::Door;
use crate::load_line::Survey;
use crate::metered::HostMeter;
use crate::moves::{self, Targets};
use crate::report;
use crate::worker::{Groups, Order, Worker};
use crate::{Binding, GroupSettings, ListenerSettings, Protocol, Settings};

/// Events that are kept.
const HISTORY: usize = 1000;

/// An event, numbered and dated.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamped {
    /// Counts from 1 without gaps.
    pub seq: u64,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// What happened.
    pub event: Event,
}

/// The events so far, and who listens for more.
pub(crate) struct Journal {
    history: VecDeque<Stamped>,
    seq: u64,
    live: broadcast::Sender<Stamped>,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { history: VecDeque::new(), seq: 0, live: broadcast::channel(HISTORY).0 }
    }

    pub(crate) fn write(&mut self, event: Event) {
        self.seq += 1;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let stamped = Stamped { seq: self.seq, unix_ms: unix.as_millis() as u64, event };
        tell(&stamped.event);
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(stamped.clone());
        // Nobody may be listening.
        let _ = self.live.send(stamped);
    }

    /// An event of the whole process.
    pub(crate) fn note(&mut self, kind: EventKind, why: String) {
        self.write(Event { kind, group: "".into(), member: None, why, inputs: Vec::new() });
    }

    pub(crate) fn history(&self) -> Vec<Stamped> {
        self.history.iter().cloned().collect()
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Stamped> {
        self.live.subscribe()
    }
}

/// One line in the process's log.
fn tell(event: &Event) {
    match (&*event.group, event.member.as_deref()) {
        _ if event.kind == EventKind::ReloadRefused => {
            tracing::warn!("reload refused, the configuration before stays in force: {}", event.why);
        }
        ("", _) if event.kind == EventKind::CertificateFailed => tracing::warn!("{}", event.why),
        ("", _) if event.kind == EventKind::Reloaded => tracing::info!("reloaded: {}", event.why),
        ("", _) => tracing::info!("{}", event.why),
        (group, None) => tracing::info!("group {group}: {}", event.why),
        (group, Some(member)) => tracing::info!("group {group}: member {member}: {}", event.why),
    }
}

/// A group as the slow path sees it.
pub(crate) struct Ruled {
    pub(crate) analyzer: Analyzer,
    pub(crate) group: Arc<Group>,
    pub(crate) settings: Arc<GroupSettings>,
    records: BTreeMap<MemberId, Arc<Record>>,
    /// Sessions that left members, as far as events told of them.
    told: BTreeMap<MemberId, u64>,
    ids: BTreeMap<Arc<str>, MemberId>,
    pub(crate) hand_overs: HandOvers,
    pub(crate) load_line: Survey,
    /// Does a listener bind its clients such that an alert moves them?
    pub(crate) on_demand: bool,
    /// Has somebody a lease?
    pub(crate) lent: bool,
}

/// A listener as the slow path sees it.
pub(crate) struct Opened {
    pub(crate) id: u64,
    pub(crate) door: Arc<Door>,
    /// Has an operator closed it?
    pub(crate) disabled: bool,
}

/// What a probe found.
pub(crate) struct Finding {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    /// Why it failed, for people.
    pub(crate) outcome: Result<(), String>,
}

/// Everything that is slow.
pub(crate) struct Control {
    pub(crate) cores: usize,
    pub(crate) settings: Settings,
    pub(crate) groups: BTreeMap<Arc<str>, Ruled>,
    /// In the order of the configuration.
    pub(crate) listeners: Vec<Opened>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) journal: Journal,
    pub(crate) wires: Wires,
    /// Who is to be told of an alert, and is not yet; one for each member at most.
    pub(crate) due_hand_overs: Vec<hand_over::Due>,
    /// Of side-cars that share their host.
    pub(crate) host: Arc<HostMeter>,
    /// Members lent to clients.
    pub(crate) desk: Desk,
}

impl Ruled {
    pub(crate) fn new(
        settings: GroupSettings,
        cores: usize,
        wires: Wires,
        host: &Arc<HostMeter>,
        now: Time,
    ) -> Self {
        let mut analyzer = Analyzer::new(settings.spec.clone(), now);
        let settings = Arc::new(settings);
        let mut records = BTreeMap::new();
        let first = publication(&mut analyzer, &mut records, &settings, cores, now);
        let first = first.unwrap_or_else(|| Published {
            plan: plimsoll_brain::Plan::new(settings.spec.strategy, settings.spec.knobs.clone(), Vec::new()),
            records: Vec::new(),
            draining: Vec::new(),
            settings: Arc::clone(&settings),
        });
        let group = Group::new(first, cores, wires, host);
        let ids = ids(&analyzer);
        Self {
            analyzer,
            group,
            settings,
            records,
            told: BTreeMap::new(),
            ids,
            hand_overs: HandOvers::default(),
            load_line: Survey::default(),
            on_demand: false,
            lent: false,
        }
    }

    /// Puts other settings in force; members that stay keep their state and counts.
    pub(crate) fn update(&mut self, settings: GroupSettings, cores: usize, now: Time) {
        self.analyzer.update(settings.spec.clone(), now);
        self.ids = ids(&self.analyzer);
        self.settings = Arc::new(settings);
        let next = publication(&mut self.analyzer, &mut self.records, &self.settings, cores, now);
        let next = next.unwrap_or_else(|| {
            let before = self.group.published();
            let (plan, records) = (before.plan.clone(), before.records.clone());
            Published {
                plan,
                records,
                draining: before.draining.clone(),
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
    fn at(&self, place: &str) -> Vec<MemberId> {
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
    fn tell_moves(&mut self, journal: &mut Journal) {
        self.told.retain(|member, _| self.records.contains_key(member));
        for (id, record) in &self.records {
            let told = self.told.entry(*id).or_default();
            if report::moved(record) == *told {
                continue;
            }
            // A core may be between counting a session and saying where it went: then the next time tells.
            let mut targets = Targets::new();
            record.stripes.iter().for_each(|stripe| stripe.moves.take(&mut targets));
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

    fn totals(&self) -> Vec<(MemberId, Totals)> {
        let total = |record: &Record| Totals {
            requests: record.stripes.iter().map(|stripe| stripe.requests.value()).sum(),
            failures: record.stripes.iter().map(|stripe| stripe.failures.value()).sum(),
        };
        self.records.iter().map(|(member, record)| (*member, total(record))).collect()
    }
}

fn ids(analyzer: &Analyzer) -> BTreeMap<Arc<str>, MemberId> {
    analyzer.members().map(|(id, spec, _)| (Arc::clone(&spec.name), id)).collect()
}

/// A strategy with its settings, as a file would write them.
pub(crate) fn described(strategy: &Strategy, knobs: &Knobs) -> String {
    let set: Vec<String> =
        strategy.knobs.iter().zip(&knobs.0).map(|(knob, value)| format!("{} = {value}", knob.name)).collect();
    match set.as_slice() {
        [] => strategy.name.into(),
        _ => format!("{} {{ {} }}", strategy.name, set.join(", ")),
    }
}

/// The analyzer's next plan with the records of its members.
fn publication(
    analyzer: &mut Analyzer,
    records: &mut BTreeMap<MemberId, Arc<Record>>,
    settings: &Arc<GroupSettings>,
    cores: usize,
    now: Time,
) -> Option<Published> {
    let plan = analyzer.plan(now)?;
    let mut here = BTreeMap::new();
    for (id, _, vitals) in analyzer.members() {
        let record = records.remove(&id);
        here.insert(id, record.unwrap_or_else(|| Record::new(id, Arc::clone(vitals), cores)));
    }
    *records = here;
    let of_plan = plan.members().iter().filter_map(|member| records.get(&member.id).cloned()).collect();
    let draining = analyzer.draining().collect();
    Some(Published { plan, records: of_plan, draining, settings: Arc::clone(settings) })
}

/// Is all that a group carries requests, which end by themselves?
pub(crate) fn carries(listeners: &[ListenerSettings], group: &str) -> bool {
    let mut its = listeners.iter().filter(|listener| listener.leads_to(group));
    its.all(|listener| match listener.protocol {
        Protocol::Http => true,
        Protocol::Iiop => listener.binding == Binding::PerRequest,
        // What clients have with members themselves is known a second late (xds).
        Protocol::Xds | Protocol::Tcp | Protocol::Udp | Protocol::Dns | Protocol::DnsStream => false,
    })
}

impl Control {
    /// What probes found.
    pub(crate) fn probed(&mut self, findings: &[Finding], now: Time) {
        for finding in findings {
            if let Some(ruled) = self.groups.get_mut(&finding.group) {
                let outcome = match &finding.outcome {
                    Ok(()) => Ok(()),
                    Err(why) => Err(&**why),
                };
                ruled.analyzer.handle_probe(finding.member, outcome, now);
            }
        }
        self.settle(now);
    }

    /// A member failed too often in a row.
    pub(crate) fn struck(&mut self, strike: &Strike, now: Time) {
        self.with(&strike.group, now, |analyzer| match strike.suspicion {
            true => analyzer.handle_suspicion(strike.member, now),
            false => analyzer.handle_streak(strike.member, now),
        });
    }

    /// Compares what members did.
    pub(crate) fn compare(&mut self, now: Time) {
        self.end_leases(now);
        for ruled in self.groups.values_mut() {
            let totals = ruled.totals();
            ruled.analyzer.handle_totals(&totals, now);
            ruled.settle(self.cores, now, &mut self.journal);
            ruled.tell_moves(&mut self.journal);
        }
        self.survey(now);
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Time) {
        for ruled in self.groups.values_mut() {
            if ruled.analyzer.poll_timeout().is_some_and(|due| due <= now) {
                ruled.analyzer.handle_timeout(now);
                ruled.settle(self.cores, now, &mut self.journal);
            }
        }
    }

    /// Where a listener's clients go; `None` if its group is not there.
    pub(crate) fn groups_of(&self, listener: &ListenerSettings) -> Option<Groups> {
        let find = |name: &Arc<str>| self.groups.get(name).map(|ruled| Arc::clone(&ruled.group));
        let named = listener.tls.iter().flat_map(|tls| tls.groups.values()).chain(&listener.others);
        Some(Groups { own: find(&listener.group)?, named: named.filter_map(find).collect() })
    }

    /// Looks at the traffic; for how long not again.
    pub(crate) fn watch(&mut self, now: Time) -> Duration {
        // Sessions last as long as they like; that many are open says nothing about how busy a member is.
        let listeners = &self.settings.listeners;
        let looks = self.groups.iter_mut().map(|(name, ruled)| {
            let requests = carries(listeners, name) && !ruled.lent;
            ruled.analyzer.watch(requests, now)
        });
        looks.min().unwrap_or(Duration::from_secs(1))
    }

    /// When something is due next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.groups.values().filter_map(|ruled| ruled.analyzer.poll_timeout()).min()
    }

    /// Writes down what happened in all groups, and publishes what came of it.
    pub(crate) fn settle(&mut self, now: Time) {
        for ruled in self.groups.values_mut() {
            ruled.settle(self.cores, now, &mut self.journal);
        }
    }

    /// Lets an operator act on a member of one group, or of the only group that has it.
    pub(crate) fn operate(
        &mut self,
        group: Option<&str>,
        member: &str,
        now: Time,
        act: impl Fn(&mut Analyzer) -> Result<(), String>,
    ) -> Result<(), String> {
        let group = self.group_of(group, member)?;
        let Some(ruled) = self.groups.get_mut(&group) else {
            let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        act(&mut ruled.analyzer)?;
        ruled.settle(self.cores, now, &mut self.journal);
        Ok(())
    }

    /// The group that is named, or the only one that has the member.
    pub(crate) fn group_of(&self, group: Option<&str>, member: &str) -> Result<Arc<str>, String> {
        if let Some(name) = group {
            return Ok(name.into());
        }
        let has = |ruled: &Ruled| ruled.analyzer.members().any(|(_, spec, _)| &*spec.name == member);
        let mut found = self.groups.iter().filter(|(_, ruled)| has(ruled)).map(|(name, _)| Arc::clone(name));
        match (found.next(), found.next()) {
            (Some(group), None) => Ok(group),
            (None, _) => Err(format!("no group has a member {member}")),
            (Some(one), Some(other)) => {
                Err(format!("{member} is a member of {one} and of {other}: name the group"))
            }
        }
    }

    /// A monitor measured a load.
    pub(crate) fn loaded(&mut self, group: &str, member: &str, load: Load, now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let Some(id) = ruled.id(member) else { return };
        ruled.analyzer.handle_load(id, load);
        self.due_hand_overs.extend(ruled.hand_over_of_alert(id));
        ruled.settle(self.cores, now, &mut self.journal);
    }

    /// A member said how much it does and how busy that makes it.
    pub(crate) fn used(&mut self, group: &str, member: &str, usage: Usage, now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let Some(id) = ruled.id(member) else { return };
        ruled.analyzer.handle_usage(id, usage, now);
        ruled.settle(self.cores, now, &mut self.journal);
    }

    /// See [`Engine::shed`](crate::Engine::shed).
    pub(crate) fn shed(&self, group: Option<&str>, member: &str) -> Option<Shed> {
        let groups = self.groups.iter().filter(|(name, _)| group.is_none_or(|group| ***name == *group));
        let of = |ruled: &Ruled| {
            // The name first: it costs nothing to look at, and is what nearly all say.
            let alerts = || ruled.analyzer.alerts().filter(|alert| alert.held.is_none());
            alerts().next()?;
            let ids = ruled.id(member).map_or_else(|| ruled.at(member), |id| vec![id]);
            let sheds = alerts().filter(|alert| ids.contains(&alert.member)).map(|alert| alert.shed);
            sheds.max_by(|one, other| one.share.total_cmp(&other.share))
        };
        groups.filter_map(|(_, ruled)| of(ruled)).max_by(|one, other| one.share.total_cmp(&other.share))
    }

    /// Weights were made outside.
    pub(crate) fn weighed(&mut self, group: &str, weights: &[(Arc<str>, Option<f64>)], now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let named = weights.iter().filter_map(|(name, weight)| Some((ruled.id(name)?, *weight)));
        let weights: Vec<_> = named.collect();
        ruled.analyzer.handle_weights(&weights, now);
        ruled.settle(self.cores, now, &mut self.journal);
    }

    /// Puts another strategy in force; what was before, for people. It is in the settings as well, so that the
    /// next reload sees what it puts back.
    pub(crate) fn choose_by(
        &mut self,
        group: &str,
        (strategy, knobs): (&'static Strategy, Knobs),
        written: &str,
        now: Time,
    ) -> Result<String, String> {
        let Some(ruled) = self.groups.get_mut(group) else {
            let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        let mut settings = GroupSettings::clone(&ruled.settings);
        let before = described(settings.spec.strategy, &settings.spec.knobs);
        (settings.spec.strategy, settings.spec.knobs) = (strategy, knobs);
        if let Some(kept) = self.settings.groups.iter_mut().find(|kept| *kept.spec.name == *group) {
            *kept = settings.clone();
        }
        ruled.update(settings, self.cores, now);
        let why = format!("strategy {before} -> {written} by an operator, until the next reload");
        let event =
            Event { kind: EventKind::Changed, group: group.into(), member: None, why, inputs: Vec::new() };
        self.journal.write(event);
        ruled.settle(self.cores, now, &mut self.journal);
        Ok(before)
    }

    /// Tells every worker the same; false if one cannot be told.
    pub(crate) fn order_all(&self, order: impl Fn() -> Order) -> bool {
        self.workers.iter().all(|worker| worker.order(order()))
    }

    fn with(&mut self, group: &str, now: Time, act: impl FnOnce(&mut Analyzer)) {
        if let Some(ruled) = self.groups.get_mut(group) {
            act(&mut ruled.analyzer);
            ruled.settle(self.cores, now, &mut self.journal);
        }
    }
}
