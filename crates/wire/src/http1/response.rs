//! Answer heads: read, judged, rewritten for the client.

use super::field::{
    ConnectionOptions, DropReason, MAX_FIELDS, MarkedFields, content_length, copy_lines, list_elements,
    mark_length, mark_named, named_by_connection,
};
use super::scan::{self, FieldLine, ScanError, lines, matches_name};
use super::{BodyFraming, ChunkedParser, HeadError, TrailerFilter};
use crate::load_report::{self, LoadReport};
use crate::orca;

/// An answer that cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad answer: {0}")]
pub struct ResponseError(pub &'static str);

/// An answer head that may be passed on.
#[derive(Debug)]
pub struct ResponseHead<'m, 'b> {
    /// The status code, 100 to 999.
    pub status: u16,
    /// Whether the connection to the member can be reused after this answer.
    pub keep_alive: bool,
    /// The framing of the body that follows the head.
    pub body: BodyFraming,
    /// Bytes of the head, the empty line included.
    pub len: usize,
    head: &'b [u8],
    /// Where the fields begin in `head`.
    fields: usize,
    /// Whether the version is another one than HTTP/1.1, which goes on in its place.
    other_version: bool,
    /// Whether `Connection` names other fields.
    names_others: bool,
    marks: &'m MarkedFields,
    /// The value of the first ORCA report ([`crate::orca::HEADER`]), if there is one.
    pub report: Option<&'b [u8]>,
    /// The load report that [`parse_fast`](crate::load_report::parse_fast) finds in it, if any.
    pub load_report: Option<LoadReport>,
    /// Whether the field `Trailer` announces another ORCA report in the trailers.
    pub report_in_trailers: bool,
    /// Whether any field is not forwarded.
    drops_fields: bool,
    upgrade: bool,
}

/// The changes to make to an answer head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseRewrite {
    /// The client's connection ends after this answer.
    pub close: bool,
    /// ORCA reports stay behind: they are for balancers.
    pub strip_report: bool,
    /// The client speaks HTTP/1.0: keeping the connection must be said, chunks are taken apart.
    pub http10: bool,
}

/// Reads an answer head from the beginning of `input`. `to_head` says that the request was HEAD.
///
/// # Errors
/// It is not all there yet, or the answer is malformed or could be read in two ways.
#[inline(always)]
pub fn parse_response<'m, 'b>(
    input: &'b [u8],
    max_head: usize,
    to_head: bool,
    marks: &'m mut MarkedFields,
) -> Result<ResponseHead<'m, 'b>, HeadError<ResponseError>> {
    let mut result = read(&input[..input.len().min(max_head)], to_head, marks);
    // Changed where it is: an answer is large.
    if let Err(incomplete @ HeadError::Partial) = &mut result
        && input.len() >= max_head
    {
        *incomplete = invalid(TOO_LARGE);
    }
    result
}

const TOO_LARGE: &str = "the head is too large";

impl From<ScanError> for HeadError<ResponseError> {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Partial => Self::Partial,
            ScanError::Invalid(message) => invalid(message),
        }
    }
}

const fn invalid(message: &'static str) -> HeadError<ResponseError> {
    HeadError::Invalid(ResponseError(message))
}

#[inline(always)]
fn read<'m, 'b>(
    input: &'b [u8],
    to_head: bool,
    marks: &'m mut MarkedFields,
) -> Result<ResponseHead<'m, 'b>, HeadError<ResponseError>> {
    const COMMON_STATUS_LINE: &[u8; 17] = b"HTTP/1.1 200 OK\r\n";
    let (line, fields) = match input.first_chunk() {
        // Nearly all are that: compared at once.
        Some(line) if line == COMMON_STATUS_LINE => {
            ((200, ResponseVersion::Http11), COMMON_STATUS_LINE.len())
        }
        _ => status_line(input)?,
    };
    validate(input, fields, line, to_head, marks)
}

