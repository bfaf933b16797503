//! What a group is configured to be, and what is counted of its traffic.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::{Knobs, Strategy};

/// A group as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpec {
    /// As configured.
    pub name: Arc<str>,
    /// How members are chosen.
    pub strategy: &'static Strategy,
    /// Its settings.
    pub knobs: Knobs,
    /// In the order of the configuration; names are unique.
    pub members: Vec<MemberSpec>,
    /// Active health checks; `None` means that members count as up from the start.
    pub health: Option<HealthSpec>,
    /// Passive outlier detection; `None` for off.
    pub outlier: Option<OutlierSpec>,
    /// How long a member that came back takes to get its whole share; zero for off.
    pub slow_start: Duration,
    /// What to do when no member can be used.
    pub when_all_down: WhenAllDown,
    /// Does no member get more than it can work on, by what is known of it, so that what finds no room waits or is refused? `None`
    /// for what is usual with the strategy ([`Strategy::limits`]).
    pub admission: Option<bool>,
    /// Within what time clients want their answers, where admission is on; `None` for as long as it takes where nobody waits for
    /// room beyond a few times as long as a request takes.
    pub objective: Option<Duration>,
    /// How many members this balancer uses at least of a large group, of which it uses a part ([`Analyzer::seat`](crate::Analyzer::seat));
    /// `None` for all. 0 counts as 1.
    pub aperture: Option<u32>,
}

impl GroupSpec {
    /// The same, with what is usual where nothing is said.
    pub fn admits(&self) -> bool {
        self.admission.unwrap_or(self.strategy.limits)
    }
}

/// A member as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSpec {
    /// As configured: `host:port`.
    pub name: Arc<str>,
    /// Resolved; port 0 stands for a name that has no address: the member is down.
    pub address: SocketAddr,
    /// Relative to the others; finite, above 0.
    pub capacity: f64,
    /// Most requests at once; `u32::MAX` for no limit.
    pub limit: u32,
    /// Whoever knows of it says that it is about to end: it gets nothing new, as if an operator drained it.
    pub leaving: bool,
    /// Somebody has found it to work at this address: one that was up by its health checks at another one stays so.
    pub checked: bool,
}

impl MemberSpec {
    /// Tells whether it is anywhere.
    pub fn placed(&self) -> bool {
        self.address.port() != 0
    }
}

/// When active checks change a member's state.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthSpec {
    /// Passed checks in a row that bring a member up (the very first pass is enough for a new member); 0 counts as 1.
    pub rise: u32,
    /// Failed checks in a row that take it down (the first is enough for a member not yet checked); 0 counts as 1.
    pub fall: u32,
}

/// When traffic ejects a member.
#[derive(Clone, Debug, PartialEq)]
pub struct OutlierSpec {
    /// A member is ejected as soon as its outcomes cannot be told from "fails every other request" by more than
    /// this chance of a false alarm; 0 for off.
    pub false_alarm: f64,
    /// Failures in a row that eject; 0 for off.
    pub consecutive: u32,
    /// How often success rates are compared.
    pub interval: Duration,
    /// A member whose success rate lies this many standard deviations below the mean of the others is ejected, if
    /// chance alone explains it less than once in a million; 0 for off.
    pub deviations: f64,
    /// Requests within an interval below which a member's success rate says nothing.
    pub min_requests: u64,
    /// First ejection's length; the k-th in a row lasts k times as long. For each such length that a member
    /// then stays in use, one is taken off k.
    pub ejection: Duration,
    /// Longest ejection.
    pub max_ejection: Duration,
    /// Never more than this share of the members is ejected, 0 to 1. One always may be, and the last member that
    /// can be used never is.
    pub max_ejected: f64,
}

/// What to do when no member can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAllDown {
    /// Refuse requests (503).
    Reject,
    /// Use all of them but the draining and disabled ones, as if they were up, even those not checked yet. In the plan they
    /// keep their real state.
    FailOpen,
}

/// A member's traffic since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests ended.
    pub requests: u64,
    /// Those that failed.
    pub failures: u64,
}
