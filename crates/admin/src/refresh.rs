//! A value derived from a resource that is fetched repeatedly: the keys that an identity provider publishes.
//!
//! It is fetched again after its lifetime by the provider's `Cache-Control: max-age`, within bounds. It is
//! also fetched at once when a key is missing, as providers rotate their keys at any time. Requests for
//! unknown keys cause a fetch at most every few seconds. If the provider is unreachable, the last value stays
//! valid for a day. An attacker that blocks the provider must not keep revoked keys valid forever.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CACHE_CONTROL, HOST};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::reload::WatchedFiles;

/// The time limit of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a request with a missing key waits for a fetch.
const REFRESH_WAIT: Duration = Duration::from_secs(3);
/// The minimum interval of fetches because of missing keys.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The lifetime of the value: the default, and the bounds for the provider's own.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);
const MIN_LIFETIME: Duration = Duration::from_secs(60);
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// The maximum age of the value while the provider is unreachable.
const MAX_AGE: Duration = Duration::from_secs(86_400);
/// The maximum length of a response, in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// The address of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether to use TLS.
    pub https: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, with its query.
    pub path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err("begins neither with https:// nor with http://".into()),
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['#', '@']) {
            return Err("has characters that such a URL cannot have".into());
        }
        let (authority, path) = rest.find('/').map_or((rest, "/"), |index| rest.split_at(index));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && !port.ends_with(']') => {
                (host, port.parse().ok().filter(|port| *port > 0).ok_or("has no port behind the colon")?)
            }
            _ => (authority, if https { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if ServerName::try_from(host.as_str()).is_err() {
            return Err("has no host that could be asked".into());
        }
        Ok(Self { https, host, port, path: path.into() })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.https { "https" } else { "http" }, self.authority(), self.path)
    }
}

