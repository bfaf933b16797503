//! etcd, version 3, as its client: calls of gRPC over HTTP/2, over TLS where an endpoint says `https`.
//!
//! Endpoints are tried in turn, each for the timeout as a whole: one that cannot be had or does not answer is left for the next. A user
//! is proved by a password from a file; the token that is had for it is renewed when etcd does not know it any more, and the password is
//! read again then. A connection on which nothing comes back for ten seconds is given up.

mod client;
mod line;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use client::{Client, Watching};

/// Where etcd is, and who asks.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdSettings {
    /// Of one cluster; at least one.
    pub endpoints: Vec<Endpoint>,
    /// A user and the file of their password; none where etcd asks for none.
    pub user: Option<(String, PathBuf)>,
    /// For endpoints with TLS.
    pub tls: TlsFiles,
    /// For a connection, and for a call.
    pub timeout: Duration,
}

/// One member of a cluster of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Over TLS?
    pub https: bool,
    /// A name, or an address without brackets.
    pub host: String,
    /// Not 0.
    pub port: u16,
}

/// Files of PEM, read at each new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities of etcd's certificates; those of the system if `None`.
    pub ca: Option<PathBuf>,
    /// A certificate of ours and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Endpoint {
    /// `host:port`, with brackets where they are needed.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}", if self.https { "s" } else { "" }, self.authority())
    }
}

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It did not get there: nothing was done.
    Away(String),
    /// It may have got there: nobody knows whether it was done.
    Unsure(String),
    /// etcd says no: the code of gRPC, and why.
    Refused(u32, String),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) | Self::Unsure(why) | Self::Refused(_, why) => f.write_str(why),
        }
    }
}
