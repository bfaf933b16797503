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

fn slider_defaults(eye: &PageContext<'_>, group: &GroupStatus) -> SliderDefaults {
    let usable = group.members.iter().filter(|member| member.state.is_eligible()).count().max(1);
    let line = group.load_line.as_ref();
    let rate = line.map_or(0.0, |line| line.requests_per_second);
    // An agent may report the number of a member's processors.
    let explained = eye
        .is_allowed(crate::Operation::Explain, &group.name)
        .then(|| eye.balancer.explain(&group.name))
        .flatten();
    let facts = explained.iter().flat_map(|all| &all.members).flat_map(|member| &member.facts);
    let cores = facts.filter(|told| told.name == "cpus").map(|told| told.value).reduce(f64::max);
    let mut capacities: Vec<f64> = group
        .members
        .iter()
        .filter_map(|member| member.load_line.as_ref()?.capacity)
        .filter(|own| *own > 0.0)
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
    let rate = if rate > 0.0 { rate } else { 0.5 * usable as f64 * f64::from(cores) / demand };
    SliderDefaults { rate, members: u32::try_from(usable).unwrap_or(1).min(256), demand, cores, from }
}

/// The limit on cores of all members together: any caller may ask, and more take seconds.
const MAX_CORES: u32 = 2048;

/// Returns the values of the sliders, and the current ones for the rest.
pub(super) fn read_inputs(
    eye: &PageContext<'_>,
    group: &str,
    fields: &[(String, String)],
) -> Option<(WhatIfInput, WhatIfInputs)> {
    let status = eye.group(group)?;
    let begin = slider_defaults(eye, status);
    let given = |name: &str, least: f64, most: f64| {
        let value: f64 = first_field(fields, name)?.trim().parse().ok()?;
        value.is_finite().then(|| value.clamp(least, most))
    };
    let members = given("members", 1.0, 256.0).map_or(begin.members, |members| members.round() as u32);
    let cores = given("cores", 1.0, 64.0).map_or(begin.cores, |cores| cores.round() as u32);
    let ask = WhatIfInput {
        group: group.to_owned(),
        rate: given("rate", 0.01, 1e7).unwrap_or(begin.rate),
        members,
        demand: given("demand", 0.001, 1e6).map_or(begin.demand, |millis| millis / 1e3),
        cores: cores.min((MAX_CORES / members).max(1)),
    };
    let page = WhatIfInputs { sliders: sliders(&begin, &ask), from: begin.from };
    Some((ask, page))
}

/// The part of the page that is known before the model is solved.
pub(super) struct WhatIfInputs {
    sliders: Vec<Slider>,
    from: String,
}

fn sliders(begin: &SliderDefaults, ask: &WhatIfInput) -> Vec<Slider> {
    let capacity = f64::from(begin.members * begin.cores) / begin.demand;
    let most = (2.0 * capacity.max(begin.rate)).max(ask.rate);
    let millis = begin.demand * 1e3;
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
    let rates = slider_step(most / 200.0);
    let demands = slider_step(millis / 50.0);
    vec![
        slider(
            "rate",
            "Arrival rate",
            "requests a second",
            (rates, most),
            rates,
            ask.rate,
            format!("now {}", rate(begin.rate)),
        ),
        slider(
            "members",
            "Members",
            "members",
            (1.0, f64::from(ask.members.max(2 * begin.members + 2))),
            1.0,
            f64::from(ask.members),
            format!("now {} serve", begin.members),
        ),
        slider(
            "demand",
            "Demand",
            "ms of work a request",
            (demands, (4.0 * millis).max(ask.demand * 1e3)),
            demands,
            ask.demand * 1e3,
            format!("now {}", latency(begin.demand)),
        ),
        slider(
            "cores",
            "Cores of a member",
            "at full speed at once",
            (1.0, f64::from(ask.cores.max(16))),
            1.0,
            f64::from(ask.cores),
            format!("now {}", begin.cores),
        ),
    ]
}

/// Returns a round step of about that size.
fn slider_step(size: f64) -> f64 {
    let size = size.clamp(1e-4, 1e5);
    let unit = 10_f64.powf(size.log10().floor());
    let found = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * unit >= size);
    round_to_tenth(found.unwrap_or(10.0) * unit)
}

/// Rounds away the errors of sums of tenths.
fn round_to_tenth(value: f64) -> f64 {
    if value.abs() >= 100.0 { (value * 10.0).round() / 10.0 } else { (value * 1e4).round() / 1e4 }
}

/// Returns the page with the results of the model.
pub(super) fn what_if_page(
    eye: &PageContext<'_>,
    ask: &WhatIfInput,
    page: WhatIfInputs,
    found: Result<WhatIfResult, String>,
    path: &str,
) -> WhatIfPage {
    let (found, wrong) = match found {
        Ok(found) => (Some(describe_results(ask, &found)), None),
        Err(why) => (None, Some(why)),
    };
    let place = PageUrl::WhatIf(ask.group.clone());
    WhatIfPage {
        base: eye.frame(&format!("{}: what if", ask.group), &place, path),
        group: ask.group.clone(),
        group_href: urls::group_url(&ask.group),
        action: format!("{}/what-if", urls::group_url(&ask.group)),
        sliders: page.sliders,
        found,
        wrong,
        from: page.from,
    }
}

