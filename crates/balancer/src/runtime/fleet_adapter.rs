//! This balancer among others: the data plane from the view of the fleet, and the events of the others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use plimsoll_brain::fleet::{FleetGroup, FleetUpdate};
use plimsoll_brain::status::FleetStatus;
use plimsoll_brain::{Event, EventKind, Time};
use plimsoll_cluster::MetricSource;
use plimsoll_cluster::fleet::{
    BoundSocket, FleetHandoff, FleetMembership, FleetSettings, LocalBalancer, MemberAction, MemberNotice,
    PeerChange, PeerTransition,
};
use plimsoll_proxy::{self as proxy, Engine};

use super::{BalancerRuntime, lock};

/// The data plane from the view of the fleet.
struct FleetAdapter(Engine);

impl LocalBalancer for FleetAdapter {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn version(&self) -> u64 {
        self.0.version()
    }

    fn groups(&self) -> Vec<FleetGroup> {
        self.0.listed_groups()
    }

    fn queue_lengths(&self) -> Vec<(Arc<str>, u32)> {
        self.0.waiting()
    }

    fn receive_update(&self, update: &FleetUpdate, sender: &str) {
        self.0.apply_fleet_update(update, sender);
    }

    fn receive_change(&self, change: &PeerChange) {
        let PeerChange { name, address, transition } = change;
        let (kind, reason) = match transition {
            PeerTransition::Joined => {
                (EventKind::BalancerJoined, format!("balancer {name} is there, at {address}"))
            }
            PeerTransition::Silent => {
                let reason = "it sends no reports, and no balancer reports that it left: its \
                    requests in flight do not count";
                (EventKind::BalancerSilent, format!("balancer {name}: {reason}"))
            }
            PeerTransition::ReportsResumed => {
                (EventKind::BalancerJoined, format!("balancer {name} reports again"))
            }
            PeerTransition::Lost => {
                let reason =
                    "is lost, and did not say that it goes: what it had in flight does not count any more";
                (EventKind::BalancerLost, format!("balancer {name} {reason}"))
            }
            PeerTransition::Left => (EventKind::BalancerLeft, format!("balancer {name} has left")),
        };
        self.0.write_event(Event { kind, group: "".into(), member: None, why: reason, inputs: Vec::new() });
    }
}

impl BalancerRuntime {
    /// Joins the fleet; returns the address for the others. With `past` it goes on as the balancer that
    /// another process was.
    ///
    /// # Errors
    /// Fails if the system gives no thread.
    pub(crate) fn join_fleet(
        self: &Arc<Self>,
        settings: FleetSettings,
        socket: BoundSocket,
        handoff: Option<FleetHandoff>,
    ) -> io::Result<SocketAddr> {
        let mut notices = self.engine.notices();
        let fleet =
            FleetMembership::start(settings, socket, handoff, Arc::new(FleetAdapter(self.engine.clone())))?;
        let address = fleet.address();
        *lock(&self.fleet) = Some(fleet);
        let runtime = Arc::downgrade(self);
        std::thread::Builder::new().name("notices".into()).spawn(move || {
            while let Some(notice) = notices.blocking_recv() {
                if !forward_notice(&runtime, &notice) {
                    return;
                }
            }
        })?;
        Ok(address)
    }

    /// Leaves the fleet with a farewell to the others, if there are any.
    pub(crate) fn leave_fleet(&self) {
        let fleet = lock(&self.fleet).take();
        drop(fleet);
    }

    /// Returns the socket for the others, for another process.
    pub(crate) fn fleet_socket(&self) -> io::Result<Option<OwnedFd>> {
        lock(&self.fleet).as_ref().map(FleetMembership::socket).transpose()
    }

    /// Stops all messages; returns the past with which another process goes on.
    pub(super) fn pause_fleet(&self) -> Option<FleetHandoff> {
        lock(&self.fleet).as_ref()?.pause()
    }

    /// Goes on after a pause.
    pub(super) fn resume_fleet(&self) {
        if let Some(fleet) = &*lock(&self.fleet) {
            fleet.resume();
        }
    }

    /// Leaves the fleet without a message: another process goes on as this balancer.
    pub(super) fn leave_fleet_silently(&self) {
        if let Some(fleet) = lock(&self.fleet).take() {
            fleet.hand_off();
        }
    }

    /// Returns the status of the fleet, if this balancer acts together with others.
    pub(super) fn fleet_status(&self) -> Option<FleetStatus> {
        lock(&self.fleet).as_ref().map(FleetMembership::status)
    }

    /// Returns `true` if the load of a group's members is this balancer's own count, which others do not
    /// need.
    fn uses_own_counts(&self, group: &str) -> bool {
        let effective_config = self.effective_config();
        let cluster_group =
            effective_config.cluster_groups.iter().find(|cluster_group| *cluster_group.name == *group);
        cluster_group
            .and_then(|cluster_group| cluster_group.monitor.as_ref())
            .is_some_and(|monitor| monitor.source == MetricSource::Passive)
    }
}

/// Reports a notice to the others; returns `false` if the balancer has ended.
fn forward_notice(runtime: &Weak<BalancerRuntime>, notice: &proxy::FleetNotice) -> bool {
    let Some(runtime) = runtime.upgrade() else { return false };
    let proxy::FleetNotice { group, member, kind: notice_kind } = notice;
    let action = match *notice_kind {
        proxy::NoticeKind::Checked(is_healthy) => MemberAction::HealthChecked(is_healthy),
        proxy::NoticeKind::Ejected(duration) => MemberAction::Ejected(duration),
        proxy::NoticeKind::Loaded(_) if runtime.uses_own_counts(group) => return true,
        proxy::NoticeKind::Loaded(load) => MemberAction::LoadReported(load),
    };
    let fleet = lock(&runtime.fleet);
    let Some(fleet) = fleet.as_ref() else { return false };
    fleet.notify(MemberNotice { group: Arc::clone(group), member: Arc::clone(member), action });
    true
}
