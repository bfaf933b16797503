//! Checks of several groups of the balancer at the same servers.

use std::ops::{Range, RangeInclusive};

use super::super::{BalancerKind, BalancerSpec, Experiment, Factor, FactorLevel, FaultAction, LoadProtocol};

/// The allowed numbers of groups.
pub(super) const GROUP_COUNTS: RangeInclusive<usize> = 1..=8;

/// Returns all errors with their places.
pub(super) fn check(experiment: &Experiment, varied_factors: &[Factor]) -> Vec<(Range<usize>, String)> {
    let mut errors = Vec::new();
    let settings = &experiment.balancer;
    let groups_factor =
        experiment.factors.iter().find(|varied_factor| *varied_factor.vary.get_ref() == Factor::Groups);
    let group_counts = settings.groups.iter().map(|groups| (groups.span(), *groups.get_ref()));
    let levels =
        groups_factor.into_iter().flat_map(|varied_factor| [&varied_factor.full, &varied_factor.quick]);
    let max_number =
        |levels: &[FactorLevel]| levels.iter().filter_map(FactorLevel::number).fold(0.0, f64::max) as usize;
    let group_counts = group_counts.chain(levels.map(|levels| (levels.span(), max_number(levels.get_ref()))));
    let group_counts: Vec<(Range<usize>, usize)> = group_counts.collect();
    let max_count = group_counts.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let levels =
        experiment.factors.iter().filter(|varied_factor| *varied_factor.vary.get_ref() == Factor::Balancer);
    let levels =
        levels.flat_map(|varied_factor| [&varied_factor.full, &varied_factor.quick]).flat_map(|levels| {
            let parse_balancer = |level: &FactorLevel| level.to_string().parse::<BalancerSpec>().ok();
            levels.get_ref().iter().filter_map(parse_balancer).map(|balancer| (levels.span(), balancer))
        });
    let mut balancers: Vec<(Range<usize>, BalancerSpec)> = levels.collect();
    if balancers.is_empty() {
        balancers.push((0..0, settings.kind.clone().unwrap_or_default()));
    }
    if let Some((span, _)) = balancers.iter().find(|(_, balancer)| balancer.hides_hosts)
        && max_count < 2
    {
        let message = "`+hidden` needs two or more `groups`, in [balancer] or as a factor: one shares its \
            hosts with nobody";
        errors.push((span.clone(), message.to_owned()));
    }
    let Some((span, _)) = group_counts.into_iter().next() else { return errors };
    let mut require = |holds: bool, requirement: &str| {
        if !holds {
            errors.push((span.clone(), format!("`groups` {requirement}")));
        }
    };
    if let Some(groups) = &settings.groups {
        require(groups_factor.is_none(), "are in [balancer] or a factor, not both");
        require(GROUP_COUNTS.contains(groups.get_ref()), "are from 1 to 8");
    }
    let is_supported = |(_, balancer): &(Range<usize>, BalancerSpec)| {
        balancer.kind == BalancerKind::Plimsoll
            && !balancer.follows_lottery
            && balancer.fleet_interval.is_none()
    };
    require(
        balancers.iter().all(is_supported),
        "are of plimsoll alone, without a lottery and without `+fleet`",
    );
    let has_one_instance =
        settings.instances.is_none_or(|count| count == 1) && !varied_factors.contains(&Factor::Instances);
    require(has_one_instance, "are of one balancer: they go without `instances`");
    let endpoints =
        experiment.factors.iter().filter(|varied_factor| *varied_factor.vary.get_ref() == Factor::Endpoints);
    let is_zero = |level: &FactorLevel| level.number() == Some(0.0);
    let mut endpoints = endpoints
        .flat_map(|varied_factor| varied_factor.full.get_ref().iter().chain(varied_factor.quick.get_ref()));
    require(!endpoints.any(is_zero), "go through the balancer: they go without 0 endpoints");
    let uses_http =
        experiment.protocol() == LoadProtocol::Http && !varied_factors.contains(&Factor::Protocol);
    let has_no_side_cars = !experiment.members.groups().iter().any(|members| members.side_car);
    require(uses_http && has_no_side_cars, "have members that speak http and have no side-car");
    require(experiment.scaler.is_none(), "have members that do not come and go");
    require(experiment.application.is_none(), "go without an [application]");
    let adds_member = experiment.faults.iter().any(|fault| fault.act == FaultAction::Add);
    require(!adds_member, "go without a fault that adds a member");
    errors
}

