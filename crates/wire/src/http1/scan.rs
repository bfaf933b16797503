//! A strict scanner for the lines of a head, which visits each line once.
//!
//! The scanner is specific to the relay, which needs the offsets of lines and the few fields that concern it,
//! not a list of all fields. A line that does not end in CRLF, a fold, a space before the colon or a control
//! character ends the scan with an error. Names and values are scanned sixteen bytes at a time.
//!
//! The list of fields that a general parser builds costs about 1,000 more instructions per request. Such a
//! parser would also need a second pass to find bare line feeds. Tests compare the results with httparse.

use super::HeadError;

mod memchr16;

/// The reason why a scan stopped: incomplete input or an error.
pub(super) type ScanError = HeadError<&'static str>;

/// One field, whose line is `head[start..end]` with its CRLF. Only offsets are stored; most fields are never
/// read.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldLine<'b> {
    head: &'b [u8],
    pub(super) start: usize,
    pub(super) end: usize,
    colon: usize,
    /// The end of the value, with its trailing white space.
    value_end: usize,
}

impl<'b> FieldLine<'b> {
    #[inline(always)]
    pub(super) fn name_len(&self) -> usize {
        self.colon - self.start
    }

    #[inline(always)]
    pub(super) fn name(&self) -> &'b [u8] {
        &self.head[self.start..self.colon]
    }

    /// Returns the value without surrounding white space.
    #[inline(always)]
    pub(super) fn value(&self) -> &'b [u8] {
        trim(&self.head[self.colon + 1..self.value_end])
    }

    /// Returns `true` if the field has this name, in any case. `lower` is in lower case.
    #[inline(always)]
    pub(super) fn has_name<const N: usize>(&self, lower: &[u8; N]) -> bool {
        matches_name(self.name(), lower)
    }
}

/// Returns `true` for a letter, a digit, a dot or a hyphen.
#[inline(always)]
fn is_name_byte(byte: u8) -> bool {
    // Hyphen, dot, slash and the digits are consecutive.
    ((byte | 0x20).wrapping_sub(b'a') < 26 || byte.wrapping_sub(b'-') < 13) && byte != b'/'
}

const CRLF: &str = "a line does not end in CRLF";

/// Returns the line at `at` and its end; `None` and the end of the head for the empty line.
#[inline(always)]
pub(super) fn scan_line(input: &[u8], start: usize) -> Result<(Option<FieldLine<'_>>, usize), ScanError> {
    match scan_name(input, start)? {
        None => Ok((None, start + 2)),
        Some(colon) => {
            let line = scan_value(input, start, colon)?;
            Ok((Some(line), line.end))
        }
    }
}

/// Returns the offset of the colon after the name at `at`, or `None` for the empty line.
#[inline(always)]
pub(super) fn scan_name(input: &[u8], start: usize) -> Result<Option<usize>, ScanError> {
    let colon = name_end(input, start);
    if input.get(colon) == Some(&b':') && colon > start {
        return Ok(Some(colon));
    }
    match input[start..] {
        [b'\r', b'\n', ..] => Ok(None),
        _ => Err(bad_field(&input[start..], colon - start)),
    }
}

/// Returns the line at `at` whose name ends at `colon`.
#[inline(always)]
pub(super) fn scan_value(input: &[u8], start: usize, colon: usize) -> Result<FieldLine<'_>, ScanError> {
    let value_end = text_end(input, colon + 1)?;
    let end = crlf(input, value_end)?;
    Ok(FieldLine { head: input, start, end, colon, value_end })
}

/// Returns the line at `at` whose name ends at `colon`, and its value, if that follows one space and is a
/// name or an IPv4 address with an optional port. Nearly all hosts are. They are scanned once, sixteen bytes
/// at a time.
#[inline(always)]
pub(super) fn plain_host(input: &[u8], start: usize, colon: usize) -> Option<(FieldLine<'_>, &[u8])> {
    let host_start = colon + 2;
    if input.get(colon + 1) != Some(&b' ') {
        return None;
    }
    let host_name_end = memchr16::find_first(input, host_start, |byte| !is_name_byte(byte));
    let host_end = match input.get(host_name_end) {
        Some(b':') => memchr16::find_first(input, host_name_end + 1, |byte| !byte.is_ascii_digit()),
        _ => host_name_end,
    };
    let line = line_with_value(input, start, colon, host_end);
    (host_name_end > host_start && input.get(host_end..host_end + 2) == Some(b"\r\n"))
        .then(|| (line, &input[host_start..host_end]))
}

