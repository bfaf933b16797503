//! Request heads: parsing and validation. [`mod@write`] rewrites them for the next hop.

use super::field::{
    ConnectionOptions, DropReason, MAX_FIELDS, MarkedFields, content_length, list_elements, mark_named,
    named_by_connection,
};
use super::host::is_host;
use super::scan::{self, ScanError, TOKEN, lines};
use super::{BodyFraming, ChunkedParser, HeadError, RequestRejection, TrailerFilter};

mod write;

pub use write::{ForwardedStyle, ForwardingOptions, x_forwarded};

/// The properties of a method that matter to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodClass {
    /// GET: idempotent.
    Get,
    /// HEAD: idempotent, and its response has no body.
    Head,
    /// PUT, DELETE, OPTIONS, TRACE: idempotent.
    Idempotent,
    /// All other methods: a repeated request may do harm.
    Other,
}

impl MethodClass {
    /// Returns `true` if a request may be sent again when its outcome is unknown (RFC 9110 section 9.2.2).
    pub fn is_idempotent(self) -> bool {
        self != Self::Other
    }
}

/// A request head that may be forwarded.
#[derive(Debug)]
pub struct RequestHead<'m, 'b> {
    /// The method as received.
    pub method_name: &'b [u8],
    /// The method's properties.
    pub method: MethodClass,
    /// The target in origin form (or `*`); the authority of an absolute form is in `host`.
    pub target: &'b [u8],
    /// The requested host; empty only from HTTP/1.0 clients.
    pub host: &'b [u8],
    /// Whether the client uses HTTP/1.0.
    pub http10: bool,
    /// Whether the client wants to reuse this connection.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// Whether the client requests another protocol (WebSocket).
    pub upgrade: bool,
    /// The body after the head.
    pub body: BodyFraming,
    /// The length of the head in bytes, with the empty line.
    pub len: usize,
    head: &'b [u8],
    /// The offset of the request line in `head`, after any empty lines.
    start: usize,
    /// The offset of the fields in `head`.
    fields: usize,
    absolute: bool,
    /// Whether the request line is rewritten.
    rewrites_line: bool,
    /// Whether `Connection` names other fields.
    names_others: bool,
    marks: &'m MarkedFields,
}

/// Parses a request head at the beginning of `input`.
///
/// # Errors
/// The head is incomplete, or the request must be rejected.
#[inline(always)]
pub fn request<'m, 'b>(
    input: &'b [u8],
    max_head: usize,
    marks: &'m mut MarkedFields,
) -> Result<RequestHead<'m, 'b>, HeadError<RequestRejection>> {
    let mut result = read(&input[..input.len().min(max_head)], marks);
    // Modified in place: a request is large.
    if let Err(incomplete @ HeadError::Partial) = &mut result
        && input.len() >= max_head
    {
        *incomplete = HeadError::Invalid(too_large(&input[..max_head]));
    }
    result
}

impl From<ScanError> for HeadError<RequestRejection> {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Partial => Self::Partial,
            ScanError::Invalid(message) => malformed(message),
        }
    }
}

/// Returns the refusal of a malformed request.
#[cold]
fn malformed(message: &'static str) -> HeadError<RequestRejection> {
    HeadError::Invalid(RequestRejection::Malformed(message))
}

const BAD_LINE: &str = "the request line is malformed";
const NO_VERSION: &str = "the request line has no version";

/// Returns the refusal of a head that exceeds its maximum length.
#[cold]
fn too_large(head: &[u8]) -> RequestRejection {
    let line = head.trim_ascii_start();
    if line.contains(&b'\n') { RequestRejection::HeadTooLarge } else { RequestRejection::TargetTooLong }
}

/// Returns `true` if the input begins with a request line of another protocol: three parts, the last of them
/// not HTTP with a version. Clients of such a protocol (RTSP, SIP, an invalid HTTP/2 preface) cannot parse an
/// HTTP response.
pub fn is_foreign_protocol(input: &[u8]) -> bool {
    let Some(line) = input.split(|byte| *byte == b'\n').next().and_then(|line| line.strip_suffix(b"\r"))
    else {
        return false;
    };
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    let is_token = |word: &[u8]| !word.is_empty() && word.iter().all(|byte| TOKEN[usize::from(*byte)]);
    let is_visible = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
    let is_http = version.get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"HTTP"));
    is_token(method) && is_visible(target) && is_visible(version) && !is_http
}

