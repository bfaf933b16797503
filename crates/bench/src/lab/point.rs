//! One point: its processes, its load, its faults, and what is seen of them from every side.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::arrivals::Arrivals;
use super::child::Tie;
use super::drive::{Clients, Drive};
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
/// A member that came back is watched for a surge for so long beyond its slow start, in seconds, from when it
/// gets this share of its usual requests again.
const RETURN: f64 = 5.0;
const USED: f64 = 0.05;
/// It may take so long, in seconds, until it is used again; after that and its slow start its requests are counted
/// for so long.
const CHECKED: f64 = 10.0;
const COUNTED: f64 = 5.0;
/// An open loop in which less left on time proves nothing.
pub(super) const PUNCTUAL: f64 = 0.99;

impl Outcome {
    /// Of no repetition.
    pub(super) fn new() -> Self {
        Self { punctuality: 1.0, ..Self::default() }
    }
}

/// Runs a repetition of a point in the point's `folder`, with what was measured before the run, and adds what comes of
/// it to `outcome`.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one thing the repetition needs, and there is one caller"
)]
pub(super) fn run(
    tie: &Tie,
    experiment: &Experiment,
    mode: Mode,
    point: &Point,
    repetition: usize,
    before: &super::Before,
    folder: &Path,
    outcome: &mut Outcome,
    watch: &mut dyn Watch,
) -> Result<(), Trouble> {
    let only = repetitions(experiment, mode) == 1;
    let folder = if only { folder.to_owned() } else { folder.join(format!("{repetition}")) };
    std::fs::create_dir_all(&folder)
        .map_err(|error| Trouble::failed(format!("cannot make {}: {error}", folder.display())))?;
    let mut point = point.clone();
    point.seed = point.seed.wrapping_mul(100).wrapping_add(repetition as u64);
    let mut stage = Stage::build(tie, experiment, &point, before.session(experiment), &folder)?;
    outcome.commands = stage.commands().to_vec();
    let drive = before.drive(point.offer)?;
    once(experiment, mode, &point, drive, &mut stage, before.capacity(), outcome, watch)?;
    if let Some(status) = stage.status() {
        let path = folder.join("status.json");
        std::fs::write(&path, status)
            .map_err(|error| Trouble::failed(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(())
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
    let run = stage.load(&experiment.load, drive, length, point.seed)?;
    let mut wait = |run: &Clients, stage: &mut Stage, until: Duration| -> Result<(), Trouble> {
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
    let mut arrivals = Arrivals::default();
    // Warm-up and measured batches are cut the same way, so that a timeline begins with the load.
    let mut last = Duration::ZERO;
    let mut tick =
        |run: &Clients, stage: &mut Stage, until: Duration| -> Result<(Record, Duration), Trouble> {
            wait(run, stage, until)?;
            let now = run.elapsed();
            let record = run.take();
            let counts = if experiment.counts() { stage.counts() } else { Vec::new() };
            let (end, seconds) = (now.as_secs_f64(), (now - last).as_secs_f64());
            let arrived = stage.names().into_iter().zip(counts).filter_map(|(name, count)| {
                let came = arrivals.tick(&name, count, end, seconds)?;
                Some((name, came))
            });
            timeline.push(Tick {
                at: end,
                seconds,
                due: record.due,
                ok: record.ok,
                failed: record.failures(),
                response: record.service.mean().as_secs_f64(),
                p99: record.latency.quantile(0.99).as_secs_f64(),
                arrived: arrived.collect(),
            });
            last = now;
            Ok((record, now))
        };
    let ticks = (warmup.as_secs_f64() / TICK.as_secs_f64()).ceil() as u32;
    let mut answered = 0;
    // When the last record was taken: what follows belongs to the next one, however long the rest of a tick takes.
    let mut previous = Duration::ZERO;
    for number in 1..=ticks {
        let (record, now) = tick(&run, stage, warmup * number / ticks)?;
        answered += record.ok;
        previous = now;
    }
    let mut begin = warmup;
    while answered < SETTLED as u64 * clients && run.elapsed() < warmup + WARM {
        begin = run.elapsed() + STEP;
        let (record, now) = tick(&run, stage, begin)?;
        answered += record.ok;
        previous = now;
    }
    let mut due = 0;
    for number in 1..=batches as u32 {
        let (start, host) = (stage.used(), usage::of_host());
        let mut whole = Record::new();
        let mut now = previous;
        for part in 1..=parts {
            let (record, taken) = tick(&run, stage, begin + batch * (number - 1) + batch * part / parts)?;
            whole.add(&record);
            now = taken;
        }
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
        // What is still under way ends within its time-out; it is a part of the last batch. A closed loop never ends.
        let open = matches!(drive, Drive::Open(_));
        let timeout = experiment.load.timeout.0;
        let last = open && number == batches as u32;
        let tail = if last { tail(&run, timeout) } else { Record::new() };
        keep(outcome, drive, capacity, timeout, &whole, &tail, &seen);
    }
    stage.alive()?;
    if due == 0 {
        return Err(Trouble::failed("no request was due in all of it: give more load or more time"));
    }
    if let Some(fault) = faults.peek() {
        let at = fault.at.of(mode).0.as_secs_f64();
        return Err(Trouble::failed(format!("a fault at {at} s did not happen before the end")));
    }
    if let Some(back) = back(experiment, mode, &timeline) {
        let mut put = |metric, value: f64| {
            if value.is_finite() {
                outcome.samples.entry(metric).or_default().push(value);
            }
        };
        put(Metric::Surge, back.surge);
        if let Some(regained) = back.regained {
            put(Metric::Regained, regained);
        }
    }
    if experiment.counts() {
        let measured = &timeline[timeline.len().saturating_sub(batches * parts as usize)..];
        let samples = measured.chunks(parts as usize).filter_map(dispersion);
        outcome.samples.entry(Metric::Dispersion).or_default().extend(samples);
    }
    outcome.timelines.push(timeline);
    run.end()
}

/// How unequal the arrivals at the members were in these ticks; `None` if one of them did not say.
fn dispersion(ticks: &[Tick]) -> Option<f64> {
    let first = ticks.first()?;
    let mut counts = Vec::new();
    for member in first.arrived.keys() {
        let came: Option<u64> = ticks.iter().map(|tick| tick.arrived.get(member).copied()).sum();
        counts.push(came? as f64);
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

/// What was seen beside the requests.
struct Seen {
    seconds: f64,
    balancer: f64,
    host: Option<((f64, f64), (f64, f64))>,
}

/// Waits for what is under way.
fn tail(run: &Clients, timeout: Duration) -> Record {
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
    timeout: Duration,
    part: &Record,
    tail: &Record,
    seen: &Seen,
) {
    let mut all = part.clone();
    all.add(tail);
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
        put(Metric::BalancerCpu, seen.balancer / ended * 1e6);
    } else if part.due > 0 || matches!(drive, Drive::Closed(_)) {
        // There were requests and nothing came of any: that is the worst, and no want of a sample.
        put(Metric::Success, 0.0);
        put(Metric::P50, timeout.as_secs_f64());
        put(Metric::P99, timeout.as_secs_f64());
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

/// Arrivals at a member after it was started again, or joined the network again, over its usual rate before.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Back {
    /// Greatest rate while it comes back.
    surge: f64,
    /// Rate once that should be over; `None` if the run ended before.
    regained: Option<f64>,
}

fn back(experiment: &Experiment, mode: Mode, timeline: &[Tick]) -> Option<Back> {
    let faults = &experiment.faults;
    let start = faults.iter().find(|fault| matches!(fault.act, Act::Start | Act::Join))?;
    let away = if start.act == Act::Start { Act::Kill } else { Act::CutOff };
    let kill = faults.iter().find(|fault| fault.act == away && fault.member == start.member)?;
    let seconds = |fault: &Fault| fault.at.of(mode).0.as_secs_f64();
    let name = format!("m{}", start.member);
    // End, beginning and rate of each tick in which it is known.
    let rates: Vec<(f64, f64, f64)> = timeline
        .iter()
        .filter(|tick| tick.seconds > 0.0)
        .filter_map(|t| Some((t.at, t.at - t.seconds, *t.arrived.get(&name)? as f64 / t.seconds)))
        .collect();
    let mean = |keep: &dyn Fn(f64, f64) -> bool| {
        let kept: Vec<f64> =
            rates.iter().filter(|(end, begin, _)| keep(*end, *begin)).map(|(_, _, rate)| *rate).collect();
        (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64)
    };
    let warm = experiment.plan.warmup.of(mode).0.as_secs_f64();
    let usual =
        mean(&|end, begin| begin >= warm - 0.1 && end <= seconds(kill)).filter(|usual| *usual > 0.0)?;
    let slow_start = experiment.balancer.slow_start.map_or(0.0, |span| span.0.as_secs_f64());
    // The balancer may take its time: the first seconds are those in which it is used again.
    let after = || rates.iter().filter(|(end, ..)| *end > seconds(start));
    let used = after().find(|(_, _, rate)| *rate >= USED * usual).map_or(0.0, |(_, begin, _)| *begin);
    let watched = after().filter(|(_, begin, _)| *begin < used + slow_start + RETURN);
    let most = watched.map(|(_, _, rate)| *rate).fold(0.0, f64::max);
    let from = seconds(start) + slow_start + CHECKED;
    let long_enough = rates.last().is_some_and(|(end, ..)| *end >= from + COUNTED - 0.5);
    let regained = mean(&|end, begin| begin >= from - 0.1 && end <= from + COUNTED + 0.5);
    Some(Back { surge: most / usual, regained: regained.filter(|_| long_enough).map(|rate| rate / usual) })
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
        let surge = |arrivals: &[u64]| back(&faulty(), Mode::Full, &timeline(arrivals)).unwrap().surge;
        // The first second is the warm-up; the usual rate is 100.
        assert_eq!(surge(&[900, 100, 110, 90, 0, 0, 300, 100, 100]), 3.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 1, 1, 1, 1, 1, 1, 50, 250, 100]), 2.5);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]), 1.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 0, 0, 0]), 0.0);
        // The slow start is watched to its end.
        let mut slow = faulty();
        slow.balancer.slow_start = Some(crate::lab::experiment::Span(Duration::from_secs(3)));
        let late = timeline(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]);
        assert_eq!(back(&slow, Mode::Full, &late).unwrap().surge, 4.0);
    }

    #[test]
    fn one_that_joins_the_network_again_returns_as_well() {
        let mut cut = faulty();
        cut.faults[0].act = Act::CutOff;
        cut.faults[1].act = Act::Join;
        let surge = |experiment: &Experiment| {
            back(experiment, Mode::Full, &timeline(&[900, 100, 100, 100, 0, 0, 250, 100]))
        };
        assert_eq!(surge(&cut).unwrap().surge, 2.5);
        // One is not the return from the other.
        cut.faults[1].act = Act::Start;
        assert_eq!(surge(&cut), None);
    }

    #[test]
    fn a_member_that_never_gets_its_requests_back_is_told() {
        let regained = |after: [u64; 15]| {
            let arrivals = [[900, 100, 110, 90, 0, 0].as_slice(), &after].concat();
            back(&faulty(), Mode::Full, &timeline(&arrivals)).unwrap().regained
        };
        assert_eq!(regained([0; 15]), Some(0.0));
        assert_eq!(regained([1, 2, 5, 100, 100, 100, 100, 100, 100, 100, 90, 90, 90, 90, 90]), Some(0.9));
        // The run ended before it could be known.
        let short = timeline(&[900, 100, 110, 90, 0, 0, 100, 100, 100]);
        assert_eq!(back(&faulty(), Mode::Full, &short).unwrap().regained, None);
    }

    #[test]
    fn dispersion_is_over_members_and_needs_all_of_them() {
        let tick = |counts: &[(&str, u64)]| Tick {
            arrived: counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..Tick::default()
        };
        let equal = [tick(&[("m1", 10), ("m2", 30)]), tick(&[("m1", 30), ("m2", 10)])];
        assert_eq!(dispersion(&equal), Some(0.0));
        assert_eq!(dispersion(&equal[..1]), Some(0.5));
        assert_eq!(dispersion(&[equal[0].clone(), tick(&[("m1", 10)])]), None);
        assert_eq!(dispersion(&[]), None);
    }

    /// Samples of a batch with this record.
    fn samples(drive: Drive, part: &Record) -> BTreeMap<Metric, Vec<f64>> {
        let mut outcome = Outcome::default();
        let seen = Seen { seconds: 1.0, balancer: 0.0, host: None };
        keep(&mut outcome, drive, None, Duration::from_secs(5), part, &Record::new(), &seen);
        outcome.samples
    }

    #[test]
    fn the_processor_time_of_the_balancer_is_for_each_request_that_ended() {
        let mut part = Record::new();
        part.due = 250;
        part.ok = 150;
        part.failed.insert(Failure::Status, 50);
        let mut tail = Record::new();
        tail.ok = 40;
        tail.cut = 10;
        let mut outcome = Outcome::default();
        let seen = Seen { seconds: 1.0, balancer: 0.05, host: None };
        keep(&mut outcome, Drive::Open(250.0), None, Duration::from_secs(5), &part, &tail, &seen);
        // 50 ms for 250 requests, in microseconds.
        assert!((outcome.samples[&Metric::BalancerCpu][0] - 200.0).abs() < 1e-9, "{outcome:?}");
    }

    #[test]
    fn what_was_shed_was_refused_too() {
        let mut part = Record::new();
        (part.due, part.ok) = (100, 80);
        part.failed.insert(Failure::Status, 5);
        part.failed.insert(Failure::Shed, 15);
        let seen = samples(Drive::Open(100.0), &part);
        assert_eq!((&seen[&Metric::Refused], &seen[&Metric::Shed]), (&vec![0.2], &vec![0.15]));
        assert_eq!(seen[&Metric::Success], [0.8]);
    }

    #[test]
    fn a_batch_in_which_nothing_ended_is_a_bad_sample_and_not_none() {
        let mut hung = Record::new();
        hung.due = 10;
        let seen = samples(Drive::Open(10.0), &hung);
        assert_eq!((&seen[&Metric::Success], &seen[&Metric::P99]), (&vec![0.0], &vec![5.0]));
        // What was cut off was due and not answered.
        hung.cut = 10;
        assert_eq!(samples(Drive::Open(10.0), &hung)[&Metric::Success], [0.0]);
        // With nothing due there is nothing to say.
        assert!(!samples(Drive::Open(10.0), &Record::new()).contains_key(&Metric::Success));
        assert_eq!(samples(Drive::Closed(1), &Record::new())[&Metric::Success], [0.0]);
    }
}
