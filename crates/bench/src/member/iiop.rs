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

use plimsoll_wire::giop::Target;
use plimsoll_wire::giop::write::{self, Form};
use plimsoll_wire::giop::{
    Assembler, BadGiop, CodeSets, Content, Context, Cut, Header, IiopProfile, Ior, Limits, Message, Order,
    Request, SystemException, Version, Wanted, cut,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

use super::Member;
use super::http::Refusal;

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
const MOST_BYTES: usize = 64 << 20;
/// The maximum number of fragmented messages at a time on one connection.
const MOST_OPEN: usize = 64;
/// The maximum number of requests in service at a time on one connection; further input stays unread.
const MOST_SERVED: usize = 1024;
/// The minimum capacity of a read.
const READ: usize = 16 * 1024;

/// Returns the reference of a member that listens on `address`; an unspecified address becomes the loopback
/// address.
pub fn reference(address: SocketAddr) -> Ior {
    let host = match address.ip() {
        ip if !ip.is_unspecified() => ip.to_string(),
        ip if ip.is_ipv4() => "127.0.0.1".to_owned(),
        _ => "::1".to_owned(),
    };
    let components = vec![CodeSets::common().component(Order::NATIVE)];
    let key = b"Latency".to_vec();
    let profile = IiopProfile { version: Version::V1_2, host, port: address.port(), key, components };
    Ior { type_id: TYPE_ID.to_vec(), profiles: vec![profile.profile(Order::NATIVE)] }
}

/// Serves one client.
pub(super) async fn connection(stream: TcpStream, member: Rc<Member>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wire = Wire {
        stream,
        input: Vec::new(),
        output: Vec::new(),
        assembler: Assembler::new(Limits { messages: MOST_OPEN, bytes: MOST_BYTES }),
        served: JoinSet::new(),
        cancels: HashMap::new(),
        form: Form { version: Version::V1_0, order: Order::Big },
        first: true,
        member,
    };
    let ended = wire.run().await;
    if matches!(ended, Ok(End::Gone)) && (wire.member.spec.cores.is_none() || wire.member.spec.ignore_cancel)
    {
        // A member that does not notice the end of the connection goes on with the work.
        while wire.served.join_next().await.is_some() {}
    }
    ended.map(drop)
}

/// A connection with its input and output buffers.
struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    assembler: Assembler,
    /// The requests in service.
    served: JoinSet<Done>,
    /// The handles that cancel them, by request id.
    cancels: HashMap<u32, AbortHandle>,
    /// The form of the last message received.
    form: Form,
    /// Whether no request has been served yet.
    first: bool,
    member: Rc<Member>,
}

/// A request that has been served.
struct Done {
    id: u32,
    /// The reply, empty for a oneway.
    reply: Vec<u8>,
    /// Whether the connection ends with it.
    closes: bool,
}

/// The reason why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client sends no more.
    Gone,
    /// The member closes it.
    Closed,
}

impl Wire {
    async fn run(&mut self) -> io::Result<End> {
        let mut stopping = self.member.stopping.clone();
        let mut stopped = false;
        loop {
            if !stopped && let Some(end) = self.take() {
                self.flush().await?;
                self.stream.shutdown().await?;
                return Ok(end);
            }
            if stopped && self.served.is_empty() {
                write::close(&mut self.output, self.form);
                self.flush().await?;
                self.stream.shutdown().await?;
                return Ok(End::Closed);
            }
            self.flush().await?;
            let room = self.served.len() < MOST_SERVED && !stopped;
            tokio::select! {
                biased;
                done = self.served.join_next(), if !self.served.is_empty() => {
                    if self.done(done) {
                        self.flush().await?;
                        self.stream.shutdown().await?;
                        return Ok(End::Closed);
                    }
                }
                count = read(&mut self.stream, &mut self.input), if room => {
                    if count? == 0 {
                        return Ok(End::Gone);
                    }
                }
                _ = stopping.wait_for(|stopping| *stopping), if !stopped => stopped = true,
            }
        }
    }

    /// Handles received messages as long as requests may be served; returns the end of the connection, if it
    /// ends.
    fn take(&mut self) -> Option<End> {
        let input = std::mem::take(&mut self.input);
        let mut start = 0;
        let mut end = None;
        while end.is_none() && self.served.len() < MOST_SERVED {
            match cut(&input[start..], MOST_BYTES) {
                Ok(Cut::Partial { .. }) => break,
                Ok(Cut::Whole { header, len }) => {
                    self.form = header.form();
                    end = self.message(&input[start..start + len]).unwrap_or_else(|_| Some(self.refuse()));
                    start += len;
                }
                Err(_) => end = Some(self.refuse()),
            }
        }
        self.input = input;
        self.input.drain(..start);
        end
    }

