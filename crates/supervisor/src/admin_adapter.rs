//! The adapter for the admin plane: it shows the last state of the processes, and hands commands on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use plimsoll_admin::{ProcessActionError, ProcessCommand, ProcessStatus, ShutdownMode, SupervisorStatus};
use tokio::sync::{mpsc, oneshot};

use crate::CommandLines;

/// The number of commands that may wait; the admin plane asks for one at a time.
const COMMAND_CAPACITY: usize = 16;

/// A command.
pub(super) enum SupervisorCommand {
    /// An act on a process.
    Act {
        process: String,
        command: ProcessCommand,
        reply: oneshot::Sender<Result<ProcessStatus, ProcessActionError>>,
    },
    /// A reload of the file.
    Reload { reply: oneshot::Sender<Result<Vec<String>, String>> },
    /// The end of the Supervisor.
    ShutDown(ShutdownMode),
}

/// The adapter between the admin plane and the Supervisor.
pub(super) struct SupervisorAdmin {
    published_status: Mutex<SupervisorStatus>,
    commands: mpsc::Sender<SupervisorCommand>,
    command_lines: CommandLines,
}

impl SupervisorAdmin {
    /// Returns an empty adapter, and the receiver of its commands.
    pub(super) fn new(command_lines: CommandLines) -> (Arc<Self>, mpsc::Receiver<SupervisorCommand>) {
        let (commands, inbox) = mpsc::channel(COMMAND_CAPACITY);
        (Arc::new(Self { published_status: Mutex::default(), commands, command_lines }), inbox)
    }

    /// Returns the knowledge of command lines.
    pub(super) fn command_lines(&self) -> CommandLines {
        self.command_lines
    }

    /// Sets the state to show from now on.
    pub(super) fn publish(&self, supervisor_status: SupervisorStatus) {
        *self.published() = supervisor_status;
    }

    fn published(&self) -> MutexGuard<'_, SupervisorStatus> {
        self.published_status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a command on and waits for its result; `None` if the Supervisor has ended.
    fn request<T>(&self, build_command: impl FnOnce(oneshot::Sender<T>) -> SupervisorCommand) -> Option<T> {
        let (reply, reply_receiver) = oneshot::channel();
        self.commands.blocking_send(build_command(reply)).ok()?;
        reply_receiver.blocking_recv().ok()
    }
}

impl plimsoll_admin::SupervisorBackend for SupervisorAdmin {
    fn status(&self) -> SupervisorStatus {
        self.published().clone()
    }

    fn detailed_status(&self) -> SupervisorStatus {
        let mut supervisor_status = self.status();
        // All are asked at once, so that one that does not answer delays no other.
        thread::scope(|scope| {
            for process in supervisor_status.processes.iter_mut().filter(|process| process.pid.is_some()) {
                scope.spawn(|| process.says = (self.command_lines.self_status)(&process.command));
            }
        });
        supervisor_status
    }

    fn perform(&self, process: &str, command: ProcessCommand) -> Result<ProcessStatus, ProcessActionError> {
        let process = process.to_owned();
        let result = self.request(|reply| SupervisorCommand::Act { process, command, reply });
        result.unwrap_or_else(|| Err(ProcessActionError::Impossible(SUPERVISOR_ENDED.into())))
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.request(|reply| SupervisorCommand::Reload { reply })
            .unwrap_or_else(|| Err(SUPERVISOR_ENDED.into()))
    }

    fn shut_down(&self, children: ShutdownMode) {
        // A Supervisor that has ended needs no message.
        let _ = self.commands.blocking_send(SupervisorCommand::ShutDown(children));
    }
}

const SUPERVISOR_ENDED: &str = "the Supervisor has ended";
