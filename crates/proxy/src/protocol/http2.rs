//! HTTP/2 with clients and with members (RFC 9113), and the parts of gRPC that concern a balancer.
//!
//! To the relay of HTTP/1.1 ([`http`](crate::protocol::http)), each stream is a client connection with one
//! request. The stream converts the request into the text of HTTP/1.1 and the response back ([`inbound`]).
//! Towards members with HTTP/2, the same is done in the opposite direction ([`outbound`]). So there is one
//! dispatcher for all versions, with the same choice, retries, deadlines, bindings, counters and log. The
//! same rules reject whatever could be read in two ways.
//!
//! gRPC calls between two sides with HTTP/2 are not converted but passed through ([`body_frames`]), unless
//! their handling needs the text ([`grpc_passthrough`]).
//!
//! The crate `h2` provides frames, header compression and windows. The rest is here:
//!
//! - limits on streams and the end of connections ([`serve`])
//! - limits on control frames ([`abuse_guard`])
//! - the choice among a member's connections ([`upstream_pool`])
//! - the detection of dead connections ([`liveness`])
//! - the end of a connection after too many errors ([`error_budget`])

use std::time::Duration;

mod abuse_budget;
mod abuse_guard;
mod body_frames;
mod body_writer;
mod early_reject;
mod error_budget;
mod fields;
mod frame_parser;
mod grpc_passthrough;
mod heads;
mod inbound;
#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;
mod liveness;
mod outbound;
mod serve;
#[cfg(test)]
mod tests;
mod text_reader;
mod upstream_pool;
mod websocket;
mod write_batch;

pub(crate) use abuse_guard::{AbuseGuard, AbuseMonitor};
pub(crate) use body_frames::{H2Request, H2Response, PassthroughCall, ResponseHead};
pub(crate) use grpc_passthrough::answer as judge;
pub(crate) use serve::{is_preface, serve_connection};
pub(crate) use upstream_pool::{H2Pool, existing_stream, reach};

#[cfg(fuzzing)]
pub(crate) use {abuse_budget::invariants::check as frames_law, heads::invariants::check as heads_law};

/// The maximum number of a client's open streams on one connection: the least that RFC 9113 section 6.5.2
/// recommends.
const MAX_CLIENT_STREAMS: u32 = 100;
/// The bytes of one stream's body that may be in transit to this process without having been forwarded.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
/// The same limit for all streams of a connection together: the sum of their windows. So streams whose
/// receivers do not read never hold up the others. This bounds the buffered bodies.
const CONNECTION_WINDOW: u32 = upstream_pool::MAX_UPSTREAM_STREAMS as u32 * STREAM_WINDOW;
/// The bytes of one stream that `h2` may buffer until the peer's windows and its socket accept them.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
/// The number of streams that are reset before this process accepted them; more end the connection
/// (CVE-2023-44487).
pub(crate) const MAX_EARLY_RESETS: usize = 20;
/// The number of a connection's streams that this process resets because of the client's errors; more end it
/// ([`error_budget`]).
pub(crate) const MAX_LOCAL_RESETS: usize = 100;
/// The time limit for a peer to read that its connection ends.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
