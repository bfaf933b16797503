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
//! * `node.rs`: keys, counters and names of the balancers; time is an argument.
//! * `serve.rs`: the thread and its socket.
//! * `seeds.rs`: lookups of the seeds' names.

mod node;
mod seeds;
mod serve;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_brain::fleet::{FleetGroup, FleetUpdate};
use plimsoll_brain::status::FleetStatus;
use plimsoll_brain::{ReportedLoad, Time};
use plimsoll_wire::rfs::KeyRing;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::lock;
use crate::lottery::incarnation;
use crate::lottery::socket::DaemonSocket;
use node::FleetNode;

/// The settings of a balancer's fleet membership. They are validated; only binding the addresses can fail.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// The balancer's name: at most [`MAX_NAME_LEN`](plimsoll_wire::fleet::MAX_NAME_LEN) bytes.
    pub name: String,
    /// The address to listen on; port 0 selects a free one.
    pub listen: SocketAddr,
    /// The address that the others use, if it differs from `listen`.
    pub address: Option<SocketAddr>,
    /// Hosts and ports of other balancers. A name may have many addresses. One reachable seed is enough to
    /// find all balancers.
    pub seeds: Vec<(String, u16)>,
    /// The keys, the same for all balancers.
    pub keys: KeyRing,
    /// The interval of reports while values change.
    pub interval: Duration,
    /// The limit on bytes of reports per second, to all others together.
    pub bytes_per_second: u64,
    /// The number of balancers that check each member's health.
    pub probers: usize,
    /// The time that a lost balancer keeps its share of limits.
    pub forget_after: Duration,
}

/// The local balancer. Its methods are called on the fleet's thread, and should take milliseconds at most.
pub trait LocalBalancer: Send + Sync + 'static {
    /// Returns the time of the data plane's clock.
    fn now(&self) -> Time;

    /// Returns a number that changes whenever the result of [`groups`](Self::groups) does.
    fn version(&self) -> u64;

    /// Returns the balancer's groups and their members.
    fn groups(&self) -> Vec<FleetGroup>;

    /// Returns the number of requests that wait for a member below its limit, for groups whose members have
    /// one.
    fn queue_lengths(&self) -> Vec<(Arc<str>, u32)>;

    /// Receives news from others, or a consequence of it; `by` is the name of the balancer that reported it,
    /// if it is one.
    fn receive_update(&self, update: &FleetUpdate, reporter: &str);

    /// Receives a change of another balancer's state.
    fn receive_change(&self, change: &PeerChange);
}

/// A change of another balancer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// The balancer's name, or its address while the name is unknown.
    pub name: String,
    /// The balancer's address.
    pub address: SocketAddr,
    /// The new state.
    pub transition: PeerTransition,
}

/// The transitions of a balancer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTransition {
    /// The balancer joined.
    Joined,
    /// No reports arrive from it, though the membership lists it as alive.
    Silent,
    /// Reports arrive again.
    ReportsResumed,
    /// The balancer is gone, without a farewell.
    Lost,
    /// The balancer left with a farewell.
    Left,
}

/// An action of the data plane to report to others.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberNotice {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub member: Arc<str>,
    /// The action.
    pub action: MemberAction,
}

/// The actions to report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemberAction {
    /// The member's health was checked; `true` if it passed.
    HealthChecked(bool),
    /// This balancer ejected the member for this time, or reinstated it (zero).
    Ejected(Duration),
    /// A load report of the member arrived.
    LoadReported(ReportedLoad),
}

/// The bound socket of a balancer, before it joins.
#[derive(Debug)]
pub struct BoundSocket(DaemonSocket);

impl BoundSocket {
    /// Binds an address; port 0 selects a free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        Ok(Self(DaemonSocket::bind(listen, None)?))
    }

    /// Takes a socket that another process bound. No datagram is read before the balancer joins.
    ///
    /// # Errors
    /// The socket is not a datagram socket.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(DaemonSocket::from_fd(socket)?))
    }
}

/// The state for a handoff: to the others, the next process is the same balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetHandoff {
    /// The incarnation.
    pub life: u32,
    /// The sequence numbers of the last report and of the last gossip datagram.
    pub seqs: (u32, u32),
    /// The other balancers: address, incarnation and name.
    pub others: Vec<(SocketAddr, u32, String)>,
    /// The lost balancers that keep their share of limits.
    #[serde(default)]
    pub lost: Vec<LostPeer>,
}

