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
const MIN_SAMPLES: usize = 5;
/// The maximum number of members, and of clients of a closed loop.
const MAX_MEMBERS: f64 = 64.0;
const MAX_CLIENTS: f64 = 16_384.0;
/// The maximum number of balancers at once.
const MAX_INSTANCES: usize = 64;
/// The maximum number of retries.
const MAX_RETRIES: f64 = 10.0;
/// The maximum number of workers of a member.
const MAX_WORKERS: usize = 4096;
/// The maximum number of repetitions, and of batches in each.
const MAX_REPETITIONS: usize = 1000;
/// The minimum length of a batch, and the maximum length of a repetition.
const MIN_BATCH: Duration = Duration::from_millis(10);
const MAX_DURATION: Duration = Duration::from_hours(24);
/// The maximum delay of a packet.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// The maximum of requests per second, and of the share of the capacity.
const MAX_RATE: f64 = 10_000_000.0;
const MAX_SHARE: f64 = 1000.0;
/// The maximum time of the application in milliseconds, and the maximum bytes of a message.
const MAX_MILLISECONDS: f64 = 100_000.0;
const MAX_LENGTH: f64 = 200_000.0;
/// The bounds of a member's processors, and of their speed.
const CORES_RANGE: RangeInclusive<f64> = 0.001..=1e6;
/// The maximum number of integers in a request, and of swaps of them.
const MAX_INTEGERS: usize = 1_000_000;
const MAX_SWAPS: u32 = 10_000_000;

