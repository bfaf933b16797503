//! The process that is taken over from: it starts the next one, hands everything over, and ends when its
//! connections have.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_brain::EventKind;
use plimsoll_cluster::fleet::FleetHandoff;
use plimsoll_config::cookie_key;
use plimsoll_proxy::{CounterSnapshot, Engine, ListenerSockets};
use sd_notify::NotifyState;
use tokio::sync::Notify;

use super::channel::HandoffChannel;
use super::{
    COUNTS, ESTATE, FAILED, FailedMessage, FinalHandoff, HandoffMessage, LEGACY, PAST, PREDECESSOR_VARIABLE,
    READY, ReadyMessage, SERVING, SharedStoreView, SocketSet, StoreContent, SuccessorSetup, TAKEN,
};
use crate::runtime::discovery_state::SourceAnswers;
use crate::runtime::notify_systemd;

/// The default of the time in which a started process must be ready.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time to take the handoff state, once it is ready.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for a process that reported its failure to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which the next process gets the counts of this one.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);

/// The variables for this process alone.
const PRIVATE_VARIABLES: [&str; 5] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// The program of this process, to be run again.
#[derive(Debug)]
pub(crate) struct CurrentProgram {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl CurrentProgram {
    /// Returns the program of this process. It must be called at the beginning, as its file may be replaced
    /// later.
    ///
    /// # Errors
    /// Fails if the system does not name it.
    pub(crate) fn current() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        // A given path is resolved anew each time, as it may be a link to the current version.
        let program_argument =
            arguments.next().map(PathBuf::from).filter(|path| path.components().count() > 1);
        let path = match program_argument.map(std::path::absolute) {
            Some(Ok(path)) if path.exists() => path,
            _ => std::env::current_exe()?,
        };
        Ok(Self { path, arguments: arguments.collect() })
    }
}

/// The succession: one process at a time takes over from this one, and only one succeeds in the end.
pub(crate) struct HandoffSource {
    program: CurrentProgram,
    /// The sockets that are not the data plane's, until they are another process's.
    other_sockets: Mutex<Vec<(&'static str, OwnedFd)>>,
    /// Whether the service manager keeps the control socket.
    keeps_control: bool,
    /// Whether a process is about to take over.
    is_upgrading: AtomicBool,
    successor: Mutex<Option<ActiveSuccessor>>,
    taken_over_notify: Notify,
}

/// The successor.
struct ActiveSuccessor {
    pid: u32,
    /// The channel for the rest of the counts, until a thread takes it.
    counts_channel: Option<(HandoffChannel, CounterSnapshot)>,
}

/// The parts of the process beside the data plane, which have to change hands.
pub(crate) trait HandoffParticipant {
    /// Halts work that the next process would not know. Returns once that is so.
    ///
    /// # Errors
    /// Fails if work goes on, and takes long.
    fn halt_changes(&self) -> Result<(), String>;

    /// Returns the content of a store that ends with this process.
    fn store_content(&self) -> StoreContent;

    /// Returns the last view of a store that others share.
    fn store_view(&self) -> SharedStoreView;

    /// Returns the last answers of the sources of members.
    fn source_answers(&self) -> Vec<SourceAnswers>;

    /// Returns the present knowledge, without the part of [`pause`](Self::pause). From now on the next
    /// process is in charge of it.
    fn final_handoff(&self) -> FinalHandoff;

    /// Stops the messages to other balancers; returns the past with which another process goes on as this
    /// one. It is called as late as possible: a balancer that is silent for long is declared lost.
    fn pause(&self) -> Option<FleetHandoff>;

    /// Resumes after a failed upgrade: this process is in charge again. Nothing can be changed yet, and no
    /// other upgrade can begin.
    fn resume(&self);

    /// Resumes everything: deferred work can be done.
    fn catch_up(&self);

    /// Leaves: the next process has begun. `fleet` means also as the same balancer among others.
    fn leave(&self, in_fleet: bool);
}

const UPGRADE_UNDER_WAY: &str = "an upgrade is under way: wait for its end";

/// A mark that a process is about to take over, for as long as it lives.
struct UpgradeGuard<'a>(&'a AtomicBool);

impl<'a> UpgradeGuard<'a> {
    /// Returns a mark; `None` if there is one already.
    fn begin(is_upgrading: &'a AtomicBool) -> Option<Self> {
        (!is_upgrading.swap(true, SeqCst)).then_some(Self(is_upgrading))
    }
}

