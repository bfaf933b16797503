//! The experiment file: what is run, varied, broken, recorded, drawn and claimed. It is data without code.
//!
//! TOML is read into plain structs without flattening or tags, so that every error has its line and column.
//! Constraints between the parts are checked after that.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

mod application;
mod balancer;
mod check;
mod fleet;
mod level;
mod load;
mod scaler;
mod value;

pub use application::{AgentArchitecture, ApplicationSettings, COPIES, PointApplication};
pub use balancer::{BalancerKind, BalancerSpec, SessionBinding};
pub use fleet::{MemberFleet, MemberGroup, SessionCost};
pub use level::{Factor, FactorLevel};
pub use load::{ClientGroup, LoadDuration, LoadProtocol, LoadSettings};
pub use scaler::{HpaSettings, PointScaler, ScalerSettings, ScalingPolicy};
pub use value::{ByteSize, DurationValue};

use super::claim::{ClaimTest, PointFilter};
use super::metric::Metric;
use super::model;
use super::plan::ExperimentPoint;
use super::result_source::ResultSource;
use crate::member::FailureResponse;
use crate::pace::ArrivalProcess;
use crate::units;

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// Minutes: fewer levels, shorter points.
    Quick,
    /// The full length of the experiment.
    Full,
}

impl RunLength {
    /// Returns the name as on the command line and in file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// An experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The title, one line.
    pub title: String,
    /// The paper and figures it follows; empty if none.
    #[serde(default)]
    pub paper: String,
    /// The method and its reasons.
    pub about: String,
    /// The differences of the results from the paper's, and their reasons.
    #[serde(default)]
    pub differs: String,
    /// The servers under test.
    pub members: MemberFleet,
    /// The balancer.
    #[serde(default)]
    pub balancer: BalancerSettings,
    /// The network between clients, balancer and members.
    #[serde(default)]
    pub network: NetworkSettings,
    /// The load.
    pub load: LoadSettings,
    /// The scaler that starts and stops members by load, in place of a fixed number.
    #[serde(default)]
    pub scaler: Option<Spanned<ScalerSettings>>,
    /// A cycle of calls of several servers, in place of independent requests.
    #[serde(default)]
    pub application: Option<Spanned<ApplicationSettings>>,
    /// A model of the experiment; its results stand beside the measured ones.
    #[serde(default)]
    pub model: Option<Spanned<model::ModelSettings>>,
    /// The lengths and numbers of runs.
    pub plan: RunPlan,
    /// The varied factors; every combination of levels is a point. The last one varies fastest.
    #[serde(default, rename = "factor")]
    pub factors: Vec<VariedFactor>,
    /// The faults of every point, by the time since its load began.
    #[serde(default, rename = "fault")]
    pub faults: Vec<FaultInjection>,
    /// The figures.
    #[serde(default, rename = "figure")]
    pub figures: Vec<FigureSettings>,
    /// The claims about the results.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// The balancer's settings, as far as each kind supports them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerSettings {
    /// The kind, where `balancer` is no factor: `plimsoll:round_robin`.
    pub kind: Option<BalancerSpec>,
    /// The idle connections kept for each member (and thread).
    pub max_idle_connections: Option<u32>,
    /// The time for which they are kept (plimsoll and nginx; HAProxy's own purge is unchanged).
    pub pool_idle_timeout: Option<DurationValue>,
    /// The maximum concurrent requests at each member; excess ones wait in the balancer.
    pub max_connections: Option<u32>,
    /// The maximum number of requests that wait in the balancer.
    pub queue: Option<u32>,
    /// The maximum time that they wait.
    pub queue_timeout: Option<DurationValue>,
    /// The time-out of a member's answer (plimsoll; HAProxy and nginx by their nearest setting).
    pub per_try: Option<DurationValue>,
    /// The health checks.
    pub health: HealthCheckKind,
    /// The time between two health checks of a member.
    pub health_interval: Option<DurationValue>,
    /// The time in which a returned member reaches its whole share (plimsoll, haproxy).
    pub slow_start: Option<DurationValue>,
    /// The threads that carry traffic (nginx has one).
    pub threads: Option<usize>,
    /// The number of balancers, each with its part of the load and independent of the others; 1 by default.
    pub instances: Option<usize>,
    /// The number of plimsoll's groups, where `groups` is no factor. Each has a listener, its part of the
    /// load and a member at every server.
    pub groups: Option<Spanned<usize>>,
    /// The maximum retries of a request after a broken connection, if it may be repeated, where `retries` is
    /// no factor; by default those of each balancer.
    pub retries: Option<u32>,
    /// The settings of plimsoll alone.
    pub plimsoll: PlimsollSettings,
    /// Whether to eject members with failing traffic, after five failures in a row and for ten seconds at
    /// first. By default only balancers that do so by themselves eject members.
    pub ejection: Option<bool>,
}

/// Settings of plimsoll that the others do not have, in the form of its own file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlimsollSettings {
    /// The settings of its listener.
    pub listener: toml::Table,
    /// The settings of its group.
    pub group: toml::Table,
}

