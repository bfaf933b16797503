//! A scripted server that records its requests.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    pub(super) method: String,
    pub(super) path: String,
    fields: Vec<(String, String)>,
    /// The body; null if there is none.
    pub(super) body: Value,
}

impl RecordedRequest {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(header_name, _)| header_name == name).map(|(_, value)| value.as_str())
    }
}

/// The kinds of addresses.
pub(super) enum ListenKind {
    Tcp,
    Unix(PathBuf),
}

pub(super) struct RecordingServer {
    address: Option<SocketAddr>,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

type ResponseHandler = Arc<dyn Fn(&RecordedRequest) -> (u16, Value) + Send + Sync>;

impl RecordingServer {
    pub(super) fn start(
        kind: ListenKind,
        handler: impl Fn(&RecordedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let (requests, handler) =
            (Arc::<Mutex<Vec<RecordedRequest>>>::default(), Arc::new(handler) as ResponseHandler);
        let recorded_requests = Arc::clone(&requests);
        let address = match kind {
            ListenKind::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                thread::spawn(move || {
                    listener
                        .incoming()
                        .flatten()
                        .for_each(|stream: TcpStream| serve(stream, &recorded_requests, &handler));
                });
                Some(address)
            }
            ListenKind::Unix(path) => {
                let listener = UnixListener::bind(path).unwrap();
                thread::spawn(move || {
                    listener
                        .incoming()
                        .flatten()
                        .for_each(|stream: UnixStream| serve(stream, &recorded_requests, &handler));
                });
                None
            }
        };
        Self { address, requests }
    }

    /// Starts a server with TLS as `localhost`. Returns it with its certificate.
    pub(super) fn secure(
        handler: impl Fn(&RecordedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Self, String) {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config =
            config.with_no_client_auth().with_single_cert(vec![certificate.cert.der().clone()], key).unwrap();
        let config = Arc::new(config);
        let (requests, handler) =
            (Arc::<Mutex<Vec<RecordedRequest>>>::default(), Arc::new(handler) as ResponseHandler);
        let recorded_requests = Arc::clone(&requests);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                stream.set_read_timeout(Some(super::TEST_TIMEOUT)).unwrap();
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                serve(StreamOwned::new(connection, stream), &recorded_requests, &handler);
            }
        });
        (Self { address: Some(address), requests }, certificate.cert.pem())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    /// Returns the requests so far.
    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

/// Handles one request of a connection, and closes it.
fn serve(stream: impl Read + Write, requests: &Mutex<Vec<RecordedRequest>>, handler: &ResponseHandler) {
    let mut stream = BufReader::new(stream);
    let Some(request) = read(&mut stream) else { return };
    requests.lock().unwrap().push(request.clone());
    let (status, body) = handler(&request);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = if matches!(status, 204 | 304) {
        String::new()
    } else {
        format!("content-length: {}\r\n", body.len())
    };
    let response = format!("HTTP/1.1 {status} Some\r\n{length}connection: close\r\n\r\n{body}");
    let stream = stream.get_mut();
    let _ = stream.write_all(response.as_bytes()).and_then(|()| stream.flush());
}

fn read(stream: &mut BufReader<impl Read>) -> Option<RecordedRequest> {
    let mut line = String::new();
    let mut next_line = |stream: &mut BufReader<_>| {
        line.clear();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let request_line = next_line(stream)?;
    let mut parts = request_line.split(' ');
    let (method, path) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let line = next_line(stream)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some(RecordedRequest { method, path, fields: headers, body })
}
