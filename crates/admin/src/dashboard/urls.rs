//! The addresses of pages: formats and parses paths of the dashboard.

use std::fmt::Write as _;

/// The root of all pages.
pub(crate) const ROOT: &str = "/dashboard";

/// A page, or a resource of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PageUrl {
    /// All groups.
    Home,
    Group(String),
    Member {
        group: String,
        member: String,
    },
    /// The capacity model of a group.
    WhatIf(String),
    /// The event log.
    Events,
    /// One decision.
    Event(u64),
    /// Listeners, certificates, the process.
    Process,
    /// An action: the description of its effect, and the form that executes it.
    Action,
    /// Parts of a page, as they change.
    Live,
    SignIn,
    SignOut,
    Asset(String),
}

/// Returns `true` for a path of the dashboard.
pub(crate) fn is_dashboard_path(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl PageUrl {
    /// Parses a path.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix(ROOT)?;
        let segments: Vec<&str> = rest.split('/').skip(1).collect();
        let group = |name: &str| percent_decode(name).filter(|name| !name.is_empty());
        Some(match segments.as_slice() {
            [] | [""] => Self::Home,
            ["groups", name] => Self::Group(group(name)?),
            ["groups", name, "what-if"] => Self::WhatIf(group(name)?),
            ["groups", name, "members", member] => {
                Self::Member { group: group(name)?, member: group(member)? }
            }
            ["events"] => Self::Events,
            ["events", seq] => Self::Event(seq.parse().ok()?),
            ["process"] => Self::Process,
            ["act"] => Self::Action,
            ["live"] => Self::Live,
            ["sign-in"] => Self::SignIn,
            ["sign-out"] => Self::SignOut,
            ["assets", name] => Self::Asset((*name).to_owned()),
            _ => return None,
        })
    }

    /// Returns `true` if the page is updated live.
    pub(super) fn is_live(&self) -> bool {
        matches!(self, Self::Home | Self::Group(_) | Self::Member { .. } | Self::Events | Self::Process)
    }
}

/// Returns the address of a group's page.
pub(super) fn group_url(group: &str) -> String {
    format!("{ROOT}/groups/{}", percent_encode(group))
}

/// Returns the address of a member's page.
pub(super) fn member_url(group: &str, member: &str) -> String {
    format!("{}/members/{}", group_url(group), percent_encode(member))
}

/// Returns the address of an event's page.
pub(super) fn event_url(seq: u64) -> String {
    format!("{ROOT}/events/{seq}")
}

/// Returns the address of the page that describes the effect of an action.
pub(super) fn action_url(action: &str, fields: &[(&str, &str)]) -> String {
    let mut path = format!("{ROOT}/act?do={}", percent_encode(action));
    for (name, value) in fields {
        let _ = write!(path, "&{name}={}", percent_encode(value));
    }
    path
}

/// Escapes a text for a path or query.
pub(super) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                out.push(char::from(byte))
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Decodes a part of a path or query; `None` if it is invalid.
fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(16 * high + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// Parses the valid fields of a form or a query.
pub(super) fn parse_fields(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| percent_decode(&text.replace('+', " "));
        Some((decode(name)?, decode(value)?))
    };
    text.split('&').filter(|text| !text.is_empty()).filter_map(pair).collect()
}

/// Returns the first field with that name, unless it is empty.
pub(super) fn first_field<'f>(fields: &'f [(String, String)], name: &str) -> Option<&'f str> {
    fields
        .iter()
        .find(|(field_name, _)| field_name == name)
        .map(|(_, value)| value.as_str())
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds_have_pages() {
        for name in [
            "web",
            "10.0.0.1:80",
            "[fd00::5]:80",
            "a/b?c#d e",
            "<script>alert(1)</script>",
            "größe",
            "%2f",
            "odd \"\\\n one",
        ] {
            assert_eq!(PageUrl::parse(&group_url(name)), Some(PageUrl::Group(name.into())), "{name}");
            let member = PageUrl::Member { group: name.into(), member: name.into() };
            assert_eq!(PageUrl::parse(&member_url(name, name)), Some(member), "{name}");
            assert!(
                member_url(name, name)
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b"<>\"'\\".contains(&byte))
            );
            let path = action_url("drain", &[("group", name), ("member", "a")]);
            let fields = parse_fields(path.split_once('?').unwrap().1);
            assert_eq!(first_field(&fields, "group"), Some(name));
            assert_eq!(first_field(&fields, "do"), Some("drain"));
        }
    }

    #[test]
    fn there_is_nothing_else() {
        assert!(
            is_dashboard_path("/dashboard")
                && is_dashboard_path("/dashboard/x")
                && !is_dashboard_path("/dashboards")
                && !is_dashboard_path("/")
        );
        assert_eq!(PageUrl::parse("/dashboard"), Some(PageUrl::Home));
        assert_eq!(PageUrl::parse("/dashboard/"), Some(PageUrl::Home));
        assert_eq!(PageUrl::parse("/dashboard/events/7"), Some(PageUrl::Event(7)));
        for path in [
            "/dashboard/x",
            "/dashboard/groups/",
            "/dashboard/groups/a/b",
            "/dashboard/events/x",
            "/dashboard/groups/%",
            "/dashboard/groups/%ff",
            "/dashboard/assets/a/b",
        ] {
            assert_eq!(PageUrl::parse(path), None, "{path}");
        }
        assert_eq!(
            parse_fields("a=1+2&b&c=%zz&=x"),
            [("a".into(), "1 2".into()), ("b".into(), String::new()), (String::new(), "x".into())]
        );
    }
}
