//! Constraints between the parts of an experiment file.

mod application;
mod groups;
mod load;
mod scaler;

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use super::{
    BalancerKind, BalancerSpec, Claim, Experiment, ExperimentError, Factor, FactorLevel, FaultAction,
    FaultInjection, LoadProtocol, RunLength, ScalingPolicy, VariedFactor, XAxis,
};
use crate::lab::metric::Metric;
use crate::lab::plan::{self, ExperimentPoint};
use crate::lab::result_source::ResultSource;

/// The minimum number of samples for a useful confidence interval.
const SAMPLES: usize = 5;
/// The maximum number of members, and of clients of a closed loop.
const MEMBERS: f64 = 64.0;
const CLIENTS: f64 = 16_384.0;
/// The maximum number of balancers at once.
const INSTANCES: usize = 64;
/// The maximum number of retries.
const RETRIES: f64 = 10.0;
/// The maximum number of workers of a member.
const WORKERS: usize = 4096;
/// The maximum number of repetitions, and of batches in each.
const TIMES: usize = 1000;
/// The minimum length of a batch, and the maximum length of a repetition.
const BATCH: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_hours(24);
/// The maximum delay of a packet.
const DELAY: Duration = Duration::from_secs(10);
/// The maximum of requests per second, and of the share of the capacity.
const RATE: f64 = 10_000_000.0;
const SHARE: f64 = 1000.0;
/// The maximum time of the application in milliseconds, and the maximum bytes of a message.
const MILLISECONDS: f64 = 100_000.0;
const LENGTH: f64 = 200_000.0;
/// The bounds of a member's processors, and of their speed.
const CORES: RangeInclusive<f64> = 0.001..=1e6;
/// The maximum number of integers in a request, and of swaps of them.
const INTEGERS: usize = 1_000_000;
const SWAPS: u32 = 10_000_000;

