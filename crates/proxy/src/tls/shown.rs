//! Which certificate a client is shown: by the name that it asks for (SNI).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::issued::Issued;
use super::server::{Certificate, certified};

/// Certificates by the names in them.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// In lower case; those that begin with `*.` stand for one label there.
    names: BTreeMap<Box<str>, Arc<Source>>,
    /// For those who ask for no name, or for one that is nobody's.
    first: Option<Arc<Source>>,
    /// All of them, in their order.
    all: Vec<Arc<Source>>,
}

/// Where a certificate is from.
#[derive(Debug)]
enum Source {
    /// Files, the first of which is called so.
    Files(Box<str>, Arc<CertifiedKey>),
    /// An authority, perhaps not yet.
    Issued(Arc<Issued>),
}

impl Source {
    fn key(&self) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::Files(_, key) => Some(Arc::clone(key)),
            Self::Issued(issued) => issued.key(),
        }
    }
}

/// A certificate of a listener's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCertificate {
    /// The file that it is from, or what the place goes by that an authority's comes to.
    pub source: Box<str>,
    /// Is it obtained from an authority while the process runs?
    pub issued: bool,
    /// What clients are shown now; `None` if none has come yet.
    pub leaf: Option<CertificateDer<'static>>,
}

impl Shown {
    /// One from files.
    pub(super) fn add(
        &mut self,
        certificate: &Certificate<'_>,
        provider: &rustls::crypto::CryptoProvider,
    ) -> Result<(), String> {
        let mut key = certified(certificate.chain, certificate.key, provider)?;
        key.ocsp = (!certificate.ocsp.is_empty()).then(|| certificate.ocsp.to_vec());
        let key = Arc::new(key);
        let shown = key.cert.first().ok_or("no certificate is in it")?;
        let parsed = webpki::EndEntityCert::try_from(shown)
            .map_err(|why| format!("the certificate cannot be read: {why:?}"))?;
        let names: Vec<String> = parsed.valid_dns_names().map(str::to_owned).collect();
        let source = Source::Files(certificate.source.into(), Arc::clone(&key));
        self.insert(names.iter().map(String::as_str), source);
        Ok(())
    }

    /// One that an authority gives, for these names.
    pub(super) fn expect(&mut self, names: &[String], issued: Arc<Issued>) {
        self.insert(names.iter().map(String::as_str), Source::Issued(issued));
    }

    fn insert<'a>(&mut self, names: impl Iterator<Item = &'a str>, source: Source) {
        let source = Arc::new(source);
        for name in names {
            // The first that has a name has it.
            self.names.entry(normal(name).into()).or_insert_with(|| Arc::clone(&source));
        }
        self.first.get_or_insert_with(|| Arc::clone(&source));
        self.all.push(source);
    }

    /// Has whoever asks for `host` a certificate of its own here, which is not the one that who asks for `name` is shown? `None`
    /// if it has none of its own.
    pub(super) fn another(&self, name: &str, host: &str) -> Option<bool> {
        let own = named(&self.names, name).or(self.first.as_ref());
        let certificate = named(&self.names, host)?;
        Some(!own.is_some_and(|own| Arc::ptr_eq(own, certificate)))
    }

    /// What there is now.
    pub(super) fn all(&self) -> impl Iterator<Item = ShownCertificate> {
        self.all.iter().map(|source| match &**source {
            Source::Files(file, key) => {
                ShownCertificate { source: file.clone(), issued: false, leaf: key.cert.first().cloned() }
            }
            Source::Issued(issued) => {
                ShownCertificate { source: issued.id().into(), issued: true, leaf: issued.leaf() }
            }
        })
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name().and_then(|name| named(&self.names, name));
        asked.or(self.first.as_ref())?.key()
    }
}

/// A server's name as all of them are compared, from wherever it comes (SNI, `:authority`, Host, a certificate): in lower case, without the
/// dot that says that nothing follows.
pub(super) fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// What there is for a name, or for all that are where it is. The names of the table are [`normal`].
pub(super) fn named<'a, T>(names: &'a BTreeMap<Box<str>, T>, name: &str) -> Option<&'a T> {
    let name = &*normal(name);
    let above = || names.get(format!("*.{}", name.split_once('.')?.1).as_str());
    names.get(name).or_else(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_in_one_form() {
        let names = ["a.example", "*.b.example"].map(|name| (Box::from(name), name));
        let names = BTreeMap::from(names);
        for (name, found) in [
            ("A.Example", Some("a.example")),
            ("a.example.", Some("a.example")),
            ("x.B.example.", Some("*.b.example")),
            ("a.example..", None),
            ("b.example", None),
            (".", None),
            ("", None),
        ] {
            assert_eq!(named(&names, name).copied(), found, "{name}");
        }
    }
}
