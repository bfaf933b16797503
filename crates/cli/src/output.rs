//! The two channels: standard output carries data, standard error carries messages.

use std::io::{self, Write as _};

use clap::{ArgAction, Args, ValueEnum};
use serde::Serialize;

use crate::error::CliError;

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    /// Format of the data on standard output
    #[arg(short, long, global = true, value_enum, default_value_t = OutputFormat::Table,
          help_heading = "Global options")]
    pub(crate) output: OutputFormat,

    /// Colour on standard error and in tables; auto looks at the terminal and at NO_COLOR
    #[arg(long, global = true, value_enum, default_value_t = ColorMode::Auto,
          help_heading = "Global options")]
    pub(crate) color: ColorMode,

    /// Print only errors
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,

    /// Print debug messages; twice for all messages
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet",
          help_heading = "Global options")]
    pub(crate) verbose: u8,
}

/// The format of the data on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Text for people.
    #[value(alias = "text")]
    Table,
    /// One JSON document for programs (events: one per line).
    Json,
    /// HdrHistogram's percentile distribution (load).
    #[value(hide = true)]
    Hgrm,
    /// One self-contained page (load).
    #[value(hide = true)]
    Html,
    /// An object reference in hexadecimal (ior).
    #[value(hide = true)]
    Ior,
    /// An object reference as an address and a key (ior).
    #[value(hide = true)]
    Corbaloc,
    /// One number per line, or one point per row (model).
    #[value(hide = true)]
    Csv,
    /// A model with its results, as other tools read it (model).
    #[value(hide = true)]
    Lqxo,
    /// A model in XML (model convert).
    #[value(hide = true)]
    Lqnx,
    /// A model in the text of other tools (model convert).
    #[value(hide = true)]
    Lqn,
    /// A model in a short TOML (model from-config).
    #[value(hide = true)]
    Toml,
    /// A picture (model).
    #[value(hide = true)]
    Svg,
}

impl OutputFormat {
    /// Returns `true` for a form that only results of `plimsoll load` have.
    pub(crate) fn is_load_format(self) -> bool {
        matches!(self, Self::Hgrm | Self::Html)
    }

    /// Returns `true` for a form that only object references have.
    pub(crate) fn is_reference_format(self) -> bool {
        matches!(self, Self::Ior | Self::Corbaloc)
    }

    /// Returns `true` for a form that only models and their results have.
    pub(crate) fn is_model_format(self) -> bool {
        matches!(self, Self::Csv | Self::Lqxo | Self::Lqnx | Self::Lqn | Self::Toml | Self::Svg)
    }
}

/// The use of colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorMode {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl GlobalArgs {
    /// Prints a message for the person, unless silence was asked for. It ends in a newline.
    pub(crate) fn print_message(&self, text: &str) {
        if !self.quiet {
            self.print_always(text);
        }
    }

    /// Prints a message for the person in any case.
    pub(crate) fn print_always(&self, text: &str) {
        let text = if self.allows_color(&io::stderr()) { paint(text) } else { text.to_owned() };
        // A failure here has no reader left.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// Shows data on standard output: `value` for programs, or else `table` for people.
    pub(crate) fn print_result(
        &self,
        value: &impl Serialize,
        table: impl FnOnce() -> String,
    ) -> Result<(), CliError> {
        if !self.is_json() {
            return write_stdout(&table());
        }
        match serde_json::to_string_pretty(value) {
            Ok(text) => write_stdout(&(text + "\n")),
            Err(error) => Err(CliError::failed(format_args!("cannot write JSON: {error}"))),
        }
    }

    /// Returns `true` if the data on standard output is for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.output == OutputFormat::Json
    }

    /// Returns `true` if data on standard output may have colour.
    pub(crate) fn stdout_has_color(&self) -> bool {
        self.allows_color(&io::stdout())
    }

    /// Returns `true` if this stream may have colour.
    pub(crate) fn allows_color(&self, stream: &impl io::IsTerminal) -> bool {
        match self.color {
            ColorMode::Always => true,
            ColorMode::Never => false,
            ColorMode::Auto => {
                stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        }
    }
}

/// Writes data to standard output. A reader that ends early (`| head`) is not an error.
pub(crate) fn write_stdout(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const RESET: &str = "\x1b[0m";

/// Colours the words for severities, and the carets.
fn paint(text: &str) -> String {
    let mut painted = String::new();
    let mut color = RED;
    for line in text.split_inclusive('\n') {
        let caret_start = line.find('^').filter(|index| line[..*index].trim_start().trim_end() == "|");
        if let Some(rest) = line.strip_prefix("error:") {
            color = RED;
            painted.extend([RED, "error:", RESET, rest]);
        } else if let Some(rest) = line.strip_prefix("warning:") {
            color = YELLOW;
            painted.extend([YELLOW, "warning:", RESET, rest]);
        } else if let Some(start) = caret_start {
            let end = line[start..].find(|char| char != '^').map_or(line.len(), |length| start + length);
            painted.extend([&line[..start], color, &line[start..end], RESET, &line[end..]]);
        } else {
            painted.push_str(line);
        }
    }
    painted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paint_adds_colour_and_nothing_else() {
        let text = "error: x:1:1: no\n    1 | a ^ b\n      | ^^ hint ^\nplain\nwarning: y\n";
        let painted = paint(text);
        assert_eq!(painted.matches(RESET).count(), 3);
        assert!(painted.contains("| \x1b[1;31m^^\x1b[0m hint ^"), "{painted:?}");
        let unpainted = painted.replace(RED, "").replace(YELLOW, "").replace(RESET, "");
        assert_eq!(unpainted, text);
    }
}
