//! Escapes text for XML.

/// Escapes text for XML content and attributes; characters that XML does not allow become U+FFFD.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '"' => out += "&quot;",
            // Without escapes they would become spaces.
            '\t' => out += "&#9;",
            '\n' => out += "&#10;",
            '\r' => out += "&#13;",
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
