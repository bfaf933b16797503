//! The validated settings of the observations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::Expression;

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// The group's name, unique.
    pub name: Arc<str>,
    /// The members; their names are unique within the group.
    pub members: Vec<MemberSettings>,
    /// The monitor of the members' loads. Without one, reports are stored and shown, but yield no load.
    pub monitor: Option<MonitorSettings>,
    /// The expression of the members' weights, if the strategy uses one.
    pub weight: Option<Expression>,
}

/// One member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberSettings {
    /// The name as configured: `host:port`.
    pub name: Arc<str>,
    /// The resolved address.
    pub address: SocketAddr,
    /// The capacity as configured.
    pub capacity: f64,
    /// The label of the member's machine, if it has one: reports may refer to it.
    pub host: Option<Arc<str>>,
}

/// The definition and the source of loads.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorSettings {
    /// The source of the figures.
    pub source: MetricSource,
    /// The expression of a member's load.
    pub metric: Expression,
    /// The interval between two polls, or between two expected reports.
    pub interval: Duration,
    /// The target of polls, for `Pull` and `Prometheus`; for `OrcaOob` the port and the timeout.
    pub target: MonitorTarget,
}

/// The target of polls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorTarget {
    /// The name or address of a host that responds for all members, resolved at each poll; each member's own
    /// if `None`.
    pub host: Option<String>,
    /// The port; the member's own if `None`.
    pub port: Option<u16>,
    /// The path, which begins with `/`; `{member}` in it stands for the member's name.
    pub path: String,
    /// The time limit of a poll as a whole.
    pub timeout: Duration,
}

/// The source of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricSource {
    /// Reported by the member, or by another sender on its behalf.
    Push,
    /// Polled from a monitor beside the member.
    Pull,
    /// Observed by the balancer only.
    Passive,
    /// Reported by the member in its responses.
    Orca,
    /// Reported by the member on a stream that the balancer requests.
    OrcaOob,
    /// Read from a page of metrics.
    Prometheus,
}

impl MetricSource {
    /// Returns the name in the configuration.
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
    /// Returns the time that reports stay valid: three intervals, at least ten seconds.
    pub(crate) fn report_lifetime(&self) -> Duration {
        self.monitor
            .as_ref()
            .map_or(MIN_REPORT_LIFETIME, |monitor| (monitor.interval * 3).max(MIN_REPORT_LIFETIME))
    }

    /// Returns the expressions in use.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.monitor.iter().map(|monitor| &monitor.metric).chain(&self.weight)
    }
}

const MIN_REPORT_LIFETIME: Duration = Duration::from_secs(10);
