//! One client's flow: the binding to its member, and the responses.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::{Key, Lent, Service, Standing, TURN};
use crate::blame::Blame;
use crate::bond::{Bond, Luggage};
use crate::pool::{Admission, Pool, Work};
use crate::reason::Reason;
use crate::trip::Trip;
use crate::wheel::Timer;
use crate::{Binding, Rebind};

/// The idle time after which a flow may be bound to another member: longer than responses are in transit.
const QUIET: Duration = Duration::from_secs(1);
/// The maximum number of members tried for one datagram.
const TRIES: usize = 3;
/// The maximum time for which the table may consider an active flow idle.
const STALE: Duration = Duration::from_secs(1);

pub(super) struct Flow {
    client: SocketAddr,
    local: Option<IpAddr>,
    begun: Time,
    /// The time of the last datagram in either direction.
    last: Cell<Time>,
    standing: Cell<Standing>,
    /// The time at which the table was last notified of its use.
    noted: Cell<Time>,
    /// Whether it was replaced by another flow.
    evicted: Cell<bool>,
    bound: RefCell<Option<Bound>>,
    /// The binding to its member, with its moves.
    bond: RefCell<Bond>,
    /// The members that failed since the last response.
    failed: RefCell<Vec<MemberId>>,
    /// The waker of the task that forwards responses.
    waker: RefCell<Option<Waker>>,
}

/// A flow's member.
struct Bound {
    socket: Rc<UdpSocket>,
    address: SocketAddr,
    trip: Trip,
    pool: Rc<Pool>,
    /// The version of the plan in which it was last valid.
    version: Cell<u64>,
    heard: Cell<bool>,
}

impl Flow {
    /// Creates a flow to a member; `None` if there is none for it.
    pub(super) fn begin(service: &Service, (client, local): Key, now: Time) -> Option<Rc<Self>> {
        let flow = Self::unbound((client, local), now);
        flow.bind(service, now, None).then(|| Rc::new(flow))
    }

    fn unbound((client, local): Key, now: Time) -> Self {
        Self {
            client,
            local,
            begun: now,
            last: Cell::new(now),
            standing: Cell::new(Standing::Unanswered),
            noted: Cell::new(now),
            evicted: Cell::new(false),
            bound: RefCell::default(),
            bond: RefCell::default(),
            failed: RefCell::default(),
            waker: RefCell::default(),
        }
    }

    /// Resumes a flow with the socket that another process had for it; `None` if its member is unusable.
    pub(super) fn resume(
        service: &Service,
        key: Key,
        member: &str,
        socket: UdpSocket,
        now: Time,
    ) -> Option<Rc<Self>> {
        let pool = service.listener.pool();
        let view = pool.view();
        let place = view.published.plan.members().iter().position(|one| *one.name == *member)?;
        // The member may have another address by now.
        let address =
            socket.peer_addr().ok().filter(|peer| *peer == view.published.plan.members()[place].address)?;
        let trip = pool.admit_to(&view, place, now)?;
        let flow = Self::unbound(key, now);
        // Its standing in the other process is unknown.
        flow.standing.set(Standing::Answered);
        flow.hold(service, trip, Rc::new(socket), address, pool);
        Some(Rc::new(flow))
    }

    /// Returns the data with which another process resumes the flow; `None` if it has no member that others
    /// could find.
    pub(super) fn lent(&self, client: SocketAddr, local: Option<IpAddr>) -> Option<Lent> {
        let bound = self.bound.borrow();
        let bound = bound.as_ref()?;
        let view = bound.pool.view();
        let member = view.published.plan.members().iter().find(|member| member.id == bound.trip.member())?;
        Some(Lent {
            client,
            local,
            member: member.name.to_string(),
            socket: super::lent::copy(&bound.socket)?,
        })
    }

