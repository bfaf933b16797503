//! The normal form of a request's path, and the parts of a request target.
//!
//! Routes match on the normal form, and the member receives the same form. So no server behind the balancer
//! reads a path in another way than the balancer matched it. The form is that of RFC 3986 section 6.2.2, and
//! repeated slashes are merged before dot segments are removed.
//!
//! Some servers go further than that RFC. They decode `%2F`, treat `\` as a separator, or drop the parameters
//! of segments. [`other_readings`] yields the paths that they see, so that a caller can match those too.

use std::borrow::Cow;
use std::ops::Range;

use super::scan;

/// The reason why a path has no normal form. The balancer answers 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is empty, or begins with another character than `/`.
    #[error("the path does not begin with `/`")]
    NoSlash,
    /// A `%` without two hex digits.
    #[error("a `%` in the path is not followed by two hex digits")]
    BadEscape,
    /// A control character, a space, `#` or `?` as such, or the escape `%00`.
    #[error("the path contains a control character, a space, `#`, `?` or `%00`")]
    ForbiddenByte,
    /// The dot segments lead out of the root: `/../a`.
    #[error("the path climbs above the root")]
    AboveRoot,
    /// `%2F`, `%5C` or `\` after `;` in a segment: servers disagree on the order of dropping and decoding.
    #[error("the path has `%2F`, `%5C` or `\\` in the parameters of a segment")]
    SeparatorInParameters,
}

/// Returns the normal form of a path without its query. It is borrowed if the path is in normal form already.
///
/// Escapes of unreserved characters are decoded (`%41` becomes `A`), and the hex digits of all others are in
/// upper case (RFC 3986 section 6.2.2). Repeated slashes are merged, then dot segments are removed (section
/// 5.2.4). A trailing slash is kept: `/a/.` becomes `/a/`, and `/a/..` becomes `/`.
///
/// Nothing is decoded twice: `%252e` stays. `%2F`, `%5C` and `\` are no separators here. Bytes that a URI has
/// only as escapes, such as `"` or those above 0x7F, are neither escaped nor refused.
///
/// The result begins with `/`, is never longer than the path, and is its own normal form.
///
/// # Errors
/// The path has no normal form; see [`PathError`].
pub fn normal_path(path: &[u8]) -> Result<Cow<'_, [u8]>, PathError> {
    if !path.starts_with(b"/") {
        return Err(PathError::NoSlash);
    }
    if is_normal(path) { Ok(Cow::Borrowed(path)) } else { rewrite(path).map(Cow::Owned) }
}

/// Returns the paths that some servers read in place of `normal`, a path in normal form. Most paths have
/// none.
///
/// Some servers treat `%2F`, `%5C` and `\` as separators. Some drop the parameters of each segment, from the
/// first `;` on (RFC 3986 section 3.3); for them `..;` and `.;x` are dot segments. Some do both. Repeated
/// slashes are then merged and dot segments are removed as in [`normal_path`]. `%3B` begins no parameters.
///
/// Each result is in normal form.
///
/// # Errors
/// [`PathError::AboveRoot`] if a reading climbs above the root, and [`PathError::SeparatorInParameters`] if
/// the result would depend on the order of both steps.
pub fn other_readings(normal: &[u8]) -> Result<Vec<Vec<u8>>, PathError> {
    let may_differ = |byte: &u8| matches!(byte, b'%' | b';' | b'\\');
    if !normal.iter().any(may_differ) {
        return Ok(Vec::new());
    }
    let (separators, parameters) = lenient_parts(normal)?;
    let readings: &[LenientReading] = match (separators, parameters) {
        (false, false) => &[],
        (true, false) => &[LenientReading { separates: true, drops: false }],
        (false, true) => &[LenientReading { separates: false, drops: true }],
        (true, true) => &[
            LenientReading { separates: true, drops: false },
            LenientReading { separates: false, drops: true },
            LenientReading { separates: true, drops: true },
        ],
    };
    readings.iter().map(|reading| reading.read(normal)).collect()
}