#[inline(always)]
fn read<'m, 'b>(
    input: &'b [u8],
    marks: &'m mut MarkedFields,
) -> Result<RequestHead<'m, 'b>, HeadError<RequestRejection>> {
    let mut start = 0;
    while let [b'\r', b'\n', ..] = input[start..] {
        start += 2;
    }
    let (method_len, is_get) = match &input[start..] {
        // The most common method.
        [b'G', b'E', b'T', b' ', ..] => (3, true),
        line => (line.iter().position(|byte| !TOKEN[usize::from(*byte)]).ok_or(ScanError::Partial)?, false),
    };
    let method_end = start + method_len;
    if !is_get && (method_len == 0 || input[method_end] != b' ') {
        return match input[start..] {
            [b'\r'] => Err(HeadError::Partial),
            _ => Err(malformed(BAD_LINE)),
        };
    }
    let target_start = method_end + 1;
    let target_end = scan::target_end(input, target_start);
    let terminator = *input.get(target_end).ok_or(ScanError::Partial)?;
    if target_end == target_start || terminator != b' ' {
        return Err(malformed(BAD_LINE));
    }
    let Some(version) = input[target_end + 1..].first_chunk::<8>() else {
        // A complete line without a version stays without one: its sender waits for a response.
        let line_ended = input[target_end + 1..].iter().any(|byte| matches!(byte, b'\r' | b'\n'));
        return Err(if line_ended { malformed(NO_VERSION) } else { HeadError::Partial });
    };
    let (http10, later_version) = match version {
        // Compared as one value, not byte by byte.
        _ if version == b"HTTP/1.1" => (false, false),
        b"HTTP/1.0" => (true, false),
        // Treated as the highest supported version (RFC 9110 section 2.5).
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => (false, true),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(HeadError::Invalid(RequestRejection::Version));
        }
        _ if version.contains(&b'\r') || version.contains(&b'\n') => return Err(malformed(NO_VERSION)),
        _ => return Err(malformed(BAD_LINE)),
    };
    let fields = scan::crlf(input, target_end + 9)?;
    let name = &input[start..method_end];
    let line = RequestLine {
        start,
        name,
        method: if is_get { MethodClass::Get } else { method_class(name) },
        target: &input[target_start..target_end],
        http10,
        is_later_version: later_version,
        end: fields,
    };
    validate(input, &line, marks)
}

/// Returns `true` if a field frames a message, or identifies the client, in a spelling that has `_` in place
/// of `-`. Servers that turn fields into variables (CGI, WSGI) do not distinguish the two. A client could
/// then forge the fields of its balancer, or the end of a body. `name` is in any case.
pub fn is_disguised_field(name: &[u8]) -> bool {
    disguised_reason(name).is_some()
}

/// Returns the reason why a disguised field may have to be dropped.
#[inline(always)]
fn disguised_reason(name: &[u8]) -> Option<DropReason> {
    // All of them begin with one of these letters.
    if matches!(name, [b'c' | b'C' | b't' | b'T' | b'x' | b'X', ..]) {
        framing_field_reason(name)
    } else {
        None
    }
}

/// Compares the whole name.
#[cold]
fn framing_field_reason(name: &[u8]) -> Option<DropReason> {
    const GUARDED_FIELDS: [(&[u8], DropReason); 5] = [
        (b"content-length", DropReason::Hop),
        (b"transfer-encoding", DropReason::Hop),
        (b"x-forwarded-for", DropReason::Forwarding),
        (b"x-forwarded-host", DropReason::Forwarding),
        (b"x-forwarded-proto", DropReason::Forwarding),
    ];
    let equivalent =
        |(one, other): (&u8, &u8)| one.eq_ignore_ascii_case(other) || (*one, *other) == (b'_', b'-');
    let is_spelling_of = |field: &[u8]| name.len() == field.len() && name.iter().zip(field).all(equivalent);
    let found = GUARDED_FIELDS.iter().find(|(field, _)| is_spelling_of(field));
    found.filter(|_| name.contains(&b'_')).map(|(_, reason)| *reason)
}

struct RequestLine<'b> {
    start: usize,
    /// The name of the method.
    name: &'b [u8],
    method: MethodClass,
    target: &'b [u8],
    http10: bool,
    /// Whether the version is above 1.1.
    is_later_version: bool,
    /// The offset of the fields.
    end: usize,
}

