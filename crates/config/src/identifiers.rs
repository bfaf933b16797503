//! Names and other short words with rules of their own.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::text::{TextValue, text};

/// The name of a group. It is used in metric labels, in addresses of the admin side and on terminals, so its
/// characters are the plain ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigName(pub String);

text! {
    ConfigName,
    format: "plimsoll-name",
    what: "a name",
    example: "web",
    pattern: "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
}

impl FromStr for ConfigName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.is_empty() {
            return Err("is empty".into());
        }
        if text.len() > 64 {
            return Err("is too long: a name has at most 64 characters".into());
        }
        if !text.bytes().all(is_allowed) || !text.as_bytes()[0].is_ascii_alphanumeric() {
            return Err("is not a name: letters, digits, `.`, `_` and `-`, a letter or digit first".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ConfigName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The key that binds requests to one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashKey(pub plimsoll_proxy::HashKeySource);

text! {
    HashKey,
    format: "plimsoll-key",
    what: "a key",
    example: "header:X-User",
    pattern: "^(client|path|header:.+|cookie:.+)$",
}

impl FromStr for HashKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        use plimsoll_proxy::HashKeySource as To;
        let token = |name: &str| match name {
            "" => Err(format!("names no {}", text.trim_end_matches(':'))),
            _ if name.bytes().all(is_token) => Ok(name.to_owned()),
            _ => Err(format!("has a character that no {} has", text.split(':').next().unwrap_or_default())),
        };
        Ok(Self(match text {
            "client" => To::Client,
            "path" => To::Path,
            "header" | "cookie" => return Err(format!("names no {text}: write \"{text}:NAME\"")),
            _ => match text.split_once(':') {
                Some(("header", name)) => To::Header(token(name)?.to_ascii_lowercase()),
                Some(("cookie", name)) => To::Cookie(token(name)?),
                _ => return Err("is not a key: there are client, path, header:NAME and cookie:NAME".into()),
            },
        }))
    }
}

impl fmt::Display for HashKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use plimsoll_proxy::HashKeySource as From;
        match &self.0 {
            From::Client => out.write_str("client"),
            From::Path => out.write_str("path"),
            From::Header(name) => write!(out, "header:{name}"),
            From::Cookie(name) => write!(out, "cookie:{name}"),
        }
    }
}

/// The name of a header, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderName(pub String);

text! {
    HeaderName,
    format: "plimsoll-header-name",
    what: "the name of a header",
    example: "priority",
    pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$",
}

impl FromStr for HeaderName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("names no header".into());
        }
        if text.len() > 64 || !text.bytes().all(is_token) {
            return Err("is no name of a header: letters, digits and `-`, at most 64 characters".into());
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for HeaderName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The name of a protocol that HTTP/1.1 connections are upgraded to, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeName(pub String);

text! {
    UpgradeName,
    format: "plimsoll-upgrade-name",
    what: "the name of a protocol",
    example: "websocket",
    pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$",
}

impl FromStr for UpgradeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 64 || !text.bytes().all(is_token) {
            return Err(
                "is no name of a protocol: letters, digits and `-`, at most 64 characters, no version".into(),
            );
        }
        let name = text.to_ascii_lowercase();
        if name == "h2c" {
            return Err("is not relayed: requests inside of such a connection could not be seen".into());
        }
        Ok(Self(name))
    }
}

impl fmt::Display for UpgradeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The name of a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieName(pub String);

text! {
    CookieName,
    format: "plimsoll-cookie-name",
    what: "the name of a cookie",
    example: "plimsoll",
    pattern: "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$",
}

impl FromStr for CookieName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("names no cookie".into()),
            _ if text.len() > 64 || !text.bytes().all(is_token) => {
                Err("is no name of a cookie: letters, digits, `_` and `-`, at most 64 characters".into())
            }
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for CookieName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Returns `true` for a `tchar` of RFC 9110, the characters of header and cookie names.
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The target of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePath(pub String);

text! {
    ProbePath,
    format: "plimsoll-probe-path",
    what: "a path",
    example: "/healthz",
    pattern: "^/[!-~]*$",
}

