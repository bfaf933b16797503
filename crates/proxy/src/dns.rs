//! DNS: a domain that stands for a group. The brain that chooses members for requests also chooses those in
//! the answers. Unlike in round-robin DNS, members that are down, draining or ejected are left out. Each
//! answer is a choice of the group's strategy and is valid for a short time to live.
//!
//! A query does not count as work of the chosen member, as the end of that work is unknown. Strategies that
//! use requests in flight see only those of the group's other listeners, and the members' load reports.
//!
//! Over UDP, each core answers the queries that the kernel delivers to it. A client network gets no more than
//! its share of answers (`rate`), unless its clients present a cookie (`cookie`). Over TCP, a client may send
//! many queries on a connection, each behind its length; an idle connection is closed.

mod cookie;
#[cfg(any(test, fuzzing))]
pub(crate) mod law;
mod rate;
mod zone;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_brain::{MemberId, Time, lottery};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

use crate::connect::Peer;
use crate::core::Core;
use crate::listener::Listener;
use crate::pool::Pool;
use crate::socket::Socket;
use crate::udp;
use cookie::ServerCookie;
pub(crate) use rate::AnswerRates;
use zone::{AnswerRoom, Asker, Chosen, Family, Members, Transport, Zone};

/// The number of queries that are answered before other tasks run.
const TURN: usize = 64;

/// The time limit for receiving the rest of a query, and for sending an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves a UDP socket until the listener is closed.
pub(crate) async fn serve(core: Rc<Core>, listener: Rc<Listener>, socket: UdpSocket) {
    let socket = udp::Socket::new(socket, &listener.door.address);
    loop {
        tokio::select! {
            biased;
            () = listener.until_closed() => return,
            readable = socket.readable() => {
                if let Err(error) = readable {
                    return tracing::error!("{}: {error}", listener.door.address);
                }
                if answer_all(&core, &listener, &socket) == TURN {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Answers the waiting queries, at most a fair number, and returns how many.
fn answer_all(core: &Core, listener: &Listener, socket: &udp::Socket) -> usize {
    let now = core.tick();
    core.lend(|buffer, _| {
        for taken in 0..TURN {
            match socket.receive(buffer) {
                Ok((len, client, local)) => {
                    if let Some(answer) =
                        answer(core, listener, client.ip(), &buffer[..len], Transport::Udp, now)
                    {
                        // An answer that the kernel does not take is lost, as it might be on the network.
                        let _ = socket.reply(&answer, client, local);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return taken,
                Err(_) => {}
            }
        }
        TURN
    })
}

/// Serves a connection until the client leaves or is idle for too long.
pub(crate) async fn converse(
    core: Rc<Core>,
    listener: Rc<Listener>,
    mut stream: Socket,
    peer: Peer,
    ahead: Vec<u8>,
) {
    let mut ahead = io::Cursor::new(ahead);
    loop {
        if listener.closed() {
            return;
        }
        let idle = listener.settings().timeouts.idle;
        let mut length = [0; 2];
        let begun = core.within(idle, read(&mut ahead, &mut stream, &mut length)).await;
        if !matches!(begun, Some(Ok(()))) {
            return;
        }
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        let whole = core.within(PATIENCE, read(&mut ahead, &mut stream, &mut question)).await;
        if !matches!(whole, Some(Ok(()))) {
            return;
        }
        let now = core.tick();
        let Some(answer) = answer(&core, &listener, peer.client.ip(), &question, Transport::Tcp, now) else {
            return;
        };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let bytes = [&length.to_be_bytes()[..], &answer].concat();
        if !matches!(core.within(PATIENCE, stream.write_all(&bytes)).await, Some(Ok(()))) {
            return;
        }
    }
}

/// Fills `buffer` with bytes that were already read, and then from the stream.
async fn read(ahead: &mut io::Cursor<Vec<u8>>, stream: &mut Socket, buffer: &mut [u8]) -> io::Result<()> {
    let had = io::Read::read(ahead, buffer)?;
    stream.read_exact(&mut buffer[had..]).await.map(drop)
}

fn answer(
    core: &Core,
    listener: &Listener,
    client: IpAddr,
    question: &[u8],
    transport: Transport,
    now: Time,
) -> Option<Vec<u8>> {
    listener.count().accepted.add(u64::from(transport == Transport::Udp));
    let settings = listener.settings();
    let zone = settings.zone.as_ref()?;
    let pool = listener.pool();
    let view = pool.view();
    let key = if view.published.plan.strategy().reads_key { crate::key::of_client(client) } else { 0 };
    let zone = Zone::new(&zone.domain, zone.ttl, pool.group.version() as u32).ok()?;
    let mut asker = Client { core, listener, ip: client, now };
    zone.answer(question, transport, &mut asker, &mut Group { core, pool: &pool, key, now })
}

/// The key of the cookies.
static SECRET: LazyLock<Option<lottery::Key>> = LazyLock::new(random_key);

/// Draws a key; `None` if the system provides no random numbers.
fn random_key() -> Option<lottery::Key> {
    let mut bytes = [0; 16];
    let filled = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())).ok()?;
    (filled == bytes.len()).then(|| lottery::Key::new(bytes))
}

struct Client<'a> {
    core: &'a Core,
    listener: &'a Listener,
    ip: IpAddr,
    now: Time,
}

impl Asker for Client<'_> {
    fn cookie(&self, client: &[u8; 8], shown: &[u8]) -> Option<(ServerCookie, bool)> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // The number wraps around in 2106, which cookies allow for.
        Some(cookie::judge((*SECRET).as_ref()?, self.ip, client, shown, unix as u32))
    }

    fn room(&mut self) -> AnswerRoom {
        let settings = self.listener.settings();
        let Some(zone) = settings.zone.as_ref().filter(|zone| zone.rate > 0) else {
            return AnswerRoom::Whole;
        };
        let rates = self.listener.door.answer_rates.get_or_init(|| AnswerRates::new(random_key()));
        if rates.admits(self.ip, zone.rate, self.now) {
            return AnswerRoom::Whole;
        }
        self.listener.count().refused.add(1);
        let slips = zone.slip > 0 && self.core.chance().is_multiple_of(u64::from(zone.slip));
        if slips { AnswerRoom::Notice } else { AnswerRoom::None }
    }
}

struct Group<'a> {
    core: &'a Core,
    pool: &'a Pool,
    key: u64,
    now: Time,
}

impl Members for Group<'_> {
    fn choose(&mut self, family: Option<Family>) -> Chosen {
        let fits = |address: SocketAddr| family.is_none_or(|family| Family::of(address) == family);
        let all = self.all();
        if !all.is_empty() && !all.iter().any(|address| fits(*address)) {
            return Chosen::None;
        }
        let mut tried: Vec<MemberId> = Vec::new();
        while let Some((member, address)) = self.pool.peek(self.key, self.core.chance(), self.now, &tried) {
            if fits(address) {
                return Chosen::Member(address);
            }
            tried.push(member);
        }
        Chosen::Failed
    }

    fn all(&self) -> Vec<SocketAddr> {
        self.pool.view().published.plan.members().iter().map(|member| member.address).collect()
    }
}
