//! One request and its response between two streams: both bodies at the same time, each at the speed of its
//! reader.
//!
//! Bytes go from one socket's read straight into the other's write. Only bytes that a socket does not accept
//! are buffered. While bytes are buffered for one side, nothing more is read from the other: that is the
//! back-pressure, which bounds the memory of a connection to one read.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_wire::http1::{self, BadResponse, Body, Method, Passed, Rewrite, Unread};

use super::ending::{Answer, End, Failure};
use super::{Asked, Session, Stream, ending};
use crate::ListenerSettings;
use crate::core::Core;
use crate::reason::Reason;
use crate::relay;
use crate::residue::Residue;
use crate::trip::Trip;

mod patience;
mod report;
mod straight;

/// The maximum size of a body that is copied behind its head, to send both by one call without gathering.
const COPY: usize = 4096;
/// The maximum of pipelined bytes that are kept; beyond that, the client is not read.
pub(super) const AHEAD: usize = 64 * 1024;
/// The maximum of request bytes after the head that are kept, for requests by a stream of HTTP/2.
const KEPT: usize = 64 * 1024;
/// The maximum number of interim responses (1xx) to one request; more are an error.
const INTERIM: u32 = 32;
/// The number of reads and writes of one connection before other tasks run.
const TURNS: u32 = 32;
/// The delay before checking for client disconnect: most responses arrive earlier.
const UNWATCHED: Duration = Duration::from_millis(100);

struct Exchange<'a, S, M> {
    core: &'a Core,
    session: &'a mut Session<S>,
    asked: &'a mut Asked,
    member: &'a mut M,
    member_watched: bool,
    trip: &'a Trip,
    settings: Rc<ListenerSettings>,
    deadline: Time,
    per_try: Time,
    /// The number of bytes of `asked.out` that were sent.
    sent: usize,
    to_member: Residue,
    to_client: Residue,
    /// The beginning of a response head.
    partial: Vec<u8>,
    answer: Answer,
    status: u16,
    /// Whether chunks are decoded for a client of HTTP/1.0.
    unchunk: bool,
    /// The trailers of the response.
    trailers: http1::Trailers,
    /// Whether the response announces a load report in its trailers.
    reports_after: bool,
    keep_member: bool,
    keep_client: bool,
    /// Whether any of the final response was forwarded to the client. After interim responses, another one
    /// may still follow.
    answered: bool,
    /// Whether any byte has arrived from the member.
    heard: bool,
    /// Whether the member accepts no more of the request; its response is still to be read.
    deaf: bool,
    client_ended: bool,
    /// Whether the member has no room. Then nothing of its response is forwarded.
    refused: bool,
    /// The number of interim responses so far.
    interim: u32,
    /// The first deadline; the timer may fire earlier.
    due: Time,
    /// The time at which checking for client disconnect begins.
    watch_at: Time,
    /// Whether the client is checked for disconnect while the response is awaited.
    watching: bool,
}

