//! CORBA: calls of `is_prime`, the papers' operation, of one object; each connection is a session.
//!
//! A session follows the LOCATION_FORWARD of a balancer and stays there until it is redirected again, or the
//! server is gone. In that case it returns to its initial reference, as the standard requires. The next call
//! of a session with a closed connection begins a new one. The target checks the request id and the answer.
//! An exception is a failure, counted by its name.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use plimsoll_wire::giop::write::{self, GiopRequestHead, MessageFormat};
use plimsoll_wire::giop::{
    ByteOrder, Corbaloc, ExpectedResponse, GiopError, GiopMessage, GiopReply, GiopVersion, IiopAddress, Ior,
    MessageContent, MessageType, NextMessage, ReplyStatus, ServiceContext, TargetAddress as Aim,
    next_message,
};

use super::address_choice::first_reachable;
use super::{AnswerProgress, RequestTarget, TargetAnswer, TargetRequest};
use crate::member::{MEMBER_CONTEXT, PADDING_CONTEXT, is_prime};
use crate::record::FailureKind;

/// The maximum length of a reply.
const MAX_REPLY: usize = 256 * 1024;
/// The maximum number of members and exceptions distinguished by name.
const MAX_NAMES: usize = 256;
/// The maximum number of objects to which sessions are redirected, in one run.
const MAX_ADDRESSES: usize = 4096;
/// The maximum number of redirections of one request.
const MAX_HOPS: u8 = 16;
/// The maximum number that is tested; they begin at 1.
const NUMBER_COUNT: u32 = 1000;

/// The reason why a target is invalid.
#[derive(Debug, thiserror::Error)]
pub enum IiopError {
    /// The reference is malformed.
    #[error("`{text}`: {why}")]
    Reference {
        /// The given reference, or its beginning.
        text: String,
        /// The error.
        why: String,
    },
    /// Its host has no address.
    #[error("`{place}`: {why}; expected a host that can be resolved")]
    Resolve {
        /// The host and port.
        place: String,
        /// The resolver's message.
        why: String,
    },
}

/// Calls of one object, and of the objects to which it redirects clients.
#[derive(Debug)]
pub struct IiopTarget {
    /// The object, then those to which it redirected clients.
    objects: Vec<RemoteObject>,
    /// The addresses of the objects.
    addresses: Vec<SocketAddr>,
    member_names: Vec<Arc<str>>,
    /// Whether to follow a LOCATION_FORWARD; if not, it is an answer.
    follows_forwards: bool,
    /// The padding of each request, beside its argument.
    padding: Vec<u8>,
    next_id: u32,
}

/// An object and its addressing.
#[derive(Debug)]
struct RemoteObject {
    version: GiopVersion,
    key: Vec<u8>,
    /// Its address, which serves as its name if it does not name itself.
    name: Arc<str>,
}

/// The progress of one call.
#[derive(Debug)]
pub struct IiopCallState {
    id: u32,
    number: u32,
    /// The index of the called object.
    address_index: usize,
    hops: u8,
    /// The beginning of an incomplete reply.
    partial: Vec<u8>,
}

impl IiopTarget {
    /// Creates calls of the object of a reference: `iiop://HOST:PORT/KEY` (GIOP 1.2), a corbaloc, an `IOR:`
    /// or `file:PATH` with one of the latter two. Of several addresses the first counts. Without `follow`, a
    /// redirection is an answer.
    ///
    /// # Errors
    /// Fails if the reference is malformed, or its host has no address.
    pub fn new(reference: &str, follow: bool) -> Result<Self, IiopError> {
        let (iiop_address, key) = parse_reference(reference)?;
        let socket_address = resolve(&iiop_address, first_reachable)?;
        let object =
            RemoteObject { version: iiop_address.version, key, name: iiop_address.to_string().into() };
        Ok(Self {
            objects: vec![object],
            addresses: vec![socket_address],
            member_names: Vec::new(),
            follows_forwards: follow,
            padding: Vec::new(),
            next_id: 0,
        })
    }

