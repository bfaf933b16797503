//! Patterns that select the callers of a grant.
//!
//! ```text
//! spiffe://example.org/ops/alice    this ID
//! spiffe://example.org/ops/*        every ID below
//! jwt:alice                         the token's subject
//! jwt:groups=sre                    a claim that is this text, or a list with it
//! krb5:alice@EXAMPLE.ORG            the principal of a Kerberos ticket
//! ```

use std::fmt;
use std::str::FromStr;

use super::{Caller, CredentialKind};

/// A pattern of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerPattern {
    /// A client certificate with this ID.
    Spiffe(String),
    /// A client certificate whose ID has this prefix, which ends in `/`.
    SpiffePrefix(String),
    /// A token with this subject.
    Subject(String),
    /// A token with this claim.
    Claim(String, String),
    /// A Kerberos ticket with this principal.
    Principal(String),
}

impl CallerPattern {
    /// Returns `true` if the caller matches.
    pub fn matches(&self, caller: &Caller) -> bool {
        match self {
            Self::Spiffe(id) => caller.kind == CredentialKind::Spiffe && caller.name == *id,
            Self::SpiffePrefix(prefix) => {
                caller.kind == CredentialKind::Spiffe
                    && caller.name.strip_prefix(prefix.as_str()).is_some_and(|rest| !rest.is_empty())
            }
            Self::Subject(name) => caller.kind == CredentialKind::Jwt && caller.name == *name,
            Self::Claim(key, value) => {
                let claim_values = caller.claims.get(key);
                caller.kind == CredentialKind::Jwt
                    && claim_values.is_some_and(|claim_values| claim_values.contains(value))
            }
            Self::Principal(name) => caller.kind == CredentialKind::Krb5 && caller.name == *name,
        }
    }
}

impl FromStr for CallerPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(token) = text.strip_prefix("jwt:") {
            return match token.split_once('=') {
                _ if token.is_empty() => Err("names nobody: write jwt:SUBJECT or jwt:CLAIM=VALUE".into()),
                Some((key, value)) if key.is_empty() || value.is_empty() => {
                    Err("has an empty claim: write jwt:CLAIM=VALUE".into())
                }
                Some((key, value)) => Ok(Self::Claim(key.into(), value.into())),
                None if token.contains('*') => Err("has a star, which only ends a spiffe id".into()),
                None => Ok(Self::Subject(token.into())),
            };
        }
        if let Some(name) = text.strip_prefix("krb5:") {
            check_principal(name)?;
            return Ok(Self::Principal(name.into()));
        }
        if !text.starts_with("spiffe://") {
            return Err(
                "is neither spiffe://DOMAIN/PATH nor jwt:SUBJECT nor jwt:CLAIM=VALUE nor krb5:NAME@REALM"
                    .into(),
            );
        }
        match text.strip_suffix('*') {
            Some(prefix) if !prefix.ends_with('/') || prefix == "spiffe://" => {
                Err("has a star within a word: it stands for whole words, as in spiffe://example.org/ops/*"
                    .into())
            }
            Some(prefix) => {
                let rest = prefix.strip_prefix("spiffe://").unwrap_or_default();
                let (name, path) = rest.split_once('/').unwrap_or_default();
                match path.strip_suffix('/') {
                    Some(path) => check_id(name, path)?,
                    None => check_trust_domain(name)?,
                }
                Ok(Self::SpiffePrefix(prefix.into()))
            }
            None => {
                spiffe_id(text)?;
                Ok(Self::Spiffe(text.into()))
            }
        }
    }
}

impl fmt::Display for CallerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spiffe(id) => f.write_str(id),
            Self::SpiffePrefix(prefix) => write!(f, "{prefix}*"),
            Self::Subject(name) => write!(f, "jwt:{name}"),
            Self::Claim(key, value) => write!(f, "jwt:{key}={value}"),
            Self::Principal(name) => write!(f, "krb5:{name}"),
        }
    }
}

/// Returns the trust domain of a valid SPIFFE ID of a workload, by the SPIFFE standard ("The SPIFFE Identity
/// and Verifiable Identity Document", section 2).
///
/// # Errors
/// The reason why it is invalid, as text that follows the ID.
pub fn spiffe_id(text: &str) -> Result<&str, String> {
    let rest = text.strip_prefix("spiffe://").ok_or("does not begin with spiffe://")?;
    if text.len() > 2048 {
        return Err("is longer than 2048 bytes".into());
    }
    let (domain, path) = rest.split_once('/').ok_or("has no path: write spiffe://DOMAIN/PATH")?;
    check_id(domain, path)?;
    Ok(domain)
}

