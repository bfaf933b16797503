//! `plimsoll supervise status`: one view of a host, its processes and their own status.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_admin::{ProcessStatus, SupervisorStatus};
use plimsoll_brain::supervision::ProcessPhase;
use plimsoll_config::pluralize;
use serde::Deserialize as _;
use serde_json::Value;

use super::super::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{TableCell, TextStyle, sanitize, short_duration, table};
use crate::control::{self, CommandOutput, PeerClient, SupervisorSelector};

/// The number of lines that are shown of a process's output before it failed.
const LINES: usize = 5;

/// Show the states of the processes, as seen by the Supervisor and as reported by each; exit code 1 on a
/// fault
///
/// Faults are a process that fails or cannot be queried, a process that reports a fault, and a file that was
/// refused. A process that was stopped is not a fault.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    at: SupervisorSelector,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.at, globals, |at, _| {
        let json: Value = PeerClient::supervisor(at).get("/v1/status")?;
        let household = SupervisorStatus::deserialize(&json).map_err(|error| {
            let what = format_args!("it does not answer as a Supervisor of this version does: {error}");
            CliError::new(CliExitCode::Unreachable, what)
        })?;
        let table = render(&household, unix_ms(), globals.stdout_has_color());
        Ok(CommandOutput { is_ok: is_healthy(&household), ..CommandOutput::from_view(json, table) })
    })
}

fn is_healthy(household: &SupervisorStatus) -> bool {
    let well = |process: &ProcessStatus| {
        let fails = matches!(process.state, ProcessPhase::BackingOff | ProcessPhase::Failed);
        !fails && process.says.as_ref().is_none_or(|says| says.well)
    };
    household.reload_error.is_none() && household.processes.iter().all(well)
}

fn render(household: &SupervisorStatus, now: u64, color: bool) -> String {
    let mut out = format!(
        "plimsoll supervise {}, pid {}, up {}\n",
        sanitize(&household.version),
        household.pid,
        since(household.started_unix_ms, now)
    );
    let mut banner = |text: &str| {
        out.push_str(&TextStyle::Bad.paint(&format!("‼ {}", sanitize(text)), color));
        out.push('\n');
    };
    if let Some(why) = &household.reload_error {
        banner(&format!("the last reload was refused and the file before it is in force: {why}"));
    }
    if household.stopping {
        banner("ending");
    }
    let rows: Vec<Vec<TableCell>> = household.processes.iter().map(|process| row(process, now)).collect();
    // The notes on a process are below its row.
    for (line, process) in table(&rows, color).lines().zip(&household.processes) {
        out.push_str(line);
        out.push('\n');
        for (said, tone) in process_notes(process) {
            out.push_str(&tone.paint(&format!("     {}", sanitize(&said)), color));
            out.push('\n');
        }
    }
    out
}

fn row(process: &ProcessStatus, now: u64) -> Vec<TableCell> {
    let (glyph, word, tone) = match process.state {
        ProcessPhase::Running if process.says.as_ref().is_some_and(|says| !says.well) => {
            ("✘", "running", TextStyle::Bad)
        }
        ProcessPhase::Running => ("✔", "running", TextStyle::Good),
        ProcessPhase::Stopping => ("◌", "stopping", TextStyle::Fair),
        ProcessPhase::BackingOff => ("✘", "backing off", TextStyle::Bad),
        ProcessPhase::Failed => ("✘", "failed", TextStyle::Bad),
        ProcessPhase::Stopped => ("○", "stopped", TextStyle::Fair),
    };
    let command = process.command.first().map_or("", String::as_str);
    let restarts = match process.restarts {
        0 => String::new(),
        restarts => pluralize(usize::try_from(restarts).unwrap_or(usize::MAX), "restart"),
    };
    vec![
        TableCell::text(glyph).tone(tone),
        TableCell::text(&process.name).tone(TextStyle::Strong),
        TableCell::text(command),
        TableCell::text(word).tone(tone),
        TableCell::text(&since(process.since_unix_ms, now)),
        TableCell::text(&process.pid.map_or_else(String::new, |pid| format!("pid {pid}")))
            .tone(TextStyle::Faint),
        TableCell::text(&restarts),
    ]
}

