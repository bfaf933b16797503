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
use plimsoll_wire::http1::{
    self, BodyFraming, ForwardedBytes, HeadError, MethodClass, ResponseError, ResponseRewrite,
};

use super::outcome::{CompletedExchange, ExchangeFailure, ResponseProgress};
use super::{ByteStream, HttpSession, ParsedRequest, outcome};
use crate::ListenerSettings;
use crate::listener::relay;
use crate::net::reason::Reason;
use crate::net::write_buffer::WriteBuffer;
use crate::upstream::in_flight::InFlight;
use crate::upstream::thread_context::ThreadContext;

mod grpc_passthrough;
mod load_report;
mod timeouts;

/// The maximum size of a body that is copied behind its head, to send both by one call without gathering.
const MAX_COPIED_BODY: usize = 4096;
/// The maximum of pipelined bytes that are kept; beyond that, the client is not read.
pub(super) const MAX_PIPELINED: usize = 64 * 1024;
/// The maximum of request bytes after the head that are kept, for requests by a stream of HTTP/2.
const MAX_KEPT_REQUEST: usize = 64 * 1024;
/// The maximum number of interim responses (1xx) to one request; more are an error.
const MAX_INTERIM_RESPONSES: u32 = 32;
/// The number of reads and writes of one connection before other tasks run.
const MAX_STEPS: u32 = 32;
/// The delay before checking for client disconnect: most responses arrive earlier.
const CLIENT_WATCH_DELAY: Duration = Duration::from_millis(100);

struct Exchange<'a, S, M> {
    core: &'a ThreadContext,
    session: &'a mut HttpSession<S>,
    request: &'a mut ParsedRequest,
    member: &'a mut M,
    member_watched: bool,
    in_flight: &'a InFlight,
    settings: Rc<ListenerSettings>,
    deadline: Time,
    per_try: Time,
    /// The number of bytes of `asked.out` that were sent.
    sent: usize,
    to_member: WriteBuffer,
    to_client: WriteBuffer,
    /// The beginning of a response head.
    partial: Vec<u8>,
    response: ResponseProgress,
    status: u16,
    /// Whether chunks are decoded for a client of HTTP/1.0.
    decode_chunks: bool,
    /// The trailers of the response.
    trailers: http1::TrailerFilter,
    /// Whether the response announces a load report in its trailers.
    report_in_trailers: bool,
    keep_member: bool,
    keep_client: bool,
    /// Whether any of the final response was forwarded to the client. After interim responses, another one
    /// may still follow.
    answered: bool,
    /// Whether any byte has arrived from the member.
    member_responded: bool,
    /// Whether the member accepts no more of the request; its response is still to be read.
    member_stopped_reading: bool,
    client_ended: bool,
    /// Whether the member has no room. Then nothing of its response is forwarded.
    refused: bool,
    /// The number of interim responses so far.
    interim_count: u32,
    /// The first deadline; the timer may fire earlier.
    next_deadline: Time,
    /// The time at which checking for client disconnect begins.
    watch_at: Time,
    /// Whether the client is checked for disconnect while the response is awaited.
    watching: bool,
}

