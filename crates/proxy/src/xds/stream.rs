//! One gRPC call on a stream of HTTP/2: messages in, messages out, an end with a status.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response};
use plimsoll_wire::xds::{Bad, Frames, Message, frame};

use super::MESSAGE;
use crate::core::Core;

/// The outcome of a call, by gRPC's status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client has ended the call.
    Ok,
    /// The client's bytes are no message.
    Invalid,
    /// The client's message is too large.
    TooMuch,
    /// The client uses a feature that was not offered, or requests something that does not exist.
    Unimplemented,
    /// The process stops, or the listener closes.
    Unavailable,
    /// The client has gone, or does not read: no status can be sent.
    Gone,
}

impl End {
    /// Returns the code and its meaning here.
    fn told(self) -> (u8, &'static str) {
        match self {
            Self::Ok => (0, ""),
            Self::Invalid => (3, "not a message of this service"),
            Self::TooMuch => (8, "too long a message or too many names"),
            Self::Unimplemented => {
                (12, "there is discovery (ADS, state of the world) and load reporting (LRS)")
            }
            Self::Unavailable | Self::Gone => (14, "the listener is closed"),
        }
    }

    pub(super) fn trailers(self) -> HeaderMap {
        let (code, why) = self.told();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(u16::from(code)));
        if !why.is_empty() {
            trailers.insert("grpc-message", HeaderValue::from_static(why));
        }
        trailers
    }
}

/// Returns the head of every response.
pub(super) fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    head
}

/// The client's messages.
pub(super) struct Incoming {
    body: RecvStream,
    frames: Frames,
}

impl Incoming {
    pub(super) fn new(body: RecvStream) -> Self {
        Self { body, frames: Frames::new(MESSAGE) }
    }

    /// Returns the next message; `None` at the end. If this is dropped, the bytes so far are kept.
    ///
    /// # Errors
    /// The outcome of the call.
    pub(super) async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, End> {
        loop {
            match self.frames.next_message() {
                Ok(Some(message)) => return M::decode(&message[..]).map(Some).map_err(|_| End::Invalid),
                Ok(None) => {}
                Err(Bad::Long) => return Err(End::TooMuch),
                Err(Bad::Compressed) => return Err(End::Unimplemented),
            }
            match self.body.data().await {
                Some(Ok(bytes)) => {
                    self.frames.push(&bytes);
                    // The client may send as much again. A stream that has ended needs no window.
                    let _ = self.body.flow_control().release_capacity(bytes.len());
                }
                Some(Err(_)) => return Err(End::Gone),
                None => return Ok(None),
            }
        }
    }
}

/// The messages to the client.
pub(super) struct Outgoing(SendStream<Bytes>);

impl Outgoing {
    /// Begins the response; `None` if the client has gone.
    pub(super) fn begin(mut respond: SendResponse<Bytes>) -> Option<Self> {
        respond.send_response(head(), false).ok().map(Self)
    }

    /// Sends a message, as fast as the client reads.
    ///
    /// # Errors
    /// The client has gone, or has not read it in time.
    pub(super) async fn send(
        &mut self,
        core: &Core,
        patience: Duration,
        message: &impl Message,
    ) -> Result<(), End> {
        let mut rest = Bytes::from(frame(message));
        while !rest.is_empty() {
            self.0.reserve_capacity(rest.len());
            if self.0.capacity() == 0 {
                let room = core.within(patience, poll_fn(|cx| self.0.poll_capacity(cx))).await;
                if !matches!(room, Some(Some(Ok(_)))) {
                    return Err(End::Gone);
                }
            }
            let piece = rest.split_to(self.0.capacity().min(rest.len()));
            if !piece.is_empty() {
                self.0.send_data(piece, false).map_err(|_| End::Gone)?;
            }
        }
        Ok(())
    }

    pub(super) fn end(mut self, end: End) {
        if end == End::Gone {
            return self.0.send_reset(h2::Reason::CANCEL);
        }
        // The client may have gone.
        let _ = self.0.send_trailers(end.trailers());
    }
}
