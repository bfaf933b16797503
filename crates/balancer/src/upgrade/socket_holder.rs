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

use super::channel::HandoffChannel;
use super::{HELD, HOLD, SocketDescription, SocketSet, TAKE};

/// The variable in a balancer's environment with the address at which its Supervisor takes sockets.
pub const HOLDER_VARIABLE: &str = "PLIMSOLL_SUPERVISE_SOCKETS";

/// The time for the Supervisor to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two attempts to connect to a Supervisor that is gone, at first and at most; it doubles
/// with each.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A request of a balancer to its Supervisor.
pub enum HolderRequest {
    /// Asks for copies of the held sockets.
    Take,
    /// Asks to hold these in place of the held ones.
    Hold(SocketSet),
}

/// Reads the requests of one balancer until it closes the connection, or is refused. `grant` returns its
/// sockets; `None` refuses it.
pub fn serve_requests(
    stream: UnixStream,
    grant: impl Fn(HolderRequest) -> Option<SocketSet>,
) -> io::Result<()> {
    let mut channel = HandoffChannel::new(stream);
    while let Some((message, sockets)) = channel.receive()? {
        let request = match &*message.is {
            TAKE => HolderRequest::Take,
            HOLD => {
                let descriptions: Vec<SocketDescription> = message.body();
                if descriptions.iter().map(|description| description.count).sum::<usize>() != sockets.len() {
                    return Err(io::Error::other("there are not as many sockets as it says"));
                }
                HolderRequest::Hold(SocketSet { descriptions, sockets })
            }
            message_type => return Err(io::Error::other(format!("it said `{message_type}`"))),
        };
        let Some(socket_set) = grant(request) else { return Ok(()) };
        channel.send(HELD, &socket_set.descriptions, &socket_set.borrowed())?;
    }
    Ok(())
}

