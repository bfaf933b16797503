//! Messages in the pieces that HTTP/2 has them in, for calls that go straight from a client's stream to a member's: without the text of
//! HTTP/1.1 in between ([`straight`](super::straight) says which do).
//!
//! A piece is a value that is handed on, not bytes that are copied. What goes on around it (who is chosen, when it is tried again, how
//! long it may take, what is counted) is the same for both ways: it is done by the one relay of [`http`](crate::http).

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, request, uri};

use super::fields::chunks_end;
use super::heads;

/// Bytes of a body that are kept to be sent again, if the member did nothing with the call, and one frame more; and in how many pieces.
const KEPT: usize = 64 * 1024;
const KEPT_PIECES: usize = 64;

/// What comes after a head.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Content; `true`: nothing follows it.
    Content(Bytes, bool),
    /// They are the end.
    Trailers(HeaderMap),
}

impl Piece {
    /// Is it the end of its message?
    pub(crate) fn last(&self) -> bool {
        matches!(self, Self::Content(_, true) | Self::Trailers(_))
    }

    /// Bytes of it, as they are counted.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Content(content, _) => content.len(),
            Self::Trailers(trailers) => trailers.iter().map(field_len).sum(),
        }
    }
}

/// Bytes of a field, as they are counted: those of its line of HTTP/1.1.
pub(super) fn field_len((name, value): (&HeaderName, &HeaderValue)) -> usize {
    name.as_str().len() + value.len() + 4
}

/// An answer's head.
pub(crate) enum Told {
    /// Another one follows.
    Interim(Response<()>),
    /// `true`: it is the whole answer.
    Final(Response<()>, bool),
}

/// A request's head, as members are to get it, and what came of its body. It can be sent as often as it takes.
pub(crate) struct Framed {
    pub(crate) head: request::Parts,
    /// Bytes of the head, as they are counted.
    pub(crate) len: usize,
    /// What came of the body, and is kept.
    pub(crate) pieces: Vec<Piece>,
    kept: usize,
    /// What the member's stream has not taken yet.
    pub(crate) to_member: Option<Piece>,
    /// What the client's stream has not taken yet.
    pub(crate) to_client: Option<Piece>,
}

impl Framed {
    pub(super) fn new(head: request::Parts, len: usize) -> Self {
        Self { head, len, pieces: Vec::with_capacity(1), kept: 0, to_member: None, to_client: None }
    }

    /// Is no more of the body to be kept?
    pub(crate) fn full(&self) -> bool {
        self.kept >= KEPT || self.pieces.len() >= KEPT_PIECES
    }

    /// Keeps a piece of the body: it is sent from there.
    pub(crate) fn keep(&mut self, piece: Piece) {
        self.kept += piece.len();
        self.pieces.push(piece);
    }

    /// The head that goes to a member.
    pub(super) fn request(&self, secure: bool) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = with_scheme(&self.head.uri, secure);
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.head.headers.clone();
        request
    }

    /// All of it as text, for a member that does not speak HTTP/2: those of its group did when it came. `ended`: all of it has come.
    pub(crate) fn text(&self, ended: bool) -> Vec<u8> {
        let mut text = Vec::with_capacity(512 + self.kept);
        // Whether it names one host was asked before.
        let _ = heads::request_text(&self.head, ended && self.pieces.is_empty(), &mut text);
        for piece in &self.pieces {
            match piece {
                Piece::Content(content, last) => {
                    if !content.is_empty() {
                        text.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                        text.extend_from_slice(content);
                        text.extend_from_slice(b"\r\n");
                    }
                    if *last {
                        chunks_end(None, &mut text);
                    }
                }
                Piece::Trailers(trailers) => chunks_end(Some(trailers), &mut text),
            }
        }
        text
    }
}

