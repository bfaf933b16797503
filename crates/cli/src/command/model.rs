//! `plimsoll model`: what a system can carry, from a layered queueing network of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_lqn::Read;

use super::{Exit, Failure, Globals};
use crate::config;

mod plan;
mod print;
mod simulate;
mod solve;

/// Layered queueing models: what a system can carry, before it is built
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::Args),
    Solve(solve::Args),
    Simulate(simulate::Args),
}

/// A model, as every command takes it.
#[derive(clap::Args, Debug)]
struct Which {
    /// A model, LQNX or .lqn; - for standard input
    #[arg(value_name = "MODEL")]
    file: PathBuf,

    /// A parameter of the model ($NAME) is to have this value
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, f64)>,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Plan(args) => plan::run(args, globals),
        Command::Solve(args) => solve::run(args, globals),
        Command::Simulate(args) => simulate::run(args, globals),
    }
}

impl Which {
    /// Reads it; what was left aside is said.
    fn read(&self, globals: &Globals) -> Result<Read, Failure> {
        let name = config::name_of(&self.file);
        let text = text(&self.file)
            .map_err(|error| Failure::new(Exit::Usage, format_args!("cannot read {name}: {error}")))?;
        let given: BTreeMap<String, f64> = self.set.iter().cloned().collect();
        let read = plimsoll_lqn::read(&text, &given)
            .map_err(|trouble| Failure::new(Exit::Usage, format_args!("{name}:{trouble}")))?;
        for note in &read.notes {
            globals.say(&format!("{name}: {note}\n"));
        }
        Ok(read)
    }
}

fn text(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin());
    }
    std::fs::read_to_string(path)
}

/// `clients=24`
fn setting(text: &str) -> Result<(String, f64), String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    match parts {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.strip_prefix('$').unwrap_or(name).to_owned(), value))
        }
        _ => Err("expected a parameter and a number, such as clients=24".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_and_its_value() {
        assert_eq!(setting("n=24"), Ok(("n".to_owned(), 24.0)));
        assert_eq!(setting("$n=1e3"), Ok(("n".to_owned(), 1000.0)));
        for wrong in ["n", "=1", "n=many", ""] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }
}
