//! A lease of a member of a balancer's group, for a client that connects to the member itself
//! (`docs/guide/lookaside.md`).
//!
//! Each operation is one HTTP/1.1 request on its own connection, which the balancer closes after the
//! response. The calls block for a bounded time and need neither a thread nor an event loop.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// The lease endpoint of a balancer for one group, and the timeout of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseEndpoint {
    /// The `host:port` of the URL.
    host: String,
    group: String,
    timeout: Duration,
}

/// A request for a lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseRequest {
    /// The client's key: for strategies that use a key, and to get the member of an existing lease again.
    pub key: Option<String>,
    /// The duration in seconds, 1 to 3600; `None` for one minute, or for the previous duration.
    pub seconds: Option<f64>,
    /// The names of members to exclude, for example because they could not be reached.
    pub exclude: Vec<String>,
}

/// A member leased for a limited time. Renew the lease before it ends, and release it when it is no longer
/// needed.
#[derive(Debug)]
pub struct Lease {
    endpoint: LeaseEndpoint,
    id: String,
    /// The member's name in the balancer's configuration.
    pub member: String,
    /// The member's address.
    pub address: SocketAddr,
    /// The duration since the lease was granted or last renewed.
    pub duration: Duration,
    /// Whether the last response named another member than the one before.
    pub moved: bool,
    /// The reason for the choice, as text.
    pub reason: String,
}

/// The reason why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The URL or the request is invalid.
    #[error("{0}")]
    Usage(String),
    /// The server does not respond, or is not a balancer.
    #[error("the balancer does not answer: {0}")]
    NoResponse(String),
    /// No member is available, or all are at their limit.
    #[error("{0}")]
    Busy(String),
    /// The group or the lease does not exist (any more): bind again.
    #[error("{0}")]
    Unknown(String),
}

/// The timeout of a request, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest response in bytes.
const MAX_RESPONSE: u64 = 64 * 1024;

