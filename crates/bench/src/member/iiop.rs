//! The CORBA member: the primality test of the papers on CORBA load balancing, and one operation for each
//! kind of data that a balancer could damage on its way.
//!
//! The member speaks GIOP 1.0 to 1.2 in either byte order and answers for any object key. It serves the
//! requests of one connection concurrently, as far as there are workers, and answers each when it is done.
//! Each reply names the member in a service context of its own; clients ignore unknown service contexts.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use plimsoll_wire::giop::TargetAddress;
use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{
    AssemblyLimits, ByteOrder, CodeSets, ExpectedResponse, FragmentAssembler, GiopError, GiopHeader,
    GiopMessage, GiopRequest, GiopVersion, IiopProfile, Ior, MessageContent, NextMessage, ServiceContext,
    SystemException, next_message,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use super::MemberState;
use super::http::FailureResponse;

mod latency;

pub use latency::TYPE_ID;
pub(crate) use latency::is_prime;

/// The id of the service context that names the member in a reply.
pub const MEMBER_CONTEXT: u32 = 0x504c_4d01;

/// The id of the service context that pads a message to its configured length.
pub(crate) const PADDING_CONTEXT: u32 = 0x504c_4d02;
/// The key of the object for calls that only deliver a message.
pub(crate) const RECEIVE: &str = "Receive";

/// The maximum length of a message, and of all fragments of one connection together, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// The maximum number of fragmented messages at a time on one connection.
const MAX_FRAGMENTED_MESSAGES: usize = 64;
/// The maximum number of requests in service at a time on one connection; further input stays unread.
const MAX_IN_SERVICE: usize = 1024;
/// The minimum capacity of a read.
const READ_BYTES: usize = 16 * 1024;

/// Returns the reference of a member that listens on `address`; an unspecified address becomes the loopback
/// address.
pub fn reference(address: SocketAddr) -> Ior {
    let host = match address.ip() {
        ip if !ip.is_unspecified() => ip.to_string(),
        ip if ip.is_ipv4() => "127.0.0.1".to_owned(),
        _ => "::1".to_owned(),
    };
    let components = vec![CodeSets::common_sets().component(ByteOrder::NATIVE)];
    let key = b"Latency".to_vec();
    let profile = IiopProfile { version: GiopVersion::V1_2, host, port: address.port(), key, components };
    Ior { type_id: TYPE_ID.to_vec(), profiles: vec![profile.to_tagged(ByteOrder::NATIVE)] }
}

/// Serves one client.
pub(super) async fn connection(stream: TcpStream, member: Rc<MemberState>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = IiopConnection {
        stream,
        input: Vec::new(),
        output: Vec::new(),
        assembler: FragmentAssembler::new(AssemblyLimits {
            messages: MAX_FRAGMENTED_MESSAGES,
            bytes: MAX_MESSAGE_BYTES,
        }),
        in_service: JoinSet::new(),
        abort_handles: HashMap::new(),
        format: MessageFormat { version: GiopVersion::V1_0, order: ByteOrder::Big },
        is_first: true,
        member,
    };
    let result = connection.run().await;
    if matches!(result, Ok(ConnectionEnd::ClientClosed))
        && (connection.member.spec.cores.is_none() || connection.member.spec.ignore_cancel)
    {
        // A member that does not notice the end of the connection goes on with the work.
        while connection.in_service.join_next().await.is_some() {}
    }
    result.map(drop)
}

/// A connection with its input and output buffers.
struct IiopConnection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    assembler: FragmentAssembler,
    /// The requests in service.
    in_service: JoinSet<ServedRequest>,
    /// The handles that cancel them, by request id.
    abort_handles: HashMap<u32, AbortHandle>,
    /// The form of the last message received.
    format: MessageFormat,
    /// Whether no request has been served yet.
    is_first: bool,
    member: Rc<MemberState>,
}

