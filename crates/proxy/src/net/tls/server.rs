//! A listener's TLS settings: certificates, and the verification of clients.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::acme_slot::AcmeSlot;
use super::invalid_sni;
use super::sni_resolver::{ListenerCertificate, SniResolver, match_name};
use super::tickets::ticket_codec;

/// A certificate of the balancer, as in its files.
#[derive(Clone, Copy, Hash)]
pub struct CertificateBundle<'a> {
    /// The name for people: the file of the certificate.
    pub source: &'a str,
    /// The certificate and its intermediates, PEM.
    pub chain: &'a [u8],
    /// Its private key, PEM.
    pub key: &'a [u8],
    /// The OCSP response of its authority, DER; empty for none.
    pub ocsp: &'a [u8],
}

/// The verification of clients.
#[derive(Clone, Copy, Hash)]
pub struct ClientVerification<'a> {
    /// The authorities of their certificates, PEM.
    pub authorities: &'a [u8],
    /// Whether a client certificate is optional.
    pub optional: bool,
}

/// The TLS settings of a listener. Equal if made from the same input.
#[derive(Clone)]
pub struct ListenerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// The groups by the names that clients request, in lower case and perhaps with `*` for a label.
    pub(crate) groups: Arc<BTreeMap<Box<str>, Arc<str>>>,
    resolver: Arc<SniResolver>,
    fingerprint: u64,
}

impl ListenerTls {
    /// Creates the settings. `issued` are slots for certificates that arrive at runtime, with their names.
    /// `tls12` permits version 1.2 as well as 1.3. `protocols` are the names for ALPN.
    ///
    /// # Errors
    /// The invalid certificate (`None`: the authorities), and the reason.
    pub fn new(
        certificates: &[CertificateBundle<'_>],
        issued: &[(Arc<AcmeSlot>, Vec<String>)],
        clients: Option<ClientVerification<'_>>,
        tls12: bool,
        protocols: &[&[u8]],
        groups: BTreeMap<Box<str>, Arc<str>>,
    ) -> Result<Self, (Option<usize>, String)> {
        let provider = invalid_sni::provider();
        let mut shown = SniResolver::default();
        for (place, certificate) in certificates.iter().enumerate() {
            shown.add(certificate, &provider).map_err(|why| (Some(place), why))?;
        }
        for (issued, names) in issued {
            shown.add_slot(names, Arc::clone(issued));
        }
        let verifier = match clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(clients) => {
                let roots = parse_roots(clients.authorities).map_err(|why| (None, why))?;
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
                let builder = if clients.optional { builder.allow_unauthenticated() } else { builder };
                builder.build().map_err(|why| (None, why.to_string()))?
            }
        };
        let shown = Arc::new(shown);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(protocol_versions(tls12))
            .map_err(|why| (None, why.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::<SniResolver>::clone(&shown));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ticket_codec(clients).map_err(|why| (None, why))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let mut print = DefaultHasher::new();
        (certificates, clients, tls12, protocols).hash(&mut print);
        issued.iter().for_each(|(issued, names)| (issued.id(), names).hash(&mut print));
        Ok(Self {
            config: Arc::new(config),
            groups: Arc::new(groups),
            resolver: shown,
            fingerprint: print.finish(),
        })
    }
}

impl ListenerTls {
    /// Returns the group of the name that a client requested, if it is another than the listener's.
    pub(crate) fn group(&self, name: &str) -> Option<&Arc<str>> {
        match_name(&self.groups, name)
    }

    /// Returns `true` if `host` is served separately from `name`: it has another certificate or belongs to
    /// another group. Unknown hosts are served on every connection.
    pub(crate) fn is_served_elsewhere(&self, name: &str, host: &str) -> bool {
        let (another, group) = (self.resolver.has_other_certificate(name, host), self.group(host));
        if another.is_none() && group.is_none() {
            return false;
        }
        another == Some(true) || group != self.group(name)
    }

    /// Returns the current certificates in the order of the settings, those from files first.
    pub fn certificates(&self) -> impl Iterator<Item = ListenerCertificate> {
        self.resolver.all()
    }
}

impl PartialEq for ListenerTls {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.groups == other.groups
    }
}

impl Debug for ListenerTls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Returns both versions, or only the later one.
pub(super) fn protocol_versions(tls12: bool) -> &'static [&'static SupportedProtocolVersion] {
    static LATER: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
    if tls12 { rustls::ALL_VERSIONS } else { &LATER }
}

/// Parses authorities, at least one.
pub(super) fn parse_roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in parse_chain(pem)? {
        roots.add(authority).map_err(|why| why.to_string())?;
    }
    Ok(roots)
}

/// Parses certificates, at least one.
pub(crate) fn parse_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("no certificate in PEM form is in it".into()),
        Err(why) => Err(format!("not in PEM form: {why}")),
    }
}

/// Returns a certificate with its matching key.
pub(super) fn certified_key(
    chain_pem: &[u8],
    key: &[u8],
    provider: &rustls::crypto::CryptoProvider,
) -> Result<CertifiedKey, String> {
    let chain = parse_chain(chain_pem)?;
    // The error must not contain the file's content.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| "no private key in PEM form is in it")?;
    CertifiedKey::from_der(chain, key, provider).map_err(|why| match why {
        rustls::Error::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
        why => why.to_string(),
    })
}
