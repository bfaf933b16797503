//! Calls of gRPC that come in pieces and go on in such: how they begin here, and how they become text after all.

use std::cell::Cell;
use std::task::{Context, Poll};

use plimsoll_wire::http1::{Body, Chunked, Method};

use super::{Asked, Session, Stream};
use crate::http2::Framed;
use crate::metered::Metered;

impl<S: Stream> Session<S> {
    /// Begins a call, and takes in what of it has come, as with text: it is known before it is decided what becomes of it. `ended`: it has
    /// no body.
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
            // For other keys the text is read.
            key: if reads_key { crate::key::of_client(self.peer.client.ip()) } else { 0 },
            begun: self.core.tick(),
            view,
            // One of which an account is kept is told as text.
            account: None,
            metered: Metered::default(),
            ranked: Cell::default(),
            waited: Cell::default(),
            framed: Some(framed),
        }
    }
}

impl Asked {
    /// Is told as text from here on: its member does not speak HTTP/2, though those of its group did when it came.
    #[cold]
    pub(super) fn tell(&mut self) {
        let Some(framed) = self.framed.take() else { return };
        self.out = framed.text(self.body.done());
        let head = self.out.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
        // Of our own making, it is no error.
        let _ = self.body.feed(&self.out[head..]);
    }
}
