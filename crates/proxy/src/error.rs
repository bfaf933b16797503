//! Why the data plane cannot do what it is told.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What cannot be had, and what to do about it, in one line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener cannot be bound.
    #[error("cannot listen on {address}: {}", bind_hint(.source, .address))]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// From the system.
        source: io::Error,
    },
    /// A reload asks for an address that overlaps one which is open.
    #[error(
        "cannot listen on {address}: this balancer listens on {open} already; to change one for the other, restart it"
    )]
    Overlap {
        /// As configured.
        address: SocketAddr,
        /// Of the listener that is open.
        open: SocketAddr,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {}: {source}", .path.display())]
    AccessLog {
        /// As configured.
        path: PathBuf,
        /// From the system.
        source: io::Error,
    },
    /// The system refuses a thread or an epoll instance.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A reload asks for what only a restart can do.
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
