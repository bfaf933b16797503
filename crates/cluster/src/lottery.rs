//! The lottery's sockets: a daemon beside a server. Crate `client` implements its clients.
//!
//! The brain ([`plimsoll_brain::lottery`]) decides the draw, the responses and the next queries; crate `wire`
//! ([`plimsoll_wire::rfs`], `docs/rfs2.md`) defines the bytes. This module receives and opens datagrams,
//! drops and counts forged and replayed ones, and passes the rest to the brain. It seals and sends the
//! brain's datagrams.
//!
//! ```text
//!  socket ─▶ open ─▶ replayed? ─▶ brain::lottery::Daemon ─▶ seal ─▶ socket
//!  (recvmmsg)                       ▲ load, readiness              (sendmmsg)
//!                                 checks of the server, sources of its load
//! ```
//!
//! * `socket.rs`: many datagrams with one system call, in and out; multicast.
//! * `node.rs`: the daemon with its keys and counters. `serve.rs`: its thread. `gossip.rs`: membership, by
//!   SWIM.
//! * `duplicate_id.rs`: two daemons with one number.
//! * `check.rs`: health checks of the server. `subscriber.rs`: a balancer that follows the daemons.
//!
//! A daemon has a dedicated thread. Periodic work there delays received datagrams by at most the time of
//! writing one report. AGS's daemon lost requests while it maintained its tables.

mod check;
pub(crate) mod gossip;
#[cfg(any(test, fuzzing))]
mod invariants;
mod node;
mod subscriber;
#[cfg(fuzzing)]
pub(crate) use invariants::check as gossip_law;
mod duplicate_id;
mod serve;
pub(crate) mod socket;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_brain::HealthSpec;
use plimsoll_brain::lottery as brain;
use plimsoll_wire::rfs::KeyRing;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

pub use plimsoll_brain::lottery::{NodeStatistics as Lots, NodeView};
pub use subscriber::{LotteryCandidate, SubscriberSettings, subscribe};

use node::DaemonNode;
use socket::DaemonSocket;

/// The maximum number of services of a daemon: they fit into one datagram with any addresses of their
/// servers.
pub const MAX_SERVICES: usize = 40;

/// The maximum length of a service's information for its clients, in bytes: it fits into the answer to the
/// shortest request.
pub const MAX_INFO_LENGTH: usize = 48;

/// Returns the number of bytes of services with these lengths of information in the membership table, for any
/// addresses, and the maximum.
pub fn table_bytes(infos: impl Iterator<Item = usize>) -> (usize, usize) {
    (MEMBER_BYTES + infos.map(|info| SERVICE_BYTES + info).sum::<usize>(), brain::MAX_TABLE_PART_BYTES)
}

/// The bytes of a member without services in that table, and of a service without information, if all
/// addresses are IPv6.
const MEMBER_BYTES: usize = 26;
const SERVICE_BYTES: usize = 27;

/// The settings of a daemon. They are validated; only binding the addresses can fail.
#[derive(Clone, Debug)]
pub struct DaemonSettings {
    /// The daemon's number, unique in the cluster.
    pub member: u16,
    /// The incarnation, greater than any previous one: see [`incarnation`].
    pub incarnation: u32,
    /// The address to listen on; port 0 selects a free one.
    pub listen: SocketAddr,
    /// The address that the others use, if it differs from `listen`.
    pub address: Option<SocketAddr>,
    /// Other daemons. One reachable peer is enough to find all daemons.
    pub peers: Vec<SocketAddr>,
    /// The multicast group and port of all daemons, where multicast is available.
    pub multicast: Option<SocketAddr>,
    /// The keys of the cluster.
    pub keys: KeyRing,
    /// The services of the server beside the daemon; at most [`MAX_SERVICES`].
    pub services: Vec<LotteryService>,
    /// The time that clients may cache an answer; at most 65 s.
    pub ttl: Duration,
    /// The time in which a server's share grows to its full value.
    pub slow_start: Duration,
    /// The maximum rate of requests from one source, per second; 0 for no limit.
    pub rate: u32,
}

