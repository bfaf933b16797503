//! One question to a member: does it have an object (LocateRequest), and would it work for it now (`_non_existent`)?
//!
//! The second goes where requests go, through whatever the server's makers put in their way. One that sends its clients
//! back to the group answers it like theirs; the first is answered before anybody is asked.

use plimsoll_wire::giop::write::{self, Form, Head};
use plimsoll_wire::giop::{Content, Cut, LocateStatus, Message, Order, Status, Target, Version, Wanted, cut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Most bytes of the answer: one that says where the object is holds a reference.
const MOST: usize = 64 * 1024;

/// In GIOP 1.0, which every server speaks.
const FORM: Form = Form { version: Version::V1_0, order: Order::NATIVE };

/// What a member answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has the object.
    Here,
    /// It has, and sends those away who ask for it.
    Elsewhere,
    /// It has not, or says nothing that can be understood: why, for people.
    Not(String),
}

/// What is sent to ask for an object.
pub(crate) fn locate(key: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    write::locate_request(&mut request, FORM, 1, &Target::Key(key));
    request
}

/// What is sent to have an object asked whether it is none.
pub(super) fn exists(key: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    let target = Target::Key(key);
    let head = Head { id: 1, wanted: Wanted::Result, target, operation: b"_non_existent", contexts: &[] };
    write::request(&mut request, FORM, &head, |_| ());
    request
}

/// Asks. Takes as long as it takes.
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
                    // It was asked, at least.
                    _ => Answer::Here,
                }
            }
            Status::Done | Status::UserException | Status::NeedsAddressing => Answer::Here,
        },
        _ => Answer::Not("answered something else".into()),
    }
}
