//! Whom a client's connection is for.

use super::ListenerTls;
use super::shown::normal;

/// What a client asked for when it came, and who else it could have asked for there.
pub(crate) struct Origin {
    tls: ListenerTls,
    /// The server's name (SNI), as names are compared.
    name: Box<str>,
}

impl Origin {
    pub(super) fn new(tls: &ListenerTls, name: &str) -> Self {
        Self { tls: tls.clone(), name: normal(name).into() }
    }

    /// Is a request for `host` wrong on this connection? A client may ask on it for whatever its certificate is good for (RFC 9113
    /// section 9.1.1), and cannot know that another certificate or another group is there for some of it.
    pub(crate) fn misdirects(&self, host: &str) -> bool {
        // Mostly it is the same, and nothing is to be looked for.
        !host.eq_ignore_ascii_case(&self.name)
            && normal(host) != *self.name
            && self.tls.elsewhere(&self.name, host)
    }
}
