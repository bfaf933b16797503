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
use plimsoll_cluster::fleet::Past;
use plimsoll_proxy::{Bound, Counts, Engine};
use sd_notify::NotifyState;
use tokio::sync::Notify;

use super::channel::Channel;
use super::{
    COUNTS, ELDER, ESTATE, Estate, FAILED, Failed, Kept, LEGACY, Left, Message, PAST, READY, Ready, SERVING,
    Seen, SocketSet, TAKEN,
};
use crate::config::cookie_key;
use crate::running::discovered::Found;
use crate::running::notify;

/// The default of the time in which a started process must be ready.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The time to take the legacy, once it is ready.
const TAKING: Duration = Duration::from_secs(30);
/// The time for a process that reported its failure to end.
const ENDING: Duration = Duration::from_secs(2);
/// The interval at which the next process gets the counts of this one.
const TELL: Duration = Duration::from_secs(1);

/// The variables for this process alone.
const OURS: [&str; 5] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// The program of this process, to be run again.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns the program of this process. It must be called at the beginning, as its file may be replaced
    /// later.
    ///
    /// # Errors
    /// Fails if the system does not name it.
    pub(crate) fn here() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        // A given path is resolved anew each time, as it may be a link to the current version.
        let given = arguments.next().map(PathBuf::from).filter(|path| path.components().count() > 1);
        let path = match given.map(std::path::absolute) {
            Some(Ok(path)) if path.exists() => path,
            _ => std::env::current_exe()?,
        };
        Ok(Self { path, arguments: arguments.collect() })
    }
}

/// The succession: one process at a time takes over from this one, and only one succeeds in the end.
pub(crate) struct Elder {
    program: Program,
    /// The sockets that are not the data plane's, until they are another process's.
    others: Mutex<Vec<(&'static str, OwnedFd)>>,
    /// Whether the service manager keeps the control socket.
    stays: bool,
    /// Whether a process is about to take over.
    busy: AtomicBool,
    heir: Mutex<Option<Taken>>,
    gone: Notify,
}

/// The successor.
struct Taken {
    pid: u32,
    /// The channel for the rest of the counts, until a thread takes it.
    rest: Option<(Channel, Counts)>,
}

/// The parts of the process beside the data plane, which have to change hands.
pub(crate) trait House {
    /// Halts work that the next process would not know. Returns once that is so.
    ///
    /// # Errors
    /// Fails if work goes on, and takes long.
    fn settle(&self) -> Result<(), String>;

    /// Returns the content of a store that ends with this process.
    fn kept(&self) -> Kept;

    /// Returns the last view of a store that others share.
    fn seen(&self) -> Seen;

    /// Returns the last answers of the sources of members.
    fn found(&self) -> Vec<Found>;

    /// Returns the present knowledge, without the part of [`pause`](Self::pause). From now on the next
    /// process is in charge of it.
    fn left(&self) -> Left;

    /// Stops the messages to other balancers; returns the past with which another process goes on as this
    /// one. It is called as late as possible: a balancer that is silent for long is declared lost.
    fn pause(&self) -> Option<Past>;

    /// Resumes after a failed upgrade: this process is in charge again. Nothing can be changed yet, and no
    /// other upgrade can begin.
    fn go_on(&self);

    /// Resumes everything: deferred work can be done.
    fn catch_up(&self);

