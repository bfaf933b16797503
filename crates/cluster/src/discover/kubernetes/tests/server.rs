//! A scripted API server: each connection carries one request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::PATIENCE;

trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

pub(super) struct FakeApiServer {
    address: SocketAddr,
    /// Reserves the port, even while the server is closed.
    reserved_port: Option<TcpSocket>,
    requests: mpsc::Receiver<ApiRequest>,
    task: JoinHandle<()>,
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request that waits for its response.
pub(super) struct ApiRequest {
    target: String,
    fields: Vec<(String, String)>,
    wire: Box<dyn ByteStream>,
}

/// A response that continues.
pub(super) struct ChunkedResponse(Box<dyn ByteStream>);

impl FakeApiServer {
    pub(super) async fn start() -> Self {
        let held = TcpSocket::new_v4().unwrap();
        held.set_reuseaddr(true).unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = TcpListener::bind(held.local_addr().unwrap()).await.unwrap();
        let mut server = Self::serve_on(listener, None);
        server.reserved_port = Some(held);
        server
    }

    /// Starts a server with TLS as `localhost`. Returns it with its certificate.
    pub(super) async fn secure() -> (Self, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config =
            config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (Self::serve_on(listener, Some(TlsAcceptor::from(Arc::new(config)))), made.cert.pem())
    }

    /// Closes the address.
    pub(super) async fn close(&mut self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await; // sleeps: polls
        }
    }

    /// Opens the address again.
    pub(super) async fn reopen(&mut self) {
        let mut other = Self::serve_on(TcpListener::bind(self.address).await.unwrap(), None);
        std::mem::swap(&mut self.task, &mut other.task);
        std::mem::swap(&mut self.requests, &mut other.requests);
    }

    fn serve_on(listener: TcpListener, tls: Option<TlsAcceptor>) -> Self {
        let address = listener.local_addr().unwrap();
        let (to, requests) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, to) = (tls.clone(), to.clone());
                tokio::spawn(async move {
                    let wire: Box<dyn ByteStream> = match tls {
                        None => Box::new(stream),
                        // A client that rejects the certificate sends no request.
                        Some(tls) => match tls.accept(stream).await {
                            Ok(secure) => Box::new(secure),
                            Err(_) => return,
                        },
                    };
                    if let Some(asked) = read(wire).await {
                        let _ = to.send(asked).await;
                    }
                });
            }
        });
        Self { address, reserved_port: None, requests, task }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn next_request(&mut self) -> ApiRequest {
        timeout(PATIENCE, self.requests.recv()).await.expect("it is asked").expect("it listens")
    }
}

impl ApiRequest {
    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    /// Returns a decoded parameter of the query.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        let value = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.replace("%2F", "/").replace("%3D", "="))
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) async fn respond_json(mut self, status: u16, body: &Value) {
        let body = body.to_string();
        let text = format!(
            "HTTP/1.1 {status} Some\r\ncontent-type: application/json\r\nconnection: \
             close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.wire.write_all(text.as_bytes()).await.unwrap();
        self.wire.shutdown().await.unwrap();
    }

    pub(super) async fn respond_stream(mut self) -> ChunkedResponse {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: \
            chunked\r\nconnection: close\r\n\r\n";
        self.wire.write_all(head.as_bytes()).await.unwrap();
        ChunkedResponse(self.wire)
    }
}

impl ChunkedResponse {
    pub(super) async fn event(&mut self, event: &Value) {
        self.send_chunk(&format!("{event}\n")).await;
    }

    /// Sends a chunk that may end anywhere.
    pub(super) async fn send_chunk(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.0.write_all(chunk.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Ends the response as a server ends a watch after its time.
    pub(super) async fn finish(mut self) {
        self.0.write_all(b"0\r\n\r\n").await.unwrap();
        self.0.shutdown().await.unwrap();
    }

    /// Ends the response as a broken connection does.
    pub(super) async fn abort(mut self) {
        self.0.shutdown().await.unwrap();
    }
}

async fn read(mut wire: Box<dyn ByteStream>) -> Option<ApiRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(wire.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let target = lines.next()?.split(' ').nth(1)?.to_owned();
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    Some(ApiRequest { target, fields: lines.filter_map(field).collect(), wire })
}
