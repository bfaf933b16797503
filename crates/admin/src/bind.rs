//! Open the doors, or say in one line why not.
//!
//! The control socket must never be open to others, not even between `bind` and `chmod`. Linux gives the
//! file of a unix socket the mode of the socket's own inode, so that is narrowed before `bind`; the file is
//! then 0600 from its first moment, without touching the umask of the whole process.
//!
//! A socket file outlives its process. One that refuses connections is such a leftover and is replaced; one
//! that answers is not. Look, remove and bind are done under a lock on the directory (the kernel frees it
//! when its holder dies), else two processes that start at once could both find the leftover and the second
//! would remove the first one's new socket.

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

use crate::Error;

/// Opens a TCP door, on a socket that somebody else bound if there is one; `key` is its name in `[admin]`.
pub(crate) async fn listener(
    addr: SocketAddr,
    key: &str,
    given: Option<OwnedFd>,
) -> Result<TcpListener, Error> {
    let bound = match given {
        Some(given) => adopted(given),
        None => TcpListener::bind(addr).await,
    };
    bound.map_err(|why| {
        let hint = match why.kind() {
            ErrorKind::AddrInUse => {
                format!("stop the process that has it, or set [admin] {key} to another address")
            }
            ErrorKind::AddrNotAvailable => {
                format!("set [admin] {key} to an address of this machine (see `ip address`)")
            }
            ErrorKind::PermissionDenied => format!("set [admin] {key} to a port above 1023"),
            _ => format!("set [admin] {key} to another address"),
        };
        Error::Listen { addr, why, hint }
    })
}

fn adopted(given: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(given);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The control socket; its file is removed with it, unless another process has taken the socket over.
pub(crate) struct Control {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to remove no other.
    file: (u64, u64),
    left: Arc<AtomicBool>,
}

impl Control {
    /// The socket that another process made, if it is the one at this path, or else a new one. Once `left` is true another
    /// process has it.
    pub(crate) async fn open(
        path: &Path,
        given: Option<OwnedFd>,
        left: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        match given.and_then(|given| Self::adopt(path, given, &left)) {
            Some(control) => Ok(control),
            None => {
                left.store(false, Relaxed);
                Self::make(path, left).await
            }
        }
    }

    /// `None` if the file at the path is another's, or gone: nobody would come by it.
    fn adopt(path: &Path, given: OwnedFd, left: &Arc<AtomicBool>) -> Option<Self> {
        let listener = std::os::unix::net::UnixListener::from(given);
        listener.set_nonblocking(true).ok()?;
        let local = listener.local_addr().ok()?;
        let made = fs::symlink_metadata(path).ok().filter(|made| made.file_type().is_socket())?;
        if local.as_pathname() != Some(path) || made.mode() & 0o177 != 0 {
            return None;
        }
        let listener = UnixListener::from_std(listener).ok()?;
        Some(Self { listener, path: path.to_owned(), file: (made.dev(), made.ino()), left: Arc::clone(left) })
    }

    /// Makes the socket, in place of one that a dead process left.
    async fn make(path: &Path, left: Arc<AtomicBool>) -> Result<Self, Error> {
        let fail = |why: String, hint| Error::Control { path: path.to_owned(), why, hint };
        let _lock = lock(path);
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(fail(
                    "something that is not a socket is in its place".into(),
                    "remove it, or set [admin] control to another path",
                ));
            }
            if !dead(path).await {
                return Err(fail(
                    "a running process answers there".into(),
                    "stop it (plimsoll stop), or set [admin] control to another path",
                ));
            }
            fs::remove_file(path).map_err(|error| {
                fail(
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
            fail(error.to_string(), hint)
        })?;
        let made = fs::symlink_metadata(path)
            .map_err(|error| fail(format!("it vanished: {error}"), "look for what removes files there"))?;
        let control = Self { listener, path: path.to_owned(), file: (made.dev(), made.ino()), left };
        if made.mode() & 0o177 != 0 {
            return Err(fail(
                format!("its mode is {:o}, open to others", made.mode() & 0o777),
                "set [admin] control to a path on a local file system",
            ));
        }
        Ok(control)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.left.load(Relaxed) {
            return;
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.file) {
            // Left behind it does no harm: the next start finds that nobody answers.
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

/// Does nobody listen there? In doubt somebody does.
async fn dead(path: &Path) -> bool {
    match tokio::time::timeout(Duration::from_secs(2), UnixStream::connect(path)).await {
        Ok(Err(error)) => matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound),
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// Locks the directory of `path`. After two seconds goes on without: whoever holds it so long does not
/// start a balancer.
fn lock(path: &Path) -> Option<File> {
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
