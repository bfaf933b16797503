//! Tickets of people and programs: Kerberos, by `Authorization: Negotiate` (RFC 4559).
//!
//! What a ticket is worth the system's library says (crate `kerberos`), which looks into the keytab and the list of
//! tickets that were taken before: files and locks. That is done on a thread for such things, so that whoever sends
//! tickets keeps only other tickets waiting. A token counts for the request that it came with; the next one brings its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::Response;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use plimsoll_kerberos::{Accepted, Acceptor, Channel};

use crate::access::Caller;

/// Judges tickets.
#[derive(Debug)]
pub(crate) struct Tickets(Arc<Acceptor>);

/// One that was sent.
pub(crate) struct Ticket {
    text: String,
    channel: Channel,
    acceptor: Arc<Acceptor>,
}

impl Tickets {
    /// # Errors
    /// Kerberos is not built in, or the keytab cannot be used.
    pub(crate) fn open(keytab: &Path) -> Result<Self, String> {
        Acceptor::open(keytab).map(|acceptor| Self(Arc::new(acceptor)))
    }

    /// What follows `Negotiate`, on a connection.
    pub(crate) fn ticket(&self, text: &str, channel: Channel) -> Ticket {
        Ticket { text: text.to_owned(), channel, acceptor: Arc::clone(&self.0) }
    }
}

impl Ticket {
    /// Whose it is, and the proof to go with the answer.
    ///
    /// # Errors
    /// Why it does not count; nothing of it is in there.
    pub(crate) async fn check(self) -> Result<(Caller, Proof), String> {
        let judged =
            tokio::task::spawn_blocking(move || self.acceptor.accept(&self.text, self.channel)).await;
        let Accepted { principal, lifetime, reply } =
            judged.map_err(|_| "the ticket could not be judged".to_owned())??;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let until = Some(now.saturating_add(lifetime).as_secs());
        Ok((Caller { until, ..Caller::krb5(&principal) }, Proof(reply)))
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// That we have the service's key.
pub(crate) struct Proof(String);

impl Proof {
    /// Goes with the answer, whatever that is.
    pub(crate) fn add<B>(&self, answer: &mut Response<B>) {
        if let Ok(value) = HeaderValue::from_str(&format!("Negotiate {}", self.0)) {
            answer.headers_mut().append(WWW_AUTHENTICATE, value);
        }
    }
}
