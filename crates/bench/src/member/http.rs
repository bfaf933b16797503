//! The HTTP/1.1 member: keep-alive, pipelining, HEAD, and bodies of either framing, drained or echoed.
//!
//! An echo is the unchanged request, head and body, byte for byte (without chunk framing): it shows what a
//! balancer does to a request. It is streamed, so its length has no bound.

use std::io;
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::load_meter::{CountedRequest, LoadMeter};
use super::{MemberProtocol, MemberSpec, MemberState};
use crate::body::{self, BodyDecoder, MalformedMessage};
use crate::replay::is_dynamic;

mod admin_commands;
mod write;

use admin_commands::{AdminCommand, execute_command, parse_command};
use write::{reason_phrase, write_chunk};

/// The maximum length of a request's head.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum number of headers of a request.
const MAX_HEADERS: usize = 128;
/// The maximum length of a body of integers to shuffle.
const MAX_INTEGERS: usize = 1024 * 1024;
/// The length of output at which it is flushed.
const FLUSH: usize = 16 * 1024;

/// The form of an intended failure: `close`, or a status from 400 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureResponse {
    /// An answer with this status.
    Status(u16),
    /// The connection is closed without an answer.
    Close,
}

impl FromStr for FailureResponse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(status @ 400..=599) => Ok(Self::Status(status)),
            _ if text == "close" => Ok(Self::Close),
            _ => Err(format!("`{text}` is not a way to fail: expected `close` or a status from 400 to 599")),
        }
    }
}

/// The answer that names the member, formatted once.
pub(super) struct MemberPage {
    /// The head without the empty line.
    head: Vec<u8>,
    body: Vec<u8>,
}

impl MemberPage {
    pub(super) fn new(name: &str, length: Option<usize>) -> Self {
        let line = format!("{name}\n");
        let length = length.unwrap_or(line.len());
        let body = line.bytes().cycle().take(length).collect();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ncontent-type: text/plain\r\nx-member: {name}\r\n"
        );
        Self { head: head.into_bytes(), body }
    }
}

/// Serves one client.
pub(super) async fn connection(stream: TcpStream, member: &MemberState) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stopping = member.stopping.clone();
    let (input, output, report) = (Vec::new(), Vec::new(), Vec::new());
    let mut wire = HttpConnection { stream, stopping, input, start: 0, output, report, first: true };
    loop {
        match exchange(&mut wire, member).await {
            Ok(true) => {}
            Ok(false) => {
                wire.flush().await?;
                return wire.stream.shutdown().await;
            }
            Err(ConnectionError::Io(error)) => return Err(error),
            Err(ConnectionError::Malformed(status, why)) => {
                wire.answer(member, status, &format!("{why}\n"), false, true);
                return wire.lingering_close().await;
            }
        }
    }
}

