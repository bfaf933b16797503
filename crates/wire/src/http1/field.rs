//! Header fields: which concern only one hop, and copying the others.

use super::scan::{Line, is, lines};

/// Most fields in one head; one bit each in [`Marks`].
pub const MAX_FIELDS: usize = 128;

/// A set of fields of one head, by their index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u128);

impl Marks {
    pub(super) fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(super) fn add_all(&mut self, others: Self) {
        self.0 |= others.0;
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
        // What nearly every peer says, if it says anything.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
            return;
        }
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
/// something else at the next hop. `at` is where the fields begin.
pub(super) fn mark_named(head: &[u8], at: usize, marks: &mut Marks) {
    let connection = |line: &Line<'_>| is(line.name, b"connection");
    for token in lines(head, at).filter(connection).flat_map(|line| tokens(line.value)) {
        let vital = [&b"host"[..], b"content-length", b"transfer-encoding", b"trailer", b"upgrade"];
        if vital.iter().any(|name| token.eq_ignore_ascii_case(name)) {
            continue;
        }
        for (index, line) in lines(head, at).enumerate() {
            if line.name.eq_ignore_ascii_case(token) {
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

/// Appends the fields of `head`, which begin at `at`, without those marked and without the empty line.
pub(super) fn copy_fields(head: &[u8], at: usize, drop: Marks, out: &mut Vec<u8>) {
    let end = head.len() - 2;
    let mut keep_from = at;
    if !drop.is_empty() {
        // Runs of lines to keep are copied whole.
        for (_, line) in lines(head, at).enumerate().filter(|(index, _)| drop.has(*index)) {
            out.extend_from_slice(&head[keep_from..line.start]);
            keep_from = line.end;
        }
    }
    out.extend_from_slice(&head[keep_from..end]);
}
