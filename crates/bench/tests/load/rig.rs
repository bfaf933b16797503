//! Servers that do as they are told, and a target that notes when it is asked.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::record::Record;
use plimsoll_bench::run::{self, Limits};
use plimsoll_bench::target::{Answer, Ask, Http, Step, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nx-member: m1\r\ncontent-length: 2\r\n\r\nok";

/// What a server has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    /// Now, and the most at once.
    pub(crate) busy: AtomicUsize,
    pub(crate) most: AtomicUsize,
    /// First lines of requests, in order.
    pub(crate) lines: Mutex<Vec<String>>,
}

/// A server on a thread of its own: reads requests without a body and answers each when `when` (given the
/// time since the start) says, with `answer`; keeps the connection open.
pub(crate) fn server(
    answer: &'static [u8],
    when: impl Fn(Duration) -> Duration + Send + Sync + 'static,
) -> SocketAddr {
    watched(answer, when).0
}

/// The same, and what it sees.
pub(crate) fn watched(
    answer: &'static [u8],
    when: impl Fn(Duration) -> Duration + Send + Sync + 'static,
) -> (SocketAddr, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let sees = seen.clone();
    std::thread::spawn(move || serve(listener, answer, when, &sees));
    (address, seen)
}

/// Serves for ever.
pub(crate) fn serve(
    listener: TcpListener,
    answer: &'static [u8],
    when: impl Fn(Duration) -> Duration + Send + Sync + 'static,
    seen: &Arc<Seen>,
) {
    let start = Instant::now();
    let when = Arc::new(when);
    listener.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (when, seen) = (when.clone(), seen.clone());
            seen.connections.fetch_add(1, Relaxed);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    let line = String::from_utf8_lossy(&buffer[..count]);
                    seen.lines.lock().unwrap().push(line.lines().next().unwrap_or_default().to_owned());
                    let busy = seen.busy.fetch_add(1, Relaxed) + 1;
                    seen.most.fetch_max(busy, Relaxed);
                    let now = start.elapsed();
                    tokio::time::sleep(when(now).saturating_sub(now)).await;
                    seen.busy.fetch_sub(1, Relaxed);
                    if stream.write_all(answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

pub(crate) fn get(address: SocketAddr) -> Http {
    Http::new("GET", &format!("http://{address}/"), &[], b"").unwrap()
}

pub(crate) fn load(
    address: SocketAddr,
    arrival: Arrival,
    rate: f64,
    duration: Duration,
    limits: Limits,
) -> Record {
    run::start(get(address), Pace::new(arrival, rate, duration, 1), limits).unwrap().join().unwrap()
}

/// A target that notes when the generator turned to each request.
pub(crate) struct Stamped {
    pub(crate) http: Http,
    pub(crate) stamps: Arc<Mutex<Vec<Instant>>>,
}

impl Target for Stamped {
    type State = <Http as Target>::State;

    fn addresses(&self) -> &[SocketAddr] {
        self.http.addresses()
    }

    fn request(&mut self) -> Ask<Self::State> {
        self.stamps.lock().unwrap().push(Instant::now());
        self.http.request()
    }

    fn answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> Step {
        self.http.answer(state, bytes)
    }

    fn end(&mut self, state: &mut Self::State) -> Option<Answer> {
        self.http.end(state)
    }
}

/// An address that nobody listens at, as long as the socket is kept: it has the port.
pub(crate) fn nobody() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}
