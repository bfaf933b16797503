//! One core's pool of connections to the members of a group, including those in progress.
//!
//! A request that needs a connection in progress waits for it, so that no more are made than allowed. If the
//! attempt fails, it fails for all waiting requests: the next one does not wait for another timeout.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plimsoll_brain::MemberId;
use tokio::sync::Notify;

use super::line::{Line, Manner, Settings};
use crate::core::Core;
use crate::reason::Reason;
use crate::socket::Socket;

/// The maximum number of kinds of connections to a member, each with the configured number.
const MANNERS: usize = 4;

/// The pool.
#[derive(Default)]
pub(crate) struct Lines {
    made: RefCell<Vec<Rc<Line>>>,
    attempts: RefCell<Vec<Rc<Attempt>>>,
    /// Notified when a connection has ended.
    gone: Notify,
}

/// The route of a request to its member.
pub(super) enum Way {
    /// Over this connection.
    Line(Rc<Line>),
    /// Over a new connection that the caller has to make.
    Make(Making),
    /// Over a connection in progress.
    Await(Rc<Attempt>),
    /// Over a new connection, after an idle one has ended.
    Later,
    /// Over none: the maximum number is reached.
    Full,
}

/// A connection attempt in progress.
pub(super) struct Attempt {
    member: MemberId,
    manner: Manner,
    failed: Cell<Option<Reason>>,
    over: Notify,
}

/// The caller's obligation to make a connection; dropping it abandons the attempt.
pub(super) struct Making {
    lines: Rc<Lines>,
    attempt: Rc<Attempt>,
}

impl Lines {
    /// Returns an idle connection to a member, or the least busy one if there are already `most`.
    pub(super) fn find(&self, member: MemberId, manner: &Manner, most: usize) -> Option<Rc<Line>> {
        let (best, count) = self.best(member, manner);
        let making = self.attempts.borrow().iter().filter(|attempt| attempt.is(member, manner)).count();
        best.filter(|(busy, _)| *busy == 0 || count + making >= most).map(|(_, line)| line)
    }

    /// Returns the route of a request to a member over one of `most` connections of its kind.
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

    /// Returns the least busy connection of a kind with its load, and the number of such connections.
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

    /// Waits until a connection has ended.
    pub(super) async fn gone(&self) {
        self.gone.notified().await;
    }

    /// Closes idle connections.
    pub(crate) fn close(&self) {
        self.made.borrow().iter().for_each(|line| line.close());
    }
}

impl Attempt {
    fn is(&self, member: MemberId, manner: &Manner) -> bool {
        self.member == member && self.manner == *manner
    }

    /// Waits for the end of the attempt, and returns the reason if it failed.
    pub(super) async fn over(&self) -> Option<Reason> {
        self.over.notified().await;
        self.failed.get()
    }
}

impl Making {
    /// Adds the connection that was made, and has it read until it ends.
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

    /// Records that the attempt failed.
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
