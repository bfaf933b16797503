//! Listening sockets of balancers, held while there is no process that serves them.
//!
//! A balancer sends copies of its sockets (`succession::holder`). If it fails, clients who connect wait in
//! the queues of these until the next process has taken them. They are closed when the balancer is stopped on
//! purpose, and when no process has served for too long: a client that is refused can go elsewhere.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_brain::Time;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::{mpsc, oneshot};

use plimsoll_balancer::{HolderRequest, SocketSet, serve_requests};

/// The number of balancers that are connected at once, each with a thread of its own.
const MAX_CONNECTIONS: usize = 256;
/// The number of connections that may wait to be accepted.
const BACKLOG: u32 = 64;

/// A request of the process with this id.
pub(super) struct SocketRequest {
    pub(super) pid: i32,
    pub(super) request: HolderRequest,
    /// The sender of its sockets; an unknown process gets none.
    pub(super) reply: oneshot::Sender<SocketSet>,
}

/// Sockets that are held for one process and its successors.
#[derive(Debug, Default)]
pub(super) struct HeldSockets {
    socket_set: SocketSet,
    /// The time until which they are held, if no process serves.
    expires_at: Option<Time>,
}

impl HeldSockets {
    /// Returns copies for the next process.
    pub(super) fn copies(&self) -> SocketSet {
        self.socket_set.try_clone().unwrap_or_else(|error| {
            tracing::warn!("listening sockets cannot be copied: {error}");
            SocketSet::default()
        })
    }

    /// Holds these in place of those before; returns their number.
    pub(super) fn replace(&mut self, socket_set: SocketSet) -> usize {
        *self = Self { socket_set, expires_at: None };
        self.socket_set.count()
    }

    /// Sets the time until which they are held, as no process serves any more. An earlier call's time stays.
    pub(super) fn expire_at(&mut self, expires_at: Time) {
        if self.socket_set.count() > 0 {
            self.expires_at.get_or_insert(expires_at);
        }
    }

    /// Returns when [`Self::close_expired`] wants to be called.
    pub(super) fn expires_at(&self) -> Option<Time> {
        self.expires_at
    }

    /// Closes them if their time is over; returns `true` if it did.
    pub(super) fn close_expired(&mut self, now: Time) -> bool {
        let is_expired = self.expires_at.is_some_and(|expires_at| expires_at <= now);
        if is_expired {
            self.close();
        }
        is_expired
    }

    /// Closes them.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }
}

/// Takes connections of balancers at a path. The peer must be of this user or of root.
///
/// # Errors
/// Fails if the path cannot be bound.
pub(super) fn listen(path: &Path, request_sender: mpsc::Sender<SocketRequest>) -> io::Result<()> {
    match fs::remove_file(path) {
        // Only one Supervisor has the control socket beside it: an existing file is of one that has ended.
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = UnixSocket::new_stream()?;
    // The file gets the mode of the socket: it is never open to others.
    fs::File::from(socket.as_fd().try_clone_to_owned()?)
        .set_permissions(fs::Permissions::from_mode(0o600))?;
    socket.bind(path)?;
    tokio::spawn(accept(socket.listen(BACKLOG)?, request_sender));
    Ok(())
}

async fn accept(listener: UnixListener, request_sender: mpsc::Sender<SocketRequest>) {
    let connection_tracker = Arc::new(());
    loop {
        match listener.accept().await {
            Ok((stream, _)) if Arc::strong_count(&connection_tracker) <= MAX_CONNECTIONS => {
                let connection_guard = Arc::clone(&connection_tracker);
                if let Err(error) = serve_connection(stream, request_sender.clone(), connection_guard) {
                    tracing::warn!("a process that has sockets to be held is not heard: {error}");
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("cannot take sockets to be held: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Serves one process in a thread of its own, as sockets are received by calls that wait.
fn serve_connection(
    stream: UnixStream,
    request_sender: mpsc::Sender<SocketRequest>,
    connection_guard: Arc<()>,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let user_id = rustix::process::geteuid().as_raw();
    let Some(pid) = peer.pid().filter(|_| [0, user_id].contains(&peer.uid())) else {
        return Err(io::Error::other(format!("it is of user {}", peer.uid())));
    };
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    thread::Builder::new().name("holder".into()).spawn(move || {
        let _connection_guard = connection_guard;
        let grant = |request| {
            let (reply, answered) = oneshot::channel();
            request_sender.blocking_send(SocketRequest { pid, request, reply }).ok()?;
            answered.blocking_recv().ok()
        };
        if let Err(error) = serve_requests(stream, grant) {
            tracing::warn!("sockets of process {pid} are not held: {error}");
        }
    })?;
    Ok(())
}
