//! `plimsoll config import`: the common part of another load balancer's configuration, as ours.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::super::{Exit, Failure, Globals};
use crate::config::{count, name_of};
use crate::import::{self, From, Note};
use crate::talk;

/// Larger files are taken for mistakes.
const LARGEST: u64 = 16 << 20;

/// Turn a configuration of HAProxy or NGINX into one of ours
///
/// TOML goes to standard output; what was not carried over, and why, to standard error, a line each with the line of FILE that it is
/// about. Other files that FILE includes are not read, and nothing is looked up: for NGINX give the output of nginx -T, which has them.
///
/// Exit code 0 if a configuration could be made; with --strict 1 if something was not carried over; 2 if nothing could be.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Whose it is
    #[arg(value_enum)]
    from: From,

    /// The file, - for standard input
    file: PathBuf,

    /// Exit with 1 if anything was not carried over
    #[arg(long)]
    strict: bool,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let name = name_of(&args.file);
    let text =
        read(args).map_err(|why| Failure::new(Exit::Usage, format_args!("cannot read {name}: {why}")))?;
    let (imported, notes) = match import::import(args.from, &name, &text) {
        Ok(imported) => (imported.text, imported.notes),
        Err((why, notes)) => {
            told(&name, &notes, globals);
            return Err(Failure::new(Exit::Usage, format_args!("{name}: {why}")));
        }
    };
    if globals.json() {
        let all: Vec<Value> =
            notes.iter().map(|note| json!({"line": note.line, "what": note.what, "why": note.why})).collect();
        globals.show(&json!({"schema": 1, "file": name, "toml": imported, "notes": all}), String::new)?;
    } else {
        told(&name, &notes, globals);
        talk::write(&imported)?;
    }
    Ok(if args.strict && !notes.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn told(name: &str, notes: &[Note], globals: &Globals) {
    let lines: String =
        notes.iter().map(|note| format!("{name}:{}: {}: {}\n", note.line, note.what, note.why)).collect();
    globals.say(&lines);
    if !notes.is_empty() {
        globals.say(&format!("not carried over, or otherwise: {}\n", count(notes.len(), "place")));
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
