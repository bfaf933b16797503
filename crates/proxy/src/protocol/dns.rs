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
pub(crate) mod invariants;
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

use crate::listener::Listener;
use crate::net::socket::ReactorSocket;
use crate::protocol::udp;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::pool::GroupPool;
use crate::upstream::thread_context::ThreadContext;
use cookie::ServerCookie;
pub(crate) use rate::AnswerRates;
use zone::{AnswerPermit, IpFamily, MemberChoice, MemberSource, QueryClient, QueryTransport, Zone};

/// The number of queries that are answered before other tasks run.
const QUERIES_PER_TURN: usize = 64;

/// The time limit for receiving the rest of a query, and for sending an answer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a UDP socket until the listener is closed.
pub(crate) async fn serve_udp(core: Rc<ThreadContext>, listener: Rc<Listener>, socket: UdpSocket) {
    let socket = udp::UdpListenSocket::new(socket, &listener.shared.address);
    loop {
        tokio::select! {
            biased;
            () = listener.until_closed() => return,
            readable = socket.readable() => {
                if let Err(error) = readable {
                    return tracing::error!("{}: {error}", listener.shared.address);
                }
                if answer_all(&core, &listener, &socket) == QUERIES_PER_TURN {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Answers the waiting queries, at most a fair number, and returns how many.
fn answer_all(core: &ThreadContext, listener: &Listener, socket: &udp::UdpListenSocket) -> usize {
    let now = core.tick();
    core.with_buffers(|buffer, _| {
        for handled in 0..QUERIES_PER_TURN {
            match socket.receive(buffer) {
                Ok((len, client, local)) => {
                    if let Some(answer) =
                        answer(core, listener, client.ip(), &buffer[..len], QueryTransport::Udp, now)
                    {
                        // An answer that the kernel does not take is lost, as it might be on the network.
                        let _ = socket.reply(&answer, client, local);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return handled,
                Err(_) => {}
            }
        }
        QUERIES_PER_TURN
    })
}

/// Serves a connection until the client leaves or is idle for too long.
pub(crate) async fn serve_tcp(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    mut stream: ReactorSocket,
    peer: PeerAddresses,
    unread: Vec<u8>,
) {
    let mut unread = io::Cursor::new(unread);
    loop {
        if listener.is_closed() {
            return;
        }
        let idle = listener.settings().timeouts.idle;
        let mut length = [0; 2];
        let length_read = core.within(idle, read(&mut unread, &mut stream, &mut length)).await;
        if !matches!(length_read, Some(Ok(()))) {
            return;
        }
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        let question_read =
            core.within(TRANSFER_TIMEOUT, read(&mut unread, &mut stream, &mut question)).await;
        if !matches!(question_read, Some(Ok(()))) {
            return;
        }
        let now = core.tick();
        let Some(answer) = answer(&core, &listener, peer.client.ip(), &question, QueryTransport::Tcp, now)
        else {
            return;
        };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let bytes = [&length.to_be_bytes()[..], &answer].concat();
        if !matches!(core.within(TRANSFER_TIMEOUT, stream.write_all(&bytes)).await, Some(Ok(()))) {
            return;
        }
    }
}

/// Fills `buffer` with bytes that were already read, and then from the stream.
async fn read(
    unread: &mut io::Cursor<Vec<u8>>,
    stream: &mut ReactorSocket,
    buffer: &mut [u8],
) -> io::Result<()> {
    let buffered_len = io::Read::read(unread, buffer)?;
    stream.read_exact(&mut buffer[buffered_len..]).await.map(drop)
}

fn answer(
    core: &ThreadContext,
    listener: &Listener,
    client: IpAddr,
    question: &[u8],
    transport: QueryTransport,
    now: Time,
) -> Option<Vec<u8>> {
    listener.counters().accepted.add(u64::from(transport == QueryTransport::Udp));
    let settings = listener.settings();
    let zone = settings.zone.as_ref()?;
    let pool = listener.pool();
    let view = pool.view();
    let key = if view.published.plan.strategy().reads_key {
        crate::settings::hash_key::client_key(client)
    } else {
        0
    };
    let dns_zone = Zone::new(&zone.domain, zone.ttl, pool.group.version() as u32).ok()?;
    let mut query_client = DnsClient { core, listener, ip: client, now };
    dns_zone.answer(question, transport, &mut query_client, &mut DnsGroup { core, pool: &pool, key, now })
}

/// The key of the cookies.
static SECRET: LazyLock<Option<lottery::SipHashKey>> = LazyLock::new(random_key);

/// Draws a key; `None` if the system provides no random numbers.
fn random_key() -> Option<lottery::SipHashKey> {
    let mut bytes = [0; 16];
    let filled_len = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())).ok()?;
    (filled_len == bytes.len()).then(|| lottery::SipHashKey::new(bytes))
}

struct DnsClient<'a> {
    core: &'a ThreadContext,
    listener: &'a Listener,
    ip: IpAddr,
    now: Time,
}

impl QueryClient for DnsClient<'_> {
    fn cookie(&self, client: &[u8; 8], presented: &[u8]) -> Option<(ServerCookie, bool)> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // The number wraps around in 2106, which cookies allow for.
        Some(cookie::verify_cookie((*SECRET).as_ref()?, self.ip, client, presented, unix as u32))
    }

    fn take_permit(&mut self) -> AnswerPermit {
        let settings = self.listener.settings();
        let Some(zone) = settings.zone.as_ref().filter(|zone| zone.rate > 0) else {
            return AnswerPermit::Full;
        };
        let rates = self.listener.shared.answer_rates.get_or_init(|| AnswerRates::new(random_key()));
        if rates.admits(self.ip, zone.rate, self.now) {
            return AnswerPermit::Full;
        }
        self.listener.counters().refused.add(1);
        let sends_notice = zone.slip > 0 && self.core.random_bits().is_multiple_of(u64::from(zone.slip));
        if sends_notice { AnswerPermit::Notice } else { AnswerPermit::None }
    }
}

struct DnsGroup<'a> {
    core: &'a ThreadContext,
    pool: &'a GroupPool,
    key: u64,
    now: Time,
}

impl MemberSource for DnsGroup<'_> {
    fn choose(&mut self, family: Option<IpFamily>) -> MemberChoice {
        let fits = |address: SocketAddr| family.is_none_or(|family| IpFamily::of(address) == family);
        let addresses = self.all();
        if !addresses.is_empty() && !addresses.iter().any(|address| fits(*address)) {
            return MemberChoice::NoneOfFamily;
        }
        let mut tried: Vec<MemberId> = Vec::new();
        while let Some((member, address)) =
            self.pool.peek(self.key, self.core.random_bits(), self.now, &tried)
        {
            if fits(address) {
                return MemberChoice::Member(address);
            }
            tried.push(member);
        }
        MemberChoice::NoneUsable
    }

    fn all(&self) -> Vec<SocketAddr> {
        self.pool.view().published.plan.members().iter().map(|member| member.address).collect()
    }
}