/// Returns all errors of an experiment that could be parsed.
pub(super) fn check(experiment: &Experiment) -> Vec<ExperimentError> {
    let mut errors = Vec::new();
    let mut report = |span: Range<usize>, message: String| errors.push(ExperimentError { span, message });
    let varied_factors: Vec<Factor> =
        experiment.factors.iter().map(|varied_factor| *varied_factor.vary.get_ref()).collect();

    for (index, varied_factor) in experiment.factors.iter().enumerate() {
        let factor = *varied_factor.vary.get_ref();
        if varied_factors[..index].contains(&factor) {
            report(varied_factor.vary.span(), format!("`{}` is varied twice", factor.name()));
        }
        for levels in [&varied_factor.full, &varied_factor.quick] {
            if levels.get_ref().is_empty() {
                report(levels.span(), "no level: give at least one".to_owned());
            }
            for level in levels.get_ref() {
                if let Err(message) = check_level(factor, level) {
                    report(levels.span(), message);
                }
            }
        }
    }

    if let Some(span) = direct_level_span(experiment)
        && (experiment.members.count() != 1 || varied_factors.contains(&Factor::Endpoints))
    {
        let message = "`none` goes straight to the only member: elsewhere write no balancer as 0 endpoints";
        report(span, message.to_owned());
    }
    let plan = &experiment.plan;
    for mode in [RunLength::Quick, RunLength::Full] {
        let repetitions = plan.repetitions.for_length(mode);
        let batches = *plan.batches.for_length(mode);
        let allowed_counts = 1..=MAX_REPETITIONS;
        if !allowed_counts.contains(repetitions.get_ref()) || !allowed_counts.contains(&batches) {
            report(repetitions.span(), format!("repetitions and batches are from 1 to {MAX_REPETITIONS}"));
        }
        let samples = repetitions.get_ref().saturating_mul(batches);
        if samples < MIN_SAMPLES {
            let message =
                format!("{samples} samples: repetitions times batches must be {MIN_SAMPLES} or more");
            report(repetitions.span(), message);
        }
        let (warmup, duration) = (plan.warmup.for_length(mode).0, plan.duration.for_length(mode).0);
        if duration.as_secs_f64() < MIN_BATCH.as_secs_f64() * batches as f64 {
            let min_millis = MIN_BATCH.as_millis();
            report(
                repetitions.span(),
                format!("the duration must be at least {min_millis} ms for each batch"),
            );
        }
        if plan.tick.is_some_and(|tick| tick.for_length(mode).0 < MIN_BATCH) {
            report(repetitions.span(), format!("the tick is at least {} ms", MIN_BATCH.as_millis()));
        }
        if warmup > MAX_DURATION || duration > MAX_DURATION {
            report(repetitions.span(), "warm-up and duration are a day each at most".to_owned());
        }
    }

    let file_start = 0..0;
    for (span, message) in load::check(experiment, &varied_factors) {
        report(span, message);
    }
    let load = &experiment.load;
    let number_level = |value: f64| FactorLevel::Number(value);
    if experiment.balancer.instances.is_some_and(|count| !(1..=MAX_INSTANCES).contains(&count)) {
        report(file_start.clone(), format!("[balancer] instances: expected from 1 to {MAX_INSTANCES}"));
    }
    let retries = experiment
        .balancer
        .retries
        .map(|count| check_level(Factor::Retries, &number_level(f64::from(count))));
    if let Some(Err(message)) = retries {
        report(file_start.clone(), format!("[balancer] retries: {message}"));
    }
    let loads = [
        (Factor::Rate, load.rate.map(number_level)),
        (Factor::Share, load.share.map(number_level)),
        (Factor::Concurrency, load.concurrency.map(|clients| number_level(clients as f64))),
    ];
    for (factor, value) in loads {
        if let Some(Err(message)) = value.map(|value| check_level(factor, &value)) {
            report(file_start.clone(), format!("[load] {}: {message}", factor.name()));
        }
    }
    for (span, message) in application::check(experiment, &varied_factors) {
        report(span, message);
    }
    for (span, message) in groups::check(experiment, &varied_factors) {
        report(span, message);
    }
    for message in member_errors(experiment, &varied_factors) {
        report(file_start.clone(), message);
    }
    for (span, message) in scaler::check(experiment, &varied_factors) {
        report(span, message);
    }
    let network = &experiment.network;
    if network.delay.is_some_and(|delay| !network.namespaces || delay.0 > MAX_DELAY) {
        let max_seconds = MAX_DELAY.as_secs();
        report(
            file_start.clone(),
            format!("[network] delay needs `namespaces = true`, and is {max_seconds} s at most"),
        );
    }
    for fault in &experiment.faults {
        if matches!(fault.act, FaultAction::CutOff | FaultAction::Join) && !network.namespaces {
            let message = "a fault with `cut_off` or `join` needs [network] with `namespaces = true`";
            report(file_start.clone(), message.to_owned());
        }
        if fault.act != FaultAction::Add && fault.member == 0 {
            report(file_start.clone(), "a fault names its `member` by a number from 1 on".to_owned());
        }
        if (fault.act == FaultAction::Slow) != fault.factor.is_some() {
            report(file_start.clone(), "a fault with `slow`, and no other, needs a `factor`".to_owned());
        }
        if fault.factor.is_some_and(|factor| !factor.is_finite() || factor <= 0.0) {
            report(file_start.clone(), "the `factor` of a fault is a number above 0".to_owned());
        }
        let has_failure_settings = fault.rate.is_some() || fault.after.is_some() || fault.with.is_some();
        if has_failure_settings && fault.act != FaultAction::Fail {
            report(file_start.clone(), "`rate`, `after` and `with` belong to a fault with `fail`".to_owned());
        }
        if fault.rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            report(file_start.clone(), "the `rate` of a fault is a share from 0 to 1".to_owned());
        }
    }

    for figure in &experiment.figures {
        if let Some(factor) = figure.x.get_ref().factor()
            && !varied_factors.contains(&factor)
        {
            report(figure.x.span(), format!("`{}` is not varied", factor.name()));
        }
        if let Some(series) = &figure.series
            && !varied_factors.contains(series.get_ref())
        {
            report(series.span(), format!("`{}` is not varied", series.get_ref().name()));
        }
        let mut named_factors: Vec<Factor> = figure.series.iter().map(|series| *series.get_ref()).collect();
        named_factors.extend(figure.x.get_ref().factor());
        named_factors
            .extend(figure.only.iter().filter(|filter| filter.is_single_level()).map(|filter| filter.factor));
        if let Some(filter) = figure.only.iter().find(|filter| !varied_factors.contains(&filter.factor)) {
            report(figure.x.span(), format!("`{}` is not varied", filter.factor.name()));
        }
        // Over time every point has lines of its own.
        if *figure.x.get_ref() != XAxis::Seconds
            && let Some(factor) = unnamed_factor(experiment, &named_factors)
        {
            report(figure.x.span(), mixed_levels_message("figure", factor));
        }
        if *figure.x.get_ref() == XAxis::Seconds && !figure.y.is_per_second() {
            report(figure.x.span(), format!("`{}` is not known by the second", figure.y.name()));
        }
        if !figure.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            || figure.name.is_empty()
        {
            report(
                figure.x.span(),
                "the figure's name becomes a file: letters, digits and hyphens".to_owned(),
            );
        }
    }
    for claim in &experiment.claims {
        let test = claim.test.get_ref();
        let mut named_factors = test.factors();
        named_factors
            .extend(claim.only.iter().filter(|filter| filter.is_single_level()).map(|filter| filter.factor));
        for factor in test.factors().into_iter().chain(claim.only.iter().map(|filter| filter.factor)) {
            if !varied_factors.contains(&factor) {
                report(claim.test.span(), format!("`{}` is not varied", factor.name()));
            }
        }
        // A bound evaluates every point by itself, a ratio the points that differ in its series alone.
        if let Some(message) = test.error() {
            report(claim.test.span(), message.to_owned());
        }
        if experiment.model.is_none() && (claim.column != ResultSource::Measured || test.is_about_model()) {
            report(claim.test.span(), "there is no [model] whose numbers the claim could be of".to_owned());
        }
        if claim.column != ResultSource::Measured && test.is_about_model() {
            let message = "this test looks at the model anyway: it takes `by`, and the claim no `column`";
            report(claim.test.span(), message.to_owned());
        }
        if !test.is_pointwise()
            && let Some(factor) = unnamed_factor(experiment, &named_factors)
        {
            report(claim.test.span(), mixed_levels_message("claim", factor));
        }
        if matches!(test.metric(), Metric::Speedup | Metric::Efficiency)
            && !varied_factors.contains(&Factor::Endpoints)
        {
            report(
                claim.test.span(),
                "a speed-up needs `endpoints` as a factor, with 0 among its levels".to_owned(),
            );
        }
    }
    // Points can be created only if everything before is valid.
    if errors.is_empty() {
        for mode in [RunLength::Quick, RunLength::Full] {
            let points = plan::points(experiment, mode);
            let point_error = |point: &ExperimentPoint| {
                check_faults(experiment, mode, point)
                    .and_then(|()| load::check_protocol(experiment, point))
                    .err()
            };
            if let Some(message) = points.iter().find_map(point_error) {
                errors.push(ExperimentError {
                    span: file_start.clone(),
                    message: format!("{message} ({})", mode.name()),
                });
            }
            let is_undecidable = |claim: &&Claim| mode == RunLength::Full && !claim.is_decidable_by(&points);
            errors.extend(experiment.claims.iter().filter(is_undecidable).map(|claim| ExperimentError {
                span: claim.test.span(),
                message: "no point has the levels that the claim is about (full)".to_owned(),
            }));
            let model = experiment.model.as_ref();
            if let Some((model, message)) =
                model.and_then(|model| Some((model, model.get_ref().error(&points)?)))
            {
                errors.push(ExperimentError {
                    span: model.span(),
                    message: format!("{message} ({})", mode.name()),
                });
                break;
            }
        }
    }
    errors
}

