//! A test server that can be told how fast, how many at a time and how badly it serves.
//!
//! A member has a number of *workers* and a *service time*: a request waits, first come first served, until
//! a worker is free, holds it for a service time drawn from a distribution, and is answered. That is the
//! G/G/c queue that models of servers speak of, so that what a balancer does to it can be computed. Or it has
//! *cores* that all requests in service share, each of which needs so much work: what a server without a bound on
//! its threads does, slower for everyone with each request that comes. Service is emulated by a timer, which lets
//! many members share a small machine without taking each other's time, or really burns the processor.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::LocalOptions;
use tokio::sync::watch;

mod antagonist;
mod echo;
mod http;
mod iiop;
mod lately;
mod metered;
mod processor;
mod service;
mod sharing;
mod shuffle;
mod steps;
mod tell;
mod timer;
mod work;

pub use antagonist::Antagonist;
pub use http::Refusal;
pub use iiop::{MEMBER_CONTEXT, TYPE_ID, reference};
pub(crate) use iiop::{PADDING_CONTEXT, RECEIVE, is_prime};
pub use service::{Service, Slowdown};
pub use shuffle::shuffle;
pub use steps::Steps;

use http::Page;
use lately::Lately;
use metered::Gauge;
use work::Work;

use crate::chance::Chance;

/// How long requests in flight may take to end when the member stops.
const GRACE: Duration = Duration::from_secs(5);
/// Most threads that burn the processor.
const MOST_THREADS: usize = 4096;

/// What a member is to do.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where else the same server is reached, of one member only: what comes by any door has the same workers or cores.
    pub also: Vec<SocketAddr>,
    /// How many such members, on ports that follow one another (port 0: any free ones); at least 1. The last number of
    /// the name counts up, and so does the seed.
    pub count: usize,
    /// What is spoken.
    pub kind: Kind,
    /// Sent as `x-member`; the address if `None`.
    pub name: Option<String>,
    /// How long a worker holds a request.
    pub service: Service,
    /// How long it holds one for what a program makes (http): a path with a query, a `cgi-bin` or the name of a script. As any
    /// other if `None`.
    pub dynamic: Option<Service>,
    /// Requests served at a time; at least 1.
    pub workers: usize,
    /// Processors, above 0, that share all requests in service, in place of the workers: the service time is work for
    /// one of them.
    pub cores: Option<f64>,
    /// How fast each of the cores is, above 0; 1 does a second of work in a second.
    pub speed: f64,
    /// Takes a part of the cores' speed now and then.
    pub antagonist: Option<Antagonist>,
    /// With cores, go on with the work for a client that has closed its connection. Otherwise it is given up, as is what
    /// a client asked for that only ended its own side.
    pub ignore_cancel: bool,
    /// Most requests that wait for a worker, or that share the cores; more are refused with 503 (http) or
    /// TRANSIENT (iiop), dropped (udp) or end their connection (tcp).
    pub queue: usize,
    /// Burn the processor for the service time instead of waiting.
    pub burn: bool,
    /// How much longer a worker holds the first request of a connection (http, iiop): what a server spends on
    /// setting a session up.
    pub session: Duration,
    /// What a worker does with a request (http, iiop), in place of the service time: work at the member's own processor, and
    /// times of waiting. What else runs at that processor is `receive`.
    pub steps: Option<Steps>,
    /// With steps: what is done, without a worker, with a request for the path `/receive` (http) or the object `Receive` (iiop).
    pub receive: Option<Steps>,
    /// Answer with the integers of the request's body after so many swaps of two of them (http): real work,
    /// which takes the place of the service time.
    pub swaps: Option<u32>,
    /// Length of an answer's body (http), the member's name and a line end if `None`; or so many bytes that an answer carries
    /// beside its result (iiop).
    pub body: Option<usize>,
    /// Share of the requests that fail, from 0 to 1 (http, iiop).
    pub fail_rate: f64,
    /// After what time they fail, without being served; as long as they would have been served if `None`.
    pub fail_after: Option<Duration>,
    /// How they fail; a status is the system exception UNKNOWN (iiop).
    pub refusal: Refusal,
    /// Becomes slower by itself.
    pub slow_after: Option<Slowdown>,
    /// Say with each answer how loaded the member is, and refuse what it has no room for (http): what a server with an
    /// agent does.
    pub meter: bool,
    /// Obey `POST /_plimsoll/slow?factor=N` and `POST /_plimsoll/fail?rate=R&after=TIME&with=HOW`, and answer `GET
    /// /_plimsoll/count` (http).
    pub admin: bool,
    /// Obey such orders at this address, over HTTP, whatever the member speaks.
    pub orders: Option<SocketAddr>,
    /// Tell the agent, the lottery's daemon or a balancer (its `admin.reports`) at this address how many requests it has, as
    /// `in_flight` (http).
    pub tell: Option<SocketAddr>,
    /// Members as which it tells that, each in a report of its own: a balancer has to know of whom it is told.
    pub tell_as: Vec<String>,
    /// Tell it also how many cores or workers there are, as `cpus`, and what share of them is in use, as `cpu`.
    pub tell_busy: bool,
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
    /// GIOP over TCP: a CORBA object that says whether a number is prime.
    Iiop,
}

