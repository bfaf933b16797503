//! The names of the servers of a host that has several side-cars, and of the host.

use std::net::{IpAddr, SocketAddr};

use crate::command::{CliError, CliExitCode};

/// The names of reports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerNames {
    /// The host, without a port: all members there. `None` without a name.
    pub(super) host: Option<String>,
    /// The servers, in order.
    pub(super) servers: Vec<String>,
}

/// Names servers whose side-cars listen there. The host has the given name, or the address that all have in
/// common; each server is at that host, at the port of its side-car. `tells` is `true` if reports go to
/// balancers.
pub(super) fn name_servers(
    member: Option<&str>,
    listen: &[SocketAddr],
    is_reporting: bool,
) -> Result<ServerNames, CliError> {
    let usage = |message: String| CliError::new(CliExitCode::Usage, message);
    if let Some(member) = member.filter(|member| has_port(member)) {
        return Err(usage(format!(
            "--member {member} has a port, and there are several --side-car: give the host, and each \
             server is known by the port of its side-car"
        )));
    }
    let common_address = listen
        .first()
        .map(SocketAddr::ip)
        .filter(|first| listen.iter().all(|address| address.ip() == *first));
    let host = member.map(str::to_owned).or_else(|| {
        common_address.filter(|address| !address.is_unspecified()).map(|address| address.to_string())
    });
    let server = |listen: &SocketAddr| match member {
        Some(host) => Ok(host_and_port(host, listen.port())),
        None if listen.ip().is_unspecified() && is_reporting => Err(usage(format!(
            "what is the server at {listen} called? Give its host's name or address as the balancers have \
             it: \
             --member HOST"
        ))),
        None => Ok(listen.to_string()),
    };
    Ok(ServerNames { host, servers: listen.iter().map(server).collect::<Result<_, _>>()? })
}

fn has_port(host: &str) -> bool {
    let unbracketed = host.trim_start_matches('[').trim_end_matches(']');
    unbracketed.parse::<IpAddr>().is_err() && host.contains(':')
}

fn host_and_port(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_names(
        member: Option<&str>,
        listen: &[&str],
        is_reporting: bool,
    ) -> Result<(Option<String>, Vec<String>), String> {
        let listen: Vec<SocketAddr> = listen.iter().map(|address| address.parse().unwrap()).collect();
        let names = name_servers(member, &listen, is_reporting).map_err(|failure| format!("{failure:?}"))?;
        Ok((names.host, names.servers))
    }

    #[test]
    fn servers_are_known_by_their_host_and_the_ports_of_their_side_cars() {
        let unspecified = ["0.0.0.0:80", "[::]:5432"];
        for (member, first) in
            [("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80"), ("[::1]", "[::1]:80")]
        {
            let (host, servers) = server_names(Some(member), &unspecified, true).unwrap();
            assert_eq!((host.as_deref(), servers[0].as_str()), (Some(member), first));
            assert!(servers[1].ends_with(":5432"));
        }
        let same_host = ["10.0.0.1:80", "10.0.0.1:81"];
        let expected: Vec<String> = same_host.iter().map(ToString::to_string).collect();
        assert_eq!(server_names(None, &same_host, true), Ok((Some("10.0.0.1".into()), expected)));
        let two_hosts = ["10.0.0.1:80", "10.0.0.2:80"];
        let expected: Vec<String> = two_hosts.iter().map(ToString::to_string).collect();
        assert_eq!(server_names(None, &two_hosts, true), Ok((None, expected)));
        assert!(server_names(None, &unspecified, false).is_ok(), "there is nobody to tell");
    }

    #[test]
    fn what_cannot_be_named_is_refused() {
        assert!(
            server_names(None, &["0.0.0.0:80", "0.0.0.0:81"], true)
                .unwrap_err()
                .contains("0.0.0.0:80 called?")
        );
        for port in ["10.0.0.1:80", "[::1]:80", "web:80"] {
            assert!(
                server_names(Some(port), &["0.0.0.0:80"], true).unwrap_err().contains("has a port"),
                "{port}"
            );
        }
    }
}
