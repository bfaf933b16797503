//! Connections to members.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::task::Poll;

use plimsoll_brain::Time;
use plimsoll_wire::proxy_protocol::{self, Addresses};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt;

use crate::core::Core;
use crate::http2;
use crate::link::Link;
use crate::preface;
use crate::reason::Reason;
use crate::socket::Socket;
use crate::tls;
use crate::trip::Trip;
use crate::wheel::Timer;

/// The client of a connection, and the local address that it connected to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Connects to the member of a trip, by TLS if the group's members require it. Sends the PROXY protocol
/// header first, if the group wants it.
///
/// # Errors
/// The member refuses the connection, fails authentication, or takes too long.
pub(crate) async fn link(
    core: &Core,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    peer: &Peer,
) -> Result<Link, Reason> {
    let settings = trip.settings();
    // On the heap: rarely needed, and it would enlarge every connection's task.
    let reached = Box::pin(async {
        let stream = reach(core, trip, peer).await?;
        let Some(tls) = &settings.tls else { return Ok(Link::Plain(stream)) };
        let secure = tls::reach(tls, trip.name(), stream).await.and_then(|secure| match secure.protocol() {
            Some(http2::ALPN) => Ok(secure),
            _ if settings.http2 => Err(io::Error::other("it does not speak HTTP/2 (ALPN)")),
            _ => Ok(secure),
        });
        secure.map(|secure| Link::Other(Box::new(secure))).inspect_err(|error| {
            tracing::debug!("no TLS with member {} of {}: {error}", trip.name(), settings.spec.name);
        })
    });
    trip.stripe().connects.add(1);
    patiently(core, trip, timer, deadline, reached).await
}

/// Connects as [`link`], without TLS.
///
/// # Errors
/// The member refuses the connection, or takes too long.
pub(crate) async fn connect(
    core: &Core,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    peer: &Peer,
) -> Result<Socket, Reason> {
    let reached = Box::pin(reach(core, trip, peer));
    trip.stripe().connects.add(1);
    patiently(core, trip, timer, deadline, reached).await
}

/// Awaits `reached` within the member's time limit.
///
/// # Errors
/// The reason of the failure.
pub(crate) async fn patiently<T>(
    core: &Core,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    mut reached: Pin<Box<impl Future<Output = io::Result<T>>>>,
) -> Result<T, Reason> {
    timer.set(deadline.min(core.now() + trip.settings().timeouts.connect));
    let address = trip.upstream.address.get();
    poll_fn(|cx| match reached.as_mut().poll(cx) {
        Poll::Ready(reached) => Poll::Ready(reached.map_err(|error| {
            if is_own(&error, address) { Reason::Exhausted } else { Reason::ConnectFailed }
        })),
        Poll::Pending if timer.fired() => {
            let late = core.tick() >= deadline;
            Poll::Ready(Err(if late { Reason::TotalTimeout } else { Reason::ConnectTimeout }))
        }
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Returns `true` if the process or the system has no more file descriptors, or the kernel no more memory.
pub(crate) fn exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno))
}

/// Returns `true` if a connection to `address` failed for lack of local resources: file descriptors, memory
/// or ports. Such an error is never a finding about the member.
#[cold]
pub(crate) fn is_own(error: &io::Error, address: SocketAddr) -> bool {
    match error.kind() {
        // No local port is left, or this host has no address from which to reach the target. A datagram
        // socket has a port of its own and fails in the second case only.
        io::ErrorKind::AddrNotAvailable => {
            let any = match address.ip() {
                IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            };
            !UdpSocket::bind(any)
                .and_then(|socket| socket.connect(address))
                .is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
        }
        _ => exhausted(error),
    }
}

async fn reach(core: &Core, trip: &Trip, peer: &Peer) -> io::Result<Socket> {
    let settings = trip.settings();
    let open = async |address: SocketAddr| match address.port() {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        _ => Socket::connect(&core.sessions.readiness, address, Some(core.descriptor()?)).await,
    };
    let mut stream = match settings.addresses.get(trip.name()) {
        Some(addresses) => addresses.reach(open).await?,
        None => open(trip.upstream.address.get()).await?,
    };
    // Without this, responses would only arrive later.
    stream.hurry();
    if let Some(version) = settings.send_proxy {
        let addresses = Addresses { source: peer.client, destination: peer.local };
        let mut header = Vec::new();
        proxy_protocol::write(preface::version(version), Some(&addresses), &mut header);
        stream.write_all(&header).await?;
    }
    Ok(stream)
}