/// Parses the fields and validates the request.
fn validate<'m, 'b>(
    input: &'b [u8],
    line: &RequestLine<'b>,
    marks: &'m mut MarkedFields,
) -> Result<RequestHead<'m, 'b>, HeadError<RequestRejection>> {
    let (method_name, http10, fields) = (line.name, line.http10, line.end);
    let mut connection = ConnectionOptions::default();
    marks.clear();
    let mut host = None;
    let mut content_length = None;
    let mut chunked = false;
    let mut expects_continue = false;
    let mut upgrade_fields = 0;
    let (mut index, mut position) = (0, fields);
    let (start, method, target, later_version) =
        (line.start, line.method, line.target, line.is_later_version);
    let mut marks_fit = true;
    let len = loop {
        // Most requests end here, where too few bytes are left for the fast scan of a name.
        if let [b'\r', b'\n', ..] = input[position..] {
            break position + 2;
        }
        let Some(colon) = scan::scan_name(input, position)? else { break position + 2 };
        if index == MAX_FIELDS {
            return Err(HeadError::Invalid(RequestRejection::HeadTooLarge));
        }
        if colon - position == 4
            && scan::matches_name(&input[position..colon], b"host")
            && let Some((line, value)) = scan::plain_host(input, position, colon)
        {
            if host.replace(value).is_some() {
                return Err(malformed("more than one Host"));
            }
            marks_fit &= marks.add(&line, DropReason::Host);
            position = line.end;
            index += 1;
            continue;
        }
        let line = scan::scan_value(input, position, colon)?;
        position = line.end;
        match line.name_len() {
            2 if line.has_name(b"te") => marks_fit &= marks.add(&line, DropReason::Hop),
            4 if line.has_name(b"host") => {
                let value = line.value();
                // A target without an authority has an empty Host (RFC 9112 section 3.2).
                if !value.is_empty() && !is_host(value) {
                    return Err(malformed("Host is malformed"));
                }
                if host.replace(value).is_some() {
                    return Err(malformed("more than one Host"));
                }
                marks_fit &= marks.add(&line, DropReason::Host);
            }
            6 if line.has_name(b"expect") => {
                if !line.value().eq_ignore_ascii_case(b"100-continue") {
                    return Err(HeadError::Invalid(RequestRejection::Expectation));
                }
                expects_continue = !http10;
            }
            7 if line.has_name(b"upgrade") => {
                marks_fit &= marks.add(&line, DropReason::Hop);
                // An h2c connection would carry requests that this relay cannot see.
                let has_h2c = list_elements(line.value()).any(|token| token.eq_ignore_ascii_case(b"h2c"));
                upgrade_fields += if has_h2c { 2 } else { 1 };
            }
            9 if line.has_name(b"forwarded") => marks_fit &= marks.add(&line, DropReason::Forwarding),
            10 if line.has_name(b"connection") => {
                marks_fit &= marks.add(&line, DropReason::Hop);
                connection.read(line.value());
            }
            10 if line.has_name(b"keep-alive") => marks_fit &= marks.add(&line, DropReason::Hop),
            14 if line.has_name(b"content-length") => {
                let Some(length) = self::content_length(line.value()) else {
                    return Err(malformed("Content-Length is malformed"));
                };
                if content_length.replace(length).is_some() {
                    return Err(malformed("more than one Content-Length"));
                }
            }
            14 if line.has_name(b"http2-settings") => marks_fit &= marks.add(&line, DropReason::Hop),
            15 if line.has_name(b"x-forwarded-for") => marks_fit &= marks.add(&line, DropReason::Forwarding),
            16 if line.has_name(b"x-forwarded-host") => marks_fit &= marks.add(&line, DropReason::Forwarding),
            16 if line.has_name(b"proxy-connection") => marks_fit &= marks.add(&line, DropReason::Hop),
            17 if line.has_name(b"x-forwarded-proto") => {
                marks_fit &= marks.add(&line, DropReason::Forwarding)
            }
            17 if line.has_name(b"transfer-encoding") => {
                if chunked || http10 {
                    return Err(malformed("Transfer-Encoding is not allowed here"));
                }
                check_coding(line.value()).map_err(HeadError::Invalid)?;
                chunked = true;
            }
            14..=17 if let Some(reason) = disguised_reason(line.name()) => {
                marks_fit &= marks.add(&line, reason)
            }
            _ => {}
        }
        index += 1;
    };
    let head = &input[..len];
    if chunked && content_length.is_some() {
        return Err(malformed("both Content-Length and Transfer-Encoding"));
    }
    if host.is_none() && !http10 {
        return Err(malformed("no Host"));
    }
    if connection.names_others {
        marks_fit &= mark_named(head, fields, marks);
    }
    if !marks_fit {
        return Err(HeadError::Invalid(RequestRejection::HeadTooLarge));
    }
    let upgrade = connection.upgrade && upgrade_fields == 1 && !http10;
    let (target, authority) = origin_form(method_name, target).map_err(HeadError::Invalid)?;
    let body = match content_length {
        _ if chunked => BodyFraming::Chunked(ChunkedParser::new()),
        Some(length) if length > 0 => BodyFraming::Length(length),
        _ => BodyFraming::Done,
    };
    Ok(RequestHead {
        method_name,
        method,
        target,
        host: authority.or(host).unwrap_or_default(),
        http10,
        keep_alive: !connection.close && (!http10 || connection.keep_alive),
        expects_continue: expects_continue && !matches!(body, BodyFraming::Done),
        upgrade,
        body,
        len,
        head,
        start,
        fields,
        absolute: authority.is_some(),
        rewrites_line: authority.is_some() || http10 || later_version,
        names_others: connection.names_others,
        marks,
    })
}