impl PlimsollSettings {
    /// Returns the report interval of the members, if the group's monitor sets it.
    pub(super) fn report_interval(&self) -> Option<Duration> {
        units::parse_duration(self.group.get("monitor")?.get("interval")?.as_str()?).ok()
    }
}

/// The kind of a balancer's health checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthCheckKind {
    /// A request, which waits for a worker like any other.
    #[default]
    Http,
    /// A connection.
    Tcp,
    /// No checks.
    Off,
}

/// The network between clients, balancer and members; the loopback interface by default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSettings {
    /// Whether each is a host of its own, a network namespace, joined to the others by a switch. This needs
    /// root; without it the experiment is skipped.
    pub namespaces: bool,
    /// The delay of a packet from one host to another.
    pub delay: Option<DurationValue>,
}

/// The lengths and numbers of runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// The repetitions of each point.
    pub repetitions: ByRunLength<Spanned<usize>>,
    /// The batches of equal length in each repetition, each a sample. In a closed loop a batch is at least as
    /// long as two rounds of a client, and at most ten times as long as this number gives.
    pub batches: ByRunLength<usize>,
    /// Whether to run the balancers in turn, repetition by repetition, rather than one after the other: other
    /// activity of the machine then affects all of them alike.
    #[serde(default)]
    pub interleaved: bool,
    /// The warm-up, which is left out of each repetition. In a closed loop it lasts until the number of
    /// answers is three times that of the clients: only then does every client meet the queue and the
    /// sessions in their steady state.
    pub warmup: ByRunLength<DurationValue>,
    /// The measured time of each repetition.
    pub duration: ByRunLength<DurationValue>,
    /// The time between two samples of values over time; a second by default.
    #[serde(default)]
    pub tick: Option<ByRunLength<DurationValue>>,
    /// The precision of a closed loop: it continues, batch by batch and at most ten times as long, until half
    /// of the 95 % interval of the response time is at most this part of it.
    #[serde(default)]
    pub precision: Option<Spanned<ByRunLength<f64>>>,
}

/// One value for each length of a run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByRunLength<T> {
    /// The value with `--full`.
    pub full: T,
    /// The value with `--quick`.
    pub quick: T,
}

impl<T> ByRunLength<T> {
    /// Returns the value for `mode`.
    pub fn for_length(&self, mode: RunLength) -> &T {
        match mode {
            RunLength::Quick => &self.quick,
            RunLength::Full => &self.full,
        }
    }
}

/// A varied factor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariedFactor {
    /// The factor.
    pub vary: Spanned<Factor>,
    /// The levels with `--full`.
    pub full: Spanned<Vec<FactorLevel>>,
    /// The levels with `--quick`.
    pub quick: Spanned<Vec<FactorLevel>>,
}

impl VariedFactor {
    /// Returns the levels for `mode`.
    pub fn levels(&self, mode: RunLength) -> &[FactorLevel] {
        match mode {
            RunLength::Quick => self.quick.get_ref(),
            RunLength::Full => self.full.get_ref(),
        }
    }
}

/// A fault, or the end of one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultInjection {
    /// The time since the load began, the warm-up included.
    pub at: ByRunLength<DurationValue>,
    /// The action.
    pub act: FaultAction,
    /// The number of the member, from 1 on; not for `add`.
    #[serde(default = "one")]
    pub member: usize,
    /// The slowdown, for `slow`.
    #[serde(default)]
    pub factor: Option<f64>,
    /// The share of the requests, for `fail`; 1 by default.
    #[serde(default)]
    pub rate: Option<f64>,
    /// The time after which they fail, for `fail`; at once by default.
    #[serde(default)]
    pub after: Option<DurationValue>,
    /// The form of the failure, for `fail`: `close`, or a status such as `"503"`; 500 by default.
    #[serde(default, deserialize_with = "value::refusal")]
    pub with: Option<FailureResponse>,
}

/// The action of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultAction {
    /// Kills the process: connections are reset, its port refuses.
    Kill,
    /// Starts it again on the same port.
    Start,
    /// Stops the process: connections stay, it answers nothing.
    Stop,
    /// Continues the process.
    Continue,
    /// Makes it `factor` times slower.
    Slow,
    /// Makes its requests fail without being served.
    Fail,
    /// Cuts it off the network: packets in both directions are lost, nothing is reset. Needs namespaces.
    CutOff,
    /// Joins it to the network again.
    Join,
    /// Adds another member (plimsoll only: its file is rewritten and reloaded).
    Add,
}

