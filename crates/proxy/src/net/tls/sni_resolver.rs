//! Selects a client's certificate by the name that it requests (SNI).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::acme_slot::AcmeSlot;
use super::server::{CertificateBundle, certified_key};

/// Certificates by the names in them.
#[derive(Debug, Default)]
pub(super) struct SniResolver {
    /// The names in lower case; a leading `*.` stands for one label.
    names: BTreeMap<Box<str>, Arc<CertificateSource>>,
    /// The certificate for clients with no name, or an unknown one.
    default: Option<Arc<CertificateSource>>,
    /// All certificates, in order.
    sources: Vec<Arc<CertificateSource>>,
}

/// The source of a certificate.
#[derive(Debug)]
enum CertificateSource {
    /// Files, with the name of the first.
    Files(Box<str>, Arc<CertifiedKey>),
    /// A certificate authority; perhaps not issued yet.
    Acme(Arc<AcmeSlot>),
}

impl CertificateSource {
    fn key(&self) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::Files(_, key) => Some(Arc::clone(key)),
            Self::Acme(slot) => slot.key(),
        }
    }
}

/// A certificate of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerCertificate {
    /// The file, or the ID of the slot for an authority's certificate.
    pub source: Box<str>,
    /// Whether it is obtained from a certificate authority at runtime.
    pub issued: bool,
    /// The current certificate; `None` if it was not issued yet.
    pub leaf: Option<CertificateDer<'static>>,
}

impl SniResolver {
    /// Adds a certificate from files.
    pub(super) fn add(
        &mut self,
        certificate: &CertificateBundle<'_>,
        provider: &rustls::crypto::CryptoProvider,
    ) -> Result<(), String> {
        let mut key = certified_key(certificate.chain, certificate.key, provider)?;
        key.ocsp = (!certificate.ocsp.is_empty()).then(|| certificate.ocsp.to_vec());
        let key = Arc::new(key);
        let leaf = key.cert.first().ok_or("no certificate is in it")?;
        let parsed = webpki::EndEntityCert::try_from(leaf)
            .map_err(|error| format!("the certificate cannot be read: {error:?}"))?;
        let names: Vec<String> = parsed.valid_dns_names().map(str::to_owned).collect();
        let source = CertificateSource::Files(certificate.source.into(), Arc::clone(&key));
        self.insert(names.iter().map(String::as_str), source);
        Ok(())
    }

    /// Adds a slot for a certificate authority's certificate with these names.
    pub(super) fn add_slot(&mut self, names: &[String], slot: Arc<AcmeSlot>) {
        self.insert(names.iter().map(String::as_str), CertificateSource::Acme(slot));
    }

    fn insert<'a>(&mut self, names: impl Iterator<Item = &'a str>, source: CertificateSource) {
        let source = Arc::new(source);
        for name in names {
            // The first certificate with a name takes it.
            self.names.entry(normalize_name(name).into()).or_insert_with(|| Arc::clone(&source));
        }
        self.default.get_or_insert_with(|| Arc::clone(&source));
        self.sources.push(source);
    }

    /// Returns `true` if `host` has a certificate other than that for `name`; `None` if `host` has no
    /// certificate of its own.
    pub(super) fn has_other_certificate(&self, name: &str, host: &str) -> Option<bool> {
        let current = match_name(&self.names, name).or(self.default.as_ref());
        let certificate = match_name(&self.names, host)?;
        Some(!current.is_some_and(|current_certificate| Arc::ptr_eq(current_certificate, certificate)))
    }

    /// Returns the current certificates.
    pub(super) fn all(&self) -> impl Iterator<Item = ListenerCertificate> {
        self.sources.iter().map(|source| match &**source {
            CertificateSource::Files(file, key) => {
                ListenerCertificate { source: file.clone(), issued: false, leaf: key.cert.first().cloned() }
            }
            CertificateSource::Acme(slot) => {
                ListenerCertificate { source: slot.id().into(), issued: true, leaf: slot.leaf() }
            }
        })
    }
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let by_name = hello.server_name().and_then(|name| match_name(&self.names, name));
        by_name.or(self.default.as_ref())?.key()
    }
}

/// Returns a server's name in the form in which all names are compared, whatever the source (SNI,
/// `:authority`, Host, a certificate): in lower case, without a trailing dot.
pub(super) fn normalize_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns the entry for a name, or for a wildcard that includes it. The names of the table are
/// [`normalize_name`].
pub(super) fn match_name<'a, T>(names: &'a BTreeMap<Box<str>, T>, name: &str) -> Option<&'a T> {
    let name = &*normalize_name(name);
    let wildcard = || names.get(format!("*.{}", name.split_once('.')?.1).as_str());
    names.get(name).or_else(wildcard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_in_one_form() {
        let names = ["a.example", "*.b.example"].map(|name| (Box::from(name), name));
        let names = BTreeMap::from(names);
        for (name, expected) in [
            ("A.Example", Some("a.example")),
            ("a.example.", Some("a.example")),
            ("x.B.example.", Some("*.b.example")),
            ("a.example..", None),
            ("b.example", None),
            (".", None),
            ("", None),
        ] {
            assert_eq!(match_name(&names, name).copied(), expected, "{name}");
        }
    }
}
