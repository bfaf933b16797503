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
    said: Option<&str>,
    listen: &[SocketAddr],
    tells: bool,
) -> Result<ServerNames, CliError> {
    let usage = |what: String| CliError::new(CliExitCode::Usage, what);
    if let Some(said) = said.filter(|said| has_port(said)) {
        return Err(usage(format!(
            "--member {said} has a port, and there are several --side-car: give the host, and each server is \
             known by the port of its side-car"
        )));
    }
    let common =
        listen.first().map(SocketAddr::ip).filter(|first| listen.iter().all(|one| one.ip() == *first));
    let host = said
        .map(str::to_owned)
        .or_else(|| common.filter(|common| !common.is_unspecified()).map(|common| common.to_string()));
    let server = |listen: &SocketAddr| match said {
        Some(host) => Ok(host_and_port(host, listen.port())),
        None if listen.ip().is_unspecified() && tells => Err(usage(format!(
            "what is the server at {listen} called? Give its host's name or address as the balancers have \
             it: \
             --member HOST"
        ))),
        None => Ok(listen.to_string()),
    };
    Ok(ServerNames { host, servers: listen.iter().map(server).collect::<Result<_, _>>()? })
}

fn has_port(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_err() && host.contains(':')
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

    fn named(
        said: Option<&str>,
        listen: &[&str],
        tells: bool,
    ) -> Result<(Option<String>, Vec<String>), String> {
        let listen: Vec<SocketAddr> = listen.iter().map(|one| one.parse().unwrap()).collect();
        let names = name_servers(said, &listen, tells).map_err(|failure| format!("{failure:?}"))?;
        Ok((names.host, names.servers))
    }

    #[test]
    fn servers_are_known_by_their_host_and_the_ports_of_their_side_cars() {
        let all = ["0.0.0.0:80", "[::]:5432"];
        for (said, first) in [("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80"), ("[::1]", "[::1]:80")]
        {
            let (host, servers) = named(Some(said), &all, true).unwrap();
            assert_eq!((host.as_deref(), servers[0].as_str()), (Some(said), first));
            assert!(servers[1].ends_with(":5432"));
        }
        let one = ["10.0.0.1:80", "10.0.0.1:81"];
        let own: Vec<String> = one.iter().map(ToString::to_string).collect();
        assert_eq!(named(None, &one, true), Ok((Some("10.0.0.1".into()), own)));
        let two = ["10.0.0.1:80", "10.0.0.2:80"];
        let own: Vec<String> = two.iter().map(ToString::to_string).collect();
        assert_eq!(named(None, &two, true), Ok((None, own)));
        assert!(named(None, &all, false).is_ok(), "there is nobody to tell");
    }

    #[test]
    fn what_cannot_be_named_is_refused() {
        assert!(named(None, &["0.0.0.0:80", "0.0.0.0:81"], true).unwrap_err().contains("0.0.0.0:80 called?"));
        for port in ["10.0.0.1:80", "[::1]:80", "web:80"] {
            assert!(named(Some(port), &["0.0.0.0:80"], true).unwrap_err().contains("has a port"), "{port}");
        }
    }
}
