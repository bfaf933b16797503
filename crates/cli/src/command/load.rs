//! `plimsoll load`: an open-loop load generator that keeps its rate whatever the server does, and judges
//! itself.

mod html_report;
mod merge;
mod pick_args;
mod progress;
mod rate;
mod result;
mod runner;
mod target_args;
mod text_report;
mod threshold;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_bench::pace::ArrivalProcess;
use plimsoll_bench::units;

use self::rate::{BurstPattern, RequestRate};
use self::result::LoadResult;
use self::threshold::Threshold;
use super::{CliError, CliExitCode, GlobalArgs};
use crate::output::{self, OutputFormat};

/// Generate load at a fixed rate (open loop) and report the results
///
/// Requests are sent when they are due, regardless of the responses of the server; latency is measured from
/// the due time, and requests that fail or time out count in the percentiles. A run in which less than 99 %
/// of the requests were sent on time is INVALID: the generator was the bottleneck, not the server.
///
/// Exit codes: 0 success; 1 the run is invalid or a --fail-if condition is true; 3 no target could be
/// reached; 130 after Ctrl-C, which prints the results so far. Output: -o table, json, hgrm (percentiles in
/// HdrHistogram's format) or html (one self-contained page).
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Target URLs: http://HOST/PATH, or tcp://HOST:PORT and udp://HOST:PORT for echo servers; several share
    /// the requests by weight, such as 3=http://a/ 1=http://b/. Or one CORBA object that tests whether a
    /// number is prime: iiop://HOST:PORT/KEY, corbaloc:..., IOR:... or file:PATH
    #[arg(value_name = "[WEIGHT=]URL", required_unless_present = "merge")]
    urls: Vec<String>,

    /// Request rate per second: 5000; a ramp over the duration 100..2000; steps 100@10s,500@20s
    #[arg(short, long, value_name = "RATE")]
    rate: Option<RequestRate>,

    /// Arrival process: constant (equal intervals) or poisson (as from independent clients)
    #[arg(short, long, value_name = "HOW", default_value = "poisson",
          conflicts_with_all = ["concurrency", "replay"])]
    arrival: ArrivalProcess,

    /// Bursts: the time at the rate, and the time without load
    #[arg(long, value_name = "ON/OFF", conflicts_with = "replay")]
    bursts: Option<BurstPattern>,

    /// Duration of the load [default: 10s, or that of the steps or the log]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,

    /// Maximum number of connections; a request that is due while all are busy is queued, and the delay
    /// counts as latency [default: as many as required, up to 16384]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: Option<u32>,

    /// Open a new connection for each request
    #[arg(long)]
    no_keepalive: bool,

    /// Do not follow the redirects of a CORBA object to another; a redirect counts as the response
    #[arg(long)]
    no_follow: bool,

    /// Closed loop instead, as in wrk: number of clients that each wait for the response before the next
    /// request. Their latency hides the effect of an overloaded server on other clients
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          conflicts_with_all = ["rate", "bursts", "replay"])]
    concurrency: Option<u32>,

    /// Maximum time of a request, from when it was due
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    timeout: Duration,

    /// Maximum time to connect; below 1 s no SYN is retransmitted
    #[arg(long, value_name = "TIME", default_value = "900ms", value_parser = duration)]
    connect_timeout: Duration,

    /// Maximum delay after the due time with which a request counts as sent on time
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = duration)]
    tolerance: Duration,

    /// Access log to replay, in the common or combined format: its requests and their times; --rate sets the
    /// mean rate
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,

    /// Speed of the replay as a multiple of the log's
    #[arg(long, value_name = "X", requires = "replay", conflicts_with = "rate", value_parser = speed)]
    speed: Option<f64>,

    /// Requests of the log to replay
    #[arg(long, value_enum, default_value_t = LogWorkload::All, requires = "replay")]
    workload: LogWorkload,

    /// Header, such as 'accept: text/html'; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Method of the requests [default: GET, or POST with a body]
    #[arg(short, long, value_name = "NAME", conflicts_with = "replay")]
    method: Option<String>,

    /// Body of the requests; @FILE reads it from a file
    #[arg(short, long, value_name = "TEXT", conflicts_with = "replay")]
    body: Option<String>,

    /// Size of the payload for echo servers, such as 1KiB
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = payload)]
    bytes: usize,

    #[command(flatten)]
    pick: pick_args::PickArgs,

    /// Condition for exit code 1, such as 'p99>50ms', 'failed>0.1%' or 'completed<4900'; repeatable
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Threshold>,

    /// Seed of arrivals and choices; the same seed gives the same load [default: random, shown in the result]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// File for the result as JSON with histograms, for --merge
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Results saved by generators that ran in parallel, to merge instead of generating load
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["urls", "rate", "concurrency", "replay", "save", "pick"])]
    merge: Vec<PathBuf>,
}

