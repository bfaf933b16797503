//! Messages in HTTP/2's pieces, for calls that pass from a client's stream to a member's without the text of
//! HTTP/1.1 in between. [`grpc_passthrough`](super::grpc_passthrough) decides which calls do.
//!
//! A piece is a value that is moved, and its bytes are not copied. All the rest (the choice of a member,
//! retries, timeouts, counters) is the same for both ways, in the relay of [`http`](crate::protocol::http).

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, request, uri};

use super::fields::push_chunks_end;
use super::heads;

/// The bytes of a body, and the number of pieces, that are kept for another attempt if the member did not
/// process the call. May be exceeded by one frame.
const MAX_KEPT_BYTES: usize = 64 * 1024;
const MAX_KEPT_FRAMES: usize = 64;

/// A part of a message after its head.
#[derive(Clone, Debug)]
pub(crate) enum BodyFrame {
    /// Content; `true` if nothing follows it.
    Content(Bytes, bool),
    /// Trailers, which are the end.
    Trailers(HeaderMap),
}

impl BodyFrame {
    /// Returns `true` for the end of its message.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Content(_, true) | Self::Trailers(_))
    }

    /// Returns the size in bytes, as it is counted.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Content(content, _) => content.len(),
            Self::Trailers(trailers) => trailers.iter().map(field_len).sum(),
        }
    }
}

/// Returns the size of a field in bytes, as it is counted: that of its line in HTTP/1.1.
pub(super) fn field_len((name, value): (&HeaderName, &HeaderValue)) -> usize {
    name.as_str().len() + value.len() + 4
}

/// A response's head.
pub(crate) enum ResponseHead {
    /// An interim response, which another one follows.
    Interim(Response<()>),
    /// A final response; `true` if its head is all of it.
    Final(Response<()>, bool),
}

/// A request's head for members, and the part of its body that has arrived. It can be sent any number of
/// times.
pub(crate) struct PassthroughCall {
    pub(crate) head: request::Parts,
    /// The size of the head in bytes, as it is counted.
    pub(crate) len: usize,
    /// The part of the body that has arrived and is kept.
    pub(crate) frames: Vec<BodyFrame>,
    kept_bytes: usize,
    /// The piece that the member's stream has not accepted yet.
    pub(crate) pending_to_member: Option<BodyFrame>,
    /// The piece that the client's stream has not accepted yet.
    pub(crate) pending_to_client: Option<BodyFrame>,
}

impl PassthroughCall {
    pub(super) fn new(head: request::Parts, len: usize) -> Self {
        Self {
            head,
            len,
            frames: Vec::with_capacity(1),
            kept_bytes: 0,
            pending_to_member: None,
            pending_to_client: None,
        }
    }

    /// Returns `true` if no more of the body should be kept.
    pub(crate) fn is_full(&self) -> bool {
        self.kept_bytes >= MAX_KEPT_BYTES || self.frames.len() >= MAX_KEPT_FRAMES
    }

    /// Keeps a piece of the body: it is sent from there.
    pub(crate) fn keep_frame(&mut self, frame: BodyFrame) {
        self.kept_bytes += frame.len();
        self.frames.push(frame);
    }

    /// Returns the head for a member.
    pub(super) fn to_request(&self, secure: bool) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = with_scheme(&self.head.uri, secure);
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.head.headers.clone();
        request
    }

    /// Converts all of it into text, for a member that does not speak HTTP/2, although the members of its
    /// group did when it arrived. `ended` is `true` if all of it has arrived.
    pub(crate) fn text(&self, ended: bool) -> Vec<u8> {
        let mut text = Vec::with_capacity(512 + self.kept_bytes);
        // It was checked before that the head names one host.
        let _ = heads::request_text(&self.head, ended && self.frames.is_empty(), &mut text);
        for frame in &self.frames {
            match frame {
                BodyFrame::Content(content, last) => {
                    if !content.is_empty() {
                        text.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                        text.extend_from_slice(content);
                        text.extend_from_slice(b"\r\n");
                    }
                    if *last {
                        push_chunks_end(None, &mut text);
                    }
                }
                BodyFrame::Trailers(trailers) => push_chunks_end(Some(trailers), &mut text),
            }
        }
        text
    }
}

