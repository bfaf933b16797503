//! The trace of a head: a parsed value is written unchanged, and a head with a replaced trace belongs to the
//! new one.

use plimsoll_wire::http1::{HeadError, MarkedFields, request};
use plimsoll_wire::trace_context::{TraceParent, parent_in_head, replace_parent, set_span, state_in_head};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken. `input` is a head, or the value of a field.
pub(crate) fn check(input: &[u8]) -> Verdict {
    if let Some(read) = TraceParent::read(input) {
        let again = TraceParent::read(read.text().as_bytes());
        assert_eq!(again, Some(read), "{}", show(input));
        return Verdict::Accepted;
    }
    let mut marks = MarkedFields::new();
    let len = match request(input, 65_536, &mut marks) {
        Ok(request) => request.len,
        Err(HeadError::Partial) => return Verdict::Partial,
        Err(_) => return Verdict::Refused,
    };
    // Empty lines before the request line are not forwarded.
    let start = input.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    let (head, rest) = (&input[start..len], &input[len..]);
    let (before, state) = (parent_in_head(head), state_in_head(head));
    let mut given = input[start..].to_vec();
    let parent = TraceParent { trace: [7; 16], span: [9; 8], sampled: true };
    let at = replace_parent(&mut given, &parent, before.is_some());
    assert!(given.ends_with(rest), "the body changed: {}", show(input));
    assert_eq!(parent_in_head(&given), Some(parent), "{}", show(input));
    assert_eq!(
        state_in_head(&given),
        if before.is_some() { state } else { String::new() },
        "{}",
        show(input)
    );
    set_span(&mut given, at, &[3; 8]);
    assert_eq!(parent_in_head(&given), Some(TraceParent { span: [3; 8], ..parent }), "{}", show(input));
    let mut again = MarkedFields::new();
    let read = request(&given, 131_072, &mut again);
    // The additional field may exceed the limit on fields.
    assert!(!matches!(read, Err(HeadError::Partial)), "{}", show(&given));
    Verdict::Accepted
}