/// The requests of an access log (the two workloads of the AGS paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogWorkload {
    /// All requests.
    All,
    /// Requests for static pages only: no query strings, cgi-bin and the like.
    Static,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let mut save = args.save.as_deref().map(ResultFile::create).transpose()?;
    let outcome = if args.merge.is_empty() {
        if args.rate.is_none() && args.concurrency.is_none() && args.replay.is_none() {
            return Err(usage_error(
                "how much? give --rate 100 (per second), --replay access.log or --concurrency 64",
            ));
        }
        runner::run(args, globals)?
    } else {
        merge::merge_results(&args.merge, globals)?
    };
    // The file is written before anything is shown: a reader of the output may have gone.
    if let Some(save) = &mut save {
        save.write(&outcome)?;
    }
    let verdicts: Vec<_> = args.fail_if.iter().map(|threshold| threshold.judge(&outcome)).collect();
    match globals.output {
        OutputFormat::Json => globals.print_result(&outcome.to_json(&verdicts), String::new)?,
        OutputFormat::Hgrm => {
            output::write_stdout(&text_report::percentile_distribution(&outcome.record.latency))?
        }
        OutputFormat::Html => output::write_stdout(&html_report::render(&outcome, &verdicts))?,
        // References and models have forms of their own, which are refused for all other commands before they
        // begin.
        _ => output::write_stdout(&text_report::render(&outcome, &verdicts, globals.stdout_has_color()))?,
    }
    finish(&outcome, verdicts.iter().all(|verdict| verdict.passed), globals)
}

/// A file for the result, known to be writable before the run begins.
struct ResultFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> ResultFile<'a> {
    fn create(path: &'a Path) -> Result<Self, CliError> {
        let file = File::options().write(true).create(true).truncate(false).open(path).map_err(|error| {
            usage_error(format_args!(
                "cannot write {}: {error}; choose another file for --save",
                path.display()
            ))
        })?;
        Ok(Self { path, file })
    }

    fn write(&mut self, outcome: &LoadResult) -> Result<(), CliError> {
        let text = outcome.to_json(&[]).to_string() + "\n";
        self.file.set_len(0).and_then(|()| self.file.write_all(text.as_bytes())).map_err(|error| {
            CliError::failed(format_args!(
                "cannot write {}: {error}; the result is not saved",
                self.path.display()
            ))
        })
    }
}

/// Returns the exit code, and prints on standard error what data for programs would not show a person.
fn finish(outcome: &LoadResult, passed: bool, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    if outcome.is_interrupted {
        return Ok(CliExitCode::Interrupted.into());
    }
    if outcome.is_unreachable() {
        return Err(CliError::new(
            CliExitCode::Unreachable,
            format_args!(
                "no connection to {} came about; is anything listening there?",
                outcome.setup.targets.join(", ")
            ),
        ));
    }
    if let Some(reason) = outcome.invalid_reason() {
        if globals.output != OutputFormat::Table {
            globals.print_always(&format!("error: INVALID: {reason}\n"));
        }
        return Ok(CliExitCode::Failed.into());
    }
    Ok(if passed { ExitCode::SUCCESS } else { CliExitCode::Failed.into() })
}

fn usage_error(message: impl std::fmt::Display) -> CliError {
    CliError::new(CliExitCode::Usage, message)
}

fn duration(text: &str) -> Result<Duration, String> {
    units::parse_duration(text).and_then(|duration| {
        if duration.is_zero() { Err("expected more than 0".to_owned()) } else { Ok(duration) }
    })
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (1e-6..=1e6).contains(speed));
    speed.ok_or_else(|| "expected a number from 0.000001 to 1000000".to_owned())
}

fn payload(text: &str) -> Result<usize, String> {
    let size = units::parse_bytes(text)?;
    if (1..=1 << 20).contains(&size) { Ok(size) } else { Err("expected 1 byte to 1MiB".to_owned()) }
}
