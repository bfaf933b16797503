//! One point: its processes, its load, its faults, and all measurements.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::app_utilization::{BusyTimes, is_precise};
use super::arrivals::{ArrivalCounter, dispersion, swing};
use super::child_process::ProcessLauncher;
use super::experiment::{Experiment, FaultInjection, LoadDuration, LoadProtocol, RunLength};
use super::load_driver::{LoadClients, LoadLoop};
use super::lottery::DaemonCounters;
use super::metric::Metric;
use super::plan::{ExperimentPoint, MAX_LENGTHENING, SETTLING_ANSWERS, repetition_length, repetitions};
use super::recovery::measure_recovery;
use super::scaling::{self, MemberCounts};
use super::session_moves::SessionMoves;
use super::testbed::Testbed;
use super::{LabError, RunObserver, cpu_time};
use crate::record::{FailureKind as Failure, RunRecord};

/// The results of a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PointOutcome {
    /// The samples of every repetition and batch.
    pub samples: BTreeMap<Metric, Vec<f64>>,
    /// The ticks of every repetition.
    pub timelines: Vec<Vec<TimelineTick>>,
    /// The command lines of the processes.
    pub commands: Vec<String>,
    /// The minimum share of requests sent on time (open loop).
    pub punctuality: f64,
    /// The number of repetitions that were repeated because the generator was late; their samples are not
    /// included.
    #[serde(default)]
    pub again: u32,
}

/// A second, or a batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TimelineTick {
    /// Its end in seconds since the load began.
    pub at: f64,
    /// Its length.
    pub seconds: f64,
    /// The requests that left in it.
    pub due: u64,
    /// The number of those that the generator handled late.
    #[serde(default)]
    pub late: u64,
    /// The requests answered in it without fault.
    pub ok: u64,
    /// The requests that failed in it.
    pub failed: u64,
    /// The mean response time of the answered requests in seconds; 0 if there were none.
    pub response: f64,
    /// The 99th percentile of all that ended, in seconds.
    pub p99: f64,
    /// The requests that arrived at each member.
    pub arrived: BTreeMap<String, u64>,
    /// The numbers of members, with a scaler.
    #[serde(default)]
    pub roll: Option<MemberCounts>,
}

/// The default maximum between two ticks.
const DEFAULT_TICK: Duration = Duration::from_secs(1);
/// The maximum sleep, which bounds the delay until an interruption is noticed.
const POLL_SLEEP: Duration = Duration::from_millis(20);
/// The maximum time by which the warm-up of a closed loop is extended, and its steps.
const MAX_EXTRA_WARMUP: Duration = Duration::from_secs(30);
const WARMUP_STEP: Duration = Duration::from_millis(100);
/// The minimum cycles of a client in a batch of a closed loop. A request that waits long delays those behind
/// it, so shorter batches are correlated, and the interval from them is too narrow. In 600 runs of 24 clients
/// before two pairs of busy queues, the intervals from five batches held the mean this often:
///
/// | length of a batch | intervals with the mean |
/// |---|---|
/// | half a cycle | 79 % |
/// | two cycles | 94 % |
const MIN_BATCH_CYCLES: u32 = 2;
/// The minimum punctuality of a valid open loop.
pub(super) const MIN_PUNCTUALITY: f64 = 0.99;

impl PointOutcome {
    /// Creates the outcome of no repetition.
    pub(super) fn new() -> Self {
        Self { punctuality: 1.0, ..Self::default() }
    }

    /// Returns `true` if the punctuality is too low for a valid result.
    pub(super) fn is_late(&self) -> bool {
        self.punctuality < MIN_PUNCTUALITY
    }

    /// Adds the outcome of another repetition.
    pub(super) fn merge(&mut self, other: Self) {
        for (metric, samples) in other.samples {
            self.samples.entry(metric).or_default().extend(samples);
        }
        self.timelines.extend(other.timelines);
        self.commands = other.commands;
        self.punctuality = self.punctuality.min(other.punctuality);
        self.again += other.again;
    }
}

