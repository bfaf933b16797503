//! A group's TLS settings for members: trust, and the balancer's certificate.

use std::fmt::{self, Debug, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Connection, DigitallySignedStruct, SignatureScheme};

use super::CertificateBundle;
use super::server::{certified_key, parse_roots, protocol_versions};

/// The verification of members.
#[derive(Clone, Copy, Hash)]
pub enum MemberTrust<'a> {
    /// Members have certificates of these authorities (PEM).
    Authorities(&'a [u8]),
    /// Any certificate: the connection is encrypted, but the member is not authenticated.
    AnyCertificate,
}

/// The TLS settings for members. Equal if made from the same input.
#[derive(Clone)]
pub struct MemberTls {
    config: Arc<ClientConfig>,
    /// Replaces a member's own name.
    name: Option<ServerName<'static>>,
    fingerprint: u64,
}

/// The invalid part of TLS settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidTlsPart {
    /// The authorities.
    Authorities,
    /// The name.
    Name,
    /// The balancer's certificate.
    OwnCertificate,
}

impl MemberTls {
    /// Creates the settings. `name` replaces the configured host in the verification of members' certificates
    /// and in SNI. `own` is the balancer's certificate, for members that request one. `protocols` are the
    /// names for ALPN; without any, ALPN is not used.
    ///
    /// # Errors
    /// The invalid part, and the reason.
    pub fn new(
        trust: MemberTrust<'_>,
        name: Option<&str>,
        client_certificate: Option<CertificateBundle<'_>>,
        tls12: bool,
        protocols: &[&[u8]],
    ) -> Result<Self, (InvalidTlsPart, String)> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(protocol_versions(tls12))
            .map_err(|error| (InvalidTlsPart::OwnCertificate, error.to_string()))?;
        let builder = match trust {
            MemberTrust::Authorities(pem) => builder.with_root_certificates(
                parse_roots(pem).map_err(|error| (InvalidTlsPart::Authorities, error))?,
            ),
            MemberTrust::AnyCertificate => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificateVerifier(Arc::clone(&provider)))),
        };
        let mut config = match client_certificate {
            None => builder.with_no_client_auth(),
            Some(certificate) => {
                let key = certified_key(certificate.chain, certificate.key, &provider)
                    .map_err(|error| (InvalidTlsPart::OwnCertificate, error))?;
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)))
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let server_name = match name {
            None => None,
            Some(name) => {
                let parsed = ServerName::try_from(name.to_owned());
                let invalid_name =
                    || (InvalidTlsPart::Name, format!("`{name}` is neither a host's name nor an IP address"));
                Some(parsed.map_err(|_| invalid_name())?)
            }
        };
        let mut hasher = DefaultHasher::new();
        (trust, name, client_certificate, tls12, protocols).hash(&mut hasher);
        Ok(Self { config: Arc::new(config), name: server_name, fingerprint: hasher.finish() })
    }

    /// Returns a session with a member whose address was configured with this host; `None` if that cannot be
    /// a name in a certificate.
    pub(crate) fn session(&self, host: &str) -> Option<Connection> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).ok()?,
        };
        ClientConnection::new(Arc::clone(&self.config), name).ok().map(Connection::from)
    }
}

impl PartialEq for MemberTls {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Debug for MemberTls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberTls").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Accepts every certificate, but still verifies that the peer has its key.
#[derive(Debug)]
struct AnyCertificateVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificateVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
