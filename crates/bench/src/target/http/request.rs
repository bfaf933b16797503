//! One HTTP/1.1 request, ready to be sent repeatedly.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use crate::target::address_choice::first_reachable;

/// The bytes of a request and its destination.
///
/// It uses a persistent connection unless a header contains `connection: close`, which is appropriate for a
/// run with a new connection for each request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    address: SocketAddr,
    /// The parts shared with requests derived from it.
    parts: Arc<RequestParts>,
    is_head: bool,
    bytes: Arc<[u8]>,
}

#[derive(Debug)]
struct RequestParts {
    /// The header lines, each with its line end.
    header_lines: String,
    body: Vec<u8>,
}

/// The reason why a request, or a mix of requests, is invalid.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is not `http://`.
    #[error("`{0}`: expected a URL that begins with `http://`")]
    Scheme(String),
    /// The host is missing or malformed.
    #[error("`{0}`: expected `http://HOST[:PORT][/PATH]` without spaces or credentials")]
    Host(String),
    /// The host has no address.
    #[error("`{url}`: {why}; check the name")]
    Resolve {
        /// The given URL.
        url: String,
        /// The resolver's message.
        why: String,
    },
    /// A method, path or header has bytes that would break the request apart.
    #[error("`{0}` cannot be part of a request head")]
    InvalidBytes(String),
    /// A weight is below zero or no number, or all are zero.
    #[error("a weight of {0}: expected numbers above zero")]
    Weight(f64),
    /// There is no request.
    #[error("no request to send")]
    None,
}

impl HttpRequest {
    /// Creates a request for `url` with `method`, further `headers` and a `body`.
    ///
    /// # Errors
    /// Fails if the URL is malformed, its host has no address or a header cannot be sent.
    pub fn new(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Self, HttpError> {
        let request = Self::without_destination(method, url, headers, body)?;
        let without_scheme = url.strip_prefix("http://").unwrap_or(url);
        let authority = without_scheme.split(['/', '?', '#']).next().unwrap_or(without_scheme);
        Ok(Self { address: resolve(url, authority)?, ..request })
    }

    /// Creates a request without a destination: a picker chooses it for each request, and the host in the URL
    /// is only a name.
    ///
    /// # Errors
    /// Fails if the URL is malformed or a header cannot be sent.
    pub fn without_destination(
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Self, HttpError> {
        let without_scheme = url.strip_prefix("http://").ok_or_else(|| HttpError::Scheme(url.to_owned()))?;
        let (authority, path) = match without_scheme.find(['/', '?', '#']) {
            Some(path_start) => without_scheme.split_at(path_start),
            None => (without_scheme, ""),
        };
        let path = path.split('#').next().unwrap_or_default();
        let printable = url.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !printable {
            return Err(HttpError::Host(url.to_owned()));
        }
        let mut header_lines = String::new();
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            header_lines += &format!("host: {authority}\r\n");
        }
        for (name, value) in headers {
            if !is_token(name) || value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                return Err(HttpError::InvalidBytes(format!("{name}: {value}")));
            }
            header_lines += &format!("{name}: {value}\r\n");
        }
        if !is_token(method) {
            return Err(HttpError::InvalidBytes(method.to_owned()));
        }
        let parts = Arc::new(RequestParts { header_lines, body: body.to_vec() });
        Self::from_parts(SocketAddr::from(([0, 0, 0, 0], 0)), parts, method, path)
    }

    /// Creates a request to the same host with the same headers and body, for another path (with its query,
    /// if any).
    ///
    /// # Errors
    /// Fails if the method or the path cannot be sent.
    pub fn with_path(&self, method: &str, path: &str) -> Result<Self, HttpError> {
        if !is_token(method) || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(HttpError::InvalidBytes(format!("{method} {path}")));
        }
        Self::from_parts(self.address, self.parts.clone(), method, path)
    }

    fn from_parts(
        address: SocketAddr,
        parts: Arc<RequestParts>,
        method: &str,
        path: &str,
    ) -> Result<Self, HttpError> {
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut head = format!("{method} {slash}{path} HTTP/1.1\r\n{}", parts.header_lines);
        if !parts.body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            head += &format!("content-length: {}\r\n", parts.body.len());
        }
        head += "\r\n";
        let bytes = [head.as_bytes(), &parts.body].concat().into();
        Ok(Self { address, parts, is_head: method == "HEAD", bytes })
    }

    /// Returns the destination.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_head(&self) -> bool {
        self.is_head
    }

    pub(crate) fn into_bytes(self) -> Arc<[u8]> {
        self.bytes
    }
}

fn resolve(url: &str, authority: &str) -> Result<SocketAddr, HttpError> {
    let resolve_error = |reason: String| HttpError::Resolve { url: url.to_owned(), why: reason };
    let has_port =
        authority.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let lookup = if has_port {
        authority.to_socket_addrs()
    } else {
        (authority.trim_start_matches('[').trim_end_matches(']'), 80).to_socket_addrs()
    };
    let addresses = lookup.map_err(|error| resolve_error(error.to_string()))?;
    first_reachable(addresses).ok_or_else(|| resolve_error("the host has no address".to_owned()))
}

/// Returns `true` for a token of RFC 9110.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_text(request: &HttpRequest) -> &str {
        std::str::from_utf8(&request.bytes).unwrap()
    }

    #[test]
    fn requests_are_written_as_asked() {
        let request = HttpRequest::new("GET", "http://127.0.0.1:8080/a?b=1#c", &[("x-a", "1")], b"").unwrap();
        assert_eq!(request_text(&request), "GET /a?b=1 HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nx-a: 1\r\n\r\n");
        assert_eq!(request.address(), "127.0.0.1:8080".parse().unwrap());
        let request = HttpRequest::new("POST", "http://[::1]?q", &[("Host", "h")], b"abc").unwrap();
        assert_eq!(request_text(&request), "POST /?q HTTP/1.1\r\nHost: h\r\ncontent-length: 3\r\n\r\nabc");
        assert_eq!(request.address(), "[::1]:80".parse().unwrap());
    }

    #[test]
    fn others_of_the_same_host() {
        let first = HttpRequest::new("GET", "http://127.0.0.1:8080/a", &[("x-a", "1")], b"").unwrap();
        let head_request = first.with_path("HEAD", "/b?c").unwrap();
        assert_eq!(
            request_text(&head_request),
            "HEAD /b?c HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nx-a: 1\r\n\r\n"
        );
        assert!(head_request.is_head() && !first.is_head());
        assert!(first.with_path("GET", "/a b").is_err() && first.with_path("GET", "/a\r\n").is_err());
        assert!(first.with_path("", "/a").is_err());
    }

    #[test]
    fn urls_and_headers_that_cannot_be_sent_are_refused() {
        for url in
            ["https://a/", "a/b", "http://", "http:///x", "http://a b/", "http://u@h/", "http://127.0.0.1:x/"]
        {
            assert!(HttpRequest::new("GET", url, &[], b"").is_err(), "{url}");
        }
        let is_refused = |method, headers: &[(&str, &str)]| {
            HttpRequest::new(method, "http://127.0.0.1/", headers, b"").is_err()
        };
        assert!(
            is_refused("GE T", &[])
                && is_refused("GET", &[("a:", "b")])
                && is_refused("GET", &[("a", "b\r\nc: d")])
        );
    }
}