/// Returns a line whose value the caller has already scanned: it ends at `text`, before its CRLF.
#[inline(always)]
pub(super) fn line_with_value(input: &[u8], start: usize, colon: usize, value_end: usize) -> FieldLine<'_> {
    FieldLine { head: input, start, end: value_end + 2, colon, value_end }
}

/// Returns the reason why `input` begins with neither a field nor the empty line. Its first `name` bytes
/// could be a name.
#[cold]
fn bad_field(input: &[u8], name_len: usize) -> ScanError {
    match input {
        [] | [b'\r'] => ScanError::Partial,
        [b'\r' | b'\n', ..] => ScanError::Invalid(CRLF),
        _ if name_len == input.len() => ScanError::Partial,
        _ => ScanError::Invalid("a field name is malformed"),
    }
}

/// Returns the end of the characters of a name.
#[inline(always)]
pub(super) fn name_end(input: &[u8], from: usize) -> usize {
    let is_unusual = |byte: u8| !((byte | 0x20).wrapping_sub(b'a') < 26 || byte == b'-');
    let mut position = from;
    // Nearly all names consist of letters and hyphens; other characters are checked one by one.
    loop {
        position = memchr16::find_first(input, position, is_unusual);
        match input.get(position) {
            Some(byte) if *byte != b':' && TOKEN[usize::from(*byte)] => position += 1,
            _ => return position,
        }
    }
}

/// Returns the lines of a head that was scanned before; `at` is the offset of its fields.
pub(super) fn lines(head: &[u8], mut position: usize) -> impl Iterator<Item = FieldLine<'_>> {
    std::iter::from_fn(move || {
        let (line, next) = scan_line(head, position).ok()?;
        position = next;
        line
    })
}

/// Returns the end of the text that begins at `from`: the first control character except a tab.
#[inline(always)]
pub(super) fn text_end(input: &[u8], from: usize) -> Result<usize, ScanError> {
    let mut position = from;
    loop {
        position = next_control(input, position);
        match input.get(position) {
            Some(b'\t') => position += 1,
            Some(_) => return Ok(position),
            None => return Err(ScanError::Partial),
        }
    }
}

/// Returns the end of the request target that begins at `from`: visible ASCII characters, but no fragment
/// (RFC 9112 section 3.2).
#[inline(always)]
pub(super) fn target_end(input: &[u8], from: usize) -> usize {
    memchr16::find_first(input, from, |byte| !byte.is_ascii_graphic() || byte == b'#')
}

/// Returns the offset after the CRLF at `at`.
#[inline(always)]
pub(super) fn crlf(input: &[u8], position: usize) -> Result<usize, ScanError> {
    if input.get(position..position + 2) == Some(b"\r\n") {
        return Ok(position + 2);
    }
    match &input[position..] {
        [] | [b'\r'] => Err(ScanError::Partial),
        [b'\r' | b'\n', ..] => Err(ScanError::Invalid(CRLF)),
        _ => Err(ScanError::Invalid("a control character stands in the head")),
    }
}

/// Returns the offset of the first byte below a space, or DEL, at or after `from`; the length if there is
/// none.
#[inline(always)]
fn next_control(input: &[u8], from: usize) -> usize {
    memchr16::find_first(input, from, |byte| byte < b' ' || byte == 0x7f)
}

#[inline(always)]
fn trim(text: &[u8]) -> &[u8] {
    // Nearly every value has one space before it and none after it. All of its bytes up to a space are white
    // space.
    let value = text.strip_prefix(b" ").unwrap_or(text);
    match value {
        [..=b' ', ..] | [.., ..=b' '] => value.trim_ascii(),
        _ => value,
    }
}

