//! An ACME client (RFC 8555): obtains missing certificates, stores them in a folder and renews them before
//! they expire.
//!
//! One thread places the orders one after the other, apart from the threads that carry traffic. It reaches
//! the rest of the process through [`AcmeHandler`]: to answer challenges, to install certificates and to
//! report results. This crate knows no listener and does not know how a certificate is served.
//!
//! A certificate is renewed at the time that the authority suggests (ARI, RFC 9773), otherwise when a third
//! of its lifetime is left (`schedule.rs`). Failed attempts are retried with growing delays, and not before
//! the authority's `Retry-After`; the previous certificate stays in use meanwhile. A valid certificate in the
//! folder is used regardless of which process stored it. So a restarted process orders nothing, and processes
//! that share a folder order once.

mod account;
mod cache;
mod client;
mod keeper;
mod leaf;
mod order;
mod schedule;
mod settings;

pub use cache::CertificateCache;
pub use client::{TrustRoots, system_authorities};
pub use keeper::{CertificateKeeper, CertificateState};
pub use leaf::LeafCertificate;
pub use settings::{AccountBinding, CertificateSettings, ChallengeMethod, DirectoryUrl, KeyType};

use std::any::Any;

/// The rest of the process. Its methods run on the keeper's thread and should return within milliseconds.
pub trait AcmeHandler: Send + Sync + 'static {
    /// Answers a challenge of the authority until the returned value is dropped.
    ///
    /// # Errors
    /// Returns an error if the challenge cannot be answered.
    fn answer_challenge(&self, answer: &ChallengeResponse<'_>) -> Result<Box<dyn Any + Send>, String>;

    /// Installs the certificate `id`: a private key and a chain in PEM form.
    ///
    /// # Errors
    /// Returns an error if the certificate cannot be used; the previous one stays installed.
    fn install(&self, id: &str, pem: &[u8]) -> Result<(), String>;

    /// Reports in one sentence that a certificate was obtained.
    fn certificate_obtained(&self, message: String);

    /// Reports in one sentence that a certificate could not be obtained or stored.
    fn certificate_failed(&self, message: String);
}

/// The response to a challenge.
#[derive(Clone, Copy, Debug)]
pub enum ChallengeResponse<'a> {
    /// `http-01`: the body at `/.well-known/acme-challenge/TOKEN`, over plain HTTP.
    Http {
        /// The last segment of the path.
        token: &'a str,
        /// The body.
        text: &'a str,
    },
    /// `tls-alpn-01`: a certificate for clients that request the name and offer `acme-tls/1` alone (RFC
    /// 8737).
    Tls {
        /// The name.
        name: &'a str,
        /// The certificate, in PEM form.
        certificate: &'a str,
        /// Its private key, in PEM form.
        key: &'a str,
    },
}
