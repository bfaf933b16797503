//! `[model]`: a layered queueing network of an experiment, solved and simulated for each of its points.
//!
//! Its parameters follow the point's levels. Its results have the names of the lab's metrics, so that they
//! stand beside the measurements in figures, in the report and in claims. The simulation has the same seed
//! for all points.

use std::collections::BTreeMap;

use plimsoll_lqn::analysis::bottleneck::{BottleneckKind, find_bottleneck};
use plimsoll_lqn::analysis::{self, result_lines};
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, read, simulate, solve};
use serde::{Deserialize, Serialize};

use super::calibration::WireTimes;
use super::experiment::{Factor, FactorLevel};
use super::library;
use super::metric::Metric;
use super::plan::{self, ExperimentPoint};
use super::result_source::ResultSource;

/// The model of an experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// The name of a model of the program.
    #[serde(default)]
    pub name: Option<String>,
    /// The text of a model, LQNX or `.lqn`. If it is routed by chance (`#pragma route.ENTRY=random`) and the
    /// point's balancer chooses otherwise, the balancer's policy replaces that. A strategy without an
    /// equivalent policy is refused.
    #[serde(default)]
    pub lqn: Option<String>,
    /// The parameters. Each is a number, the name of a factor with a value at the point, or that of a
    /// measurement before the first point in milliseconds: `relay`, `reach` ([`WireTimes`]).
    #[serde(default)]
    pub set: BTreeMap<String, FactorLevel>,
    /// The results of the model for each metric: `["client.response"]`; of several the mean. Times are in
    /// seconds.
    pub metrics: BTreeMap<Metric, Vec<String>>,
}

/// The model's results for a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelPrediction {
    /// The means and the halves of 95 % intervals; for formulas these are 0.
    pub values: BTreeMap<Metric, (f64, f64)>,
    /// The bottleneck.
    pub bottleneck: Option<ModelBottleneck>,
}

/// The bottleneck of a system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelBottleneck {
    /// The kind: `software` (threads of a task) or `hardware` (a processor).
    pub kind: String,
    /// The name in the model; several if they are equally used.
    pub of: Vec<String>,
    /// Whether it is busy enough to limit the whole.
    pub limits: bool,
}

/// The length of the simulation.
const SIMULATION_EFFORT: SimulationEffort = SimulationEffort { seed: 1, events: 4_000_000, precision: 0.004 };

impl ModelSettings {
    /// Returns an error of the model at one of these points.
    pub(super) fn error(&self, points: &[ExperimentPoint]) -> Option<String> {
        let model_error = |point| {
            self.model(point, WireTimes::default()).and_then(|model| self.check_metrics(&model)).err()
        };
        points.iter().find_map(model_error)
    }

    /// Returns `true` if a parameter is measured before the first point.
    pub(super) fn needs_wire_times(&self) -> bool {
        let named = |level: &FactorLevel| {
            matches!(
                level,
                FactorLevel::Text(name) if WireTimes::default().parameter(name).is_some()
            )
        };
        self.set.values().any(named)
    }

    /// Returns the model's results for a point, by formulas and simulated, with these times of the relay and
    /// the network.
    ///
    /// # Errors
    /// Fails if there is no such model, or it cannot be simulated to the end.
    pub fn predict(
        &self,
        point: &ExperimentPoint,
        wire_times: WireTimes,
    ) -> Result<BTreeMap<ResultSource, ModelPrediction>, String> {
        let model = self.model(point, wire_times)?;
        let (results, convergence) = solve(&model);
        let mut predictions = BTreeMap::new();
        // A solution that did not converge is no result.
        if convergence.converged && !convergence.overloaded {
            predictions.insert(ResultSource::Model, self.prediction(&model, &results)?);
        }
        let simulated = simulate(&model, &SIMULATION_EFFORT)
            .map_err(|error| format!("the model cannot be simulated: {error}"))?;
        predictions.insert(ResultSource::Simulated, self.prediction(&model, &simulated)?);
        Ok(predictions)
    }

