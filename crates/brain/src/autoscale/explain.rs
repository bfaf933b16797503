//! The explanation of a decision: a sentence for display, and the numbers.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use super::demand::DemandSample;
use super::forecast::DemandForecast;
use super::{CapacityShortage, GroupObservation, ScaleTarget, ScaledMemberState, ScalerSettings};

/// The inputs of a decision.
pub(super) struct DecisionInputs<'a> {
    pub(super) observation: &'a GroupObservation<'a>,
    pub(super) demand: &'a DemandSample,
    pub(super) forecast: &'a DemandForecast,
    /// The wanted capacity now, and the greatest of the last `stabilize`.
    pub(super) wanted_capacity: f64,
    pub(super) floor: f64,
    /// The capacity that is present and coming.
    pub(super) capacity: f64,
    pub(super) present: u32,
    pub(super) desired: u32,
}

impl DecisionInputs<'_> {
    pub(super) fn explanation(&self, rules: &ScalerSettings, start: f64) -> String {
        let Self {
            observation: seen,
            demand: sight,
            forecast: ahead,
            wanted_capacity: want,
            floor,
            capacity: worth,
            present: have,
            desired,
        } = self;
        let wanted = match (desired, have) {
            (desired, have) if desired > have => format!("{} more", desired - have),
            (desired, have) if desired < have => format!("{} fewer", have - desired),
            _ => "enough".to_string(),
        };
        let (coming, ahead_of) = (seen.rate, ahead.upper.max(0.0));
        let others = match seen.peer_rate {
            none if none <= 0.0 => String::new(),
            some => format!(" ({some:.1} of them to other balancers)"),
        };
        let mut why = format!(
            "{wanted}: {coming:.1} requests a second{others} take {:.2} of capacity ({}), {ahead_of:.2} in \
             {start:.1} s{}; with {} \
             that is {want:.2}, and {worth:.2} is there or coming",
            sight.demand,
            sight.source,
            if ahead.surge { " (a crowd comes)" } else { "" },
            target_text(rules.target, sight.allowed_utilization),
        );
        if floor > want && worth > want {
            why.push_str(&format!("; {floor:.2} was wanted of late"));
        }
        if *desired == rules.max && *want > *worth {
            why.push_str(&format!("; {} is the most", rules.max));
        } else if *desired == rules.min && *want <= *worth {
            why.push_str(&format!("; {} is the least", rules.min));
        }
        if let ScaleTarget::ResponseTime(goal) = rules.target
            && sight.allowed_utilization <= UNREACHABLE
        {
            why.push_str(&format!(
                "; {goal} s is hardly more than a request takes alone: more members help little"
            ));
        }
        why
    }

    pub(super) fn inputs(&self, start: f64) -> Vec<(String, f64)> {
        let Self {
            observation: seen,
            demand: sight,
            forecast: ahead,
            wanted_capacity: want,
            floor,
            capacity: worth,
            present: have,
            desired,
        } = self;
        let inputs = Vec::from([
            ("allowed", Some(sight.allowed_utilization)),
            ("capacity", Some(*worth)),
            ("demand", Some(sight.demand)),
            ("desired", Some(f64::from(*desired))),
            ("forecast", Some(ahead.predicted)),
            ("forecast_upper", Some(ahead.upper)),
            ("have", Some(f64::from(*have))),
            ("horizon_seconds", Some(ahead.horizon)),
            ("level", Some(ahead.level)),
            ("refused_per_second", Some(seen.rejected)),
            ("requests_per_second", Some(seen.rate)),
            ("requests_per_second_elsewhere", Some(seen.peer_rate).filter(|rate| *rate > 0.0)),
            ("requests_per_second_per_capacity", sight.unit_rate),
            ("response_seconds", seen.response_p95),
            ("start_seconds", Some(start)),
            ("trend_per_second", Some(ahead.trend)),
            ("used", Some(sight.utilization)),
            ("waiting", Some(seen.waiting)),
            ("wanted", Some(*want)),
            ("wanted_of_late", Some(*floor)),
        ]);
        finite_inputs(inputs)
    }
}