impl Kind {
    /// As in `listening http 127.0.0.1:9001`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http | Self::HttpEcho => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Iiop => "iiop",
        }
    }
}

impl Spec {
    /// An HTTP member on `listen` that answers at once.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            also: Vec::new(),
            count: 1,
            kind: Kind::Http,
            name: None,
            service: Service::None,
            dynamic: None,
            workers: 4,
            cores: None,
            speed: 1.0,
            antagonist: None,
            ignore_cancel: false,
            queue: 1024,
            burn: false,
            session: Duration::ZERO,
            steps: None,
            receive: None,
            orders: None,
            swaps: None,
            body: None,
            fail_rate: 0.0,
            fail_after: None,
            refusal: Refusal::Status(500),
            slow_after: None,
            meter: false,
            admin: false,
            tell: None,
            tell_as: Vec::new(),
            tell_busy: false,
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
    failing: Cell<Failing>,
    meter: Option<Gauge>,
    /// True once the member ends.
    stopping: watch::Receiver<bool>,
    /// TCP connections open.
    connections: Cell<usize>,
    /// HTTP or CORBA requests that have come, operators' orders left out.
    requests: Cell<u64>,
    /// Requests that wait or are served.
    in_flight: Cell<usize>,
    /// What part of its processors was in use.
    lately: Lately,
    start: Instant,
    /// Oneways that have come (iiop).
    notes: Cell<u32>,
}

/// Which requests fail, and how.
#[derive(Clone, Copy, Debug)]
struct Failing {
    rate: f64,
    after: Option<Duration>,
    refusal: Refusal,
}

impl Member {
    fn new(spec: Spec, address: SocketAddr, stopping: watch::Receiver<bool>) -> io::Result<Rc<Self>> {
        let name = spec.name.clone().unwrap_or_else(|| address.to_string());
        let work = Work::new(&spec)?;
        let page = Page::new(&name, spec.body);
        // Not the seed of the service times: the two must not go together.
        let chance = RefCell::new(Chance::new(spec.seed ^ 0x5eed_0fa1_1ed0_0d1e));
        let (connections, requests, notes) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let failing =
            Cell::new(Failing { rate: spec.fail_rate, after: spec.fail_after, refusal: spec.refusal });
        let meter = spec.meter.then(Gauge::new);
        Ok(Rc::new(Self {
            spec,
            name,
            work,
            page,
            chance,
            failing,
            meter,
            stopping,
            connections,
            requests,
            in_flight: Cell::new(0),
            lately: Lately::default(),
            start: Instant::now(),
            notes,
        }))
    }

    /// Counts a request as long as the guard lives.
    fn flight(&self) -> Flight<'_> {
        self.in_flight.set(self.in_flight.get() + 1);
        Flight(&self.in_flight)
    }
}

/// A request that waits or is served.
struct Flight<'a>(&'a Cell<usize>);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Serves on this thread until `stop` comes true, then ends what is in flight, in five seconds at the most.
/// Tells `ready` the address of each member, in their order and each with its other doors, once all listen. `stop` is polled inside a tokio runtime.
///
/// # Errors
/// If the address cannot be listened on, or the name cannot be sent in a header.
pub fn serve(spec: Spec, ready: impl FnMut(SocketAddr), stop: impl Future<Output = ()>) -> io::Result<()> {
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
        .max_blocking_threads(spec.workers.saturating_mul(spec.count).clamp(1, MOST_THREADS))
        .build_local(LocalOptions::default())?;
    let result = runtime.block_on(run(spec, ready, stop));
    // Processor time that is still being burned is nobody's any more.
    runtime.shutdown_background();
    result
}

