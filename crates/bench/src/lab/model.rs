//! `[model]`: a layered queueing network of what an experiment runs, solved and simulated for each of its points.
//!
//! Its parameters follow the point's levels; its numbers get the names of the lab's metrics, so that they stand beside what
//! was measured, in figures, in the report and in claims. The simulation is drawn from the same seed for all points.

use std::collections::BTreeMap;

use plimsoll_lqn::ask::bottleneck::{Kind, bottleneck};
use plimsoll_lqn::ask::{self, lines};
use plimsoll_lqn::{Effort, Findings, Model, read, simulate, solve};
use serde::{Deserialize, Serialize};

use super::column::Column;
use super::experiment::{Factor, Level};
use super::library;
use super::measure::Wire;
use super::metric::Metric;
use super::plan::{self, Point};

/// The model of an experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// One that comes with the program.
    #[serde(default)]
    pub name: Option<String>,
    /// Or its text, LQNX or `.lqn`. Where it is routed by chance (`#pragma route.ENTRY=random`) and the point's balancer
    /// chooses otherwise, it is routed as that does; a strategy that is no policy of models is refused.
    #[serde(default)]
    pub lqn: Option<String>,
    /// Parameters: a number, the name of a factor whose value at the point it is, or of what was measured before the first
    /// point, in milliseconds: `relay`, `reach` ([`Wire`]).
    #[serde(default)]
    pub set: BTreeMap<String, Level>,
    /// What of the model a metric is: `["client.response"]`; of several the mean. Times are in seconds.
    pub metrics: BTreeMap<Metric, Vec<String>>,
}

/// What the model says of a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Means and halves of 95 % intervals; of formulas these are 0.
    pub values: BTreeMap<Metric, (f64, f64)>,
    /// What holds back.
    pub bottleneck: Option<Held>,
}

/// What holds a system back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// `software` (threads of a task) or `hardware` (a processor).
    pub kind: String,
    /// Its name in the model; several that are used alike.
    pub of: Vec<String>,
    /// Is it so busy that it limits the whole?
    pub limits: bool,
}

/// How far the simulation goes.
const EFFORT: Effort = Effort { seed: 1, events: 4_000_000, precision: 0.004 };

impl Part {
    /// What is wrong with it, as far as these points are concerned.
    pub(super) fn wrong(&self, points: &[Point]) -> Option<String> {
        let wrong = |point| self.model(point, Wire::default()).and_then(|model| self.named(&model)).err();
        points.iter().find_map(wrong)
    }

    /// Has it a parameter that is measured before the first point?
    pub(super) fn knows_the_way(&self) -> bool {
        let named =
            |level: &Level| matches!(level, Level::Text(name) if Wire::default().named(name).is_some());
        self.set.values().any(named)
    }

    /// What the model says of a point, by formulas and simulated, where the way takes so long.
    ///
    /// # Errors
    /// If there is no such model, or it cannot be simulated to the end.
    pub fn predict(&self, point: &Point, wire: Wire) -> Result<BTreeMap<Column, Predicted>, String> {
        let model = self.model(point, wire)?;
        let (solved, convergence) = solve(&model);
        let mut all = BTreeMap::new();
        // What does not hold together says nothing.
        if convergence.converged && !convergence.overloaded {
            all.insert(Column::Model, self.predicted(&model, &solved)?);
        }
        let played =
            simulate(&model, &EFFORT).map_err(|stuck| format!("the model cannot be simulated: {stuck}"))?;
        all.insert(Column::Simulated, self.predicted(&model, &played)?);
        Ok(all)
    }

