//! Connections to members.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use plimsoll_brain::Time;
use tokio::net::TcpStream;

use crate::core::Core;
use crate::reason::Reason;
use crate::trip::Trip;
use crate::wheel::Timer;

/// Who a connection comes from, and which of our addresses it came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Connects to the member of a trip.
pub(crate) async fn connect(
    core: &Core,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    _peer: &Peer,
) -> Result<TcpStream, Reason> {
    let patience = core.now() + trip.settings().timeouts.connect;
    timer.set(patience.min(deadline));
    // On the heap: it is needed seldom, and would make every connection's task larger.
    let mut connecting = Box::pin(TcpStream::connect(trip.upstream.address.get()));
    trip.stripe().connects.add(1);
    let stream = poll_fn(|cx| match connecting.as_mut().poll(cx) {
        Poll::Ready(connected) => Poll::Ready(connected.map_err(|_| Reason::ConnectFailed)),
        Poll::Pending if timer.fired() => Poll::Ready(Err(Reason::ConnectTimeout)),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    // Without it answers would only come later.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}
