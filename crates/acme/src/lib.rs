//! Certificates from authorities, by ACME (RFC 8555): obtained when there is none, kept in a folder, renewed before they end.
//!
//! One thread does it, one order at a time, off all that carries traffic. What it needs of the rest of the process is in
//! [`Front`]: to answer an authority's challenges, to show what came of it, and to be told of. It is not asked how a certificate is
//! shown, and by whom, and knows no listener.
//!
//! When: at the time that the authority suggests (ARI, RFC 9773), otherwise when a third of a certificate's life is left
//! (`schedule.rs`). What fails is tried again with growing pauses, and not before the authority wants to be asked again; the
//! certificate before it stays in force meanwhile. A certificate in the folder that is good is used, whoever put it there, so
//! that a process that is started again orders nothing, and processes that share a folder order once.

mod account;
mod cache;
mod client;
mod keeper;
mod leaf;
mod order;
mod schedule;
mod settings;

pub use cache::Cache;
pub use client::{Trust, system_authorities};
pub use keeper::{Keeper, State};
pub use leaf::Leaf;
pub use settings::{Binding, Directory, KeyType, Method, Settings};

use std::any::Any;

/// The rest of the process. Called on the keeper's thread; should take milliseconds.
pub trait Front: Send + Sync + 'static {
    /// An authority will ask for this, until what is returned is dropped.
    ///
    /// # Errors
    /// It cannot be answered.
    fn answer(&self, answer: &Answer<'_>) -> Result<Box<dyn Any + Send>, String>;

    /// From now on this is the certificate that goes by `id`: a private key and a chain, PEM.
    ///
    /// # Errors
    /// It cannot be used; the one before stays.
    fn show(&self, id: &str, pem: &[u8]) -> Result<(), String>;

    /// A certificate was obtained; one sentence.
    fn obtained(&self, why: String);

    /// A certificate could not be obtained, or not kept; one sentence.
    fn failed(&self, why: String);
}

/// What is to be shown to an authority.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// `http-01`: under `/.well-known/acme-challenge/TOKEN`, over plain HTTP.
    Http {
        /// The last part of the path.
        token: &'a str,
        /// The body.
        text: &'a str,
    },
    /// `tls-alpn-01`: to whoever asks for the name and offers `acme-tls/1` alone (RFC 8737).
    Tls {
        /// The name.
        name: &'a str,
        /// The certificate, PEM.
        certificate: &'a str,
        /// Its private key, PEM.
        key: &'a str,
    },
}
