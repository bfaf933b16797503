//! Targets: the requests to send and the detection of a complete answer. One file per protocol.
//!
//! A target does no input or output and has no clock: [`run`](crate::run) carries its bytes. The same target
//! therefore serves any pace and any driver, and is tested without sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::record::Fault;

mod echo;
mod http;
mod iiop;
mod place;
mod tcp_echo;
mod udp_echo;

pub use echo::EchoError;
pub use http::{Http, HttpError, Request};
pub use iiop::{Iiop, IiopError};
pub use tcp_echo::TcpEcho;
pub use udp_echo::UdpEcho;

/// A destination of requests over connections that carry one request at a time.
pub trait Target {
    /// The parse state of an answer; one per request.
    type State: Send;

    /// Returns the addresses of the requests; at least one. The list only grows, and only by a
    /// [`Step::Elsewhere`].
    fn addresses(&self) -> &[SocketAddr];

    /// Returns the transport.
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    /// Returns `true` if each connection is a session of its own that can be redirected.
    fn sessions(&self) -> bool {
        false
    }

    /// Returns the next request.
    fn request(&mut self) -> Ask<Self::State>;

    /// Consumes the next bytes of an answer: any part of a stream, or one datagram.
    fn answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> Step;

    /// Returns the bytes of a request again, for another of the addresses: the request was redirected there,
    /// or its connection leads there after an earlier redirect. `None` if it has been redirected too often.
    fn readdress(&mut self, state: &mut Self::State, place: usize) -> Option<Arc<[u8]>> {
        let _ = (state, place);
        None
    }

    /// Reports the end of the connection; returns the answer, if its end completes it.
    fn end(&mut self, state: &mut Self::State) -> Option<Answer>;
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
pub struct Ask<S> {
    /// The destination: an index into [`Target::addresses`].
    pub route: usize,
    /// The bytes to send.
    pub bytes: Arc<[u8]>,
    /// The parse state of its answer.
    pub state: S,
}

/// The result of consuming some bytes of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The answer is incomplete.
    More,
    /// The answer is complete.
    Done(Answer),
    /// The bytes are no answer.
    Malformed,
    /// The request, and those that follow it in its session, go to another of the addresses.
    Elsewhere(usize),
    /// The server did not process the request; it goes to where its session began.
    Back,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The member that named itself in the answer.
    pub member: Option<Arc<str>>,
    /// The fault of the answer, if there is one.
    pub fault: Option<Fault>,
    /// The server's name for the fault, if it has one.
    pub reason: Option<Arc<str>>,
    /// Whether the connection may carry another request.
    pub reusable: bool,
}
