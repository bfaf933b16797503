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
    pub fn bind(url: &str, group: &str, wish: &LeaseRequest) -> Result<Self, LeaseError> {
        let usage = |why: &str| LeaseError::Usage(format!("{url}: {why}, such as http://10.0.0.9:9901"));
        let host = url.strip_prefix("http://").ok_or_else(|| usage("give the address of a balancer"))?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
        if host.is_empty() || !host.bytes().all(plain) {
            return Err(usage("give a host and a port and no more"));
        }
        let host = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        // Names of groups need no escaping.
        let named = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if group.is_empty() || !group.bytes().all(named) {
            return Err(LeaseError::Usage(format!("{group:?} is not the name of a group")));
        }
        let door = LeaseEndpoint { host, group: group.to_owned(), timeout: REQUEST_TIMEOUT };
        let said = door.send("POST", "", Some(&wish.to_json()))?;
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let (member, why) = (String::new(), String::new());
        let mut lease = Self {
            endpoint: door,
            id: String::new(),
            member,
            address: nowhere,
            duration: Duration::ZERO,
            moved: false,
            reason: why,
        };
        lease.update(&said)?;
        Ok(lease)
    }

    /// Renews the lease. Returns `true` if the balancer has moved the client to another member, to which the
    /// lease then refers.
    ///
    /// # Errors
    /// Returns an error if the lease has ended ([`LeaseError::Unknown`]) or the balancer does not respond.
    /// The lease is unchanged then.
    pub fn renew(&mut self, wish: &LeaseRequest) -> Result<bool, LeaseError> {
        let said = self.endpoint.send("POST", &self.id, Some(&wish.to_json()))?;
        self.update(&said)?;
        Ok(self.moved)
    }

    /// Releases the lease. Succeeds if it has already ended.
    ///
    /// # Errors
    /// Returns an error if the balancer does not respond; the lease then ends when its time is over.
    pub fn release(self) -> Result<(), LeaseError> {
        match self.endpoint.send("DELETE", &self.id, None) {
            Ok(_) | Err(LeaseError::Unknown(_)) => Ok(()),
            Err(why) => Err(why),
        }
    }

    fn update(&mut self, said: &Value) -> Result<(), LeaseError> {
        let text = |key: &str| said[key].as_str().map(str::to_owned);
        let whole = || {
            let seconds = said["lease_seconds"].as_f64()?;
            let span = Duration::try_from_secs_f64(seconds).ok()?;
            let address = said["address"].as_str()?.parse().ok()?;
            // The id becomes part of the path of the next request.
            let id = text("lease")
                .filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
            Some((id, text("member")?, address, span, said["moved"].as_bool()?, text("why")?))
        };
        let whole = whole()
            .ok_or_else(|| LeaseError::NoResponse(format!("{} is no balancer", self.endpoint.host)))?;
        (self.id, self.member, self.address, self.duration, self.moved, self.reason) = whole;
        Ok(())
    }
}

impl LeaseRequest {
    fn to_json(&self) -> Value {
        let mut wish = Map::new();
        if let Some(key) = &self.key {
            wish.insert("key".into(), key.as_str().into());
        }
        if let Some(seconds) = self.seconds {
            wish.insert("lease_seconds".into(), seconds.into());
        }
        if !self.exclude.is_empty() {
            wish.insert("exclude".into(), json!(self.exclude));
        }
        wish.into()
    }
}

impl LeaseEndpoint {
    /// Sends a request and returns the JSON object of the response.
    fn send(&self, method: &str, lease: &str, body: Option<&Value>) -> Result<Value, LeaseError> {
        let silence = |why: io::Error| LeaseError::NoResponse(format!("{}: {why}", self.host));
        let body = body.map_or_else(String::new, ToString::to_string);
        let slash = if lease.is_empty() { "" } else { "/" };
        let request = format!(
            "{method} /v1/groups/{}/bind{slash}{lease} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.group,
            self.host,
            body.len()
        );
        let answer = self.exchange(request.as_bytes()).map_err(silence)?;
        let (status, said) = parse_response(&answer)
            .ok_or_else(|| LeaseError::NoResponse(format!("{} is no balancer", self.host)))?;
        let why = said["error"].as_str().unwrap_or("no reason was given").to_owned();
        match status {
            200..=299 => Ok(said),
            404 => Err(LeaseError::Unknown(why)),
            429 | 503 => Err(LeaseError::Busy(why)),
            _ => Err(LeaseError::Usage(why)),
        }
    }

