//! Where the admin plane asks: it sees the processes as they were last put there, and hands on what is to be done.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use plimsoll_admin::{Act, Children, Denied, Household, ProcessStatus};
use tokio::sync::{mpsc, oneshot};

use crate::command::Command;

/// Commands that may wait; the admin plane asks one at a time.
const ASKED: usize = 16;

/// What is to be done.
pub(crate) enum Asked {
    /// With a process.
    Tell { process: String, act: Act, reply: oneshot::Sender<Result<ProcessStatus, Denied>> },
    /// Read the file again.
    Reload { reply: oneshot::Sender<Result<Vec<String>, String>> },
    /// End.
    ShutDown(Children),
}

/// Between the admin plane and the Supervisor.
pub(crate) struct Desk {
    shown: Mutex<Household>,
    asked: mpsc::Sender<Asked>,
}

impl Desk {
    /// An empty one, and what will be asked there.
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<Asked>) {
        let (asked, inbox) = mpsc::channel(ASKED);
        (Arc::new(Self { shown: Mutex::default(), asked }), inbox)
    }

    /// Shows how things are from now on.
    pub(super) fn publish(&self, household: Household) {
        *self.shown() = household;
    }

    fn shown(&self) -> MutexGuard<'_, Household> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a command on and waits for what comes of it; `None` if nobody is left to do it.
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
        // All at once, so that one that does not answer delays no other.
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
        // One that has ended needs no telling.
        let _ = self.asked.blocking_send(Asked::ShutDown(children));
    }
}

const GONE: &str = "the Supervisor has ended";
