//! `plimsoll config import`: the common part of another load balancer's configuration, as Plimsoll's.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_config::{name_of, pluralize};
use plimsoll_import::{ImportNote, ImportSource, LossClass, import};
use serde_json::{Value, json};

use super::super::{CliError, CliExitCode, GlobalArgs};
use crate::output;

/// The largest size of a file, in bytes; larger files are rejected as mistakes.
const LARGEST: u64 = 16 << 20;

/// Turn a configuration of HAProxy or NGINX into one of ours
///
/// TOML goes to standard output; what was not carried over, and why, to standard error, a line each with the
/// line of FILE that it is about. Other files that FILE includes are not read, and nothing is looked up: for
/// NGINX give the output of nginx -T, which has them.
///
/// Access rules (deny, auth, rate limits, redirects to https) come first, marked `security`: they are not
/// carried over. A listener that had some is left out, as a comment with the reason, unless --open is given.
///
/// Exit code 0 if nothing was lost that changes what clients get; 1 if something was, or with --strict
/// anything; 2 if nothing could be carried over.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Whose it is
    #[arg(value_enum)]
    from: SourceProgram,

    /// The file, - for standard input
    file: PathBuf,

    /// Exit with 1 if anything was not carried over, also what clients do not notice
    #[arg(long)]
    strict: bool,

    /// Serve also where access rules are lost: to everybody
    #[arg(long)]
    open: bool,
}

/// The program whose configuration is imported.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SourceProgram {
    /// HAProxy.
    Haproxy,
    /// NGINX: http and stream.
    Nginx,
}

impl From<SourceProgram> for ImportSource {
    fn from(program: SourceProgram) -> Self {
        match program {
            SourceProgram::Haproxy => Self::Haproxy,
            SourceProgram::Nginx => Self::Nginx,
        }
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let name = name_of(&args.file);
    let text = read(args)
        .map_err(|why| CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {why}")))?;
    let (imported, notes) = match import(args.from.into(), &name, &text, args.open) {
        Ok(imported) => (imported.text, imported.notes),
        Err((why, notes)) => {
            print_notes(&name, &notes, globals);
            return Err(CliError::new(CliExitCode::Usage, format_args!("{name}: {why}")));
        }
    };
    if globals.is_json() {
        let one = |note: &ImportNote| json!({"line": note.line, "class": note.class.name(), "what": note.what, "why": note.why});
        let all: Vec<Value> = notes.iter().map(one).collect();
        globals
            .print_result(&json!({"schema": 1, "file": name, "toml": imported, "notes": all}), String::new)?;
    } else {
        print_notes(&name, &notes, globals);
        output::write_stdout(&imported)?;
    }
    let lost = notes.iter().any(|note| args.strict || note.class != LossClass::Harmless);
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_notes(name: &str, notes: &[ImportNote], globals: &GlobalArgs) {
    let one = |note: &ImportNote| {
        format!("{name}:{}: {}: {}: {}\n", note.line, note.class.name(), note.what, note.why)
    };
    let lines: String = notes.iter().map(one).collect();
    globals.print_message(&lines);
    if !notes.is_empty() {
        let security = notes.iter().filter(|note| note.class == LossClass::Security).count();
        let security = if security > 0 { format!(", {security} of security") } else { String::new() };
        globals.print_message(&format!(
            "not carried over, or otherwise: {}{security}\n",
            pluralize(notes.len(), "place")
        ));
    }
}

fn read(args: &Args) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    if args.file.as_os_str() == "-" {
        std::io::stdin().take(LARGEST + 1).read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(&args.file)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > LARGEST {
        return Err(std::io::Error::other(format!("larger than {} MiB", LARGEST >> 20)));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
