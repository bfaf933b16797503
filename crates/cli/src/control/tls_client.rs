//! Control over TLS, as its client: trusted authorities, and the client's credentials.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::ControlError;

/// Options of commands that talk to other hosts.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Other hosts")]
pub(crate) struct CredentialArgs {
    /// Client certificate for --host, PEM
    #[arg(long, env = "PLIMSOLL_CERTIFICATE", value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,

    /// Private key of the certificate, PEM
    #[arg(long, env = "PLIMSOLL_KEY", value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,

    /// Authorities that the certificates of hosts must lead to, PEM
    #[arg(long, env = "PLIMSOLL_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Token (JWT) to show, or @FILE with it. Others on this machine can see a command line: better
    /// PLIMSOLL_TOKEN or @FILE
    #[arg(long, env = "PLIMSOLL_TOKEN", hide_env_values = true, value_name = "TOKEN|@FILE")]
    token: Option<String>,

    /// Show a Kerberos ticket of the credential cache (see kinit) in place of a token
    #[arg(long, env = "PLIMSOLL_NEGOTIATE", value_parser = FalseyValueParser::new())]
    negotiate: bool,
}

impl fmt::Debug for CredentialArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("Credentials").field("certificate", &self.certificate).field("token", &token).finish()
    }
}

/// The credentials for every host.
pub(crate) struct HostCredentials {
    config: Arc<ClientConfig>,
    token: Option<String>,
    /// Whether a Kerberos ticket is made for each connection.
    pub(super) negotiates: bool,
}

impl fmt::Debug for HostCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

/// A stream of TLS.
pub(super) type ControlTlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Reads the files that the options name.
pub(super) fn load_credentials(credentials: &CredentialArgs) -> Result<HostCredentials, ControlError> {
    let negotiates = credentials.negotiate;
    if negotiates && !plimsoll_kerberos::BUILT_IN {
        return Err(refusal(format_args!("--negotiate: {}", plimsoll_kerberos::NOT_BUILT_IN)));
    }
    let Some(ca) = non_empty_path(credentials.ca.as_deref()) else {
        return Err(refusal("--host needs --ca (or PLIMSOLL_CA): the authorities of its certificate"));
    };
    let mut roots = RootCertStore::empty();
    for authority in read_certificates(ca)? {
        roots.add(authority).map_err(|error| refusal(format_args!("{}: {error}", ca.display())))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refusal)?
        .with_root_certificates(roots);
    let mut config = match (
        non_empty_path(credentials.certificate.as_deref()),
        non_empty_path(credentials.key.as_deref()),
    ) {
        (Some(certificate), Some(key)) => {
            let chain = read_certificates(certificate)?;
            let private_key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
            config.with_client_auth_cert(chain, private_key).map_err(|error| {
                let (certificate, key) = (certificate.display(), key.display());
                refusal(format_args!("{certificate} and {key}: {error}; is the key that of the certificate?"))
            })?
        }
        _ => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    let token = if negotiates { None } else { load_token(credentials.token.as_deref())? };
    Ok(HostCredentials { config: Arc::new(config), token, negotiates })
}

impl HostCredentials {
    /// Returns the field of a request that carries the token.
    pub(super) fn authorization_header(&self) -> String {
        self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"))
    }

    /// Connects; the handshake begins with the first byte that is sent.
    pub(super) fn connect(&self, authority: &str, timeout: Duration) -> io::Result<ControlTlsStream> {
        let name = ServerName::try_from(host_of(authority).to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, connect_tcp(authority, timeout)?))
    }
}

/// Returns the name or address in `host:port`.
pub(super) fn host_of(authority: &str) -> &str {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Connects to the first address of a name that answers.
pub(super) fn connect_tcp(authority: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last_error = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in authority.to_socket_addrs()?.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Returns the objection of TLS to a host, or of the host to this client; `None` if the error is another one.
pub(super) fn tls_rejection(error: &io::Error) -> Option<String> {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error};
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(Bad::UnknownIssuer) => {
            "its certificate is not of an authority in --ca".into()
        }
        Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "its certificate has expired: issue it a new one".into()
        }
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "its certificate is for another name: issue it with --server and the name you use".into()
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "it wants a client certificate: give --certificate and --key".into()
        }
        Error::AlertReceived(Alert::CertificateExpired) => "our certificate has expired".into(),
        Error::AlertReceived(Alert::UnknownCA) => {
            "our certificate is not of an authority that it trusts".into()
        }
        Error::AlertReceived(alert) => format!("it refuses us: {alert:?}"),
        other => other.to_string(),
    })
}

