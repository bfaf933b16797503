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
const TICK: Duration = Duration::from_secs(1);
/// The maximum sleep, which bounds the delay until an interruption is noticed.
const NAP: Duration = Duration::from_millis(20);
/// The maximum time by which the warm-up of a closed loop is extended, and its steps.
const WARM: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(100);
/// The minimum cycles of a client in a batch of a closed loop. A request that waits long delays those behind
/// it, so shorter batches are correlated, and the interval from them is too narrow. In 600 runs of 24 clients
/// before two pairs of busy queues, the intervals from five batches held the mean this often:
///
/// | length of a batch | intervals with the mean |
/// |---|---|
/// | half a cycle | 79 % |
/// | two cycles | 94 % |
const CYCLES: u32 = 2;
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
    tie: &ProcessLauncher,
    experiment: &Experiment,
    mode: RunLength,
    point: &ExperimentPoint,
    repetition: usize,
    before: &super::Calibration,
    folder: &Path,
    outcome: &mut PointOutcome,
    watch: &mut dyn RunObserver,
) -> Result<(), LabError> {
    let only = repetitions(experiment, mode) == 1;
    let folder = if only { folder.to_owned() } else { folder.join(format!("{repetition}")) };
    // A repeated run must not find old files: addresses are read from logs.
    let cannot = |what: &str, error: std::io::Error| {
        LabError::failed(format!("cannot {what} {}: {error}", folder.display()))
    };
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| cannot("clear", error))?;
    }
    std::fs::create_dir_all(&folder).map_err(|error| cannot("make", error))?;
    let mut point = point.clone();
    point.seed = point.seed.wrapping_mul(100).wrapping_add(repetition as u64);
    let mut stage = Testbed::build(tie, experiment, &point, before.session_time(experiment), &folder)?;
    outcome.commands = stage.commands().to_vec();
    let drive = before.load_loop(point.load)?;
    measure_repetition(experiment, mode, &point, drive, &mut stage, before.capacity(), outcome, watch)?;
    if let Some(status) = stage.status() {
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
    drive: LoadLoop,
    stage: &mut Testbed,
    capacity: Option<f64>,
    outcome: &mut PointOutcome,
    watch: &mut dyn RunObserver,
) -> Result<(), LabError> {
    let warmup = experiment.plan.warmup.for_length(mode).0;
    let batches = (*experiment.plan.batches.for_length(mode)).max(1);
    let planned = experiment.plan.duration.for_length(mode).0 / batches as u32;
    let often = experiment.plan.tick.map_or(TICK, |tick| tick.for_length(mode).0);
    let mut faults: Vec<&FaultInjection> = experiment.faults.iter().collect();
    faults.sort_by_key(|fault| fault.at.for_length(mode).0);
    let mut faults = faults.into_iter().peekable();

    let precision = experiment.plan.precision.as_ref().map(|precision| *precision.get_ref().for_length(mode));
    let first = outcome.samples.get(&Metric::Response).map_or(0, Vec::len);
    // A closed loop is stopped explicitly, because the length of its warm-up varies.
    let (clients, length) = match drive {
        LoadLoop::Open(_) => (0, repetition_length(experiment, mode)),
        LoadLoop::Closed(clients) => {
            (clients as u64, repetition_length(experiment, mode) * MAX_LENGTHENING + WARM)
        }
    };
    let moves = SessionMoves::of(experiment, point);
    let lasting = LoadDuration { warmup, total: length };
    let run = stage.start_load(&experiment.load, drive, point.load, lasting, point.seed)?;
    let mut wait = |run: &LoadClients, stage: &mut Testbed, until: Duration| -> Result<(), LabError> {
        loop {
            let now = run.elapsed();
            if let Some(fault) = faults.next_if(|fault| fault.at.for_length(mode).0 <= now) {
                stage.inject_fault(fault)?;
                continue;
            }
            if watch.is_interrupted() {
                return Err(LabError::Interrupted);
            }
            stage.run_scaler(now)?;
            if now >= until {
                return Ok(());
            }
            std::thread::sleep((until - now).min(NAP));
        }
    };

    let mut timeline = Vec::new();
    let mut arrivals = ArrivalCounter::default();
    // Warm-up and measured batches are divided in the same way, so that a timeline begins with the load.
    let mut last = Duration::ZERO;
    let mut tick = |run: &LoadClients,
                    stage: &mut Testbed,
                    until: Duration|
     -> Result<(RunRecord, Duration), LabError> {
        wait(run, stage, until)?;
        let now = run.elapsed();
        let record = run.take_record();
        if let Some(moves) = &moves {
            moves.record_forwards(record.forwarded);
        }
        let iiop = point.protocol == LoadProtocol::Iiop;
        let counts =
            if experiment.needs_request_counts() && !iiop { stage.arrival_counts() } else { Vec::new() };
        let (end, seconds) = (now.as_secs_f64(), (now - last).as_secs_f64());
        let arrived = stage.names().into_iter().zip(counts).filter_map(|(name, count)| {
            let came = arrivals.count_tick(&name, count, end, seconds)?;
            Some((name, came))
        });
        let mut arrived: BTreeMap<String, u64> = arrived.collect();
        if iiop {
            // Over iiop the answers name the member, and no other counter exists.
            arrived.extend(stage.names().into_iter().map(|name| {
                let came = record.members.get(name.as_str()).map_or(0, |tally| tally.ok + tally.failed);
                (name, came)
            }));
        }
        timeline.push(TimelineTick {
            at: end,
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
        if let Some(crew) = &point.scaler {
            let rate = rate(experiment, drive, (last + now) / 2, lasting);
            let roll = stage.member_counts(crew, rate)?;
            if let Some(tick) = timeline.last_mut() {
                tick.roll = Some(roll);
            }
        }
        last = now;
        Ok((record, now))
    };
    let ticks = (warmup.as_secs_f64() / often.as_secs_f64()).ceil() as u32;
    let mut answered = 0;
    // The time of the last record: results after it belong to the next one, however long the rest of a tick
    // takes.
    let mut previous = Duration::ZERO;
    for number in 1..=ticks {
        let (record, now) = tick(&run, stage, warmup * number / ticks)?;
        answered += record.ok;
        previous = now;
    }
    let mut begin = warmup;
    while answered < SETTLING_ANSWERS as u64 * clients && run.elapsed() < warmup + WARM {
        begin = run.elapsed() + STEP;
        let (record, now) = tick(&run, stage, begin)?;
        answered += record.ok;
        previous = now;
    }
    // An open loop has no cycles: the cycle is 0.
    let batch = match answered {
        0 => planned,
        _ => batch_length(planned, begin.mul_f64(clients as f64 / answered as f64)),
    };
    let parts = (batch.as_secs_f64() / often.as_secs_f64()).ceil().max(1.0) as u32;
    let mut due = 0;
    let mut drawn = stage.daemon_counters();
    let most =
        precision.map_or(0, |_| (planned * batches as u32 * MAX_LENGTHENING).div_duration_f64(batch) as u32);
    let most = most.max(batches as u32);
    let mut servers = BusyTimes::read(stage, &run);
    for number in 1..=most {
        if number > batches as u32 && is_precise(outcome, first, precision) {
            break;
        }
        let (start, host) = (stage.cpu_times(), cpu_time::of_host());
        let moved = moves.as_ref().and_then(|moves| moves.moves_per_session(stage));
        let mut whole = RunRecord::new();
        let mut now = previous;
        for part in 1..=parts {
            let (record, taken) = tick(&run, stage, begin + batch * (number - 1) + batch * part / parts)?;
            whole.merge(&record);
            now = taken;
        }
        let drawn_before = std::mem::replace(&mut drawn, stage.daemon_counters());
        let seen = SideMeasurements {
            seconds: (now - previous).as_secs_f64(),
            balancer: stage.cpu_times().0 - start.0,
            host: host.zip(cpu_time::of_host()),
            daemon_counters: drawn_before.zip(drawn),
        };
        let now_moved = moves.as_ref().and_then(|moves| moves.moves_per_session(stage));
        if let (Some(before), Some(after)) = (moved, now_moved) {
            let each_minute = (after - before) / (seen.seconds / 60.0);
            outcome.samples.entry(Metric::Moves).or_default().push(each_minute);
            if number == batches as u32 {
                outcome.samples.entry(Metric::Moved).or_default().push(after);
            }
        }
        let now_servers = BusyTimes::read(stage, &run);
        if let (Some(before), Some(after), Some(application)) = (&servers, &now_servers, &point.application) {
            before.add_samples(after, application, outcome);
        }
        servers = now_servers;
        previous = now;
        due += whole.due;
        if matches!(drive, LoadLoop::Open(_)) {
            outcome.punctuality = outcome.punctuality.min(whole.punctuality());
        }
        // Requests in flight end within their time-out; they are a part of the last batch. A closed loop
        // never ends.
        let open = matches!(drive, LoadLoop::Open(_));
        let timeout = experiment.load.timeout.0;
        let last = open && number == batches as u32;
        let tail = if last { wait_for_in_flight(&run, timeout) } else { RunRecord::new() };
        add_samples(outcome, drive, capacity, timeout, &whole, &tail, &seen);
    }
    stage.check_alive()?;
    if due == 0 {
        return Err(LabError::failed("no request was due in all of it: give more load or more time"));
    }
    if let Some(fault) = faults.peek() {
        let at = fault.at.for_length(mode).0.as_secs_f64();
        return Err(LabError::failed(format!("a fault at {at} s did not happen before the end")));
    }
    if let Some(back) = measure_recovery(experiment, mode, &timeline) {
        let mut put = |metric, value: f64| {
            if value.is_finite() {
                outcome.samples.entry(metric).or_default().push(value);
            }
        };
        put(Metric::Surge, back.surge);
        put(Metric::FirstSecond, back.first_second);
        if let Some(regained) = back.regained_share {
            put(Metric::Regained, regained);
        }
    }
    let measured = &timeline[timeline.len().saturating_sub(batches * parts as usize)..];
    if let Some(day) = point.scaler.as_ref().and_then(|crew| scaling::rate_scaling(crew, measured)) {
        let members = measured.iter().filter_map(|tick| Some(tick.roll?.there)).sum::<f64>();
        let all = [
            (Metric::Met, day.goal_met),
            (Metric::Cost, day.cost),
            (Metric::Members, members / measured.len() as f64),
        ];
        for (metric, value) in all {
            outcome.samples.entry(metric).or_default().push(value);
        }
    }
    if experiment.needs_request_counts() {
        let samples = measured.chunks(parts as usize).filter_map(dispersion);
        outcome.samples.entry(Metric::Dispersion).or_default().extend(samples);
        let samples = measured.chunks(parts as usize).filter_map(swing);
        outcome.samples.entry(Metric::Swing).or_default().extend(samples);
    }
    outcome.timelines.push(timeline);
    run.stop()
}

/// Returns the length of a batch in a closed loop with this `cycle` of a client: at least [`CYCLES`] of them,
/// but at most [`MAX_LENGTHENING`] times the planned length.
fn batch_length(planned: Duration, cycle: Duration) -> Duration {
    planned.max((cycle * CYCLES).min(planned * MAX_LENGTHENING))
}

/// Returns the requests per second of the load's curve at a time since it began; 0 in a closed loop.
fn rate(experiment: &Experiment, drive: LoadLoop, at: Duration, lasting: LoadDuration) -> f64 {
    let LoadLoop::Open(rate) = drive else { return 0.0 };
    let measured = lasting.total.saturating_sub(lasting.warmup).as_secs_f64();
    rate * experiment.load.curve_at(at.saturating_sub(lasting.warmup).as_secs_f64() / measured)
}

/// Measurements beside the requests.
struct SideMeasurements {
    seconds: f64,
    balancer: f64,
    host: Option<((f64, f64), (f64, f64))>,
    /// The counters of a lottery's daemons before and after.
    daemon_counters: Option<(DaemonCounters, DaemonCounters)>,
}

/// Waits for requests in flight.
fn wait_for_in_flight(run: &LoadClients, timeout: Duration) -> RunRecord {
    let end = Instant::now() + timeout + Duration::from_millis(200);
    while !run.is_finished() && Instant::now() < end {
        std::thread::sleep(NAP);
    }
    run.take_record()
}

/// Adds a sample of every metric that the record supports.
fn add_samples(
    outcome: &mut PointOutcome,
    drive: LoadLoop,
    capacity: Option<f64>,
    timeout: Duration,
    part: &RunRecord,
    tail: &RunRecord,
    seen: &SideMeasurements,
) {
    let mut all = part.clone();
    all.merge(tail);
    let ended = (all.ok + all.failures() + all.cut) as f64;
    let failed = |fault| all.failed.get(&fault).copied().unwrap_or(0) as f64;
    let throughput = part.ok as f64 / seen.seconds;
    let mut put = |metric, value: f64| {
        if value.is_finite() {
            outcome.samples.entry(metric).or_default().push(value);
        }
    };
    put(Metric::Throughput, throughput);
    if let Some(capacity) = capacity {
        put(Metric::Utilisation, throughput / capacity);
    }
    if ended > 0.0 {
        put(Metric::P50, all.latency.quantile(0.5).as_secs_f64());
        put(Metric::P99, all.latency.quantile(0.99).as_secs_f64());
        put(Metric::Success, all.ok as f64 / ended);
        put(Metric::TimedOut, (failed(Failure::Timeout) + failed(Failure::ConnectTimeout)) / ended);
        put(Metric::Refused, (failed(Failure::Status) + failed(Failure::Shed)) / ended);
        put(Metric::Shed, failed(Failure::Shed) / ended);
        if all.picks.count() > 0 || failed(Failure::NoPick) > 0.0 {
            put(Metric::Unpicked, failed(Failure::NoPick) / ended);
        }
        put(Metric::BalancerCpu, seen.balancer / ended * 1e6);
    } else if part.due > 0 || (matches!(drive, LoadLoop::Closed(_)) && seen.seconds >= timeout.as_secs_f64())
    {
        // Requests were due and none ended: the worst result, not a missing sample. In a closed loop all
        // requests may take longer than a batch.
        put(Metric::Success, 0.0);
        put(Metric::P50, timeout.as_secs_f64());
        put(Metric::P99, timeout.as_secs_f64());
    }
    if all.ok > 0 {
        put(Metric::Response, mean(&all));
        if let LoadLoop::Closed(clients) = drive {
            put(Metric::Speed, clients as f64 / mean(&all));
        }
    }
    if matches!(drive, LoadLoop::Open(_)) && part.due > 0 {
        put(Metric::Delivered, part.ok as f64 / part.due as f64);
    }
    if all.picks.count() > 0 {
        put(Metric::Pick, all.picks.mean().as_secs_f64());
        put(Metric::PickP99, all.picks.quantile(0.99).as_secs_f64());
        put(Metric::TwoMembers, all.duplicate_picks as f64 / all.picks.count() as f64);
    }
    if let Some((before, after)) = seen.daemon_counters {
        let answers = after.answers - before.answers;
        put(Metric::DaemonBusy, (after.cpu - before.cpu) / seen.seconds);
        if answers > 0.0 {
            put(Metric::Duplicates, (after.duplicates - before.duplicates) / answers);
            put(Metric::DaemonCpu, (after.cpu - before.cpu) / answers * 1e6);
        }
        if after.commit_delay > 0.0 {
            put(Metric::CommitDelay, after.commit_delay);
        }
    }
    if let Some(((busy, total), (busy_then, total_then))) = seen.host {
        put(Metric::HostCpu, (busy_then - busy) / (total_then - total));
    }
}

/// Returns the mean time of the requests that were answered without fault, from when they were sent; NaN if
/// there are none. In a punctual open loop that is when they were due.
fn mean(record: &RunRecord) -> f64 {
    if record.service.count() == 0 { f64::NAN } else { record.service.mean().as_secs_f64() }
}

#[cfg(test)]
mod tests;
