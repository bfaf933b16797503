//! ACME challenges (RFC 8555): prove to certificate authorities that the requested names lead here.
//!
//! There is one set for the process, as an authority may connect to any socket. While nothing is pending,
//! which is nearly always, a request costs one read of a flag that is not written.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::net::tls::parse_chain;

/// The protocol that connections for `tls-alpn-01` agree on (RFC 8737).
pub(crate) const ALPN: &[u8] = b"acme-tls/1";
/// The path of the answers of `http-01` (RFC 8555, section 8.3).
const HTTP_PATH_PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// A challenge that is answered until this is dropped.
#[must_use]
pub struct AcmeChallenge(ChallengeKind);

enum ChallengeKind {
    Http(Box<[u8]>),
    Tls(Box<str>),
}

impl Debug for AcmeChallenge {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Challenge").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct PendingChallenges {
    /// The answers by token.
    http: BTreeMap<Box<[u8]>, Arc<[u8]>>,
    /// The certificates by the requested name, in lower case.
    tls: BTreeMap<Box<str>, Arc<ServerConfig>>,
}

static PENDING: LazyLock<Mutex<PendingChallenges>> = LazyLock::new(Mutex::default);
static HTTP: AtomicBool = AtomicBool::new(false);
static TLS: AtomicBool = AtomicBool::new(false);

fn pending() -> MutexGuard<'static, PendingChallenges> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingChallenges {
    fn update_flags(&self) {
        HTTP.store(!self.http.is_empty(), Relaxed);
        TLS.store(!self.tls.is_empty(), Relaxed);
    }
}

impl AcmeChallenge {
    /// `http-01`: every HTTP and HTTPS listener answers a GET of the token with `answer`.
    pub fn http(token: &str, answer: &str) -> Self {
        let token: Box<[u8]> = token.as_bytes().into();
        let mut pending = pending();
        pending.http.insert(token.clone(), answer.as_bytes().into());
        pending.update_flags();
        Self(ChallengeKind::Http(token))
    }

    /// `tls-alpn-01`: every listener with TLS presents this certificate (PEM, with its key) to clients that
    /// request `name` for validation only. It requests no client certificate from them.
    ///
    /// # Errors
    /// The certificate or the key is invalid.
    pub fn tls(name: &str, certificate: &[u8], key: &[u8]) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let chain = parse_chain(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| "no private key in PEM form is in it")?;
        let key = provider.key_provider.load_private_key(key).map_err(|error| error.to_string())?;
        // Key and certificate are not compared: the certificate has a critical extension that webpki does not
        // support.
        let certified_key = CertifiedKey::new(chain, key);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified_key)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let name: Box<str> = name.to_ascii_lowercase().into();
        let mut pending = pending();
        pending.tls.insert(name.clone(), Arc::new(config));
        pending.update_flags();
        Ok(Self(ChallengeKind::Tls(name)))
    }
}

impl Drop for AcmeChallenge {
    fn drop(&mut self) {
        let mut pending = pending();
        match &self.0 {
            ChallengeKind::Http(token) => drop(pending.http.remove(token)),
            ChallengeKind::Tls(name) => drop(pending.tls.remove(name)),
        }
        pending.update_flags();
    }
}

/// Returns the answer to a request for a pending challenge; `head` begins with the request line.
pub(crate) fn asked(head: &[u8]) -> Option<Arc<[u8]>> {
    if !HTTP.load(Relaxed) {
        return None;
    }
    let target = head.strip_prefix(b"GET ").or_else(|| head.strip_prefix(b"HEAD "))?;
    let token = target.strip_prefix(HTTP_PATH_PREFIX)?;
    let end = token.iter().position(|byte| matches!(byte, b' ' | b'?'))?;
    pending().http.get(&token[..end]).map(Arc::clone)
}

/// Returns `true` if a `tls-alpn-01` validation is pending.
pub(crate) fn is_tls_pending() -> bool {
    TLS.load(Relaxed)
}

/// Returns the TLS configuration for a client that connects only to validate a challenge.
pub(crate) fn tls_config<'a>(
    name: &str,
    mut protocols: impl Iterator<Item = &'a [u8]>,
) -> Option<Arc<ServerConfig>> {
    if protocols.next() != Some(ALPN) || protocols.next().is_some() {
        return None;
    }
    pending().tls.get(name.to_ascii_lowercase().as_str()).map(Arc::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_pending_is_answered() {
        let answer_text =
            |head: &str| asked(head.as_bytes()).map(|answer| String::from_utf8(answer.to_vec()).unwrap());
        assert_eq!(answer_text("GET /.well-known/acme-challenge/t-1 HTTP/1.1\r\n"), None);
        let challenge = AcmeChallenge::http("t-1", "t-1.thumb");
        let other = AcmeChallenge::http("t-2", "t-2.thumb");
        for head in [
            "GET /.well-known/acme-challenge/t-1 HTTP/1.1\r\nHost: a\r\n\r\n",
            "HEAD /.well-known/acme-challenge/t-1 HTTP/1.0\r\n\r\n",
            "GET /.well-known/acme-challenge/t-1?x HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(answer_text(head).as_deref(), Some("t-1.thumb"), "{head}");
        }
        for head in [
            "POST /.well-known/acme-challenge/t-1 HTTP/1.1\r\n\r\n",
            "GET /.well-known/acme-challenge/t-10 HTTP/1.1\r\n\r\n",
            "GET /.well-known/acme-challenge/ HTTP/1.1\r\n\r\n",
            "GET /.well-known/acme-challenge/t-1/x HTTP/1.1\r\n\r\n",
            "GET /x/.well-known/acme-challenge/t-1 HTTP/1.1\r\n\r\n",
            "GET /.well-known/acme-challenge/t-1",
        ] {
            assert_eq!(answer_text(head), None, "{head}");
        }
        drop(challenge);
        assert_eq!(answer_text("GET /.well-known/acme-challenge/t-1 HTTP/1.1\r\n"), None);
        assert!(answer_text("GET /.well-known/acme-challenge/t-2 HTTP/1.1\r\n").is_some());
        drop(other);
    }
}
