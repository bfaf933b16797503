//! One connection to one member of an etcd cluster, and calls on it.

use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, Reason, RecvStream, SendStream};
use hyper::header::{CONTENT_TYPE, TE, USER_AGENT};
use hyper::{HeaderMap, Request, Response, StatusCode};
use plimsoll_wire::etcd::Message;
use plimsoll_wire::xds::{FrameDecoder, encode_frame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::{EtcdEndpoint, EtcdError, TlsFiles, tls};

/// The interval of pings. etcd treats more than one in 5 s as an attack.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(6);
/// The time limit of a ping's response.
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// The maximum length of a message, in bytes: a page of keys.
const MAX_MESSAGE_LENGTH: usize = 64 << 20;

/// A connection, which ends when it is dropped.
pub(super) struct EtcdConnection {
    sender: SendRequest<Bytes>,
    driver: AbortHandle,
    origin: String,
}

impl Drop for EtcdConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl EtcdConnection {
    /// Connects, without a time limit.
    pub(super) async fn connect(endpoint: &EtcdEndpoint, files: &TlsFiles) -> Result<Self, String> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        // A call is one small write; a delay would add only latency.
        let _ = stream.set_nodelay(true);
        let origin = endpoint.to_string();
        if endpoint.https {
            Self::handshake(tls::handshake(files, &endpoint.host, stream).await?, origin).await
        } else {
            Self::handshake(stream, origin).await
        }
    }

    async fn handshake<S>(stream: S, origin: String) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = Builder::new()
            .enable_push(false)
            .max_header_list_size(16 * 1024)
            .initial_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(stream)
            .await;
        let (sender, connection) = handshake.map_err(|error| format!("HTTP/2: {error}"))?;
        let driver = tokio::spawn(drive(connection)).abort_handle();
        Ok(Self { sender, driver, origin })
    }

    /// Returns `true` if the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Makes a call with one request and one response. It also works for streams in both directions, with a
    /// single request.
    pub(super) async fn call<A: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
        token: Option<&str>,
    ) -> Result<A, EtcdError> {
        let (response, mut send_stream) = self.start_call(path, token, false).await?;
        send_stream.send_data(encode_frame(request).into(), true).map_err(unknown_outcome)?;
        let (headers, mut body) = check_response(response.await.map_err(call_error)?)?;
        let mut frames = FrameDecoder::new(MAX_MESSAGE_LENGTH);
        let mut last_message = None;
        while let Some(chunk) = next_chunk(&mut body).await {
            frames.push(&chunk.map_err(unknown_outcome)?);
            while let Some(message) = frames.next_message().map_err(unknown_outcome)? {
                last_message = Some(message);
            }
        }
        let trailers = body.trailers().await.map_err(unknown_outcome)?;
        // A call that is rejected at once has its status in the head.
        check_status(trailers.as_ref().unwrap_or(&headers))?;
        let message =
            last_message.ok_or_else(|| EtcdError::OutcomeUnknown("an answer without a message".into()))?;
        A::decode(&message[..]).map_err(unknown_outcome)
    }

    /// Opens a stream of messages in both directions, with a first request.
    pub(super) async fn stream(
        &self,
        path: &str,
        request: &impl Message,
        token: Option<&str>,
    ) -> Result<MessageStream, EtcdError> {
        let (response, mut send_stream) = self.start_call(path, token, true).await?;
        send_stream.send_data(encode_frame(request).into(), false).map_err(unknown_outcome)?;
        let (headers, body) = check_response(response.await.map_err(call_error)?)?;
        if body.is_end_stream() {
            check_status(&headers)?;
        }
        Ok(MessageStream { _send_stream: send_stream, body, frames: FrameDecoder::new(MAX_MESSAGE_LENGTH) })
    }

    async fn start_call(
        &self,
        path: &str,
        token: Option<&str>,
        require_leader: bool,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), EtcdError> {
        let unreachable = |error: &dyn std::fmt::Display| EtcdError::Unreachable(format!("HTTP/2: {error}"));
        let mut request = Request::post(format!("{}{path}", self.origin))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = token {
            request = request.header("token", token);
        }
        if require_leader {
            // A member without a leader ends the stream, instead of staying silent.
            request = request.header("hasleader", "true");
        }
        let request = request.body(()).map_err(|error| unreachable(&error))?;
        let mut sender = self.sender.clone().ready().await.map_err(|error| unreachable(&error))?;
        sender.send_request(request, false).map_err(|error| unreachable(&error))
    }
}

