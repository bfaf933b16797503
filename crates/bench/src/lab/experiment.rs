//! The experiment file: what is run, varied, broken, recorded, drawn and claimed. Data, no code.
//!
//! TOML into plain structs without flattening or tags, so that every error has its line and column. What the
//! parts say of one another is checked after that.

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

pub use application::{Application, Architecture, COPIES, Setting};
pub use balancer::{Balancer, BalancerKind, Binding};
pub use fleet::{Fleet, Members, Session};
pub use level::{Factor, Level};
pub use load::{Lasting, Load, Protocol, Sessions};
pub use scaler::{Crew, Decider, Pods, Scaler};
pub use value::{Bytes, Span};

use super::claim::{Only, Test};
use super::column::Column;
use super::metric::Metric;
use super::model;
use super::plan::Point;
use crate::member::Refusal;
use crate::pace::Arrival;
use crate::units;

/// How long a run may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Minutes: fewer levels, shorter points.
    Quick,
    /// As the experiment means it.
    Full,
}

impl Mode {
    /// As on the command line and in file names.
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
    /// One line.
    pub title: String,
    /// Which paper and figures it follows; empty if none.
    #[serde(default)]
    pub paper: String,
    /// What is done and why so.
    pub about: String,
    /// Where the results differ from the paper's, and why.
    #[serde(default)]
    pub differs: String,
    /// Servers under test.
    pub members: Fleet,
    /// What stands between.
    #[serde(default)]
    pub balancer: Settings,
    /// What joins clients, balancer and members.
    #[serde(default)]
    pub network: Network,
    /// What the clients do.
    pub load: Load,
    /// Members that come and go by load, in place of those that are always there.
    #[serde(default)]
    pub scaler: Option<Spanned<Scaler>>,
    /// A cycle of calls of several servers, in place of requests that are all alike.
    #[serde(default)]
    pub application: Option<Spanned<Application>>,
    /// A model of it all, whose numbers stand beside the measured ones.
    #[serde(default)]
    pub model: Option<Spanned<model::Part>>,
    /// How long and how often.
    pub plan: Plan,
    /// What is varied; every combination is a point. The last one varies fastest.
    #[serde(default, rename = "factor")]
    pub factors: Vec<Vary>,
    /// What goes wrong in every point, by the time since its load began.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Fault>,
    /// What is drawn.
    #[serde(default, rename = "figure")]
    pub figures: Vec<Figure>,
    /// What the results must satisfy.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// Settings of the balancer, as far as each kind has them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Which, where `balancer` is no factor: `plimsoll:round_robin`.
    pub kind: Option<Balancer>,
    /// Idle connections kept for each member (and thread).
    pub pool: Option<u32>,
    /// For so long (plimsoll and nginx; HAProxy's own purge is not touched).
    pub pool_idle: Option<Span>,
    /// Most requests at once at each member; more wait in the balancer.
    pub max_connections: Option<u32>,
    /// How many may wait in the balancer.
    pub queue: Option<u32>,
    /// And for how long.
    pub queue_timeout: Option<Span>,
    /// For a member to answer a request that it was given (plimsoll; HAProxy and nginx by what is nearest to it).
    pub per_try: Option<Span>,
    /// How members are checked.
    pub health: Health,
    /// Between two health checks of a member.
    pub health_interval: Option<Span>,
    /// How long a member that came back takes to get its whole share (plimsoll, haproxy).
    pub slow_start: Option<Span>,
    /// Threads that carry traffic (nginx has one).
    pub threads: Option<usize>,
    /// How many of them run, each with its part of the load and knowing nothing of the others; 1 if nothing is said.
    pub instances: Option<usize>,
    /// So many groups of plimsoll, each with a listener, its part of the load and a member at every server, where `groups` is no factor.
    pub groups: Option<Spanned<usize>>,
    /// Tries after the first of a request that met a broken connection and may be sent again, where `retries` is no
    /// factor; as each balancer does it by itself if nothing is said.
    pub retries: Option<u32>,
    /// What plimsoll alone has.
    pub plimsoll: Own,
    /// Take members out whose traffic fails, after five failures in a row and for ten seconds at first. If nothing is
    /// said only those do that do it by themselves.
    pub ejection: Option<bool>,
}

/// Settings of plimsoll that the others do not have, as they stand in its own file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Own {
    /// Of its listener.
    pub listener: toml::Table,
    /// Of its group.
    pub group: toml::Table,
}

