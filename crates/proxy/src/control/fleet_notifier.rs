//! Notices for the fleet's other balancers about local checks, ejections and loads; applies the notices of
//! others.
//!
//! Notices of other balancers are not forwarded: an ejection that follows another balancer's is marked as
//! such.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::fleet::{FleetGroup, FleetMember, FleetUpdate, FleetUpdateKind};
use plimsoll_brain::{Event, EventKind, ReportedLoad, Time};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::control::engine_shared::EngineShared;
use crate::control::{ControlPlane, ProbeResult};
use crate::runtime::sync::lock;

/// The number of notices that may wait for the receiver; more are dropped.
pub(crate) const NOTICE_QUEUE: usize = 4096;

/// A notice for the other balancers.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetNotice {
    /// The group.
    pub group: Arc<str>,
    /// The member, as configured.
    pub member: Arc<str>,
    /// The subject of the notice.
    pub kind: NoticeKind,
}

/// The subject of a notice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoticeKind {
    /// A local health check ended; `true` if it passed.
    Checked(bool),
    /// The member was ejected for this time, because of local observations; zero if it was taken back.
    Ejected(Duration),
    /// This load of the member was reported to this balancer.
    Loaded(ReportedLoad),
}

/// The channel to the task that notifies the other balancers, if there is one.
#[derive(Default)]
pub(crate) struct FleetNotifier(Option<mpsc::Sender<FleetNotice>>);

impl FleetNotifier {
    /// Returns the receiver of further notices.
    pub(crate) fn subscribe(&mut self) -> mpsc::Receiver<FleetNotice> {
        let (sender, receiver) = mpsc::channel(NOTICE_QUEUE);
        self.0 = Some(sender);
        receiver
    }

    /// Sends a notice about an event, if it is of interest to others.
    pub(crate) fn notify_event(&self, event: &Event) {
        let Some(member) = &event.member else { return };
        let input = |name: &str| {
            event.inputs.iter().find(|(input_name, _)| input_name == name).map(|(_, value)| *value)
        };
        let seconds = match event.kind {
            EventKind::Ejected if input("told").is_none() => input("seconds").unwrap_or_default(),
            EventKind::Readmitted => 0.0,
            _ => return,
        };
        let duration = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.send(&event.group, member, NoticeKind::Ejected(duration));
    }

    /// Sends a notice that a health check ended.
    pub(crate) fn notify_probe(&self, result: &ProbeResult) {
        self.send(&result.group, &result.name, NoticeKind::Checked(result.outcome.is_ok()));
    }

    /// Sends a notice that a load was reported.
    pub(crate) fn notify_load(&self, group: &str, member: &str, load: ReportedLoad) {
        if self.0.is_some() {
            self.send(&group.into(), &member.into(), NoticeKind::Loaded(load));
        }
    }

    fn send(&self, group: &Arc<str>, member: &Arc<str>, kind: NoticeKind) {
        if let Some(sender) = &self.0 {
            let (group, member) = (Arc::clone(group), Arc::clone(member));
            let _ = sender.try_send(FleetNotice { group, member, kind });
        }
    }
}

/// Returns the groups and members.
pub(crate) fn list_groups(control: &ControlPlane) -> Vec<FleetGroup> {
    let group = |(name, group_state): (&Arc<str>, &crate::control::GroupState)| {
        let health_checked = group_state.settings.probe.is_some();
        let members = group_state.analyzer.members().map(|(_, spec, vitals)| FleetMember {
            name: Arc::clone(&spec.name),
            vitals: Arc::clone(vitals),
            limit: spec.limit,
            health_checked,
        });
        let presence = Arc::clone(group_state.analyzer.peers());
        FleetGroup { name: Arc::clone(name), presence, members: members.collect() }
    };
    control.groups.iter().map(group).collect()
}

/// Returns the number of requests that wait for a member below its limits, for groups whose members have one.
pub(crate) fn waiting_counts(control: &ControlPlane) -> Vec<(Arc<str>, u32)> {
    let limited = control.groups.iter().filter(|(_, group_state)| {
        group_state.settings.max_rate.is_some()
            || group_state.analyzer.members().any(|(_, spec, _)| spec.limit < u32::MAX)
    });
    limited.map(|(name, group_state)| (Arc::clone(name), group_state.group.wait_queue.queued())).collect()
}

/// Applies the notice of another balancer (`by`), or a result of all balancers' notices.
pub(crate) fn apply_update(inner: &EngineShared, update: &FleetUpdate, sender: &str, now: Time) {
    let mut control = lock(&inner.control);
    let Some(group_state) = control.groups.get_mut(&update.group) else { return };
    let Some(id) = group_state.id(&update.member) else { return };
    match update.kind {
        FleetUpdateKind::ProbeDuty(is_ours) => {
            if let Some(ownership) = lock(&inner.probes).ownership(&update.group, id) {
                ownership.assign(is_ours);
            }
        }
        FleetUpdateKind::HealthChecked { passed, age, .. } => {
            let Some(ownership) = lock(&inner.probes).ownership(&update.group, id) else { return };
            if ownership.is_ours() && passed {
                // The local checks decide about members that are checked here.
                return;
            }
            if group_state.analyzer.handle_peer_check(id, passed, sender, now) {
                let now = Instant::now();
                ownership.record_check(now.checked_sub(age).unwrap_or(now));
            } else {
                ownership.call();
            }
            control.with_analyzer(&update.group, now, |_| {});
        }
        FleetUpdateKind::Ejected { remaining, .. } => {
            control.with_analyzer(&update.group, now, |analyzer| {
                analyzer.handle_peer_ejection(id, remaining, sender, now)
            });
        }
        FleetUpdateKind::LoadReceived { value, of_host, age } => {
            let load = ReportedLoad { value, at: now - age, of_host };
            control.with_analyzer(&update.group, now, |analyzer| analyzer.handle_peer_load(id, load));
        }
        FleetUpdateKind::LimitRaised => group_state.group.wait_queue.wake_all(),
    }
    drop(control);
    inner.wake.notify_one();
}