impl<S: Stream> Session<S> {
    /// Sends the request to the member and its response to the client. `reused` is `true` if the connection
    /// served another request before.
    pub(super) async fn exchange<M: Stream>(
        &mut self,
        asked: &mut Asked,
        member: &mut M,
        trip: &Trip,
        deadline: Time,
        reused: bool,
    ) -> Result<End, Failure> {
        let core = Rc::clone(&self.core);
        let settings = self.listener.settings();
        let per_try = trip.settings().timeouts.per_try;
        let now = core.now();
        if let Some(framed) = &mut asked.framed {
            // State of a previous attempt.
            framed.to_member = None;
        }
        let mut exchange = Exchange {
            core: &core,
            settings,
            deadline,
            per_try: if per_try.is_zero() { Time(u64::MAX) } else { now + per_try },
            sent: 0,
            to_member: Residue::default(),
            to_client: Residue::default(),
            partial: Vec::new(),
            answer: Answer::Head,
            status: 0,
            unchunk: false,
            trailers: http1::Trailers::default(),
            reports_after: false,
            keep_member: true,
            keep_client: asked.keep_alive,
            answered: false,
            heard: false,
            deaf: false,
            client_ended: false,
            refused: false,
            interim: 0,
            due: Time(u64::MAX),
            watch_at: now + UNWATCHED,
            watching: self.stream.shared(),
            session: self,
            member_watched: false,
            asked,
            member,
            trip,
        };
        exchange.rearm(now);
        let outcome = poll_fn(|cx| exchange.poll(cx)).await;
        exchange.session.kept.clear();
        match outcome {
            Ok(()) => {}
            Err(Failure::Member(Reason::Reset, _)) if exchange.member.declined() && !exchange.heard => {
                return Err(Failure::Declined);
            }
            Err(Failure::Member(Reason::Reset, _))
                if !exchange.heard && (reused || exchange.member.untouched()) =>
            {
                return Err(Failure::Stale(exchange.member.untouched()));
            }
            Err(failure) => {
                if matches!(failure, Failure::Broken | Failure::Quiet) && exchange.ends_by_closing() {
                    exchange.session.stream.abort();
                }
                return Err(failure);
            }
        }
        let mut end = End {
            status: exchange.status,
            at: core.now(),
            keep_member: exchange.keep_member && exchange.sent_whole(),
            keep_client: exchange.keep_client && exchange.asked.body.done() && !exchange.client_ended,
            refused: exchange.refused,
        };
        if let Answer::Tunnel = exchange.answer {
            trip.waits(true, true, &exchange.session.core);
            let idle = exchange.settings.timeouts.tunnel;
            let (session, member) = (exchange.session, exchange.member);
            session.stream.keepalive();
            member.keepalive();
            let unread = std::mem::take(&mut session.unread);
            // On the heap: few connections need it, and it would enlarge all of them.
            Box::pin(relay::copy(
                &session.core,
                &session.timer,
                relay::Quiet::end(idle),
                (&mut session.stream, member),
                unread,
                &trip.upstream,
            ))
            .await;
            (end.keep_member, end.keep_client) = (false, false);
        }
        Ok(end)
    }
}

