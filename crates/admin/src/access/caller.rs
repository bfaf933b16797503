//! Whom a credential proved.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// What kind of credential it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None.
    None,
    /// The peer of a unix socket that only its owner may open.
    Unix,
    /// A client certificate with a SPIFFE id.
    Spiffe,
    /// A signed token.
    Jwt,
    /// A Kerberos ticket.
    Krb5,
    /// A signal, whose sender is not known.
    Signal,
}

impl Kind {
    /// As the audit log says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unix => "unix",
            Self::Spiffe => "spiffe",
            Self::Jwt => "jwt",
            Self::Krb5 => "krb5",
            Self::Signal => "signal",
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// How that is known.
    pub kind: Kind,
    /// The user's number, the SPIFFE id, the subject of the token, the principal of the ticket, the name of the signal; empty
    /// for nobody.
    pub name: String,
    /// Of a token: its claims that are text or lists of text.
    pub claims: BTreeMap<String, Vec<String>>,
    /// Of a certificate, a token or a ticket: the last second in which it counts, since 1970.
    pub until: Option<u64>,
}

impl fmt::Display for Caller {
    /// As grants write it, where they could name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Spiffe => f.write_str(&self.name),
            // Whatever the issuer lets in: it may be shown on a terminal.
            kind => write!(f, "{}:{}", kind.name(), self.name.escape_debug()),
        }
    }
}

impl Caller {
    /// Somebody who proved nothing.
    pub fn nobody() -> Self {
        Self::of(Kind::None, String::new())
    }

    /// The user at the other end of a unix socket.
    pub fn unix(uid: u32) -> Self {
        Self::of(Kind::Unix, uid.to_string())
    }

    /// Whoever has the certificate of this id, which was checked.
    pub fn spiffe(id: &str) -> Self {
        Self::of(Kind::Spiffe, id.to_owned())
    }

    /// The subject of a token that was checked.
    pub fn jwt(subject: &str, claims: BTreeMap<String, Vec<String>>) -> Self {
        Self { claims, ..Self::of(Kind::Jwt, subject.to_owned()) }
    }

    /// The principal of a ticket that was checked, with its realm.
    pub fn krb5(principal: &str) -> Self {
        Self::of(Kind::Krb5, principal.to_owned())
    }

    /// Whoever sent the process a signal.
    pub fn signal(name: &str) -> Self {
        Self::of(Kind::Signal, name.to_owned())
    }

    /// May it do everything, whatever the rules say? Who can open the control socket, which is 0600, or send the process
    /// a signal, is its user or root.
    pub fn owner(&self) -> bool {
        matches!(self.kind, Kind::Unix | Kind::Signal)
    }

    /// Does the credential count no more? Connections may outlive it.
    pub fn ended(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.until.is_some_and(|until| now > until)
    }

    fn of(kind: Kind, name: String) -> Self {
        Self { kind, name, claims: BTreeMap::new(), until: None }
    }
}
