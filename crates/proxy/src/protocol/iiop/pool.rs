//! One core's pool of connections to the members of a group, including those in progress.
//!
//! A request that needs a connection in progress waits for it, so that no more are made than allowed. If the
//! attempt fails, it fails for all waiting requests: the next one does not wait for another timeout.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plimsoll_brain::MemberId;
use tokio::sync::Notify;

use super::connection::{ConnectionLimits, GiopConnection, SharingKey};
use crate::net::reason::Reason;
use crate::net::socket::ReactorSocket;
use crate::upstream::thread_context::ThreadContext;

/// The maximum number of kinds of connections to a member, each with the configured number.
const MAX_KINDS: usize = 4;

/// The pool.
#[derive(Default)]
pub(crate) struct GiopPool {
    connections: RefCell<Vec<Rc<GiopConnection>>>,
    attempts: RefCell<Vec<Rc<GiopConnectAttempt>>>,
    /// Notified when a connection has ended.
    closed: Notify,
}

/// The route of a request to its member.
pub(super) enum ConnectionRoute {
    /// Over this connection.
    Existing(Rc<GiopConnection>),
    /// Over a new connection that the caller has to make.
    Connect(GiopConnectTicket),
    /// Over a connection in progress.
    Await(Rc<GiopConnectAttempt>),
    /// Over a new connection, after an idle one has ended.
    AfterClose,
    /// Over none: the maximum number is reached.
    AtLimit,
}

/// A connection attempt in progress.
pub(super) struct GiopConnectAttempt {
    member: MemberId,
    sharing_key: SharingKey,
    failed: Cell<Option<Reason>>,
    done: Notify,
}

/// The caller's obligation to make a connection; dropping it abandons the attempt.
pub(super) struct GiopConnectTicket {
    pool: Rc<GiopPool>,
    attempt: Rc<GiopConnectAttempt>,
}

impl GiopPool {
    /// Returns an idle connection to a member, or the least busy one if there are already `most`.
    pub(super) fn find_reusable(
        &self,
        member: MemberId,
        manner: &SharingKey,
        most: usize,
    ) -> Option<Rc<GiopConnection>> {
        let (best, count) = self.best(member, manner);
        let making = self.attempts.borrow().iter().filter(|attempt| attempt.matches(member, manner)).count();
        best.filter(|(busy, _)| *busy == 0 || count + making >= most).map(|(_, line)| line)
    }

    /// Returns the route of a request to a member over one of `most` connections of its kind.
    pub(super) fn route(
        self: &Rc<Self>,
        member: MemberId,
        manner: &SharingKey,
        most: usize,
    ) -> ConnectionRoute {
        if let Some(line) = self.find_reusable(member, manner, most) {
            return ConnectionRoute::Existing(line);
        }
        let attempts = self.attempts.borrow();
        let mut making = attempts.iter().filter(|attempt| attempt.matches(member, manner));
        let (best, count) = self.best(member, manner);
        if count + making.clone().count() >= most
            && let Some(attempt) = making.next()
        {
            return ConnectionRoute::Await(Rc::clone(attempt));
        }
        let own = making.next().cloned();
        let all = attempts.iter().filter(|attempt| attempt.member == member).count();
        drop(attempts);
        let made = self.connections.borrow();
        let its = || made.iter().filter(|line| line.member() == member);
        if all + its().count() < MAX_KINDS * most {
            drop(made);
            return ConnectionRoute::Connect(self.attempt(member, manner));
        }
        if let Some((_, line)) = best {
            return ConnectionRoute::Existing(line);
        }
        if let Some(attempt) = own {
            return ConnectionRoute::Await(attempt);
        }
        match its().find(|line| line.is_idle()) {
            Some(line) => {
                line.close_when_idle();
                ConnectionRoute::AfterClose
            }
            None => ConnectionRoute::AtLimit,
        }
    }

    /// Returns the least busy connection of a kind with its load, and the number of such connections.
    fn best(&self, member: MemberId, manner: &SharingKey) -> (Option<(usize, Rc<GiopConnection>)>, usize) {
        let made = self.connections.borrow();
        let its = || made.iter().filter(|line| line.accepts(member, manner));
        let best = its().map(|line| (line.in_flight_count(), line)).min_by_key(|(busy, _)| *busy);
        (best.map(|(busy, line)| (busy, Rc::clone(line))), its().count())
    }

    fn attempt(self: &Rc<Self>, member: MemberId, manner: &SharingKey) -> GiopConnectTicket {
        let manner = manner.clone();
        let attempt = Rc::new(GiopConnectAttempt {
            member,
            sharing_key: manner,
            failed: Cell::new(None),
            done: Notify::new(),
        });
        self.attempts.borrow_mut().push(Rc::clone(&attempt));
        GiopConnectTicket { pool: Rc::clone(self), attempt }
    }

    /// Waits until a connection has ended.
    pub(super) async fn wait_for_close(&self) {
        self.closed.notified().await;
    }

    /// Closes idle connections.
    pub(crate) fn close_idle(&self) {
        self.connections.borrow().iter().for_each(|line| line.close_when_idle());
    }
}

impl GiopConnectAttempt {
    fn matches(&self, member: MemberId, manner: &SharingKey) -> bool {
        self.member == member && self.sharing_key == *manner
    }

    /// Waits for the end of the attempt, and returns the reason if it failed.
    pub(super) async fn wait_until_done(&self) -> Option<Reason> {
        self.done.notified().await;
        self.failed.get()
    }
}

impl GiopConnectTicket {
    /// Adds the connection that was made, and has it read until it ends.
    pub(super) fn complete(
        self,
        core: &Rc<ThreadContext>,
        socket: ReactorSocket,
        settings: ConnectionLimits,
    ) -> Rc<GiopConnection> {
        let line = Rc::new(GiopConnection::new(
            self.attempt.member,
            self.attempt.sharing_key.clone(),
            socket,
            core.now(),
        ));
        self.pool.connections.borrow_mut().push(Rc::clone(&line));
        let (core, lines, own) = (Rc::clone(core), Rc::clone(&self.pool), Rc::clone(&line));
        tokio::task::spawn_local(async move {
            let end = own.read_replies(&core, &settings).await;
            own.abort();
            lines.connections.borrow_mut().retain(|line| !Rc::ptr_eq(line, &own));
            own.fail_unanswered(&core, end);
            lines.closed.notify_waiters();
        });
        line
    }

    /// Records that the attempt failed.
    pub(super) fn fail(self, why: Reason) {
        self.attempt.failed.set(Some(why));
    }
}

impl Drop for GiopConnectTicket {
    fn drop(&mut self) {
        self.pool.attempts.borrow_mut().retain(|attempt| !Rc::ptr_eq(attempt, &self.attempt));
        self.attempt.done.notify_waiters();
    }
}
