//! The requests that wait for a pick, and the members picked so far.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::connection_slots::ActiveRequest;
use super::engine::{Engine, PendingRequest};
use crate::pick::{MemberPicker, PickedMember};
use crate::record::{FailureKind, RunRecord};
use crate::target::{RequestTarget, TargetRequest};

/// The maximum number of further picks for a request after failed connections. If that many members are
/// missing, the client cannot solve the problem.
const MAX_FAILED_PICKS: u8 = 2;

/// A picker and the requests that wait for it.
#[derive(Debug)]
pub(super) struct PendingPicks<S> {
    picker: Box<dyn MemberPicker>,
    /// The requests by tag, with the time of the question.
    pending: HashMap<u64, (Instant, PendingRequest<S>)>,
    tag: u64,
    /// The members by route.
    members: Vec<PickedMember>,
    /// The number of requests with two members that the record already includes.
    counted_duplicates: u64,
}

impl<S> PendingPicks<S> {
    pub(super) fn new(picker: Box<dyn MemberPicker>) -> Self {
        Self { picker, pending: HashMap::new(), tag: 0, members: Vec::new(), counted_duplicates: 0 }
    }

    /// Returns the descriptor that is readable when there is a result to take.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.picker.descriptor()
    }

    /// Returns the time at which the picker must run at the latest.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.picker.timeout().and_then(|timeout| Instant::now().checked_add(timeout))
    }

    /// Returns `true` if that time has come.
    pub(super) fn is_due(&self) -> bool {
        self.picker.timeout().is_some_and(|timeout| timeout.is_zero())
    }

    /// Returns the number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the due times of the waiting requests.
    pub(super) fn due_times(&self) -> impl Iterator<Item = Instant> {
        self.pending.values().map(|(_, pending)| pending.due)
    }

    /// Returns the address of a route.
    pub(super) fn address(&self, route: usize) -> std::net::SocketAddr {
        self.members[route].address
    }

    /// Asks for a member; returns the request if the picker cannot be asked.
    fn request_pick(&mut self, pending: PendingRequest<S>) -> Result<(), PendingRequest<S>> {
        self.tag += 1;
        // The time of the call itself counts as part of the pick.
        let asked_at = Instant::now();
        if !self.picker.request_pick(self.tag) {
            return Err(pending);
        }
        self.pending.insert(self.tag, (asked_at, pending));
        Ok(())
    }

    /// Returns the next result: the time of the question, the request and the picked member.
    fn next(&mut self) -> Option<(Instant, PendingRequest<S>, Option<PickedMember>)> {
        loop {
            let (tag, picked) = self.picker.next_pick()?;
            if let Some((asked_at, pending)) = self.pending.remove(&tag) {
                return Some((asked_at, pending, picked));
            }
        }
    }

    /// Returns the route to a member, and whether it is new.
    fn route(&mut self, picked: PickedMember) -> (usize, bool) {
        let known_member =
            self.members.iter_mut().enumerate().find(|(_, member)| member.address == picked.address);
        if let Some((route, known_member)) = known_member {
            // A server may be given another number.
            known_member.member = picked.member;
            return (route, false);
        }
        self.members.push(picked);
        (self.members.len() - 1, true)
    }
}

impl<T: RequestTarget, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Asks for a request's destination. The result arrives with an event.
    pub(super) fn pick_member(&mut self, record: &mut RunRecord, pending: PendingRequest<T::State>) {
        let requested = match &mut self.pending_picks {
            Some(pending_picks) => pending_picks.request_pick(pending),
            None => Err(pending),
        };
        if let Err(pending) = requested {
            self.fail_unconnected(record, FailureKind::NoPick, pending.due);
        }
    }

    /// Takes the picker's results and sends the requests that waited for them.
    pub(super) fn take_picks(&mut self, record: &mut RunRecord) {
        if let Some(pending_picks) = &mut self.pending_picks {
            pending_picks.picker.process();
            let duplicates = pending_picks.picker.duplicate_picks();
            record.duplicate_picks += duplicates.saturating_sub(pending_picks.counted_duplicates);
            pending_picks.counted_duplicates = duplicates;
        }
        while let Some((asked_at, mut pending, picked)) =
            self.pending_picks.as_mut().and_then(PendingPicks::next)
        {
            let (now, due) = (Instant::now(), pending.due);
            let Some(picked) = picked else {
                self.fail_unconnected(record, FailureKind::NoPick, due);
                continue;
            };
            record.record_pick(now.saturating_duration_since(asked_at));
            if now.saturating_duration_since(due) >= self.limits.timeout {
                self.fail_unconnected(record, FailureKind::Timeout, due);
                continue;
            }
            if let Some(pending_picks) = &mut self.pending_picks {
                let (route, is_new) = pending_picks.route(picked);
                pending.request.route = route;
                if is_new {
                    self.slots.add_route();
                }
            }
            if !self.waiting.is_empty() || !self.has_room() {
                record.waited += 1;
                self.waiting.push_back(pending);
            } else if !self.send(record, pending, now) {
                self.fail_unconnected(record, FailureKind::Unsent, due);
            }
        }
    }

    /// Handles a failure on this route that may be the member's fault. An unsent request is picked another
    /// member; otherwise the request is returned.
    pub(super) fn pick_another(
        &mut self,
        record: &mut RunRecord,
        route: usize,
        request: ActiveRequest<T::State>,
        failure: FailureKind,
    ) -> Option<ActiveRequest<T::State>> {
        let Some(pending_picks) = &mut self.pending_picks else { return Some(request) };
        let is_unsent = matches!(failure, FailureKind::Connect | FailureKind::ConnectTimeout);
        if is_unsent || failure == FailureKind::Closed {
            pending_picks.picker.report_failure(pending_picks.members[route].member);
        }
        if !is_unsent || request.failed_picks >= MAX_FAILED_PICKS {
            return Some(request);
        }
        self.in_flight -= 1;
        let ActiveRequest { due, sent_at, failed_picks, bytes, state, .. } = request;
        let request = TargetRequest { route, bytes, state };
        self.pick_member(
            record,
            PendingRequest { due, picker_asked_at: Some(sent_at), failed_picks: failed_picks + 1, request },
        );
        None
    }

    /// Counts a request as failed that is on no connection.
    fn fail_unconnected(&mut self, record: &mut RunRecord, failure: FailureKind, due: Instant) {
        record.record_failure(None, failure, due.elapsed().max(self.limits.timeout));
        self.pause_client();
    }
}
