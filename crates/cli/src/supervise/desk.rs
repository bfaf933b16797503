//! The desk for the admin plane: it shows the last state of the processes, and hands commands on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use plimsoll_admin::{Act, Children, Denied, Household, ProcessStatus};
use tokio::sync::{mpsc, oneshot};

use crate::command::Command;

/// The number of commands that may wait; the admin plane asks for one at a time.
const ASKED: usize = 16;

/// A command.
pub(crate) enum Asked {
    /// An act on a process.
    Tell { process: String, act: Act, reply: oneshot::Sender<Result<ProcessStatus, Denied>> },
    /// A reload of the file.
    Reload { reply: oneshot::Sender<Result<Vec<String>, String>> },
    /// The end of the Supervisor.
    ShutDown(Children),
}

/// The desk between the admin plane and the Supervisor.
pub(crate) struct Desk {
    shown: Mutex<Household>,
    asked: mpsc::Sender<Asked>,
}

impl Desk {
    /// Returns an empty desk, and the receiver of its commands.
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<Asked>) {
        let (asked, inbox) = mpsc::channel(ASKED);
        (Arc::new(Self { shown: Mutex::default(), asked }), inbox)
    }

    /// Sets the state to show from now on.
    pub(super) fn publish(&self, household: Household) {
        *self.shown() = household;
    }

    fn shown(&self) -> MutexGuard<'_, Household> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a command on and waits for its result; `None` if the Supervisor has ended.
    fn ask<T>(&self, asked: impl FnOnce(oneshot::Sender<T>) -> Asked) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.asked.blocking_send(asked(reply)).ok()?;
        answer.blocking_recv().ok()
    }
}

impl plimsoll_admin::Supervisor for Desk {
    fn processes(&self) -> Household {
        self.shown().clone()
    }

    fn view(&self) -> Household {
        let mut household = self.processes();
        // All are asked at once, so that one that does not answer delays no other.
        thread::scope(|scope| {
            for process in household.processes.iter_mut().filter(|process| process.pid.is_some()) {
                scope.spawn(|| {
                    process.says = Command::of(&process.command).and_then(|command| command.says())
                });
            }
        });
        household
    }

    fn tell(&self, process: &str, act: Act) -> Result<ProcessStatus, Denied> {
        let process = process.to_owned();
        let told = self.ask(|reply| Asked::Tell { process, act, reply });
        told.unwrap_or_else(|| Err(Denied::Impossible(GONE.into())))
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.ask(|reply| Asked::Reload { reply }).unwrap_or_else(|| Err(GONE.into()))
    }

    fn shut_down(&self, children: Children) {
        // A Supervisor that has ended needs no message.
        let _ = self.asked.blocking_send(Asked::ShutDown(children));
    }
}

const GONE: &str = "the Supervisor has ended";