    /// The model of a point.
    fn model(&self, point: &Point, wire: Wire) -> Result<Model, String> {
        let text = match (&self.name, &self.lqn) {
            (Some(name), None) => {
                let known = || library::MODELS.map(|(name, _)| name).join("`, `");
                library::model(name).ok_or_else(|| format!("no model `{name}`: there are `{}`", known()))?
            }
            (None, Some(text)) => text,
            _ => return Err("[model] needs either a `name` or its text, `lqn`".to_owned()),
        };
        if self.knows_the_way() && point.application.is_none() {
            return Err(
                "[model] `relay` and `reach` are measured of an [application], and there is none".to_owned()
            );
        }
        let mut given = BTreeMap::new();
        for (parameter, level) in &self.set {
            let value = match level {
                Level::Number(number) => *number,
                Level::Text(name) => {
                    let factor: Option<Factor> = Factor::named(name);
                    let value =
                        factor.and_then(|factor| plan::value(point, factor)).or_else(|| wire.named(name));
                    value.ok_or_else(|| {
                        format!(
                            "[model] `{parameter} = \"{name}\"`: expected a number, a factor that has one here, or what \
                             is measured: `relay`, `reach`"
                        )
                    })?
                }
            };
            given.insert(parameter.clone(), value);
        }
        read(&routed(text, point)?, &given)
            .map(|read| read.model)
            .map_err(|trouble| format!("the model: {trouble}"))
    }

    /// Is there all of it that metrics are to be?
    fn named(&self, model: &Model) -> Result<(), String> {
        let entries = model.entries.iter().map(|own| &own.name);
        let tasks = model.tasks.iter().map(|own| &own.name);
        let names: Vec<&String> =
            model.processors.iter().map(|own| &own.name).chain(tasks).chain(entries).collect();
        for (metric, parts) in &self.metrics {
            if parts.is_empty() {
                return Err(format!("[model] `{}` needs at least one number of the model", metric.name()));
            }
            for part in parts {
                let asked = ask::metric::Metric::parse(part)?;
                if asked.name.as_ref().is_some_and(|name| !names.contains(&name)) {
                    return Err(format!("[model] `{part}`: the model has nothing of this name"));
                }
            }
        }
        Ok(())
    }

    fn predicted(&self, model: &Model, found: &Findings) -> Result<Predicted, String> {
        let lines = lines(model, found);
        let mut values = BTreeMap::new();
        for (metric, parts) in &self.metrics {
            let mut each = Vec::new();
            for part in parts {
                let asked = ask::metric::Metric::parse(part)?;
                let first = asked.of(&lines).first().map(|line| line.value);
                each.push(first.ok_or_else(|| format!("[model] `{part}`: the model has no such number"))?);
            }
            let count = each.len() as f64;
            let mean = each.iter().map(|value| value.mean).sum::<f64>() / count;
            // As if they went together, which is the worst.
            let half = each.iter().map(|value| value.half_width).sum::<f64>() / count;
            values.insert(*metric, (mean, half));
        }
        let held = bottleneck(model, found).map(|held| Held {
            kind: match held.kind {
                Kind::Software => "software".to_owned(),
                Kind::Hardware => "hardware".to_owned(),
            },
            of: held.of.iter().map(|own| own.name(model).to_owned()).collect(),
            limits: held.limits,
        });
        Ok(Predicted { values, bottleneck: held })
    }
}

/// The text with the policy of the point's balancer in place of `random` in the pragmas that route.
fn routed(text: &str, point: &Point) -> Result<String, String> {
    let line = |line: &str| match line.trim().strip_suffix("=random") {
        Some(begin) if begin.starts_with("#pragma route.") => Ok(format!("{begin}={}", route(point)?)),
        _ => Ok(line.to_owned()),
    };
    Ok(text.lines().map(line).collect::<Result<Vec<String>, String>>()?.join("\n"))
}

