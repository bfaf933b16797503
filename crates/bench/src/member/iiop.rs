//! The CORBA member: the object of the papers on balancing CORBA, which says whether a number is prime, and one operation
//! for each thing that a balancer could spoil on its way.
//!
//! It speaks GIOP 1.0 to 1.2 in either order of bytes and answers to any object key. The requests of one connection are
//! served side by side, as far as there are workers, and answered as they are done. Each reply says in a service context
//! of its own who gave it; clients leave aside what they do not know.

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

/// The id of the service context of a reply that names the member.
pub const MEMBER_CONTEXT: u32 = 0x504c_4d01;

/// The id of the service context that makes a message as long as it is to be.
pub(crate) const PADDING_CONTEXT: u32 = 0x504c_4d02;
/// The key of the object whose calls only bring a message.
pub(crate) const RECEIVE: &str = "Receive";

/// Longest message, and most bytes in fragments of one connection.
const MOST_BYTES: usize = 64 << 20;
/// Most messages in fragments at a time on one connection.
const MOST_OPEN: usize = 64;
/// Most requests in service at a time on one connection; more are left unread.
const MOST_SERVED: usize = 1024;
/// What is read at a time, at least.
const READ: usize = 16 * 1024;

/// The reference of a member that listens on `address`; on any address, it is reached on this machine only.
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
        // A server that does not notice goes on with the work.
        while wire.served.join_next().await.is_some() {}
    }
    ended.map(drop)
}

/// A connection and what is on its way in and out of it.
struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    assembler: Assembler,
    /// Requests in service.
    served: JoinSet<Done>,
    /// How to give them up, by their ids.
    cancels: HashMap<u32, AbortHandle>,
    /// Of the last message that came.
    form: Form,
    /// No request has been served yet.
    first: bool,
    member: Rc<Member>,
}

/// A request that has been served.
struct Done {
    id: u32,
    /// Its reply, empty for a oneway.
    reply: Vec<u8>,
    /// The connection ends with it.
    closes: bool,
}

/// Why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client sends no more.
    Gone,
    /// This side closes it.
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

    /// Takes what has come, as long as requests may be served; how the connection ends, if it does.
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
        // Without a service time there is nothing to wait for; and what a server of an application says of itself comes at once, as over
        // http: a balancer that found it silent would pass it over while it is busy, where a model goes by chance.
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

    /// Requests have been served: their replies go out. Is the connection to be closed?
    fn done(&mut self, first: Option<Result<Done, tokio::task::JoinError>>) -> bool {
        let mut next = first;
        while let Some(done) = next {
            // What was given up has no reply.
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

/// What a request gets that fails as the member was told to.
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
