//! How a command ends badly.

use std::fmt::Display;
use std::process::ExitCode;

use crate::talk::Globals;

/// Exit codes, which scripts rely on. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The thing was tried and failed: a port in use, a threshold missed.
    Failed = 1,
    /// The command line or the configuration is wrong; trying again will not help.
    Usage = 2,
    /// The balancer cannot be reached.
    Unreachable = 3,
    /// It was told to end before it was done.
    Interrupted = 130,
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
    /// What the person is told; ends in a newline.
    text: String,
}

impl Failure {
    /// One line: what, where, what to do.
    pub(crate) fn new(exit: Exit, what: impl Display) -> Self {
        Self::rendered(exit, format_args!("error: {what}\n"))
    }

    /// The thing was tried and failed.
    pub(crate) fn failed(what: impl Display) -> Self {
        Self::new(Exit::Failed, what)
    }

    /// A text that begins with `error:` itself and may have several lines.
    pub(crate) fn rendered(exit: Exit, text: impl Display) -> Self {
        Self { exit, text: text.to_string() }
    }

    /// What it says, without the word and the line's end around it.
    pub(crate) fn line(&self) -> &str {
        let text = self.text.strip_prefix("error: ").unwrap_or(&self.text);
        text.trim_end()
    }

    /// Tells the person.
    pub(crate) fn tell(&self, globals: &Globals) {
        globals.insist(&self.text);
    }
}

/// Writing to standard output failed.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(format_args!("cannot write to standard output: {error}"))
    }
}
