//! TLS 1.2 and 1.3: with clients by a listener's certificates, with members by a group's trust.

use std::future::poll_fn;
use std::io;

mod acme_slot;
mod client;
pub(crate) mod client_hello;
mod invalid_sni;
mod server;
mod server_name;
mod sni_resolver;
mod stream;
mod tickets;
mod transport;

pub use acme_slot::AcmeSlot;
pub use client::{InvalidTlsPart, MemberTls, MemberTrust};
pub(crate) use server::parse_chain;
pub use server::{CertificateBundle, ClientVerification, ListenerTls};
pub(crate) use server_name::SniContext;
pub use sni_resolver::ListenerCertificate;
pub(crate) use stream::TlsStream;
pub(crate) use tickets::{restore_ticket_keys, ticket_keys};
use transport::TlsTransport;

/// The name of HTTP/2 in TLS (ALPN).
pub(crate) const H2_ALPN: &[u8] = b"h2";

/// Performs the handshake with a member whose configured address is `name`, `host:port`.
///
/// # Errors
/// The member does not speak TLS, or fails authentication.
pub(crate) async fn reach<W: TlsTransport>(
    tls: &MemberTls,
    name: &str,
    socket: W,
) -> io::Result<TlsStream<W>> {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host).trim_matches(['[', ']']);
    let Some(session) = tls.session(host) else {
        let message = format!("no certificate can be for `{host}`: set server_name in the group's tls");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    };
    let mut stream = TlsStream::new(socket, session);
    poll_fn(|cx| stream.poll_handshake(cx)).await?;
    Ok(stream)
}
