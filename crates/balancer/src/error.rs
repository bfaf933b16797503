//! The failures of a balancer's process.

use std::fmt::{self, Display};

use plimsoll_config::{ConfigDiagnostics, ReadError};

/// The reason why a balancer does not start, or ends at once.
#[derive(Debug)]
pub enum BalancerError {
    /// The configuration cannot be read or is wrong.
    Config(ReadError),
    /// Names of the configuration cannot be resolved at the moment.
    Unresolved(ConfigDiagnostics),
    /// The setup of the process does not fit the configuration: trying again will not help.
    Setup(String),
    /// A step failed: a port is in use, a thread cannot be started.
    Failed(String),
    /// The process was told to stop at once.
    Interrupted,
}

impl BalancerError {
    /// Returns the failure of a step that was tried.
    pub(crate) fn failed(reason: impl Display) -> Self {
        Self::Failed(reason.to_string())
    }

    /// Returns the failure on one line.
    pub fn headline(&self) -> String {
        match self {
            Self::Config(error) => error.headline(),
            Self::Unresolved(problems) => problems.headline(),
            Self::Setup(reason) | Self::Failed(reason) => {
                reason.lines().next().unwrap_or_default().to_owned()
            }
            Self::Interrupted => "stopped at once".into(),
        }
    }
}

/// Shows the failure as one message for a person, which ends in a newline and may have several lines.
impl Display for BalancerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(out),
            Self::Unresolved(problems) => problems.fmt(out),
            Self::Setup(reason) | Self::Failed(reason) => writeln!(out, "error: {reason}"),
            Self::Interrupted => writeln!(out, "error: {}", self.headline()),
        }
    }
}

impl std::error::Error for BalancerError {}

impl From<ReadError> for BalancerError {
    fn from(error: ReadError) -> Self {
        Self::Config(error)
    }
}
