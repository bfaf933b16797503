//! One HTTP/1.1 request and its response: over TCP, TLS or a unix socket, on a connection of its own, with a
//! time limit.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::MAX_RESPONSE_LENGTH;
use crate::scrape::AbortOnDrop;

/// The address of a server.
pub(super) enum ServerEndpoint {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, config: Arc<ClientConfig> },
}

/// A request.
pub(super) struct HttpRequest<'a> {
    pub(super) method: Method,
    /// The path with the query.
    pub(super) path: &'a str,
    /// The content type and the JSON body; `None` for no body.
    pub(super) body: Option<(&'a str, Value)>,
    pub(super) fields: &'a [(HeaderName, String)],
}

impl ServerEndpoint {
    fn authority(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".into(),
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            },
        }
    }

    /// Sends a request. Returns the status and the body of the response.
    pub(super) async fn request(
        &self,
        ask: HttpRequest<'_>,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        let answered = timeout(patience, self.exchange(ask)).await;
        answered.unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs_f64())))
    }

    async fn exchange(&self, ask: HttpRequest<'_>) -> Result<(StatusCode, Bytes), String> {
        let failed = |error: std::io::Error| format!("cannot connect: {error}");
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                self.send(
                    stream.map_err(|error| format!("cannot connect to {}: {error}", path.display()))?,
                    ask,
                )
                .await
            }
            Self::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                self.send(stream, ask).await
            }
            Self::Tls { host, port, config } => {
                let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                let secure = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                self.send(secure.map_err(|error| format!("TLS: {error}"))?, ask).await
            }
        }
    }

    async fn send<S>(&self, stream: S, ask: HttpRequest<'_>) -> Result<(StatusCode, Bytes), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(64 * 1024)
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // Ends with the request, on success and on failure.
        let _driver = AbortOnDrop(tokio::spawn(connection).abort_handle());
        let mut request = Request::builder()
            .method(ask.method)
            .uri(ask.path)
            .header(HOST, self.authority())
            .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close");
        for (name, value) in ask.fields {
            request = request.header(name, value);
        }
        let body = match ask.body {
            None => Full::default(),
            Some((kind, body)) => {
                request = request.header(CONTENT_TYPE, kind);
                Full::new(Bytes::from(body.to_string()))
            }
        };
        let request = request.body(body).map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body =
            Limited::new(response.into_body(), MAX_RESPONSE_LENGTH).collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    format!("the answer is longer than {MAX_RESPONSE_LENGTH} bytes")
                } else {
                    format!("the answer broke off: {error}")
                }
            })?;
        Ok((status, body.to_bytes()))
    }
}

/// Formats an error response: its status, and the message in its body if there is one.
pub(crate) fn error_message(status: StatusCode, body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body).ok();
    let message = message.as_ref().and_then(|body| body["message"].as_str());
    match message {
        Some(message) => format!("it answered {}: {}", status.as_u16(), super::exec::shorten(message)),
        None => format!("it answered {}", status.as_u16()),
    }
}
