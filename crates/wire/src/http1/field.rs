//! Header fields: which concern only one hop, and copying the others.

use super::scan::{Line, is, lines};

/// Most fields in one head.
pub const MAX_FIELDS: usize = 128;
/// Most fields in one head that may have to stay behind.
const MAX_MARKS: usize = 24;
/// Most names in the `Connection` fields of one head. Each is looked for among all fields: without a bound one
/// head of tens of kilobytes costs as much as ten thousand ordinary ones.
const MAX_NAMED: usize = 32;

/// Why a line may have to stay behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It concerns only this hop.
    Hop,
    /// It says who the client is, or claims to.
    Forwarding,
    /// It says how the body is coded.
    Coding,
    /// It is replaced by the authority of the target.
    Host,
    /// It says how loaded the member is.
    Report,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    start: usize,
    end: usize,
    why: Why,
}

/// Lines of one head that may have to stay behind, in their order. Kept by the caller, because heads are
/// passed around and this is larger than all the rest of them.
#[derive(Clone, Debug)]
pub struct Marks {
    lines: [Mark; MAX_MARKS],
    len: usize,
}

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Marks {
    /// None yet.
    pub fn new() -> Self {
        Self { lines: [Mark { start: 0, end: 0, why: Why::Hop }; MAX_MARKS], len: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Marks a line; false if there are too many.
    #[inline(always)]
    #[must_use]
    pub(super) fn add(&mut self, line: &Line<'_>, why: Why) -> bool {
        self.mark(Mark { start: line.start, end: line.end, why })
    }

    #[inline]
    fn mark(&mut self, mark: Mark) -> bool {
        let Some(place) = self.lines.get_mut(self.len) else { return false };
        *place = mark;
        self.len += 1;
        true
    }

    /// The mark of a line, if it has one.
    fn of(&mut self, line: &Line<'_>) -> Option<&mut Mark> {
        let len = self.len;
        self.lines[..len].iter_mut().find(|mark| mark.start == line.start)
    }

    fn sort(&mut self) {
        let len = self.len;
        self.lines[..len].sort_unstable_by_key(|mark| mark.start);
    }

    fn get(&self) -> &[Mark] {
        &self.lines[..self.len]
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
        if is(value, b"keep-alive") {
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
                // Elements that are empty count for nothing (RFC 9110, 5.6.1).
                self.names_others = true;
            }
        }
    }
}

/// Marks the fields that a `Connection` field names, except those without which the message would mean
/// something else at the next hop; false if there are too many of them, or of their names. `at` is where the
/// fields begin.
#[must_use]
pub(super) fn mark_named(head: &[u8], at: usize, marks: &mut Marks) -> bool {
    let vital = [&b"host"[..], b"content-length", b"transfer-encoding", b"trailer", b"connection"];
    for (nth, token) in named_by_connection(head, at).enumerate() {
        if nth == MAX_NAMED {
            return false;
        }
        if vital.iter().any(|name| token.eq_ignore_ascii_case(name)) {
            continue;
        }
        for line in lines(head, at).filter(|line| line.name().eq_ignore_ascii_case(token)) {
            // Who the client is stays to be judged by that, whoever names it here.
            if marks.of(&line).is_none() && !marks.add(&line, Why::Hop) {
                return false;
            }
        }
    }
    marks.sort();
    true
}

/// Marks what says how long the body is, of an answer that cannot have one (RFC 9110 section 8.6, RFC 9112
/// section 6.1); false if there are too many marks. `at` is where the fields begin.
#[cold]
#[must_use]
pub(super) fn mark_length(head: &[u8], at: usize, marks: &mut Marks) -> bool {
    let length = |line: &Line<'_>| line.named(b"content-length") || line.named(b"transfer-encoding");
    for line in lines(head, at).filter(length) {
        if let Some(mark) = marks.of(&line) {
            mark.why = Why::Hop;
        } else if !marks.add(&line, Why::Hop) {
            return false;
        }
    }
    marks.sort();
    true
}

/// The names that the `Connection` fields of a head list. `at` is where its fields begin.
pub(super) fn named_by_connection(head: &[u8], at: usize) -> impl Iterator<Item = &[u8]> {
    let lists = lines(head, at).filter(|line| line.named(b"connection"));
    lists.flat_map(|line| tokens(line.value())).filter(|token| !token.is_empty())
}

/// The elements of a comma-separated list, trimmed.
pub(super) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// A Content-Length: digits only, within 63 bits.
pub(super) fn length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| sum * 10 + u64::from(digit))
    })
}

/// Appends `head` from `from` on, which is where a line begins, without the marked lines that `drop` wants to
/// stay behind and without the empty line.
#[inline]
pub(super) fn copy_lines(
    head: &[u8],
    from: usize,
    marks: &Marks,
    drop: impl Fn(Why) -> bool,
    out: &mut Vec<u8>,
) {
    let mut keep_from = from;
    for mark in marks.get().iter().filter(|mark| drop(mark.why)) {
        // Runs of lines to keep are copied whole.
        if mark.start > keep_from {
            out.extend_from_slice(&head[keep_from..mark.start]);
        }
        keep_from = mark.end;
    }
    if keep_from < head.len() - 2 {
        out.extend_from_slice(&head[keep_from..head.len() - 2]);
    }
}