/// The same by another scheme, if it is another.
fn with_scheme(uri: &Uri, secure: bool) -> Uri {
    let scheme = if secure { uri::Scheme::HTTPS } else { uri::Scheme::HTTP };
    if uri.scheme() == Some(&scheme) {
        return uri.clone();
    }
    let mut parts = uri.clone().into_parts();
    parts.scheme = Some(scheme);
    // It has an authority and a path: with a scheme it is as whole as it can be.
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// What both ends of a call can do.
pub(crate) trait Pieces {
    /// What comes next, after the head. To be asked only when what came before was passed on: that opens the peer's windows again.
    ///
    /// # Errors
    /// The peer broke off.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Piece>>;

    /// Sends some of a piece, after the head: what it is waiting with stays there. How many bytes of it.
    ///
    /// # Errors
    /// The peer takes no more.
    fn poll_give(&mut self, cx: &mut Context<'_>, piece: &mut Option<Piece>) -> Poll<io::Result<usize>>;
}

/// A client's stream.
pub(crate) trait Asking: Pieces {
    /// What it asks, once; nothing if that is told as text. `true`: it has no body.
    fn framed(&mut self) -> Option<(Box<Framed>, bool)>;

    /// Sends the head of an answer that is still to come.
    fn send_interim(&mut self, answer: Response<()>);

    /// Sends the head of the answer. `ended`: it is all of it.
    ///
    /// # Errors
    /// The client takes it no more.
    fn send_answer(&mut self, answer: Response<()>, ended: bool) -> io::Result<()>;
}

/// A member's stream.
pub(crate) trait Answering: Pieces {
    /// Sends the head of a request, once there is room. `ended`: it is all of it.
    ///
    /// # Errors
    /// The member takes none.
    fn poll_ask(&mut self, cx: &mut Context<'_>, asked: &Framed, ended: bool) -> Poll<io::Result<()>>;

    /// The head of the answer.
    ///
    /// # Errors
    /// The member broke off.
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Told>>;
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::http1::{self, Body, Marks};

    use super::*;

    fn framed(uri: &str) -> Framed {
        let head = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
        Framed::new(head.body(()).expect("a head").into_parts().0, 0)
    }

    fn content(text: &'static str, last: bool) -> Piece {
        Piece::Content(Bytes::from_static(text.as_bytes()), last)
    }

    #[test]
    fn a_call_can_be_told_as_text_after_all() {
        let trailers = HeaderMap::from_iter([("x".parse().expect("a name"), HeaderValue::from_static("y"))]);
        for (pieces, ended, expected) in [
            (vec![], true, "Content-Length: 0\r\n\r\n"),
            (vec![], false, "Transfer-Encoding: chunked\r\n\r\n"),
            (
                vec![content("hello", false), content("", true)],
                true,
                "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            ),
            (vec![content("hello", true)], true, "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            (vec![content("ab", false)], false, "chunked\r\n\r\n2\r\nab\r\n"),
            (
                vec![content("ab", false), Piece::Trailers(trailers)],
                true,
                "chunked\r\n\r\n2\r\nab\r\n0\r\nx: y\r\n\r\n",
            ),
        ] {
            let mut call = framed("http://h/p");
            pieces.into_iter().for_each(|piece| call.keep(piece));
            let text = call.text(ended);
            assert!(text.ends_with(expected.as_bytes()), "{}", text.escape_ascii());
            let mut marks = Marks::new();
            let head = http1::request(&text, 4096, &mut marks).expect("good");
            let mut body = head.body;
            assert_eq!(body.feed(&text[head.len..]), Ok(text.len() - head.len));
            assert_eq!(matches!(body, Body::Done), ended);
        }
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut call = framed("http://h/p");
        call.keep(Piece::Content(vec![0; KEPT - 1].into(), false));
        assert!(!call.full());
        call.keep(content("x", false));
        assert!(call.full());
        let mut call = framed("http://h/p");
        (1..KEPT_PIECES).for_each(|_| call.keep(content("x", false)));
        assert!(!call.full());
        call.keep(content("x", false));
        assert!(call.full());
    }

    #[test]
    fn a_member_is_asked_by_its_own_scheme() {
        for (uri, secure, expected) in [
            ("http://h:1/p?q", false, "http://h:1/p?q"),
            ("http://h:1/p?q", true, "https://h:1/p?q"),
            ("https://h/p", false, "http://h/p"),
        ] {
            assert_eq!(framed(uri).request(secure).uri().to_string(), expected);
        }
    }
}
