//! Text inside of XML, as models are written and drawn.

/// Text as it must stand in XML, attributes included; what XML does not allow becomes U+FFFD.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '"' => out += "&quot;",
            // As they stand they would become spaces.
            '\t' => out += "&#9;",
            '\n' => out += "&#10;",
            '\r' => out += "&#13;",
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
