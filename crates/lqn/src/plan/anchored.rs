//! A sweep of which few points are simulated, and all are solved.
//!
//! What the solver is off by changes slowly along a sweep, but it does change: it is little where nobody waits and where one
//! thing is always busy, and most in between. One simulated point corrects what is near to it, and what is far from it may
//! become worse than it was; over two hundred points from a fiftieth to four times the clients of a model, response times
//! are off by 7 % at 95 of 100 points with one, which is more than without any, and by less than 4 % with five.

use super::{HALF, pairs};
use crate::ask::Whole;
use crate::model::{Copies, Role};
use crate::{Estimate, Findings, Model};

/// How far the solver is typically off at a point that was not simulated, after the factor of those that were.
const ANCHORED: f64 = 0.02;
/// Points that are simulated.
const ANCHORS: usize = 5;

/// Where points stand along a sweep: their place on that of its axes by which they are corrected.
pub type Along = usize;

/// Places of those of these points, models and what is solved of them, that are best simulated, of a sweep along one axis. They are as far apart as can be,
/// by how far they are along it and by how much the solved response time changes on the way, half each.
pub fn anchors(solved: &[(&Model, &Findings)]) -> Vec<usize> {
    let last = solved.len().saturating_sub(1);
    if solved.len() <= ANCHORS {
        return (0..solved.len()).collect();
    }
    let time = |(model, own): (&Model, &Findings)| Whole::of(model, own).response.max(f64::MIN_POSITIVE).ln();
    let mut climbed = vec![0.0];
    for pair in solved.windows(2) {
        let step = (time(pair[1]) - time(pair[0])).abs();
        climbed.push(climbed[climbed.len() - 1] + if step.is_finite() { step } else { 0.0 });
    }
    let all = climbed[last];
    let part = |place: usize| {
        let even = place as f64 / last as f64;
        if all > 0.0 { 0.5 * even + 0.5 * climbed[place] / all } else { even }
    };
    let wanted = (0..ANCHORS).map(|number| number as f64 / (ANCHORS - 1) as f64);
    let near = |wanted: f64| {
        let off = |place: &usize| (part(*place) - wanted).abs();
        (0..=last).min_by(|one, other| off(one).total_cmp(&off(other)))
    };
    let mut places: Vec<usize> = wanted.filter_map(near).collect();
    places.dedup();
    places
}

/// How far what lies between two solved points may be off what is solved there, for all on both sides to be taken from the
/// line between: there it is off by a quarter of that.
const STRAIGHT: f64 = 0.004;
/// Points from one that is solved to the next at first.
const STRIDE: usize = 8;

/// What formulas say of a point, and whether they are sure of it.
pub type Solved = (Findings, bool);

/// What formulas say of the points of a sweep, and whether they are sure of it. Few are solved, for numbers change smoothly along
/// a line: every eighth, and in between as many as it takes until those that are left lie between two that say nearly the same of
/// what is between them. `lines` are places of points that follow one another and differ in one number; each place is in one of
/// them. `solve` is asked for some places at once, and answers in their order.
///
/// A point between others that are sure is taken to be so.
pub fn solved_lines(
    count: usize,
    lines: &[Vec<usize>],
    solve: &dyn Fn(&[usize]) -> Vec<Solved>,
) -> Vec<Solved> {
    let mut found: Vec<Option<Solved>> = vec![None; count];
    let put = |found: &mut Vec<Option<Solved>>, places: Vec<usize>| {
        let solved = solve(&places);
        places.into_iter().zip(solved).for_each(|(place, own)| found[place] = Some(own));
    };
    // Stretches of which both ends are solved: their line, and places in that.
    let mut open: Vec<(usize, usize, usize)> = Vec::new();
    let mut first = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let last = line.len().saturating_sub(1);
        let ends: Vec<usize> = (0..last).step_by(STRIDE).chain([last]).collect();
        first.extend(ends.iter().filter_map(|end| line.get(*end)));
        open.extend(ends.windows(2).map(|pair| (number, pair[0], pair[1])));
    }
    put(&mut found, first);
    loop {
        open.retain(|(_, from, to)| to - from > 1);
        if open.is_empty() {
            break;
        }
        let middle = |(_, from, to): &(usize, usize, usize)| usize::midpoint(*from, *to);
        put(&mut found, open.iter().map(|own| lines[own.0][middle(own)]).collect());
        let mut next = Vec::new();
        for own @ (number, from, to) in std::mem::take(&mut open) {
            let (line, at) = (&lines[number], middle(&own));
            let halves = [(from, at), (at, to)];
            let known = |place: usize| found[line[place]].as_ref();
            let (Some(one), Some(mid), Some(other)) = (known(from), known(at), known(to)) else { continue };
            let straight = one.1
                && mid.1
                && other.1
                && between(&one.0, &other.0, part(from, to, at))
                    .is_some_and(|own| apart(&own, &mid.0) <= STRAIGHT);
            if !straight {
                next.extend(halves.map(|(from, to)| (number, from, to)));
                continue;
            }
            for (from, to) in halves {
                for place in from + 1..to {
                    let (Some(one), Some(other)) = (&found[line[from]], &found[line[to]]) else { continue };
                    let own = between(&one.0, &other.0, part(from, to, place));
                    found[line[place]] = own.map(|own| (own, true));
                }
            }
        }
        open = next;
    }
    // None is left, unless lines leave out a place.
    let left: Vec<usize> = (0..count).filter(|place| found[*place].is_none()).collect();
    put(&mut found, left);
    found.into_iter().flatten().collect()
}

