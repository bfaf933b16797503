//! GIOP 1.0, 1.1 and 1.2, the protocol of CORBA objects (OMG, CORBA 3.4 part 2), for a balancer: message
//! heads are parsed and rewritten, bodies are forwarded as bytes.
//!
//! [`next_message`] splits a stream into messages, [`GiopMessage::parse`] reads one, and [`mod@write`]
//! creates new ones. [`rewrite`] gives a request another ID and another object. An [`Ior`] is a client's
//! reference to an object: addresses and a key. It is kept byte for byte, so that unknown parts are not lost.
//! No input is trusted: every length is checked against the available bytes before it is used.

mod any;
mod assembler;
mod cdr;
pub mod component;
mod context;
mod corbaloc;
mod frame;
mod header;
mod ior;
mod message;
mod profile;
pub mod rewrite;
pub mod write;

pub use any::CorbaAny;
pub use assembler::{AssemblyLimits, FragmentAssembler, split_fragments};
pub use cdr::{ByteOrder, CdrReader, CdrWriter};
pub use component::{ALTERNATE_ADDRESS, CodeSet, CodeSets, TaggedComponent};
pub use context::{CODE_SETS, ServiceContext, ServiceContexts};
pub use corbaloc::{Corbaloc, Corbaname, escape_key};
pub use frame::{NextMessage, next_message};
pub use header::{GiopHeader, GiopVersion, HEADER_LEN, MessageType};
pub use ior::{Ior, IorBytes, MAX_TEXT, TaggedProfile};
pub use message::{
    CompletionStatus, ExpectedResponse, GiopMessage, GiopReply, GiopRequest, LocateReply, LocateRequest,
    LocateStatus, MessageContent, MessageFragment, ReplyStatus, SystemException, TargetAddress,
};
pub use profile::{IIOP_TAG, IiopAddress, IiopProfile};

/// The error of input that is not GIOP, or uses an unsupported part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiopError {
    /// The input ends too early. For a message's first fragment, or for bytes that are still arriving, more
    /// input may help.
    #[error("bad GIOP: it ends in the middle of a value")]
    Truncated,
    /// The input is malformed; more input does not help.
    #[error("bad GIOP: {0}")]
    Malformed(&'static str),
}

impl GiopError {
    /// Returns the reason, as part of a longer message.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Truncated => "it ends in the middle of a value",
            Self::Malformed(why) => why,
        }
    }
}

#[cfg(test)]
mod tests;
