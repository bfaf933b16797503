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
    pub(super) fn explanation(&self, settings: &ScalerSettings, start_seconds: f64) -> String {
        let Self {
            observation,
            demand,
            forecast,
            wanted_capacity: wanted,
            floor,
            capacity,
            present,
            desired,
        } = self;
        let change = match (desired, present) {
            (desired, present) if desired > present => format!("{} more", desired - present),
            (desired, present) if desired < present => format!("{} fewer", present - desired),
            _ => "enough".to_string(),
        };
        let (rate, upper_demand) = (observation.rate, forecast.upper.max(0.0));
        let peer_note = match observation.peer_rate {
            peer_rate if peer_rate <= 0.0 => String::new(),
            peer_rate => format!(" ({peer_rate:.1} of them to other balancers)"),
        };
        let mut explanation = format!(
            "{change}: {rate:.1} requests a second{peer_note} take {:.2} of capacity ({}), \
             {upper_demand:.2} in {start_seconds:.1} s{}; with {} \
             that is {wanted:.2}, and {capacity:.2} is there or coming",
            demand.demand,
            demand.source,
            if forecast.surge { " (a crowd comes)" } else { "" },
            target_text(settings.target, demand.allowed_utilization),
        );
        if floor > wanted && capacity > wanted {
            explanation.push_str(&format!("; {floor:.2} was wanted recently"));
        }
        if *desired == settings.max && *wanted > *capacity {
            explanation.push_str(&format!("; {} is the most", settings.max));
        } else if *desired == settings.min && *wanted <= *capacity {
            explanation.push_str(&format!("; {} is the least", settings.min));
        }
        if let ScaleTarget::ResponseTime(seconds) = settings.target
            && demand.allowed_utilization <= MIN_UTILIZATION
        {
            explanation.push_str(&format!(
                "; {seconds} s is hardly more than a request takes alone: more members help little"
            ));
        }
        explanation
    }

    pub(super) fn inputs(&self, start_seconds: f64) -> Vec<(String, f64)> {
        let Self {
            observation,
            demand,
            forecast,
            wanted_capacity: wanted,
            floor,
            capacity,
            present,
            desired,
        } = self;
        let inputs = Vec::from([
            ("allowed", Some(demand.allowed_utilization)),
            ("capacity", Some(*capacity)),
            ("demand", Some(demand.demand)),
            ("desired", Some(f64::from(*desired))),
            ("forecast", Some(forecast.predicted)),
            ("forecast_upper", Some(forecast.upper)),
            ("have", Some(f64::from(*present))),
            ("horizon_seconds", Some(forecast.horizon)),
            ("level", Some(forecast.level)),
            ("refused_per_second", Some(observation.rejected)),
            ("requests_per_second", Some(observation.rate)),
            ("requests_per_second_elsewhere", Some(observation.peer_rate).filter(|rate| *rate > 0.0)),
            ("requests_per_second_per_capacity", demand.unit_rate),
            ("response_seconds", observation.response_p95),
            ("start_seconds", Some(start_seconds)),
            ("trend_per_second", Some(forecast.trend)),
            ("used", Some(demand.utilization)),
            ("waiting", Some(observation.waiting)),
            ("wanted", Some(*wanted)),
            ("wanted_of_late", Some(*floor)),
        ]);
        finite_inputs(inputs)
    }
}

/// Returns the known numbers, by name.
fn finite_inputs(inputs: Vec<(&str, Option<f64>)>) -> Vec<(String, f64)> {
    let finite = |(name, value): (&str, Option<f64>)| {
        Some((name.to_string(), value.filter(|value| value.is_finite())?))
    };
    inputs.into_iter().filter_map(finite).collect()
}

fn target_text(target: ScaleTarget, allowed_utilization: f64) -> String {
    let percent = allowed_utilization * 100.0;
    match target {
        ScaleTarget::Utilization(_) => format!("at most {percent:.0}% in use"),
        ScaleTarget::HeadRoom(headroom) => format!("{:.0}% free", headroom * 100.0),
        ScaleTarget::ResponseTime(seconds) => {
            format!("at most {percent:.0}% in use, for 95 of 100 within {seconds} s,")
        }
    }
}

/// Adds the lack of room to the sentence, and the response.
pub(super) fn append_shortage(
    explanation: &mut String,
    observation: &GroupObservation<'_>,
    shortage: CapacityShortage,
) {
    let (refused, waiting) = (observation.rejected, observation.waiting);
    let symptom = match (refused > 0.0, waiting > 0.0) {
        (true, true) => {
            format!("{refused:.1} requests a second are refused for want of room and {waiting:.0} wait")
        }
        (true, false) => format!("{refused:.1} requests a second are refused for want of room"),
        _ => format!("requests wait for room, {waiting:.0} now"),
    };
    let consequence = match shortage {
        CapacityShortage::StartOne => "one more, whatever is known of the load",
        CapacityShortage::AlreadyStarting => "what is coming is waited for",
        CapacityShortage::AtMaximum => "there are as many as there may be",
    };
    explanation.push_str(&format!("; {symptom}: {consequence}"));
}

/// Returns the known numbers if the load is unknown.
pub(super) fn unknown_load_inputs(observation: &GroupObservation<'_>, present: u32) -> Vec<(String, f64)> {
    finite_inputs(Vec::from([
        ("have", Some(f64::from(present))),
        ("refused_per_second", Some(observation.rejected)),
        ("waiting", Some(observation.waiting)),
    ]))
}

/// Returns the reason why the load is unknown, and the response to a lack of room.
pub(super) fn unknown_load_explanation(
    observation: &GroupObservation<'_>,
    target: ScaleTarget,
    shortage: Option<CapacityShortage>,
) -> String {
    if !observation.rate.is_finite() {
        return "it has only just begun to look".to_string();
    }
    if observation.members.is_empty() {
        return "it has no member yet".to_string();
    }
    if !observation.members.iter().any(|member| member.has_state(ScaledMemberState::Usable)) {
        return match observation.members.iter().any(|member| member.has_state(ScaledMemberState::Starting)) {
            true => "no member can be used yet: it keeps what is coming".to_string(),
            false => {
                "no member can be used: nothing can be said of the load, and it keeps what it has".to_string()
            }
        };
    }
    let explanation = match target {
        ScaleTarget::Utilization(_) => {
            "no agent tells how busy its members' processors are, and there is no load line yet"
        }
        ScaleTarget::HeadRoom(_) => {
            "there is no load line yet, and no agent tells how busy its members' processors are"
        }
        ScaleTarget::ResponseTime(_) => "no request has ended yet",
    };
    match shortage {
        None => format!("{explanation}: it keeps what it has"),
        Some(shortage) => {
            let mut explanation = explanation.to_string();
            append_shortage(&mut explanation, observation, shortage);
            explanation
        }
    }
}

pub(super) fn append_cooldown(explanation: &mut String, remaining: Duration) {
    explanation.push_str(&format!("; not before {:.1} s are over (cool-down)", remaining.as_secs_f64()));
}

pub(super) fn append_pause(explanation: &mut String) {
    explanation.push_str("; paused: nothing is done");
}

/// The allowed utilization at which a target in seconds can hardly be met.
const MIN_UTILIZATION: f64 = 0.1;