fn part(from: usize, to: usize, at: usize) -> f64 {
    (at - from) as f64 / (to - from).max(1) as f64
}

/// What is so far on the way from one to the other, evenly in logarithms; none if they have not the same parts.
fn between(one: &Findings, other: &Findings, part: f64) -> Option<Findings> {
    let shape = |own: &Findings| {
        [own.tasks.len(), own.entries.len(), own.processors.len(), own.activities.len(), own.calls.len()]
    };
    (shape(one) == shape(other)).then(|| {
        pairs(one, other, &|one, other, _| {
            let mean = if one.mean > 0.0 && other.mean > 0.0 {
                one.mean.powf(1.0 - part) * other.mean.powf(part)
            } else {
                (1.0 - part) * one.mean + part * other.mean
            };
            Estimate { mean, half_width: 0.0 }
        })
    })
}

/// By how much throughputs, response times and what is busy differ at most, as a part of them.
fn apart(one: &Findings, other: &Findings) -> f64 {
    let numbers = |own: &Findings| {
        let tasks = own.tasks.iter().flat_map(|own| [Some(own.throughput), own.response, Some(own.busy)]);
        let entries = own.entries.iter().flat_map(|own| [Some(own.throughput), own.response]);
        let processors = own.processors.iter().map(|own| Some(own.busy));
        tasks
            .chain(entries)
            .chain(processors)
            .map(|own| own.map_or(0.0, |own| own.mean))
            .collect::<Vec<f64>>()
    };
    let (one, other) = (numbers(one), numbers(other));
    if one.len() != other.len() {
        return f64::INFINITY;
    }
    let off = |(one, other): (&f64, &f64)| {
        let most = one.abs().max(other.abs());
        if most > 0.0 { (one - other).abs() / most } else { 0.0 }
    };
    one.iter().zip(&other).map(off).fold(0.0, f64::max)
}

/// Corrects the solved points of a sweep, one for each model, by those that were simulated, given by their places in the list;
/// what a [`plan`](super::plan()) found of a point counts as simulated, too. `along` says where each point stands.
///
/// Between two simulated points the factor goes from the one's to the other's evenly; beyond the outermost it stays.
/// Throughputs of clients follow from their response times. All points have the same tasks, entries and processors.
pub fn anchored_sweep(
    points: &[Model],
    solved: &[Findings],
    along: &[Along],
    simulated: &[(usize, Findings)],
) -> Vec<Findings> {
    let anchor =
        |(place, run): &(usize, Findings)| Some((*along.get(*place)?, factors(run, solved.get(*place)?)));
    let mut anchors: Vec<(Along, Findings)> = simulated.iter().filter_map(anchor).collect();
    anchors.sort_by_key(|(at, _)| *at);
    let corrected = points.iter().zip(solved).zip(along).map(|((model, found), at)| {
        let Some(factor) = factor_at(&anchors, *at) else { return found.clone() };
        let mut own = pairs(found, &factor, &|own, factor, _| {
            let mean = own.mean * factor.mean;
            Estimate { mean, half_width: mean * factor.half_width.hypot(HALF * ANCHORED) }
        });
        hold_together(model, &mut own);
        own
    });
    corrected.collect()
}

/// By what a simulation differs from the solver: the factor, and its half interval.
fn factors(simulated: &Findings, solved: &Findings) -> Findings {
    pairs(simulated, solved, &|run, own, _| {
        if own.mean > 0.0 && run.mean > 0.0 {
            // What hardly ever waits has no factor that means something.
            let mean = (run.mean / own.mean).clamp(0.25, 4.0);
            Estimate { mean, half_width: (run.half_width / run.mean).min(1.0) }
        } else {
            Estimate { mean: 1.0, half_width: 0.0 }
        }
    })
}

fn factor_at(anchors: &[(Along, Findings)], at: Along) -> Option<Findings> {
    let after = anchors.iter().position(|(own, _)| *own >= at);
    let (one, other) = match after {
        Some(0) => return Some(anchors[0].1.clone()),
        None => return anchors.last().map(|(_, factor)| factor.clone()),
        Some(after) => (&anchors[after - 1], &anchors[after]),
    };
    let part = (at - one.0) as f64 / (other.0 - one.0).max(1) as f64;
    Some(pairs(&one.1, &other.1, &|one, other, _| Estimate {
        mean: one.mean.powf(1.0 - part) * other.mean.powf(part),
        half_width: (1.0 - part) * one.half_width + part * other.half_width,
    }))
}

/// Little's law for clients, and nothing busier than it can be.
fn hold_together(model: &Model, found: &mut Findings) {
    let many = |copies: Copies| match copies {
        Copies::Some(count) => f64::from(count),
        Copies::Infinite => f64::INFINITY,
    };
    for (task, own) in model.tasks.iter().zip(&mut found.tasks) {
        match (task.role, &own.response) {
            (Role::Client { think }, Some(response)) if think + response.mean > 0.0 => {
                let round = think + response.mean;
                own.throughput.mean = many(task.copies) / round;
                own.throughput.half_width = own.throughput.mean * response.half_width / round;
                own.busy = Estimate {
                    mean: own.throughput.mean * response.mean,
                    half_width: own.throughput.mean * think * response.half_width / round,
                };
            }
            _ => own.busy.mean = own.busy.mean.min(many(task.copies)),
        }
    }
    for (processor, own) in model.processors.iter().zip(&mut found.processors) {
        own.busy.mean = own.busy.mean.min(many(processor.copies));
    }
}
