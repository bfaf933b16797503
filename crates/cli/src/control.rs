//! The client of a running balancer: finds its control socket ([`discover_socket`]) and asks over it.

mod discover_socket;
mod fan_out;
pub(crate) mod format;
mod http;
mod kerberos_ticket;
mod supervisor_client;
#[cfg(test)]
mod test_data;
mod tls_client;
mod transport;

use std::fmt;
use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::status::StatusReport;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use toml::de::{DeTable, DeValue};

pub(crate) use discover_socket::{
    BalancerKind, BalancerSelector, DaemonSelector, EndpointSelector, SupervisorSelector, find_endpoint,
};
pub(crate) use fan_out::{CommandOutput, ask_all, exit_code, print_all, run_each};
pub(crate) use supervisor_client::PeerClient;
#[cfg(test)]
pub(crate) use test_data::sample_status;

use crate::error::{CliError, CliExitCode};
use kerberos_ticket::KerberosTicket;
pub(crate) use tls_client::CredentialArgs;
use tls_client::HostCredentials;
use transport::ControlStream;

/// The timeout of a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of the answer to a question.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of the answer to an act: a reload may look names up.
const ACTION_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest silence on an event stream; its heartbeat is 15 s.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// The reason for a missing answer: one line that names the fault, its place and the remedy.
#[derive(Debug)]
pub(crate) enum ControlError {
    /// The peer does not answer.
    Unreachable(String),
    /// The question is wrong, or the balancer refused the act.
    Refused(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(message) | Self::Refused(message) => f.write_str(message),
        }
    }
}

impl From<ControlError> for CliError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Unreachable(message) => Self::new(CliExitCode::Unreachable, message),
            ControlError::Refused(message) => Self::new(CliExitCode::Usage, message),
        }
    }
}

/// A running balancer, as it is addressed.
#[derive(Clone, Debug)]
pub(crate) enum ControlEndpoint {
    /// Its control socket.
    Unix(PathBuf),
    /// Its read-only listener, `host:port`.
    Http(String),
    /// Its read-only listener in place of a control socket that cannot be used, with the reason.
    ReadOnly(String, String),
    /// Its control over TLS, `host:port`, and the credentials for it.
    Https(String, Arc<HostCredentials>),
}

