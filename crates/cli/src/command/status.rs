//! `plimsoll status`: is all well? One line for each group and listener, and an exit code for scripts.

use std::process::ExitCode;

use plimsoll_brain::status::{CertificateStatus, GroupStatus, Status};

use super::{Failure, Globals, load_line, sources};
use crate::config::count;
use crate::control::text::{Cell, Tone, ago, latency, plain, table};
use crate::control::{self, Said, Where};

/// Say in a line for each group how it is; exit code 1 if not all is well
///
/// Not well is a group without a usable member, a last reload that was refused, or a certificate that is over or is not there
/// yet. Certificates that end soon are named.
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
    let good = |one: &CertificateStatus| one.expires_seconds.is_some_and(|left| left > 0.0);
    status.last_reload_successful
        && status.groups.iter().all(|group| group.healthy)
        && status.certificates.iter().all(good)
}

/// What there is to be said of a certificate, if there is something.
fn trouble(one: &CertificateStatus) -> Option<(String, Tone)> {
    let why = one.failure.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let (what, tone) = match one.expires_seconds {
        None => (format!("there is no certificate for {} yet{why}", one.name), Tone::Bad),
        Some(left) if left <= 0.0 => {
            (format!("the certificate for {} is over since {}{why}", one.name, ago(-left)), Tone::Bad)
        }
        Some(left) if one.ends_soon => (
            format!("the certificate for {} ends in {} ({}){why}", one.name, ago(left), one.source),
            Tone::Fair,
        ),
        Some(_) if one.failure.is_some() => {
            (format!("the certificate for {} could not be renewed{why}", one.name), Tone::Fair)
        }
        Some(_) => return None,
    };
    Some((what, tone))
}

fn render(status: &Status, color: bool) -> String {
    let mut out = format!(
        "plimsoll {}, pid {}, up {}, {}\n",
        plain(&status.version),
        status.pid,
        ago(status.uptime_seconds),
        count(status.threads, "thread"),
    );
    let mut banner = |text: &str, tone: Tone| {
        for (at, line) in text.lines().enumerate() {
            let mark = if at == 0 { "‼" } else { " " };
            out.push_str(&tone.paint(&format!("{mark} {}", plain(line)), color));
            out.push('\n');
        }
    };
    if !status.last_reload_successful {
        let why = status.last_reload_error.as_deref().unwrap_or("it did not say why");
        banner(
            &format!("the last reload was refused and the configuration before it is in force: {why}"),
            Tone::Bad,
        );
    }
    if status.stopping {
        banner("stopping: work in flight may end, nothing new is accepted", Tone::Bad);
    }
    for (what, tone) in status.certificates.iter().filter_map(trouble) {
        banner(&what, tone);
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
    fn certificates_that_end_are_named() {
        let mut status = sample();
        let one = |name: &str, left: Option<f64>, ends_soon, failure: Option<&str>| CertificateStatus {
            name: name.into(),
            source: format!("/etc/{name}.pem"),
            expires_seconds: left,
            ends_soon,
            failure: failure.map(str::to_owned),
            ..CertificateStatus::default()
        };
        status.certificates = vec![
            one("long.example", Some(7e6), false, None),
            one("soon.example", Some(300_000.0), true, None),
            one("late.example", Some(3e6), false, Some("no answer")),
        ];
        assert!(well(&status));
        let said = render(&status, false);
        assert!(!said.contains("long.example"), "{said}");
        assert!(
            said.contains("‼ the certificate for soon.example ends in 3d 11h (/etc/soon.example.pem)\n"),
            "{said}"
        );
        assert!(
            said.contains("‼ the certificate for late.example could not be renewed: no answer\n"),
            "{said}"
        );
        for (left, text) in [(None, "no certificate for x yet: why"), (Some(-60.0), "for x is over since 1m")]
        {
            status.certificates = vec![one("x", left, true, Some("why"))];
            assert!(!well(&status));
            let said = render(&status, false);
            assert!(said.contains(text), "{said}");
        }
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
