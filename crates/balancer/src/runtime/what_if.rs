//! Suppositions: the model of a group with another load, or of another size, for the dashboard.
//!
//! The group becomes a layered queueing network like that of `plimsoll model from-config`: requests from
//! outside at a rate, the balancer with its threads, members that are alike. The cost of a request at the
//! balancer is the one that the load line measured, if it is known.

use std::collections::BTreeMap;

use plimsoll_admin::{WhatIfInput, WhatIfResult};
use plimsoll_brain::status::GroupStatus;
use plimsoll_lqn::model::{Routing, RoutingPolicy};
use plimsoll_lqn::{read, solve};

/// The default work of a request at the balancer, in seconds: that of `from-config`.
const DEFAULT_BALANCER_WORK: f64 = 50e-6;
/// The parts of the saturation at which the curve is drawn.
const CURVE_POINTS: [f64; 14] = [0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.78, 0.84, 0.89, 0.93, 0.96, 0.98];

/// The data of a group that a model needs.
pub(super) struct WhatIfModel {
    routing: Routing,
    threads: usize,
    /// The seconds of work of a request at the balancer.
    balancer_work: f64,
}

impl WhatIfModel {
    /// Returns the data of a group; `interval` is the time in seconds between two load reports, if there are
    /// any.
    pub(super) fn of(group: &GroupStatus, threads: usize, interval: f64) -> Self {
        let measured = group.load_line.as_ref().and_then(|line| line.balancer_capacity);
        let threads = threads.max(1);
        let balancer_work =
            measured.filter(|most| *most > 0.0).map_or(DEFAULT_BALANCER_WORK, |most| threads as f64 / most);
        let (routing, _) = model_routing(&group.strategy, interval);
        Self { routing, threads, balancer_work }
    }

    /// Returns the results of the model.
    ///
    /// # Errors
    /// Fails if the numbers make no model.
    pub(super) fn evaluate(&self, ask: &WhatIfInput) -> Result<WhatIfResult, String> {
        let members = f64::from(ask.members) * f64::from(ask.cores) / ask.demand;
        let own = self.threads as f64 / self.balancer_work;
        let saturation = members.min(own);
        let sound = ask.rate > 0.0 && ask.demand > 0.0 && ask.rate.is_finite();
        if !(sound && saturation.is_finite() && saturation > 0.0) {
            return Err("no model has these numbers: give a rate, a demand and members above 0".into());
        }
        let response = if ask.rate < saturation { self.response(ask, ask.rate)? } else { None };
        let mut curve = Vec::with_capacity(CURVE_POINTS.len());
        for part in CURVE_POINTS {
            let rate = part * saturation;
            curve.extend(self.response(ask, rate)?.map(|response| (rate, response)));
        }
        Ok(WhatIfResult {
            response,
            utilization: (ask.rate / members).min(1.0),
            balancer: (ask.rate / own).min(1.0),
            saturation,
            bottleneck: if members <= own { "the members" } else { "the balancer" }.into(),
            policy: self.routing.to_string(),
            curve,
        })
    }

    /// Returns the mean time of a request at a rate; `None` if it is infinite.
    fn response(&self, ask: &WhatIfInput, rate: f64) -> Result<Option<f64>, String> {
        let text = self.model(ask, rate);
        let model = read(&text, &BTreeMap::new())
            .map_err(|why| format!("no model can be made of that: {why}"))?
            .model;
        let (found, convergence) = solve(&model);
        let entry = found.entries.iter().find_map(|entry| entry.response);
        let response = entry.map(|time| time.mean).filter(|time| time.is_finite() && *time > 0.0);
        Ok(response.filter(|_| convergence.converged && !convergence.overloaded))
    }

    /// Returns the model in the short TOML of models.
    fn model(&self, ask: &WhatIfInput, rate: f64) -> String {
        let WhatIfInput { members, demand, cores, .. } = ask;
        let (threads, balancer, policy) = (self.threads, self.balancer_work, self.routing.policy.name());
        let age = if self.routing.max_age > 0.0 {
            format!("age = {}\n", self.routing.max_age)
        } else {
            String::new()
        };
        format!(
            "[balancer]\nworkers = {threads}\ndemand = {balancer}\n\n[[clients]]\nname = \"clients\"\ngroup \
             = \"members\"\nrate = {rate}\n\n\
             [[group]]\nname = \"members\"\npolicy = \"{policy}\"\n{age}demand = {demand}\ncores = \
             {cores}\nmembers = {members}\n"
        )
    }
}

