//! The what-if page: a group as a queueing model, with sliders for the load, the number of members and the
//! demand of a request.
//!
//! The owner of the balancer solves the model
//! ([`BalancerBackend::what_if`]). Without JavaScript the sliders are a
//! form.

use plimsoll_brain::status::GroupStatus;
use serde::Serialize;

use super::chart::DrawnLine;
use super::format::{latency, percent, rate};
use super::urls::{self, PageUrl, first_field};
use super::view_models::{LabeledValue, PageContext, PageFrame, labeled_value};
use crate::{BalancerBackend, WhatIfInput, WhatIfResult};

/// One slider.
#[derive(Debug, Serialize)]
pub(super) struct Slider {
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    min: String,
    max: String,
    step: String,
    value: String,
    about: String,
}

/// The page.
#[derive(Debug, Serialize)]
pub(super) struct WhatIfPage {
    base: PageFrame,
    group: String,
    group_href: String,
    action: String,
    sliders: Vec<Slider>,
    /// The results of the model; `None` if there are none.
    found: Option<ModelResults>,
    wrong: Option<String>,
    /// The source of the initial values.
    from: String,
}

/// The results.
#[derive(Debug, Serialize)]
struct ModelResults {
    says: String,
    over: bool,
    facts: Vec<LabeledValue>,
    curve: Option<ResponseCurve>,
}

/// The response time over the rate.
#[derive(Debug, Serialize)]
struct ResponseCurve {
    says: String,
    line: DrawnLine,
    /// The positions and labels of the rates and of the times.
    across: Vec<(f64, String)>,
    up: Vec<(f64, String)>,
    /// The positions of the assumed rate and of the saturation.
    here: Option<(f64, f64)>,
    saturation: Option<f64>,
    rows: Vec<(String, String)>,
}

/// The initial values of the sliders.
struct SliderDefaults {
    rate: f64,
    members: u32,
    demand: f64,
    cores: u32,
    from: String,
}

fn slider_defaults(page_context: &PageContext<'_>, group: &GroupStatus) -> SliderDefaults {
    let eligible_count = group.members.iter().filter(|member| member.state.is_eligible()).count().max(1);
    let load_line = group.load_line.as_ref();
    let rate = load_line.map_or(0.0, |load_line| load_line.requests_per_second);
    // An agent may report the number of a member's processors.
    let explanation = page_context
        .is_allowed(crate::Operation::Explain, &group.name)
        .then(|| page_context.balancer.explain(&group.name))
        .flatten();
    let facts = explanation
        .iter()
        .flat_map(|group_explanation| &group_explanation.members)
        .flat_map(|member| &member.facts);
    let cores = facts.filter(|fact| fact.name == "cpus").map(|fact| fact.value).reduce(f64::max);
    let mut capacities: Vec<f64> = group
        .members
        .iter()
        .filter_map(|member| member.load_line.as_ref()?.capacity)
        .filter(|capacity| *capacity > 0.0)
        .collect();
    capacities.sort_by(f64::total_cmp);
    // Otherwise the learned or reported concurrency limit of the members.
    let mut knees: Vec<f64> =
        group.members.iter().filter_map(|member| member.knee).filter(|knee| *knee > 0.0).collect();
    knees.sort_by(f64::total_cmp);
    let cores = cores.or_else(|| knees.get(knees.len() / 2).copied());
    let cores = cores.unwrap_or(1.0).clamp(1.0, 64.0).round() as u32;
    let (demand, from) = match capacities.get(capacities.len() / 2) {
        Some(median) => (
            f64::from(cores) / median,
            format!("the load line: a member can do {}/s", super::format::rate(*median)),
        ),
        None if group.latency.count > 0 => (
            group.latency.p50,
            "the median of the times so far, waiting included: what members can carry is not known yet"
                .to_owned(),
        ),
        None => (0.01, "nothing: no request has ended yet".to_owned()),
    };
    let rate = if rate > 0.0 { rate } else { 0.5 * eligible_count as f64 * f64::from(cores) / demand };
    SliderDefaults { rate, members: u32::try_from(eligible_count).unwrap_or(1).min(256), demand, cores, from }
}

/// The limit on cores of all members together: any caller may ask, and more take seconds.
const MAX_CORES: u32 = 2048;

