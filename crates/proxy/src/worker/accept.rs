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
use crate::listener::{ConnectionGuard, Listener};
use crate::listener::{proxy_header, tls_handshake};
use crate::net::connection::PeerConnection;
use crate::net::socket::is_out_of_resources;
use crate::net::socket::{ListenSocket, ReactorSocket};
use crate::net::tls;
use crate::protocol::dns;
use crate::protocol::http;
use crate::protocol::http2;
use crate::protocol::iiop;
use crate::protocol::tcp;
use crate::protocol::xds;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;

/// The minimum time between two warnings that the process has no more file descriptors.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);
/// The earliest time of the next warning, in nanoseconds. All cores and listeners share it, as they run out
/// of descriptors at the same time.
static NEXT_WARNING: AtomicU64 = AtomicU64::new(0);

/// Accepts connections until the listener is closed, then those that already wait.
pub(crate) async fn accept(core: Rc<ThreadContext>, listener: Rc<Listener>, listen_socket: ListenSocket) {
    loop {
        tokio::select! {
            biased;
            accepted = poll_fn(|cx| listen_socket.poll_accept(cx)) => match accepted {
                Ok((socket, client)) => admit(&core, &listener, socket, client),
                Err(error) if is_out_of_resources(&error) => {
                    if is_warning_due(&NEXT_WARNING, core.tick()) {
                        tracing::warn!(
                            "{}: cannot accept: {error}; raise the limit on open files",
                            listener.shared.address
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
    if listener.is_handed_off() {
        return;
    }
    // Closing the socket would reset connections that the kernel has already accepted.
    while let Some(accepted) = listen_socket.accept() {
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
fn is_warning_due(next_warning: &AtomicU64, now: Time) -> bool {
    let due_at = next_warning.load(Relaxed);
    due_at <= now.0
        && next_warning.compare_exchange(due_at, (now + WARNING_INTERVAL).0, Relaxed, Relaxed).is_ok()
}

fn admit(core: &Rc<ThreadContext>, listener: &Rc<Listener>, stream: ReactorSocket, client: SocketAddr) {
    let Some(guard) = ConnectionGuard::enter(core, listener) else { return };
    stream.hurry();
    let settings = listener.settings();
    // The group whose members will be used may not be known yet. A system call costs less than looking
    // through all groups.
    let needs_local_address =
        listener.has_alternates() || listener.view().published.settings.send_proxy.is_some();
    let local = match needs_local_address {
        true => stream.local_addr().unwrap_or(listener.shared.address),
        false => listener.shared.address,
    };
    let peer = PeerAddresses { client, local };
    if !settings.accept_proxy && settings.tls.is_none() {
        return serve_protocol(core, listener, guard, stream, peer, Vec::new());
    }
    let (core, listener) = (Rc::clone(core), Rc::clone(listener));
    tokio::task::spawn_local(async move {
        let (mut stream, mut peer, mut unread) = (stream, peer, Vec::new());
        if settings.accept_proxy {
            match proxy_header::read_header(&core, &listener, &mut stream, peer).await {
                Some(header) => (peer, unread) = header,
                None => return,
            }
        }
        let Some(tls) = &settings.tls else {
            return serve_protocol(&core, &listener, guard, stream, peer, unread);
        };
        if let Some(stream) =
            tls_handshake::handshake_with_client(&core, &listener, stream, tls, &unread).await
        {
            let group = stream.server_name().and_then(|name| tls.group(name));
            let listener = group.and_then(|group| listener.alternate(group)).unwrap_or(listener);
            let is_http2 = stream.alpn_protocol() == Some(tls::H2_ALPN);
            let stream = PeerConnection::Other(Box::new(stream));
            if is_http2 && listener.settings().protocol == Protocol::Http {
                return http2::serve_connection(core, listener, stream, peer, Vec::new(), Some(guard));
            }
            serve_stream(&core, &listener, guard, stream, peer, Vec::new());
        }
    });
}

/// Passes a connection to the handler of its protocol. `unread` are bytes that were already read from it.
fn serve_protocol(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    guard: ConnectionGuard,
    stream: ReactorSocket,
    peer: PeerAddresses,
    unread: Vec<u8>,
) {
    match listener.settings().protocol {
        Protocol::Http | Protocol::Tcp | Protocol::Xds => {
            serve_stream(core, listener, guard, PeerConnection::Plain(stream), peer, unread)
        }
        Protocol::Iiop => {
            let (core, listener) = (Rc::clone(core), Rc::clone(listener));
            tokio::task::spawn_local(async move {
                let _guard = guard;
                iiop::serve(core, listener, stream, peer, unread).await;
            });
        }
        Protocol::DnsStream => {
            let (core, listener) = (Rc::clone(core), Rc::clone(listener));
            tokio::task::spawn_local(async move {
                let _guard = guard;
                dns::serve_tcp(core, listener, stream, peer, unread).await;
            });
        }
        // These protocols have no connections.
        Protocol::Udp | Protocol::Dns => {}
    }
}

/// As [`serve_protocol`], for the protocols that TLS can carry.
fn serve_stream(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    guard: ConnectionGuard,
    stream: PeerConnection,
    peer: PeerAddresses,
    unread: Vec<u8>,
) {
    let (core, listener) = (Rc::clone(core), Rc::clone(listener));
    let protocol = listener.settings().protocol;
    if protocol == Protocol::Xds {
        // Few and long-lived: boxed, so that they do not enlarge the tasks of other protocols.
        tokio::task::spawn_local(Box::pin(async move {
            let _guard = guard;
            xds::serve(core, listener, stream, peer, unread).await;
        }));
    } else if protocol == Protocol::Http {
        // The `http` module yields to other tasks itself, at suitable points.
        let (sessions, binding) = (Rc::clone(&core.sessions), http::new_binding(&listener));
        sessions.spawn(http::serve(core, listener, (stream, peer, unread), binding, None, Some(guard)));
    } else {
        tokio::task::spawn_local(async move {
            let _guard = guard;
            tcp::serve(core, listener, stream, peer, unread).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_there_are_no_files_is_told_once_a_second() {
        let next_warning = AtomicU64::new(0);
        let is_due = |millis: u64| is_warning_due(&next_warning, Time(millis * 1_000_000));
        assert_eq!(
            [5, 5, 900, 1004, 1005, 1006, 2005].map(is_due),
            [true, false, false, false, true, false, true]
        );
    }
}