impl ControlEndpoint {
    fn parse(text: &str) -> Result<Self, ControlError> {
        let refuse = |reason: &str| Err(ControlError::Refused(format!("{text}: {reason}")));
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { refuse("has no path") } else { Ok(Self::Unix(path.into())) };
        }
        if text == "off" {
            return refuse("commands are switched off; give --control http://HOST:PORT to look");
        }
        if text.starts_with("tls://") {
            return refuse(
                "is control over TLS: give --host https://HOST:PORT, --ca and a certificate or token",
            );
        }
        let Some(authority) = text.strip_prefix("http://") else {
            return refuse("give unix:/path of a control socket, or http://HOST:PORT to look");
        };
        match authority.trim_end_matches('/') {
            "" => refuse("has no host"),
            rest if rest.contains(|c: char| "/@?#".contains(c) || c <= ' ') => {
                refuse("give no more than http://HOST:PORT")
            }
            rest if rest.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) => {
                refuse("has no port; the listener's default is 9900")
            }
            rest => Ok(Self::Http(rest.into())),
        }
    }

    /// Returns its status: as the balancer sent it, and parsed.
    pub(crate) fn status(&self) -> Result<(Value, StatusReport), ControlError> {
        let json = self.get::<Value>("/status")?;
        let status = StatusReport::deserialize(&json).map_err(|error| self.foreign_answer(&error))?;
        Ok((json, status))
    }

    /// Returns `true` if no process accepts there any more; in doubt `false`.
    pub(crate) fn is_gone(&self) -> bool {
        let gone_kinds = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
        self.connect().is_err_and(|error| gone_kinds.contains(&error.kind()))
    }

    /// Asks for the document at `target`.
    pub(crate) fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, ControlError> {
        let body =
            self.send("GET", target, "", READ_TIMEOUT)?.body().map_err(|error| self.stream_error(&error))?;
        serde_json::from_slice(&body).map_err(|error| self.foreign_answer(&error))
    }

    /// Asks for an act (POST).
    pub(crate) fn post(&self, target: &str, body: &Value) -> Result<Value, ControlError> {
        self.send_action("POST", target, body)
    }

    /// Asks for an entry to be written (PUT).
    pub(crate) fn put(&self, target: &str, body: &Value) -> Result<Value, ControlError> {
        self.send_action("PUT", target, body)
    }

    /// Asks for an end (DELETE).
    pub(crate) fn delete(&self, target: &str, body: &Value) -> Result<Value, ControlError> {
        self.send_action("DELETE", target, body)
    }

    fn send_action(&self, method: &str, target: &str, body: &Value) -> Result<Value, ControlError> {
        self.check_writable()?;
        let is_empty = body.is_null() && method == "DELETE";
        let body = if is_empty { String::new() } else { body.to_string() };
        let body =
            self.send(method, target, &body, ACTION_TIMEOUT)?.body().map_err(|e| self.stream_error(&e))?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Checks that acts are possible there.
    fn check_writable(&self) -> Result<(), ControlError> {
        let reason = match self {
            Self::Unix(_) | Self::Https(..) => return Ok(()),
            Self::Http(_) => "give --control unix:/path of the control socket to act",
            Self::ReadOnly(_, reason) => reason,
        };
        Err(ControlError::Refused(format!("{self} only shows: {reason}")))
    }

    /// Checks that a process accepts connections there, as far as this user may connect; in doubt it does.
    fn probe(&self) -> io::Result<()> {
        let away_kinds = [ErrorKind::NotFound, ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
        match self.connect() {
            Err(error) if away_kinds.contains(&error.kind()) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns a reader of the lines of the answer, as they come.
    pub(crate) fn stream_lines(&self, target: &str) -> Result<impl BufRead + use<>, ControlError> {
        Ok(self.send("GET", target, "", MAX_SILENCE)?.stream())
    }

    /// Returns the trouble of an answer that broke off.
    pub(crate) fn stream_error(&self, error: &io::Error) -> ControlError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ControlError::Unreachable(format!(
                "{self} took the question but does not answer in time: is the balancer stopped or overloaded?"
            )),
            _ => ControlError::Unreachable(format!("{self} broke off: {error}")),
        }
    }

    fn foreign_answer(&self, error: &serde_json::Error) -> ControlError {
        ControlError::Unreachable(format!(
            "{self} does not answer as a balancer of this version does: {error}; use the plimsoll it was \
             started with"
        ))
    }

    /// Returns the trouble of an error on a connection.
    fn connection_error(&self, error: &io::Error) -> ControlError {
        match (self, tls_client::tls_rejection(error)) {
            (Self::Https(..), Some(reason)) => ControlError::Refused(format!("{self}: {reason}")),
            _ => self.stream_error(error),
        }
    }

    fn send(
        &self,
        method: &str,
        target: &str,
        body: &str,
        timeout: Duration,
    ) -> Result<http::HttpResponse, ControlError> {
        let socket = self.connect().map_err(|error| self.unreachable(&error))?;
        self.send_request(socket, method, target, body, timeout)
    }

    fn send_request(
        &self,
        mut socket: ControlStream,
        method: &str,
        target: &str,
        body: &str,
        timeout: Duration,
    ) -> Result<http::HttpResponse, ControlError> {
        socket.set_read_timeout(timeout).map_err(|error| self.stream_error(&error))?;
        let ticket = KerberosTicket::for_connection(self, &mut socket)?;
        let (host, token) = match self {
            Self::Unix(_) => ("plimsoll", String::new()),
            Self::Http(authority) | Self::ReadOnly(authority, _) => (authority.as_str(), String::new()),
            Self::Https(authority, credentials) => (
                authority.as_str(),
                ticket
                    .as_ref()
                    .map_or_else(|| credentials.authorization_header(), KerberosTicket::negotiate_header),
            ),
        };
        // HTTP/1.0: the answer ends with the connection and is never chunked.
        let request = format!(
            "{method} {target} HTTP/1.0\r\nHost: {host}\r\n{token}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let write_result = socket.write_all(request.as_bytes()).and_then(|()| socket.flush());
        // A peer that closes the connection has sent the reason before, if it speaks TLS.
        let response = match (http::HttpResponse::read(socket), write_result) {
            (Ok(response), _) => response,
            (Err(error), Ok(())) => return Err(self.connection_error(&error)),
            (Err(read_error), Err(_)) if tls_client::tls_rejection(&read_error).is_some() => {
                return Err(self.connection_error(&read_error));
            }
            (Err(_), Err(error)) => return Err(self.connection_error(&error)),
        };
        ticket.map_or(Ok(()), |ticket| ticket.verify(self, &response))?;
        match response.status {
            200..300 => Ok(response),
            status => {
                let body = response.body().map_err(|error| self.stream_error(&error))?;
                let json = serde_json::from_slice::<Value>(&body).unwrap_or_default();
                let message = match json["error"].as_str() {
                    Some(message) => message.to_owned(),
                    None => format!("{self}{target} answered {status}: is it a balancer's admin listener?"),
                };
                Err(if status < 500 {
                    ControlError::Refused(message)
                } else {
                    ControlError::Unreachable(message)
                })
            }
        }
    }

    fn connect(&self) -> io::Result<ControlStream> {
        match self {
            // std's connect is not used: it waits for ever where a stopped process has a full backlog.
            Self::Unix(path) => {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.connect_timeout(&SockAddr::unix(path)?, CONNECT_TIMEOUT)?;
                Ok(ControlStream::Plain(socket))
            }
            Self::Http(authority) | Self::ReadOnly(authority, _) => {
                Ok(ControlStream::Plain(tls_client::connect_tcp(authority, CONNECT_TIMEOUT)?.into()))
            }
            Self::Https(authority, credentials) => {
                Ok(ControlStream::Tls(Box::new(credentials.connect(authority, CONNECT_TIMEOUT)?)))
            }
        }
    }

    fn unreachable(&self, error: &io::Error) -> ControlError {
        let hint = match (self, error.kind()) {
            (Self::Unix(_), ErrorKind::NotFound) => {
                "no balancer made it; start one (plimsoll up), or say where it is: --control unix:/path, or \
                 -c plimsoll.toml"
            }
            (Self::Unix(_), ErrorKind::ConnectionRefused) => {
                "the balancer that made it is gone; start one (plimsoll up)"
            }
            (Self::Unix(_), ErrorKind::PermissionDenied) => {
                "use it as the user who started the balancer, or as root"
            }
            (Self::Unix(_), _) => "is it the control socket of a balancer?",
            (Self::Http(_) | Self::ReadOnly(..), ErrorKind::ConnectionRefused) => {
                "nothing listens there; see [admin] listen of the balancer's configuration"
            }
            (Self::Http(_) | Self::ReadOnly(..), _) => "see [admin] listen of the balancer's configuration",
            (Self::Https(..), _) => "see [admin] control of its configuration",
        };
        ControlError::Unreachable(format!("cannot reach {self}: {error}; {hint}"))
    }
}

impl fmt::Display for ControlEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Http(authority) | Self::ReadOnly(authority, _) => write!(f, "http://{authority}"),
            Self::Https(authority, _) => write!(f, "https://{authority}"),
        }
    }
}