#[cfg(test)]
mod tests {
    use crate::lab::experiment::Experiment;
    use crate::lab::fixture::TEXT;

    const FACTOR: &str = "[[factor]]\nvary = \"groups\"\nfull = [1, 4]\nquick = [1, 2]\n";

    /// Returns the errors of the fixture without 0 endpoints, with these levels of the balancer and these
    /// settings.
    fn errors_with(levels: &str, settings: &str) -> Vec<(String, String)> {
        let text = TEXT.replace("full = [0, 2]", "full = [2]");
        let text = text.replace(r#"["plimsoll:round_robin", "haproxy"]"#, levels);
        let text = text.replace("[load]\n", &format!("[balancer]\n{settings}\n[load]\n"));
        let span_text = |error: &crate::lab::experiment::ExperimentError| text[error.span.clone()].to_owned();
        let errors = Experiment::parse(&text).err().unwrap_or_default();
        errors.iter().map(|error| (span_text(error), error.message.clone())).collect()
    }

    #[test]
    fn groups_share_servers_behind_one_plimsoll() {
        let hidden = r#"["plimsoll:least_loaded", "plimsoll:least_loaded+hidden"]"#;
        assert_eq!(errors_with(hidden, "groups = 3"), []);
        let [varied, both, too_many] =
            [FACTOR, &format!("{FACTOR}\n[balancer]\ngroups = 2\n"), &FACTOR.replace("4", "9")].map(
                |settings| {
                    let text = TEXT.replace("full = [0, 2]", "full = [2]");
                    let text = text.replace(r#"["plimsoll:round_robin", "haproxy"]"#, hidden);
                    Experiment::parse(&text.replace("[[figure]]", &format!("{settings}[[figure]]")))
                },
            );
        let (experiment, quick) = (varied.unwrap(), crate::lab::experiment::RunLength::Quick);
        let points = crate::lab::plan::points(&experiment, quick);
        assert_eq!(points.iter().map(|point| point.groups).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert!(points.iter().all(|point| point.seed == points[0].seed), "the same arrivals for all");
        let first_message = |parsed: Result<Experiment, Vec<crate::lab::experiment::ExperimentError>>| {
            parsed.unwrap_err()[0].message.clone()
        };
        assert!(first_message(both).contains("not both") && first_message(too_many).contains("from 1 to 8"));
        let cases = [
            (hidden, "", hidden, "`+hidden` needs two or more `groups`"),
            (r#"["plimsoll"]"#, "groups = 9", "9", "from 1 to 8"),
            (r#"["plimsoll"]"#, "groups = 0", "0", "from 1 to 8"),
            (r#"["plimsoll", "haproxy"]"#, "groups = 2", "2", "of plimsoll alone"),
            (r#"["plimsoll+fleet"]"#, "groups = 2", "2", "without `+fleet`"),
            (r#"["plimsoll"]"#, "groups = 2\ninstances = 2", "2", "without `instances`"),
        ];
        for (levels, settings, expected_span, expected_message) in cases {
            let errors = errors_with(levels, settings);
            let error = errors.iter().find(|(_, message)| message.contains(expected_message));
            assert_eq!(
                error.map(|(span, _)| span.as_str()),
                Some(expected_span),
                "{levels} {settings}: {errors:?}"
            );
        }
    }
}
