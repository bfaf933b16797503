//! The requests that wait for a pick, and the members picked so far.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::engine::{Engine, Waiting};
use super::slots::Job;
use crate::pick::{Picked, Picker};
use crate::record::{Fault, Record};
use crate::target::{Ask, Target};

/// The maximum number of further picks for a request after failed connections. If that many members are
/// missing, the client cannot solve the problem.
const TRIES: u8 = 2;

/// A picker and the requests that wait for it.
#[derive(Debug)]
pub(super) struct Picks<S> {
    picker: Box<dyn Picker>,
    /// The requests by tag, with the time of the question.
    open: HashMap<u64, (Instant, Waiting<S>)>,
    tag: u64,
    /// The members by route.
    members: Vec<Picked>,
    /// The number of requests with two members that the record already includes.
    twice: u64,
}

impl<S> Picks<S> {
    pub(super) fn new(picker: Box<dyn Picker>) -> Self {
        Self { picker, open: HashMap::new(), tag: 0, members: Vec::new(), twice: 0 }
    }

    /// Returns the descriptor that is readable when there is a result to take.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.picker.descriptor()
    }

    /// Returns the time at which the picker must run at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.picker.timeout().and_then(|time| Instant::now().checked_add(time))
    }

    /// Returns `true` if that time has come.
    pub(super) fn is_due(&self) -> bool {
        self.picker.timeout().is_some_and(|time| time.is_zero())
    }

    /// Returns the number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the due times of the waiting requests.
    pub(super) fn dues(&self) -> impl Iterator<Item = Instant> {
        self.open.values().map(|(_, waiting)| waiting.due)
    }

    /// Returns the address of a route.
    pub(super) fn address(&self, route: usize) -> std::net::SocketAddr {
        self.members[route].address
    }

    /// Asks for a member; returns the request if the picker cannot be asked.
    fn ask(&mut self, waiting: Waiting<S>) -> Result<(), Waiting<S>> {
        self.tag += 1;
        // The time of the call itself counts as part of the pick.
        let asked = Instant::now();
        if !self.picker.ask(self.tag) {
            return Err(waiting);
        }
        self.open.insert(self.tag, (asked, waiting));
        Ok(())
    }

    /// Returns the next result: the time of the question, the request and the picked member.
    fn next(&mut self) -> Option<(Instant, Waiting<S>, Option<Picked>)> {
        loop {
            let (tag, picked) = self.picker.next()?;
            if let Some((asked, waiting)) = self.open.remove(&tag) {
                return Some((asked, waiting, picked));
            }
        }
    }

    /// Returns the route to a member, and whether it is new.
    fn route(&mut self, picked: Picked) -> (usize, bool) {
        let known = self.members.iter_mut().enumerate().find(|(_, one)| one.address == picked.address);
        if let Some((route, known)) = known {
            // A server may be given another number.
            known.member = picked.member;
            return (route, false);
        }
        self.members.push(picked);
        (self.members.len() - 1, true)
    }
}

impl<T: Target, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Asks for a request's destination. The result arrives with an event.
    pub(super) fn ask(&mut self, record: &mut Record, waiting: Waiting<T::State>) {
        let asked = match &mut self.picks {
            Some(picks) => picks.ask(waiting),
            None => Err(waiting),
        };
        if let Err(waiting) = asked {
            self.nobody(record, Fault::Unpicked, waiting.due);
        }
    }

    /// Takes the picker's results and sends the requests that waited for them.
    pub(super) fn take_picks(&mut self, record: &mut Record) {
        if let Some(picks) = &mut self.picks {
            picks.picker.process();
            let twice = picks.picker.answered_twice();
            record.picked_twice += twice.saturating_sub(picks.twice);
            picks.twice = twice;
        }
        while let Some((asked, mut waiting, picked)) = self.picks.as_mut().and_then(Picks::next) {
            let (now, due) = (Instant::now(), waiting.due);
            let Some(picked) = picked else {
                self.nobody(record, Fault::Unpicked, due);
                continue;
            };
            record.picked(now.saturating_duration_since(asked));
            if now.saturating_duration_since(due) >= self.limits.timeout {
                self.nobody(record, Fault::Timeout, due);
                continue;
            }
            if let Some(picks) = &mut self.picks {
                let (route, fresh) = picks.route(picked);
                waiting.ask.route = route;
                if fresh {
                    self.slots.add_route();
                }
            }
            if !self.waiting.is_empty() || !self.has_room() {
                record.waited += 1;
                self.waiting.push_back(waiting);
            } else if !self.send(record, waiting, now) {
                self.nobody(record, Fault::Unsent, due);
            }
        }
    }

    /// Handles a failure on this route that may be the member's fault. An unsent request is picked another
    /// member; otherwise the request is returned.
    pub(super) fn elsewhere(
        &mut self,
        record: &mut Record,
        route: usize,
        job: Job<T::State>,
        fault: Fault,
    ) -> Option<Job<T::State>> {
        let Some(picks) = &mut self.picks else { return Some(job) };
        let unsent = matches!(fault, Fault::Connect | Fault::ConnectTimeout);
        if unsent || fault == Fault::Closed {
            picks.picker.failed(picks.members[route].member);
        }
        if !unsent || job.tries >= TRIES {
            return Some(job);
        }
        self.in_flight -= 1;
        let Job { due, left, tries, bytes, state, .. } = job;
        let ask = Ask { route, bytes, state };
        self.ask(record, Waiting { due, asked: Some(left), tries: tries + 1, ask });
        None
    }

    /// Counts a request as failed that is on no connection.
    fn nobody(&mut self, record: &mut Record, fault: Fault, due: Instant) {
        record.failed(None, fault, due.elapsed().max(self.limits.timeout));
        self.pause();
    }
}
