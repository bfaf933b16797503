//! Parses received JSON, with errors that name the field and contain no Rust types.

use serde::de::DeserializeOwned;

/// Parses the body of a request. The text of an error is for the sender, and ends with `give`: the
/// description of a valid body.
///
/// # Errors
/// It is not JSON, or has another structure.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], hint: &str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let field = error.path().to_string();
        let message = without_rust_types(&error.inner().to_string());
        // The path of the whole body is a dot; the error of an unknown field already contains its name.
        if field == "." || message.starts_with("unknown field") {
            message
        } else {
            format!("{field}: {message}")
        }
    });
    value
        .and_then(|value| match deserializer.end() {
            Ok(()) => Ok(value),
            Err(error) => Err(error.to_string()),
        })
        .map_err(|message| format!("the body: {}; {hint}", shorten(&message)))
}

/// Shortens an error for display: names of fields may have any length and contents.
fn shorten(message: &str) -> String {
    const MAX_LENGTH: usize = 500;
    message.chars().take(MAX_LENGTH).map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// Replaces the names of numeric types by the terms of JSON.
fn without_rust_types(message: &str) -> String {
    let message = message.replace("expected f64", "expected a number");
    ["u16", "u32", "u64", "usize"].iter().fold(message, |message, kind| {
        message.replace(&format!("expected {kind}"), "expected a whole number")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ExampleBody {
        #[serde(default)]
        values: BTreeMap<String, f64>,
        #[serde(default)]
        id: Option<u32>,
    }

    #[test]
    fn an_error_names_the_field() {
        for (body, expected) in [
            (
                r#"{"values": {"cpu": "1"}}"#,
                "the body: values.cpu: invalid type: string \"1\", expected a number at line 1 column 22; \
                 give it",
            ),
            (
                r#"{"id": "7"}"#,
                "the body: id: invalid type: string \"7\", expected a whole number at line 1 column 10; give \
                 it",
            ),
            (
                r#"{"ids": 7}"#,
                "the body: unknown field `ids`, expected `values` or `id` at line 1 column 6; give it",
            ),
            (
                "7",
                "the body: invalid type: integer `7`, expected struct ExampleBody at line 1 column 1; give \
                 it",
            ),
            (r#"{"id": 7} {}"#, "the body: trailing characters at line 1 column 11; give it"),
        ] {
            assert_eq!(super::parse::<ExampleBody>(body.as_bytes(), "give it").unwrap_err(), expected);
        }
        let right: ExampleBody = super::parse(br#"{"id": 7, "values": {"cpu": 1}}"#, "").unwrap();
        assert_eq!((right.id, right.values["cpu"]), (Some(7), 1.0));
    }
}
