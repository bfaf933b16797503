//! Values that are written as text: each parses itself, prints itself, and describes itself in the schema.

mod made;

pub(super) use made::{TextValue, text};

/// Checks `text` against `format`. Any text is valid for an unknown format: then the schema's type is the
/// only check.
pub(super) fn check(format: &str, text: &str) -> Result<(), String> {
    match FORMATS.iter().find(|(name, ..)| *name == format) {
        Some((_, check, _)) => check(text),
        None => Ok(()),
    }
}

/// Returns whether texts of a format may hold secrets.
pub(super) fn is_secret(format: &str) -> bool {
    FORMATS.iter().any(|(name, _, secret)| *name == format && *secret)
}

type FormatCheck = fn(&str) -> Result<(), String>;

const fn format<T: TextValue>() -> (&'static str, FormatCheck, bool) {
    (T::FORMAT, |text| text.parse::<T>().map(drop), T::SECRET)
}

const FORMATS: &[(&str, FormatCheck, bool)] = &[
    format::<super::TimeSpan>(),
    format::<super::ConfigName>(),
    format::<super::Domain>(),
    format::<super::HostName>(),
    format::<super::HeaderName>(),
    format::<super::UpgradeName>(),
    format::<super::RouteHost>(),
    format::<super::RoutePath>(),
    format::<super::PathPatternText>(),
    format::<super::RouteRegex>(),
    format::<super::MethodName>(),
    format::<super::FieldText>(),
    format::<super::ContentType>(),
    format::<super::CookieName>(),
    format::<super::HashKey>(),
    format::<super::ListenAddress>(),
    format::<super::MemberAddress>(),
    format::<super::Network>(),
    format::<super::AdminListen>(),
    format::<super::ControlAddress>(),
    format::<super::access::IdentityPattern>(),
    format::<super::access::VerbName>(),
    format::<super::auth::TrustDomain>(),
    format::<super::auth::JwksUrl>(),
    format::<super::access::AllGroups>(),
    format::<super::acme::DirectoryUrl>(),
    format::<super::trace::CollectorUrl>(),
    format::<super::trace::HeaderLine>(),
    format::<super::ProbePath>(),
    format::<super::ServiceName>(),
    format::<super::ServiceText>(),
    format::<super::ProbeHost>(),
    format::<super::PublicUrl>(),
    format::<super::FilePath>(),
    format::<super::FolderPath>(),
    format::<super::EnvironmentVariable>(),
    format::<super::ExpressionText>(),
    format::<super::MonitorUrl>(),
    format::<super::PageUrl>(),
    format::<super::MetricText>(),
    format::<super::CgroupName>(),
    format::<super::RepositoryId>(),
    format::<super::ObjectKey>(),
    format::<super::ObjectReference>(),
    format::<super::MemberLocation>(),
    format::<super::store::EtcdUrl>(),
    format::<super::store::KeyPrefix>(),
    format::<super::discover::kubernetes::KubernetesName>(),
    format::<super::scaler::HostAddress>(),
    format::<super::scaler::PortRange>(),
    format::<super::scaler::UnitTemplate>(),
];

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn the_schema_names_only_formats_that_are_checked() {
        fn walk(schema: &Value, format_count: &mut usize) {
            match schema {
                Value::Object(map) => {
                    if let Some(Value::String(format)) = map.get("format")
                        && map.get("type").is_some_and(|kind| kind == "string")
                    {
                        *format_count += 1;
                        assert!(super::FORMATS.iter().any(|(name, ..)| name == format), "{format}");
                    }
                    map.values().for_each(|value| walk(value, format_count));
                }
                Value::Array(items) => items.iter().for_each(|value| walk(value, format_count)),
                _ => {}
            }
        }
        let mut format_count = 0;
        walk(crate::schema().as_value(), &mut format_count);
        assert!(format_count > 20, "{format_count}");
    }
}