/// Runs a repetition of a point in the point's `folder`, with the measurements before the run, and adds its
/// results to `outcome`.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one thing the repetition needs, and there is one caller"
)]
pub(super) fn run_repetition(
    launcher: &ProcessLauncher,
    experiment: &Experiment,
    mode: RunLength,
    point: &ExperimentPoint,
    repetition: usize,
    calibration: &super::Calibration,
    folder: &Path,
    outcome: &mut PointOutcome,
    observer: &mut dyn RunObserver,
) -> Result<(), LabError> {
    let is_only = repetitions(experiment, mode) == 1;
    let folder = if is_only { folder.to_owned() } else { folder.join(format!("{repetition}")) };
    // A repeated run must not find old files: addresses are read from logs.
    let io_failure = |action: &str, error: std::io::Error| {
        LabError::failed(format!("cannot {action} {}: {error}", folder.display()))
    };
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| io_failure("clear", error))?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| io_failure("make", error))?;
    let mut point = point.clone();
    point.seed = point.seed.wrapping_mul(100).wrapping_add(repetition as u64);
    let mut testbed =
        Testbed::build(launcher, experiment, &point, calibration.session_time(experiment), &folder)?;
    outcome.commands = testbed.commands().to_vec();
    let load_loop = calibration.load_loop(point.load)?;
    measure_repetition(
        experiment,
        mode,
        &point,
        load_loop,
        &mut testbed,
        calibration.capacity(),
        outcome,
        observer,
    )?;
    if let Some(status) = testbed.status() {
        let path = folder.join("status.json");
        std::fs::write(&path, status)
            .map_err(|error| LabError::failed(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(())
}

/// Runs one repetition.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one thing the repetition needs, and there is one caller"
)]
fn measure_repetition(
    experiment: &Experiment,
    mode: RunLength,
    point: &ExperimentPoint,
    load_loop: LoadLoop,
    testbed: &mut Testbed,
    capacity: Option<f64>,
    outcome: &mut PointOutcome,
    observer: &mut dyn RunObserver,
) -> Result<(), LabError> {
    let warmup = experiment.plan.warmup.for_length(mode).0;
    let batches = (*experiment.plan.batches.for_length(mode)).max(1);
    let planned_batch = experiment.plan.duration.for_length(mode).0 / batches as u32;
    let tick_interval = experiment.plan.tick.map_or(DEFAULT_TICK, |tick| tick.for_length(mode).0);
    let mut faults: Vec<&FaultInjection> = experiment.faults.iter().collect();
    faults.sort_by_key(|fault| fault.at.for_length(mode).0);
    let mut pending_faults = faults.into_iter().peekable();

    let precision = experiment.plan.precision.as_ref().map(|precision| *precision.get_ref().for_length(mode));
    let first_sample = outcome.samples.get(&Metric::Response).map_or(0, Vec::len);
    // A closed loop is stopped explicitly, because the length of its warm-up varies.
    let (clients, length) = match load_loop {
        LoadLoop::Open(_) => (0, repetition_length(experiment, mode)),
        LoadLoop::Closed(clients) => {
            (clients as u64, repetition_length(experiment, mode) * MAX_LENGTHENING + MAX_EXTRA_WARMUP)
        }
    };
    let session_moves = SessionMoves::of(experiment, point);
    let load_duration = LoadDuration { warmup, total: length };
    let load_clients =
        testbed.start_load(&experiment.load, load_loop, point.load, load_duration, point.seed)?;
    let mut wait =
        |load_clients: &LoadClients, testbed: &mut Testbed, deadline: Duration| -> Result<(), LabError> {
            loop {
                let now = load_clients.elapsed();
                if let Some(fault) = pending_faults.next_if(|fault| fault.at.for_length(mode).0 <= now) {
                    testbed.inject_fault(fault)?;
                    continue;
                }
                if observer.is_interrupted() {
                    return Err(LabError::Interrupted);
                }
                testbed.run_scaler(now)?;
                if now >= deadline {
                    return Ok(());
                }
                std::thread::sleep((deadline - now).min(POLL_SLEEP));
            }
        };

    let mut timeline = Vec::new();
    let mut arrivals = ArrivalCounter::default();
    // Warm-up and measured batches are divided in the same way, so that a timeline begins with the load.
    let mut last_tick = Duration::ZERO;
    let mut tick = |load_clients: &LoadClients,
                    testbed: &mut Testbed,
                    deadline: Duration|
     -> Result<(RunRecord, Duration), LabError> {
        wait(load_clients, testbed, deadline)?;
        let now = load_clients.elapsed();
        let record = load_clients.take_record();
        if let Some(session_moves) = &session_moves {
            session_moves.record_forwards(record.forwarded);
        }
        let is_iiop = point.protocol == LoadProtocol::Iiop;
        let counts =
            if experiment.needs_request_counts() && !is_iiop { testbed.arrival_counts() } else { Vec::new() };
        let (end_seconds, seconds) = (now.as_secs_f64(), (now - last_tick).as_secs_f64());
        let arrived = testbed.names().into_iter().zip(counts).filter_map(|(name, count)| {
            let arrivals_in_tick = arrivals.count_tick(&name, count, end_seconds, seconds)?;
            Some((name, arrivals_in_tick))
        });
        let mut arrived: BTreeMap<String, u64> = arrived.collect();
        if is_iiop {
            // Over iiop the answers name the member, and no other counter exists.
            arrived.extend(testbed.names().into_iter().map(|name| {
                let requests = record.members.get(name.as_str()).map_or(0, |tally| tally.ok + tally.failed);
                (name, requests)
            }));
        }
        timeline.push(TimelineTick {
            at: end_seconds,
            seconds,
            due: record.due,
            late: record.due - record.on_time,
            ok: record.ok,
            failed: record.failures(),
            response: record.service.mean().as_secs_f64(),
            p99: record.latency.quantile(0.99).as_secs_f64(),
            arrived,
            roll: None,
        });
        if let Some(scaler) = &point.scaler {
            let rate = rate_at(experiment, load_loop, (last_tick + now) / 2, load_duration);
            let member_counts = testbed.member_counts(scaler, rate)?;
            if let Some(tick) = timeline.last_mut() {
                tick.roll = Some(member_counts);
            }
        }
        last_tick = now;
        Ok((record, now))
    };
    let ticks = (warmup.as_secs_f64() / tick_interval.as_secs_f64()).ceil() as u32;
    let mut answered_requests = 0;
    // The time of the last record: results after it belong to the next one, however long the rest of a tick
    // takes.
    let mut previous = Duration::ZERO;
    for number in 1..=ticks {
        let (record, tick_end) = tick(&load_clients, testbed, warmup * number / ticks)?;
        answered_requests += record.ok;
        previous = tick_end;
    }
    let mut measured_from = warmup;
    while answered_requests < SETTLING_ANSWERS as u64 * clients
        && load_clients.elapsed() < warmup + MAX_EXTRA_WARMUP
    {
        measured_from = load_clients.elapsed() + WARMUP_STEP;
        let (record, tick_end) = tick(&load_clients, testbed, measured_from)?;
        answered_requests += record.ok;
        previous = tick_end;
    }
    // An open loop has no cycles: the cycle is 0.
    let batch = match answered_requests {
        0 => planned_batch,
        _ => batch_length(planned_batch, measured_from.mul_f64(clients as f64 / answered_requests as f64)),
    };
    let ticks_per_batch = (batch.as_secs_f64() / tick_interval.as_secs_f64()).ceil().max(1.0) as u32;
    let mut due = 0;
    let mut daemon_counters = testbed.daemon_counters();
    let max_batches = precision
        .map_or(0, |_| (planned_batch * batches as u32 * MAX_LENGTHENING).div_duration_f64(batch) as u32);
    let max_batches = max_batches.max(batches as u32);
    let mut busy_times = BusyTimes::read(testbed, &load_clients);
    for number in 1..=max_batches {
        if number > batches as u32 && is_precise(outcome, first_sample, precision) {
            break;
        }
        let (cpu_before, host_before) = (testbed.cpu_times(), cpu_time::of_host());
        let moves_before =
            session_moves.as_ref().and_then(|session_moves| session_moves.moves_per_session(testbed));
        let mut batch_record = RunRecord::new();
        let mut now = previous;
        for tick_number in 1..=ticks_per_batch {
            let (record, tick_end) = tick(
                &load_clients,
                testbed,
                measured_from + batch * (number - 1) + batch * tick_number / ticks_per_batch,
            )?;
            batch_record.merge(&record);
            now = tick_end;
        }
        let counters_before = std::mem::replace(&mut daemon_counters, testbed.daemon_counters());
        let measurements = SideMeasurements {
            seconds: (now - previous).as_secs_f64(),
            balancer_cpu: testbed.cpu_times().0 - cpu_before.0,
            host_cpu: host_before.zip(cpu_time::of_host()),
            daemon_counters: counters_before.zip(daemon_counters),
        };
        let moves_after =
            session_moves.as_ref().and_then(|session_moves| session_moves.moves_per_session(testbed));
        if let (Some(before), Some(after)) = (moves_before, moves_after) {
            let moves_per_minute = (after - before) / (measurements.seconds / 60.0);
            outcome.samples.entry(Metric::Moves).or_default().push(moves_per_minute);
            if number == batches as u32 {
                outcome.samples.entry(Metric::Moved).or_default().push(after);
            }
        }
        let busy_times_after = BusyTimes::read(testbed, &load_clients);
        if let (Some(before), Some(after), Some(application)) =
            (&busy_times, &busy_times_after, &point.application)
        {
            before.add_samples(after, application, outcome);
        }
        busy_times = busy_times_after;
        previous = now;
        due += batch_record.due;
        if matches!(load_loop, LoadLoop::Open(_)) {
            outcome.punctuality = outcome.punctuality.min(batch_record.punctuality());
        }
        // Requests in flight end within their time-out; they are a part of the last batch. A closed loop
        // never ends.
        let is_open_loop = matches!(load_loop, LoadLoop::Open(_));
        let timeout = experiment.load.timeout.0;
        let is_last_batch = is_open_loop && number == batches as u32;
        let tail = if is_last_batch { wait_for_in_flight(&load_clients, timeout) } else { RunRecord::new() };
        add_samples(outcome, load_loop, capacity, timeout, &batch_record, &tail, &measurements);
    }
    testbed.check_alive()?;
    if due == 0 {
        return Err(LabError::failed("no request was due in all of it: give more load or more time"));
    }
    if let Some(fault) = pending_faults.peek() {
        let fault_seconds = fault.at.for_length(mode).0.as_secs_f64();
        return Err(LabError::failed(format!("a fault at {fault_seconds} s did not happen before the end")));
    }
    if let Some(recovery) = measure_recovery(experiment, mode, &timeline) {
        let mut push_sample = |metric, value: f64| {
            if value.is_finite() {
                outcome.samples.entry(metric).or_default().push(value);
            }
        };
        push_sample(Metric::Surge, recovery.surge);
        push_sample(Metric::FirstSecond, recovery.first_second);
        if let Some(regained) = recovery.regained_share {
            push_sample(Metric::Regained, regained);
        }
    }
    let measured = &timeline[timeline.len().saturating_sub(batches * ticks_per_batch as usize)..];
    if let Some(rating) = point.scaler.as_ref().and_then(|scaler| scaling::rate_scaling(scaler, measured)) {
        let member_sum = measured.iter().filter_map(|tick| Some(tick.roll?.there)).sum::<f64>();
        let scaling_samples = [
            (Metric::Met, rating.goal_met),
            (Metric::Cost, rating.cost),
            (Metric::Members, member_sum / measured.len() as f64),
        ];
        for (metric, value) in scaling_samples {
            outcome.samples.entry(metric).or_default().push(value);
        }
    }
    if experiment.needs_request_counts() {
        let samples = measured.chunks(ticks_per_batch as usize).filter_map(dispersion);
        outcome.samples.entry(Metric::Dispersion).or_default().extend(samples);
        let samples = measured.chunks(ticks_per_batch as usize).filter_map(swing);
        outcome.samples.entry(Metric::Swing).or_default().extend(samples);
    }
    outcome.timelines.push(timeline);
    load_clients.stop()
}