/// A request that has been served.
struct ServedRequest {
    id: u32,
    /// The reply, empty for a oneway.
    reply: Vec<u8>,
    /// Whether the connection ends with it.
    closes_connection: bool,
}

/// The reason why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    /// The client sends no more.
    ClientClosed,
    /// The member closes it.
    MemberClosed,
}

impl IiopConnection {
    async fn run(&mut self) -> io::Result<ConnectionEnd> {
        let mut stopping = self.member.stopping.clone();
        let mut is_stopping = false;
        loop {
            if !is_stopping && let Some(end) = self.handle_messages() {
                self.flush().await?;
                self.stream.shutdown().await?;
                return Ok(end);
            }
            if is_stopping && self.in_service.is_empty() {
                write::close(&mut self.output, self.format);
                self.flush().await?;
                self.stream.shutdown().await?;
                return Ok(ConnectionEnd::MemberClosed);
            }
            self.flush().await?;
            let can_read = self.in_service.len() < MAX_IN_SERVICE && !is_stopping;
            tokio::select! {
                biased;
                finished = self.in_service.join_next(), if !self.in_service.is_empty() => {
                    if self.queue_replies(finished) {
                        self.flush().await?;
                        self.stream.shutdown().await?;
                        return Ok(ConnectionEnd::MemberClosed);
                    }
                }
                count = read(&mut self.stream, &mut self.input), if can_read => {
                    if count? == 0 {
                        return Ok(ConnectionEnd::ClientClosed);
                    }
                }
                _ = stopping.wait_for(|stopping| *stopping), if !is_stopping => is_stopping = true,
            }
        }
    }

    /// Handles received messages as long as requests may be served; returns the end of the connection, if it
    /// ends.
    fn handle_messages(&mut self) -> Option<ConnectionEnd> {
        let input = std::mem::take(&mut self.input);
        let mut start = 0;
        let mut end = None;
        while end.is_none() && self.in_service.len() < MAX_IN_SERVICE {
            match next_message(&input[start..], MAX_MESSAGE_BYTES) {
                Ok(NextMessage::Partial { .. }) => break,
                Ok(NextMessage::Whole { header, len }) => {
                    self.format = header.format();
                    end = self
                        .handle_message(&input[start..start + len])
                        .unwrap_or_else(|_| Some(self.refuse()));
                    start += len;
                }
                Err(_) => end = Some(self.refuse()),
            }
        }
        self.input = input;
        self.input.drain(..start);
        end
    }

    fn handle_message(&mut self, message: &[u8]) -> Result<Option<ConnectionEnd>, GiopError> {
        let Some(assembled) = self.assembler.accept(message)? else { return Ok(None) };
        let GiopMessage { header, content } = GiopMessage::parse(&assembled)?;
        match content {
            MessageContent::Request(request) => return Ok(self.serve(&header, &request)),
            MessageContent::LocateRequest(request) => {
                write::locate_status(&mut self.output, self.format, request.id, true)
            }
            MessageContent::CancelRequest(id) => {
                if self.member.spec.cores.is_some()
                    && !self.member.spec.ignore_cancel
                    && let Some(abort_handle) = self.abort_handles.remove(&id)
                {
                    abort_handle.abort();
                }
            }
            MessageContent::CloseConnection | MessageContent::MessageError => {
                return Ok(Some(ConnectionEnd::ClientClosed));
            }
            MessageContent::Reply(_) | MessageContent::LocateReply(_) | MessageContent::Fragment(_) => {
                return Err(GiopError::Malformed("a client sends no such message"));
            }
        }
        Ok(None)
    }