/// Returns whether a path has separators that not all servers know, and parameters.
fn lenient_parts(normal: &[u8]) -> Result<(bool, bool), PathError> {
    let (mut separators, mut parameters) = (false, false);
    for segment in normal.split(|byte| *byte == b'/') {
        let end = segment.iter().position(|byte| *byte == b';').unwrap_or(segment.len());
        let (name, rest) = segment.split_at(end);
        let is_separated = |text: &[u8]| (0..text.len()).any(|at| separator_len(&text[at..]).is_some());
        separators |= is_separated(name);
        parameters |= !rest.is_empty();
        if is_separated(rest) {
            return Err(PathError::SeparatorInParameters);
        }
    }
    Ok((separators, parameters))
}

/// Returns the length of a separator at the beginning of a text that not all servers know.
fn separator_len(text: &[u8]) -> Option<usize> {
    match text {
        [b'\\', ..] => Some(1),
        [b'%', b'2', b'F', ..] | [b'%', b'5', b'C', ..] => Some(3),
        _ => None,
    }
}

/// A way to read paths that is more lenient than RFC 3986.
struct LenientReading {
    /// Whether `%2F`, `%5C` and `\` separate segments.
    separates: bool,
    /// Whether parameters are dropped.
    drops: bool,
}

impl LenientReading {
    fn read(&self, normal: &[u8]) -> Result<Vec<u8>, PathError> {
        let mut lenient = Vec::with_capacity(normal.len());
        let mut rest = normal;
        let mut in_parameters = false;
        while let [byte, tail @ ..] = rest {
            if self.separates
                && let Some(len) = separator_len(rest)
            {
                rest = &rest[len..];
                lenient.push(b'/');
                continue;
            }
            rest = tail;
            in_parameters = self.drops && (*byte == b';' || in_parameters && *byte != b'/');
            if !in_parameters {
                lenient.push(*byte);
            }
        }
        remove_dot_segments(&lenient)
    }
}

/// The parts of a request target (RFC 9112 section 3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetParts<'t> {
    /// The authority of the absolute form and of the authority form, with any user and port; not validated.
    pub authority: Option<&'t [u8]>,
    /// The range of the path in the target; `None` for `*` and the authority form. It is empty only in the
    /// absolute form, where that stands for `/` (RFC 9110 section 4.2.3).
    pub path: Option<Range<usize>>,
    /// The query without its `?`, and never changed; `None` if there is no `?`.
    pub query: Option<&'t [u8]>,
}

/// Splits a request target into its parts without allocation. A target that begins with `/` has the origin
/// form, and one that begins with a scheme and `://` the absolute form. All others except `*` are taken for
/// the authority form.
pub fn split_target(target: &[u8]) -> TargetParts<'_> {
    if target == b"*" {
        return TargetParts { authority: None, path: None, query: None };
    }
    let (authority, path_start) = match scheme_end(target) {
        _ if target.starts_with(b"/") => (None, 0),
        Some(start) => {
            let rest = &target[start..];
            let len = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            (Some(&rest[..len]), start + len)
        }
        None => return TargetParts { authority: Some(target), path: None, query: None },
    };
    let rest = &target[path_start..];
    let len = rest.iter().position(|byte| *byte == b'?').unwrap_or(rest.len());
    TargetParts { authority, path: Some(path_start..path_start + len), query: rest.get(len + 1..) }
}

/// Returns the value of the first parameter with this name in a query without its `?`, or `None`.
///
/// Parameters are separated by `&`, and the first `=` ends a name. Without `=` the value is empty. A name
/// in the query counts if it is `name` after [`decoded`]. The value is returned as it stands: callers compare
/// it after [`decoded`] too. The form is `application/x-www-form-urlencoded` (WHATWG URL section 5.1).
pub fn query_value<'q>(query: &'q [u8], name: &str) -> Option<&'q [u8]> {
    let parameters = query.split(|byte| *byte == b'&').filter(|parameter| !parameter.is_empty());
    parameters.into_iter().find_map(|parameter| {
        let end = parameter.iter().position(|byte| *byte == b'=').unwrap_or(parameter.len());
        let is_named = decoded_bytes(&parameter[..end]).eq(name.bytes());
        is_named.then(|| parameter.get(end + 1..).unwrap_or_default())
    })
}

