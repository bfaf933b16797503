//! The words of a line: spaces between them, quotes and backslashes for literal text, `#` before a comment.

/// Returns the words of a line, and whether each quote is closed.
pub(super) fn words(line: &str) -> (Vec<String>, bool) {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut has_begun = false;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(opening), closing) if opening == closing => quote = None,
            // Within single quotes a backslash is a letter.
            (None | Some('"'), '\\') => {
                has_begun = true;
                match characters.next() {
                    Some('n') => word.push('\n'),
                    Some('t') => word.push('\t'),
                    Some('r') => word.push('\r'),
                    Some(escaped) => word.push(escaped),
                    None => {}
                }
            }
            (None, '"' | '\'') => (quote, has_begun) = (Some(character), true),
            (None, '#') => break,
            (None, whitespace) if whitespace.is_whitespace() => {
                if has_begun {
                    words.push(std::mem::take(&mut word));
                    has_begun = false;
                }
            }
            (_, plain) => {
                word.push(plain);
                has_begun = true;
            }
        }
    }
    if has_begun {
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
