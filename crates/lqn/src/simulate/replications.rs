//! Replications: independent runs of one model that are evaluated together.

use super::compiled::CompiledModel;
use super::engine::Engine;
use super::results::{SumSnapshot, evaluate_runs, take_snapshot};
use super::streams::mix_bits;
use super::warmup::truncation_point;
use super::{BATCHES, MIN_EVENTS, ModelResults, SimulationEffort, SimulationError};
use crate::Model;
use crate::replicas::ExpandedModel;

/// The least share of the shortest run that is its warm-up.
const WARM_UP_SHARE: f64 = 0.2;
/// The number of observations in a warm-up.
const MAX_SLICES: usize = 250;
/// The largest number of requests, threads or branches at a time, besides the clients, of all runs: an
/// overloaded open model grows for ever.
const MAX_RECORDS: usize = 2_000_000;

/// A simulation run.
pub struct Replication<'m> {
    pub(super) engine: Engine<'m>,
    pub(super) snapshots: Vec<SumSnapshot>,
    flat: &'m ExpandedModel<'m>,
    /// The number of requests at the end of each slice of the warm-up: first those of all servers together,
    /// then those of each client task.
    series: Vec<Vec<f64>>,
    next: ReplicationStep,
    error: Option<SimulationError>,
}

/// The next step of a run.
#[derive(Clone, Copy)]
enum ReplicationStep {
    /// A number of events, in slices.
    Slices(u64),
    /// A batch of this time.
    Batch(f64),
}

impl<'m> Replication<'m> {
    fn new(expanded: &'m ExpandedModel<'m>, program: &'m CompiledModel, seed: u64, count: usize) -> Self {
        Self {
            engine: Engine::new(&expanded.model, program, seed, MAX_RECORDS / count),
            snapshots: Vec::new(),
            flat: expanded,
            series: vec![Vec::new(); expanded.model.tasks.iter().filter(|task| task.is_client()).count() + 1],
            next: ReplicationStep::Slices(0),
            error: None,
        }
    }

    /// Runs the next step.
    pub fn run_step(&mut self) {
        let outcome = match self.next {
            ReplicationStep::Slices(events) => self.run_slices(events),
            ReplicationStep::Batch(length) => self.run_batch(length),
        };
        self.error = outcome.err();
    }

    fn run_slices(&mut self, events: u64) -> Result<(), SimulationError> {
        let (start_events, engine) = (self.engine.events, &mut self.engine);
        for slice in 1..=MAX_SLICES as u64 {
            engine.run_events(start_events + events * slice / MAX_SLICES as u64)?;
            let (mut server_population, mut clients) = (0.0, self.series.iter_mut());
            // The first series is that of the servers.
            let server_series = clients.next();
            for (index, task) in self.flat.model.tasks.iter().enumerate() {
                let population = engine.population(index);
                if !task.is_client() {
                    server_population += population;
                } else if let Some(client_series) = clients.next() {
                    client_series.push(population);
                }
            }
            if let Some(series) = server_series {
                series.push(server_population);
            }
        }
        Ok(())
    }

    fn run_batch(&mut self, length: f64) -> Result<(), SimulationError> {
        self.engine.run_time(self.engine.now + length)?;
        self.record_snapshot();
        Ok(())
    }

    fn record_snapshot(&mut self) {
        self.engine.update_integrals();
        self.snapshots.push(take_snapshot(&self.engine, self.flat));
    }

    /// Ends the warm-up.
    fn begin_measuring(&mut self) {
        self.series = Vec::new();
        self.record_snapshot();
        self.engine.statistics.reset_percentiles();
    }
}