/// Returns a name or a value of a query, decoded once: escapes become their bytes, and `+` a space. A `%`
/// without two hex digits stays as it is (WHATWG URL section 1.3). The result is borrowed if there is neither
/// `%` nor `+`. It may hold any bytes, and need not be UTF-8.
pub fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        Cow::Owned(decoded_bytes(text).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// The characters that mean the same with and without an escape (RFC 3986 section 2.3).
const UNRESERVED: [bool; 256] = scan::letters_digits_and(b"-._~");

/// The bytes that [`is_normal`] passes over: all but slashes, percent signs and forbidden bytes.
const PLAIN: [bool; 256] = plain_bytes();

const fn plain_bytes() -> [bool; 256] {
    let mut table = [true; 256];
    let mut byte = 0;
    while byte < 256 {
        let special = matches!(byte as u8, b'/' | b'%');
        table[byte] = !special && !is_forbidden(byte as u8);
        byte += 1;
    }
    table
}

const fn is_forbidden(byte: u8) -> bool {
    matches!(byte, 0..=b' ' | 0x7f | b'#' | b'?')
}

/// Returns `true` if a path that begins with `/` is its own normal form.
fn is_normal(path: &[u8]) -> bool {
    let mut rest = path;
    while let Some(at) = rest.iter().position(|byte| !PLAIN[usize::from(*byte)]) {
        rest = match &rest[at..] {
            [b'/', b'/', ..] | [b'/', b'.'] | [b'/', b'.', b'/', ..] => return false,
            [b'/', b'.', b'.'] | [b'/', b'.', b'.', b'/', ..] => return false,
            [b'/', tail @ ..] => tail,
            [b'%', high, low, tail @ ..] if is_normal_escape(*high, *low) => tail,
            _ => return false,
        };
    }
    true
}

fn is_normal_escape(high: u8, low: u8) -> bool {
    let is_upper = !high.is_ascii_lowercase() && !low.is_ascii_lowercase();
    is_upper && hex_byte(high, low).is_some_and(|byte| byte != 0 && !UNRESERVED[usize::from(byte)])
}

/// Returns the byte that two hex digits of any case stand for.
fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

/// Writes the normal form of a path that begins with `/`.
#[cold]
fn rewrite(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut spelled = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if is_forbidden(*byte) {
            return Err(PathError::ForbiddenByte);
        }
        if *byte != b'%' {
            spelled.push(*byte);
            continue;
        }
        let [high, low, tail @ ..] = tail else { return Err(PathError::BadEscape) };
        rest = tail;
        match hex_byte(*high, *low).ok_or(PathError::BadEscape)? {
            0 => return Err(PathError::ForbiddenByte),
            code if UNRESERVED[usize::from(code)] => spelled.push(code),
            _ => spelled.extend([b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]),
        }
    }
    remove_dot_segments(&spelled)
}

/// Returns a path that begins with `/` without repeated slashes and dot segments (RFC 3986 section 5.2.4).
fn remove_dot_segments(path: &[u8]) -> Result<Vec<u8>, PathError> {
    // Without the last slash until the end.
    let mut folder = Vec::with_capacity(path.len());
    let mut ends_in_slash = false;
    for segment in path.split(|byte| *byte == b'/') {
        ends_in_slash = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => {
                let parent = folder.iter().rposition(|byte| *byte == b'/').ok_or(PathError::AboveRoot)?;
                folder.truncate(parent);
            }
            _ => {
                folder.push(b'/');
                folder.extend_from_slice(segment);
            }
        }
    }
    if ends_in_slash {
        folder.push(b'/');
    }
    Ok(folder)
}

/// Returns the offset after the `://` of an absolute form, if the target begins with a scheme (RFC 3986
/// section 3.1).
fn scheme_end(target: &[u8]) -> Option<usize> {
    let is_scheme_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let len = target.iter().position(|byte| !is_scheme_byte(byte))?;
    let (scheme, rest) = target.split_at(len);
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic);
    (is_scheme && rest.starts_with(b"://")).then_some(len + 3)
}

/// Returns the bytes of a name or value of a query after [`decoded`].
fn decoded_bytes(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, tail) = match rest {
            [] => return None,
            [b'+', tail @ ..] => (b' ', tail),
            [b'%', high, low, tail @ ..] if let Some(byte) = hex_byte(*high, *low) => (byte, tail),
            [byte, tail @ ..] => (*byte, tail),
        };
        rest = tail;
        Some(byte)
    })
}

#[cfg(test)]
mod tests;
