//! `plimsoll up`: run the balancer until it is stopped.

pub(super) mod self_status;

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_config as config;

use super::{CliError, GlobalArgs};
use crate::log;

/// Run the balancer
///
/// SIGHUP reloads the file; SIGUSR2 starts a new process that takes over, as plimsoll upgrade does; SIGTERM
/// and SIGINT let work in flight end and stop, a second one stops at once.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
    config: PathBuf,

    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = log::LogFormat::Text)]
    log: log::LogFormat,
}

impl Args {
    /// Returns its configuration.
    pub(super) fn config_file(&self) -> PathBuf {
        self.config.clone()
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    plimsoll_balancer::run(&args.config, || log::start(args.log, globals))?;
    Ok(ExitCode::SUCCESS)
}
