//! The slow path: analyzers, plans, listeners. One lock protects it, which the data path never takes.

pub(crate) mod bind;
pub(crate) mod counter_snapshot;
pub(crate) mod drain_hook;
pub(crate) mod engine_shared;
pub(crate) mod explain;
pub(crate) mod fleet_notifier;
pub(crate) mod history;
pub(crate) mod idle_backoff;
pub(crate) mod lease;
pub(crate) mod listener_toggle;
pub(crate) mod load_line;
pub(crate) mod probe;
pub(crate) mod publication;
pub(crate) mod shared_hosts;
pub(crate) mod status_report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::shared_hosts::SharedHosts;
use plimsoll_brain::{
    Analyzer, Event, EventKind, MemberId, ReportedLoad, ShedDecision, Strategy, StrategyParams, Time,
    UsageReport,
};
use socket2::Socket;

use crate::control::bind::ListenerSockets;
use crate::control::counter_snapshot::PredecessorLoad;
use crate::control::explain::describe_strategy;
use crate::control::history::MAX_CHARTED;
use crate::control::lease::LeaseTable;
use crate::control::load_line::MIDDLES;
use crate::control::shared_hosts::HostSharing;
use crate::listener::ListenerShared;
use crate::protocol::udp::{HandoffFlow, ResumableFlow};
use crate::upstream::group::{ControlChannels, FailureSignal};
use crate::upstream::side_car::HostMeter;
use crate::worker::event_loop_lag::LagMeter;
use crate::worker::{ListenerGroups, WorkerCommand, WorkerHandle};
use crate::{GroupSettings, ListenerSettings, Settings};

mod event_log;
mod group_state;
mod shedding;
mod slow_members;

pub(crate) use event_log::EventLog;
pub use event_log::SequencedEvent;
pub(crate) use group_state::GroupState;
use group_state::last_failure_cause;
pub(crate) use shedding::SheddingTracker;
use slow_members::SlowMembers;

/// The slow path's state of a listener.
pub(crate) struct ListenerState {
    pub(crate) id: u64,
    pub(crate) shared: Arc<ListenerShared>,
    /// Whether an operator has disabled the listener.
    pub(crate) disabled: bool,
    /// Copies of the sockets, for a process that takes over; none if the listener is closed.
    pub(crate) sockets: Vec<Socket>,
}

/// The result of a health check.
pub(crate) struct ProbeResult {
    pub(crate) group: Arc<str>,
    pub(crate) member: MemberId,
    pub(crate) name: Arc<str>,
    /// The error is the reason of the failure, for people.
    pub(crate) outcome: Result<(), String>,
}

/// The state of the slow path.
pub(crate) struct ControlPlane {
    pub(crate) cores: usize,
    pub(crate) settings: Settings,
    pub(crate) groups: BTreeMap<Arc<str>, GroupState>,
    /// The listeners, in the order of the configuration.
    pub(crate) listeners: Vec<ListenerState>,
    pub(crate) workers: Vec<WorkerHandle>,
    /// The delay of the workers' event loops, and the time of the next look at the traffic.
    pub(crate) lag: Arc<LagMeter>,
    pub(crate) next_sample: Time,
    pub(crate) event_log: EventLog,
    pub(crate) channels: ControlChannels,
    /// Pending notifications about alerts: at most one for each member.
    pub(crate) pending_hooks: Vec<drain_hook::PendingHook>,
    /// The meter of the host that side-cars share.
    pub(crate) host_meter: Arc<HostMeter>,
    /// The leases: members lent to clients.
    pub(crate) lease_table: LeaseTable,
    /// The groups that share hosts.
    pub(crate) shared_hosts: SharedHosts,
    pub(crate) host_sharing: HostSharing,
    /// Whether everything is ready and no listener accepts yet.
    pub(crate) held: bool,
    /// Sockets that another process bound, until they are used.
    pub(crate) inherited_sockets: Vec<ListenerSockets>,
    /// The work in flight of the previous process.
    pub(crate) predecessor_load: PredecessorLoad,
    /// The datagram flows of the previous process, until a listener takes them.
    pub(crate) inherited_flows: Vec<HandoffFlow>,
}

/// The maximum number of members, over all groups, whose history of the last ten minutes is shown, 15 KB
/// each. Each group shows at least two.
const MAX_HISTORY_MEMBERS: usize = 4096;

