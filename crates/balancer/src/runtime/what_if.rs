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
        let measured_capacity = group.load_line.as_ref().and_then(|line| line.balancer_capacity);
        let threads = threads.max(1);
        let balancer_work = measured_capacity
            .filter(|capacity| *capacity > 0.0)
            .map_or(DEFAULT_BALANCER_WORK, |capacity| threads as f64 / capacity);
        let (routing, _) = model_routing(&group.strategy, interval);
        Self { routing, threads, balancer_work }
    }

    /// Returns the results of the model.
    ///
    /// # Errors
    /// Fails if the numbers make no model.
    pub(super) fn evaluate(&self, query: &WhatIfInput) -> Result<WhatIfResult, String> {
        let members = f64::from(query.members) * f64::from(query.cores) / query.demand;
        let own_capacity = self.threads as f64 / self.balancer_work;
        let saturation = members.min(own_capacity);
        let is_valid = query.rate > 0.0 && query.demand > 0.0 && query.rate.is_finite();
        if !(is_valid && saturation.is_finite() && saturation > 0.0) {
            return Err("no model has these numbers: give a rate, a demand and members above 0".into());
        }
        let response = if query.rate < saturation { self.response(query, query.rate)? } else { None };
        let mut curve = Vec::with_capacity(CURVE_POINTS.len());
        for load_fraction in CURVE_POINTS {
            let rate = load_fraction * saturation;
            curve.extend(self.response(query, rate)?.map(|response| (rate, response)));
        }
        Ok(WhatIfResult {
            response,
            utilization: (query.rate / members).min(1.0),
            balancer: (query.rate / own_capacity).min(1.0),
            saturation,
            bottleneck: if members <= own_capacity { "the members" } else { "the balancer" }.into(),
            policy: self.routing.to_string(),
            curve,
        })
    }

    /// Returns the mean time of a request at a rate; `None` if it is infinite.
    fn response(&self, query: &WhatIfInput, rate: f64) -> Result<Option<f64>, String> {
        let text = self.model(query, rate);
        let model = read(&text, &BTreeMap::new())
            .map_err(|error| format!("no model can be made of that: {error}"))?
            .model;
        let (solution, convergence) = solve(&model);
        let entry = solution.entries.iter().find_map(|entry| entry.response);
        let response = entry.map(|time| time.mean).filter(|time| time.is_finite() && *time > 0.0);
        Ok(response.filter(|_| convergence.converged && !convergence.overloaded))
    }

    /// Returns the model in the short TOML of models.
    fn model(&self, query: &WhatIfInput, rate: f64) -> String {
        let WhatIfInput { members, demand, cores, .. } = query;
        let (threads, balancer, policy) = (self.threads, self.balancer_work, self.routing.policy.name());
        let max_age_line = if self.routing.max_age > 0.0 {
            format!("age = {}\n", self.routing.max_age)
        } else {
            String::new()
        };
        format!(
            "[balancer]\nworkers = {threads}\ndemand = {balancer}\n\n[[clients]]\nname = \"clients\"\ngroup \
             = \"members\"\nrate = {rate}\n\n\
             [[group]]\nname = \"members\"\npolicy = \"{policy}\"\n{max_age_line}demand = {demand}\ncores = \
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

    fn test_model(strategy: &str) -> WhatIfModel {
        WhatIfModel::of(
            &GroupStatus { name: "web".into(), strategy: strategy.into(), ..GroupStatus::default() },
            2,
            0.0,
        )
    }

    fn test_query(rate: f64, members: u32, demand: f64, cores: u32) -> WhatIfInput {
        WhatIfInput { group: "web".into(), rate, members, demand, cores }
    }

    #[test]
    fn one_member_is_a_queue_of_which_the_books_know_the_time() {
        // M/M/1: 10 ms of work at 50 a second take 20 ms, and a little at the balancer.
        let result = test_model("random").evaluate(&test_query(50.0, 1, 0.01, 1)).unwrap();
        let response = result.response.unwrap();
        assert!((response - 0.02).abs() < 0.001, "{response}");
        assert_eq!((result.utilization, result.saturation, &*result.bottleneck), (0.5, 100.0, "the members"));
        let response_times: Vec<f64> = result.curve.iter().map(|(_, time)| *time).collect();
        assert!(response_times.len() > 10 && response_times.is_sorted(), "{response_times:?}");
    }

    #[test]
    fn more_of_it_helps_and_too_much_has_no_end() {
        let balancing_model = test_model("adaptive");
        let [two_members, four_members] = [2, 4].map(|members| {
            balancing_model.evaluate(&test_query(150.0, members, 0.01, 1)).unwrap().response.unwrap()
        });
        assert!(four_members < two_members, "{four_members} {two_members}");
        let overloaded = balancing_model.evaluate(&test_query(250.0, 2, 0.01, 1)).unwrap();
        assert_eq!((overloaded.response, overloaded.utilization), (None, 1.0));
        assert!(!overloaded.curve.is_empty());
    }

    #[test]
    fn the_balancer_itself_may_be_what_holds_back() {
        let result = test_model("random").evaluate(&test_query(1000.0, 200, 0.001, 8)).unwrap();
        assert_eq!((&*result.bottleneck, result.saturation), ("the balancer", 40_000.0));
        assert!(test_model("random").evaluate(&test_query(f64::NAN, 1, 0.01, 1)).is_err());
        assert!(test_model("random").evaluate(&test_query(1.0, 1, 0.0, 1)).is_err());
    }

    #[test]
    fn every_strategy_has_a_model() {
        for strategy in plimsoll_brain::strategy::ALL {
            for members in [1, 3, 64] {
                let result = test_model(strategy.name).evaluate(&test_query(40.0, members, 0.01, 2)).unwrap();
                assert!(
                    result.response.is_some_and(|response| response >= 0.009),
                    "{} {members}",
                    strategy.name
                );
            }
        }
    }
}
