//! Values that are written as text: each parses itself, prints itself, and says in the schema what it is.

/// A value written as a string.
///
/// `FromStr` gives the reason for people when it fails, so that it reads after the key: "`interval` has no
/// unit".
pub(crate) trait Text: std::str::FromStr<Err = String> + std::fmt::Display {
    /// Its name in the schema, by which [`check`] finds it.
    const FORMAT: &'static str;
    /// It may hold a secret, so that messages do not quote it.
    const SECRET: bool = false;
}

/// Is `text` what `format` asks for? True if there is no such format: then the schema's type is all there is.
pub(super) fn check(format: &str, text: &str) -> Result<(), String> {
    match FORMATS.iter().find(|(name, ..)| *name == format) {
        Some((_, check, _)) => check(text),
        None => Ok(()),
    }
}

/// Tells whether texts of a format may hold secrets.
pub(super) fn secret(format: &str) -> bool {
    FORMATS.iter().any(|(name, _, secret)| *name == format && *secret)
}

type Check = fn(&str) -> Result<(), String>;

const fn format<T: Text>() -> (&'static str, Check, bool) {
    (T::FORMAT, |text| text.parse::<T>().map(drop), T::SECRET)
}

const FORMATS: &[(&str, Check, bool)] = &[
    format::<super::TimeSpan>(),
    format::<super::Name>(),
    format::<super::Domain>(),
    format::<super::HostName>(),
    format::<super::HeaderName>(),
    format::<super::UpgradeName>(),
    format::<super::CookieName>(),
    format::<super::Key>(),
    format::<super::ListenAddress>(),
    format::<super::MemberAddress>(),
    format::<super::Network>(),
    format::<super::AdminListen>(),
    format::<super::Control>(),
    format::<super::access::Identity>(),
    format::<super::access::VerbName>(),
    format::<super::credential::TrustDomain>(),
    format::<super::credential::KeysUrl>(),
    format::<super::access::AllGroups>(),
    format::<super::acme::DirectoryUrl>(),
    format::<super::trace::CollectorUrl>(),
    format::<super::trace::HeaderLine>(),
    format::<super::ProbePath>(),
    format::<super::ServiceName>(),
    format::<super::Info>(),
    format::<super::ProbeHost>(),
    format::<super::PublicUrl>(),
    format::<super::LogPath>(),
    format::<super::Folder>(),
    format::<super::Variable>(),
    format::<super::Formula>(),
    format::<super::MonitorUrl>(),
    format::<super::PageUrl>(),
    format::<super::MetricText>(),
    format::<super::CgroupName>(),
    format::<super::TypeId>(),
    format::<super::ObjectKey>(),
    format::<super::Reference>(),
    format::<super::MemberLocation>(),
    format::<super::store::EtcdUrl>(),
    format::<super::store::KeyPrefix>(),
    format::<super::discover::kubernetes::Label>(),
    format::<super::scaler::HostAddress>(),
    format::<super::scaler::PortRange>(),
    format::<super::scaler::Template>(),
];

/// Derives the serde and schema sides of a [`Text`] type from its `FromStr` and `Display`.
macro_rules! text {
    ($type:ty, format: $format:literal, what: $what:literal, example: $example:literal
     $(, pattern: $pattern:literal)? $(, secret: $secret:literal)? $(,)?) => {
        impl Text for $type {
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
                text.parse().map_err(|why| match <Self as Text>::SECRET {
                    // It may stand in a log.
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
pub(super) use text;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn the_schema_names_only_formats_that_are_checked() {
        fn walk(schema: &Value, found: &mut usize) {
            match schema {
                Value::Object(map) => {
                    if let Some(Value::String(format)) = map.get("format")
                        && map.get("type").is_some_and(|kind| kind == "string")
                    {
                        *found += 1;
                        assert!(super::FORMATS.iter().any(|(name, ..)| name == format), "{format}");
                    }
                    map.values().for_each(|value| walk(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let mut found = 0;
        walk(crate::config::schema().as_value(), &mut found);
        assert!(found > 20, "{found}");
    }
}
