//! The errors of starting and reloading the data plane.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The resource that is not available, and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener cannot be bound.
    #[error("cannot listen on {address}: {}", bind_hint(.source, .address))]
    Bind {
        /// The address as configured.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A reload requests an address that overlaps an open one.
    #[error(
        "cannot listen on {address}: this balancer listens on {open} already; to change one for the other, \
         restart it"
    )]
    Overlap {
        /// The address as configured.
        address: SocketAddr,
        /// The address of the open listener.
        open: SocketAddr,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {}: {source}", .path.display())]
    AccessLog {
        /// The path as configured.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses a thread or an epoll instance.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A reload requests a change that only a restart can make.
    #[error("{0} cannot be changed by a reload: restart instead")]
    Fixed(&'static str),
    /// A worker does not take orders.
    #[error("a data-plane thread does not answer; the configuration is in force only in part: restart")]
    Stuck,
}

fn bind_hint(error: &io::Error, address: &SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("the port is in use; `ss -lntup 'sport = :{}'` shows by whom", address.port())
        }
        io::ErrorKind::PermissionDenied if address.port() < 1024 => {
            "permission denied; ports below 1024 need root or `setcap cap_net_bind_service=+ep` on the binary"
                .into()
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        _ => error.to_string(),
    }
}