    /// Returns the model of a point.
    fn model(&self, point: &ExperimentPoint, wire_times: WireTimes) -> Result<Model, String> {
        let text = match (&self.name, &self.lqn) {
            (Some(name), None) => {
                let known_names = || library::MODELS.map(|(model_name, _)| model_name).join("`, `");
                library::model(name)
                    .ok_or_else(|| format!("no model `{name}`: there are `{}`", known_names()))?
            }
            (None, Some(text)) => text,
            _ => return Err("[model] needs either a `name` or its text, `lqn`".to_owned()),
        };
        if self.needs_wire_times() && point.application.is_none() {
            return Err(
                "[model] `relay` and `reach` are measured of an [application], and there is none".to_owned()
            );
        }
        let mut parameters = BTreeMap::new();
        for (parameter, level) in &self.set {
            let value = match level {
                FactorLevel::Number(number) => *number,
                FactorLevel::Text(name) => {
                    let factor: Option<Factor> = Factor::from_name(name);
                    let value = factor
                        .and_then(|factor| plan::factor_value(point, factor))
                        .or_else(|| wire_times.parameter(name));
                    value.ok_or_else(|| {
                        format!(
                            "[model] `{parameter} = \"{name}\"`: expected a number, a factor that has one \
                             here, or what \
                             is measured: `relay`, `reach`"
                        )
                    })?
                }
            };
            parameters.insert(parameter.clone(), value);
        }
        read(&with_route_policy(text, point)?, &parameters)
            .map(|read| read.model)
            .map_err(|error| format!("the model: {error}"))
    }

    /// Checks that the model has every result that the metrics name.
    fn check_metrics(&self, model: &Model) -> Result<(), String> {
        let entries = model.entries.iter().map(|entry| &entry.name);
        let tasks = model.tasks.iter().map(|task| &task.name);
        let names: Vec<&String> =
            model.processors.iter().map(|processor| &processor.name).chain(tasks).chain(entries).collect();
        for (metric, selectors) in &self.metrics {
            if selectors.is_empty() {
                return Err(format!("[model] `{}` needs at least one number of the model", metric.name()));
            }
            for selector in selectors {
                let parsed = analysis::metric::MetricSelector::parse(selector)?;
                if parsed.name.as_ref().is_some_and(|name| !names.contains(&name)) {
                    return Err(format!("[model] `{selector}`: the model has nothing of this name"));
                }
            }
        }
        Ok(())
    }

    fn prediction(&self, model: &Model, results: &ModelResults) -> Result<ModelPrediction, String> {
        let result_lines = result_lines(model, results);
        let mut values = BTreeMap::new();
        for (metric, selectors) in &self.metrics {
            let mut estimates = Vec::new();
            for selector in selectors {
                let parsed = analysis::metric::MetricSelector::parse(selector)?;
                let value = parsed.select(&result_lines).first().map(|line| line.value);
                estimates.push(
                    value.ok_or_else(|| format!("[model] `{selector}`: the model has no such number"))?,
                );
            }
            let count = estimates.len() as f64;
            let mean = estimates.iter().map(|value| value.mean).sum::<f64>() / count;
            // The halves add as for fully correlated values, the worst case.
            let half_width = estimates.iter().map(|value| value.half_width).sum::<f64>() / count;
            values.insert(*metric, (mean, half_width));
        }
        let bottleneck = find_bottleneck(model, results).map(|limiting| ModelBottleneck {
            kind: match limiting.kind {
                BottleneckKind::Software => "software".to_owned(),
                BottleneckKind::Hardware => "hardware".to_owned(),
            },
            of: limiting.resources.iter().map(|resource| resource.name(model).to_owned()).collect(),
            limits: limiting.is_saturated,
        });
        Ok(ModelPrediction { values, bottleneck })
    }
}

/// Returns the text with the policy of the point's balancer in place of `random` in the routing pragmas.
fn with_route_policy(text: &str, point: &ExperimentPoint) -> Result<String, String> {
    let rewrite_line = |line: &str| match line.trim().strip_suffix("=random") {
        Some(prefix) if prefix.starts_with("#pragma route.") => {
            Ok(format!("{prefix}={}", route_policy(point)?))
        }
        _ => Ok(line.to_owned()),
    };
    Ok(text.lines().map(rewrite_line).collect::<Result<Vec<String>, String>>()?.join("\n"))
}

