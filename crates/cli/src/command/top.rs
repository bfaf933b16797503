//! `plimsoll top`: groups and members as they are now, on a terminal, until `q`.
//!
//! A thread asks the balancer once per interval ([`poll`]). Two looks together make a [`snapshot`], with the
//! rates between them. [`render`] draws it, with each member's load on a bar that has its load line
//! ([`load_bar`]). [`input`] and [`render`] are pure, and [`event_loop`] joins them with the terminal.
//! Without a terminal the output is one picture in plain text.

mod event_loop;
mod input;
mod load_bar;
mod poll;
mod render;
mod snapshot;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_config::TimeSpan;

use super::{CliError, CliExitCode, GlobalArgs};
use crate::control::BalancerSelector;
use crate::output;
use crate::terminal::is_dumb;

use poll::BalancerPoller;
use render::TopView;
use snapshot::TopSnapshot;

/// Show groups and members live: load and load line, rates, times, failures, events
///
/// On a terminal, a live view until q (h lists the keys); elsewhere, or with --once, one snapshot in plain
/// text. With -o json each line is a document: one per interval.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only this group
    group: Option<String>,

    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// Print one snapshot in plain text and exit
    #[arg(long)]
    once: bool,

    /// Sort order of the members of a group
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = SortOrder::Configured)]
    sort: SortOrder,

    #[command(flatten)]
    at: BalancerSelector,
}

/// The sort order of the members of a group: the greatest, the worst or the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortOrder {
    /// Order of the configuration.
    Configured,
    /// Name.
    Name,
    /// State, unhealthy members first.
    State,
    /// Load, as the filled part of its bar.
    Load,
    /// Requests per second.
    Rate,
    /// 99th percentile of the latency.
    P99,
    /// Failed requests.
    Errors,
    /// Age of the last report.
    Age,
}

fn interval(text: &str) -> Result<Duration, String> {
    let TimeSpan(span) = text.parse()?;
    let is_in_range = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&span);
    if is_in_range { Ok(span) } else { Err("expected 100ms to 1h".to_owned()) }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let mut poller = BalancerPoller::new(args.at.endpoint()?);
    if globals.is_json() {
        return documents(args, poller);
    }
    let poll = poller.poll()?;
    let names: Vec<&str> = poll.status.groups.iter().map(|group| &*group.name).collect();
    if let Some(group) = &args.group
        && !names.contains(&&**group)
    {
        let message = format!("there is no group {group}; there are: {}", names.join(", "));
        return Err(CliError::new(CliExitCode::Usage, message));
    }
    let live = io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb() && !args.once;
    if live {
        return event_loop::run_view(args, poller, poll, globals);
    }
    let mut view = TopView::new(&args.group, args.sort, args.interval);
    view.update(TopSnapshot::from_polls(&poll, None), &poll.events);
    let lines: Vec<String> =
        view.plain_lines().iter().map(|line| line.paint(globals.stdout_has_color())).collect();
    let text: String = lines.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    output::write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a document per interval, for programs, for as long as there is a reader.
fn documents(args: &Args, mut poller: BalancerPoller) -> Result<ExitCode, CliError> {
    let mut previous = None;
    loop {
        let poll = poller.poll()?;
        let mut snapshot = TopSnapshot::from_polls(&poll, previous.as_ref());
        snapshot.retain_group(args.group.as_deref());
        let events: Vec<_> =
            poll.events.iter().filter(|entry| render::is_about_group(&args.group, entry)).collect();
        let document = serde_json::json!({
            "schema": 1,
            "unix_ms": poll.unix_ms,
            "interval_seconds": args.interval.as_secs_f64(),
            "groups": snapshot.groups,
            "events": events,
        });
        let mut out = io::stdout().lock();
        match io::Write::write_all(&mut out, format!("{document}\n").as_bytes())
            .and_then(|()| io::Write::flush(&mut out))
        {
            // The reader has ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            result => result?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        previous = Some(poll);
        std::thread::sleep(args.interval);
    }
}
