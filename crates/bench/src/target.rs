//! What: the requests to send and how to tell that an answer is whole. One file per protocol.
//!
//! A target does no input or output and knows no time: [`run`](crate::run) carries its bytes, so that the
//! same target serves any pace and any driver, and is tested without sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::record::Fault;

mod echo;
mod http;
mod tcp_echo;
mod udp_echo;

pub use echo::EchoError;
pub use http::{Http, HttpError, Request};
pub use tcp_echo::TcpEcho;
pub use udp_echo::UdpEcho;

/// Something to send requests to over connections that carry one request at a time.
pub trait Target {
    /// What is known of an answer while it comes in; one per request.
    type State: Send;

    /// Where requests go; at least one, and always the same.
    fn addresses(&self) -> &[SocketAddr];

    /// What carries them.
    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    /// The next request.
    fn request(&mut self) -> Ask<Self::State>;

    /// Takes the next bytes of an answer: of a stream whatever has come, or one datagram.
    fn answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> Step;

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
}

/// An answer that is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The member that says it gave it.
    pub member: Option<Arc<str>>,
    /// What is wrong with it, if anything.
    pub fault: Option<Fault>,
    /// May the connection carry another request?
    pub reusable: bool,
}