/// Returns the URI with this scheme.
fn with_scheme(uri: &Uri, secure: bool) -> Uri {
    let scheme = if secure { uri::Scheme::HTTPS } else { uri::Scheme::HTTP };
    if uri.scheme() == Some(&scheme) {
        return uri.clone();
    }
    let mut parts = uri.clone().into_parts();
    parts.scheme = Some(scheme);
    // It has an authority and a path: with a scheme it is complete.
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// The operations of both ends of a call.
pub(crate) trait BodyTransfer {
    /// Returns the next piece after the head. To be called only when the previous piece was forwarded, as
    /// this opens the peer's windows again.
    ///
    /// # Errors
    /// The peer reset the stream.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BodyFrame>>;

    /// Sends a part of a piece after the head, leaves the rest of the piece in place, and returns the number
    /// of bytes sent.
    ///
    /// # Errors
    /// The peer accepts no more.
    fn poll_send_frame(
        &mut self,
        cx: &mut Context<'_>,
        frame: &mut Option<BodyFrame>,
    ) -> Poll<io::Result<usize>>;
}

/// A client's stream.
pub(crate) trait H2Request: BodyTransfer {
    /// Returns the request, once; `None` if it is read as text. `true` if it has no body.
    fn take_call(&mut self) -> Option<(Box<PassthroughCall>, bool)>;

    /// Sends the head of an interim response.
    fn send_interim(&mut self, response: Response<()>);

    /// Sends the head of the final response. `ended` is `true` if the head is all of it.
    ///
    /// # Errors
    /// The client accepts no more.
    fn send_answer(&mut self, response: Response<()>, ended: bool) -> io::Result<()>;
}

/// A member's stream.
pub(crate) trait H2Response: BodyTransfer {
    /// Sends the head of a request, once there is room. `ended` is `true` if the head is all of it.
    ///
    /// # Errors
    /// The member accepts none.
    fn poll_send_head(
        &mut self,
        cx: &mut Context<'_>,
        call: &PassthroughCall,
        ended: bool,
    ) -> Poll<io::Result<()>>;

    /// Returns the head of the response.
    ///
    /// # Errors
    /// The member reset the stream.
    fn poll_response_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ResponseHead>>;
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::http1::{self, BodyFraming, MarkedFields};

    use super::*;

    fn test_call(uri: &str) -> PassthroughCall {
        let head = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
        PassthroughCall::new(head.body(()).expect("a head").into_parts().0, 0)
    }

    fn content(text: &'static str, last: bool) -> BodyFrame {
        BodyFrame::Content(Bytes::from_static(text.as_bytes()), last)
    }

    #[test]
    fn a_call_can_be_told_as_text_after_all() {
        let trailers = HeaderMap::from_iter([("x".parse().expect("a name"), HeaderValue::from_static("y"))]);
        for (frames, ended, expected) in [
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
                vec![content("ab", false), BodyFrame::Trailers(trailers)],
                true,
                "chunked\r\n\r\n2\r\nab\r\n0\r\nx: y\r\n\r\n",
            ),
        ] {
            let mut call = test_call("http://h/p");
            frames.into_iter().for_each(|frame| call.keep_frame(frame));
            let text = call.text(ended);
            assert!(text.ends_with(expected.as_bytes()), "{}", text.escape_ascii());
            let mut marks = MarkedFields::new();
            let head = http1::request(&text, 4096, &mut marks).expect("good");
            let mut body = head.body;
            assert_eq!(body.feed(&text[head.len..]), Ok(text.len() - head.len));
            assert_eq!(matches!(body, BodyFraming::Done), ended);
        }
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut call = test_call("http://h/p");
        call.keep_frame(BodyFrame::Content(vec![0; MAX_KEPT_BYTES - 1].into(), false));
        assert!(!call.is_full());
        call.keep_frame(content("x", false));
        assert!(call.is_full());
        let mut call = test_call("http://h/p");
        (1..MAX_KEPT_FRAMES).for_each(|_| call.keep_frame(content("x", false)));
        assert!(!call.is_full());
        call.keep_frame(content("x", false));
        assert!(call.is_full());
    }

    #[test]
    fn a_member_is_asked_by_its_own_scheme() {
        for (uri, secure, expected) in [
            ("http://h:1/p?q", false, "http://h:1/p?q"),
            ("http://h:1/p?q", true, "https://h:1/p?q"),
            ("https://h/p", false, "http://h/p"),
        ] {
            assert_eq!(test_call(uri).to_request(secure).uri().to_string(), expected);
        }
    }
}
