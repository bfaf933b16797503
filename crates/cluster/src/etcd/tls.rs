//! TLS towards etcd: trusted authorities and the client certificate, from files that are read for each new
//! connection.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::TlsFiles;

/// The system's authorities on Debian and its derivatives.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Reads the files and performs the handshake.
pub(super) async fn handshake(
    files: &TlsFiles,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, String> {
    let files = files.clone();
    let config = tokio::task::spawn_blocking(move || client_config(&files)).await;
    let config = config.map_err(|error| error.to_string())??;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("`{host}` is no name for a certificate"))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    stream.map_err(|error| format!("TLS: {error}"))
}

/// Builds the TLS configuration from the files.
///
/// # Errors
/// One line that names the file.
pub(super) fn client_config(files: &TlsFiles) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let ca = files.ca.as_deref().unwrap_or_else(|| Path::new(SYSTEM_AUTHORITIES));
    for authority in certificates(ca)? {
        // The system's list may contain authorities that the library rejects; the configured file must be
        // valid.
        let result = roots.add(authority).map_err(|error| format!("{}: {error}", ca.display()));
        if files.ca.is_some() {
            result?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match &files.client_identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let private_key = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| format!("cannot read the key in {}: {error}", key.display()))?;
            builder.with_client_auth_cert(chain, private_key).map_err(|error| {
                format!("{}: {error}; is {} its key?", certificate.display(), key.display())
            })?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read_error =
        |error: &dyn std::fmt::Display| format!("cannot read certificates in {}: {error}", path.display());
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|error| read_error(&error))?
        .collect::<Result<_, _>>()
        .map_err(|error| read_error(&error))?;
    if certificates.is_empty() { Err(read_error(&"there is none")) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_files_names_the_file() {
        let directory = std::env::temp_dir().join(format!("plimsoll-etcd-tls-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let empty = directory.join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let error_message = |ca: &Path| {
            client_config(&TlsFiles { ca: Some(ca.into()), client_identity: None }).map(drop).unwrap_err()
        };
        assert!(error_message(&empty).contains("empty.pem: there is none"), "{}", error_message(&empty));
        let missing = directory.join("missing.pem");
        assert!(error_message(&missing).contains("missing.pem"), "{}", error_message(&missing));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