/// Returns the place where the Supervisor of this process takes sockets, if one started it.
fn holder_path() -> Option<PathBuf> {
    std::env::var_os(HOLDER_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Takes the sockets that the Supervisor holds for this process: none without a Supervisor or held sockets.
///
/// # Errors
/// Fails if the Supervisor does not give them.
pub(super) fn take_held_sockets() -> Result<Option<SocketSet>, String> {
    let Some(path) = holder_path() else { return Ok(None) };
    let result = (|| {
        let mut channel = connect(&path)?;
        channel.set_timeout(Some(ANSWER_TIMEOUT))?;
        channel.send(TAKE, &json!({}), &[])?;
        match channel.receive()? {
            Some((message, sockets)) if message.is == HELD => {
                Ok(SocketSet { descriptions: message.body(), sockets })
            }
            _ => Err(io::Error::other("it does not know this process")),
        }
    })();
    let take_error = |error: io::Error| {
        format!("the Supervisor does not give what it holds for this process: {}: {error}", path.display())
    };
    result.map(Some).map_err(take_error)
}

/// Connects to a Supervisor of the same user, or of root.
fn connect(path: &Path) -> io::Result<HandoffChannel> {
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.file_type().is_socket()
        || ![0, rustix::process::geteuid().as_raw()].contains(&metadata.uid())
    {
        return Err(io::Error::other("that is no socket of this user"));
    }
    let stream = UnixStream::connect(path)?;
    // The timeout is for writes alone: the thread that reads waits for as long as nothing is asked.
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(HandoffChannel::new(stream))
}

/// The connection to the Supervisor that holds the sockets of this process.
pub(crate) struct SocketHolder {
    connection: Mutex<HolderConnection>,
    /// The signal that the Supervisor has answered, or that the connection is lost.
    change_condvar: Condvar,
}

#[derive(Default)]
struct HolderConnection {
    channel: Option<HandoffChannel>,
    /// The numbers of messages that were sent, and of answers to them, on all connections.
    sent_count: u64,
    answered_count: u64,
    /// The sockets that the Supervisor holds, if they were sent on this connection.
    held_descriptions: Option<Vec<SocketDescription>>,
    /// Whether it holds nothing any more.
    released: bool,
}

impl SocketHolder {
    /// Connects to the Supervisor, if one started this process, and has it hold the sockets of `listening`:
    /// now, and whenever there is another Supervisor. `listening` returns nothing once another process has
    /// taken over.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub(crate) fn start(
        listening_sockets: impl Fn() -> Option<SocketSet> + Send + 'static,
    ) -> io::Result<Option<Arc<Self>>> {
        let Some(path) = holder_path() else { return Ok(None) };
        let holder = Arc::new(Self { connection: Mutex::default(), change_condvar: Condvar::new() });
        let holder_handle = Arc::clone(&holder);
        thread::Builder::new()
            .name("supervisor".into())
            .spawn(move || holder_handle.run_connection(&path, &listening_sockets))?;
        Ok(Some(holder))
    }

    /// Holds these in place of the held ones, if they differ. Returns once the Supervisor has closed those
    /// before, or after a second.
    pub(crate) fn hold(&self, listening_sockets: impl FnOnce() -> Option<SocketSet>) {
        let mut line = self.lock();
        if line.channel.is_some()
            && !line.released
            && let Some(socket_set) = listening_sockets()
        {
            line.send_sockets(&socket_set);
            drop(self.wait_answered(line));
        }
    }

    /// Ends all holding. Returns once the Supervisor has closed its copies, or after a second.
    pub(crate) fn release(&self) {
        let mut line = self.lock();
        if !std::mem::replace(&mut line.released, true) {
            line.send_sockets(&SocketSet::default());
            line = self.wait_answered(line);
        }
        if let Some(channel) = &line.channel {
            channel.hang_up();
        }
    }

    fn wait_answered<'l>(&self, line: MutexGuard<'l, HolderConnection>) -> MutexGuard<'l, HolderConnection> {
        let is_waiting =
            |line: &mut HolderConnection| line.channel.is_some() && line.answered_count < line.sent_count;
        let wait_result = self.change_condvar.wait_timeout_while(line, ANSWER_TIMEOUT, is_waiting);
        wait_result.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Keeps a connection, and reads the Supervisor's answers.
    fn run_connection(&self, path: &Path, listening_sockets: &dyn Fn() -> Option<SocketSet>) {
        let mut pause = RECONNECT_DELAYS.0;
        loop {
            if let Ok(mut channel) = connect(path) {
                if !self.start_connection(&channel, listening_sockets) {
                    return;
                }
                while let Ok(Some(_)) = channel.receive() {
                    // The Supervisor is there, and knows this process.
                    pause = RECONNECT_DELAYS.0;
                    self.lock().answered_count += 1;
                    self.change_condvar.notify_all();
                }
            }
            let mut line = self.lock();
            (line.channel, line.answered_count) = (None, line.sent_count);
            let is_released = line.released;
            drop(line);
            self.change_condvar.notify_all();
            if is_released {
                return;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(RECONNECT_DELAYS.1);
        }
    }

    /// Begins a connection with the sockets to hold; returns `false` if there is nothing to hold any more.
    fn start_connection(
        &self,
        channel: &HandoffChannel,
        listening_sockets: &dyn Fn() -> Option<SocketSet>,
    ) -> bool {
        let mut line = self.lock();
        if line.released {
            return false;
        }
        let Some(socket_set) = listening_sockets() else { return false };
        (line.channel, line.held_descriptions) = (channel.try_clone().ok(), None);
        line.send_sockets(&socket_set);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HolderConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HolderConnection {
    fn send_sockets(&mut self, socket_set: &SocketSet) {
        let Some(channel) = &mut self.channel else { return };
        if self.held_descriptions.as_ref() == Some(&socket_set.descriptions) {
            return;
        }
        match channel.send(HOLD, &socket_set.descriptions, &socket_set.borrowed()) {
            Ok(()) => {
                self.sent_count += 1;
                self.held_descriptions = Some(socket_set.descriptions.clone());
            }
            // The thread that reads begins anew.
            Err(_) => channel.hang_up(),
        }
    }
}
