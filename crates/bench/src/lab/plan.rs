//! The points of an experiment: every combination of levels, the needs of each, and the estimated time.

use std::time::Duration;

use super::experiment::{
    AgentArchitecture, BalancerKind, BalancerSpec, Experiment, Factor, FactorLevel, LoadProtocol,
    PointApplication, PointScaler, RunLength, SessionBinding,
};
use super::table::PointLevels;

/// One combination of levels.
#[derive(Clone, Debug)]
pub struct ExperimentPoint {
    /// The levels.
    pub levels: PointLevels,
    /// The number of members to start.
    pub members: usize,
    /// The balancer.
    pub balancer: BalancerSpec,
    /// The load.
    pub load: OfferedLoad,
    /// The protocol of all participants.
    pub protocol: LoadProtocol,
    /// Whether each member has plimsoll's agent as a side-car.
    pub side_cars: bool,
    /// The maximum retries of the balancer; its own default if `None`.
    pub retries: Option<u32>,
    /// The scaler, if there is one.
    pub scaler: Option<PointScaler>,
    /// The balancers at once.
    pub instances: Option<usize>,
    /// The number of the balancer's groups, each with a member at every server.
    pub groups: Option<usize>,
    /// The application, if the clients perform its cycles.
    pub application: Option<PointApplication>,
    /// The seed of service times and arrivals. Points that differ in the balancer alone have the same: luck
    /// is no part of the comparison.
    pub seed: u64,
}

/// The load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OfferedLoad {
    /// An open loop, in requests per second.
    Rate(f64),
    /// An open loop, as a share of the capacity.
    Share(f64),
    /// A closed loop, by its clients.
    Concurrency(usize),
}

/// The estimated time to start and end the processes of a point.
const SETUP_TIME: Duration = Duration::from_millis(700);

/// The number of answers per client after which a closed loop is in its steady state.
pub(super) const SETTLING_ANSWERS: usize = 3;

/// The maximum factor by which a point is lengthened for its precision.
pub(super) const MAX_LENGTHENING: u32 = 10;

/// Returns all points, the last factor varying fastest. Equivalent combinations are one: without a balancer
/// its strategy does not matter.
pub fn points(experiment: &Experiment, mode: RunLength) -> Vec<ExperimentPoint> {
    let mut combinations = vec![PointLevels::new()];
    for varied_factor in &experiment.factors {
        let factor = *varied_factor.vary.get_ref();
        let levels = varied_factor.levels(mode);
        combinations = combinations
            .into_iter()
            .flat_map(|point| {
                levels.iter().map(move |level| {
                    let mut point = point.clone();
                    point.insert(factor, level.clone());
                    point
                })
            })
            .collect();
    }
    let mut points: Vec<ExperimentPoint> = Vec::new();
    for mut levels in combinations {
        let number = |factor| levels.get(&factor).and_then(FactorLevel::number);
        let endpoints = number(Factor::Endpoints).map(|count| count as usize);
        let balancer = match levels.get(&Factor::Balancer) {
            Some(FactorLevel::Text(text)) => text.parse().unwrap_or_default(),
            _ => experiment.balancer.kind.clone().unwrap_or_default(),
        };
        let load = &experiment.load;
        let protocol = match levels.get(&Factor::Protocol) {
            Some(FactorLevel::Text(text)) => LoadProtocol::from_name(text).unwrap_or_default(),
            _ => experiment.protocol(),
        };
        let clients = number(Factor::Concurrency).map(|count| count as usize).or(load.concurrency);
        // Without rates, a client of a group counts as any other of a closed loop.
        let client_groups = load.client_groups(clients.unwrap_or(0));
        let clients = if client_groups.is_empty() {
            clients
        } else {
            load.is_closed_loop().then_some(client_groups.len())
        };
        let offered_load = match (clients, number(Factor::Share).or(load.share)) {
            (Some(clients), _) => OfferedLoad::Concurrency(clients),
            (None, Some(share)) => OfferedLoad::Share(share),
            (None, None) => {
                let sessions: f64 = client_groups.iter().filter_map(|client| client.rate).sum();
                OfferedLoad::Rate(number(Factor::Rate).or(load.rate).unwrap_or(sessions))
            }
        };
        let instances =
            number(Factor::Instances).map(|count| count as usize).or(experiment.balancer.instances);
        let default_groups = experiment.balancer.groups.as_ref().map(|groups| *groups.get_ref());
        let groups = number(Factor::Groups).map(|count| count as usize).or(default_groups);
        let retries = number(Factor::Retries).map(|count| count as u32).or(experiment.balancer.retries);
        let (members, balancer) = match endpoints {
            Some(0) => {
                levels.remove(&Factor::Balancer);
                (1, BalancerSpec { kind: BalancerKind::None, ..balancer })
            }
            count => (count.unwrap_or_else(|| experiment.members.count()), balancer),
        };
        let application =
            experiment.application.as_ref().map(|application| application.get_ref().at_levels(&levels));
        let balancer = match &application {
            Some(application) => application_agent(balancer, application, protocol),
            None => balancer,
        };
        let has_side_cars = experiment.members.groups().iter().any(|members| members.side_car);
        let side_cars = balancer.kind == BalancerKind::Plimsoll
            && (has_side_cars || balancer.has_agents && protocol == LoadProtocol::Iiop);
        let point_scaler = experiment.scaler.as_ref().map(|scaler| {
            let level = match levels.get(&Factor::Scaler) {
                Some(FactorLevel::Text(text)) => Some(text.as_str()),
                _ => None,
            };
            let (duration, full_duration) =
                (experiment.plan.duration.for_length(mode).0, experiment.plan.duration.full.0);
            let scale = duration.as_secs_f64() / full_duration.as_secs_f64().max(f64::MIN_POSITIVE);
            scaler.get_ref().for_run(level, scale, experiment.members.capacity(1).unwrap_or(1.0))
        });
        if points.iter().all(|point| point.levels != levels) {
            let comparable_point = points.iter().find(|point| are_comparable(&point.levels, &levels));
            let seed = comparable_point.map_or(points.len() as u64 + 1, |point| point.seed);
            points.push(ExperimentPoint {
                levels,
                members,
                balancer,
                load: offered_load,
                protocol,
                side_cars,
                retries,
                scaler: point_scaler,
                instances,
                groups,
                application,
                seed,
            });
        }
    }
    points
}