impl Own {
    /// How often members report, as far as the group's monitor says so.
    pub(super) fn interval(&self) -> Option<Duration> {
        units::duration(self.group.get("monitor")?.get("interval")?.as_str()?).ok()
    }
}

/// How a balancer checks its members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// By a request, which waits for a worker like any other.
    #[default]
    Http,
    /// By a connection.
    Tcp,
    /// Not at all.
    Off,
}

/// What joins clients, balancer and members; the loopback interface if nothing is said.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Each is a host of its own, a network namespace, joined to the others by a switch. Takes root: where that cannot
    /// be had the experiment is skipped.
    pub namespaces: bool,
    /// How long a packet takes from one host to another.
    pub delay: Option<Span>,
}

/// How long and how often.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Times that each point is run.
    pub repetitions: Graded<Spanned<usize>>,
    /// Parts of equal length that each of them is cut into, each a sample. In a closed loop they are as long as a client takes
    /// to go around twice, if that is longer, and up to ten times as long as this makes them.
    pub batches: Graded<usize>,
    /// Run the balancers in turn, repetition by repetition, rather than one after the other: what the machine does
    /// besides hits all of them alike.
    #[serde(default)]
    pub interleaved: bool,
    /// Left out at the beginning of each. In a closed loop it goes on until three times as many requests as there are
    /// clients have been answered: only then does every client meet the queue and the sessions as they will stay.
    pub warmup: Graded<Span>,
    /// Measured, of each.
    pub duration: Graded<Span>,
    /// What is seen by time is seen so often: once a second unless this is said.
    #[serde(default)]
    pub tick: Option<Graded<Span>>,
    /// A closed loop goes on, batch by batch and ten times as long at most, until half of the 95 % interval of the response
    /// time is no more than this part of it.
    #[serde(default)]
    pub precision: Option<Spanned<Graded<f64>>>,
}

/// One value for each length of run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graded<T> {
    /// With `--full`.
    pub full: T,
    /// With `--quick`.
    pub quick: T,
}

impl<T> Graded<T> {
    /// The one for `mode`.
    pub fn of(&self, mode: Mode) -> &T {
        match mode {
            Mode::Quick => &self.quick,
            Mode::Full => &self.full,
        }
    }
}

/// What is varied.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vary {
    /// Which.
    pub vary: Spanned<Factor>,
    /// Levels with `--full`.
    pub full: Spanned<Vec<Level>>,
    /// Levels with `--quick`.
    pub quick: Spanned<Vec<Level>>,
}

impl Vary {
    /// The levels for `mode`.
    pub fn levels(&self, mode: Mode) -> &[Level] {
        match mode {
            Mode::Quick => self.quick.get_ref(),
            Mode::Full => self.full.get_ref(),
        }
    }
}

/// Something that goes wrong, or right again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Since the load began, the warm-up included.
    pub at: Graded<Span>,
    /// What.
    pub act: Act,
    /// To which member, from 1 on; not for `add`.
    #[serde(default = "one")]
    pub member: usize,
    /// How many times slower, for `slow`.
    #[serde(default)]
    pub factor: Option<f64>,
    /// Share of the requests, for `fail`: 1 if nothing is said.
    #[serde(default)]
    pub rate: Option<f64>,
    /// After what time they fail, for `fail`: at once if nothing is said.
    #[serde(default)]
    pub after: Option<Span>,
    /// How they fail, for `fail`: `close`, or a status such as `"503"`; 500 if nothing is said.
    #[serde(default, deserialize_with = "value::refusal")]
    pub with: Option<Refusal>,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The process is killed: connections are reset, its port refuses.
    Kill,
    /// It is started again on the same port.
    Start,
    /// The process is stopped: connections stay, nothing answers.
    Stop,
    /// It goes on.
    Continue,
    /// It becomes `factor` times slower.
    Slow,
    /// Its requests fail without being served.
    Fail,
    /// It is cut off the network: packets to it and from it are lost, nothing is reset. Needs namespaces.
    CutOff,
    /// It is on the network again.
    Join,
    /// Another member joins (plimsoll only: its file is written anew and read again).
    Add,
}

