//! Calls to external objects: one connection, one request, one reply, with a time limit.

use std::time::Duration;

use plimsoll_wire::giop::write::{self, Form, Head};
use plimsoll_wire::giop::{
    Assembler, BadGiop, Content, Cut, IiopProfile, Ior, Limits, Message, Order, Reader, Reply, Status,
    Target, Wanted, cut,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit of a call as a whole.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// The maximum length of a reply, in bytes.
const REPLY: usize = 64 << 10;
/// The maximum number of redirections to another reference.
const FORWARDS: usize = 4;

const ID: u32 = 1;

/// Calls an operation without arguments; `read` decodes its result.
///
/// # Errors
/// Returns the reason of the failure, for people.
pub(super) async fn invoke<T>(
    object: &Ior,
    operation: &str,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, BadGiop>,
) -> Result<T, String> {
    match timeout(LIMIT, follow(object, operation, read)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs_f64())),
    }
}

async fn follow<T>(
    object: &Ior,
    operation: &str,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, BadGiop>,
) -> Result<T, String> {
    let mut object = object.clone();
    for _ in 0..FORWARDS {
        let profile = object.iiop().ok_or("its reference leads nowhere")?;
        let message = ask(&profile, operation).await?;
        let (reply, order) = replied(&message)?;
        match reply.status {
            Status::Done => return read(&mut reply.result(order)).map_err(|bad| bad.to_string()),
            Status::UserException => return Err("it raised an exception of its own".into()),
            Status::SystemException => {
                let why = reply.exception(order);
                let name = why.map(|why| why.name().to_owned()).filter(|name| !name.is_empty());
                return Err(name.unwrap_or_else(|| "it raised a system exception".into()));
            }
            Status::Forward | Status::ForwardForGood => {
                object = reply.forward(order).ok_or("it says that it is elsewhere and not where")?;
            }
            Status::NeedsAddressing => return Err("it wants to be addressed in another way".into()),
        }
    }
    Err("it is said to be elsewhere again and again".into())
}

/// Sends a request and waits for the complete reply.
async fn ask(profile: &IiopProfile, operation: &str) -> Result<Vec<u8>, String> {
    let mut stream = connect(profile).await?;
    let mut out = Vec::new();
    let form = Form { version: profile.version, order: Order::NATIVE };
    let target = Target::Key(&profile.key);
    let head =
        Head { id: ID, wanted: Wanted::Result, target, operation: operation.as_bytes(), contexts: &[] };
    write::request(&mut out, form, &head, |_| ());
    let broken = |error: std::io::Error| format!("the connection broke: {error}");
    stream.write_all(&out).await.map_err(broken)?;
    let mut unread = Vec::new();
    let mut assembler = Assembler::new(Limits { messages: 1, bytes: REPLY });
    loop {
        match cut(&unread, REPLY).map_err(|bad| bad.to_string())? {
            Cut::Whole { len, .. } => {
                let message: Vec<u8> = unread.drain(..len).collect();
                if let Some(whole) = assembler.take(&message).map_err(|bad| bad.to_string())? {
                    return Ok(whole.into_owned());
                }
            }
            Cut::Partial { .. } => {
                if stream.read_buf(&mut unread).await.map_err(broken)? == 0 {
                    return Err("it closed the connection without an answer".into());
                }
            }
        }
    }
}

/// Connects to the first reachable address.
async fn connect(profile: &IiopProfile) -> Result<TcpStream, String> {
    let mut last = "it has no address".to_owned();
    for place in profile.places().take(4) {
        let host = place.host.trim_start_matches('[').trim_end_matches(']');
        match TcpStream::connect((host, place.port)).await {
            Ok(stream) => {
                // A delay to combine requests would add only latency.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = format!("cannot connect to {place}: {error}"),
        }
    }
    Err(last)
}

fn replied(message: &[u8]) -> Result<(Reply<'_>, Order), String> {
    let read = Message::parse(message).map_err(|bad| bad.to_string())?;
    match read.content {
        Content::Reply(reply) if reply.id == ID => Ok((reply, read.header.order)),
        _ => Err("it answered with something that is no answer".into()),
    }
}
