//! A list of members on an HTTP server. It is polled at an interval; an entity tag (`ETag`, RFC 9110 section
//! 8.8.3) shows whether it has changed. A poll is one connection, one GET and one response of at most
//! [`MAX_BODY`] bytes, within the timeout as a whole. A server that responds without end is a failed source.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, ETAG, HOST, HeaderValue, IF_NONE_MATCH, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::resolve_hosts::resolve_members;
use super::{ListParser, MemberList, MemberSource, QueryFuture, QueryOutcome, SourceConfig};
use crate::scrape::AbortOnDrop;

/// The maximum length of a response, in bytes.
const MAX_BODY: usize = 4 << 20;

/// A list of members on an HTTP server.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpSettings {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port; not 0.
    pub port: u16,
    /// The path, which begins with `/`.
    pub path: String,
    /// The interval of polls.
    pub interval: Duration,
    /// The time limit of a poll as a whole.
    pub timeout: Duration,
    /// The parser of the response.
    pub read: ListParser,
}

impl SourceConfig for HttpSettings {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn target(&self) -> String {
        format!("http://{}{}", self.authority(), self.path)
    }

    fn query_timeout(&self) -> Duration {
        self.timeout
    }

    fn retry_delay(&self, _: u32) -> Duration {
        self.interval
    }

    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(HttpSource { settings: Arc::new(self.clone()), tag: None })
    }
}

impl HttpSettings {
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

struct HttpSource {
    settings: Arc<HttpSettings>,
    /// The tag of the response whose members were last reported.
    tag: Option<HeaderValue>,
}

impl MemberSource for HttpSource {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async move {
            let members = match get(&self.settings, self.tag.as_ref()).await? {
                None => None,
                Some((tag, body)) => {
                    let unresolved_members = (self.settings.read.0)("the answer", &body)?;
                    let resolved_members = resolve_members(unresolved_members).await?;
                    self.tag = tag;
                    Some(resolved_members)
                }
            };
            let list = MemberList { members, note: None };
            Ok(QueryOutcome { list, valid_for: self.settings.interval })
        })
    }
}

/// Returns the response and its tag; `None` if it still has the tag `known`.
async fn get(
    settings: &HttpSettings,
    known_tag: Option<&HeaderValue>,
) -> Result<Option<(Option<HeaderValue>, Bytes)>, String> {
    let stream = TcpStream::connect((settings.host.as_str(), settings.port)).await;
    let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Ends with the poll, on success and on failure.
    let _driver = AbortOnDrop(tokio::spawn(connection).abort_handle());
    let mut request = Request::get(&settings.path)
        .header(HOST, settings.authority())
        .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "application/json")
        .header(CONNECTION, "close");
    if let Some(known_tag) = known_tag {
        request = request.header(IF_NONE_MATCH, known_tag);
    }
    let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    match response.status() {
        StatusCode::NOT_MODIFIED if known_tag.is_some() => return Ok(None),
        StatusCode::OK => {}
        status => return Err(format!("it answered {}", status.as_u16())),
    }
    let tag = response.headers().get(ETAG).cloned();
    let body = Limited::new(response.into_body(), MAX_BODY).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            format!("the answer is longer than {} MiB", MAX_BODY >> 20)
        } else {
            format!("the answer broke off: {error}")
        }
    })?;
    Ok(Some((tag, body.to_bytes())))
}
