//! The begin of a gRPC call that passes through frame by frame, and its conversion into text where that is
//! required.

use std::cell::Cell;
use std::task::{Context, Poll};

use plimsoll_wire::http1::{BodyFraming, ChunkedParser, MethodClass};

use super::{ByteStream, HttpSession, ParsedRequest};
use crate::protocol::http2::PassthroughCall;
use crate::upstream::side_car::MeterGuard;

impl<S: ByteStream> HttpSession<S> {
    /// Begins a call with the part of it that has arrived, as is done for text: it is read before its
    /// handling is decided. `ended` is `true` if it has no body.
    #[inline(never)]
    pub(super) fn begin_passthrough(
        &mut self,
        cx: &mut Context<'_>,
        mut call: Box<PassthroughCall>,
        ended: bool,
    ) -> ParsedRequest {
        let mut body = if ended { BodyFraming::Done } else { BodyFraming::Chunked(ChunkedParser::new()) };
        while let Some(client) = self.stream.http2_request().filter(|_| !body.is_done() && !call.is_full())
            && let Poll::Ready(Ok(frame)) = client.poll_frame(cx)
        {
            if frame.is_last() {
                body = BodyFraming::Done;
            }
            call.keep_frame(frame);
        }
        let view = self.listener.pool().view();
        let reads_key = view.published.plan.strategy().reads_key;
        ParsedRequest {
            method: MethodClass::Other,
            outgoing: Vec::new(),
            body,
            trailers: plimsoll_wire::http1::TrailerFilter::default(),
            body_started: !call.frames.is_empty(),
            streamed: false,
            retry_allowed: false,
            // There is one request on a stream.
            keep_alive: false,
            http10: false,
            upgrade: false,
            // Other kinds of keys require the text.
            key: if reads_key { crate::settings::hash_key::client_key(self.peer.client.ip()) } else { 0 },
            started_at: self.core.tick(),
            view,
            // Calls with a record or a route are handled as text.
            extras: None,
            meter: MeterGuard::default(),
            wait_urgency: Cell::default(),
            waited: Cell::default(),
            passthrough_call: Some(call),
        }
    }
}

impl ParsedRequest {
    /// Converts the request into text: its member does not speak HTTP/2, although the members of its group
    /// did when it arrived.
    #[cold]
    pub(super) fn convert_to_text(&mut self) {
        let Some(call) = self.passthrough_call.take() else { return };
        self.outgoing = call.text(self.body.is_done());
        let head = self.outgoing.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
        // The text is valid, as this process wrote it.
        let _ = self.body.feed(&self.outgoing[head..]);
    }
}
