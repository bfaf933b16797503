//! Opens the endpoints, or returns one line with the reason of the failure.
//!
//! The control socket must never be open to others, not even between `bind` and `chmod`. Linux gives the file
//! of a unix socket the mode of the socket's own inode, which is therefore restricted before `bind`. The file
//! has mode 0600 from the beginning, and the umask of the process stays unchanged.
//!
//! A socket file outlives its process. A file that refuses connections is stale and is replaced; one that
//! accepts them is not. The check, the removal and the bind run under a lock on the directory, which the
//! kernel releases when its holder dies. Without it, two processes that start at once could both find the
//! stale file, and the second would remove the first one's new socket.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

use crate::StartError;

/// Opens a TCP endpoint, on a socket that another process bound if there is one; `key` is its name in
/// `[admin]`.
pub(crate) async fn bind_listener(
    addr: SocketAddr,
    key: &str,
    inherited: Option<OwnedFd>,
) -> Result<TcpListener, StartError> {
    let listener = match inherited {
        Some(inherited) => adopt_listener(inherited),
        None => TcpListener::bind(addr).await,
    };
    listener.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                format!("stop the process that has it, or set [admin] {key} to another address")
            }
            ErrorKind::AddrNotAvailable => {
                format!("set [admin] {key} to an address of this machine (see `ip address`)")
            }
            ErrorKind::PermissionDenied => format!("set [admin] {key} to a port above 1023"),
            _ => format!("set [admin] {key} to another address"),
        };
        StartError::Listen { addr, why: error, hint }
    })
}

fn adopt_listener(inherited: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(inherited);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The control socket. Its file is removed on drop, unless another process has taken the socket over.
pub(crate) struct ControlSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// The device and inode of the file, so that no other file is removed.
    file: (u64, u64),
    is_handed_over: Arc<AtomicBool>,
}

impl ControlSocket {
    /// Takes the socket of another process if it is the one at this path, or else creates a new one. Once
    /// `left` is true another process owns it.
    pub(crate) async fn open(
        path: &Path,
        inherited: Option<OwnedFd>,
        is_handed_over: Arc<AtomicBool>,
    ) -> Result<Self, StartError> {
        match inherited.and_then(|inherited| Self::adopt(path, inherited, &is_handed_over)) {
            Some(control) => Ok(control),
            None => {
                is_handed_over.store(false, Relaxed);
                Self::create(path, is_handed_over).await
            }
        }
    }

    /// Takes over a socket; `None` if the file at the path is not its own, or is gone: clients could not
    /// reach it.
    fn adopt(path: &Path, inherited: OwnedFd, is_handed_over: &Arc<AtomicBool>) -> Option<Self> {
        let listener = std::os::unix::net::UnixListener::from(inherited);
        listener.set_nonblocking(true).ok()?;
        let local = listener.local_addr().ok()?;
        let metadata = fs::symlink_metadata(path).ok().filter(|metadata| metadata.file_type().is_socket())?;
        if local.as_pathname() != Some(path) || metadata.mode() & 0o177 != 0 {
            return None;
        }
        let listener = UnixListener::from_std(listener).ok()?;
        Some(Self {
            listener,
            path: path.to_owned(),
            file: (metadata.dev(), metadata.ino()),
            is_handed_over: Arc::clone(is_handed_over),
        })
    }

    /// Creates the socket, and replaces a stale file.
    async fn create(path: &Path, is_handed_over: Arc<AtomicBool>) -> Result<Self, StartError> {
        let control_error =
            |reason: String, hint| StartError::Control { path: path.to_owned(), why: reason, hint };
        let _lock = lock_directory(path);
        if let Ok(metadata) = fs::symlink_metadata(path) {
            if !metadata.file_type().is_socket() {
                return Err(control_error(
                    "something that is not a socket is in its place".into(),
                    "remove it, or set [admin] control to another path",
                ));
            }
            if !is_abandoned(path).await {
                return Err(control_error(
                    "a running process answers there".into(),
                    "stop it (plimsoll stop), or set [admin] control to another path",
                ));
            }
            fs::remove_file(path).map_err(|error| {
                control_error(
                    format!("a dead process left it and it cannot be removed: {error}"),
                    "remove it, or set [admin] control to another path",
                )
            })?;
        }
        let listener = bind(path).map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::NotFound => "create its directory, or set [admin] control to another path",
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                    "set [admin] control to a path in a directory that this user may write"
                }
                ErrorKind::InvalidInput => "set [admin] control to a path of at most 107 bytes",
                _ => "set [admin] control to another path",
            };
            control_error(error.to_string(), hint)
        })?;
        let metadata = fs::symlink_metadata(path).map_err(|error| {
            control_error(format!("it vanished: {error}"), "look for what removes files there")
        })?;
        let control =
            Self { listener, path: path.to_owned(), file: (metadata.dev(), metadata.ino()), is_handed_over };
        if metadata.mode() & 0o177 != 0 {
            return Err(control_error(
                format!("its mode is {:o}, open to others", metadata.mode() & 0o777),
                "set [admin] control to a path on a local file system",
            ));
        }
        Ok(control)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if self.is_handed_over.load(Relaxed) {
            return;
        }
        if fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file)
        {
            // A remaining file does no harm: the next start finds that it is stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    File::from(socket.as_fd().try_clone_to_owned()?).set_permissions(Permissions::from_mode(0o600))?;
    socket.bind(path)?;
    socket.listen(128)
}

/// Returns `true` if no process listens there. In doubt one does.
async fn is_abandoned(path: &Path) -> bool {
    match tokio::time::timeout(Duration::from_secs(2), UnixStream::connect(path)).await {
        Ok(Err(error)) => matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound),
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// Locks the directory of `path`. Continues without the lock after two seconds: a holder for that long is not
/// starting a balancer.
fn lock_directory(path: &Path) -> Option<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let file = File::open(directory.unwrap_or_else(|| Path::new("."))).ok()?;
    for _ in 0..40 {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}
