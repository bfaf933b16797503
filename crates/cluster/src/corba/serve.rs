//! The load manager's connections: each handles one request after the other, within limits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::giop::write::{self, Form};
use plimsoll_wire::giop::{
    Assembler, Content, Cut, HEADER, Limits, LocateRequest, Message, Order, Request, SystemException,
    Version, Wanted, cut,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::KEY;
use super::answer::{self, Fault};
use super::call::Call;
use super::servant::Servant;

/// The maximum number of connections; further ones are closed.
const CONNECTIONS: usize = 256;
/// The maximum length of a message with all its fragments, in bytes.
const MESSAGE: usize = 256 << 10;
/// The maximum number of fragmented messages in progress on a connection.
const FRAGMENTED: usize = 8;
/// The maximum time between two requests; later ones need a new connection.
const IDLE: Duration = Duration::from_secs(600);
/// The time limit for the rest of a message, and for sending a reply.
const STALL: Duration = Duration::from_secs(10);

/// Serves forever.
pub(super) async fn serve(listener: &TcpListener, servant: &Arc<Servant>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
                    tokio::spawn(connection(stream, from, Arc::clone(servant), slot));
                }
            }
            // No file descriptors or memory: the connection stays in the backlog, and a retry would fail at
            // once.
            Err(error) => {
                tracing::warn!("load manager: cannot accept a connection: {error}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn connection(
    mut stream: TcpStream,
    from: SocketAddr,
    servant: Arc<Servant>,
    _slot: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true);
    // An error concerns the client only.
    let _ = converse(&mut stream, from, &servant).await;
}

async fn converse(stream: &mut TcpStream, from: SocketAddr, servant: &Arc<Servant>) -> io::Result<()> {
    let mut assembler = Assembler::new(Limits { messages: FRAGMENTED, bytes: MESSAGE });
    let mut unread = Vec::with_capacity(HEADER);
    loop {
        let len = match cut(&unread, MESSAGE) {
            Ok(Cut::Whole { len, .. }) => len,
            Ok(Cut::Partial { .. }) => {
                let patience = if unread.is_empty() && assembler.is_empty() { IDLE } else { STALL };
                match timeout(patience, stream.read_buf(&mut unread)).await {
                    Ok(Ok(0)) => return Ok(()),
                    Ok(Ok(_)) => continue,
                    Ok(Err(error)) => return Err(error),
                    // Nothing was begun, so the client may send its request again on another connection.
                    Err(_) => return send(stream, |out| write::close(out, PLAIN)).await,
                }
            }
            Err(_) => return send(stream, |out| write::error(out, PLAIN)).await,
        };
        let message: Vec<u8> = unread.drain(..len).collect();
        let reply = match assembler.take(&message) {
            Ok(Some(whole)) => take(servant, from, whole.into_owned()).await,
            Ok(None) => Some(Vec::new()),
            Err(_) => None,
        };
        match reply {
            Some(reply) if reply.is_empty() => {}
            Some(reply) => send(stream, |out| *out = reply).await?,
            None => return send(stream, |out| write::error(out, PLAIN)).await,
        }
    }
}

/// The form of messages where no request determines it.
const PLAIN: Form = Form { version: Version::V1_0, order: Order::NATIVE };

async fn send(stream: &mut TcpStream, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
    let mut out = Vec::new();
    write(&mut out);
    timeout(STALL, stream.write_all(&out)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Handles a complete message. Returns the bytes to send, which may be empty; `None` if a client must not
/// send it.
async fn take(servant: &Arc<Servant>, from: SocketAddr, message: Vec<u8>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let read = Message::parse(&message).ok()?;
    let form = read.header.form();
    match &read.content {
        Content::Request(request) => {
            let outcome = match asked(request, form.order) {
                Ok(call) => servant.perform(from, call).await,
                Err(why) => Err(Fault::System(why)),
            };
            if request.wanted != Wanted::Nothing {
                answer::reply(&mut out, form, request.id, &outcome);
            }
        }
        Content::LocateRequest(LocateRequest { id, target }) => {
            write::located(&mut out, form, *id, target.key() == Some(KEY));
        }
        // The cancelled request has already been completed.
        Content::CancelRequest(_) => {}
        _ => return None,
    }
    Some(out)
}

/// Parses a request to the object.
pub(super) fn asked(request: &Request<'_>, order: Order) -> Result<Call, SystemException<'static>> {
    if request.target.key() != Some(KEY) {
        return Err(SystemException::OBJECT_NOT_EXIST);
    }
    Call::read(request.operation, &mut request.arguments(order))
}
