//! The bytes before a connection's own: a PROXY protocol header that names the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use plimsoll_wire::proxy_protocol::{self, MAX_V2, ProxyAddresses};
use tokio::io::{AsyncRead, ReadBuf};

use crate::listener::Listener;
use crate::net::reason::Reason;
use crate::net::socket::ReactorSocket;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;

/// Reads the header at the beginning of a connection. Returns the peer that it names, and the bytes that were
/// read beyond it. Returns `None` if there is no header, it does not arrive in time, or the process stops.
pub(crate) async fn read_header(
    core: &ThreadContext,
    listener: &Listener,
    stream: &mut ReactorSocket,
    peer: PeerAddresses,
) -> Option<(PeerAddresses, Vec<u8>)> {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    timer.set(core.tick() + listener.settings().timeouts.head);
    let mut received = Vec::new();
    let mut is_stopping = false;
    let result = poll_fn(|cx| {
        if timer.fired() {
            return Poll::Ready(Err((!is_stopping).then_some(Reason::ClientTimeout)));
        }
        core.with_buffers(|buffer, _| {
            // As many bytes as the largest header: the header is found or rejected before the buffer is full.
            let buffer = &mut buffer[..MAX_V2];
            let mut filled = received.len();
            buffer[..filled].copy_from_slice(&received);
            loop {
                let mut read_buf = ReadBuf::new(&mut buffer[filled..]);
                match Pin::new(&mut *stream).poll_read(cx, &mut read_buf) {
                    Poll::Ready(Ok(())) if !read_buf.filled().is_empty() => filled += read_buf.filled().len(),
                    Poll::Ready(_) => return Poll::Ready(Err(None)),
                    Poll::Pending => break,
                }
                match proxy_protocol::parse(&buffer[..filled]) {
                    Ok(Some(header)) => {
                        return Poll::Ready(Ok((header, buffer[header.len..filled].to_vec())));
                    }
                    Ok(None) => {}
                    Err(_) => return Poll::Ready(Err(Some(Reason::BadRequest))),
                }
            }
            if core.stopping.get() && filled == 0 && !std::mem::replace(&mut is_stopping, true) {
                timer.set(core.idle_deadline());
            }
            received.clear();
            received.extend_from_slice(&buffer[..filled]);
            Poll::Pending
        })
    })
    .await;
    match result {
        Ok((header, unread)) => {
            let peer = header.addresses.map_or(peer, |ProxyAddresses { source, destination }| {
                PeerAddresses { client: source, local: destination }
            });
            Some((peer, unread))
        }
        Err(reason) => {
            if let Some(reason) = reason {
                listener.pool().group.record_rejection(core.index, reason);
            }
            None
        }
    }
}