impl Url {
    /// Returns host and port.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

type ResponseParser<T> = Box<dyn Fn(&[u8]) -> Result<T, String> + Send + Sync>;

/// A fetched resource, and the value derived from it.
pub(crate) struct RefreshedResource<T> {
    url: Url,
    /// The TLS configuration for the provider's authorities; reloaded when the file changes.
    authorities: Option<WatchedFiles<ClientConfig>>,
    parse: ResponseParser<T>,
    cache: Mutex<ResourceCache<T>>,
    refresh_requested: Notify,
    /// The number of attempted fetches.
    attempts: watch::Sender<u64>,
    pub(crate) soonest: Duration,
}

struct ResourceCache<T> {
    /// The value and the time of its fetch.
    value: Option<(Arc<T>, Instant)>,
    requested_at: Option<Instant>,
}

impl<T: Send + Sync + 'static> RefreshedResource<T> {
    /// Creates the resource without fetching it yet.
    ///
    /// # Errors
    /// The authorities cannot be read; only TLS needs them.
    pub(crate) fn new(
        url: Url,
        authorities: PathBuf,
        parse: impl Fn(&[u8]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        let name = authorities.display().to_string();
        let open = || WatchedFiles::open(vec![authorities], move |files| client_config(&name, files.first()));
        let authorities = if url.https { Some(open()?) } else { None };
        let cache = Mutex::new(ResourceCache { value: None, requested_at: None });
        let (attempts, parse) = (watch::Sender::new(0), Box::new(parse));
        Ok(Arc::new(Self {
            url,
            authorities,
            parse,
            cache,
            refresh_requested: Notify::new(),
            attempts,
            soonest: MIN_REFRESH_INTERVAL,
        }))
    }

    /// Returns the last value, unless it is too old.
    pub(crate) fn current(&self) -> Option<Arc<T>> {
        let cache = self.lock_cache();
        let (value, fetched_at) = cache.value.as_ref()?;
        (fetched_at.elapsed() < MAX_AGE).then(|| Arc::clone(value))
    }

    /// Requests a fetch for a missing key. Returns `true` if the resource has been fetched since.
    pub(crate) async fn refresh(&self) -> bool {
        if self.lock_cache().requested_at.is_some_and(|requested_at| requested_at.elapsed() < self.soonest) {
            return false;
        }
        let mut attempts = self.attempts.subscribe();
        self.refresh_requested.notify_one();
        timeout(REFRESH_WAIT, attempts.changed()).await.is_ok_and(|changed| changed.is_ok())
    }

    /// Fetches the resource now and whenever it is due.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut failures = 0_u32;
        loop {
            self.lock_cache().requested_at = Some(Instant::now());
            let result = timeout(RESPONSE_TIMEOUT, self.fetch()).await;
            let wait = match result.unwrap_or_else(|_| Err(format!("no answer in {RESPONSE_TIMEOUT:?}"))) {
                Ok((value, fresh_for)) => {
                    if failures > 0 || self.lock_cache().value.is_none() {
                        tracing::info!("fetched {}", self.url);
                    }
                    failures = 0;
                    self.lock_cache().value = Some((Arc::new(value), Instant::now()));
                    fresh_for
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!("cannot fetch {}: {error}; what was fetched before stays", self.url);
                    }
                    failures = (failures + 1).min(6);
                    self.soonest * 2_u32.pow(failures - 1)
                }
            };
            self.attempts.send_modify(|attempt| *attempt += 1);
            sleep(self.soonest).await;
            tokio::select! {
                () = sleep(wait.saturating_sub(self.soonest)) => {}
                () = self.refresh_requested.notified() => {}
            }
        }
    }

    /// Returns the new value and its lifetime.
    async fn fetch(&self) -> Result<(T, Duration), String> {
        let io_error = |error: io::Error| error.to_string();
        let stream = TcpStream::connect((self.url.host.as_str(), self.url.port)).await.map_err(io_error)?;
        let (headers, body) = match &self.authorities {
            None => self.exchange(stream).await?,
            Some(authorities) => {
                let config = authorities.current_or_log("the certificate authorities of the key server");
                let name = ServerName::try_from(self.url.host.clone()).map_err(|error| error.to_string())?;
                let connector = TlsConnector::from(config);
                self.exchange(connector.connect(name, stream).await.map_err(io_error)?).await?
            }
        };
        Ok(((self.parse)(&body)?, lifetime(&headers)))
    }

    async fn exchange<S>(&self, stream: S) -> Result<(HeaderMap, Bytes), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let http_error = |error: hyper::Error| error.to_string();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http_error)?;
        let request = Request::get(&self.url.path)
            .header(HOST, self.url.authority())
            .header(ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(http_error)?;
            if response.status() != StatusCode::OK {
                return Err(format!("the answer is {}", response.status()));
            }
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(|error| error.to_string())?;
            Ok((parts.headers, body.to_bytes()))
        };
        drive_connection(connection, exchange).await
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, ResourceCache<T>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for RefreshedResource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.url).finish()
    }
}

/// Builds a client configuration that trusts these authorities.
pub(crate) fn client_config(name: &str, pem: Option<&Vec<u8>>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem.map_or(&[], Vec::as_slice)) {
        let authority = authority.map_err(|error| format!("{name} is not PEM: {error}"))?;
        // Some of a system's many authorities may be invalid.
        let _ = roots.add(authority);
    }
    if roots.is_empty() {
        return Err(format!("{name}: no authority in PEM form is in it"));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// Returns the lifetime by `Cache-Control` (RFC 9111, section 5.2.2.1), within bounds.
fn lifetime(headers: &HeaderMap) -> Duration {
    let cache_control = headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok());
    let age = cache_control.and_then(|cache_control| {
        let ages = cache_control
            .split(',')
            .filter_map(|directive| directive.trim().strip_prefix("max-age=")?.parse().ok());
        ages.min()
    });
    age.map_or(DEFAULT_LIFETIME, Duration::from_secs).clamp(MIN_LIFETIME, MAX_LIFETIME)
}

/// Runs an exchange while driving its connection.
pub(crate) async fn drive_connection<T>(connection: impl Future, exchange: impl Future<Output = T>) -> T {
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        answer = exchange.as_mut() => return answer,
        // The connection may end before its last bytes have been read.
        _ = connection => {}
    }
    exchange.await
}

#[cfg(test)]
pub(crate) mod tests;