impl<S: ByteStream> HttpSession<S> {
    /// Sends the request to the member and its response to the client. `reused` is `true` if the connection
    /// served another request before.
    pub(super) async fn exchange<M: ByteStream>(
        &mut self,
        request: &mut ParsedRequest,
        member: &mut M,
        in_flight: &InFlight,
        deadline: Time,
        reused: bool,
    ) -> Result<CompletedExchange, ExchangeFailure> {
        let core = Rc::clone(&self.core);
        let settings = self.listener.settings();
        let per_try = in_flight.settings().timeouts.per_try;
        let now = core.now();
        if let Some(call) = &mut request.passthrough_call {
            // State of a previous attempt.
            call.pending_to_member = None;
        }
        let mut exchange = Exchange {
            core: &core,
            settings,
            deadline,
            per_try: if per_try.is_zero() { Time(u64::MAX) } else { now + per_try },
            sent: 0,
            to_member: WriteBuffer::default(),
            to_client: WriteBuffer::default(),
            partial: Vec::new(),
            response: ResponseProgress::Head,
            status: 0,
            decode_chunks: false,
            trailers: http1::TrailerFilter::default(),
            report_in_trailers: false,
            keep_member: true,
            keep_client: request.keep_alive,
            answered: false,
            member_responded: false,
            member_stopped_reading: false,
            client_ended: false,
            refused: false,
            interim_count: 0,
            next_deadline: Time(u64::MAX),
            watch_at: now + CLIENT_WATCH_DELAY,
            watching: self.stream.is_multiplexed(),
            session: self,
            member_watched: false,
            request,
            member,
            in_flight,
        };
        exchange.rearm(now);
        let outcome = poll_fn(|cx| exchange.poll(cx)).await;
        exchange.session.memory_reservation.clear();
        match outcome {
            Ok(()) => {}
            Err(ExchangeFailure::MemberFailed(Reason::Reset, _))
                if exchange.member.was_refused() && !exchange.member_responded =>
            {
                return Err(ExchangeFailure::Declined);
            }
            Err(ExchangeFailure::MemberFailed(Reason::Reset, _))
                if !exchange.member_responded && (reused || exchange.member.is_unprocessed()) =>
            {
                return Err(ExchangeFailure::StaleConnection(exchange.member.is_unprocessed()));
            }
            Err(failure) => {
                if matches!(failure, ExchangeFailure::ResponseTruncated | ExchangeFailure::IdleTimeout)
                    && exchange.is_close_delimited()
                {
                    exchange.session.stream.abort();
                }
                return Err(failure);
            }
        }
        let mut completed = CompletedExchange {
            status: exchange.status,
            ended_at: core.now(),
            keep_member: exchange.keep_member && exchange.is_request_sent(),
            keep_client: exchange.keep_client && exchange.request.body.is_done() && !exchange.client_ended,
            member_refused: exchange.refused,
        };
        if let ResponseProgress::Tunnel = exchange.response {
            in_flight.update_phase(true, true, &exchange.session.core);
            let idle = exchange.settings.timeouts.tunnel;
            let (session, member) = (exchange.session, exchange.member);
            session.stream.keepalive();
            member.keepalive();
            let unread = std::mem::take(&mut session.unread);
            // On the heap: few connections need it, and it would enlarge all of them.
            Box::pin(relay::copy(
                &session.core,
                &session.timer,
                relay::IdlePolicy::end_only(idle),
                (&mut session.stream, member),
                unread,
                &in_flight.upstream,
            ))
            .await;
            (completed.keep_member, completed.keep_client) = (false, false);
        }
        Ok(completed)
    }
}

