//! The slow path: analyzers, plans, listeners. Behind one lock that the data path never takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::neighbours::Neighbours;
use plimsoll_brain::{Analyzer, Event, EventKind, Knobs, Load, MemberId, Shed, Strategy, Time, Usage};
use socket2::Socket;

use crate::bind::Bound;
use crate::counts::Elsewhere;
use crate::explain::described;
use crate::group::{Strike, Wires};
use crate::hand_over;
use crate::history::DRAWN;
use crate::lag::LagMeter;
use crate::lease::Desk;
use crate::listener::Door;
use crate::load_line::MIDDLES;
use crate::metered::HostMeter;
use crate::neighbours::Sharing;
use crate::udp::{Lent, LentFlow};
use crate::worker::{Groups, Order, Worker};
use crate::{GroupSettings, ListenerSettings, Settings};

mod journal;
mod refusals;
mod ruled;
mod slow;

pub(crate) use journal::Journal;
pub use journal::Stamped;
pub(crate) use refusals::Refusals;
pub(crate) use ruled::Ruled;
use ruled::blame;
use slow::SlowMembers;

/// A listener as the slow path sees it.
pub(crate) struct Opened {
    pub(crate) id: u64,
    pub(crate) door: Arc<Door>,
    /// Has an operator closed it?
    pub(crate) disabled: bool,
    /// Copies of its sockets, for a process that takes over; none if it is closed.
    pub(crate) sockets: Vec<Socket>,
}

/// What a probe found.
pub(crate) struct Finding {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    pub(crate) name: Arc<str>,
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
    /// The delay of their event loops, and when the traffic is to be looked at next.
    pub(crate) lag: Arc<LagMeter>,
    pub(crate) look: Time,
    pub(crate) journal: Journal,
    pub(crate) wires: Wires,
    /// Who is to be told of an alert, and is not yet; one for each member at most.
    pub(crate) due_hand_overs: Vec<hand_over::Due>,
    /// Of side-cars that share their host.
    pub(crate) host: Arc<HostMeter>,
    /// Members lent to clients.
    pub(crate) desk: Desk,
    /// Which groups share hosts.
    pub(crate) neighbours: Neighbours,
    pub(crate) sharing: Sharing,
    /// Is everything ready, and nothing accepted yet?
    pub(crate) held: bool,
    /// Sockets that somebody else bound, until they are taken.
    pub(crate) given: Vec<Bound>,
    /// What a process that was taken over from still has in flight.
    pub(crate) elsewhere: Elsewhere,
    /// Flows of datagrams that it had, until they are taken.
    pub(crate) flows: Vec<LentFlow>,
}

/// Members of all groups of which there are lines of the last ten minutes, 15 KB each; two of each group at least.
const LINES: usize = 4096;

/// The groups that listeners lead to.
pub(crate) fn of_groups<'s>(listeners: impl Iterator<Item = &'s ListenerSettings>) -> BTreeSet<&'s str> {
    listeners.flat_map(ListenerSettings::led_to).map(|name| &**name).collect()
}

/// The groups whose members have sessions. These last as long as they like: how many are open says nothing
/// about how busy a member is, and how long they last nothing about how quick it is.
fn of_sessions(settings: &Settings) -> BTreeSet<&str> {
    let sessions = |listener: &&ListenerSettings| !(listener.carries_requests() || listener.tells());
    of_groups(settings.listeners.iter().filter(sessions))
}

impl Control {
    /// What probes found.
    pub(crate) fn probed(&mut self, findings: &[Finding], now: Time) {
        for finding in findings {
            self.journal.fellows.checked(finding);
            if let Some(ruled) = self.groups.get_mut(&finding.group) {
                let outcome = match &finding.outcome {
                    Ok(()) => Ok(()),
                    Err(why) => Err(&**why),
                };
                ruled.analyzer.handle_probe(finding.member, outcome, now);
            }
        }
        // Each change of a plan costs as much as its group is large: once for all that was found of it.
        let found: BTreeSet<&Arc<str>> = findings.iter().map(|finding| &finding.group).collect();
        for group in found {
            if let Some(ruled) = self.groups.get_mut(group) {
                ruled.settle(self.cores, now, &mut self.journal);
            }
        }
    }

    /// A member failed too often in a row.
    pub(crate) fn struck(&mut self, strike: &Strike, now: Time) {
        let blame = self.groups.get(&strike.group).and_then(|ruled| blame(ruled.record(strike.member)?));
        self.with(&strike.group, now, |analyzer| {
            if let Some(blame) = &blame {
                analyzer.handle_blame(strike.member, blame);
            }
            match strike.suspicion {
                true => analyzer.handle_suspicion(strike.member, now),
                false => analyzer.handle_streak(strike.member, now),
            }
        });
    }