    /// Leaves: the next process has begun. `fleet` means also as the same balancer among others.
    fn leave(&self, fleet: bool);
}

const UNDER_WAY: &str = "an upgrade is under way: wait for its end";

/// A mark that a process is about to take over, for as long as it lives.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    /// Returns a mark; `None` if there is one already.
    fn begin(busy: &'a AtomicBool) -> Option<Self> {
        (!busy.swap(true, SeqCst)).then_some(Self(busy))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Checks that another process goes on when the one of this id ends.
///
/// # Errors
/// Fails for the first of a PID namespace, with which the system ends all others (pid_namespaces(7)).
fn outlived(pid: u32) -> Result<(), String> {
    if pid != 1 {
        return Ok(());
    }
    Err("this is process 1, as in a container: all others there end with it, so none can take over; start another container beside this \
         one, and stop this one then"
        .into())
}

/// The process that took over.
#[derive(Clone, Debug)]
pub(crate) struct Took {
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// The number of connections that were open here at that moment.
    pub(crate) connections: u64,
}

impl Elder {
    /// Returns the elder. `others` are sockets that are not the data plane's, by their purpose; `stays` means
    /// that the service manager keeps the control socket.
    pub(crate) fn new(program: Program, others: Vec<(&'static str, OwnedFd)>, stays: bool) -> Self {
        Self {
            program,
            stays,
            others: Mutex::new(others),
            busy: AtomicBool::new(false),
            heir: Mutex::default(),
            gone: Notify::new(),
        }
    }

    /// Returns the process that has taken over, if one has.
    pub(crate) fn heir(&self) -> Option<u32> {
        lock(&self.heir).as_ref().map(|taken| taken.pid)
    }

    /// Checks that changes are possible here.
    ///
    /// # Errors
    /// Fails if another process is taking over, or has.
    pub(crate) fn in_charge(&self) -> Result<(), String> {
        if let Some(pid) = self.heir() {
            return Err(format!("process {pid} has taken over: try again"));
        }
        if self.busy.load(SeqCst) { Err(UNDER_WAY.into()) } else { Ok(()) }
    }

    /// Returns once another process has taken over.
    pub(crate) async fn taken(&self) {
        self.gone.notified().await;
    }

    /// Starts another process that takes over; `binary` is run in place of this one's.
    ///
    /// # Errors
    /// Fails with the reason; nothing has changed then.
    pub(crate) fn hand_over(
        &self,
        engine: &Engine,
        house: &dyn House,
        binary: Option<&Path>,
        patience: Duration,
    ) -> Result<Took, String> {
        outlived(std::process::id())?;
        let busy = Busy::begin(&self.busy).ok_or(UNDER_WAY)?;
        if let Some(pid) = self.heir() {
            return Err(format!("process {pid} has taken over already: ask that"));
        }
        if engine.stopping() {
            return Err("the process is stopping".into());
        }
        let program = binary.unwrap_or(&self.program.path);
        tracing::info!("upgrade: {} is started", program.display());
        let outcome = self.try_to(engine, house, program, patience);
        match outcome {
            Ok((mut took, channel, counts)) => {
                // Once others know of the upgrade there is little time to answer the client that asked for
                // it.
                took.connections = engine.connections();
                // The addresses cannot be bound while this process has them open.
                lock(&self.others).clear();
                // The main process must not change before this moment.
                notify(&[NotifyState::MainPid(took.pid)]);
                engine.upgraded(
                    EventKind::Upgraded,
                    format!(
                        "handed over to pid {}, version {}: nothing more is accepted here, and connections end",
                        took.pid, took.version
                    ),
                );
                *lock(&self.heir) = Some(Taken { pid: took.pid, rest: Some((channel, counts)) });
                self.gone.notify_one();
                Ok(took)
            }
            Err(why) => {
                house.go_on();
                // The mark ends only now: another upgrade that began meanwhile would take incomplete state.
                drop(busy);
                house.catch_up();
                let why = format!("the upgrade failed, this process goes on as before: {why}");
                engine.upgraded(EventKind::UpgradeFailed, why.clone());
                Err(why)
            }
        }
    }

    fn try_to(
        &self,
        engine: &Engine,
        house: &dyn House,
        program: &Path,
        patience: Duration,
    ) -> Result<(Took, Channel, Counts), String> {
        let end = Instant::now() + patience;
        house.settle()?;
        let (estate, sockets) = self.estate(engine, house).map_err(broken)?;
        let (mut child, mut channel) = self.start(program)?;
        let outcome = (|| {
            let ready = talk(&mut channel, &mut child, &estate, &sockets, (patience, end))?;
            let counts = bequeath(&mut channel, engine, house, &ready, &mut || ended(&mut child))?;
            Ok((ready, counts))
        })();
        match outcome {
            Ok((Ready { version, fleet, .. }, counts)) => {
                house.leave(fleet);
                // Its last messages have no deadline.
                let _ = channel.patience(Some(TELL));
                Ok((Took { pid: child.id(), version, connections: 0 }, channel, counts))
            }
            Err(why) => {
                engine.take_back_flows();
                // The child has nothing that this process does not have.
                let _ = child.kill();
                let _ = child.wait();
                Err(why)
            }
        }
    }

    fn start(&self, program: &Path) -> Result<(Child, Channel), String> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| format!("no pair of sockets: {error}"))?;
        let mut command = Command::new(program);
        command.arg0(program).args(&self.program.arguments);
        command.env(ELDER, std::process::id().to_string());
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        for name in OURS {
            command.env_remove(name);
        }
        let child = command.spawn();
        // The command has this process's copy of the child's end: without it the stream ends when the child
        // does.
        drop(command);
        let child = child.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        Ok((child, Channel::new(ours)))
    }

    /// Returns the estate, with which the next process gets ready.
    fn estate(&self, engine: &Engine, house: &dyn House) -> io::Result<(Estate, Vec<OwnedFd>)> {
        let mut set = SocketSet::default();
        engine.sockets()?.into_iter().for_each(|bound| set.push_listener(bound));
        for (name, socket) in &*lock(&self.others) {
            set.push(name, socket.try_clone()?);
        }
        let SocketSet { passed, sockets } = set;
        let estate = Estate {
            version: env!("CARGO_PKG_VERSION").into(),
            begin: engine.begin(),
            sockets: passed,
            stays: self.stays,
            ticket_keys: Engine::ticket_keys(),
            cookie_key: cookie_key(),
            kept: house.kept(),
            seen: house.seen(),
            found: house.found(),
        };
        Ok((estate, sockets))
    }

    /// Returns copies of the sockets that clients connect to, for the Supervisor: of the listeners that are
    /// open and stay so, and of the admin side. The socket for other balancers is not among them: to them the
    /// next process is another balancer.
    ///
    /// # Errors
    /// Fails if there are no more files.
    pub(crate) fn listening(&self, engine: &Engine, stays: &dyn Fn(&Bound) -> bool) -> io::Result<SocketSet> {
        let mut set = SocketSet::default();
        let open = engine.sockets()?.into_iter().filter(|bound| !bound.sockets.is_empty() && stays(bound));
        open.for_each(|bound| set.push_listener(bound));
        for (name, socket) in lock(&self.others).iter().filter(|(name, _)| *name != "fleet") {
            set.push(name, socket.try_clone()?);
        }
        Ok(set)
    }

    /// Sends the next process the counts of this one, once a second and at the end, until everything has
    /// ended. It runs in a thread that may wait; `over` returns `true` at the end.
    pub(crate) fn tell_the_rest(&self, engine: &Engine, over: impl Fn(Duration) -> bool) {
        let Some((mut channel, mut told)) = lock(&self.heir).as_mut().and_then(|taken| taken.rest.take())
        else {
            return;
        };
        loop {
            let last = over(TELL);
            let now = engine.counts();
            // A process that has ended itself, or does not read, gets no more.
            if channel.say(COUNTS, &now.since(&told), &[]).is_err() || last {
                return;
            }
            told = now;
        }
    }
}

/// Hands the sockets over, and waits until the next process is ready.
fn talk(
    channel: &mut Channel,
    child: &mut Child,
    estate: &Estate,
    sockets: &[OwnedFd],
    (patience, end): (Duration, Instant),
) -> Result<Ready, String> {
    let left = || Some(end.saturating_duration_since(Instant::now()));
    let lost = |error: io::Error, child: &mut Child| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it was not ready within {} s", patience.as_secs_f64())
        }
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            ended(child)
        }
        _ => format!("it cannot be talked to: {error}"),
    };
    let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
    let told = channel.patience(left()).and_then(|()| channel.say(ESTATE, estate, &borrowed));
    told.map_err(|error| lost(error, child))?;
    match channel.patience(left()).and_then(|()| channel.receive()) {
        Ok(Some((message, _))) => understood(message, READY).map(Message::body).inspect_err(|_| {
            channel.closed_within(ENDING);
        }),
        Ok(None) => Err(ended(child)),
        Err(error) => Err(lost(error, child)),
    }
}

