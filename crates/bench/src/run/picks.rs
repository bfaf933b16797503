//! Requests that wait to be told where they go, and those who have been picked so far.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::engine::{Engine, Waiting};
use super::slots::Job;
use crate::pick::{Picked, Picker};
use crate::record::{Fault, Record};
use crate::target::{Ask, Target};

/// How often another member is asked for where one cannot be connected to. A client that is told of a second one that is not
/// there either knows that more is wrong than it can help.
const TRIES: u8 = 2;

/// Who says where requests go, and what waits for that.
#[derive(Debug)]
pub(super) struct Picks<S> {
    picker: Box<dyn Picker>,
    /// By their tags, with when it was asked.
    open: HashMap<u64, (Instant, Waiting<S>)>,
    tag: u64,
    /// By their routes.
    members: Vec<Picked>,
    /// Requests with two members that are in the record.
    twice: u64,
}

impl<S> Picks<S> {
    pub(super) fn new(picker: Box<dyn Picker>) -> Self {
        Self { picker, open: HashMap::new(), tag: 0, members: Vec::new(), twice: 0 }
    }

    /// Readable when something is to be taken.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.picker.descriptor()
    }

    /// When something is to be done at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.picker.timeout().and_then(|time| Instant::now().checked_add(time))
    }

    /// Is that now?
    pub(super) fn is_due(&self) -> bool {
        self.picker.timeout().is_some_and(|time| time.is_zero())
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// When those that wait were due.
    pub(super) fn dues(&self) -> impl Iterator<Item = Instant> {
        self.open.values().map(|(_, waiting)| waiting.due)
    }

    /// Where a route leads.
    pub(super) fn address(&self, route: usize) -> std::net::SocketAddr {
        self.members[route].address
    }

    /// Asks for one; gives it back if that cannot be done.
    fn ask(&mut self, waiting: Waiting<S>) -> Result<(), Waiting<S>> {
        self.tag += 1;
        // Before it is asked: whatever that takes is a part of the time to be told.
        let asked = Instant::now();
        if !self.picker.ask(self.tag) {
            return Err(waiting);
        }
        self.open.insert(self.tag, (asked, waiting));
        Ok(())
    }

    /// The next that was told, when that was asked, and what it was told.
    fn next(&mut self) -> Option<(Instant, Waiting<S>, Option<Picked>)> {
        loop {
            let (tag, picked) = self.picker.next()?;
            if let Some((asked, waiting)) = self.open.remove(&tag) {
                return Some((asked, waiting, picked));
            }
        }
    }

    /// The route to a member, and whether it is a new one.
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
    /// Asks where a request goes. Whatever comes of it comes with an event.
    pub(super) fn ask(&mut self, record: &mut Record, waiting: Waiting<T::State>) {
        let asked = match &mut self.picks {
            Some(picks) => picks.ask(waiting),
            None => Err(waiting),
        };
        if let Err(waiting) = asked {
            self.nobody(record, Fault::Unpicked, waiting.due);
        }
    }

    /// Takes what the picker has to say and sends on their way those that were waiting for it.
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

    /// A request on this route was not answered for a reason that may be the member's. If it has not been sent it may go to
    /// another: gives it back if not.
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

    /// A request that is on no connection has failed.
    fn nobody(&mut self, record: &mut Record, fault: Fault, due: Instant) {
        record.failed(None, fault, due.elapsed().max(self.limits.timeout));
        self.pause();
    }
}
