//! Checks of several groups of the balancer at the same servers.

use std::ops::{Range, RangeInclusive};

use super::super::{BalancerKind, BalancerSpec, Experiment, Factor, FactorLevel, FaultAction, LoadProtocol};

/// The allowed numbers of groups.
pub(super) const COUNT: RangeInclusive<usize> = 1..=8;

/// Returns all errors with their places.
pub(super) fn check(experiment: &Experiment, varied: &[Factor]) -> Vec<(Range<usize>, String)> {
    let mut wrong = Vec::new();
    let settings = &experiment.balancer;
    let vary = experiment.factors.iter().find(|vary| *vary.vary.get_ref() == Factor::Groups);
    let places = settings.groups.iter().map(|groups| (groups.span(), *groups.get_ref()));
    let levels = vary.into_iter().flat_map(|vary| [&vary.full, &vary.quick]);
    let greatest =
        |levels: &[FactorLevel]| levels.iter().filter_map(FactorLevel::number).fold(0.0, f64::max) as usize;
    let places = places.chain(levels.map(|levels| (levels.span(), greatest(levels.get_ref()))));
    let places: Vec<(Range<usize>, usize)> = places.collect();
    let count = places.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let levels = experiment.factors.iter().filter(|vary| *vary.vary.get_ref() == Factor::Balancer);
    let levels = levels.flat_map(|vary| [&vary.full, &vary.quick]).flat_map(|levels| {
        let named = |level: &FactorLevel| level.to_string().parse::<BalancerSpec>().ok();
        levels.get_ref().iter().filter_map(named).map(|balancer| (levels.span(), balancer))
    });
    let mut balancers: Vec<(Range<usize>, BalancerSpec)> = levels.collect();
    if balancers.is_empty() {
        balancers.push((0..0, settings.kind.clone().unwrap_or_default()));
    }
    if let Some((at, _)) = balancers.iter().find(|(_, balancer)| balancer.hides_hosts)
        && count < 2
    {
        let message = "`+hidden` needs two or more `groups`, in [balancer] or as a factor: one shares its \
            hosts with nobody";
        wrong.push((at.clone(), message.to_owned()));
    }
    let Some((at, _)) = places.into_iter().next() else { return wrong };
    let mut need = |holds: bool, what: &str| {
        if !holds {
            wrong.push((at.clone(), format!("`groups` {what}")));
        }
    };
    if let Some(groups) = &settings.groups {
        need(vary.is_none(), "are in [balancer] or a factor, not both");
        need(COUNT.contains(groups.get_ref()), "are from 1 to 8");
    }
    let fits = |(_, balancer): &(Range<usize>, BalancerSpec)| {
        balancer.kind == BalancerKind::Plimsoll
            && !balancer.follows_lottery
            && balancer.fleet_interval.is_none()
    };
    need(balancers.iter().all(fits), "are of plimsoll alone, without a lottery and without `+fleet`");
    let alone = settings.instances.is_none_or(|count| count == 1) && !varied.contains(&Factor::Instances);
    need(alone, "are of one balancer: they go without `instances`");
    let endpoints = experiment.factors.iter().filter(|vary| *vary.vary.get_ref() == Factor::Endpoints);
    let none = |level: &FactorLevel| level.number() == Some(0.0);
    let mut endpoints = endpoints.flat_map(|vary| vary.full.get_ref().iter().chain(vary.quick.get_ref()));
    need(!endpoints.any(none), "go through the balancer: they go without 0 endpoints");
    let http = experiment.protocol() == LoadProtocol::Http && !varied.contains(&Factor::Protocol);
    let plain = !experiment.members.groups().iter().any(|members| members.side_car);
    need(http && plain, "have members that speak http and have no side-car");
    need(experiment.scaler.is_none(), "have members that do not come and go");
    need(experiment.application.is_none(), "go without an [application]");
    let added = experiment.faults.iter().any(|fault| fault.act == FaultAction::Add);
    need(!added, "go without a fault that adds a member");
    wrong
}

#[cfg(test)]
mod tests {
    use crate::lab::experiment::Experiment;
    use crate::lab::fixture::TEXT;

    const FACTOR: &str = "[[factor]]\nvary = \"groups\"\nfull = [1, 4]\nquick = [1, 2]\n";

    /// Returns the errors of the fixture without 0 endpoints, with these levels of the balancer and these
    /// settings.
    fn said(levels: &str, rest: &str) -> Vec<(String, String)> {
        let text = TEXT.replace("full = [0, 2]", "full = [2]");
        let text = text.replace(r#"["plimsoll:round_robin", "haproxy"]"#, levels);
        let text = text.replace("[load]\n", &format!("[balancer]\n{rest}\n[load]\n"));
        let place = |wrong: &crate::lab::experiment::ExperimentError| text[wrong.span.clone()].to_owned();
        let wrong = Experiment::parse(&text).err().unwrap_or_default();
        wrong.iter().map(|wrong| (place(wrong), wrong.message.clone())).collect()
    }

    #[test]
    fn groups_share_servers_behind_one_plimsoll() {
        let hidden = r#"["plimsoll:least_loaded", "plimsoll:least_loaded+hidden"]"#;
        assert_eq!(said(hidden, "groups = 3"), []);
        let [varied, twice, many] =
            [FACTOR, &format!("{FACTOR}\n[balancer]\ngroups = 2\n"), &FACTOR.replace("4", "9")].map(|rest| {
                let text = TEXT.replace("full = [0, 2]", "full = [2]");
                let text = text.replace(r#"["plimsoll:round_robin", "haproxy"]"#, hidden);
                Experiment::parse(&text.replace("[[figure]]", &format!("{rest}[[figure]]")))
            });
        let (text, quick) = (varied.unwrap(), crate::lab::experiment::RunLength::Quick);
        let points = crate::lab::plan::points(&text, quick);
        assert_eq!(points.iter().map(|point| point.groups).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert!(points.iter().all(|point| point.seed == points[0].seed), "the same arrivals for all");
        let why = |parsed: Result<Experiment, Vec<crate::lab::experiment::ExperimentError>>| {
            parsed.unwrap_err()[0].message.clone()
        };
        assert!(why(twice).contains("not both") && why(many).contains("from 1 to 8"));
        let cases = [
            (hidden, "", hidden, "`+hidden` needs two or more `groups`"),
            (r#"["plimsoll"]"#, "groups = 9", "9", "from 1 to 8"),
            (r#"["plimsoll"]"#, "groups = 0", "0", "from 1 to 8"),
            (r#"["plimsoll", "haproxy"]"#, "groups = 2", "2", "of plimsoll alone"),
            (r#"["plimsoll+fleet"]"#, "groups = 2", "2", "without `+fleet`"),
            (r#"["plimsoll"]"#, "groups = 2\ninstances = 2", "2", "without `instances`"),
        ];
        for (levels, rest, at, why) in cases {
            let wrong = said(levels, rest);
            let found = wrong.iter().find(|(_, message)| message.contains(why));
            assert_eq!(found.map(|(at, _)| at.as_str()), Some(at), "{levels} {rest}: {wrong:?}");
        }
    }
}
