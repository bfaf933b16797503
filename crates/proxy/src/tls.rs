//! TLS 1.2 and 1.3: with clients by a listener's certificates, with members by a group's trust.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConnection;

use crate::challenge;
use crate::core::Core;
use crate::listener::Listener;
use crate::reason::Reason;
use crate::socket::Socket;
use crate::stream::Stream as _;

mod client;
mod hello;
mod issued;
mod odd_name;
mod origin;
mod server;
mod shown;
mod stream;
mod tickets;
mod wire;

pub use client::{Fault, MemberTls, Trust};
pub use issued::Issued;
pub(crate) use origin::Origin;
pub(crate) use server::chain;
pub use server::{Certificate, ClientCertificate, ListenerTls};
pub use shown::ShownCertificate;
pub(crate) use stream::Secure;
pub(crate) use tickets::{recall_ticket_keys, ticket_keys};
use wire::Wire;

/// Performs the handshake with a member whose configured address is `name`, `host:port`.
///
/// # Errors
/// The member does not speak TLS, or fails authentication.
pub(crate) async fn reach<W: Wire>(tls: &MemberTls, name: &str, socket: W) -> io::Result<Secure<W>> {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host).trim_matches(['[', ']']);
    let Some(session) = tls.session(host) else {
        let why = format!("no certificate can be for `{host}`: set server_name in the group's tls");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    let mut stream = Secure::new(socket, session);
    poll_fn(|cx| stream.poll_meet(cx)).await?;
    Ok(stream)
}

/// Performs the handshake with a client; `unread` are bytes that were already read from it. Returns `None` if
/// it fails, which is counted unless the client left. Also `None` after a certificate authority's validation.
pub(crate) async fn meet(
    core: &Core,
    listener: &Listener,
    socket: Socket,
    tls: &ListenerTls,
    unread: &[u8],
) -> Option<Secure> {
    let error = match shake(core, listener, socket, tls, unread).await {
        Ok(mut stream) if stream.protocol() == Some(challenge::ALPN) => {
            tracing::debug!(
                "{}: an authority has seen the certificate of a challenge",
                listener.door.address
            );
            stream.part();
            return None;
        }
        Ok(mut stream) => {
            stream.came_for(tls);
            return Some(stream);
        }
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::UnexpectedEof {
        listener.pool().group.reject(core.index, Reason::Handshake);
        tracing::debug!("{}: no TLS with a client: {error}", listener.door.address);
    }
    None
}

async fn shake(
    core: &Core,
    listener: &Listener,
    socket: Socket,
    tls: &ListenerTls,
    unread: &[u8],
) -> io::Result<Secure> {
    let patience = listener.settings().timeouts.head;
    let mut config = &tls.config;
    // The first message is examined before the handshake only while a validation is pending.
    let (mut came, mut other) = (Vec::new(), None);
    if challenge::expected() {
        let mut hello = hello::Hello::default();
        came.extend_from_slice(unread);
        in_time(core, patience, |cx| hello.poll(cx, &socket, &mut came)).await?;
        other = hello.challenge();
    }
    if let Some(other) = &other {
        config = other;
    }
    let unread = if came.is_empty() { unread } else { &came };
    let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = Secure::new(socket, session.into()).opening(Arc::clone(config));
    stream.feed(unread)?;
    in_time(core, patience, |cx| stream.poll_meet(cx)).await?;
    Ok(stream)
}

/// Polls within a time limit.
async fn in_time(
    core: &Core,
    patience: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> io::Result<()> {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    timer.set(core.tick() + patience);
    let mut parting = false;
    poll_fn(|cx| match poll(cx) {
        Poll::Ready(met) => Poll::Ready(met),
        Poll::Pending if timer.fired() => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        Poll::Pending => {
            if core.stopping.get() && !std::mem::replace(&mut parting, true) {
                timer.set(core.parting());
            }
            Poll::Pending
        }
    })
    .await
}
