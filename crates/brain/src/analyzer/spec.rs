//! The configuration of a group, and the counts of its traffic.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::{Strategy, StrategyParams};

/// The configuration of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpec {
    /// The name in the configuration.
    pub name: Arc<str>,
    /// The strategy that chooses members.
    pub strategy: &'static Strategy,
    /// The settings of the strategy.
    pub params: StrategyParams,
    /// The members in the order of the configuration; names are unique.
    pub members: Vec<MemberSpec>,
    /// Active health checks; `None` means that members count as up from the start.
    pub health: Option<HealthSpec>,
    /// Passive outlier ejection; `None` for off.
    pub outlier: Option<OutlierSpec>,
    /// The time in which a member that came back reaches its whole share; zero for off.
    pub slow_start: Duration,
    /// The behaviour when no member can be used.
    pub when_all_down: WhenAllDown,
    /// Whether members are kept within their concurrency limits, so that excess requests wait or are
    /// rejected. `None` for the default of the strategy ([`Strategy::enforces_limits`]).
    pub admission: Option<bool>,
    /// The latency objective of the clients, with admission. With `None` clients are assumed to wait for a
    /// second, or for four times as long as requests take if that is more.
    pub objective: Option<Duration>,
    /// The minimum number of members that this balancer uses of a large group
    /// ([`Analyzer::set_balancer_seed`](crate::Analyzer::set_balancer_seed)); `None` for all. 0 counts as 1.
    pub aperture: Option<u32>,
}

impl GroupSpec {
    /// Returns whether admission is on, by the setting or the default of the strategy.
    pub fn has_admission(&self) -> bool {
        self.admission.unwrap_or(self.strategy.enforces_limits)
    }
}

/// The configuration of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSpec {
    /// The name in the configuration: `host:port`.
    pub name: Arc<str>,
    /// The resolved address. Port 0 stands for a name without an address: the member is down.
    pub address: SocketAddr,
    /// The capacity relative to the others; finite, above 0.
    pub capacity: f64,
    /// The maximum number of simultaneous requests; `u32::MAX` for no limit.
    pub limit: u32,
    /// Whether its source announced that it is about to end: it gets nothing new, as if an operator drained
    /// it.
    pub leaving: bool,
    /// Whether it was found to work at this address: a member that was up by its health checks at another
    /// address stays up.
    pub checked: bool,
}

impl MemberSpec {
    /// Returns `true` if the member has an address.
    pub fn has_address(&self) -> bool {
        self.address.port() != 0
    }
}

/// The thresholds at which active checks change a member's state.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthSpec {
    /// The passed checks in a row that bring a member up (the very first pass is enough for a new member); 0
    /// counts as 1.
    pub rise: u32,
    /// The failed checks in a row that take it down (the first is enough for a member not yet checked); 0
    /// counts as 1.
    pub fall: u32,
}

/// The thresholds at which traffic ejects a member.
#[derive(Clone, Debug, PartialEq)]
pub struct OutlierSpec {
    /// The chance of a false alarm at which a member is ejected: its outcomes then fit "fails every other
    /// request" rather than the fleet's failures. 0 for off.
    pub false_alarm: f64,
    /// The failures in a row that eject; 0 for off.
    pub consecutive: u32,
    /// The interval of comparisons of success rates.
    pub interval: Duration,
    /// The number of standard deviations below the mean of the others at which a success rate ejects, if
    /// chance alone explains it less than once in a million; 0 for off.
    pub deviations: f64,
    /// The requests within an interval below which a member's success rate does not count.
    pub min_requests: u64,
    /// The length of the first ejection; the k-th in a row lasts k times as long. For each such length that a
    /// member then stays in use, one is taken off k.
    pub ejection: Duration,
    /// The longest ejection.
    pub max_ejection: Duration,
    /// The maximum share of ejected members, 0 to 1. One member may always be ejected, and the last usable
    /// one never is.
    pub max_ejected: f64,
}

/// The behaviour when no member can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAllDown {
    /// Reject requests (503).
    Reject,
    /// Use all members but the draining and disabled ones, as if they were up, even those not checked yet. In
    /// the plan they keep their real state.
    FailOpen,
}

/// The traffic of a member since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberTraffic {
    /// The ended requests.
    pub requests: u64,
    /// The failed ones among them.
    pub failures: u64,
}