/// One service of the server beside a daemon.
#[derive(Clone, Debug)]
pub struct LotteryService {
    /// The name, for people.
    pub name: Arc<str>,
    /// The number in datagrams.
    pub id: u32,
    /// The address for clients.
    pub server: SocketAddr,
    /// The capacity relative to the others, in any unit; 0 for no clients.
    pub capacity: u16,
    /// The information in each answer with this service; at most [`MAX_INFO_LENGTH`] bytes.
    pub info: Arc<[u8]>,
    /// The health check; without one the service is always ready.
    pub check: Option<HealthCheck>,
}

/// The health check of a server.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// The implementation of the check.
    pub by: Arc<dyn HealthChecker>,
    /// The interval between two checks (±10 % jitter).
    pub interval: Duration,
    /// The number of results that change the state.
    pub spec: HealthSpec,
}

/// Checks the health of servers.
pub trait HealthChecker: fmt::Debug + Send + Sync {
    /// Runs one check within its time limit; the error is the reason for people.
    fn check(&self, server: SocketAddr) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;
}

/// The counters of a daemon since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonStatistics {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams whose tag does not match the key.
    pub forged: u64,
    /// Datagrams with a key that is not valid here.
    pub unknown_key: u64,
    /// Datagrams with a valid tag that are malformed, and those that are too short or too long to open.
    pub malformed: u64,
    /// Reports that are replays, or older than the newest.
    pub replayed: u64,
    /// Datagrams sealed with a key for clients, which does not permit their kind.
    pub misused: u64,
    /// Datagrams of incarnations far in the future.
    pub implausible: u64,
    /// Datagrams that could not be encoded or sent.
    pub unsent: u64,
    /// Outdated reports from another address than that of the member's newest one. Either two daemons have
    /// one number, or an attacker replays recorded reports.
    pub stray_reports: u64,
    /// The other daemons that are alive according to the membership protocol.
    pub alive: usize,
    /// Whether the daemon no longer takes part: it is draining or leaving.
    pub draining: bool,
    /// The address of another daemon with the same number that was first. This daemon must end.
    pub duplicate: Option<SocketAddr>,
    /// The counters of the protocol.
    pub protocol: Lots,
}

/// A daemon that runs until it is dropped.
#[derive(Debug)]
pub struct LotteryDaemon {
    address: SocketAddr,
    incarnation: u32,
    services: Vec<LotteryService>,
    found: check::CheckResults,
    orders: Option<mpsc::Sender<DaemonCommand>>,
    thread: Option<JoinHandle<()>>,
}

/// The commands to a daemon.
#[derive(Debug)]
enum DaemonCommand {
    Load { service: u32, load: u16, in_flight: u16 },
    Ready { service: u32, ready: bool },
    Drain(bool),
    Hold { service: u32, held: bool },
    Reconfigure(Box<DaemonSettings>),
    Leave,
    ReadStatistics(oneshot::Sender<DaemonStatistics>),
    ReadView(oneshot::Sender<(DaemonStatistics, NodeView)>),
}

/// The maximum number of queued commands; further senders wait.
const COMMAND_CAPACITY: usize = 256;

/// The time from draining to leaving, and from there to the end: more than one report interval, so that a
/// lost report is repeated.
const LEAVE_DELAY: Duration = Duration::from_millis(300);

impl LotteryDaemon {
    /// Starts a daemon on a thread of its own. Its memory of requests takes 3 MB, or as much as the rate
    /// requires, up to 84 MB.
    ///
    /// # Errors
    /// An address or a multicast group is not available, or the system provides no thread.
    pub fn start(settings: DaemonSettings) -> io::Result<Self> {
        let socket = DaemonSocket::bind(settings.listen, settings.multicast)?;
        socket.enable_timestamps();
        let address = socket.address();
        let (incarnation, services) = (settings.incarnation, settings.services.clone());
        let (commands, command_receiver) = mpsc::channel(COMMAND_CAPACITY);
        let advertised_address = settings.address.unwrap_or(address);
        // Errors within the thread could not be returned.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sockets = {
            let _context = runtime.enter();
            socket.register()?
        };
        let thread = std::thread::Builder::new().name("lottery".into()).spawn(move || {
            let node = DaemonNode::new(&settings, advertised_address, brain::SipHashKey::new(random_key()));
            runtime.block_on(serve::serve(node, sockets, command_receiver));
        })?;
        let check_results = check::CheckResults::default();
        Ok(Self {
            address,
            incarnation,
            services,
            found: check_results,
            orders: Some(commands),
            thread: Some(thread),
        })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the load of a service: in thousandths of its capacity, and requests in flight.
    pub async fn set_load(&self, service: u32, load: u16, in_flight: u16) {
        self.send_command(DaemonCommand::Load { service, load, in_flight }).await;
    }

