//! The run itself: pacer and target joined, and watched while they run.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::BufReader;
use std::time::Duration;

use plimsoll_bench::pace::RequestPacer;
use plimsoll_bench::replay::{AccessLog, ReplayWorkload};
use plimsoll_bench::run::{self, LoadRun, RunLimits};
use plimsoll_bench::target::{HttpRequest, HttpTarget, RequestTarget};
use plimsoll_bench::units::format_duration;
use tokio::signal::unix::{SignalKind, signal};

use super::progress::{LoadProgress, ProgressSample};
use super::result::{LoadResult, RunSetup, TimelineSlice};
use super::target_args::{self, LoadTarget};
use super::{Args, CliError, usage_error};
use crate::command::GlobalArgs;

/// The default duration of a run.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);
/// The time between two checks for Ctrl-C and the end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum of requests in flight without `--connections`.
const MAX_IN_FLIGHT: usize = 16_384;

/// Due times, their duration, and their name in reports.
struct RunPlan {
    arrivals: ArrivalSchedule,
    duration: Duration,
    description: String,
    seed: u64,
}

enum ArrivalSchedule {
    Pace(RequestPacer),
    Recorded(Vec<Duration>),
    Closed(usize),
}

/// Sends the requests of the command line.
pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<LoadResult, CliError> {
    // The seed has 32 bits, so that a person can type it and JSON keeps it.
    let seed = args.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 32);
    if let Some(file) = &args.replay {
        let (target, plan) = replay(args, file, seed, globals)?;
        return execute(target, plan, args, globals);
    }
    let plan = plan(args, seed)?;
    match target_args::build_target(args, seed)? {
        LoadTarget::Http(target) => execute(target, plan, args, globals),
        LoadTarget::Tcp(target) => execute(target, plan, args, globals),
        LoadTarget::Udp(target) => execute(target, plan, args, globals),
        LoadTarget::Iiop(target) => execute(target, plan, args, globals),
    }
}

fn plan(args: &Args, seed: u64) -> Result<RunPlan, CliError> {
    if let Some(clients) = args.concurrency {
        return Ok(RunPlan {
            arrivals: ArrivalSchedule::Closed(clients as usize),
            duration: args.duration.unwrap_or(DEFAULT_DURATION),
            description: format!("closed loop, {clients} clients"),
            seed,
        });
    }
    let Some(rate) = &args.rate else { return Err(usage_error("give --rate")) };
    let shape = rate.shape(args.bursts).map_err(usage_error)?;
    let duration = args.duration.or_else(|| rate.duration()).unwrap_or(DEFAULT_DURATION);
    let bursts = args.bursts.map_or(String::new(), |bursts| format!(", {bursts}"));
    Ok(RunPlan {
        description: format!("{}, {rate}{bursts}", args.arrival),
        arrivals: ArrivalSchedule::Pace(RequestPacer::with_shape(args.arrival, shape, duration, seed)),
        duration,
        seed,
    })
}

