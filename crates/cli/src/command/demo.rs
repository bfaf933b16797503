//! `plimsoll demo`: the use of a balancer, in half a minute and one command.
//!
//! It starts real members and a real balancer as processes of their own, drives open-loop load through them,
//! and shows their shares. At a third of the time one member becomes ten times slower; at two thirds another
//! is killed. At the end it reports the clients' view. Everything is local and nothing is left behind.

pub(super) mod child_process;
mod counts;
mod live_view;
mod processes;
mod report;
mod scenario;
mod status_poll;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use plimsoll_bench::units;
use plimsoll_brain::strategy;

use super::{CliError, GlobalArgs};

/// Run a demonstration: members, a balancer, load and a live view; installs and writes nothing
///
/// Exit codes: 0 no request failed; 1 a request failed, or the load generator itself was late and the run is
/// invalid; 130 after Ctrl-C.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Duration of the load
    #[arg(short, long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    duration: Duration,

    /// Request rate per second, with Poisson arrivals
    #[arg(short, long, value_name = "N", default_value_t = 400.0, value_parser = rate)]
    rate: f64,

    /// Number of members to start; one becomes slow and one is killed
    #[arg(short, long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u8).range(3..=32))]
    members: u8,

    /// Strategy of the balancer
    #[arg(short, long, default_value = "adaptive", value_parser = strategies())]
    strategy: String,

    /// Seed of arrivals and service times; the same seed gives the same load
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print one plain line per second instead of the live view
    #[arg(long)]
    no_live: bool,

    /// Become another command of this program that ends when its parent, this process, does
    #[arg(long, hide = true, num_args = 2.., allow_hyphen_values = true,
          value_names = ["PARENT", "ARGUMENT"])]
    tie: Vec<String>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    if let [parent, command @ ..] = &args.tie[..] {
        return Err(child_process::exec_plimsoll(parent, command));
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    runtime.block_on(scenario::run_demo(args, globals))
}

fn strategies() -> PossibleValuesParser {
    PossibleValuesParser::new(strategy::ALL.iter().map(|strategy| strategy.name))
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = units::parse_duration(text)?;
    let is_in_range = (Duration::from_secs(3)..=Duration::from_secs(24 * 3600)).contains(&duration);
    if is_in_range { Ok(duration) } else { Err("expected 3s to 24h".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1.0..=100_000.0).contains(rate));
    rate.ok_or_else(|| "expected a number from 1 to 100000".to_owned())
}
