//! The words of a line: spaces between them, quotes and backslashes for literal text, `#` before a comment.

/// Returns the words of a line, and whether each quote is closed.
pub(super) fn words(line: &str) -> (Vec<String>, bool) {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut begun = false;
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            // Within single quotes a backslash is a letter.
            (None | Some('"'), '\\') => {
                begun = true;
                match letters.next() {
                    Some('n') => word.push('\n'),
                    Some('t') => word.push('\t'),
                    Some('r') => word.push('\r'),
                    Some(other) => word.push(other),
                    None => {}
                }
            }
            (None, '"' | '\'') => (quote, begun) = (Some(letter), true),
            (None, '#') => break,
            (None, space) if space.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                    begun = false;
                }
            }
            (_, other) => {
                word.push(other);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    (words, quote.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_comments() {
        for (line, expected) in [
            ("  server a 10.0.0.1:80 check # the first", "server|a|10.0.0.1:80|check"),
            (r#"option httpchk "GET /a b""#, "option|httpchk|GET /a b"),
            (r"http-request set-header X a\ b", "http-request|set-header|X|a b"),
            (r"acl a path '\d # x'", r"acl|a|path|\d # x"),
            ("''", ""),
            ("# all", ""),
            ("a \"b", "a|b"),
        ] {
            assert_eq!(words(line).0.join("|"), expected, "{line}");
        }
        assert_eq!(words("''").0.len(), 1);
        assert_eq!(words("\\").0, [""]);
        assert!(words("a 'b'").1 && !words("a \"b").1);
    }
}
