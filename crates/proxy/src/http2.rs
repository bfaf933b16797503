//! HTTP/2 with clients and with members (RFC 9113), and the parts of gRPC that concern a balancer.
//!
//! To the relay of HTTP/1.1 ([`http`](crate::http)), each stream is a client connection with one request. The
//! stream converts the request into the text of HTTP/1.1 and the response back ([`inbound`]). Towards members
//! with HTTP/2, the same is done in the opposite direction ([`outbound`]). So there is one dispatcher for all
//! versions, with the same choice, retries, deadlines, bindings, counters and log. The same rules reject
//! whatever could be read in two ways.
//!
//! gRPC calls between two sides with HTTP/2 are not converted but passed through ([`pieces`]), unless their
//! handling needs the text ([`straight`]).
//!
//! The crate `h2` provides frames, header compression and windows. The rest is here:
//!
//! - limits on streams and the end of connections ([`serve`])
//! - limits on control frames ([`govern`])
//! - the choice among a member's connections ([`wires`])
//! - the detection of dead connections ([`ear`])
//! - the end of a connection after too many errors ([`wear`])

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

/// The protocol's name in TLS (ALPN).
pub(crate) const ALPN: &[u8] = b"h2";

/// The maximum number of a client's open streams on one connection: the least that RFC 9113 section 6.5.2
/// recommends.
const STREAMS: u32 = 100;
/// The bytes of one stream's body that may be in transit to this process without having been forwarded.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
/// The same limit for all streams of a connection together: the sum of their windows. So streams whose
/// receivers do not read never hold up the others. This bounds the buffered bodies.
const CONNECTION_WINDOW: u32 = wires::MOST as u32 * STREAM_WINDOW;
/// The bytes of one stream that `h2` may buffer until the peer's windows and its socket accept them.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
/// The number of streams that are reset before this process accepted them; more end the connection
/// (CVE-2023-44487).
pub(crate) const RESET_EARLY: usize = 20;
/// The number of a connection's streams that this process resets because of the client's errors; more end it
/// ([`wear`]).
pub(crate) const RESET_BY_US: usize = 100;
/// The time limit for a peer to read that its connection ends.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
