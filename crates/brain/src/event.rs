//! What the brain did and why: an adaptive system that cannot explain itself is not trusted.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A member was added to the group.
    Joined,
    /// A member was taken out of the group.
    Left,
    /// Its health checks pass.
    Up,
    /// Its health checks fail.
    Down,
    /// Its traffic failed: taken out for a while.
    Ejected,
    /// An ejection ended; the member may be out for another reason all the same ([`Event::in_vain`]).
    Readmitted,
    /// An operator let its work end.
    Draining,
    /// An operator took it back.
    Undrained,
    /// An operator took it out of use: a member, a listener, or a group's balancing.
    Disabled,
    /// An operator put it back in use.
    Enabled,
    /// It takes a growing part of its share.
    SlowStart,
    /// It takes its whole share.
    FullShare,
    /// This balancer uses more members of a large group, or fewer.
    Aperture,
    /// It has more load than its share: part of its sessions is to go elsewhere.
    AlertRaised,
    /// It has its share again.
    AlertCleared,
    /// Sessions left it because it was under alert; one event for all in about a second.
    Moved,
    /// Somebody was told that sessions of it are about to go (drained, or under alert), and has answered or not.
    HandedOver,
    /// No member of the group can be used.
    AllDown,
    /// The group has a member that can be used again.
    Recovered,
    /// Requests are refused, because its members have as many as they can work on.
    Shedding,
    /// None was for a while.
    ShedEnded,
    /// It answers ten times slower than its group.
    Slow,
    /// It was not for a while.
    SlowEnded,
    /// An operator changed a setting while it runs.
    Changed,
    /// More reports came for a member than are taken.
    Flooded,
    /// A member does not have what its group's monitor asks it for.
    NoReports,
    /// A client refused what it was told of the group (xDS).
    Refused,
    /// A certificate was obtained from an authority, or renewed, and is shown from now on.
    CertificateObtained,
    /// A certificate could not be obtained or renewed; the one before is shown on, if there is one.
    CertificateFailed,
    /// Members were found, or are not found any more, by the sources of the group.
    MembersDiscovered,
    /// A source of members does not answer, or is not believed; its members stay.
    DiscoveryFailed,
    /// It answers again.
    DiscoveryRecovered,
    /// Another balancer is there to act together with (`[fleet]`), or is heard of again.
    BalancerJoined,
    /// Nothing is heard of it, though nobody says that it is gone.
    BalancerSilent,
    /// It is gone, and did not say so before.
    BalancerLost,
    /// It said that it goes.
    BalancerLeft,
    /// The store of what operators do and of registered members cannot be used, or has lost what it had; what is known stays.
    StoreLost,
    /// It can be used again, or has something again.
    StoreRecovered,
    /// The group is to have more members, or fewer.
    Scaled,
    /// A member that was started has ended by itself, and is gone.
    MemberEnded,
    /// Members cannot be started or stopped.
    ScalerFailed,
    /// They can be again.
    ScalerRecovered,
    /// A host has members of other groups, too, and what they do there begins or ceases to matter.
    HostShared,
    /// A new configuration is in force.
    Reloaded,
    /// A configuration was refused; the one before stays.
    ReloadRefused,
    /// Another process took over from this one, or this one from another.
    Upgraded,
    /// No other process could take over: this one goes on.
    UpgradeFailed,
    /// The process stops: listeners are closed, requests in flight end.
    Stopping,
}

/// One decision or change, with what it was decided on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The group concerned; empty for the whole process.
    pub group: Arc<str>,
    /// The member concerned.
    pub member: Option<Arc<str>>,
    /// One sentence for a person.
    pub why: String,
    /// The numbers it was decided on, by name.
    pub inputs: Vec<(String, f64)>,
}

/// How the reason of a readmission ends if the member cannot be used all the same.
pub(crate) const STILL_OUT: [&str; 3] = ["; it is down", "; it is draining", "; it is disabled"];

impl Event {
    /// Is it the end of an ejection of a member that is out for another reason, by what it says? That is no good news.
    pub fn in_vain(kind: EventKind, why: &str) -> bool {
        kind == EventKind::Readmitted && STILL_OUT.iter().any(|still| why.ends_with(still))
    }
}
