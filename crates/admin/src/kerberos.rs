//! Kerberos tickets of people and programs, by `Authorization: Negotiate` (RFC 4559).
//!
//! The system's library verifies tickets (crate `kerberos`). It reads the keytab and the replay cache: files
//! and locks. This runs on a thread for blocking work, so that clients with tickets delay only each other. A
//! ticket authenticates one request; the next one needs its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::Response;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use plimsoll_kerberos::{AcceptedToken, ChannelBinding, TokenAcceptor};

use crate::access::Caller;

/// Verifies tickets.
#[derive(Debug)]
pub(crate) struct TicketVerifier(Arc<TokenAcceptor>);

/// A received ticket.
pub(crate) struct KerberosTicket {
    text: String,
    channel: ChannelBinding,
    acceptor: Arc<TokenAcceptor>,
}

impl TicketVerifier {
    /// Opens the keytab.
    ///
    /// # Errors
    /// Kerberos is not built in, or the keytab is unusable.
    pub(crate) fn open(keytab: &Path) -> Result<Self, String> {
        TokenAcceptor::open(keytab).map(|acceptor| Self(Arc::new(acceptor)))
    }

    /// Creates a ticket from the text after `Negotiate` on a connection.
    pub(crate) fn ticket(&self, text: &str, channel: ChannelBinding) -> KerberosTicket {
        KerberosTicket { text: text.to_owned(), channel, acceptor: Arc::clone(&self.0) }
    }
}

impl KerberosTicket {
    /// Verifies the ticket. Returns the caller, and the proof for the response.
    ///
    /// # Errors
    /// The reason why the ticket is invalid, without its contents.
    pub(crate) async fn check(self) -> Result<(Caller, ServiceProof), String> {
        let accept_result =
            tokio::task::spawn_blocking(move || self.acceptor.accept(&self.text, self.channel)).await;
        let AcceptedToken { principal, lifetime, reply } =
            accept_result.map_err(|_| "the ticket could not be judged".to_owned())??;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires_at = Some(now.saturating_add(lifetime).as_secs());
        Ok((Caller { valid_until: expires_at, ..Caller::krb5(&principal) }, ServiceProof(reply)))
    }
}

impl std::fmt::Debug for KerberosTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// The proof that the server has the service's key.
pub(crate) struct ServiceProof(String);

impl ServiceProof {
    /// Adds the proof to any response.
    pub(crate) fn add_to<B>(&self, response: &mut Response<B>) {
        if let Ok(value) = HeaderValue::from_str(&format!("Negotiate {}", self.0)) {
            response.headers_mut().append(WWW_AUTHENTICATE, value);
        }
    }
}
