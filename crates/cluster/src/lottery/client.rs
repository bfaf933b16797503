//! A client: [`pick`](Client::pick) asks a daemon, another if that one does not answer, then all (`brain::lottery::Client` has the
//! rules), and gives the member that is to serve.
//!
//! It begins with the addresses of a few daemons and learns of the others by their answers. Where there is no multicast, *all*
//! means each that is known. It has a socket for each family and one task; many may pick at once.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{self as brain, ClientConfig, Mode, Outcome, Picked, Status, To};
use plimsoll_wire::rfs::{Encode as _, Keys, LONGEST_REPORT};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

use super::seed;
use super::socket::any;

/// Whom to ask, and how.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Daemons to begin with.
    pub daemons: Vec<SocketAddr>,
    /// The group and port by which all are reached at once, where there is multicast.
    pub multicast: Option<SocketAddr>,
    /// Of the cluster.
    pub keys: Keys,
    /// How to ask first.
    pub mode: Mode,
    /// How often it asks before it gives up; eight times take 1.3 s where round trips are short.
    pub attempts: u8,
}

/// Who is to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Its number.
    pub member: u16,
    /// Where it serves.
    pub address: SocketAddr,
    /// What its application says to the client's.
    pub info: Vec<u8>,
    /// Members to try if it does not do, best first.
    pub further: Vec<(u16, SocketAddr)>,
}

/// Why there is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// No daemon answered.
    #[error("no daemon answered")]
    Silence,
    /// The members that offer the service cannot be used now.
    #[error("no member can serve it now")]
    Busy,
    /// No member offers it.
    #[error("no member offers it")]
    Unknown,
    /// All who offer it are going.
    #[error("all members that offer it are going")]
    Draining,
    /// Too many requests are without an answer.
    #[error("too many requests are on their way")]
    TooMany,
}

/// A client of a cluster. Its task ends with it.
#[derive(Debug)]
pub struct Client {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    four: Option<UdpSocket>,
    six: Option<UdpSocket>,
    multicast: Option<SocketAddr>,
    keys: Keys,
    begin: Instant,
    /// There is another time to wait for.
    stirred: Notify,
}

#[derive(Debug)]
struct State {
    client: brain::Client,
    waiting: HashMap<u64, oneshot::Sender<Result<Pick, Unserved>>>,
}

