//! The tokens of the `.lqn` grammar, each with its position.

use super::{InputError, SourcePosition};

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) at: SourcePosition,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// A word: letters, digits and `_`, beginning with a letter or `_`.
    Word(String),
    /// A number with its spelling, since it may be a name.
    Number(f64, String),
    /// A variable, `$name`.
    Variable(String),
    /// A string in quotes.
    Text(String),
    /// A punctuation character, or two: `->`, `**`, `<=`, `>=`, `==`, `!=`.
    Punctuation(&'static str),
    End,
}

const SYMBOLS: [&str; 31] = [
    "->", "**", "<=", ">=", "==", "!=", "-", "+", "*", "/", "(", ")", "[", "]", ",", ";", ":", "=", "<", ">",
    "&", "|", "?", "!", "%", "@", "{", "}", "^", "~", "$",
];

/// Returns all tokens, and an end.
pub(super) fn tokenize(source: &str) -> Result<Vec<Token>, InputError> {
    let mut tokens = Vec::new();
    let mut position = SourcePosition { line: 1, column: 1 };
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            _ if first.is_whitespace() => first.len_utf8(),
            _ => {
                let (kind, length) = first_token(rest, position)?;
                tokens.push(Token { kind, at: position });
                length
            }
        };
        for character in rest[..length].chars() {
            if character == '\n' {
                position = SourcePosition { line: position.line + 1, column: 1 };
            } else {
                position.column += 1;
            }
        }
        rest = &rest[length..];
    }
    tokens.push(Token { kind: TokenKind::End, at: position });
    Ok(tokens)
}

/// Returns the token at the beginning of `rest`, which is no space, and its length in bytes.
fn first_token(rest: &str, position: SourcePosition) -> Result<(TokenKind, usize), InputError> {
    let first = rest.chars().next().unwrap_or(' ');
    let prefix_length = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    if is_letter(first) {
        let length = prefix_length(is_word);
        return Ok((TokenKind::Word(rest[..length].to_owned()), length));
    }
    if first == '"' {
        let inner = &rest[1..];
        let Some(length) = inner.find('"') else {
            return Err(position.error("a text that does not end: `\"` is missing"));
        };
        return Ok((TokenKind::Text(inner[..length].to_owned()), length + 2));
    }
    if first == '$' {
        let length = rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1);
        if length > 0 {
            return Ok((TokenKind::Variable(rest[1..=length].to_owned()), length + 1));
        }
    }
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        || (digits.starts_with('.') && digits[1..].starts_with(|c: char| c.is_ascii_digit()));
    // In an expression, `a -1` is still a subtraction: see `expression`.
    if is_number {
        let sign = rest.len() - digits.len();
        let length = sign + number_length(digits);
        let spelling = &rest[..length];
        let value = spelling.replace(['d', 'D'], "e").parse();
        let value = value.map_err(|_| position.error(format!("`{spelling}` is not a number")))?;
        return Ok((TokenKind::Number(value, spelling.to_owned()), length));
    }
    let symbol = SYMBOLS.into_iter().find(|candidate| rest.starts_with(candidate));
    match symbol {
        Some(symbol) => Ok((TokenKind::Punctuation(symbol), symbol.len())),
        None => Err(position.error(format!("`{}` means nothing here", first.escape_debug()))),
    }
}

/// Returns the length in bytes of the number at the beginning, which starts with a digit or a point.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut length = digits(0);
    if bytes.get(length) == Some(&b'.') {
        length += 1 + digits(length + 1);
    }
    if matches!(bytes.get(length), Some(b'e' | b'E' | b'd' | b'D')) {
        let exponent_start = length + 1 + usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = if exponent_start <= bytes.len() { digits(exponent_start) } else { 0 };
        if exponent > 0 {
            length = exponent_start + exponent;
        }
    }
    length
}

fn is_letter(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_places() {
        let tokens = tokenize("P 2 # processors\n  p cpu_1 f\t-1 $x 1.5e-3 \"a b\" -> 3d2").unwrap();
        let kinds: Vec<TokenKind> = tokens.iter().map(|token| token.kind.clone()).collect();
        let number = |value, spelling: &str| TokenKind::Number(value, spelling.to_owned());
        let word = |text: &str| TokenKind::Word(text.to_owned());
        assert_eq!(
            kinds,
            [
                word("P"),
                number(2.0, "2"),
                word("p"),
                word("cpu_1"),
                word("f"),
                number(-1.0, "-1"),
                TokenKind::Variable("x".into()),
                number(0.0015, "1.5e-3"),
                TokenKind::Text("a b".into()),
                TokenKind::Punctuation("->"),
                number(300.0, "3d2"),
                TokenKind::End
            ]
        );
        assert_eq!((tokens[2].at.line, tokens[2].at.column), (2, 3));
    }

    #[test]
    fn what_is_no_word_is_refused_with_its_place() {
        let error = tokenize("P 0\n  p \u{1}").unwrap_err();
        assert_eq!((error.line, error.column), (2, 5), "{error}");
        assert!(tokenize("G \"endless").unwrap_err().message.contains("does not end"));
    }
}
