//! The client of a running Supervisor or of a lottery's daemon, which are addressed like a balancer.

use std::io::ErrorKind;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ACT, Balancer, Trouble};

/// The timeout of a view of a host: the peer asks others, which may not answer.
const VIEW: Duration = Duration::from_secs(30);

/// A running Supervisor or daemon, as it is addressed.
pub(crate) struct Peer<'b> {
    at: &'b Balancer,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Supervisor,
    Daemon,
}

impl<'b> Peer<'b> {
    /// Returns a Supervisor.
    pub(crate) fn supervisor(at: &'b Balancer) -> Self {
        Self { at, kind: Kind::Supervisor }
    }

    /// Returns a lottery's daemon.
    pub(crate) fn daemon(at: &'b Balancer) -> Self {
        Self { at, kind: Kind::Daemon }
    }

    /// Asks for the document at `target`.
    pub(crate) fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Trouble> {
        let body = self.send("GET", target, "", VIEW)?;
        serde_json::from_slice(&body).map_err(|error| self.at.stranger(&error))
    }

    /// Asks for an act (POST).
    pub(crate) fn post(&self, target: &str, body: &Value) -> Result<Value, Trouble> {
        self.at.acts()?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let body = self.send("POST", target, &body, ACT)?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Returns `true` if no process accepts there any more; in doubt `false`.
    pub(crate) fn gone(&self) -> bool {
        self.at.gone()
    }

    fn send(&self, method: &str, target: &str, body: &str, wait: Duration) -> Result<Vec<u8>, Trouble> {
        let socket = self.at.connect().map_err(|error| {
            let hint = match self.kind {
                Kind::Supervisor => supervisor_hint(self.at, error.kind()),
                Kind::Daemon => daemon_hint(self.at, error.kind()),
            };
            Trouble::Unreachable(format!("cannot reach {}: {error}; {hint}", self.at))
        })?;
        let answer = self.at.ask(socket, method, target, body, wait)?;
        answer.body().map_err(|error| self.at.lost(&error))
    }
}

fn supervisor_hint(at: &Balancer, error: ErrorKind) -> &'static str {
    match (at, error) {
        (Balancer::Unix(_), ErrorKind::NotFound) => {
            "no Supervisor made it; start one (plimsoll supervise), or say where it is: --control unix:/path, \
             or -c supervise.toml"
        }
        (Balancer::Unix(_), ErrorKind::ConnectionRefused) => {
            "the Supervisor that made it is gone; start one (plimsoll supervise): it finds its processes"
        }
        (Balancer::Unix(_), ErrorKind::PermissionDenied) => {
            "use it as the user who started the Supervisor, or as root"
        }
        (Balancer::Unix(_), _) => "is it the control socket of a Supervisor?",
        (Balancer::Http(_) | Balancer::Look(..), _) => "see [supervise] listen of the Supervisor's file",
        (Balancer::Https(..), _) => "see [supervise] control of the Supervisor's file",
    }
}

fn daemon_hint(at: &Balancer, error: ErrorKind) -> &'static str {
    match (at, error) {
        (Balancer::Unix(_), ErrorKind::NotFound) => {
            "no daemon made it; start one (plimsoll lottery), or say where it is: --control unix:/path, or \
             -c lottery.toml"
        }
        (Balancer::Unix(_), ErrorKind::ConnectionRefused) => {
            "the daemon that made it is gone; start one (plimsoll lottery)"
        }
        (Balancer::Unix(_), ErrorKind::PermissionDenied) => {
            "use it as the user who started the daemon, or as root"
        }
        (Balancer::Unix(_), _) => "is it the control socket of a lottery's daemon?",
        _ => "see [admin] control of the daemon's file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_only_shows() {
        let at = Balancer::Http("127.0.0.1:1".into());
        let trouble = Peer::supervisor(&at).post("/v1/reload", &Value::Null).unwrap_err();
        assert!(trouble.to_string().contains("only shows"), "{trouble}");
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let at = Balancer::Unix("/nowhere/plimsoll.sock".into());
        for (peer, what) in
            [(Peer::supervisor(&at), "plimsoll supervise"), (Peer::daemon(&at), "plimsoll lottery")]
        {
            let trouble = peer.get::<Value>("/v1/processes").unwrap_err();
            assert!(matches!(&trouble, Trouble::Unreachable(why) if why.contains(what)), "{trouble}");
        }
    }
}
