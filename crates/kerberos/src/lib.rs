//! Kerberos authentication for HTTP, `Authorization: Negotiate` (RFC 4559): creates and verifies tokens by
//! the system's GSSAPI library.
//!
//! A client gets a ticket for `HTTP@HOST` from its credential cache, and a [`TokenInitiator`] makes a token
//! from it. A [`TokenAcceptor`] with the service's key in its keytab verifies the token, returns the
//! client's principal, and proves in its reply that it has the key. Each token is valid for one request: the
//! library's replay cache rejects a second use.
//!
//! A token is valid on one connection only. Both sides include the channel binding `tls-exporter` (RFC 9266),
//! 32 bytes that TLS 1.3 derives from the handshake and only the two ends know. The older
//! `tls-server-end-point` (RFC 5929) is a hash of the server's certificate. With it, a token would be valid
//! on every connection to a host with that certificate, also one that shares it, and only the replay cache
//! would prevent reuse. MIT's library accepts a token without a binding like one with the right binding; this
//! crate refuses it.
//!
//! The library runs on the caller's thread: a call may read files, and a [`TokenInitiator`] may request a
//! ticket from the network. Without the feature `gssapi`, no library is linked, and every operation returns
//! [`NOT_BUILT_IN`].

#[cfg(feature = "gssapi")]
mod accept;
#[cfg(feature = "gssapi")]
mod initiate;
#[cfg(feature = "gssapi")]
mod token;
#[cfg(not(feature = "gssapi"))]
mod unavailable;

use std::time::Duration;

#[cfg(feature = "gssapi")]
pub use accept::TokenAcceptor;
#[cfg(feature = "gssapi")]
pub use initiate::TokenInitiator;
#[cfg(not(feature = "gssapi"))]
pub use unavailable::{TokenAcceptor, TokenInitiator};

/// Whether the GSSAPI library is built in.
pub const BUILT_IN: bool = cfg!(feature = "gssapi");

/// The error message of a build without the library.
pub const NOT_BUILT_IN: &str = "this plimsoll was built without Kerberos: build it with --features kerberos";

/// The label of the TLS exporter for the channel binding (RFC 9266, section 2); its context is empty.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// A channel binding: the secret that both ends of a TLS connection export under [`EXPORTER_LABEL`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelBinding(pub [u8; 32]);

impl ChannelBinding {
    /// Returns the binding in GSSAPI's form, prefixed by its type (RFC 5056, section 2.1).
    #[cfg(feature = "gssapi")]
    fn gssapi_bytes(&self) -> Vec<u8> {
        [b"tls-exporter:".as_slice(), &self.0].concat()
    }
}

impl std::fmt::Debug for ChannelBinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Channel")
    }
}

/// The result of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedToken {
    /// The client's principal, such as `alice@EXAMPLE.ORG`.
    pub principal: String,
    /// The remaining lifetime of the ticket.
    pub lifetime: Duration,
    /// The reply that proves possession of the service's key, for `WWW-Authenticate: Negotiate`.
    pub reply: String,
}