impl Drop for UpgradeGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Checks that another process goes on when the one of this id ends.
///
/// # Errors
/// Fails for the first of a PID namespace, with which the system ends all others (pid_namespaces(7)).
fn check_can_exit(pid: u32) -> Result<(), String> {
    if pid != 1 {
        return Ok(());
    }
    Err("this is process 1, as in a container: all others there end with it, so none can take over; start \
         another container beside this \
         one, and stop this one then"
        .into())
}

/// The process that took over.
#[derive(Clone, Debug)]
pub(crate) struct UpgradeResult {
    pub pid: u32,
    pub version: String,
    /// The number of connections that were open here at that moment.
    pub connections: u64,
}

impl HandoffSource {
    /// Returns the source of a handoff. `others` are sockets that are not the data plane's, by their purpose;
    /// `keeps_control` means that the service manager keeps the control socket.
    pub(crate) fn new(
        program: CurrentProgram,
        other_sockets: Vec<(&'static str, OwnedFd)>,
        keeps_control: bool,
    ) -> Self {
        Self {
            program,
            keeps_control,
            other_sockets: Mutex::new(other_sockets),
            is_upgrading: AtomicBool::new(false),
            successor: Mutex::default(),
            taken_over_notify: Notify::new(),
        }
    }

    /// Returns the process that has taken over, if one has.
    pub(crate) fn successor_pid(&self) -> Option<u32> {
        lock(&self.successor).as_ref().map(|successor| successor.pid)
    }

    /// Checks that changes are possible here.
    ///
    /// # Errors
    /// Fails if another process is taking over, or has.
    pub(crate) fn check_in_charge(&self) -> Result<(), String> {
        if let Some(pid) = self.successor_pid() {
            return Err(format!("process {pid} has taken over: try again"));
        }
        if self.is_upgrading.load(SeqCst) { Err(UPGRADE_UNDER_WAY.into()) } else { Ok(()) }
    }

    /// Returns once another process has taken over.
    pub(crate) async fn taken_over(&self) {
        self.taken_over_notify.notified().await;
    }

    /// Starts another process that takes over; `binary` is run in place of this one's.
    ///
    /// # Errors
    /// Fails with the reason; nothing has changed then.
    pub(crate) fn hand_over(
        &self,
        engine: &Engine,
        participant: &dyn HandoffParticipant,
        binary: Option<&Path>,
        timeout: Duration,
    ) -> Result<UpgradeResult, String> {
        check_can_exit(std::process::id())?;
        let guard = UpgradeGuard::begin(&self.is_upgrading).ok_or(UPGRADE_UNDER_WAY)?;
        if let Some(pid) = self.successor_pid() {
            return Err(format!("process {pid} has taken over already: ask that"));
        }
        if engine.is_stopping() {
            return Err("the process is stopping".into());
        }
        let program_path = binary.unwrap_or(&self.program.path);
        tracing::info!("upgrade: {} is started", program_path.display());
        let outcome = self.attempt_upgrade(engine, participant, program_path, timeout);
        match outcome {
            Ok((mut result, channel, counts)) => {
                // Once others know of the upgrade there is little time to answer the client that asked for
                // it.
                result.connections = engine.connections();
                // The addresses cannot be bound while this process has them open.
                lock(&self.other_sockets).clear();
                // The main process must not change before this moment.
                notify_systemd(&[NotifyState::MainPid(result.pid)]);
                engine.write_upgrade_event(
                    EventKind::Upgraded,
                    format!(
                        "handed over to pid {}, version {}: nothing more is accepted here, and connections \
                         end",
                        result.pid, result.version
                    ),
                );
                *lock(&self.successor) =
                    Some(ActiveSuccessor { pid: result.pid, counts_channel: Some((channel, counts)) });
                self.taken_over_notify.notify_one();
                Ok(result)
            }
            Err(error) => {
                participant.resume();
                // The mark ends only now: another upgrade that began meanwhile would take incomplete state.
                drop(guard);
                participant.catch_up();
                let reason = format!("the upgrade failed, this process goes on as before: {error}");
                engine.write_upgrade_event(EventKind::UpgradeFailed, reason.clone());
                Err(reason)
            }
        }
    }

    fn attempt_upgrade(
        &self,
        engine: &Engine,
        participant: &dyn HandoffParticipant,
        program_path: &Path,
        timeout: Duration,
    ) -> Result<(UpgradeResult, HandoffChannel, CounterSnapshot), String> {
        let deadline = Instant::now() + timeout;
        participant.halt_changes()?;
        let (setup, sockets) = self.successor_setup(engine, participant).map_err(channel_error)?;
        let (mut child, mut channel) = self.start(program_path)?;
        let outcome = (|| {
            let ready_message =
                prepare_successor(&mut channel, &mut child, &setup, &sockets, (timeout, deadline))?;
            let counts = transfer_state(&mut channel, engine, participant, &ready_message, &mut || {
                exit_message(&mut child)
            })?;
            Ok((ready_message, counts))
        })();
        match outcome {
            Ok((ReadyMessage { version, fleet: in_fleet, .. }, counts)) => {
                participant.leave(in_fleet);
                // Its last messages have no deadline.
                let _ = channel.set_timeout(Some(COUNTS_INTERVAL));
                Ok((UpgradeResult { pid: child.id(), version, connections: 0 }, channel, counts))
            }
            Err(error) => {
                engine.take_back_flows();
                // The child has nothing that this process does not have.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn start(&self, program_path: &Path) -> Result<(Child, HandoffChannel), String> {
        let (own_stream, successor_stream) =
            UnixStream::pair().map_err(|error| format!("no pair of sockets: {error}"))?;
        let mut command = Command::new(program_path);
        command.arg0(program_path).args(&self.program.arguments);
        command.env(PREDECESSOR_VARIABLE, std::process::id().to_string());
        command.stdin(Stdio::from(OwnedFd::from(successor_stream)));
        for name in PRIVATE_VARIABLES {
            command.env_remove(name);
        }
        let child = command.spawn();
        // The command has this process's copy of the child's end: without it the stream ends when the child
        // does.
        drop(command);
        let child =
            child.map_err(|error| format!("{} cannot be started: {error}", program_path.display()))?;
        Ok((child, HandoffChannel::new(own_stream)))
    }

    /// Returns the setup, with which the next process gets ready.
    fn successor_setup(
        &self,
        engine: &Engine,
        participant: &dyn HandoffParticipant,
    ) -> io::Result<(SuccessorSetup, Vec<OwnedFd>)> {
        let mut socket_set = SocketSet::default();
        engine.sockets()?.into_iter().for_each(|listener_sockets| socket_set.push_listener(listener_sockets));
        for (name, socket) in &*lock(&self.other_sockets) {
            socket_set.push(name, socket.try_clone()?);
        }
        let SocketSet { descriptions, sockets } = socket_set;
        let setup = SuccessorSetup {
            version: env!("CARGO_PKG_VERSION").into(),
            begin: engine.clock_start(),
            sockets: descriptions,
            stays: self.keeps_control,
            ticket_keys: Engine::ticket_keys(),
            cookie_key: cookie_key(),
            kept: participant.store_content(),
            seen: participant.store_view(),
            found: participant.source_answers(),
        };
        Ok((setup, sockets))
    }

    /// Returns copies of the sockets that clients connect to, for the Supervisor: of the listeners that are
    /// open and stay so, and of the admin side. The socket for other balancers is not among them: to them the
    /// next process is another balancer.
    ///
    /// # Errors
    /// Fails if there are no more files.
    pub(crate) fn listening_sockets(
        &self,
        engine: &Engine,
        is_kept: &dyn Fn(&ListenerSockets) -> bool,
    ) -> io::Result<SocketSet> {
        let mut socket_set = SocketSet::default();
        let open_sockets = engine
            .sockets()?
            .into_iter()
            .filter(|listener_sockets| !listener_sockets.sockets.is_empty() && is_kept(listener_sockets));
        open_sockets.for_each(|listener_sockets| socket_set.push_listener(listener_sockets));
        for (name, socket) in lock(&self.other_sockets).iter().filter(|(name, _)| *name != "fleet") {
            socket_set.push(name, socket.try_clone()?);
        }
        Ok(socket_set)
    }

    /// Sends the next process the counts of this one, once a second and at the end, until everything has
    /// ended. It runs in a thread that may wait; `over` returns `true` at the end.
    pub(crate) fn send_remaining_counts(&self, engine: &Engine, wait_over: impl Fn(Duration) -> bool) {
        let Some((mut channel, mut sent_counts)) =
            lock(&self.successor).as_mut().and_then(|successor| successor.counts_channel.take())
        else {
            return;
        };
        loop {
            let is_last = wait_over(COUNTS_INTERVAL);
            let now = engine.counts();
            // A process that has ended itself, or does not read, gets no more.
            if channel.send(COUNTS, &now.since(&sent_counts), &[]).is_err() || is_last {
                return;
            }
            sent_counts = now;
        }
    }
}

/// Hands the sockets over, and waits until the next process is ready.
fn prepare_successor(
    channel: &mut HandoffChannel,
    child: &mut Child,
    setup: &SuccessorSetup,
    sockets: &[OwnedFd],
    (timeout, deadline): (Duration, Instant),
) -> Result<ReadyMessage, String> {
    let remaining = || Some(deadline.saturating_duration_since(Instant::now()));
    let failure = |error: io::Error, child: &mut Child| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it was not ready within {} s", timeout.as_secs_f64())
        }
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            exit_message(child)
        }
        _ => format!("it cannot be talked to: {error}"),
    };
    let socket_fds: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
    let reply = channel.set_timeout(remaining()).and_then(|()| channel.send(ESTATE, setup, &socket_fds));
    reply.map_err(|error| failure(error, child))?;
    match channel.set_timeout(remaining()).and_then(|()| channel.receive()) {
        Ok(Some((message, _))) => {
            expect_message(message, READY).map(HandoffMessage::body).inspect_err(|_| {
                channel.wait_closed(EXIT_TIMEOUT);
            })
        }
        Ok(None) => Err(exit_message(child)),
        Err(error) => Err(failure(error, child)),
    }
}

