//! Calls to external objects: one connection, one request, one reply, with a time limit.

use std::time::Duration;

use plimsoll_wire::giop::write::{self, GiopRequestHead, MessageFormat};
use plimsoll_wire::giop::{
    AssemblyLimits, ByteOrder, CdrReader, ExpectedResponse, FragmentAssembler, GiopError, GiopMessage,
    GiopReply, IiopProfile, Ior, MessageContent, NextMessage, ReplyStatus, TargetAddress, next_message,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit of a call as a whole.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum length of a reply, in bytes.
const MAX_REPLY: usize = 64 << 10;
/// The maximum number of redirections to another reference.
const MAX_FORWARDS: usize = 4;

const ID: u32 = 1;

/// Calls an operation without arguments; `read` decodes its result.
///
/// # Errors
/// Returns the reason of the failure, for people.
pub(super) async fn invoke<T>(
    object: &Ior,
    operation: &str,
    read_result: impl FnOnce(&mut CdrReader<'_>) -> Result<T, GiopError>,
) -> Result<T, String> {
    match timeout(CALL_TIMEOUT, follow_forwards(object, operation, read_result)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no answer within {} s", CALL_TIMEOUT.as_secs_f64())),
    }
}

async fn follow_forwards<T>(
    object: &Ior,
    operation: &str,
    read_result: impl FnOnce(&mut CdrReader<'_>) -> Result<T, GiopError>,
) -> Result<T, String> {
    let mut object = object.clone();
    for _ in 0..MAX_FORWARDS {
        let profile = object.first_iiop_profile().ok_or("its reference leads nowhere")?;
        let message = exchange(&profile, operation).await?;
        let (reply, byte_order) = parse_reply(&message)?;
        match reply.status {
            ReplyStatus::NoException => {
                return read_result(&mut reply.body_reader(byte_order)).map_err(|error| error.to_string());
            }
            ReplyStatus::UserException => return Err("it raised an exception of its own".into()),
            ReplyStatus::SystemException => {
                let exception = reply.exception(byte_order);
                let name =
                    exception.map(|exception| exception.name().to_owned()).filter(|name| !name.is_empty());
                return Err(name.unwrap_or_else(|| "it raised a system exception".into()));
            }
            ReplyStatus::Forward | ReplyStatus::ForwardPermanent => {
                object = reply.forward(byte_order).ok_or("it says that it is elsewhere and not where")?;
            }
            ReplyStatus::NeedsAddressing => return Err("it wants to be addressed in another way".into()),
        }
    }
    Err("it is said to be elsewhere again and again".into())
}

/// Sends a request and waits for the complete reply.
async fn exchange(profile: &IiopProfile, operation: &str) -> Result<Vec<u8>, String> {
    let mut stream = connect(profile).await?;
    let mut out = Vec::new();
    let format = MessageFormat { version: profile.version, order: ByteOrder::NATIVE };
    let target = TargetAddress::Key(&profile.key);
    let request_head = GiopRequestHead {
        id: ID,
        expected_response: ExpectedResponse::Result,
        target,
        operation: operation.as_bytes(),
        contexts: &[],
    };
    write::request(&mut out, format, &request_head, |_| ());
    let connection_error = |error: std::io::Error| format!("the connection broke: {error}");
    stream.write_all(&out).await.map_err(connection_error)?;
    let mut receive_buffer = Vec::new();
    let mut assembler = FragmentAssembler::new(AssemblyLimits { messages: 1, bytes: MAX_REPLY });
    loop {
        match next_message(&receive_buffer, MAX_REPLY).map_err(|error| error.to_string())? {
            NextMessage::Whole { len, .. } => {
                let message: Vec<u8> = receive_buffer.drain(..len).collect();
                if let Some(complete_message) =
                    assembler.accept(&message).map_err(|error| error.to_string())?
                {
                    return Ok(complete_message.into_owned());
                }
            }
            NextMessage::Partial { .. } => {
                if stream.read_buf(&mut receive_buffer).await.map_err(connection_error)? == 0 {
                    return Err("it closed the connection without an answer".into());
                }
            }
        }
    }
}

/// Connects to the first reachable address.
async fn connect(profile: &IiopProfile) -> Result<TcpStream, String> {
    let mut last_error = "it has no address".to_owned();
    for address in profile.addresses().take(4) {
        let host = address.host.trim_start_matches('[').trim_end_matches(']');
        match TcpStream::connect((host, address.port)).await {
            Ok(stream) => {
                // A delay to combine requests would add only latency.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last_error = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(last_error)
}

fn parse_reply(message: &[u8]) -> Result<(GiopReply<'_>, ByteOrder), String> {
    let message = GiopMessage::parse(message).map_err(|error| error.to_string())?;
    match message.content {
        MessageContent::Reply(reply) if reply.id == ID => Ok((reply, message.header.order)),
        _ => Err("it answered with something that is no answer".into()),
    }
}
