//! Spans in the format of OpenTelemetry collectors (OTLP): the messages of
//! `opentelemetry/proto/trace/v1/trace.proto` and `collector/trace/v1/trace_service.proto`, version 1,
//! limited to the fields that Plimsoll writes.

/// The trait that encodes and decodes messages.
pub use prost::Message;

/// The path, below a collector's address, for spans over HTTP.
pub const PATH: &str = "/v1/traces";
/// The content type of a request.
pub const CONTENT_TYPE: &str = "application/x-protobuf";
/// A bit of [`Span::flags`]: the trace is sampled.
pub const SAMPLED: u32 = 0x1;
/// A bit of [`Span::flags`]: the bit [`REMOTE`] is valid.
pub const HAS_REMOTE: u32 = 0x100;
/// A bit of [`Span::flags`]: the parent span is in another process.
pub const REMOTE: u32 = 0x200;

/// An export request (`ExportTraceServiceRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceRequest {
    /// The spans, by process.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// The response to [`ExportTraceRequest`] (`ExportTraceServiceResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceResponse {
    /// Details if the collector rejected some spans.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// A partially successful export (`ExportTracePartialSuccess`).
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// The number of rejected spans.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// The reason.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// The spans of one process.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// The spans, by instrumentation scope.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// The attributes of the process.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<OtlpKeyValue>,
}

/// The spans of one instrumentation scope.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// The scope.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    /// The spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// The source of spans (`InstrumentationScope`).
#[derive(Clone, PartialEq, Message)]
pub struct InstrumentationScope {
    /// The scope's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The scope's version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// An operation with its duration.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// The trace's ID, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// The span's ID, 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// The received `tracestate`, unchanged.
    #[prost(string, tag = "3")]
    pub trace_state: String,
    /// The parent span's ID, 8 bytes; empty for the root span.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// The name of the operation.
    #[prost(string, tag = "5")]
    pub name: String,
    /// The side of the call, a [`SpanKind`].
    #[prost(enumeration = "SpanKind", tag = "6")]
    pub kind: i32,
    /// The start, nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// The end, nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// The attributes of the span.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<OtlpKeyValue>,
    /// The status, if it is known.
    #[prost(message, optional, tag = "15")]
    pub status: Option<SpanStatus>,
    /// The bits [`SAMPLED`], [`HAS_REMOTE`] and [`REMOTE`].
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// The side of a call (`Span.SpanKind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum SpanKind {
    /// The side is not specified.
    Unspecified = 0,
    /// The span is on the server's side.
    Server = 2,
    /// The span is on the client's side.
    Client = 3,
}

/// The status of an operation.
#[derive(Clone, PartialEq, Message)]
pub struct SpanStatus {
    /// The description.
    #[prost(string, tag = "2")]
    pub message: String,
    /// The code; 2 for an error.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

impl SpanStatus {
    /// Creates the status of a failed operation.
    pub fn error(message: &str) -> Self {
        Self { message: message.to_owned(), code: 2 }
    }
}

/// An attribute.
#[derive(Clone, PartialEq, Message)]
pub struct OtlpKeyValue {
    /// The attribute's name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The attribute's value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

impl OtlpKeyValue {
    /// Creates an attribute.
    pub fn new(key: impl Into<String>, value: impl Into<AttributeValue>) -> Self {
        Self { key: key.into(), value: Some(AnyValue { value: Some(value.into()) }) }
    }
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The typed value.
    #[prost(oneof = "AttributeValue", tags = "1, 3, 4")]
    pub value: Option<AttributeValue>,
}

/// A typed value.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AttributeValue {
    /// A string.
    #[prost(string, tag = "1")]
    Text(String),
    /// An integer.
    #[prost(int64, tag = "3")]
    Integer(i64),
    /// A floating-point number.
    #[prost(double, tag = "4")]
    Double(f64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Double(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_protocol() {
        let span = Span {
            trace_id: vec![1; 16],
            span_id: vec![2; 8],
            parent_span_id: vec![3; 8],
            trace_state: "a=1".into(),
            name: "GET".into(),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: 1,
            end_time_unix_nano: 2,
            attributes: vec![
                OtlpKeyValue::new("k", "v"),
                OtlpKeyValue::new("n", 300),
                OtlpKeyValue::new("f", 1.0),
            ],
            status: Some(SpanStatus::error("no")),
            flags: SAMPLED | HAS_REMOTE | REMOTE,
        };
        let mut bytes = vec![0x0a, 16];
        bytes.extend([1; 16]);
        bytes.extend([0x12, 8]);
        bytes.extend([2; 8]);
        bytes.extend(b"\x1a\x03a=1\x22\x08");
        bytes.extend([3; 8]);
        bytes.extend(b"\x2a\x03GET\x30\x02\x39\x01\0\0\0\0\0\0\0\x41\x02\0\0\0\0\0\0\0");
        bytes.extend(b"\x4a\x08\x0a\x01k\x12\x03\x0a\x01v");
        bytes.extend(b"\x4a\x08\x0a\x01n\x12\x03\x18\xac\x02");
        bytes.extend(b"\x4a\x0e\x0a\x01f\x12\x09\x21\0\0\0\0\0\0\xf0\x3f");
        bytes.extend(b"\x7a\x06\x12\x02no\x18\x02");
        bytes.extend(b"\x85\x01\x01\x03\0\0");
        assert_eq!(span.encode_to_vec(), bytes);
        let scope = InstrumentationScope { name: "s".into(), version: "1".into() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans: vec![Span::default()] }];
        let resource = Some(Resource { attributes: Vec::new() });
        let export = ExportTraceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] };
        assert_eq!(export.encode_to_vec(), b"\x0a\x0e\x0a\0\x12\x0a\x0a\x06\x0a\x01s\x12\x011\x12\0");
        let answer = ExportTraceResponse::decode(&b"\x0a\x06\x08\x05\x12\x02no"[..]).unwrap();
        let partial_success = answer.partial_success.unwrap();
        assert_eq!((partial_success.rejected_spans, &*partial_success.error_message), (5, "no"));
    }
}
