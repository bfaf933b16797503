//! Request heads: read and judged. [`write`] rewrites them for the next hop.

use super::field::{Connection, MAX_FIELDS, Marks, Why, length, mark_named, named_by_connection, tokens};
use super::host::is_host;
use super::scan::{self, Stop, TOKEN, lines};
use super::{Body, Chunked, Refusal, Trailers, Unread};

mod write;

pub use write::{Forwarded, Forwarding, x_forwarded};

/// What of a method matters to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET: idempotent.
    Get,
    /// HEAD: idempotent, and its answer has no body.
    Head,
    /// PUT, DELETE, OPTIONS, TRACE: idempotent.
    Idempotent,
    /// Everything else: doing it twice may do harm.
    Other,
}

impl Method {
    /// May it be sent again when nobody knows whether it was carried out (RFC 9110 section 9.2.2)?
    pub fn idempotent(self) -> bool {
        self != Self::Other
    }
}

/// A request head that may be passed on.
#[derive(Debug)]
pub struct Request<'m, 'b> {
    /// As sent.
    pub method_name: &'b [u8],
    /// What of it matters.
    pub method: Method,
    /// The target in origin form (or `*`); the authority of an absolute form is in `host`.
    pub target: &'b [u8],
    /// The host asked for; empty only from HTTP/1.0 clients.
    pub host: &'b [u8],
    /// Does the client speak HTTP/1.0?
    pub http10: bool,
    /// Does the client want to go on with this connection?
    pub keep_alive: bool,
    /// Does the client wait for `100 Continue` before it sends the body?
    pub expects_continue: bool,
    /// Does the client ask for another protocol (WebSocket)?
    pub upgrade: bool,
    /// What follows the head.
    pub body: Body,
    /// Bytes of the head, the empty line included.
    pub len: usize,
    head: &'b [u8],
    /// Where the request line begins in `head`: empty lines may stand before it.
    start: usize,
    /// Where the fields begin in `head`.
    fields: usize,
    absolute: bool,
    /// Whether the request line is written anew.
    line_anew: bool,
    /// Whether `Connection` names other fields.
    names_others: bool,
    marks: &'m Marks,
}

/// Reads a request head from the beginning of `input`.
///
/// # Errors
/// It is not all there yet, or the request must be refused.
#[inline(always)]
pub fn request<'m, 'b>(
    input: &'b [u8],
    max_head: usize,
    marks: &'m mut Marks,
) -> Result<Request<'m, 'b>, Unread<Refusal>> {
    let mut read = read(&input[..input.len().min(max_head)], marks);
    // Changed where it is: a request is large.
    if let Err(unread @ Unread::Partial) = &mut read
        && input.len() >= max_head
    {
        *unread = Unread::Bad(too_large(&input[..max_head]));
    }
    read
}

impl From<Stop> for Unread<Refusal> {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Partial => Self::Partial,
            Stop::Bad(what) => malformed(what),
        }
    }
}

/// The refusal of what is malformed.
#[cold]
fn malformed(what: &'static str) -> Unread<Refusal> {
    Unread::Bad(Refusal::Malformed(what))
}

const LINE: &str = "the request line is malformed";
const NO_VERSION: &str = "the request line has no version";

/// The reason to refuse a head that is longer than it may be.
#[cold]
fn too_large(head: &[u8]) -> Refusal {
    let line = head.trim_ascii_start();
    if line.contains(&b'\n') { Refusal::HeadTooLarge } else { Refusal::TargetTooLong }
}

/// Does it begin with a request line of another protocol: three words, the last of them not HTTP with a version? Clients of
/// such a one (RTSP, SIP; an HTTP/2 preface that is none) make nothing of an answer in HTTP.
pub fn foreign(input: &[u8]) -> bool {
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
    let token = |word: &[u8]| !word.is_empty() && word.iter().all(|byte| TOKEN[usize::from(*byte)]);
    let visible = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
    let http = version.get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"HTTP"));
    token(method) && visible(target) && visible(version) && !http
}

