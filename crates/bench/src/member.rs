//! A test server with configurable service times, concurrency and failures.
//!
//! A member has *workers* and a *service time*. A request waits, first come first served, until a worker is
//! free; the worker holds it for a service time drawn from a distribution and then answers it. That is the
//! G/G/c queue of server models, so the effects of a balancer on it can be computed.
//!
//! A member may have *cores* instead. All requests in service share them, and each needs an amount of work. A
//! server without a bound on its threads behaves like that: each additional request slows down all others.
//!
//! A timer emulates service, so that many members share a small machine without taking each other's time. A
//! member can also burn real processor time.

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
mod load_meter;
mod processor;
mod recent_utilization;
mod report_push;
mod service;
mod sharing;
mod shuffle;
mod steps;
mod timer;
mod workers;

pub use antagonist::Antagonist;
pub use http::FailureResponse;
pub use iiop::{MEMBER_CONTEXT, TYPE_ID, reference};
pub(crate) use iiop::{PADDING_CONTEXT, RECEIVE, is_prime};
pub use service::{ServiceTime, Slowdown};
pub use shuffle::shuffle;
pub use steps::ServiceSteps;

use http::MemberPage;
use load_meter::LoadMeter;
use recent_utilization::RecentUtilization;
use workers::WorkerPool;

use crate::rng::SplitMix64;

/// The time that requests in flight have to end when the member stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of threads that burn the processor.
const MAX_THREADS: usize = 4096;

/// The specification of a member.
#[derive(Clone, Debug)]
pub struct MemberSpec {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of the same server, if `count` is 1; requests from all of them share its workers or
    /// cores.
    pub more_addresses: Vec<SocketAddr>,
    /// The number of such members, at least 1, on consecutive ports (port 0: any free ones). The number at
    /// the end of the name counts up, and so does the seed.
    pub count: usize,
    /// The protocol of the member.
    pub protocol: MemberProtocol,
    /// The value of `x-member`; the address if `None`.
    pub name: Option<String>,
    /// The time for which a worker holds a request.
    pub service: ServiceTime,
    /// The same for a dynamic page (http): a path with a query, a `cgi-bin` or the name of a script. `None`:
    /// no difference.
    pub dynamic: Option<ServiceTime>,
    /// The number of requests served at a time; at least 1.
    pub workers: usize,
    /// The number of processors, above 0, that all requests in service share, in place of the workers. The
    /// service time is work for one of them.
    pub cores: Option<f64>,
    /// The speed of each core, above 0; at 1 it does a second of work in a second.
    pub speed: f64,
    /// The antagonist that takes a part of the cores' speed from time to time.
    pub antagonist: Option<Antagonist>,
    /// Whether a member with cores goes on with the work after the client has closed its connection. If not,
    /// it cancels the work, also if the client closed only its own side.
    pub ignore_cancel: bool,
    /// The maximum number of requests that wait for a worker, or that share the cores. Excess requests are
    /// refused with 503 (http) or TRANSIENT (iiop), dropped (udp), or end their connection (tcp).
    pub queue_limit: usize,
    /// Whether to burn the processor for the service time instead of waiting.
    pub burn: bool,
    /// The additional time for which a worker holds the first request of a connection (http, iiop): the cost
    /// of a session's setup.
    pub session_cost: Duration,
    /// The steps of a worker for a request (http, iiop), in place of the service time: work at the member's
    /// own processor, and waiting times. The steps in `receive_steps` run at the same processor.
    pub steps: Option<ServiceSteps>,
    /// With steps: those for the path `/receive` (http) or the object `Receive` (iiop), which need no worker.
    pub receive_steps: Option<ServiceSteps>,
    /// The number of swaps: the answer holds the integers of the request's body after that many swaps of two
    /// of them (http). This is real work, in place of the service time.
    pub swaps: Option<u32>,
    /// The length of an answer's body (http); `None`: the member's name and a line end. For iiop, the number
    /// of bytes that an answer carries beside its result.
    pub body_length: Option<usize>,
    /// The share of the requests that fail, from 0 to 1 (http, iiop).
    pub fail_rate: f64,
    /// The time after which they fail without being served; `None`: their service time.
    pub fail_after: Option<Duration>,
    /// The form of the failure; a status stands for the system exception UNKNOWN (iiop).
    pub refusal: FailureResponse,
    /// A slowdown that begins by itself.
    pub slowdown: Option<Slowdown>,
    /// Whether each answer carries a load report and requests above the concurrency limit are refused (http),
    /// as a server with an agent does.
    pub meter: bool,
    /// Whether the member obeys `POST /_plimsoll/slow?factor=N` and `POST
    /// /_plimsoll/fail?rate=R&after=TIME&with=HOW`, and answers `GET /_plimsoll/count` (http).
    pub admin: bool,
    /// The address at which the member obeys such orders over HTTP, whatever its protocol.
    pub admin_address: Option<SocketAddr>,
    /// The address of the agent, the lottery's daemon or a balancer (its `admin.reports`) to which the member
    /// reports its requests in flight, as `in_flight` (http).
    pub report_to: Option<SocketAddr>,
    /// The member names to report as, one report each; a balancer needs a name in each report.
    pub report_as: Vec<String>,
    /// Whether those reports also hold the number of cores or workers, as `cpus`, and the share of them in
    /// use, as `cpu`.
    pub report_utilization: bool,
    /// Whether each connection begins with the name and a line end (tcp), each answer with the name and a
    /// space (udp).
    pub greet: bool,
    /// The seed of service times and failures.
    pub seed: u64,
}

