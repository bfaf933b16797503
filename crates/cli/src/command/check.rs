//! `plimsoll check`: a doctor. It lists the problems of the file, the machine, the members and the running
//! balancer, in groups, each with its remedy and a page to read. It changes nothing, and works with a file
//! alone if no balancer runs.

mod access;
mod certificates;
mod diagnostic;
mod file;
mod machine;
mod members;
mod running;

use std::path::Path;
use std::process::ExitCode;

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::{BalancerSelector, ControlEndpoint, ControlError};

use diagnostic::{CheckSection, GuidePage};
use plimsoll_config::{self as config, ConfigFile};

/// Diagnose the configuration file, machine, members and running balancer, with a hint for each fault
///
/// The file is that of -c, else ./plimsoll.toml if it exists; the balancer is found as by the other commands.
/// A balancer that does not run is a fault only if --control or --host names it. The check connects to
/// members, and sends nothing to them.
///
/// Exit codes: 0 no faults (warnings are possible); 1 at least one fault; 2 invalid file, or neither a file
/// nor a balancer; 3 no response from the balancer that was named, or from one with an open socket.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Hide passed checks
    #[arg(long)]
    short: bool,

    /// Do not connect to members
    #[arg(long)]
    offline: bool,

    #[command(flatten)]
    at: BalancerSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let usual = Path::new(config::DEFAULT_FILE);
    let path = args.at.config_path().or_else(|| Some(usual).filter(|file| file.exists()));
    let balancer = args.at.endpoint();
    let (parts, exit) = run_checks(args, path, &balancer);
    if let (None, None) = (path, &exit)
        && parts.iter().all(|part| part.findings.is_empty() || part.name == "balancer")
    {
        let what = "there is neither a file nor a balancer to look at: name one with -c FILE or --control \
            unix:/PATH";
        return Err(CliError::new(CliExitCode::Usage, what));
    }
    let failed = parts.iter().any(CheckSection::has_failure);
    globals.print_result(&diagnostic::render_json(&parts), || {
        diagnostic::render_text(&parts, args.short, globals.stdout_has_color())
    })?;
    Ok(match (exit, failed) {
        (Some(exit), _) => exit.into(),
        (None, true) => ExitCode::FAILURE,
        (None, false) => ExitCode::SUCCESS,
    })
}

/// Returns all findings, and the exit code unless it follows from a failure among them.
fn run_checks(
    args: &Args,
    path: Option<&Path>,
    balancer: &Result<ControlEndpoint, ControlError>,
) -> (Vec<CheckSection>, Option<CliExitCode>) {
    let mut exit = None;
    let mut parts = Vec::new();
    let mut file: Option<ConfigFile> = None;
    if let Some(path) = path {
        let (part, read) = file::configuration(path);
        if read.is_none() {
            exit = Some(CliExitCode::Usage);
        }
        parts.push(part);
        file = read;
    }
    let (part, seen, unreached) = running::check_connection(balancer, args.at.names_balancer());
    if unreached {
        exit = exit.or(Some(CliExitCode::Unreachable));
    }
    let there = seen.is_some();
    parts.push(part);
    if let Some(file) = &file {
        // Over the control socket it is one on this machine.
        let here = matches!(balancer, Ok(ControlEndpoint::Unix(_)));
        let running = seen.as_ref().filter(|_| here).map(|status| status.pid);
        parts.push(machine::limits(&file.config, running));
        parts.push(access::permissions(file, seen.as_ref()));
        parts.push(access::control_rights(file));
    }
    if path.is_some() || there {
        parts.push(machine::clock(path));
    }
    parts.push(certificates::check_expiry(file.as_ref(), seen.as_ref()));
    if !args.offline {
        parts.push(members::check_reachability(file.as_ref(), seen.as_ref()));
    }
    parts.push(running::health(file.as_ref(), seen.as_ref()));
    if let (Some(status), Ok(balancer)) = (&seen, balancer) {
        parts.push(running::reports(balancer, status));
        parts.push(running::discovery(status));
        parts.push(running::versions(status));
    }
    (parts, exit)
}

/// Adds the failure of a balancer that is lost or refuses.
fn add_trouble(part: &mut CheckSection, why: &ControlError) {
    part.fail(why.to_string(), "see whether it runs, and where its control is", GuidePage::Unreachable);
}
