//! The check of connections to members from here. Each is looked up and connected to,
//! [`MAX_CONCURRENT_CONNECTS`] at a time; nothing is sent.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::Duration;

use plimsoll_brain::status::StatusReport;
use plimsoll_config::{ConfigFile, ListenerProtocol, MemberAddress, look_up, pluralize};

use super::diagnostic::{CheckSection, GuidePage};

/// The number of members that are tried at the same time.
const MAX_CONCURRENT_CONNECTS: usize = 32;
/// The maximum number of members that are tried; more take too long when a network is away.
const MOST: usize = 1024;
/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the members of the file, and those that a running balancer has besides (discovered ones).
pub(super) fn check_reachability(file: Option<&ConfigFile>, seen: Option<&StatusReport>) -> CheckSection {
    let mut part = CheckSection::new("members");
    let mut all: BTreeSet<(String, String)> = BTreeSet::new();
    let mut datagrams: BTreeSet<String> = BTreeSet::new();
    if let Some(file) = file {
        for group in &file.config.groups {
            let mut ways = file.config.listeners.iter().filter(|one| one.leads_to(&group.name)).peekable();
            if ways.peek().is_some() && ways.all(|one| one.protocol == ListenerProtocol::Udp) {
                datagrams.insert(group.name.to_string());
            }
            all.extend(group.members.iter().map(|member| (group.name.to_string(), member.name())));
        }
    }
    if let Some(status) = seen {
        for group in &status.groups {
            let mut ways = status.listeners.iter().filter(|one| one.group == group.name).peekable();
            if ways.peek().is_some() && ways.all(|one| one.protocol == "udp") {
                datagrams.insert(group.name.clone());
            }
            all.extend(group.members.iter().map(|member| (group.name.clone(), member.name.clone())));
        }
    }
    for group in &datagrams {
        part.skip(format!("{group}: members of datagrams cannot be asked whether they are there"));
    }
    let all: Vec<(String, String)> =
        all.into_iter().filter(|(group, _)| !datagrams.contains(group)).collect();
    if all.len() > MOST {
        part.skip(format!("of {} members the first {MOST} are tried", all.len()));
    }
    let tried = try_connects(&all[..all.len().min(MOST)]);
    add_attempts(&mut part, &tried);
    part
}

type ConnectResult<'m> = (&'m (String, String), io::Result<()>);

fn try_connects(all: &[(String, String)]) -> Vec<ConnectResult<'_>> {
    let mut outcomes = Vec::new();
    for some in all.chunks(MAX_CONCURRENT_CONNECTS) {
        std::thread::scope(|scope| {
            let tries: Vec<_> = some.iter().map(|one| (one, scope.spawn(|| connect(&one.1)))).collect();
            for (one, attempt) in tries {
                let outcome =
                    attempt.join().unwrap_or_else(|_| Err(io::Error::other("it could not be tried")));
                outcomes.push((one, outcome));
            }
        });
    }
    outcomes
}

fn connect(name: &str) -> io::Result<()> {
    let address: MemberAddress = name.parse().map_err(io::Error::other)?;
    let address =
        look_up(&address).map_err(|error| io::Error::new(ErrorKind::NotFound, error.to_string()))?;
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(drop)
}

fn add_attempts(part: &mut CheckSection, tried: &[ConnectResult<'_>]) {
    let groups: BTreeSet<&str> = tried.iter().map(|((group, _), _)| &**group).collect();
    for group in groups {
        let here: Vec<&ConnectResult<'_>> = tried.iter().filter(|((name, _), _)| name == group).collect();
        for ((_, member), outcome) in &here {
            let Err(error) = outcome else { continue };
            let hint = match error.kind() {
                ErrorKind::NotFound => "correct the name, or see what the resolver of this host says of it",
                ErrorKind::ConnectionRefused => {
                    "nothing listens there: is the server started, is the port right?"
                }
                ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                    "no answer: is the host up, does a firewall drop what comes from here?"
                }
                _ => "is there a way from here to its network?",
            };
            part.fail(format!("{group} {member}: {error}"), hint, GuidePage::MemberUnreachable);
        }
        let good = here.iter().filter(|(_, outcome)| outcome.is_ok()).count();
        if good == here.len() {
            part.ok(format!("{group}: {} can be connected to", pluralize(good, "member")));
        }
    }
}
