//! A Supervisor in the admin plane: its status and its operations.
//!
//! The arguments of processes and their last output may be confidential: only callers that may start a
//! process see them.

mod metrics;

use std::sync::Arc;

use hyper::{Response, StatusCode};
use plimsoll_brain::supervision::{ExitCause, ProcessPhase};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::{Caller, GrantedScope};
use crate::api::Operation;
use crate::commands::{AdminCommand, CommandOutcome, rejection};
use crate::endpoint::{AdminEndpoint, EndpointCapability};
use crate::queries;
use crate::reply::{ResponseBody, error, to_json};

/// The running Supervisor behind the admin plane.
///
/// [`SupervisorBackend::status`] is called on the admin thread and must not block. All other methods run on a
/// thread that may block, operations one at a time. Operators see the text of an error unchanged.
pub trait SupervisorBackend: Send + Sync + 'static {
    /// Returns all processes, in the order of the file.
    fn status(&self) -> SupervisorStatus;

    /// Returns all processes, each with its own status.
    fn detailed_status(&self) -> SupervisorStatus;

    /// Performs an operation on a process and returns its new status.
    ///
    /// # Errors
    /// There is no such process, or the operation is impossible.
    fn perform(&self, process: &str, act: ProcessCommand) -> Result<ProcessStatus, ProcessActionError>;

    /// Reads the file again and applies it. Returns one line for each difference.
    ///
    /// # Errors
    /// The file is invalid; the previous one stays in force.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Begins the shutdown; returns at once.
    fn shut_down(&self, children: ShutdownMode);
}

/// The operations on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessCommand {
    /// Starts the process, unless it runs.
    Start,
    /// Stops the process permanently.
    Stop,
    /// Stops the process and starts it again.
    Restart,
    /// Makes the process read its configuration again.
    Reload,
}

/// The treatment of the processes when their Supervisor ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShutdownMode {
    /// The processes are stopped first.
    #[default]
    Stop,
    /// The processes continue, and a later Supervisor finds them.
    Leave,
}

impl ShutdownMode {
    /// Returns the treatment in the terms of a response.
    pub(crate) fn response_text(self) -> &'static str {
        match self {
            Self::Stop => "stopping",
            Self::Leave => "left",
        }
    }
}

/// The reason why an operation was not performed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessActionError {
    /// There is no such process (404).
    Unknown(String),
    /// The operation is impossible now (422).
    Impossible(String),
}

/// A Supervisor and its processes. `-o json` prints the field names, so they are a contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SupervisorStatus {
    /// The version of this format; incremented when a field changes its meaning.
    pub schema: u32,
    /// The version of the binary.
    pub version: String,
    /// The process ID of the Supervisor.
    pub pid: u32,
    /// The start time, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// The reason why the last reload was rejected; `None` if it succeeded.
    pub reload_error: Option<String>,
    /// The processes, in the order of the file.
    pub processes: Vec<ProcessStatus>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The name as configured.
    pub name: String,
    /// The command as configured.
    pub command: Vec<String>,
    /// The state.
    pub state: ProcessPhase,
    /// The reason for the state, for people.
    pub why: String,
    /// The time of the last change of state, milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The process ID, while it runs.
    pub pid: Option<u32>,
    /// Whether it was found running, started by a previous Supervisor.
    pub adopted: bool,
    /// Whether its command or environment differs from the file; a restart corrects this.
    pub outdated: bool,
    /// The number of restarts.
    pub restarts: u64,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The time of the next start, milliseconds since 1970.
    pub next_start_unix_ms: Option<u64>,
    /// The last exit.
    pub last_exit: Option<LastExit>,
    /// The process' own status, if it was queried: see [`SupervisorBackend::detailed_status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<SelfStatus>,
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastExit {
    /// The exit code or signal.
    pub ending: ExitCause,
    /// The same as text for people.
    pub reason: String,
    /// The time, milliseconds since 1970.
    pub unix_ms: u64,
    /// The last lines of its standard error before that.
    pub lines: Vec<String>,
}

/// A process' own status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfStatus {
    /// Whether the process considers itself healthy.
    pub well: bool,
    /// The status as lines of text for people.
    pub lines: Vec<String>,
    /// The underlying data; null if the process could not be queried.
    pub facts: Value,
}

