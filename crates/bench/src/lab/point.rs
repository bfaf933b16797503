//! One point: its processes, its load, its faults, and what is seen of them from every side.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::child::Tie;
use super::drive::{self, Drive};
use super::experiment::{Act, Experiment, Fault, Mode};
use super::metric::Metric;
use super::plan::{Point, SETTLED, each, repetitions};
use super::stage::Stage;
use super::{Trouble, Watch, usage};
use crate::record::{Fault as Failure, Record};

/// What came of a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Of every repetition and batch.
    pub samples: BTreeMap<Metric, Vec<f64>>,
    /// Of every repetition, by the tick.
    pub timelines: Vec<Vec<Tick>>,
    /// Command lines of the processes.
    pub commands: Vec<String>,
    /// Least share of the requests that left on time (open loop).
    pub punctuality: f64,
}

/// A second, or a batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tick {
    /// When it ended, in seconds since the load began.
    pub at: f64,
    /// How long it was.
    pub seconds: f64,
    /// Requests that left in it.
    pub due: u64,
    /// Requests answered in it without fault.
    pub ok: u64,
    /// Requests that ended badly in it.
    pub failed: u64,
    /// Mean time of those answered, seconds; 0 if there was none.
    pub response: f64,
    /// 99th percentile of all that ended, seconds.
    pub p99: f64,
    /// Requests that came to each member.
    pub arrived: BTreeMap<String, u64>,
}

/// Longest between two ticks.
const TICK: Duration = Duration::from_secs(1);
/// Longest sleep: how soon an interruption is noticed.
const NAP: Duration = Duration::from_millis(20);
/// Longest that the warm-up of a closed loop goes on, and its steps.
const WARM: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(100);
/// A member that came back is watched for a surge for so long, in seconds, from when it gets this share of its
/// usual requests again.
const RETURN: f64 = 5.0;
const USED: f64 = 0.05;
/// An open loop in which less left on time proves nothing.
pub(super) const PUNCTUAL: f64 = 0.99;

/// Runs a point in `folder`, with what was measured before the run.
pub(super) fn run(
    tie: &Tie,
    experiment: &Experiment,
    mode: Mode,
    point: &Point,
    before: &super::Before,
    folder: &Path,
    watch: &mut dyn Watch,
) -> Result<Outcome, Trouble> {
    let mut outcome = Outcome { punctuality: 1.0, ..Outcome::default() };
    let count = repetitions(experiment, mode);
    for repetition in 1..=count {
        let folder = if count == 1 { folder.to_owned() } else { folder.join(format!("{repetition}")) };
        std::fs::create_dir_all(&folder)
            .map_err(|error| Trouble::failed(format!("cannot make {}: {error}", folder.display())))?;
        let mut point = point.clone();
        point.seed = point.seed.wrapping_mul(100).wrapping_add(repetition as u64);
        let mut stage = Stage::build(tie, experiment, &point, before.session(experiment), &folder)?;
        outcome.commands = stage.commands().to_vec();
        let drive = before.drive(point.offer)?;
        once(experiment, mode, &point, drive, &mut stage, before.capacity(), &mut outcome, watch)?;
        if let Some(status) = stage.status() {
            let path = folder.join("status.json");
            std::fs::write(&path, status)
                .map_err(|error| Trouble::failed(format!("cannot write {}: {error}", path.display())))?;
        }
    }
    Ok(outcome)
}

