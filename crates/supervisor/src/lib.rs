//! The Supervisor: starts processes of Plimsoll's own binary, watches over them, and starts again those that
//! fail.
//!
//! A value for each process (`plimsoll_brain::supervision`) decides; this module carries the decisions out.
//! One thread does it all, and waits for the kernel: the end of a process (pidfd), its output (pipe), the
//! change of a file (inotify), a signal, a command, or the end of a pause. Beside it a thread for each
//! balancer receives the sockets that are held for its next process. While nothing happens nothing runs.

mod admin_adapter;
mod clock;
mod config_watch;
mod error;
mod held_sockets;
mod log_capture;
mod monitor;
mod os_process;
mod process;
mod reload;
mod start;
mod state_file;

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use plimsoll_admin::{
    ActiveRules, AuditLog, ProcessActionError, ProcessCommand, SelfStatus, ShutdownMode, SupervisorStatus,
};
use plimsoll_brain::supervision::{ExitCause, ProcessAction, ProcessPhase};
use sd_notify::NotifyState;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use admin_adapter::{SupervisorAdmin, SupervisorCommand};
use clock::{now, random_bits, unix_ms};
use config_watch::ConfigWatch;
use held_sockets::SocketRequest;
use log_capture::ProcessLog;
use monitor::{ProcessExit, ProcessOutcome, monitor_child};
use plimsoll_balancer::{audit_signal, notify_systemd};
use plimsoll_config::{self as config, SuperviseFile};
use process::SupervisedProcess;
use state_file::SupervisorState;

pub use error::SupervisorError;
pub use start::run;

/// The number of ends of processes that may wait; more wait where they are.
const EXIT_CAPACITY: usize = 64;
/// The number of requests of balancers about their sockets that may wait.
const SOCKET_REQUEST_CAPACITY: usize = 16;

/// The knowledge of the program's command lines, which only the program itself has.
#[derive(Clone, Copy, Debug)]
pub struct CommandLines {
    /// Returns the configuration file of a command, if that is a file.
    pub config_file: fn(&[String]) -> Option<PathBuf>,
    /// Asks the running process of a command for its status; waits for the answer. `None` for a command that
    /// has no status.
    pub self_status: fn(&[String]) -> Option<SelfStatus>,
}

/// A Supervisor and its processes.
struct Supervisor {
    path: PathBuf,
    file: SuperviseFile,
    /// The program of its processes.
    program: PathBuf,
    /// Whether its log is JSON.
    json: bool,
    processes: Vec<SupervisedProcess>,
    exit_receiver: mpsc::Receiver<ProcessExit>,
    /// The sender for the watchers of processes.
    exit_sender: mpsc::Sender<ProcessExit>,
    commands: mpsc::Receiver<SupervisorCommand>,
    /// The requests of balancers about their sockets; and the sender for the threads that receive them.
    socket_request_receiver: mpsc::Receiver<SocketRequest>,
    socket_request_sender: mpsc::Sender<SocketRequest>,
    /// The socket for balancers, if there is one.
    holder_path: Option<PathBuf>,
    admin: Arc<SupervisorAdmin>,
    /// The rights of clients over TLS.
    rules: Arc<ActiveRules>,
    audit: Option<Arc<AuditLog>>,
    config_watch: ConfigWatch,
    reload_error: Option<String>,
    started_unix_ms: u64,
    /// The children to end; set once the Supervisor is to end.
    shutdown_mode: Option<ShutdownMode>,
    /// The number of children started so far, which identifies the child that ended.
    children_started: u64,
    /// The last state written, and the last notification of systemd.
    last_state: String,
    last_status: String,
}

/// Signals to the Supervisor.
struct SupervisorSignals {
    /// Reads the file again.
    pub hangup: Signal,
    /// Ends the Supervisor.
    pub terminate: Signal,
    /// Ends the Supervisor.
    pub interrupt: Signal,
}