/// Returns the errors of the members.
fn member_errors(experiment: &Experiment, varied_factors: &[Factor]) -> Vec<String> {
    let mut errors = Vec::new();
    let fleet = &experiment.members;
    let has_several_groups = fleet.groups().len() > 1;
    if has_several_groups && varied_factors.contains(&Factor::Endpoints) {
        errors.push("`endpoints` cannot be varied where there are several groups of [[members]]".to_owned());
    }
    if fleet.count() as f64 > MAX_MEMBERS || fleet.groups().iter().any(|members| members.count == 0) {
        errors.push(format!("[members] needs from 1 to {MAX_MEMBERS} members in all, and one in each group"));
    }
    for members in fleet.groups() {
        if members.service.is_none() == members.swaps.is_none() {
            errors.push("[members] needs either `service` or `swaps`".to_owned());
        }
        if !(1..=MAX_WORKERS).contains(&members.workers) {
            errors.push(format!("[members] needs from 1 to {MAX_WORKERS} workers"));
        }
        if members.session.is_some() && has_several_groups {
            errors.push("[members] `session` is measured for members that are all alike".to_owned());
        }
        let swaps = [members.swaps, members.session.map(|session| session.swaps)];
        if swaps.into_iter().flatten().any(|swaps| !(1..=MAX_SWAPS).contains(&swaps)) {
            errors.push(format!("[members] swaps: expected from 1 to {MAX_SWAPS}"));
        }
        if members.session.is_some_and(|session| !(1..=MAX_INTEGERS).contains(&session.integers)) {
            errors.push(format!("[members] session: expected from 1 to {MAX_INTEGERS} integers"));
        }
        for (name, value) in [("cores", members.cores), ("speed", members.speed)] {
            if value.is_some_and(|value| !CORES_RANGE.contains(&value)) {
                let (min_cores, max_cores) = (CORES_RANGE.start(), CORES_RANGE.end());
                errors.push(format!("[members] {name}: expected a number from {min_cores} to {max_cores}"));
            }
        }
        let has_shared_cores =
            members.speed.is_some() || members.antagonist.is_some() || members.ignore_cancel;
        if has_shared_cores && members.cores.is_none() {
            errors.push("[members] `speed`, `antagonist` and `ignore_cancel` need `cores`".to_owned());
        }
        if members.cores.is_some() && (members.burn || members.swaps.is_some()) {
            errors.push(
                "[members] `cores` are emulated: they go with `service`, not with `burn` or `swaps`"
                    .to_owned(),
            );
        }
    }
    errors
}

