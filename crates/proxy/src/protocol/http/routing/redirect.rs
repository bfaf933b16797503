//! The URL of a redirect.

use std::borrow::Cow;
use std::io::Write;

use plimsoll_brain::route::PathPattern;

use crate::{RedirectPath, RedirectSettings, RouteSettings};

/// The URL of a request, in the parts that a redirect replaces.
pub(super) struct RequestUrl<'a> {
    pub(super) scheme: &'a str,
    /// The host with an optional port; empty only from HTTP/1.0 clients.
    pub(super) host: &'a [u8],
    pub(super) path: &'a [u8],
    /// The question mark and the query; empty without one.
    pub(super) suffix: &'a [u8],
}

/// Returns the URL to which a route redirects a request.
pub(super) fn location(redirect: &RedirectSettings, route: &RouteSettings, url: &RequestUrl<'_>) -> Vec<u8> {
    let mut location = Vec::with_capacity(128);
    let (name, own_port) = split_port(url.host);
    let host = redirect.host.as_ref().map_or(name, |host| host.as_bytes());
    let keeps_port = redirect.scheme.is_none() && redirect.host.is_none();
    location.extend_from_slice(redirect.scheme.as_deref().unwrap_or(url.scheme).as_bytes());
    location.extend_from_slice(b"://");
    location.extend_from_slice(host);
    match (redirect.port, own_port) {
        (Some(port), _) => {
            // Writing to a vector cannot fail.
            let _ = write!(location, ":{port}");
        }
        (None, Some(port)) if keeps_port => location.extend_from_slice(port),
        (None, _) => {}
    }
    location.extend_from_slice(&new_path(&redirect.path, route, url.path));
    location.extend_from_slice(url.suffix);
    location
}

/// Splits a host into its name and its port with the colon.
pub(super) fn split_port(host: &[u8]) -> (&[u8], Option<&[u8]>) {
    match host.iter().rposition(|byte| *byte == b':') {
        // The colons of an IPv6 address are in brackets.
        Some(colon) if !host[colon..].contains(&b']') => (&host[..colon], Some(&host[colon..])),
        _ => (host, None),
    }
}

/// Returns the path that replaces a request's.
fn new_path<'a>(change: &'a RedirectPath, route: &RouteSettings, path: &'a [u8]) -> Cow<'a, [u8]> {
    match change {
        RedirectPath::Keep => Cow::Borrowed(path),
        RedirectPath::Replace(replacement) => Cow::Borrowed(replacement.as_bytes()),
        RedirectPath::ReplacePrefix(replacement) => {
            let rest = &path[matched_prefix_len(route, path)..];
            match rest {
                b"" if replacement.is_empty() => Cow::Borrowed(&b"/"[..]),
                b"" => Cow::Borrowed(replacement.as_bytes()),
                rest => Cow::Owned([replacement.trim_end_matches('/').as_bytes(), rest].concat()),
            }
        }
    }
}

/// Returns the length of the longest prefix of a route that a path begins with, without a slash at its end.
fn matched_prefix_len(route: &RouteSettings, path: &[u8]) -> usize {
    let lengths = route.rule.paths.iter().filter_map(|pattern| {
        let PathPattern::Prefix(prefix) = pattern else { return None };
        let prefix = prefix.trim_end_matches('/').as_bytes();
        let rest = path.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(prefix.len())
    });
    lengths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::route::RouteRule;

    use super::*;
    use crate::RouteAction;

    fn route(prefix: &str) -> RouteSettings {
        RouteSettings {
            name: "r".into(),
            rule: RouteRule { paths: vec![PathPattern::Prefix(prefix.into())], ..RouteRule::default() },
            action: RouteAction::Forward(Vec::new()),
        }
    }

    #[test]
    fn a_prefix_is_replaced_by_segments() {
        for (prefix, replacement, path, expected) in [
            ("/foo", "/xyz", "/foo/bar", "/xyz/bar"),
            ("/foo", "/xyz/", "/foo/bar", "/xyz/bar"),
            ("/foo/", "/xyz", "/foo/bar", "/xyz/bar"),
            ("/foo", "/xyz", "/foo/", "/xyz/"),
            ("/foo", "/xyz", "/foo", "/xyz"),
            ("/foo", "/xyz/", "/foo", "/xyz/"),
            ("/foo", "/", "/foo/bar", "/bar"),
            ("/foo", "", "/foo/bar", "/bar"),
            ("/foo", "/", "/foo/", "/"),
            ("/foo", "/", "/foo", "/"),
            ("/foo", "", "/foo", "/"),
            ("/", "/v2", "/foo", "/v2/foo"),
        ] {
            let change = RedirectPath::ReplacePrefix(replacement.into());
            let replaced = new_path(&change, &route(prefix), path.as_bytes()).into_owned();
            assert_eq!(String::from_utf8_lossy(&replaced), expected, "{prefix} by {replacement} in {path}");
        }
    }

    #[test]
    fn a_redirect_keeps_what_it_does_not_replace() {
        let keep =
            RedirectSettings { status: 301, scheme: None, host: None, port: None, path: RedirectPath::Keep };
        let https = || Some("https".into());
        for (redirect, host, suffix, expected) in [
            (
                RedirectSettings { scheme: https(), ..keep.clone() },
                "a.example:8080",
                "",
                "https://a.example/x",
            ),
            (RedirectSettings { scheme: https(), ..keep.clone() }, "[::1]:80", "?q=1", "https://[::1]/x?q=1"),
            (
                RedirectSettings { scheme: https(), port: Some(8443), ..keep.clone() },
                "a",
                "",
                "https://a:8443/x",
            ),
            (RedirectSettings { port: Some(81), ..keep.clone() }, "a:80", "", "http://a:81/x"),
            (RedirectSettings { host: Some("b".into()), ..keep.clone() }, "a:80", "", "http://b/x"),
            (
                RedirectSettings { path: RedirectPath::Replace("/y".into()), ..keep.clone() },
                "a:80",
                "?q",
                "http://a:80/y?q",
            ),
        ] {
            let url =
                RequestUrl { scheme: "http", host: host.as_bytes(), path: b"/x", suffix: suffix.as_bytes() };
            let location = location(&redirect, &route("/"), &url);
            assert_eq!(String::from_utf8_lossy(&location), expected);
        }
    }
}