/// Returns all errors of an experiment that could be parsed.
pub(super) fn check(experiment: &Experiment) -> Vec<ExperimentError> {
    let mut wrong = Vec::new();
    let mut say = |at: Range<usize>, message: String| wrong.push(ExperimentError { span: at, message });
    let varied: Vec<Factor> = experiment.factors.iter().map(|vary| *vary.vary.get_ref()).collect();

    for (index, vary) in experiment.factors.iter().enumerate() {
        let factor = *vary.vary.get_ref();
        if varied[..index].contains(&factor) {
            say(vary.vary.span(), format!("`{}` is varied twice", factor.name()));
        }
        for levels in [&vary.full, &vary.quick] {
            if levels.get_ref().is_empty() {
                say(levels.span(), "no level: give at least one".to_owned());
            }
            for level in levels.get_ref() {
                if let Err(why) = check_level(factor, level) {
                    say(levels.span(), why);
                }
            }
        }
    }

    if let Some(levels) = direct(experiment)
        && (experiment.members.count() != 1 || varied.contains(&Factor::Endpoints))
    {
        let message = "`none` goes straight to the only member: elsewhere write no balancer as 0 endpoints";
        say(levels, message.to_owned());
    }
    let plan = &experiment.plan;
    for mode in [RunLength::Quick, RunLength::Full] {
        let repetitions = plan.repetitions.for_length(mode);
        let batches = *plan.batches.for_length(mode);
        let bounds = 1..=TIMES;
        if !bounds.contains(repetitions.get_ref()) || !bounds.contains(&batches) {
            say(repetitions.span(), format!("repetitions and batches are from 1 to {TIMES}"));
        }
        let samples = repetitions.get_ref().saturating_mul(batches);
        if samples < SAMPLES {
            let message = format!("{samples} samples: repetitions times batches must be {SAMPLES} or more");
            say(repetitions.span(), message);
        }
        let (warmup, duration) = (plan.warmup.for_length(mode).0, plan.duration.for_length(mode).0);
        if duration.as_secs_f64() < BATCH.as_secs_f64() * batches as f64 {
            let least = BATCH.as_millis();
            say(repetitions.span(), format!("the duration must be at least {least} ms for each batch"));
        }
        if plan.tick.is_some_and(|tick| tick.for_length(mode).0 < BATCH) {
            say(repetitions.span(), format!("the tick is at least {} ms", BATCH.as_millis()));
        }
        if warmup > LONG || duration > LONG {
            say(repetitions.span(), "warm-up and duration are a day each at most".to_owned());
        }
    }

    let top = 0..0;
    for (at, why) in load::check(experiment, &varied) {
        say(at, why);
    }
    let load = &experiment.load;
    let level = |value: f64| FactorLevel::Number(value);
    if experiment.balancer.instances.is_some_and(|count| !(1..=INSTANCES).contains(&count)) {
        say(top.clone(), format!("[balancer] instances: expected from 1 to {INSTANCES}"));
    }
    let retries =
        experiment.balancer.retries.map(|count| check_level(Factor::Retries, &level(f64::from(count))));
    if let Some(Err(why)) = retries {
        say(top.clone(), format!("[balancer] retries: {why}"));
    }
    let loads = [
        (Factor::Rate, load.rate.map(level)),
        (Factor::Share, load.share.map(level)),
        (Factor::Concurrency, load.concurrency.map(|clients| level(clients as f64))),
    ];
    for (factor, value) in loads {
        if let Some(Err(why)) = value.map(|value| check_level(factor, &value)) {
            say(top.clone(), format!("[load] {}: {why}", factor.name()));
        }
    }
    for (at, why) in application::check(experiment, &varied) {
        say(at, why);
    }
    for (at, why) in groups::check(experiment, &varied) {
        say(at, why);
    }
    for why in members(experiment, &varied) {
        say(top.clone(), why);
    }
    for (at, why) in scaler::check(experiment, &varied) {
        say(at, why);
    }
    let network = &experiment.network;
    if network.delay.is_some_and(|delay| !network.namespaces || delay.0 > DELAY) {
        let most = DELAY.as_secs();
        say(top.clone(), format!("[network] delay needs `namespaces = true`, and is {most} s at most"));
    }
    for fault in &experiment.faults {
        if matches!(fault.act, FaultAction::CutOff | FaultAction::Join) && !network.namespaces {
            let message = "a fault with `cut_off` or `join` needs [network] with `namespaces = true`";
            say(top.clone(), message.to_owned());
        }
        if fault.act != FaultAction::Add && fault.member == 0 {
            say(top.clone(), "a fault names its `member` by a number from 1 on".to_owned());
        }
        if (fault.act == FaultAction::Slow) != fault.factor.is_some() {
            say(top.clone(), "a fault with `slow`, and no other, needs a `factor`".to_owned());
        }
        if fault.factor.is_some_and(|factor| !factor.is_finite() || factor <= 0.0) {
            say(top.clone(), "the `factor` of a fault is a number above 0".to_owned());
        }
        let told = fault.rate.is_some() || fault.after.is_some() || fault.with.is_some();
        if told && fault.act != FaultAction::Fail {
            say(top.clone(), "`rate`, `after` and `with` belong to a fault with `fail`".to_owned());
        }
        if fault.rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            say(top.clone(), "the `rate` of a fault is a share from 0 to 1".to_owned());
        }
    }

    for figure in &experiment.figures {
        if let Some(factor) = figure.x.get_ref().factor()
            && !varied.contains(&factor)
        {
            say(figure.x.span(), format!("`{}` is not varied", factor.name()));
        }
        if let Some(series) = &figure.series
            && !varied.contains(series.get_ref())
        {
            say(series.span(), format!("`{}` is not varied", series.get_ref().name()));
        }
        let mut named: Vec<Factor> = figure.series.iter().map(|series| *series.get_ref()).collect();
        named.extend(figure.x.get_ref().factor());
        named.extend(figure.only.iter().filter(|only| only.is_single_level()).map(|only| only.factor));
        if let Some(only) = figure.only.iter().find(|only| !varied.contains(&only.factor)) {
            say(figure.x.span(), format!("`{}` is not varied", only.factor.name()));
        }
        // Over time every point has lines of its own.
        if *figure.x.get_ref() != XAxis::Seconds
            && let Some(factor) = unnamed_factor(experiment, &named)
        {
            say(figure.x.span(), mixed("figure", factor));
        }
        if *figure.x.get_ref() == XAxis::Seconds && !figure.y.is_per_second() {
            say(figure.x.span(), format!("`{}` is not known by the second", figure.y.name()));
        }
        if !figure.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            || figure.name.is_empty()
        {
            say(figure.x.span(), "the figure's name becomes a file: letters, digits and hyphens".to_owned());
        }
    }
    for claim in &experiment.claims {
        let test = claim.test.get_ref();
        let mut named = test.factors();
        named.extend(claim.only.iter().filter(|only| only.is_single_level()).map(|only| only.factor));
        for factor in test.factors().into_iter().chain(claim.only.iter().map(|only| only.factor)) {
            if !varied.contains(&factor) {
                say(claim.test.span(), format!("`{}` is not varied", factor.name()));
            }
        }
        // A bound evaluates every point by itself, a ratio the points that differ in its series alone.
        if let Some(why) = test.error() {
            say(claim.test.span(), why.to_owned());
        }
        if experiment.model.is_none() && (claim.column != ResultSource::Measured || test.is_about_model()) {
            say(claim.test.span(), "there is no [model] whose numbers the claim could be of".to_owned());
        }
        if claim.column != ResultSource::Measured && test.is_about_model() {
            let message = "this test looks at the model anyway: it takes `by`, and the claim no `column`";
            say(claim.test.span(), message.to_owned());
        }
        if !test.is_pointwise()
            && let Some(factor) = unnamed_factor(experiment, &named)
        {
            say(claim.test.span(), mixed("claim", factor));
        }
        if matches!(test.metric(), Metric::Speedup | Metric::Efficiency)
            && !varied.contains(&Factor::Endpoints)
        {
            say(
                claim.test.span(),
                "a speed-up needs `endpoints` as a factor, with 0 among its levels".to_owned(),
            );
        }
    }
    // Points can be created only if everything before is valid.
    if wrong.is_empty() {
        for mode in [RunLength::Quick, RunLength::Full] {
            let points = plan::points(experiment, mode);
            let fails = |point: &ExperimentPoint| {
                faults(experiment, mode, point).and_then(|()| load::check_protocol(experiment, point)).err()
            };
            if let Some(why) = points.iter().find_map(fails) {
                wrong
                    .push(ExperimentError { span: top.clone(), message: format!("{why} ({})", mode.name()) });
            }
            let unasked = |claim: &&Claim| mode == RunLength::Full && !claim.is_decidable_by(&points);
            wrong.extend(experiment.claims.iter().filter(unasked).map(|claim| ExperimentError {
                span: claim.test.span(),
                message: "no point has the levels that the claim is about (full)".to_owned(),
            }));
            let model = experiment.model.as_ref();
            if let Some((model, why)) = model.and_then(|model| Some((model, model.get_ref().error(&points)?)))
            {
                wrong.push(ExperimentError {
                    span: model.span(),
                    message: format!("{why} ({})", mode.name()),
                });
                break;
            }
        }
    }
    wrong
}