impl<S: Stream, M: Stream> Exchange<'_, S, M> {
    // Inlined once in each task: a call would cost more than the work in it.
    #[inline(always)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.session.timer.fired() {
            self.look()?;
        }
        let core = self.core;
        let heard = self.heard;
        let mut turns = 0;
        let done = match self.asked.framed {
            Some(_) => self.straight(cx, &mut turns)?,
            None => core.lend(|buffer, scratch| {
                while turns < TURNS && self.request(cx, buffer)? {
                    turns += 1;
                }
                while turns < TURNS && self.answer(cx, buffer, scratch)? {
                    turns += 1;
                    scratch.clear();
                    if matches!(self.answer, Answer::Done) && self.to_client.is_empty() {
                        return Ok(true);
                    }
                }
                Ok(matches!(self.answer, Answer::Tunnel) && self.to_client.is_empty() && self.sent_whole())
            })?,
        };
        if done {
            self.trip.head_came(core.tick());
            return Poll::Ready(Ok(()));
        }
        let sent = self.asked.body.done();
        self.trip.waits(sent, !matches!(self.answer, Answer::Head), core);
        if sent && self.asked.metered.is_coming() {
            self.asked.metered.came(core.tick());
        }
        if turns == TURNS {
            cx.waker().wake_by_ref();
        }
        if self.watching && !self.client_ended {
            let (done, text) = (self.asked.body.done(), self.asked.framed.is_none());
            if done && text {
                core.lend(|buffer, _| self.watch_client(cx, buffer))?;
            } else if (done || self.unread()) && self.session.stream.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(Failure::Client(self.answered)));
            }
        }
        let bodied = self.asked.came || !self.asked.body.done();
        if turns > 0 && (heard || self.heard || bodied) {
            self.extend();
        }
        Poll::Pending
    }

    /// Moves the request on; returns `true` if any bytes moved.
    fn request(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Result<bool, Failure> {
        if self.deaf {
            return Ok(false);
        }
        if self.sent < self.asked.out.len() {
            return match self.member.poll_send(cx, &self.asked.out[self.sent..]) {
                Poll::Ready(Ok(sent)) if sent > 0 => {
                    self.sent += sent;
                    self.trip.stripe().bytes_out.add(sent as u64);
                    Ok(true)
                }
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput => {
                    Err(Failure::Refused(Reason::BadRequest))
                }
                Poll::Ready(_) => self.refused_by_member(),
                Poll::Pending => Ok(false),
            };
        }
        if !self.to_member.is_empty() {
            return match self.to_member.poll_send(cx, &mut *self.member) {
                Poll::Ready(Ok(sent)) => {
                    self.trip.stripe().bytes_out.add(sent as u64);
                    Ok(true)
                }
                Poll::Ready(Err(_)) => self.refused_by_member(),
                Poll::Pending => Ok(false),
            };
        }
        if self.asked.body.done() { Ok(false) } else { self.body(cx, buffer) }
    }

    /// Moves the request's body on; returns `true` if any bytes moved. Out of line: most requests have no
    /// body, or it arrived with the head.
    #[inline(never)]
    fn body(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Result<bool, Failure> {
        let session = &mut *self.session;
        let input = match session.stream.poll_recv(cx, buffer, &mut session.watched) {
            Poll::Ready(Ok(came)) if came > 0 => &buffer[..came],
            Poll::Ready(_) => return Err(Failure::Client(self.answered)),
            Poll::Pending => return Ok(false),
        };
        let mut anew = Vec::new();
        let passed = match self.asked.trailers.pass(&mut self.asked.body, input, &mut anew, |_, _| true) {
            Ok(passed) => passed,
            Err(_) if self.answered => return Err(Failure::Client(true)),
            Err(_) => return Err(Failure::Refused(Reason::BadRequest)),
        };
        self.session.unread.extend_from_slice(&input[passed.taken..]);
        self.asked.came = true;
        let text = if passed.as_is { &input[..passed.taken] } else { &anew[..] };
        if text.is_empty() {
            return Ok(true);
        }
        if !self.asked.streamed && self.asked.out.len() + text.len() <= KEPT && self.session.stream.shared() {
            // Sent from there, and sent again if the member did not process it: most calls are that small.
            self.asked.out.extend_from_slice(text);
            return Ok(true);
        }
        self.asked.streamed = true;
        match self.to_member.send_or_keep(cx, &mut *self.member, &[], text) {
            Ok(sent) => self.trip.stripe().bytes_out.add(sent as u64),
            Err(_) => return self.refused_by_member(),
        }
        if self.to_member.is_empty() { Ok(true) } else { self.keep() }
    }

    /// Draws on the memory budget for bytes that were not accepted at once.
    #[cold]
    fn keep(&mut self) -> Result<bool, Failure> {
        let session = &mut *self.session;
        let bytes = self.to_member.len() + self.to_client.len() + session.unread.capacity();
        match session.kept.grow(&self.core.census.memory, bytes) {
            true => Ok(true),
            false if self.answered => Err(Failure::Client(true)),
            false => Err(Failure::Refused(Reason::Memory)),
        }
    }

    /// Handles a member's connection that accepts no more bytes. The member may have responded before it
    /// closed: its response is still to be read.
    fn refused_by_member(&mut self) -> Result<bool, Failure> {
        if matches!(self.answer, Answer::Tunnel) {
            // The member switched protocols before it had the request, and will never receive all of it.
            return Err(Failure::Broken);
        }
        self.deaf = true;
        self.keep_client = false;
        Ok(true)
    }

    /// Moves the response on; returns `true` if any bytes moved.
    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        if !self.to_client.is_empty() {
            return match self.to_client.poll_send(cx, &mut self.session.stream) {
                Poll::Ready(Ok(_)) => Ok(true),
                Poll::Ready(Err(_)) => Err(Failure::Client(self.answered)),
                Poll::Pending => Ok(false),
            };
        }
        if matches!(self.answer, Answer::Done | Answer::Tunnel) {
            return Ok(false);
        }
        let kept = self.partial.len();
        if kept > 0 {
            buffer[..kept].copy_from_slice(&self.partial);
        }
        let came = match self.member.poll_recv(cx, &mut buffer[kept..], &mut self.member_watched) {
            Poll::Ready(Ok(came)) => came,
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => return Err(self.malformed()),
            Poll::Ready(Err(_)) => return self.ended(true),
            Poll::Pending => return Ok(false),
        };
        if came == 0 {
            return self.ended(false);
        }
        self.heard = true;
        self.trip.stripe().bytes_in.add(came as u64);
        self.partial.clear();
        let input = &buffer[..kept + came];
        let body = self.digest(input, scratch)?;
        if body.len() <= COPY && !scratch.is_empty() {
            scratch.extend_from_slice(body);
            self.pass_on(cx, scratch, &[])
        } else {
            self.pass_on(cx, scratch, body)
        }
    }

    /// Parses a response's bytes: appends the part to be sent first to `scratch`, and returns the part that
    /// follows unchanged.
    fn digest<'b>(&mut self, input: &'b [u8], scratch: &mut Vec<u8>) -> Result<&'b [u8], Failure> {
        let core = self.core;
        let mut rest = input;
        let mut marks = core.marks.borrow_mut();
        while let Answer::Head = self.answer {
            let to_head = self.asked.method == Method::Head;
            // Not moved out: it is large.
            let read = http1::response(rest, self.settings.max_head, to_head, &mut marks);
            let head = match &read {
                Ok(head) => head,
                Err(Unread::Partial) => {
                    self.partial.extend_from_slice(rest);
                    return Ok(&[]);
                }
                Err(Unread::Bad(bad)) => {
                    let bad = *bad;
                    drop(marks);
                    return self.spaced(rest, bad, scratch);
                }
            };
            let (text, after) = rest.split_at(head.len);
            rest = after;
            if head.interim() {
                self.interim += 1;
                if self.interim > INTERIM {
                    return Err(self.bad_answer());
                }
                if !self.asked.http10 {
                    head.write(Rewrite::default(), b"", scratch);
                }
                continue;
            }
            self.status = head.status;
            if head.status == 101 {
                self.switch(head, scratch)?;
                return Ok(rest);
            }
            if self.asked.upgrade && matches!(head.status, 200..300) && self.session.stream.tunnels() {
                // Forwarded, this response would announce a tunnel (RFC 8441 section 5).
                return Err(self.bad_answer());
            }
            self.keep_member &= head.keep_alive;
            let chunked = matches!(head.body, Body::Chunked(_));
            self.unchunk = self.asked.http10 && chunked;
            if chunked {
                self.trailers = head.trailers();
            }
            self.reports_after = head.reports_after;
            self.keep_client &= self.asked.body.done()
                && !self.unchunk
                && head.body != Body::UntilClose
                && !self.session.ending()
                && !self.session.sheds(self.asked);
            if let Some(value) = head.report {
                let unavailable = || report::unavailable(text, head.body.done());
                self.hear(head.status, unavailable, value, head.said)?;
            }
            if !self.refused {
                let strip_report = self.trip.settings().strip_reports;
                let http10 = self.asked.http10;
                let mut more = self.asked.metered.answered(head.status, head.report, || core.tick());
                if let Some(bond) = &self.session.bond {
                    bond.borrow().told(&mut more);
                }
                head.write(Rewrite { close: !self.keep_client, http10, strip_report }, &more, scratch);
            }
            self.answer = if head.body.done() { Answer::Done } else { Answer::Body(head.body) };
        }
        let Answer::Body(body) = &mut self.answer else {
            // Unrequested bytes after the end: this connection is not reused.
            self.keep_member &= rest.is_empty();
            return Ok(&[]);
        };
        let Passed { taken, as_is } = match body {
            Body::Chunked(_) => self.chunks(rest, scratch)?,
            _ => Passed { taken: body.feed(rest).map_err(|_| self.bad_answer())?, as_is: true },
        };
        if matches!(self.answer, Answer::Body(Body::Done)) {
            self.answer = Answer::Done;
        }
        self.keep_member &= taken == rest.len();
        if self.refused {
            scratch.clear();
            return Ok(&[]);
        }
        Ok(if as_is { &rest[..taken] } else { &[] })
    }

    /// Parses a `bad` response that may become valid without white space before colons; few servers send any.
    #[cold]
    #[inline(never)]
    fn spaced(
        &mut self,
        input: &[u8],
        bad: BadResponse,
        scratch: &mut Vec<u8>,
    ) -> Result<&'static [u8], Failure> {
        match http1::close_up(input, self.settings.max_head, bad) {
            Ok(Some(anew)) => {
                let body = self.digest(&anew, scratch)?;
                scratch.extend_from_slice(body);
            }
            Ok(None) => self.partial.extend_from_slice(input),
            Err(_) => return Err(self.bad_answer()),
        }
        Ok(&[])
    }

    /// Forwards the bytes of a chunked body: appends the result to `scratch`, unless the bytes are sent
    /// unchanged.
    #[inline(never)]
    fn chunks(&mut self, input: &[u8], scratch: &mut Vec<u8>) -> Result<Passed, Failure> {
        let Answer::Body(body) = &mut self.answer else { return Ok(Passed { taken: 0, as_is: true }) };
        let mut reports = report::Trailing::new(self.reports_after, self.trip.settings().strip_reports);
        let passed = if self.refused {
            body.feed(input).map(|taken| Passed { taken, as_is: true })
        } else if self.unchunk {
            ending::unchunk(body, input, scratch).map(|taken| Passed { taken, as_is: false })
        } else {
            self.trailers.pass(body, input, scratch, |name, value| reports.keep(name, value))
        };
        if let Some(report) = reports.heard {
            // A forwarded response is no refusal, whatever its report states.
            let _ = self.trip.hear(&report, None, self.core.now());
        }
        passed.map_err(|_| self.bad_answer())
    }

    /// Handles a response after which the member speaks another protocol.
    #[cold]
    #[inline(never)]
    fn switch(&mut self, head: &http1::Response<'_, '_>, scratch: &mut Vec<u8>) -> Result<(), Failure> {
        if !self.asked.upgrade {
            return Err(self.bad_answer());
        }
        let mut more = self.asked.metered.answered(head.status, None, || self.core.tick());
        if let Some(bond) = &self.session.bond {
            bond.borrow().told(&mut more);
        }
        head.write(Rewrite::default(), &more, scratch);
        self.answer = Answer::Tunnel;
        Ok(())
    }

    fn pass_on(&mut self, cx: &mut Context<'_>, head: &[u8], body: &[u8]) -> Result<bool, Failure> {
        if head.is_empty() && body.is_empty() {
            return Ok(true);
        }
        self.answered |= !matches!(self.answer, Answer::Head);
        match self.to_client.send_or_keep(cx, &mut self.session.stream, head, body) {
            Ok(_) if self.to_client.is_empty() => Ok(true),
            Ok(_) => self.keep(),
            Err(_) => Err(Failure::Client(self.answered)),
        }
    }

    fn bad_answer(&self) -> Failure {
        if self.answered { Failure::Broken } else { Failure::Member(Reason::BadAnswer, false) }
    }

    /// Returns the failure of a member whose HTTP/2 is malformed: nothing more can be read from it.
    #[cold]
    fn malformed(&mut self) -> Failure {
        self.keep_member = false;
        self.bad_answer()
    }

    /// Returns `true` if the client detects the end of this response only by the end of its connection. A
    /// truncated response would pass for a complete one.
    fn ends_by_closing(&self) -> bool {
        self.unchunk || matches!(self.answer, Answer::Body(Body::UntilClose))
    }

    /// Handles a connection that the member closed.
    fn ended(&mut self, reset: bool) -> Result<bool, Failure> {
        self.keep_member = false;
        match &self.answer {
            Answer::Body(Body::UntilClose) if !reset => {
                self.answer = Answer::Done;
                Ok(true)
            }
            _ if self.answered => Err(Failure::Broken),
            Answer::Head if self.partial.is_empty() => {
                Err(Failure::Member(Reason::Reset, self.sent == 0 || self.member.untouched()))
            }
            _ => Err(Failure::Member(Reason::BadAnswer, false)),
        }
    }
}
