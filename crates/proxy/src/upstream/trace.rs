//! Traces: a span for each sampled request, and one for each attempt at a member, passed to an exporter.
//!
//! The caller decides by a valid `traceparent` whether a request is sampled; without one, the balancer draws.
//! A sampled request reaches its member with the span of that attempt as its parent. Other requests are
//! forwarded unchanged. A request without a trace context gets one that is not sampled, so that members need
//! not draw again.
//!
//! Cores collect ended requests and send them in batches, after a second at the latest. Batches not received
//! in time are dropped and counted: no request waits for the exporter.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_brain::Time;
use plimsoll_wire::http1::RequestHead;
use plimsoll_wire::trace_context::{self, TraceParent, hex};
use tokio::sync::mpsc;

use crate::net::grpc::GrpcCall;
use crate::upstream::access_log::RequestOutcome;
use crate::upstream::request_record::RequestAttempt;
use crate::upstream::thread_context::ThreadContext;

mod span;

/// The number of requests in a batch.
const BATCH: usize = 64;
/// The number of batches that may wait for the exporter; more are dropped.
pub(crate) const QUEUE: usize = 64;

/// One core's side of tracing.
#[derive(Default)]
pub(crate) struct Tracer {
    sender: RefCell<Option<TraceSender>>,
    is_enabled: Cell<bool>,
    /// A new trace whose random bits are at most this value is sampled, unless it is 0.
    sample: Cell<u64>,
    batch: RefCell<Vec<FinishedTrace>>,
}

/// The channel for batches.
#[derive(Clone, Debug)]
pub(crate) struct TraceSender {
    pub(crate) batches: mpsc::Sender<Vec<FinishedTrace>>,
    /// The number of spans that were dropped.
    pub(crate) dropped: Arc<AtomicU64>,
    /// The share of new traces that is sampled, of 2^64.
    pub(crate) sample: u64,
}

/// Counters of spans.
#[derive(Clone, Debug, Default)]
pub struct SpanCounters {
    /// The number of spans that the collector accepted.
    pub exported: Arc<AtomicU64>,
    /// The number of lost spans: not received in time, or not accepted by a collector.
    pub dropped: Arc<AtomicU64>,
}

/// The trace of a request that has begun.
pub(crate) struct RequestTrace {
    trace: [u8; 16],
    /// The caller's span.
    parent: Option<[u8; 8]>,
    state: String,
    span: [u8; 8],
    /// The offset of the parent's digits in the head for the member.
    parent_offset: usize,
    request: RequestAttributes,
}

/// The request.
#[derive(Clone, Debug, Default)]
struct RequestAttributes {
    method: String,
    /// The path without the query, which may contain secrets.
    path: String,
    host: String,
    agent: String,
}

/// The properties that a connection shares with its requests.
pub(crate) struct ConnectionAttributes<'a> {
    /// The client's address.
    pub(crate) client: &'a str,
    pub(crate) group: &'a str,
    /// The name of the route, if a route took the request.
    pub(crate) route: Option<&'a str>,
    pub(crate) scheme: &'static str,
    /// The version of HTTP, as in spans.
    pub(crate) version: &'static str,
    /// The state of a gRPC call.
    pub(crate) call: Option<GrpcCall>,
}

/// A request that has ended, with the data for its spans.
#[derive(Debug)]
pub struct FinishedTrace {
    trace: [u8; 16],
    parent: Option<[u8; 8]>,
    state: String,
    span: [u8; 8],
    request: RequestAttributes,
    client: String,
    group: String,
    scheme: &'static str,
    version: &'static str,
    call: Option<GrpcCall>,
    status: u16,
    reason: Option<&'static str>,
    attempts: Vec<RequestAttempt>,
    started_at: Time,
    ended_at: Time,
    /// The time of the end, in nanoseconds since 1970.
    unix_nanos: u64,
}

impl Tracer {
    pub(crate) fn connect(&self, sender: Option<TraceSender>) {
        self.flush();
        self.is_enabled.set(sender.is_some());
        self.sample.set(sender.as_ref().map_or(0, |sender| sender.sample));
        *self.sender.borrow_mut() = sender;
    }

