use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A provider that publishes a text with a number, and counts the requests.
pub(crate) struct KeyProvider {
    pub(crate) url: Url,
    number: Mutex<String>,
    asked: AtomicU32,
}

impl KeyProvider {
    pub(crate) async fn start(tls: Option<TlsAcceptor>) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (https, host) = (tls.is_some(), "127.0.0.1".into());
        let url = Url { https, host, port, path: "/keys?a=b".into() };
        let provider = Arc::new(Self { url, number: Mutex::new("1".into()), asked: AtomicU32::new(0) });
        let serving = Arc::clone(&provider);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                match &tls {
                    None => serving.answer(stream).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serving.answer(stream).await;
                        }
                    }
                }
            }
        });
        provider
    }

    async fn answer(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut head = [0; 1024];
        let len = stream.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..len]).into_owned();
        assert!(head.starts_with("GET /keys?a=b HTTP/1.1\r\nhost: 127.0.0.1:"), "{head}");
        self.asked.fetch_add(1, Ordering::Relaxed);
        let number = self.number.lock().unwrap().clone();
        let status = if number.is_empty() { "500 No" } else { "200 OK" };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{number}",
            number.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }

    pub(crate) fn publish(&self, number: &str) {
        *self.number.lock().unwrap() = number.into();
    }
}

fn number(bytes: &[u8]) -> Result<u32, String> {
    String::from_utf8_lossy(bytes).parse().map_err(|_| "no number".into())
}

fn remote(url: &Url, authorities: &str) -> Arc<RefreshedResource<u32>> {
    let remote = RefreshedResource::new(url.clone(), authorities.into(), number).unwrap();
    let quick = RefreshedResource { soonest: Duration::from_millis(20), ..Arc::into_inner(remote).unwrap() };
    Arc::new(quick)
}

/// Requests fetches until one succeeds.
async fn refreshed(remote: &RefreshedResource<u32>) {
    while !remote.refresh().await {
        // sleeps: polls
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_is_missed_is_fetched_anew_and_what_is_wrong_changes_nothing() {
    let provider = KeyProvider::start(None).await;
    let remote = remote(&provider.url, "");
    assert!(remote.current().is_none());
    tokio::spawn(Arc::clone(&remote).keep());
    refreshed(&remote).await;
    assert_eq!(remote.current().as_deref(), Some(&1));
    provider.publish("2");
    assert_eq!(remote.current().as_deref(), Some(&1), "it is not asked every time");
    refreshed(&remote).await;
    assert_eq!(remote.current().as_deref(), Some(&2));
    for wrong in ["", "x"] {
        provider.publish(wrong);
        refreshed(&remote).await;
        assert_eq!(remote.current().as_deref(), Some(&2), "{wrong:?}");
    }
    provider.publish("3");
    refreshed(&remote).await;
    assert_eq!(remote.current().as_deref(), Some(&3));
    // Requests for keys that do not exist cause a limited number of fetches.
    let (begun, before) = (Instant::now(), provider.asked.load(Ordering::Relaxed));
    for _ in 0..500 {
        remote.refresh().await;
    }
    let asked = u128::from(provider.asked.load(Ordering::Relaxed) - before);
    // bound: as often as it may in the time that it took
    assert!(asked <= begun.elapsed().as_millis() / 20 + 1, "{asked} times in {:?}", begun.elapsed());
}

#[tokio::test]
async fn over_tls_only_who_has_a_certificate_of_the_authorities_is_believed() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().self_signed(&key).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let provider = KeyProvider::start(Some(TlsAcceptor::from(Arc::new(config)))).await;
    let file = |name: &str, der: &[u8]| {
        let pem = BASE64_STANDARD.encode(der);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{pem}\n-----END CERTIFICATE-----\n");
        let path = std::env::temp_dir().join(format!("plimsoll-remote-{}-{name}", std::process::id()));
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let other = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    let other = other.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let (ours, theirs) = (file("ours", certificate.der()), file("theirs", other.der()));
    let good = remote(&provider.url, &ours);
    tokio::spawn(Arc::clone(&good).keep());
    refreshed(&good).await;
    assert_eq!(good.current().as_deref(), Some(&1));
    let bad = remote(&provider.url, &theirs);
    tokio::spawn(Arc::clone(&bad).keep());
    refreshed(&bad).await;
    assert!(bad.current().is_none());
    for path in [ours, theirs] {
        std::fs::remove_file(path).unwrap();
    }
    assert!(RefreshedResource::new(provider.url.clone(), "/no/such/file".into(), number).is_err());
}

#[test]
fn urls() {
    for (text, shown) in [
        ("https://id.example.org/keys", "https://id.example.org:443/keys"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80/"),
        ("https://[::1]:8443/a?b=c", "https://[::1]:8443/a?b=c"),
        ("https://[::1]", "https://[::1]:443/"),
    ] {
        assert_eq!(text.parse::<Url>().unwrap().to_string(), shown);
        assert_eq!(shown.parse::<Url>(), text.parse::<Url>());
    }
    for text in [
        "",
        "ftp://a/",
        "https://",
        "https:///x",
        "https://a:0/",
        "https://a:x/",
        "https://a b/",
        "https://u@a/",
    ] {
        assert!(text.parse::<Url>().is_err(), "{text}");
    }
}

#[test]
fn how_long_it_is_good_for() {
    let of = |value: &'static str| {
        let mut head = HeaderMap::new();
        head.insert(CACHE_CONTROL, hyper::header::HeaderValue::from_static(value));
        lifetime(&head).as_secs()
    };
    assert_eq!(
        (of("public, max-age=600"), of("max-age=1"), of("max-age=999999"), of("no-store")),
        (600, 60, 3600, 300)
    );
    assert_eq!(lifetime(&HeaderMap::new()), DEFAULT_LIFETIME);
}
