//! The sockets of a fleet of balancers. The brain ([`plimsoll_brain::fleet`]) decides the contents of reports
//! and their effects; crate `wire` ([`plimsoll_wire::fleet`]) defines the bytes.
//!
//! ```text
//!  socket ─▶ open ─▶ replayed? ─▶ gossip (membership) ───▶ brain::fleet::Fleet ─▶ seal ─▶ socket
//!                              └▶ reports ───────────────▶   ▲ │
//!                                     checks, ejections, loads │ news for the slow path
//! ```
//!
//! foca tracks the membership, as it does for the lottery's daemons (`lottery/gossip.rs`): it detects a crash
//! in about a second, and balancers announce when they leave. They send their observations to each other
//! directly. While values change they do so every few milliseconds, in as many datagrams as the byte rate
//! allows. The data plane never waits for this: the fleet's thread updates counts that the strategies read.
//!
//! * `desk.rs`: keys, counters and names of the balancers; time is an argument.
//! * `serve.rs`: the thread and its socket.
//! * `seeds.rs`: lookups of the seeds' names.

mod desk;
mod seeds;
mod serve;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_brain::fleet::{Listed, News};
use plimsoll_brain::status::FleetStatus;
use plimsoll_brain::{Load, Time};
use plimsoll_wire::rfs::Keys;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::lock;
use crate::lottery::incarnation;
use crate::lottery::socket::Socket;
use desk::Desk;

/// The settings of a balancer's fleet membership. They are validated; only binding the addresses can fail.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The balancer's name: at most [`LONGEST_NAME`](plimsoll_wire::fleet::LONGEST_NAME) bytes.
    pub name: String,
    /// The address to listen on; port 0 selects a free one.
    pub listen: SocketAddr,
    /// The address that the others use, if it differs from `listen`.
    pub address: Option<SocketAddr>,
    /// Hosts and ports of other balancers. A name may have many addresses. One reachable seed is enough to
    /// find all balancers.
    pub seeds: Vec<(String, u16)>,
    /// The keys, the same for all balancers.
    pub keys: Keys,
    /// The interval of reports while values change.
    pub interval: Duration,
    /// The limit on bytes of reports per second, to all others together.
    pub bytes_per_second: u64,
    /// The number of balancers that check each member's health.
    pub probers: usize,
    /// The time that a lost balancer keeps its share of limits.
    pub forget: Duration,
}

/// The local balancer. Its methods are called on the fleet's thread, and should take milliseconds at most.
pub trait Local: Send + Sync + 'static {
    /// Returns the time of the data plane's clock.
    fn now(&self) -> Time;

    /// Returns a number that changes whenever the result of [`groups`](Self::groups) does.
    fn version(&self) -> u64;

    /// Returns the balancer's groups and their members.
    fn groups(&self) -> Vec<Listed>;

    /// Returns the number of requests that wait for a member below its limit, for groups whose members have
    /// one.
    fn waiting(&self) -> Vec<(Arc<str>, u32)>;

    /// Receives news from others, or a consequence of it; `by` is the name of the balancer that reported it,
    /// if it is one.
    fn news(&self, news: &News, by: &str);

    /// Receives a change of another balancer's state.
    fn change(&self, change: &Change);
}

/// A change of another balancer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The balancer's name, or its address while the name is unknown.
    pub name: String,
    /// The balancer's address.
    pub address: SocketAddr,
    /// The new state.
    pub what: Became,
}

/// The transitions of a balancer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// The balancer joined.
    Joined,
    /// No reports arrive from it, though the membership lists it as alive.
    Silent,
    /// Reports arrive again.
    Heard,
    /// The balancer is gone, without a farewell.
    Lost,
    /// The balancer left with a farewell.
    Left,
}

/// An action of the data plane to report to others.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub member: Arc<str>,
    /// The action.
    pub what: Did,
}

/// The actions to report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Did {
    /// The member's health was checked; `true` if it passed.
    Checked(bool),
    /// This balancer ejected the member for this time, or reinstated it (zero).
    Ejected(Duration),
    /// A load report of the member arrived.
    Loaded(Load),
}

/// The bound socket of a balancer, before it joins.
#[derive(Debug)]
pub struct Seat(Socket);

impl Seat {
    /// Binds an address; port 0 selects a free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        Ok(Self(Socket::bind(listen, None)?))
    }

    /// Takes a socket that another process bound. No datagram is read before the balancer joins.
    ///
    /// # Errors
    /// The socket is not a datagram socket.
    pub fn given(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(Socket::given(socket)?))
    }
}

