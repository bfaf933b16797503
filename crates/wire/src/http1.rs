//! HTTP/1.0 and 1.1 as a relay needs it (RFC 9110, RFC 9112): heads are inspected and rewritten by copying
//! spans, bodies are followed, not stored.
//!
//! Strict where leniency has let requests be smuggled past other relays: a message that two parsers could
//! read in two ways is refused before any of it is passed on.

mod body;
mod field;
mod refusal;
mod request;
mod response;
mod scan;

pub use body::{BadBody, Body, Chunked, MAX_EXTENSION, MAX_TRAILER, Piece};
pub use field::{MAX_FIELDS, Marks};
pub use refusal::Refusal;
pub use request::{
    Forwarded, Forwarding, Method, Request, disguised, foreign, plausible_host, request, x_forwarded,
};
pub use response::{BadResponse, Response, Rewrite, response};