/// Runs `count` replications. They have `short` events together at first, and more until they are precise,
/// the number of events is reached, or `goes_on`, called after each batch, returns `false`. A warm-up has at
/// most `longest` events.
pub(super) fn run_replications(
    model: &Model,
    effort: &SimulationEffort,
    [min_events, max_warm_up]: [u64; 2],
    count: usize,
    run_all: &dyn Fn(&mut [Replication<'_>]),
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<ModelResults, SimulationError> {
    let expanded = ExpandedModel::of(model);
    let program = CompiledModel::new(&expanded.model);
    // The first replication has the seed of a single run.
    let seed = |number: u64| if number == 0 { effort.seed } else { mix_bits(mix_bits(effort.seed) ^ number) };
    let mut runs: Vec<Replication<'_>> =
        (0..count as u64).map(|number| Replication::new(&expanded, &program, seed(number), count)).collect();
    let step = |runs: &mut [Replication<'_>], next_step: ReplicationStep| {
        runs.iter_mut().for_each(|run| run.next = next_step);
        run_all(runs);
        runs.iter_mut().find_map(|run| run.error.take()).map_or(Ok(()), Err)
    };
    let (target_events, max_events) = (min_events.max(MIN_EVENTS), effort.events.max(MIN_EVENTS));
    let first_warm_up = ((target_events as f64 * WARM_UP_SHARE) as u64 / count as u64).max(1);
    let mut warm_up = first_warm_up;
    step(&mut runs, ReplicationStep::Slices(warm_up))?;
    let mut settled = is_settled(&mut runs);
    while !settled && warm_up * 2 <= max_warm_up / count as u64 && should_continue() {
        // Double the warm-up.
        step(&mut runs, ReplicationStep::Slices(warm_up))?;
        warm_up *= 2;
        settled = is_settled(&mut runs);
    }
    let (time, events) =
        runs.iter().fold((0.0, 0), |(time, events), run| (time + run.engine.now, events + run.engine.events));
    // The batches of each run per round: in total there are at least twenty.
    let batches = BATCHES.div_ceil(count);
    let mut length =
        time / events as f64 * (target_events as f64 * (1.0 - WARM_UP_SHARE)) / (batches * count) as f64;
    if length <= 0.0 {
        return Err(SimulationError::NoProgress(runs[0].engine.now));
    }
    runs.iter_mut().for_each(Replication::begin_measuring);
    loop {
        let mut is_stopped = false;
        for _ in 0..batches {
            step(&mut runs, ReplicationStep::Batch(length))?;
            if runs[0].snapshots.len() * count > BATCHES / 2 && !should_continue() {
                is_stopped = true;
                break;
            }
        }
        let results = evaluate_runs(model, &expanded, &runs);
        let precise = settled && results.is_precise(effort.precision);
        // Another doubling would exceed the number of events.
        if precise || is_stopped || results.events * 2 > max_events + max_events / 4 {
            return Ok(ModelResults { precise, settled, warm_up: time, ..results });
        }
        if runs[0].snapshots.len() > 2 * batches {
            for run in &mut runs {
                run.snapshots = std::mem::take(&mut run.snapshots).into_iter().step_by(2).collect();
            }
            length *= 2.0;
        }
    }
}

/// Returns `true` if the later half of the observations has no initial bias. The mean over all runs is
/// examined, because its variance is smaller. A series that is too long is halved by averaging neighbours.
fn is_settled(runs: &mut [Replication<'_>]) -> bool {
    for series in runs.iter_mut().flat_map(|run| &mut run.series) {
        if series.len() > MAX_SLICES {
            *series = series.chunks(2).map(|pair| pair.iter().sum::<f64>() / pair.len() as f64).collect();
        }
    }
    let means = (0..runs[0].series.len()).map(|series_index| {
        let mut mean = vec![0.0; runs[0].series[series_index].len()];
        for run in &*runs {
            mean.iter_mut()
                .zip(&run.series[series_index])
                .for_each(|(sum, value)| *sum += value / runs.len() as f64);
        }
        mean
    });
    let means: Vec<Vec<f64>> = means.collect();
    truncation_point(means.iter().map(Vec::as_slice)).is_some()
}
