//! A client's HTTP/2 connection, each stream of which is a call for discovery or load reporting.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::{Method, Request};
use plimsoll_wire::xds::{DISCOVERY, LOAD_REPORTS};

use super::grpc_call::{CallStatus, IncomingMessages, OutgoingMessages, response_head};
use super::{discover, load_reports};
use crate::listener::Listener;
use crate::net::byte_stream::ByteStream;
use crate::net::grpc;
use crate::protocol::http2::{
    AbuseGuard, AbuseMonitor, LINGER, MAX_EARLY_RESETS, MAX_LOCAL_RESETS, SEND_BUFFER, STREAM_WINDOW,
};
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;

/// The maximum number of a client's concurrent calls: it needs one of each kind.
const CALLS: u32 = 8;
/// The maximum size of a head, in bytes.
const HEAD: u32 = 16 * 1024;
/// The interval of pings: a client may have nothing to send for days.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The time limit of the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves one connection until it ends. `unread` are bytes that were already read from it.
pub(crate) async fn serve<S: ByteStream + 'static>(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    stream: S,
    peer: PeerAddresses,
    unread: Vec<u8>,
) {
    let watch = AbuseMonitor::new(&core);
    let begun = Builder::new()
        .max_concurrent_streams(CALLS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CALLS * STREAM_WINDOW)
        .max_header_list_size(HEAD)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .handshake(AbuseGuard::new(stream, unread, Rc::clone(&watch)));
    let patience = listener.settings().timeouts.head;
    let Some(Ok(mut connection)) = core.within(patience, begun).await else { return };
    let pings = connection.ping_pong();
    // Each call holds a clone.
    let calls = Rc::new(());
    let mut lost = pin!(peer_lost(&core, pings));
    let mut idle = pin!(idle(&core, &listener, &calls));
    loop {
        let accepted = poll_fn(|cx| match connection.poll_accept(cx) {
            Poll::Pending if watch.exceeded.get() => Poll::Ready(None),
            accepted => accepted,
        });
        tokio::select! {
            biased;
            () = listener.until_closed() => {
                // Its calls are notified separately.
                connection.graceful_shutdown();
                let parting = core.idle_grace.get() + LINGER;
                core.within(parting, poll_fn(|cx| connection.poll_closed(cx))).await;
                return;
            }
            accepted = accepted => match accepted {
                Some(Ok((request, respond))) => begin_call(&core, &listener, &calls, peer, request, respond),
                Some(Err(error)) => {
                    return tracing::debug!("{}: xds with {} ended: \
                        {error}", listener.shared.address, peer.client);
                }
                None => break,
            },
            () = &mut idle => break,
            () = &mut lost => return tracing::debug!("{}: xds: {} is \
                lost", listener.shared.address, peer.client),
        }
    }
    if watch.exceeded.get() {
        close_abusive(&core, connection).await;
    }
}

/// Ends the connection of a client that sent too many control frames.
async fn close_abusive<S: ByteStream>(
    core: &ThreadContext,
    mut connection: Connection<AbuseGuard<S>, Bytes>,
) {
    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    let ended = poll_fn(|cx| match connection.poll_accept(cx) {
        Poll::Ready(Some(Ok(_))) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    });
    core.within(LINGER, ended).await;
}

/// Completes when the client no longer answers pings.
async fn peer_lost(core: &Rc<ThreadContext>, pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        core.wheel.sleep(PING_INTERVAL).await;
        if !matches!(core.within(PING_TIMEOUT, pings.ping(Ping::opaque())).await, Some(Ok(_))) {
            return;
        }
    }
}

/// Completes when there was no call for the listener's idle time, or up to twice that.
async fn idle(core: &Rc<ThreadContext>, listener: &Listener, calls: &Rc<()>) {
    let mut quiet = false;
    loop {
        core.wheel.sleep(listener.settings().timeouts.idle).await;
        let none = Rc::strong_count(calls) == 1;
        if std::mem::replace(&mut quiet, none) && none {
            return;
        }
    }
}

/// Starts a task that serves a call.
fn begin_call(
    core: &Rc<ThreadContext>,
    listener: &Rc<Listener>,
    calls: &Rc<()>,
    peer: PeerAddresses,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let kind = request.headers().get("content-type");
    let call = request.method() == Method::POST && kind.is_some_and(|kind| grpc::is_call(kind.as_bytes()));
    let path = request.uri().path();
    let (discovery, load) = (path == DISCOVERY, path == LOAD_REPORTS);
    if !call || !(discovery || load) {
        let mut refusal = response_head();
        refusal.headers_mut().extend(CallStatus::Unimplemented.trailers());
        // A client that has gone needs none.
        let _ = respond.send_response(refusal, true);
        return;
    }
    let Some(out) = OutgoingMessages::begin(respond) else { return };
    let incoming = IncomingMessages::new(request.into_body());
    let (core, listener, call) = (Rc::clone(core), Rc::clone(listener), Rc::clone(calls));
    tokio::task::spawn_local(async move {
        let _call = call;
        if discovery {
            discover::discover(core, listener, peer, incoming, out).await;
        } else {
            load_reports::serve_reports(core, listener, incoming, out).await;
        }
    });
}