/// Returns the groups that listeners lead to.
pub(crate) fn group_names<'s>(listeners: impl Iterator<Item = &'s ListenerSettings>) -> BTreeSet<&'s str> {
    listeners.flat_map(ListenerSettings::reachable_groups).map(|name| &**name).collect()
}

/// Returns the groups whose members have sessions. A session has any duration: the number of open sessions
/// shows no utilization, and their duration shows no speed.
fn session_groups(settings: &Settings) -> BTreeSet<&str> {
    let carries_sessions =
        |listener: &&ListenerSettings| !(listener.carries_requests() || listener.is_directory());
    group_names(settings.listeners.iter().filter(carries_sessions))
}

impl ControlPlane {
    /// Records the results of health checks.
    pub(crate) fn record_probes(&mut self, results: &[ProbeResult], now: Time) {
        for result in results {
            self.event_log.fleet.notify_probe(result);
            if let Some(group_state) = self.groups.get_mut(&result.group) {
                let outcome = match &result.outcome {
                    Ok(()) => Ok(()),
                    Err(reason) => Err(&**reason),
                };
                group_state.analyzer.handle_probe(result.member, outcome, now);
            }
        }
        // The cost of a plan's change grows with its group: one change covers all results of a group.
        let changed_groups: BTreeSet<&Arc<str>> = results.iter().map(|result| &result.group).collect();
        for group in changed_groups {
            if let Some(group_state) = self.groups.get_mut(group) {
                group_state.publish_changes(self.cores, now, &mut self.event_log);
            }
        }
    }

    /// Records that a member failed too often in a row.
    pub(crate) fn record_failure_signal(&mut self, signal: &FailureSignal, now: Time) {
        let cause = self
            .groups
            .get(&signal.group)
            .and_then(|group_state| last_failure_cause(group_state.record(signal.member)?));
        self.with_analyzer(&signal.group, now, |analyzer| {
            if let Some(cause) = &cause {
                analyzer.handle_failure_cause(signal.member, cause);
            }
            match signal.suspicion {
                true => analyzer.handle_suspicion(signal.member, now),
                false => analyzer.handle_streak(signal.member, now),
            }
        });
    }

    /// Compares the members of each group.
    pub(crate) fn compare_members(&mut self, now: Time) {
        self.end_expired_leases(now);
        let mut active_groups = BTreeSet::new();
        for (name, group_state) in &mut self.groups {
            if !group_state.advance_second() {
                continue;
            }
            active_groups.insert(Arc::clone(name));
            let totals = group_state.totals();
            for (member, record) in &group_state.records {
                if let Some(cause) = last_failure_cause(record) {
                    group_state.analyzer.handle_failure_cause(*member, &cause);
                }
            }
            group_state.analyzer.handle_totals(&totals, now);
            group_state.publish_changes(self.cores, now, &mut self.event_log);
            group_state.report_moves(&mut self.event_log);
            group_state.report_shedding(now, &mut self.event_log);
        }
        self.sample_load_lines(&active_groups, now);
        let charted_members = (MAX_HISTORY_MEMBERS / self.groups.len().max(1)).clamp(2, MAX_CHARTED);
        let sessions = session_groups(&self.settings);
        for (name, group_state) in &mut self.groups {
            match active_groups.contains(name) {
                true => {
                    group_state.record_second(charted_members, now);
                    group_state.report_slow(!sessions.contains(&**name), now, &mut self.event_log);
                }
                false => group_state.history.add_idle(&MIDDLES, now),
            }
        }
        self.attribute_host_loads(now);
    }

    /// Handles the timeouts that are due.
    pub(crate) fn handle_timeouts(&mut self, now: Time) {
        for group_state in self.groups.values_mut() {
            if group_state.analyzer.poll_timeout().is_some_and(|timeout| timeout <= now) {
                group_state.analyzer.handle_timeout(now);
                group_state.publish_changes(self.cores, now, &mut self.event_log);
            }
        }
    }

    /// Returns the groups that a listener leads to; `None` if its own group does not exist.
    pub(crate) fn groups_of(&self, listener: &ListenerSettings) -> Option<ListenerGroups> {
        let find_group =
            |name: &Arc<str>| self.groups.get(name).map(|group_state| Arc::clone(&group_state.group));
        let tls_groups = listener.tls.iter().flat_map(|tls| tls.groups.values());
        let alternate_names = tls_groups.chain(&listener.others).chain(listener.route_groups());
        // Each once: a name and a route may lead to one group. A name may lead to the listener's own group,
        // while other requests that no route takes are rejected.
        let is_default = listener.routes.as_ref().is_none_or(|routes| routes.has_default_group());
        let is_alternate = |name: &&Arc<str>| !is_default || **name != listener.group;
        let alternate_names: BTreeSet<_> = alternate_names.filter(is_alternate).collect();
        Some(ListenerGroups {
            default: find_group(&listener.group)?,
            alternates: alternate_names.into_iter().filter_map(find_group).collect(),
        })
    }

