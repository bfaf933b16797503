//! One query to a member: whether it has an object (LocateRequest), or would serve it now (`_non_existent`).
//!
//! The second takes the path of requests, through all of the server's interceptors. One that sends its
//! clients back to the group treats it like theirs. The first is answered before them.

use plimsoll_wire::giop::write::{self, GiopRequestHead, MessageFormat};
use plimsoll_wire::giop::{
    ByteOrder, ExpectedResponse, GiopMessage, GiopVersion, LocateStatus, MessageContent, NextMessage,
    ReplyStatus, TargetAddress, next_message,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum size of the answer, in bytes: a location is an object reference.
const MAX_ANSWER: usize = 64 * 1024;

/// GIOP 1.0, which every server supports.
const FORMAT: MessageFormat = MessageFormat { version: GiopVersion::V1_0, order: ByteOrder::NATIVE };

/// A member's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocateAnswer {
    /// The member has the object.
    Here,
    /// The member has the object and sends its clients away.
    ForwardsAway,
    /// The member does not have the object, or its answer is invalid: the reason, for people.
    NotHere(String),
}

/// Returns the request for an object's location.
pub(crate) fn locate_request(key: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    write::locate_request(&mut request, FORMAT, 1, &TargetAddress::Key(key));
    request
}

/// Returns the request that asks an object whether it does not exist.
pub(super) fn non_existent_request(key: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    let target = TargetAddress::Key(key);
    let head = GiopRequestHead {
        id: 1,
        expected_response: ExpectedResponse::Result,
        target,
        operation: b"_non_existent",
        contexts: &[],
    };
    write::request(&mut request, FORMAT, &head, |_| ());
    request
}

/// Sends a query and returns the answer. Has no time limit of its own.
pub(crate) async fn ask(mut stream: TcpStream, request: &[u8]) -> LocateAnswer {
    if let Err(error) = stream.write_all(request).await {
        return LocateAnswer::NotHere(error.to_string());
    }
    let mut bytes = Vec::with_capacity(128);
    loop {
        match next_message(&bytes, MAX_ANSWER) {
            Ok(NextMessage::Whole { .. }) => return parse_answer(&bytes),
            Ok(NextMessage::Partial { .. }) => {}
            Err(error) => return LocateAnswer::NotHere(error.to_string()),
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return LocateAnswer::NotHere("closed the connection before it answered".into()),
            Ok(_) => {}
            Err(error) => return LocateAnswer::NotHere(error.to_string()),
        }
    }
}

fn parse_answer(bytes: &[u8]) -> LocateAnswer {
    let message = match GiopMessage::parse(bytes) {
        Ok(message) => message,
        Err(error) => return LocateAnswer::NotHere(error.to_string()),
    };
    match &message.content {
        MessageContent::LocateReply(reply) => match reply.status {
            LocateStatus::Unknown => LocateAnswer::NotHere("does not have the object".into()),
            _ => LocateAnswer::Here,
        },
        MessageContent::Reply(reply) => match reply.status {
            ReplyStatus::Forward | ReplyStatus::ForwardPermanent => LocateAnswer::ForwardsAway,
            ReplyStatus::NoException if reply.body.first() == Some(&1) => {
                LocateAnswer::NotHere("does not have the object".into())
            }
            ReplyStatus::SystemException => {
                let exception = reply.exception(message.header.order);
                let name = exception.as_ref().map_or("", |exception| exception.name());
                match name {
                    "OBJECT_NOT_EXIST" => LocateAnswer::NotHere("does not have the object".into()),
                    "TRANSIENT" | "NO_RESOURCES" => LocateAnswer::ForwardsAway,
                    "COMM_FAILURE" | "TIMEOUT" | "INITIALIZE" | "" => {
                        LocateAnswer::NotHere(format!("answered {name}"))
                    }
                    // The request reached the object, at least.
                    _ => LocateAnswer::Here,
                }
            }
            ReplyStatus::NoException | ReplyStatus::UserException | ReplyStatus::NeedsAddressing => {
                LocateAnswer::Here
            }
        },
        _ => LocateAnswer::NotHere("answered something else".into()),
    }
}