/// Sends the handoff state, and waits until the next process serves; returns the counts of that moment.
/// `ended` returns how the process ended if it has.
pub(super) fn transfer_state(
    channel: &mut HandoffChannel,
    engine: &Engine,
    participant: &dyn HandoffParticipant,
    ready_message: &ReadyMessage,
    exit_reason: &mut dyn FnMut() -> String,
) -> Result<CounterSnapshot, String> {
    // From here on datagrams wait, for a few milliseconds.
    let flows = engine.lend_flows();
    let mut handoff = FinalHandoff {
        flows: flows.iter().map(|flow| flow.description.clone()).collect(),
        ..participant.final_handoff()
    };
    let sockets: Vec<BorrowedFd<'_>> = flows.iter().map(|flow| flow.socket.as_fd()).collect();
    let counts = handoff.engine.counts();
    let mut expect_reply = |channel: &mut HandoffChannel, expected_type: &str| match channel.receive() {
        Ok(Some((message, _))) => expect_message(message, expected_type).map(drop),
        Ok(None) => Err(exit_reason()),
        Err(error) => Err(format!("it was ready, but does not serve: {error}")),
    };
    channel.set_timeout(Some(TRANSFER_TIMEOUT)).map_err(channel_error)?;
    // A successor of an older version takes the past with the rest or not at all.
    (handoff.later, handoff.fleet) =
        if ready_message.later { (true, None) } else { (false, participant.pause()) };
    channel.send(LEGACY, &handoff, &sockets).map_err(channel_error)?;
    if handoff.later {
        expect_reply(channel, TAKEN)?;
        channel.send(PAST, &participant.pause(), &[]).map_err(channel_error)?;
    }
    expect_reply(channel, SERVING)?;
    Ok(counts)
}

fn channel_error(error: io::Error) -> String {
    format!("it cannot be told what it takes over: {error}")
}

/// Returns the awaited message, or the reason why it does not come.
fn expect_message(message: HandoffMessage, expected_type: &str) -> Result<HandoffMessage, String> {
    match &*message.is {
        FAILED => Err(message.body::<FailedMessage>().why),
        message_type if message_type == expected_type => Ok(message),
        message_type => Err(format!("it said `{message_type}`, which makes no sense")),
    }
}

/// Returns the message about a process that ended without a reason.
fn exit_message(child: &mut Child) -> String {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return format!("it ended before it was ready: {}", describe_exit(status)),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            _ => return "it closed the connection before it was ready".into(),
        }
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(exit_code), _) => format!("exit code {exit_code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_process_of_a_container_is_outlived_by_none() {
        assert!(super::check_can_exit(1).unwrap_err().contains("container"));
        assert_eq!(super::check_can_exit(2), Ok(()));
    }
}
