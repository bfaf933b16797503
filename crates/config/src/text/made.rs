//! A value that is written as text, and the traits that follow from its parser and its printer.

/// A value written as a string.
///
/// `FromStr` gives the reason for people when it fails, so that it reads after the key: "`interval` has no
/// unit".
pub(crate) trait TextValue: std::str::FromStr<Err = String> + std::fmt::Display {
    /// Its name in the schema, by which [`check`](super::check) finds it.
    const FORMAT: &'static str;
    /// Whether it may hold a secret, so that messages do not quote it.
    const SECRET: bool = false;
}

/// Derives the serde and schema sides of a [`TextValue`] type from its `FromStr` and `Display`.
macro_rules! text {
    ($type:ty, format: $format:literal, what: $what:literal, example: $example:literal
     $(, pattern: $pattern:literal)? $(, secret: $secret:literal)? $(,)?) => {
        impl TextValue for $type {
            const FORMAT: &'static str = $format;
            $(const SECRET: bool = $secret;)?
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(|why| match <Self as TextValue>::SECRET {
                    // The error may be written to a log.
                    true => serde::de::Error::custom(format_args!("the value {why}")),
                    false => serde::de::Error::custom(format_args!("`{text}` {why}")),
                })
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $format.into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "title": $what,
                    "format": $format,
                    $("pattern": $pattern,)?
                    "examples": [$example],
                })
            }
        }
    };
}
pub(in super::super) use text;