impl<S: ByteStream, M: ByteStream> Exchange<'_, S, M> {
    // Inlined once in each task: a call would cost more than the work in it.
    #[inline(always)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeFailure>> {
        if self.session.timer.fired() {
            self.check_timeouts()?;
        }
        let core = self.core;
        let had_responded = self.member_responded;
        let mut steps = 0;
        let done = match self.request.passthrough_call {
            Some(_) => self.poll_passthrough(cx, &mut steps)?,
            None => core.with_buffers(|buffer, scratch| {
                while steps < MAX_STEPS && self.forward_request(cx, buffer)? {
                    steps += 1;
                }
                while steps < MAX_STEPS && self.forward_response(cx, buffer, scratch)? {
                    steps += 1;
                    scratch.clear();
                    if matches!(self.response, ResponseProgress::Done) && self.to_client.is_empty() {
                        return Ok(true);
                    }
                }
                Ok(matches!(self.response, ResponseProgress::Tunnel)
                    && self.to_client.is_empty()
                    && self.is_request_sent())
            })?,
        };
        if done {
            self.in_flight.record_head(core.tick());
            return Poll::Ready(Ok(()));
        }
        let sent = self.request.body.is_done();
        self.in_flight.update_phase(sent, !matches!(self.response, ResponseProgress::Head), core);
        if sent && self.request.meter.is_arriving() {
            self.request.meter.record_arrival(core.tick());
        }
        if steps == MAX_STEPS {
            cx.waker().wake_by_ref();
        }
        if self.watching && !self.client_ended {
            let (done, is_text) = (self.request.body.is_done(), self.request.passthrough_call.is_none());
            if done && is_text {
                core.with_buffers(|buffer, _| self.watch_client(cx, buffer))?;
            } else if (done || self.is_member_blocked()) && self.session.stream.poll_closed(cx).is_ready() {
                return Poll::Ready(Err(ExchangeFailure::ClientLeft(self.answered)));
            }
        }
        let has_body = self.request.body_started || !self.request.body.is_done();
        if steps > 0 && (had_responded || self.member_responded || has_body) {
            self.extend();
        }
        Poll::Pending
    }

    /// Moves the request on; returns `true` if any bytes moved.
    fn forward_request(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Result<bool, ExchangeFailure> {
        if self.member_stopped_reading {
            return Ok(false);
        }
        if self.sent < self.request.outgoing.len() {
            return match self.member.poll_send(cx, &self.request.outgoing[self.sent..]) {
                Poll::Ready(Ok(sent)) if sent > 0 => {
                    self.sent += sent;
                    self.in_flight.counters().bytes_out.add(sent as u64);
                    Ok(true)
                }
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput => {
                    Err(ExchangeFailure::RequestRejected(Reason::BadRequest))
                }
                Poll::Ready(_) => self.refused_by_member(),
                Poll::Pending => Ok(false),
            };
        }
        if !self.to_member.is_empty() {
            return match self.to_member.poll_send(cx, &mut *self.member) {
                Poll::Ready(Ok(sent)) => {
                    self.in_flight.counters().bytes_out.add(sent as u64);
                    Ok(true)
                }
                Poll::Ready(Err(_)) => self.refused_by_member(),
                Poll::Pending => Ok(false),
            };
        }
        if self.request.body.is_done() { Ok(false) } else { self.forward_request_body(cx, buffer) }
    }

    /// Moves the request's body on; returns `true` if any bytes moved. Out of line: most requests have no
    /// body, or it arrived with the head.
    #[inline(never)]
    fn forward_request_body(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<bool, ExchangeFailure> {
        let session = &mut *self.session;
        let input = match session.stream.poll_recv(cx, buffer, &mut session.watched) {
            Poll::Ready(Ok(received)) if received > 0 => &buffer[..received],
            Poll::Ready(_) => return Err(ExchangeFailure::ClientLeft(self.answered)),
            Poll::Pending => return Ok(false),
        };
        let mut rewritten = Vec::new();
        let forwarded =
            match self.request.trailers.pass(&mut self.request.body, input, &mut rewritten, |_, _| true) {
                Ok(forwarded) => forwarded,
                Err(_) if self.answered => return Err(ExchangeFailure::ClientLeft(true)),
                Err(_) => return Err(ExchangeFailure::RequestRejected(Reason::BadRequest)),
            };
        self.session.unread.extend_from_slice(&input[forwarded.consumed..]);
        self.request.body_started = true;
        let body_bytes = if forwarded.unchanged { &input[..forwarded.consumed] } else { &rewritten[..] };
        if body_bytes.is_empty() {
            return Ok(true);
        }
        if !self.request.streamed
            && self.request.outgoing.len() + body_bytes.len() <= MAX_KEPT_REQUEST
            && self.session.stream.is_multiplexed()
        {
            // Sent from there, and sent again if the member did not process it: most calls are that small.
            self.request.outgoing.extend_from_slice(body_bytes);
            return Ok(true);
        }
        self.request.streamed = true;
        match self.to_member.send_or_keep(cx, &mut *self.member, &[], body_bytes) {
            Ok(sent) => self.in_flight.counters().bytes_out.add(sent as u64),
            Err(_) => return self.refused_by_member(),
        }
        if self.to_member.is_empty() { Ok(true) } else { self.reserve_memory() }
    }

    /// Draws on the memory budget for bytes that were not accepted at once.
    #[cold]
    fn reserve_memory(&mut self) -> Result<bool, ExchangeFailure> {
        let session = &mut *self.session;
        let bytes = self.to_member.len() + self.to_client.len() + session.unread.capacity();
        match session.memory_reservation.grow(&self.core.limits.memory, bytes) {
            true => Ok(true),
            false if self.answered => Err(ExchangeFailure::ClientLeft(true)),
            false => Err(ExchangeFailure::RequestRejected(Reason::Memory)),
        }
    }

    /// Handles a member's connection that accepts no more bytes. The member may have responded before it
    /// closed: its response is still to be read.
    fn refused_by_member(&mut self) -> Result<bool, ExchangeFailure> {
        if matches!(self.response, ResponseProgress::Tunnel) {
            // The member switched protocols before it had the request, and will never receive all of it.
            return Err(ExchangeFailure::ResponseTruncated);
        }
        self.member_stopped_reading = true;
        self.keep_client = false;
        Ok(true)
    }

    /// Moves the response on; returns `true` if any bytes moved.
    fn forward_response(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<bool, ExchangeFailure> {
        if !self.to_client.is_empty() {
            return match self.to_client.poll_send(cx, &mut self.session.stream) {
                Poll::Ready(Ok(_)) => Ok(true),
                Poll::Ready(Err(_)) => Err(ExchangeFailure::ClientLeft(self.answered)),
                Poll::Pending => Ok(false),
            };
        }
        if matches!(self.response, ResponseProgress::Done | ResponseProgress::Tunnel) {
            return Ok(false);
        }
        let partial_len = self.partial.len();
        if partial_len > 0 {
            buffer[..partial_len].copy_from_slice(&self.partial);
        }
        let received = match self.member.poll_recv(cx, &mut buffer[partial_len..], &mut self.member_watched) {
            Poll::Ready(Ok(received)) => received,
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidData => return Err(self.malformed()),
            Poll::Ready(Err(_)) => return self.member_closed(true),
            Poll::Pending => return Ok(false),
        };
        if received == 0 {
            return self.member_closed(false);
        }
        self.member_responded = true;
        self.in_flight.counters().bytes_in.add(received as u64);
        self.partial.clear();
        let input = &buffer[..partial_len + received];
        let body = self.parse_response(input, scratch)?;
        if body.len() <= MAX_COPIED_BODY && !scratch.is_empty() {
            scratch.extend_from_slice(body);
            self.send_to_client(cx, scratch, &[])
        } else {
            self.send_to_client(cx, scratch, body)
        }
    }

    /// Parses a response's bytes: appends the part to be sent first to `scratch`, and returns the part that
    /// follows unchanged.
    fn parse_response<'b>(
        &mut self,
        input: &'b [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<&'b [u8], ExchangeFailure> {
        let core = self.core;
        let mut rest = input;
        let mut marks = core.marked_fields.borrow_mut();
        while let ResponseProgress::Head = self.response {
            let is_head_request = self.request.method == MethodClass::Head;
            // Not moved out: it is large.
            let parse_result =
                http1::parse_response(rest, self.settings.max_head, is_head_request, &mut marks);
            let head = match &parse_result {
                Ok(head) => head,
                Err(HeadError::Partial) => {
                    self.partial.extend_from_slice(rest);
                    return Ok(&[]);
                }
                Err(HeadError::Invalid(error)) => {
                    let error = *error;
                    drop(marks);
                    return self.parse_without_spaces(rest, error, scratch);
                }
            };
            let (head_bytes, remaining) = rest.split_at(head.len);
            rest = remaining;
            if head.is_interim() {
                self.interim_count += 1;
                if self.interim_count > MAX_INTERIM_RESPONSES {
                    return Err(self.invalid_response());
                }
                if !self.request.http10 {
                    head.write(ResponseRewrite::default(), b"", scratch);
                }
                continue;
            }
            self.status = head.status;
            if head.status == 101 {
                self.switch_protocols(head, scratch)?;
                return Ok(rest);
            }
            if self.request.upgrade && matches!(head.status, 200..300) && self.session.stream.is_tunnel() {
                // Forwarded, this response would announce a tunnel (RFC 8441 section 5).
                return Err(self.invalid_response());
            }
            self.keep_member &= head.keep_alive;
            let chunked = matches!(head.body, BodyFraming::Chunked(_));
            self.decode_chunks = self.request.http10 && chunked;
            if chunked {
                self.trailers = head.trailers();
            }
            self.report_in_trailers = head.report_in_trailers;
            self.keep_client &= self.request.body.is_done()
                && !self.decode_chunks
                && head.body != BodyFraming::UntilClose
                && !self.session.is_last_request()
                && !self.session.is_last_for_shedding(self.request);
            if let Some(value) = head.report {
                let unavailable = || load_report::is_unavailable(head_bytes, head.body.is_done());
                self.record_report(head.status, unavailable, value, head.load_report)?;
            }
            if !self.refused {
                let strip_report = self.in_flight.settings().strip_reports;
                let http10 = self.request.http10;
                let mut extra_fields =
                    self.request.meter.record_response(head.status, head.report, || core.tick());
                if let Some(binding) = &self.session.binding {
                    binding.borrow().append_headers(&mut extra_fields);
                }
                head.write(
                    ResponseRewrite { close: !self.keep_client, http10, strip_report },
                    &extra_fields,
                    scratch,
                );
            }
            self.response =
                if head.body.is_done() { ResponseProgress::Done } else { ResponseProgress::Body(head.body) };
        }
        let ResponseProgress::Body(body) = &mut self.response else {
            // Unrequested bytes after the end: this connection is not reused.
            self.keep_member &= rest.is_empty();
            return Ok(&[]);
        };
        let ForwardedBytes { consumed, unchanged } = match body {
            BodyFraming::Chunked(_) => self.forward_chunks(rest, scratch)?,
            _ => ForwardedBytes {
                consumed: body.feed(rest).map_err(|_| self.invalid_response())?,
                unchanged: true,
            },
        };
        if matches!(self.response, ResponseProgress::Body(BodyFraming::Done)) {
            self.response = ResponseProgress::Done;
        }
        self.keep_member &= consumed == rest.len();
        if self.refused {
            scratch.clear();
            return Ok(&[]);
        }
        Ok(if unchanged { &rest[..consumed] } else { &[] })
    }

    /// Parses a `bad` response that may become valid without white space before colons; few servers send any.
    #[cold]
    #[inline(never)]
    fn parse_without_spaces(
        &mut self,
        input: &[u8],
        error: ResponseError,
        scratch: &mut Vec<u8>,
    ) -> Result<&'static [u8], ExchangeFailure> {
        match http1::strip_colon_space(input, self.settings.max_head, error) {
            Ok(Some(rewritten)) => {
                let body = self.parse_response(&rewritten, scratch)?;
                scratch.extend_from_slice(body);
            }
            Ok(None) => self.partial.extend_from_slice(input),
            Err(_) => return Err(self.invalid_response()),
        }
        Ok(&[])
    }

    /// Forwards the bytes of a chunked body: appends the result to `scratch`, unless the bytes are sent
    /// unchanged.
    #[inline(never)]
    fn forward_chunks(
        &mut self,
        input: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<ForwardedBytes, ExchangeFailure> {
        let ResponseProgress::Body(body) = &mut self.response else {
            return Ok(ForwardedBytes { consumed: 0, unchanged: true });
        };
        let mut reports = load_report::TrailingReport::new(
            self.report_in_trailers,
            self.in_flight.settings().strip_reports,
        );
        let forwarded = if self.refused {
            body.feed(input).map(|consumed| ForwardedBytes { consumed, unchanged: true })
        } else if self.decode_chunks {
            outcome::decode_chunks(body, input, scratch)
                .map(|consumed| ForwardedBytes { consumed, unchanged: false })
        } else {
            self.trailers.pass(body, input, scratch, |name, value| reports.filter_field(name, value))
        };
        if let Some(report) = reports.report {
            // A forwarded response is no refusal, whatever its report states.
            let _ = self.in_flight.record_report(&report, None, self.core.now());
        }
        forwarded.map_err(|_| self.invalid_response())
    }

    /// Handles a response after which the member speaks another protocol.
    #[cold]
    #[inline(never)]
    fn switch_protocols(
        &mut self,
        head: &http1::ResponseHead<'_, '_>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), ExchangeFailure> {
        if !self.request.upgrade {
            return Err(self.invalid_response());
        }
        let mut extra_fields = self.request.meter.record_response(head.status, None, || self.core.tick());
        if let Some(binding) = &self.session.binding {
            binding.borrow().append_headers(&mut extra_fields);
        }
        head.write(ResponseRewrite::default(), &extra_fields, scratch);
        self.response = ResponseProgress::Tunnel;
        Ok(())
    }

    fn send_to_client(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, ExchangeFailure> {
        if head.is_empty() && body.is_empty() {
            return Ok(true);
        }
        self.answered |= !matches!(self.response, ResponseProgress::Head);
        match self.to_client.send_or_keep(cx, &mut self.session.stream, head, body) {
            Ok(_) if self.to_client.is_empty() => Ok(true),
            Ok(_) => self.reserve_memory(),
            Err(_) => Err(ExchangeFailure::ClientLeft(self.answered)),
        }
    }

    fn invalid_response(&self) -> ExchangeFailure {
        if self.answered {
            ExchangeFailure::ResponseTruncated
        } else {
            ExchangeFailure::MemberFailed(Reason::BadAnswer, false)
        }
    }

    /// Returns the failure of a member whose HTTP/2 is malformed: nothing more can be read from it.
    #[cold]
    fn malformed(&mut self) -> ExchangeFailure {
        self.keep_member = false;
        self.invalid_response()
    }

    /// Returns `true` if the client detects the end of this response only by the end of its connection. A
    /// truncated response would pass for a complete one.
    fn is_close_delimited(&self) -> bool {
        self.decode_chunks || matches!(self.response, ResponseProgress::Body(BodyFraming::UntilClose))
    }

    /// Handles a connection that the member closed.
    fn member_closed(&mut self, reset: bool) -> Result<bool, ExchangeFailure> {
        self.keep_member = false;
        match &self.response {
            ResponseProgress::Body(BodyFraming::UntilClose) if !reset => {
                self.response = ResponseProgress::Done;
                Ok(true)
            }
            _ if self.answered => Err(ExchangeFailure::ResponseTruncated),
            ResponseProgress::Head if self.partial.is_empty() => Err(ExchangeFailure::MemberFailed(
                Reason::Reset,
                self.sent == 0 || self.member.is_unprocessed(),
            )),
            _ => Err(ExchangeFailure::MemberFailed(Reason::BadAnswer, false)),
        }
    }
}