/// A stream of received messages, which ends when it is dropped.
pub(super) struct MessageStream {
    /// Keeps the stream open.
    _send_stream: SendStream<Bytes>,
    body: RecvStream,
    frames: FrameDecoder,
}

impl MessageStream {
    /// Returns the next message. Callers may drop the future and call again.
    ///
    /// # Errors
    /// The stream has ended.
    pub(super) async fn next<A: Message + Default>(&mut self) -> Result<A, EtcdError> {
        loop {
            if let Some(message) = self.frames.next_message().map_err(unknown_outcome)? {
                return A::decode(&message[..]).map_err(unknown_outcome);
            }
            match next_chunk(&mut self.body).await {
                Some(chunk) => self.frames.push(&chunk.map_err(call_error)?),
                None => {
                    let trailers = self.body.trailers().await.map_err(unknown_outcome)?.unwrap_or_default();
                    check_status(&trailers)?;
                    return Err(EtcdError::OutcomeUnknown("the stream has ended".into()));
                }
            }
        }
    }
}

/// Drives the connection until it ends or stops responding to pings.
async fn drive<S: AsyncRead + AsyncWrite + Unpin>(mut connection: Connection<S, Bytes>) {
    let mut ping = connection.ping_pong();
    let ping_timeout = async {
        let Some(ping) = &mut ping else { return std::future::pending().await };
        loop {
            sleep(PING_INTERVAL).await;
            if !matches!(timeout(PING_TIMEOUT, ping.ping(Ping::opaque())).await, Ok(Ok(_))) {
                return;
            }
        }
    };
    tokio::select! {
        // The calls report the reason of the end.
        _ = connection => {}
        () = ping_timeout => {}
    }
}

/// Returns the next bytes of a response, and reopens the flow-control window for as many.
async fn next_chunk(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let chunk = body.data().await?;
    Some(chunk.and_then(|chunk| body.flow_control().release_capacity(chunk.len()).map(|()| chunk)))
}

fn check_response(response: Response<RecvStream>) -> Result<(HeaderMap, RecvStream), EtcdError> {
    let status = response.status();
    if status != StatusCode::OK {
        return Err(EtcdError::OutcomeUnknown(format!("it answered {}: is it etcd?", status.as_u16())));
    }
    let (head, body) = response.into_parts();
    Ok((head.headers, body))
}

/// Checks the status of a call in the given fields.
fn check_status(headers: &HeaderMap) -> Result<(), EtcdError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(code) = text("grpc-status") else {
        return Err(EtcdError::OutcomeUnknown("an answer without grpc-status".into()));
    };
    let message: String =
        unescape_message(text("grpc-message").unwrap_or("it does not say why")).chars().take(300).collect();
    match code.parse::<u32>() {
        Ok(0) => Ok(()),
        // Temporarily unavailable: no leader, an election, overload.
        Ok(1 | 2 | 4 | 14) => Err(EtcdError::OutcomeUnknown(message)),
        Ok(code) => Err(EtcdError::Rejected(code, message)),
        Err(_) => Err(EtcdError::OutcomeUnknown(format!("grpc-status {code:?}"))),
    }
}

/// Decodes the escapes of gRPC's messages: `%` and two hexadecimal digits.
fn unescape_message(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.filter(|_| byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Converts the error of a call: a refused stream means that the call had no effect.
fn call_error(error: h2::Error) -> EtcdError {
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => EtcdError::Unreachable("it takes no more calls".into()),
        Some(Reason::NO_ERROR) => EtcdError::OutcomeUnknown("the connection was closed".into()),
        _ => unknown_outcome(error),
    }
}

fn unknown_outcome(error: impl std::fmt::Display) -> EtcdError {
    EtcdError::OutcomeUnknown(format!("the connection broke: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_told_apart() {
        let check = |code: &'static str, message: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", code.parse().unwrap());
            headers.insert("grpc-message", message.parse().unwrap());
            check_status(&headers)
        };
        assert_eq!(check("0", ""), Ok(()));
        assert_eq!(check("14", "no%20leader"), Err(EtcdError::OutcomeUnknown("no leader".into())));
        assert_eq!(check("16", "a%0Ab%zz%"), Err(EtcdError::Rejected(16, "a b%zz%".into())));
        assert!(matches!(check("x", ""), Err(EtcdError::OutcomeUnknown(_))));
        assert!(matches!(check_status(&HeaderMap::new()), Err(EtcdError::OutcomeUnknown(_))));
    }
}