    fn hold(
        &self,
        service: &Service,
        mut trip: Trip,
        socket: Rc<UdpSocket>,
        address: SocketAddr,
        pool: Rc<Pool>,
    ) {
        let version = Cell::new(pool.group.version());
        self.bond.borrow_mut().hold(&service.listener, &trip);
        trip.settle();
        let heard = Cell::new(false);
        *self.bound.borrow_mut() = Some(Bound { socket, address, trip, pool, version, heard });
        self.waker.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Returns the standing of its client.
    pub(super) fn standing(&self) -> Standing {
        self.standing.get()
    }

    /// Returns `true` if it was replaced by another flow.
    pub(super) fn evicted(&self) -> bool {
        self.evicted.get()
    }

    /// Ends the flow, which is no longer in the table.
    pub(super) fn evict(&self) {
        self.evicted.set(true);
        self.waker.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Notifies the table of the flow's use, if the table's information is outdated.
    fn note(&self, service: &Service, standing: Standing, now: Time) {
        let stale = now.since(self.noted.get()) >= STALE;
        if (stale || standing != self.standing.get()) && !self.evicted.get() {
            self.noted.set(now);
            self.standing.set(standing);
            service.flows.borrow_mut().touch(&(self.client, self.local), standing);
        }
    }

    /// Sends a client's datagram to the member, or to another one if that fails.
    pub(super) fn send(&self, service: &Service, bytes: &[u8], now: Time) {
        let quiet = now.since(self.last.replace(now)) >= QUIET;
        if quiet {
            self.move_on(service, now);
        }
        let unanswered = self.standing.get() == Standing::Unanswered;
        self.note(service, if unanswered { Standing::Unanswered } else { Standing::Proved }, now);
        for _ in 0..TRIES {
            let kept = self.bound.borrow().as_ref().is_some_and(|bound| bound.holds(service));
            if !kept {
                self.part(now);
                if !self.bind(service, now, None) {
                    return;
                }
            }
            let sent = match &*self.bound.borrow() {
                Some(bound) => {
                    let sent = rustix::net::send(&bound.socket, bytes, SendFlags::NOSIGNAL);
                    bound.trip.stripe().bytes_out.add(sent.unwrap_or(0) as u64);
                    sent
                }
                None => return,
            };
            match sent {
                // Too large for the path to the member, or too many at once: it is lost.
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::MSGSIZE) => return,
                // The error usually concerns the previous datagram: this one is still to be sent.
                Err(_) => self.fail(now),
            }
        }
    }

    /// Forwards the member's responses until the flow has been idle for too long.
    pub(super) async fn answers(&self, service: &Service) {
        let timer = poll_fn(|cx: &mut Context<'_>| {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(service.core.wheel.timer(cx.waker()))
        })
        .await;
        loop {
            let socket = self.bound.borrow().as_ref().map(|bound| Rc::clone(&bound.socket));
            let changed = poll_fn(|_| self.poll_changed(socket.as_ref(), &timer, service));
            let over = match &socket {
                Some(socket) => tokio::select! {
                    biased;
                    over = changed => over,
                    // The kernel reports a closed port as an error, without anything to read.
                    _ = socket.ready(Interest::READABLE | Interest::ERROR) => {
                        if self.pass_on(socket, service) == TURN {
                            tokio::task::yield_now().await;
                        }
                        false
                    }
                },
                None => changed.await,
            };
            if over {
                return;
            }
        }
    }

    /// Completes with `false` when the flow has another socket, and with `true` when its time is over.
    fn poll_changed(&self, socket: Option<&Rc<UdpSocket>>, timer: &Timer, service: &Service) -> Poll<bool> {
        let now = service.core.tick();
        let due = service.until(self.last.get(), self.standing.get(), now);
        // By the timer, not by the clock: a timer fires only after all received datagrams were handled.
        if timer.fired() && due <= now || self.evicted.get() || service.listener.left() {
            return Poll::Ready(true);
        }
        timer.set(due);
        let same = match (&*self.bound.borrow(), socket) {
            (Some(bound), Some(socket)) => Rc::ptr_eq(&bound.socket, socket),
            (None, None) => true,
            _ => false,
        };
        if same { Poll::Pending } else { Poll::Ready(false) }
    }

    /// Ends the flow.
    pub(super) fn end(&self, service: &Service) {
        if service.listener.left() {
            // It continues in another process, which counts it.
            return drop(self.bound.take());
        }
        let now = service.core.now();
        self.part(now);
        service.listener.pool().tally().latency.record(now.since(self.begun));
    }