/// Returns the place of the balancer's levels with `none`.
fn direct_level_span(experiment: &Experiment) -> Option<Range<usize>> {
    let none_level = FactorLevel::Text("none".to_owned());
    let levels =
        experiment.factors.iter().flat_map(|varied_factor| [&varied_factor.full, &varied_factor.quick]);
    levels.into_iter().find(|levels| levels.get_ref().contains(&none_level)).map(toml::Spanned::span)
}

/// Returns a factor with more than one level that is not named: its levels would be mixed in one curve.
fn unnamed_factor(experiment: &Experiment, named_factors: &[Factor]) -> Option<Factor> {
    let has_several_levels = |varied_factor: &&VariedFactor| {
        varied_factor.full.get_ref().len() > 1 || varied_factor.quick.get_ref().len() > 1
    };
    let mut factors = experiment
        .factors
        .iter()
        .filter(has_several_levels)
        .map(|varied_factor| *varied_factor.vary.get_ref());
    factors.find(|factor| !named_factors.contains(factor))
}

fn mixed_levels_message(subject: &str, factor: Factor) -> String {
    let factor = factor.name();
    format!(
        "the {subject} would mix the levels of `{factor}`: name it, or vary it in an experiment of its own"
    )
}

/// Checks that every fault can happen in this point, in its order.
fn check_faults(experiment: &Experiment, mode: RunLength, point: &ExperimentPoint) -> Result<(), String> {
    let mut faults: Vec<&FaultInjection> = experiment.faults.iter().collect();
    faults.sort_by_key(|fault| fault.at.for_length(mode).0);
    let end = plan::repetition_length(experiment, mode);
    let mut alive = vec![true; point.members];
    let mut disconnected = vec![false; point.members];
    for fault in faults {
        let (fault_time, number) = (fault.at.for_length(mode).0, fault.member);
        if fault_time >= end {
            let (fault_seconds, end_seconds) = (fault_time.as_secs_f64(), end.as_secs_f64());
            return Err(format!(
                "a fault at {fault_seconds} s never happens: warm-up and duration end after {end_seconds} s"
            ));
        }
        if fault.act == FaultAction::Add {
            if point.balancer.kind != BalancerKind::Plimsoll {
                return Err(format!(
                    "members can be added to plimsoll only, not to {}",
                    point.balancer.kind.name()
                ));
            }
            alive.push(true);
            disconnected.push(false);
            continue;
        }
        let index = number.wrapping_sub(1);
        let (Some(is_alive), Some(is_disconnected)) = (alive.get_mut(index), disconnected.get_mut(index))
        else {
            return Err(format!(
                "a fault at {} s: there is no member {number} by then",
                fault_time.as_secs_f64()
            ));
        };
        let disconnects = fault.act == FaultAction::CutOff;
        if disconnects || fault.act == FaultAction::Join {
            if *is_disconnected == disconnects {
                let state = if disconnects { "cut off already" } else { "not cut off" };
                return Err(format!("a fault at {} s: member {number} is {state}", fault_time.as_secs_f64()));
            }
            *is_disconnected = disconnects;
            continue;
        }
        match (fault.act, *is_alive) {
            (FaultAction::Start, true) => {
                return Err(format!("member {number} is started, but it runs already"));
            }
            (FaultAction::Stop | FaultAction::Continue | FaultAction::Slow | FaultAction::Fail, false) => {
                return Err(format!("member {number} is harmed while it does not run"));
            }
            (action, _) => *is_alive = action != FaultAction::Kill,
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
            if n.fract() != 0.0 || !(1.0..=MAX_INSTANCES as f64).contains(n) =>
        {
            Err(format!("`{n}`: expected a whole number of balancers from 1 to {MAX_INSTANCES}"))
        }
        (Factor::Groups, FactorLevel::Number(n))
            if n.fract() != 0.0 || !groups::GROUP_COUNTS.contains(&(*n as usize)) =>
        {
            Err(format!("`{n}`: expected a whole number of groups from 1 to 8"))
        }
        (Factor::Endpoints, FactorLevel::Number(n))
            if n.fract() != 0.0 || !(0.0..=MAX_MEMBERS).contains(n) =>
        {
            Err(format!("`{n}`: expected a whole number of endpoints up to {MAX_MEMBERS}"))
        }
        (Factor::Concurrency, FactorLevel::Number(n))
            if n.fract() != 0.0 || !(1.0..=MAX_CLIENTS).contains(n) =>
        {
            Err(format!("`{n}`: expected a whole number of clients from 1 to {MAX_CLIENTS}"))
        }
        (Factor::Retries, FactorLevel::Number(n)) if n.fract() != 0.0 || !(0.0..=MAX_RETRIES).contains(n) => {
            Err(format!("`{n}`: expected a whole number of retries up to {MAX_RETRIES}"))
        }
        (Factor::Demand, FactorLevel::Number(n)) if !(*n > 0.0 && *n <= MAX_MILLISECONDS) => {
            Err(format!("`{n}`: expected milliseconds above 0, up to {MAX_MILLISECONDS}"))
        }
        (Factor::Delay, FactorLevel::Number(n)) if !(0.0..=MAX_MILLISECONDS).contains(n) => {
            Err(format!("`{n}`: expected milliseconds up to {MAX_MILLISECONDS}"))
        }
        (Factor::Age, FactorLevel::Number(n)) if !(*n == 0.0 || (0.05..=3600.0).contains(n)) => {
            Err(format!("`{n}`: expected seconds from 0.05 to 3600, or 0 for a choice by chance"))
        }
        (Factor::Length, FactorLevel::Number(n)) if n.fract() != 0.0 || !(0.0..=MAX_LENGTH).contains(n) => {
            Err(format!("`{n}`: expected a whole number of bytes up to {MAX_LENGTH}"))
        }
        (Factor::Clones, FactorLevel::Number(n)) if n.fract() != 0.0 || !(1.0..=1000.0).contains(n) => {
            Err(format!("`{n}`: expected a whole number of clones from 1 to 1000"))
        }
        (Factor::Share, FactorLevel::Number(n)) if !(*n > 0.0 && *n <= MAX_SHARE) => {
            Err(format!("`{n}`: expected a number above 0, up to {MAX_SHARE}"))
        }
        (Factor::Rate, FactorLevel::Number(n)) if !(*n > 0.0 && *n <= MAX_RATE) => {
            Err(format!("`{n}`: expected a number above 0, up to {MAX_RATE}"))
        }
        _ => Ok(()),
    }
}
