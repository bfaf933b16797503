//! The identity that a credential proves.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No credential.
    None,
    /// The peer of a unix socket that only its owner may open.
    Unix,
    /// A client certificate with a SPIFFE ID.
    Spiffe,
    /// A signed token.
    Jwt,
    /// A Kerberos ticket.
    Krb5,
    /// A signal, whose sender is unknown.
    Signal,
}

impl Kind {
    /// Returns the name in the audit log.
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

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The kind of its credential.
    pub kind: Kind,
    /// The user's number, the SPIFFE ID, the token's subject, the ticket's principal, or the signal's name;
    /// empty without a credential.
    pub name: String,
    /// The token's claims that are text or lists of text.
    pub claims: BTreeMap<String, Vec<String>>,
    /// The last second in which the certificate, token or ticket is valid, since 1970.
    pub until: Option<u64>,
}

impl fmt::Display for Caller {
    /// Formats the caller as in grants, where they could name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Spiffe => f.write_str(&self.name),
            // The issuer determines the name, and it may be shown on a terminal.
            kind => write!(f, "{}:{}", kind.name(), self.name.escape_debug()),
        }
    }
}

impl Caller {
    /// Creates an unauthenticated caller.
    pub fn nobody() -> Self {
        Self::of(Kind::None, String::new())
    }

    /// Creates the user at the other end of a unix socket.
    pub fn unix(uid: u32) -> Self {
        Self::of(Kind::Unix, uid.to_string())
    }

    /// Creates the holder of a verified certificate with this ID.
    pub fn spiffe(id: &str) -> Self {
        Self::of(Kind::Spiffe, id.to_owned())
    }

    /// Creates the subject of a verified token.
    pub fn jwt(subject: &str, claims: BTreeMap<String, Vec<String>>) -> Self {
        Self { claims, ..Self::of(Kind::Jwt, subject.to_owned()) }
    }

    /// Creates the principal of a verified ticket, with its realm.
    pub fn krb5(principal: &str) -> Self {
        Self::of(Kind::Krb5, principal.to_owned())
    }

    /// Creates the sender of a signal.
    pub fn signal(name: &str) -> Self {
        Self::of(Kind::Signal, name.to_owned())
    }

    /// Returns `true` if the caller may do everything, independent of the rules. Only the process' user and
    /// root can open the control socket, which is 0600, or send a signal.
    pub fn owner(&self) -> bool {
        matches!(self.kind, Kind::Unix | Kind::Signal)
    }

    /// Returns `true` if the credential has expired. Connections may outlive it.
    pub fn ended(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.until.is_some_and(|until| now > until)
    }

    fn of(kind: Kind, name: String) -> Self {
        Self { kind, name, claims: BTreeMap::new(), until: None }
    }
}