/// Returns the length of a batch in a closed loop with this `cycle` of a client: at least [`CYCLES`] of them,
/// but at most [`MAX_LENGTHENING`] times the planned length.
fn batch_length(planned_batch: Duration, cycle_time: Duration) -> Duration {
    planned_batch.max((cycle_time * MIN_BATCH_CYCLES).min(planned_batch * MAX_LENGTHENING))
}

/// Returns the requests per second of the load's curve at a time since it began; 0 in a closed loop.
fn rate_at(experiment: &Experiment, load_loop: LoadLoop, time: Duration, load_duration: LoadDuration) -> f64 {
    let LoadLoop::Open(rate) = load_loop else { return 0.0 };
    let measured = load_duration.total.saturating_sub(load_duration.warmup).as_secs_f64();
    rate * experiment.load.curve_at(time.saturating_sub(load_duration.warmup).as_secs_f64() / measured)
}

/// Measurements beside the requests.
struct SideMeasurements {
    seconds: f64,
    balancer_cpu: f64,
    host_cpu: Option<((f64, f64), (f64, f64))>,
    /// The counters of a lottery's daemons before and after.
    daemon_counters: Option<(DaemonCounters, DaemonCounters)>,
}

/// Waits for requests in flight.
fn wait_for_in_flight(load_clients: &LoadClients, timeout: Duration) -> RunRecord {
    let end = Instant::now() + timeout + Duration::from_millis(200);
    while !load_clients.is_finished() && Instant::now() < end {
        std::thread::sleep(POLL_SLEEP);
    }
    load_clients.take_record()
}