#[inline(always)]
fn read<'m, 'b>(input: &'b [u8], marks: &'m mut Marks) -> Result<Request<'m, 'b>, Unread<Refusal>> {
    let mut start = 0;
    while let [b'\r', b'\n', ..] = input[start..] {
        start += 2;
    }
    let (method_len, known) = match &input[start..] {
        // Most are that.
        [b'G', b'E', b'T', b' ', ..] => (3, true),
        line => (line.iter().position(|byte| !TOKEN[usize::from(*byte)]).ok_or(Stop::Partial)?, false),
    };
    let method_end = start + method_len;
    if !known && (method_len == 0 || input[method_end] != b' ') {
        return match input[start..] {
            [b'\r'] => Err(Unread::Partial),
            _ => Err(malformed(LINE)),
        };
    }
    let target_start = method_end + 1;
    let target_end = scan::target_end(input, target_start);
    let after = *input.get(target_end).ok_or(Stop::Partial)?;
    if target_end == target_start || after != b' ' {
        return Err(malformed(LINE));
    }
    let Some(version) = input[target_end + 1..].first_chunk::<8>() else {
        // A line that has ended gets no version any more: who sent it waits for an answer.
        let ended = input[target_end + 1..].iter().any(|byte| matches!(byte, b'\r' | b'\n'));
        return Err(if ended { malformed(NO_VERSION) } else { Unread::Partial });
    };
    let (http10, later) = match version {
        // Compared at once, and not byte by byte.
        _ if version == b"HTTP/1.1" => (false, false),
        b"HTTP/1.0" => (true, false),
        // As the highest version that is spoken here (RFC 9110 section 2.5).
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => (false, true),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(Unread::Bad(Refusal::Version));
        }
        _ if version.contains(&b'\r') || version.contains(&b'\n') => return Err(malformed(NO_VERSION)),
        _ => return Err(malformed(LINE)),
    };
    let fields = scan::crlf(input, target_end + 9)?;
    let name = &input[start..method_end];
    let line = RequestLine {
        start,
        name,
        method: if known { Method::Get } else { method(name) },
        target: &input[target_start..target_end],
        http10,
        later,
        end: fields,
    };
    judge(input, &line, marks)
}

/// Returns whether a field frames a message, or says who the client is, in a spelling that differs from the
/// usual one by `_` for `-`. Servers that hand fields on as variables (CGI, WSGI) make the same of both, so
/// that a client could say what only its balancer is to say, or where a body ends. `name` is in any case.
pub fn disguised(name: &[u8]) -> bool {
    disguise(name).is_some()
}

/// The reason for which a disguised field may have to stay behind.
#[inline(always)]
fn disguise(name: &[u8]) -> Option<Why> {
    // All of them begin with one of these.
    if matches!(name, [b'c' | b'C' | b't' | b'T' | b'x' | b'X', ..]) { undisguise(name) } else { None }
}

/// Compares the whole name.
#[cold]
fn undisguise(name: &[u8]) -> Option<Why> {
    const USUAL: [(&[u8], Why); 5] = [
        (b"content-length", Why::Hop),
        (b"transfer-encoding", Why::Hop),
        (b"x-forwarded-for", Why::Forwarding),
        (b"x-forwarded-host", Why::Forwarding),
        (b"x-forwarded-proto", Why::Forwarding),
    ];
    let alike = |(one, other): (&u8, &u8)| one.eq_ignore_ascii_case(other) || (*one, *other) == (b'_', b'-');
    let same = |usual: &[u8]| name.len() == usual.len() && name.iter().zip(usual).all(alike);
    let found = USUAL.iter().find(|(usual, _)| same(usual));
    found.filter(|_| name.contains(&b'_')).map(|(_, why)| *why)
}

struct RequestLine<'b> {
    start: usize,
    /// Of the method.
    name: &'b [u8],
    method: Method,
    target: &'b [u8],
    http10: bool,
    /// Whether it is a version above 1.1.
    later: bool,
    /// Where the fields begin.
    end: usize,
}