/// How the point's balancer chooses, in the words of a model.
fn route(point: &Point) -> Result<String, String> {
    let (name, knobs) = point.balancer.knobs();
    let two = knobs.get("choices").is_none_or(|choices| *choices == 2.0);
    match (name, point.application.and_then(|application| application.age)) {
        ("random", _) => Ok("random".to_owned()),
        ("least_loaded", age) => Ok(format!("least_loaded({})", age.unwrap_or(0.0))),
        ("round_robin", _) => Ok("round_robin".to_owned()),
        ("least_connections", _) => Ok("least_loaded".to_owned()),
        ("least_request", _) if two => Ok("power_of_two".to_owned()),
        _ => Err(format!(
            "[model] no policy of a model is like `{}` of {}: write one in the model (`#pragma route.ENTRY=POLICY`), \
             or take random, round_robin, least_connections, least_request (of two) or least_loaded",
            if name.is_empty() { "the usual strategy" } else { name },
            point.balancer.kind.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::{Experiment, Mode};
    use crate::lab::fixture::TEXT;

    /// One server, which each of N clients asks again at once.
    const MODEL: &str = "
[model]
lqn = '''
$clients = 1
G \"\" 1 1 -1
P 0
  p users f i
  p core f
-1
T 0
  t client r client -1 users m $clients
  t server n serve -1 core
-1
E 0
  s client 0 -1
  y client serve 1 -1
  s serve 0.5 -1
-1
'''
set = { clients = \"concurrency\" }
metrics = { response = [\"client.response\"], server_a = [\"server.utilization\", \"core.utilization\"] }
";

    #[test]
    fn parameters_follow_the_levels_and_both_ways_agree() {
        let experiment = Experiment::parse(&format!("{TEXT}{MODEL}")).unwrap();
        let part = experiment.model.as_ref().unwrap().get_ref();
        let points = plan::points(&experiment, Mode::Full);
        let point =
            points.iter().find(|point| plan::value(point, Factor::Concurrency) == Some(20.0)).unwrap();
        let said = part.predict(point, Wire::default()).unwrap();
        for column in Column::OF_MODEL {
            let predicted = &said[&column];
            // Twenty clients at a server that takes half a second: ten seconds each.
            let (response, _) = predicted.values[&Metric::Response];
            assert!((response / 10.0 - 1.0).abs() < 0.02, "{column:?}: {response}");
            assert!((predicted.values[&Metric::ServerA].0 - 1.0).abs() < 0.01);
            let held = predicted.bottleneck.as_ref().unwrap();
            assert_eq!(
                (held.kind.as_str(), &held.of[..], held.limits),
                ("hardware", &["core".to_owned()][..], true)
            );
        }
    }

    /// A model that is routed by chance is routed as the balancer chooses, or not at all.
    #[test]
    fn a_strategy_that_models_do_not_have_is_refused() {
        let routed = MODEL
            .replace("$clients = 1\n", "#pragma route.serve=random\n$clients = 1\n")
            .replace("  t server n serve -1 core\n", "  t server n serve -1 core\n  t last n last -1 core\n")
            .replace("  s serve 0.5 -1\n", "  s serve 0.5 -1\n  F serve last 1 -1\n  s last 0.1 -1\n");
        let with = |strategy: &str| {
            let text = TEXT.replace("[\"plimsoll:round_robin\", \"haproxy\"]", &format!("[\"{strategy}\"]"));
            let text = text.replace("[\"plimsoll\"]", &format!("[\"{strategy}\"]"));
            Experiment::parse(&format!("{text}{routed}"))
        };
        for strategy in ["plimsoll:round_robin", "plimsoll:random", "plimsoll:least_request(choices=2)"] {
            assert!(with(strategy).is_ok(), "{strategy}: {:?}", with(strategy));
        }
        for strategy in
            ["plimsoll:peak_ewma", "plimsoll:least_request(choices=5)", "plimsoll:adaptive", "haproxy:source"]
        {
            let wrong = with(strategy).unwrap_err();
            assert!(
                wrong.iter().any(|wrong| wrong.message.contains("no policy of a model is like")),
                "{strategy}: {wrong:?}"
            );
        }
    }

    #[test]
    fn mistakes_are_said_before_anything_is_run() {
        for (from, to, why) in [
            ("concurrency\" }", "rate\" }", "a factor that has one here"),
            ("concurrency\" }", "colour\" }", "a factor that has one here"),
            ("client.response", "clients.response", "nothing of this name"),
            ("client.response", "client.speed", "no metric `speed`"),
            ("lqn = '''", "name = \"x\"\nlqn = '''", "either a `name` or its text"),
            ("$clients = 1", "$client = 1", "`$clients`"),
            ("set = { clients", "set = { others", "others"),
            ("concurrency\" }", "relay\" }", "there is none"),
        ] {
            let text = format!("{TEXT}{}", MODEL.replacen(from, to, 1));
            let wrong = Experiment::parse(&text).unwrap_err();
            assert!(wrong.iter().any(|wrong| wrong.message.contains(why)), "{to}: {wrong:?}");
        }
    }
}
