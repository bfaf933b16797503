//! One command for one balancer, that of this host, or for several others at once.
//!
//! Each is asked on a thread of its own, [`AT_ONCE`] at most, and none waits for another. The answers are
//! printed in the order in which the hosts were named: for people with the host before each line, for
//! programs as an array.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::text::plain;
use super::{Balancer, Target};
use crate::failure::{Exit, Failure};
use crate::talk::{self, Globals};

/// The maximum number of hosts that are asked at the same time.
const AT_ONCE: usize = 64;

/// The result of a command at one balancer.
#[derive(Debug)]
pub(crate) struct Said {
    /// The data for programs.
    pub(crate) json: Value,
    /// The data for people.
    pub(crate) table: String,
    /// The messages for people.
    pub(crate) talk: String,
    /// Whether the result is as it should be; if not, the exit code is 1.
    pub(crate) well: bool,
}

impl Said {
    /// Returns the result of a command that shows.
    pub(crate) fn shown(json: Value, table: String) -> Self {
        Self { json, table, talk: String::new(), well: true }
    }

    /// Returns the result of an act: the balancer's answer for programs, `talk` for people.
    pub(crate) fn done(json: Value, talk: String) -> Self {
        Self { json, table: String::new(), talk, well: true }
    }
}

/// Asks all balancers that `at` names. `ask` gets a function that prints its progress.
pub(crate) fn each(
    at: &impl Target,
    globals: &Globals,
    ask: impl Fn(&Balancer, &dyn Fn(&str)) -> Result<Said, Failure> + Sync,
) -> Result<ExitCode, Failure> {
    let Some(hosts) = at.hosts()? else {
        let said = ask(&at.own()?, &|text| globals.say(text))?;
        if globals.json() {
            globals.show(&said.json, String::new)?;
        } else {
            globals.say(&said.talk);
            talk::write(&said.table)?;
        }
        return Ok(if said.well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    };
    let outcomes = all(&hosts, |host| {
        let name = host.to_string();
        ask(host, &|text| globals.say(&beside(&name, text)))
    });
    tell(&hosts, &outcomes, globals)?;
    Ok(ended(&outcomes))
}

/// Returns the exit code for the results of a command at several hosts:
///
/// | results | exit code |
/// |---|---|
/// | no host is reachable | [`Exit::Unreachable`] |
/// | all are as they should be | 0 |
/// | else | 1 |
pub(crate) fn ended(outcomes: &[Result<Said, Failure>]) -> ExitCode {
    let lost = |outcome: &Result<Said, Failure>| matches!(outcome, Err(failure) if failure.exit == Exit::Unreachable);
    let well = |outcome: &Result<Said, Failure>| matches!(outcome, Ok(said) if said.well);
    if outcomes.iter().all(lost) {
        Exit::Unreachable.into()
    } else if outcomes.iter().all(well) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns the results of `ask` for each host, in their order.
pub(crate) fn all<T: Send>(hosts: &[Balancer], ask: impl Fn(&Balancer) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..hosts.len().min(AT_ONCE) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(host) = hosts.get(place) else { break };
                    let outcome = ask(host);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((place, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(place, _)| *place);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Prints the results of a command at several hosts.
pub(crate) fn tell(
    hosts: &[Balancer],
    outcomes: &[Result<Said, Failure>],
    globals: &Globals,
) -> Result<(), Failure> {
    if globals.json() {
        let list = hosts.iter().zip(outcomes).map(|(host, outcome)| match outcome {
            Ok(said) => json!({"host": host.to_string(), "ok": true, "result": said.json}),
            Err(failure) => json!({"host": host.to_string(), "ok": false, "error": failure.line()}),
        });
        return globals.show(&list.collect::<Vec<Value>>(), String::new);
    }
    let width = hosts.iter().map(|host| host.to_string().len()).max().unwrap_or(0);
    for (host, outcome) in hosts.iter().zip(outcomes) {
        let name = format!("{:width$}", host.to_string());
        match outcome {
            Ok(said) => {
                globals.say(&beside(&name, &said.talk));
                talk::write(&beside(&name, &said.table))?;
            }
            Err(failure) => globals.insist(&format!("error: {host}: {}\n", plain(failure.line()))),
        }
    }
    Ok(())
}

/// Returns each line with the host before it.
fn beside(host: &str, text: &str) -> String {
    text.lines().map(|line| format!("{host}  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_asked_at_once_and_told_in_order() {
        let hosts: Vec<Balancer> = (0..200).map(|port| Balancer::Http(format!("a:{port}"))).collect();
        // No call goes on before `AT_ONCE` calls have begun: one after the other they would never end.
        let (begun, most) = (std::sync::Barrier::new(AT_ONCE), AtomicUsize::new(0));
        let outcomes = all(&hosts, |host| {
            if most.fetch_add(1, Ordering::Relaxed) < AT_ONCE {
                begun.wait();
            }
            host.to_string()
        });
        for (host, outcome) in hosts.iter().zip(outcomes) {
            assert_eq!(outcome, host.to_string());
        }
    }

    #[test]
    fn every_line_names_its_host() {
        assert_eq!(beside("a:1 ", "x\ny\n"), "a:1   x\na:1   y\n");
        assert_eq!(beside("a:1", ""), "");
    }
}
