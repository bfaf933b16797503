//! Traces: a span for each request that is sampled, and one for each member that was asked, handed to whoever exports them.
//!
//! Whether a request is sampled is its caller's affair, where that says so by a valid `traceparent`; otherwise it is drawn. A
//! request that is sampled gets to its member with the span of that try as its parent. One that is not gets there as it came; one
//! that came without a trace is given one that is not sampled, so that those behind us need not draw again.
//!
//! Cores gather what has ended and hand it over in batches, at the latest after a second. What nobody takes in time is dropped and
//! counted: a request never waits for it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_brain::Time;
use plimsoll_wire::http1::Request;
use plimsoll_wire::trace_context::{self, TraceParent, hex};
use tokio::sync::mpsc;

use crate::access::Outcome;
use crate::account::Try;
use crate::core::Core;
use crate::grpc::Call;

mod span;

/// Requests of a batch.
const BATCH: usize = 64;
/// Batches that may wait for whoever exports them; more are dropped.
pub(crate) const QUEUE: usize = 64;

/// One core's end of it.
#[derive(Default)]
pub(crate) struct Tracer {
    out: RefCell<Option<Sender>>,
    on: Cell<bool>,
    /// A new trace with random bits up to this is sampled, where it is not 0.
    sample: Cell<u64>,
    batch: RefCell<Vec<Traced>>,
}

/// Where batches go.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) batches: mpsc::Sender<Vec<Traced>>,
    /// Spans that were not taken.
    pub(crate) dropped: Arc<AtomicU64>,
    /// Share of new traces that is sampled, of 2^64.
    pub(crate) sample: u64,
}

/// What became of spans, counted by whoever knows.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Sent, and taken.
    pub exported: Arc<AtomicU64>,
    /// Lost: nobody took them in time, or at all.
    pub dropped: Arc<AtomicU64>,
}

/// The trace of a request that has begun.
pub(crate) struct Trace {
    trace: [u8; 16],
    /// The caller's span.
    parent: Option<[u8; 8]>,
    state: String,
    span: [u8; 8],
    /// Where in the head for the member the digits of its parent are.
    at: usize,
    asked: Asked,
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
struct Asked {
    method: String,
    /// Without the query, which may have secrets in it.
    path: String,
    host: String,
    agent: String,
}

/// What a connection knows of the requests that come by it.
pub(crate) struct Side<'a> {
    /// The client's address.
    pub(crate) client: &'a str,
    pub(crate) group: &'a str,
    pub(crate) scheme: &'static str,
    /// Of HTTP, as spans have it.
    pub(crate) version: &'static str,
    /// If it is a call of gRPC.
    pub(crate) call: Option<Call>,
}

/// A request that has ended, and what is known of it.
#[derive(Debug)]
pub struct Traced {
    trace: [u8; 16],
    parent: Option<[u8; 8]>,
    state: String,
    span: [u8; 8],
    asked: Asked,
    client: String,
    group: String,
    scheme: &'static str,
    version: &'static str,
    call: Option<Call>,
    status: u16,
    reason: Option<&'static str>,
    tries: Vec<Try>,
    begun: Time,
    ended: Time,
    /// When it ended, nanoseconds since 1970.
    unix_nanos: u64,
}

impl Tracer {
    pub(crate) fn connect(&self, out: Option<Sender>) {
        self.flush();
        self.on.set(out.is_some());
        self.sample.set(out.as_ref().map_or(0, |out| out.sample));
        *self.out.borrow_mut() = out;
    }

    /// Is anything traced at all?
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// The trace of a request, if it is sampled: what its head for the member says then is of that trace.
    pub(crate) fn begin(
        &self,
        core: &Core,
        context: Option<TraceParent>,
        head: &mut Vec<u8>,
    ) -> Option<Trace> {
        if !self.is_on() {
            return None;
        }
        let sampled = match context {
            Some(parent) => parent.sampled,
            None => match self.sample.get() {
                0 => false,
                most => core.chance() <= most,
            },
        };
        if context.is_some() && !sampled {
            return None;
        }
        let trace = context.map_or_else(|| trace_id(core), |parent| parent.trace);
        let span = span_id(core);
        let state = if context.is_some() { trace_context::state_of_head(head) } else { String::new() };
        let at = trace_context::replace(head, &TraceParent { trace, span, sampled }, context.is_some());
        let parent = context.map(|parent| parent.span);
        sampled.then(|| Trace { trace, parent, state, span, at, asked: Asked::default() })
    }

    /// Takes a request that has ended.
    pub(crate) fn end(&self, core: &Core, traced: Traced) {
        let mut batch = self.batch.borrow_mut();
        batch.push(traced);
        let full = batch.len() >= BATCH;
        drop(batch);
        if full {
            core.tracer.flush();
        }
    }

    /// Hands over what has gathered.
    pub(crate) fn flush(&self) {
        let batch = std::mem::take(&mut *self.batch.borrow_mut());
        if batch.is_empty() {
            return;
        }
        if let Some(out) = &*self.out.borrow()
            && let Err(mpsc::error::TrySendError::Full(batch) | mpsc::error::TrySendError::Closed(batch)) =
                out.batches.try_send(batch)
        {
            let spans: usize = batch.iter().map(|traced| 1 + traced.tries.len()).sum();
            out.dropped.fetch_add(spans as u64, Relaxed);
        }
    }
}

impl Trace {
    /// The same, of this request.
    pub(crate) fn of(self, request: &Request<'_, '_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let asked = Asked {
            method: text(request.method_name),
            path: text(request.target.split(|byte| *byte == b'?').next().unwrap_or_default()),
            host: text(request.host),
            agent: text(request.field("user-agent").unwrap_or_default()),
        };
        Self { asked, ..self }
    }

    /// Begins a span for a member that is about to get this head.
    pub(crate) fn next(&self, core: &Core, head: &mut [u8]) -> [u8; 8] {
        let span = span_id(core);
        trace_context::set_span(head, self.at, &span);
        span
    }

    /// The trace and the request's span in it, as text.
    pub(crate) fn ids(&self) -> (String, Option<String>) {
        (hex(&self.trace), Some(hex(&self.span)))
    }

    /// It is over.
    pub(crate) fn end(
        self,
        side: &Side<'_>,
        outcome: &Outcome,
        tries: Vec<Try>,
        begun: Time,
        now: Time,
    ) -> Traced {
        let Self { trace, parent, state, span, asked, .. } = self;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Traced {
            trace,
            parent,
            state,
            span,
            asked,
            client: side.client.to_owned(),
            group: side.group.to_owned(),
            scheme: side.scheme,
            version: side.version,
            call: side.call,
            status: outcome.status,
            reason: outcome.reason,
            tries,
            begun,
            ended: now,
            unix_nanos: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// A share of new traces, 0 to 1, as random bits are held against it.
pub(crate) fn share(sample: f64) -> u64 {
    if sample >= 1.0 { u64::MAX } else { (sample * u64::MAX as f64) as u64 }
}

/// A number for a trace.
fn trace_id(core: &Core) -> [u8; 16] {
    let bytes = [core.chance().to_be_bytes(), core.chance().max(1).to_be_bytes()];
    bytes.as_flattened().try_into().unwrap_or([1; 16])
}

/// A number for a span.
fn span_id(core: &Core) -> [u8; 8] {
    core.chance().max(1).to_be_bytes()
}