impl PartialEq for ControlEndpoint {
    /// Compares the addresses, without the credentials.
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// Returns `control`, or `listen`, of a section of a file. The file may be wrong elsewhere, even in its
/// syntax: an operator must be able to look at a balancer while its next configuration is written.
fn address_in_file(file: &Path, section: &str, key: &str) -> Result<Option<String>, ControlError> {
    let refuse = |reason: &dyn fmt::Display| {
        let file = file.display();
        ControlError::Refused(format!("{file}: {reason}; mend it, or say --control unix:/path"))
    };
    let text = std::fs::read_to_string(file).map_err(|error| refuse(&error))?;
    let (table, errors) = DeTable::parse_recoverable(&text);
    let control = table.get_ref().get(section).and_then(|section| section.get_ref().get(key));
    let control = control.map(|control| control_address(control.get_ref()));
    match (control, errors.first()) {
        (Some(Some(control)), None) => Ok(Some(control.to_owned())),
        (Some(Some(control)), Some(_)) if ControlEndpoint::parse(control).is_ok() => {
            Ok(Some(control.to_owned()))
        }
        (Some(None), None) => Err(refuse(&format_args!("[{section}] {key} is not a text"))),
        (None, None) => Ok(None),
        // The wrong part may be the one with the address.
        (_, Some(error)) => {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            Err(refuse(&format_args!("line {line}: {}", error.message())))
        }
    }
}

/// Returns the address of control that is of this host, if there are several.
fn control_address<'v>(control: &'v DeValue<'_>) -> Option<&'v str> {
    match control {
        DeValue::Array(list) => {
            let mut texts = list.iter().map(|item| item.get_ref().as_str());
            texts.find(|text| text.is_some_and(|text| text.starts_with("unix:"))).flatten()
        }
        value => value.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_there_says_what_to_do() {
        let control = ControlEndpoint::Unix(std::env::temp_dir().join("plimsoll-no-such.sock"));
        let error = control.get::<Value>("/status").unwrap_err();
        assert!(matches!(&error, ControlError::Unreachable(why) if why.contains("plimsoll up")), "{error}");
    }
}
