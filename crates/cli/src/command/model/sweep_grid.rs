//! The findings of many models of one shape at once: all points of a sweep.
//!
//! A plan of few points is one plan of each. Of many points only some are simulated, and the error factor of
//! the formulas there corrects all others. Where numbers change smoothly, only some points are solved. A
//! point for which formulas have no result, because they leave out a part of it or do not settle, has a plan
//! of its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use plimsoll_lqn::{
    Model, ModelResults, SimulationError, anchored_sweep, anchors, is_reliable, solve, solved_lines,
};

use super::solver::SolveOptions;
use crate::command::GlobalArgs;

/// The number of points up to which a plan simulates each: with the usual budget a second in all.
const EACH: usize = 20;

/// The findings.
pub(super) struct GridFindings {
    /// The findings of each model.
    pub(super) findings: Vec<Result<ModelResults, SimulationError>>,
    /// The places of those whose simulations correct the others.
    pub(super) anchors: Vec<usize>,
}

/// The places of models in a sweep.
pub(super) struct SweepGrid {
    /// The position of each model along the axis with the most values.
    pub(super) axis_positions: Vec<usize>,
    /// The places of those that lie along that axis and are in the middle of all others.
    pub(super) middle_line: Vec<usize>,
    /// The same for all others: places of those that differ by that axis only.
    pub(super) parallel_lines: Vec<Vec<usize>>,
}

impl SweepGrid {
    /// Returns the course of a sweep over axes with so many values, the last of which changes first. Where
    /// values go up and down, nothing follows from neighbours: it is not `smooth`, and each point is a line
    /// of its own.
    pub(super) fn for_axes(lengths: &[usize], smooth: bool) -> Self {
        let long = (0..lengths.len()).max_by_key(|axis| lengths[*axis]).unwrap_or_default();
        let after = |axis: usize| -> usize { lengths[axis + 1..].iter().product() };
        let at = |place: usize, axis: usize| place / after(axis) % lengths[axis];
        let all = lengths.iter().product();
        let central = |place: &usize| {
            (0..lengths.len()).all(|axis| axis == long || at(*place, axis) == lengths[axis] / 2)
        };
        let firsts = (0..all).filter(|place| at(*place, long) == 0);
        let line = |first: usize| (0..lengths[long]).map(|number| first + number * after(long)).collect();
        Self {
            axis_positions: (0..all).map(|place| at(place, long)).collect(),
            middle_line: (0..all).filter(central).collect(),
            parallel_lines: if smooth {
                firsts.map(line).collect()
            } else {
                (0..all).map(|place| vec![place]).collect()
            },
        }
    }
}

/// Solves these models. Without a course each is simulated, for results that only a simulation has.
pub(super) fn solve_all(
    models: &[Model],
    how: &SolveOptions,
    course: Option<&SweepGrid>,
    globals: &GlobalArgs,
) -> GridFindings {
    let told = SolveProgress::new(models.len(), globals);
    if !how.is_plan() {
        let one = |model: &Model| {
            let own = how.solve(model);
            told.count_solved();
            own
        };
        return GridFindings { findings: on_all_cores(models, &one), anchors: Vec::new() };
    }
    let course = course.filter(|_| models.len() > EACH);
    let (mut known, anchors) = course.and_then(|course| anchored(models, how, course)).unwrap_or_default();
    known.resize(models.len(), None);
    // A plan takes all cores by itself.
    let of = models.iter().zip(known).map(|(model, known)| {
        let own = known.map_or_else(|| how.solve(model), Ok);
        told.count_solved();
        own
    });
    GridFindings { findings: of.collect(), anchors }
}

/// Returns the results of formulas for all points that have them, corrected by simulations in the middle of
/// the sweep. `None` if there are no such points, or they cannot be simulated.
fn anchored(
    models: &[Model],
    how: &SolveOptions,
    course: &SweepGrid,
) -> Option<(Vec<Option<ModelResults>>, Vec<usize>)> {
    let one = |model: &&Model| {
        let (found, convergence) = solve(model);
        (found, is_reliable(model, &convergence))
    };
    let solved = solved_lines(models.len(), &course.parallel_lines, &|places| {
        on_all_cores(&places.iter().map(|place| &models[*place]).collect::<Vec<_>>(), &one)
    });
    let (solved, sure): (Vec<ModelResults>, Vec<bool>) = solved.into_iter().unzip();
    let line: Vec<usize> = course.middle_line.iter().copied().filter(|place| sure[*place]).collect();
    let first = models.get(*line.first()?)?;
    let shape =
        |own: &Model| [own.tasks.len(), own.entries.len(), own.processors.len(), own.activities.len()];
    let alike = |place: &usize| shape(&models[*place]) == shape(first);
    let line: Vec<usize> = line.into_iter().filter(alike).collect();
    let places = anchors(&line.iter().map(|place| (&models[*place], &solved[*place])).collect::<Vec<_>>());
    let places: Vec<usize> = places.into_iter().map(|place| line[place]).collect();
    let runs = places.iter().map(|place| Some((*place, how.solve(&models[*place]).ok()?)));
    let runs = runs.collect::<Option<Vec<_>>>()?;
    let corrected =
        anchored_sweep(models, &solved, &course.axis_positions, &runs).into_iter().zip(sure).enumerate();
    let known = corrected.map(|(place, (own, sure))| (sure && alike(&place)).then_some(own));
    Some((known.collect(), places))
}

/// Maps the models on all cores, in their order.
fn on_all_cores<M: Sync, T: Send>(models: &[M], one: &(impl Fn(&M) -> T + Sync)) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(models.len()));
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(model) = models.get(place) else { return };
            let own = one(model);
            if let Ok(mut found) = found.lock() {
                found.push((place, own));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(models.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, own)| own).collect()
}

/// A progress that prints the number of finished models every two seconds.
struct SolveProgress<'g> {
    all: usize,
    done: AtomicUsize,
    last: Mutex<Instant>,
    globals: &'g GlobalArgs,
}

impl<'g> SolveProgress<'g> {
    fn new(all: usize, globals: &'g GlobalArgs) -> Self {
        Self { all, done: AtomicUsize::new(0), last: Mutex::new(Instant::now()), globals }
    }

    fn count_solved(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Ok(mut last) = self.last.lock()
            && last.elapsed() > Duration::from_secs(2)
        {
            *last = Instant::now();
            self.globals.print_message(&format!("{done} of {} points\n", self.all));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_corrected_along_its_longest_axis() {
        let course = SweepGrid::for_axes(&[2, 4, 3], true);
        assert_eq!(course.middle_line, [13, 16, 19, 22]);
        assert_eq!(course.axis_positions[..12], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(course.parallel_lines.len(), 6);
        assert_eq!(course.parallel_lines[4], course.middle_line);
        let one = SweepGrid::for_axes(&[3], true);
        assert_eq!((one.middle_line, one.parallel_lines), (vec![0, 1, 2], vec![vec![0, 1, 2]]));
        assert_eq!(SweepGrid::for_axes(&[2], false).parallel_lines, [[0], [1]]);
    }
}
