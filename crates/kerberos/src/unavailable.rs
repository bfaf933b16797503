//! Replacements for [`TokenAcceptor`] and [`TokenInitiator`] in a build without GSSAPI.

use std::convert::Infallible;
use std::path::Path;

use crate::{AcceptedToken, ChannelBinding, NOT_BUILT_IN};

/// Verifies tokens.
#[derive(Debug)]
pub struct TokenAcceptor(Infallible);

impl TokenAcceptor {
    /// Fails.
    ///
    /// # Errors
    /// Always returns [`NOT_BUILT_IN`].
    pub fn open(_: &Path) -> Result<Self, String> {
        Err(NOT_BUILT_IN.into())
    }

    /// Cannot be called, because no value of this type exists.
    ///
    /// # Errors
    /// Never returns.
    pub fn accept(&self, _: &str, _: ChannelBinding) -> Result<AcceptedToken, String> {
        match self.0 {}
    }
}

/// Creates a token.
#[derive(Debug)]
pub struct TokenInitiator(Infallible);

impl TokenInitiator {
    /// Fails.
    ///
    /// # Errors
    /// Always returns [`NOT_BUILT_IN`].
    pub fn begin(_: &str, _: ChannelBinding) -> Result<(Self, String), String> {
        Err(NOT_BUILT_IN.into())
    }

    /// Cannot be called, because no value of this type exists.
    ///
    /// # Errors
    /// Never returns.
    pub fn finish(self, _: &str) -> Result<(), String> {
        match self.0 {}
    }
}
