//! The begin of a gRPC call that passes through frame by frame, and its conversion into text where that is
//! required.

use std::cell::Cell;
use std::task::{Context, Poll};

use plimsoll_wire::http1::{Body, Chunked, Method};

use super::{Asked, Session, Stream};
use crate::http2::Framed;
use crate::metered::Metered;

impl<S: Stream> Session<S> {
    /// Begins a call with the part of it that has arrived, as is done for text: it is read before its
    /// handling is decided. `ended` is `true` if it has no body.
    #[inline(never)]
    pub(super) fn begin_framed(
        &mut self,
        cx: &mut Context<'_>,
        mut framed: Box<Framed>,
        ended: bool,
    ) -> Asked {
        let mut body = if ended { Body::Done } else { Body::Chunked(Chunked::new()) };
        while let Some(client) = self.stream.asking().filter(|_| !body.done() && !framed.full())
            && let Poll::Ready(Ok(piece)) = client.poll_piece(cx)
        {
            if piece.last() {
                body = Body::Done;
            }
            framed.keep(piece);
        }
        let view = self.listener.pool().view();
        let reads_key = view.published.plan.strategy().reads_key;
        Asked {
            method: Method::Other,
            out: Vec::new(),
            body,
            trailers: plimsoll_wire::http1::Trailers::default(),
            came: !framed.pieces.is_empty(),
            streamed: false,
            spare: false,
            // There is one request on a stream.
            keep_alive: false,
            http10: false,
            upgrade: false,
            // Other kinds of keys require the text.
            key: if reads_key { crate::key::of_client(self.peer.client.ip()) } else { 0 },
            begun: self.core.tick(),
            view,
            // Calls with a record are handled as text.
            account: None,
            metered: Metered::default(),
            ranked: Cell::default(),
            waited: Cell::default(),
            framed: Some(framed),
        }
    }
}

impl Asked {
    /// Converts the request into text: its member does not speak HTTP/2, although the members of its group
    /// did when it arrived.
    #[cold]
    pub(super) fn tell(&mut self) {
        let Some(framed) = self.framed.take() else { return };
        self.out = framed.text(self.body.done());
        let head = self.out.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
        // The text is valid, as this process wrote it.
        let _ = self.body.feed(&self.out[head..]);
    }
}
