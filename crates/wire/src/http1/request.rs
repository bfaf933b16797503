//! Request heads: read, judged, rewritten for the next hop.

use super::field::{Connection, MAX_FIELDS, Marks, Why, copy_lines, length, mark_named, tokens};
use super::scan::{self, Stop, TOKEN, is, lines};
use super::{Body, Chunked, Refusal};

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
    marks: &'m Marks,
}

/// What the rewritten head says of the client.
#[derive(Clone, Copy, Debug)]
pub enum Forwarded {
    /// `X-Forwarded-For`, `-Proto`, `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// Nothing added, nothing removed.
    Off,
}

/// How to rewrite a request head.
#[derive(Clone, Copy, Debug)]
pub struct Forwarding<'a> {
    /// Which fields to add.
    pub style: Forwarded,
    /// Keep those that came with the request?
    pub trusted: bool,
    /// The client's IP address, as text without brackets.
    pub client: &'a str,
    /// What [`x_forwarded`] makes of `client` and `scheme`: the same for all requests of a connection.
    pub plain: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a str,
}

/// The `X-Forwarded` fields that depend on the connection alone.
pub fn x_forwarded(client: &str, scheme: &str) -> Vec<u8> {
    format!("X-Forwarded-For: {client}\r\nX-Forwarded-Proto: {scheme}\r\n").into_bytes()
}

/// Reads a request head from the beginning of `input`; `None` if it is not all there yet.
///
/// # Errors
/// The request must be refused.
pub fn request<'m, 'b>(
    input: &'b [u8],
    max_head: usize,
    marks: &'m mut Marks,
) -> Result<Option<Request<'m, 'b>>, Refusal> {
    match read(&input[..input.len().min(max_head)], marks) {
        Ok(request) => request.map(Some),
        Err(Stop::Partial) if input.len() >= max_head => Err(Refusal::HeadTooLarge),
        Err(Stop::Partial) => Ok(None),
        Err(Stop::Bad(what)) => Err(Refusal::Malformed(what)),
    }
}

/// The outer error stops the scan, the inner one is a judgement.
fn read<'m, 'b>(input: &'b [u8], marks: &'m mut Marks) -> Result<Result<Request<'m, 'b>, Refusal>, Stop> {
    let mut start = 0;
    while let [b'\r', b'\n', ..] = input[start..] {
        start += 2;
    }
    let method_end =
        start + input[start..].iter().position(|byte| !TOKEN[usize::from(*byte)]).ok_or(Stop::Partial)?;
    if method_end == start || input[method_end] != b' ' {
        return match input[start..] {
            [b'\r'] => Err(Stop::Partial),
            _ => Err(Stop::Bad("the request line is malformed")),
        };
    }
    let target_start = method_end + 1;
    let target =
        input[target_start..].iter().position(|byte| !(b'!'..=b'~').contains(byte)).ok_or(Stop::Partial)?;
    let target_end = target_start + target;
    if target == 0 || input[target_end] != b' ' {
        return Err(Stop::Bad("the request line is malformed"));
    }
    let version = input.get(target_end + 1..target_end + 9).ok_or(Stop::Partial)?;
    let http10 = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Ok(Err(Refusal::Version)),
        _ => return Err(Stop::Bad("the request line is malformed")),
    };
    let fields = scan::crlf(input, target_end + 9)?;
    let line = RequestLine {
        start,
        method: &input[start..method_end],
        target: &input[target_start..target_end],
        http10,
        end: fields,
    };
    judge(input, &line, marks)
}

struct RequestLine<'b> {
    start: usize,
    method: &'b [u8],
    target: &'b [u8],
    http10: bool,
    /// Where the fields begin.
    end: usize,
}

