//! HTTP/1.0 and 1.1 for a relay (RFC 9110, RFC 9112): heads are inspected and rewritten by copying spans;
//! bodies are tracked, not stored.
//!
//! The parser is strict where leniency has enabled request smuggling through other relays. A message that two
//! parsers could read in two ways is rejected before any of it is forwarded.

mod body;
mod field;
mod host;
mod passing;
mod refusal;
mod request;
mod response;
mod scan;
mod trailer;

pub use body::{BadBody, Body, Chunked, MAX_EXTENSION, MAX_TRAILER, Piece};
pub use field::{MAX_FIELDS, Marks};
pub use host::is_host;
pub use passing::{Passed, Trailers, trailer_fields};
pub use refusal::{Refusal, Unread};
pub use request::{Forwarded, Forwarding, Method, Request, disguised, foreign, request, x_forwarded};
pub use response::{BadResponse, Response, Rewrite, close_up, final_status, response};
pub use trailer::may_trail;