/// The state for a handoff: to the others, the next process is the same balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The incarnation.
    pub life: u32,
    /// The sequence numbers of the last report and of the last gossip datagram.
    pub seqs: (u32, u32),
    /// The other balancers: address, incarnation and name.
    pub others: Vec<(SocketAddr, u32, String)>,
    /// The lost balancers that keep their share of limits.
    #[serde(default)]
    pub lost: Vec<Lost>,
}

/// A balancer that is gone without a farewell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The balancer's address, incarnation and name.
    pub other: (SocketAddr, u32, String),
    /// The time since it was lost, in milliseconds.
    pub age_ms: u64,
    /// The numbers of the groups that it served.
    pub groups: Vec<u64>,
}

/// The commands to the fleet's thread.
enum Word {
    /// Stops reading and sending, and returns the state for another process.
    Pause(std::sync::mpsc::Sender<Past>),
    /// Continues after a pause.
    Resume,
    /// Ends without a farewell: another process continues.
    Vanish,
}

/// The time limit for the thread's reply with the handoff state.
const ANSWER: Duration = Duration::from_secs(1);

/// A balancer's membership in its fleet, which ends when this is dropped.
#[derive(Debug)]
pub struct Fleet {
    address: SocketAddr,
    /// A copy of the socket, for another process.
    socket: OwnedFd,
    notices: mpsc::Sender<Notice>,
    view: Arc<Mutex<FleetStatus>>,
    words: Option<mpsc::Sender<Word>>,
    thread: Option<JoinHandle<()>>,
}

/// The maximum number of queued notices. A dropped one is repeated with the next sweep, or has become
/// obsolete.
const NOTICES: usize = 4096;

/// The maximum number of queued commands; an upgrade sends no more.
const WORDS: usize = 8;

impl Fleet {
    /// Joins the fleet on a thread of its own. With `past` it continues the membership of another process.
    ///
    /// # Errors
    /// The system provides no thread, or no more file descriptors.
    pub fn start(
        settings: Settings,
        Seat(socket): Seat,
        past: Option<Past>,
        local: Arc<dyn Local>,
    ) -> io::Result<Self> {
        let copy = socket.copy()?;
        let address = settings.address.unwrap_or_else(|| socket.address());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let sockets = {
            let _context = runtime.enter();
            socket.register()?
        };
        let view = Arc::new(Mutex::new(FleetStatus {
            name: settings.name.clone(),
            address: address.to_string(),
            ..FleetStatus::default()
        }));
        let ((notices, inbox), (words, heard)) = (mpsc::channel(NOTICES), mpsc::channel(WORDS));
        let shown = Arc::clone(&view);
        let thread = std::thread::Builder::new().name("fleet".into()).spawn(move || {
            let life = past.as_ref().map_or_else(incarnation, |past| past.life);
            let mut desk = Desk::new(&settings, address, life, crate::lottery::seed(), local.now());
            if let Some(past) = past {
                desk.recall(past, local.now());
            }
            runtime.block_on(serve::serve(desk, settings.seeds, sockets.one, inbox, heard, local, shown));
            // A DNS lookup must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, socket: copy, notices, view, words: Some(words), thread: Some(thread) })
    }

    /// Returns a copy of the socket, for another process.
    ///
    /// # Errors
    /// The system provides no more file descriptors.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Stops reading and sending, so that another process can continue. Returns the state for it, if the
    /// thread replies within a second.
    pub fn pause(&self) -> Option<Past> {
        let (reply, past) = std::sync::mpsc::channel();
        self.words.as_ref()?.try_send(Word::Pause(reply)).ok()?;
        past.recv_timeout(ANSWER).ok()
    }

    /// Continues after a pause.
    pub fn resume(&self) {
        if let Some(words) = &self.words {
            // A failure means that the thread has ended.
            let _ = words.try_send(Word::Resume);
        }
    }

    /// Ends without a farewell: another process has the socket and continues.
    pub fn vanish(self) {
        if let Some(words) = &self.words {
            let _ = words.try_send(Word::Vanish);
        }
    }

    /// Returns the address that the others use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queues a notice for the others, or drops it if the queue is full.
    pub fn notice(&self, notice: Notice) {
        let _ = self.notices.try_send(notice);
    }

    /// Returns the other balancers and the state of their reports.
    pub fn status(&self) -> FleetStatus {
        lock(&self.view).clone()
    }
}

/// Sends a farewell and ends.
impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.words.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
