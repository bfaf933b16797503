//! The Prometheus text format, version 0.0.4, as far as samples need it; OpenMetrics pages parse the same
//! way.
//!
//! One sample per line: `name{label="value",…} number [timestamp]`. Lines that begin with `#` are comments,
//! types and help. A malformed line is skipped: several exporters may contribute to a page, and one bad line
//! does not invalidate the others. Only label values with escapes are copied.

use std::borrow::Cow;

mod counter_increase;

pub use counter_increase::{CounterIncrease, MAX_SERIES};

/// A sample of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricSample<'a> {
    /// The metric's name: letters, digits, `_` and `:`, no digit first.
    pub name: &'a str,
    /// The text between the braces, unchanged; empty if there are none.
    pub labels: &'a str,
    /// The value: any number, including infinities and NaN.
    pub value: f64,
}

/// Returns the samples of a page, in its order.
pub fn samples(page: &str) -> impl Iterator<Item = MetricSample<'_>> {
    page.lines().filter_map(parse_sample)
}

/// Returns `true` if `text` is a valid metric name.
pub fn is_name(text: &str) -> bool {
    name_end(text) == text.len() && !text.is_empty()
}

/// Parses `name{label="value",…}` at the beginning of `text`. Returns the name, the labels unchanged, and the
/// remaining text.
pub fn split_series(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_at(name_end(text));
    if name.is_empty() {
        return None;
    }
    let rest = rest.trim_start();
    let Some(label_text) = rest.strip_prefix('{') else { return Some((name, "", rest)) };
    let end = labels_end(label_text)?;
    Some((name, &label_text[..end], &label_text[end + 1..]))
}

/// Parses labels ([`MetricSample::labels`]) and stops at the first malformed one. In values `\\`, `\"` and
/// `\n` are unescaped.
pub fn labels(mut text: &str) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    std::iter::from_fn(move || {
        let (name, value_text) = text.split_once('=')?;
        let value = value_text.trim_start().strip_prefix('"')?;
        let mut escaped = false;
        let end = value.bytes().position(|byte| {
            let end = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            end
        })?;
        text = value[end + 1..].trim_start().trim_start_matches(',');
        Some((name.trim(), unescaped(&value[..end])))
    })
}

fn parse_sample(line: &str) -> Option<MetricSample<'_>> {
    let (name, labels, rest) = split_series(line.trim_start())?;
    // A timestamp or an exemplar may follow.
    let value = rest.split_ascii_whitespace().next()?;
    Some(MetricSample { name, labels, value: parse_number(value)? })
}

/// Returns the length of the name at the beginning of `text`, in bytes.
fn name_end(text: &str) -> usize {
    let is_name_byte = |(index, byte): (usize, u8)| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'_' | b':' => true,
        b'0'..=b'9' => index > 0,
        _ => false,
    };
    text.bytes().enumerate().position(|pair| !is_name_byte(pair)).unwrap_or(text.len())
}

/// Returns the offset of the brace that ends the labels; braces within quotes do not count.
fn labels_end(label_text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (index, byte) in label_text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(index),
            _ => {}
        }
    }
    None
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return value.into();
    }
    let mut unescaped_text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        unescaped_text.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some(c) => c,
                None => break,
            },
            c => c,
        });
    }
    unescaped_text.into()
}

/// Parses a number in Go's notation, which the format prescribes.
fn parse_number(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        // Rust also parses literals such as `infinity`, which the format does not have.
        _ if text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(page: &str) -> Vec<(&str, &str, f64)> {
        samples(page).map(|sample| (sample.name, sample.labels, sample.value)).collect()
    }

    #[test]
    fn a_page() {
        let page = "# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 0.21\n\
                    http_requests_total{method=\"post\",code=\"200\"} 1027 1395066363000\r\n  \
                    up{ } 1\nhuge 1.5e+300 # {trace=\"x\"} 1\nlimit +Inf\n";
        assert_eq!(
            read(page),
            [
                ("node_load1", "", 0.21),
                ("http_requests_total", "method=\"post\",code=\"200\"", 1027.0),
                ("up", " ", 1.0),
                ("huge", "", 1.5e300),
                ("limit", "", f64::INFINITY),
            ]
        );
    }

    #[test]
    fn quotes_may_hold_anything() {
        let line = r#"a{path="/{x}\"}",b="\\"} 2"#;
        assert_eq!(read(line), [("a", r#"path="/{x}\"}",b="\\""#, 2.0)]);
    }

    #[test]
    fn bad_lines_are_left_out_and_no_others() {
        let page = "a 1\n1b 2\nc\nd{x=\"} 3\ne infinity\nf 0x10\n{g} 1\nh{} \n\u{fc} 1\ni -0\n";
        let names: Vec<&str> = samples(page).map(|sample| sample.name).collect();
        assert_eq!(names, ["a", "i"]);
    }

    #[test]
    fn labels_are_read_one_by_one() {
        let text = r#"path="C:\\DIR",error = "no:\n\"x\" {0}", b="" ,c=d,e="f""#;
        let pairs: Vec<_> = labels(text).collect();
        assert_eq!(pairs[..2], [("path", "C:\\DIR".into()), ("error", "no:\n\"x\" {0}".into())]);
        assert_eq!(pairs[2..], [("b", "".into())], "up to the first that is malformed");
        assert_eq!(split_series("a{b=\"}\"} rest"), Some(("a", "b=\"}\"", " rest")));
        assert_eq!((split_series("a{b"), split_series("1a")), (None, None));
    }

    #[test]
    fn names() {
        assert!(is_name("a:b_c9") && is_name("_"));
        assert!(!is_name("") && !is_name("9a") && !is_name("a-b") && !is_name("a b"));
    }

    proptest! {
        #[test]
        fn no_page_is_a_panic(page in "(?s)[ -~\n\"{}#\\\\\u{e9}]{0,200}") {
            for sample in samples(&page) {
                prop_assert!(is_name(sample.name));
                labels(sample.labels).for_each(drop);
            }
        }
    }
}
