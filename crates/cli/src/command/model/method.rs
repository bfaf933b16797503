//! The ways to find out what a model does. A way is a line here.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use plimsoll_lqn::{Effort, Findings, Model, Stuck, simulate, solve};

use super::{part, print};
use crate::command::Globals;

/// A way.
#[derive(Debug)]
pub(super) struct Method {
    /// Of its command, too.
    pub(super) name: &'static str,
    what: &'static str,
    /// By formulas, which leave some things out?
    formulas: bool,
    solve: fn(&Model, &Effort) -> Result<Findings, Stuck>,
}

/// All ways; the first is taken where none is named.
pub(super) const ALL: &[Method] = &[
    Method {
        name: "simulate",
        what: "Events are drawn; numbers have intervals",
        formulas: false,
        solve: simulate,
    },
    Method {
        name: "solve",
        what: "By formulas, at once; no intervals",
        formulas: true,
        solve: |model, _| Ok(solve(model).0),
    },
];

/// How a model is solved.
#[derive(clap::Args, Debug)]
pub(super) struct How {
    /// The way to find out what a model does
    #[arg(long, value_name = "METHOD", default_value = ALL[0].name, value_parser = parser())]
    pub(super) method: &'static Method,

    /// Of simulations: same seed, same numbers; all models that are compared are drawn alike
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Of simulations: end when every throughput and response time is known to this part of it to either side
    #[arg(long, value_name = "PART", default_value_t = 0.01, value_parser = part)]
    precision: f64,

    /// Of simulations: end after about so many events at the latest
    #[arg(long, value_name = "NUMBER", default_value_t = 2_000_000)]
    events: u64,
}

impl How {
    /// By the method that was named.
    pub(super) fn solve(&self, model: &Model) -> Result<Findings, Stuck> {
        self.by(self.method, model)
    }

    /// What it leaves out of these models, each once; said, too.
    pub(super) fn left_out<'m>(
        &self,
        models: impl Iterator<Item = &'m Model>,
        globals: &Globals,
    ) -> Vec<String> {
        if self.method.formulas { print::left_out(models, globals) } else { Vec::new() }
    }

    /// By this one.
    pub(super) fn by(&self, method: &Method, model: &Model) -> Result<Findings, Stuck> {
        let effort = Effort { seed: self.seed, events: self.events, precision: self.precision };
        (method.solve)(model, &effort)
    }
}

fn parser() -> impl TypedValueParser<Value = &'static Method> {
    let names = ALL.iter().map(|method| PossibleValue::new(method.name).help(method.what));
    PossibleValuesParser::new(names).map(|name| ALL.iter().find(|own| own.name == name).unwrap_or(&ALL[0]))
}
