//! A persistent HTTP/1.1 connection to one server, with a limit on every step.
//!
//! The server may have closed an idle connection, so a failed request is retried once on a new one. A request
//! that exceeds its timeout is cancelled with its connection.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::push::refusal_text;

/// The timeout of a request, from connecting to the last byte of the response.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

const AGENT_NAME: &str = concat!("plimsoll-agent/", env!("CARGO_PKG_VERSION"));

/// A URL: `http://HOST[:PORT][/PATH]`, or `unix:/PATH` of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    text: String,
    address: ServerAddress,
    /// The path with its query; `/` by default.
    path: String,
    host: HeaderValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ServerAddress {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl ServerUrl {
    /// Sets the path, unless the URL has one.
    pub(crate) fn with_default_path(mut self, path: &str) -> Self {
        if self.path == "/" {
            path.clone_into(&mut self.path);
        }
        self
    }
}

impl ServerUrl {
    /// Returns the URL with another path.
    pub(crate) fn with_path(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    /// Requests another path of this server with GET, within 2 s. Returns the body of a 200 response, at most
    /// 64 KiB. Must be called within a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// Returns one line if the connection fails, if the response is late, broken or too large, or the
    /// server's own words if it refuses.
    pub async fn fetch(&self, path: &str) -> Result<Vec<u8>, String> {
        let mut client = HttpClient::new(self.with_path(path));
        let (status, body) =
            client.send_request(Method::GET, None, 64 * 1024).await.map_err(|error| error.to_string())?;
        if status == StatusCode::OK { Ok(body.to_vec()) } else { Err(refusal_text(status.as_u16(), &body)) }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid_url =
            |problem: &str| format!("`{text}`: {problem}; give http://HOST:PORT or unix:/PATH of a socket");
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(invalid_url("the path of the socket does not begin with /"));
            }
            let address = ServerAddress::Unix(path.into());
            return Ok(Self {
                text: text.to_owned(),
                address,
                path: "/".into(),
                host: HeaderValue::from_static("plimsoll"),
            });
        }
        let uri: Uri = text.parse().map_err(|error| invalid_url(&format!("no URL: {error}")))?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.ok_or_else(|| invalid_url("no http:// URL"))?;
        if authority.as_str().contains('@') {
            return Err(invalid_url("a name and password cannot be sent"));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(invalid_url("no host"));
        }
        let colon_index =
            authority.as_str().rfind(':').filter(|index| !authority.as_str()[*index..].contains(']'));
        let port = colon_index.map_or(Ok(80), |index| authority.as_str()[index + 1..].parse::<u16>());
        let port =
            port.ok().filter(|port| *port > 0).ok_or_else(|| invalid_url("no port after the colon"))?;
        let host_header = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid_url("no host"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self {
            text: text.to_owned(),
            address: ServerAddress::Tcp { host, port },
            path,
            host: host_header,
        })
    }
}

/// The reason why a request failed.
#[derive(Debug)]
pub(crate) enum HttpFailure {
    /// The connection failed.
    Connect(io::Error),
    /// The response exceeded the timeout.
    TimedOut,
    /// The response was cut off or is not HTTP.
    Broken(String),
}

impl fmt::Display for HttpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::TimedOut => write!(f, "no answer in {} s", REQUEST_TIMEOUT.as_secs()),
            Self::Broken(reason) => write!(f, "the answer broke off: {reason}"),
        }
    }
}

/// A persistent connection.
pub(crate) struct HttpClient {
    url: ServerUrl,
    connection: Option<OpenConnection>,
    /// The number of connections made.
    connection_count: u64,
}

impl HttpClient {
    pub(crate) fn new(url: ServerUrl) -> Self {
        Self { url, connection: None, connection_count: 0 }
    }

    /// Returns the number of connections made.
    pub(crate) fn connection_count(&self) -> u64 {
        self.connection_count
    }