/// Returns the values of the sliders, and the current ones for the rest.
pub(super) fn read_inputs(
    page_context: &PageContext<'_>,
    group: &str,
    fields: &[(String, String)],
) -> Option<(WhatIfInput, WhatIfInputs)> {
    let status = page_context.group(group)?;
    let defaults = slider_defaults(page_context, status);
    let parse_field = |name: &str, min_value: f64, max_value: f64| {
        let value: f64 = first_field(fields, name)?.trim().parse().ok()?;
        value.is_finite().then(|| value.clamp(min_value, max_value))
    };
    let members =
        parse_field("members", 1.0, 256.0).map_or(defaults.members, |members| members.round() as u32);
    let cores = parse_field("cores", 1.0, 64.0).map_or(defaults.cores, |cores| cores.round() as u32);
    let input = WhatIfInput {
        group: group.to_owned(),
        rate: parse_field("rate", 0.01, 1e7).unwrap_or(defaults.rate),
        members,
        demand: parse_field("demand", 0.001, 1e6).map_or(defaults.demand, |millis| millis / 1e3),
        cores: cores.min((MAX_CORES / members).max(1)),
    };
    let inputs = WhatIfInputs { sliders: sliders(&defaults, &input), from: defaults.from };
    Some((input, inputs))
}

/// The part of the page that is known before the model is solved.
pub(super) struct WhatIfInputs {
    sliders: Vec<Slider>,
    from: String,
}

fn sliders(defaults: &SliderDefaults, input: &WhatIfInput) -> Vec<Slider> {
    let capacity = f64::from(defaults.members * defaults.cores) / defaults.demand;
    let max_rate = (2.0 * capacity.max(defaults.rate)).max(input.rate);
    let millis = defaults.demand * 1e3;
    let slider = |name, label, unit, (min, max): (f64, f64), step: f64, value: f64, about: String| Slider {
        name,
        label,
        unit,
        min: round_to_tenth(min).to_string(),
        max: round_to_tenth((max / step).ceil() * step).to_string(),
        step: round_to_tenth(step).to_string(),
        value: round_to_tenth(((value / step).round() * step).max(min)).to_string(),
        about,
    };
    let rate_step = slider_step(max_rate / 200.0);
    let demand_step = slider_step(millis / 50.0);
    vec![
        slider(
            "rate",
            "Arrival rate",
            "requests a second",
            (rate_step, max_rate),
            rate_step,
            input.rate,
            format!("now {}", rate(defaults.rate)),
        ),
        slider(
            "members",
            "Members",
            "members",
            (1.0, f64::from(input.members.max(2 * defaults.members + 2))),
            1.0,
            f64::from(input.members),
            format!("now {} serve", defaults.members),
        ),
        slider(
            "demand",
            "Demand",
            "ms of work a request",
            (demand_step, (4.0 * millis).max(input.demand * 1e3)),
            demand_step,
            input.demand * 1e3,
            format!("now {}", latency(defaults.demand)),
        ),
        slider(
            "cores",
            "Cores of a member",
            "at full speed at once",
            (1.0, f64::from(input.cores.max(16))),
            1.0,
            f64::from(input.cores),
            format!("now {}", defaults.cores),
        ),
    ]
}

/// Returns a round step of about that size.
fn slider_step(size: f64) -> f64 {
    let size = size.clamp(1e-4, 1e5);
    let unit = 10_f64.powf(size.log10().floor());
    let step_factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * unit >= size);
    round_to_tenth(step_factor.unwrap_or(10.0) * unit)
}

/// Rounds away the errors of sums of tenths.
fn round_to_tenth(value: f64) -> f64 {
    if value.abs() >= 100.0 { (value * 10.0).round() / 10.0 } else { (value * 1e4).round() / 1e4 }
}

/// Returns the page with the results of the model.
pub(super) fn what_if_page(
    page_context: &PageContext<'_>,
    input: &WhatIfInput,
    inputs: WhatIfInputs,
    result: Result<WhatIfResult, String>,
    path: &str,
) -> WhatIfPage {
    let (results, error) = match result {
        Ok(result) => (Some(describe_results(input, &result)), None),
        Err(error_message) => (None, Some(error_message)),
    };
    let page_url = PageUrl::WhatIf(input.group.clone());
    WhatIfPage {
        base: page_context.frame(&format!("{}: what if", input.group), &page_url, path),
        group: input.group.clone(),
        group_href: urls::group_url(&input.group),
        action: format!("{}/what-if", urls::group_url(&input.group)),
        sliders: inputs.sliders,
        found: results,
        wrong: error,
        from: inputs.from,
    }
}

/// Solves the model, on a thread that may block.
pub(super) fn solve(balancer: &dyn BalancerBackend, input: &WhatIfInput) -> Result<WhatIfResult, String> {
    balancer.what_if(input)
}