/// Reads the fields and decides what the request is.
fn judge<'m, 'b>(
    input: &'b [u8],
    line: &RequestLine<'b>,
    marks: &'m mut Marks,
) -> Result<Request<'m, 'b>, Unread<Refusal>> {
    let (method_name, http10, fields) = (line.name, line.http10, line.end);
    let mut connection = Connection::default();
    marks.clear();
    let mut host = None;
    let mut content_length = None;
    let mut chunked = false;
    let mut expects_continue = false;
    let mut upgrade_fields = 0;
    let (mut index, mut at) = (0, fields);
    let (start, method, target, later) = (line.start, line.method, line.target, line.later);
    let mut fits = true;
    let len = loop {
        // Most requests end here, where too few bytes are left for the scan of a name to be quick.
        if let [b'\r', b'\n', ..] = input[at..] {
            break at + 2;
        }
        let Some(colon) = scan::name(input, at)? else { break at + 2 };
        if index == MAX_FIELDS {
            return Err(Unread::Bad(Refusal::HeadTooLarge));
        }
        if colon - at == 4
            && scan::is(&input[at..colon], b"host")
            && let Some((line, value)) = scan::plain_host(input, at, colon)
        {
            if host.replace(value).is_some() {
                return Err(malformed("more than one Host"));
            }
            fits &= marks.add(&line, Why::Host);
            at = line.end;
            index += 1;
            continue;
        }
        let line = scan::value(input, at, colon)?;
        at = line.end;
        match line.name_len() {
            2 if line.named(b"te") => fits &= marks.add(&line, Why::Hop),
            4 if line.named(b"host") => {
                let value = line.value();
                // A target without an authority has an empty Host (RFC 9112 section 3.2).
                if !value.is_empty() && !is_host(value) {
                    return Err(malformed("Host is malformed"));
                }
                if host.replace(value).is_some() {
                    return Err(malformed("more than one Host"));
                }
                fits &= marks.add(&line, Why::Host);
            }
            6 if line.named(b"expect") => {
                if !line.value().eq_ignore_ascii_case(b"100-continue") {
                    return Err(Unread::Bad(Refusal::Expectation));
                }
                expects_continue = !http10;
            }
            7 if line.named(b"upgrade") => {
                fits &= marks.add(&line, Why::Hop);
                // An h2c connection would carry requests past this relay's eyes.
                let h2c = tokens(line.value()).any(|token| token.eq_ignore_ascii_case(b"h2c"));
                upgrade_fields += if h2c { 2 } else { 1 };
            }
            9 if line.named(b"forwarded") => fits &= marks.add(&line, Why::Forwarding),
            10 if line.named(b"connection") => {
                fits &= marks.add(&line, Why::Hop);
                connection.read(line.value());
            }
            10 if line.named(b"keep-alive") => fits &= marks.add(&line, Why::Hop),
            14 if line.named(b"content-length") => {
                let Some(length) = length(line.value()) else {
                    return Err(malformed("Content-Length is malformed"));
                };
                if content_length.replace(length).is_some() {
                    return Err(malformed("more than one Content-Length"));
                }
            }
            14 if line.named(b"http2-settings") => fits &= marks.add(&line, Why::Hop),
            15 if line.named(b"x-forwarded-for") => fits &= marks.add(&line, Why::Forwarding),
            16 if line.named(b"x-forwarded-host") => fits &= marks.add(&line, Why::Forwarding),
            16 if line.named(b"proxy-connection") => fits &= marks.add(&line, Why::Hop),
            17 if line.named(b"x-forwarded-proto") => fits &= marks.add(&line, Why::Forwarding),
            17 if line.named(b"transfer-encoding") => {
                if chunked || http10 {
                    return Err(malformed("Transfer-Encoding is not allowed here"));
                }
                coding(line.value()).map_err(Unread::Bad)?;
                chunked = true;
            }
            14..=17 if let Some(why) = disguise(line.name()) => fits &= marks.add(&line, why),
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
        fits &= mark_named(head, fields, marks);
    }
    if !fits {
        return Err(Unread::Bad(Refusal::HeadTooLarge));
    }
    let upgrade = connection.upgrade && upgrade_fields == 1 && !http10;
    let (target, authority) = origin_form(method_name, target).map_err(Unread::Bad)?;
    let body = match content_length {
        _ if chunked => Body::Chunked(Chunked::new()),
        Some(length) if length > 0 => Body::Length(length),
        _ => Body::Done,
    };
    Ok(Request {
        method_name,
        method,
        target,
        host: authority.or(host).unwrap_or_default(),
        http10,
        keep_alive: !connection.close && (!http10 || connection.keep_alive),
        expects_continue: expects_continue && !matches!(body, Body::Done),
        upgrade,
        body,
        len,
        head,
        start,
        fields,
        absolute: authority.is_some(),
        line_anew: authority.is_some() || http10 || later,
        names_others: connection.names_others,
        marks,
    })
}

#[inline]
fn method(name: &[u8]) -> Method {
    match name {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"PUT" | b"DELETE" | b"OPTIONS" | b"TRACE" => Method::Idempotent,
        _ => Method::Other,
    }
}

/// Is `chunked` the only coding? Anything else is refused.
fn coding(value: &[u8]) -> Result<(), Refusal> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    match tokens(value).last() {
        Some(last) if last.eq_ignore_ascii_case(b"chunked") => {
            Err(Refusal::NotImplemented("only the transfer coding chunked is relayed"))
        }
        _ => Err(Refusal::Malformed("Transfer-Encoding does not end in chunked")),
    }
}