/// Returns `true` if `name` is this field name, in any case. `lower` is in lower case. It compares integers
/// that may overlap. The compiler knows the length, so there is no loop.
#[inline(always)]
pub(super) fn matches_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    if name.len() != N {
        return false;
    }
    let differ = |one: u64, other: u64| (one | 0x2020_2020_2020_2020) ^ (other | 0x2020_2020_2020_2020);
    if N < 4 {
        let pack_short = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        return differ(pack_short(name), pack_short(lower)) == 0;
    }
    if N < 8 {
        let load_half = |bytes: &[u8], offset: usize| {
            bytes[offset..].first_chunk::<4>().map_or(0, |chunk| u64::from(u32::from_le_bytes(*chunk)))
        };
        let pack_halves = |bytes: &[u8]| load_half(bytes, 0) | load_half(bytes, N - 4) << 32;
        return differ(pack_halves(name), pack_halves(lower)) == 0;
    }
    let load_word = |bytes: &[u8], offset: usize| {
        bytes[offset..].first_chunk::<8>().map_or(0, |chunk| u64::from_le_bytes(*chunk))
    };
    let mut difference = differ(load_word(name, 0), load_word(lower, 0))
        | differ(load_word(name, N - 8), load_word(lower, N - 8));
    if N > 16 {
        difference |= differ(load_word(name, 8), load_word(lower, 8));
    }
    difference == 0
}

/// The characters of a field name or method (RFC 9110 section 5.6.2).
pub(super) const TOKEN: [bool; 256] = letters_digits_and(b"!#$%&'*+-.^_`|~");

/// Returns a table that is `true` for ASCII letters, digits, and the bytes in `others`.
pub(super) const fn letters_digits_and(extra: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut index = 0;
    while index < extra.len() {
        table[extra[index] as usize] = true;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sixteen_at_a_time_find_what_one_at_a_time_finds(
            bytes in proptest::collection::vec(prop_oneof![6 => 0x20u8..0x7f, 1 => any::<u8>()], 0..80),
            from in 0usize..80,
        ) {
            let from = from.min(bytes.len());
            let plain = bytes[from..].iter().take_while(|byte| **byte >= b' ' && **byte != 0x7f).count();
            prop_assert_eq!(next_control(&bytes, from), from + plain);
        }

        #[test]
        fn names_end_where_one_at_a_time_ends(
            bytes in proptest::collection::vec(
                prop_oneof![
                    8 => any::<u8>().prop_map(|byte| b"Content-lengthZAza09_~"[usize::from(byte) % 22]),
                    1 => any::<u8>(),
                ],
                0..60,
            ),
            from in 0usize..60,
        ) {
            let from = from.min(bytes.len());
            let plain = bytes[from..].iter().take_while(|byte| TOKEN[usize::from(**byte)]).count();
            prop_assert_eq!(name_end(&bytes, from), from + plain);
        }

        #[test]
        fn lines_end_where_they_end_and_never_before(
            name in "[a-zA-Z0-9-]{1,20}", value in "[ -~\\t]{0,40}", tail in "[ -~]{0,10}",
        ) {
            let text = format!("{name}:{value}\r\n");
            let whole = format!("{text}{tail}");
            let (found, end) = scan_line(whole.as_bytes(), 0).expect("a line");
            let found = found.expect("not the empty line");
            prop_assert_eq!((found.name(), end), (name.as_bytes(), text.len()));
            prop_assert_eq!(found.value(), value.trim_matches([' ', '\t']).as_bytes());
            for cut in 0..text.len() {
                let refused = scan_line(&whole.as_bytes()[..cut], 0).expect_err("too short");
                prop_assert_eq!(refused, ScanError::Partial);
            }
        }
    }

    #[test]
    fn names_match_in_any_case_and_nothing_else_does() {
        assert!(matches_name(b"Content-Length", b"content-length") && matches_name(b"hOsT", b"host"));
        assert!(
            !matches_name(b"hosts", b"host")
                && !matches_name(b"hos", b"host")
                && !matches_name(b"hosu", b"host")
        );
    }
}