/// An event.
enum SupervisorEvent {
    Exited(ProcessExit),
    Command(SupervisorCommand),
    SocketRequest(SocketRequest),
    FileChanged,
    TimerDue,
    HangUp,
    /// The end by a signal of this name.
    Terminate(&'static str),
}

impl Supervisor {
    /// Returns a Supervisor that has not begun. It must be called within a tokio runtime; `asked` are the
    /// commands that come from the admin plane.
    ///
    /// # Errors
    /// Fails if the system does not give the needed resources.
    pub(crate) fn new(
        path: PathBuf,
        file: SuperviseFile,
        json: bool,
        (admin, commands): (Arc<SupervisorAdmin>, mpsc::Receiver<SupervisorCommand>),
        rules: Arc<ActiveRules>,
        audit: Option<Arc<AuditLog>>,
    ) -> io::Result<Self> {
        let (exit_sender, exit_receiver) = mpsc::channel(EXIT_CAPACITY);
        let (request_sender, request_receiver) = mpsc::channel(SOCKET_REQUEST_CAPACITY);
        let mut supervisor = Self {
            path,
            program: os_process::program()?,
            json,
            processes: Vec::new(),
            exit_receiver,
            exit_sender,
            commands,
            socket_request_receiver: request_receiver,
            socket_request_sender: request_sender,
            holder_path: None,
            admin,
            rules,
            audit,
            config_watch: ConfigWatch::new()?,
            reload_error: None,
            started_unix_ms: unix_ms(),
            shutdown_mode: None,
            children_started: 0,
            last_state: String::new(),
            last_status: String::new(),
            file,
        };
        for process in supervisor.file.supervise.processes.clone() {
            let process_log = supervisor.open_log(&process.name.0)?;
            let rules = supervisor.file.rules(&process);
            supervisor.processes.push(SupervisedProcess::new(
                &process,
                rules,
                process_log,
                now(),
                supervisor.admin.command_lines(),
            ));
        }
        supervisor.admin.publish(supervisor.status());
        Ok(supervisor)
    }

