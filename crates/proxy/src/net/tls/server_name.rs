//! The server name of a client's connection.

use super::ListenerTls;
use super::sni_resolver::normalize_name;

/// The server name of a connection, and the other names that the listener serves.
pub(crate) struct SniContext {
    tls: ListenerTls,
    /// The server name (SNI), normalized for comparison.
    name: Box<str>,
}

impl SniContext {
    pub(super) fn new(tls: &ListenerTls, name: &str) -> Self {
        Self { tls: tls.clone(), name: normalize_name(name).into() }
    }

    /// Returns `true` if a request for `host` must not use this connection. A client may request everything
    /// that its server's certificate is valid for (RFC 9113 section 9.1.1). It cannot know that another
    /// certificate or another group serves a part of that.
    pub(crate) fn is_misdirected(&self, host: &str) -> bool {
        // Mostly the names are equal, and no lookup is required.
        !host.eq_ignore_ascii_case(&self.name)
            && normalize_name(host) != *self.name
            && self.tls.is_served_elsewhere(&self.name, host)
    }
}
