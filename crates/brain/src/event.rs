//! Events: the brain's decisions with their reasons, which make an adaptive system explainable.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A member was added to the group.
    Joined,
    /// A member was removed from the group.
    Left,
    /// The member's health checks pass.
    Up,
    /// The member's health checks fail.
    Down,
    /// The member's traffic failed: it is ejected for a while.
    Ejected,
    /// An ejection ended; the member may be out for another reason ([`Event::is_still_out`]).
    Readmitted,
    /// An operator drains the member.
    Draining,
    /// An operator ended the drain.
    Undrained,
    /// An operator disabled a member, a listener, or a group's balancing.
    Disabled,
    /// An operator enabled it again.
    Enabled,
    /// The member takes a growing part of its share.
    SlowStart,
    /// The member takes its whole share.
    FullShare,
    /// This balancer uses more members of a large group, or fewer.
    Aperture,
    /// The member has more load than its share: part of its sessions is to move.
    AlertRaised,
    /// The member has its share again.
    AlertCleared,
    /// Sessions left the member because it was under alert; one event for all in about a second.
    Moved,
    /// The drain hook was called before sessions leave the member (drained, or under alert), and has answered
    /// or not.
    HandedOver,
    /// No member of the group can be used.
    AllDown,
    /// The group has a usable member again.
    Recovered,
    /// Requests are rejected, because all members have reached their limits.
    Shedding,
    /// No request was rejected for a while.
    ShedEnded,
    /// The member answers ten times slower than its group.
    Slow,
    /// The member was not slow for a while.
    SlowEnded,
    /// An operator changed a setting at run time.
    Changed,
    /// More reports of a member arrived than are accepted.
    Flooded,
    /// The member does not have the figure that its group's monitor asks for.
    NoReports,
    /// A client rejected the configuration of the group (xDS).
    Refused,
    /// A certificate was obtained from an authority, or renewed, and is in use from now on.
    CertificateObtained,
    /// A certificate could not be obtained or renewed; the previous one stays in use, if there is one.
    CertificateFailed,
    /// The sources of the group found members, or do not find them any more.
    MembersDiscovered,
    /// A source of members does not answer, or its answer is rejected; its members stay.
    DiscoveryFailed,
    /// The source answers again.
    DiscoveryRecovered,
    /// Another balancer of the fleet is present (`[fleet]`), or sends reports again.
    BalancerJoined,
    /// The balancer sends no reports, though it is not known to be gone.
    BalancerSilent,
    /// The balancer is gone without an announcement.
    BalancerLost,
    /// The balancer announced that it goes.
    BalancerLeft,
    /// The store of operators' commands and registered members is unusable, or has lost its content; the
    /// known state stays.
    StoreLost,
    /// The store is usable again, or has content again.
    StoreRecovered,
    /// The group is to have more members, or fewer.
    Scaled,
    /// A started member has ended by itself, and is gone.
    MemberEnded,
    /// Members cannot be started or stopped.
    ScalerFailed,
    /// Members can be started and stopped again.
    ScalerRecovered,
    /// A host also has members of other groups, whose load there begins or ceases to matter.
    HostShared,
    /// A new configuration is in force.
    Reloaded,
    /// A configuration was rejected; the previous one stays.
    ReloadRefused,
    /// Another process took over from this one, or this one from another.
    Upgraded,
    /// No other process could take over: this one continues.
    UpgradeFailed,
    /// The process stops: listeners are closed, requests in flight end.
    Stopping,
}

/// One decision or change, with its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The kind of the event.
    pub kind: EventKind,
    /// The group; empty for the whole process.
    pub group: Arc<str>,
    /// The member.
    pub member: Option<Arc<str>>,
    /// A sentence for display.
    pub why: String,
    /// The numbers behind the decision, by name.
    pub inputs: Vec<(String, f64)>,
}

/// The ends of a readmission's reason if the member still cannot be used.
pub(crate) const STILL_OUT_SUFFIXES: [&str; 3] = ["; it is down", "; it is draining", "; it is disabled"];

impl Event {
    /// Returns `true` if the event is the end of an ejection of a member that is out for another reason, by
    /// its text. Such an event is no improvement.
    pub fn is_still_out(kind: EventKind, reason: &str) -> bool {
        kind == EventKind::Readmitted && STILL_OUT_SUFFIXES.iter().any(|suffix| reason.ends_with(suffix))
    }
}
