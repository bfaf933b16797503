//! What a Supervisor shows and acts on, as the admin plane sees it, and its doors: a control socket (0600) that shows and
//! acts, and a listener, if one is asked for, that only shows.
//!
//! What can be asked stands in one table, [`ROUTES`]: each row is one method and path with one named [`Verb`], by which
//! whoever guards a door decides. The index and the answers are made from it.

mod metrics;
mod route;

use plimsoll_brain::ward::{Ending, Phase};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use route::Site;
pub use route::{ROUTES, Route, Verb};

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