    /// Forwards the available responses, and returns how many.
    fn pass_on(&self, socket: &Rc<UdpSocket>, service: &Service) -> usize {
        let now = service.core.tick();
        let mut answers = 0;
        while answers < TURN {
            let bound = self.bound.borrow();
            let Some(bound) = bound.as_ref().filter(|bound| Rc::ptr_eq(&bound.socket, socket)) else {
                return answers;
            };
            let received = service.core.lend(|buffer, _| {
                let len = receive(socket, buffer)?;
                // An unreachable client is no failure of the member.
                let _ = service.socket.reply(&buffer[..len], self.client, self.local);
                io::Result::Ok(len)
            });
            match received {
                Ok(len) => {
                    answers += 1;
                    self.last.set(now);
                    self.failed.borrow_mut().clear();
                    bound.hear(len);
                    self.note(service, self.standing.get().max(Standing::Answered), now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return answers,
                Err(_) => break,
            }
        }
        if answers < TURN {
            self.fail(now);
        }
        answers
    }

    /// Binds the flow to another member, if its own is under alert and the flow is due. Called after an idle
    /// moment, when no response is in transit.
    #[cold]
    fn move_on(&self, service: &Service, now: Time) {
        if service.listener.settings().binding != Binding::OnDemand(Rebind::Silent) {
            return;
        }
        let (core, pool) = (&service.core, service.listener.pool());
        let view = pool.view();
        let mut bond = self.bond.borrow_mut();
        if !view.alert || !bond.leaves(&view, core.chance(), now) {
            return;
        }
        let reads_key = view.published.plan.strategy().reads_key;
        let key = if reads_key { crate::key::of_client(self.client.ip()) } else { 0 };
        if let Some(trip) =
            bond.elsewhere(&pool, &view, (key, core.chance()), Work::Session, Luggage::default(), now)
        {
            bond.moved(Some(&trip));
            drop(bond);
            self.part(now);
            self.bind(service, now, Some(trip));
        }
    }

    /// Finds a member, unless one is given; returns `true` if there is one now.
    fn bind(&self, service: &Service, now: Time, given: Option<Trip>) -> bool {
        let (core, pool) = (&service.core, service.listener.pool());
        let reads_key = pool.view().published.plan.strategy().reads_key;
        let key = if reads_key { crate::key::of_client(self.client.ip()) } else { 0 };
        let mut failed = self.failed.borrow_mut();
        let mut given = given;
        let trip = loop {
            let admission = match given.take() {
                Some(trip) => Admission::Trip(trip),
                None => {
                    pool.session();
                    pool.admit(key, core.chance(), now, &failed, Work::Session)
                }
            };
            match admission {
                Admission::Trip(trip) => break trip,
                Admission::Full => {
                    pool.group.reject(core.index, Reason::QueueFull);
                    return false;
                }
                Admission::Shed => {
                    pool.group.reject(core.index, Reason::Shed);
                    return false;
                }
                Admission::Nobody if failed.is_empty() => {
                    pool.group.reject(core.index, Reason::NoMember);
                    return false;
                }
                // All remaining members have failed: all are tried again.
                Admission::Nobody => failed.clear(),
            }
        };
        let address = trip.upstream.address.get();
        match connected(address) {
            Ok(socket) => {
                trip.stripe().connects.add(1);
                drop(failed);
                self.hold(service, trip, Rc::new(socket), address, pool);
                true
            }
            Err(error) => {
                tracing::debug!("no socket for a flow to {address}: {error}");
                service.listener.count().refused.add(1);
                trip.abandoned();
                false
            }
        }
    }

    /// Leaves a member without a failure. Without any response, it may be dead or have had nothing to send:
    /// only health checks can tell.
    fn part(&self, now: Time) {
        match self.bound.borrow_mut().take() {
            Some(bound) if bound.heard.get() => bound.trip.succeeded(now),
            Some(bound) => bound.trip.over(now),
            None => {}
        }
    }

    /// Leaves a member whose port is closed, or that is unreachable.
    fn fail(&self, now: Time) {
        if let Some(bound) = self.bound.borrow_mut().take() {
            self.failed.borrow_mut().push(bound.trip.member());
            bound.trip.failed(Blame::Reason(Reason::ConnectFailed), now);
        }
    }
}

impl Bound {
    /// Returns `true` if datagrams still go to this member.
    fn holds(&self, service: &Service) -> bool {
        let pool = service.listener.pool();
        let version = pool.group.version();
        if !Rc::ptr_eq(&pool, &self.pool) {
            return false;
        }
        if version == self.version.get() {
            return true;
        }
        let holds = pool.keeps(self.trip.member()) && self.trip.upstream.address.get() == self.address;
        if holds {
            self.version.set(version);
        }
        holds
    }

    /// Records a response.
    fn hear(&self, len: usize) {
        self.trip.stripe().bytes_in.add(len as u64);
        if !self.heard.replace(true) {
            self.trip.upstream.record.vitals.succeeded();
        }
    }
}

/// Returns a socket to a member, with an address and port that the kernel chooses.
fn connected(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    UdpSocket::from_std(socket.into())
}

/// Receives a response, or the error that there will be none.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<usize> {
    let mut receive = |interest| {
        socket.try_io(interest, || {
            let (len, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty())?;
            Ok(len)
        })
    };
    match receive(Interest::READABLE) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => receive(Interest::ERROR),
        received => received,
    }
}