/// Returns the hosts that a list names: URLs, and files with one a line.
pub(super) fn parse_hosts(list: &[String]) -> Result<Vec<String>, ControlError> {
    let mut authorities = Vec::new();
    for item in list.iter().map(|item| item.trim()).filter(|item| !item.is_empty()) {
        match item.strip_prefix('@') {
            None => authorities.push(parse_authority(item)?),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| refusal(format_args!("--host @{path}: {error}")))?;
                let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
                for line in lines.filter(|line| !line.is_empty()) {
                    authorities.push(parse_authority(line)?);
                }
            }
        }
    }
    Ok(authorities)
}

/// Returns `host:port` of a URL.
fn parse_authority(url: &str) -> Result<String, ControlError> {
    let refuse = |reason: &str| Err(refusal(format_args!("--host {url}: {reason}")));
    let Some(authority) = url.strip_prefix("https://") else {
        return refuse("give https://HOST:PORT of a balancer's control over TLS");
    };
    match authority.trim_end_matches('/') {
        rest if rest.contains(|c: char| "/@?#".contains(c) || c <= ' ') => {
            refuse("give no more than https://HOST:PORT")
        }
        rest if rest
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) =>
        {
            refuse("has no port: see [admin] control of that balancer")
        }
        rest => Ok(rest.to_owned()),
    }
}

/// Returns the path; shells use an empty variable for none.
fn non_empty_path(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| !path.as_os_str().is_empty())
}

fn load_token(value: Option<&str>) -> Result<Option<String>, ControlError> {
    let text = match value.filter(|value| !value.is_empty()) {
        None => return Ok(None),
        Some(value) => match value.strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| refusal(format_args!("--token @{path}: {error}")))?,
            None => value.to_owned(),
        },
    };
    let text = text.trim();
    // The message does not contain the token: it is secret.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refusal("the token is empty, or has characters that no token has"));
    }
    Ok(Some(text.to_owned()))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ControlError> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| unreadable(path, &error))?;
    if chain.is_empty() {
        return Err(refusal(format_args!("{}: no certificate in PEM form is in it", path.display())));
    }
    Ok(chain)
}

fn unreadable(path: &Path, error: &rustls::pki_types::pem::Error) -> ControlError {
    refusal(format_args!("cannot read {}: {error}", path.display()))
}

fn refusal(message: impl fmt::Display) -> ControlError {
    ControlError::Refused(message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_one_by_one_or_by_a_file() {
        let path = std::env::temp_dir().join(format!("plimsoll-hosts-{}", std::process::id()));
        std::fs::write(&path, "# all of them\nhttps://a:1\n\nhttps://[::1]:2/ # here\n").unwrap();
        let list = ["https://b:3".to_owned(), format!("@{}", path.display())];
        assert_eq!(parse_hosts(&list).unwrap(), ["b:3", "a:1", "[::1]:2"]);
        std::fs::remove_file(&path).unwrap();
        for (text, expected) in [
            ("http://a:1", "give https://"),
            ("https://a", "no port"),
            ("https://:1", "no port"),
            ("https://a:1/status", "no more than"),
            ("@/no/such/file", "No such file"),
        ] {
            let error = parse_hosts(&[text.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_ticket_is_shown_by_a_build_that_has_kerberos() {
        let error = load_credentials(&CredentialArgs { negotiate: true, ..CredentialArgs::default() })
            .unwrap_err()
            .to_string();
        let expected = if plimsoll_kerberos::BUILT_IN { "needs --ca" } else { "--features kerberos" };
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_token_is_never_shown() {
        let credentials =
            CredentialArgs { token: Some("secret.secret.secret".into()), ..CredentialArgs::default() };
        assert!(!format!("{credentials:?}").contains("secret"));
        let error = load_token(Some("secret\r\nX: y")).unwrap_err().to_string();
        assert!(!error.contains("secret\r") && error.contains("no token has"), "{error}");
    }
}
