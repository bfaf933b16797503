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
const MAX_OUTPUT_LINES: usize = 5;

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
    control::run_each(&args.at, globals, |endpoint, _| {
        let json: Value = PeerClient::supervisor(endpoint).get("/v1/status")?;
        let status = SupervisorStatus::deserialize(&json).map_err(|error| {
            let message = format_args!("it does not answer as a Supervisor of this version does: {error}");
            CliError::new(CliExitCode::Unreachable, message)
        })?;
        let table = render(&status, unix_ms(), globals.stdout_has_color());
        Ok(CommandOutput { is_ok: is_healthy(&status), ..CommandOutput::from_view(json, table) })
    })
}

fn is_healthy(status: &SupervisorStatus) -> bool {
    let is_well = |process: &ProcessStatus| {
        let is_failing = matches!(process.state, ProcessPhase::BackingOff | ProcessPhase::Failed);
        !is_failing && process.says.as_ref().is_none_or(|self_status| self_status.well)
    };
    status.reload_error.is_none() && status.processes.iter().all(is_well)
}

fn render(status: &SupervisorStatus, now: u64, color: bool) -> String {
    let mut out = format!(
        "plimsoll supervise {}, pid {}, up {}\n",
        sanitize(&status.version),
        status.pid,
        format_since(status.started_unix_ms, now)
    );
    let mut banner = |text: &str| {
        out.push_str(&TextStyle::Bad.paint(&format!("‼ {}", sanitize(text)), color));
        out.push('\n');
    };
    if let Some(error) = &status.reload_error {
        banner(&format!("the last reload was refused and the file before it is in force: {error}"));
    }
    if status.stopping {
        banner("ending");
    }
    let rows: Vec<Vec<TableCell>> =
        status.processes.iter().map(|process| process_row(process, now)).collect();
    // The notes on a process are below its row.
    for (line, process) in table(&rows, color).lines().zip(&status.processes) {
        out.push_str(line);
        out.push('\n');
        for (note, style) in process_notes(process) {
            out.push_str(&style.paint(&format!("     {}", sanitize(&note)), color));
            out.push('\n');
        }
    }
    out
}

fn process_row(process: &ProcessStatus, now: u64) -> Vec<TableCell> {
    let (glyph, label, style) = match process.state {
        ProcessPhase::Running if process.says.as_ref().is_some_and(|self_status| !self_status.well) => {
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
        TableCell::text(glyph).style(style),
        TableCell::text(&process.name).style(TextStyle::Strong),
        TableCell::text(command),
        TableCell::text(label).style(style),
        TableCell::text(&format_since(process.since_unix_ms, now)),
        TableCell::text(&process.pid.map_or_else(String::new, |pid| format!("pid {pid}")))
            .style(TextStyle::Faint),
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
            let output_lines = process.last_exit.iter().flat_map(|exit| &exit.lines);
            let output_lines: Vec<&String> = output_lines.filter(|line| !line.trim().is_empty()).collect();
            let tail = output_lines[output_lines.len().saturating_sub(MAX_OUTPUT_LINES)..].iter();
            lines.extend(tail.map(|line| (format!("| {line}"), TextStyle::Faint)));
        }
    }
    if let Some(self_status) = &process.says {
        let style = if self_status.well { TextStyle::Plain } else { TextStyle::Bad };
        lines.extend(self_status.lines.iter().map(|line| (line.clone(), style)));
    }
    if process.outdated {
        let note =
            format!("its command in the file is another one: plimsoll supervise restart {}", process.name);
        lines.push((note, TextStyle::Fair));
    }
    lines
}

fn format_since(unix_ms: u64, now: u64) -> String {
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

    fn supervisor_status() -> SupervisorStatus {
        let self_status = |lines: &[&str]| SelfStatus {
            well: true,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            facts: Value::Null,
        };
        let mut web = process("web", "up", ProcessPhase::Running, Some(4243));
        web.says = Some(self_status(&["group web: 2/2 members up, adaptive", "1 listener, 12 connections"]));
        (web.restarts, web.outdated) = (3, true);
        let stopped = process("old", "agent", ProcessPhase::Stopped, None);
        SupervisorStatus {
            schema: 1,
            version: "0.1.0".into(),
            pid: 4242,
            started_unix_ms: NOW - 90_061_000,
            stopping: false,
            reload_error: None,
            processes: vec![web, stopped],
        }
    }

    #[test]
    fn all_is_well() {
        let status = supervisor_status();
        assert!(is_healthy(&status));
        insta::assert_snapshot!(render(&status, NOW, false), @"
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
        let mut status = supervisor_status();
        let mut lottery = process("lottery", "lottery", ProcessPhase::BackingOff, None);
        lottery.why = "exit code 1, 2 times in a row: started again in 1s500ms".into();
        let lines = vec![String::new(), "error: cannot listen on 10.0.0.1:7447\u{1b}[2J".into()];
        lottery.last_exit =
            Some(LastExit { ending: ExitCause::Code(1), reason: "exit code 1".into(), unix_ms: NOW, lines });
        status.processes.push(lottery);
        assert!(!is_healthy(&status));
        status.reload_error = Some("supervise.toml:1:1: no".into());
        insta::assert_snapshot!(render(&status, NOW, false), @"
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
        let mut status = supervisor_status();
        if let Some(self_status) = &mut status.processes[0].says {
            self_status.well = false;
        }
        assert!(!is_healthy(&status));
    }
}
