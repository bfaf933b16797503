//! An HTTPS client for an authority: one connection per request, with limits on everything that it receives.

use std::fmt;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The timeout of a request, from the DNS lookup to the last byte of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest response body in bytes; a certificate chain has a few thousand.
const MAX_BODY: usize = 1 << 20;
/// The longest `Retry-After` that is honoured, in seconds.
const MAX_RETRY_AFTER_SECONDS: u64 = 7 * 86_400;

/// The root certificates that an authority's TLS certificate must chain to. Two values are equal if they were
/// made from the same text.
#[derive(Clone)]
pub struct TrustRoots {
    config: Arc<ClientConfig>,
    fingerprint: u64,
}

impl TrustRoots {
    /// Parses root certificates in PEM form.
    ///
    /// # Errors
    /// Returns an error if the text holds no usable certificate.
    pub fn new(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(pem) {
            let authority = authority.map_err(|error| format!("not in PEM form: {error}"))?;
            // A system's bundle may contain roots that rustls rejects; skip them.
            let _ = roots.add(authority);
        }
        if roots.is_empty() {
            return Err("no authority in PEM form is in it".into());
        }
        Self::from_roots(roots, pem)
    }

    fn from_roots(roots: RootCertStore, pem: &[u8]) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut fingerprint = DefaultHasher::new();
        pem.hash(&mut fingerprint);
        Ok(Self { config: Arc::new(config), fingerprint: fingerprint.finish() })
    }

    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self::from_roots(RootCertStore::empty(), b"").unwrap()
    }
}

impl PartialEq for TrustRoots {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl fmt::Debug for TrustRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

/// Reads the system's root certificates in PEM form: the file that `SSL_CERT_FILE` names, or else the bundle
/// of Debian, Red Hat, SUSE or Alpine.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn system_authorities() -> io::Result<Vec<u8>> {
    const BUNDLE_PATHS: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
        return std::fs::read(path);
    }
    let existing_path = BUNDLE_PATHS.iter().find(|path| Path::new(path).exists());
    std::fs::read(existing_path.unwrap_or(&BUNDLE_PATHS[0]))
}

/// The `Retry-After` of the authority's last error response (RFC 9110, section 10.2.3).
pub(crate) type RetryAfter = Arc<Mutex<Option<Duration>>>;

/// An HTTP client for one authority.
#[derive(Clone)]
pub(crate) struct AcmeClient {
    trust: TrustRoots,
    retry_after: RetryAfter,
}

impl AcmeClient {
    pub(crate) fn new(trust: TrustRoots) -> (Self, RetryAfter) {
        let retry_after = RetryAfter::default();
        (Self { trust, retry_after: Arc::clone(&retry_after) }, retry_after)
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, String> {
        let uri = request.uri().clone();
        let host = uri.host().ok_or("the authority gave a URL without a host")?;
        let host_name = host.trim_matches(['[', ']']);
        if uri.scheme_str() != Some("https") {
            return Err(format!("the authority gave a URL that is not https: {uri}"));
        }
        let connect_error = |reason: String| format!("cannot reach {}: {reason}", authority(&uri));
        let name =
            ServerName::try_from(host_name.to_owned()).map_err(|error| connect_error(error.to_string()))?;
        let stream = TcpStream::connect((host_name, uri.port_u16().unwrap_or(443)));
        let stream = stream.await.map_err(|error| connect_error(error.to_string()))?;
        let connector = TlsConnector::from(Arc::clone(&self.trust.config));
        let stream =
            connector.connect(name, stream).await.map_err(|error| connect_error(format!("TLS: {error}")))?;
        let response = exchange(stream, &uri, request).await.map_err(connect_error)?;
        let (mut response_parts, body) = response.into_parts();
        bound_retry_after(&mut response_parts.headers);
        if response_parts.status.is_client_error() || response_parts.status.is_server_error() {
            let retry_after = parse_retry_after(&response_parts.headers, SystemTime::now());
            *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = retry_after;
            let content_type =
                response_parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            if !content_type.is_some_and(|kind| kind.contains("json")) {
                // The response comes from a proxy in between, for example.
                return Err(format!(
                    "{} answers {} to {}",
                    authority(&uri),
                    response_parts.status,
                    uri.path()
                ));
            }
        }
        Ok(BytesResponse::from(Response::from_parts(response_parts, Full::new(body))))
    }
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let authority_name = authority(request.uri());
            match timeout(REQUEST_TIMEOUT, client.send(request)).await {
                Ok(result) => result.map_err(|error| Error::Other(error.into())),
                Err(_) => {
                    Err(Error::Other(format!("no answer of {authority_name} in {REQUEST_TIMEOUT:?}").into()))
                }
            }
        })
    }
}