/// Checks the name of a trust domain.
///
/// # Errors
/// The reason why it is invalid, as text that follows the name.
pub fn trust_domain(text: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    if text.is_empty() || text.len() > 255 || !text.bytes().all(is_allowed) {
        return Err("is not a trust domain: small letters, digits, dots, dashes and underscores".into());
    }
    Ok(())
}

/// Checks a principal, `NAME@REALM`, whose name may have parts (`alice/admin`).
fn check_principal(name: &str) -> Result<(), String> {
    // Tickets of other realms may be accepted, too, so the realm is required.
    let (user, realm) = name.rsplit_once('@').ok_or("names no realm: write krb5:NAME@REALM")?;
    if user.is_empty() || realm.is_empty() {
        return Err("names nobody: write krb5:NAME@REALM".into());
    }
    if name.contains('*') {
        return Err("has a star, which only ends a spiffe id".into());
    }
    if user.contains('@') || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("is not a principal: write krb5:NAME@REALM".into());
    }
    Ok(())
}

fn check_trust_domain(name: &str) -> Result<(), String> {
    trust_domain(name).map_err(|_| format!("has a malformed trust domain `{name}`"))
}

fn check_id(name: &str, path: &str) -> Result<(), String> {
    check_trust_domain(name)?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_valid_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_allowed);
    if !path.split('/').all(is_valid_segment) {
        return Err(
            "has a malformed path: letters, digits, dots, dashes and underscores between slashes".into()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_shown() {
        for text in [
            "spiffe://example.org/ops/alice",
            "spiffe://example.org/*",
            "jwt:alice@example.org",
            "jwt:groups=a=b",
            "krb5:alice@EXAMPLE.ORG",
            "krb5:alice/admin@EXAMPLE.ORG",
        ] {
            assert_eq!(text.parse::<CallerPattern>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, expected_reason) in [
            ("alice", "neither"),
            ("jwt:", "names nobody"),
            ("jwt:=x", "empty claim"),
            ("jwt:a*", "a star"),
            ("krb5:alice", "no realm"),
            ("krb5:@EXAMPLE.ORG", "names nobody"),
            ("krb5:alice@", "names nobody"),
            ("krb5:*@EXAMPLE.ORG", "a star"),
            ("krb5:a@b@C", "not a principal"),
            ("krb5:a b@C", "not a principal"),
            ("spiffe://*", "within a word"),
            ("spiffe://example.org/op*", "within a word"),
            ("spiffe://Example.org/ops", "malformed trust domain"),
            ("spiffe://example.org", "no path"),
            ("spiffe://example.org/", "malformed path"),
            ("spiffe://example.org/a//b", "malformed path"),
            ("spiffe://example.org/a/../b", "malformed path"),
            ("spiffe://example.org/a%2fb", "malformed path"),
            ("spiffe://example.org//*", "malformed path"),
            ("spiffe://user@example.org/a", "malformed trust domain"),
            ("spiffe://example.org:80/a", "malformed trust domain"),
        ] {
            let error = text.parse::<CallerPattern>().unwrap_err();
            assert!(error.contains(expected_reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_star_is_for_what_is_below() {
        let pattern: CallerPattern = "spiffe://example.org/ops/*".parse().unwrap();
        let matches_id = |id: &str| pattern.matches(&Caller::spiffe(id));
        assert!(matches_id("spiffe://example.org/ops/a") && matches_id("spiffe://example.org/ops/a/b"));
        assert!(!matches_id("spiffe://example.org/ops") && !matches_id("spiffe://example.org/opsx/a"));
        assert!(!matches_id("spiffe://example.com/ops/a"));
        assert!(!pattern.matches(&Caller::jwt("spiffe://example.org/ops/a", Default::default())));
    }

    #[test]
    fn a_principal_is_that_of_a_ticket_to_the_letter() {
        let pattern: CallerPattern = "krb5:alice@EXAMPLE.ORG".parse().unwrap();
        assert!(pattern.matches(&Caller::krb5("alice@EXAMPLE.ORG")));
        for other_principal in
            ["alice@EXAMPLE.COM", "alice/admin@EXAMPLE.ORG", "Alice@EXAMPLE.ORG", "alice", ""]
        {
            assert!(!pattern.matches(&Caller::krb5(other_principal)), "{other_principal}");
        }
        let same_name = Caller::jwt("alice@EXAMPLE.ORG", Default::default());
        let token: CallerPattern = "jwt:alice@EXAMPLE.ORG".parse().unwrap();
        assert!(!pattern.matches(&same_name) && token.matches(&same_name));
        assert!(!token.matches(&Caller::krb5("alice@EXAMPLE.ORG")));
    }
}
