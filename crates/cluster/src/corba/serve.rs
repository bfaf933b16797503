//! The load manager's connections: each handles one request after the other, within limits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{
    AssemblyLimits, ByteOrder, ExpectedResponse, FragmentAssembler, GiopMessage, GiopRequest, GiopVersion,
    HEADER_LEN, LocateRequest, MessageContent, NextMessage, SystemException, next_message,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::OBJECT_KEY;
use super::answer::{self, CallError};
use super::call::ManagerCall;
use super::servant::Servant;

/// The maximum number of connections; further ones are closed.
const MAX_CONNECTIONS: usize = 256;
/// The maximum length of a message with all its fragments, in bytes.
const MAX_MESSAGE_LENGTH: usize = 256 << 10;
/// The maximum number of fragmented messages in progress on a connection.
const MAX_FRAGMENTED_MESSAGES: usize = 8;
/// The maximum time between two requests; later ones need a new connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// The time limit for the rest of a message, and for sending a reply.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves forever.
pub(super) async fn serve(listener: &TcpListener, servant: &Arc<Servant>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
                    tokio::spawn(serve_connection(stream, from, Arc::clone(servant), slot));
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

async fn serve_connection(
    mut stream: TcpStream,
    from: SocketAddr,
    servant: Arc<Servant>,
    _slot: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true);
    // An error concerns the client only.
    let _ = serve_requests(&mut stream, from, &servant).await;
}

async fn serve_requests(stream: &mut TcpStream, from: SocketAddr, servant: &Arc<Servant>) -> io::Result<()> {
    let mut assembler = FragmentAssembler::new(AssemblyLimits {
        messages: MAX_FRAGMENTED_MESSAGES,
        bytes: MAX_MESSAGE_LENGTH,
    });
    let mut receive_buffer = Vec::with_capacity(HEADER_LEN);
    loop {
        let len = match next_message(&receive_buffer, MAX_MESSAGE_LENGTH) {
            Ok(NextMessage::Whole { len, .. }) => len,
            Ok(NextMessage::Partial { .. }) => {
                let read_timeout = if receive_buffer.is_empty() && assembler.is_empty() {
                    IDLE_TIMEOUT
                } else {
                    STALL_TIMEOUT
                };
                match timeout(read_timeout, stream.read_buf(&mut receive_buffer)).await {
                    Ok(Ok(0)) => return Ok(()),
                    Ok(Ok(_)) => continue,
                    Ok(Err(error)) => return Err(error),
                    // Nothing was begun, so the client may send its request again on another connection.
                    Err(_) => return send(stream, |out| write::close(out, CLOSE_FORMAT)).await,
                }
            }
            Err(_) => return send(stream, |out| write::error(out, CLOSE_FORMAT)).await,
        };
        let message: Vec<u8> = receive_buffer.drain(..len).collect();
        let reply = match assembler.accept(&message) {
            Ok(Some(complete_message)) => handle_message(servant, from, complete_message.into_owned()).await,
            Ok(None) => Some(Vec::new()),
            Err(_) => None,
        };
        match reply {
            Some(reply) if reply.is_empty() => {}
            Some(reply) => send(stream, |out| *out = reply).await?,
            None => return send(stream, |out| write::error(out, CLOSE_FORMAT)).await,
        }
    }
}

/// The form of messages where no request determines it.
const CLOSE_FORMAT: MessageFormat = MessageFormat { version: GiopVersion::V1_0, order: ByteOrder::NATIVE };

async fn send(stream: &mut TcpStream, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
    let mut out = Vec::new();
    write(&mut out);
    timeout(STALL_TIMEOUT, stream.write_all(&out))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Handles a complete message. Returns the bytes to send, which may be empty; `None` if a client must not
/// send it.
async fn handle_message(servant: &Arc<Servant>, from: SocketAddr, bytes: Vec<u8>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let message = GiopMessage::parse(&bytes).ok()?;
    let format = message.header.format();
    match &message.content {
        MessageContent::Request(request) => {
            let outcome = match parse_call(request, format.order) {
                Ok(call) => servant.perform(from, call).await,
                Err(exception) => Err(CallError::System(exception)),
            };
            if request.expected_response != ExpectedResponse::Oneway {
                answer::reply(&mut out, format, request.id, &outcome);
            }
        }
        MessageContent::LocateRequest(LocateRequest { id, target }) => {
            write::locate_status(&mut out, format, *id, target.key() == Some(OBJECT_KEY));
        }
        // The cancelled request has already been completed.
        MessageContent::CancelRequest(_) => {}
        _ => return None,
    }
    Some(out)
}

/// Parses a request to the object.
pub(super) fn parse_call(
    request: &GiopRequest<'_>,
    byte_order: ByteOrder,
) -> Result<ManagerCall, SystemException<'static>> {
    if request.target.key() != Some(OBJECT_KEY) {
        return Err(SystemException::OBJECT_NOT_EXIST);
    }
    ManagerCall::parse(request.operation, &mut request.argument_reader(byte_order))
}
