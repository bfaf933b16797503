//! The lottery's sockets: a daemon beside a server. Its clients are crate `client`.
//!
//! Who is drawn, who answers when and what is asked next is decided in the brain ([`plimsoll_brain::lottery`]), what the bytes are
//! in crate `wire` ([`plimsoll_wire::rfs`], `docs/rfs2.md`). Here datagrams are received and opened, what is forged or sent again
//! is dropped and counted, the rest is handed to the brain, and what that wants to send is sealed and sent.
//!
//! ```text
//!  socket ─▶ open ─▶ replayed? ─▶ brain::lottery::Daemon ─▶ seal ─▶ socket
//!  (recvmmsg)                       ▲ load, readiness              (sendmmsg)
//!                                 checks of the server, whoever knows its load
//! ```
//!
//! * `socket.rs`: many datagrams with one system call, in and out; multicast.
//! * `desk.rs`: the daemon with its keys and its counts. `serve.rs`: its thread. `gossip.rs`: who is there, by SWIM.
//! * `twin.rs`: two daemons of one number.
//! * `check.rs`: is the server there? `follow.rs`: a balancer that follows them.
//!
//! A daemon has a thread of its own that does nothing else, and on it what is due never keeps what has come waiting for longer than
//! one report takes to make: AGS's daemon lost requests while it looked after its tables.

mod check;
mod desk;
mod follow;
pub(crate) mod gossip;
#[cfg(any(test, fuzzing))]
mod law;
#[cfg(fuzzing)]
pub(crate) use law::check as gossip_law;
mod serve;
pub(crate) mod socket;
mod twin;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_brain::HealthSpec;
use plimsoll_brain::lottery as brain;
use plimsoll_wire::rfs::Keys;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

pub use follow::{FollowSettings, Followed, follow};
pub use plimsoll_brain::lottery::{Statistics as Lots, View};

use desk::Desk;
use socket::Socket;

/// Most services of a daemon: that many can be told of in one datagram, wherever their servers are.
pub const SERVICES: usize = 40;

/// Most bytes that a service says to its clients: so many have room in the answer to the shortest request.
pub const INFO: usize = 48;

/// Bytes that services with infos of these lengths take in the table by which daemons know one another, wherever their servers are,
/// and how many there may be.
pub fn table_bytes(infos: impl Iterator<Item = usize>) -> (usize, usize) {
    (TOLD + infos.map(|info| TOLD_SERVICE + info).sum::<usize>(), brain::PART)
}

/// Bytes of a member without a service in that table, and of a service without an info, where all addresses are of IPv6.
const TOLD: usize = 26;
const TOLD_SERVICE: usize = 27;

/// What a daemon is to do. Nothing in here can be wrong but that its addresses are not to be had.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its number, alone in the cluster.
    pub member: u16,
    /// Greater than in any life before: see [`incarnation`].
    pub incarnation: u32,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the others reach it, if that is not where it listens.
    pub address: Option<SocketAddr>,
    /// Other daemons. One that is there is enough to find all.
    pub peers: Vec<SocketAddr>,
    /// The group and port by which all are reached at once, where there is multicast.
    pub multicast: Option<SocketAddr>,
    /// Of the cluster.
    pub keys: Keys,
    /// What the server beside it does; at most [`SERVICES`].
    pub services: Vec<Service>,
    /// For how long a client may use an answer again; at most 65 s.
    pub ttl: Duration,
    /// How long a server takes to come to its whole share.
    pub slow_start: Duration,
    /// Requests per second from one source; 0 for any number.
    pub rate: u32,
}

/// One service of the server beside a daemon.
#[derive(Clone, Debug)]
pub struct Service {
    /// For people.
    pub name: Arc<str>,
    /// In datagrams.
    pub id: u32,
    /// Where clients find the server.
    pub server: SocketAddr,
    /// What it can do beside the others, in any unit; 0 for nothing.
    pub capacity: u16,
    /// Goes with each answer that names it; at most [`INFO`] bytes.
    pub info: Arc<[u8]>,
    /// Whether it is there. Without a check it always is.
    pub check: Option<Check>,
}

/// How to find out whether a server is there.
#[derive(Clone, Debug)]
pub struct Check {
    /// Who asks it.
    pub by: Arc<dyn Ask>,
    /// Between two checks, give or take a tenth.
    pub interval: Duration,
    /// How many count.
    pub spec: HealthSpec,
}

/// Asks servers whether they are there.
pub trait Ask: fmt::Debug + Send + Sync {
    /// Once, and no longer than it may take; why it failed, for people.
    fn ask(&self, server: SocketAddr) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;
}

/// What a daemon counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that went.
    pub sent: u64,
    /// Those that came with a tag that was not made with its key.
    pub forged: u64,
    /// With a key that is not valid here.
    pub unknown_key: u64,
    /// That were made with a key and say nothing that can be understood, or are too short or too long to be opened.
    pub malformed: u64,
    /// Reports that had come before, or that a newer one overtook.
    pub replayed: u64,
    /// That were sealed with a key for clients, who may not say that.
    pub misused: u64,
    /// Of lives that are to begin long after now.
    pub implausible: u64,
    /// What was to be sent and could not be written or sent.
    pub unsent: u64,
    /// Of the reports that were not new, those from another address than the newest of the same member: there are two daemons of
    /// one number, or somebody sends again what was recorded.
    pub strays: u64,
    /// Other daemons that are there, as the membership protocol knows.
    pub alive: usize,
    /// It takes part no more: it was drained, or goes.
    pub draining: bool,
    /// Another daemon has the same number, and was first: where it is. This one must end.
    pub twin: Option<SocketAddr>,
    /// What the protocol counts.
    pub lots: Lots,
}

