//! The start of the Supervisor: its signals, its control addresses, its processes, in this order.

use std::path::PathBuf;

use plimsoll_balancer::control_config;
use plimsoll_config::{Domain, SuperviseFile, limits};
use tokio::signal::unix::{SignalKind, signal};

use super::{CommandLines, Supervisor, SupervisorAdmin, SupervisorError, SupervisorSignals};

/// Runs the processes of a file until the Supervisor is stopped. With `json_log` its log, and the lines of
/// its processes in it, are JSON.
///
/// # Errors
/// Fails if a step of the start fails, or if the Supervisor is told to stop at once.
pub fn run(
    path: PathBuf,
    file: SuperviseFile,
    json_log: bool,
    command_lines: CommandLines,
) -> Result<(), SupervisorError> {
    // The sockets that are held are files.
    limits::raise();
    let own = &file.supervise.supervise;
    let (mut doors, rules) =
        control_config(own.control_section(), own.audit.as_ref()).map_err(SupervisorError::Control)?;
    (doors.listen, doors.control) = (own.listen.0, Some(file.control()));
    doors.names = own.names.iter().map(Domain::host).collect();
    let audit = doors.audit.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| SupervisorError::Failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        // The signals are taken before anything is started, so that none finds the process unprepared.
        let kinds = [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()];
        let [Ok(hangup), Ok(terminate), Ok(interrupt)] = kinds.map(signal) else {
            return Err(SupervisorError::Failed("cannot take signals".into()));
        };
        let (desk, asked) = SupervisorAdmin::new(command_lines);
        let control = file.control();
        let supervisor = Supervisor::new(path, file, json_log, (desk.clone(), asked), rules, audit);
        let supervisor = supervisor.map_err(|error| {
            SupervisorError::Failed(format!(
                "cannot start: {error}; is log_dir a folder that this user may write in?"
            ))
        })?;
        // The socket comes before any process: of two Supervisors only one has it.
        let admin = plimsoll_admin::start_supervisor(doors, desk).map_err(|error| {
            let error = error.to_string().replace("[admin", "[supervise");
            SupervisorError::Failed(error.replace("plimsoll stop", "plimsoll supervise shutdown"))
        })?;
        tracing::info!("listening control unix:{}", control.display());
        if let Some(address) = admin.addr() {
            tracing::info!("listening status {address}: processes, metrics");
        }
        if let Some(address) = admin.secured() {
            tracing::info!("listening control tls://{address}: for those whom [supervise.access] knows");
        }
        let done = supervisor.run(SupervisorSignals { hangup, terminate, interrupt }).await;
        // The admin plane ends last, so that the stop can be watched.
        drop(admin);
        done
    })
}
