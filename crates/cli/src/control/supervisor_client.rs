//! The client of a running Supervisor or of a lottery's daemon, which are addressed like a balancer.

use std::io::ErrorKind;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ACTION_TIMEOUT, ControlEndpoint, ControlError};

/// The timeout of a view of a host: the peer asks others, which may not answer.
const VIEW_TIMEOUT: Duration = Duration::from_secs(30);

/// A running Supervisor or daemon, as it is addressed.
pub(crate) struct PeerClient<'b> {
    endpoint: &'b ControlEndpoint,
    kind: PeerKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerKind {
    Supervisor,
    Daemon,
}

impl<'b> PeerClient<'b> {
    /// Returns a Supervisor.
    pub(crate) fn supervisor(endpoint: &'b ControlEndpoint) -> Self {
        Self { endpoint, kind: PeerKind::Supervisor }
    }

    /// Returns a lottery's daemon.
    pub(crate) fn daemon(endpoint: &'b ControlEndpoint) -> Self {
        Self { endpoint, kind: PeerKind::Daemon }
    }

    /// Asks for the document at `target`.
    pub(crate) fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, ControlError> {
        let body = self.send("GET", target, "", VIEW_TIMEOUT)?;
        serde_json::from_slice(&body).map_err(|error| self.endpoint.foreign_answer(&error))
    }

    /// Asks for an act (POST).
    pub(crate) fn post(&self, target: &str, body: &Value) -> Result<Value, ControlError> {
        self.endpoint.check_writable()?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let body = self.send("POST", target, &body, ACTION_TIMEOUT)?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Returns `true` if no process accepts there any more; in doubt `false`.
    pub(crate) fn is_gone(&self) -> bool {
        self.endpoint.is_gone()
    }

    fn send(
        &self,
        method: &str,
        target: &str,
        body: &str,
        timeout: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        let socket = self.endpoint.connect().map_err(|error| {
            let hint = match self.kind {
                PeerKind::Supervisor => supervisor_hint(self.endpoint, error.kind()),
                PeerKind::Daemon => daemon_hint(self.endpoint, error.kind()),
            };
            ControlError::Unreachable(format!("cannot reach {}: {error}; {hint}", self.endpoint))
        })?;
        let response = self.endpoint.send_request(socket, method, target, body, timeout)?;
        response.body().map_err(|error| self.endpoint.stream_error(&error))
    }
}

fn supervisor_hint(endpoint: &ControlEndpoint, kind: ErrorKind) -> &'static str {
    match (endpoint, kind) {
        (ControlEndpoint::Unix(_), ErrorKind::NotFound) => {
            "no Supervisor made it; start one (plimsoll supervise), or say where it is: --control \
             unix:/path, \
             or -c supervise.toml"
        }
        (ControlEndpoint::Unix(_), ErrorKind::ConnectionRefused) => {
            "the Supervisor that made it is gone; start one (plimsoll supervise): it finds its processes"
        }
        (ControlEndpoint::Unix(_), ErrorKind::PermissionDenied) => {
            "use it as the user who started the Supervisor, or as root"
        }
        (ControlEndpoint::Unix(_), _) => "is it the control socket of a Supervisor?",
        (ControlEndpoint::Http(_) | ControlEndpoint::ReadOnly(..), _) => {
            "see [supervise] listen of the Supervisor's file"
        }
        (ControlEndpoint::Https(..), _) => "see [supervise] control of the Supervisor's file",
    }
}

fn daemon_hint(endpoint: &ControlEndpoint, kind: ErrorKind) -> &'static str {
    match (endpoint, kind) {
        (ControlEndpoint::Unix(_), ErrorKind::NotFound) => {
            "no daemon made it; start one (plimsoll lottery), or say where it is: --control unix:/path, or \
             -c lottery.toml"
        }
        (ControlEndpoint::Unix(_), ErrorKind::ConnectionRefused) => {
            "the daemon that made it is gone; start one (plimsoll lottery)"
        }
        (ControlEndpoint::Unix(_), ErrorKind::PermissionDenied) => {
            "use it as the user who started the daemon, or as root"
        }
        (ControlEndpoint::Unix(_), _) => "is it the control socket of a lottery's daemon?",
        _ => "see [admin] control of the daemon's file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_only_shows() {
        let endpoint = ControlEndpoint::Http("127.0.0.1:1".into());
        let error = PeerClient::supervisor(&endpoint).post("/v1/reload", &Value::Null).unwrap_err();
        assert!(error.to_string().contains("only shows"), "{error}");
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let endpoint = ControlEndpoint::Unix("/nowhere/plimsoll.sock".into());
        for (peer, expected) in [
            (PeerClient::supervisor(&endpoint), "plimsoll supervise"),
            (PeerClient::daemon(&endpoint), "plimsoll lottery"),
        ] {
            let error = peer.get::<Value>("/v1/processes").unwrap_err();
            assert!(matches!(&error, ControlError::Unreachable(why) if why.contains(expected)), "{error}");
        }
    }
}
