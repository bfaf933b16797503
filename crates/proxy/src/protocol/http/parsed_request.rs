//! A request between its head and the end of its response.

use std::cell::Cell;
use std::rc::Rc;

use plimsoll_brain::{Time, Urgency};
use plimsoll_wire::http1::{self, BodyFraming, MethodClass};

use super::routing::SelectedRoute;
use crate::protocol::http2::PassthroughCall;
use crate::upstream::pool::{PlanView, WorkKind};
use crate::upstream::request_record::RequestRecord;
use crate::upstream::side_car::MeterGuard;

/// A parsed request that may be forwarded.
pub(super) struct ParsedRequest {
    pub(super) method: MethodClass,
    /// The head for the member, and the part of the body that arrived with it.
    pub(super) outgoing: Vec<u8>,
    /// The part of the body that is still to come from the client.
    pub(super) body: BodyFraming,
    /// The trailers of that body.
    pub(super) trailers: http1::TrailerFilter,
    /// Whether any of the body has arrived.
    pub(super) body_started: bool,
    /// Whether a part of the body was forwarded that is not in `out`. Then the request cannot be sent again.
    pub(super) streamed: bool,
    /// Whether another attempt is allowed if this one fails.
    pub(super) retry_allowed: bool,
    pub(super) keep_alive: bool,
    pub(super) http10: bool,
    pub(super) upgrade: bool,
    pub(super) key: u64,
    pub(super) started_at: Time,
    /// The state in force when the request arrived.
    pub(super) view: Rc<PlanView>,
    /// The parts of few requests.
    pub(super) extras: Option<Box<RequestExtras>>,
    /// In a side-car: the meter that counts the request.
    pub(super) meter: MeterGuard,
    /// A call that is not in HTTP/1.1 text. Then `out` is empty, and `body` only shows whether all of the
    /// body has arrived.
    pub(super) passthrough_call: Option<Box<PassthroughCall>>,
    /// Set if the request has waited where waiting work differs in urgency. Contains the urgency, and whether
    /// the request has found a member that has not refused it.
    pub(super) wait_urgency: Cell<Option<(Urgency, bool)>>,
    pub(super) waited: Cell<bool>,
}

/// The parts of few requests. They are on the heap, so that connections stay small.
pub(super) struct RequestExtras {
    /// The record, if the request is logged or traced.
    pub(super) record: Option<Box<RequestRecord>>,
    /// The route, if the listener has routes.
    pub(super) route: Option<SelectedRoute>,
}

impl RequestExtras {
    /// Returns the extras of a request that has any.
    #[inline]
    pub(super) fn new(record: Option<Box<RequestRecord>>, route: Option<SelectedRoute>) -> Option<Box<Self>> {
        let is_plain = record.is_none() && route.is_none();
        (!is_plain).then(|| Box::new(Self { record, route }))
    }
}

impl ParsedRequest {
    /// Returns the record, if the request is logged or traced.
    #[inline]
    pub(super) fn record(&mut self) -> Option<&mut RequestRecord> {
        self.extras.as_mut()?.record.as_deref_mut()
    }

    /// Returns `true` if the request can be sent again without loss or harm. A member that refused it did not
    /// process it.
    pub(super) fn is_repeatable(&self) -> bool {
        !self.streamed
    }

    /// Returns `true` if no other attempt may follow after a member failed that may have processed the
    /// request.
    pub(super) fn is_single_attempt(&self) -> bool {
        self.streamed || !self.method.is_idempotent()
    }

    /// Returns the description for the choice of a member. The rest of a body may exceed what is kept for
    /// another attempt.
    pub(super) fn work(&self) -> WorkKind {
        WorkKind::Request {
            at_most_once: self.is_single_attempt(),
            resendable: self.is_repeatable() && self.body.is_done(),
            binds: false,
        }
    }
}
