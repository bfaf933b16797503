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
        request: HttpRequest<'_>,
        request_timeout: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        let result = timeout(request_timeout, self.exchange(request)).await;
        result.unwrap_or_else(|_| Err(format!("no answer within {} s", request_timeout.as_secs_f64())))
    }

    async fn exchange(&self, request: HttpRequest<'_>) -> Result<(StatusCode, Bytes), String> {
        let connect_error = |error: std::io::Error| format!("cannot connect: {error}");
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                self.send(
                    stream.map_err(|error| format!("cannot connect to {}: {error}", path.display()))?,
                    request,
                )
                .await
            }
            Self::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(connect_error)?;
                self.send(stream, request).await
            }
            Self::Tls { host, port, config } => {
                let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(connect_error)?;
                let tls_stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                self.send(tls_stream.map_err(|error| format!("TLS: {error}"))?, request).await
            }
        }
    }

    async fn send<S>(&self, stream: S, request: HttpRequest<'_>) -> Result<(StatusCode, Bytes), String>
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
        let mut builder = Request::builder()
            .method(request.method)
            .uri(request.path)
            .header(HOST, self.authority())
            .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close");
        for (name, value) in request.fields {
            builder = builder.header(name, value);
        }
        let body = match request.body {
            None => Full::default(),
            Some((content_type, body)) => {
                builder = builder.header(CONTENT_TYPE, content_type);
                Full::new(Bytes::from(body.to_string()))
            }
        };
        let request = builder.body(body).map_err(|error| error.to_string())?;
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
