//! Strategies: pure functions from a plan and an ask to a member.
//!
//! To add one: write `strategy/<name>.rs` and its line in [`ALL`]. Config name, help, schema, the laws in
//! `tests/laws.rs` and the benchmark follow from the list.

use alloc::vec::Vec;

use crate::{Ask, Member, Plan, Table};

mod round_robin;

/// Every strategy there is.
pub const ALL: &[&Strategy] = &[&round_robin::STRATEGY];

/// A way to choose a member.
#[derive(Debug)]
pub struct Strategy {
    /// As written in the configuration.
    pub name: &'static str,
    /// One line for help and documents, without a full stop.
    pub about: &'static str,
    /// Its settings.
    pub knobs: &'static [Knob],
    /// Does it read [`Vitals::latency`](crate::Vitals::latency)? If not, nobody keeps it.
    pub reads_latency: bool,
    /// Does it read [`Ask::key`]? If not, nobody computes it.
    pub reads_key: bool,
    /// Slow path: what to compute when members or weights change.
    pub prepare: fn(&[Member], &Knobs) -> Table,
    /// Fast path: an index into [`Plan::members`], which is not empty.
    pub choose: fn(&Plan, &Ask) -> usize,
}

/// One number a strategy can be set by.
#[derive(Debug)]
pub struct Knob {
    /// As written in the configuration.
    pub name: &'static str,
    /// One line, with the unit.
    pub about: &'static str,
    /// What it is when not set.
    pub default: f64,
    /// Least allowed value.
    pub min: f64,
    /// Greatest allowed value.
    pub max: f64,
}

/// Values of a strategy's knobs, in the order of [`Strategy::knobs`].
#[derive(Clone, Debug, PartialEq)]
pub struct Knobs(pub Vec<f64>);

impl Knobs {
    /// Every knob at its default.
    pub fn defaults(strategy: &Strategy) -> Self {
        Self(strategy.knobs.iter().map(|knob| knob.default).collect())
    }
}

/// The strategy called `name`.
pub fn find(name: &str) -> Option<&'static Strategy> {
    ALL.iter().find(|strategy| strategy.name == name).copied()
}

/// For strategies that prepare nothing.
fn nothing(_: &[Member], _: &Knobs) -> Table {
    Table::None
}
