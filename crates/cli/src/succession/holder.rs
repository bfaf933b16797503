//! The copies of a balancer's listening sockets at the Supervisor. Clients who connect after the balancer was
//! killed wait for the next process in place of being refused.
//!
//! The environment of a balancer has the address at which the Supervisor takes sockets, a unix socket. At its
//! start a balancer asks for the held sockets ([`TAKE`]). Once it serves it sends copies of all its listening
//! sockets, and again whenever there are others ([`HOLD`]).
//!
//! Before it closes one on purpose it has the Supervisor close its copy: a client that connected to that
//! would wait in vain. If the Supervisor is killed the balancer connects to the next one, which knows it by
//! its process id.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::channel::Channel;
use super::{HELD, HOLD, Passed, SocketSet, TAKE};

/// The variable in a balancer's environment with the address at which its Supervisor takes sockets.
pub(crate) const HOLDER: &str = "PLIMSOLL_SUPERVISE_SOCKETS";

/// The time for the Supervisor to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two attempts to connect to a Supervisor that is gone, at first and at most; it doubles
/// with each.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A request of a balancer to its Supervisor.
pub(crate) enum Wish {
    /// Asks for copies of the held sockets.
    Take,
    /// Asks to hold these in place of the held ones.
    Hold(SocketSet),
}

/// Reads the requests of one balancer until it closes the connection, or is refused. `grant` returns its
/// sockets; `None` refuses it.
pub(crate) fn answer(stream: UnixStream, grant: impl Fn(Wish) -> Option<SocketSet>) -> io::Result<()> {
    let mut channel = Channel::new(stream);
    while let Some((message, sockets)) = channel.receive()? {
        let wish = match &*message.is {
            TAKE => Wish::Take,
            HOLD => {
                let passed: Vec<Passed> = message.body();
                if passed.iter().map(|one| one.count).sum::<usize>() != sockets.len() {
                    return Err(io::Error::other("there are not as many sockets as it says"));
                }
                Wish::Hold(SocketSet { passed, sockets })
            }
            is => return Err(io::Error::other(format!("it said `{is}`"))),
        };
        let Some(set) = grant(wish) else { return Ok(()) };
        channel.say(HELD, &set.passed, &set.borrowed())?;
    }
    Ok(())
}

/// Returns the place where the Supervisor of this process takes sockets, if one started it.
fn place() -> Option<PathBuf> {
    std::env::var_os(HOLDER).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Takes the sockets that the Supervisor holds for this process: none without a Supervisor or held sockets.
///
/// # Errors
/// Fails if the Supervisor does not give them.
pub(super) fn take() -> Result<Option<SocketSet>, String> {
    let Some(path) = place() else { return Ok(None) };
    let taken = (|| {
        let mut channel = connect(&path)?;
        channel.patience(Some(PATIENCE))?;
        channel.say(TAKE, &json!({}), &[])?;
        match channel.receive()? {
            Some((message, sockets)) if message.is == HELD => {
                Ok(SocketSet { passed: message.body(), sockets })
            }
            _ => Err(io::Error::other("it does not know this process")),
        }
    })();
    let unheld = |error: io::Error| {
        format!("the Supervisor does not give what it holds for this process: {}: {error}", path.display())
    };
    taken.map(Some).map_err(unheld)
}

/// Connects to a Supervisor of the same user, or of root.
fn connect(path: &Path) -> io::Result<Channel> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() || ![0, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        return Err(io::Error::other("that is no socket of this user"));
    }
    let stream = UnixStream::connect(path)?;
    // The timeout is for writes alone: the thread that reads waits for as long as nothing is asked.
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(Channel::new(stream))
}

/// The connection to the Supervisor that holds the sockets of this process.
pub(crate) struct Holder {
    line: Mutex<Line>,
    /// The signal that the Supervisor has answered, or that the connection is lost.
    changed: Condvar,
}

#[derive(Default)]
struct Line {
    channel: Option<Channel>,
    /// The numbers of messages that were sent, and of answers to them, on all connections.
    sent: u64,
    answered: u64,
    /// The sockets that the Supervisor holds, if they were sent on this connection.
    held: Option<Vec<Passed>>,
    /// Whether it holds nothing any more.
    over: bool,
}

impl Holder {
    /// Connects to the Supervisor, if one started this process, and has it hold the sockets of `listening`:
    /// now, and whenever there is another Supervisor. `listening` returns nothing once another process has
    /// taken over.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub(crate) fn start(
        listening: impl Fn() -> Option<SocketSet> + Send + 'static,
    ) -> io::Result<Option<Arc<Self>>> {
        let Some(path) = place() else { return Ok(None) };
        let holder = Arc::new(Self { line: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&holder);
        thread::Builder::new().name("supervisor".into()).spawn(move || own.stay(&path, &listening))?;
        Ok(Some(holder))
    }

    /// Holds these in place of the held ones, if they differ. Returns once the Supervisor has closed those
    /// before, or after a second.
    pub(crate) fn hold(&self, listening: impl FnOnce() -> Option<SocketSet>) {
        let mut line = self.lock();
        if line.channel.is_some()
            && !line.over
            && let Some(set) = listening()
        {
            line.say(&set);
            drop(self.answered(line));
        }
    }

    /// Ends all holding. Returns once the Supervisor has closed its copies, or after a second.
    pub(crate) fn release(&self) {
        let mut line = self.lock();
        if !std::mem::replace(&mut line.over, true) {
            line.say(&SocketSet::default());
            line = self.answered(line);
        }
        if let Some(channel) = &line.channel {
            channel.hang_up();
        }
    }

    fn answered<'l>(&self, line: MutexGuard<'l, Line>) -> MutexGuard<'l, Line> {
        let waits = |line: &mut Line| line.channel.is_some() && line.answered < line.sent;
        let waited = self.changed.wait_timeout_while(line, PATIENCE, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Keeps a connection, and reads the Supervisor's answers.
    fn stay(&self, path: &Path, listening: &dyn Fn() -> Option<SocketSet>) {
        let mut pause = PAUSES.0;
        loop {
            if let Ok(mut channel) = connect(path) {
                if !self.begin(&channel, listening) {
                    return;
                }
                while let Ok(Some(_)) = channel.receive() {
                    // The Supervisor is there, and knows this process.
                    pause = PAUSES.0;
                    self.lock().answered += 1;
                    self.changed.notify_all();
                }
            }
            let mut line = self.lock();
            (line.channel, line.answered) = (None, line.sent);
            let over = line.over;
            drop(line);
            self.changed.notify_all();
            if over {
                return;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Begins a connection with the sockets to hold; returns `false` if there is nothing to hold any more.
    fn begin(&self, channel: &Channel, listening: &dyn Fn() -> Option<SocketSet>) -> bool {
        let mut line = self.lock();
        if line.over {
            return false;
        }
        let Some(set) = listening() else { return false };
        (line.channel, line.held) = (channel.try_clone().ok(), None);
        line.say(&set);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn say(&mut self, set: &SocketSet) {
        let Some(channel) = &mut self.channel else { return };
        if self.held.as_ref() == Some(&set.passed) {
            return;
        }
        match channel.say(HOLD, &set.passed, &set.borrowed()) {
            Ok(()) => {
                self.sent += 1;
                self.held = Some(set.passed.clone());
            }
            // The thread that reads begins anew.
            Err(_) => channel.hang_up(),
        }
    }
}
