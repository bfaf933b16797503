//! `plimsoll config import`: the common part of another load balancer's configuration, as Plimsoll's.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_config::{name_of, pluralize};
use plimsoll_import::{ImportNote, ImportSource, LossClass, import};
use serde_json::{Value, json};

use super::super::{CliError, CliExitCode, GlobalArgs};
use crate::output;

/// The largest size of a file, in bytes; larger files are rejected as mistakes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Convert an HAProxy or NGINX configuration to a Plimsoll configuration
///
/// TOML goes to standard output. Settings that were not imported go to standard error, one per line, with the
/// reason and the line number in FILE. Files that FILE includes are not read, and nothing is resolved: for
/// NGINX pass the output of nginx -T, which contains them.
///
/// Access rules (deny, auth, rate limits, redirects to https) are listed first, marked `security`: they are
/// not imported. A listener that had access rules is left out, as a comment with the reason, unless --open is
/// given.
///
/// Exit codes: 0 nothing was lost that changes the service for clients; 1 something was, or with --strict
/// anything; 2 nothing could be imported.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Program of the source configuration
    #[arg(value_enum)]
    from: SourceProgram,

    /// Configuration file, - for standard input
    file: PathBuf,

    /// Exit with code 1 if any setting was not imported, including those without an effect on clients
    #[arg(long)]
    strict: bool,

    /// Import listeners without their access rules, open to all clients
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
        .map_err(|error| CliError::new(CliExitCode::Usage, format_args!("cannot read {name}: {error}")))?;
    let (imported, notes) = match import(args.from.into(), &name, &text, args.open) {
        Ok(imported) => (imported.text, imported.notes),
        Err((error, notes)) => {
            print_notes(&name, &notes, globals);
            return Err(CliError::new(CliExitCode::Usage, format_args!("{name}: {error}")));
        }
    };
    if globals.is_json() {
        let one = |note: &ImportNote| {
            json!({
                "line": note.line, "class": note.class.name(), "what": note.subject, "why": note.reason,
            })
        };
        let notes_json: Vec<Value> = notes.iter().map(one).collect();
        globals.print_result(
            &json!({"schema": 1, "file": name, "toml": imported, "notes": notes_json}),
            String::new,
        )?;
    } else {
        print_notes(&name, &notes, globals);
        output::write_stdout(&imported)?;
    }
    let has_loss = notes.iter().any(|note| args.strict || note.class != LossClass::Harmless);
    Ok(if has_loss { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_notes(name: &str, notes: &[ImportNote], globals: &GlobalArgs) {
    let note_line = |note: &ImportNote| {
        format!("{name}:{}: {}: {}: {}\n", note.line, note.class.name(), note.subject, note.reason)
    };
    let lines: String = notes.iter().map(note_line).collect();
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
        std::io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(&args.file)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("larger than {} MiB", MAX_FILE_BYTES >> 20)));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