/// Returns the errors of the members.
fn members(experiment: &Experiment, varied: &[Factor]) -> Vec<String> {
    let mut wrong = Vec::new();
    let fleet = &experiment.members;
    let several = fleet.groups().len() > 1;
    if several && varied.contains(&Factor::Endpoints) {
        wrong.push("`endpoints` cannot be varied where there are several groups of [[members]]".to_owned());
    }
    if fleet.count() as f64 > MEMBERS || fleet.groups().iter().any(|members| members.count == 0) {
        wrong.push(format!("[members] needs from 1 to {MEMBERS} members in all, and one in each group"));
    }
    for members in fleet.groups() {
        if members.service.is_none() == members.swaps.is_none() {
            wrong.push("[members] needs either `service` or `swaps`".to_owned());
        }
        if !(1..=WORKERS).contains(&members.workers) {
            wrong.push(format!("[members] needs from 1 to {WORKERS} workers"));
        }
        if members.session.is_some() && several {
            wrong.push("[members] `session` is measured for members that are all alike".to_owned());
        }
        let swaps = [members.swaps, members.session.map(|session| session.swaps)];
        if swaps.into_iter().flatten().any(|swaps| !(1..=SWAPS).contains(&swaps)) {
            wrong.push(format!("[members] swaps: expected from 1 to {SWAPS}"));
        }
        if members.session.is_some_and(|session| !(1..=INTEGERS).contains(&session.integers)) {
            wrong.push(format!("[members] session: expected from 1 to {INTEGERS} integers"));
        }
        for (name, value) in [("cores", members.cores), ("speed", members.speed)] {
            if value.is_some_and(|value| !CORES.contains(&value)) {
                let (least, most) = (CORES.start(), CORES.end());
                wrong.push(format!("[members] {name}: expected a number from {least} to {most}"));
            }
        }
        let shared = members.speed.is_some() || members.antagonist.is_some() || members.ignore_cancel;
        if shared && members.cores.is_none() {
            wrong.push("[members] `speed`, `antagonist` and `ignore_cancel` need `cores`".to_owned());
        }
        if members.cores.is_some() && (members.burn || members.swaps.is_some()) {
            wrong.push(
                "[members] `cores` are emulated: they go with `service`, not with `burn` or `swaps`"
                    .to_owned(),
            );
        }
    }
    wrong
}

