//! Scripted servers, a target that records when requests are sent, and polling with a timeout.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::record::RunRecord;
use plimsoll_bench::run::{self, LoadRun, RunLimits};
use plimsoll_bench::target::{AnswerProgress, HttpTarget, RequestTarget, TargetAnswer, TargetRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Longer than any test waits: an operation of this length never ends by itself.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// The bound of every wait, longer than any operation on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nx-member: m1\r\ncontent-length: 2\r\n\r\nok";

/// Limits that a busy machine does not reach.
pub(crate) fn patient() -> RunLimits {
    RunLimits { timeout: PATIENCE, connect_timeout: PATIENCE, ..RunLimits::default() }
}

/// Polls until `holds` returns `true`.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        // bound: a safety net
        assert!(begun.elapsed() < PATIENCE, "in {PATIENCE:?}: not {what}");
        std::thread::sleep(MS); // sleeps: polls
    }
}

/// Takes results until there are enough.
#[track_caller]
pub(crate) fn taken(run: &LoadRun, enough: impl Fn(&RunRecord) -> bool) -> RunRecord {
    let (begun, mut record) = (Instant::now(), RunRecord::new());
    while !enough(&record) {
        let RunRecord { due, ok, failed, .. } = &record;
        // bound: a safety net
        assert!(begun.elapsed() < PATIENCE, "in {PATIENCE:?}: {due} due, {ok} ok, {failed:?}");
        std::thread::sleep(MS); // sleeps: polls
        record.merge(&run.take_record());
    }
    record
}

/// Stops a run when it has enough results; returns all of them.
#[track_caller]
pub(crate) fn stopped(run: LoadRun, enough: impl Fn(&RunRecord) -> bool) -> RunRecord {
    let mut record = taken(&run, enough);
    run.stop();
    record.merge(&run.join().unwrap());
    record
}

/// The observations of a server.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    /// The current number of busy requests, and its maximum.
    pub(crate) busy: AtomicUsize,
    pub(crate) most: AtomicUsize,
    /// The first lines of requests, in order.
    pub(crate) lines: Mutex<Vec<String>>,
    /// Whether answers are held back.
    held: watch::Sender<bool>,
}

impl Seen {
    /// Holds all answers back from now on.
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Releases the held answers, and all that follow.
    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }
}

/// Starts a server on a separate thread. It reads requests without a body, answers each with `answer` at the
/// time that `when` returns (given the time since the start), and keeps the connection open.
pub(crate) fn server(
    answer: &'static [u8],
    when: impl Fn(Duration) -> Duration + Send + Sync + 'static,
) -> SocketAddr {
    watched(answer, when).0
}

/// Starts the same server and returns its observations.
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

/// Serves forever.
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
                let (mut buffer, mut held) = ([0; 4096], seen.held.subscribe());
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    let line = String::from_utf8_lossy(&buffer[..count]);
                    seen.lines.lock().unwrap().push(line.lines().next().unwrap_or_default().to_owned());
                    let busy = seen.busy.fetch_add(1, Relaxed) + 1;
                    seen.most.fetch_max(busy, Relaxed);
                    let now = start.elapsed();
                    // sleeps: the server's service time
                    tokio::time::sleep(when(now).saturating_sub(now)).await;
                    held.wait_for(|held| !held).await.unwrap();
                    seen.busy.fetch_sub(1, Relaxed);
                    if stream.write_all(answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

pub(crate) fn get(address: SocketAddr) -> HttpTarget {
    HttpTarget::new("GET", &format!("http://{address}/"), &[], b"").unwrap()
}

pub(crate) fn load(
    address: SocketAddr,
    arrival: ArrivalProcess,
    rate: f64,
    duration: Duration,
    limits: RunLimits,
) -> RunRecord {
    run::start(get(address), RequestPacer::new(arrival, rate, duration, 1), limits).unwrap().join().unwrap()
}

/// A target that records when the generator handled each request.
pub(crate) struct Stamped {
    pub(crate) http: HttpTarget,
    pub(crate) stamps: Arc<Mutex<Vec<Instant>>>,
}

impl RequestTarget for Stamped {
    type State = <HttpTarget as RequestTarget>::State;

    fn addresses(&self) -> &[SocketAddr] {
        self.http.addresses()
    }

    fn next_request(&mut self) -> TargetRequest<Self::State> {
        self.stamps.lock().unwrap().push(Instant::now());
        self.http.next_request()
    }

    fn consume_answer(&mut self, state: &mut Self::State, bytes: &[u8]) -> AnswerProgress {
        self.http.consume_answer(state, bytes)
    }

    fn connection_ended(&mut self, state: &mut Self::State) -> Option<TargetAnswer> {
        self.http.connection_ended(state)
    }
}

/// Returns an address without a listener, as long as the socket is kept: it holds the port, and shares it
/// with a member.
pub(crate) fn nobody() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}
