//! The texts of conditions: hosts, paths, methods, values and regular expressions.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use plimsoll_brain::route::{HostPattern, ValueRegex};
use plimsoll_wire::http1::{normal_path, other_readings};

use crate::identifiers::is_token;
use crate::text::{TextValue, text};

/// A host of a route, in lower case: a name, an IP address, or `*.` and a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteHost(pub String);

text! {
    RouteHost,
    format: "plimsoll-route-host",
    what: "a host",
    example: "api.example.org",
}

impl FromStr for RouteHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty: leave `host` out to match every host".into());
        }
        if text == "*" {
            return Err("matches every host: leave `host` out".into());
        }
        if let Some(name) = text.strip_prefix('.') {
            return Err(format!("begins with a dot: write \"*.{name}\", and \"{name}\" besides"));
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        if name.contains('*') {
            return Err("has `*` in the middle: only the first label can be `*`".into());
        }
        if name.contains("://") {
            return Err("is a URL: write the host alone".into());
        }
        let is_address = text.starts_with('[') && text.ends_with(']');
        if text.parse::<std::net::Ipv6Addr>().is_ok() {
            return Err(format!("needs brackets: write \"[{text}]\""));
        }
        if name.contains(':') && !is_address {
            return Err("has a port, which is not matched: write the host alone".into());
        }
        if name.contains('/') || !plimsoll_wire::http1::is_host(name.as_bytes()) {
            return Err("is not a host".into());
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl RouteHost {
    /// Returns the pattern.
    pub(super) fn pattern(&self) -> HostPattern {
        match self.0.strip_prefix('*') {
            Some(suffix) => HostPattern::Suffix(suffix.into()),
            None => HostPattern::Exact(self.0.as_str().into()),
        }
    }
}

/// A path, or a prefix of paths, in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePath(pub String);

text! {
    RoutePath,
    format: "plimsoll-route-path",
    what: "a path",
    example: "/v1/",
    pattern: "^/[^?#]*$",
}

impl FromStr for RoutePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("does not begin with `/`".into());
        }
        if text.contains(['?', '#']) {
            return Err("has a query or a fragment: write the path alone".into());
        }
        if text.contains('*') {
            return Err("has `*`: `path` is a prefix already, and `path_regex` takes patterns".into());
        }
        match normal_path(text.as_bytes()) {
            Err(error) => Err(format!("is not a path: {error}")),
            Ok(Cow::Borrowed(_)) if !text.is_ascii() => {
                Err("has a character that URLs have as an escape, such as %C3%A4 for ä".into())
            }
            Ok(Cow::Borrowed(path)) if other_readings(path).is_ok_and(|paths| paths.is_empty()) => {
                Ok(Self(text.to_owned()))
            }
            Ok(Cow::Borrowed(_)) => {
                Err("has `;`, `\\` or an escaped slash, which servers read in several ways".into())
            }
            Ok(Cow::Owned(normal)) => Err(format!(
                "is not in normal form, on which paths are matched: write \"{}\"",
                String::from_utf8_lossy(&normal)
            )),
        }
    }
}

/// A method, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodName(pub String);

text! {
    MethodName,
    format: "plimsoll-method",
    what: "a method",
    example: "GET",
    pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}$",
}

impl FromStr for MethodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 32 || !text.bytes().all(is_token) {
            return Err("is not a method".into());
        }
        let upper = text.to_ascii_uppercase();
        let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"];
        if text != upper && known.contains(&upper.as_str()) {
            return Err(format!(
                "is in lower case, and methods are compared with their case: write \"{upper}\""
            ));
        }
        if upper == "CONNECT" {
            return Err("is not relayed: WebSockets over HTTP/2 count as GET".into());
        }
        Ok(Self(text.to_owned()))
    }
}

/// The value of a header, a query parameter or a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldText(pub String);

text! {
    FieldText,
    format: "plimsoll-field-value",
    what: "a value",
    example: "yes",
}

impl FromStr for FieldText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > 4096 {
            return Err("is too long: a value has at most 4096 bytes".into());
        }
        if text.chars().any(char::is_control) {
            return Err("has a control character, which no value has".into());
        }
        if text.trim() != text {
            return Err("has white space at an end, which no value has".into());
        }
        Ok(Self(text.to_owned()))
    }
}

/// The media type of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentType(pub String);

text! {
    ContentType,
    format: "plimsoll-content-type",
    what: "a media type",
    example: "text/html; charset=utf-8",
}

impl FromStr for ContentType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (main, sub) = text.split(';').next().unwrap_or_default().split_once('/').unwrap_or_default();
        let is_name = |name: &str| !name.is_empty() && name.trim_end().bytes().all(is_token);
        let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if text.len() > 256 || !is_name(main) || !is_name(sub) || !text.bytes().all(is_visible) {
            return Err("is not a media type".into());
        }
        Ok(Self(text.to_owned()))
    }
}

/// A regular expression for a whole value.
#[derive(Clone, Debug)]
pub struct RouteRegex(pub ValueRegex);

/// A regular expression for a whole path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPatternText(pub RouteRegex);

text! {
    RouteRegex,
    format: "plimsoll-regex",
    what: "a regular expression",
    example: "[0-9]+",
}

text! {
    PathPatternText,
    format: "plimsoll-path-regex",
    what: "a regular expression for paths",
    example: "/users/[0-9]+/.*",
}

impl FromStr for RouteRegex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ValueRegex::new(text).map(Self).map_err(|error| format!("cannot be used: {error}"))
    }
}

impl FromStr for PathPatternText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(|first: char| first.is_ascii_alphanumeric()) && !text.contains('|') {
            return Err("matches no path: each begins with `/`".into());
        }
        Ok(Self(text.parse()?))
    }
}

impl PartialEq for RouteRegex {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl fmt::Display for RouteRegex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0.as_str())
    }
}

impl fmt::Display for PathPatternText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

macro_rules! plain_display {
    ($($type:ty),*) => {
        $(impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        })*
    };
}

plain_display!(RouteHost, RoutePath, MethodName, FieldText, ContentType);
