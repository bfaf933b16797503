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
        sharing_key: &SharingKey,
        max_connections: usize,
    ) -> Option<Rc<GiopConnection>> {
        let (best, count) = self.least_busy(member, sharing_key);
        let connecting =
            self.attempts.borrow().iter().filter(|attempt| attempt.matches(member, sharing_key)).count();
        best.filter(|(load, _)| *load == 0 || count + connecting >= max_connections)
            .map(|(_, connection)| connection)
    }

    /// Returns the route of a request to a member over one of `most` connections of its kind.
    pub(super) fn route(
        self: &Rc<Self>,
        member: MemberId,
        sharing_key: &SharingKey,
        max_connections: usize,
    ) -> ConnectionRoute {
        if let Some(connection) = self.find_reusable(member, sharing_key, max_connections) {
            return ConnectionRoute::Existing(connection);
        }
        let attempts = self.attempts.borrow();
        let mut matching = attempts.iter().filter(|attempt| attempt.matches(member, sharing_key));
        let (best, count) = self.least_busy(member, sharing_key);
        if count + matching.clone().count() >= max_connections
            && let Some(attempt) = matching.next()
        {
            return ConnectionRoute::Await(Rc::clone(attempt));
        }
        let own_attempt = matching.next().cloned();
        let attempt_count = attempts.iter().filter(|attempt| attempt.member == member).count();
        drop(attempts);
        let connections = self.connections.borrow();
        let member_connections = || connections.iter().filter(|connection| connection.member() == member);
        if attempt_count + member_connections().count() < MAX_KINDS * max_connections {
            drop(connections);
            return ConnectionRoute::Connect(self.begin_attempt(member, sharing_key));
        }
        if let Some((_, connection)) = best {
            return ConnectionRoute::Existing(connection);
        }
        if let Some(attempt) = own_attempt {
            return ConnectionRoute::Await(attempt);
        }
        match member_connections().find(|connection| connection.is_idle()) {
            Some(connection) => {
                connection.close_when_idle();
                ConnectionRoute::AfterClose
            }
            None => ConnectionRoute::AtLimit,
        }
    }

    /// Returns the least busy connection of a kind with its load, and the number of such connections.
    fn least_busy(
        &self,
        member: MemberId,
        sharing_key: &SharingKey,
    ) -> (Option<(usize, Rc<GiopConnection>)>, usize) {
        let connections = self.connections.borrow();
        let member_connections =
            || connections.iter().filter(|connection| connection.accepts(member, sharing_key));
        let best = member_connections()
            .map(|connection| (connection.in_flight_count(), connection))
            .min_by_key(|(load, _)| *load);
        (best.map(|(load, connection)| (load, Rc::clone(connection))), member_connections().count())
    }

    fn begin_attempt(self: &Rc<Self>, member: MemberId, sharing_key: &SharingKey) -> GiopConnectTicket {
        let sharing_key = sharing_key.clone();
        let attempt =
            Rc::new(GiopConnectAttempt { member, sharing_key, failed: Cell::new(None), done: Notify::new() });
        self.attempts.borrow_mut().push(Rc::clone(&attempt));
        GiopConnectTicket { pool: Rc::clone(self), attempt }
    }

    /// Waits until a connection has ended.
    pub(super) async fn wait_for_close(&self) {
        self.closed.notified().await;
    }

    /// Closes idle connections.
    pub(crate) fn close_idle(&self) {
        self.connections.borrow().iter().for_each(|connection| connection.close_when_idle());
    }
}

impl GiopConnectAttempt {
    fn matches(&self, member: MemberId, sharing_key: &SharingKey) -> bool {
        self.member == member && self.sharing_key == *sharing_key
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
        let connection = Rc::new(GiopConnection::new(
            self.attempt.member,
            self.attempt.sharing_key.clone(),
            socket,
            core.now(),
        ));
        self.pool.connections.borrow_mut().push(Rc::clone(&connection));
        let (core, pool, task_connection) = (Rc::clone(core), Rc::clone(&self.pool), Rc::clone(&connection));
        tokio::task::spawn_local(async move {
            let end = task_connection.read_replies(&core, &settings).await;
            task_connection.abort();
            pool.connections.borrow_mut().retain(|connection| !Rc::ptr_eq(connection, &task_connection));
            task_connection.fail_unanswered(&core, end);
            pool.closed.notify_waiters();
        });
        connection
    }

    /// Records that the attempt failed.
    pub(super) fn fail(self, reason: Reason) {
        self.attempt.failed.set(Some(reason));
    }
}

impl Drop for GiopConnectTicket {
    fn drop(&mut self) {
        self.pool.attempts.borrow_mut().retain(|attempt| !Rc::ptr_eq(attempt, &self.attempt));
        self.attempt.done.notify_waiters();
    }
}