/// A daemon that runs until it is dropped.
#[derive(Debug)]
pub struct Lottery {
    address: SocketAddr,
    incarnation: u32,
    services: Vec<Service>,
    found: check::Found,
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// What a daemon is told by its host.
#[derive(Debug)]
enum Order {
    Load { service: u32, load: u16, in_flight: u16 },
    Ready { service: u32, ready: bool },
    Drain(bool),
    Hold { service: u32, held: bool },
    Change(Box<Settings>),
    Leave,
    Tell(oneshot::Sender<Statistics>),
    Show(oneshot::Sender<(Statistics, View)>),
}

/// Orders that wait. Whoever gives more waits.
const ORDERS: usize = 256;

/// From draining to leaving, and from there to the end: more than a report takes, so that one that is lost is not the only one.
const FAREWELL: Duration = Duration::from_millis(300);

impl Lottery {
    /// Starts a daemon. Takes a thread, and for what it remembers of requests 3 MB of memory, or as much as the rate needs, up to 84 MB.
    ///
    /// # Errors
    /// An address or a group is not to be had, or the system gives no thread.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let socket = Socket::bind(settings.listen, settings.multicast)?;
        socket.stamp();
        let address = socket.address();
        let (incarnation, services) = (settings.incarnation, settings.services.clone());
        let (orders, inbox) = mpsc::channel(ORDERS);
        let told = settings.address.unwrap_or(address);
        // Within the thread there is nobody left to tell.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sockets = {
            let _context = runtime.enter();
            socket.register()?
        };
        let thread = std::thread::Builder::new().name("lottery".into()).spawn(move || {
            let desk = Desk::new(&settings, told, brain::Key::new(secret()));
            runtime.block_on(serve::serve(desk, sockets, inbox));
        })?;
        let found = check::Found::default();
        Ok(Self { address, incarnation, services, found, orders: Some(orders), thread: Some(thread) })
    }

    /// Where it listens, as bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How loaded a server is: in thousandths of what it can do, and requests that it works on.
    pub async fn load(&self, service: u32, load: u16, in_flight: u16) {
        self.order(Order::Load { service, load, in_flight }).await;
    }

    /// Checks the servers for ever, each by its own check.
    pub async fn check(&self) {
        let mut checks = tokio::task::JoinSet::new();
        for service in self.services.iter().filter(|service| service.check.is_some()) {
            checks.spawn(check::watch(service.clone(), self.found.clone(), self.orders.clone()));
        }
        while checks.join_next().await.is_some() {}
        // Those without a check need nothing.
        std::future::pending().await
    }

    /// Gives its server nothing new, or its share again (slowly).
    pub async fn drain(&self, drain: bool) {
        self.order(Order::Drain(drain)).await;
    }

    /// Sends nobody to one service, or sends clients to it again (slowly).
    pub async fn hold(&self, service: u32, held: bool) {
        self.order(Order::Hold { service, held }).await;
    }

    /// Takes other keys, peers, services and limits. What else the settings say stays as it was when it started. Checks that are
    /// others begin anew with the next [`check`](Self::check); the rest go on there with what was found.
    pub async fn change(&mut self, settings: Settings) {
        self.found.turn(&settings.services, &self.services);
        self.services.clone_from(&settings.services);
        self.order(Order::Change(Box::new(settings))).await;
    }

    /// What it has counted; `None` if it has ended.
    pub async fn statistics(&self) -> Option<Statistics> {
        let (tell, told) = oneshot::channel();
        self.order(Order::Tell(tell)).await;
        told.await.ok()
    }

    /// The same, with how it sees itself and the others.
    pub async fn view(&self) -> Option<(Statistics, View)> {
        let (show, shown) = oneshot::channel();
        self.order(Order::Show(show)).await;
        shown.await.ok()
    }

    /// Takes settings that have the same services, with the same checks. Unlike with [`change`](Self::change) checks go on.
    pub async fn adjust(&self, settings: Settings) {
        self.order(Order::Change(Box::new(settings))).await;
    }

    /// Goes: sends clients to others for a moment, says that it leaves, and ends. It does not end in the second in which it
    /// started, so that its next life has another number.
    pub async fn leave(self) {
        self.drain(true).await;
        sleep(FAREWELL).await;
        self.order(Order::Leave).await;
        sleep(FAREWELL).await;
        while incarnation() == self.incarnation {
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // One that has ended takes no orders.
            let _ = orders.send(order).await;
        }
    }
}

impl Drop for Lottery {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// The number of a life that begins now: seconds since 1970.
pub fn incarnation() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// The draw's key: the same on all daemons that have the same keys.
fn draw_key(keys: &Keys) -> brain::Key {
    let mut first = [0; 16];
    first.copy_from_slice(&keys.derive(b"plimsoll lottery: draw")[..16]);
    brain::Key::new(first)
}

/// 64 bits that nobody can guess.
pub(crate) fn seed() -> u64 {
    // The lower half is as good as the upper one.
    u128::from_ne_bytes(secret()) as u64
}

/// Bytes that nobody can guess.
fn secret() -> [u8; 16] {
    let mut bytes = [0; 16];
    if let Ok(16) = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        return bytes;
    }
    // A kernel of before 2014: the standard library then reads /dev/urandom for its hashers.
    let half = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    (u128::from(half()) << 64 | u128::from(half())).to_ne_bytes()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trust;
