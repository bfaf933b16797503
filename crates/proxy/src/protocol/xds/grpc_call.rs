//! One gRPC call on a stream of HTTP/2: messages in, messages out, an end with a status.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response};
use plimsoll_wire::xds::{FrameDecoder, FrameError, Message, encode_frame};

use super::MAX_MESSAGE;
use crate::upstream::thread_context::ThreadContext;

/// The outcome of a call, by gRPC's status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStatus {
    /// The client has ended the call.
    Ok,
    /// The client's bytes are no message.
    Invalid,
    /// The client's message is too large.
    TooLarge,
    /// The client uses a feature that was not offered, or requests something that does not exist.
    Unimplemented,
    /// The process stops, or the listener closes.
    Unavailable,
    /// The client has gone, or does not read: no status can be sent.
    Gone,
}

impl CallStatus {
    /// Returns the code and its meaning here.
    fn code_and_message(self) -> (u8, &'static str) {
        match self {
            Self::Ok => (0, ""),
            Self::Invalid => (3, "not a message of this service"),
            Self::TooLarge => (8, "too long a message or too many names"),
            Self::Unimplemented => {
                (12, "there is discovery (ADS, state of the world) and load reporting (LRS)")
            }
            Self::Unavailable | Self::Gone => (14, "the listener is closed"),
        }
    }

    pub(super) fn trailers(self) -> HeaderMap {
        let (code, message) = self.code_and_message();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(u16::from(code)));
        if !message.is_empty() {
            trailers.insert("grpc-message", HeaderValue::from_static(message));
        }
        trailers
    }
}

/// Returns the head of every response.
pub(super) fn response_head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    head
}

/// The client's messages.
pub(super) struct IncomingMessages {
    body: RecvStream,
    frames: FrameDecoder,
}

impl IncomingMessages {
    pub(super) fn new(body: RecvStream) -> Self {
        Self { body, frames: FrameDecoder::new(MAX_MESSAGE) }
    }

    /// Returns the next message; `None` at the end. If this is dropped, the bytes so far are kept.
    ///
    /// # Errors
    /// The outcome of the call.
    pub(super) async fn next_message<M: Message + Default>(&mut self) -> Result<Option<M>, CallStatus> {
        loop {
            match self.frames.next_message() {
                Ok(Some(message)) => {
                    return M::decode(&message[..]).map(Some).map_err(|_| CallStatus::Invalid);
                }
                Ok(None) => {}
                Err(FrameError::TooLong) => return Err(CallStatus::TooLarge),
                Err(FrameError::Compressed) => return Err(CallStatus::Unimplemented),
            }
            match self.body.data().await {
                Some(Ok(bytes)) => {
                    self.frames.push(&bytes);
                    // The client may send as much again. A stream that has ended needs no window.
                    let _ = self.body.flow_control().release_capacity(bytes.len());
                }
                Some(Err(_)) => return Err(CallStatus::Gone),
                None => return Ok(None),
            }
        }
    }
}

/// The messages to the client.
pub(super) struct OutgoingMessages(SendStream<Bytes>);

impl OutgoingMessages {
    /// Begins the response; `None` if the client has gone.
    pub(super) fn begin(mut respond: SendResponse<Bytes>) -> Option<Self> {
        respond.send_response(response_head(), false).ok().map(Self)
    }

    /// Sends a message, as fast as the client reads.
    ///
    /// # Errors
    /// The client has gone, or has not read it in time.
    pub(super) async fn send(
        &mut self,
        core: &ThreadContext,
        timeout: Duration,
        message: &impl Message,
    ) -> Result<(), CallStatus> {
        let mut rest = Bytes::from(encode_frame(message));
        while !rest.is_empty() {
            self.0.reserve_capacity(rest.len());
            if self.0.capacity() == 0 {
                let capacity = core.within(timeout, poll_fn(|cx| self.0.poll_capacity(cx))).await;
                if !matches!(capacity, Some(Some(Ok(_)))) {
                    return Err(CallStatus::Gone);
                }
            }
            let chunk = rest.split_to(self.0.capacity().min(rest.len()));
            if !chunk.is_empty() {
                self.0.send_data(chunk, false).map_err(|_| CallStatus::Gone)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, status: CallStatus) {
        if status == CallStatus::Gone {
            return self.0.send_reset(h2::Reason::CANCEL);
        }
        // The client may have gone.
        let _ = self.0.send_trailers(status.trailers());
    }
}