/// Returns the policy of the point's balancer in the terms of a model.
fn route_policy(point: &ExperimentPoint) -> Result<String, String> {
    let (name, settings) = point.balancer.strategy_settings();
    let has_two_choices = settings.get("choices").is_none_or(|choices| *choices == 2.0);
    match (name, point.application.and_then(|application| application.age)) {
        ("random", _) => Ok("random".to_owned()),
        ("least_loaded", age) => Ok(format!("least_loaded({})", age.unwrap_or(0.0))),
        ("round_robin", _) => Ok("round_robin".to_owned()),
        ("least_connections", _) => Ok("least_loaded".to_owned()),
        ("least_request", _) if has_two_choices => Ok("power_of_two".to_owned()),
        _ => Err(format!(
            "[model] no policy of a model is like `{}` of {}: write one in the model (`#pragma \
             route.ENTRY=POLICY`), \
             or take random, round_robin, least_connections, least_request (of two) or least_loaded",
            if name.is_empty() { "the usual strategy" } else { name },
            point.balancer.kind.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::{Experiment, RunLength};
    use crate::lab::fixture::TEXT;

    /// One server, which each of N clients calls again at once.
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
        let settings = experiment.model.as_ref().unwrap().get_ref();
        let points = plan::points(&experiment, RunLength::Full);
        let point =
            points.iter().find(|point| plan::factor_value(point, Factor::Concurrency) == Some(20.0)).unwrap();
        let predictions = settings.predict(point, WireTimes::default()).unwrap();
        for source in ResultSource::OF_MODEL {
            let prediction = &predictions[&source];
            // Twenty clients at a server that takes half a second: ten seconds each.
            let (response, _) = prediction.values[&Metric::Response];
            assert!((response / 10.0 - 1.0).abs() < 0.02, "{source:?}: {response}");
            assert!((prediction.values[&Metric::ServerA].0 - 1.0).abs() < 0.01);
            let bottleneck = prediction.bottleneck.as_ref().unwrap();
            assert_eq!(
                (bottleneck.kind.as_str(), &bottleneck.of[..], bottleneck.limits),
                ("hardware", &["core".to_owned()][..], true)
            );
        }
    }

    /// A model that is routed by chance gets the balancer's policy, or is refused.
    #[test]
    fn a_strategy_that_models_do_not_have_is_refused() {
        let model_text = MODEL
            .replace("$clients = 1\n", "#pragma route.serve=random\n$clients = 1\n")
            .replace("  t server n serve -1 core\n", "  t server n serve -1 core\n  t last n last -1 core\n")
            .replace("  s serve 0.5 -1\n", "  s serve 0.5 -1\n  F serve last 1 -1\n  s last 0.1 -1\n");
        let parse_with = |strategy: &str| {
            let text = TEXT.replace("[\"plimsoll:round_robin\", \"haproxy\"]", &format!("[\"{strategy}\"]"));
            let text = text.replace("[\"plimsoll\"]", &format!("[\"{strategy}\"]"));
            Experiment::parse(&format!("{text}{model_text}"))
        };
        for strategy in ["plimsoll:round_robin", "plimsoll:random", "plimsoll:least_request(choices=2)"] {
            assert!(parse_with(strategy).is_ok(), "{strategy}: {:?}", parse_with(strategy));
        }
        for strategy in
            ["plimsoll:peak_ewma", "plimsoll:least_request(choices=5)", "plimsoll:adaptive", "haproxy:source"]
        {
            let errors = parse_with(strategy).unwrap_err();
            assert!(
                errors.iter().any(|error| error.message.contains("no policy of a model is like")),
                "{strategy}: {errors:?}"
            );
        }
    }

    #[test]
    fn mistakes_are_said_before_anything_is_run() {
        for (original, replacement, message) in [
            ("concurrency\" }", "rate\" }", "a factor that has one here"),
            ("concurrency\" }", "colour\" }", "a factor that has one here"),
            ("client.response", "clients.response", "nothing of this name"),
            ("client.response", "client.speed", "no metric `speed`"),
            ("lqn = '''", "name = \"x\"\nlqn = '''", "either a `name` or its text"),
            ("$clients = 1", "$client = 1", "`$clients`"),
            ("set = { clients", "set = { others", "others"),
            ("concurrency\" }", "relay\" }", "there is none"),
        ] {
            let text = format!("{TEXT}{}", MODEL.replacen(original, replacement, 1));
            let errors = Experiment::parse(&text).unwrap_err();
            assert!(errors.iter().any(|error| error.message.contains(message)), "{replacement}: {errors:?}");
        }
    }
}
