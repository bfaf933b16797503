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
    let default_path = Path::new(config::DEFAULT_FILE);
    let path = args.at.config_path().or_else(|| Some(default_path).filter(|file| file.exists()));
    let balancer = args.at.endpoint();
    let (sections, exit_code) = run_checks(args, path, &balancer);
    if let (None, None) = (path, &exit_code)
        && sections.iter().all(|section| section.findings.is_empty() || section.name == "balancer")
    {
        let message = "there is neither a file nor a balancer to look at: name one with -c FILE or --control \
            unix:/PATH";
        return Err(CliError::new(CliExitCode::Usage, message));
    }
    let failed = sections.iter().any(CheckSection::has_failure);
    globals.print_result(&diagnostic::render_json(&sections), || {
        diagnostic::render_text(&sections, args.short, globals.stdout_has_color())
    })?;
    Ok(match (exit_code, failed) {
        (Some(code), _) => code.into(),
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
    let mut exit_code = None;
    let mut sections = Vec::new();
    let mut file: Option<ConfigFile> = None;
    if let Some(path) = path {
        let (section, config_file) = file::check_config(path);
        if config_file.is_none() {
            exit_code = Some(CliExitCode::Usage);
        }
        sections.push(section);
        file = config_file;
    }
    let (section, live_status, is_unreachable) =
        running::check_connection(balancer, args.at.names_balancer());
    if is_unreachable {
        exit_code = exit_code.or(Some(CliExitCode::Unreachable));
    }
    let is_running = live_status.is_some();
    sections.push(section);
    if let Some(file) = &file {
        // Over the control socket it is one on this machine.
        let is_local = matches!(balancer, Ok(ControlEndpoint::Unix(_)));
        let running_pid = live_status.as_ref().filter(|_| is_local).map(|status| status.pid);
        sections.push(machine::check_limits(&file.config, running_pid));
        sections.push(access::check_permissions(file, live_status.as_ref()));
        sections.push(access::check_control_rights(file));
    }
    if path.is_some() || is_running {
        sections.push(machine::check_clock(path));
    }
    sections.push(certificates::check_expiry(file.as_ref(), live_status.as_ref()));
    if !args.offline {
        sections.push(members::check_reachability(file.as_ref(), live_status.as_ref()));
    }
    sections.push(running::check_health(file.as_ref(), live_status.as_ref()));
    if let (Some(status), Ok(balancer)) = (&live_status, balancer) {
        sections.push(running::check_reports(balancer, status));
        sections.push(running::check_discovery(status));
        sections.push(running::check_versions(status));
    }
    (sections, exit_code)
}

/// Adds the failure of a balancer that is lost or refuses.
fn add_control_error(section: &mut CheckSection, error: &ControlError) {
    section.fail(error.to_string(), "see whether it runs, and where its control is", GuidePage::Unreachable);
}
