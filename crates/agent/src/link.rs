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

use crate::push::refusal;

/// The timeout of a request, from connecting to the last byte of the response.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

const AGENT: &str = concat!("plimsoll-agent/", env!("CARGO_PKG_VERSION"));

/// A URL: `http://HOST[:PORT][/PATH]`, or `unix:/PATH` of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    address: Address,
    /// The path with its query; `/` by default.
    path: String,
    host: HeaderValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Url {
    /// Sets the path, unless the URL has one.
    pub(crate) fn or_path(mut self, path: &str) -> Self {
        if self.path == "/" {
            path.clone_into(&mut self.path);
        }
        self
    }
}

impl Url {
    /// Returns the URL with another path.
    pub(crate) fn at(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    /// Requests another path of this server with GET, within 2 s. Returns the body of a 200 response, at most
    /// 64 KiB. Must be called within a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// Returns one line if the connection fails, if the response is late, broken or too large, or the
    /// server's own words if it refuses.
    pub async fn fetch(&self, path: &str) -> Result<Vec<u8>, String> {
        let mut link = Link::new(self.at(path));
        let (status, body) =
            link.ask(Method::GET, None, 64 * 1024).await.map_err(|trouble| trouble.to_string())?;
        if status == StatusCode::OK { Ok(body.to_vec()) } else { Err(refusal(status.as_u16(), &body)) }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("`{text}`: {what}; give http://HOST:PORT or unix:/PATH of a socket");
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(wrong("the path of the socket does not begin with /"));
            }
            let address = Address::Unix(path.into());
            return Ok(Self {
                text: text.to_owned(),
                address,
                path: "/".into(),
                host: HeaderValue::from_static("plimsoll"),
            });
        }
        let uri: Uri = text.parse().map_err(|error| wrong(&format!("no URL: {error}")))?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.ok_or_else(|| wrong("no http:// URL"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a name and password cannot be sent"));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(wrong("no host"));
        }
        let colon = authority.as_str().rfind(':').filter(|at| !authority.as_str()[*at..].contains(']'));
        let port = colon.map_or(Ok(80), |at| authority.as_str()[at + 1..].parse::<u16>());
        let port = port.ok().filter(|port| *port > 0).ok_or_else(|| wrong("no port after the colon"))?;
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("no host"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { text: text.to_owned(), address: Address::Tcp { host, port }, path, host: header })
    }
}

/// The reason why a request failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection failed.
    Connect(io::Error),
    /// The response exceeded the timeout.
    Late,
    /// The response was cut off or is not HTTP.
    Broken(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Late => write!(f, "no answer in {} s", LIMIT.as_secs()),
            Self::Broken(why) => write!(f, "the answer broke off: {why}"),
        }
    }
}

/// A persistent connection.
pub(crate) struct Link {
    url: Url,
    open: Option<Open>,
    /// The number of connections made.
    made: u64,
}

impl Link {
    pub(crate) fn new(url: Url) -> Self {
        Self { url, open: None, made: 0 }
    }

    /// Returns the number of connections made.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// Returns `true` if a connection is open, as far as this end knows.
    pub(crate) fn is_open(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.sender.is_closed())
    }

    /// Sends a request and returns the status and at most `most` bytes of the body.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        body: Option<Bytes>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        let asked = timeout(LIMIT, self.try_twice(method, body, most)).await;
        // A cancelled request has not put its connection back.
        asked.unwrap_or(Err(Trouble::Late))
    }

    async fn try_twice(
        &mut self,
        method: Method,
        body: Option<Bytes>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        if let Some(mut open) = self.open.take()
            && let Ok(answer) = open.ask(self.request(&method, &body)?, most).await
        {
            self.open = Some(open);
            return Ok(answer);
        }
        let mut open = Open::new(&self.url.address).await?;
        self.made += 1;
        let answer = open.ask(self.request(&method, &body)?, most).await?;
        self.open = Some(open);
        Ok(answer)
    }

    fn request(&self, method: &Method, body: &Option<Bytes>) -> Result<Request<Full<Bytes>>, Trouble> {
        let mut request = Request::builder()
            .method(method)
            .uri(&self.url.path)
            .header(HOST, self.url.host.clone())
            .header(USER_AGENT, AGENT);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(body.clone().unwrap_or_default());
        request.body(body).map_err(|error| Trouble::Broken(error.to_string()))
    }
}

/// An open connection.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Open {
    async fn new(address: &Address) -> Result<Self, Trouble> {
        match address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(Trouble::Connect)?;
                // A report is one small write, which Nagle's algorithm would only delay.
                let _ = stream.set_nodelay(true);
                Self::over(stream).await
            }
            Address::Unix(path) => {
                Self::over(UnixStream::connect(path).await.map_err(Trouble::Connect)?).await
            }
        }
    }

    async fn over<S>(stream: S) -> Result<Self, Trouble>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| Trouble::Broken(error.to_string()))?;
        // The request on the connection reports its error.
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Self { sender, task })
    }

    async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        let broken = |error: hyper::Error| Trouble::Broken(error.to_string());
        self.sender.ready().await.map_err(broken)?;
        let (head, body) = self.sender.send_request(request).await.map_err(broken)?.into_parts();
        let body =
            Limited::new(body, most).collect().await.map_err(|error| Trouble::Broken(error.to_string()))?;
        Ok((head.status, body.to_bytes()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url: Url = "http://127.0.0.1:9901".parse().unwrap();
        assert_eq!(url.address, Address::Tcp { host: "127.0.0.1".into(), port: 9901 });
        assert_eq!(url.clone().or_path("/v1/report").path, "/v1/report");
        let url: Url = "http://[::1]/metrics?a=b".parse().unwrap();
        assert_eq!(
            (url.address, url.path.as_str()),
            (Address::Tcp { host: "::1".into(), port: 80 }, "/metrics?a=b")
        );
        let url: Url = "unix:/run/plimsoll.sock".parse().unwrap();
        assert_eq!(url.address, Address::Unix("/run/plimsoll.sock".into()));
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
            let said = wrong.parse::<Url>().unwrap_err();
            assert!(said.contains("give http://HOST:PORT"), "{wrong}: {said}");
        }
    }
}
