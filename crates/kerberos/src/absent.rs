//! In place of the library where it is not built in.

use std::convert::Infallible;
use std::path::Path;

use crate::{ABSENT, Accepted, Channel};

/// Judges tokens.
#[derive(Debug)]
pub struct Acceptor(Infallible);

impl Acceptor {
    /// # Errors
    /// Always [`ABSENT`].
    pub fn open(_: &Path) -> Result<Self, String> {
        Err(ABSENT.into())
    }

    /// There is none that could be asked.
    ///
    /// # Errors
    /// None, as there is none.
    pub fn accept(&self, _: &str, _: Channel) -> Result<Accepted, String> {
        match self.0 {}
    }
}

/// Makes a token.
#[derive(Debug)]
pub struct Initiator(Infallible);

impl Initiator {
    /// # Errors
    /// Always [`ABSENT`].
    pub fn begin(_: &str, _: Channel) -> Result<(Self, String), String> {
        Err(ABSENT.into())
    }

    /// There is none that could be asked.
    ///
    /// # Errors
    /// None, as there is none.
    pub fn finish(self, _: &str) -> Result<(), String> {
        match self.0 {}
    }
}
