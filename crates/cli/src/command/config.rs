//! `plimsoll config`: look at a configuration without running it. Opens no socket and looks no name up.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use crate::config::{self, File, ReadError, Severity, count};
use crate::failure::{Exit, Failure};
use crate::limits;
use crate::talk::{self, Global, Output};

/// Check or show the configuration, or print its JSON Schema
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report everything that is wrong with a file; exit code 2 if anything is
    Check(Which),
    /// Print a file with all defaults filled in
    Show(Which),
    /// Print the JSON Schema of the file, for editors
    Schema,
}

/// The file, named either way.
#[derive(clap::Args, Debug)]
struct Which {
    /// The file, - for standard input [default: plimsoll.toml]
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,

    /// The same
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Which {
    fn path(&self) -> &Path {
        self.file.as_deref().or(self.config.as_deref()).unwrap_or(Path::new(config::DEFAULT_FILE))
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    match &args.command {
        Command::Check(which) => check(which.path(), global),
        Command::Show(which) => show(which.path(), global),
        Command::Schema => talk::write_json(config::schema()),
    }
}

fn check(path: &Path, global: &Global) -> Result<(), Failure> {
    let outcome = config::read(path);
    if global.output == Output::Json {
        let problems = match &outcome {
            Ok(file) => file.warnings.to_json(),
            Err(ReadError::Wrong(problems)) => problems.to_json(),
            Err(error @ ReadError::Io(_)) => return Err(Failure::rendered(Exit::Usage, error)),
        };
        let ok = outcome.is_ok();
        talk::write_json(&json!({
            "schema": 1,
            "file": path.display().to_string(),
            "ok": ok,
            "problems": problems,
        }))?;
        return if ok { Ok(()) } else { Err(Failure::said(Exit::Usage)) };
    }
    let file = outcome.map_err(|error| Failure::rendered(Exit::Usage, error))?;
    global.say(&file.warnings.to_string());
    global.say(&format!("{}: ok ({})\n", path.display(), contents(&file)));
    Ok(())
}

/// `2 listeners, 1 group, 3 members`
fn contents(file: &File) -> String {
    let config = &file.config;
    let mut parts = vec![
        count(config.listeners.len(), "listener"),
        count(config.groups.len(), "group"),
        count(config.members(), "member"),
    ];
    let warnings = file.warnings.count(Severity::Warning);
    if warnings > 0 {
        parts.push(count(warnings, "warning"));
    }
    parts.join(", ")
}

fn show(path: &Path, global: &Global) -> Result<(), Failure> {
    let file = config::read(path).map_err(|error| Failure::rendered(Exit::Usage, error))?;
    global.say(&file.warnings.to_string());
    let filled = file.config.filled(limits::max_connections(&file.config, limits::hard()));
    if global.output == Output::Json {
        return talk::write_json(&filled);
    }
    let text = toml::to_string_pretty(&filled)
        .map_err(|error| Failure::new(Exit::Failed, format_args!("cannot write TOML: {error}")))?;
    talk::write(&text)
}
