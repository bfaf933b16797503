//! One query to a member: whether it has an object (LocateRequest), or would serve it now (`_non_existent`).
//!
//! The second takes the path of requests, through all of the server's interceptors. One that sends its
//! clients back to the group treats it like theirs. The first is answered before them.

use plimsoll_wire::giop::write::{self, Form, Head};
use plimsoll_wire::giop::{Content, Cut, LocateStatus, Message, Order, Status, Target, Version, Wanted, cut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum size of the answer, in bytes: a location is an object reference.
const MOST: usize = 64 * 1024;

/// GIOP 1.0, which every server supports.
const FORM: Form = Form { version: Version::V1_0, order: Order::NATIVE };

/// A member's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The member has the object.
    Here,
    /// The member has the object and sends its clients away.
    Elsewhere,
    /// The member does not have the object, or its answer is invalid: the reason, for people.
    Not(String),
}

/// Returns the request for an object's location.
pub(crate) fn locate(key: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    write::locate_request(&mut request, FORM, 1, &Target::Key(key));
    request
}

/// Returns the request that asks an object whether it does not exist.
pub(super) fn exists(key: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    let target = Target::Key(key);
    let head = Head { id: 1, wanted: Wanted::Result, target, operation: b"_non_existent", contexts: &[] };
    write::request(&mut request, FORM, &head, |_| ());
    request
}

/// Sends a query and returns the answer. Has no time limit of its own.
pub(crate) async fn ask(mut stream: TcpStream, request: &[u8]) -> Answer {
    if let Err(error) = stream.write_all(request).await {
        return Answer::Not(error.to_string());
    }
    let mut bytes = Vec::with_capacity(128);
    loop {
        match cut(&bytes, MOST) {
            Ok(Cut::Whole { .. }) => return understood(&bytes),
            Ok(Cut::Partial { .. }) => {}
            Err(bad) => return Answer::Not(bad.to_string()),
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return Answer::Not("closed the connection before it answered".into()),
            Ok(_) => {}
            Err(error) => return Answer::Not(error.to_string()),
        }
    }
}

fn understood(bytes: &[u8]) -> Answer {
    let message = match Message::parse(bytes) {
        Ok(message) => message,
        Err(bad) => return Answer::Not(bad.to_string()),
    };
    match &message.content {
        Content::LocateReply(reply) => match reply.status {
            LocateStatus::Unknown => Answer::Not("does not have the object".into()),
            _ => Answer::Here,
        },
        Content::Reply(reply) => match reply.status {
            Status::Forward | Status::ForwardForGood => Answer::Elsewhere,
            Status::Done if reply.body.first() == Some(&1) => Answer::Not("does not have the object".into()),
            Status::SystemException => {
                let why = reply.exception(message.header.order);
                let name = why.as_ref().map_or("", |why| why.name());
                match name {
                    "OBJECT_NOT_EXIST" => Answer::Not("does not have the object".into()),
                    "TRANSIENT" | "NO_RESOURCES" => Answer::Elsewhere,
                    "COMM_FAILURE" | "TIMEOUT" | "INITIALIZE" | "" => Answer::Not(format!("answered {name}")),
                    // The request reached the object, at least.
                    _ => Answer::Here,
                }
            }
            Status::Done | Status::UserException | Status::NeedsAddressing => Answer::Here,
        },
        _ => Answer::Not("answered something else".into()),
    }
}
