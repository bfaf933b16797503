//! Bounds of the numbers of requests: those of the threads or clients that carry them.

use super::network::{MAX_SEPARATE_TASKS, SolverNetwork, server_count};
use crate::model::Successors;

impl SolverNetwork<'_> {
    /// Computes the bounds of all stations.
    pub(super) fn set_bounds(&mut self) {
        let model = self.model;
        let count = model.tasks.len();
        let mut holders: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut is_open = vec![false; count];
        let mut parallelism = vec![1.0_f64; count];
        for activity in &model.activities {
            let task = activity.task.0;
            if let Successors::And(branches) = &activity.successors {
                parallelism[task] = parallelism[task].max(branches.len() as f64);
            }
            for call in &activity.calls {
                let to = model.entries[call.entry.0].task.0;
                if call.waits {
                    holders[to].push(task);
                } else {
                    is_open[to] = true;
                }
            }
        }
        for entry in &model.entries {
            is_open[entry.task.0] |= entry.arrivals > 0.0;
        }
        self.parallel_branches.clone_from(&parallelism);
        self.active_threads = vec![0.0; count];
        // Whether the number of requests of a task is bounded by that of the clients above, all of whom wait
        // meanwhile.
        let tracks_bounds = count <= 10 * MAX_SEPARATE_TASKS;
        let mut is_pure = vec![tracks_bounds; count];
        let mut roots: Vec<Vec<usize>> = vec![Vec::new(); count];
        // The tasks whose number bounds the active threads of each task: itself, or those above it.
        let mut bounds: Vec<Vec<usize>> =
            (0..count).map(|task| if tracks_bounds { vec![task] } else { Vec::new() }).collect();
        for task in self.tasks.clone() {
            let task_data = &model.tasks[task];
            holders[task].sort_unstable();
            holders[task].dedup();
            for entry in &task_data.entries {
                for (to, _) in &model.entries[entry.0].forwards {
                    let to = model.entries[to.0].task.0;
                    is_open[to] |= is_open[task];
                    let inherited = holders[task].clone();
                    holders[to].extend(inherited);
                }
            }
            let copies = server_count(task_data.copies);
            if task_data.is_client() {
                self.active_threads[task] = copies;
                if tracks_bounds {
                    roots[task] = vec![task];
                }
                is_pure[task] &= parallelism[task] <= 1.0;
                continue;
            }
            let has_second_phase = self.stations[task].has_second_phase;
            is_pure[task] &= !is_open[task]
                && !has_second_phase
                && parallelism[task] <= 1.0
                && holders[task].iter().all(|holder| is_pure[*holder]);
            roots[task] = union(&holders[task], &roots);
            let thread_bound = if is_open[task] {
                f64::INFINITY
            } else {
                self.max_requests(&holders[task], &holders, &is_open, &parallelism)
            };
            let max_requests = if is_open[task] {
                thread_bound
            } else {
                self.no_more_than_clients(thread_bound, &holders[task], &is_pure, &roots)
            };
            self.stations[task].max_requests = max_requests;
            self.stations[task].bounds = union(&holders[task], &bounds);
            self.active_threads[task] = if has_second_phase { copies } else { copies.min(max_requests) };
            if !has_second_phase && max_requests <= copies {
                bounds[task].clone_from(&self.stations[task].bounds);
            }
        }
        for processor in 0..model.processors.len() {
            let local_tasks: Vec<usize> =
                (0..count).filter(|task| model.tasks[*task].processor.0 == processor).collect();
            let thread_bound = self.max_requests(&local_tasks, &holders, &is_open, &parallelism);
            let max_requests = self.no_more_than_clients(thread_bound, &local_tasks, &is_pure, &roots);
            let station = &mut self.stations[count + processor];
            station.max_requests = max_requests;
            station.bounds = union(&local_tasks, &bounds);
        }
    }

    /// Returns the number of requests that these tasks can have at a time: that of their threads, or of those
    /// at any level above.
    fn max_requests(
        &self,
        tasks: &[usize],
        holders: &[Vec<usize>],
        is_open: &[bool],
        parallelism: &[f64],
    ) -> f64 {
        let mut bound = self.max_calling_threads(tasks, holders, is_open, parallelism);
        if self.tasks.len() > MAX_SEPARATE_TASKS {
            return bound;
        }
        let mut current = tasks.to_vec();
        for _ in 0..16 {
            let mut callers: Vec<usize> = Vec::new();
            for task in &current {
                let is_final = self.model.tasks[*task].is_client()
                    || is_open[*task]
                    || self.stations[*task].has_second_phase
                    || parallelism[*task] > 1.0
                    || holders[*task].is_empty();
                if is_final { callers.push(*task) } else { callers.extend(&holders[*task]) }
            }
            callers.sort_unstable();
            callers.dedup();
            if callers == current {
                break;
            }
            bound = bound.min(self.max_calling_threads(&callers, holders, is_open, parallelism));
            current = callers;
        }
        bound
    }

    /// Returns the number of threads of these tasks that can call at a time. Tasks that are active only while
    /// another one of these waits for them add none.
    fn max_calling_threads(
        &self,
        tasks: &[usize],
        holders: &[Vec<usize>],
        is_open: &[bool],
        parallelism: &[f64],
    ) -> f64 {
        let thread_count = |task: &usize| self.active_threads[*task] * parallelism[*task];
        if self.tasks.len() > MAX_SEPARATE_TASKS || tasks.len() < 2 {
            return tasks.iter().map(thread_count).sum();
        }
        let mut is_counted = vec![false; self.tasks.len()];
        tasks.iter().for_each(|task| is_counted[*task] = true);
        let mut is_nested = vec![false; self.tasks.len()];
        for task in &self.tasks {
            is_nested[*task] = !self.model.tasks[*task].is_client()
                && !is_open[*task]
                && !self.stations[*task].has_second_phase
                && parallelism[*task] <= 1.0
                && !holders[*task].is_empty()
                && holders[*task]
                    .iter()
                    .all(|holder| (is_counted[*holder] || is_nested[*holder]) && parallelism[*holder] <= 1.0);
        }
        tasks.iter().filter(|task| !is_nested[**task]).map(thread_count).sum()
    }

    fn no_more_than_clients(
        &self,
        bound: f64,
        holders: &[usize],
        is_pure: &[bool],
        roots: &[Vec<usize>],
    ) -> f64 {
        if !holders.iter().all(|task| is_pure[*task]) {
            return bound;
        }
        bound.min(union(holders, roots).iter().map(|task| self.active_threads[*task]).sum())
    }
}

/// Returns the union of the lists of these indices.
fn union(indices: &[usize], lists: &[Vec<usize>]) -> Vec<usize> {
    let mut members: Vec<usize> = indices.iter().flat_map(|index| lists[*index].iter().copied()).collect();
    members.sort_unstable();
    members.dedup();
    members
}