/// Returns the place of the balancer's levels with `none`.
fn direct(experiment: &Experiment) -> Option<Range<usize>> {
    let none = FactorLevel::Text("none".to_owned());
    let levels = experiment.factors.iter().flat_map(|vary| [&vary.full, &vary.quick]);
    levels.into_iter().find(|levels| levels.get_ref().contains(&none)).map(toml::Spanned::span)
}

/// Returns a factor with more than one level that is not named: its levels would be mixed in one curve.
fn unnamed_factor(experiment: &Experiment, named: &[Factor]) -> Option<Factor> {
    let several = |vary: &&VariedFactor| vary.full.get_ref().len() > 1 || vary.quick.get_ref().len() > 1;
    let mut factors = experiment.factors.iter().filter(several).map(|vary| *vary.vary.get_ref());
    factors.find(|factor| !named.contains(factor))
}

fn mixed(what: &str, factor: Factor) -> String {
    let factor = factor.name();
    format!("the {what} would mix the levels of `{factor}`: name it, or vary it in an experiment of its own")
}

/// Checks that every fault can happen in this point, in its order.
fn faults(experiment: &Experiment, mode: RunLength, point: &ExperimentPoint) -> Result<(), String> {
    let mut faults: Vec<&FaultInjection> = experiment.faults.iter().collect();
    faults.sort_by_key(|fault| fault.at.for_length(mode).0);
    let end = plan::repetition_length(experiment, mode);
    let mut alive = vec![true; point.members];
    let mut apart = vec![false; point.members];
    for fault in faults {
        let (at, number) = (fault.at.for_length(mode).0, fault.member);
        if at >= end {
            let (at, end) = (at.as_secs_f64(), end.as_secs_f64());
            return Err(format!("a fault at {at} s never happens: warm-up and duration end after {end} s"));
        }
        if fault.act == FaultAction::Add {
            if point.balancer.kind != BalancerKind::Plimsoll {
                return Err(format!(
                    "members can be added to plimsoll only, not to {}",
                    point.balancer.kind.name()
                ));
            }
            alive.push(true);
            apart.push(false);
            continue;
        }
        let index = number.wrapping_sub(1);
        let (Some(alive), Some(apart)) = (alive.get_mut(index), apart.get_mut(index)) else {
            return Err(format!("a fault at {} s: there is no member {number} by then", at.as_secs_f64()));
        };
        let cut = fault.act == FaultAction::CutOff;
        if cut || fault.act == FaultAction::Join {
            if *apart == cut {
                let is = if cut { "cut off already" } else { "not cut off" };
                return Err(format!("a fault at {} s: member {number} is {is}", at.as_secs_f64()));
            }
            *apart = cut;
            continue;
        }
        match (fault.act, *alive) {
            (FaultAction::Start, true) => {
                return Err(format!("member {number} is started, but it runs already"));
            }
            (FaultAction::Stop | FaultAction::Continue | FaultAction::Slow | FaultAction::Fail, false) => {
                return Err(format!("member {number} is harmed while it does not run"));
            }
            (act, _) => *alive = act != FaultAction::Kill,
        }
    }
    Ok(())
}

