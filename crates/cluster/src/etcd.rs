//! An etcd client, version 3: gRPC calls over HTTP/2, over TLS for endpoints with `https`.
//!
//! Endpoints are tried in turn, each for the timeout as a whole; one that is unreachable or does not respond
//! is skipped. A user authenticates with a password from a file. If etcd rejects the token, the client reads
//! the password again and requests a new token. A connection without any response for ten seconds is closed.

mod client;
mod connection;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use client::{EtcdClient, WatchStream};

/// The cluster and the credentials.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdSettings {
    /// The endpoints of one cluster; at least one.
    pub endpoints: Vec<EtcdEndpoint>,
    /// The user and the password file; `None` without authentication.
    pub user: Option<(String, PathBuf)>,
    /// The files for endpoints with TLS.
    pub tls: TlsFiles,
    /// The time limit of a connection attempt, and of a call.
    pub timeout: Duration,
}

/// One member of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// Whether the connection uses TLS.
    pub https: bool,
    /// A name, or an address without brackets.
    pub host: String,
    /// The port; not 0.
    pub port: u16,
}

/// PEM files, read for each new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities of etcd's certificates; those of the system if `None`.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub client_identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdEndpoint {
    /// Returns `host:port`, with brackets where they are required.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}", if self.https { "s" } else { "" }, self.authority())
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EtcdError {
    /// The call did not reach etcd, so it had no effect.
    Unreachable(String),
    /// The call may have reached etcd, so its outcome is unknown.
    OutcomeUnknown(String),
    /// etcd rejected the call: the gRPC status code and the reason.
    Rejected(u32, String),
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::OutcomeUnknown(why) | Self::Rejected(_, why) => f.write_str(why),
        }
    }
}
