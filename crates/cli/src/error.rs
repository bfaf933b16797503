//! The failures of a command.

use std::fmt::Display;
use std::process::ExitCode;

use plimsoll_balancer::BalancerError;
use plimsoll_supervisor::SupervisorError;

use crate::output::GlobalArgs;

/// The exit codes, which scripts rely on. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CliExitCode {
    /// The command was tried and failed: a port in use, a threshold missed.
    Failed = 1,
    /// The command line or the configuration is wrong; trying again will not help.
    Usage = 2,
    /// The balancer cannot be reached.
    Unreachable = 3,
    /// The command was ended before it was done.
    Interrupted = 130,
}

impl From<CliExitCode> for ExitCode {
    fn from(exit_code: CliExitCode) -> Self {
        Self::from(exit_code as u8)
    }
}

/// The reason why a command failed, and its exit code.
#[derive(Debug)]
pub(crate) struct CliError {
    /// The exit code for the shell.
    pub(crate) exit_code: CliExitCode,
    /// The message for the person; ends in a newline.
    text: String,
}

impl CliError {
    /// Returns a failure with one line: the fault, its place, the remedy.
    pub(crate) fn new(exit_code: CliExitCode, message: impl Display) -> Self {
        Self::rendered(exit_code, format_args!("error: {message}\n"))
    }

    /// Returns the failure of a command that was tried.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self::new(CliExitCode::Failed, message)
    }

    /// Returns a failure with a text that begins with `error:` itself and may have several lines.
    pub(crate) fn rendered(exit_code: CliExitCode, text: impl Display) -> Self {
        Self { exit_code, text: text.to_string() }
    }

    /// Returns the message on one line and without `error:`.
    pub(crate) fn one_line(&self) -> &str {
        let line = self.text.lines().next().unwrap_or_default();
        line.strip_prefix("error: ").unwrap_or(line)
    }

    /// Prints the message.
    pub(crate) fn print(&self, globals: &GlobalArgs) {
        globals.print_always(&self.text);
    }
}

impl From<BalancerError> for CliError {
    fn from(error: BalancerError) -> Self {
        let exit = match &error {
            BalancerError::Config(_) | BalancerError::Setup(_) => CliExitCode::Usage,
            BalancerError::Unresolved(_) | BalancerError::Failed(_) => CliExitCode::Failed,
            BalancerError::Interrupted => CliExitCode::Interrupted,
        };
        Self::rendered(exit, error)
    }
}

impl From<SupervisorError> for CliError {
    fn from(error: SupervisorError) -> Self {
        match error {
            SupervisorError::Control(error) => error.into(),
            SupervisorError::Failed(reason) => Self::failed(reason),
            SupervisorError::Interrupted => Self::new(CliExitCode::Interrupted, error),
        }
    }
}

/// Returns the failure of a write to standard output.
impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::failed(format_args!("cannot write to standard output: {error}"))
    }
}