    fn serve(&mut self, header: &GiopHeader, request: &GiopRequest<'_>) -> Option<ConnectionEnd> {
        let member = &self.member;
        let is_receive = member.spec.receive_steps.is_some()
            && matches!(request.target, TargetAddress::Key(key) if key == RECEIVE.as_bytes());
        member.requests.set(member.requests.get() + u64::from(!is_receive));
        let failure_mode = member.failure_mode.get();
        let should_fail = member.rng.borrow_mut().bernoulli(failure_mode.rate);
        let is_adapter_operation = latency::is_adapter_operation(request.operation);
        let is_first = !is_adapter_operation && std::mem::take(&mut self.is_first);
        let format = header.format();
        let member_context = ServiceContext { id: MEMBER_CONTEXT, data: member.name.as_bytes() };
        let mut reply = Vec::with_capacity(64);
        let padding = vec![0; member.spec.body_length.filter(|_| !is_receive).unwrap_or(0)];
        let padding = ServiceContext { id: PADDING_CONTEXT, data: &padding };
        let contexts =
            if padding.data.is_empty() { &[member_context][..] } else { &[member_context, padding][..] };
        let closes_connection = should_fail && failure_mode.refusal == FailureResponse::Close;
        if should_fail {
            write_exception(&mut reply, format, request, &FAILURE_EXCEPTION);
        } else {
            latency::reply(&mut reply, format, request, member, contexts);
        }
        if closes_connection {
            reply.clear();
        }
        // Without a service time there is nothing to wait for. With steps, the object adapter's own
        // operations are answered at once, as over http: a balancer would avoid a busy member that is slow to
        // answer them, while a model chooses at random.
        let is_instant =
            member.worker_pool.is_instant(is_first) || (is_adapter_operation && member.spec.steps.is_some());
        if is_instant && !is_receive && !(should_fail && failure_mode.after.is_some()) {
            self.output.append(&mut reply);
            return closes_connection.then_some(ConnectionEnd::MemberClosed);
        }
        let (id, expected_response, member) = (request.id, request.expected_response, member.clone());
        let abort_handle = self.in_service.spawn_local(async move {
            let _flight = member.track_in_flight();
            match failure_mode.after.filter(|_| should_fail) {
                Some(delay) => member.worker_pool.sleep(delay).await,
                None if is_receive => member.worker_pool.receive().await,
                None => {
                    let service = async {
                        if is_adapter_operation {
                            member.worker_pool.wait_for_worker().await
                        } else {
                            member.worker_pool.serve(is_first).await
                        }
                    };
                    if service.await.is_err() {
                        reply.clear();
                        if expected_response != ExpectedResponse::Oneway {
                            write::exception(&mut reply, format, id, &SystemException::TRANSIENT);
                        }
                    }
                }
            }
            ServedRequest { id, reply, closes_connection }
        });
        self.abort_handles.insert(id, abort_handle);
        None
    }

    /// Queues the replies of requests that have been served; returns `true` if the connection is to be
    /// closed.
    fn queue_replies(&mut self, first: Option<Result<ServedRequest, tokio::task::JoinError>>) -> bool {
        let mut next = first;
        while let Some(finished) = next {
            // A cancelled request has no reply.
            if let Ok(ServedRequest { id, reply, closes_connection }) = finished {
                self.abort_handles.remove(&id);
                self.output.extend_from_slice(&reply);
                if closes_connection {
                    return true;
                }
            }
            next = self.in_service.try_join_next();
        }
        false
    }

    fn refuse(&mut self) -> ConnectionEnd {
        write::error(&mut self.output, self.format);
        ConnectionEnd::MemberClosed
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        Ok(())
    }
}

/// The exception of a request that fails on purpose.
const FAILURE_EXCEPTION: SystemException<'static> =
    SystemException { type_id: b"IDL:omg.org/CORBA/UNKNOWN:1.0", ..SystemException::TRANSIENT };

fn write_exception(
    reply: &mut Vec<u8>,
    format: MessageFormat,
    request: &GiopRequest<'_>,
    exception: &SystemException<'_>,
) {
    if request.expected_response != ExpectedResponse::Oneway {
        write::exception(reply, format, request.id, exception);
    }
}

async fn read(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
    input.reserve(READ_BYTES);
    stream.read_buf(input).await
}
