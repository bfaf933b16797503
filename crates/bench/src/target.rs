//! What: the requests to send and how to tell that an answer is whole. One file per protocol.
//!
//! A target does no input or output and knows no time: [`run`](crate::run) carries its bytes, so that the
//! same target serves any pace and any driver, and is tested without sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::record::Fault;

mod http;

pub use http::{Http, HttpError};

/// Something to send requests to over connections that carry one request at a time.
pub trait Target {
    /// What is known of an answer while it comes in; one per request.
    type State: Default + Send;

    /// Where to connect.
    fn address(&self) -> SocketAddr;

    /// The bytes of the next request.
    fn request(&mut self) -> Arc<[u8]>;

    /// Takes the next bytes of an answer.
    fn answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> Step;

    /// The connection ended: the answer, if that is how it ends.
    fn end(&mut self, state: &mut Self::State) -> Option<Answer>;
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