/// A figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureSettings {
    /// The name of its file.
    pub name: String,
    /// The title above it.
    pub title: String,
    /// The horizontal axis.
    pub x: Spanned<XAxis>,
    /// The vertical axis.
    pub y: Metric,
    /// Further metrics of the same kind, each with a line of its own, where there is no `series`.
    #[serde(default)]
    pub also: Vec<Metric>,
    /// The factor with one line per level. Without it, a figure over `seconds` has a line for each member.
    #[serde(default)]
    pub series: Option<Spanned<Factor>>,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
    /// Whether the vertical axis is logarithmic.
    #[serde(default)]
    pub log: bool,
    /// The paper's description of its figure.
    #[serde(default)]
    pub paper: String,
}

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XAxis {
    /// Servers behind the balancer.
    Endpoints,
    /// Clients of a closed loop.
    Concurrency,
    /// Load relative to capacity.
    Share,
    /// Requests per second.
    Rate,
    /// Age of the loads that an application's agent uses.
    Age,
    /// Balancers at once.
    Instances,
    /// Groups at the same servers.
    Groups,
    /// Time since the load began.
    Seconds,
}

impl XAxis {
    /// Returns its factor; `None` for time.
    pub fn factor(self) -> Option<Factor> {
        match self {
            Self::Endpoints => Some(Factor::Endpoints),
            Self::Concurrency => Some(Factor::Concurrency),
            Self::Share => Some(Factor::Share),
            Self::Rate => Some(Factor::Rate),
            Self::Age => Some(Factor::Age),
            Self::Instances => Some(Factor::Instances),
            Self::Groups => Some(Factor::Groups),
            Self::Seconds => None,
        }
    }
}

/// A claim about the results.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim as a sentence.
    pub says: String,
    /// The paper's source of the claim, or its deviating result.
    #[serde(default)]
    pub paper: String,
    /// Whether the claim must hold. A claim of the paper that does not hold here, for the reasons in
    /// `differs`, is decided and shown like any other, but does not fail the run.
    #[serde(default = "yes")]
    pub required: bool,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
    /// The column: measurements, or the model's results for the same points.
    #[serde(default)]
    pub column: ResultSource,
    /// The test.
    pub test: Spanned<ClaimTest>,
}

impl Claim {
    /// Returns `true` if these points can decide the claim. Those of the quick form may be too few; those of
    /// the full form are not.
    pub fn is_decidable_by(&self, points: &[ExperimentPoint]) -> bool {
        let point_levels = points.iter().map(|point| &point.levels);
        let levels = point_levels.filter(|levels| self.only.iter().all(|filter| filter.matches(levels)));
        self.test.get_ref().is_decidable_by(&levels.collect::<Vec<_>>())
    }
}

/// An error in an experiment file.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperimentError {
    /// The place, in bytes of the text.
    pub span: Range<usize>,
    /// The message, one sentence.
    pub message: String,
}

impl Experiment {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns all errors; only the first if the text cannot be read at all.
    pub fn parse(text: &str) -> Result<Self, Vec<ExperimentError>> {
        let experiment: Self = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(text.len()..text.len());
            vec![ExperimentError { span, message: error.message().to_owned() }]
        })?;
        let errors = check::check(&experiment);
        if errors.is_empty() { Ok(experiment) } else { Err(errors) }
    }

    /// Returns `true` if the members must report the number of their requests.
    pub fn needs_request_counts(&self) -> bool {
        !self.faults.is_empty()
            || self.uses_any_metric(&[Metric::Arrivals, Metric::Dispersion, Metric::Swing])
    }

    /// Returns `true` if the balancer must report the number of moved sessions.
    pub fn needs_session_moves(&self) -> bool {
        self.uses_any_metric(&[Metric::Moves, Metric::Moved])
    }

    fn uses_any_metric(&self, metrics: &[Metric]) -> bool {
        self.figures.iter().any(|figure| metrics.contains(&figure.y))
            || self.claims.iter().any(|claim| metrics.contains(&claim.test.get_ref().metric()))
    }

    /// Returns the protocol of clients, balancer and members, where `protocol` is no factor.
    pub fn protocol(&self) -> LoadProtocol {
        self.load.protocol.as_ref().map(|protocol| *protocol.get_ref()).unwrap_or_default()
    }

    /// Returns the factor's levels, if it is varied.
    pub fn levels(&self, factor: Factor, mode: RunLength) -> Option<&[FactorLevel]> {
        self.factors
            .iter()
            .find(|varied_factor| *varied_factor.vary.get_ref() == factor)
            .map(|varied_factor| varied_factor.levels(mode))
    }

    /// Returns a description of the network, for reports.
    pub fn network_description(&self) -> String {
        if !self.network.namespaces {
            return "all on the loopback interface of one machine".to_owned();
        }
        let describe_delay = |DurationValue(delay)| {
            format!("; from one to another a packet takes {}", units::format_duration(delay))
        };
        format!(
            "client, balancer and each member are hosts of their own at a switch (network namespaces of one \
             machine){}",
            self.network.delay.map_or_else(String::new, describe_delay)
        )
    }
}

const fn one() -> usize {
    1
}

const fn four() -> usize {
    4
}

const fn thousand() -> usize {
    1024
}

const fn yes() -> bool {
    true
}

const fn poisson() -> ArrivalProcess {
    ArrivalProcess::Poisson
}

const fn five_seconds() -> DurationValue {
    DurationValue(Duration::from_secs(5))
}

#[cfg(test)]
mod tests;
