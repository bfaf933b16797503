//! What certificate is wanted, and of whom.

use std::fmt::{self, Display, Formatter, Write as _};
use std::path::PathBuf;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::{Cache, Trust};

/// One certificate that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The names that it is for, in lower case; one at least. The first gives it its name in the folder.
    pub domains: Vec<String>,
    /// Where the authority is.
    pub directory: Directory,
    /// Whom the authority's own certificate must lead to.
    pub trust: Trust,
    /// URLs by which the authority reaches a person.
    pub contact: Vec<String>,
    /// An account that the authority knows already and that ours is to belong to.
    pub binding: Option<Binding>,
    /// How the authority is shown that the names lead here.
    pub method: Method,
    /// The kind of the certificate's key.
    pub key_type: KeyType,
    /// What the authority calls the kind of certificate; its usual one if `None`.
    pub profile: Option<String>,
    /// The folder in which account and certificates are kept.
    pub cache: PathBuf,
}

impl Settings {
    /// What the certificate goes by: its file. Settings with the same one are for the same certificate.
    pub fn id(&self) -> String {
        self.cache.join(self.file()).display().to_string()
    }

    /// The names, for people.
    pub fn names(&self) -> String {
        self.domains.join(", ")
    }

    /// What the folder has of it: a private key and a chain, PEM.
    pub fn kept(&self) -> Option<Vec<u8>> {
        Cache::new(&self.cache).read(&self.file()).ok().flatten()
    }

    /// By what the certificate is found again: the first name, the authority, and the kind of key.
    pub(crate) fn file(&self) -> String {
        let first = self.domains.first().map_or("", String::as_str);
        let mark = mark(&[self.directory.as_str(), first, self.key_type.name()]);
        format!("{first}-{mark}.pem")
    }

    /// By what the account is found again: the authority, and the account that it belongs to.
    pub(crate) fn account_file(&self) -> String {
        let bound = self.binding.as_ref().map_or("", |binding| binding.id.as_str());
        format!("account-{}-{}.json", self.directory.host(), mark(&[self.directory.as_str(), bound]))
    }
}

/// A few digits that tell texts apart, the same ones for ever.
fn mark(parts: &[&str]) -> String {
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

/// Where an authority is: the URL of its directory, by https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    url: String,
    host: String,
}

impl Directory {
    /// As written.
    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// The host in it, for people and for names of files.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl FromStr for Directory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with("https://") {
            return Err("does not begin with https://".into());
        }
        let uri: http::Uri = text.parse().map_err(|why| format!("is no URL: {why}"))?;
        let host = uri.host().map(|host| host.trim_matches(['[', ']'])).unwrap_or_default();
        if host.is_empty() || uri.authority().is_some_and(|all| all.as_str().contains('@')) {
            return Err("has no host that could be asked".into());
        }
        Ok(Self { url: text.to_owned(), host: host.to_ascii_lowercase() })
    }
}

impl Display for Directory {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// An account that an authority knows already (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct Binding {
    /// What the authority calls it.
    pub id: String,
    /// The key that the authority gave with it.
    pub key: Vec<u8>,
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How an authority is shown that a name leads here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `tls-alpn-01`, RFC 8737: by a certificate on port 443.
    Tls,
    /// `http-01`, RFC 8555, section 8.3: by a page on port 80.
    Http,
}

/// The kind of a certificate's key.
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
    /// As written.
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

    pub(crate) fn settings(domains: &[&str], cache: PathBuf) -> Settings {
        Settings {
            domains: domains.iter().map(ToString::to_string).collect(),
            directory: "https://ca.example:14000/dir".parse().unwrap(),
            trust: Trust::nobody(),
            contact: Vec::new(),
            binding: None,
            method: Method::Http,
            key_type: KeyType::P256,
            profile: None,
            cache,
        }
    }

    #[test]
    fn files_are_named_alike_for_ever() {
        let one = settings(&["a.example", "b.example"], "/c".into());
        assert_eq!(one.id(), "/c/a.example-3ccc0909b91f.pem");
        let bound = Settings {
            binding: Some(Binding { id: "kid".into(), key: vec![1] }),
            key_type: KeyType::P384,
            domains: vec!["a.example".into()],
            ..one.clone()
        };
        assert_ne!(bound.file(), one.file());
        assert_ne!(bound.account_file(), one.account_file());
        assert!(one.account_file().starts_with("account-ca.example-"), "{}", one.account_file());
        let fewer = Settings { domains: vec!["a.example".into()], ..one.clone() };
        assert_eq!(fewer.file(), one.file(), "a name more or less is the same certificate");
        assert!(!format!("{bound:?}").contains("key: ["), "{bound:?}");
    }

    #[test]
    fn a_directory_is_a_url() {
        let read = |text: &str| text.parse::<Directory>();
        assert_eq!(read("https://[::1]:14000/dir").unwrap().host(), "::1");
        assert_eq!(read("https://CA.example/dir").unwrap().host(), "ca.example");
        for wrong in
            ["http://ca.example/dir", "ca.example", "https://", "https://a b/", "https://u@ca/dir", ""]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