    /// Runs the processes until the Supervisor is stopped.
    ///
    /// # Errors
    /// Fails if it had to end at once, and killed the running processes.
    pub(crate) async fn run(mut self, mut signals: SupervisorSignals) -> Result<(), SupervisorError> {
        self.take_over();
        self.accept_balancers();
        for supervised in &mut self.processes {
            supervised.start_if_enabled(now());
        }
        self.process_orders();
        notify_systemd(&[NotifyState::Ready]);
        loop {
            match self.next_event(&mut signals).await {
                SupervisorEvent::Exited(exit) => self.handle_exit(exit),
                SupervisorEvent::Command(command) => self.handle_command(command),
                SupervisorEvent::SocketRequest(request) => self.handle_socket_request(request),
                SupervisorEvent::FileChanged => self.check_changed_files(),
                SupervisorEvent::TimerDue => {
                    self.processes.iter_mut().for_each(|supervised| supervised.handle_timeout(now()))
                }
                SupervisorEvent::HangUp => {
                    let outcome = self.reload();
                    let outcome = outcome.as_ref().map(drop).map_err(String::as_str);
                    audit_signal(self.audit.as_deref(), "SIGHUP", "reload", outcome);
                }
                SupervisorEvent::Terminate(signal) if self.shutdown_mode.is_some() => {
                    audit_signal(self.audit.as_deref(), signal, "shutdown", Ok(()));
                    self.remove_files();
                    self.processes
                        .iter()
                        .filter_map(|supervised| supervised.child.as_ref())
                        .for_each(|child| child.kill());
                    return Err(SupervisorError::Interrupted);
                }
                SupervisorEvent::Terminate(signal) => {
                    audit_signal(self.audit.as_deref(), signal, "shutdown", Ok(()));
                    self.shut_down(ShutdownMode::Stop);
                }
            }
            self.process_orders();
            match self.shutdown_mode {
                Some(ShutdownMode::Leave) => {
                    tracing::info!("ended; the processes go on");
                    return Ok(());
                }
                Some(ShutdownMode::Stop)
                    if self.processes.iter().all(|supervised| supervised.child.is_none()) =>
                {
                    self.remove_files();
                    tracing::info!("stopped");
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    async fn next_event(&mut self, signals: &mut SupervisorSignals) -> SupervisorEvent {
        let due_at = self.processes.iter().filter_map(SupervisedProcess::poll_timeout).min();
        let pause = due_at.map(|due_at| tokio::time::sleep(due_at.since(now())));
        let pause = pin!(async {
            match pause {
                Some(pause) => pause.await,
                None => std::future::pending().await,
            }
        });
        tokio::select! {
            // The channels never end: their senders are held as long as this is.
            Some(ended) = self.exit_receiver.recv() => SupervisorEvent::Exited(ended),
            Some(asked) = self.commands.recv() => SupervisorEvent::Command(asked),
            Some(told) = self.socket_request_receiver.recv() => SupervisorEvent::SocketRequest(told),
            () = self.config_watch.changed() => SupervisorEvent::FileChanged,
            () = pause => SupervisorEvent::TimerDue,
            _ = signals.hangup.recv() => SupervisorEvent::HangUp,
            _ = signals.terminate.recv() => SupervisorEvent::Terminate("SIGTERM"),
            _ = signals.interrupt.recv() => SupervisorEvent::Terminate("SIGINT"),
        }
    }

    /// Takes the sockets of balancers from now on.
    fn accept_balancers(&mut self) {
        let path = self.file.holder_path();
        let result = std::path::absolute(&path).and_then(|absolute_path| {
            held_sockets::listen(&absolute_path, self.socket_request_sender.clone())?;
            Ok(absolute_path)
        });
        match result {
            Ok(absolute_path) => self.holder_path = Some(absolute_path),
            Err(error) => tracing::warn!(
                "{}: {error}; while a balancer that failed is started again its clients are refused",
                path.display()
            ),
        }
    }

    /// Handles a balancer's request for its sockets, or to hold them.
    fn handle_socket_request(&mut self, SocketRequest { pid, request, reply }: SocketRequest) {
        let index = self.processes.iter().position(|supervised| supervised.has_pid(pid));
        let index =
            index.or_else(|| self.processes.iter().position(|supervised| supervised.is_succeeded_by(pid)));
        if let Some(index) = index {
            // The balancer may have ended.
            let _ = reply.send(self.processes[index].grant_sockets(request));
        }
    }

    /// Removes the files, so that the next Supervisor finds nothing.
    fn remove_files(&self) {
        let _ = std::fs::remove_file(self.file.state());
        if let Some(path) = &self.holder_path {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Takes over the processes that a Supervisor before this one left.
    fn take_over(&mut self) {
        let path = self.file.state();
        let state = match SupervisorState::read(&path) {
            Ok(Some(state)) => state,
            Ok(None) => return,
            Err(error) => {
                let path = path.display();
                return tracing::warn!("cannot read {path}: {error}; processes that still run are not found");
            }
        };
        for saved in state.processes {
            let position = self.processes.iter().position(|supervised| supervised.name == saved.name);
            let adopted_child = saved.running.as_ref().and_then(|(identity, launch, _)| {
                let successor = os_process::find_successor(identity, &launch.command);
                successor
                    .and_then(os_process::SupervisedChild::adopt)
                    .or_else(|| os_process::SupervisedChild::adopt(*identity))
            });
            let Some((child, exit_waiter, stderr)) = adopted_child else {
                if let Some(index) = position {
                    self.processes[index].restore_stopped(&saved, random_bits(), now());
                }
                continue;
            };
            let index = match position {
                Some(index) => index,
                None => match self.open_log(&saved.name) {
                    Ok(process_log) => {
                        self.processes.push(SupervisedProcess::from_orphan(
                            &saved,
                            process_log,
                            now(),
                            self.admin.command_lines(),
                        ));
                        self.processes.len() - 1
                    }
                    Err(error) => {
                        tracing::warn!("{}: it runs, and cannot be watched: {error}", saved.name);
                        continue;
                    }
                },
            };
            let pid = child.identity.pid;
            if stderr.is_none() {
                tracing::warn!("{}: what it says cannot be read", saved.name);
            }
            tracing::info!("{}: found running, pid {pid}", saved.name);
            self.children_started += 1;
            let supervised = &mut self.processes[index];
            supervised.adopt(&saved, child, self.children_started, now());
            tokio::spawn(monitor_child(
                self.children_started,
                exit_waiter,
                stderr,
                supervised.log.clone(),
                self.exit_sender.clone(),
            ));
        }
    }

    /// Carries out all orders, and publishes the state.
    fn process_orders(&mut self) {
        // The sockets come before any process is ended.
        self.processes.iter_mut().for_each(|supervised| supervised.expire_sockets(now()));
        for index in 0..self.processes.len() {
            while let Some(order) = self.processes[index].lifecycle.poll_action() {
                self.execute_order(index, order);
            }
        }
        self.processes.retain(|supervised| !supervised.is_gone());
        let failed =
            self.processes.iter().filter(|supervised| supervised.lifecycle.phase() == ProcessPhase::Failed);
        self.config_watch.watch_files(failed.filter_map(|supervised| supervised.file.as_deref()));
        // A file that changed after a process read it may have changed before it was watched.
        self.recheck_changed_files();
        let supervisor_status = self.status();
        self.notify_status(&supervisor_status);
        self.admin.publish(supervisor_status);
        self.save_state();
    }

    fn execute_order(&mut self, index: usize, order: ProcessAction) {
        let logs_to_files = self.file.supervise.supervise.log_dir.is_some();
        let supervised = &mut self.processes[index];
        match order {
            ProcessAction::Start => {
                supervised.prepare();
                match os_process::SupervisedChild::start(
                    &self.program,
                    &supervised.launch,
                    logs_to_files,
                    self.holder_path.as_deref(),
                ) {
                    Ok((child, exit_waiter, stderr)) => {
                        self.children_started += 1;
                        let pid = child.identity.pid;
                        tracing::info!("{}: started, pid {pid}: {}", supervised.name, supervised.reason);
                        let (process_log, exit_sender) = (supervised.log.clone(), self.exit_sender.clone());
                        supervised.record_start(child, self.children_started);
                        tokio::spawn(monitor_child(
                            self.children_started,
                            exit_waiter,
                            Some(stderr),
                            process_log,
                            exit_sender,
                        ));
                    }
                    Err(error) => {
                        let reason = format!("{} cannot be started: {error}", self.program.display());
                        supervised.record_exit(ExitCause::Unstarted, reason, random_bits(), now());
                    }
                }
            }
            ProcessAction::Terminate => {
                tracing::info!("{}: told to end: {}", supervised.name, supervised.reason);
                supervised.terminate();
            }
            ProcessAction::Kill => {
                let timeout = config::TimeSpan(supervised.stop_timeout());
                tracing::warn!("{}: killed: it was told to end {timeout} ago", supervised.name);
                supervised.child.iter().for_each(os_process::SupervisedChild::kill);
            }
        }
    }

    fn handle_exit(&mut self, ProcessExit { child_number: number, outcome }: ProcessExit) {
        let Some(index) =
            self.processes.iter().position(|supervised| supervised.child_number == Some(number))
        else {
            return;
        };
        let (exit_cause, pipe) = match outcome {
            ProcessOutcome::Exited(exit_cause) => (Some(exit_cause), None),
            ProcessOutcome::HandedOver(pipe, pipe_sender) => (None, Some((pipe, pipe_sender))),
        };
        let hold_time = self.file.supervise.supervise.hold_sockets.0;
        let supervised = &mut self.processes[index];
        match (supervised.find_successor(), exit_cause, pipe) {
            (Some((child, exit_waiter, child_stderr)), _, pipe) => {
                let stderr = pipe.map(|(pipe, _)| pipe).or(child_stderr);
                self.children_started += 1;
                tracing::info!("{}: pid {} has taken over", supervised.name, child.identity.pid);
                supervised.switch_child(child, self.children_started);
                tokio::spawn(monitor_child(
                    self.children_started,
                    exit_waiter,
                    stderr,
                    supervised.log.clone(),
                    self.exit_sender.clone(),
                ));
            }
            (None, Some(exit_cause), _) => {
                supervised.hold_for(hold_time, now());
                supervised.record_exit(exit_cause, process::describe_exit(exit_cause), random_bits(), now());
            }
            (None, None, Some((pipe, pipe_sender))) => drop(pipe_sender.send(pipe)),
            (None, None, None) => {}
        }
    }

    /// Handles a change of files, for which a process may have failed.
    fn check_changed_files(&mut self) {
        self.processes.iter_mut().for_each(|supervised| supervised.check_config_file(now()));
    }

    fn recheck_changed_files(&mut self) {
        self.check_changed_files();
        for index in 0..self.processes.len() {
            while let Some(order) = self.processes[index].lifecycle.poll_action() {
                self.execute_order(index, order);
            }
        }
    }

    fn handle_command(&mut self, command: SupervisorCommand) {
        match command {
            SupervisorCommand::Act { process, command: process_command, reply } => {
                let result = self.act_on_process(&process, process_command);
                self.process_orders();
                let result = result.map(|()| self.status());
                let find_status = |supervisor_status: SupervisorStatus| {
                    supervisor_status
                        .processes
                        .into_iter()
                        .find(|process_status| process_status.name == process)
                };
                let removed_error = || {
                    ProcessActionError::Impossible(format!(
                        "{process} is gone: it is not in the file any more"
                    ))
                };
                // The client may have gone.
                let _ =
                    reply.send(result.and_then(|supervisor_status| {
                        find_status(supervisor_status).ok_or_else(removed_error)
                    }));
            }
            SupervisorCommand::Reload { reply } => {
                let changes = self.reload();
                self.process_orders();
                let _ = reply.send(changes);
            }
            SupervisorCommand::ShutDown(children) => self.shut_down(children),
        }
    }

    fn act_on_process(
        &mut self,
        process: &str,
        process_command: ProcessCommand,
    ) -> Result<(), ProcessActionError> {
        let Some(index) = self.processes.iter().position(|supervised| supervised.name == process) else {
            let names: Vec<&str> = self.processes.iter().map(|supervised| &*supervised.name).collect();
            return Err(ProcessActionError::Unknown(format!(
                "there is no process {process}; there are: {}",
                names.join(", ")
            )));
        };
        if self.shutdown_mode.is_some() {
            return Err(ProcessActionError::Impossible("the Supervisor is ending".into()));
        }
        self.processes[index].command(process_command, now()).map_err(ProcessActionError::Impossible)
    }

    fn shut_down(&mut self, children: ShutdownMode) {
        notify_systemd(&[NotifyState::Stopping]);
        if children == ShutdownMode::Stop {
            let reason = "the Supervisor is ending";
            self.processes.iter_mut().for_each(|supervised| supervised.stop(reason, now()));
        }
        self.shutdown_mode = Some(children);
    }

    fn open_log(&self, name: &str) -> io::Result<ProcessLog> {
        let folder = self.file.supervise.supervise.log_dir.as_ref();
        ProcessLog::open(name, folder.map(|folder| folder.0.as_path()), self.json)
    }

    fn status(&self) -> SupervisorStatus {
        SupervisorStatus {
            schema: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_ms: self.started_unix_ms,
            stopping: self.shutdown_mode.is_some(),
            reload_error: self.reload_error.clone(),
            processes: self.processes.iter().map(|supervised| supervised.status(now())).collect(),
        }
    }

    /// Writes the state, if anything differs from what was written last.
    fn save_state(&mut self) {
        let processes = self.processes.iter().map(|supervised| supervised.saved_state(now())).collect();
        let state = SupervisorState { boot: state_file::boot_id(), processes };
        // The mark has no times, as those move by a millisecond each time.
        let text = self.processes.iter().map(SupervisedProcess::state_key).collect();
        if text != self.last_state {
            match state.write(&self.file.state()) {
                Ok(()) => self.last_state = text,
                Err(error) => {
                    let path = self.file.state();
                    tracing::warn!(
                        "cannot write {}: {error}; a Supervisor that is started again will not find the \
                         processes",
                        path.display()
                    );
                }
            }
        }
    }

    fn notify_status(&mut self, supervisor_status: &SupervisorStatus) {
        let running_count = supervisor_status
            .processes
            .iter()
            .filter(|process| process.state == ProcessPhase::Running)
            .count();
        let status = format!("{running_count} of {} processes run", supervisor_status.processes.len());
        if status != self.last_status {
            notify_systemd(&[NotifyState::Status(&status)]);
            self.last_status = status;
        }
    }
}
