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
const MAX_MEMBERS: usize = 1024;
/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the members of the file, and those that a running balancer has besides (discovered ones).
pub(super) fn check_reachability(
    file: Option<&ConfigFile>,
    live_status: Option<&StatusReport>,
) -> CheckSection {
    let mut section = CheckSection::new("members");
    let mut members: BTreeSet<(String, String)> = BTreeSet::new();
    let mut datagram_groups: BTreeSet<String> = BTreeSet::new();
    if let Some(file) = file {
        for group in &file.config.groups {
            let mut listeners =
                file.config.listeners.iter().filter(|listener| listener.leads_to(&group.name)).peekable();
            if listeners.peek().is_some()
                && listeners.all(|listener| listener.protocol == ListenerProtocol::Udp)
            {
                datagram_groups.insert(group.name.to_string());
            }
            members.extend(group.members.iter().map(|member| (group.name.to_string(), member.name())));
        }
    }
    if let Some(status) = live_status {
        for group in &status.groups {
            let mut listeners =
                status.listeners.iter().filter(|listener| listener.group == group.name).peekable();
            if listeners.peek().is_some() && listeners.all(|listener| listener.protocol == "udp") {
                datagram_groups.insert(group.name.clone());
            }
            members.extend(group.members.iter().map(|member| (group.name.clone(), member.name.clone())));
        }
    }
    for group in &datagram_groups {
        section.skip(format!("{group}: members of datagrams cannot be asked whether they are there"));
    }
    let members: Vec<(String, String)> =
        members.into_iter().filter(|(group, _)| !datagram_groups.contains(group)).collect();
    if members.len() > MAX_MEMBERS {
        section.skip(format!("of {} members the first {MAX_MEMBERS} are tried", members.len()));
    }
    let attempts = try_connects(&members[..members.len().min(MAX_MEMBERS)]);
    add_attempts(&mut section, &attempts);
    section
}

type ConnectResult<'m> = (&'m (String, String), io::Result<()>);

fn try_connects(members: &[(String, String)]) -> Vec<ConnectResult<'_>> {
    let mut outcomes = Vec::new();
    for batch in members.chunks(MAX_CONCURRENT_CONNECTS) {
        std::thread::scope(|scope| {
            let attempts: Vec<_> =
                batch.iter().map(|member| (member, scope.spawn(|| connect(&member.1)))).collect();
            for (member, attempt) in attempts {
                let outcome =
                    attempt.join().unwrap_or_else(|_| Err(io::Error::other("it could not be tried")));
                outcomes.push((member, outcome));
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

fn add_attempts(section: &mut CheckSection, attempts: &[ConnectResult<'_>]) {
    let groups: BTreeSet<&str> = attempts.iter().map(|((group, _), _)| &**group).collect();
    for group in groups {
        let group_attempts: Vec<&ConnectResult<'_>> =
            attempts.iter().filter(|((name, _), _)| name == group).collect();
        for ((_, member), outcome) in &group_attempts {
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
            section.fail(format!("{group} {member}: {error}"), hint, GuidePage::MemberUnreachable);
        }
        let reachable_count = group_attempts.iter().filter(|(_, outcome)| outcome.is_ok()).count();
        if reachable_count == group_attempts.len() {
            section.ok(format!("{group}: {} can be connected to", pluralize(reachable_count, "member")));
        }
    }
}
