//! The server name of a client's connection.

use super::ListenerTls;
use super::shown::normal;

/// The server name of a connection, and the other names that the listener serves.
pub(crate) struct Origin {
    tls: ListenerTls,
    /// The server name (SNI), normalized for comparison.
    name: Box<str>,
}

impl Origin {
    pub(super) fn new(tls: &ListenerTls, name: &str) -> Self {
        Self { tls: tls.clone(), name: normal(name).into() }
    }

    /// Returns `true` if a request for `host` must not use this connection. A client may request everything
    /// that its server's certificate is valid for (RFC 9113 section 9.1.1). It cannot know that another
    /// certificate or another group serves a part of that.
    pub(crate) fn misdirects(&self, host: &str) -> bool {
        // Mostly the names are equal, and no lookup is required.
        !host.eq_ignore_ascii_case(&self.name)
            && normal(host) != *self.name
            && self.tls.elsewhere(&self.name, host)
    }
}