/// The reason why a connection cannot go on.
enum ConnectionError {
    Io(io::Error),
    /// A malformed request, answered with this status and sentence.
    Malformed(u16, &'static str),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<MalformedMessage> for ConnectionError {
    fn from(MalformedMessage(why): MalformedMessage) -> Self {
        Self::Malformed(400, why)
    }
}

/// The parsed head of a request.
struct RequestHead {
    length: usize,
    minor: u8,
    is_head: bool,
    keep_alive: bool,
    expects: bool,
    body: BodyDecoder,
    admin_command: Option<AdminCommand>,
    /// Whether the request is for a dynamic page that has its own service time.
    dynamic: bool,
    /// Whether the request only delivers a message.
    receive: bool,
}

/// Serves one request; returns `true` if the connection may carry another.
async fn exchange(wire: &mut HttpConnection, member: &MemberState) -> Result<bool, ConnectionError> {
    let Some(head) = wire.head(&member.spec).await? else { return Ok(false) };
    let keep = head.keep_alive && !*wire.stopping.borrow();
    let raw = match member.spec.protocol {
        MemberProtocol::HttpEcho => Some(wire.input[wire.start..wire.start + head.length].to_vec()),
        _ => None,
    };
    wire.start += head.length;
    if head.expects && wire.pending().is_empty() {
        wire.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    if let Some(order) = head.admin_command {
        wire.drain(head.body).await?;
        execute_command(wire, member, &order, head.is_head, keep);
        return Ok(keep);
    }
    if head.receive {
        wire.drain(head.body).await?;
        member.work.receive().await;
        wire.page(member, &head, keep).await?;
        return Ok(keep);
    }
    member.requests.set(member.requests.get() + 1);
    let _flight = member.track_in_flight();
    let mut metered =
        match member.meter.as_ref().map_or_else(|| Ok(CountedRequest::default()), LoadMeter::begin) {
            Ok(metered) => metered,
            Err(refusal) => {
                wire.drain(head.body).await?;
                wire.report = refusal;
                wire.answer(member, 503, "", head.is_head, !keep);
                return Ok(keep);
            }
        };
    let failing = member.failure_mode.get();
    let fails = member.rng.borrow_mut().bernoulli(failing.rate);
    let first = std::mem::take(&mut wire.first);
    if let (Some(raw), false) = (raw, fails) {
        let served = wire.run_cancellable(member, member.work.serve_page(first, head.dynamic)).await?;
        wire.report = metered.end(served.is_ok());
        if served.is_err() {
            wire.drain(head.body).await?;
            wire.answer(member, 503, "the queue is full\n", head.is_head, !keep);
            return Ok(keep);
        }
        return wire.echo(member, &head, &raw, keep).await;
    }
    if let (Some(swaps), false) = (member.spec.swaps, fails) {
        let body = wire.read_body(head.body).await?;
        let shuffled = member.work.shuffle(body, swaps).await;
        wire.report = metered.end(shuffled.is_ok());
        match shuffled {
            Ok(shuffled) => wire.integers(member, &head, &shuffled, keep),
            Err(_) => wire.answer(member, 503, "the queue is full\n", head.is_head, !keep),
        }
        return Ok(keep);
    }
    wire.drain(head.body).await?;
    let served = match failing.after.filter(|_| fails) {
        Some(after) => {
            member.work.sleep(after).await;
            Ok(())
        }
        None => wire.run_cancellable(member, member.work.serve_page(first, head.dynamic)).await?,
    };
    let status = match (served, fails, failing.refusal) {
        (Err(_), ..) => 503,
        (Ok(()), false, _) => 200,
        (Ok(()), true, FailureResponse::Status(status)) => status,
        (Ok(()), true, FailureResponse::Close) => return Ok(false),
    };
    wire.report = metered.end(status < 500);
    match served {
        Err(_) => wire.answer(member, status, "the queue is full\n", head.is_head, !keep),
        Ok(()) if fails => wire.answer(member, status, "it fails as it was told to\n", head.is_head, !keep),
        Ok(()) => wire.page(member, &head, keep).await?,
    }
    Ok(keep)
}

/// A connection with its input and output buffers.
struct HttpConnection {
    stream: TcpStream,
    stopping: watch::Receiver<bool>,
    input: Vec<u8>,
    /// The number of bytes of `input` that are consumed.
    start: usize,
    output: Vec<u8>,
    /// A header line for the next head, if the member has a meter.
    report: Vec<u8>,
    /// Whether no request has been served yet.
    first: bool,
}

impl HttpConnection {
    fn pending(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Returns the next head, which stays in `input`; `None` if the client sends no more or the member stops.
    async fn head(&mut self, spec: &MemberSpec) -> Result<Option<RequestHead>, ConnectionError> {
        loop {
            // Empty lines before a request are to be ignored (RFC 9112 section 2.2).
            while self.pending().starts_with(b"\r\n") {
                self.start += 2;
            }
            if !self.pending().is_empty() {
                if let Some(head) = parse(self.pending(), spec)? {
                    return Ok(Some(head));
                }
                if self.pending().len() >= MAX_HEAD {
                    return Err(ConnectionError::Malformed(431, "the head of the request is too long"));
                }
                if !self.read_more().await? {
                    return Ok(None);
                }
                continue;
            }
            self.flush().await?;
            let mut stopping = self.stopping.clone();
            tokio::select! {
                more = self.read_more() => if !more? { return Ok(None) },
                _ = stopping.wait_for(|stopping| *stopping) => return Ok(None),
            }
        }
    }

    /// Flushes the output and reads more input; returns `false` at the end of the input.
    async fn read_more(&mut self) -> io::Result<bool> {
        self.flush().await?;
        self.input.drain(..self.start);
        self.start = 0;
        self.input.reserve(FLUSH);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        Ok(())
    }

    /// Performs the work of a request; cancels it if the client has gone and the member notices that.
    async fn run_cancellable<T>(
        &mut self,
        member: &MemberState,
        work: impl Future<Output = T>,
    ) -> io::Result<T> {
        if member.spec.cores.is_none() || member.spec.ignore_cancel {
            return Ok(work.await);
        }
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.client_closed() => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Waits until the client closes its side. Input that arrives before is kept.
    async fn client_closed(&mut self) {
        // A client that sends that much ahead has not gone and need not be watched.
        while self.pending().len() < MAX_HEAD {
            self.input.reserve(FLUSH);
            if !matches!(self.stream.read_buf(&mut self.input).await, Ok(count) if count > 0) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Reads a body and discards it.
    async fn drain(&mut self, mut body: BodyDecoder) -> Result<(), ConnectionError> {
        loop {
            let piece = body.decode(self.pending())?;
            self.start += piece.consumed;
            if piece.done {
                return Ok(());
            }
            if self.pending().is_empty() && !self.read_more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Reads a body and returns it.
    async fn read_body(&mut self, mut body: BodyDecoder) -> Result<Vec<u8>, ConnectionError> {
        let mut taken = Vec::new();
        loop {
            let piece = body.decode(self.pending())?;
            let data = self.start + piece.data.start..self.start + piece.data.end;
            if taken.len() + data.len() > MAX_INTEGERS {
                return Err(ConnectionError::Malformed(413, "more integers than are shuffled at once"));
            }
            taken.extend_from_slice(&self.input[data]);
            self.start += piece.consumed;
            if piece.done {
                return Ok(taken);
            }
            if self.pending().is_empty() && !self.read_more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Writes an answer of integers.
    fn integers(&mut self, member: &MemberState, head: &RequestHead, bytes: &[u8], keep: bool) {
        let start = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-type: application/octet-stream\r\nx-member: \
             {}\r\n",
            bytes.len(),
            member.name
        );
        self.output.extend_from_slice(start.as_bytes());
        self.end_head(head.minor, keep);
        if !head.is_head {
            self.output.extend_from_slice(bytes);
        }
    }

    /// Writes an answer that holds the unchanged request.
    async fn echo(
        &mut self,
        member: &MemberState,
        head: &RequestHead,
        raw: &[u8],
        keep: bool,
    ) -> Result<bool, ConnectionError> {
        let mut body = head.body;
        let length = match body {
            BodyDecoder::Length(length) => Some(length.saturating_add(raw.len() as u64)),
            _ => None,
        };
        let start = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-member: {}\r\n", member.name);
        self.output.extend_from_slice(start.as_bytes());
        let framing = length.map_or_else(
            || "transfer-encoding: chunked\r\n".to_owned(),
            |n| format!("content-length: {n}\r\n"),
        );
        self.output.extend_from_slice(framing.as_bytes());
        self.end_head(head.minor, keep);
        if head.is_head {
            self.drain(body).await?;
            return Ok(keep);
        }
        let chunked = length.is_none();
        write_chunk(&mut self.output, raw, chunked);
        loop {
            let piece = body.decode(&self.input[self.start..])?;
            let data = self.start + piece.data.start..self.start + piece.data.end;
            write_chunk(&mut self.output, &self.input[data], chunked);
            self.start += piece.consumed;
            if piece.done {
                break;
            }
            if self.output.len() >= FLUSH {
                self.flush().await?;
            }
            if self.pending().is_empty() && !self.read_more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        if chunked {
            self.output.extend_from_slice(b"0\r\n\r\n");
        }
        Ok(keep)
    }

    /// Writes the member's page.
    async fn page(&mut self, member: &MemberState, head: &RequestHead, keep: bool) -> io::Result<()> {
        self.output.extend_from_slice(&member.page.head);
        self.end_head(head.minor, keep);
        if head.is_head {
            return Ok(());
        }
        if member.page.body.len() < FLUSH {
            self.output.extend_from_slice(&member.page.body);
            return if self.output.len() >= FLUSH { self.flush().await } else { Ok(()) };
        }
        self.flush().await?;
        self.stream.write_all(&member.page.body).await
    }

    /// Writes an answer of one sentence.
    fn answer(&mut self, member: &MemberState, status: u16, body: &str, is_head: bool, close: bool) {
        let head = format!(
            "HTTP/1.1 {status} {}\r\ncontent-length: {}\r\ncontent-type: text/plain\r\nx-member: {}\r\n",
            reason_phrase(status),
            body.len(),
            member.name
        );
        self.output.extend_from_slice(head.as_bytes());
        self.end_head(1, !close);
        if !is_head {
            self.output.extend_from_slice(body.as_bytes());
        }
    }

    fn end_head(&mut self, minor: u8, keep: bool) {
        self.output.append(&mut self.report);
        self.output.extend_from_slice(match (keep, minor) {
            (true, 0) => b"connection: keep-alive\r\n\r\n",
            (true, _) => b"\r\n",
            (false, _) => b"connection: close\r\n\r\n",
        });
    }

    /// Flushes the output and closes without losing it: unread input would make the kernel reset the
    /// connection before the client has read the answer.
    async fn lingering_close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        let deadline = Duration::from_secs(1);
        let rest = async {
            for _ in 0..64 {
                self.input.clear();
                self.input.reserve(FLUSH);
                if self.stream.read_buf(&mut self.input).await? == 0 {
                    break;
                }
            }
            Ok(())
        };
        tokio::time::timeout(deadline, rest).await.unwrap_or(Ok(()))
    }
}

/// Parses the head at the beginning of `bytes`; `None` if it is incomplete.
fn parse(bytes: &[u8], spec: &MemberSpec) -> Result<Option<RequestHead>, MalformedMessage> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(MalformedMessage("the head of the request is malformed")),
    };
    let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
    let minor = request.version.unwrap_or(0);
    if minor == 1 && body::values(request.headers, "host").count() != 1 {
        return Err(MalformedMessage("expected one host header"));
    }
    let obeys = spec.admin || spec.admin_address.is_some();
    let order = target.strip_prefix("/_plimsoll/").filter(|_| obeys).map(|rest| parse_command(method, rest));
    Ok(Some(RequestHead {
        length,
        minor,
        is_head: method == "HEAD",
        keep_alive: body::keeps_alive(minor, request.headers),
        expects: minor == 1
            && body::values(request.headers, "expect")
                .any(|value| value.eq_ignore_ascii_case(b"100-continue")),
        body: BodyDecoder::of_request(minor, request.headers)?,
        admin_command: order,
        dynamic: spec.dynamic.is_some() && is_dynamic(target),
        receive: spec.receive_steps.is_some() && target == "/receive",
    }))
}