/// The protocol of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberProtocol {
    /// HTTP/1.1: answers that name the member.
    Http,
    /// HTTP/1.1: answers that hold the unchanged request.
    HttpEcho,
    /// TCP: echoes bytes.
    Tcp,
    /// UDP: echoes each datagram.
    Udp,
    /// GIOP over TCP: a CORBA object that tests whether a number is prime.
    Iiop,
}

impl MemberProtocol {
    /// Returns the name as in `listening http 127.0.0.1:9001`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http | Self::HttpEcho => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Iiop => "iiop",
        }
    }
}

impl MemberSpec {
    /// Creates an HTTP member on `listen` that answers at once.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            more_addresses: Vec::new(),
            count: 1,
            protocol: MemberProtocol::Http,
            name: None,
            service: ServiceTime::None,
            dynamic: None,
            workers: 4,
            cores: None,
            speed: 1.0,
            antagonist: None,
            ignore_cancel: false,
            queue_limit: 1024,
            burn: false,
            session_cost: Duration::ZERO,
            steps: None,
            receive_steps: None,
            admin_address: None,
            swaps: None,
            body_length: None,
            fail_rate: 0.0,
            fail_after: None,
            refusal: FailureResponse::Status(500),
            slowdown: None,
            meter: false,
            admin: false,
            report_to: None,
            report_as: Vec::new(),
            report_utilization: false,
            greet: false,
            seed: 1,
        }
    }
}

/// The state that all connections of a member share.
struct MemberState {
    spec: MemberSpec,
    name: String,
    worker_pool: WorkerPool,
    page: MemberPage,
    rng: RefCell<SplitMix64>,
    failure_mode: Cell<FailureMode>,
    meter: Option<LoadMeter>,
    /// Becomes `true` when the member ends.
    stopping: watch::Receiver<bool>,
    /// The number of open TCP connections.
    connections: Cell<usize>,
    /// The number of HTTP or CORBA requests received, without operators' orders.
    requests: Cell<u64>,
    /// The number of requests that wait or are in service.
    in_flight: Cell<usize>,
    /// The share of the processors in recent use.
    recent_utilization: RecentUtilization,
    start: Instant,
    /// The number of oneways received (iiop).
    oneway_count: Cell<u32>,
}

/// The share and the form of failures.
#[derive(Clone, Copy, Debug)]
struct FailureMode {
    rate: f64,
    after: Option<Duration>,
    refusal: FailureResponse,
}

impl MemberState {
    fn new(spec: MemberSpec, address: SocketAddr, stopping: watch::Receiver<bool>) -> io::Result<Rc<Self>> {
        let name = spec.name.clone().unwrap_or_else(|| address.to_string());
        let work = WorkerPool::new(&spec)?;
        let page = MemberPage::new(&name, spec.body_length);
        // This seed differs from that of the service times: the two must not be correlated.
        let rng = RefCell::new(SplitMix64::new(spec.seed ^ 0x5eed_0fa1_1ed0_0d1e));
        let (connections, requests, oneway_count) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let failure_mode =
            Cell::new(FailureMode { rate: spec.fail_rate, after: spec.fail_after, refusal: spec.refusal });
        let meter = spec.meter.then(LoadMeter::new);
        Ok(Rc::new(Self {
            spec,
            name,
            worker_pool: work,
            page,
            rng,
            failure_mode,
            meter,
            stopping,
            connections,
            requests,
            in_flight: Cell::new(0),
            recent_utilization: RecentUtilization::default(),
            start: Instant::now(),
            oneway_count,
        }))
    }

    /// Counts a request as in flight until the guard is dropped.
    fn track_in_flight(&self) -> InFlightGuard<'_> {
        self.in_flight.set(self.in_flight.get() + 1);
        InFlightGuard(&self.in_flight)
    }
}