/// Solves the model, on a thread that may block.
pub(super) fn solve(subject: &dyn BalancerBackend, ask: &WhatIfInput) -> Result<WhatIfResult, String> {
    subject.what_if(ask)
}

fn describe_results(ask: &WhatIfInput, found: &WhatIfResult) -> ModelResults {
    let below = 1.0 - ask.rate / found.saturation.max(f64::MIN_POSITIVE);
    let over = found.response.is_none() || below < 0.0;
    let says = match found.response {
        Some(response) if !over => {
            format!("{} in the mean, {} below the load line", latency(response), percent(below))
        }
        _ => format!("{} over the load line: requests pile up without end", percent((-below).max(0.0))),
    };
    let facts = vec![
        labeled_value(
            "response time, mean",
            found.response.filter(|_| !over).map_or_else(|| "without end".to_owned(), latency),
        ),
        labeled_value("members busy", percent(found.utilization)),
        labeled_value("balancer busy", percent(found.balancer)),
        labeled_value("load line", format!("{}/s", rate(found.saturation))),
        labeled_value("held back first by", found.bottleneck.clone()),
        labeled_value("policy of the model", found.policy.replace('_', " ")),
    ];
    ModelResults { says, over, facts, curve: curve(ask, found) }
}

/// The plot area in a drawing of 360 by 160.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 130.0;

fn curve(ask: &WhatIfInput, found: &WhatIfResult) -> Option<ResponseCurve> {
    let (_, least) = *found.curve.first()?;
    let most = (found.saturation * 1.1).max(ask.rate).min(found.saturation * 2.0);
    // Near the saturation times grow without limit; the curve ends at ten times the minimum.
    let highest = 10.0 * least;
    let x =
        |rate: f64| super::load_bar::round_to_tenth(LEFT + (rate / most).clamp(0.0, 1.0) * (RIGHT - LEFT));
    let y = |time: f64| {
        super::load_bar::round_to_tenth(BOTTOM - (time / highest).clamp(0.0, 1.0) * (BOTTOM - TOP))
    };
    let inside = found.curve.iter().take_while(|(_, time)| *time <= highest);
    let points: Vec<String> = inside.map(|(rate, time)| format!("{},{}", x(*rate), y(*time))).collect();
    let now = found.response.map_or_else(|| "–".to_owned(), latency);
    Some(ResponseCurve {
        says: format!(
            "Mean response time over the rate: {} at the beginning, without end from {} requests a second.",
            latency(least),
            rate(found.saturation)
        ),
        line: DrawnLine { name: "response time".into(), parts: vec![points.join(" ")], now },
        across: [0.0, 0.5, 1.0].map(|part| (x(part * most), rate(part * most))).to_vec(),
        up: [0.0, 0.5, 1.0].map(|part| (y(part * highest), latency(part * highest))).to_vec(),
        here: found.response.map(|response| (x(ask.rate), y(response))),
        saturation: (found.saturation <= most).then(|| x(found.saturation)),
        rows: found.curve.iter().map(|(at, time)| (rate(*at), latency(*time))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sliders_have_round_steps_that_reach_everything() {
        for size in [0.0, 1e-9, 0.003, 0.07, 1.0, 42.0, 1234.0, 1e12] {
            let found = slider_step(size);
            assert!(found > 0.0 && (size > 1e5 || found >= size.min(1e5)), "{size} {found}");
        }
        let begin = SliderDefaults { rate: 118.0, members: 2, demand: 0.01, cores: 1, from: String::new() };
        let ask = WhatIfInput { group: "web".into(), rate: 1000.0, members: 9, demand: 0.5, cores: 32 };
        for slider in sliders(&begin, &ask) {
            let [min, value, max] =
                [&slider.min, &slider.value, &slider.max].map(|text| text.parse::<f64>().unwrap());
            assert!(min <= value && value <= max, "{slider:?}");
        }
    }

    #[test]
    fn over_the_load_line_there_is_no_time() {
        let ask = WhatIfInput { group: "web".into(), rate: 220.0, members: 2, demand: 0.01, cores: 1 };
        let mut found = WhatIfResult {
            saturation: 200.0,
            curve: vec![(10.0, 0.01), (190.0, 0.2)],
            ..WhatIfResult::default()
        };
        let said = describe_results(&ask, &found);
        assert!(
            said.over && said.says == "10 % over the load line: requests pile up without end",
            "{}",
            said.says
        );
        found.response = Some(0.02);
        let said = describe_results(&WhatIfInput { rate: 100.0, ..ask }, &found);
        assert_eq!(said.says, "20 ms in the mean, 50 % below the load line");
        let curve = said.curve.unwrap();
        assert_eq!(curve.line.parts[0].split(' ').count(), 1, "what has no end is not drawn");
        assert!(curve.here.is_some() && curve.saturation.is_some());
    }
}
