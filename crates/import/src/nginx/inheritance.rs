//! The meaning of a directive at its place, and around that. A look-up marks it.

use std::net::IpAddr;
use std::time::Duration;

use super::super::intermediate::DraftMemberTls;
use super::super::value;
use super::UNIT;
use super::tokenizer::NginxDirective;

/// The levels of a place, the innermost first.
#[derive(Clone, Copy)]
pub(super) struct DirectiveScope<'d> {
    pub(super) levels: [&'d [&'d NginxDirective]; 3],
}

impl<'d> DirectiveScope<'d> {
    /// Returns the last of that name, of the innermost level that has one; the others have no effect here.
    pub(super) fn find(&self, name: &str) -> Option<&'d NginxDirective> {
        self.mark_used(name);
        self.peek(name)
    }

    /// Returns the same as [`find`](Self::find), for a caller that only reads.
    fn peek(&self, name: &str) -> Option<&'d NginxDirective> {
        self.levels
            .iter()
            .find_map(|level| level.iter().rev().find(|directive| directive.name == name).copied())
    }

    fn mark_used(&self, name: &str) {
        for directive in
            self.levels.iter().flat_map(|level| level.iter()).filter(|directive| directive.name == name)
        {
            directive.mark_used();
        }
    }

    /// Returns all of that name, of the innermost level that has one.
    pub(super) fn all(&self, name: &str) -> Vec<&'d NginxDirective> {
        self.mark_used(name);
        let levels = self
            .levels
            .iter()
            .map(|level| level.iter().filter(|directive| directive.name == name).copied().collect());
        levels
            .into_iter()
            .find(|directives: &Vec<&NginxDirective>| !directives.is_empty())
            .unwrap_or_default()
    }

    /// Returns a duration, and marks it if it is one.
    pub(super) fn time(&self, name: &str) -> Option<Duration> {
        let time = value::time(self.peek(name)?.first(), UNIT)?;
        self.mark_used(name);
        Some(time)
    }

    /// Returns a number, and marks it if it is one.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let value = self.peek(name)?.first().parse().ok()?;
        self.mark_used(name);
        Some(value)
    }

    /// Returns `true` if it has this value.
    pub(super) fn has_value(&self, name: &str, value: &str) -> bool {
        self.peek(name).is_some_and(|directive| directive.first() == value)
    }

    /// Returns `true` if both have the same value.
    pub(super) fn has_equal_values(&self, name: &str, other_name: &str) -> bool {
        self.peek(other_name).is_some_and(|other_directive| self.has_value(name, other_directive.first()))
    }

    /// Returns `true` if it is on. It is marked if it is on or off.
    pub(super) fn is_on(&self, name: &str) -> bool {
        let value_text = self.peek(name).map(NginxDirective::first);
        if let Some("on" | "off") = value_text {
            self.mark_used(name);
        }
        value_text == Some("on")
    }

    /// Returns a word, and marks it if it has no variable.
    fn word(&self, name: &str) -> Option<String> {
        let value_text = self.peek(name)?.first();
        if value_text.contains('$') {
            return None;
        }
        self.mark_used(name);
        Some(value_text.to_owned())
    }

    /// Returns the TLS settings for members named `host`.
    pub(super) fn member_tls(&self, host: &str) -> DraftMemberTls {
        let key_names = ["proxy_ssl_certificate", "proxy_ssl_certificate_key"];
        let client_certificate = match key_names.map(|name| self.peek(name).is_some()) {
            [true, true] => self.word(key_names[0]).zip(self.word(key_names[1])),
            _ => None,
        };
        let verify = self.is_on("proxy_ssl_verify");
        let sends_name = self.is_on("proxy_ssl_server_name");
        // The name for SNI and for the certificate is that to which requests are sent.
        let server_name = Some(host.rsplit_once(':').map_or(host, |(name, _)| name))
            .filter(|_| (verify || sends_name) && self.peek("proxy_ssl_name").is_none())
            .filter(|name| name.parse::<IpAddr>().is_err() && !name.starts_with('['))
            .map(str::to_owned);
        DraftMemberTls {
            verify,
            ca: self.word("proxy_ssl_trusted_certificate").filter(|_| verify),
            server_name: self.word("proxy_ssl_name").or(server_name),
            client_certificate,
        }
    }
}