#[inline]
fn method_class(name: &[u8]) -> MethodClass {
    match name {
        b"GET" => MethodClass::Get,
        b"HEAD" => MethodClass::Head,
        b"PUT" | b"DELETE" | b"OPTIONS" | b"TRACE" => MethodClass::Idempotent,
        _ => MethodClass::Other,
    }
}

/// Checks that `chunked` is the only coding; all others are rejected.
fn check_coding(value: &[u8]) -> Result<(), RequestRejection> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    match list_elements(value).last() {
        Some(last) if last.eq_ignore_ascii_case(b"chunked") => {
            Err(RequestRejection::NotImplemented("only the transfer coding chunked is relayed"))
        }
        _ => Err(RequestRejection::Malformed("Transfer-Encoding does not end in chunked")),
    }
}

/// Returns the target in origin form, and the authority if the target has one.
#[inline]
fn origin_form<'b>(
    method: &[u8],
    target: &'b [u8],
) -> Result<(&'b [u8], Option<&'b [u8]>), RequestRejection> {
    // A member might open a tunnel for a CONNECT with any target.
    if target.starts_with(b"/") && method != b"CONNECT" {
        Ok((target, None))
    } else {
        non_origin_form(method, target)
    }
}

/// Splits a target in absolute form into origin form and authority.
#[cold]
fn non_origin_form<'b>(
    method: &[u8],
    target: &'b [u8],
) -> Result<(&'b [u8], Option<&'b [u8]>), RequestRejection> {
    if target == b"*" && method == b"OPTIONS" {
        return Ok((target, None));
    }
    if method == b"CONNECT" {
        return Err(RequestRejection::NotImplemented("CONNECT is not relayed"));
    }
    let strip_scheme = |scheme: &[u8]| {
        let (prefix, rest) = target.split_at_checked(scheme.len())?;
        prefix.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let Some(rest) = strip_scheme(b"http://").or_else(|| strip_scheme(b"https://")) else {
        return Err(RequestRejection::Malformed("the request target is malformed"));
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if !is_host(authority) {
        return Err(RequestRejection::Malformed("the request target is malformed"));
    }
    let path: &[u8] = match path {
        // A request to the server as a whole (RFC 9112 section 3.2.4).
        [] if method == b"OPTIONS" => b"*",
        [] => b"/",
        _ => path,
    };
    Ok((path, Some(authority)))
}

impl<'b> RequestHead<'_, 'b> {
    /// Replaces the target in the head for the next hop; the target is in origin form.
    pub fn replace_target(&mut self, target: &'b [u8]) {
        self.target = target;
        self.rewrites_line = true;
    }

    /// Returns the value of the first field with this name, in any case.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// Returns `true` if the client's `Connection` names this field, which then is for this hop only.
    pub fn is_named_by_connection(&self, name: &str) -> bool {
        let is_name = |token: &[u8]| token.eq_ignore_ascii_case(name.as_bytes());
        self.names_others && named_by_connection(self.head, self.fields).any(is_name)
    }

    /// Returns the value of the first cookie with this name.
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        let pairs =
            self.values("cookie").flat_map(|value| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        pairs.into_iter().find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// Returns all fields as received, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        lines(self.head, self.fields).map(|line| (line.name(), line.value()))
    }

    /// Creates the trailers of the request's body, before any have been received.
    #[inline]
    pub fn trailers(&self) -> TrailerFilter {
        if self.names_others && matches!(self.body, BodyFraming::Chunked(_)) {
            TrailerFilter::excluding(named_by_connection(self.head, self.fields))
        } else {
            TrailerFilter::default()
        }
    }

    /// Returns `true` if the request asks for other protocols and `allowed` accepts all of them. `allowed`
    /// receives each name without a version.
    pub fn upgrades_to(&self, allowed: impl Fn(&[u8]) -> bool) -> bool {
        let is_allowed = |token: &'_ [u8]| token.split(|byte| *byte == b'/').next().is_some_and(&allowed);
        self.upgrade && list_elements(self.field("upgrade").unwrap_or_default()).all(is_allowed)
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        lines(self.head, self.fields)
            .filter(move |line| line.name().eq_ignore_ascii_case(name.as_bytes()))
            .map(|line| line.value())
    }
}

#[cfg(test)]
mod tests;