/// What is drawn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name of its file.
    pub name: String,
    /// Above it.
    pub title: String,
    /// From left to right.
    pub x: Spanned<Along>,
    /// From bottom to top.
    pub y: Metric,
    /// And more of the same kind, each with a line of its own, where there is no `series`.
    #[serde(default)]
    pub also: Vec<Metric>,
    /// A line for each level; for each member if `x` is `seconds` and this is not given.
    #[serde(default)]
    pub series: Option<Spanned<Factor>>,
    /// Of points with all of these levels.
    #[serde(default)]
    pub only: Vec<Only>,
    /// Draw the vertical axis by powers of ten.
    #[serde(default)]
    pub log: bool,
    /// What the paper says of its figure.
    #[serde(default)]
    pub paper: String,
}

/// What lies on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Along {
    /// Servers behind the balancer.
    Endpoints,
    /// Clients of a closed loop.
    Concurrency,
    /// Load relative to capacity.
    Share,
    /// Requests per second.
    Rate,
    /// Age of the loads that an application's agent believes.
    Age,
    /// Balancers at once.
    Instances,
    /// Groups at the same servers.
    Groups,
    /// Time since the load began.
    Seconds,
}

impl Along {
    /// The factor that it is; `None` for time.
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

/// What the results must satisfy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// In a sentence.
    pub says: String,
    /// Where the paper has it from, or what it says instead.
    #[serde(default)]
    pub paper: String,
    /// Must it hold? One of the paper's that does not hold here, for the reasons in `differs`, is decided and shown
    /// like any other, but the run does not fail by it.
    #[serde(default = "yes")]
    pub required: bool,
    /// By points with all of these levels.
    #[serde(default)]
    pub only: Vec<Only>,
    /// By what was measured, or what the model says of the same points.
    #[serde(default)]
    pub column: Column,
    /// How it is decided.
    pub test: Spanned<Test>,
}

impl Claim {
    /// Can these points decide it? Those of the quick form may be too few; those of the full one are not.
    pub fn is_asked(&self, points: &[Point]) -> bool {
        let levels = points.iter().map(|point| &point.levels);
        let levels = levels.filter(|levels| self.only.iter().all(|only| only.keeps(levels)));
        self.test.get_ref().is_asked(&levels.collect::<Vec<_>>())
    }
}

/// What is wrong with an experiment file.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    /// Where, in bytes of the text.
    pub at: Range<usize>,
    /// One sentence.
    pub message: String,
}

impl Experiment {
    /// Reads a file's text.
    ///
    /// # Errors
    /// All that is wrong with it: one thing if it cannot be read at all.
    pub fn parse(text: &str) -> Result<Self, Vec<Wrong>> {
        let experiment: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().unwrap_or(text.len()..text.len());
            vec![Wrong { at, message: error.message().to_owned() }]
        })?;
        let wrong = check::check(&experiment);
        if wrong.is_empty() { Ok(experiment) } else { Err(wrong) }
    }

    /// Are the members asked how many requests came to them?
    pub fn counts(&self) -> bool {
        !self.faults.is_empty() || self.asks(&[Metric::Arrivals, Metric::Dispersion, Metric::Swing])
    }

    /// Is the balancer asked how many sessions it moved?
    pub fn follows(&self) -> bool {
        self.asks(&[Metric::Moves, Metric::Moved])
    }

    fn asks(&self, metrics: &[Metric]) -> bool {
        self.figures.iter().any(|figure| metrics.contains(&figure.y))
            || self.claims.iter().any(|claim| metrics.contains(&claim.test.get_ref().metric()))
    }

    /// What clients, balancer and members speak, where `protocol` is no factor.
    pub fn protocol(&self) -> Protocol {
        self.load.protocol.as_ref().map(|protocol| *protocol.get_ref()).unwrap_or_default()
    }

    /// The factor's levels, if it is varied.
    pub fn levels(&self, factor: Factor, mode: Mode) -> Option<&[Level]> {
        self.factors.iter().find(|vary| *vary.vary.get_ref() == factor).map(|vary| vary.levels(mode))
    }

    /// What joins them, for reports.
    pub fn joined(&self) -> String {
        if !self.network.namespaces {
            return "all on the loopback interface of one machine".to_owned();
        }
        let way = |Span(delay)| format!("; from one to another a packet takes {}", units::short(delay));
        format!(
            "client, balancer and each member are hosts of their own at a switch (network namespaces of one machine){}",
            self.network.delay.map_or_else(String::new, way)
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

const fn poisson() -> Arrival {
    Arrival::Poisson
}

const fn five_seconds() -> Span {
    Span(Duration::from_secs(5))
}

#[cfg(test)]
mod tests;
