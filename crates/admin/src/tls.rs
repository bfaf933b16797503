//! The endpoint with TLS 1.3: clients authenticate with a certificate, or later with a token or a ticket.
//!
//! A client certificate must be issued by an authority in `client_ca` and contain exactly one URI, a SPIFFE
//! ID of the trust domain (X509-SVID, section 5.2). Without tokens and tickets, connections require one.
//! Sessions are never resumed: each connection authenticates anew with the currently trusted authorities. The
//! files may be replaced at any time, in any order: while key and certificate do not match, the previous ones
//! are used.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_kerberos::ChannelBinding;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use yasna::tags::TAG_UTCTIME;
use yasna::{ASN1Result, Tag, parse_der};

use crate::access::{Caller, spiffe_id};
use crate::reload::WatchedFiles;

/// The address and the certificates of control over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The address; port 0 selects a free one.
    pub address: SocketAddr,
    /// The server's certificate and the intermediate ones, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authorities of client certificates, PEM; `None` if only tokens and tickets are accepted.
    pub client_ca: Option<PathBuf>,
    /// The required trust domain of client certificates.
    pub trust_domain: Option<String>,
}

/// The identity of a connection's peer.
#[derive(Debug)]
pub(crate) struct PeerIdentity {
    pub(crate) caller: Caller,
    /// The channel binding of tickets, over TLS.
    pub(crate) channel: Option<ChannelBinding>,
}

impl From<Caller> for PeerIdentity {
    fn from(caller: Caller) -> Self {
        Self { caller, channel: None }
    }
}

/// Accepts TLS connections.
#[derive(Debug)]
pub(crate) struct PeerAcceptor {
    files: WatchedFiles<ServerConfig>,
    trust_domain: Option<String>,
}

impl PeerAcceptor {
    /// Reads the files; `strangers` permits clients without a certificate, which authenticate with a token or
    /// a ticket.
    ///
    /// # Errors
    /// The invalid file, and the reason.
    pub(crate) fn open(tls: &TlsSettings, accepts_anonymous: bool) -> Result<Self, String> {
        let names: Vec<PathBuf> =
            [&tls.certificate, &tls.key].into_iter().chain(&tls.client_ca).cloned().collect();
        if std::fs::metadata(&tls.key).is_ok_and(|key| key.permissions().mode() & 0o007 != 0) {
            tracing::warn!(
                "anyone on this host may use the private key {0}: chmod o= {0}",
                tls.key.display()
            );
        }
        let files =
            WatchedFiles::open(names.clone(), move |bytes| server_config(&names, bytes, accepts_anonymous))?;
        Ok(Self { files, trust_domain: tls.trust_domain.clone() })
    }

    /// Performs the handshake and returns the peer's identity.
    ///
    /// # Errors
    /// The reason of the failure, for the audit log: the peer has received a TLS alert, or has disconnected.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, PeerIdentity), String> {
        let config = self.files.current_or_log("the certificates of [admin.tls]");
        let stream =
            TlsAcceptor::from(config).accept(stream).await.map_err(|error: io::Error| error.to_string())?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let caller = match certificate {
            Some(certificate) => self.caller_of(certificate)?,
            None => Caller::unauthenticated(),
        };
        let keying_material =
            stream.get_ref().1.export_keying_material([0; 32], plimsoll_kerberos::EXPORTER_LABEL, None);
        let channel = keying_material.map(ChannelBinding).ok();
        Ok((stream, PeerIdentity { caller, channel }))
    }

    /// Returns the caller of a certificate that has already been verified.
    fn caller_of(&self, certificate: &CertificateDer<'_>) -> Result<Caller, String> {
        let parsed = webpki::EndEntityCert::try_from(certificate)
            .map_err(|error| format!("the client certificate cannot be read: {error:?}"))?;
        let mut names = parsed.valid_uri_names();
        let (Some(name), None) = (names.next(), names.next()) else {
            return Err("the client certificate has not exactly one URI, an SPIFFE id".into());
        };
        let domain =
            spiffe_id(name).map_err(|error| format!("the client certificate's id {name:?} {error}"))?;
        if Some(domain) != self.trust_domain.as_deref() {
            return Err(format!("the client certificate is of another trust domain: {name}"));
        }
        // A connection may live longer.
        let expires_at = expiry(certificate).map_err(|error| {
            format!("the time at which the client certificate ends cannot be read: {error:?}")
        })?;
        Ok(Caller { valid_until: Some(expires_at), ..Caller::spiffe(name) })
    }
}

/// Returns the last second of a certificate's validity, since 1970: `notAfter` (RFC 5280, section 4.1.2.5).
/// webpki checks it, but does not return it.
fn expiry(certificate: &[u8]) -> ASN1Result<u64> {
    parse_der(certificate, |reader| {
        reader.read_sequence(|certificate_fields| {
            let expires_at = certificate_fields.next().read_sequence(|fields| {
                fields.read_optional(|version| {
                    version.read_tagged(Tag::context(0), |reader| reader.read_u8())
                })?;
                // Serial number, signature algorithm, issuer.
                for _ in 0..3 {
                    fields.next().read_der()?;
                }
                let expires_at = fields.next().read_sequence(|validity_times| {
                    validity_times.next().read_der()?;
                    let expires_at = validity_times.next();
                    if expires_at.lookahead_tag()? == TAG_UTCTIME {
                        Ok(expires_at.read_utctime()?.datetime().unix_timestamp())
                    } else {
                        Ok(expires_at.read_generalized_time()?.datetime().unix_timestamp())
                    }
                })?;
                // Subject, key, extensions.
                while fields.read_optional(|field| field.read_der())?.is_some() {}
                Ok(expires_at)
            })?;
            certificate_fields.next().read_der()?;
            certificate_fields.next().read_der()?;
            Ok(u64::try_from(expires_at).unwrap_or(0))
        })
    })
}

/// Builds the configuration; `files` are certificate, key and, if there is one, the authorities.
fn server_config(
    names: &[PathBuf],
    files: &[Vec<u8>],
    accepts_anonymous: bool,
) -> Result<ServerConfig, String> {
    let file_error = |index: usize, error: String| {
        format!("{}: {error}", names.get(index).map(|name| name.display().to_string()).unwrap_or_default())
    };
    let [certificate, key, authorities @ ..] = files else { return Err("no certificate and key".into()) };
    let chain = certificates(certificate).map_err(|error| file_error(0, error))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        // The error does not reveal the contents.
        .map_err(|_| file_error(1, "no private key in PEM form is in it".into()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = match authorities.first() {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(authorities).map_err(|error| file_error(2, error))? {
                roots.add(authority).map_err(|error| file_error(2, error.to_string()))?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let builder = if accepts_anonymous { builder.allow_unauthenticated() } else { builder };
            builder.build().map_err(|error| file_error(2, error.to_string()))?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| file_error(0, format!("{error}; is the key that of the certificate?")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| format!("is not PEM: {error}"))?;
    if certificates.is_empty() { Err("no certificate in PEM form is in it".into()) } else { Ok(certificates) }
}