/// A request that waits or is in service.
struct InFlightGuard<'a>(&'a Cell<usize>);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Serves on this thread until `stop` resolves; requests in flight then have five seconds to end.
///
/// Once all members listen, the function passes the address of each to `ready`, in order, each followed by
/// its further addresses. `stop` is polled inside a tokio runtime.
///
/// # Errors
/// Fails if an address cannot be listened on, or the name cannot be sent in a header.
pub fn serve(
    spec: MemberSpec,
    on_ready: impl FnMut(SocketAddr),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    if spec
        .name
        .as_ref()
        .is_some_and(|name| name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let reason = "a member's name must be visible ASCII without spaces";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(spec.workers.saturating_mul(spec.count).clamp(1, MAX_THREADS))
        .build_local(LocalOptions::default())?;
    let result = runtime.block_on(run(spec, on_ready, stop));
    // Threads that still burn processor time are abandoned.
    runtime.shutdown_background();
    result
}

async fn run(
    spec: MemberSpec,
    mut on_ready: impl FnMut(SocketAddr),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stop_sender, stopping) = watch::channel(false);
    let mut members = Vec::new();
    let mut tasks = Vec::new();
    let mut addresses = Vec::new();
    for index in 0..spec.count.max(1) {
        let spec = spec.nth(index)?;
        if spec.protocol == MemberProtocol::Udp {
            let socket = UdpSocket::bind(spec.listen).await?;
            addresses.push(socket.local_addr()?);
            let member = MemberState::new(spec, socket.local_addr()?, stopping.clone())?;
            for address in &member.spec.more_addresses {
                let extra_socket = UdpSocket::bind(*address).await?;
                addresses.push(extra_socket.local_addr()?);
                tasks.push(tokio::task::spawn_local(echo::datagrams(extra_socket, member.clone())));
            }
            tasks.push(tokio::task::spawn_local(echo::datagrams(socket, member)));
        } else {
            let listener = listen(spec.listen)?;
            addresses.push(listener.local_addr()?);
            let member = MemberState::new(spec, listener.local_addr()?, stopping.clone())?;
            members.push(member.clone());
            if let Some(admin_address) = member.spec.admin_address {
                tasks.push(tokio::task::spawn_local(accept(
                    listen(admin_address)?,
                    member.clone(),
                    MemberProtocol::Http,
                )));
            }
            if let Some(report_address) = member.spec.report_to {
                tasks.push(tokio::task::spawn_local(report_push::push_reports(
                    report_address,
                    member.clone(),
                )));
            }
            let protocol = member.spec.protocol;
            for address in &member.spec.more_addresses {
                let extra_listener = listen(*address)?;
                addresses.push(extra_listener.local_addr()?);
                tasks.push(tokio::task::spawn_local(accept(extra_listener, member.clone(), protocol)));
            }
            tasks.push(tokio::task::spawn_local(accept(listener, member, protocol)));
        }
    }
    addresses.into_iter().for_each(&mut on_ready);
    stop.await;
    for task in tasks {
        task.abort();
    }
    stop_sender.send_replace(true);
    let connections_closed = async {
        while members.iter().any(|member| member.connections.get() > 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The end of the runtime cuts connections that do not end in time.
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, connections_closed).await;
    Ok(())
}

impl MemberSpec {
    /// Returns the specification of the member with this index.
    fn nth(&self, index: usize) -> io::Result<Self> {
        let mut spec = self.clone();
        if self.listen.port() != 0 {
            let port = usize::from(self.listen.port()) + index;
            let port = u16::try_from(port).map_err(|_| io::Error::other("there is no port above 65535"))?;
            spec.listen.set_port(port);
        }
        if self.count > 1 {
            spec.name = self.name.as_deref().map(|name| numbered_name(name, index));
        }
        spec.seed = self.seed.wrapping_add(index as u64);
        Ok(spec)
    }
}

/// Returns the name with this index: `m9` and 2 give `m11`; a name without a number counts from 1.
fn numbered_name(name: &str, index: usize) -> String {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let first_number: u64 = name[stem.len()..].parse().unwrap_or(1);
    format!("{stem}{}", first_number.saturating_add(index as u64))
}

/// Listens with a backlog long enough for a load test. The address may have been in use shortly before.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections forever and serves them with the protocol `kind`.
async fn accept(listener: TcpListener, member: Rc<MemberState>, protocol: MemberProtocol) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // There is no free descriptor, or the client has gone: either may be over in a moment.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let member = member.clone();
        member.connections.set(member.connections.get() + 1);
        tokio::task::spawn_local(async move {
            // An error means that the client has gone; a test server ignores that.
            let _ = match protocol {
                MemberProtocol::Tcp => echo::connection(stream, &member).await,
                MemberProtocol::Iiop => iiop::connection(stream, member.clone()).await,
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
        let first_and_third = |name: &str| [numbered_name(name, 0), numbered_name(name, 2)];
        assert_eq!(first_and_third("m9"), ["m9", "m11"]);
        assert_eq!(first_and_third("web"), ["web1", "web3"]);
        assert_eq!(first_and_third("7"), ["7", "9"]);
        let mut spec = MemberSpec::new("127.0.0.1:65535".parse().unwrap());
        spec.count = 2;
        assert!(spec.nth(0).is_ok() && spec.nth(1).is_err());
    }
}