/// Configures the balancer as the application's agent. Over iiop, clients that ask for a server are bound for
/// a session; everything else is relayed. The agent chooses members at random, or by loads up to a given age.
fn application_agent(
    balancer: BalancerSpec,
    application: &PointApplication,
    protocol: LoadProtocol,
) -> BalancerSpec {
    let is_located = application.architecture == AgentArchitecture::Handle && protocol == LoadProtocol::Iiop;
    let binding = if is_located { SessionBinding::PerSession } else { SessionBinding::PerRequest };
    let strategy = if application.age.is_some() { "least_loaded" } else { "random" };
    BalancerSpec { strategy: strategy.to_owned(), binding: Some(binding), ..balancer }
}

/// Returns the factor's value at this point: its level, or the experiment's setting where it is not varied.
/// Times of the application are in milliseconds.
pub fn factor_value(point: &ExperimentPoint, factor: Factor) -> Option<f64> {
    let of_application = |get: fn(&PointApplication) -> f64| point.application.as_ref().map(get);
    point.levels.get(&factor).and_then(FactorLevel::number).or_else(|| match (factor, point.load) {
        (Factor::Concurrency, OfferedLoad::Concurrency(clients)) => Some(clients as f64),
        (Factor::Rate, OfferedLoad::Rate(rate)) => Some(rate),
        (Factor::Endpoints, _) => Some(point.members as f64),
        (Factor::Instances, _) => point.instances.map(|count| count as f64),
        (Factor::Groups, _) => point.groups.map(|count| count as f64),
        (Factor::Demand, _) => of_application(|application| application.demand * 1e3),
        (Factor::Delay, _) => of_application(|application| application.delay * 1e3),
        (Factor::Length, _) => of_application(|application| application.length as f64),
        (Factor::Clones, _) => of_application(|application| application.clones as f64),
        (Factor::Age, _) => of_application(|application| application.age.unwrap_or(0.0)),
        _ => None,
    })
}

