//! HTTP/1.0 and 1.1 for a relay (RFC 9110, RFC 9112): heads are inspected and rewritten by copying spans;
//! bodies are tracked, not stored.
//!
//! The parser is strict where leniency has enabled request smuggling through other relays. A message that two
//! parsers could read in two ways is rejected before any of it is forwarded.

mod body;
mod body_forwarding;
mod field;
mod host;
mod path;
mod rejection;
mod request;
mod response;
mod scan;
mod trailer;

pub use body::{BodyError, BodyFraming, ChunkPiece, ChunkedParser, MAX_EXTENSION, MAX_TRAILER};
pub use body_forwarding::{ForwardedBytes, TrailerFilter, trailer_fields};
pub use field::{MAX_FIELDS, MarkedFields};
pub use host::is_host;
pub use path::{PathError, TargetParts, decoded, normal_path, other_readings, query_value, split_target};
pub use rejection::{HeadError, RequestRejection};
pub use request::{
    ForwardedStyle, ForwardingOptions, MethodClass, RequestHead, is_disguised_field, is_foreign_protocol,
    request, x_forwarded,
};
pub use response::{
    ResponseError, ResponseHead, ResponseRewrite, final_status, parse_response, strip_colon_space,
};
pub use trailer::is_trailer_field;
