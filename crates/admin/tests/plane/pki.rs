//! Authorities and certificates for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

pub(crate) struct Authority {
    key: KeyPair,
    params: CertificateParams,
    der: Vec<u8>,
}

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) der: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self { key, params, der }
    }

    pub(crate) fn pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    /// For a client, and for a server on 127.0.0.1; `days` from now it ends.
    pub(crate) fn issue(&self, uris: &[&str], days: i64) -> Identity {
        self.issue_for(uris, time::Duration::days(days))
    }

    /// The same, to the second.
    pub(crate) fn issue_for(&self, uris: &[&str], lives: time::Duration) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let now = time::OffsetDateTime::now_utc();
        params.not_before = now - Duration::from_secs(100 * 86_400);
        params.not_after = now + lives;
        let issuer = Issuer::from_params(&self.params, &self.key);
        let der = params.signed_by(&key, &issuer).unwrap().der().to_vec();
        Identity { der, key: key.serialize_der() }
    }

    /// A client that trusts this authority and shows what it is given.
    pub(crate) fn client(&self, shows: Option<&Identity>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.der.clone())).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match shows {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::try_from(identity.key.clone()).unwrap();
                config.with_client_auth_cert(vec![identity.der.clone().into()], key).unwrap()
            }
        })
    }
}

impl Identity {
    /// Writes `NAME.pem` and `NAME.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        std::fs::write(&certificate, pem("CERTIFICATE", &self.der)).unwrap();
        std::fs::write(&key, pem("PRIVATE KEY", &self.key)).unwrap();
        (certificate, key)
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64_STANDARD.encode(der))
}
