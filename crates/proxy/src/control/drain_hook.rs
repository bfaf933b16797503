//! The drain hook: a notification before a member that is drained, or under alert, loses sessions. The hook
//! can move the members' state to the sessions' next members.
//!
//! Each notification is one POST over a connection of its own, from a thread that may block ([`pending`]
//! chooses which), with a time limit for the response. The data path is not involved and continues with its
//! current plan. The sessions move whatever the outcome. So a failed hook prevents no operator from taking a
//! member out of service, and leaves no member overloaded.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use plimsoll_wire::http1;

use crate::DrainHookSettings;

mod pending;

pub(crate) use pending::{HookTracker, MAX_CONCURRENT, PendingHook, start_hooks};

/// The maximum size of a response head, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The size of one read, in bytes.
const READ_SIZE: usize = 4 * 1024;

/// The content of a notification.
pub(crate) struct DrainNotice<'a> {
    pub(crate) group: &'a str,
    pub(crate) member: &'a str,
    /// The share of the member's sessions that move, above 0 and at most 1.
    pub(crate) share: f32,
    /// The sequence number of the group's notifications.
    pub(crate) epoch: u64,
    /// A word that needs no quoting.
    pub(crate) reason: &'a str,
}

impl DrainNotice<'_> {
    /// Returns the JSON:
    ///
    /// ```json
    /// {"group": "web", "member": "10.0.0.1:80", "share": 1, "epoch": 3, "reason": "drain"}
    /// ```
    fn body(&self) -> String {
        let Self { group, member, share, epoch, reason } = self;
        let (group, member) = (json_string(group), json_string(member));
        format!(
            r#"{{"group": {group}, "member": {member}, "share": {share}, "epoch": {epoch}, "reason": "{reason}"}}"#
        )
    }
}

/// Sends the notification and waits for a 2xx response. To be called where blocking is allowed.
///
/// # Errors
/// The reason of the failure, for people.
pub(crate) fn send(settings: &DrainHookSettings, notice: &DrainNotice<'_>) -> Result<(), String> {
    let deadline = Instant::now() + settings.timeout;
    let path = settings.path.replace("{member}", notice.member);
    let status = post(settings, &path, &notice.body(), deadline).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer in {:?}", settings.timeout)
        }
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        _ => error.to_string(),
    })?;
    if (200..300).contains(&status) { Ok(()) } else { Err(format!("answered {status}")) }
}

/// Sends the request and returns the status of the response.
fn post(settings: &DrainHookSettings, path: &str, body: &str, deadline: Instant) -> io::Result<u16> {
    let DrainHookSettings { host, port, .. } = settings;
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    let mut stream = None;
    for address in (&**host, *port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time_left(deadline)?) {
            Ok(candidate) => {
                stream = Some(candidate);
                break;
            }
            Err(error) => failure = error,
        }
    }
    let Some(mut stream) = stream else { return Err(failure) };
    let host_name = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host_name}:{port}\r\nUser-Agent: plimsoll/{}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    // Short enough for the socket's buffer: only a kernel without memory makes it wait.
    stream.set_write_timeout(Some(time_left(deadline)?))?;
    stream.write_all((head + body).as_bytes())?;
    let mut response = Vec::new();
    loop {
        stream.set_read_timeout(Some(time_left(deadline)?))?;
        let mut buffer = [0; READ_SIZE];
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::other("closed the connection before it answered")),
            len => response.extend_from_slice(buffer.get(..len).unwrap_or_default()),
        }
        if let Some(status) = http1::final_status(&response, MAX_HEAD).map_err(io::Error::other)? {
            return Ok(status);
        }
    }
}

/// Returns the remaining time; never zero, which sockets take as no limit.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

/// Returns a string in JSON's syntax.
fn json_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => quoted += &format!("\\u{:04x}", u32::from(control)),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Returns the result of a notification to a listener.
    fn send_notice(listener: &TcpListener, timeout: Duration) -> Result<(), String> {
        let port = listener.local_addr().unwrap().port();
        let settings =
            DrainHookSettings { host: "127.0.0.1".into(), port, path: "/x?y={member}".into(), timeout };
        let (group, member) = ("a \"b\"", "10.0.0.1:80");
        send(&settings, &DrainNotice { group, member, share: 0.3, epoch: 7, reason: "alert" })
    }

    /// Returns the result with this response, and the request that was received.
    fn send_to_server(response: &'static str) -> (Result<(), String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = accepting.accept().unwrap();
            let mut request = String::new();
            while !request.ends_with('}') {
                let mut buffer = [0; 100];
                let len = stream.read(&mut buffer).unwrap();
                request += std::str::from_utf8(&buffer[..len]).unwrap();
            }
            stream.write_all(response.as_bytes()).unwrap();
            request
        });
        let outcome = send_notice(&listener, Duration::from_secs(60));
        (outcome, server.join().unwrap())
    }

    #[test]
    fn whoever_keeps_the_state_is_told_once_and_waited_for() {
        let (outcome, request) =
            send_to_server("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(outcome, Ok(()));
        assert!(request.starts_with("POST /x?y=10.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
        let body =
            r#"{"group": "a \"b\"", "member": "10.0.0.1:80", "share": 0.3, "epoch": 7, "reason": "alert"}"#;
        assert!(request.contains(&format!("Content-Length: {}\r\n", body.len())), "{request}");
        assert!(request.ends_with(&format!("\r\n\r\n{body}")), "{request}");
    }

    #[test]
    fn what_went_wrong_is_said() {
        for (response, expected) in [
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", "answered 503"),
            ("HTTP/1.1 20", "closed the connection"),
            ("what?\r\n\r\n", ""),
        ] {
            let (outcome, _) = send_to_server(response);
            assert!(outcome.as_ref().unwrap_err().contains(expected), "{outcome:?}");
        }
        // The socket listens, but the server does not even accept.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(send_notice(&silent, Duration::from_millis(100)), Err("no answer in 100ms".into()));
    }
}
