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
        acme_slots: &[(Arc<AcmeSlot>, Vec<String>)],
        client_verification: Option<ClientVerification<'_>>,
        tls12: bool,
        protocols: &[&[u8]],
        groups: BTreeMap<Box<str>, Arc<str>>,
    ) -> Result<Self, (Option<usize>, String)> {
        let provider = invalid_sni::provider();
        let mut resolver = SniResolver::default();
        for (index, certificate) in certificates.iter().enumerate() {
            resolver.add(certificate, &provider).map_err(|error| (Some(index), error))?;
        }
        for (slot, names) in acme_slots {
            resolver.add_slot(names, Arc::clone(slot));
        }
        let verifier = match client_verification {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(verification) => {
                let roots = parse_roots(verification.authorities).map_err(|error| (None, error))?;
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
                let builder = if verification.optional { builder.allow_unauthenticated() } else { builder };
                builder.build().map_err(|error| (None, error.to_string()))?
            }
        };
        let resolver = Arc::new(resolver);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(protocol_versions(tls12))
            .map_err(|error| (None, error.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::<SniResolver>::clone(&resolver));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ticket_codec(client_verification).map_err(|error| (None, error))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let mut hasher = DefaultHasher::new();
        (certificates, client_verification, tls12, protocols).hash(&mut hasher);
        acme_slots.iter().for_each(|(slot, names)| (slot.id(), names).hash(&mut hasher));
        Ok(Self {
            config: Arc::new(config),
            groups: Arc::new(groups),
            resolver,
            fingerprint: hasher.finish(),
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
        let (other_certificate, group) = (self.resolver.has_other_certificate(name, host), self.group(host));
        if other_certificate.is_none() && group.is_none() {
            return false;
        }
        other_certificate == Some(true) || group != self.group(name)
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
    static TLS13_ONLY: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
    if tls12 { rustls::ALL_VERSIONS } else { &TLS13_ONLY }
}

/// Parses authorities, at least one.
pub(super) fn parse_roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in parse_chain(pem)? {
        roots.add(authority).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

/// Parses certificates, at least one.
pub(crate) fn parse_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err("no certificate in PEM form is in it".into()),
        Err(error) => Err(format!("not in PEM form: {error}")),
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
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
        error => error.to_string(),
    })
}
