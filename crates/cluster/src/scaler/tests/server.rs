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
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
        way: ListenKind,
        answer: impl Fn(&RecordedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let (requests, answer) =
            (Arc::<Mutex<Vec<RecordedRequest>>>::default(), Arc::new(answer) as ResponseHandler);
        let kept = Arc::clone(&requests);
        let address = match way {
            ListenKind::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                thread::spawn(move || {
                    listener.incoming().flatten().for_each(|stream: TcpStream| serve(stream, &kept, &answer));
                });
                Some(address)
            }
            ListenKind::Unix(path) => {
                let listener = UnixListener::bind(path).unwrap();
                thread::spawn(move || {
                    listener
                        .incoming()
                        .flatten()
                        .for_each(|stream: UnixStream| serve(stream, &kept, &answer));
                });
                None
            }
        };
        Self { address, requests }
    }

    /// Starts a server with TLS as `localhost`. Returns it with its certificate.
    pub(super) fn secure(
        answer: impl Fn(&RecordedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Self, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config =
            config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let config = Arc::new(config);
        let (asked, answer) =
            (Arc::<Mutex<Vec<RecordedRequest>>>::default(), Arc::new(answer) as ResponseHandler);
        let kept = Arc::clone(&asked);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                serve(StreamOwned::new(connection, stream), &kept, &answer);
            }
        });
        (Self { address: Some(address), requests: asked }, made.cert.pem())
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
fn serve(stream: impl Read + Write, asked: &Mutex<Vec<RecordedRequest>>, answer: &ResponseHandler) {
    let mut stream = BufReader::new(stream);
    let Some(one) = read(&mut stream) else { return };
    asked.lock().unwrap().push(one.clone());
    let (status, body) = answer(&one);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = if matches!(status, 204 | 304) {
        String::new()
    } else {
        format!("content-length: {}\r\n", body.len())
    };
    let text = format!("HTTP/1.1 {status} Some\r\n{length}connection: close\r\n\r\n{body}");
    let stream = stream.get_mut();
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

fn read(stream: &mut BufReader<impl Read>) -> Option<RecordedRequest> {
    let mut line = String::new();
    let mut next = |stream: &mut BufReader<_>| {
        line.clear();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = next(stream)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut fields = Vec::new();
    loop {
        let line = next(stream)?;
        let Some((name, value)) = line.split_once(':') else { break };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = fields.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some(RecordedRequest { method, path, fields, body })
}
