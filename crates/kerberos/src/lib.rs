//! Kerberos tickets in place of a password: what `Authorization: Negotiate` carries (RFC 4559), made and judged by the
//! system's GSSAPI library.
//!
//! A client gets a ticket for `HTTP@HOST` from its credential cache, an [`Initiator`] makes a token of it, an [`Acceptor`]
//! with the key of that service in its keytab says whose it is and proves in its answer that it has the key. Each token
//! is one request's: the library keeps those that it took and takes none twice.
//!
//! A token holds on one connection only. Both sides put into it what only the two ends of their TLS connection know, the
//! channel binding `tls-exporter` (RFC 9266): 32 bytes that TLS 1.3 derives from the handshake. The older
//! `tls-server-end-point` (RFC 5929) is a hash of the server's certificate: a token would hold on every connection to
//! whoever has that certificate, a host that shares it included, and all that kept it from being used again would be the
//! list of tokens that were seen. MIT's library takes a token without a binding for as good as one with the right one; here
//! it is refused.
//!
//! The library is called by whoever calls this: a call may look into files, and an [`Initiator`]'s asks the network for a
//! ticket. Without the feature `gssapi` no library is linked, and whatever is begun here says so.

#[cfg(not(feature = "gssapi"))]
mod absent;
#[cfg(feature = "gssapi")]
mod accept;
#[cfg(feature = "gssapi")]
mod initiate;
#[cfg(feature = "gssapi")]
mod token;

use std::time::Duration;

#[cfg(not(feature = "gssapi"))]
pub use absent::{Acceptor, Initiator};
#[cfg(feature = "gssapi")]
pub use accept::Acceptor;
#[cfg(feature = "gssapi")]
pub use initiate::Initiator;

/// Is the library built in?
pub const BUILT_IN: bool = cfg!(feature = "gssapi");

/// What is said where it is not.
pub const ABSENT: &str = "this plimsoll was built without Kerberos: build it with --features kerberos";

/// The label under which TLS exports a channel's binding (RFC 9266, section 2); the context is empty.
pub const LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// What only the two ends of a TLS connection know, exported by them under [`LABEL`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Channel(pub [u8; 32]);

impl Channel {
    /// As GSSAPI takes it: behind the name of the kind of binding (RFC 5056, section 2.1).
    #[cfg(feature = "gssapi")]
    fn binding(&self) -> Vec<u8> {
        [b"tls-exporter:".as_slice(), &self.0].concat()
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channel")
    }
}

/// Whose ticket it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// `alice@EXAMPLE.ORG`.
    pub principal: String,
    /// How long the ticket is still good for.
    pub lifetime: Duration,
    /// The answer, which proves that we have the service's key: what `WWW-Authenticate: Negotiate` is to say.
    pub reply: String,
}
