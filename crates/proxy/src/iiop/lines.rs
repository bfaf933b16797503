//! One core's connections to the members of a group, and those that are being made.
//!
//! Requests that want a connection which is only being made wait for it instead of making more than may be, and if it
//! cannot be made that is true of all who wait for it: the next does not try again for as long.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plimsoll_brain::MemberId;
use tokio::sync::Notify;

use super::line::{Line, Manner, Settings};
use crate::core::Core;
use crate::reason::Reason;
use crate::socket::Socket;

/// Of how many kinds the connections to a member may be, each with as many as are configured.
const MANNERS: usize = 4;

/// The connections.
#[derive(Default)]
pub(crate) struct Lines {
    made: RefCell<Vec<Rc<Line>>>,
    attempts: RefCell<Vec<Rc<Attempt>>>,
    /// One is gone.
    gone: Notify,
}

/// Where a request goes that has a member.
pub(super) enum Way {
    /// Over this connection.
    Line(Rc<Line>),
    /// Over one that is to be made.
    Make(Making),
    /// Over one that is being made.
    Await(Rc<Attempt>),
    /// Over one that is to be made when another, on which nothing is under way, has ended.
    Later,
    /// There are as many as may be.
    Full,
}

/// A connection that is being made.
pub(super) struct Attempt {
    member: MemberId,
    manner: Manner,
    failed: Cell<Option<Reason>>,
    over: Notify,
}

/// The duty to make a connection; given up when it is dropped.
pub(super) struct Making {
    lines: Rc<Lines>,
    attempt: Rc<Attempt>,
}

impl Lines {
    /// A connection to a member that is free, or the least busy one if there are `most` already.
    pub(super) fn find(&self, member: MemberId, manner: &Manner, most: usize) -> Option<Rc<Line>> {
        let (best, count) = self.best(member, manner);
        let making = self.attempts.borrow().iter().filter(|attempt| attempt.is(member, manner)).count();
        best.filter(|(busy, _)| *busy == 0 || count + making >= most).map(|(_, line)| line)
    }

    /// What a request has to do to get to a member over one of `most` connections of its kind.
    pub(super) fn way(self: &Rc<Self>, member: MemberId, manner: &Manner, most: usize) -> Way {
        if let Some(line) = self.find(member, manner, most) {
            return Way::Line(line);
        }
        let attempts = self.attempts.borrow();
        let mut making = attempts.iter().filter(|attempt| attempt.is(member, manner));
        let (best, count) = self.best(member, manner);
        if count + making.clone().count() >= most
            && let Some(attempt) = making.next()
        {
            return Way::Await(Rc::clone(attempt));
        }
        let own = making.next().cloned();
        let all = attempts.iter().filter(|attempt| attempt.member == member).count();
        drop(attempts);
        let made = self.made.borrow();
        let its = || made.iter().filter(|line| line.member() == member);
        if all + its().count() < MANNERS * most {
            drop(made);
            return Way::Make(self.attempt(member, manner));
        }
        if let Some((_, line)) = best {
            return Way::Line(line);
        }
        if let Some(attempt) = own {
            return Way::Await(attempt);
        }
        match its().find(|line| line.idle()) {
            Some(line) => {
                line.close();
                Way::Later
            }
            None => Way::Full,
        }
    }

    /// The least busy of the connections of a kind, how busy it is, and how many there are.
    fn best(&self, member: MemberId, manner: &Manner) -> (Option<(usize, Rc<Line>)>, usize) {
        let made = self.made.borrow();
        let its = || made.iter().filter(|line| line.serves(member, manner));
        let best = its().map(|line| (line.busy(), line)).min_by_key(|(busy, _)| *busy);
        (best.map(|(busy, line)| (busy, Rc::clone(line))), its().count())
    }

    fn attempt(self: &Rc<Self>, member: MemberId, manner: &Manner) -> Making {
        let manner = manner.clone();
        let attempt = Rc::new(Attempt { member, manner, failed: Cell::new(None), over: Notify::new() });
        self.attempts.borrow_mut().push(Rc::clone(&attempt));
        Making { lines: Rc::clone(self), attempt }
    }

    /// Resolves when a connection is gone.
    pub(super) async fn gone(&self) {
        self.gone.notified().await;
    }

    /// Ends connections on which nothing is under way.
    pub(crate) fn close(&self) {
        self.made.borrow().iter().for_each(|line| line.close());
    }
}

impl Attempt {
    fn is(&self, member: MemberId, manner: &Manner) -> bool {
        self.member == member && self.manner == *manner
    }

    /// Resolves when it is over: with why it failed, if it did.
    pub(super) async fn over(&self) -> Option<Reason> {
        self.over.notified().await;
        self.failed.get()
    }
}

impl Making {
    /// The connection is there: adds it, and has it read until it ends.
    pub(super) fn made(self, core: &Rc<Core>, socket: Socket, settings: Settings) -> Rc<Line> {
        let line = Rc::new(Line::new(self.attempt.member, self.attempt.manner.clone(), socket, core.now()));
        self.lines.made.borrow_mut().push(Rc::clone(&line));
        let (core, lines, own) = (Rc::clone(core), Rc::clone(&self.lines), Rc::clone(&line));
        tokio::task::spawn_local(async move {
            let end = own.read(&core, &settings).await;
            own.shut();
            lines.made.borrow_mut().retain(|line| !Rc::ptr_eq(line, &own));
            own.end(&core, end);
            lines.gone.notify_waiters();
        });
        line
    }

    /// It cannot be made.
    pub(super) fn failed(self, why: Reason) {
        self.attempt.failed.set(Some(why));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.lines.attempts.borrow_mut().retain(|attempt| !Rc::ptr_eq(attempt, &self.attempt));
        self.attempt.over.notify_waiters();
    }
}
