//! The slow path: analyzers, plans, listeners. One lock protects it, which the data path never takes.

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

/// The slow path's state of a listener.
pub(crate) struct Opened {
    pub(crate) id: u64,
    pub(crate) door: Arc<Door>,
    /// Whether an operator has disabled the listener.
    pub(crate) disabled: bool,
    /// Copies of the sockets, for a process that takes over; none if the listener is closed.
    pub(crate) sockets: Vec<Socket>,
}

/// The result of a health check.
pub(crate) struct Finding {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    pub(crate) name: Arc<str>,
    /// The error is the reason of the failure, for people.
    pub(crate) outcome: Result<(), String>,
}

/// The state of the slow path.
pub(crate) struct Control {
    pub(crate) cores: usize,
    pub(crate) settings: Settings,
    pub(crate) groups: BTreeMap<Arc<str>, Ruled>,
    /// The listeners, in the order of the configuration.
    pub(crate) listeners: Vec<Opened>,
    pub(crate) workers: Vec<Worker>,
    /// The delay of the workers' event loops, and the time of the next look at the traffic.
    pub(crate) lag: Arc<LagMeter>,
    pub(crate) look: Time,
    pub(crate) journal: Journal,
    pub(crate) wires: Wires,
    /// Pending notifications about alerts: at most one for each member.
    pub(crate) due_hand_overs: Vec<hand_over::Due>,
    /// The meter of the host that side-cars share.
    pub(crate) host: Arc<HostMeter>,
    /// The leases: members lent to clients.
    pub(crate) desk: Desk,
    /// The groups that share hosts.
    pub(crate) neighbours: Neighbours,
    pub(crate) sharing: Sharing,
    /// Whether everything is ready and no listener accepts yet.
    pub(crate) held: bool,
    /// Sockets that another process bound, until they are used.
    pub(crate) given: Vec<Bound>,
    /// The work in flight of the previous process.
    pub(crate) elsewhere: Elsewhere,
    /// The datagram flows of the previous process, until a listener takes them.
    pub(crate) flows: Vec<LentFlow>,
}

/// The maximum number of members, over all groups, whose history of the last ten minutes is shown, 15 KB
/// each. Each group shows at least two.
const LINES: usize = 4096;

/// Returns the groups that listeners lead to.
pub(crate) fn of_groups<'s>(listeners: impl Iterator<Item = &'s ListenerSettings>) -> BTreeSet<&'s str> {
    listeners.flat_map(ListenerSettings::led_to).map(|name| &**name).collect()
}

/// Returns the groups whose members have sessions. A session has any duration: the number of open sessions
/// shows no utilization, and their duration shows no speed.
fn of_sessions(settings: &Settings) -> BTreeSet<&str> {
    let sessions = |listener: &&ListenerSettings| !(listener.carries_requests() || listener.tells());
    of_groups(settings.listeners.iter().filter(sessions))
}

