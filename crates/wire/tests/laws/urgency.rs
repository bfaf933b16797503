//! The urgency of a request: 0 to 7 or none, and the last valid one counts. A head yields the same urgency as
//! the field alone, and no other part of the head counts.

use plimsoll_wire::priority::{urgency, urgency_in_head};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    // A head that has not been validated.
    assert!(urgency_in_head(input, "priority").is_none_or(|urgency| urgency <= 7), "{}", show(input));
    let said = urgency(input);
    if let Some(number) = said {
        assert!(number <= 7, "{number} from {}", show(input));
        assert_eq!(urgency(format!("u={number}").as_bytes()), said, "written and read again");
        assert_eq!(urgency(format!("{number}").as_bytes()), said, "alone");
    }
    // Later urgencies count, and later invalid values change nothing.
    assert_eq!(urgency(&[input, b", u=3"].concat()), Some(3), "{}", show(input));
    for none in [&b""[..], b"u=8", b"u=-1", b"u=03", b"i", b"u"] {
        assert_eq!(urgency(&[input, b",", none].concat()), said, "{}", show(input));
    }
    if !input.contains(&b'\n') && !input.ends_with(b"\r") {
        let head = |fields: &[u8]| {
            [b"GET /u=1 HTTP/1.1\r\nHost: u=2\r\n", fields, b"\r\n\r\nPriority: u=0\r\n"].concat()
        };
        let field = [b"PRIORITY:", input].concat();
        assert_eq!(urgency_in_head(&head(&field), "priority"), said, "{}", show(input));
        assert_eq!(urgency_in_head(&head(&field), "x-priority"), None, "{}", show(input));
        let twice = [b"Priority: u=5\r\n", &field[..]].concat();
        assert_eq!(urgency_in_head(&head(&twice), "priority"), said.or(Some(5)), "{}", show(input));
    }
    if said.is_some() { Verdict::Accepted } else { Verdict::Refused }
}