/// Returns the known numbers, by name.
fn finite_inputs(inputs: Vec<(&str, Option<f64>)>) -> Vec<(String, f64)> {
    let known = |(name, value): (&str, Option<f64>)| {
        Some((name.to_string(), value.filter(|value| value.is_finite())?))
    };
    inputs.into_iter().filter_map(known).collect()
}

fn target_text(target: ScaleTarget, allowed: f64) -> String {
    let part = allowed * 100.0;
    match target {
        ScaleTarget::Utilization(_) => format!("at most {part:.0}% in use"),
        ScaleTarget::HeadRoom(free) => format!("{:.0}% free", free * 100.0),
        ScaleTarget::ResponseTime(goal) => {
            format!("at most {part:.0}% in use, for 95 of 100 within {goal} s,")
        }
    }
}

/// Adds the lack of room to the sentence, and the response.
pub(super) fn append_shortage(why: &mut String, seen: &GroupObservation<'_>, what_then: CapacityShortage) {
    let (refused, waiting) = (seen.rejected, seen.waiting);
    let what = match (refused > 0.0, waiting > 0.0) {
        (true, true) => {
            format!("{refused:.1} requests a second are refused for want of room and {waiting:.0} wait")
        }
        (true, false) => format!("{refused:.1} requests a second are refused for want of room"),
        _ => format!("requests wait for room, {waiting:.0} now"),
    };
    let next = match what_then {
        CapacityShortage::StartOne => "one more, whatever is known of the load",
        CapacityShortage::AlreadyStarting => "what is coming is waited for",
        CapacityShortage::AtMaximum => "there are as many as there may be",
    };
    why.push_str(&format!("; {what}: {next}"));
}

/// Returns the known numbers if the load is unknown.
pub(super) fn unknown_load_inputs(seen: &GroupObservation<'_>, have: u32) -> Vec<(String, f64)> {
    finite_inputs(Vec::from([
        ("have", Some(f64::from(have))),
        ("refused_per_second", Some(seen.rejected)),
        ("waiting", Some(seen.waiting)),
    ]))
}

/// Returns the reason why the load is unknown, and the response to a lack of room.
pub(super) fn unknown_load_explanation(
    seen: &GroupObservation<'_>,
    target: ScaleTarget,
    short: Option<CapacityShortage>,
) -> String {
    if !seen.rate.is_finite() {
        return "it has only just begun to look".to_string();
    }
    if seen.members.is_empty() {
        return "it has no member yet".to_string();
    }
    if !seen.members.iter().any(|member| member.has_state(ScaledMemberState::Usable)) {
        return match seen.members.iter().any(|member| member.has_state(ScaledMemberState::Starting)) {
            true => "no member can be used yet: it keeps what is coming".to_string(),
            false => {
                "no member can be used: nothing can be said of the load, and it keeps what it has".to_string()
            }
        };
    }
    let needs = match target {
        ScaleTarget::Utilization(_) => {
            "no agent tells how busy its members' processors are, and there is no load line yet"
        }
        ScaleTarget::HeadRoom(_) => {
            "there is no load line yet, and no agent tells how busy its members' processors are"
        }
        ScaleTarget::ResponseTime(_) => "no request has ended yet",
    };
    match short {
        None => format!("{needs}: it keeps what it has"),
        Some(short) => {
            let mut why = needs.to_string();
            append_shortage(&mut why, seen, short);
            why
        }
    }
}

pub(super) fn append_cooldown(why: &mut String, left: Duration) {
    why.push_str(&format!("; not before {:.1} s are over (cool-down)", left.as_secs_f64()));
}

pub(super) fn append_pause(why: &mut String) {
    why.push_str("; paused: nothing is done");
}

/// The allowed utilization at which a target in seconds can hardly be met.
const UNREACHABLE: f64 = 0.1;
