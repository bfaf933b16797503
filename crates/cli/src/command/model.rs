//! `plimsoll model`: the capacity of a system, from a layered queueing network of it.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use plimsoll_config as config;
use plimsoll_lqn::ParsedModel;
use plimsoll_lqn::analysis::parameter::ModelParameter;

use super::{CliError, CliExitCode, GlobalArgs};
use crate::output::OutputFormat;

mod bottleneck;
mod capacity;
mod compare;
mod convert;
mod fit;
mod from_config;
mod plan;
mod print;
mod show;
mod simulate;
mod solve;
mod solver;
mod sweep;
mod sweep_grid;

/// Predict the capacity of a system from a layered queueing model, before it is built
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    Plan(plan::Args),
    Solve(solve::Args),
    Simulate(simulate::Args),
    Sweep(sweep::Args),
    Bottleneck(bottleneck::Args),
    Capacity(capacity::Args),
    Compare(compare::Args),
    Fit(fit::Args),
    Show(show::Args),
    Convert(convert::Args),
    FromConfig(from_config::Args),
}

/// The model of a command.
#[derive(clap::Args, Debug)]
struct ModelArgs {
    /// Model file, LQNX or .lqn; - for standard input
    #[arg(value_name = "MODEL")]
    file: PathBuf,

    /// Value of a parameter of the model ($NAME), or of a number such as client.threads or cpu.cores;
    /// repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, f64)>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let command = &args.command;
    let supported = command.outputs();
    // Without a name it is the first.
    if globals.output != OutputFormat::Table && !supported.contains(&globals.output) {
        let names: Vec<String> = supported
            .iter()
            .filter_map(|format| Some(format.to_possible_value()?.get_name().to_owned()))
            .collect();
        let message = format!("this command knows --output {} only", names.join(", "));
        return Err(CliError::new(CliExitCode::Usage, message));
    }
    match command {
        ModelCommand::Plan(args) => plan::run(args, globals),
        ModelCommand::Solve(args) => solve::run(args, globals),
        ModelCommand::Simulate(args) => simulate::run(args, globals),
        ModelCommand::Sweep(args) => sweep::run(args, globals),
        ModelCommand::Bottleneck(args) => bottleneck::run(args, globals),
        ModelCommand::Capacity(args) => capacity::run(args, globals),
        ModelCommand::Compare(args) => compare::run(args, globals),
        ModelCommand::Fit(args) => fit::run(args, globals),
        ModelCommand::Show(args) => show::run(args, globals),
        ModelCommand::Convert(args) => convert::run(args, globals),
        ModelCommand::FromConfig(args) => from_config::run(args, globals),
    }
}

impl ModelCommand {
    /// Returns its output formats; the first is the default.
    fn outputs(&self) -> &'static [OutputFormat] {
        match self {
            Self::Plan(_) | Self::Solve(_) | Self::Simulate(_) => print::OUTPUTS,
            Self::Sweep(_) => sweep::OUTPUTS,
            Self::Bottleneck(_) => bottleneck::OUTPUTS,
            Self::Capacity(_) => capacity::OUTPUTS,
            Self::Compare(_) => compare::OUTPUTS,
            Self::Fit(_) => fit::OUTPUTS,
            Self::Show(_) => show::OUTPUTS,
            Self::Convert(_) => convert::OUTPUTS,
            Self::FromConfig(_) => from_config::OUTPUTS,
        }
    }
}

impl ModelArgs {
    /// Reads the model and prints what was left out.
    fn read(&self, globals: &GlobalArgs) -> Result<ParsedModel, CliError> {
        let text = ModelText::open(&self.file)?;
        let parsed = text.read(&self.set)?;
        text.print_left_out(&parsed, globals);
        Ok(parsed)
    }
}

/// The text of a model, of which a model is made for each set of values.
struct ModelText {
    name: String,
    source: String,
}

impl ModelText {
    fn open(file: &Path) -> Result<Self, CliError> {
        let name = config::name_of(file);
        let source = read_text(file).map_err(|error| {
            CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {error}"))
        })?;
        Ok(Self { name, source })
    }

    /// Returns the model with these values of parameters, and of numbers by name, which have a point in them.
    fn read(&self, set: &[(String, f64)]) -> Result<ParsedModel, CliError> {
        let (numbers, parameters): (Vec<_>, Vec<_>) =
            set.iter().cloned().partition(|(name, _)| name.contains('.'));
        let parameters: BTreeMap<String, f64> = parameters.into_iter().collect();
        let name = &self.name;
        let mut parsed = plimsoll_lqn::read(&self.source, &parameters)
            .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("{name}:{error}")))?;
        for (number, value) in numbers {
            let parameter_error =
                |error| CliError::new(CliExitCode::Usage, format_args!("{name}: {number}: {error}"));
            let parameter = ModelParameter::find(&parsed.model, &number).map_err(parameter_error)?;
            parameter.set(&mut parsed.model, value).map_err(parameter_error)?;
        }
        Ok(parsed)
    }

    /// Returns the value of a parameter or a number in a model of this text.
    fn value(&self, parsed: &ParsedModel, name: &str) -> Result<f64, CliError> {
        if let Some((_, values)) = parsed.parameters.iter().find(|(parameter_name, _)| parameter_name == name)
        {
            return Ok(values.first().copied().unwrap_or_default());
        }
        let parameter = ModelParameter::find(&parsed.model, name)
            .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("{}: {error}", self.name)))?;
        Ok(parameter.value(&parsed.model))
    }

    /// Prints what was left out.
    fn print_left_out(&self, parsed: &ParsedModel, globals: &GlobalArgs) {
        for note in &parsed.notes {
            globals.print_message(&format!("{}: {note}\n", self.name));
        }
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(path)?;
    }
    String::from_utf8(bytes).map_err(|error| {
        // All before that is text.
        let valid_text = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        let last_line = valid_text.rsplit('\n').next().unwrap_or_default();
        let (line, column) = (1 + valid_text.matches('\n').count(), 1 + last_line.chars().count());
        io::Error::new(io::ErrorKind::InvalidData, format!("{line}:{column}: this is no UTF-8 text"))
    })
}

fn part(text: &str) -> Result<f64, String> {
    let fraction: f64 = text.parse().map_err(|_| "expected a number such as 0.01".to_owned())?;
    if fraction > 0.0 && fraction < 1.0 {
        Ok(fraction)
    } else {
        Err("expected a number above 0 and below 1".to_owned())
    }
}

/// Returns a field of CSV (RFC 4180).
fn quote_csv(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Returns a number with four significant digits.
fn format_short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        return number.to_string();
    }
    let digits = (3 - number.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Parses a setting: `clients=24`
fn setting(text: &str) -> Result<(String, f64), String> {
    let pair = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    match pair {
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
        for invalid in ["n", "=1", "n=many", ""] {
            assert!(setting(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in
            [(0.0, "0"), (572.84, "572.8"), (0.012_345_6, "0.01235"), (20.0, "20"), (123_456.7, "123457")]
        {
            assert_eq!(format_short(number), text);
        }
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!((quote_csv("a b"), quote_csv("a,\"b")), ("a b".to_owned(), "\"a,\"\"b\"".to_owned()));
    }
}
