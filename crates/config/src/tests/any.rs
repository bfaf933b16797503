//! Properties: the reader never panics, whatever the text.

use proptest::prelude::*;

use super::super::{ListenerConfig, parse};
use super::{ALL, TEST_MACHINE, failing_resolver};

/// Asserts that any bytes are a configuration, or errors that can be placed and shown.
fn assert_consistent(bytes: &[u8]) {
    match parse("x", bytes.to_vec()) {
        Ok(file) => {
            let reads_files =
                |listener: &ListenerConfig| listener.tls.is_some() || listener.affinity.is_some();
            let certificates = file.config.listeners.iter().any(reads_files)
                || file.config.groups.iter().any(|group| group.tls.is_some());
            match file.settings(TEST_MACHINE, failing_resolver) {
                Ok(settings) => assert_eq!(settings.groups.len(), file.config.groups.len()),
                Err(problems) => assert!(certificates, "what passes the checks can be used: {problems}"),
            }
        }
        Err(problems) => {
            assert!(problems.has_errors());
            let line_count = String::from_utf8_lossy(bytes).matches('\n').count() + 1;
            for problem in problems.list() {
                assert!(problem.span.start <= problem.span.end, "{problem:?}");
                assert!(!problem.message.contains('\n'), "{problem:?}");
            }
            for row in serde_json::to_value(problems.to_json()).unwrap().as_array().unwrap() {
                assert!((1..=line_count as u64).contains(&row["line"].as_u64().unwrap()), "{row}");
                assert!(row["column"].as_u64().unwrap() >= 1);
            }
            assert!(problems.to_string().lines().count() >= 3);
        }
    }
}

/// Returns words that lead further into the reader than chance would.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("[[listener]]\n".to_owned()),
        Just("[[group]]\n".to_owned()),
        Just("[group.health]\n".to_owned()),
        Just("[group.outlier]\n".to_owned()),
        Just("[admin]\n".to_owned()),
        "(address|group|name|members|strategy|key|interval|http|tcp|outlier|health|timeouts|x) = ",
        "(\"[ -~]{0,12}\"|[0-9]{1,22}|-?[0-9]\\.[0-9]|true|nan|inf|1979-05-27|\\[\\]|\\{\\})",
        Just("\n".to_owned()),
        "\\PC{0,4}",
    ]
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        assert_consistent(&bytes);
    }

    #[test]
    fn any_words(words in proptest::collection::vec(word(), 0..40)) {
        assert_consistent(words.concat().as_bytes());
    }

    #[test]
    fn any_change_to_a_valid_file(at in 0..ALL.len(), cut in 0..30_usize, put in "[ -~\\n]{0,6}") {
        let end = (at + cut).min(ALL.len());
        assert_consistent(format!("{}{put}{}", &ALL[..at], &ALL[end..]).as_bytes());
    }

    #[test]
    fn any_value_in_a_valid_file(line in 0..ALL.lines().count(), value in word()) {
        let change = |(index, text): (usize, &str)| match text.split_once(" = ") {
            Some((key, _)) if index == line => format!("{key} = {value}"),
            _ => text.to_owned(),
        };
        let lines: Vec<String> = ALL.lines().enumerate().map(change).collect();
        assert_consistent(lines.join("\n").as_bytes());
    }
}
