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

use super::{DATAGRAMS_PER_TURN, FlowKey, FlowStanding, ResumableFlow, UdpService};
use crate::listener::session_binding::{MovedSession, SessionBinding};
use crate::net::reason::Reason;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, WorkKind};
use crate::{BindingMode, RebindMode};

/// The idle time after which a flow may be bound to another member: longer than responses are in transit.
const REBIND_IDLE: Duration = Duration::from_secs(1);
/// The maximum number of members tried for one datagram.
const MAX_ATTEMPTS: usize = 3;
/// The maximum time for which the table may consider an active flow idle.
const MAX_STALENESS: Duration = Duration::from_secs(1);

pub(super) struct UdpFlow {
    client: SocketAddr,
    local: Option<IpAddr>,
    started_at: Time,
    /// The time of the last datagram in either direction.
    last_activity: Cell<Time>,
    standing: Cell<FlowStanding>,
    /// The time at which the table was last notified of its use.
    last_touched: Cell<Time>,
    /// Whether it was replaced by another flow.
    evicted: Cell<bool>,
    member: RefCell<Option<BoundMember>>,
    /// The binding to its member, with its moves.
    binding: RefCell<SessionBinding>,
    /// The members that failed since the last response.
    failed: RefCell<Vec<MemberId>>,
    /// The waker of the task that forwards responses.
    waker: RefCell<Option<Waker>>,
}

/// A flow's member.
struct BoundMember {
    socket: Rc<UdpSocket>,
    address: SocketAddr,
    in_flight: InFlight,
    pool: Rc<GroupPool>,
    /// The version of the plan in which it was last valid.
    version: Cell<u64>,
    has_responded: Cell<bool>,
}

impl UdpFlow {
    /// Creates a flow to a member; `None` if there is none for it.
    pub(super) fn begin(service: &UdpService, (client, local): FlowKey, now: Time) -> Option<Rc<Self>> {
        let flow = Self::unbound((client, local), now);
        flow.ensure_bound(service, now, None).then(|| Rc::new(flow))
    }

    fn unbound((client, local): FlowKey, now: Time) -> Self {
        Self {
            client,
            local,
            started_at: now,
            last_activity: Cell::new(now),
            standing: Cell::new(FlowStanding::Unanswered),
            last_touched: Cell::new(now),
            evicted: Cell::new(false),
            member: RefCell::default(),
            binding: RefCell::default(),
            failed: RefCell::default(),
            waker: RefCell::default(),
        }
    }

    /// Resumes a flow with the socket that another process had for it; `None` if its member is unusable.
    pub(super) fn resume(
        service: &UdpService,
        key: FlowKey,
        member: &str,
        socket: UdpSocket,
        now: Time,
    ) -> Option<Rc<Self>> {
        let pool = service.listener.pool();
        let view = pool.view();
        let index = view.published.plan.members().iter().position(|candidate| *candidate.name == *member)?;
        // The member may have another address by now.
        let address =
            socket.peer_addr().ok().filter(|peer| *peer == view.published.plan.members()[index].address)?;
        let in_flight = pool.admit_to(&view, index, now)?;
        let flow = Self::unbound(key, now);
        // Its standing in the other process is unknown.
        flow.standing.set(FlowStanding::Answered);
        flow.set_member(service, in_flight, Rc::new(socket), address, pool);
        Some(Rc::new(flow))
    }

    /// Returns the data with which another process resumes the flow; `None` if it has no member that others
    /// could find.
    pub(super) fn to_handoff(&self, client: SocketAddr, local: Option<IpAddr>) -> Option<ResumableFlow> {
        let bound = self.member.borrow();
        let bound = bound.as_ref()?;
        let view = bound.pool.view();
        let member =
            view.published.plan.members().iter().find(|member| member.id == bound.in_flight.member())?;
        Some(ResumableFlow {
            client,
            local,
            member: member.name.to_string(),
            socket: super::flow_handoff::duplicate_socket(&bound.socket)?,
        })
    }

