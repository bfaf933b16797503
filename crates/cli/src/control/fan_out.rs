//! One command for one balancer, that of this host, or for several others at once.
//!
//! Each is asked on a thread of its own, [`MAX_CONCURRENT`] at most, and none waits for another. The answers
//! are printed in the order in which the hosts were named: for people with the host before each line, for
//! programs as an array.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::format::sanitize;
use super::{ControlEndpoint, EndpointSelector};
use crate::error::{CliError, CliExitCode};
use crate::output::{self, GlobalArgs};

/// The maximum number of hosts that are asked at the same time.
const MAX_CONCURRENT: usize = 64;

/// The result of a command at one balancer.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    /// The data for programs.
    pub(crate) json: Value,
    /// The data for people.
    pub(crate) table: String,
    /// The messages for people.
    pub(crate) messages: String,
    /// Whether the result is as it should be; if not, the exit code is 1.
    pub(crate) is_ok: bool,
}

impl CommandOutput {
    /// Returns the result of a command that shows.
    pub(crate) fn from_view(json: Value, table: String) -> Self {
        Self { json, table, messages: String::new(), is_ok: true }
    }

    /// Returns the result of an act: the balancer's answer for programs, `messages` for people.
    pub(crate) fn from_action(json: Value, messages: String) -> Self {
        Self { json, table: String::new(), messages, is_ok: true }
    }
}

/// Asks all balancers that `at` names. `ask` gets a function that prints its progress.
pub(crate) fn run_each(
    selector: &impl EndpointSelector,
    globals: &GlobalArgs,
    action: impl Fn(&ControlEndpoint, &dyn Fn(&str)) -> Result<CommandOutput, CliError> + Sync,
) -> Result<ExitCode, CliError> {
    let Some(hosts) = selector.remote_endpoints()? else {
        let result = action(&selector.local_endpoint()?, &|text| globals.print_message(text))?;
        if globals.is_json() {
            globals.print_result(&result.json, String::new)?;
        } else {
            globals.print_message(&result.messages);
            output::write_stdout(&result.table)?;
        }
        return Ok(if result.is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    let outcomes = ask_all(&hosts, |host| {
        let name = host.to_string();
        action(host, &|text| globals.print_message(&prefix_lines(&name, text)))
    });
    print_all(&hosts, &outcomes, globals)?;
    Ok(exit_code(&outcomes))
}

/// Returns the exit code for the results of a command at several hosts:
///
/// | results | exit code |
/// |---|---|
/// | no host is reachable | [`CliExitCode::Unreachable`] |
/// | all are as they should be | 0 |
/// | else | 1 |
pub(crate) fn exit_code(outcomes: &[Result<CommandOutput, CliError>]) -> ExitCode {
    let lost = |outcome: &Result<CommandOutput, CliError>| {
        matches!(
            outcome,
            Err(failure) if failure.exit_code == CliExitCode::Unreachable
        )
    };
    let has_succeeded = |outcome: &Result<CommandOutput, CliError>| matches!(outcome, Ok(said) if said.is_ok);
    if outcomes.iter().all(lost) {
        CliExitCode::Unreachable.into()
    } else if outcomes.iter().all(has_succeeded) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the results of `ask` for each host, in their order.
pub(crate) fn ask_all<T: Send>(
    hosts: &[ControlEndpoint],
    action: impl Fn(&ControlEndpoint) -> T + Sync,
) -> Vec<T> {
    let next_index = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..hosts.len().min(MAX_CONCURRENT) {
            scope.spawn(|| {
                loop {
                    let index = next_index.fetch_add(1, Ordering::Relaxed);
                    let Some(host) = hosts.get(index) else { break };
                    let outcome = action(host);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Prints the results of a command at several hosts.
pub(crate) fn print_all(
    hosts: &[ControlEndpoint],
    outcomes: &[Result<CommandOutput, CliError>],
    globals: &GlobalArgs,
) -> Result<(), CliError> {
    if globals.is_json() {
        let entries = hosts.iter().zip(outcomes).map(|(host, outcome)| match outcome {
            Ok(result) => json!({"host": host.to_string(), "ok": true, "result": result.json}),
            Err(failure) => json!({"host": host.to_string(), "ok": false, "error": failure.one_line()}),
        });
        return globals.print_result(&entries.collect::<Vec<Value>>(), String::new);
    }
    let width = hosts.iter().map(|host| host.to_string().len()).max().unwrap_or(0);
    for (host, outcome) in hosts.iter().zip(outcomes) {
        let name = format!("{:width$}", host.to_string());
        match outcome {
            Ok(result) => {
                globals.print_message(&prefix_lines(&name, &result.messages));
                output::write_stdout(&prefix_lines(&name, &result.table))?;
            }
            Err(failure) => {
                globals.print_always(&format!("error: {host}: {}\n", sanitize(failure.one_line())))
            }
        }
    }
    Ok(())
}

/// Returns each line with the host before it.
fn prefix_lines(host: &str, text: &str) -> String {
    text.lines().map(|line| format!("{host}  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_asked_at_once_and_told_in_order() {
        let hosts: Vec<ControlEndpoint> =
            (0..200).map(|port| ControlEndpoint::Http(format!("a:{port}"))).collect();
        // No call goes on before `MAX_CONCURRENT` calls have begun: one after the other they would never end.
        let (barrier, started_count) = (std::sync::Barrier::new(MAX_CONCURRENT), AtomicUsize::new(0));
        let outcomes = ask_all(&hosts, |host| {
            if started_count.fetch_add(1, Ordering::Relaxed) < MAX_CONCURRENT {
                barrier.wait();
            }
            host.to_string()
        });
        for (host, outcome) in hosts.iter().zip(outcomes) {
            assert_eq!(outcome, host.to_string());
        }
    }

    #[test]
    fn every_line_names_its_host() {
        assert_eq!(prefix_lines("a:1 ", "x\ny\n"), "a:1   x\na:1   y\n");
        assert_eq!(prefix_lines("a:1", ""), "");
    }
}