/// Reads the fields and decides what the request is.
fn judge<'m, 'b>(
    input: &'b [u8],
    line: &RequestLine<'b>,
    marks: &'m mut Marks,
) -> Result<Result<Request<'m, 'b>, Refusal>, Stop> {
    let (method_name, http10, fields) = (line.method, line.http10, line.end);
    let mut connection = Connection::default();
    marks.clear();
    let mut host = None;
    let mut content_length = None;
    let mut chunked = false;
    let mut expects_continue = false;
    let mut upgrade_fields = 0;
    let (mut index, mut at) = (0, fields);
    let start = line.start;
    let mut fits = true;
    let refuse = |what| Ok(Err(Refusal::Malformed(what)));
    let len = loop {
        let (line, next) = scan::line(input, at)?;
        let Some(line) = line else { break next };
        if index == MAX_FIELDS {
            return Ok(Err(Refusal::HeadTooLarge));
        }
        at = next;
        let (name, value) = (line.name, line.value);
        match name.len() {
            2 if is(name, b"te") => fits &= marks.add(&line, Why::Hop),
            4 if is(name, b"host") => {
                if host.replace(value).is_some() {
                    return refuse("more than one Host");
                }
                fits &= marks.add(&line, Why::Host);
                if !plausible_host(value) {
                    return refuse("Host is malformed");
                }
            }
            6 if is(name, b"expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return refuse("Expect is not 100-continue");
                }
                expects_continue = !http10;
            }
            7 if is(name, b"upgrade") => {
                fits &= marks.add(&line, Why::Hop);
                // An h2c connection would carry requests past this relay's eyes.
                let h2c = tokens(value).any(|token| token.eq_ignore_ascii_case(b"h2c"));
                upgrade_fields += if h2c { 2 } else { 1 };
            }
            9 if is(name, b"forwarded") => fits &= marks.add(&line, Why::Forwarding),
            10 if is(name, b"connection") => {
                fits &= marks.add(&line, Why::Hop);
                connection.read(value);
            }
            10 if is(name, b"keep-alive") => fits &= marks.add(&line, Why::Hop),
            14 if is(name, b"content-length") => {
                let Some(length) = length(value) else { return refuse("Content-Length is malformed") };
                if content_length.replace(length).is_some() {
                    return refuse("more than one Content-Length");
                }
            }
            14 if is(name, b"http2-settings") => fits &= marks.add(&line, Why::Hop),
            15 if is(name, b"x-forwarded-for") => fits &= marks.add(&line, Why::Forwarding),
            16 if is(name, b"x-forwarded-host") => fits &= marks.add(&line, Why::Forwarding),
            16 if is(name, b"proxy-connection") => fits &= marks.add(&line, Why::Hop),
            17 if is(name, b"x-forwarded-proto") => fits &= marks.add(&line, Why::Forwarding),
            17 if is(name, b"transfer-encoding") => {
                if chunked || http10 {
                    return refuse("Transfer-Encoding is not allowed here");
                }
                match coding(value) {
                    Ok(()) => chunked = true,
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            _ => {}
        }
        index += 1;
    };
    let head = &input[..len];
    if chunked && content_length.is_some() {
        return refuse("both Content-Length and Transfer-Encoding");
    }
    if host.is_none() && !http10 {
        return refuse("no Host");
    }
    if connection.names_others {
        fits &= mark_named(head, fields, marks);
    }
    if !fits {
        return Ok(Err(Refusal::HeadTooLarge));
    }
    let upgrade = connection.upgrade && upgrade_fields == 1 && !http10;
    let (target, authority) = match origin_form(method_name, line.target) {
        Ok(split) => split,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let body = match content_length {
        _ if chunked => Body::Chunked(Chunked::new()),
        Some(length) if length > 0 => Body::Length(length),
        _ => Body::Done,
    };
    Ok(Ok(Request {
        method_name,
        method: method(method_name),
        target,
        host: authority.or(host).unwrap_or_default(),
        http10,
        keep_alive: !connection.close && (!http10 || connection.keep_alive),
        expects_continue: expects_continue && body != Body::Done,
        upgrade,
        body,
        len,
        head,
        start,
        fields,
        absolute: authority.is_some(),
        marks,
    }))
}

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

/// Splits a target in absolute form into origin form and authority.
fn origin_form<'b>(method: &[u8], target: &'b [u8]) -> Result<(&'b [u8], Option<&'b [u8]>), Refusal> {
    if target.starts_with(b"/") || (target == b"*" && method == b"OPTIONS") {
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
    if authority.is_empty() || !plausible_host(authority) {
        return Err(Refusal::Malformed("the request target is malformed"));
    }
    Ok((if path.is_empty() { b"/" } else { path }, Some(authority)))
}

/// Could this be a host and port? (Not a check of the grammar: of what could be read as two hosts.)
fn plausible_host(host: &[u8]) -> bool {
    let (fours, rest) = host.as_chunks::<4>();
    fours.iter().all(|four| four.iter().fold(true, |all, byte| all & HOST[usize::from(*byte)]))
        && rest.iter().all(|byte| HOST[usize::from(*byte)])
}

/// Characters of a host, an address in brackets or a port.
const HOST: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let character = byte as u8;
        table[byte] = character.is_ascii_alphanumeric()
            || matches!(
                character,
                b'-' | b'.' | b'_' | b'~' | b'!' | b'$'..=b'+' | b':' | b';' | b'=' | b'[' | b']'
            );
        byte += 1;
    }
    table
};

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

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        lines(self.head, self.fields)
            .filter(move |line| line.name.eq_ignore_ascii_case(name.as_bytes()))
            .map(|line| line.value)
    }

    /// Appends the head for the next hop: HTTP/1.1 (1.0 if no host is named), origin form, without what concerned
    /// only this hop, with what tells the member who the client is.
    pub fn write(&self, forwarding: &Forwarding<'_>, out: &mut Vec<u8>) {
        let from = if self.absolute || self.http10 {
            self.write_line(out);
            self.fields
        } else {
            self.start
        };
        let replaced = !matches!(forwarding.style, Forwarded::Off);
        let drop = |why| match why {
            Why::Hop => true,
            Why::Forwarding => replaced,
            Why::Host => self.absolute,
            Why::Coding => false,
        };
        copy_lines(self.head, from, self.marks, drop, out);
        if self.upgrade {
            out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
            out.extend_from_slice(self.field("upgrade").unwrap_or_default());
            out.extend_from_slice(b"\r\n");
        }
        match forwarding.style {
            Forwarded::XForwarded => self.x_forwarded(forwarding, out),
            Forwarded::Rfc7239 => self.rfc7239(forwarding, out),
            Forwarded::Off => {}
        }
        out.extend_from_slice(b"\r\n");
    }

    /// A request line of our own; the host follows it, because that of an absolute target replaces the field.
    fn write_line(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method_name);
        // An absolute form may have had a query but no path: `http://host?query`.
        out.extend_from_slice(if self.target.starts_with(b"?") { b" /" } else { b" " });
        out.extend_from_slice(self.target);
        // HTTP/1.1 demands a Host: who did not name any is not made to.
        let no_host = self.http10 && self.host.is_empty();
        out.extend_from_slice(if no_host { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
        if self.absolute {
            out.extend_from_slice(b"Host: ");
            out.extend_from_slice(self.host);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn x_forwarded(&self, forwarding: &Forwarding<'_>, out: &mut Vec<u8>) {
        if !forwarding.trusted {
            out.extend_from_slice(forwarding.plain);
            if !self.host.is_empty() {
                out.extend_from_slice(b"X-Forwarded-Host: ");
                out.extend_from_slice(self.host);
                out.extend_from_slice(b"\r\n");
            }
            return;
        }
        out.extend_from_slice(b"X-Forwarded-For: ");
        self.earlier_list("x-forwarded-for", out);
        out.extend_from_slice(forwarding.client.as_bytes());
        out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
        out.extend_from_slice(self.field("x-forwarded-proto").unwrap_or(forwarding.scheme.as_bytes()));
        let host = self.field("x-forwarded-host").unwrap_or(self.host);
        if !host.is_empty() {
            out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
            out.extend_from_slice(host);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn rfc7239(&self, forwarding: &Forwarding<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Forwarded: ");
        if forwarding.trusted {
            self.earlier_list("forwarded", out);
        }
        let (open, close): (&[u8], &[u8]) =
            if forwarding.client.contains(':') { (b"for=\"[", b"]\"") } else { (b"for=", b"") };
        out.extend_from_slice(open);
        out.extend_from_slice(forwarding.client.as_bytes());
        out.extend_from_slice(close);
        if !self.host.is_empty() {
            out.extend_from_slice(b";host=\"");
            out.extend_from_slice(self.host);
            out.push(b'"');
        }
        out.extend_from_slice(b";proto=");
        out.extend_from_slice(forwarding.scheme.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// The elements of all fields called `name`, each followed by a comma.
    fn earlier_list(&self, name: &str, out: &mut Vec<u8>) {
        for value in self.values(name) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Forwarding<'_> = Forwarding {
        style: Forwarded::XForwarded,
        trusted: false,
        client: "192.0.2.7",
        plain: b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n",
        scheme: "http",
    };

    #[test]
    fn the_plain_fields_are_what_a_connection_gives() {
        assert_eq!(x_forwarded(PLAIN.client, PLAIN.scheme), PLAIN.plain);
    }

    fn rewritten(input: &str, forwarding: &Forwarding<'_>) -> String {
        let mut marks = Marks::new();
        let request = request(input.as_bytes(), 8192, &mut marks).expect("accepted").expect("complete");
        let mut out = Vec::new();
        request.write(forwarding, &mut out);
        String::from_utf8(out).expect("text")
    }

    fn refused(input: &[u8]) -> Refusal {
        let mut marks = Marks::new();
        match request(input, 8192, &mut marks) {
            Err(refusal) => refusal,
            other => panic!("{:?} was not refused: {other:?}", String::from_utf8_lossy(input)),
        }
    }

    #[test]
    fn a_plain_request_gains_only_who_the_client_is() {
        assert_eq!(
            rewritten("GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", &PLAIN),
            "GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nX-Forwarded-For: 192.0.2.7\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Host: x\r\n\r\n"
        );
    }

    #[test]
    fn hop_by_hop_fields_stay_behind() {
        let input = "GET / HTTP/1.1\r\nConnection: x-mine, close, host\r\nHost: x\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n\
                     TE: trailers\r\nProxy-Connection: y\r\nAccept: z\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n\r\n";
        let off = Forwarding { style: Forwarded::Off, ..PLAIN };
        assert_eq!(rewritten(input, &off), "GET / HTTP/1.1\r\nHost: x\r\nAccept: z\r\n\r\n");
    }

    #[test]
    fn who_names_no_host_is_passed_on_as_http_1_0() {
        let off = Forwarding { style: Forwarded::Off, ..PLAIN };
        assert_eq!(rewritten("GET / HTTP/1.0\r\n\r\n", &off), "GET / HTTP/1.0\r\n\r\n");
        let named = "GET / HTTP/1.0\r\nHost: x\r\n\r\n";
        assert_eq!(rewritten(named, &off), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    }

    #[test]
    fn a_websocket_upgrade_is_passed_on() {
        let input =
            "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let off = Forwarding { style: Forwarded::Off, ..PLAIN };
        assert_eq!(
            rewritten(input, &off),
            "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
    }

    #[test]
    fn an_absolute_target_becomes_origin_form_and_host() {
        let off = Forwarding { style: Forwarded::Off, ..PLAIN };
        let input = "GET http://real:81/p?q HTTP/1.1\r\nHost: other\r\n\r\n";
        assert_eq!(rewritten(input, &off), "GET /p?q HTTP/1.1\r\nHost: real:81\r\n\r\n");
        let input = "GET http://real?q HTTP/1.1\r\nHost: other\r\n\r\n";
        assert_eq!(rewritten(input, &off), "GET /?q HTTP/1.1\r\nHost: real\r\n\r\n");
    }

    #[test]
    fn forwarding_fields_of_strangers_are_dropped_and_those_of_friends_kept() {
        let input = "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
                     X-Forwarded-For: 10.0.0.2\r\n\r\n";
        assert!(
            rewritten(input, &PLAIN)
                .contains("\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n")
        );
        assert!(!rewritten(input, &PLAIN).contains("10.0.0.1"));
        let friend = Forwarding { trusted: true, ..PLAIN };
        assert!(rewritten(input, &friend).contains(
            "\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2, 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: x\r\n"
        ));
        let standard = Forwarding { style: Forwarded::Rfc7239, client: "2001:db8::1", ..PLAIN };
        assert!(
            rewritten("GET / HTTP/1.1\r\nHost: x\r\n\r\n", &standard)
                .contains("\r\nForwarded: for=\"[2001:db8::1]\";host=\"x\";proto=http\r\n")
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for bad in [
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n",
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
            "GET / HTTP/1.1\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\n",
            "GET / HTTP/1.1\r\nHost: x\n\n",
            "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x, y\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /\r\nHost: x\r\n\r\n",
            "GET nonsense HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\n: x\r\nHost: x\r\n\r\n",
        ] {
            assert_eq!(refused(bad.as_bytes()).status(), 400, "{bad:?}");
        }
        assert_eq!(refused(b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"), Refusal::Version);
        assert_eq!(refused(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n").status(), 501);
        let gzip = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
        assert_eq!(refused(gzip).status(), 501);
    }

    #[test]
    fn an_oversized_head_is_refused_without_waiting_for_its_end() {
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}", "b".repeat(9000));
        assert_eq!(refused(long.as_bytes()), Refusal::HeadTooLarge);
        let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(200));
        assert_eq!(refused(many.as_bytes()), Refusal::HeadTooLarge);
    }

    #[test]
    fn every_prefix_is_incomplete() {
        let whole = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n";
        for end in 0..whole.len() {
            assert!(
                request(&whole[..end], 8192, &mut Marks::new()).expect("no refusal").is_none(),
                "at {end}"
            );
        }
        assert!(request(whole, 8192, &mut Marks::new()).expect("accepted").is_some());
    }

    #[test]
    fn who_keeps_the_connection() {
        let keeps = |head: &str| {
            request(head.as_bytes(), 8192, &mut Marks::new()).expect("accepted").expect("complete").keep_alive
        };
        assert!(keeps("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(!keeps("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert!(!keeps("GET / HTTP/1.0\r\n\r\n"));
        assert!(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    }
}
