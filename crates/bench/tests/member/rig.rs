//! Members on threads of the test, and helpers to access them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, Once, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use plimsoll_bench::member::{self, MemberSpec};
use tokio::sync::oneshot;

pub(crate) const MS: Duration = Duration::from_millis(1);
/// A service that does not end by itself while a test runs.
pub(crate) const HOUR: &str = "const:3600s";
/// The bound of every wait, longer than any operation on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A member on a separate thread.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Its further addresses, if it has any.
    pub(crate) doors: Mutex<mpsc::Receiver<SocketAddr>>,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

pub(crate) fn member(change: impl FnOnce(&mut MemberSpec)) -> Running {
    let mut spec = MemberSpec::new("127.0.0.1:0".parse().unwrap());
    spec.name = Some("m1".to_owned());
    change(&mut spec);
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let stopped = async { drop(stopped.await) };
        member::serve(spec, |address| tell.send(address).unwrap(), stopped).unwrap();
    });
    Running { address: told.recv().unwrap(), doors: Mutex::new(told), stop: Some(stop), thread: Some(thread) }
}

impl Running {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns the member's answer to `GET /_plimsoll/WHAT`.
    pub(crate) fn tells(&self, what: &str) -> serde_json::Value {
        let request = format!("GET /_plimsoll/{what} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = self.say(&request, "");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Waits until the member has received `requests` requests, with `in_flight` of them in flight.
    #[track_caller]
    pub(crate) fn comes_to(&self, requests: usize, in_flight: usize) {
        eventually("all have come and been looked at", || {
            self.tells("count")["requests"] == requests
                && self.tells("load")["values"]["in_flight"] == in_flight
        });
    }

    /// Returns the member's answer to `request` until it closes or has sent `end`.
    pub(crate) fn say(&self, request: &str, end: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        until(&mut stream, end)
    }

    pub(crate) fn stop(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Polls until `holds` returns `true`.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        // bound: a safety net
        assert!(begun.elapsed() < PATIENCE, "in {PATIENCE:?}: not {what}");
        std::thread::sleep(MS); // sleeps: polls
    }
}

/// Returns an address that stays free for a member as long as the socket is kept.
pub(crate) fn kept() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Returns the threads that have panicked since the first call.
pub(crate) fn panicked() -> Vec<ThreadId> {
    static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            THREADS.lock().unwrap().push(std::thread::current().id());
            before(panic);
        }));
    });
    THREADS.lock().unwrap().clone()
}

pub(crate) fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 65536];
    while end.is_empty() || !text.ends_with(end.as_bytes()) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&text)),
        }
    }
    String::from_utf8(text).unwrap()
}

pub(crate) const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Opens `n` connections, each with a request on it.
pub(crate) fn asked(m1: &Running, n: usize) -> Vec<TcpStream> {
    let mut streams: Vec<TcpStream> = (0..n).map(|_| m1.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    }
    streams
}

/// Sends `n` requests at once, each on its own connection; returns the time and the answers.
pub(crate) fn together(m1: &Running, n: usize) -> (Duration, Vec<String>) {
    let begin = Instant::now();
    let mut streams = asked(m1, n);
    let answers = streams.iter_mut().map(|stream| until(stream, "")).collect();
    (begin.elapsed(), answers)
}