/// Returns the requests and times of an access log.
fn replay(
    args: &Args,
    file: &std::path::Path,
    seed: u64,
    globals: &GlobalArgs,
) -> Result<(HttpTarget, RunPlan), CliError> {
    let unreadable =
        |error: std::io::Error| usage_error(format_args!("cannot read {}: {error}", file.display()));
    let reader = BufReader::new(std::fs::File::open(file).map_err(unreadable)?);
    let workload = match args.workload {
        super::LogWorkload::All => ReplayWorkload::All,
        super::LogWorkload::Static => ReplayWorkload::Static,
    };
    let log = AccessLog::read(reader, workload, seed).map_err(unreadable)?;
    let skipped: Vec<_> = log.skipped.iter().map(|(reason, lines)| format!("{lines} {reason}")).collect();
    if !skipped.is_empty() {
        globals.print_message(&format!("{}: lines left out: {}\n", file.display(), skipped.join(", ")));
    }
    if let Some(jump) = log.jumps.worst {
        let other_jumps = match log.jumps.count - 1 {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        globals.print_message(&format!(
            "{}: {jump}{other_jumps}; the replay keeps it: correct the log if that is not what happened\n",
            file.display()
        ));
    }
    let Some(last_entry) = log.entries.last() else {
        return Err(usage_error(format_args!(
            "{}: no request in it that can be replayed; expected lines in the common or combined log format",
            file.display()
        )));
    };
    let span = last_entry.at.as_secs_f64().max(1e-3);
    let speed = match &args.rate {
        None => args.speed.unwrap_or(1.0),
        Some(super::RequestRate::Steady(rate)) => rate * span / log.entries.len() as f64,
        Some(_) => {
            return Err(usage_error("--replay has times of its own: give one --rate, the mean, or --speed"));
        }
    };
    let urls = target_args::weighted_urls(args)?;
    let [(_, base)] = urls[..] else {
        return Err(usage_error("--replay goes to one URL, which the paths are added to"));
    };
    if base
        .split_once("://")
        .and_then(|(_, rest)| rest.split_once('/'))
        .is_some_and(|(_, path)| !path.is_empty())
    {
        return Err(usage_error(format_args!(
            "`{base}`: --replay takes the paths from the log; give http://HOST:PORT/"
        )));
    }
    let headers = target_args::headers(args)?;
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let base = target_args::request(args, "GET", base, &headers, b"")?;
    // A log names the same pages again and again.
    let mut cache: HashMap<(&str, &str), HttpRequest> = HashMap::new();
    let mut requests = Vec::with_capacity(log.entries.len());
    for entry in &log.entries {
        let key = (entry.method.as_str(), entry.path.as_str());
        let request = match cache.entry(key) {
            Entry::Occupied(cached) => cached.into_mut(),
            Entry::Vacant(vacant) => {
                vacant.insert(base.with_path(&entry.method, &entry.path).map_err(usage_error)?)
            }
        };
        requests.push(request.clone());
    }
    let mut due_times = log.due_times(speed);
    if let Some(duration) = args.duration {
        due_times.retain(|due| *due < duration);
    }
    let duration = args
        .duration
        .unwrap_or_else(|| due_times.last().map_or(DEFAULT_DURATION, |last| (*last).max(POLL_INTERVAL)));
    let description = format!(
        "{} of {} at {speed:.3} times its speed ({:.1}/s)",
        match workload {
            ReplayWorkload::All => "replay",
            ReplayWorkload::Static => "replay of the static requests",
        },
        file.display(),
        due_times.len() as f64 / duration.as_secs_f64()
    );
    let target = HttpTarget::sequence(requests).map_err(usage_error)?;
    Ok((target, RunPlan { arrivals: ArrivalSchedule::Recorded(due_times), duration, description, seed }))
}

fn execute<T: RequestTarget + Send + 'static>(
    target: T,
    plan: RunPlan,
    args: &Args,
    globals: &GlobalArgs,
) -> Result<LoadResult, CliError> {
    let limits = RunLimits {
        timeout: args.timeout,
        connect_timeout: args.connect_timeout,
        max_in_flight: MAX_IN_FLIGHT.max(args.connections.unwrap_or(0) as usize),
        max_connections: args.connections.map(|max| max as usize),
        reuse_connections: !args.no_keepalive,
        tolerance: args.tolerance,
        ..RunLimits::default()
    };
    let setup = RunSetup {
        targets: target_args::weighted_urls(args)?
            .iter()
            .map(|(_, url)| target_args::target_name(url))
            .collect(),
        pace: plan.description,
        is_closed_loop: matches!(plan.arrivals, ArrivalSchedule::Closed(_)),
        seed: Some(plan.seed),
    };
    let (targets, pace, duration) = (setup.targets.join("  "), &setup.pace, format_duration(plan.duration));
    globals.print_message(&format!("{targets}  {pace}, for {duration}, seed {}\n", plan.seed));
    let picker = args.pick.picker()?;
    let cpu_before = processor_time();
    let run = match plan.arrivals {
        ArrivalSchedule::Pace(pacer) => run::start_with_picker(target, picker, pacer, limits),
        ArrivalSchedule::Recorded(due_times) => {
            run::start_with_picker(target, picker, due_times.into_iter(), limits)
        }
        ArrivalSchedule::Closed(clients) => {
            run::start_closed_loop_with_picker(target, picker, clients, plan.duration, limits)
        }
    }
    .map_err(|error| CliError::failed(format_args!("cannot start the load: {error}")))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let mut outcome = LoadResult { setup, ..LoadResult::default() };
    runtime.block_on(observe_run(&run, plan.duration, &mut outcome, globals))?;
    let remaining =
        run.join().map_err(|error| CliError::failed(format_args!("the load broke off: {error}")))?;
    outcome.record.merge(&remaining);
    outcome.cpu_time = processor_time().saturating_sub(cpu_before);
    Ok(outcome)
}

/// Watches the run until it has ended, and ends it with the first Ctrl-C.
async fn observe_run(
    run: &LoadRun,
    duration: Duration,
    outcome: &mut LoadResult,
    globals: &GlobalArgs,
) -> Result<(), CliError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
    // A short run has about a hundred slices, a long one a slice for each second.
    let slice = (duration / 100).clamp(Duration::from_millis(100), Duration::from_secs(1));
    let mut progress = LoadProgress::new(globals);
    let (mut slice_start, mut stopped_at) = (Duration::ZERO, None);
    loop {
        let finished = run.is_finished();
        let elapsed = run.elapsed();
        // Nothing is due any more from here on.
        let has_ended = slice_start < duration && elapsed >= duration;
        if finished || has_ended || elapsed >= slice_start + slice {
            let record = run.take_record();
            let span = elapsed - slice_start;
            outcome.record.merge(&record);
            if slice_start < duration {
                outcome.answered_in_time += record.ok;
            }
            outcome.timeline.push(TimelineSlice::from_record(
                &record,
                elapsed.as_secs_f64(),
                span.as_secs_f64(),
            ));
            progress.draw(&ProgressSample {
                elapsed,
                duration: Some(duration),
                recent: &record,
                span,
                in_flight: run.in_flight(),
                failed: outcome.record.failures(),
                ok: outcome.record.ok,
                due: outcome.record.due,
                is_last: finished,
            });
            slice_start = elapsed;
        }
        if finished {
            // A run lasts its full time even if its last request was answered early.
            outcome.elapsed = stopped_at.map_or(duration, |time| duration.min(time));
            outcome.is_interrupted = stopped_at.is_some();
            return Ok(());
        }
        let signalled = tokio::select! {
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
            () = tokio::time::sleep(time_to_next_check(elapsed, duration).min(slice)) => false,
        };
        if signalled && stopped_at.is_none() {
            stopped_at = Some(run.elapsed());
            run.stop();
        }
    }
}

/// Returns the time until the next look, which comes at the latest when the last request was due.
fn time_to_next_check(elapsed: Duration, duration: Duration) -> Duration {
    match duration.checked_sub(elapsed) {
        Some(remaining) if !remaining.is_zero() => POLL_INTERVAL.min(remaining),
        _ => POLL_INTERVAL,
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
