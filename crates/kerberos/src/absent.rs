//! Replacements for [`Acceptor`] and [`Initiator`] in a build without GSSAPI.

use std::convert::Infallible;
use std::path::Path;

use crate::{ABSENT, Accepted, Channel};

/// Verifies tokens.
#[derive(Debug)]
pub struct Acceptor(Infallible);

impl Acceptor {
    /// Fails.
    ///
    /// # Errors
    /// Always returns [`ABSENT`].
    pub fn open(_: &Path) -> Result<Self, String> {
        Err(ABSENT.into())
    }

    /// Cannot be called, because no value of this type exists.
    ///
    /// # Errors
    /// Never returns.
    pub fn accept(&self, _: &str, _: Channel) -> Result<Accepted, String> {
        match self.0 {}
    }
}

/// Creates a token.
#[derive(Debug)]
pub struct Initiator(Infallible);

impl Initiator {
    /// Fails.
    ///
    /// # Errors
    /// Always returns [`ABSENT`].
    pub fn begin(_: &str, _: Channel) -> Result<(Self, String), String> {
        Err(ABSENT.into())
    }

    /// Cannot be called, because no value of this type exists.
    ///
    /// # Errors
    /// Never returns.
    pub fn finish(self, _: &str) -> Result<(), String> {
        match self.0 {}
    }
}
