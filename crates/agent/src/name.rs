//! Validates the names of values. A balancer's expressions use them, where `-` is a minus.

/// The longest name in bytes.
pub(crate) const MAX_NAME_LEN: usize = 64;

/// Checks a name: a letter or `_`, followed by letters, digits, `_`, `.` and `:`.
pub(crate) fn check(name: &str) -> Result<(), String> {
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let has_valid_bytes = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:".contains(&byte));
    if starts_well && has_valid_bytes && name.len() <= MAX_NAME_LEN {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_LEN).flat_map(char::escape_default).collect();
    Err(format!(
        "`{shown}` is no name for a number: \
         give 1 to {MAX_NAME_LEN} letters, digits, `_`, `.` or `:`, a letter first"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for right in ["cpu", "_", "requests_per_second", "vllm:queue_depth.p99", &"a".repeat(MAX_NAME_LEN)] {
            assert_eq!(check(right), Ok(()));
        }
        for wrong in ["", "1a", "a b", "a\n", "ü", "a=b", "a-b", &"a".repeat(MAX_NAME_LEN + 1)] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