/// Returns `host:port`, or the host alone if the URL has no port.
fn authority(uri: &Uri) -> String {
    uri.authority().map(ToString::to_string).unwrap_or_default()
}

async fn exchange(
    stream: tokio_rustls::client::TlsStream<TcpStream>,
    uri: &Uri,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Bytes>, String> {
    let error_text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(error_text)?;
    let (mut request_parts, body) = request.into_parts();
    let header_value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    request_parts.headers.insert(HOST, header_value(&authority(uri))?);
    request_parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let library = request_parts
        .headers
        .get(USER_AGENT)
        .and_then(|user_agent| user_agent.to_str().ok())
        .unwrap_or_default();
    request_parts
        .headers
        .insert(USER_AGENT, header_value(&format!("plimsoll/{} {library}", env!("CARGO_PKG_VERSION")))?);
    request_parts.uri =
        uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(|_| "a URL without a path")?;
    let exchange = async {
        let response =
            sender.send_request(Request::from_parts(request_parts, body)).await.map_err(error_text)?;
        let (response_parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(response_parts, body.to_bytes()))
    };
    let mut exchange = std::pin::pin!(exchange);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = exchange.as_mut() => return result,
        // The connection may end before the last bytes of the response have been read.
        _ = connection.as_mut() => {}
    }
    exchange.await
}

/// Replaces a `Retry-After` above [`MAX_RETRY_AFTER_SECONDS`] by that number: the library adds the number to
/// a time, which must not overflow.
fn bound_retry_after(headers: &mut HeaderMap) {
    let text = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim);
    let Some(text) = text else { return drop(headers.remove(RETRY_AFTER)) };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && text.parse::<u64>().map_or(true, |seconds| seconds > MAX_RETRY_AFTER_SECONDS) {
        headers.insert(RETRY_AFTER, HeaderValue::from(MAX_RETRY_AFTER_SECONDS));
    }
}

/// Parses `Retry-After`, which is a number of seconds or a date.
fn parse_retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn when_to_come_back_is_read_in_both_forms() {
        let parse = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            parse_retry_after(&headers, UNIX_EPOCH + Duration::from_secs(784_111_777))
                .map(|retry_after| retry_after.as_secs())
        };
        assert_eq!(parse("120"), Some(120));
        assert_eq!(parse("Sun, 06 Nov 1994 08:59:37 GMT"), Some(600));
        assert_eq!(parse("Sun, 06 Nov 1994 08:00:00 GMT"), None);
        assert_eq!(parse("soon"), None);
    }

    #[test]
    fn no_number_is_too_large() {
        let bounded = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            bound_retry_after(&mut headers);
            headers.get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(bounded("18446744073709551615").as_deref(), Some("604800"));
        assert_eq!(bounded("99999999999999999999999999").as_deref(), Some("604800"));
        assert_eq!(bounded("5").as_deref(), Some("5"));
        assert_eq!(bounded("soon").as_deref(), Some("soon"));
    }

    #[test]
    fn authorities_are_read() {
        assert!(TrustRoots::new(b"nothing").unwrap_err().contains("no authority in PEM form"));
        let pem = crate::leaf::tests::pem(&["a"], (2026, 1, 1), (2027, 1, 1));
        let other = crate::leaf::tests::pem(&["a"], (2026, 1, 1), (2027, 1, 1));
        let trust = TrustRoots::new(pem.as_bytes()).unwrap();
        assert!(trust == TrustRoots::new(pem.as_bytes()).unwrap());
        assert!(trust != TrustRoots::new(other.as_bytes()).unwrap());
    }
}