    fn set_member(
        &self,
        service: &UdpService,
        mut in_flight: InFlight,
        socket: Rc<UdpSocket>,
        address: SocketAddr,
        pool: Rc<GroupPool>,
    ) {
        let version = Cell::new(pool.group.version());
        self.binding.borrow_mut().hold(&service.listener, &in_flight);
        in_flight.release_plan();
        let has_responded = Cell::new(false);
        *self.member.borrow_mut() =
            Some(BoundMember { socket, address, in_flight, pool, version, has_responded });
        self.waker.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Returns the standing of its client.
    pub(super) fn standing(&self) -> FlowStanding {
        self.standing.get()
    }

    /// Returns `true` if it was replaced by another flow.
    pub(super) fn is_evicted(&self) -> bool {
        self.evicted.get()
    }

    /// Ends the flow, which is no longer in the table.
    pub(super) fn evict(&self) {
        self.evicted.set(true);
        self.waker.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Notifies the table of the flow's use, if the table's information is outdated.
    fn touch_table(&self, service: &UdpService, standing: FlowStanding, now: Time) {
        let stale = now.since(self.last_touched.get()) >= MAX_STALENESS;
        if (stale || standing != self.standing.get()) && !self.evicted.get() {
            self.last_touched.set(now);
            self.standing.set(standing);
            service.flows.borrow_mut().touch(&(self.client, self.local), standing);
        }
    }

    /// Sends a client's datagram to the member, or to another one if that fails.
    pub(super) fn send(&self, service: &UdpService, bytes: &[u8], now: Time) {
        let was_idle = now.since(self.last_activity.replace(now)) >= REBIND_IDLE;
        if was_idle {
            self.rebind_if_due(service, now);
        }
        let unanswered = self.standing.get() == FlowStanding::Unanswered;
        self.touch_table(
            service,
            if unanswered { FlowStanding::Unanswered } else { FlowStanding::Proved },
            now,
        );
        for _ in 0..MAX_ATTEMPTS {
            let has_current = self.member.borrow().as_ref().is_some_and(|bound| bound.is_current(service));
            if !has_current {
                self.leave_member(now);
                if !self.ensure_bound(service, now, None) {
                    return;
                }
            }
            let sent = match &*self.member.borrow() {
                Some(bound) => {
                    let sent = rustix::net::send(&bound.socket, bytes, SendFlags::NOSIGNAL);
                    bound.in_flight.counters().bytes_out.add(sent.unwrap_or(0) as u64);
                    sent
                }
                None => return,
            };
            match sent {
                // Too large for the path to the member, or too many at once: it is lost.
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::MSGSIZE) => return,
                // The error usually concerns the previous datagram: this one is still to be sent.
                Err(_) => self.fail_member(now),
            }
        }
    }

    /// Forwards the member's responses until the flow has been idle for too long.
    pub(super) async fn forward_responses(&self, service: &UdpService) {
        let timer = poll_fn(|cx: &mut Context<'_>| {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(service.core.wheel.timer(cx.waker()))
        })
        .await;
        loop {
            let socket = self.member.borrow().as_ref().map(|bound| Rc::clone(&bound.socket));
            let changed = poll_fn(|_| self.poll_changed(socket.as_ref(), &timer, service));
            let ended = match &socket {
                Some(socket) => tokio::select! {
                    biased;
                    over = changed => over,
                    // The kernel reports a closed port as an error, without anything to read.
                    _ = socket.ready(Interest::READABLE | Interest::ERROR) => {
                        if self.forward_available(socket, service) == DATAGRAMS_PER_TURN {
                            tokio::task::yield_now().await;
                        }
                        false
                    }
                },
                None => changed.await,
            };
            if ended {
                return;
            }
        }
    }

    /// Completes with `false` when the flow has another socket, and with `true` when its time is over.
    fn poll_changed(
        &self,
        socket: Option<&Rc<UdpSocket>>,
        timer: &Timer,
        service: &UdpService,
    ) -> Poll<bool> {
        let now = service.core.tick();
        let deadline = service.flow_deadline(self.last_activity.get(), self.standing.get(), now);
        // By the timer, not by the clock: a timer fires only after all received datagrams were handled.
        if timer.fired() && deadline <= now || self.evicted.get() || service.listener.is_handed_off() {
            return Poll::Ready(true);
        }
        timer.set(deadline);
        let unchanged = match (&*self.member.borrow(), socket) {
            (Some(bound), Some(socket)) => Rc::ptr_eq(&bound.socket, socket),
            (None, None) => true,
            _ => false,
        };
        if unchanged { Poll::Pending } else { Poll::Ready(false) }
    }

    /// Ends the flow.
    pub(super) fn end(&self, service: &UdpService) {
        if service.listener.is_handed_off() {
            // It continues in another process, which counts it.
            return drop(self.member.take());
        }
        let now = service.core.now();
        self.leave_member(now);
        service.listener.pool().counters().latency.record(now.since(self.started_at));
    }