    /// Adds `length` bytes of padding to each request, which servers ignore.
    #[must_use]
    pub fn padded(mut self, length: usize) -> Self {
        self.padding = (0..length).map(|n| n as u8).collect();
        self
    }

    /// Returns the request of a call, for one of the objects.
    fn request_bytes(&self, id: u32, number: u32, object_index: usize) -> Arc<[u8]> {
        let RemoteObject { version, key, .. } = &self.objects[object_index];
        let format = MessageFormat { version: *version, order: ByteOrder::NATIVE };
        let target = Aim::Key(key);
        let padding = [ServiceContext { id: PADDING_CONTEXT, data: &self.padding }];
        let contexts = if self.padding.is_empty() { &[] } else { &padding[..] };
        let head = GiopRequestHead {
            id,
            expected_response: ExpectedResponse::Result,
            target,
            operation: b"is_prime",
            contexts,
        };
        let mut bytes = Vec::with_capacity(96 + key.len() + self.padding.len());
        write::request(&mut bytes, format, &head, |writer| writer.u32(number));
        bytes.into()
    }

    /// Returns the shared form of a name.
    fn intern_name(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(existing) = self.member_names.iter().find(|existing| existing.as_bytes() == name) {
            return existing.clone();
        }
        let text =
            if self.member_names.len() < MAX_NAMES { String::from_utf8_lossy(name) } else { "other".into() };
        let interned: Arc<str> = text.into();
        if self.member_names.len() < MAX_NAMES {
            self.member_names.push(interned.clone());
        }
        interned
    }

    /// Returns the index of the object of a reference.
    fn object_index(&mut self, ior: &Ior) -> Option<usize> {
        let profile = ior.first_iiop_profile()?;
        let iiop_address = profile.addresses().next()?;
        let name = iiop_address.to_string();
        let index = self.objects.iter().position(|object| object.key == profile.key && *object.name == *name);
        if index.is_some() || self.objects.len() == MAX_ADDRESSES {
            return index;
        }
        // The address is not probed: calls are in flight.
        let socket_address = resolve(&iiop_address, |mut addresses| addresses.next()).ok()?;
        self.objects.push(RemoteObject {
            version: iiop_address.version,
            key: profile.key,
            name: name.into(),
        });
        self.addresses.push(socket_address);
        Some(self.objects.len() - 1)
    }

    fn handle_reply(
        &mut self,
        state: &IiopCallState,
        order: ByteOrder,
        reply: &GiopReply<'_>,
        reusable: bool,
    ) -> AnswerProgress {
        let exception = |reason: Arc<str>| TargetAnswer {
            member: None,
            failure: Some(FailureKind::Exception),
            reason: Some(reason),
            reusable,
        };
        match reply.status {
            ReplyStatus::NoException => {
                let is_correct =
                    reply.body_reader(order).bool().is_ok_and(|answer| answer == is_prime(state.number));
                if !is_correct {
                    return AnswerProgress::Malformed;
                }
                let member = match reply.contexts.find(MEMBER_CONTEXT) {
                    Some(name) => Some(self.intern_name(name)),
                    None => (state.address_index > 0).then(|| self.objects[state.address_index].name.clone()),
                };
                AnswerProgress::Complete(TargetAnswer { member, failure: None, reason: None, reusable })
            }
            ReplyStatus::SystemException | ReplyStatus::UserException => {
                let name = reply.body_reader(order).string().unwrap_or(b"unreadable");
                AnswerProgress::Complete(exception(self.intern_name(name)))
            }
            ReplyStatus::Forward | ReplyStatus::ForwardPermanent => {
                let target_index = reply.forward(order).and_then(|ior| self.object_index(&ior));
                match target_index {
                    None => {
                        AnswerProgress::Complete(exception(self.intern_name(b"forwarded to no IIOP address")))
                    }
                    Some(_) if self.follows_forwards && state.hops >= MAX_HOPS => {
                        AnswerProgress::Complete(exception(self.intern_name(b"forwarded too often")))
                    }
                    Some(target_index) if self.follows_forwards => AnswerProgress::Redirected(target_index),
                    Some(target_index) => {
                        let member = Some(self.objects[target_index].name.clone());
                        AnswerProgress::Complete(TargetAnswer {
                            member,
                            failure: None,
                            reason: None,
                            reusable,
                        })
                    }
                }
            }
            ReplyStatus::NeedsAddressing => {
                AnswerProgress::Complete(exception(self.intern_name(b"another way of addressing")))
            }
        }
    }
}

