//! `plimsoll top`: groups and members as they are now, on a terminal, until `q`.
//!
//! A thread asks the balancer once per interval ([`look`]). Two looks together make a [`board`], with the
//! rates between them. [`picture`] draws it, with each member's load on a bar that has its load line
//! ([`gauge`]). [`keys`] are pure, and [`live`] joins them with the terminal. Without a terminal the output
//! is one picture in plain text.

mod board;
mod gauge;
mod keys;
mod live;
mod look;
mod picture;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;

use super::{Exit, Failure, Globals};
use crate::config::TimeSpan;
use crate::control::Where;
use crate::screen::dumb;
use crate::talk;

use board::Board;
use look::Eye;
use picture::View;

/// Watch groups and members as they are now: load against the load line, rates, times, failures, events
///
/// On a terminal a view that goes on until q (h says which keys there are); elsewhere, or with --once, one picture in plain
/// text. With -o json each line is a document: one per interval.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only this group
    group: Option<String>,

    /// Between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// One picture in plain text, then end
    #[arg(long)]
    once: bool,

    /// What members of a group are sorted by
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Sort::Configured)]
    sort: Sort,

    #[command(flatten)]
    at: Where,
}

/// What members of a group are sorted by; the greatest, the worst or the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// As the configuration has them.
    Configured,
    /// By name.
    Name,
    /// Those first that are not as they should be.
    State,
    /// By the part of its bar that a load fills.
    Load,
    /// By requests a second.
    Rate,
    /// By the 99th percentile.
    P99,
    /// By requests that failed.
    Errors,
    /// By the age of the last report.
    Age,
}

fn interval(text: &str) -> Result<Duration, String> {
    let TimeSpan(span) = text.parse()?;
    let fits = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&span);
    if fits { Ok(span) } else { Err("expected 100ms to 1h".to_owned()) }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let mut eye = Eye::new(args.at.balancer()?);
    if globals.json() {
        return documents(args, eye);
    }
    let look = eye.look()?;
    let names: Vec<&str> = look.status.groups.iter().map(|group| &*group.name).collect();
    if let Some(group) = &args.group
        && !names.contains(&&**group)
    {
        let why = format!("there is no group {group}; there are: {}", names.join(", "));
        return Err(Failure::new(Exit::Usage, why));
    }
    let live = io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb() && !args.once;
    if live {
        return live::watch(args, eye, look, globals);
    }
    let mut view = View::new(&args.group, args.sort, args.interval);
    view.seen(Board::of(&look, None), &look.events);
    let lines: Vec<String> = view.plain().iter().map(|line| line.paint(globals.color())).collect();
    let text: String = lines.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    talk::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a document per interval, for programs, for as long as there is a reader.
fn documents(args: &Args, mut eye: Eye) -> Result<ExitCode, Failure> {
    let mut before = None;
    loop {
        let look = eye.look()?;
        let mut board = Board::of(&look, before.as_ref());
        board.keep(args.group.as_deref());
        let events: Vec<_> = look.events.iter().filter(|entry| picture::about(&args.group, entry)).collect();
        let document = serde_json::json!({
            "schema": 1,
            "unix_ms": look.unix_ms,
            "interval_seconds": args.interval.as_secs_f64(),
            "groups": board.groups,
            "events": events,
        });
        let mut out = io::stdout().lock();
        match io::Write::write_all(&mut out, format!("{document}\n").as_bytes())
            .and_then(|()| io::Write::flush(&mut out))
        {
            // The reader has ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            other => other?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(look);
        std::thread::sleep(args.interval);
    }
}