/// Adds a sample of every metric that the record supports.
fn add_samples(
    outcome: &mut PointOutcome,
    load_loop: LoadLoop,
    capacity: Option<f64>,
    timeout: Duration,
    record: &RunRecord,
    tail: &RunRecord,
    measurements: &SideMeasurements,
) {
    let mut with_tail = record.clone();
    with_tail.merge(tail);
    let ended_requests = (with_tail.ok + with_tail.failures() + with_tail.cut) as f64;
    let failed_requests = |failure| with_tail.failed.get(&failure).copied().unwrap_or(0) as f64;
    let throughput = record.ok as f64 / measurements.seconds;
    let mut push_sample = |metric, value: f64| {
        if value.is_finite() {
            outcome.samples.entry(metric).or_default().push(value);
        }
    };
    push_sample(Metric::Throughput, throughput);
    if let Some(capacity) = capacity {
        push_sample(Metric::Utilisation, throughput / capacity);
    }
    if ended_requests > 0.0 {
        push_sample(Metric::P50, with_tail.latency.quantile(0.5).as_secs_f64());
        push_sample(Metric::P99, with_tail.latency.quantile(0.99).as_secs_f64());
        push_sample(Metric::Success, with_tail.ok as f64 / ended_requests);
        push_sample(
            Metric::TimedOut,
            (failed_requests(Failure::Timeout) + failed_requests(Failure::ConnectTimeout)) / ended_requests,
        );
        push_sample(
            Metric::Refused,
            (failed_requests(Failure::Status) + failed_requests(Failure::Shed)) / ended_requests,
        );
        push_sample(Metric::Shed, failed_requests(Failure::Shed) / ended_requests);
        if with_tail.picks.count() > 0 || failed_requests(Failure::NoPick) > 0.0 {
            push_sample(Metric::Unpicked, failed_requests(Failure::NoPick) / ended_requests);
        }
        push_sample(Metric::BalancerCpu, measurements.balancer_cpu / ended_requests * 1e6);
    } else if record.due > 0
        || (matches!(load_loop, LoadLoop::Closed(_)) && measurements.seconds >= timeout.as_secs_f64())
    {
        // Requests were due and none ended: the worst result, not a missing sample. In a closed loop all
        // requests may take longer than a batch.
        push_sample(Metric::Success, 0.0);
        push_sample(Metric::P50, timeout.as_secs_f64());
        push_sample(Metric::P99, timeout.as_secs_f64());
    }
    if with_tail.ok > 0 {
        push_sample(Metric::Response, mean(&with_tail));
        if let LoadLoop::Closed(clients) = load_loop {
            push_sample(Metric::Speed, clients as f64 / mean(&with_tail));
        }
    }
    if matches!(load_loop, LoadLoop::Open(_)) && record.due > 0 {
        push_sample(Metric::Delivered, record.ok as f64 / record.due as f64);
    }
    if with_tail.picks.count() > 0 {
        push_sample(Metric::Pick, with_tail.picks.mean().as_secs_f64());
        push_sample(Metric::PickP99, with_tail.picks.quantile(0.99).as_secs_f64());
        push_sample(Metric::TwoMembers, with_tail.duplicate_picks as f64 / with_tail.picks.count() as f64);
    }
    if let Some((before, after)) = measurements.daemon_counters {
        let answers = after.answers - before.answers;
        push_sample(Metric::DaemonBusy, (after.cpu - before.cpu) / measurements.seconds);
        if answers > 0.0 {
            push_sample(Metric::Duplicates, (after.duplicates - before.duplicates) / answers);
            push_sample(Metric::DaemonCpu, (after.cpu - before.cpu) / answers * 1e6);
        }
        if after.commit_delay > 0.0 {
            push_sample(Metric::CommitDelay, after.commit_delay);
        }
    }
    if let Some(((busy, total), (busy_after, total_after))) = measurements.host_cpu {
        push_sample(Metric::HostCpu, (busy_after - busy) / (total_after - total));
    }
}

/// Returns the mean time of the requests that were answered without fault, from when they were sent; NaN if
/// there are none. In a punctual open loop that is when they were due.
fn mean(record: &RunRecord) -> f64 {
    if record.service.count() == 0 { f64::NAN } else { record.service.mean().as_secs_f64() }
}

#[cfg(test)]
mod tests;