/// Reads status and version, and returns where the fields begin.
#[inline(never)]
fn status_line(input: &[u8]) -> Result<((u16, ResponseVersion), usize), HeadError<ResponseError>> {
    const LINE: HeadError<ResponseError> = invalid("the status line is malformed");
    let Some(prefix) = input.first_chunk::<12>() else {
        let equivalent = |(one, other): (&u8, &u8)| one == other || (*one, *other) == (b'2', b'1');
        let plausible = input.iter().zip(b"HTTP/1.").all(equivalent);
        return Err(if plausible { HeadError::Partial } else { LINE });
    };
    let (version, code) = prefix.split_at(8);
    let status = match code {
        [b' ', a @ b'1'..=b'9', b, c] if b.is_ascii_digit() && c.is_ascii_digit() => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            digit(a) * 100 + digit(b) * 10 + digit(c)
        }
        _ => return Err(LINE),
    };
    let version = match version {
        b"HTTP/1.1" => ResponseVersion::Http11,
        b"HTTP/1.0" => ResponseVersion::Http10,
        // Servers that say so speak HTTP/1.1 all the same: they were asked in it.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] | b"HTTP/2.0" => ResponseVersion::Later,
        _ => return Err(LINE),
    };
    let end = scan::text_end(input, 12)?;
    if end > 12 && input[12] != b' ' {
        return Err(LINE);
    }
    Ok(((status, version), scan::crlf(input, end)?))
}

/// The version that an answer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseVersion {
    /// HTTP/1.1.
    Http11,
    /// HTTP/1.0.
    Http10,
    /// A later one.
    Later,
}

/// Reads the fields, which begin at `fields`, and decides what the answer is.
fn validate<'m, 'b>(
    input: &'b [u8],
    fields: usize,
    (status, version): (u16, ResponseVersion),
    to_head: bool,
    marks: &'m mut MarkedFields,
) -> Result<ResponseHead<'m, 'b>, HeadError<ResponseError>> {
    let mut connection = ConnectionOptions::default();
    marks.clear();
    let mut has_hop_by_hop = false;
    let mut marks_fit = true;
    let mut content_length = None;
    let mut chunked = false;
    let mut upgrade = false;
    let (mut report, mut parsed_report) = (None, None);
    let mut report_in_trailers = false;
    let (mut index, mut position) = (0, fields);
    let len = loop {
        let Some(colon) = scan::scan_name(input, position)? else { break position + 2 };
        if index == MAX_FIELDS {
            return Err(invalid("too many fields"));
        }
        if colon - position == orca::HEADER.len()
            && matches_name(&input[position..colon], b"endpoint-load-metrics")
        {
            let (line, parsed) = report_line(input, position, colon)?;
            marks_fit &= marks.add(&line, DropReason::Report);
            if report.is_none() {
                (report, parsed_report) = (Some(line.value()), parsed);
            }
            position = line.end;
            index += 1;
            continue;
        }
        let line = scan::scan_value(input, position, colon)?;
        position = line.end;
        match line.name_len() {
            7 if line.has_name(b"upgrade") => {
                (has_hop_by_hop, upgrade) = (true, true);
                marks_fit &= marks.add(&line, DropReason::Hop);
            }
            7 if line.has_name(b"trailer") => {
                report_in_trailers |= list_elements(line.value())
                    .any(|name| name.eq_ignore_ascii_case(orca::HEADER.as_bytes()));
            }
            10 if line.has_name(b"connection") => {
                has_hop_by_hop = true;
                marks_fit &= marks.add(&line, DropReason::Hop);
                connection.read(line.value());
            }
            10 if line.has_name(b"keep-alive") => {
                has_hop_by_hop = true;
                marks_fit &= marks.add(&line, DropReason::Hop);
            }
            14 if line.has_name(b"content-length") => {
                let value = line.value();
                let length = self::content_length(value).ok_or(invalid("Content-Length is malformed"))?;
                match content_length.replace((length, value)) {
                    None => {}
                    // One is enough (RFC 9110 section 8.6). To the letter: a client may not read 03 as 3.
                    Some((_, other)) if other == value => {
                        has_hop_by_hop = true;
                        marks_fit &= marks.add(&line, DropReason::Hop);
                    }
                    Some(_) => return Err(invalid("two different Content-Lengths")),
                }
            }
            16 if line.has_name(b"proxy-connection") => {
                has_hop_by_hop = true;
                marks_fit &= marks.add(&line, DropReason::Hop);
            }
            17 if line.has_name(b"transfer-encoding") => {
                if chunked || !line.value().eq_ignore_ascii_case(b"chunked") {
                    return Err(invalid("the transfer coding is not chunked"));
                }
                marks_fit &= marks.add(&line, DropReason::Coding);
                chunked = true;
            }
            _ => {}
        }
        index += 1;
    };
    let head = &input[..len];
    if chunked && content_length.is_some() {
        return Err(invalid("both Content-Length and Transfer-Encoding"));
    }
    if connection.names_others {
        marks_fit &= mark_named(head, fields, marks);
    }
    if matches!(status, 100..=199 | 204) && (chunked || content_length.is_some()) {
        has_hop_by_hop = true;
        marks_fit &= mark_length(head, fields, marks);
    }
    if !marks_fit {
        return Err(invalid("too many fields for one hop"));
    }
    let body = match status {
        100..=199 | 204 | 304 => BodyFraming::Done,
        _ if to_head => BodyFraming::Done,
        _ if chunked => BodyFraming::Chunked(ChunkedParser::for_response()),
        _ => match content_length {
            Some((0, _)) => BodyFraming::Done,
            Some((length, _)) => BodyFraming::Length(length),
            None => BodyFraming::UntilClose,
        },
    };
    // Chunks in HTTP/1.0 are somebody's mistake: nothing after them is to be trusted (RFC 9112 section 6.1).
    let is_persistent = version != ResponseVersion::Http10 || (connection.keep_alive && !chunked);
    let keep_alive = !matches!(body, BodyFraming::UntilClose) && !connection.close && is_persistent;
    Ok(ResponseHead {
        status,
        keep_alive,
        body,
        len,
        head,
        fields,
        other_version: version != ResponseVersion::Http11,
        names_others: connection.names_others,
        marks,
        report,
        load_report: parsed_report,
        report_in_trailers,
        drops_fields: has_hop_by_hop,
        upgrade,
    })
}