    /// Forwards the available responses, and returns how many.
    fn forward_available(&self, socket: &Rc<UdpSocket>, service: &UdpService) -> usize {
        let now = service.core.tick();
        let mut responses = 0;
        while responses < DATAGRAMS_PER_TURN {
            let bound = self.member.borrow();
            let Some(bound) = bound.as_ref().filter(|bound| Rc::ptr_eq(&bound.socket, socket)) else {
                return responses;
            };
            let received = service.core.with_buffers(|buffer, _| {
                let len = receive(socket, buffer)?;
                // An unreachable client is no failure of the member.
                let _ = service.socket.reply(&buffer[..len], self.client, self.local);
                io::Result::Ok(len)
            });
            match received {
                Ok(len) => {
                    responses += 1;
                    self.last_activity.set(now);
                    self.failed.borrow_mut().clear();
                    bound.record_response(len);
                    self.touch_table(service, self.standing.get().max(FlowStanding::Answered), now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return responses,
                Err(_) => break,
            }
        }
        if responses < DATAGRAMS_PER_TURN {
            self.fail_member(now);
        }
        responses
    }

    /// Binds the flow to another member, if its own is under alert and the flow is due. Called after an idle
    /// moment, when no response is in transit.
    #[cold]
    fn rebind_if_due(&self, service: &UdpService, now: Time) {
        if service.listener.settings().binding != BindingMode::OnDemand(RebindMode::Silent) {
            return;
        }
        let (core, pool) = (&service.core, service.listener.pool());
        let view = pool.view();
        let mut binding = self.binding.borrow_mut();
        if !view.alert || !binding.should_leave(&view, core.random_bits(), now) {
            return;
        }
        let reads_key = view.published.plan.strategy().reads_key;
        let key = if reads_key { crate::settings::hash_key::client_key(self.client.ip()) } else { 0 };
        if let Some(in_flight) = binding.admit_elsewhere(
            &pool,
            &view,
            (key, core.random_bits()),
            WorkKind::Session,
            MovedSession::default(),
            now,
        ) {
            binding.record_move(Some(&in_flight));
            drop(binding);
            self.leave_member(now);
            self.ensure_bound(service, now, Some(in_flight));
        }
    }

    /// Finds a member, unless one is given; returns `true` if there is one now.
    fn ensure_bound(&self, service: &UdpService, now: Time, moved: Option<InFlight>) -> bool {
        let (core, pool) = (&service.core, service.listener.pool());
        let reads_key = pool.view().published.plan.strategy().reads_key;
        let key = if reads_key { crate::settings::hash_key::client_key(self.client.ip()) } else { 0 };
        let mut failed = self.failed.borrow_mut();
        let mut moved = moved;
        let in_flight = loop {
            let admission = match moved.take() {
                Some(in_flight) => AdmissionOutcome::Admitted(in_flight),
                None => {
                    pool.begin_session_choice();
                    pool.admit(key, core.random_bits(), now, &failed, WorkKind::Session)
                }
            };
            match admission {
                AdmissionOutcome::Admitted(in_flight) => break in_flight,
                AdmissionOutcome::Full => {
                    pool.group.record_rejection(core.index, Reason::QueueFull);
                    return false;
                }
                AdmissionOutcome::Overloaded => {
                    pool.group.record_rejection(core.index, Reason::Shed);
                    return false;
                }
                AdmissionOutcome::NoCandidate if failed.is_empty() => {
                    pool.group.record_rejection(core.index, Reason::NoMember);
                    return false;
                }
                // All remaining members have failed: all are tried again.
                AdmissionOutcome::NoCandidate => failed.clear(),
            }
        };
        let address = in_flight.upstream.address.get();
        match connect_socket(address) {
            Ok(socket) => {
                in_flight.counters().connects.add(1);
                drop(failed);
                self.set_member(service, in_flight, Rc::new(socket), address, pool);
                true
            }
            Err(error) => {
                tracing::debug!("no socket for a flow to {address}: {error}");
                service.listener.counters().refused.add(1);
                in_flight.abandon();
                false
            }
        }
    }

    /// Leaves a member without a failure. Without any response, it may be dead or have had nothing to send:
    /// only health checks can tell.
    fn leave_member(&self, now: Time) {
        match self.member.borrow_mut().take() {
            Some(bound) if bound.has_responded.get() => bound.in_flight.finish_success(now),
            Some(bound) => bound.in_flight.finish_neutral(now),
            None => {}
        }
    }

    /// Leaves a member whose port is closed, or that is unreachable.
    fn fail_member(&self, now: Time) {
        if let Some(bound) = self.member.borrow_mut().take() {
            self.failed.borrow_mut().push(bound.in_flight.member());
            bound.in_flight.finish_failure(FailureCause::Reason(Reason::ConnectFailed), now);
        }
    }
}

impl BoundMember {
    /// Returns `true` if datagrams still go to this member.
    fn is_current(&self, service: &UdpService) -> bool {
        let pool = service.listener.pool();
        let version = pool.group.version();
        if !Rc::ptr_eq(&pool, &self.pool) {
            return false;
        }
        if version == self.version.get() {
            return true;
        }
        let is_valid =
            pool.can_keep(self.in_flight.member()) && self.in_flight.upstream.address.get() == self.address;
        if is_valid {
            self.version.set(version);
        }
        is_valid
    }

    /// Records a response.
    fn record_response(&self, len: usize) {
        self.in_flight.counters().bytes_in.add(len as u64);
        if !self.has_responded.replace(true) {
            self.in_flight.upstream.record.vitals.record_success();
        }
    }
}

/// Returns a socket to a member, with an address and port that the kernel chooses.
fn connect_socket(address: SocketAddr) -> io::Result<UdpSocket> {
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