fn describe_results(input: &WhatIfInput, result: &WhatIfResult) -> ModelResults {
    let headroom = 1.0 - input.rate / result.saturation.max(f64::MIN_POSITIVE);
    let is_overloaded = result.response.is_none() || headroom < 0.0;
    let summary = match result.response {
        Some(response) if !is_overloaded => {
            format!("{} in the mean, {} below the load line", latency(response), percent(headroom))
        }
        _ => format!("{} over the load line: requests pile up without end", percent((-headroom).max(0.0))),
    };
    let facts = vec![
        labeled_value(
            "response time, mean",
            result.response.filter(|_| !is_overloaded).map_or_else(|| "without end".to_owned(), latency),
        ),
        labeled_value("members busy", percent(result.utilization)),
        labeled_value("balancer busy", percent(result.balancer)),
        labeled_value("load line", format!("{}/s", rate(result.saturation))),
        labeled_value("held back first by", result.bottleneck.clone()),
        labeled_value("policy of the model", result.policy.replace('_', " ")),
    ];
    ModelResults { says: summary, over: is_overloaded, facts, curve: curve(input, result) }
}

/// The plot area in a drawing of 360 by 160.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 130.0;

fn curve(input: &WhatIfInput, result: &WhatIfResult) -> Option<ResponseCurve> {
    let (_, min_response) = *result.curve.first()?;
    let max_rate = (result.saturation * 1.1).max(input.rate).min(result.saturation * 2.0);
    // Near the saturation times grow without limit; the curve ends at ten times the minimum.
    let max_time = 10.0 * min_response;
    let x = |rate: f64| {
        super::load_bar::round_to_tenth(LEFT + (rate / max_rate).clamp(0.0, 1.0) * (RIGHT - LEFT))
    };
    let y = |time: f64| {
        super::load_bar::round_to_tenth(BOTTOM - (time / max_time).clamp(0.0, 1.0) * (BOTTOM - TOP))
    };
    let points_inside = result.curve.iter().take_while(|(_, time)| *time <= max_time);
    let points: Vec<String> =
        points_inside.map(|(rate, time)| format!("{},{}", x(*rate), y(*time))).collect();
    let now = result.response.map_or_else(|| "–".to_owned(), latency);
    Some(ResponseCurve {
        says: format!(
            "Mean response time over the rate: {} at the beginning, without end from {} requests a second.",
            latency(min_response),
            rate(result.saturation)
        ),
        line: DrawnLine { name: "response time".into(), parts: vec![points.join(" ")], now },
        across: [0.0, 0.5, 1.0].map(|fraction| (x(fraction * max_rate), rate(fraction * max_rate))).to_vec(),
        up: [0.0, 0.5, 1.0].map(|fraction| (y(fraction * max_time), latency(fraction * max_time))).to_vec(),
        here: result.response.map(|response| (x(input.rate), y(response))),
        saturation: (result.saturation <= max_rate).then(|| x(result.saturation)),
        rows: result.curve.iter().map(|(point_rate, time)| (rate(*point_rate), latency(*time))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sliders_have_round_steps_that_reach_everything() {
        for size in [0.0, 1e-9, 0.003, 0.07, 1.0, 42.0, 1234.0, 1e12] {
            let step = slider_step(size);
            assert!(step > 0.0 && (size > 1e5 || step >= size.min(1e5)), "{size} {step}");
        }
        let defaults =
            SliderDefaults { rate: 118.0, members: 2, demand: 0.01, cores: 1, from: String::new() };
        let input = WhatIfInput { group: "web".into(), rate: 1000.0, members: 9, demand: 0.5, cores: 32 };
        for slider in sliders(&defaults, &input) {
            let [min, value, max] =
                [&slider.min, &slider.value, &slider.max].map(|text| text.parse::<f64>().unwrap());
            assert!(min <= value && value <= max, "{slider:?}");
        }
    }

    #[test]
    fn over_the_load_line_there_is_no_time() {
        let input = WhatIfInput { group: "web".into(), rate: 220.0, members: 2, demand: 0.01, cores: 1 };
        let mut result = WhatIfResult {
            saturation: 200.0,
            curve: vec![(10.0, 0.01), (190.0, 0.2)],
            ..WhatIfResult::default()
        };
        let results = describe_results(&input, &result);
        assert!(
            results.over && results.says == "10 % over the load line: requests pile up without end",
            "{}",
            results.says
        );
        result.response = Some(0.02);
        let results = describe_results(&WhatIfInput { rate: 100.0, ..input }, &result);
        assert_eq!(results.says, "20 ms in the mean, 50 % below the load line");
        let curve = results.curve.unwrap();
        assert_eq!(curve.line.parts[0].split(' ').count(), 1, "what has no end is not drawn");
        assert!(curve.here.is_some() && curve.saturation.is_some());
    }
}
