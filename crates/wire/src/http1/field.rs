//! Header fields: classifies those of a single hop and copies the others.

use super::scan::{FieldLine, lines, matches_name};

/// The maximum number of fields in one head.
pub const MAX_FIELDS: usize = 128;
/// The maximum number of fields in one head that may have to be dropped.
const MAX_MARKS: usize = 24;
/// The maximum number of names in the `Connection` fields of one head. Each is searched among all fields.
/// Without a limit one head of tens of kilobytes costs as much as ten thousand ordinary ones.
const MAX_NAMED: usize = 32;

/// The reason why a line may have to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    /// The field concerns only this hop.
    Hop,
    /// The field identifies the client, or claims to.
    Forwarding,
    /// The field describes the coding of the body.
    Coding,
    /// The authority of the target replaces the field.
    Host,
    /// The field holds the member's load report.
    Report,
}

#[derive(Clone, Copy, Debug)]
struct MarkedField {
    start: usize,
    end: usize,
    reason: DropReason,
}

/// The lines of one head that may have to be dropped, in their order. The caller keeps them: heads are passed
/// around, and the marks are larger than the rest of a head.
#[derive(Clone, Debug)]
pub struct MarkedFields {
    lines: [MarkedField; MAX_MARKS],
    len: usize,
}

impl Default for MarkedFields {
    fn default() -> Self {
        Self::new()
    }
}

impl MarkedFields {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self { lines: [MarkedField { start: 0, end: 0, reason: DropReason::Hop }; MAX_MARKS], len: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Marks a line. Returns `false` if there are too many marks.
    #[inline(always)]
    #[must_use]
    pub(super) fn add(&mut self, line: &FieldLine<'_>, reason: DropReason) -> bool {
        self.push(MarkedField { start: line.start, end: line.end, reason })
    }

    #[inline]
    fn push(&mut self, mark: MarkedField) -> bool {
        let Some(slot) = self.lines.get_mut(self.len) else { return false };
        *slot = mark;
        self.len += 1;
        true
    }

    /// Returns the mark of a line, if it has one.
    fn find(&mut self, line: &FieldLine<'_>) -> Option<&mut MarkedField> {
        let len = self.len;
        self.lines[..len].iter_mut().find(|mark| mark.start == line.start)
    }

    fn sort(&mut self) {
        let len = self.len;
        self.lines[..len].sort_unstable_by_key(|mark| mark.start);
    }

    fn as_slice(&self) -> &[MarkedField] {
        &self.lines[..self.len]
    }
}

/// The options of the `Connection` fields of a head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// Whether the options name other fields of this hop.
    pub(super) names_others: bool,
}

impl ConnectionOptions {
    pub(super) fn read(&mut self, value: &[u8]) {
        // The most common value.
        if matches_name(value, b"keep-alive") {
            self.keep_alive = true;
            return;
        }
        for token in list_elements(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if !token.is_empty() {
                // Empty elements are ignored (RFC 9110, 5.6.1).
                self.names_others = true;
            }
        }
    }
}

/// Marks the fields that a `Connection` field names, except those that the message needs for its meaning at
/// the next hop. Returns `false` if there are too many of them, or of their names. `at` is the offset of the
/// fields.
#[must_use]
pub(super) fn mark_named(head: &[u8], fields_start: usize, marks: &mut MarkedFields) -> bool {
    let protected = [&b"host"[..], b"content-length", b"transfer-encoding", b"trailer", b"connection"];
    for (index, token) in named_by_connection(head, fields_start).enumerate() {
        if index == MAX_NAMED {
            return false;
        }
        if protected.iter().any(|name| token.eq_ignore_ascii_case(name)) {
            continue;
        }
        for line in lines(head, fields_start).filter(|line| line.name().eq_ignore_ascii_case(token)) {
            // Fields that identify the client keep their own mark, even if `Connection` names them.
            if marks.find(&line).is_none() && !marks.add(&line, DropReason::Hop) {
                return false;
            }
        }
    }
    marks.sort();
    true
}

/// Marks the fields that describe the length of the body, in a response that cannot have one (RFC 9110
/// section 8.6, RFC 9112 section 6.1). Returns `false` if there are too many marks. `at` is the offset of the
/// fields.
#[cold]
#[must_use]
pub(super) fn mark_length(head: &[u8], fields_start: usize, marks: &mut MarkedFields) -> bool {
    let is_framing_field =
        |line: &FieldLine<'_>| line.has_name(b"content-length") || line.has_name(b"transfer-encoding");
    for line in lines(head, fields_start).filter(is_framing_field) {
        if let Some(mark) = marks.find(&line) {
            mark.reason = DropReason::Hop;
        } else if !marks.add(&line, DropReason::Hop) {
            return false;
        }
    }
    marks.sort();
    true
}

/// Returns the names in the `Connection` fields of a head. `at` is the offset of its fields.
pub(super) fn named_by_connection(head: &[u8], fields_start: usize) -> impl Iterator<Item = &[u8]> {
    let lists = lines(head, fields_start).filter(|line| line.has_name(b"connection"));
    lists.flat_map(|line| list_elements(line.value())).filter(|token| !token.is_empty())
}

/// Returns the elements of a comma-separated list, trimmed.
pub(super) fn list_elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Parses a Content-Length: digits only, at most 18.
pub(super) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| sum * 10 + u64::from(digit))
    })
}

/// Appends `head` from offset `from`, the beginning of a line, without the empty line and the marked lines
/// for which `drop` returns `true`.
#[inline]
pub(super) fn copy_lines(
    head: &[u8],
    from: usize,
    marks: &MarkedFields,
    should_drop: impl Fn(DropReason) -> bool,
    out: &mut Vec<u8>,
) {
    let mut keep_from = from;
    for mark in marks.as_slice().iter().filter(|mark| should_drop(mark.reason)) {
        // Runs of kept lines are copied at once.
        if mark.start > keep_from {
            out.extend_from_slice(&head[keep_from..mark.start]);
        }
        keep_from = mark.end;
    }
    if keep_from < head.len() - 2 {
        out.extend_from_slice(&head[keep_from..head.len() - 2]);
    }
}
