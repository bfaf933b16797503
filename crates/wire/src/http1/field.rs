//! Header fields: where they stand in the head, which concern only one hop.

use std::mem::MaybeUninit;

use httparse::Header;

/// Most fields in one head; one bit each in [`Marks`].
pub const MAX_FIELDS: usize = 100;

/// Room for the fields of one head, on the stack and not initialised.
pub type Space<'b> = [MaybeUninit<Header<'b>>; MAX_FIELDS];

/// Makes a [`Space`].
pub fn space<'b>() -> Space<'b> {
    [const { MaybeUninit::uninit() }; MAX_FIELDS]
}

/// A set of fields of one head, by their index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u128);

impl Marks {
    pub(super) fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(super) fn has(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What the `Connection` fields of a head say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// It names other fields that concern only this hop.
    pub(super) names_others: bool,
}

impl Connection {
    pub(super) fn read(&mut self, value: &[u8]) {
        for token in tokens(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if !token.is_empty() {
                self.names_others = true;
            }
        }
    }
}

/// Marks the fields that a `Connection` field names, except those without which the message would mean
/// something else at the next hop.
pub(super) fn mark_named(headers: &[Header<'_>], marks: &mut Marks) {
    let connection = |header: &&Header<'_>| header.name.eq_ignore_ascii_case("connection");
    for token in headers.iter().filter(connection).flat_map(|header| tokens(header.value)) {
        let vital = [&b"host"[..], b"content-length", b"transfer-encoding", b"trailer", b"upgrade"];
        if vital.iter().any(|name| token.eq_ignore_ascii_case(name)) {
            continue;
        }
        for (index, header) in headers.iter().enumerate() {
            if header.name.as_bytes().eq_ignore_ascii_case(token) {
                marks.add(index);
            }
        }
    }
}

/// The elements of a comma-separated list, trimmed.
pub(super) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// A Content-Length: digits only, within 63 bits.
pub(super) fn length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Where `part`, a slice of `whole`, begins in it.
pub(super) fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// Do all lines of `head` end in CRLF, none in a bare LF? `headers` are its parsed fields in order.
pub(super) fn lines_end_in_crlf(head: &[u8], headers: &[Header<'_>]) -> bool {
    headers.iter().all(|header| {
        let start = offset(head, header.name.as_bytes());
        start >= 2 && head[start - 2] == b'\r'
    }) && head.ends_with(b"\r\n\r\n")
}

/// Appends the lines of `head` from its first field on, without those marked and without the empty line.
pub(super) fn copy_fields(head: &[u8], headers: &[Header<'_>], drop: Marks, out: &mut Vec<u8>) {
    let end = head.len() - 2;
    if drop.is_empty() {
        if let Some(first) = headers.first() {
            out.extend_from_slice(&head[offset(head, first.name.as_bytes())..end]);
        }
        return;
    }
    // Runs of lines to keep are copied whole.
    let mut run: Option<usize> = None;
    for (index, header) in headers.iter().enumerate() {
        let start = offset(head, header.name.as_bytes());
        match (drop.has(index), run) {
            (true, Some(from)) => {
                out.extend_from_slice(&head[from..start]);
                run = None;
            }
            (false, None) => run = Some(start),
            (true, None) | (false, Some(_)) => {}
        }
    }
    if let Some(from) = run {
        out.extend_from_slice(&head[from..end]);
    }
}
