//! The settings of one certificate and its authority.

use std::fmt::{self, Display, Formatter, Write as _};
use std::path::PathBuf;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::{CertificateCache, TrustRoots};

/// The settings of one wanted certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateSettings {
    /// The names that it is for, in lower case; at least one. The first becomes part of its file name.
    pub domains: Vec<String>,
    /// The URL of the authority's directory.
    pub directory: DirectoryUrl,
    /// The root certificates that the authority's own TLS certificate must chain to.
    pub trust: TrustRoots,
    /// The URLs by which the authority reaches a person.
    pub contact: Vec<String>,
    /// The existing account at the authority that the new ACME account is bound to.
    pub binding: Option<AccountBinding>,
    /// The challenge that proves control of the names.
    pub method: ChallengeMethod,
    /// The type of the certificate's key.
    pub key_type: KeyType,
    /// The authority's name of the certificate profile; `None` selects its default.
    pub profile: Option<String>,
    /// The folder that stores the account and the certificates.
    pub cache: PathBuf,
}

impl CertificateSettings {
    /// Returns the certificate's identifier, the path of its file. Settings with equal identifiers are for
    /// the same certificate.
    pub fn id(&self) -> String {
        self.cache.join(self.certificate_file()).display().to_string()
    }

    /// Returns the names as a comma-separated list.
    pub fn names_text(&self) -> String {
        self.domains.join(", ")
    }

    /// Returns the stored private key and chain in PEM form, if the folder has them.
    pub fn stored_pem(&self) -> Option<Vec<u8>> {
        CertificateCache::new(&self.cache).read(&self.certificate_file()).ok().flatten()
    }

    /// Returns the certificate's file name, derived from the first name, the authority and the key type.
    pub(crate) fn certificate_file(&self) -> String {
        let first_domain = self.domains.first().map_or("", String::as_str);
        let suffix = short_hash(&[self.directory.as_str(), first_domain, self.key_type.name()]);
        format!("{first_domain}-{suffix}.pem")
    }

    /// Returns the account's file name, derived from the authority and the external account.
    pub(crate) fn account_file(&self) -> String {
        let binding_id = self.binding.as_ref().map_or("", |binding| binding.id.as_str());
        format!(
            "account-{}-{}.json",
            self.directory.host(),
            short_hash(&[self.directory.as_str(), binding_id])
        )
    }
}

/// Returns a short hash of `parts` that is stable across versions.
fn short_hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(6).fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The URL of an authority's directory, by https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryUrl {
    url: String,
    host: String,
}

impl DirectoryUrl {
    /// Returns the URL as written.
    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// Returns the host, for messages and file names.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl FromStr for DirectoryUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with("https://") {
            return Err("does not begin with https://".into());
        }
        let uri: http::Uri = text.parse().map_err(|error| format!("is no URL: {error}"))?;
        let host = uri.host().map(|host| host.trim_matches(['[', ']'])).unwrap_or_default();
        if host.is_empty() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("has no host that could be asked".into());
        }
        Ok(Self { url: text.to_owned(), host: host.to_ascii_lowercase() })
    }
}

impl Display for DirectoryUrl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// An external account that the authority knows already (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct AccountBinding {
    /// The authority's identifier of the account.
    pub id: String,
    /// The MAC key that the authority issued with it.
    pub key: Vec<u8>,
}

impl fmt::Debug for AccountBinding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The challenge that proves control of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeMethod {
    /// `tls-alpn-01` (RFC 8737): a certificate on port 443.
    Tls,
    /// `http-01` (RFC 8555, section 8.3): a page on port 80.
    Http,
}

/// The type of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// ECDSA on P-256.
    P256,
    /// ECDSA on P-384.
    P384,
    /// RSA with 2048 bits, for old clients.
    Rsa2048,
}

impl KeyType {
    /// Returns the name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::P256 => "ecdsa-p256",
            Self::P384 => "ecdsa-p384",
            Self::Rsa2048 => "rsa-2048",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings(domains: &[&str], cache: PathBuf) -> CertificateSettings {
        CertificateSettings {
            domains: domains.iter().map(ToString::to_string).collect(),
            directory: "https://ca.example:14000/dir".parse().unwrap(),
            trust: TrustRoots::empty(),
            contact: Vec::new(),
            binding: None,
            method: ChallengeMethod::Http,
            key_type: KeyType::P256,
            profile: None,
            cache,
        }
    }

    #[test]
    fn files_are_named_alike_for_ever() {
        let base = settings(&["a.example", "b.example"], "/c".into());
        assert_eq!(base.id(), "/c/a.example-3ccc0909b91f.pem");
        let with_binding = CertificateSettings {
            binding: Some(AccountBinding { id: "kid".into(), key: vec![1] }),
            key_type: KeyType::P384,
            domains: vec!["a.example".into()],
            ..base.clone()
        };
        assert_ne!(with_binding.certificate_file(), base.certificate_file());
        assert_ne!(with_binding.account_file(), base.account_file());
        assert!(base.account_file().starts_with("account-ca.example-"), "{}", base.account_file());
        let fewer_domains = CertificateSettings { domains: vec!["a.example".into()], ..base.clone() };
        assert_eq!(
            fewer_domains.certificate_file(),
            base.certificate_file(),
            "a name more or less is the same certificate"
        );
        assert!(!format!("{with_binding:?}").contains("key: ["), "{with_binding:?}");
    }

    #[test]
    fn a_directory_is_a_url() {
        let parse = |text: &str| text.parse::<DirectoryUrl>();
        assert_eq!(parse("https://[::1]:14000/dir").unwrap().host(), "::1");
        assert_eq!(parse("https://CA.example/dir").unwrap().host(), "ca.example");
        for wrong in
            ["http://ca.example/dir", "ca.example", "https://", "https://a b/", "https://u@ca/dir", ""]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
