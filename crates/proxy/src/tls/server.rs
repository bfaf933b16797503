//! What a listener shows clients, and asks of them.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::issued::Issued;
use super::odd_name;
use super::shown::{Shown, ShownCertificate, named};
use super::tickets::tickets;

/// A certificate of ours: what its files hold.
#[derive(Clone, Copy, Hash)]
pub struct Certificate<'a> {
    /// What people call it: the file that has the certificate.
    pub source: &'a str,
    /// The certificate and those between it and its authority, PEM.
    pub chain: &'a [u8],
    /// Its private key, PEM.
    pub key: &'a [u8],
    /// What its authority says of its revocation (OCSP), DER; empty for nothing.
    pub ocsp: &'a [u8],
}

/// What is asked of clients.
#[derive(Clone, Copy, Hash)]
pub struct ClientCertificate<'a> {
    /// The authorities that theirs must lead to, PEM.
    pub authorities: &'a [u8],
    /// May a client come without one?
    pub optional: bool,
}

/// What a listener shows clients, and asks of them. Equal if made of the same.
#[derive(Clone)]
pub struct ListenerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// Groups by the name that clients ask for, in lower case and perhaps with `*` for a label.
    pub(crate) groups: Arc<BTreeMap<Box<str>, Arc<str>>>,
    shown: Arc<Shown>,
    print: u64,
}

impl ListenerTls {
    /// `issued`: certificates that come while the process runs, with the names that they are for. `tls12`: 1.2 and up if true, 1.3
    /// alone if false. `protocols`: what is spoken inside, by ALPN.
    ///
    /// # Errors
    /// Which of the certificates is wrong (`None`: the authorities), and how.
    pub fn new(
        certificates: &[Certificate<'_>],
        issued: &[(Arc<Issued>, Vec<String>)],
        clients: Option<ClientCertificate<'_>>,
        tls12: bool,
        protocols: &[&[u8]],
        groups: BTreeMap<Box<str>, Arc<str>>,
    ) -> Result<Self, (Option<usize>, String)> {
        let provider = odd_name::provider();
        let mut shown = Shown::default();
        for (place, certificate) in certificates.iter().enumerate() {
            shown.add(certificate, &provider).map_err(|why| (Some(place), why))?;
        }
        for (issued, names) in issued {
            shown.expect(names, Arc::clone(issued));
        }
        let verifier = match clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(clients) => {
                let roots = roots(clients.authorities).map_err(|why| (None, why))?;
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
                let builder = if clients.optional { builder.allow_unauthenticated() } else { builder };
                builder.build().map_err(|why| (None, why.to_string()))?
            }
        };
        let shown = Arc::new(shown);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions(tls12))
            .map_err(|why| (None, why.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::<Shown>::clone(&shown));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = tickets(clients).map_err(|why| (None, why))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let mut print = DefaultHasher::new();
        (certificates, clients, tls12, protocols).hash(&mut print);
        issued.iter().for_each(|(issued, names)| (issued.id(), names).hash(&mut print));
        Ok(Self { config: Arc::new(config), groups: Arc::new(groups), shown, print: print.finish() })
    }
}

impl ListenerTls {
    /// The group of the name that a client asked for, if it is another than the listener's.
    pub(crate) fn group(&self, name: &str) -> Option<&Arc<str>> {
        named(&self.groups, name)
    }

    /// Is `host` served elsewhere than where a client comes to who asks for `name`: has it another certificate, or is it another
    /// group's? What is nobody's is served wherever it is asked for.
    pub(crate) fn elsewhere(&self, name: &str, host: &str) -> bool {
        let (another, group) = (self.shown.another(name, host), self.group(host));
        if another.is_none() && group.is_none() {
            return false;
        }
        another == Some(true) || group != self.group(name)
    }

    /// The certificates that clients are shown now, in the order in which they were given, those from files first.
    pub fn certificates(&self) -> impl Iterator<Item = ShownCertificate> {
        self.shown.all()
    }
}

impl PartialEq for ListenerTls {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print && self.groups == other.groups
    }
}

impl Debug for ListenerTls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Both versions, or the later one alone.
pub(super) fn versions(tls12: bool) -> &'static [&'static SupportedProtocolVersion] {
    static LATER: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
    if tls12 { rustls::ALL_VERSIONS } else { &LATER }
}

/// Authorities, one at least.
pub(super) fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in chain(pem)? {
        roots.add(authority).map_err(|why| why.to_string())?;
    }
    Ok(roots)
}

/// Certificates, one at least.
pub(crate) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("no certificate in PEM form is in it".into()),
        Err(why) => Err(format!("not in PEM form: {why}")),
    }
}

/// A certificate with its key, which fit.
pub(super) fn certified(
    chain_pem: &[u8],
    key: &[u8],
    provider: &rustls::crypto::CryptoProvider,
) -> Result<CertifiedKey, String> {
    let chain = chain(chain_pem)?;
    // What is in the file is not told.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| "no private key in PEM form is in it")?;
    CertifiedKey::from_der(chain, key, provider).map_err(|why| match why {
        rustls::Error::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
        why => why.to_string(),
    })
}
