//! `plimsoll config`: look at a configuration without running it. It opens no socket and looks no name up.

mod import;
mod shared_store;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_config::limits;
use plimsoll_config::{self as config, ConfigFile, MachineDefaults, ReadError, Severity, pluralize};
use serde_json::json;

use super::{CliError, CliExitCode, GlobalArgs};

/// Check or show the configuration, or print its JSON Schema
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Validate a configuration file and report all errors; exit code 2 on any error
    ///
    /// Certificates, keys and member files are read; host names are not resolved, and no connections are
    /// opened.
    Check(ConfigFileArgs),
    /// Print a file with all defaults filled in
    Show(ConfigFileArgs),
    /// Publish groups and listeners to the store, for all balancers that share it
    ///
    /// They are first validated together with the balancer's own file, which names the store and must set
    /// config = true for it.
    Push {
        /// File with listeners and groups only, - for standard input
        #[arg(value_name = "FILE")]
        shared: PathBuf,

        /// Configuration file of the balancer
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
    },
    /// Print the groups and listeners in the store
    Pull {
        /// Configuration file of the balancer
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
    },
    /// Print the JSON Schema of the file, for editors
    Schema,
    /// Print the OpenAPI document of the admin plane
    Openapi,
    /// Convert an HAProxy or NGINX configuration to a Plimsoll configuration
    Import(import::Args),
}

/// The configuration file, as an argument or an option.
#[derive(clap::Args, Debug)]
struct ConfigFileArgs {
    /// Configuration file, - for standard input [default: plimsoll.toml]
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,

    /// Same as the argument FILE
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFileArgs {
    fn path(&self) -> &Path {
        self.file.as_deref().or(self.config.as_deref()).unwrap_or_else(|| Path::new(config::DEFAULT_FILE))
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        ConfigCommand::Check(file_args) => return check(file_args.path(), globals),
        ConfigCommand::Import(args) => return import::run(args, globals),
        ConfigCommand::Show(file_args) => show(file_args.path(), globals)?,
        ConfigCommand::Push { shared, config } => shared_store::push(config, shared, globals)?,
        ConfigCommand::Pull { config } => shared_store::pull(config, globals)?,
        ConfigCommand::Schema => {
            globals.print_result(config::schema(), || format!("{:#}\n", config::schema().as_value()))?
        }
        ConfigCommand::Openapi => {
            let document = plimsoll_admin::openapi::document();
            globals.print_result(&document, || format!("{document:#}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(path: &Path, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let outcome = config::read(path).and_then(|mut file| {
        if let Some(rules) = &file.config.admin.access.file {
            config::check_access(&rules.0)?;
        }
        file.warnings = file.check_files().map_err(ReadError::Wrong)?;
        Ok(file)
    });
    if globals.is_json() {
        let problems = match &outcome {
            Ok(file) => [file.warnings.to_json(), file.read_member_files().0.to_json()]
                .into_iter()
                .flatten()
                .collect(),
            Err(ReadError::Wrong(problems)) => problems.to_json(),
            Err(error @ ReadError::Io(_)) => return Err(CliError::rendered(CliExitCode::Usage, error)),
        };
        let ok = outcome.is_ok();
        let file = config::name_of(path);
        let report = json!({ "schema": 1, "file": file, "ok": ok, "problems": problems });
        globals.print_result(&report, String::new)?;
        return Ok(if ok { ExitCode::SUCCESS } else { CliExitCode::Usage.into() });
    }
    let file = outcome.map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    let (unread_problems, found_members) = file.read_member_files();
    globals.print_message(&file.warnings.clone().merge(unread_problems.clone()).to_string());
    let contents = summary(&file, found_members, unread_problems.count(Severity::Warning));
    globals.print_message(&format!("{}: ok ({contents})\n", config::name_of(path)));
    Ok(ExitCode::SUCCESS)
}

/// Returns a summary: `2 listeners, 1 group, 3 members`, and the number of warnings, `more` of them about
/// files of members.
fn summary(file: &ConfigFile, found_members: usize, extra_warnings: usize) -> String {
    let contents = file.config.summary(found_members);
    match file.warnings.count(Severity::Warning) + extra_warnings {
        0 => contents,
        warnings => format!("{contents}, {}", pluralize(warnings, "warning")),
    }
}

fn show(path: &Path, globals: &GlobalArgs) -> Result<(), CliError> {
    let file = config::read(path).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    globals.print_message(&file.warnings.to_string());
    let mut filled = file.config.with_defaults(MachineDefaults::detect(&file.config, limits::hard()));
    filled.tracing = filled.tracing.as_ref().map(config::TracingConfig::masked);
    let text = toml::to_string_pretty(&filled)
        .map_err(|error| CliError::failed(format_args!("cannot write TOML: {error}")))?;
    globals.print_result(&filled, || text)
}