/// Returns `true` if both differ only in a compared factor: the balancer, the number of balancers or of
/// groups, or the scaler.
fn are_comparable(left: &PointLevels, right: &PointLevels) -> bool {
    const COMPARED: [Factor; 4] = [Factor::Balancer, Factor::Instances, Factor::Groups, Factor::Scaler];
    let other_levels = |levels: &PointLevels| {
        let mut other_levels = levels.clone();
        let level_count = other_levels.len();
        other_levels.retain(|factor, _| !COMPARED.contains(factor));
        (other_levels.len() < level_count).then_some(other_levels)
    };
    other_levels(left).is_some_and(|levels| other_levels(right) == Some(levels))
}

/// Returns `true` if both differ in the balancer alone.
pub(super) fn differ_in_balancer(left: &PointLevels, right: &PointLevels) -> bool {
    let other_levels = |levels: &PointLevels| {
        let mut other_levels = levels.clone();
        other_levels.remove(&Factor::Balancer).map(|_| other_levels)
    };
    other_levels(left).is_some_and(|levels| other_levels(right) == Some(levels))
}

/// Returns the estimated time of these points.
pub fn estimated_time<'a>(
    experiment: &Experiment,
    mode: RunLength,
    points: impl IntoIterator<Item = &'a ExperimentPoint>,
) -> Duration {
    let repetitions = repetitions(experiment, mode) as u32;
    points
        .into_iter()
        .map(|point| {
            (repetition_length(experiment, mode) + SETUP_TIME + settling(experiment, point)) * repetitions
        })
        .sum()
}

/// Returns the estimated time after which sessions and queues of a closed loop are in their steady state.
fn settling(experiment: &Experiment, point: &ExperimentPoint) -> Duration {
    let OfferedLoad::Concurrency(clients) = point.load else { return Duration::ZERO };
    let service = experiment.members.first().service.map_or(Duration::ZERO, |service| service.mean());
    let rounds =
        (SETTLING_ANSWERS * clients) as f64 / (experiment.members.first().workers * point.members) as f64;
    service.min(Duration::from_secs(60)).mul_f64(rounds)
}

/// Returns the number of repetitions of each point.
pub fn repetitions(experiment: &Experiment, mode: RunLength) -> usize {
    *experiment.plan.repetitions.for_length(mode).get_ref()
}

/// Returns the length of one repetition, its warm-up included.
pub fn repetition_length(experiment: &Experiment, mode: RunLength) -> Duration {
    experiment.plan.warmup.for_length(mode).0 + experiment.plan.duration.for_length(mode).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture;

    #[test]
    fn every_combination_once_and_one_without_a_balancer() {
        let experiment = fixture::experiment();
        let points = points(&experiment, RunLength::Full);
        let names: Vec<String> =
            points.iter().map(|point| crate::lab::table::format_levels(&point.levels)).collect();
        assert_eq!(
            names,
            [
                "endpoints=0 concurrency=10",
                "endpoints=0 concurrency=20",
                "endpoints=2 balancer=plimsoll:round_robin concurrency=10",
                "endpoints=2 balancer=plimsoll:round_robin concurrency=20",
                "endpoints=2 balancer=haproxy concurrency=10",
                "endpoints=2 balancer=haproxy concurrency=20",
            ]
        );
        assert_eq!(points[0].members, 1);
        assert_eq!(points[0].balancer.kind, BalancerKind::None);
        assert_eq!(points[5].balancer.kind, BalancerKind::Haproxy);
        assert_eq!(points[5].load, OfferedLoad::Concurrency(20));
        // All balancers have the same arrivals and service times.
        assert_eq!(points.iter().map(|point| point.seed).collect::<Vec<_>>(), [1, 2, 3, 4, 3, 4]);
    }

    #[test]
    fn the_budget_counts_every_repetition() {
        let experiment = fixture::experiment();
        let points = points(&experiment, RunLength::Full);
        // Two repetitions of 1 s of warm-up and 3 s; three rounds of 20 clients of 1 ms on 4 workers.
        let settling = Duration::from_millis(15);
        assert_eq!(
            estimated_time(&experiment, RunLength::Full, &points[1..2]),
            (Duration::from_secs(4) + SETUP_TIME + settling) * 2
        );
        assert!(
            estimated_time(&experiment, RunLength::Full, &points)
                > (Duration::from_secs(4) + SETUP_TIME) * 12
        );
    }
}