/// Returns the bytes of an answer without the white space before the colons of its head, which
/// [`parse_response`] refuses and a relay has to take out (RFC 9112 section 5.1); `None` if they end in such
/// white space. At most `max_head` bytes are a head.
///
/// # Errors
/// There is none: the answer is `bad` for another reason.
#[cold]
pub fn strip_colon_space(
    input: &[u8],
    max_head: usize,
    error: ResponseError,
) -> Result<Option<Vec<u8>>, ResponseError> {
    let mut lines = input.split_inclusive(|byte| *byte == b'\n');
    let mut rewritten = lines.next().unwrap_or_default().to_vec();
    let mut consumed = rewritten.len();
    let mut changed = false;
    for line in lines {
        let name_len = scan::name_end(line, 0);
        let blank_len = line[name_len..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let has_blank = name_len > 0 && blank_len > 0;
        match line.get(name_len + blank_len) {
            Some(b':') if has_blank => {
                rewritten.extend_from_slice(&line[..name_len]);
                rewritten.extend_from_slice(&line[name_len + blank_len..]);
                changed = true;
            }
            None if has_blank && !changed && input.len() < max_head => {
                let mut marks = MarkedFields::new();
                let prefix_result = parse_response(&input[..consumed], max_head, false, &mut marks);
                return if matches!(prefix_result, Err(HeadError::Partial)) { Ok(None) } else { Err(error) };
            }
            // Once others are closed up, such a line is judged when the head is read again.
            _ if has_blank && !changed => return Err(error),
            // The empty line, or what is judged as it stands.
            _ if name_len == 0 => break,
            _ => rewritten.extend_from_slice(line),
        }
        consumed += line.len();
    }
    rewritten.extend_from_slice(&input[consumed..]);
    if changed { Ok(Some(rewritten)) } else { Err(error) }
}

/// Returns the status of the last of the answers at the beginning of `input`, before which there may be
/// interim ones; `None` if not all of its head is there.
///
/// # Errors
/// One of the answers is bad, or more than `max_head` bytes are of interim ones.
pub fn final_status(input: &[u8], max_head: usize) -> Result<Option<u16>, ResponseError> {
    let (mut marks, mut offset) = (MarkedFields::new(), 0);
    while offset <= max_head {
        let remaining = &input[offset..];
        match parse_response(remaining, max_head, false, &mut marks) {
            Ok(head) if head.is_interim() => offset += head.len,
            Ok(head) => return Ok(Some(head.status)),
            Err(HeadError::Partial) => return Ok(None),
            Err(HeadError::Invalid(error)) => {
                return match strip_colon_space(remaining, max_head, error)? {
                    Some(rewritten) => final_status(&rewritten, max_head),
                    None => Ok(None),
                };
            }
        }
    }
    Err(ResponseError("there are nothing but interim answers"))
}

/// The line of a report, and what it says if it has the form that nearly all have: then it is read while it
/// is looked through.
#[inline(always)]
fn report_line(
    input: &[u8],
    start: usize,
    colon: usize,
) -> Result<(FieldLine<'_>, Option<LoadReport>), ScanError> {
    let text = input[colon + 1..].strip_prefix(b" ");
    match text.and_then(|text| Some((input.len() - text.len(), load_report::parse_fast_line(text)?))) {
        Some((value_start, (report, len))) => {
            Ok((scan::line_with_value(input, start, colon, value_start + len), Some(report)))
        }
        None => Ok((scan::scan_value(input, start, colon)?, None)),
    }
}

impl ResponseHead<'_, '_> {
    /// Returns `true` if another answer to the same request is still to come.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// The trailers of its body, of which none has come yet.
    #[inline]
    pub fn trailers(&self) -> TrailerFilter {
        if self.names_others && matches!(self.body, BodyFraming::Chunked(_)) {
            TrailerFilter::excluding(named_by_connection(self.head, self.fields))
        } else {
            TrailerFilter::default()
        }
    }

    /// All fields as they came, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        lines(self.head, self.fields).map(|line| (line.name(), line.value()))
    }

    /// Appends the head for the client, with whole header lines in `more`.
    #[inline(always)]
    pub fn write(&self, rewrite: ResponseRewrite, extra_fields: &[u8], out: &mut Vec<u8>) {
        let strip = rewrite.strip_report && self.report.is_some();
        if !self.drops_fields
            && !self.other_version
            && !rewrite.close
            && !rewrite.http10
            && !strip
            && extra_fields.is_empty()
        {
            out.extend_from_slice(self.head);
        } else {
            self.rewrite(rewrite, extra_fields, out);
        }
    }

    fn rewrite(&self, rewrite: ResponseRewrite, extra_fields: &[u8], out: &mut Vec<u8>) {
        let mut copy_start = 0;
        if self.other_version {
            copy_start = b"HTTP/1.0".len();
            out.extend_from_slice(b"HTTP/1.1");
        }
        let should_drop = |reason| match reason {
            DropReason::Coding => rewrite.http10,
            DropReason::Report => rewrite.strip_report,
            _ => reason == DropReason::Hop,
        };
        copy_lines(self.head, copy_start, self.marks, should_drop, out);
        if self.status == 101 && self.upgrade {
            let protocol = lines(self.head, self.fields).find(|line| line.has_name(b"upgrade"));
            out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
            out.extend_from_slice(protocol.map_or(b"", |line| line.value()));
            out.extend_from_slice(b"\r\n");
        } else if self.is_interim() {
        } else if rewrite.close {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if rewrite.http10 {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        out.extend_from_slice(extra_fields);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_report_that_is_read_on_the_way_is_what_it_is_by_itself(
            numbers in [
                "[0-9]{1,10}",
                "[0-9]{1,9}\\.[0-9]{2}",
                "[0-9]{1,9}\\.[0-9]{6}",
                "[0-9]{1,9}\\.[0-9]{2}",
                "[0-9]{1,9}\\.[0-9]{6}",
            ],
            more in prop_oneof![
                Just(""),
                Just(", named_metrics.slot=1"),
                Just(", named_metrics.open=1"),
                Just(", named_metrics.full=1"),
                Just(", cpu_utilization=1"),
            ],
            stray in proptest::option::weighted(0.3, (0usize..250, any::<u8>())),
            (space, end) in (
                prop_oneof![4 => Just(" "), 1 => Just(""), 1 => Just("  ")],
                prop_oneof![4 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r")],
            ),
        ) {
            let [rif, knee, work, mean, sojourn] = numbers;
            let mut value = format!(
                "TEXT named_metrics.rif={rif}, named_metrics.knee={knee}, named_metrics.work={work}, \
                 named_metrics.mean={mean}, \
                 named_metrics.sojourn={sojourn}{more}"
            )
            .into_bytes();
            if let Some((place, byte)) = stray
                && let Some(place) = value.get_mut(place)
            {
                *place = byte;
            }
            let head = |name: &str| {
                [
                    b"HTTP/1.1 200 OK\r\n", name.as_bytes(), b":", space.as_bytes(), &value, end.as_bytes(),
                    b"A: b\r\n\r\nbody",
                ]
                .concat()
            };
            let (head, other) = (head("Endpoint-Load-Metrics"), head("Endpoint-Load-Metricz"));
            let mut marks = (MarkedFields::new(), MarkedFields::new());
            let found = parse_response(&head, 8192, false, &mut marks.0);
            let plain = parse_response(&other, 8192, false, &mut marks.1);
            match (&found, &plain) {
                (Ok(found), Ok(plain)) => {
                    let (_, alone) = plain.fields().next().expect("there is a field");
                    prop_assert_eq!((found.len, found.report), (plain.len, Some(alone)));
                    let by_itself = load_report::parse_fast(alone);
                    prop_assert!(found.load_report.is_none() || found.load_report == by_itself);
                    prop_assert!(found.load_report.is_some() || space != " " || by_itself.is_none());
                }
                _ => prop_assert_eq!(format!("{found:?}"), format!("{plain:?}")),
            }
        }
    }

    fn read(
        input: &str,
        to_head: bool,
        rewrite: ResponseRewrite,
    ) -> Result<(u16, bool, BodyFraming, String), ResponseError> {
        let mut marks = MarkedFields::new();
        let response = match parse_response(input.as_bytes(), 8192, to_head, &mut marks) {
            Ok(response) => response,
            Err(HeadError::Invalid(error)) => return Err(error),
            Err(HeadError::Partial) => panic!("{input:?} is incomplete"),
        };
        let mut out = Vec::new();
        response.write(rewrite, b"", &mut out);
        Ok((response.status, response.keep_alive, response.body, String::from_utf8(out).expect("text")))
    }

    #[test]
    fn a_plain_answer_is_passed_on_as_it_is() {
        let input = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\n";
        let (status, keep_alive, body, out) =
            read(input, false, ResponseRewrite::default()).expect("accepted");
        assert_eq!((status, keep_alive, body, out.as_str()), (200, true, BodyFraming::Length(3), input));
    }

    #[test]
    fn hop_by_hop_fields_stay_behind_and_close_is_said() {
        let input = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\nContent-Length: 3\r\n\r\n";
        let close = ResponseRewrite { close: true, http10: false, ..ResponseRewrite::default() };
        let (.., out) = read(input, false, close).expect("accepted");
        assert_eq!(out, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn a_client_of_http_1_0_gets_neither_chunks_nor_silence_about_the_connection() {
        let input = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (.., body, out) =
            read(input, false, ResponseRewrite { close: true, http10: true, ..ResponseRewrite::default() })
                .expect("accepted");
        assert_eq!(body, BodyFraming::Chunked(ChunkedParser::for_response()));
        assert_eq!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let input = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        let (.., out) =
            read(input, false, ResponseRewrite { close: false, http10: true, ..ResponseRewrite::default() })
                .expect("accepted");
        assert_eq!(out, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n");
    }

    #[test]
    fn a_server_of_http_1_0_ends_its_body_by_closing() {
        let (_, keep_alive, body, out) = read(
            "HTTP/1.0 200 OK\r\nX: y\r\n\r\n",
            false,
            ResponseRewrite { close: true, http10: false, ..ResponseRewrite::default() },
        )
        .expect("accepted");
        assert_eq!((keep_alive, body), (false, BodyFraming::UntilClose));
        assert_eq!(out, "HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n");
    }

    /// Returns the forwarded form of an answer with white space before its colons.
    fn read_stripped(
        input: &str,
        rewrite: ResponseRewrite,
    ) -> Result<(u16, bool, BodyFraming, String), ResponseError> {
        let error = read(input, false, rewrite).expect_err("it has white space");
        let rewritten = strip_colon_space(input.as_bytes(), 8192, error)?.expect("complete");
        read(str::from_utf8(&rewritten).expect("text"), false, rewrite)
    }

    #[test]
    fn white_space_before_a_colon_is_taken_and_stays_behind() {
        let input = "HTTP/1.1 200 O : K\r\nServer \t: old\r\nTransfer-Encoding : chunked\r\nConnection : \
                     x-hop\r\nX-Hop : 1\r\n\
                     X: y : z\r\nEndpoint-Load-Metrics : TEXT eps=1\r\nLast : z\r\n\r\n";
        let (_, keep_alive, body, out) = read_stripped(input, ResponseRewrite::default()).expect("accepted");
        assert_eq!((keep_alive, body), (true, BodyFraming::Chunked(ChunkedParser::for_response())));
        let expected = "HTTP/1.1 200 O : K\r\nServer: old\r\nTransfer-Encoding: chunked\r\nX: y : z\r\n\
                    Endpoint-Load-Metrics: TEXT eps=1\r\nLast: z\r\n\r\n";
        assert_eq!(out, expected);
        let strip = ResponseRewrite { strip_report: true, http10: true, close: true };
        let (.., out) = read_stripped(input, strip).expect("accepted");
        let expected =
            "HTTP/1.1 200 O : K\r\nServer: old\r\nX: y : z\r\nLast: z\r\nConnection: close\r\n\r\n";
        assert_eq!(out, expected);
        let no_content =
            read_stripped("HTTP/1.1 204 No\r\nContent-Length : 3\r\n\r\n", ResponseRewrite::default());
        assert_eq!(no_content.expect("accepted").3, "HTTP/1.1 204 No\r\n\r\n");
        for bad in [
            "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
            "HTTP/1.1 200 OK\r\n : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\n A: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA \r\n\r\n",
            "HTTP/1.1 200 OK\r\nA : b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA : b\r\nC d\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA:\r\n\r\nB : c\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length : 3\r\nContent-Length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding : chunked\r\n\r\n",
            "220 smtp : x\r\n\r\n",
        ] {
            let bad = (bad, ResponseError("as told"));
            let result = strip_colon_space(bad.0.as_bytes(), 8192, bad.1);
            let read = |rewritten: Vec<u8>| {
                read(str::from_utf8(&rewritten).expect("text"), false, ResponseRewrite::default())
            };
            assert!(
                matches!(result.map(|rewritten| rewritten.map(read)), Err(_) | Ok(Some(Err(_)))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn white_space_that_may_have_a_colon_after_it_waits_and_bodies_move_with_their_heads() {
        let bad = ResponseError("as told");
        let head = "HTTP/1.1 200 OK\r\nA : b\r\nC \t: d\r\n";
        for (text, rewritten) in [
            ("HTTP/1.1 200 OK\r\nA ", Ok(None)),
            ("HTTP/1.1 200 OK\r\nA \t", Ok(None)),
            ("HTTP/1.1 200 OK\r\nA", Err(bad)),
            ("HTTP/1.1 200 OK ", Err(bad)),
            ("HTTP/1.1 20 OK\r\nA ", Err(bad)),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\nA ", Err(bad)),
            (&format!("{head}E "), Ok(Some("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\nE "))),
            (&format!("{head}\r\nF : g\r\nH"), Ok(Some("HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\nF : g\r\nH"))),
        ] {
            let rewritten =
                rewritten.map(|rewritten| rewritten.map(|rewritten: &str| rewritten.as_bytes().to_vec()));
            assert_eq!(strip_colon_space(text.as_bytes(), 8192, bad), rewritten, "{text:?}");
        }
    }

    #[test]
    fn white_space_does_not_wait_for_ever() {
        let (bad, text) = (ResponseError("as told"), b"HTTP/1.1 200 OK\r\nA  ");
        assert_eq!(strip_colon_space(text, text.len() + 1, bad), Ok(None));
        assert_eq!(strip_colon_space(text, text.len(), bad), Err(bad));
    }

    #[test]
    fn the_status_that_counts_is_the_last() {
        for (text, status) in [
            ("HTTP/1.1 204 No\r\n\r\n", Ok(Some(204))),
            ("HTTP/1.1 204 No\r\nA : b\r\n\r\n", Ok(Some(204))),
            (
                "HTTP/1.1 103 Early\r\nA : b\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nC : \
                 d\r\n\r\n",
                Ok(Some(200)),
            ),
            ("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nC ", Ok(None)),
            ("HTTP/1.1 103 Early\r\n\r\n", Ok(None)),
            ("HTTP/1.1 200 OK\r\nA b\r\n\r\n", Err(ResponseError("a field name is malformed"))),
        ] {
            assert_eq!(final_status(text.as_bytes(), 8192), status, "{text:?}");
        }
        let interim = "HTTP/1.1 103 Early\r\n\r\n".repeat(500);
        assert!(final_status(interim.as_bytes(), 8192).is_err());
    }

    #[test]
    fn other_versions_are_taken_for_http_1_1() {
        for version in ["HTTP/1.2", "HTTP/1.9", "HTTP/2.0"] {
            let input = format!("{version} 200 OK\r\nContent-Length: 3\r\n\r\n");
            let (_, keep_alive, body, out) =
                read(&input, false, ResponseRewrite::default()).expect("accepted");
            assert_eq!((keep_alive, body), (true, BodyFraming::Length(3)));
            assert_eq!(out, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "{version}");
        }
    }

    #[test]
    fn some_answers_have_no_body_whatever_they_say() {
        let chunked = "Transfer-Encoding: chunked\r\n\r\n";
        for status in ["204 No Content", "304 Not Modified", "100 Continue", "101 Switching Protocols"] {
            let (.., body, _) =
                read(&format!("HTTP/1.1 {status}\r\n{chunked}"), false, ResponseRewrite::default())
                    .expect("accepted");
            assert_eq!(body, BodyFraming::Done, "{status}");
        }
        let (.., body, _) =
            read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true, ResponseRewrite::default())
                .expect("accepted");
        assert_eq!(body, BodyFraming::Done);
    }

    #[test]
    fn who_has_no_body_says_no_length_of_one() {
        for status in ["204 No Content", "101 Switching Protocols", "103 Early Hints"] {
            for field in ["Content-Length: 3", "Transfer-Encoding: chunked"] {
                let input = format!("HTTP/1.1 {status}\r\nA: b\r\n{field}\r\nConnection: a\r\nX: y\r\n\r\n");
                let (.., out) = read(&input, false, ResponseRewrite::default()).expect("accepted");
                assert_eq!(out, format!("HTTP/1.1 {status}\r\nX: y\r\n\r\n"), "{field}");
            }
        }
        // That of the body that it would have had (RFC 9110 section 15.4.5).
        let input = "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(read(input, false, ResponseRewrite::default()).expect("accepted").3, input);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for bad in [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length:03\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 00\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\n\r\n",
            "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            "HTTP/2.1 200 OK\r\n\r\n",
            "HTTP/3.0 200 OK\r\n\r\n",
            "HTTP/0.9 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 200OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "HTTP/1.1 20\r\n\r\nxx",
            "220 smtp\r\n\r\n",
        ] {
            assert!(read(bad, false, ResponseRewrite::default()).is_err(), "{bad:?}");
        }
    }
}