impl RequestTarget for IiopTarget {
    type State = IiopCallState;

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn has_sessions(&self) -> bool {
        true
    }

    fn next_request(&mut self) -> TargetRequest<IiopCallState> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let number = 1 + id % NUMBER_COUNT;
        let state = IiopCallState { id, number, address_index: 0, hops: 0, partial: Vec::new() };
        TargetRequest { route: 0, bytes: self.request_bytes(id, number, 0), state }
    }

    fn consume_answer(&mut self, state: &mut IiopCallState, bytes: &[u8]) -> AnswerProgress {
        let mut partial = std::mem::take(&mut state.partial);
        let input = if partial.is_empty() {
            bytes
        } else {
            partial.extend_from_slice(bytes);
            &partial
        };
        let (header, len) = match next_message(input, MAX_REPLY) {
            Err(_) => return AnswerProgress::Malformed,
            Ok(NextMessage::Partial { .. }) => {
                state.partial = if partial.is_empty() { bytes.to_vec() } else { partial };
                return AnswerProgress::Incomplete;
            }
            Ok(NextMessage::Whole { header, len }) => (header, len),
        };
        // The server has not performed calls that are unanswered when it closes the connection.
        if header.kind == MessageType::CloseConnection {
            return AnswerProgress::ReturnedToOrigin;
        }
        match GiopMessage::parse(input) {
            Ok(GiopMessage { header, content: MessageContent::Reply(reply) })
                if reply.id == state.id && !header.more_fragments =>
            {
                // With surplus bytes or a further message the connection is not reusable.
                self.handle_reply(state, header.order, &reply, len == input.len())
            }
            _ => AnswerProgress::Malformed,
        }
    }

    fn request_for_address(&mut self, state: &mut IiopCallState, address_index: usize) -> Option<Arc<[u8]>> {
        if state.hops > MAX_HOPS {
            return None;
        }
        state.hops += 1;
        state.address_index = address_index;
        state.partial.clear();
        Some(self.request_bytes(state.id, state.number, address_index))
    }

    fn connection_ended(&mut self, _: &mut IiopCallState) -> Option<TargetAnswer> {
        None
    }
}

/// Returns the address of a reference's object, and its key.
fn parse_reference(reference: &str) -> Result<(IiopAddress, Vec<u8>), IiopError> {
    let reference_error = |reason: String| {
        let text: String = reference.chars().take(60).collect();
        IiopError::Reference { text, why: reason }
    };
    let strip_scheme = |scheme: &str| match reference.split_at_checked(scheme.len()) {
        Some((prefix, rest)) if prefix.eq_ignore_ascii_case(scheme) => Some(rest),
        _ => None,
    };
    let file;
    let reference = match strip_scheme("file:") {
        Some(path) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            file = std::fs::read_to_string(path).map_err(|error| reference_error(error.to_string()))?;
            file.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim()
        }
        None => reference,
    };
    let location = if reference.get(..4).is_some_and(|prefix| prefix.eq_ignore_ascii_case("IOR:")) {
        let ior: Ior =
            reference.parse().map_err(|error: GiopError| reference_error(error.reason().to_owned()))?;
        Corbaloc::from_ior(&ior)
            .ok_or_else(|| reference_error("the reference has no IIOP profile that can be read".to_owned()))?
    } else {
        let corbaloc = match strip_scheme("iiop://") {
            Some(rest) => format!("corbaloc:iiop:1.2@{rest}"),
            None => reference.to_owned(),
        };
        corbaloc.parse().map_err(|error: GiopError| {
            let reason = error.reason();
            reference_error(format!(
                "{reason}; expected iiop://HOST:PORT/KEY, corbaloc:..., IOR:... or file:PATH"
            ))
        })?
    };
    match location.addresses.into_iter().next() {
        Some(address) => Ok((address, location.key)),
        None => Err(reference_error("it has no address".to_owned())),
    }
}

