//! The normal form of a path: idempotent, without dot segments and repeated slashes, and the same as a naive
//! implementation finds. Other readings of a path are in normal form too, and the query never
//! changes.

use std::borrow::Cow;

use plimsoll_wire::http1::{PathError, decoded, normal_path, other_readings, query_value, split_target};

use super::Verdict;
use super::fields::show;

/// Checks the law for a request target; panics if it is broken.
pub(crate) fn check(target: &[u8]) -> Verdict {
    let parts = split_target(target);
    if let Some(range) = &parts.path {
        let head = &target[..range.start];
        assert!(head.ends_with(parts.authority.unwrap_or_default()), "{}", show(target));
        let mut whole = target[..range.end].to_vec();
        if let Some(query) = parts.query {
            whole.push(b'?');
            whole.extend_from_slice(query);
        }
        assert_eq!(whole, target, "the parts are the whole: {}", show(target));
    } else {
        assert_eq!((parts.authority.unwrap_or(b"*"), parts.query), (target, None));
    }
    check_query(parts.query.unwrap_or(target));
    let path = parts.path.map_or(target, |range| &target[range]);
    // A caller may break the rule that only normal forms have other readings.
    let _ = other_readings(path);
    let form = normal_path(path);
    assert_eq!(form.as_deref().ok(), naive_form(path).as_deref(), "{}", show(path));
    let Ok(form) = form else { return Verdict::Refused };
    check_form(&form);
    assert_eq!(matches!(form, Cow::Borrowed(_)), *form == *path, "{}", show(path));
    check_readings(&form);
    Verdict::Accepted
}

/// Checks a normal form by itself.
fn check_form(form: &[u8]) {
    assert!(matches!(normal_path(form), Ok(Cow::Borrowed(again)) if again == form), "{}", show(form));
    assert!(form.starts_with(b"/"), "{}", show(form));
    let has = |piece: &[u8]| form.windows(piece.len()).any(|window| window == piece);
    assert!(!has(b"//") && !has(b"/./") && !has(b"/../"), "{}", show(form));
    assert!(!form.ends_with(b"/.") && !form.ends_with(b"/.."), "{}", show(form));
}

fn check_readings(form: &[u8]) {
    let text = latin(form);
    let separators = ["%2F", "%5C", "\\"];
    let has_separator = separators.iter().any(|separator| text.contains(separator));
    let has_parameter = text.contains(';');
    let is_mixed = |segment: &str| {
        let parameters = segment.split_once(';').map_or("", |(_, rest)| rest);
        separators.iter().any(|separator| parameters.contains(separator))
    };
    let found = other_readings(form);
    if text.split('/').any(is_mixed) {
        assert_eq!(found, Err(PathError::SeparatorInParameters), "{}", show(form));
        return;
    }
    let separate = |text: &str| separators.iter().fold(text.to_owned(), |text, mark| text.replace(mark, "/"));
    let drop_parameters = |text: &str| {
        let names = text.split('/').map(|segment| segment.split(';').next().unwrap_or(""));
        names.collect::<Vec<_>>().join("/")
    };
    let mut spelled = Vec::new();
    if has_separator {
        spelled.push(separate(&text));
    }
    if has_parameter {
        spelled.push(drop_parameters(&text));
    }
    if has_separator && has_parameter {
        spelled.push(drop_parameters(&separate(&text)));
    }
    let expected: Option<Vec<String>> =
        spelled.iter().map(|path| stack(&path.split('/').collect::<Vec<_>>())).collect();
    match (found, expected) {
        (Ok(found), Some(expected)) => {
            found.iter().for_each(|reading| check_form(reading));
            assert_eq!(found.iter().map(|reading| latin(reading)).collect::<Vec<_>>(), expected);
        }
        (found, expected) => {
            assert_eq!((found, expected), (Err(PathError::AboveRoot), None), "{}", show(form));
        }
    }
}

/// Compares the parameters with those of a naive reader.
fn check_query(query: &[u8]) {
    let text = latin(query);
    let pairs: Vec<(&str, &str)> = text
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .collect();
    for (name, _) in &pairs {
        let bytes = naive_decoded(name);
        assert_eq!(*decoded(&bytes_of(name)), *bytes, "{}", show(query));
        let Ok(wanted) = String::from_utf8(bytes.clone()) else { continue };
        let first = pairs.iter().find(|(other, _)| naive_decoded(other) == bytes);
        let found = query_value(query, &wanted).map(latin);
        assert_eq!(found.as_deref(), first.map(|(_, value)| *value), "{wanted:?} in {}", show(query));
    }
    let too_long = "a".repeat(query.len() + 1);
    assert_eq!(query_value(query, &too_long), None, "{}", show(query));
}

/// Returns the normal form of a path by string operations; `None` if it has none.
fn naive_form(path: &[u8]) -> Option<Vec<u8>> {
    let text = latin(path);
    let is_forbidden = |c: char| c.is_ascii_control() || " #?".contains(c);
    if !text.starts_with('/') || text.contains(is_forbidden) {
        return None;
    }
    let mut pieces = text.split('%');
    let mut spelled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = hex_pair(piece).filter(|code| *code != 0)?;
        let plain = char::from(code);
        if plain.is_ascii_alphanumeric() || "-._~".contains(plain) {
            spelled.push(plain);
        } else {
            spelled.push_str(&format!("%{code:02X}"));
        }
        spelled.extend(piece.chars().skip(2));
    }
    let names: Vec<&str> = spelled.split('/').collect();
    stack(&names).map(|form| bytes_of(&form))
}

/// Joins segments on a stack, without empty ones and dot segments; `None` if they climb above the root.
fn stack(names: &[&str]) -> Option<String> {
    let mut kept = Vec::new();
    for name in names {
        match *name {
            "" | "." => {}
            ".." => drop(kept.pop()?),
            name => kept.push(name),
        }
    }
    let is_folder = names.last().is_some_and(|last| ["", ".", ".."].contains(last));
    let end = if is_folder && !kept.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", kept.join("/")))
}

fn naive_decoded(text: &str) -> Vec<u8> {
    let spaced = text.replace('+', " ");
    let mut pieces = spaced.split('%');
    let mut bytes = bytes_of(pieces.next().unwrap_or_default());
    for piece in pieces {
        match hex_pair(piece) {
            Some(code) => {
                bytes.push(code);
                bytes.extend(piece.chars().skip(2).map(|c| c as u8));
            }
            None => bytes.extend(bytes_of(&format!("%{piece}"))),
        }
    }
    bytes
}

/// Returns the byte whose two hex digits begin a text.
fn hex_pair(text: &str) -> Option<u8> {
    let digits: String = text.chars().take(2).filter(char::is_ascii_hexdigit).collect();
    if digits.len() == 2 { u8::from_str_radix(&digits, 16).ok() } else { None }
}

/// Returns bytes as the text whose characters have these codes.
fn latin(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn bytes_of(latin: &str) -> Vec<u8> {
    latin.chars().map(|c| c as u8).collect()
}