/// Checks that the level is one of the factor's.
fn check_level(factor: Factor, level: &FactorLevel) -> Result<(), String> {
    match (factor, level) {
        (Factor::Balancer, FactorLevel::Text(text)) => {
            let balancer: BalancerSpec = text.parse()?;
            if balancer.kind == BalancerKind::None && *text != "none" {
                return Err(format!("`{text}`: without a balancer nobody chooses: write `none`"));
            }
            Ok(())
        }
        (Factor::Balancer, FactorLevel::Number(_)) => Err("a balancer is given by its name".to_owned()),
        (Factor::Protocol, FactorLevel::Text(text)) if LoadProtocol::from_name(text).is_some() => Ok(()),
        (Factor::Protocol, level) => Err(format!("`{level}`: expected `http` or `iiop`")),
        (Factor::Scaler, FactorLevel::Text(text)) => text.parse::<ScalingPolicy>().map(|_| ()),
        (Factor::Scaler, level) => Err(format!("`{level}`: expected who decides, such as `headroom`")),
        (_, FactorLevel::Text(text)) => Err(format!("`{text}`: `{}` takes numbers", factor.name())),
        (Factor::Instances, FactorLevel::Number(n))
            if n.fract() != 0.0 || !(1.0..=INSTANCES as f64).contains(n) =>
        {
            Err(format!("`{n}`: expected a whole number of balancers from 1 to {INSTANCES}"))
        }
        (Factor::Groups, FactorLevel::Number(n))
            if n.fract() != 0.0 || !groups::COUNT.contains(&(*n as usize)) =>
        {
            Err(format!("`{n}`: expected a whole number of groups from 1 to 8"))
        }
        (Factor::Endpoints, FactorLevel::Number(n)) if n.fract() != 0.0 || !(0.0..=MEMBERS).contains(n) => {
            Err(format!("`{n}`: expected a whole number of endpoints up to {MEMBERS}"))
        }
        (Factor::Concurrency, FactorLevel::Number(n)) if n.fract() != 0.0 || !(1.0..=CLIENTS).contains(n) => {
            Err(format!("`{n}`: expected a whole number of clients from 1 to {CLIENTS}"))
        }
        (Factor::Retries, FactorLevel::Number(n)) if n.fract() != 0.0 || !(0.0..=RETRIES).contains(n) => {
            Err(format!("`{n}`: expected a whole number of retries up to {RETRIES}"))
        }
        (Factor::Demand, FactorLevel::Number(n)) if !(*n > 0.0 && *n <= MILLISECONDS) => {
            Err(format!("`{n}`: expected milliseconds above 0, up to {MILLISECONDS}"))
        }
        (Factor::Delay, FactorLevel::Number(n)) if !(0.0..=MILLISECONDS).contains(n) => {
            Err(format!("`{n}`: expected milliseconds up to {MILLISECONDS}"))
        }
        (Factor::Age, FactorLevel::Number(n)) if !(*n == 0.0 || (0.05..=3600.0).contains(n)) => {
            Err(format!("`{n}`: expected seconds from 0.05 to 3600, or 0 for a choice by chance"))
        }
        (Factor::Length, FactorLevel::Number(n)) if n.fract() != 0.0 || !(0.0..=LENGTH).contains(n) => {
            Err(format!("`{n}`: expected a whole number of bytes up to {LENGTH}"))
        }
        (Factor::Clones, FactorLevel::Number(n)) if n.fract() != 0.0 || !(1.0..=1000.0).contains(n) => {
            Err(format!("`{n}`: expected a whole number of clones from 1 to 1000"))
        }
        (Factor::Share, FactorLevel::Number(n)) if !(*n > 0.0 && *n <= SHARE) => {
            Err(format!("`{n}`: expected a number above 0, up to {SHARE}"))
        }
        (Factor::Rate, FactorLevel::Number(n)) if !(*n > 0.0 && *n <= RATE) => {
            Err(format!("`{n}`: expected a number above 0, up to {RATE}"))
        }
        _ => Ok(()),
    }
}