/// One repetition.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one thing the repetition needs, and there is one caller"
)]
fn once(
    experiment: &Experiment,
    mode: Mode,
    point: &Point,
    drive: Drive,
    stage: &mut Stage,
    capacity: Option<f64>,
    outcome: &mut Outcome,
    watch: &mut dyn Watch,
) -> Result<(), Trouble> {
    let warmup = experiment.plan.warmup.of(mode).0;
    let batches = (*experiment.plan.batches.of(mode)).max(1);
    let batch = experiment.plan.duration.of(mode).0 / batches as u32;
    let parts = (batch.as_secs_f64() / TICK.as_secs_f64()).ceil().max(1.0) as u32;
    let mut faults: Vec<&Fault> = experiment.faults.iter().collect();
    faults.sort_by_key(|fault| fault.at.of(mode).0);
    let mut faults = faults.into_iter().peekable();

    // A closed loop is ended by hand, because its warm-up takes as long as it needs.
    let (clients, length) = match drive {
        Drive::Open(_) => (0, each(experiment, mode)),
        Drive::Closed(clients) => (clients as u64, each(experiment, mode) + WARM),
    };
    let run = drive::start(&experiment.load, drive, stage.address(), length, point.seed)?;
    let mut wait = |run: &crate::run::Run, stage: &mut Stage, until: Duration| -> Result<(), Trouble> {
        loop {
            let now = run.elapsed();
            if let Some(fault) = faults.next_if(|fault| fault.at.of(mode).0 <= now) {
                stage.act(fault)?;
                continue;
            }
            if watch.interrupted() {
                return Err(Trouble::Interrupted);
            }
            if now >= until {
                return Ok(());
            }
            std::thread::sleep((until - now).min(NAP));
        }
    };

    let mut timeline = Vec::new();
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    // Warm-up and measured batches are cut the same way, so that a timeline begins with the load.
    let mut last = Duration::ZERO;
    let mut tick = |run: &crate::run::Run, stage: &mut Stage, until: Duration| -> Result<Record, Trouble> {
        wait(run, stage, until)?;
        let now = run.elapsed();
        let record = run.take();
        let counts = if experiment.faults.is_empty() { Vec::new() } else { stage.counts() };
        let arrived = stage.names().into_iter().zip(counts).map(|(name, count)| {
            let before = known.get(&name).copied().unwrap_or(0);
            // A member that died counts from nothing again.
            let count = count.unwrap_or(0);
            known.insert(name.clone(), count);
            (name, if count >= before { count - before } else { count })
        });
        timeline.push(Tick {
            at: now.as_secs_f64(),
            seconds: (now - last).as_secs_f64(),
            due: record.due,
            ok: record.ok,
            failed: record.failures(),
            response: record.service.mean().as_secs_f64(),
            p99: record.latency.quantile(0.99).as_secs_f64(),
            arrived: arrived.collect(),
        });
        last = now;
        Ok(record)
    };
    let ticks = (warmup.as_secs_f64() / TICK.as_secs_f64()).ceil() as u32;
    let mut answered = 0;
    for number in 1..=ticks {
        answered += tick(&run, stage, warmup * number / ticks)?.ok;
    }
    let mut begin = warmup;
    while answered < SETTLED as u64 * clients && run.elapsed() < warmup + WARM {
        begin = run.elapsed() + STEP;
        answered += tick(&run, stage, begin)?.ok;
    }
    let mut previous = run.elapsed();
    let mut due = 0;
    for number in 1..=batches as u32 {
        let (start, host) = (stage.used(), usage::of_host());
        let mut whole = Record::new();
        for part in 1..=parts {
            whole.add(&tick(&run, stage, begin + batch * (number - 1) + batch * part / parts)?);
        }
        let now = run.elapsed();
        let seen = Seen {
            seconds: (now - previous).as_secs_f64(),
            balancer: stage.used().0 - start.0,
            host: host.zip(usage::of_host()),
        };
        previous = now;
        due += whole.due;
        if matches!(drive, Drive::Open(_)) {
            outcome.punctuality = outcome.punctuality.min(whole.punctuality());
        }
        // What is still under way ends within its time-out; of a run in one piece it is a part.
        let tail = if batches == 1 { tail(&run, experiment.load.timeout.0) } else { Record::new() };
        keep(outcome, drive, capacity, &whole, &tail, &seen);
    }
    stage.alive()?;
    if due == 0 {
        return Err(Trouble::failed("no request was due in all of it: give more load or more time"));
    }
    if let Some(fault) = faults.peek() {
        let at = fault.at.of(mode).0.as_secs_f64();
        return Err(Trouble::failed(format!("a fault at {at} s did not happen before the end")));
    }
    if let Some(surge) = surge(experiment, mode, &timeline) {
        outcome.samples.entry(Metric::Surge).or_default().push(surge);
    }
    outcome.timelines.push(timeline);
    run.stop();
    run.join().map_err(|error| Trouble::failed(format!("the load generator failed: {error}")))?;
    Ok(())
}

/// What was seen beside the requests.
struct Seen {
    seconds: f64,
    balancer: f64,
    host: Option<((f64, f64), (f64, f64))>,
}

/// Waits for what is under way.
fn tail(run: &crate::run::Run, timeout: Duration) -> Record {
    let end = Instant::now() + timeout + Duration::from_millis(200);
    while !run.finished() && Instant::now() < end {
        std::thread::sleep(NAP);
    }
    run.take()
}

