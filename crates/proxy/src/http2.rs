//! HTTP/2 with clients and with members (RFC 9113), and what of gRPC concerns a balancer.
//!
//! Each stream is a client connection of one request to the relay of HTTP/1.1 ([`http`](crate::http)): it reads the request as
//! the text of HTTP/1.1 and writes the answer as such ([`inbound`]). Towards members that speak HTTP/2 the same is done the
//! other way round ([`outbound`]). So there is one dispatcher for all versions: choice, retries, deadlines, bindings, counts and
//! the log are the same, and what could be read in two ways is refused by the same rules.
//!
//! Calls of gRPC, where both sides speak HTTP/2, are not told as text but handed on as they come ([`pieces`]), unless something is to be done
//! with them that needs the text ([`straight`]).
//!
//! Frames, header compression and windows are those of the crate `h2`. What it leaves to others is here: who may open how many
//! streams, when a connection ends ([`serve`]), how much a peer may say that asks for nothing ([`govern`]), which of a
//! member's connections a request goes to ([`wires`]), which of them nothing is heard of any more ([`ear`]),
//! and when a connection has seen too many mistakes ([`wear`]).

use std::time::Duration;

mod batch;
mod ear;
mod fields;
mod frames;
mod govern;
mod heads;
mod inbound;
#[cfg(any(test, fuzzing))]
pub(crate) mod law;
mod meter;
mod outbound;
mod pieces;
mod reader;
mod refuse;
mod serve;
mod straight;
#[cfg(test)]
mod tests;
mod wear;
mod websocket;
mod wires;
mod writer;

pub(crate) use govern::{Governed, Watch};
pub(crate) use pieces::{Answering, Asking, Framed, Told};
pub(crate) use serve::{begin, begins};
pub(crate) use straight::answer as judge;
pub(crate) use wires::{Wires, at_hand, reach};

#[cfg(fuzzing)]
pub(crate) use {heads::law::check as heads_law, meter::law::check as frames_law};

/// How the name of the protocol is agreed on in TLS.
pub(crate) const ALPN: &[u8] = b"h2";

/// Streams that a client may have open at once on one connection: what RFC 9113 section 6.5.2 recommends as the least.
const STREAMS: u32 = 100;
/// Bytes of one stream's body that may be on their way to us without having been passed on.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
/// The same of all streams of a connection together. As much as all of them may have: those whose receivers do not read may
/// never hold up the others. This bounds what is kept of bodies.
const CONNECTION_WINDOW: u32 = wires::MOST as u32 * STREAM_WINDOW;
/// Bytes of one stream that `h2` may keep until the peer's windows and its socket take them.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
/// Streams that were reset before we had taken them in; more end the connection (CVE-2023-44487).
pub(crate) const RESET_EARLY: usize = 20;
/// Streams of a connection that we reset because of errors of the client; more end it ([`wear`]).
pub(crate) const RESET_BY_US: usize = 100;
/// How long a peer that was told to go may take to read that.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