    /// Samples the traffic and returns the time until the next sample.
    pub(crate) fn sample_traffic(&mut self, now: Time) -> Duration {
        let session_groups = session_groups(&self.settings);
        let due_at = if self.next_sample == Time(0) { now } else { self.next_sample };
        // Workers without traffic are not woken.
        let any_active = self.groups.values().any(|group_state| !group_state.is_idle());
        let lag = if any_active { self.lag.sample(&self.workers, due_at, now) } else { Duration::ZERO };
        let delays = self.groups.iter_mut().map(|(name, group_state)| {
            group_state.sample_traffic(!session_groups.contains(&**name), lag, now)
        });
        let delay = delays.min().unwrap_or(Duration::from_secs(1));
        self.next_sample = now + delay;
        delay
    }

    /// Refills the members' request budgets where the rate per second is limited. Returns the time until the
    /// next refill.
    pub(crate) fn refill_budgets(&mut self, now: Time) -> Duration {
        self.groups
            .values_mut()
            .map(|group_state| group_state.refill_budgets(now))
            .min()
            .unwrap_or(Duration::from_secs(1))
    }

    /// Returns the time of the next timeout.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.groups.values().filter_map(|group_state| group_state.analyzer.poll_timeout()).min()
    }

    /// Writes the events of all groups, and publishes the resulting plans.
    pub(crate) fn publish_changes(&mut self, now: Time) {
        for group_state in self.groups.values_mut() {
            group_state.publish_changes(self.cores, now, &mut self.event_log);
        }
    }

    /// Applies an operator's action to a member of one group, or of the only group that has it.
    pub(crate) fn apply_operator_action(
        &mut self,
        group: Option<&str>,
        member: &str,
        now: Time,
        action: impl Fn(&mut Analyzer) -> Result<(), String>,
    ) -> Result<(), String> {
        let group = self.group_of(group, member)?;
        let Some(group_state) = self.groups.get_mut(&group) else {
            let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        action(&mut group_state.analyzer)?;
        group_state.publish_changes(self.cores, now, &mut self.event_log);
        Ok(())
    }

    /// Returns the named group, or the only one that has the member.
    pub(crate) fn group_of(&self, group: Option<&str>, member: &str) -> Result<Arc<str>, String> {
        if let Some(name) = group {
            return Ok(name.into());
        }
        let has_member = |group_state: &GroupState| group_state.id(member).is_some();
        let mut matching = self
            .groups
            .iter()
            .filter(|(_, group_state)| has_member(group_state))
            .map(|(name, _)| Arc::clone(name));
        match (matching.next(), matching.next()) {
            (Some(group), None) => Ok(group),
            (None, _) => Err(format!("no group has a member {member}")),
            (Some(first), Some(second)) => {
                Err(format!("{member} is a member of {first} and of {second}: name the group (-g {first})"))
            }
        }
    }

    /// Records a load that a monitor measured.
    pub(crate) fn record_load(&mut self, group: &str, member: &str, load: ReportedLoad, now: Time) {
        let Some(group_state) = self.groups.get_mut(group) else { return };
        let Some(id) = group_state.id(member) else { return };
        self.event_log.fleet.notify_load(group, member, load);
        group_state.analyzer.handle_load(id, load);
        self.pending_hooks.extend(group_state.pending_alert_hook(id));
        group_state.publish_changes(self.cores, now, &mut self.event_log);
    }

    /// Records a member's report of its throughput and utilization.
    pub(crate) fn record_usage(&mut self, group: &str, member: &str, usage: UsageReport, now: Time) {
        let Some(group_state) = self.groups.get_mut(group) else { return };
        let Some(id) = group_state.id(member) else { return };
        group_state.analyzer.handle_usage(id, usage, now);
        group_state.publish_changes(self.cores, now, &mut self.event_log);
    }

    /// Implements [`Engine::requested_shed`](crate::Engine::requested_shed).
    pub(crate) fn requested_shed(&self, group: Option<&str>, member: &str) -> Option<ShedDecision> {
        let groups = self.groups.iter().filter(|(name, _)| group.is_none_or(|group| ***name == *group));
        let strongest_shed = |group_state: &GroupState| {
            // The check for alerts comes first: it is cheap, and nearly always the answer.
            let alerts = || group_state.analyzer.alerts().filter(|alert| alert.held.is_none());
            alerts().next()?;
            let ids = group_state.id(member).map_or_else(|| group_state.members_at(member), |id| vec![id]);
            let decisions = alerts().filter(|alert| ids.contains(&alert.member)).map(|alert| alert.shed);
            decisions.max_by(|left, right| left.share.total_cmp(&right.share))
        };
        groups
            .filter_map(|(_, group_state)| strongest_shed(group_state))
            .max_by(|left, right| left.share.total_cmp(&right.share))
    }

    /// Records weights that were computed elsewhere.
    pub(crate) fn set_weights(&mut self, group: &str, weights: &[(Arc<str>, Option<f64>)], now: Time) {
        let Some(group_state) = self.groups.get_mut(group) else { return };
        let by_id = weights.iter().filter_map(|(name, weight)| Some((group_state.id(name)?, *weight)));
        let weights: Vec<_> = by_id.collect();
        group_state.analyzer.handle_weights(&weights, now);
        group_state.publish_changes(self.cores, now, &mut self.event_log);
    }

    /// Changes a group's strategy and returns the previous one, for people. The settings are changed as well,
    /// so that the next reload detects the difference.
    pub(crate) fn set_strategy(
        &mut self,
        group: &str,
        (strategy, params): (&'static Strategy, StrategyParams),
        strategy_text: &str,
        now: Time,
    ) -> Result<String, String> {
        let Some(group_state) = self.groups.get_mut(group) else {
            let names: Vec<&str> = self.groups.keys().map(|name| &**name).collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        let mut settings = GroupSettings::clone(&group_state.settings);
        let previous = describe_strategy(settings.spec.strategy, &settings.spec.params);
        (settings.spec.strategy, settings.spec.params) = (strategy, params);
        let settings = Arc::new(settings);
        if let Some(configured) =
            self.settings.groups.iter_mut().find(|candidate| *candidate.spec.name == *group)
        {
            *configured = Arc::clone(&settings);
        }
        group_state.update(settings, self.cores, now);
        let message = format!("strategy {previous} -> {strategy_text} by an operator, until the next reload");
        let event = Event {
            kind: EventKind::Changed,
            group: group.into(),
            member: None,
            why: message,
            inputs: Vec::new(),
        };
        self.event_log.write(event);
        group_state.publish_changes(self.cores, now, &mut self.event_log);
        Ok(previous)
    }

    /// Starts a listener on the workers. Each core accepts on its part of `hands` and resumes its part of
    /// `flows`, each of which comes with its socket's index. Returns `false` if a worker cannot be reached.
    pub(crate) fn start_listener(
        &self,
        listener: &ListenerState,
        settings: &ListenerSettings,
        groups: &ListenerGroups,
        core_sockets: Vec<Vec<Socket>>,
        mut flows: Vec<(usize, ResumableFlow)>,
    ) -> bool {
        let cores = self.cores;
        self.workers.iter().zip(core_sockets).enumerate().all(|(core, (worker, sockets))| {
            let sockets = sockets.into_iter().enumerate().map(|(index, socket)| {
                let socket_flows =
                    flows.extract_if(.., |(socket_index, _)| *socket_index == core + index * cores);
                (socket, socket_flows.map(|(_, flow)| flow).collect())
            });
            let sockets = sockets.collect();
            let (shared, settings, groups) = (Arc::clone(&listener.shared), settings.clone(), groups.clone());
            worker.send(WorkerCommand::Listen { id: listener.id, shared, sockets, settings, groups })
        })
    }

    /// Sends an order to every worker; returns `false` if one cannot be reached.
    pub(crate) fn send_to_workers(&self, command: impl Fn() -> WorkerCommand) -> bool {
        self.workers.iter().all(|worker| worker.send(command()))
    }

    pub(crate) fn with_analyzer(&mut self, group: &str, now: Time, action: impl FnOnce(&mut Analyzer)) {
        if let Some(group_state) = self.groups.get_mut(group) {
            action(&mut group_state.analyzer);
            group_state.publish_changes(self.cores, now, &mut self.event_log);
        }
    }
}
