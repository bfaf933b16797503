//! The trace of a request: the header fields `traceparent` and `tracestate` (W3C Trace Context, level 1).
//!
//! The format is `00-TRACE-PARENT-FLAGS` with 32, 16 and 2 lower-case hexadecimal digits; IDs of zeros only
//! are invalid. A later version may be longer, and its first fields are read the same way; version `ff` is
//! invalid. A head with two `traceparent` fields, or with an invalid one, belongs to no trace. Then its
//! `tracestate` is ignored, too.

/// A trace and the parent span in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace's ID; not zeros only.
    pub trace: [u8; 16],
    /// The parent span's ID; not zeros only.
    pub span: [u8; 8],
    /// Whether the caller may have recorded the trace (the flag `sampled`).
    pub sampled: bool,
}

/// The length of the field's value in version 00, in bytes.
const PARENT_LEN: usize = 55;
/// The offset of the span's ID in the value.
const SPAN_OFFSET: usize = 36;
/// The maximum length of `tracestate` that is kept for a span, in bytes.
const MAX_STATE_LEN: usize = 512;

impl TraceParent {
    /// Parses the value of a field; `None` if it is invalid.
    pub fn read(value: &[u8]) -> Option<Self> {
        let (fixed, rest) = value.split_at_checked(PARENT_LEN)?;
        let [version] = digits::<1>(&fixed[..2])?;
        let is_complete =
            if version == 0 { rest.is_empty() } else { matches!(rest.first(), None | Some(b'-')) };
        if version == 0xff || !is_complete || ![2, 35, 52].iter().all(|index| fixed[*index] == b'-') {
            return None;
        }
        let (trace, span) = (digits::<16>(&fixed[3..35])?, digits::<8>(&fixed[SPAN_OFFSET..52])?);
        let [flags] = digits::<1>(&fixed[53..])?;
        let is_valid = trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// Returns the value of the field in version 00.
    pub fn text(&self) -> String {
        format!("00-{}-{}-0{}", hex(&self.trace), hex(&self.span), u8::from(self.sampled))
    }
}

/// Formats bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).map(char::from).collect()
}

/// Returns the trace of a head. `head` begins with a request line and has been validated; bytes after its
/// empty line are ignored.
pub fn parent_in_head(head: &[u8]) -> Option<TraceParent> {
    let mut parents = values(head, b"traceparent");
    let value = parents.next()?;
    if parents.next().is_some() { None } else { TraceParent::read(value) }
}

/// Returns the `tracestate` of a head with its fields joined. The result is empty if the value is missing,
/// too long or not ASCII.
pub fn state_in_head(head: &[u8]) -> String {
    let mut state = String::new();
    for value in values(head, b"tracestate").filter(|value| !value.is_empty()) {
        if !state.is_empty() {
            state.push(',');
        }
        match std::str::from_utf8(value) {
            Ok(text) if text.is_ascii() && state.len() + text.len() <= MAX_STATE_LEN => state.push_str(text),
            _ => return String::new(),
        }
    }
    state
}