impl Client {
    /// Starts one. To be called in a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn start(settings: ClientSettings) -> io::Result<Self> {
        let mut config = ClientConfig::new(seed());
        (config.mode, config.attempts) = (settings.mode, settings.attempts.max(1));
        let mut client = brain::Client::new(config);
        client.begin_with(settings.daemons.iter().copied());
        let four = bound(SocketAddr::from(([0; 4], 0)));
        let six = bound(SocketAddr::from(([0; 16], 0)));
        let (four, six) = match (four, six) {
            (Err(why), Err(_)) => return Err(why),
            (four, six) => (four.ok(), six.ok()),
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(State { client, waiting: HashMap::new() }),
            four,
            six,
            multicast: settings.multicast,
            keys: settings.keys,
            begin: Instant::now(),
            stirred: Notify::new(),
        });
        let task = tokio::spawn(listen(Arc::clone(&inner)));
        Ok(Self { inner, task })
    }

    /// The member that is to serve; `info` is for the daemons' applications (at most 1000 bytes go).
    ///
    /// # Errors
    /// There is nobody, or nobody answers.
    pub async fn pick(&self, service: u32, info: &[u8]) -> Result<Pick, Unserved> {
        let (tell, told) = oneshot::channel();
        {
            let mut state = self.inner.lock();
            match state.client.pick(self.inner.now(), service, info) {
                Picked::Again(answer) => return made(answer).ok_or(Unserved::Busy),
                Picked::Full => return Err(Unserved::TooMany),
                Picked::Asked(id) => drop(state.waiting.insert(id, tell)),
            }
            self.inner.flush(&mut state);
        }
        self.inner.stirred.notify_one();
        // The task lives as long as this.
        told.await.unwrap_or(Err(Unserved::Silence))
    }

    /// A member that was picked failed: not that one again for five seconds.
    pub fn failed(&self, member: u16) {
        let now = self.inner.now();
        self.inner.lock().client.failed(now, member);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inner {
    fn now(&self) -> Time {
        Time(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left nothing half done that matters more than going on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, from: SocketAddr, bytes: &[u8]) {
        // What cannot be opened is nobody's answer.
        let Ok(message) = self.keys.open(bytes).and_then(|opened| opened.message()) else { return };
        let mut state = self.lock();
        state.client.handle(self.now(), from, message);
        self.flush(&mut state);
    }

    /// Sends what is to be sent, and tells those who wait what came of it.
    fn flush(&self, state: &mut State) {
        let mut bytes = Vec::new();
        while let Some((to, message)) = state.client.poll_transmit() {
            bytes.clear();
            // What a client sends always fits.
            if message.encode(&self.keys, &mut bytes).is_err() {
                continue;
            }
            match (to, self.multicast) {
                (To::Address(to), _) | (To::Everyone, Some(to)) => self.send(&bytes, to),
                (To::Everyone, None) => state.client.daemons().for_each(|to| self.send(&bytes, to)),
            }
        }
        while let Some(outcome) = state.client.poll_outcome() {
            let (id, outcome) = match outcome {
                Outcome::Member(answer) => (answer.id, made(answer).ok_or(Unserved::Busy)),
                Outcome::Nobody(id, None) => (id, Err(Unserved::Silence)),
                Outcome::Nobody(id, Some(Status::UnknownService)) => (id, Err(Unserved::Unknown)),
                Outcome::Nobody(id, Some(Status::Draining)) => (id, Err(Unserved::Draining)),
                Outcome::Nobody(id, Some(Status::Busy | Status::Ok)) => (id, Err(Unserved::Busy)),
            };
            if let Some(tell) = state.waiting.remove(&id) {
                // Whoever asked may have gone.
                let _ = tell.send(outcome);
            }
        }
    }

    /// What does not go is lost, as it may be on its way: another attempt follows.
    fn send(&self, bytes: &[u8], to: SocketAddr) {
        let socket = if to.is_ipv4() { &self.four } else { &self.six };
        if let Some(socket) = socket {
            let _ = socket.try_send_to(bytes, to);
        }
    }
}

/// Takes what comes and does what is due, for ever.
async fn listen(inner: Arc<Inner>) {
    let mut buffer = [0; LONGEST_REPORT + 1];
    loop {
        let due = inner.lock().client.poll_timeout();
        let due = due.map(|due| inner.begin + Duration::from_nanos(due.0));
        tokio::select! {
            came = receive(inner.four.as_ref(), inner.six.as_ref(), &mut buffer) => {
                if let Ok((len, from)) = came {
                    inner.take(from, &buffer[..len]);
                }
            }
            () = until(due) => {
                let mut state = inner.lock();
                state.client.handle_timeout(inner.now());
                inner.flush(&mut state);
            }
            () = inner.stirred.notified() => {}
        }
    }
}

/// The next datagram of either.
async fn receive(
    four: Option<&UdpSocket>,
    six: Option<&UdpSocket>,
    buffer: &mut [u8],
) -> io::Result<(usize, SocketAddr)> {
    let ready = async |socket: Option<&UdpSocket>| match socket {
        Some(socket) => socket.readable().await,
        None => std::future::pending().await,
    };
    let socket = tokio::select! {
        ready = ready(four) => ready.map(|()| four)?,
        ready = ready(six) => ready.map(|()| six)?,
    };
    socket.ok_or(io::ErrorKind::NotFound)?.try_recv_from(buffer)
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn bound(like: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(any(like))?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// `None` for an answer that names nobody, of which there is none by now.
fn made(answer: brain::Answer) -> Option<Pick> {
    let further = answer.further.iter().map(|further| (further.member, further.endpoint));
    Some(Pick {
        member: answer.member,
        address: answer.endpoint?,
        info: answer.info.to_vec(),
        further: further.collect(),
    })
}
