//! Targets: the requests to send and the detection of a complete answer. One file per protocol.
//!
//! A target does no input or output and has no clock: [`run`](crate::run) carries its bytes. The same target
//! therefore serves any pace and any driver, and is tested without sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::record::FailureKind;

mod address_choice;
mod echo;
mod http;
mod iiop;
mod tcp_echo;
mod udp_echo;

pub use echo::EchoError;
pub use http::{HttpError, HttpRequest, HttpTarget};
pub use iiop::{IiopError, IiopTarget};
pub use tcp_echo::TcpEcho;
pub use udp_echo::UdpEcho;

/// A destination of requests over connections that carry one request at a time.
pub trait RequestTarget {
    /// The parse state of an answer; one per request.
    type State: Send;

    /// Returns the addresses of the requests; at least one. The list only grows, and only by an
    /// [`AnswerProgress::Redirected`].
    fn addresses(&self) -> &[SocketAddr];

    /// Returns the transport.
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    /// Returns `true` if each connection is a session of its own that can be redirected.
    fn has_sessions(&self) -> bool {
        false
    }

    /// Returns the next request.
    fn next_request(&mut self) -> TargetRequest<Self::State>;

    /// Consumes the next bytes of an answer: any part of a stream, or one datagram.
    fn consume_answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> AnswerProgress;

    /// Returns the bytes of a request again, for another of the addresses: the request was redirected there,
    /// or its connection leads there after an earlier redirect. `None` if it has been redirected too often.
    fn request_for_address(&mut self, state: &mut Self::State, address_index: usize) -> Option<Arc<[u8]>> {
        let _ = (state, address_index);
        None
    }

    /// Reports the end of the connection; returns the answer, if its end completes it.
    fn connection_ended(&mut self, state: &mut Self::State) -> Option<TargetAnswer>;
}

/// The transport of requests and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream.
    Tcp,
    /// Datagrams, one for each request; an answer has one or more.
    Udp,
}

/// A request.
#[derive(Clone, Debug)]
pub struct TargetRequest<S> {
    /// The destination: an index into [`RequestTarget::addresses`].
    pub route: usize,
    /// The bytes to send.
    pub bytes: Arc<[u8]>,
    /// The parse state of its answer.
    pub state: S,
}

/// The result of consuming some bytes of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerProgress {
    /// The answer is incomplete.
    Incomplete,
    /// The answer is complete.
    Complete(TargetAnswer),
    /// The bytes are no answer.
    Malformed,
    /// The request, and those that follow it in its session, go to another of the addresses.
    Redirected(usize),
    /// The server did not process the request; it goes to where its session began.
    ReturnedToOrigin,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetAnswer {
    /// The member that named itself in the answer.
    pub member: Option<Arc<str>>,
    /// The fault of the answer, if there is one.
    pub failure: Option<FailureKind>,
    /// The server's name for the fault, if it has one.
    pub reason: Option<Arc<str>>,
    /// Whether the connection may carry another request.
    pub reusable: bool,
}
