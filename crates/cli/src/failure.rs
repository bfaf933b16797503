//! How a command ends badly.

use std::fmt::Display;
use std::process::ExitCode;

use crate::talk::Global;

/// Exit codes, which scripts rely on. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The thing was tried and failed: a port in use, a threshold missed.
    Failed = 1,
    /// The command line or the configuration is wrong; trying again will not help.
    Usage = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed, and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the shell is told.
    pub(crate) exit: Exit,
    /// What the person is told; empty if that has happened already.
    text: String,
}

impl Failure {
    /// One line: what, where, what to do.
    pub(crate) fn new(exit: Exit, what: impl Display) -> Self {
        Self { exit, text: format!("error: {what}\n") }
    }

    /// A text that begins with `error:` itself and may have several lines.
    pub(crate) fn rendered(exit: Exit, text: impl Display) -> Self {
        Self { exit, text: text.to_string() }
    }

    /// All has been said on standard output.
    pub(crate) fn said(exit: Exit) -> Self {
        Self { exit, text: String::new() }
    }

    /// Tells the person.
    pub(crate) fn tell(&self, global: &Global) {
        global.insist(&self.text);
    }
}