/// Adds a sample of every metric that the record has.
fn keep(
    outcome: &mut Outcome,
    drive: Drive,
    capacity: Option<f64>,
    part: &Record,
    tail: &Record,
    seen: &Seen,
) {
    let mut all = part.clone();
    all.add(tail);
    let ended = (all.ok + all.failures()) as f64;
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
        put(Metric::Refused, failed(Failure::Status) / ended);
        put(Metric::BalancerCpu, seen.balancer / ended * 1e6);
    }
    if all.ok > 0 {
        put(Metric::Response, mean(&all));
        if let Drive::Closed(clients) = drive {
            put(Metric::Speed, clients as f64 / mean(&all));
        }
    }
    if matches!(drive, Drive::Open(_)) && part.due > 0 {
        put(Metric::Delivered, part.ok as f64 / part.due as f64);
    }
    if let Some(((busy, total), (busy_then, total_then))) = seen.host {
        put(Metric::HostCpu, (busy_then - busy) / (total_then - total));
    }
}

/// Mean time of the requests that were answered without fault, from when they were sent; not a number if there
/// is none. In a punctual open loop that is when they were due.
fn mean(record: &Record) -> f64 {
    if record.service.count() == 0 { f64::NAN } else { record.service.mean().as_secs_f64() }
}

/// Greatest rate of arrivals, in the seconds after a member was started again, over its usual rate before it
/// was killed.
fn surge(experiment: &Experiment, mode: Mode, timeline: &[Tick]) -> Option<f64> {
    let start = experiment.faults.iter().find(|fault| fault.act == Act::Start)?;
    let kill =
        experiment.faults.iter().find(|fault| fault.act == Act::Kill && fault.member == start.member)?;
    let seconds = |fault: &Fault| fault.at.of(mode).0.as_secs_f64();
    let name = format!("m{}", start.member);
    let rate = |tick: &Tick| tick.arrived.get(&name).copied().unwrap_or(0) as f64 / tick.seconds;
    let begin = experiment.plan.warmup.of(mode).0.as_secs_f64();
    let usual: Vec<f64> = timeline
        .iter()
        .filter(|t| t.at - t.seconds >= begin - 0.1 && t.at <= seconds(kill))
        .map(rate)
        .collect();
    let mean = usual.iter().sum::<f64>() / usual.len() as f64;
    // The balancer may take its time: the first seconds are those in which it is used again.
    let after = || timeline.iter().filter(|tick| tick.at > seconds(start));
    let back = after().find(|tick| rate(tick) >= USED * mean).map_or(0.0, |tick| tick.at - tick.seconds);
    let most = after().filter(|tick| tick.at - tick.seconds < back + RETURN).map(rate).fold(0.0, f64::max);
    (mean > 0.0).then(|| most / mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::Experiment;
    use crate::lab::fixture::TEXT;

    fn faulty() -> Experiment {
        let fault = |act, at| {
            format!(
                "[[fault]]\nact = \"{act}\"\nat = {{ full = \"{at}s\", quick = \"{at}s\" }}\nmember = 2\n"
            )
        };
        // Both members are there in every point, for long enough.
        let text = TEXT.replace("full = \"3s\", quick = \"1s\"", "full = \"15s\", quick = \"15s\"");
        let text = text.replace("full = [0, 2]", "full = [2]").replace("quick = [1]", "quick = [2]");
        let text = format!("{text}{}{}", fault("kill", 4), fault("start", 6));
        Experiment::parse(&text).unwrap_or_else(|wrong| panic!("{wrong:?}"))
    }

    /// Arrivals at member 2 in each second.
    fn timeline(arrivals: &[u64]) -> Vec<Tick> {
        let tick = |(second, count): (usize, &u64)| Tick {
            at: (second + 1) as f64,
            seconds: 1.0,
            arrived: BTreeMap::from([("m2".to_owned(), *count)]),
            ..Tick::default()
        };
        arrivals.iter().enumerate().map(tick).collect()
    }

    #[test]
    fn a_surge_is_seen_in_the_first_seconds_in_which_the_member_is_used_again() {
        let surge = |arrivals: &[u64]| surge(&faulty(), Mode::Full, &timeline(arrivals)).unwrap();
        // The first second is the warm-up; the usual rate is 100.
        assert_eq!(surge(&[900, 100, 110, 90, 0, 0, 300, 100, 100]), 3.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 1, 1, 1, 1, 1, 1, 50, 250, 100]), 2.5);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]), 1.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 0, 0, 0]), 0.0);
    }
}
