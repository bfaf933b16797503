//! The urgency of a request: the header field `Priority` (RFC 9218), or another field with the same syntax.
//!
//! Only the member `u` of the dictionary is used, the urgency from 0 (most urgent) to 7. For custom fields, a
//! bare number is an urgency, too. Other members, and urgencies beyond 7, are ignored, as the RFC requires;
//! the last valid one counts.

/// Parses the urgency in a field's value, 0 to 7; `None` if the value contains none.
pub fn urgency(value: &[u8]) -> Option<u8> {
    let mut urgencies = value.split(|byte| *byte == b',').filter_map(|member| {
        let item = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match item.strip_prefix(b"u=").unwrap_or(item) {
            [digit @ b'0'..=b'7'] => Some(digit - b'0'),
            _ => None,
        }
    });
    urgencies.next_back()
}

/// Returns the urgency from the field with this name, in any case. `head` begins with a request line and has
/// been validated; bytes after its empty line are ignored.
pub fn urgency_in_head(head: &[u8], name: &str) -> Option<u8> {
    let lines =
        head.split(|byte| *byte == b'\n').skip(1).map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let urgencies = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (field, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
        field.eq_ignore_ascii_case(name.as_bytes()).then(|| urgency(value.get(1..)?))?
    });
    urgencies.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_urgency_is_a_digit_behind_u_or_alone() {
        for (value, expected) in [
            ("u=0", Some(0)),
            ("u=7, i", Some(7)),
            ("i, u=2", Some(2)),
            (" i,\tu=5;x=1 ", Some(5)),
            ("4", Some(4)),
            ("u=1, u=6", Some(6)),
            ("u=6, u=9", Some(6)),
            ("", None),
            ("i", None),
            ("u=8", None),
            ("u=-1", None),
            ("u=01", None),
            ("u", None),
            ("U=1", None),
            ("urgent=1", None),
            ("high", None),
            ("u = 1", None),
        ] {
            assert_eq!(urgency(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn a_field_is_found_in_its_head_and_not_behind_it() {
        let head = b"GET /priority:u=0 HTTP/1.1\r\nHost: a\r\nX-Priority: 1\r\npriORITY:u=2\r\n\
                     Accept: u=4\r\n\r\npriority: u=6\r\n";
        assert_eq!(urgency_in_head(head, "priority"), Some(2));
        assert_eq!(urgency_in_head(head, "x-priority"), Some(1));
        assert_eq!(urgency_in_head(head, "host"), None);
        assert_eq!(urgency_in_head(head, "x"), None);
        assert_eq!(
            urgency_in_head(b"GET / HTTP/1.1\r\nu: 1\r\nnonsense\r\nu: u=3, i\r\nU: x\r\n\r\n", "u"),
            Some(3)
        );
        assert_eq!((urgency_in_head(b"", "u"), urgency_in_head(b"u: 1", "u")), (None, None));
    }
}
