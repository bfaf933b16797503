//! What to know of which members, and how: the configuration, checked. Nothing in here can be wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::Expression;

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// Unique.
    pub name: Arc<str>,
    /// Their names are unique within the group.
    pub members: Vec<MemberSettings>,
    /// What its members' loads are and where they come from; without one, what is told is kept and shown, and no
    /// load is made of it.
    pub monitor: Option<MonitorSettings>,
    /// What its members' weights are, if the strategy takes them from an expression.
    pub weight: Option<Expression>,
}

/// One member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSettings {
    /// As configured: `host:port`.
    pub name: Arc<str>,
    /// Resolved.
    pub address: SocketAddr,
    /// As configured.
    pub capacity: f64,
    /// Label of the machine that it is on, if it has one: reports may name it.
    pub host: Option<Arc<str>>,
}

/// What loads are and where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorSettings {
    /// Where figures come from.
    pub source: Source,
    /// What a member's load is.
    pub metric: Expression,
    /// Between two looks, or two reports that are expected.
    pub interval: Duration,
    /// Whom to ask; for `Pull` and `Prometheus`; of `OrcaOob` the port and the timeout.
    pub target: Target,
}

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name or address of a host that answers for all members, looked up at each look; each member's own if `None`.
    pub host: Option<String>,
    /// The member's own port if `None`.
    pub port: Option<u16>,
    /// Begins with `/`; `{member}` in it stands for the member's name.
    pub path: String,
    /// For one look as a whole.
    pub timeout: Duration,
}

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Told by the member, or by anyone on its behalf.
    Push,
    /// Asked of a monitor beside the member.
    Pull,
    /// Only what the balancer sees itself.
    Passive,
    /// Told by the member in its answers.
    Orca,
    /// Told by the member on a stream that the balancer asks for.
    OrcaOob,
    /// Read off a page of metrics.
    Prometheus,
}

impl Source {
    /// As in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Passive => "passive",
            Self::Orca => "orca",
            Self::OrcaOob => "orca-oob",
            Self::Prometheus => "prometheus",
        }
    }
}

impl GroupSettings {
    /// What is told counts for so long: three intervals, at least ten seconds.
    pub(crate) fn life(&self) -> Duration {
        self.monitor.as_ref().map_or(LIFE, |monitor| (monitor.interval * 3).max(LIFE))
    }

    /// The expressions in use.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.monitor.iter().map(|monitor| &monitor.metric).chain(&self.weight)
    }
}

const LIFE: Duration = Duration::from_secs(10);
