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
const MAX_CALLS: u32 = 8;
/// The maximum size of a head, in bytes.
const MAX_HEADER_LIST: u32 = 16 * 1024;
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
    let monitor = AbuseMonitor::new(&core);
    let handshake = Builder::new()
        .max_concurrent_streams(MAX_CALLS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(MAX_CALLS * STREAM_WINDOW)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .handshake(AbuseGuard::new(stream, unread, Rc::clone(&monitor)));
    let timeout = listener.settings().timeouts.head;
    let Some(Ok(mut connection)) = core.within(timeout, handshake).await else { return };
    let pings = connection.ping_pong();
    // Each call holds a clone.
    let calls = Rc::new(());
    let mut connection_lost = pin!(peer_lost(&core, pings));
    let mut idle = pin!(idle(&core, &listener, &calls));
    loop {
        let accepted = poll_fn(|cx| match connection.poll_accept(cx) {
            Poll::Pending if monitor.exceeded.get() => Poll::Ready(None),
            accepted => accepted,
        });
        tokio::select! {
            biased;
            () = listener.until_closed() => {
                // Its calls are notified separately.
                connection.graceful_shutdown();
                let close_timeout = core.idle_grace.get() + LINGER;
                core.within(close_timeout, poll_fn(|cx| connection.poll_closed(cx))).await;
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
            () = &mut connection_lost => return tracing::debug!("{}: xds: {} is \
                lost", listener.shared.address, peer.client),
        }
    }
    if monitor.exceeded.get() {
        close_abusive(&core, connection).await;
    }
}

/// Ends the connection of a client that sent too many control frames.
async fn close_abusive<S: ByteStream>(
    core: &ThreadContext,
    mut connection: Connection<AbuseGuard<S>, Bytes>,
) {
    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    let drained = poll_fn(|cx| match connection.poll_accept(cx) {
        Poll::Ready(Some(Ok(_))) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    });
    core.within(LINGER, drained).await;
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
    let mut was_idle = false;
    loop {
        core.wheel.sleep(listener.settings().timeouts.idle).await;
        let is_idle = Rc::strong_count(calls) == 1;
        if std::mem::replace(&mut was_idle, is_idle) && is_idle {
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
    let content_type = request.headers().get("content-type");
    let is_grpc = request.method() == Method::POST
        && content_type.is_some_and(|content_type| grpc::is_call(content_type.as_bytes()));
    let path = request.uri().path();
    let (is_discovery, is_load_report) = (path == DISCOVERY, path == LOAD_REPORTS);
    if !is_grpc || !(is_discovery || is_load_report) {
        let mut response = response_head();
        response.headers_mut().extend(CallStatus::Unimplemented.trailers());
        // A client that has gone needs none.
        let _ = respond.send_response(response, true);
        return;
    }
    let Some(out) = OutgoingMessages::begin(respond) else { return };
    let incoming = IncomingMessages::new(request.into_body());
    let (core, listener, call_token) = (Rc::clone(core), Rc::clone(listener), Rc::clone(calls));
    tokio::task::spawn_local(async move {
        let _call_token = call_token;
        if is_discovery {
            discover::discover(core, listener, peer, incoming, out).await;
        } else {
            load_reports::serve_reports(core, listener, incoming, out).await;
        }
    });
}
