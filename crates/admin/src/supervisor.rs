//! What a Supervisor shows and acts on, as the admin plane sees it.
//!
//! What processes were started with, and what they said before they ended, may name what is nobody's business: it is for those who
//! may start them.

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
/// [`Supervisor::processes`] is called on the admin thread and takes no time; everything else on a thread where it may
/// block, acts one at a time. The text of an error is shown to the operator as it is.
pub trait Supervisor: Send + Sync + 'static {
    /// All processes, in the order of the file.
    fn processes(&self) -> Household;

    /// The same, with what each process says of itself.
    fn view(&self) -> Household;

    /// Has something done with a process; how it is then.
    ///
    /// # Errors
    /// There is no such process, or it cannot be done.
    fn tell(&self, process: &str, act: Act) -> Result<ProcessStatus, Denied>;

    /// Reads the file again and puts it in force; one line for each difference.
    ///
    /// # Errors
    /// The file is wrong; the one before stays in force.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Begins to end; returns at once.
    fn shut_down(&self, children: Children);
}

/// What can be done with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Start it, unless it runs.
    Start,
    /// Stop it, for good.
    Stop,
    /// Stop it and start it again.
    Restart,
    /// Have it read its configuration again.
    Reload,
}

/// What becomes of the processes when their Supervisor ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Children {
    /// They are stopped first.
    #[default]
    Stop,
    /// They go on. A Supervisor that is started later finds them.
    Leave,
}

impl Children {
    /// What becomes of them, in an answer.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Stop => "stopping",
            Self::Leave => "left",
        }
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no such process (404).
    Unknown(String),
    /// It cannot be done now (422).
    Impossible(String),
}

/// A Supervisor and its processes. Field names are what `-o json` prints, so they are a contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Household {
    /// Version of this shape; raised when a field changes its meaning.
    pub schema: u32,
    /// Of the binary.
    pub version: String,
    /// Process id of the Supervisor.
    pub pid: u32,
    /// When it started, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Is it ending?
    pub stopping: bool,
    /// Why the last reload was refused; none if it was not.
    pub reload_error: Option<String>,
    /// In the order of the file.
    pub processes: Vec<ProcessStatus>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// As configured.
    pub name: String,
    /// As configured.
    pub command: Vec<String>,
    /// What it is doing.
    pub state: Phase,
    /// Why, for a person.
    pub why: String,
    /// Since when, milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Process id, while it runs.
    pub pid: Option<u32>,
    /// Was it found running, started by a Supervisor before this one?
    pub adopted: bool,
    /// Does it run with another command or environment than the file has now? A restart puts that right.
    pub outdated: bool,
    /// How often it was started again.
    pub restarts: u64,
    /// Failures in a row.
    pub failures: u32,
    /// When it is started again, milliseconds since 1970.
    pub next_start_unix_ms: Option<u64>,
    /// How it ended last.
    pub last_exit: Option<LastExit>,
    /// What it says of itself, where it was asked: see [`Supervisor::view`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<Says>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastExit {
    /// Code or signal.
    pub ending: Ending,
    /// The same for a person.
    pub reason: String,
    /// When, milliseconds since 1970.
    pub unix_ms: u64,
    /// The last lines of its standard error before that.
    pub lines: Vec<String>,
}

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Says {
    /// Is all well, by its own account?
    pub well: bool,
    /// For a person, a line each.
    pub lines: Vec<String>,
    /// The numbers behind them; null if it could not be asked.
    pub facts: Value,
}

/// What is to become of the processes, in a query.
pub(crate) fn read_children(query: &str) -> Result<Children, String> {
    match query {
        "" | "children=stop" => Ok(Children::Stop),
        "children=leave" => Ok(Children::Leave),
        other => Err(format!("{other}: give children=stop or children=leave")),
    }
}

/// Shows what `verb` asks a Supervisor for; `permit` admits some of the processes.
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
            // Those that are asked may take their time. One view at a time: each is a crowd of questions.
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

/// Of which processes the caller may see what they were started with and what they said.
pub(crate) fn trusted(plane: &Plane, caller: &Caller) -> Permit {
    match plane.powers {
        Powers::Act => plane.permit(caller, Verb::ProcessStart),
        Powers::Show | Powers::Report => Permit::Nothing,
    }
}

/// As much of a household as a caller may see: the processes that `permit` admits, and of those that `trusted` admits what they
/// were started with and what they said.
pub(crate) fn seen(mut household: Household, permit: &Permit, trusted: &Permit) -> Household {
    household.processes.retain(|process| permit.admits(&process.name));
    for process in household.processes.iter_mut().filter(|process| !trusted.admits(&process.name)) {
        process.command.truncate(1);
        if let Some(exit) = &mut process.last_exit {
            exit.lines.clear();
        }
    }
    if *trusted != Permit::All && household.reload_error.is_some() {
        // It quotes the file.
        household.reload_error = Some("refused".into());
    }
    household
}

/// Does what is to be done with a Supervisor.
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
        // Found among the paths of a Supervisor, it is one of those above.
        _ => Err(refused("a Supervisor does nothing of the kind".into())),
    }
}