/// Parses the treatment of the processes from a query.
pub(crate) fn parse_shutdown_mode(query: &str) -> Result<ShutdownMode, String> {
    match query {
        "" | "children=stop" => Ok(ShutdownMode::Stop),
        "children=leave" => Ok(ShutdownMode::Leave),
        other => Err(format!("{other}: give children=stop or children=leave")),
    }
}

/// Responds to a query about a Supervisor; `permit` admits some of the processes.
pub(crate) async fn respond(
    endpoint: &AdminEndpoint,
    supervisor: &Arc<dyn SupervisorBackend>,
    caller: &Caller,
    operation: Operation,
    name: Option<&str>,
    scope: &GrantedScope,
) -> Response<ResponseBody> {
    if operation == Operation::Health {
        return queries::health(supervisor.status().stopping);
    }
    let trusted_scope = trusted_scope(endpoint, caller);
    let redact_status = |status| redact(status, scope, &trusted_scope);
    match operation {
        Operation::Metrics => {
            queries::metrics_response(metrics::metrics_page(&redact_status(supervisor.status())))
        }
        Operation::Process => {
            let status = redact_status(supervisor.status());
            let names: Vec<&str> = status.processes.iter().map(|process| &*process.name).collect();
            let name = name.unwrap_or_default();
            match status.processes.iter().find(|process| process.name == name) {
                Some(process) => to_json(StatusCode::OK, process),
                None => {
                    let reason = format!("there is no process {name}; there are: {}", names.join(", "));
                    error(StatusCode::NOT_FOUND, reason)
                }
            }
        }
        Operation::ProcessDetails => {
            // The queried processes may be slow. Only one view at a time, as each causes many queries.
            let _guard = endpoint.locks.slow_query.lock().await;
            let supervisor = Arc::clone(supervisor);
            match tokio::task::spawn_blocking(move || supervisor.detailed_status()).await {
                Ok(status) => to_json(StatusCode::OK, &redact_status(status)),
                Err(reason) => error(StatusCode::INTERNAL_SERVER_ERROR, reason.to_string()),
            }
        }
        _ => to_json(StatusCode::OK, &redact_status(supervisor.status())),
    }
}

/// Returns the processes whose arguments and output the caller may see.
pub(crate) fn trusted_scope(endpoint: &AdminEndpoint, caller: &Caller) -> GrantedScope {
    match endpoint.capability {
        EndpointCapability::Command => endpoint.granted_scope(caller, Operation::ProcessStart),
        EndpointCapability::Query | EndpointCapability::Report => GrantedScope::Denied,
    }
}

/// Reduces a status to what the caller may see: the processes that `permit` admits, with arguments and output
/// only for those that `trusted` admits.
pub(crate) fn redact(
    mut status: SupervisorStatus,
    scope: &GrantedScope,
    trusted_scope: &GrantedScope,
) -> SupervisorStatus {
    status.processes.retain(|process| scope.covers(&process.name));
    for process in status.processes.iter_mut().filter(|process| !trusted_scope.covers(&process.name)) {
        process.command.truncate(1);
        if let Some(last_exit) = &mut process.last_exit {
            last_exit.lines.clear();
        }
    }
    if *trusted_scope != GrantedScope::All && status.reload_error.is_some() {
        // The error quotes the file.
        status.reload_error = Some("refused".into());
    }
    status
}

/// Performs an operation on a Supervisor.
pub(crate) fn execute(supervisor: &dyn SupervisorBackend, command: AdminCommand) -> CommandOutcome {
    match command {
        AdminCommand::Process { name, act } => match supervisor.perform(&name, act) {
            Ok(process) => Ok((StatusCode::OK, json!(process))),
            Err(ProcessActionError::Unknown(reason)) => Err((StatusCode::NOT_FOUND, reason)),
            Err(ProcessActionError::Impossible(reason)) => Err(rejection(reason)),
        },
        AdminCommand::Reload => {
            let changes = supervisor.reload().map_err(rejection)?;
            Ok((StatusCode::OK, json!({"changes": changes})))
        }
        AdminCommand::Shutdown(children) => {
            supervisor.shut_down(children);
            Ok((StatusCode::ACCEPTED, json!({"stopping": true, "children": children.response_text()})))
        }
        // The path belongs to a Supervisor, so the operation is one of those above.
        _ => Err(rejection("a Supervisor does nothing of the kind".into())),
    }
}
