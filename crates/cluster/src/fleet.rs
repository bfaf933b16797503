//! Balancers that act together: their sockets. What they tell one another, and what each makes of it, is decided in the brain
//! ([`plimsoll_brain::fleet`]), what the bytes are in crate `wire` ([`plimsoll_wire::fleet`]).
//!
//! ```text
//!  socket ─▶ open ─▶ sent again? ─▶ gossip (who is there) ──▶ brain::fleet::Fleet ─▶ seal ─▶ socket
//!                                └▶ reports ───────────────▶   ▲ │
//!                                       checks, ejections, loads │ news for the slow path
//! ```
//!
//! Who is there is known by foca, as among the lottery's daemons (`lottery/gossip.rs`): a crash in about a second, whoever goes by
//! will says so. What they see they tell each other directly, every few milliseconds while something changes, in as many
//! datagrams as the bound on bytes allows. The data plane waits for none of this: the thread that does it writes into counts
//! that choices read.
//!
//! * `desk.rs`: keys, counts, who is called what; time is an argument. `serve.rs`: its thread and socket. `seeds.rs`: names looked up.

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

/// How a balancer takes part. Nothing in here can be wrong but that its addresses are not to be had.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What it is called: at most [`LONGEST_NAME`](plimsoll_wire::fleet::LONGEST_NAME) bytes.
    pub name: String,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the others reach it, if that is not where it listens.
    pub address: Option<SocketAddr>,
    /// Others: host and port. A name may stand for many. One that is there is enough to find all.
    pub seeds: Vec<(String, u16)>,
    /// The same with all.
    pub keys: Keys,
    /// How often others are told what has changed.
    pub interval: Duration,
    /// Bytes of reports a second, to all others together.
    pub bytes_per_second: u64,
    /// How many balancers check each member's health.
    pub probers: usize,
    /// How long one that was lost keeps its part of limits.
    pub forget: Duration,
}

/// The balancer that this is for. Called on the thread of the fleet; should take milliseconds at most.
pub trait Local: Send + Sync + 'static {
    /// The time by the data plane's clock.
    fn now(&self) -> Time;

    /// Changes whenever [`groups`](Self::groups) would say something else.
    fn version(&self) -> u64;

    /// Its groups and their members.
    fn groups(&self) -> Vec<Listed>;

    /// Requests that wait for a member below its limit, of groups whose members have one.
    fn waiting(&self) -> Vec<(Arc<str>, u32)>;

    /// What others said, or what follows from it; `by` is what the one is called who said it, if it is one's word.
    fn news(&self, news: &News, by: &str);

    /// Another balancer came or went.
    fn change(&self, change: &Change);
}

/// What became of another balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What it calls itself, or its address before it has said so.
    pub name: String,
    /// Where it is reached.
    pub address: SocketAddr,
    /// What became of it.
    pub what: Became,
}

/// What can become of a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// It is there.
    Joined,
    /// Nothing is heard of it, though nobody says that it is gone.
    Silent,
    /// It is heard of again.
    Heard,
    /// It is gone, and did not say so before.
    Lost,
    /// It went.
    Left,
}

/// What the data plane did that others are to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Of which group.
    pub group: Arc<str>,
    /// Of which member.
    pub member: Arc<str>,
    /// What was done.
    pub what: Did,
}

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Did {
    /// Its health was checked: did it pass?
    Checked(bool),
    /// It was ejected on this balancer's own account for so long, or taken back (zero).
    Ejected(Duration),
    /// A load was reported of it.
    Loaded(Load),
}

/// Where a balancer will be reached, before it takes part.
#[derive(Debug)]
pub struct Seat(Socket);

impl Seat {
    /// Binds an address; port 0 takes a free one.
    ///
    /// # Errors
    /// It is not to be had.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        Ok(Self(Socket::bind(listen, None)?))
    }

    /// Takes a socket that another process bound. Nothing is read from it before the balancer takes part.
    ///
    /// # Errors
    /// It is none for datagrams.
    pub fn given(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(Socket::given(socket)?))
    }
}

/// What goes on when another process takes over a balancer's part: to the others it is the same balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Which life of it this is.
    pub life: u32,
    /// The numbers of the last report, and of the last datagram about who is there.
    pub seqs: (u32, u32),
    /// The others: where they are reached, which life it is, and what they call themselves.
    pub others: Vec<(SocketAddr, u32, String)>,
    /// Those that were lost and keep their parts of limits.
    #[serde(default)]
    pub lost: Vec<Lost>,
}

/// Another balancer that is gone and did not say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Where it was reached, which life it was, and what it called itself.
    pub other: (SocketAddr, u32, String),
    /// How long ago it was lost.
    pub age_ms: u64,
    /// The groups that it served, by their numbers.
    pub groups: Vec<u64>,
}

/// What the thread of a fleet is told.
enum Word {
    /// Read nothing, say nothing; and say what another process would have to know.
    Pause(std::sync::mpsc::Sender<Past>),
    /// Go on.
    Resume,
    /// End without a word: another process goes on.
    Vanish,
}

/// For the thread to say what another process has to know.
const ANSWER: Duration = Duration::from_secs(1);

/// A balancer's part in its fleet, until it is dropped.
#[derive(Debug)]
pub struct Fleet {
    address: SocketAddr,
    /// A copy, for another process.
    socket: OwnedFd,
    notices: mpsc::Sender<Notice>,
    view: Arc<Mutex<FleetStatus>>,
    words: Option<mpsc::Sender<Word>>,
    thread: Option<JoinHandle<()>>,
}

/// Notices that wait; what finds no room is told again with the next sweep, or never was of use.
const NOTICES: usize = 4096;

/// Words that wait: there are not more in an upgrade.
const WORDS: usize = 8;

impl Fleet {
    /// Starts to take part. Takes a thread. `past`: it goes on with the part of another process.
    ///
    /// # Errors
    /// The system gives no thread, or no more files.
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
            // A name that is being looked up must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, socket: copy, notices, view, words: Some(words), thread: Some(thread) })
    }

    /// A copy of its socket, for another process.
    ///
    /// # Errors
    /// There are no more files.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Reads nothing and says nothing from now on, so that another process can go on; what that has to know, if it can be had. Waits
    /// for a second at most.
    pub fn pause(&self) -> Option<Past> {
        let (reply, past) = std::sync::mpsc::channel();
        self.words.as_ref()?.try_send(Word::Pause(reply)).ok()?;
        past.recv_timeout(ANSWER).ok()
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        if let Some(words) = &self.words {
            // One that cannot be told has ended.
            let _ = words.try_send(Word::Resume);
        }
    }

    /// Ends without a word: another process has the socket, and goes on.
    pub fn vanish(self) {
        if let Some(words) = &self.words {
            let _ = words.try_send(Word::Vanish);
        }
    }

    /// Where the others reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What others are to be told. Dropped if there is no room.
    pub fn notice(&self, notice: Notice) {
        let _ = self.notices.try_send(notice);
    }

    /// Who is there, and how they are heard.
    pub fn status(&self) -> FleetStatus {
        lock(&self.view).clone()
    }
}

/// Says farewell and ends.
impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.words.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