    /// Returns `true` if tracing is enabled.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.get()
    }

    /// Begins the trace of a request, if it is sampled: the trace context of its head for the member is then
    /// that of the trace.
    pub(crate) fn begin(
        &self,
        core: &ThreadContext,
        context: Option<TraceParent>,
        head: &mut Vec<u8>,
    ) -> Option<RequestTrace> {
        if !self.is_enabled() {
            return None;
        }
        let sampled = match context {
            Some(parent) => parent.sampled,
            None => match self.sample.get() {
                0 => false,
                threshold => core.random_bits() <= threshold,
            },
        };
        if context.is_some() && !sampled {
            return None;
        }
        let trace = context.map_or_else(|| trace_id(core), |parent| parent.trace);
        let span = span_id(core);
        let state = if context.is_some() { trace_context::state_in_head(head) } else { String::new() };
        let parent_offset =
            trace_context::replace_parent(head, &TraceParent { trace, span, sampled }, context.is_some());
        let parent = context.map(|parent| parent.span);
        sampled.then(|| RequestTrace {
            trace,
            parent,
            state,
            span,
            parent_offset,
            request: RequestAttributes::default(),
        })
    }

    /// Adds a request that has ended.
    pub(crate) fn end(&self, core: &ThreadContext, finished: FinishedTrace) {
        let mut batch = self.batch.borrow_mut();
        batch.push(finished);
        let batch_is_full = batch.len() >= BATCH;
        drop(batch);
        if batch_is_full {
            core.tracer.flush();
        }
    }

    /// Sends the collected requests.
    pub(crate) fn flush(&self) {
        let batch = std::mem::take(&mut *self.batch.borrow_mut());
        if batch.is_empty() {
            return;
        }
        if let Some(sender) = &*self.sender.borrow()
            && let Err(mpsc::error::TrySendError::Full(batch) | mpsc::error::TrySendError::Closed(batch)) =
                sender.batches.try_send(batch)
        {
            let spans: usize = batch.iter().map(|trace| 1 + trace.attempts.len()).sum();
            sender.dropped.fetch_add(spans as u64, Relaxed);
        }
    }
}

impl RequestTrace {
    /// Returns the trace with the data of this request.
    pub(crate) fn with_request(self, request: &RequestHead<'_, '_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let attributes = RequestAttributes {
            method: text(request.method_name),
            path: text(request.target.split(|byte| *byte == b'?').next().unwrap_or_default()),
            host: text(request.host),
            agent: text(request.field("user-agent").unwrap_or_default()),
        };
        Self { request: attributes, ..self }
    }

    /// Begins a span for a member that is about to get this head.
    pub(crate) fn begin_attempt(&self, core: &ThreadContext, head: &mut [u8]) -> [u8; 8] {
        let span = span_id(core);
        trace_context::set_span(head, self.parent_offset, &span);
        span
    }

    /// Returns the IDs of the trace and of the request's span, as text.
    pub(crate) fn ids(&self) -> (String, Option<String>) {
        (hex(&self.trace), Some(hex(&self.span)))
    }

    /// Ends the trace.
    pub(crate) fn end(
        self,
        connection: &ConnectionAttributes<'_>,
        outcome: &RequestOutcome,
        attempts: Vec<RequestAttempt>,
        started_at: Time,
        now: Time,
    ) -> FinishedTrace {
        let Self { trace, parent, state, span, request: attributes, .. } = self;
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        FinishedTrace {
            trace,
            parent,
            state,
            span,
            request: attributes,
            client: connection.client.to_owned(),
            group: connection.group.to_owned(),
            scheme: connection.scheme,
            version: connection.version,
            call: connection.call,
            status: outcome.status,
            reason: outcome.reason,
            attempts,
            started_at,
            ended_at: now,
            unix_nanos: u64::try_from(unix_time.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Converts a share of new traces, 0 to 1, for the comparison with random bits.
pub(crate) fn sample_threshold(sample: f64) -> u64 {
    if sample >= 1.0 { u64::MAX } else { (sample * u64::MAX as f64) as u64 }
}

/// Returns a trace ID.
fn trace_id(core: &ThreadContext) -> [u8; 16] {
    let bytes = [core.random_bits().to_be_bytes(), core.random_bits().max(1).to_be_bytes()];
    bytes.as_flattened().try_into().unwrap_or([1; 16])
}

/// Returns a span ID.
fn span_id(core: &ThreadContext) -> [u8; 8] {
    core.random_bits().max(1).to_be_bytes()
}
