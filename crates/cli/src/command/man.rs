//! `plimsoll man`: manual pages, one per command, from the same tree as the help.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_mangen::Man;

use super::{Cli, CliError, GlobalArgs};
use crate::output;

/// Print the manual page, or write one page per command into a folder
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder for the pages; created if missing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let mut tree = Cli::command();
    tree.build();
    let Some(dir) = &args.dir else {
        let (_, page) = render(&tree)?;
        output::write_stdout(&page)?;
        return Ok(ExitCode::SUCCESS);
    };
    let fail =
        |path: &Path, error| CliError::failed(format_args!("cannot write {}: {error}", path.display()));
    fs::create_dir_all(dir).map_err(|error| fail(dir, error))?;
    let mut pages = Vec::new();
    collect(&tree, &mut pages)?;
    for (name, page) in &pages {
        let path = dir.join(name);
        fs::write(&path, page).map_err(|error| fail(&path, error))?;
    }
    globals.print_message(&format!("wrote {} manual pages to {}\n", pages.len(), dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// Collects the page of a command and those of all commands below it.
fn collect(command: &clap::Command, pages: &mut Vec<(String, String)>) -> Result<(), CliError> {
    pages.push(render(command)?);
    for subcommand in command
        .get_subcommands()
        .filter(|subcommand| subcommand.get_name() != "help" && !subcommand.is_hide_set())
    {
        collect(subcommand, pages)?;
    }
    Ok(())
}

/// Returns the file name and the text of the page of one command.
fn render(command: &clap::Command) -> Result<(String, String), CliError> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone()).title(name.to_uppercase());
    let mut page = Vec::new();
    man.render(&mut page)
        .map_err(|error| CliError::failed(format_args!("cannot make the manual page: {error}")))?;
    Ok((format!("{name}.1"), String::from_utf8_lossy(&page).into_owned()))
}
