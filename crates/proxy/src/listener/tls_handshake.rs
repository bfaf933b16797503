//! The TLS handshake with a client, within the time for a request head.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConnection;

use crate::listener::Listener;
use crate::net::acme_challenge;
use crate::net::byte_stream::ByteStream as _;
use crate::net::reason::Reason;
use crate::net::socket::ReactorSocket;
use crate::net::tls::{ListenerTls, TlsStream, client_hello};
use crate::upstream::thread_context::ThreadContext;

/// Performs the handshake with a client; `unread` are bytes that were already read from it. Returns `None` if
/// it fails, which is counted unless the client left. Also `None` after a certificate authority's validation.
pub(crate) async fn handshake_with_client(
    core: &ThreadContext,
    listener: &Listener,
    socket: ReactorSocket,
    tls: &ListenerTls,
    unread: &[u8],
) -> Option<TlsStream> {
    let error = match try_handshake(core, listener, socket, tls, unread).await {
        Ok(mut stream) if stream.alpn_protocol() == Some(acme_challenge::ALPN) => {
            tracing::debug!(
                "{}: an authority has seen the certificate of a challenge",
                listener.shared.address
            );
            stream.part();
            return None;
        }
        Ok(mut stream) => {
            stream.record_server_name(tls);
            return Some(stream);
        }
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::UnexpectedEof {
        listener.pool().group.record_rejection(core.index, Reason::Handshake);
        tracing::debug!("{}: no TLS with a client: {error}", listener.shared.address);
    }
    None
}

async fn try_handshake(
    core: &ThreadContext,
    listener: &Listener,
    socket: ReactorSocket,
    tls: &ListenerTls,
    unread: &[u8],
) -> io::Result<TlsStream> {
    let timeout = listener.settings().timeouts.head;
    let mut config = &tls.config;
    // The first message is examined before the handshake only while a validation is pending.
    let (mut received, mut challenge_config) = (Vec::new(), None);
    if acme_challenge::is_tls_pending() {
        let mut hello = client_hello::ClientHelloReader::default();
        received.extend_from_slice(unread);
        poll_within(core, timeout, |cx| hello.poll(cx, &socket, &mut received)).await?;
        challenge_config = hello.into_challenge_config();
    }
    if let Some(challenge_config) = &challenge_config {
        config = challenge_config;
    }
    let unread = if received.is_empty() { unread } else { &received };
    let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = TlsStream::new(socket, session.into()).with_first_flight(Arc::clone(config));
    stream.feed(unread)?;
    poll_within(core, timeout, |cx| stream.poll_handshake(cx)).await?;
    Ok(stream)
}

/// Polls within a time limit.
async fn poll_within(
    core: &ThreadContext,
    timeout: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> io::Result<()> {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    timer.set(core.tick() + timeout);
    let mut is_stopping = false;
    poll_fn(|cx| match poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending if timer.fired() => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        Poll::Pending => {
            if core.stopping.get() && !std::mem::replace(&mut is_stopping, true) {
                timer.set(core.idle_deadline());
            }
            Poll::Pending
        }
    })
    .await
}