/// Returns the routing of a model that is nearest to a strategy, and its name if it is not the same. `age` is
/// the time in seconds between two load reports, 0 without them.
pub fn model_routing(strategy: &str, age: f64) -> (Routing, Option<&'static str>) {
    let now = |policy| Routing { policy, max_age: 0.0 };
    match strategy {
        "random" => (now(RoutingPolicy::Random), None),
        "lottery" => (now(RoutingPolicy::Random), Some("random")),
        "round_robin" => (now(RoutingPolicy::RoundRobin), None),
        "weighted_round_robin" => (now(RoutingPolicy::Weighted), None),
        "least_connections" => (now(RoutingPolicy::LeastLoaded), None),
        "rendezvous" | "maglev" => (now(RoutingPolicy::Sticky), Some("sticky")),
        "first_available" => (now(RoutingPolicy::FirstAvailable), None),
        "least_request" => (now(RoutingPolicy::PowerOfTwo), None),
        "peak_ewma" | "prequal" => (now(RoutingPolicy::PowerOfTwo), Some("power_of_two")),
        // An overloaded member sheds later, in sessions that a model does not have.
        "load_average" => (now(RoutingPolicy::Random), Some("random, of which nothing is shed")),
        // Loads come with reports.
        "least_loaded" | "load_minimum" | "minimum_dispersion" => (
            Routing { policy: RoutingPolicy::LeastLoaded, max_age: age },
            (age > 0.0).then_some("least_loaded with loads as old as reports"),
        ),
        _ => (now(RoutingPolicy::LeastLoaded), Some("least_loaded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(strategy: &str) -> WhatIfModel {
        WhatIfModel::of(
            &GroupStatus { name: "web".into(), strategy: strategy.into(), ..GroupStatus::default() },
            2,
            0.0,
        )
    }

    fn ask(rate: f64, members: u32, demand: f64, cores: u32) -> WhatIfInput {
        WhatIfInput { group: "web".into(), rate, members, demand, cores }
    }

    #[test]
    fn one_member_is_a_queue_of_which_the_books_know_the_time() {
        // M/M/1: 10 ms of work at 50 a second take 20 ms, and a little at the balancer.
        let found = known("random").evaluate(&ask(50.0, 1, 0.01, 1)).unwrap();
        let response = found.response.unwrap();
        assert!((response - 0.02).abs() < 0.001, "{response}");
        assert_eq!((found.utilization, found.saturation, &*found.bottleneck), (0.5, 100.0, "the members"));
        let times: Vec<f64> = found.curve.iter().map(|(_, time)| *time).collect();
        assert!(times.len() > 10 && times.is_sorted(), "{times:?}");
    }

    #[test]
    fn more_of_it_helps_and_too_much_has_no_end() {
        let known = known("adaptive");
        let [two, four] =
            [2, 4].map(|members| known.evaluate(&ask(150.0, members, 0.01, 1)).unwrap().response.unwrap());
        assert!(four < two, "{four} {two}");
        let over = known.evaluate(&ask(250.0, 2, 0.01, 1)).unwrap();
        assert_eq!((over.response, over.utilization), (None, 1.0));
        assert!(!over.curve.is_empty());
    }

    #[test]
    fn the_balancer_itself_may_be_what_holds_back() {
        let found = known("random").evaluate(&ask(1000.0, 200, 0.001, 8)).unwrap();
        assert_eq!((&*found.bottleneck, found.saturation), ("the balancer", 40_000.0));
        assert!(known("random").evaluate(&ask(f64::NAN, 1, 0.01, 1)).is_err());
        assert!(known("random").evaluate(&ask(1.0, 1, 0.0, 1)).is_err());
    }

    #[test]
    fn every_strategy_has_a_model() {
        for strategy in plimsoll_brain::strategy::ALL {
            for members in [1, 3, 64] {
                let found = known(strategy.name).evaluate(&ask(40.0, members, 0.01, 2)).unwrap();
                assert!(
                    found.response.is_some_and(|response| response >= 0.009),
                    "{} {members}",
                    strategy.name
                );
            }
        }
    }
}
