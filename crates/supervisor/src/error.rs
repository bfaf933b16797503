//! The failures of a Supervisor.

use std::fmt;

use plimsoll_balancer::BalancerError;

/// The reason why a Supervisor does not start, or ends at once.
#[derive(Debug)]
pub enum SupervisorError {
    /// The control addresses, their rules or their audit log are wrong.
    Control(BalancerError),
    /// A step failed: the socket or a folder is in use or not writable.
    Failed(String),
    /// The Supervisor was told to stop at once, and killed the running processes.
    Interrupted,
}

impl fmt::Display for SupervisorError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(error) => out.write_str(&error.headline()),
            Self::Failed(reason) => out.write_str(reason),
            Self::Interrupted => out.write_str("stopped at once"),
        }
    }
}

impl std::error::Error for SupervisorError {}
