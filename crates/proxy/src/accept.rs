//! Accept loops: one for each listener on each core. Every connection becomes a task that serves the
//! listener's protocol.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_brain::Time;

use crate::Protocol;
use crate::connect::{Peer, exhausted};
use crate::core::Core;
use crate::link::Link;
use crate::listener::{Listener, Visit};
use crate::socket::{Entrance, Socket};
use crate::{dns, http, http2, iiop, preface, tcp, tls, xds};

/// The minimum time between two warnings that the process has no more file descriptors.
const APART: Duration = Duration::from_secs(1);
/// The earliest time of the next warning, in nanoseconds. All cores and listeners share it, as they run out
/// of descriptors at the same time.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Accepts connections until the listener is closed, then those that already wait.
pub(crate) async fn accept(core: Rc<Core>, listener: Rc<Listener>, entrance: Entrance) {
    loop {
        tokio::select! {
            biased;
            accepted = poll_fn(|cx| entrance.poll_accept(cx)) => match accepted {
                Ok((socket, client)) => admit(&core, &listener, socket, client),
                Err(error) if exhausted(&error) => {
                    if due(&TOLD, core.tick()) {
                        tracing::warn!(
                            "{}: cannot accept: {error}; raise the limit on open files",
                            listener.door.address
                        );
                    }
                    core.wheel.sleep(Duration::from_millis(50)).await;
                }
                // The client gave up while it waited.
                Err(_) => {}
            },
            () = listener.until_closed() => break,
        }
    }
    if listener.left() {
        return;
    }
    // Closing the socket would reset connections that the kernel has already accepted.
    while let Some(accepted) = entrance.accept() {
        match accepted {
            Ok((socket, client)) => admit(&core, &listener, socket, client),
            // The client gave up while it waited.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => break,
        }
    }
}

/// Returns `true` if the next warning is due. Of several concurrent callers, only one gets `true`.
#[cold]
fn due(next: &AtomicU64, now: Time) -> bool {
    let due = next.load(Relaxed);
    due <= now.0 && next.compare_exchange(due, (now + APART).0, Relaxed, Relaxed).is_ok()
}

fn admit(core: &Rc<Core>, listener: &Rc<Listener>, stream: Socket, client: SocketAddr) {
    let Some(visit) = Visit::enter(core, listener) else { return };
    stream.hurry();
    let settings = listener.settings();
    // The group whose members will be used may not be known yet. A system call costs less than looking
    // through all groups.
    let told = listener.branches_out() || listener.view().published.settings.send_proxy.is_some();
    let local = match told {
        true => stream.local_addr().unwrap_or(listener.door.address),
        false => listener.door.address,
    };
    let peer = Peer { client, local };
    if !settings.accept_proxy && settings.tls.is_none() {
        return begin(core, listener, visit, stream, peer, Vec::new());
    }
    let (core, listener) = (Rc::clone(core), Rc::clone(listener));
    tokio::task::spawn_local(async move {
        let (mut stream, mut peer, mut unread) = (stream, peer, Vec::new());
        if settings.accept_proxy {
            match preface::read(&core, &listener, &mut stream, peer).await {
                Some(read) => (peer, unread) = read,
                None => return,
            }
        }
        let Some(tls) = &settings.tls else { return begin(&core, &listener, visit, stream, peer, unread) };
        if let Some(stream) = tls::meet(&core, &listener, stream, tls, &unread).await {
            let asked = stream.server_name().and_then(|name| tls.group(name));
            let listener = asked.and_then(|group| listener.branch(group)).unwrap_or(listener);
            let second = stream.protocol() == Some(http2::ALPN);
            let stream = Link::Other(Box::new(stream));
            if second && listener.settings().protocol == Protocol::Http {
                return http2::begin(core, listener, stream, peer, Vec::new(), Some(visit));
            }
            carry(&core, &listener, visit, stream, peer, Vec::new());
        }
    });
}

/// Passes a connection to the handler of its protocol. `unread` are bytes that were already read from it.
fn begin(
    core: &Rc<Core>,
    listener: &Rc<Listener>,
    visit: Visit,
    stream: Socket,
    peer: Peer,
    unread: Vec<u8>,
) {
    match listener.settings().protocol {
        Protocol::Http | Protocol::Tcp | Protocol::Xds => {
            carry(core, listener, visit, Link::Plain(stream), peer, unread)
        }
        Protocol::Iiop => {
            let (core, listener) = (Rc::clone(core), Rc::clone(listener));
            tokio::task::spawn_local(async move {
                let _visit = visit;
                iiop::serve(core, listener, stream, peer, unread).await;
            });
        }
        Protocol::DnsStream => {
            let (core, listener) = (Rc::clone(core), Rc::clone(listener));
            tokio::task::spawn_local(async move {
                let _visit = visit;
                dns::converse(core, listener, stream, peer, unread).await;
            });
        }
        // These protocols have no connections.
        Protocol::Udp | Protocol::Dns => {}
    }
}

/// As [`begin`], for the protocols that TLS can carry.
fn carry(core: &Rc<Core>, listener: &Rc<Listener>, visit: Visit, stream: Link, peer: Peer, unread: Vec<u8>) {
    let (core, listener) = (Rc::clone(core), Rc::clone(listener));
    let protocol = listener.settings().protocol;
    if protocol == Protocol::Xds {
        // Few and long-lived: boxed, so that they do not enlarge the tasks of other protocols.
        tokio::task::spawn_local(Box::pin(async move {
            let _visit = visit;
            xds::serve(core, listener, stream, peer, unread).await;
        }));
    } else if protocol == Protocol::Http {
        // The `http` module yields to other tasks itself, at suitable points.
        let (sessions, bond) = (Rc::clone(&core.sessions), http::bond(&listener));
        sessions.spawn(http::serve(core, listener, (stream, peer, unread), bond, None, Some(visit)));
    } else {
        tokio::task::spawn_local(async move {
            let _visit = visit;
            tcp::serve(core, listener, stream, peer, unread).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_there_are_no_files_is_told_once_a_second() {
        let next = AtomicU64::new(0);
        let at = |millis: u64| due(&next, Time(millis * 1_000_000));
        assert_eq!(
            [5, 5, 900, 1004, 1005, 1006, 2005].map(at),
            [true, false, false, false, true, false, true]
        );
    }
}