    /// Runs the services' health checks forever.
    pub async fn check(&self) {
        let mut checks = tokio::task::JoinSet::new();
        for service in self.services.iter().filter(|service| service.check.is_some()) {
            checks.spawn(check::watch(service.clone(), self.found.clone(), self.orders.clone()));
        }
        while checks.join_next().await.is_some() {}
        // Services without a check need no work.
        std::future::pending().await
    }

    /// Drains the server, or returns its share to it (slowly).
    pub async fn set_drain(&self, drain: bool) {
        self.send_command(DaemonCommand::Drain(drain)).await;
    }

    /// Stops sending clients to one service, or sends clients to it again (slowly).
    pub async fn set_hold(&self, service: u32, held: bool) {
        self.send_command(DaemonCommand::Hold { service, held }).await;
    }

    /// Sets other keys, peers, services and limits. The other settings keep their initial values. Changed
    /// checks restart with the next [`check`](Self::check); the others continue there with their results.
    pub async fn reconfigure(&mut self, settings: DaemonSettings) {
        self.found.turn(&settings.services, &self.services);
        self.services.clone_from(&settings.services);
        self.send_command(DaemonCommand::Reconfigure(Box::new(settings))).await;
    }

    /// Returns the counters; `None` if the daemon has ended.
    pub async fn statistics(&self) -> Option<DaemonStatistics> {
        let (sender, receiver) = oneshot::channel();
        self.send_command(DaemonCommand::ReadStatistics(sender)).await;
        receiver.await.ok()
    }

    /// Returns the counters, and the daemon's view of itself and the others.
    pub async fn view(&self) -> Option<(DaemonStatistics, NodeView)> {
        let (sender, receiver) = oneshot::channel();
        self.send_command(DaemonCommand::ReadView(sender)).await;
        receiver.await.ok()
    }

    /// Applies settings with the same services and checks. Unlike with [`reconfigure`](Self::reconfigure),
    /// running checks continue.
    pub async fn apply_settings(&self, settings: DaemonSettings) {
        self.send_command(DaemonCommand::Reconfigure(Box::new(settings))).await;
    }

    /// Leaves: sends clients to others for a moment, announces that it leaves, and ends. It does not end
    /// within the second of its start, so that the next incarnation has another number.
    pub async fn leave(self) {
        self.set_drain(true).await;
        sleep(LEAVE_DELAY).await;
        self.send_command(DaemonCommand::Leave).await;
        sleep(LEAVE_DELAY).await;
        while incarnation() == self.incarnation {
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn send_command(&self, command: DaemonCommand) {
        if let Some(commands) = &self.orders {
            // A daemon that has ended takes no commands.
            let _ = commands.send(command).await;
        }
    }
}

impl Drop for LotteryDaemon {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Returns the number of an incarnation that begins now: seconds since 1970.
pub fn incarnation() -> u32 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since_epoch.as_secs()).unwrap_or(u32::MAX)
}

/// Returns the key of the draw, which is the same on all daemons with the same keys.
fn draw_key(keys: &KeyRing) -> brain::SipHashKey {
    let mut key = [0; 16];
    key.copy_from_slice(&keys.derive(b"plimsoll lottery: draw")[..16]);
    brain::SipHashKey::new(key)
}

/// Returns 64 unpredictable bits.
pub(crate) fn random_seed() -> u64 {
    // Both halves are equally random.
    u128::from_ne_bytes(random_key()) as u64
}

/// Returns unpredictable bytes.
fn random_key() -> [u8; 16] {
    let mut bytes = [0; 16];
    if let Ok(16) = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        return bytes;
    }
    // Kernels before 3.17 lack getrandom; the standard library then reads /dev/urandom for its hashers.
    let half = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    (u128::from(half()) << 64 | u128::from(half())).to_ne_bytes()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod threat_tests;