    fn message(&mut self, message: &[u8]) -> Result<Option<End>, BadGiop> {
        let Some(whole) = self.assembler.take(message)? else { return Ok(None) };
        let Message { header, content } = Message::parse(&whole)?;
        match content {
            Content::Request(request) => return Ok(self.serve(&header, &request)),
            Content::LocateRequest(request) => write::located(&mut self.output, self.form, request.id, true),
            Content::CancelRequest(id) => {
                if self.member.spec.cores.is_some()
                    && !self.member.spec.ignore_cancel
                    && let Some(given_up) = self.cancels.remove(&id)
                {
                    given_up.abort();
                }
            }
            Content::CloseConnection | Content::MessageError => return Ok(Some(End::Gone)),
            Content::Reply(_) | Content::LocateReply(_) | Content::Fragment(_) => {
                return Err(BadGiop::Malformed("a client sends no such message"));
            }
        }
        Ok(None)
    }

    fn serve(&mut self, header: &Header, request: &Request<'_>) -> Option<End> {
        let member = &self.member;
        let receives = member.spec.receive.is_some()
            && matches!(request.target, Target::Key(key) if key == RECEIVE.as_bytes());
        member.requests.set(member.requests.get() + u64::from(!receives));
        let failing = member.failing.get();
        let fails = member.chance.borrow_mut().happens(failing.rate);
        let own = latency::is_own(request.operation);
        let first = !own && std::mem::take(&mut self.first);
        let form = header.form();
        let named = Context { id: MEMBER_CONTEXT, data: member.name.as_bytes() };
        let mut reply = Vec::with_capacity(64);
        let padding = vec![0; member.spec.body.filter(|_| !receives).unwrap_or(0)];
        let padding = Context { id: PADDING_CONTEXT, data: &padding };
        let contexts = if padding.data.is_empty() { &[named][..] } else { &[named, padding][..] };
        let closes = fails && failing.refusal == Refusal::Close;
        if fails {
            refusal(&mut reply, form, request, &FAILS);
        } else {
            latency::reply(&mut reply, form, request, member, contexts);
        }
        if closes {
            reply.clear();
        }
        // Without a service time there is nothing to wait for. With steps, the object adapter's own
        // operations are answered at once, as over http: a balancer would avoid a busy member that is slow to
        // answer them, while a model chooses at random.
        let at_once = member.work.is_instant(first) || (own && member.spec.steps.is_some());
        if at_once && !receives && !(fails && failing.after.is_some()) {
            self.output.append(&mut reply);
            return closes.then_some(End::Closed);
        }
        let (id, wanted, member) = (request.id, request.wanted, member.clone());
        let given_up = self.served.spawn_local(async move {
            let _flight = member.flight();
            match failing.after.filter(|_| fails) {
                Some(after) => member.work.wait(after).await,
                None if receives => member.work.receive().await,
                None => {
                    let turn =
                        async { if own { member.work.turn().await } else { member.work.serve(first).await } };
                    if turn.await.is_err() {
                        reply.clear();
                        if wanted != Wanted::Nothing {
                            write::exception(&mut reply, form, id, &SystemException::TRANSIENT);
                        }
                    }
                }
            }
            Done { id, reply, closes }
        });
        self.cancels.insert(id, given_up);
        None
    }

    /// Queues the replies of requests that have been served; returns `true` if the connection is to be
    /// closed.
    fn done(&mut self, first: Option<Result<Done, tokio::task::JoinError>>) -> bool {
        let mut next = first;
        while let Some(done) = next {
            // A cancelled request has no reply.
            if let Ok(Done { id, reply, closes }) = done {
                self.cancels.remove(&id);
                self.output.extend_from_slice(&reply);
                if closes {
                    return true;
                }
            }
            next = self.served.try_join_next();
        }
        false
    }

    fn refuse(&mut self) -> End {
        write::error(&mut self.output, self.form);
        End::Closed
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
const FAILS: SystemException<'static> =
    SystemException { type_id: b"IDL:omg.org/CORBA/UNKNOWN:1.0", ..SystemException::TRANSIENT };

fn refusal(reply: &mut Vec<u8>, form: Form, request: &Request<'_>, why: &SystemException<'_>) {
    if request.wanted != Wanted::Nothing {
        write::exception(reply, form, request.id, why);
    }
}

async fn read(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
    input.reserve(READ);
    stream.read_buf(input).await
}