async fn run(
    spec: Spec,
    mut ready: impl FnMut(SocketAddr),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stopped, stopping) = watch::channel(false);
    let mut members = Vec::new();
    let mut tasks = Vec::new();
    let mut addresses = Vec::new();
    for index in 0..spec.count.max(1) {
        let spec = spec.nth(index)?;
        if spec.kind == Kind::Udp {
            let socket = UdpSocket::bind(spec.listen).await?;
            addresses.push(socket.local_addr()?);
            let member = Member::new(spec, socket.local_addr()?, stopping.clone())?;
            for door in &member.spec.also {
                let door = UdpSocket::bind(*door).await?;
                addresses.push(door.local_addr()?);
                tasks.push(tokio::task::spawn_local(echo::datagrams(door, member.clone())));
            }
            tasks.push(tokio::task::spawn_local(echo::datagrams(socket, member)));
        } else {
            let listener = listen(spec.listen)?;
            addresses.push(listener.local_addr()?);
            let member = Member::new(spec, listener.local_addr()?, stopping.clone())?;
            members.push(member.clone());
            if let Some(orders) = member.spec.orders {
                tasks.push(tokio::task::spawn_local(accept(listen(orders)?, member.clone(), Kind::Http)));
            }
            if let Some(to) = member.spec.tell {
                tasks.push(tokio::task::spawn_local(tell::tell(to, member.clone())));
            }
            let kind = member.spec.kind;
            for door in &member.spec.also {
                let door = listen(*door)?;
                addresses.push(door.local_addr()?);
                tasks.push(tokio::task::spawn_local(accept(door, member.clone(), kind)));
            }
            tasks.push(tokio::task::spawn_local(accept(listener, member, kind)));
        }
    }
    addresses.into_iter().for_each(&mut ready);
    stop.await;
    for task in tasks {
        task.abort();
    }
    stopped.send_replace(true);
    let ended = async {
        while members.iter().any(|member| member.connections.get() > 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // What does not end in time is cut by the end of the runtime.
    let _ = tokio::time::timeout(GRACE, ended).await;
    Ok(())
}

impl Spec {
    /// The member that comes `index` after this one.
    fn nth(&self, index: usize) -> io::Result<Self> {
        let mut spec = self.clone();
        if self.listen.port() != 0 {
            let port = usize::from(self.listen.port()) + index;
            let port = u16::try_from(port).map_err(|_| io::Error::other("there is no port above 65535"))?;
            spec.listen.set_port(port);
        }
        if self.count > 1 {
            spec.name = self.name.as_deref().map(|name| counted(name, index));
        }
        spec.seed = self.seed.wrapping_add(index as u64);
        Ok(spec)
    }
}

/// The name that comes `index` after this one: `m9` and 2 is `m11`; a name without a number begins at 1.
fn counted(name: &str, index: usize) -> String {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let first: u64 = name[stem.len()..].parse().unwrap_or(1);
    format!("{stem}{}", first.saturating_add(index as u64))
}

/// Listens with a queue long enough for a load test, on an address that may have been in use a moment ago.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections for ever, on which this is spoken.
async fn accept(listener: TcpListener, member: Rc<Member>, kind: Kind) {
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
            let _ = match kind {
                Kind::Tcp => echo::connection(stream, &member).await,
                Kind::Iiop => iiop::connection(stream, member.clone()).await,
                _ => http::connection(stream, &member).await,
            };
            member.connections.set(member.connections.get() - 1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_up() {
        let names = |name: &str| [counted(name, 0), counted(name, 2)];
        assert_eq!(names("m9"), ["m9", "m11"]);
        assert_eq!(names("web"), ["web1", "web3"]);
        assert_eq!(names("7"), ["7", "9"]);
        let mut spec = Spec::new("127.0.0.1:65535".parse().unwrap());
        spec.count = 2;
        assert!(spec.nth(0).is_ok() && spec.nth(1).is_err());
    }
}
