//! The identity that a credential proves.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
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

impl CredentialKind {
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
    pub kind: CredentialKind,
    /// The user's number, the SPIFFE ID, the token's subject, the ticket's principal, or the signal's name;
    /// empty without a credential.
    pub name: String,
    /// The token's claims that are text or lists of text.
    pub claims: BTreeMap<String, Vec<String>>,
    /// The last second in which the certificate, token or ticket is valid, since 1970.
    pub valid_until: Option<u64>,
}

impl fmt::Display for Caller {
    /// Formats the caller as in grants, where they could name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CredentialKind::Spiffe => f.write_str(&self.name),
            // The issuer determines the name, and it may be shown on a terminal.
            kind => write!(f, "{}:{}", kind.name(), self.name.escape_debug()),
        }
    }
}

impl Caller {
    /// Creates an unauthenticated caller.
    pub fn unauthenticated() -> Self {
        Self::new(CredentialKind::None, String::new())
    }

    /// Creates the user at the other end of a unix socket.
    pub fn unix(uid: u32) -> Self {
        Self::new(CredentialKind::Unix, uid.to_string())
    }

    /// Creates the holder of a verified certificate with this ID.
    pub fn spiffe(id: &str) -> Self {
        Self::new(CredentialKind::Spiffe, id.to_owned())
    }

    /// Creates the subject of a verified token.
    pub fn jwt(subject: &str, claims: BTreeMap<String, Vec<String>>) -> Self {
        Self { claims, ..Self::new(CredentialKind::Jwt, subject.to_owned()) }
    }

    /// Creates the principal of a verified ticket, with its realm.
    pub fn krb5(principal: &str) -> Self {
        Self::new(CredentialKind::Krb5, principal.to_owned())
    }

    /// Creates the sender of a signal.
    pub fn signal(name: &str) -> Self {
        Self::new(CredentialKind::Signal, name.to_owned())
    }

    /// Returns `true` if the caller may do everything, independent of the rules. Only the process' user and
    /// root can open the control socket, which is 0600, or send a signal.
    pub fn is_owner(&self) -> bool {
        matches!(self.kind, CredentialKind::Unix | CredentialKind::Signal)
    }

    /// Returns `true` if the credential has expired. Connections may outlive it.
    pub fn is_expired(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.valid_until.is_some_and(|valid_until| now > valid_until)
    }

    fn new(kind: CredentialKind, name: String) -> Self {
        Self { kind, name, claims: BTreeMap::new(), valid_until: None }
    }
}