    /// Compares what members did.
    pub(crate) fn compare(&mut self, now: Time) {
        self.end_leases(now);
        let mut stirring = BTreeSet::new();
        for (name, ruled) in &mut self.groups {
            if !ruled.stirs() {
                continue;
            }
            stirring.insert(Arc::clone(name));
            let totals = ruled.totals();
            for (member, record) in &ruled.records {
                if let Some(blame) = blame(record) {
                    ruled.analyzer.handle_blame(*member, &blame);
                }
            }
            ruled.analyzer.handle_totals(&totals, now);
            ruled.settle(self.cores, now, &mut self.journal);
            ruled.tell_moves(&mut self.journal);
            ruled.tell_refusals(now, &mut self.journal);
        }
        self.survey(&stirring, now);
        let drawn = (LINES / self.groups.len().max(1)).clamp(2, DRAWN);
        let sessions = of_sessions(&self.settings);
        for (name, ruled) in &mut self.groups {
            match stirring.contains(name) {
                true => {
                    ruled.remember(drawn, now);
                    ruled.tell_slow(!sessions.contains(&**name), now, &mut self.journal);
                }
                false => ruled.history.rest(&MIDDLES, now),
            }
        }
        self.look_at_hosts(now);
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
        let of = of_sessions(&self.settings);
        let due = if self.look == Time(0) { now } else { self.look };
        // Workers without traffic are left alone.
        let awake = self.groups.values().any(|ruled| !ruled.rests());
        let lag = if awake { self.lag.look(&self.workers, due, now) } else { Duration::ZERO };
        let looks = self.groups.iter_mut().map(|(name, ruled)| ruled.watch(!of.contains(&**name), lag, now));
        let rest = looks.min().unwrap_or(Duration::from_secs(1));
        self.look = now + rest;
        rest
    }

    /// Lets members be given more requests, where there is a limit on how many a second they are; for how long not again.
    pub(crate) fn fill(&mut self, now: Time) -> Duration {
        self.groups.values_mut().map(|ruled| ruled.fill(now)).min().unwrap_or(Duration::from_secs(1))
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
        let has = |ruled: &Ruled| ruled.id(member).is_some();
        let mut found = self.groups.iter().filter(|(_, ruled)| has(ruled)).map(|(name, _)| Arc::clone(name));
        match (found.next(), found.next()) {
            (Some(group), None) => Ok(group),
            (None, _) => Err(format!("no group has a member {member}")),
            (Some(one), Some(other)) => {
                Err(format!("{member} is a member of {one} and of {other}: name the group (-g {one})"))
            }
        }
    }

    /// A monitor measured a load.
    pub(crate) fn loaded(&mut self, group: &str, member: &str, load: Load, now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let Some(id) = ruled.id(member) else { return };
        self.journal.fellows.loaded(group, member, load);
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
        let settings = Arc::new(settings);
        if let Some(kept) = self.settings.groups.iter_mut().find(|kept| *kept.spec.name == *group) {
            *kept = Arc::clone(&settings);
        }
        ruled.update(settings, self.cores, now);
        let why = format!("strategy {before} -> {written} by an operator, until the next reload");
        let event =
            Event { kind: EventKind::Changed, group: group.into(), member: None, why, inputs: Vec::new() };
        self.journal.write(event);
        ruled.settle(self.cores, now, &mut self.journal);
        Ok(before)
    }

    /// Has cores accept on a listener: each on its part of `hands`, and go on with `flows` there, each with the place of its
    /// socket. False if one cannot be told.
    pub(crate) fn listen(
        &self,
        open: &Opened,
        settings: &ListenerSettings,
        groups: &Groups,
        hands: Vec<Vec<Socket>>,
        mut flows: Vec<(usize, Lent)>,
    ) -> bool {
        let cores = self.cores;
        self.workers.iter().zip(hands).enumerate().all(|(core, (worker, sockets))| {
            let sockets = sockets.into_iter().enumerate().map(|(nth, socket)| {
                let here = flows.extract_if(.., |(place, _)| *place == core + nth * cores);
                (socket, here.map(|(_, lent)| lent).collect())
            });
            let sockets = sockets.collect();
            let (door, settings, groups) = (Arc::clone(&open.door), settings.clone(), groups.clone());
            worker.order(Order::Listen { id: open.id, door, sockets, settings, groups })
        })
    }

    /// Tells every worker the same; false if one cannot be told.
    pub(crate) fn order_all(&self, order: impl Fn() -> Order) -> bool {
        self.workers.iter().all(|worker| worker.order(order()))
    }

    pub(crate) fn with(&mut self, group: &str, now: Time, act: impl FnOnce(&mut Analyzer)) {
        if let Some(ruled) = self.groups.get_mut(group) {
            act(&mut ruled.analyzer);
            ruled.settle(self.cores, now, &mut self.journal);
        }
    }
}
