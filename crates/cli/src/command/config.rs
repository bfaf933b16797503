//! `plimsoll config`: look at a configuration without running it. It opens no socket and looks no name up.

mod import;
mod share;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::{Exit, Failure, Globals};
use crate::config::{self, File, Machine, ReadError, Severity, count};
use crate::limits;

/// Check or show the configuration, or print its JSON Schema
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report everything that is wrong with a file; exit code 2 if anything is
    ///
    /// Certificates, keys and files of members are read; host names are not looked up, and nobody is connected to.
    Check(Which),
    /// Print a file with all defaults filled in
    Show(Which),
    /// Put groups and listeners into the store, for all balancers that have it together
    ///
    /// They are checked together with the balancer's own file first, which says where the store is and has config = true in it.
    Push {
        /// A file with listeners and groups only, - for standard input
        #[arg(value_name = "FILE")]
        shared: PathBuf,

        /// The balancer's own file
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
    },
    /// Print the groups and listeners that are in the store
    Pull {
        /// The balancer's own file
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
    },
    /// Print the JSON Schema of the file, for editors
    Schema,
    /// Print the OpenAPI document of the admin plane
    Openapi,
    /// Turn a configuration of HAProxy or NGINX into one of ours
    Import(import::Args),
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
        self.file.as_deref().or(self.config.as_deref()).unwrap_or_else(|| Path::new(config::DEFAULT_FILE))
    }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Check(which) => return check(which.path(), globals),
        Command::Import(args) => return import::run(args, globals),
        Command::Show(which) => show(which.path(), globals)?,
        Command::Push { shared, config } => share::push(config, shared, globals)?,
        Command::Pull { config } => share::pull(config, globals)?,
        Command::Schema => {
            globals.show(config::schema(), || format!("{:#}\n", config::schema().as_value()))?
        }
        Command::Openapi => {
            let document = plimsoll_admin::openapi::document();
            globals.show(&document, || format!("{document:#}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(path: &Path, globals: &Globals) -> Result<ExitCode, Failure> {
    let outcome = config::read(path).and_then(|mut file| {
        if let Some(rules) = &file.config.admin.access.file {
            config::check_access(&rules.0)?;
        }
        file.warnings = file.check_files().map_err(ReadError::Wrong)?;
        Ok(file)
    });
    if globals.json() {
        let problems = match &outcome {
            Ok(file) => {
                [file.warnings.to_json(), file.look_at_members().0.to_json()].into_iter().flatten().collect()
            }
            Err(ReadError::Wrong(problems)) => problems.to_json(),
            Err(error @ ReadError::Io(_)) => return Err(Failure::rendered(Exit::Usage, error)),
        };
        let ok = outcome.is_ok();
        let file = config::name_of(path);
        let report = json!({ "schema": 1, "file": file, "ok": ok, "problems": problems });
        globals.show(&report, String::new)?;
        return Ok(if ok { ExitCode::SUCCESS } else { Exit::Usage.into() });
    }
    let file = outcome.map_err(|error| Failure::rendered(Exit::Usage, error))?;
    let (unread, found) = file.look_at_members();
    globals.say(&file.warnings.clone().and(unread.clone()).to_string());
    let contents = contents(&file, found, unread.count(Severity::Warning));
    globals.say(&format!("{}: ok ({contents})\n", config::name_of(path)));
    Ok(ExitCode::SUCCESS)
}

/// Returns a summary: `2 listeners, 1 group, 3 members`, and the number of warnings, `more` of them about
/// files of members.
fn contents(file: &File, found: usize, more: usize) -> String {
    let contents = file.config.contents(found);
    match file.warnings.count(Severity::Warning) + more {
        0 => contents,
        warnings => format!("{contents}, {}", count(warnings, "warning")),
    }
}

fn show(path: &Path, globals: &Globals) -> Result<(), Failure> {
    let file = config::read(path).map_err(|error| Failure::rendered(Exit::Usage, error))?;
    globals.say(&file.warnings.to_string());
    let mut filled = file.config.filled(Machine::here(&file.config, limits::hard()));
    filled.tracing = filled.tracing.as_ref().map(config::Tracing::hidden);
    let text = toml::to_string_pretty(&filled)
        .map_err(|error| Failure::failed(format_args!("cannot write TOML: {error}")))?;
    globals.show(&filled, || text)
}
