//! One piece of work given to one member: counted in when the member is chosen, counted out when it is
//! dropped, whatever happened in between.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::meter::Reading;
use plimsoll_brain::{MemberId, Time};

use crate::GroupSettings;
use crate::group::{Group, Stripe};
use crate::pool::{Upstream, View};

/// The guard of one request, session or flow.
pub(crate) struct Trip {
    group: Arc<Group>,
    view: Rc<View>,
    /// The member's place in the plan it was chosen from.
    index: usize,
    pub(crate) upstream: Rc<Upstream>,
    pub(crate) begun: Time,
}

impl Trip {
    /// The member is counted in already: choosing and counting must be one step.
    pub(crate) fn begin(
        group: Arc<Group>,
        view: Rc<View>,
        upstream: Rc<Upstream>,
        index: usize,
        begun: Time,
    ) -> Self {
        Self { group, view, index, upstream, begun }
    }

    /// Lets go of the plan it was chosen from: this work may last for hours, and plans are large.
    pub(crate) fn settle(&mut self) {
        self.view = self.view.rules();
    }

    pub(crate) fn member(&self) -> MemberId {
        self.upstream.record.id
    }

    /// Where the member was in the plan it was chosen from.
    pub(crate) fn place(&self) -> usize {
        self.index
    }

    pub(crate) fn settings(&self) -> &GroupSettings {
        &self.view.published.settings
    }

    pub(crate) fn stripe(&self) -> &Stripe {
        self.upstream.stripe()
    }

    /// The member said something of itself with an answer.
    pub(crate) fn hear(&self, reading: &Reading, now: Time) {
        self.view.published.plan.hear(&mut self.upstream.hand.borrow_mut(), self.index, reading, now);
    }

    /// The member answered with a status. 5xx counts as failure.
    pub(crate) fn answered(self, status: u16, now: Time) {
        self.stripe().answers[usize::from(status / 100).min(5)].add(1);
        self.end(status >= 500, now);
    }

    /// The member did its work (tcp, udp: there is no status to read).
    pub(crate) fn succeeded(self, now: Time) {
        self.stripe().answers[0].add(1);
        self.end(false, now);
    }

    /// The member failed: no connection, no answer, or a broken one.
    pub(crate) fn failed(self, now: Time) {
        self.stripe().answers[0].add(1);
        self.end(true, now);
    }

    /// It is over, and says nothing about the member: counted, not judged.
    pub(crate) fn over(self, now: Time) {
        let stripe = self.stripe();
        stripe.answers[0].add(1);
        stripe.requests.add(1);
        stripe.latency.record(now.since(self.begun));
    }

    /// Nothing came of it, which is not the member's fault: the client went away, or the connection had gone stale.
    pub(crate) fn abandoned(self) {}

    fn end(self, failed: bool, now: Time) {
        let stripe = self.stripe();
        let latency = now.since(self.begun);
        let vitals = &self.upstream.record.vitals;
        stripe.requests.add(1);
        stripe.latency.record(latency);
        let plan = &self.view.published.plan;
        let suspect = plan.observe(&mut self.upstream.hand.borrow_mut(), vitals, latency, failed, now);
        if failed {
            stripe.failures.add(1);
            if suspect {
                self.group.strike(self.member(), true);
            }
            let streak = vitals.failed();
            let limit = self.settings().spec.outlier.as_ref().map_or(0, |outlier| outlier.consecutive);
            if limit > 0 && streak >= limit {
                self.group.strike(self.member(), false);
            }
        } else {
            vitals.succeeded();
        }
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        self.upstream.record.vitals.end();
        if self.group.waiting.load(Relaxed) > 0 {
            self.group.freed.notify_one();
        }
    }
}
