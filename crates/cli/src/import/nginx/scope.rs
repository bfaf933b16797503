//! What a directive means where it stands, and around that. What is looked up is taken.

use std::net::IpAddr;
use std::time::Duration;

use super::super::draft::MemberTls;
use super::super::value;
use super::UNIT;
use super::words::Directive;

/// The innermost first.
#[derive(Clone, Copy)]
pub(super) struct Scope<'d> {
    pub(super) levels: [&'d [&'d Directive]; 3],
}

impl<'d> Scope<'d> {
    /// The last of that name, of the innermost level that has one; the others have no effect here.
    pub(super) fn find(&self, name: &str) -> Option<&'d Directive> {
        self.take(name);
        self.look(name)
    }

    /// As [`find`](Self::find), for somebody who only looks.
    fn look(&self, name: &str) -> Option<&'d Directive> {
        self.levels.iter().find_map(|level| level.iter().rev().find(|one| one.name == name).copied())
    }

    fn take(&self, name: &str) {
        for one in self.levels.iter().flat_map(|level| level.iter()).filter(|one| one.name == name) {
            one.take();
        }
    }

    /// All of that name, of the innermost level that has one.
    pub(super) fn all(&self, name: &str) -> Vec<&'d Directive> {
        self.take(name);
        let levels =
            self.levels.iter().map(|level| level.iter().filter(|one| one.name == name).copied().collect());
        levels.into_iter().find(|found: &Vec<&Directive>| !found.is_empty()).unwrap_or_default()
    }

    /// A length of time, taken if it is one.
    pub(super) fn time(&self, name: &str) -> Option<Duration> {
        let time = value::time(self.look(name)?.first(), UNIT)?;
        self.take(name);
        Some(time)
    }

    /// A number, taken if it is one.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let number = self.look(name)?.first().parse().ok()?;
        self.take(name);
        Some(number)
    }

    /// Does it say this?
    pub(super) fn is(&self, name: &str, word: &str) -> bool {
        self.look(name).is_some_and(|one| one.first() == word)
    }

    /// Do both say the same?
    pub(super) fn same(&self, name: &str, other: &str) -> bool {
        self.look(other).is_some_and(|other| self.is(name, other.first()))
    }

    /// Is it on? Taken if it says that or the contrary.
    pub(super) fn on(&self, name: &str) -> bool {
        let word = self.look(name).map(Directive::first);
        if let Some("on" | "off") = word {
            self.take(name);
        }
        word == Some("on")
    }

    /// A word, taken if it is filled in from nowhere else.
    fn word(&self, name: &str) -> Option<String> {
        let word = self.look(name)?.first();
        if word.contains('$') {
            return None;
        }
        self.take(name);
        Some(word.to_owned())
    }

    /// How members that are called `host` are reached by TLS, if they are.
    pub(super) fn member_tls(&self, host: &str) -> MemberTls {
        let pair = ["proxy_ssl_certificate", "proxy_ssl_certificate_key"];
        let own = match pair.map(|name| self.look(name).is_some()) {
            [true, true] => self.word(pair[0]).zip(self.word(pair[1])),
            _ => None,
        };
        let verify = self.on("proxy_ssl_verify");
        let told = self.on("proxy_ssl_server_name");
        // What they are asked by, and have to prove to be, is what they are called where requests are sent.
        let called = Some(host.rsplit_once(':').map_or(host, |(name, _)| name))
            .filter(|_| (verify || told) && self.look("proxy_ssl_name").is_none())
            .filter(|name| name.parse::<IpAddr>().is_err() && !name.starts_with('['))
            .map(str::to_owned);
        MemberTls {
            verify,
            ca: self.word("proxy_ssl_trusted_certificate").filter(|_| verify),
            server_name: self.word("proxy_ssl_name").or(called),
            own,
        }
    }
}