    /// Returns `true` if a connection is open, as far as this end knows.
    pub(crate) fn is_open(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.sender.is_closed())
    }

    /// Sends a request and returns the status and at most `most` bytes of the body.
    pub(crate) async fn send_request(
        &mut self,
        method: Method,
        body: Option<Bytes>,
        max_body: usize,
    ) -> Result<(StatusCode, Bytes), HttpFailure> {
        let outcome = timeout(REQUEST_TIMEOUT, self.send_with_retry(method, body, max_body)).await;
        // A cancelled request has not put its connection back.
        outcome.unwrap_or(Err(HttpFailure::TimedOut))
    }

    async fn send_with_retry(
        &mut self,
        method: Method,
        body: Option<Bytes>,
        max_body: usize,
    ) -> Result<(StatusCode, Bytes), HttpFailure> {
        if let Some(mut connection) = self.connection.take()
            && let Ok(response) = connection.send(self.request(&method, &body)?, max_body).await
        {
            self.connection = Some(connection);
            return Ok(response);
        }
        let mut connection = OpenConnection::new(&self.url.address).await?;
        self.connection_count += 1;
        let response = connection.send(self.request(&method, &body)?, max_body).await?;
        self.connection = Some(connection);
        Ok(response)
    }

    fn request(&self, method: &Method, body: &Option<Bytes>) -> Result<Request<Full<Bytes>>, HttpFailure> {
        let mut request = Request::builder()
            .method(method)
            .uri(&self.url.path)
            .header(HOST, self.url.host.clone())
            .header(USER_AGENT, AGENT_NAME);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(body.clone().unwrap_or_default());
        request.body(body).map_err(|error| HttpFailure::Broken(error.to_string()))
    }
}

/// An open connection.
struct OpenConnection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl OpenConnection {
    async fn new(address: &ServerAddress) -> Result<Self, HttpFailure> {
        match address {
            ServerAddress::Tcp { host, port } => {
                let stream =
                    TcpStream::connect((host.as_str(), *port)).await.map_err(HttpFailure::Connect)?;
                // A report is one small write, which Nagle's algorithm would only delay.
                let _ = stream.set_nodelay(true);
                Self::handshake(stream).await
            }
            ServerAddress::Unix(path) => {
                Self::handshake(UnixStream::connect(path).await.map_err(HttpFailure::Connect)?).await
            }
        }
    }

    async fn handshake<S>(stream: S) -> Result<Self, HttpFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| HttpFailure::Broken(error.to_string()))?;
        // The request on the connection reports its error.
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Self { sender, task })
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        max_body: usize,
    ) -> Result<(StatusCode, Bytes), HttpFailure> {
        let to_failure = |error: hyper::Error| HttpFailure::Broken(error.to_string());
        self.sender.ready().await.map_err(to_failure)?;
        let (response_parts, body) =
            self.sender.send_request(request).await.map_err(to_failure)?.into_parts();
        let body = Limited::new(body, max_body)
            .collect()
            .await
            .map_err(|error| HttpFailure::Broken(error.to_string()))?;
        Ok((response_parts.status, body.to_bytes()))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url: ServerUrl = "http://127.0.0.1:9901".parse().unwrap();
        assert_eq!(url.address, ServerAddress::Tcp { host: "127.0.0.1".into(), port: 9901 });
        assert_eq!(url.clone().with_default_path("/v1/report").path, "/v1/report");
        let url: ServerUrl = "http://[::1]/metrics?a=b".parse().unwrap();
        assert_eq!(
            (url.address, url.path.as_str()),
            (ServerAddress::Tcp { host: "::1".into(), port: 80 }, "/metrics?a=b")
        );
        let url: ServerUrl = "unix:/run/plimsoll.sock".parse().unwrap();
        assert_eq!(url.address, ServerAddress::Unix("/run/plimsoll.sock".into()));
        for wrong in [
            "",
            "127.0.0.1:80",
            "https://a/",
            "http://",
            "http://:80",
            "unix:x",
            "http://a:b@c/",
            "http://a:99999/",
        ] {
            let error = wrong.parse::<ServerUrl>().unwrap_err();
            assert!(error.contains("give http://HOST:PORT"), "{wrong}: {error}");
        }
    }
}
