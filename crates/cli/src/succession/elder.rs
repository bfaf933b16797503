//! The process that is taken over from: it starts the next one, hands it all it has, and ends when its connections have.

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

/// How long a process that was started may take to be ready, where nobody says.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// To take what is known, once it is ready.
const TAKING: Duration = Duration::from_secs(30);
/// For a process that said why it failed to end.
const ENDING: Duration = Duration::from_secs(2);
/// How often it is told what is still counted here.
const TELL: Duration = Duration::from_secs(1);

/// Meant for this process alone.
const OURS: [&str; 5] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"];

/// What runs here, to be run again.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// What runs here. To be called when it begins, as its file may be replaced later.
    ///
    /// # Errors
    /// The system does not tell.
    pub(crate) fn here() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        // A path that was given is followed anew each time, as it may be a link to the version that is current.
        let given = arguments.next().map(PathBuf::from).filter(|path| path.components().count() > 1);
        let path = match given.map(std::path::absolute) {
            Some(Ok(path)) if path.exists() => path,
            _ => std::env::current_exe()?,
        };
        Ok(Self { path, arguments: arguments.collect() })
    }
}

/// One process at a time takes over from this one, and one only in the end.
pub(crate) struct Elder {
    program: Program,
    /// Sockets that are not the data plane's, until they are another process's.
    others: Mutex<Vec<(&'static str, OwnedFd)>>,
    /// Does the service manager keep the control socket?
    stays: bool,
    /// Is somebody about to?
    busy: AtomicBool,
    heir: Mutex<Option<Taken>>,
    gone: Notify,
}

/// It was taken over.
struct Taken {
    pid: u32,
    /// Until somebody tells the rest.
    rest: Option<(Channel, Counts)>,
}

/// What is there beside the data plane, and has to change hands.
pub(crate) trait House {
    /// Nothing is begun any more of which the next process would not know. Returns once that is so.
    ///
    /// # Errors
    /// It is not, and takes long.
    fn settle(&self) -> Result<(), String>;

    /// What a store has that ends with this process.
    fn kept(&self) -> Kept;

    /// What was seen last of a store that others have, too.
    fn seen(&self) -> Seen;

    /// What the sources of members said last.
    fn found(&self) -> Vec<Found>;

    /// What is known now, but for what [`pause`](Self::pause) tells. From now on it is the next process's business.
    fn left(&self) -> Left;

    /// Says nothing to other balancers any more; what another process has to know to go on as this one. As late as can be: whoever is
    /// silent for long is lost to them.
    fn pause(&self) -> Option<Past>;

    /// The upgrade failed: it is this process's business again. Nothing can be changed yet, and no other upgrade can begin.
    fn go_on(&self);

    /// All goes on: what was put off meanwhile can be done.
    fn catch_up(&self);

    /// The next process has begun; `fleet`: also as the same balancer among others.
    fn leave(&self, fleet: bool);
}

const UNDER_WAY: &str = "an upgrade is under way: wait for its end";

/// As long as it lives somebody is about to take over.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    /// None if somebody is already.
    fn begin(busy: &'a AtomicBool) -> Option<Self> {
        (!busy.swap(true, SeqCst)).then_some(Self(busy))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// Does another process go on when the one of this number ends?
///
/// # Errors
/// It is the first of its PID namespace, with which the system ends all others (pid_namespaces(7)).
fn outlived(pid: u32) -> Result<(), String> {
    if pid != 1 {
        return Ok(());
    }
    Err("this is process 1, as in a container: all others there end with it, so none can take over; start another container beside this \
         one, and stop this one then"
        .into())
}

/// Who took over.
#[derive(Clone, Debug)]
pub(crate) struct Took {
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// That were open here at that moment.
    pub(crate) connections: u64,
}

impl Elder {
    /// `others`: sockets that are not the data plane's, by what they are for; `stays`: does the service manager keep the control
    /// socket?
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

    /// Who has taken over, if somebody has.
    pub(crate) fn heir(&self) -> Option<u32> {
        lock(&self.heir).as_ref().map(|taken| taken.pid)
    }

    /// May something be changed here?
    ///
    /// # Errors
    /// Another process takes over just now, or has.
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

    /// Has another process take over; `binary` is run in place of this one's.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
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
                // From the moment on at which others hear of it there is little time to answer whoever asked.
                took.connections = engine.connections();
                // Nobody can have their addresses as long as somebody has them open.
                lock(&self.others).clear();
                // Only now: whoever is the main process may not change before that.
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
                // Only now: another one that begins meanwhile would take what is not there again yet.
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
                // Its last words may take as long as they like.
                let _ = channel.patience(Some(TELL));
                Ok((Took { pid: child.id(), version, connections: 0 }, channel, counts))
            }
            Err(why) => {
                engine.take_back_flows();
                // It has nothing that this process does not have.
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
        // With our copy of its end: the stream ends when the process does.
        drop(command);
        let child = child.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        Ok((child, Channel::new(ours)))
    }

    /// What the next process needs to get ready.
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

    /// Returns copies of the sockets that clients connect to, for the Supervisor: of the listeners that are open and stay so, and of the
    /// admin side. Without the one by which other balancers reach this process: to them the next one is another.
    ///
    /// # Errors
    /// There are no more files.
    pub(crate) fn listening(&self, engine: &Engine, stays: &dyn Fn(&Bound) -> bool) -> io::Result<SocketSet> {
        let mut set = SocketSet::default();
        let open = engine.sockets()?.into_iter().filter(|bound| !bound.sockets.is_empty() && stays(bound));
        open.for_each(|bound| set.push_listener(bound));
        for (name, socket) in lock(&self.others).iter().filter(|(name, _)| *name != "fleet") {
            set.push(name, socket.try_clone()?);
        }
        Ok(set)
    }

    /// Tells the next process, once a second and at the end, what is counted here until everything has ended. In a thread
    /// where it may wait; `over` says when that is.
    pub(crate) fn tell_the_rest(&self, engine: &Engine, over: impl Fn(Duration) -> bool) {
        let Some((mut channel, mut told)) = lock(&self.heir).as_mut().and_then(|taken| taken.rest.take())
        else {
            return;
        };
        loop {
            let last = over(TELL);
            let now = engine.counts();
            // One that has ended itself, or has no time, is told no more.
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

/// Tells all that is known, and waits until the next process serves; what was counted here by then. `ended` says what became of it if
/// it is there no more.
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
    // A process of before that was so takes it with the rest or not at all.
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

/// What was waited for, or why it does not come.
fn understood(message: Message, wanted: &str) -> Result<Message, String> {
    match &*message.is {
        FAILED => Err(message.body::<Failed>().why),
        is if is == wanted => Ok(message),
        is => Err(format!("it said `{is}`, which makes no sense")),
    }
}

/// What is to be said of a process that ended without a word.
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
