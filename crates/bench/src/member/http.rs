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
const FLUSH_BYTES: usize = 16 * 1024;

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
        let name_line = format!("{name}\n");
        let length = length.unwrap_or(name_line.len());
        let body = name_line.bytes().cycle().take(length).collect();
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
    let mut connection =
        HttpConnection { stream, stopping, input, consumed: 0, output, report, is_first: true };
    loop {
        match exchange(&mut connection, member).await {
            Ok(true) => {}
            Ok(false) => {
                connection.flush().await?;
                return connection.stream.shutdown().await;
            }
            Err(ConnectionError::Io(error)) => return Err(error),
            Err(ConnectionError::Malformed(status, reason)) => {
                connection.write_answer(member, status, &format!("{reason}\n"), false, true);
                return connection.lingering_close().await;
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
    fn from(MalformedMessage(reason): MalformedMessage) -> Self {
        Self::Malformed(400, reason)
    }
}

/// The parsed head of a request.
struct RequestHead {
    length: usize,
    minor_version: u8,
    is_head: bool,
    keep_alive: bool,
    expects_continue: bool,
    body: BodyDecoder,
    admin_command: Option<AdminCommand>,
    /// Whether the request is for a dynamic page that has its own service time.
    is_dynamic: bool,
    /// Whether the request only delivers a message.
    is_receive: bool,
}

/// Serves one request; returns `true` if the connection may carry another.
async fn exchange(connection: &mut HttpConnection, member: &MemberState) -> Result<bool, ConnectionError> {
    let Some(head) = connection.read_head(&member.spec).await? else { return Ok(false) };
    let keep_alive = head.keep_alive && !*connection.stopping.borrow();
    let raw_head = match member.spec.protocol {
        MemberProtocol::HttpEcho => {
            Some(connection.input[connection.consumed..connection.consumed + head.length].to_vec())
        }
        _ => None,
    };
    connection.consumed += head.length;
    if head.expects_continue && connection.pending().is_empty() {
        connection.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    if let Some(command) = head.admin_command {
        connection.drain(head.body).await?;
        execute_command(connection, member, &command, head.is_head, keep_alive);
        return Ok(keep_alive);
    }
    if head.is_receive {
        connection.drain(head.body).await?;
        member.worker_pool.receive().await;
        connection.write_page(member, &head, keep_alive).await?;
        return Ok(keep_alive);
    }
    member.requests.set(member.requests.get() + 1);
    let _flight = member.track_in_flight();
    let mut counted_request =
        match member.meter.as_ref().map_or_else(|| Ok(CountedRequest::default()), LoadMeter::begin) {
            Ok(counted_request) => counted_request,
            Err(report) => {
                connection.drain(head.body).await?;
                connection.report = report;
                connection.write_answer(member, 503, "", head.is_head, !keep_alive);
                return Ok(keep_alive);
            }
        };
    let failure_mode = member.failure_mode.get();
    let should_fail = member.rng.borrow_mut().bernoulli(failure_mode.rate);
    let is_first = std::mem::take(&mut connection.is_first);
    if let (Some(raw_head), false) = (raw_head, should_fail) {
        let result = connection
            .run_cancellable(member, member.worker_pool.serve_page(is_first, head.is_dynamic))
            .await?;
        connection.report = counted_request.end(result.is_ok());
        if result.is_err() {
            connection.drain(head.body).await?;
            connection.write_answer(member, 503, "the queue is full\n", head.is_head, !keep_alive);
            return Ok(keep_alive);
        }
        return connection.write_echo(member, &head, &raw_head, keep_alive).await;
    }
    if let (Some(swaps), false) = (member.spec.swaps, should_fail) {
        let body = connection.read_body(head.body).await?;
        let result = member.worker_pool.shuffle(body, swaps).await;
        connection.report = counted_request.end(result.is_ok());
        match result {
            Ok(bytes) => connection.write_integers(member, &head, &bytes, keep_alive),
            Err(_) => connection.write_answer(member, 503, "the queue is full\n", head.is_head, !keep_alive),
        }
        return Ok(keep_alive);
    }
    connection.drain(head.body).await?;
    let result = match failure_mode.after.filter(|_| should_fail) {
        Some(delay) => {
            member.worker_pool.sleep(delay).await;
            Ok(())
        }
        None => {
            connection
                .run_cancellable(member, member.worker_pool.serve_page(is_first, head.is_dynamic))
                .await?
        }
    };
    let status = match (result, should_fail, failure_mode.refusal) {
        (Err(_), ..) => 503,
        (Ok(()), false, _) => 200,
        (Ok(()), true, FailureResponse::Status(status)) => status,
        (Ok(()), true, FailureResponse::Close) => return Ok(false),
    };
    connection.report = counted_request.end(status < 500);
    match result {
        Err(_) => connection.write_answer(member, status, "the queue is full\n", head.is_head, !keep_alive),
        Ok(()) if should_fail => {
            connection.write_answer(member, status, "it fails as it was told to\n", head.is_head, !keep_alive)
        }
        Ok(()) => connection.write_page(member, &head, keep_alive).await?,
    }
    Ok(keep_alive)
}

/// A connection with its input and output buffers.
struct HttpConnection {
    stream: TcpStream,
    stopping: watch::Receiver<bool>,
    input: Vec<u8>,
    /// The number of bytes of `input` that are consumed.
    consumed: usize,
    output: Vec<u8>,
    /// A header line for the next head, if the member has a meter.
    report: Vec<u8>,
    /// Whether no request has been served yet.
    is_first: bool,
}

impl HttpConnection {
    fn pending(&self) -> &[u8] {
        &self.input[self.consumed..]
    }

    /// Returns the next head, which stays in `input`; `None` if the client sends no more or the member stops.
    async fn read_head(&mut self, spec: &MemberSpec) -> Result<Option<RequestHead>, ConnectionError> {
        loop {
            // Empty lines before a request are to be ignored (RFC 9112 section 2.2).
            while self.pending().starts_with(b"\r\n") {
                self.consumed += 2;
            }
            if !self.pending().is_empty() {
                if let Some(head) = parse_head(self.pending(), spec)? {
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
        self.input.drain(..self.consumed);
        self.consumed = 0;
        self.input.reserve(FLUSH_BYTES);
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
            output = work => Ok(output),
            () = self.client_closed() => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Waits until the client closes its side. Input that arrives before is kept.
    async fn client_closed(&mut self) {
        // A client that sends that much ahead has not gone and need not be watched.
        while self.pending().len() < MAX_HEAD {
            self.input.reserve(FLUSH_BYTES);
            if !matches!(self.stream.read_buf(&mut self.input).await, Ok(count) if count > 0) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Reads a body and discards it.
    async fn drain(&mut self, mut body: BodyDecoder) -> Result<(), ConnectionError> {
        loop {
            let decoded = body.decode(self.pending())?;
            self.consumed += decoded.consumed;
            if decoded.done {
                return Ok(());
            }
            if self.pending().is_empty() && !self.read_more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Reads a body and returns it.
    async fn read_body(&mut self, mut body: BodyDecoder) -> Result<Vec<u8>, ConnectionError> {
        let mut content = Vec::new();
        loop {
            let decoded = body.decode(self.pending())?;
            let data = self.consumed + decoded.data.start..self.consumed + decoded.data.end;
            if content.len() + data.len() > MAX_INTEGERS {
                return Err(ConnectionError::Malformed(413, "more integers than are shuffled at once"));
            }
            content.extend_from_slice(&self.input[data]);
            self.consumed += decoded.consumed;
            if decoded.done {
                return Ok(content);
            }
            if self.pending().is_empty() && !self.read_more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Writes an answer of integers.
    fn write_integers(&mut self, member: &MemberState, head: &RequestHead, bytes: &[u8], keep_alive: bool) {
        let header_lines = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-type: application/octet-stream\r\nx-member: \
             {}\r\n",
            bytes.len(),
            member.name
        );
        self.output.extend_from_slice(header_lines.as_bytes());
        self.end_head(head.minor_version, keep_alive);
        if !head.is_head {
            self.output.extend_from_slice(bytes);
        }
    }

    /// Writes an answer that holds the unchanged request.
    async fn write_echo(
        &mut self,
        member: &MemberState,
        head: &RequestHead,
        raw_head: &[u8],
        keep_alive: bool,
    ) -> Result<bool, ConnectionError> {
        let mut body = head.body;
        let length = match body {
            BodyDecoder::Length(length) => Some(length.saturating_add(raw_head.len() as u64)),
            _ => None,
        };
        let header_lines =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-member: {}\r\n", member.name);
        self.output.extend_from_slice(header_lines.as_bytes());
        let framing_header = length.map_or_else(
            || "transfer-encoding: chunked\r\n".to_owned(),
            |n| format!("content-length: {n}\r\n"),
        );
        self.output.extend_from_slice(framing_header.as_bytes());
        self.end_head(head.minor_version, keep_alive);
        if head.is_head {
            self.drain(body).await?;
            return Ok(keep_alive);
        }
        let is_chunked = length.is_none();
        write_chunk(&mut self.output, raw_head, is_chunked);
        loop {
            let decoded = body.decode(&self.input[self.consumed..])?;
            let data = self.consumed + decoded.data.start..self.consumed + decoded.data.end;
            write_chunk(&mut self.output, &self.input[data], is_chunked);
            self.consumed += decoded.consumed;
            if decoded.done {
                break;
            }
            if self.output.len() >= FLUSH_BYTES {
                self.flush().await?;
            }
            if self.pending().is_empty() && !self.read_more().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        if is_chunked {
            self.output.extend_from_slice(b"0\r\n\r\n");
        }
        Ok(keep_alive)
    }

    /// Writes the member's page.
    async fn write_page(
        &mut self,
        member: &MemberState,
        head: &RequestHead,
        keep_alive: bool,
    ) -> io::Result<()> {
        self.output.extend_from_slice(&member.page.head);
        self.end_head(head.minor_version, keep_alive);
        if head.is_head {
            return Ok(());
        }
        if member.page.body.len() < FLUSH_BYTES {
            self.output.extend_from_slice(&member.page.body);
            return if self.output.len() >= FLUSH_BYTES { self.flush().await } else { Ok(()) };
        }
        self.flush().await?;
        self.stream.write_all(&member.page.body).await
    }

    /// Writes an answer of one sentence.
    fn write_answer(&mut self, member: &MemberState, status: u16, body: &str, is_head: bool, close: bool) {
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

    fn end_head(&mut self, minor_version: u8, keep_alive: bool) {
        self.output.append(&mut self.report);
        self.output.extend_from_slice(match (keep_alive, minor_version) {
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
        let drain_input = async {
            for _ in 0..64 {
                self.input.clear();
                self.input.reserve(FLUSH_BYTES);
                if self.stream.read_buf(&mut self.input).await? == 0 {
                    break;
                }
            }
            Ok(())
        };
        tokio::time::timeout(deadline, drain_input).await.unwrap_or(Ok(()))
    }
}

/// Parses the head at the beginning of `bytes`; `None` if it is incomplete.
fn parse_head(bytes: &[u8], spec: &MemberSpec) -> Result<Option<RequestHead>, MalformedMessage> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(MalformedMessage("the head of the request is malformed")),
    };
    let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
    let minor_version = request.version.unwrap_or(0);
    if minor_version == 1 && body::values(request.headers, "host").count() != 1 {
        return Err(MalformedMessage("expected one host header"));
    }
    let accepts_commands = spec.admin || spec.admin_address.is_some();
    let admin_command = target
        .strip_prefix("/_plimsoll/")
        .filter(|_| accepts_commands)
        .map(|rest| parse_command(method, rest));
    Ok(Some(RequestHead {
        length,
        minor_version,
        is_head: method == "HEAD",
        keep_alive: body::keeps_alive(minor_version, request.headers),
        expects_continue: minor_version == 1
            && body::values(request.headers, "expect")
                .any(|value| value.eq_ignore_ascii_case(b"100-continue")),
        body: BodyDecoder::of_request(minor_version, request.headers)?,
        admin_command,
        is_dynamic: spec.dynamic.is_some() && is_dynamic(target),
        is_receive: spec.receive_steps.is_some() && target == "/receive",
    }))
}