fn resolve(
    address: &IiopAddress,
    choose_address: fn(std::vec::IntoIter<SocketAddr>) -> Option<SocketAddr>,
) -> Result<SocketAddr, IiopError> {
    let resolve_error = |reason: String| IiopError::Resolve { place: address.to_string(), why: reason };
    let addresses =
        address.to_string().to_socket_addrs().map_err(|error| resolve_error(error.to_string()))?;
    choose_address(addresses).ok_or_else(|| resolve_error("the host has no address".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> IiopTarget {
        IiopTarget::new("iiop://127.0.0.1:9/key", true).unwrap()
    }

    /// Feeds the answer of `write` to the first call, in pieces of `size` bytes.
    fn feed(size: usize, write: impl Fn(&mut Vec<u8>, MessageFormat, u32)) -> AnswerProgress {
        let mut target = target();
        let mut state = target.next_request().state;
        let mut bytes = Vec::new();
        write(&mut bytes, MessageFormat { version: GiopVersion::V1_2, order: ByteOrder::Big }, state.id);
        for piece in bytes.chunks(size) {
            match target.consume_answer(&mut state, piece) {
                AnswerProgress::Incomplete => {}
                progress => return progress,
            }
        }
        AnswerProgress::Incomplete
    }

    #[test]
    fn answers_in_any_pieces() {
        let write_success = |out: &mut Vec<u8>, form, id| {
            write::reply(out, form, id, ReplyStatus::NoException, &[], |writer| writer.bool(is_prime(1)));
        };
        let answer = |reusable| TargetAnswer { member: None, failure: None, reason: None, reusable };
        for size in [1, 2, 7, 12, 25, 999] {
            assert_eq!(feed(size, write_success), AnswerProgress::Complete(answer(true)), "{size}");
        }
        let write_closed = |out: &mut Vec<u8>, form, id| {
            write_success(out, form, id);
            write::close(out, form);
        };
        assert_eq!(feed(999, write_closed), AnswerProgress::Complete(answer(false)));
        assert_eq!(feed(1, |out, form, _| write::close(out, form)), AnswerProgress::ReturnedToOrigin);
    }

    #[test]
    fn what_is_no_answer_to_this_call_is_malformed() {
        type WriteReply = fn(&mut Vec<u8>, MessageFormat, u32);
        let invalid_replies: [WriteReply; 4] = [
            |out, form, id| {
                write::reply(out, form, id, ReplyStatus::NoException, &[], |writer| writer.bool(!is_prime(1)))
            },
            |out, form, id| {
                write::reply(out, form, id + 1, ReplyStatus::NoException, &[], |writer| {
                    writer.bool(is_prime(1))
                })
            },
            |out, form, id| write::locate_status(out, form, id, true),
            |out, _, _| out.extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n"),
        ];
        for write_reply in invalid_replies {
            assert_eq!(feed(999, write_reply), AnswerProgress::Malformed);
        }
    }

    #[test]
    fn names_that_a_server_makes_up_are_bounded() {
        let mut target = target();
        for number in 0..1000 {
            target.intern_name(format!("member {number}").as_bytes());
        }
        assert_eq!(target.member_names.len(), MAX_NAMES);
        assert_eq!(&*target.intern_name(b"one more"), "other");
    }
}
