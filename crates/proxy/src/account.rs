//! What is kept of a request until it ends, for the access log and for its trace: who was chosen, why, and what came of it.
//!
//! Most requests have none of it, and pay a look at whether there is any. What it costs the others is out of line.

use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_brain::Time;
use plimsoll_wire::http1::Request;
use plimsoll_wire::trace_context::{self, TraceParent};

use crate::access::{Line, Outcome, Way};
use crate::core::Core;
use crate::trace::{Side, Trace};
use crate::trip::Trip;

/// Members of a group above which the figures of a choice are not looked up: some take a look at each member.
const FIGURES: usize = 64;

/// What is kept of a request.
pub(crate) struct Account {
    /// If it is to have a line of the access log.
    line: Option<Line>,
    trace: Option<Trace>,
    /// What the client said it belongs to.
    context: Option<TraceParent>,
    /// How it came to the next member, if it had to wait for one.
    waited: Option<Choice>,
    pub(crate) tries: Vec<Try>,
}

/// One member's turn at a request.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) member: Arc<str>,
    pub(crate) address: SocketAddr,
    pub(crate) strategy: &'static str,
    pub(crate) choice: Choice,
    /// What the strategy knew of the member, this request counted.
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) begun: Time,
    /// The span of it, where the request is traced.
    pub(crate) span: [u8; 8],
    /// When it ended without an answer that was passed on, and why; with one it ends with the request.
    pub(crate) failed: Option<(Time, &'static str)>,
}

/// Why a request got its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The strategy chose it.
    #[default]
    Strategy,
    /// There was no other.
    Only,
    /// Its connection is bound to it.
    Session,
    /// Its cookie names it.
    Cookie,
    /// Its session moved there from another.
    Moved,
    /// It came below its limit while the request waited in the queue.
    Queue,
    /// It had room while the request waited in the line.
    Line,
    /// Another one failed before.
    Retry,
    /// Another one would not take it before.
    Declined,
}

impl Choice {
    /// As in the access log.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Strategy => "strategy",
            Self::Only => "only",
            Self::Session => "session",
            Self::Cookie => "cookie",
            Self::Moved => "moved",
            Self::Queue => "queue",
            Self::Line => "line",
            Self::Retry => "retry",
            Self::Declined => "declined",
        }
    }
}

impl Account {
    /// An account of this request, if there is to be one; `out` is the head that the member is to get, and may be changed.
    #[inline(always)]
    pub(crate) fn begin(core: &Core, request: &Request<'_, '_>, out: &mut Vec<u8>) -> Option<Box<Self>> {
        if core.noting.get() { Self::of(core, request, out) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn of(core: &Core, request: &Request<'_, '_>, out: &mut Vec<u8>) -> Option<Box<Self>> {
        let logged = core.access.wanted(core);
        let context = trace_context::of_head(out);
        let trace = core.tracer.begin(core, context, out);
        if !logged && trace.is_none() {
            return None;
        }
        let line = logged.then(|| Line::of(request));
        let trace = trace.map(|trace| trace.of(request));
        Some(Box::new(Self { line, trace, context, waited: None, tries: Vec::new() }))
    }

    /// A member was chosen. `how`: by what, if the client was bound to one; `out` is the head that it is to get.
    #[cold]
    #[inline(never)]
    pub(crate) fn chosen(&mut self, core: &Core, trip: &Trip, how: Choice, out: &mut [u8], now: Time) {
        let plan = &trip.view().published.plan;
        let members = plan.members();
        let Some(member) = members.get(trip.place()) else { return };
        let before = self.tries.last().and_then(|before| before.failed);
        let choice = match (self.waited.take(), before) {
            (_, Some((_, DECLINED | NO_ROOM))) => Choice::Declined,
            // What was kept was stale: the same again is no other choice.
            (_, Some((_, STALE))) => self.tries.last().map_or(how, |before| before.choice),
            (_, Some(_)) => Choice::Retry,
            (Some(waited), None) => waited,
            (None, None) if how == Choice::Strategy && members.len() == 1 => Choice::Only,
            (None, None) => how,
        };
        let figures = if members.len() <= FIGURES { plan.explain(member, now) } else { Vec::new() };
        let span = self.trace.as_ref().map_or([0; 8], |trace| trace.next(core, out));
        self.tries.push(Try {
            member: Arc::clone(&member.name),
            address: trip.upstream.address.get(),
            strategy: plan.strategy().name,
            choice,
            figures,
            begun: now,
            span,
            failed: None,
        });
    }

    /// It waited for the next member.
    pub(crate) fn waited(&mut self, queued: bool) {
        self.waited = Some(if queued { Choice::Queue } else { Choice::Line });
    }

    /// The member that was chosen last gave no answer that was passed on.
    pub(crate) fn failed(&mut self, why: &'static str, now: Time) {
        if let Some(last) = self.tries.last_mut() {
            last.failed = Some((now, why));
        }
    }

    /// It is over: a line is written, and its spans are handed over.
    pub(crate) fn end(
        self: Box<Self>,
        core: &Core,
        side: &Side<'_>,
        outcome: &Outcome,
        begun: Time,
        now: Time,
    ) {
        let Self { line, trace, context, tries, .. } = *self;
        if let Some(line) = &line {
            let ids = match &trace {
                Some(trace) => Some(trace.ids()),
                None => context.map(|context| (trace_context::hex(&context.trace), None)),
            };
            core.log(line, side.client, side.group, outcome, &Way { ids, tries: &tries, begun });
        }
        if let Some(trace) = trace {
            core.tracer.end(core, trace.end(side, outcome, tries, begun, now));
        }
    }
}

/// The member did nothing with it.
pub(crate) const DECLINED: &str = "declined";
/// The member said that it has no room.
pub(crate) const NO_ROOM: &str = "no_room";
/// A connection that was kept had been closed.
pub(crate) const STALE: &str = "stale";
