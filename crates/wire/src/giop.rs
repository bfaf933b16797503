//! GIOP 1.0, 1.1 and 1.2, the protocol of CORBA's objects (OMG, CORBA 3.4 part 2), as a balancer needs it: the head of
//! a message is read and written anew, its body is bytes that are passed on.
//!
//! [`cut`] finds the messages in a stream, [`Message::parse`] reads one, [`mod@write`] makes them and [`rewrite`] gives a
//! request another id and another object. An [`Ior`] is what a client holds of an object: addresses and a key. It is
//! kept byte for byte, so that what this code does not know is not lost. Nothing that is read is trusted: every length
//! is held against what is there before it is believed.

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

pub use any::Any;
pub use assembler::{Assembler, Limits, split};
pub use cdr::{Order, Reader, Writer};
pub use component::{ALTERNATE_ADDRESS, CodeSet, CodeSets, Component};
pub use context::{CODE_SETS, Context, Contexts};
pub use corbaloc::{Corbaloc, Corbaname, escaped};
pub use frame::{Cut, cut};
pub use header::{HEADER, Header, Kind, Version};
pub use ior::{Ior, IorBytes, MAX_TEXT, Profile};
pub use message::{
    Completed, Content, Fragment, LocateReply, LocateRequest, LocateStatus, Message, Reply, Request, Status,
    SystemException, Target, Wanted,
};
pub use profile::{IIOP, IiopProfile, Place};

/// What is not GIOP as it is understood here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGiop {
    /// It ends before it is complete: of a message's first fragment, or of bytes that are still arriving, more may help.
    #[error("bad GIOP: it ends in the middle of a value")]
    Truncated,
    /// It is wrong, whatever may follow.
    #[error("bad GIOP: {0}")]
    Malformed(&'static str),
}

impl BadGiop {
    /// What is wrong, for a sentence that says what it is about.
    pub fn why(self) -> &'static str {
        match self {
            Self::Truncated => "it ends in the middle of a value",
            Self::Malformed(why) => why,
        }
    }
}

#[cfg(test)]
mod tests;
