//! `plimsoll status`: is all well? One line for each group and listener, and an exit code for scripts.

use std::process::ExitCode;

use plimsoll_brain::status::{GroupStatus, Status};

use super::{Failure, Globals, load_line, sources};
use crate::config::count;
use crate::control::text::{Cell, Tone, ago, latency, plain, table};
use crate::control::{self, Said, Where};

/// Say in a line for each group how it is; exit code 1 if not all is well
///
/// Not well is a group without a usable member, or a last reload that was refused.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    control::each(&args.at, globals, |balancer, _| {
        let (json, status) = balancer.status()?;
        Ok(Said { well: well(&status), ..Said::shown(json, render(&status, globals.color())) })
    })
}

fn well(status: &Status) -> bool {
    status.last_reload_successful && status.groups.iter().all(|group| group.healthy)
}

fn render(status: &Status, color: bool) -> String {
    let mut out = format!(
        "plimsoll {}, pid {}, up {}, {}\n",
        plain(&status.version),
        status.pid,
        ago(status.uptime_seconds),
        count(status.threads, "thread"),
    );
    let mut banner = |text: &str| {
        for (at, line) in text.lines().enumerate() {
            let mark = if at == 0 { "‼" } else { " " };
            out.push_str(&Tone::Bad.paint(&format!("{mark} {}", plain(line)), color));
            out.push('\n');
        }
    };
    if !status.last_reload_successful {
        let why = status.last_reload_error.as_deref().unwrap_or("it did not say why");
        banner(&format!("the last reload was refused and the configuration before it is in force: {why}"));
    }
    if status.stopping {
        banner("stopping: work in flight may end, nothing new is accepted");
    }
    let groups = status.groups.iter().map(|group| {
        let (glyph, tone) = if group.healthy { ("✔", Tone::Good) } else { ("✘", Tone::Bad) };
        let times = match group.latency.count {
            0 => String::new(),
            _ => format!("p50 {}  p99 {}", latency(group.latency.p50), latency(group.latency.p99)),
        };
        vec![
            Cell::text(glyph).tone(tone),
            Cell::text(&group.name).tone(Tone::Strong),
            Cell::text(&group.verdict),
            Cell::text(&strategy(group)).tone(Tone::Faint),
            Cell::text(&times).tone(Tone::Faint),
        ]
    });
    out.push_str(&table(&groups.collect::<Vec<_>>(), color));
    out.push_str(&table(&load_line::lines(&status.groups), color));
    out.push_str(&table(&sources::lines(&status.groups), color));
    let listeners = status.listeners.iter().map(|listener| {
        let refused = match listener.refused {
            0 => String::new(),
            refused => format!("{refused} refused"),
        };
        vec![
            Cell::text(&listener.protocol),
            Cell::text(&listener.address),
            Cell::text("→"),
            Cell::text(&listener.group).tone(Tone::Strong),
            Cell::number(format!("{} open", listener.connections)),
            Cell::number(format!("{} accepted", listener.accepted)),
            Cell::text(&refused).tone(Tone::Bad),
            Cell::text(if listener.disabled { "disabled" } else { "" }).tone(Tone::Fair),
        ]
    });
    out.push_str(&table(&listeners.collect::<Vec<_>>(), color));
    out
}

fn strategy(group: &GroupStatus) -> String {
    let off = if group.balancing_disabled { " (balancing disabled)" } else { "" };
    format!("{}{off}", group.strategy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::sample;

    #[test]
    fn all_is_well() {
        let status = sample();
        assert!(well(&status));
        insta::assert_snapshot!(render(&status, false), @"
        plimsoll 0.1.0, pid 4242, up 3d 4h, 2 threads
        ✔  web           3/5 members up, 1 ejected, 1 down  least_connections  p50 12.4ms  p99 37.2ms
        ✔  game servers  0/1 members up, 1 unchecked        rendezvous
        http  0.0.0.0:8080  →  web           128 open  1303546 accepted
        udp   [::]:27015    →  game servers    0 open        9 accepted  3 refused
        ");
    }

    #[test]
    fn all_is_not_well() {
        let mut status = sample();
        status.groups[1].healthy = false;
        assert!(!well(&status));
        status.groups[1].healthy = true;
        status.last_reload_successful = false;
        assert!(!well(&status));
        status.groups[1].healthy = false;
        status.last_reload_error = Some("plimsoll.toml:3:1: there is no \"lisener\"\nin it".into());
        status.stopping = true;
        status.threads = 1;
        insta::assert_snapshot!(render(&status, false), @r#"
        plimsoll 0.1.0, pid 4242, up 3d 4h, 1 thread
        ‼ the last reload was refused and the configuration before it is in force: plimsoll.toml:3:1: there is no "lisener"
          in it
        ‼ stopping: work in flight may end, nothing new is accepted
        ✔  web           3/5 members up, 1 ejected, 1 down  least_connections  p50 12.4ms  p99 37.2ms
        ✘  game servers  0/1 members up, 1 unchecked        rendezvous
        http  0.0.0.0:8080  →  web           128 open  1303546 accepted
        udp   [::]:27015    →  game servers    0 open        9 accepted  3 refused
        "#);
    }

    #[test]
    fn colour_only_adds() {
        let status = sample();
        let colored = render(&status, true);
        assert!(colored.contains("\u{1b}[32m✔\u{1b}[0m"));
        let mut bare = colored;
        for code in ["0", "1", "2", "31", "32", "33"] {
            bare = bare.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(bare, render(&status, false));
    }
}