/// What is asked for in origin form, and the authority if the target names it.
#[inline]
fn origin_form<'b>(method: &[u8], target: &'b [u8]) -> Result<(&'b [u8], Option<&'b [u8]>), Refusal> {
    // To a CONNECT a member might begin a tunnel, whatever its target is.
    if target.starts_with(b"/") && method != b"CONNECT" {
        Ok((target, None))
    } else {
        other_form(method, target)
    }
}

/// Splits a target in absolute form into origin form and authority.
#[cold]
fn other_form<'b>(method: &[u8], target: &'b [u8]) -> Result<(&'b [u8], Option<&'b [u8]>), Refusal> {
    if target == b"*" && method == b"OPTIONS" {
        return Ok((target, None));
    }
    if method == b"CONNECT" {
        return Err(Refusal::NotImplemented("CONNECT is not relayed"));
    }
    let after = |scheme: &[u8]| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    let Some(rest) = after(b"http://").or_else(|| after(b"https://")) else {
        return Err(Refusal::Malformed("the request target is malformed"));
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if !is_host(authority) {
        return Err(Refusal::Malformed("the request target is malformed"));
    }
    let path: &[u8] = match path {
        // What a server as a whole is asked (RFC 9112 section 3.2.4).
        [] if method == b"OPTIONS" => b"*",
        [] => b"/",
        _ => path,
    };
    Ok((path, Some(authority)))
}

impl Request<'_, '_> {
    /// The value of the first field called `name` (lower case or not).
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// The value of the first cookie called `name`.
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        let pairs =
            self.values("cookie").flat_map(|value| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        pairs.into_iter().find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }

    /// All fields as they came, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        lines(self.head, self.fields).map(|line| (line.name(), line.value()))
    }

    /// The trailers of its body, of which none has come yet.
    #[inline]
    pub fn trailers(&self) -> Trailers {
        if self.names_others && matches!(self.body, Body::Chunked(_)) {
            Trailers::after(named_by_connection(self.head, self.fields))
        } else {
            Trailers::default()
        }
    }

    /// Returns whether it asks for protocols all of which `allowed` takes. Each is told by its name, without
    /// a version.
    pub fn upgrades_to(&self, allowed: impl Fn(&[u8]) -> bool) -> bool {
        let name = |token: &'_ [u8]| token.split(|byte| *byte == b'/').next().is_some_and(&allowed);
        self.upgrade && tokens(self.field("upgrade").unwrap_or_default()).all(name)
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        lines(self.head, self.fields)
            .filter(move |line| line.name().eq_ignore_ascii_case(name.as_bytes()))
            .map(|line| line.value())
    }
}

#[cfg(test)]
mod tests;