impl FromStr for ProbePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("is not a path: it begins with `/`".into());
        }
        if text.len() > 2048 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("is not a path: visible ASCII without spaces, at most 2048 characters".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ProbePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The service that gRPC's health service is asked for; empty for the whole server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName(pub String);

text! {
    ServiceName,
    format: "plimsoll-service",
    what: "a service's name",
    example: "shop.Orders",
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > 255 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "is not a service's name: visible ASCII without spaces, at most 255 characters".into()
            );
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The text that a service of the lottery gives to its clients' applications: any words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceText(pub String);

text! {
    ServiceText,
    format: "plimsoll-info",
    what: "words for clients",
    example: "zone=a",
}

impl FromStr for ServiceText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let max_len = plimsoll_cluster::lottery::MAX_INFO_LENGTH;
        if text.len() > max_len {
            return Err(format!("has {} bytes, where {max_len} have room in an answer", text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err("has control characters".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ServiceText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The Host header of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeHost(pub String);

text! {
    ProbeHost,
    format: "plimsoll-probe-host",
    what: "a host",
    example: "app.example.org",
}

impl FromStr for ProbeHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]%".contains(&byte);
        if text.is_empty() || text.len() > 255 || !text.bytes().all(is_allowed) {
            return Err("is not a host name or address with an optional port".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ProbeHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The URL at which clients reach a member themselves: scheme, host and port; the target of a request is
/// appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(pub String);

text! {
    PublicUrl,
    format: "plimsoll-public-url",
    what: "an http or https URL without a path",
    example: "https://one.example.org:8443",
    pattern: "^https?://.+$",
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let Some(host) = host else { return Err("does not begin with http:// or https://".into()) };
        if host.contains('/') {
            return Err("has a path: it ends with the host or port".into());
        }
        host.parse::<ProbeHost>()?;
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A file to append to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

text! {
    FilePath,
    format: "plimsoll-log-path",
    what: "the path of a file",
    example: "/etc/plimsoll/example.conf",
}

impl FromStr for FilePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty".into());
        }
        if text.contains('\0') {
            return Err("contains a NUL byte".into());
        }
        if text.ends_with('/') {
            return Err("is a folder, not a file".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(out)
    }
}

/// The name that clients ask for a host by (SNI), in lower case; `*.` at its beginning stands for one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub String);

text! {
    HostName,
    format: "plimsoll-host-name",
    what: "the name of a host",
    example: "api.example.com",
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (wildcard, rest) = text.strip_prefix("*.").map_or(("", text), |rest| ("*.", rest));
        let Domain(domain) = rest.parse()?;
        Ok(Self(format!("{wildcard}{}", domain.trim_end_matches('.'))))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A domain name. It is kept in lower case, with the dot at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain(pub String);

text! {
    Domain,
    format: "plimsoll-domain",
    what: "a domain name",
    example: "web.example.",
}

impl FromStr for Domain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let without_dot = text.strip_suffix('.').unwrap_or(text);
        if without_dot.is_empty() {
            return Err("is no name".into());
        }
        // Names of members go before it: up to 39 bytes and a dot.
        if without_dot.len() > 200 {
            return Err("is longer than 200 bytes".into());
        }
        for label in without_dot.split('.') {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if label.is_empty() || label.len() > 63 {
                return Err("has a label of no bytes, or of more than 63".into());
            }
            if !label.bytes().all(is_allowed) || label.starts_with('-') || label.ends_with('-') {
                return Err(format!("has the label `{label}`: letters, digits and hyphens within make one"));
            }
        }
        Ok(Self(format!("{}.", without_dot.to_ascii_lowercase())))
    }
}

impl Domain {
    /// Returns it as a host has it in a URL.
    pub fn host(&self) -> Box<str> {
        self.0.trim_end_matches('.').into()
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_rules() {
        assert!("web-1.a_b".parse::<ConfigName>().is_ok());
        for invalid in ["", "-a", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(invalid.parse::<ConfigName>().is_err(), "{invalid}");
        }
        for (valid, displayed) in [
            ("client", "client"),
            ("path", "path"),
            ("header:X-User", "header:x-user"),
            ("cookie:Session", "cookie:Session"),
        ] {
            assert_eq!(valid.parse::<HashKey>().unwrap().to_string(), displayed);
        }
        assert_eq!("WebSocket".parse::<UpgradeName>().unwrap().to_string(), "websocket");
        for invalid in ["", "h2c", "H2C", "TLS/1.0", "a b", "a,b"] {
            assert!(invalid.parse::<UpgradeName>().is_err(), "{invalid}");
        }
        assert_eq!("X-Urgency".parse::<HeaderName>().unwrap().to_string(), "x-urgency");
        for invalid in ["", "a b", "a:", "ä", &"x".repeat(65)] {
            assert!(invalid.parse::<HeaderName>().is_err(), "{invalid}");
        }
        for invalid in ["", "ip", "header", "header:", "cookie:", "header:a b", "cookie:a=b", "query:x"] {
            assert!(invalid.parse::<HashKey>().is_err(), "{invalid}");
        }
        assert_eq!("header:".parse::<HashKey>().unwrap_err(), "names no header");
        assert!("".parse::<ServiceName>().is_ok() && "shop.Orders".parse::<ServiceName>().is_ok());
        assert!("a b".parse::<ServiceName>().is_err());
        assert!(
            "zone=a, rack 7 – ä".parse::<ServiceText>().is_ok()
                && "é".repeat(24).parse::<ServiceText>().is_ok()
        );
        assert!("é".repeat(25).parse::<ServiceText>().is_err() && "a\nb".parse::<ServiceText>().is_err());
        assert!("/healthz?x=1".parse::<ProbePath>().is_ok());
        for invalid in ["", "healthz", "/a b", "/a\r\nX: y", "/ä"] {
            assert!(invalid.parse::<ProbePath>().is_err(), "{invalid}");
        }
        assert!("app:80".parse::<ProbeHost>().is_ok());
        assert!("a\r\nb".parse::<ProbeHost>().is_err());
        assert!("https://one.example.org:8443".parse::<PublicUrl>().is_ok());
        for invalid in ["one:80", "ftp://one", "http://", "http://one/", "http://a b", "http://a\r\nX: y"] {
            assert!(invalid.parse::<PublicUrl>().is_err(), "{invalid}");
        }
        assert!("/var/log/".parse::<FilePath>().is_err());
    }
}