/// Returns the notes on a process beyond its row.
fn process_notes(process: &ProcessStatus) -> Vec<(String, TextStyle)> {
    let mut lines = Vec::new();
    match process.state {
        ProcessPhase::Running => {}
        ProcessPhase::Stopping | ProcessPhase::Stopped => lines.push((process.why.clone(), TextStyle::Faint)),
        ProcessPhase::BackingOff | ProcessPhase::Failed => {
            lines.push((process.why.clone(), TextStyle::Plain));
            let last = process.last_exit.iter().flat_map(|exit| &exit.lines);
            let last: Vec<&String> = last.filter(|line| !line.trim().is_empty()).collect();
            let shown = last[last.len().saturating_sub(LINES)..].iter();
            lines.extend(shown.map(|line| (format!("| {line}"), TextStyle::Faint)));
        }
    }
    if let Some(says) = &process.says {
        let tone = if says.well { TextStyle::Plain } else { TextStyle::Bad };
        lines.extend(says.lines.iter().map(|line| (line.clone(), tone)));
    }
    if process.outdated {
        let why =
            format!("its command in the file is another one: plimsoll supervise restart {}", process.name);
        lines.push((why, TextStyle::Fair));
    }
    lines
}

fn since(unix_ms: u64, now: u64) -> String {
    short_duration(now.saturating_sub(unix_ms) as f64 / 1e3)
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use plimsoll_admin::{LastExit, SelfStatus};
    use plimsoll_brain::supervision::ExitCause;

    use super::*;

    const NOW: u64 = 1_795_195_840_000;

    fn process(name: &str, command: &str, state: ProcessPhase, pid: Option<u32>) -> ProcessStatus {
        ProcessStatus {
            name: name.into(),
            command: vec![command.into(), "--config".into(), "x.toml".into()],
            state,
            why: "stopped: by an operator".into(),
            since_unix_ms: NOW - 75_000,
            pid,
            adopted: false,
            outdated: false,
            restarts: 0,
            failures: 0,
            next_start_unix_ms: None,
            last_exit: None,
            says: None,
        }
    }

    fn household() -> SupervisorStatus {
        let says = |lines: &[&str]| SelfStatus {
            well: true,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            facts: Value::Null,
        };
        let mut web = process("web", "up", ProcessPhase::Running, Some(4243));
        web.says = Some(says(&["group web: 2/2 members up, adaptive", "1 listener, 12 connections"]));
        (web.restarts, web.outdated) = (3, true);
        let old = process("old", "agent", ProcessPhase::Stopped, None);
        SupervisorStatus {
            schema: 1,
            version: "0.1.0".into(),
            pid: 4242,
            started_unix_ms: NOW - 90_061_000,
            stopping: false,
            reload_error: None,
            processes: vec![web, old],
        }
    }

    #[test]
    fn all_is_well() {
        let household = household();
        assert!(is_healthy(&household));
        insta::assert_snapshot!(render(&household, NOW, false), @"
        plimsoll supervise 0.1.0, pid 4242, up 1d 1h
        ✔  web  up     running  1m 15s  pid 4243  3 restarts
             group web: 2/2 members up, adaptive
             1 listener, 12 connections
             its command in the file is another one: plimsoll supervise restart web
        ○  old  agent  stopped  1m 15s
             stopped: by an operator
        ");
    }

    #[test]
    fn all_is_not_well() {
        let mut household = household();
        let mut lottery = process("lottery", "lottery", ProcessPhase::BackingOff, None);
        lottery.why = "exit code 1, 2 times in a row: started again in 1s500ms".into();
        let lines = vec![String::new(), "error: cannot listen on 10.0.0.1:7447\u{1b}[2J".into()];
        lottery.last_exit =
            Some(LastExit { ending: ExitCause::Code(1), reason: "exit code 1".into(), unix_ms: NOW, lines });
        household.processes.push(lottery);
        assert!(!is_healthy(&household));
        household.reload_error = Some("supervise.toml:1:1: no".into());
        insta::assert_snapshot!(render(&household, NOW, false), @"
        plimsoll supervise 0.1.0, pid 4242, up 1d 1h
        ‼ the last reload was refused and the file before it is in force: supervise.toml:1:1: no
        ✔  web      up       running      1m 15s  pid 4243  3 restarts
             group web: 2/2 members up, adaptive
             1 listener, 12 connections
             its command in the file is another one: plimsoll supervise restart web
        ○  old      agent    stopped      1m 15s
             stopped: by an operator
        ✘  lottery  lottery  backing off  1m 15s
             exit code 1, 2 times in a row: started again in 1s500ms
             | error: cannot listen on 10.0.0.1:7447�[2J
        ");
        let mut household = self::household();
        if let Some(says) = &mut household.processes[0].says {
            says.well = false;
        }
        assert!(!is_healthy(&household));
    }
}
