//! The load manager's connections: requests are taken one after the other on each, within bounds.

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

/// Connections at once; more are closed.
const CONNECTIONS: usize = 256;
/// Longest message, bytes, its fragments together.
const MESSAGE: usize = 256 << 10;
/// Messages in fragments at once on a connection.
const FRAGMENTED: usize = 8;
/// Between two requests; a client that comes back later connects anew.
const IDLE: Duration = Duration::from_secs(600);
/// For a message that has begun to arrive, and for a reply to be taken.
const STALL: Duration = Duration::from_secs(10);

/// Serves for ever.
pub(super) async fn serve(listener: &TcpListener, servant: &Arc<Servant>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
                    tokio::spawn(connection(stream, from, Arc::clone(servant), slot));
                }
            }
            // Out of files or memory: the connection stays in the queue and would fail again at once.
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
    // How it ends is the client's business.
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
                    // Nothing was begun, so that the client may ask again on another connection.
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

/// What is said where nothing that was read says how.
const PLAIN: Form = Form { version: Version::V1_0, order: Order::NATIVE };

async fn send(stream: &mut TcpStream, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
    let mut out = Vec::new();
    write(&mut out);
    timeout(STALL, stream.write_all(&out)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Takes a whole message; what is to be sent, if anything. `None` if it is none that a client may send.
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
        // What is asked is done by then.
        Content::CancelRequest(_) => {}
        _ => return None,
    }
    Some(out)
}

/// What a request asks of the object.
pub(super) fn asked(request: &Request<'_>, order: Order) -> Result<Call, SystemException<'static>> {
    if request.target.key() != Some(KEY) {
        return Err(SystemException::OBJECT_NOT_EXIST);
    }
    Call::read(request.operation, &mut request.arguments(order))
}
