//! What: the requests to send and how to tell that an answer is whole. One file per protocol.
//!
//! A target does no input or output and knows no time: [`run`](crate::run) carries its bytes, so that the
//! same target serves any pace and any driver, and is tested without sockets.

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

/// Something to send requests to over connections that carry one request at a time.
pub trait Target {
    /// What is known of an answer while it comes in; one per request.
    type State: Send;

    /// Where requests go; at least one. The list only grows, and only by a [`Step::Elsewhere`].
    fn addresses(&self) -> &[SocketAddr];

    /// What carries them.
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    /// Is each connection a session of its own, that may be sent elsewhere?
    fn sessions(&self) -> bool {
        false
    }

    /// The next request.
    fn request(&mut self) -> Ask<Self::State>;

    /// Takes the next bytes of an answer: of a stream whatever has come, or one datagram.
    fn answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> Step;

    /// The bytes of a request again, for another of the addresses: it has been told to go there, or its connection
    /// leads there from an earlier request. `None` if it has been sent about too often.
    fn readdress(&mut self, state: &mut Self::State, place: usize) -> Option<Arc<[u8]>> {
        let _ = (state, place);
        None
    }

    /// The connection ended: the answer, if that is how it ends.
    fn end(&mut self, state: &mut Self::State) -> Option<Answer>;
}

/// What carries requests and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream.
    Tcp,
    /// Datagrams, one for each request; answers in one or more.
    Udp,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask<S> {
    /// Where it goes: an index into [`Target::addresses`].
    pub route: usize,
    /// What is sent.
    pub bytes: Arc<[u8]>,
    /// What is known of its answer so far.
    pub state: S,
}

/// What became of some bytes of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// More must come.
    More,
    /// It is whole.
    Done(Answer),
    /// This is no answer.
    Malformed,
    /// The request, and those that follow it in its session, are to go to another of the addresses.
    Elsewhere(usize),
    /// The request was not looked at; it is to go to where its session began.
    Back,
}

/// An answer that is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The member that says it gave it.
    pub member: Option<Arc<str>>,
    /// What is wrong with it, if anything.
    pub fault: Option<Fault>,
    /// What the server calls that, where it has a name for it.
    pub reason: Option<Arc<str>>,
    /// May the connection carry another request?
    pub reusable: bool,
}
