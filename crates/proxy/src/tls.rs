//! TLS 1.2 and 1.3: with clients by what a listener shows them, with members by what a group trusts.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConnection;
use tokio::net::TcpStream;

use crate::core::Core;
use crate::listener::Listener;
use crate::reason::Reason;

mod client;
mod origin;
mod server;
mod stream;

pub use client::{Fault, MemberTls, Trust};
pub(crate) use origin::Origin;
pub use server::{Certificate, ClientCertificate, ListenerTls};
pub(crate) use stream::Secure;

/// Shakes hands with a member, whose address was given as `name`, `host:port`.
///
/// # Errors
/// It does not speak TLS, or is not who it should be.
pub(crate) async fn reach(tls: &MemberTls, name: &str, socket: TcpStream) -> io::Result<Secure> {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host).trim_matches(['[', ']']);
    let Some(session) = tls.session(host) else {
        let why = format!("no certificate can be for `{host}`: set server_name in the group's tls");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    let mut stream = Secure::new(socket, session);
    poll_fn(|cx| stream.poll_meet(cx)).await?;
    Ok(stream)
}

/// Shakes hands with a client; `unread` are bytes that were read from it already. `None` if that comes to nothing, which is
/// counted unless the client left.
pub(crate) async fn meet(
    core: &Core,
    listener: &Listener,
    socket: TcpStream,
    tls: &ListenerTls,
    unread: &[u8],
) -> Option<Secure> {
    let session = ServerConnection::new(Arc::clone(&tls.config)).ok()?;
    let mut stream = Secure::new(socket, session.into());
    let patience = listener.settings().timeouts.head;
    let met = match stream.feed(unread) {
        Ok(()) => {
            let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
            timer.set(core.tick() + patience);
            let mut parting = false;
            poll_fn(|cx| match stream.poll_meet(cx) {
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
        Err(error) => Err(error),
    };
    let Err(error) = met else {
        stream.came_for(tls);
        return Some(stream);
    };
    if error.kind() != io::ErrorKind::UnexpectedEof {
        listener.pool().group.reject(core.index, Reason::Handshake);
        tracing::debug!("{}: no TLS with a client: {error}", listener.door.address);
    }
    None
}
