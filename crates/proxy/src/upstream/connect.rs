//! Connections to members.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::task::Poll;

use plimsoll_brain::Time;
use plimsoll_wire::proxy_protocol::{self, ProxyAddresses, ProxyVersion};
use tokio::io::AsyncWriteExt;

use crate::net::connection::PeerConnection;
use crate::net::reason::Reason;
use crate::net::socket::{ReactorSocket, is_out_of_resources};
use crate::net::tls;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::in_flight::InFlight;
use crate::upstream::thread_context::ThreadContext;

/// The client of a connection, and the local address that it connected to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddresses {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Returns the version of the PROXY protocol as it is configured.
pub(crate) fn proxy_version(number: u8) -> ProxyVersion {
    if number == 1 { ProxyVersion::V1 } else { ProxyVersion::V2 }
}

/// Connects to the member of the request in flight, by TLS if the group's members require it. Sends the PROXY
/// protocol header first, if the group wants it.
///
/// # Errors
/// The member refuses the connection, fails authentication, or takes too long.
pub(crate) async fn connect_member(
    core: &ThreadContext,
    in_flight: &InFlight,
    timer: &Timer,
    deadline: Time,
    peer: &PeerAddresses,
) -> Result<PeerConnection, Reason> {
    let settings = in_flight.settings();
    // On the heap: rarely needed, and it would enlarge every connection's task.
    let connecting = Box::pin(async {
        let stream = reach(core, in_flight, peer).await?;
        let Some(tls) = &settings.tls else { return Ok(PeerConnection::Plain(stream)) };
        let handshake =
            tls::reach(tls, in_flight.name(), stream).await.and_then(|tls_stream| {
                match tls_stream.alpn_protocol() {
                    Some(tls::H2_ALPN) => Ok(tls_stream),
                    _ if settings.http2 => Err(io::Error::other("it does not speak HTTP/2 (ALPN)")),
                    _ => Ok(tls_stream),
                }
            });
        handshake.map(|tls_stream| PeerConnection::Other(Box::new(tls_stream))).inspect_err(|error| {
            tracing::debug!("no TLS with member {} of {}: {error}", in_flight.name(), settings.spec.name);
        })
    });
    in_flight.counters().connects.add(1);
    with_connect_timeout(core, in_flight, timer, deadline, connecting).await
}

/// Connects as [`connect_member`], without TLS.
///
/// # Errors
/// The member refuses the connection, or takes too long.
pub(crate) async fn connect(
    core: &ThreadContext,
    in_flight: &InFlight,
    timer: &Timer,
    deadline: Time,
    peer: &PeerAddresses,
) -> Result<ReactorSocket, Reason> {
    let connecting = Box::pin(reach(core, in_flight, peer));
    in_flight.counters().connects.add(1);
    with_connect_timeout(core, in_flight, timer, deadline, connecting).await
}

/// Awaits `reached` within the member's time limit.
///
/// # Errors
/// The reason of the failure.
pub(crate) async fn with_connect_timeout<T>(
    core: &ThreadContext,
    in_flight: &InFlight,
    timer: &Timer,
    deadline: Time,
    mut connecting: Pin<Box<impl Future<Output = io::Result<T>>>>,
) -> Result<T, Reason> {
    timer.set(deadline.min(core.now() + in_flight.settings().timeouts.connect));
    let address = in_flight.upstream.address.get();
    poll_fn(|cx| match connecting.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result.map_err(|error| {
            if is_local_failure(&error, address) { Reason::Exhausted } else { Reason::ConnectFailed }
        })),
        Poll::Pending if timer.fired() => {
            let past_deadline = core.tick() >= deadline;
            Poll::Ready(Err(if past_deadline { Reason::TotalTimeout } else { Reason::ConnectTimeout }))
        }
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Returns `true` if a connection to `address` failed for lack of local resources: file descriptors, memory
/// or ports. Such an error is never a finding about the member.
#[cold]
pub(crate) fn is_local_failure(error: &io::Error, address: SocketAddr) -> bool {
    match error.kind() {
        // No local port is left, or this host has no address from which to reach the target. A datagram
        // socket has a port of its own and fails in the second case only.
        io::ErrorKind::AddrNotAvailable => {
            let unspecified = match address.ip() {
                IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            };
            !UdpSocket::bind(unspecified)
                .and_then(|socket| socket.connect(address))
                .is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
        }
        _ => is_out_of_resources(error),
    }
}

async fn reach(core: &ThreadContext, trip: &InFlight, peer: &PeerAddresses) -> io::Result<ReactorSocket> {
    let settings = trip.settings();
    let open = async |address: SocketAddr| match address.port() {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        _ => ReactorSocket::connect(&core.sessions.readiness, address, Some(core.descriptor()?)).await,
    };
    let mut stream = match settings.addresses.get(trip.name()) {
        Some(addresses) => addresses.reach(open).await?,
        None => open(trip.upstream.address.get()).await?,
    };
    // Without this, responses would only arrive later.
    stream.hurry();
    if let Some(version) = settings.send_proxy {
        let addresses = ProxyAddresses { source: peer.client, destination: peer.local };
        let mut header = Vec::new();
        proxy_protocol::write(proxy_version(version), Some(&addresses), &mut header);
        stream.write_all(&header).await?;
    }
    Ok(stream)
}
