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
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};

use crate::Error;

/// Opens a TCP door; `key` is its name in `[admin]`.
pub(crate) async fn listener(addr: SocketAddr, key: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(addr).await.map_err(|why| {
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

/// The control socket; its file is removed with it.
pub(crate) struct Control {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to remove no other.
    file: (u64, u64),
}

impl Control {
    /// Makes the socket, in place of one that a dead process left.
    pub(crate) async fn open(path: &Path) -> Result<Self, Error> {
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
        let control = Self { listener, path: path.to_owned(), file: (made.dev(), made.ino()) };
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
