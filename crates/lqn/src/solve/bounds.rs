//! Bounds of the numbers of requests: those of the threads or clients that carry them.

use super::network::{MAX_SEPARATE_TASKS, SolverNetwork, server_count};
use crate::model::Successors;

impl SolverNetwork<'_> {
    /// Computes the bounds of all stations.
    pub(super) fn set_bounds(&mut self) {
        let model = self.model;
        let count = model.tasks.len();
        let mut holders: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut open = vec![false; count];
        let mut wide = vec![1.0_f64; count];
        for activity in &model.activities {
            let task = activity.task.0;
            if let Successors::And(ways) = &activity.successors {
                wide[task] = wide[task].max(ways.len() as f64);
            }
            for call in &activity.calls {
                let to = model.entries[call.entry.0].task.0;
                if call.waits {
                    holders[to].push(task);
                } else {
                    open[to] = true;
                }
            }
        }
        for entry in &model.entries {
            open[entry.task.0] |= entry.arrivals > 0.0;
        }
        self.parallel_branches.clone_from(&wide);
        self.active_threads = vec![0.0; count];
        // Whether the number of requests of a task is bounded by that of the clients above, all of whom wait
        // meanwhile.
        let told = count <= 10 * MAX_SEPARATE_TASKS;
        let mut pure = vec![told; count];
        let mut roots: Vec<Vec<usize>> = vec![Vec::new(); count];
        // The tasks whose number bounds the active threads of each task: itself, or those above it.
        let mut bounds: Vec<Vec<usize>> =
            (0..count).map(|task| if told { vec![task] } else { Vec::new() }).collect();
        for task in self.tasks.clone() {
            let own = &model.tasks[task];
            holders[task].sort_unstable();
            holders[task].dedup();
            for entry in &own.entries {
                for (to, _) in &model.entries[entry.0].forwards {
                    let to = model.entries[to.0].task.0;
                    open[to] |= open[task];
                    let more = holders[task].clone();
                    holders[to].extend(more);
                }
            }
            let copies = server_count(own.copies);
            if own.is_client() {
                self.active_threads[task] = copies;
                if told {
                    roots[task] = vec![task];
                }
                pure[task] &= wide[task] <= 1.0;
                continue;
            }
            let after = self.stations[task].has_second_phase;
            pure[task] &= !open[task]
                && !after
                && wide[task] <= 1.0
                && holders[task].iter().all(|holder| pure[*holder]);
            roots[task] = union(&holders[task], &roots);
            let come = if open[task] {
                f64::INFINITY
            } else {
                self.max_requests(&holders[task], &holders, &open, &wide)
            };
            let come = if open[task] {
                come
            } else {
                self.no_more_than_clients(come, &holders[task], &pure, &roots)
            };
            self.stations[task].max_requests = come;
            self.stations[task].bounds = union(&holders[task], &bounds);
            self.active_threads[task] = if after { copies } else { copies.min(come) };
            if !after && come <= copies {
                bounds[task].clone_from(&self.stations[task].bounds);
            }
        }
        for processor in 0..model.processors.len() {
            let here: Vec<usize> =
                (0..count).filter(|task| model.tasks[*task].processor.0 == processor).collect();
            let come = self.max_requests(&here, &holders, &open, &wide);
            let come = self.no_more_than_clients(come, &here, &pure, &roots);
            let station = &mut self.stations[count + processor];
            station.max_requests = come;
            station.bounds = union(&here, &bounds);
        }
    }

    /// Returns the number of requests that these tasks can have at a time: that of their threads, or of those
    /// at any level above.
    fn max_requests(&self, those: &[usize], holders: &[Vec<usize>], open: &[bool], wide: &[f64]) -> f64 {
        let mut come = self.max_calling_threads(those, holders, open, wide);
        if self.tasks.len() > MAX_SEPARATE_TASKS {
            return come;
        }
        let mut those = those.to_vec();
        for _ in 0..16 {
            let mut above: Vec<usize> = Vec::new();
            for task in &those {
                let stays = self.model.tasks[*task].is_client()
                    || open[*task]
                    || self.stations[*task].has_second_phase
                    || wide[*task] > 1.0
                    || holders[*task].is_empty();
                if stays { above.push(*task) } else { above.extend(&holders[*task]) }
            }
            above.sort_unstable();
            above.dedup();
            if above == those {
                break;
            }
            come = come.min(self.max_calling_threads(&above, holders, open, wide));
            those = above;
        }
        come
    }

    /// Returns the number of threads of these tasks that can call at a time. Tasks that are active only while
    /// another one of these waits for them add none.
    fn max_calling_threads(
        &self,
        those: &[usize],
        holders: &[Vec<usize>],
        open: &[bool],
        wide: &[f64],
    ) -> f64 {
        let all = |task: &usize| self.active_threads[*task] * wide[*task];
        if self.tasks.len() > MAX_SEPARATE_TASKS || those.len() < 2 {
            return those.iter().map(all).sum();
        }
        let mut counted = vec![false; self.tasks.len()];
        those.iter().for_each(|task| counted[*task] = true);
        let mut inside = vec![false; self.tasks.len()];
        for task in &self.tasks {
            inside[*task] = !self.model.tasks[*task].is_client()
                && !open[*task]
                && !self.stations[*task].has_second_phase
                && wide[*task] <= 1.0
                && !holders[*task].is_empty()
                && holders[*task]
                    .iter()
                    .all(|above| (counted[*above] || inside[*above]) && wide[*above] <= 1.0);
        }
        those.iter().filter(|task| !inside[**task]).map(all).sum()
    }

    fn no_more_than_clients(&self, come: f64, holders: &[usize], pure: &[bool], roots: &[Vec<usize>]) -> f64 {
        if !holders.iter().all(|task| pure[*task]) {
            return come;
        }
        come.min(union(holders, roots).iter().map(|task| self.active_threads[*task]).sum())
    }
}

/// Returns the union of the lists of these indices.
fn union(those: &[usize], lists: &[Vec<usize>]) -> Vec<usize> {
    let mut all: Vec<usize> = those.iter().flat_map(|one| lists[*one].iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    all
}
