//! What the parts of an experiment file say of one another.

use std::ops::Range;

use super::{Act, Along, Balancer, BalancerKind, Experiment, Factor, Level, Mode, Wrong};
use crate::lab::metric::Metric;

/// Fewest samples that give an interval worth the name.
const SAMPLES: usize = 5;
/// Most members; most clients of a closed loop.
const MEMBERS: f64 = 64.0;
const CLIENTS: f64 = 16_384.0;

/// All that is wrong with an experiment that could be read.
pub(super) fn check(experiment: &Experiment) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut say = |at: Range<usize>, message: String| wrong.push(Wrong { at, message });
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
                if let Err(why) = fits(factor, level) {
                    say(levels.span(), why);
                }
            }
        }
    }

    let plan = &experiment.plan;
    for mode in [Mode::Quick, Mode::Full] {
        let repetitions = plan.repetitions.of(mode);
        let samples = repetitions.get_ref().saturating_mul(*plan.batches.of(mode));
        if samples < SAMPLES {
            let message = format!("{samples} samples: repetitions times batches must be {SAMPLES} or more");
            say(repetitions.span(), message);
        }
        if plan.duration.of(mode).0.is_zero() {
            say(repetitions.span(), "the duration must be above 0".to_owned());
        }
    }

    let top = 0..0;
    let load = &experiment.load;
    let given = [
        load.rate.is_some() || varied.contains(&Factor::Rate),
        load.share.is_some() || varied.contains(&Factor::Share),
        load.concurrency.is_some() || varied.contains(&Factor::Concurrency),
    ];
    if given.iter().filter(|given| **given).count() != 1 {
        let message =
            "the load needs exactly one of `rate`, `share` and `concurrency`, in [load] or as a factor";
        say(top.clone(), message.to_owned());
    }
    let members = &experiment.members;
    if members.service.is_none() == members.swaps.is_none() {
        say(top.clone(), "[members] needs either `service` or `swaps`".to_owned());
    }
    if members.workers == 0 || members.count == 0 || members.count as f64 > MEMBERS {
        say(top.clone(), format!("[members] needs at least one worker, and from 1 to {MEMBERS} members"));
    }
    for fault in &experiment.faults {
        if fault.act != Act::Add && fault.member == 0 {
            say(top.clone(), "a fault names its `member` by a number from 1 on".to_owned());
        }
        if (fault.act == Act::Slow) != fault.factor.is_some() {
            say(top.clone(), "a fault with `slow`, and no other, needs a `factor`".to_owned());
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
        if *figure.x.get_ref() == Along::Seconds && !figure.y.over_time() {
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
        for factor in test.factors() {
            if !varied.contains(&factor) {
                say(claim.test.span(), format!("`{}` is not varied", factor.name()));
            }
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
    wrong
}

/// Is the level one of the factor's?
fn fits(factor: Factor, level: &Level) -> Result<(), String> {
    match (factor, level) {
        (Factor::Balancer, Level::Text(text)) => {
            let balancer: Balancer = text.parse()?;
            if balancer.kind == BalancerKind::None {
                return Err("write no balancer as 0 endpoints".to_owned());
            }
            Ok(())
        }
        (Factor::Balancer, Level::Number(_)) => Err("a balancer is given by its name".to_owned()),
        (_, Level::Text(text)) => Err(format!("`{text}`: `{}` takes numbers", factor.name())),
        (Factor::Endpoints, Level::Number(n)) if n.fract() != 0.0 || *n > MEMBERS => {
            Err(format!("`{n}`: expected a whole number of endpoints up to {MEMBERS}"))
        }
        (Factor::Concurrency, Level::Number(n)) if n.fract() != 0.0 || !(1.0..=CLIENTS).contains(n) => {
            Err(format!("`{n}`: expected a whole number of clients from 1 to {CLIENTS}"))
        }
        (Factor::Share | Factor::Rate, Level::Number(n)) if *n <= 0.0 => {
            Err(format!("`{n}`: expected a number above 0"))
        }
        _ => Ok(()),
    }
}
