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

use super::stream::{End, Incoming, Outgoing, head};
use super::{discover, reports};
use crate::connect::Peer;
use crate::core::Core;
use crate::grpc;
use crate::http2::{Governed, LINGER, RESET_BY_US, RESET_EARLY, SEND_BUFFER, STREAM_WINDOW, Watch};
use crate::listener::Listener;
use crate::stream::Stream;

/// The maximum number of a client's concurrent calls: it needs one of each kind.
const CALLS: u32 = 8;
/// The maximum size of a head, in bytes.
const HEAD: u32 = 16 * 1024;
/// The interval of pings: a client may have nothing to send for days.
const ASK: Duration = Duration::from_secs(30);
/// The time limit of the answer to a ping.
const ANSWER: Duration = Duration::from_secs(20);

/// Serves one connection until it ends. `unread` are bytes that were already read from it.
pub(crate) async fn serve<S: Stream + 'static>(
    core: Rc<Core>,
    listener: Rc<Listener>,
    stream: S,
    peer: Peer,
    unread: Vec<u8>,
) {
    let watch = Watch::new(&core);
    let begun = Builder::new()
        .max_concurrent_streams(CALLS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CALLS * STREAM_WINDOW)
        .max_header_list_size(HEAD)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESET_EARLY)
        .max_local_error_reset_streams(Some(RESET_BY_US))
        .handshake(Governed::new(stream, unread, Rc::clone(&watch)));
    let patience = listener.settings().timeouts.head;
    let Some(Ok(mut connection)) = core.within(patience, begun).await else { return };
    let pings = connection.ping_pong();
    // Each call holds a clone.
    let calls = Rc::new(());
    let mut lost = pin!(lost(&core, pings));
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
                let parting = core.parting.get() + LINGER;
                core.within(parting, poll_fn(|cx| connection.poll_closed(cx))).await;
                return;
            }
            accepted = accepted => match accepted {
                Some(Ok((request, respond))) => begin(&core, &listener, &calls, peer, request, respond),
                Some(Err(error)) => {
                    return tracing::debug!("{}: xds with {} ended: {error}", listener.door.address, peer.client);
                }
                None => break,
            },
            () = &mut idle => break,
            () = &mut lost => return tracing::debug!("{}: xds: {} is lost", listener.door.address, peer.client),
        }
    }
    if watch.exceeded.get() {
        farewell(&core, connection).await;
    }
}

/// Ends the connection of a client that sent too many control frames.
async fn farewell<S: Stream>(core: &Core, mut connection: Connection<Governed<S>, Bytes>) {
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
async fn lost(core: &Rc<Core>, pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        core.wheel.sleep(ASK).await;
        if !matches!(core.within(ANSWER, pings.ping(Ping::opaque())).await, Some(Ok(_))) {
            return;
        }
    }
}

/// Completes when there was no call for the listener's idle time, or up to twice that.
async fn idle(core: &Rc<Core>, listener: &Listener, calls: &Rc<()>) {
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
fn begin(
    core: &Rc<Core>,
    listener: &Rc<Listener>,
    calls: &Rc<()>,
    peer: Peer,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let kind = request.headers().get("content-type");
    let call = request.method() == Method::POST && kind.is_some_and(|kind| grpc::is_call(kind.as_bytes()));
    let path = request.uri().path();
    let (discovery, load) = (path == DISCOVERY, path == LOAD_REPORTS);
    if !call || !(discovery || load) {
        let mut refusal = head();
        refusal.headers_mut().extend(End::Unimplemented.trailers());
        // A client that has gone needs none.
        let _ = respond.send_response(refusal, true);
        return;
    }
    let Some(out) = Outgoing::begin(respond) else { return };
    let incoming = Incoming::new(request.into_body());
    let (core, listener, call) = (Rc::clone(core), Rc::clone(listener), Rc::clone(calls));
    tokio::task::spawn_local(async move {
        let _call = call;
        if discovery {
            discover::discover(core, listener, peer, incoming, out).await;
        } else {
            reports::report(core, listener, incoming, out).await;
        }
    });
}