impl Lease {
    /// Leases a member of a group from the balancer whose `reports` address is `url`, such as
    /// `http://10.0.0.9:9901`.
    ///
    /// # Errors
    /// See [`LeaseError`].
    pub fn bind(url: &str, group: &str, request: &LeaseRequest) -> Result<Self, LeaseError> {
        let usage_error =
            |reason: &str| LeaseError::Usage(format!("{url}: {reason}, such as http://10.0.0.9:9901"));
        let host =
            url.strip_prefix("http://").ok_or_else(|| usage_error("give the address of a balancer"))?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host_byte) {
            return Err(usage_error("give a host and a port and no more"));
        }
        let host = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        // Names of groups need no escaping.
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if group.is_empty() || !group.bytes().all(is_name_byte) {
            return Err(LeaseError::Usage(format!("{group:?} is not the name of a group")));
        }
        let endpoint = LeaseEndpoint { host, group: group.to_owned(), timeout: REQUEST_TIMEOUT };
        let response = endpoint.send("POST", "", Some(&request.to_json()))?;
        let placeholder_address = SocketAddr::from(([0, 0, 0, 0], 0));
        let (member, reason) = (String::new(), String::new());
        let mut lease = Self {
            endpoint,
            id: String::new(),
            member,
            address: placeholder_address,
            duration: Duration::ZERO,
            moved: false,
            reason,
        };
        lease.update(&response)?;
        Ok(lease)
    }

    /// Renews the lease. Returns `true` if the balancer has moved the client to another member, to which the
    /// lease then refers.
    ///
    /// # Errors
    /// Returns an error if the lease has ended ([`LeaseError::Unknown`]) or the balancer does not respond.
    /// The lease is unchanged then.
    pub fn renew(&mut self, request: &LeaseRequest) -> Result<bool, LeaseError> {
        let response = self.endpoint.send("POST", &self.id, Some(&request.to_json()))?;
        self.update(&response)?;
        Ok(self.moved)
    }

    /// Releases the lease. Succeeds if it has already ended.
    ///
    /// # Errors
    /// Returns an error if the balancer does not respond; the lease then ends when its time is over.
    pub fn release(self) -> Result<(), LeaseError> {
        match self.endpoint.send("DELETE", &self.id, None) {
            Ok(_) | Err(LeaseError::Unknown(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn update(&mut self, response: &Value) -> Result<(), LeaseError> {
        let text_field = |key: &str| response[key].as_str().map(str::to_owned);
        let parse_fields = || {
            let seconds = response["lease_seconds"].as_f64()?;
            let duration = Duration::try_from_secs_f64(seconds).ok()?;
            let address = response["address"].as_str()?.parse().ok()?;
            // The id becomes part of the path of the next request.
            let id = text_field("lease")
                .filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
            Some((
                id,
                text_field("member")?,
                address,
                duration,
                response["moved"].as_bool()?,
                text_field("why")?,
            ))
        };
        let fields = parse_fields()
            .ok_or_else(|| LeaseError::NoResponse(format!("{} is no balancer", self.endpoint.host)))?;
        (self.id, self.member, self.address, self.duration, self.moved, self.reason) = fields;
        Ok(())
    }
}

impl LeaseRequest {
    fn to_json(&self) -> Value {
        let mut request_json = Map::new();
        if let Some(key) = &self.key {
            request_json.insert("key".into(), key.as_str().into());
        }
        if let Some(seconds) = self.seconds {
            request_json.insert("lease_seconds".into(), seconds.into());
        }
        if !self.exclude.is_empty() {
            request_json.insert("exclude".into(), json!(self.exclude));
        }
        request_json.into()
    }
}

impl LeaseEndpoint {
    /// Sends a request and returns the JSON object of the response.
    fn send(&self, method: &str, lease: &str, body: Option<&Value>) -> Result<Value, LeaseError> {
        let no_response = |error: io::Error| LeaseError::NoResponse(format!("{}: {error}", self.host));
        let body = body.map_or_else(String::new, ToString::to_string);
        let slash = if lease.is_empty() { "" } else { "/" };
        let request = format!(
            "{method} /v1/groups/{}/bind{slash}{lease} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.group,
            self.host,
            body.len()
        );
        let response = self.exchange(request.as_bytes()).map_err(no_response)?;
        let (status, response_json) = parse_response(&response)
            .ok_or_else(|| LeaseError::NoResponse(format!("{} is no balancer", self.host)))?;
        let error_text = response_json["error"].as_str().unwrap_or("no reason was given").to_owned();
        match status {
            200..=299 => Ok(response_json),
            404 => Err(LeaseError::Unknown(error_text)),
            429 | 503 => Err(LeaseError::Busy(error_text)),
            _ => Err(LeaseError::Usage(error_text)),
        }
    }

    /// Sends a request and reads until the balancer closes the connection.
    fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + self.timeout;
        let time_left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut last_error = io::Error::other("the name has no address");
        for address in self.host.to_socket_addrs()? {
            let mut stream = match TcpStream::connect_timeout(&address, time_left()) {
                Ok(stream) => stream,
                Err(error) => {
                    last_error = error;
                    continue;
                }
            };
            stream.set_write_timeout(Some(time_left()))?;
            stream.write_all(request)?;
            let mut response = Vec::new();
            loop {
                stream.set_read_timeout(Some(time_left()))?;
                let mut chunk = [0; 4096];
                match stream.read(&mut chunk)? {
                    0 => return Ok(response),
                    _ if response.len() as u64 > MAX_RESPONSE || Instant::now() > deadline => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    read_len => response.extend_from_slice(&chunk[..read_len]),
                }
            }
        }
        Err(last_error)
    }
}

/// Parses the status and the JSON object of a response that ends with its connection.
fn parse_response(response: &[u8]) -> Option<(u16, Value)> {
    let head_end = response.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&response[..head_end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let chunked = head.lines().any(|line| line.to_ascii_lowercase().starts_with("transfer-encoding:"));
    let body = response.get(head_end + 4..)?;
    match body {
        _ if chunked => None,
        b"" => Some((status, Value::Null)),
        body => Some((status, serde_json::from_slice::<Value>(body).ok().filter(Value::is_object)?)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
    use std::thread;

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    /// Starts a server that gives these responses in turn, and returns the requests that it received.
    fn balancer(responses: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server_thread = thread::spawn(move || {
            let mut requests = Vec::new();
            for response in responses {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let complete_request = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).into_owned();
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length =
                        head.split("Content-Length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
                    (body.len() >= length)
                        .then(|| format!("{} {body}", head.lines().next().unwrap_or_default()))
                };
                let text = loop {
                    let mut chunk = [0; 1000];
                    let read_len = stream.read(&mut chunk).unwrap();
                    request.extend_from_slice(&chunk[..read_len]);
                    if let Some(text) = complete_request(&request) {
                        break text;
                    }
                };
                requests.push(text);
                stream.write_all(response.as_bytes()).unwrap();
            }
            requests
        });
        (url, server_thread)
    }

    fn http_response(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    fn lease_response(member: &str, moved: bool) -> String {
        let lease = json!({
            "member": member, "address": "127.0.0.1:80", "lease": "0a", "lease_seconds": 2.5, "moved": moved,
            "why": "so",
        });
        http_response("200 OK", &lease.to_string())
    }

    #[test]
    fn a_lease_is_taken_renewed_and_given_back() {
        let responses = vec![
            lease_response("a:80", false),
            lease_response("b:80", true),
            http_response("204 No Content", ""),
        ];
        let (url, server_thread) = balancer(responses);
        let request =
            LeaseRequest { key: Some("me".into()), seconds: Some(2.5), exclude: vec!["c:1".into()] };
        let mut lease = Lease::bind(&url, "web", &request).unwrap();
        assert_eq!((&*lease.member, lease.duration), ("a:80", Duration::from_millis(2500)));
        assert!(lease.renew(&LeaseRequest::default()).unwrap() && lease.member == "b:80");
        lease.release().unwrap();
        assert_eq!(
            server_thread.join().unwrap(),
            [
                r#"POST /v1/groups/web/bind HTTP/1.1 {"exclude":["c:1"],"key":"me","lease_seconds":2.5}"#,
                "POST /v1/groups/web/bind/0a HTTP/1.1 {}",
                "DELETE /v1/groups/web/bind/0a HTTP/1.1 ",
            ]
        );
    }

    #[test]
    fn what_is_answered_otherwise_is_an_error() {
        let error_body = r#"{"error": "because"}"#;
        for (response, expected_error) in [
            (http_response("404 Not Found", error_body), "Unknown(\"because\")"),
            (http_response("503 Service Unavailable", error_body), "Busy(\"because\")"),
            (http_response("429 Too Many Requests", error_body), "Busy(\"because\")"),
            (http_response("400 Bad Request", error_body), "Usage(\"because\")"),
            (http_response("200 OK", "{}"), "is no balancer"),
            (http_response("200 OK", "here"), "is no balancer"),
            (http_response("200 OK", &lease_response("a", false).replace("0a", "../x")), "is no balancer"),
            ("SSH-2.0-x\r\n".into(), "is no balancer"),
            (String::new(), "is no balancer"),
        ] {
            let (url, server_thread) = balancer(vec![response.clone()]);
            let error = Lease::bind(&url, "web", &LeaseRequest::default()).unwrap_err();
            assert!(format!("{error:?}").contains(expected_error), "{response}: {error:?}");
            server_thread.join().unwrap();
        }
        for (url, group) in
            [("10.0.0.9:9901", "web"), ("http://", "web"), ("http://a/b", "web"), ("http://a", "a b")]
        {
            let error = Lease::bind(url, group, &LeaseRequest::default()).unwrap_err();
            assert!(matches!(error, LeaseError::Usage(_)), "{url}: {error:?}");
        }
        // A port without a listener, reserved by a bound socket.
        let unlistened_socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&unlistened_socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let unused_address =
            SocketAddrV4::try_from(rustix::net::getsockname(&unlistened_socket).unwrap()).unwrap();
        let error =
            Lease::bind(&format!("http://{unused_address}"), "web", &LeaseRequest::default()).unwrap_err();
        assert!(matches!(error, LeaseError::NoResponse(_)), "{error:?}");
    }
}