impl Control {
    /// Records the results of health checks.
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
        // The cost of a plan's change grows with its group: one change covers all results of a group.
        let found: BTreeSet<&Arc<str>> = findings.iter().map(|finding| &finding.group).collect();
        for group in found {
            if let Some(ruled) = self.groups.get_mut(group) {
                ruled.settle(self.cores, now, &mut self.journal);
            }
        }
    }

    /// Records that a member failed too often in a row.
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

    /// Compares the members of each group.
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

    /// Handles the timeouts that are due.
    pub(crate) fn tick(&mut self, now: Time) {
        for ruled in self.groups.values_mut() {
            if ruled.analyzer.poll_timeout().is_some_and(|due| due <= now) {
                ruled.analyzer.handle_timeout(now);
                ruled.settle(self.cores, now, &mut self.journal);
            }
        }
    }

    /// Returns the groups that a listener leads to; `None` if its own group does not exist.
    pub(crate) fn groups_of(&self, listener: &ListenerSettings) -> Option<Groups> {
        let find = |name: &Arc<str>| self.groups.get(name).map(|ruled| Arc::clone(&ruled.group));
        let named = listener.tls.iter().flat_map(|tls| tls.groups.values()).chain(&listener.others);
        Some(Groups { own: find(&listener.group)?, named: named.filter_map(find).collect() })
    }

    /// Samples the traffic and returns the time until the next sample.
    pub(crate) fn watch(&mut self, now: Time) -> Duration {
        let of = of_sessions(&self.settings);
        let due = if self.look == Time(0) { now } else { self.look };
        // Workers without traffic are not woken.
        let awake = self.groups.values().any(|ruled| !ruled.rests());
        let lag = if awake { self.lag.look(&self.workers, due, now) } else { Duration::ZERO };
        let looks = self.groups.iter_mut().map(|(name, ruled)| ruled.watch(!of.contains(&**name), lag, now));
        let rest = looks.min().unwrap_or(Duration::from_secs(1));
        self.look = now + rest;
        rest
    }

    /// Refills the members' request budgets where the rate per second is limited. Returns the time until the
    /// next refill.
    pub(crate) fn fill(&mut self, now: Time) -> Duration {
        self.groups.values_mut().map(|ruled| ruled.fill(now)).min().unwrap_or(Duration::from_secs(1))
    }

    /// Returns the time of the next timeout.
    pub(crate) fn due(&self) -> Option<Time> {
        self.groups.values().filter_map(|ruled| ruled.analyzer.poll_timeout()).min()
    }

    /// Writes the events of all groups, and publishes the resulting plans.
    pub(crate) fn settle(&mut self, now: Time) {
        for ruled in self.groups.values_mut() {
            ruled.settle(self.cores, now, &mut self.journal);
        }
    }

    /// Applies an operator's action to a member of one group, or of the only group that has it.
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

    /// Returns the named group, or the only one that has the member.
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

    /// Records a load that a monitor measured.
    pub(crate) fn loaded(&mut self, group: &str, member: &str, load: Load, now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let Some(id) = ruled.id(member) else { return };
        self.journal.fellows.loaded(group, member, load);
        ruled.analyzer.handle_load(id, load);
        self.due_hand_overs.extend(ruled.hand_over_of_alert(id));
        ruled.settle(self.cores, now, &mut self.journal);
    }

    /// Records a member's report of its throughput and utilization.
    pub(crate) fn used(&mut self, group: &str, member: &str, usage: Usage, now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let Some(id) = ruled.id(member) else { return };
        ruled.analyzer.handle_usage(id, usage, now);
        ruled.settle(self.cores, now, &mut self.journal);
    }

    /// Implements [`Engine::shed`](crate::Engine::shed).
    pub(crate) fn shed(&self, group: Option<&str>, member: &str) -> Option<Shed> {
        let groups = self.groups.iter().filter(|(name, _)| group.is_none_or(|group| ***name == *group));
        let of = |ruled: &Ruled| {
            // The check for alerts comes first: it is cheap, and nearly always the answer.
            let alerts = || ruled.analyzer.alerts().filter(|alert| alert.held.is_none());
            alerts().next()?;
            let ids = ruled.id(member).map_or_else(|| ruled.at(member), |id| vec![id]);
            let sheds = alerts().filter(|alert| ids.contains(&alert.member)).map(|alert| alert.shed);
            sheds.max_by(|one, other| one.share.total_cmp(&other.share))
        };
        groups.filter_map(|(_, ruled)| of(ruled)).max_by(|one, other| one.share.total_cmp(&other.share))
    }

    /// Records weights that were computed elsewhere.
    pub(crate) fn weighed(&mut self, group: &str, weights: &[(Arc<str>, Option<f64>)], now: Time) {
        let Some(ruled) = self.groups.get_mut(group) else { return };
        let named = weights.iter().filter_map(|(name, weight)| Some((ruled.id(name)?, *weight)));
        let weights: Vec<_> = named.collect();
        ruled.analyzer.handle_weights(&weights, now);
        ruled.settle(self.cores, now, &mut self.journal);
    }

    /// Changes a group's strategy and returns the previous one, for people. The settings are changed as well,
    /// so that the next reload detects the difference.
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

    /// Starts a listener on the workers. Each core accepts on its part of `hands` and resumes its part of
    /// `flows`, each of which comes with its socket's index. Returns `false` if a worker cannot be reached.
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

    /// Sends an order to every worker; returns `false` if one cannot be reached.
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