    /// Sends a request and reads until the balancer closes the connection.
    fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let end = Instant::now() + self.timeout;
        let left = || end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut last = io::Error::other("the name has no address");
        for address in self.host.to_socket_addrs()? {
            let mut stream = match TcpStream::connect_timeout(&address, left()) {
                Ok(stream) => stream,
                Err(why) => {
                    last = why;
                    continue;
                }
            };
            stream.set_write_timeout(Some(left()))?;
            stream.write_all(request)?;
            let mut answer = Vec::new();
            loop {
                stream.set_read_timeout(Some(left()))?;
                let mut piece = [0; 4096];
                match stream.read(&mut piece)? {
                    0 => return Ok(answer),
                    _ if answer.len() as u64 > MAX_RESPONSE || Instant::now() > end => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    came => answer.extend_from_slice(&piece[..came]),
                }
            }
        }
        Err(last)
    }
}

/// Parses the status and the JSON object of a response that ends with its connection.
fn parse_response(answer: &[u8]) -> Option<(u16, Value)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let chunked = head.lines().any(|line| line.to_ascii_lowercase().starts_with("transfer-encoding:"));
    let body = answer.get(end + 4..)?;
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
    fn balancer(answers: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let whole = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).into_owned();
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length =
                        head.split("Content-Length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
                    (body.len() >= length)
                        .then(|| format!("{} {body}", head.lines().next().unwrap_or_default()))
                };
                let text = loop {
                    let mut piece = [0; 1000];
                    let came = stream.read(&mut piece).unwrap();
                    request.extend_from_slice(&piece[..came]);
                    if let Some(text) = whole(&request) {
                        break text;
                    }
                };
                asked.push(text);
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (url, asked)
    }

    fn answer(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    fn lent(member: &str, moved: bool) -> String {
        let lease = json!({
            "member": member, "address": "127.0.0.1:80", "lease": "0a", "lease_seconds": 2.5, "moved": moved,
            "why": "so",
        });
        answer("200 OK", &lease.to_string())
    }

    #[test]
    fn a_lease_is_taken_renewed_and_given_back() {
        let answers = vec![lent("a:80", false), lent("b:80", true), answer("204 No Content", "")];
        let (url, asked) = balancer(answers);
        let wish = LeaseRequest { key: Some("me".into()), seconds: Some(2.5), exclude: vec!["c:1".into()] };
        let mut lease = Lease::bind(&url, "web", &wish).unwrap();
        assert_eq!((&*lease.member, lease.duration), ("a:80", Duration::from_millis(2500)));
        assert!(lease.renew(&LeaseRequest::default()).unwrap() && lease.member == "b:80");
        lease.release().unwrap();
        assert_eq!(
            asked.join().unwrap(),
            [
                r#"POST /v1/groups/web/bind HTTP/1.1 {"exclude":["c:1"],"key":"me","lease_seconds":2.5}"#,
                "POST /v1/groups/web/bind/0a HTTP/1.1 {}",
                "DELETE /v1/groups/web/bind/0a HTTP/1.1 ",
            ]
        );
    }

    #[test]
    fn what_is_answered_otherwise_is_an_error() {
        let why = r#"{"error": "because"}"#;
        for (answer, kind) in [
            (answer("404 Not Found", why), "Unknown(\"because\")"),
            (answer("503 Service Unavailable", why), "Busy(\"because\")"),
            (answer("429 Too Many Requests", why), "Busy(\"because\")"),
            (answer("400 Bad Request", why), "Usage(\"because\")"),
            (answer("200 OK", "{}"), "is no balancer"),
            (answer("200 OK", "here"), "is no balancer"),
            (answer("200 OK", &lent("a", false).replace("0a", "../x")), "is no balancer"),
            ("SSH-2.0-x\r\n".into(), "is no balancer"),
            (String::new(), "is no balancer"),
        ] {
            let (url, asked) = balancer(vec![answer.clone()]);
            let error = Lease::bind(&url, "web", &LeaseRequest::default()).unwrap_err();
            assert!(format!("{error:?}").contains(kind), "{answer}: {error:?}");
            asked.join().unwrap();
        }
        for (url, group) in
            [("10.0.0.9:9901", "web"), ("http://", "web"), ("http://a/b", "web"), ("http://a", "a b")]
        {
            let error = Lease::bind(url, group, &LeaseRequest::default()).unwrap_err();
            assert!(matches!(error, LeaseError::Usage(_)), "{url}: {error:?}");
        }
        // A port without a listener, reserved by a bound socket.
        let held = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&held, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = SocketAddrV4::try_from(rustix::net::getsockname(&held).unwrap()).unwrap();
        let error = Lease::bind(&format!("http://{nobody}"), "web", &LeaseRequest::default()).unwrap_err();
        assert!(matches!(error, LeaseError::NoResponse(_)), "{error:?}");
    }
}