/// A balancer that is gone without a farewell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPeer {
    /// The balancer's address, incarnation and name.
    pub other: (SocketAddr, u32, String),
    /// The time since it was lost, in milliseconds.
    pub age_ms: u64,
    /// The numbers of the groups that it served.
    pub groups: Vec<u64>,
}

/// The commands to the fleet's thread.
enum FleetCommand {
    /// Stops reading and sending, and returns the state for another process.
    Pause(std::sync::mpsc::Sender<FleetHandoff>),
    /// Continues after a pause.
    Resume,
    /// Ends without a farewell: another process continues.
    HandOff,
}

/// The time limit for the thread's reply with the handoff state.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A balancer's membership in its fleet, which ends when this is dropped.
#[derive(Debug)]
pub struct FleetMembership {
    address: SocketAddr,
    /// A copy of the socket, for another process.
    socket: OwnedFd,
    notices: mpsc::Sender<MemberNotice>,
    status: Arc<Mutex<FleetStatus>>,
    commands: Option<mpsc::Sender<FleetCommand>>,
    thread: Option<JoinHandle<()>>,
}

/// The maximum number of queued notices. A dropped one is repeated with the next sweep, or has become
/// obsolete.
const NOTICE_CAPACITY: usize = 4096;

/// The maximum number of queued commands; an upgrade sends no more.
const COMMAND_CAPACITY: usize = 8;

impl FleetMembership {
    /// Joins the fleet on a thread of its own. With `past` it continues the membership of another process.
    ///
    /// # Errors
    /// The system provides no thread, or no more file descriptors.
    pub fn start(
        settings: FleetSettings,
        BoundSocket(socket): BoundSocket,
        handoff: Option<FleetHandoff>,
        local: Arc<dyn LocalBalancer>,
    ) -> io::Result<Self> {
        let copy = socket.duplicate()?;
        let address = settings.address.unwrap_or_else(|| socket.address());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let sockets = {
            let _context = runtime.enter();
            socket.register()?
        };
        let status = Arc::new(Mutex::new(FleetStatus {
            name: settings.name.clone(),
            address: address.to_string(),
            ..FleetStatus::default()
        }));
        let ((notices, notice_receiver), (commands, command_receiver)) =
            (mpsc::channel(NOTICE_CAPACITY), mpsc::channel(COMMAND_CAPACITY));
        let thread_status = Arc::clone(&status);
        let thread = std::thread::Builder::new().name("fleet".into()).spawn(move || {
            let incarnation = handoff.as_ref().map_or_else(incarnation, |handoff| handoff.life);
            let mut node =
                FleetNode::new(&settings, address, incarnation, crate::lottery::random_seed(), local.now());
            if let Some(handoff) = handoff {
                node.restore(handoff, local.now());
            }
            runtime.block_on(serve::serve(
                node,
                settings.seeds,
                sockets.unicast,
                notice_receiver,
                command_receiver,
                local,
                thread_status,
            ));
            // A DNS lookup must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, socket: copy, notices, status, commands: Some(commands), thread: Some(thread) })
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
    pub fn pause(&self) -> Option<FleetHandoff> {
        let (reply, reply_receiver) = std::sync::mpsc::channel();
        self.commands.as_ref()?.try_send(FleetCommand::Pause(reply)).ok()?;
        reply_receiver.recv_timeout(PAUSE_TIMEOUT).ok()
    }

    /// Continues after a pause.
    pub fn resume(&self) {
        if let Some(commands) = &self.commands {
            // A failure means that the thread has ended.
            let _ = commands.try_send(FleetCommand::Resume);
        }
    }

    /// Ends without a farewell: another process has the socket and continues.
    pub fn hand_off(self) {
        if let Some(commands) = &self.commands {
            let _ = commands.try_send(FleetCommand::HandOff);
        }
    }

    /// Returns the address that the others use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queues a notice for the others, or drops it if the queue is full.
    pub fn notify(&self, notice: MemberNotice) {
        let _ = self.notices.try_send(notice);
    }

    /// Returns the other balancers and the state of their reports.
    pub fn status(&self) -> FleetStatus {
        lock(&self.status).clone()
    }
}

/// Sends a farewell and ends.
impl Drop for FleetMembership {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