/// Replaces the `traceparent` of a head with `parent`, and removes `tracestate` unless `keep_state` is set.
/// Bytes after the empty line stay. Returns the offset of the span's digits, which [`set_span`] can
/// overwrite.
pub fn replace_parent(head: &mut Vec<u8>, parent: &TraceParent, keep_state: bool) -> usize {
    let mut out = Vec::with_capacity(head.len() + 80);
    let mut span_offset = 0;
    let mut in_head = true;
    for (number, line) in head.split_inclusive(|byte| *byte == b'\n').enumerate() {
        in_head &= !matches!(line, b"\r\n" | b"\n");
        let is_dropped = number > 0
            && in_head
            && (has_name(line, b"traceparent") || !keep_state && has_name(line, b"tracestate"));
        if !is_dropped {
            out.extend_from_slice(line);
        }
        if number == 0 {
            out.extend_from_slice(b"traceparent: ");
            span_offset = out.len() + SPAN_OFFSET;
            out.extend_from_slice(parent.text().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    *head = out;
    span_offset
}

/// Overwrites the span that [`replace_parent`] wrote.
pub fn set_span(head: &mut [u8], span_offset: usize, span: &[u8; 8]) {
    let targets = head.iter_mut().skip(span_offset);
    for (target, digit) in targets.zip(hex(span).bytes()) {
        *target = digit;
    }
}

/// Returns `true` if the line belongs to the field `name`.
fn has_name(line: &[u8], name: &[u8]) -> bool {
    let colon = line.iter().position(|byte| *byte == b':');
    colon.is_some_and(|colon| line[..colon].eq_ignore_ascii_case(name))
}

fn values<'h>(head: &'h [u8], name: &'h [u8]) -> impl Iterator<Item = &'h [u8]> {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    let lines =
        lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).take_while(|line| !line.is_empty());
    lines.filter(move |line| has_name(line, name)).map(move |line| line[name.len() + 1..].trim_ascii())
}

fn digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}

/// Decodes N bytes from 2 N lower-case hexadecimal digits.
fn digits<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let nibble = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = nibble(*high)? << 4 | nibble(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn parent() -> TraceParent {
        TraceParent::read(format!("00-{TRACE}-{PARENT}-01").as_bytes()).expect("the specification's own")
    }

    #[test]
    fn a_parent_is_read_strictly() {
        let parsed = parent();
        assert!(parsed.sampled && hex(&parsed.trace) == TRACE && hex(&parsed.span) == PARENT);
        assert_eq!(parsed.text(), format!("00-{TRACE}-{PARENT}-01"));
        for (value, sampled) in [
            (format!("00-{TRACE}-{PARENT}-00"), false),
            // Unknown flags are ignored.
            (format!("00-{TRACE}-{PARENT}-ff"), true),
            (format!("00-{TRACE}-{PARENT}-02"), false),
            // Later versions may be longer.
            (format!("cc-{TRACE}-{PARENT}-01"), true),
            (format!("cc-{TRACE}-{PARENT}-01-what-the-future-brings"), true),
            (format!("cc-{TRACE}-{PARENT}-01-"), true),
        ] {
            assert_eq!(
                TraceParent::read(value.as_bytes()).map(|trace_parent| trace_parent.sampled),
                Some(sampled),
                "{value}"
            );
        }
        let (zeros, none) = ("0".repeat(32), "0".repeat(16));
        for bad in [
            String::new(),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}-{PARENT}-"),
            format!("00-{TRACE}-{PARENT}-0"),
            format!("00-{TRACE}-{PARENT}-01-"),
            format!("00-{TRACE}-{PARENT}-01.what"),
            format!("00-{TRACE}-{PARENT}-0A"),
            format!("00-{TRACE}-{PARENT}-.1"),
            format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", PARENT.to_uppercase()),
            format!("00-{zeros}-{PARENT}-01"),
            format!("00-{TRACE}-{none}-01"),
            format!("00-{}-{PARENT}-01", &TRACE[1..]),
            format!("00-{TRACE}-{}-01", &PARENT[1..]),
            format!("00-{TRACE}x-{}-01", &PARENT[1..]),
            format!("00_{TRACE}_{PARENT}_01"),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("0-{TRACE}-{PARENT}-01"),
            format!("000-{TRACE}-{PARENT}-01"),
            format!("cc-{TRACE}-{PARENT}-01what"),
            format!("cc-{TRACE}-{PARENT}-01.what"),
        ] {
            assert_eq!(TraceParent::read(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_head_belongs_to_one_trace_or_none() {
        let line = format!("TraceParent:  00-{TRACE}-{PARENT}-01 \r\n");
        let head = |fields: &str| format!("GET / HTTP/1.1\r\n{fields}\r\ntraceparent: x\r\n").into_bytes();
        assert_eq!(parent_in_head(&head(&line)), Some(parent()));
        assert_eq!(parent_in_head(&head(&line.repeat(2))), None, "two are none");
        assert_eq!(parent_in_head(&head("traceparent : 1\r\nhost: a\r\n")), None);
        assert_eq!(parent_in_head(b""), None);
        let state = "tracestate: a=1\r\nTRACESTATE: b=2,c=3\r\ntracestate:\r\n";
        assert_eq!(state_in_head(&head(state)), "a=1,b=2,c=3");
        assert_eq!(state_in_head(&head(&format!("tracestate: a={}\r\n", "x".repeat(600)))), "");
    }

    #[test]
    fn a_head_is_given_another_parent_and_its_body_stays() {
        let fields = "Host: a\r\ntraceparent: old\r\nTRACESTATE: a=1\r\nTraceparent: older\r\nX: y\r\n";
        let text = format!("POST /x HTTP/1.1\r\n{fields}\r\ntraceparent: body\r\n\r\ntracestate: body\r\n");
        let new_parent = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
        for (keep, state) in [(true, "TRACESTATE: a=1\r\n"), (false, "")] {
            let mut head = text.clone().into_bytes();
            let span_offset = replace_parent(&mut head, &parent(), keep);
            let expected = format!(
                "POST /x HTTP/1.1\r\n{new_parent}Host: a\r\n{state}X: y\r\n\r\ntraceparent: \
                 body\r\n\r\ntracestate: body\r\n"
            );
            assert_eq!(String::from_utf8(head.clone()).unwrap(), expected);
            set_span(&mut head, span_offset, &[1, 2, 3, 4, 5, 6, 7, 0xab]);
            let replaced = expected.replace(PARENT, "01020304050607ab");
            assert_eq!(String::from_utf8(head.clone()).unwrap(), replaced);
            assert_eq!(parent_in_head(&head).unwrap().span, [1, 2, 3, 4, 5, 6, 7, 0xab]);
        }
    }
}
