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
const MAX_PLANNED_POINTS: usize = 20;

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
    pub(super) fn for_axes(lengths: &[usize], is_smooth: bool) -> Self {
        let longest_axis = (0..lengths.len()).max_by_key(|axis| lengths[*axis]).unwrap_or_default();
        let stride = |axis: usize| -> usize { lengths[axis + 1..].iter().product() };
        let position = |index: usize, axis: usize| index / stride(axis) % lengths[axis];
        let point_count = lengths.iter().product();
        let is_central = |index: &usize| {
            (0..lengths.len()).all(|axis| axis == longest_axis || position(*index, axis) == lengths[axis] / 2)
        };
        let line_starts = (0..point_count).filter(|index| position(*index, longest_axis) == 0);
        let line = |start: usize| {
            (0..lengths[longest_axis]).map(|step| start + step * stride(longest_axis)).collect()
        };
        Self {
            axis_positions: (0..point_count).map(|index| position(index, longest_axis)).collect(),
            middle_line: (0..point_count).filter(is_central).collect(),
            parallel_lines: if is_smooth {
                line_starts.map(line).collect()
            } else {
                (0..point_count).map(|index| vec![index]).collect()
            },
        }
    }
}

/// Solves these models. Without a course each is simulated, for results that only a simulation has.
pub(super) fn solve_all(
    models: &[Model],
    options: &SolveOptions,
    grid: Option<&SweepGrid>,
    globals: &GlobalArgs,
) -> GridFindings {
    let progress = SolveProgress::new(models.len(), globals);
    if !options.is_plan() {
        let solve_one = |model: &Model| {
            let result = options.solve(model);
            progress.count_solved();
            result
        };
        return GridFindings { findings: on_all_cores(models, &solve_one), anchors: Vec::new() };
    }
    let grid = grid.filter(|_| models.len() > MAX_PLANNED_POINTS);
    let (mut known_results, anchors) =
        grid.and_then(|grid| solve_anchored(models, options, grid)).unwrap_or_default();
    known_results.resize(models.len(), None);
    // A plan takes all cores by itself.
    let results = models.iter().zip(known_results).map(|(model, known_result)| {
        let result = known_result.map_or_else(|| options.solve(model), Ok);
        progress.count_solved();
        result
    });
    GridFindings { findings: results.collect(), anchors }
}

/// Returns the results of formulas for all points that have them, corrected by simulations in the middle of
/// the sweep. `None` if there are no such points, or they cannot be simulated.
fn solve_anchored(
    models: &[Model],
    options: &SolveOptions,
    grid: &SweepGrid,
) -> Option<(Vec<Option<ModelResults>>, Vec<usize>)> {
    let solve_one = |model: &&Model| {
        let (results, convergence) = solve(model);
        (results, is_reliable(model, &convergence))
    };
    let solutions = solved_lines(models.len(), &grid.parallel_lines, &|indices| {
        on_all_cores(&indices.iter().map(|index| &models[*index]).collect::<Vec<_>>(), &solve_one)
    });
    let (solutions, reliable): (Vec<ModelResults>, Vec<bool>) = solutions.into_iter().unzip();
    let line: Vec<usize> = grid.middle_line.iter().copied().filter(|index| reliable[*index]).collect();
    let first = models.get(*line.first()?)?;
    let shape = |model: &Model| {
        [model.tasks.len(), model.entries.len(), model.processors.len(), model.activities.len()]
    };
    let has_same_shape = |index: &usize| shape(&models[*index]) == shape(first);
    let line: Vec<usize> = line.into_iter().filter(has_same_shape).collect();
    let anchor_indices =
        anchors(&line.iter().map(|index| (&models[*index], &solutions[*index])).collect::<Vec<_>>());
    let anchor_indices: Vec<usize> = anchor_indices.into_iter().map(|position| line[position]).collect();
    let runs = anchor_indices.iter().map(|index| Some((*index, options.solve(&models[*index]).ok()?)));
    let runs = runs.collect::<Option<Vec<_>>>()?;
    let corrected =
        anchored_sweep(models, &solutions, &grid.axis_positions, &runs).into_iter().zip(reliable).enumerate();
    let known_results = corrected
        .map(|(index, (result, is_reliable))| (is_reliable && has_same_shape(&index)).then_some(result));
    Some((known_results.collect(), anchor_indices))
}

/// Maps the models on all cores, in their order.
fn on_all_cores<M: Sync, T: Send>(models: &[M], solve_one: &(impl Fn(&M) -> T + Sync)) -> Vec<T> {
    let next_index = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(models.len()));
    let work = || {
        loop {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            let Some(model) = models.get(index) else { return };
            let result = solve_one(model);
            if let Ok(mut results) = results.lock() {
                results.push((index, result));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(models.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A progress that prints the number of finished models every two seconds.
struct SolveProgress<'g> {
    total: usize,
    solved_count: AtomicUsize,
    last_print: Mutex<Instant>,
    globals: &'g GlobalArgs,
}

impl<'g> SolveProgress<'g> {
    fn new(total: usize, globals: &'g GlobalArgs) -> Self {
        Self { total, solved_count: AtomicUsize::new(0), last_print: Mutex::new(Instant::now()), globals }
    }

    fn count_solved(&self) {
        let solved = self.solved_count.fetch_add(1, Ordering::Relaxed) + 1;
        if let Ok(mut last_print) = self.last_print.lock()
            && last_print.elapsed() > Duration::from_secs(2)
        {
            *last_print = Instant::now();
            self.globals.print_message(&format!("{solved} of {} points\n", self.total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_corrected_along_its_longest_axis() {
        let grid = SweepGrid::for_axes(&[2, 4, 3], true);
        assert_eq!(grid.middle_line, [13, 16, 19, 22]);
        assert_eq!(grid.axis_positions[..12], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(grid.parallel_lines.len(), 6);
        assert_eq!(grid.parallel_lines[4], grid.middle_line);
        let single = SweepGrid::for_axes(&[3], true);
        assert_eq!((single.middle_line, single.parallel_lines), (vec![0, 1, 2], vec![vec![0, 1, 2]]));
        assert_eq!(SweepGrid::for_axes(&[2], false).parallel_lines, [[0], [1]]);
    }
}
