//! A test server that can be told how fast, how many at a time and how badly it serves.
//!
//! A member has a number of *workers* and a *service time*: a request waits, first come first served, until
//! a worker is free, holds it for a service time drawn from a distribution, and is answered. That is the
//! G/G/c queue that models of servers speak of, so that what a balancer does to it can be computed. Service
//! is emulated by a timer, which lets many members share a small machine without taking each other's time,
//! or really burns the processor.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::LocalOptions;
use tokio::sync::watch;

mod echo;
mod http;
mod service;
mod shuffle;
mod timer;
mod work;

pub use http::Refusal;
pub use service::{Service, Slowdown};
pub use shuffle::shuffle;

use http::Page;
use work::Work;

use crate::chance::Chance;

/// How long requests in flight may take to end when the member stops.
const GRACE: Duration = Duration::from_secs(5);

/// What a member is to do.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What is spoken.
    pub kind: Kind,
    /// Sent as `x-member`; the address if `None`.
    pub name: Option<String>,
    /// How long a worker holds a request.
    pub service: Service,
    /// Requests served at a time; at least 1.
    pub workers: usize,
    /// Most requests that wait for a worker; more are refused with 503 (http), dropped (udp) or end their
    /// connection (tcp).
    pub queue: usize,
    /// Burn the processor for the service time instead of waiting.
    pub burn: bool,
    /// How much longer a worker holds the first request of a connection (http): what a server spends on
    /// setting a session up.
    pub session: Duration,
    /// Answer with the integers of the request's body after so many swaps of two of them (http): real work,
    /// which takes the place of the service time.
    pub swaps: Option<u32>,
    /// Length of an answer's body (http); the member's name and a line end if `None`.
    pub body: Option<usize>,
    /// Share of the requests that fail, from 0 to 1 (http).
    pub fail_rate: f64,
    /// How they fail.
    pub refusal: Refusal,
    /// Becomes slower by itself.
    pub slow_after: Option<Slowdown>,
    /// Obey `POST /_plimsoll/slow?factor=N` and answer `GET /_plimsoll/count` (http).
    pub admin: bool,
    /// Begin each connection with the name and a line end (tcp), each answer with the name and a space (udp).
    pub greet: bool,
    /// Of service times and failures.
    pub seed: u64,
}

/// What a member speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// HTTP/1.1: answers that name the member.
    Http,
    /// HTTP/1.1: answers with the request as it came.
    HttpEcho,
    /// Sends back what it gets.
    Tcp,
    /// Sends back each datagram.
    Udp,
}

impl Kind {
    /// As in `listening http 127.0.0.1:9001`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http | Self::HttpEcho => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl Spec {
    /// An HTTP member on `listen` that answers at once.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            kind: Kind::Http,
            name: None,
            service: Service::None,
            workers: 4,
            queue: 1024,
            burn: false,
            session: Duration::ZERO,
            swaps: None,
            body: None,
            fail_rate: 0.0,
            refusal: Refusal::Status(500),
            slow_after: None,
            admin: false,
            greet: false,
            seed: 1,
        }
    }
}

/// What all connections of a member share.
struct Member {
    spec: Spec,
    name: String,
    work: Work,
    page: Page,
    chance: RefCell<Chance>,
    /// True once the member ends.
    stopping: watch::Receiver<bool>,
    /// TCP connections open.
    connections: Cell<usize>,
    /// HTTP requests that have come, operators' orders left out.
    requests: Cell<u64>,
}

/// Serves on this thread until `stop` comes true, then ends what is in flight, in five seconds at the most.
/// Tells `ready` the address once it listens. `stop` is polled inside a tokio runtime.
///
/// # Errors
/// If the address cannot be listened on, or the name cannot be sent in a header.
pub fn serve(spec: Spec, ready: impl FnOnce(SocketAddr), stop: impl Future<Output = ()>) -> io::Result<()> {
    if spec
        .name
        .as_ref()
        .is_some_and(|name| name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let why = "a member's name must be visible ASCII without spaces";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(spec.workers.max(1))
        .build_local(LocalOptions::default())?;
    let result = runtime.block_on(run(spec, ready, stop));
    // Processor time that is still being burned is nobody's any more.
    runtime.shutdown_background();
    result
}

async fn run(spec: Spec, ready: impl FnOnce(SocketAddr), stop: impl Future<Output = ()>) -> io::Result<()> {
    let (stopped, stopping) = watch::channel(false);
    let member = |spec: Spec, address: SocketAddr| -> io::Result<Rc<Member>> {
        let name = spec.name.clone().unwrap_or_else(|| address.to_string());
        let work = Work::new(&spec)?;
        let page = Page::new(&name, spec.body);
        // Not the seed of the service times: the two must not go together.
        let chance = RefCell::new(Chance::new(spec.seed ^ 0x5eed_0fa1_1ed0_0d1e));
        let (connections, requests) = (Cell::new(0), Cell::new(0));
        Ok(Rc::new(Member { spec, name, work, page, chance, stopping, connections, requests }))
    };
    if spec.kind == Kind::Udp {
        let socket = UdpSocket::bind(spec.listen).await?;
        let address = socket.local_addr()?;
        let member = member(spec, address)?;
        ready(address);
        tokio::select! {
            () = echo::datagrams(socket, member) => {}
            () = stop => {}
        }
        return Ok(());
    }
    let listener = listen(spec.listen)?;
    let address = listener.local_addr()?;
    let member = member(spec, address)?;
    ready(address);
    tokio::select! {
        () = accept(listener, &member) => {}
        () = stop => {}
    }
    stopped.send_replace(true);
    let ended = async {
        while member.connections.get() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // What does not end in time is cut by the end of the runtime.
    let _ = tokio::time::timeout(GRACE, ended).await;
    Ok(())
}

/// Listens with a queue long enough for a load test, on an address that may have been in use a moment ago.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections for ever.
async fn accept(listener: TcpListener, member: &Rc<Member>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left, or the client has gone: either may be over in a moment.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let member = member.clone();
        member.connections.set(member.connections.get() + 1);
        tokio::task::spawn_local(async move {
            // An error is the client's going away, which is no business of a test server's.
            let _ = match member.spec.kind {
                Kind::Tcp => echo::connection(stream, &member).await,
                _ => http::connection(stream, &member).await,
            };
            member.connections.set(member.connections.get() - 1);
        });
    }
}