/// Sends the legacy, and waits until the next process serves; returns the counts of that moment. `ended`
/// returns how the process ended if it has.
pub(super) fn bequeath(
    channel: &mut Channel,
    engine: &Engine,
    house: &dyn House,
    ready: &Ready,
    ended: &mut dyn FnMut() -> String,
) -> Result<Counts, String> {
    // From here on datagrams wait, for a few milliseconds.
    let flows = engine.lend_flows();
    let mut left = Left { flows: flows.iter().map(|flow| flow.about.clone()).collect(), ..house.left() };
    let sockets: Vec<BorrowedFd<'_>> = flows.iter().map(|flow| flow.socket.as_fd()).collect();
    let counts = left.engine.counts();
    let mut hear = |channel: &mut Channel, wanted: &str| match channel.receive() {
        Ok(Some((message, _))) => understood(message, wanted).map(drop),
        Ok(None) => Err(ended()),
        Err(error) => Err(format!("it was ready, but does not serve: {error}")),
    };
    channel.patience(Some(TAKING)).map_err(broken)?;
    // An heir of an older version takes the past with the rest or not at all.
    (left.later, left.fleet) = if ready.later { (true, None) } else { (false, house.pause()) };
    channel.say(LEGACY, &left, &sockets).map_err(broken)?;
    if left.later {
        hear(channel, TAKEN)?;
        channel.say(PAST, &house.pause(), &[]).map_err(broken)?;
    }
    hear(channel, SERVING)?;
    Ok(counts)
}

fn broken(error: io::Error) -> String {
    format!("it cannot be told what it takes over: {error}")
}

/// Returns the awaited message, or the reason why it does not come.
fn understood(message: Message, wanted: &str) -> Result<Message, String> {
    match &*message.is {
        FAILED => Err(message.body::<Failed>().why),
        is if is == wanted => Ok(message),
        is => Err(format!("it said `{is}`, which makes no sense")),
    }
}

/// Returns the message about a process that ended without a reason.
fn ended(child: &mut Child) -> String {
    let end = Instant::now() + ENDING;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return format!("it ended before it was ready: {}", how(status)),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            _ => return "it closed the connection before it was ready".into(),
        }
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
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
        assert!(super::outlived(1).unwrap_err().contains("container"));
        assert_eq!(super::outlived(2), Ok(()));
    }
}
