//! A Supervisor in the admin plane: its status and its operations.
//!
//! The arguments of processes and their last output may be confidential: only callers that may start a
//! process see them.

mod metrics;

use std::sync::Arc;

use hyper::{Response, StatusCode};
use plimsoll_brain::ward::{Ending, Phase};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::{Caller, Permit};
use crate::act::{Order, Outcome, refused};
use crate::plane::{Plane, Powers};
use crate::reply::{Body, error, to_json};
use crate::show;
use crate::verb::Verb;

/// The running Supervisor behind the admin plane.
///
/// [`Supervisor::processes`] is called on the admin thread and must not block. All other methods run on a
/// thread that may block, operations one at a time. Operators see the text of an error unchanged.
pub trait Supervisor: Send + Sync + 'static {
    /// Returns all processes, in the order of the file.
    fn processes(&self) -> Household;

    /// Returns all processes, each with its own status.
    fn view(&self) -> Household;

    /// Performs an operation on a process and returns its new status.
    ///
    /// # Errors
    /// There is no such process, or the operation is impossible.
    fn tell(&self, process: &str, act: Act) -> Result<ProcessStatus, Denied>;

    /// Reads the file again and applies it. Returns one line for each difference.
    ///
    /// # Errors
    /// The file is invalid; the previous one stays in force.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Begins the shutdown; returns at once.
    fn shut_down(&self, children: Children);
}

/// The operations on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
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
pub enum Children {
    /// The processes are stopped first.
    #[default]
    Stop,
    /// The processes continue, and a later Supervisor finds them.
    Leave,
}

impl Children {
    /// Returns the treatment in the terms of a response.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Stop => "stopping",
            Self::Leave => "left",
        }
    }
}

/// The reason why an operation was not performed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no such process (404).
    Unknown(String),
    /// The operation is impossible now (422).
    Impossible(String),
}

/// A Supervisor and its processes. `-o json` prints the field names, so they are a contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Household {
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
    pub state: Phase,
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
    /// The process' own status, if it was queried: see [`Supervisor::view`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<Says>,
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastExit {
    /// The exit code or signal.
    pub ending: Ending,
    /// The same as text for people.
    pub reason: String,
    /// The time, milliseconds since 1970.
    pub unix_ms: u64,
    /// The last lines of its standard error before that.
    pub lines: Vec<String>,
}

/// A process' own status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Says {
    /// Whether the process considers itself healthy.
    pub well: bool,
    /// The status as lines of text for people.
    pub lines: Vec<String>,
    /// The underlying data; null if the process could not be queried.
    pub facts: Value,
}

/// Parses the treatment of the processes from a query.
pub(crate) fn read_children(query: &str) -> Result<Children, String> {
    match query {
        "" | "children=stop" => Ok(Children::Stop),
        "children=leave" => Ok(Children::Leave),
        other => Err(format!("{other}: give children=stop or children=leave")),
    }
}

/// Responds to a query about a Supervisor; `permit` admits some of the processes.
pub(crate) async fn show(
    plane: &Plane,
    supervisor: &Arc<dyn Supervisor>,
    caller: &Caller,
    verb: Verb,
    name: Option<&str>,
    permit: &Permit,
) -> Response<Body> {
    if verb == Verb::Health {
        return show::health(supervisor.processes().stopping);
    }
    let trusted = trusted(plane, caller);
    let seen = |household| seen(household, permit, &trusted);
    match verb {
        Verb::Metrics => show::page(metrics::page(&seen(supervisor.processes()))),
        Verb::Process => {
            let household = seen(supervisor.processes());
            let names: Vec<&str> = household.processes.iter().map(|process| &*process.name).collect();
            let name = name.unwrap_or_default();
            match household.processes.iter().find(|process| process.name == name) {
                Some(process) => to_json(StatusCode::OK, process),
                None => {
                    let why = format!("there is no process {name}; there are: {}", names.join(", "));
                    error(StatusCode::NOT_FOUND, why)
                }
            }
        }
        Verb::Household => {
            // The queried processes may be slow. Only one view at a time, as each causes many queries.
            let _turn = plane.turns.looks.lock().await;
            let supervisor = Arc::clone(supervisor);
            match tokio::task::spawn_blocking(move || supervisor.view()).await {
                Ok(view) => to_json(StatusCode::OK, &seen(view)),
                Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
            }
        }
        _ => to_json(StatusCode::OK, &seen(supervisor.processes())),
    }
}

/// Returns the processes whose arguments and output the caller may see.
pub(crate) fn trusted(plane: &Plane, caller: &Caller) -> Permit {
    match plane.powers {
        Powers::Act => plane.permit(caller, Verb::ProcessStart),
        Powers::Show | Powers::Report => Permit::Nothing,
    }
}

/// Reduces a status to what the caller may see: the processes that `permit` admits, with arguments and output
/// only for those that `trusted` admits.
pub(crate) fn seen(mut household: Household, permit: &Permit, trusted: &Permit) -> Household {
    household.processes.retain(|process| permit.admits(&process.name));
    for process in household.processes.iter_mut().filter(|process| !trusted.admits(&process.name)) {
        process.command.truncate(1);
        if let Some(exit) = &mut process.last_exit {
            exit.lines.clear();
        }
    }
    if *trusted != Permit::All && household.reload_error.is_some() {
        // The error quotes the file.
        household.reload_error = Some("refused".into());
    }
    household
}

/// Performs an operation on a Supervisor.
pub(crate) fn done(supervisor: &dyn Supervisor, order: Order) -> Outcome {
    match order {
        Order::Process { name, act } => match supervisor.tell(&name, act) {
            Ok(process) => Ok((StatusCode::OK, json!(process))),
            Err(Denied::Unknown(why)) => Err((StatusCode::NOT_FOUND, why)),
            Err(Denied::Impossible(why)) => Err(refused(why)),
        },
        Order::Reload => {
            let changes = supervisor.reload().map_err(refused)?;
            Ok((StatusCode::OK, json!({"changes": changes})))
        }
        Order::Shutdown(children) => {
            supervisor.shut_down(children);
            Ok((StatusCode::ACCEPTED, json!({"stopping": true, "children": children.word()})))
        }
        // The path belongs to a Supervisor, so the operation is one of those above.
        _ => Err(refused("a Supervisor does nothing of the kind".into())),
    }
}
