//! Datagrams: a choice per flow. A flow is a client's address, and the local address that it sends to.
//!
//! The kernel delivers all datagrams of a flow to the same core (`SO_REUSEPORT` hashes both addresses), so
//! each core has a table of its own. A flow owns a socket connected to its member. By it, responses find
//! their client, and the kernel reports that a member's port is closed. A flow counts as one piece of work of
//! the member, so every strategy that uses load works for datagrams, too.
//!
//! A flow ends when neither side has sent anything for the idle time. At its next datagram, it moves to
//! another member if its member failed, left the plan (unless it is draining), or changed its address. Where
//! clients are bound on demand, it also moves after an idle second, when its member is under alert and the
//! flow is due.
//!
//! Once the listener is closed, flows end when they are idle for a moment, and busy ones after a few. They
//! end at once if another listener needs the address (`UdpService::release_address`).
//!
//! A flow without any response from its member ends after two idle seconds. In a full table a new flow
//! replaces one that is worth less (`table`). So newcomers, perhaps a flood of forged addresses, do not
//! disturb clients in use, and such a flood keeps no client out. If no flow makes room, the new one is
//! rejected and counted. Datagrams without a member are dropped and counted as rejected. If a socket's buffer
//! is full, datagrams are lost, as in any queue on their way.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use plimsoll_brain::Time;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

use crate::listener::{ConnectionGuard, Listener};
use crate::upstream::thread_context::ThreadContext;
use flow::UdpFlow;
pub(crate) use socket::{UdpListenSocket, enable_local_address};
use table::{FlowStanding, FlowTable};

mod flow;
mod flow_handoff;
mod socket;
mod table;

pub(crate) use flow_handoff::ResumableFlow;
pub use flow_handoff::{FlowDescription, HandoffFlow};

/// The number of datagrams forwarded before other tasks run.
const DATAGRAMS_PER_TURN: usize = 64;
/// The maximum number of flows replaced in one turn, whose sockets are closed after it. So there are at most
/// this many more open sockets than flows.
const MAX_EVICTIONS: usize = 8;
/// The idle time of a flow without any response: a forged client sends once.
const UNANSWERED_IDLE: Duration = Duration::from_secs(2);
/// The idle time of flows once their listener is closed: long enough for an awaited response.
const CLOSING_GRACE: Duration = Duration::from_secs(1);
/// The maximum time for which busy flows continue then: the address has to become free, and the process to
/// end.
const MAX_CLOSING: Duration = Duration::from_secs(5);

/// The key of a flow: the client, and the local address if the listener has several.
type FlowKey = (SocketAddr, Option<IpAddr>);

/// One core's side of a listener's socket.
pub(crate) struct UdpService {
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    socket: UdpListenSocket,
    flows: RefCell<FlowTable<Rc<UdpFlow>>>,
    /// The number of flows replaced in this turn.
    evicted: Cell<usize>,
    /// Notified when a flow ends.
    ended: Notify,
    /// Whether the flows continue in another process.
    handed_off: Cell<bool>,
    /// Notified when that changes.
    handoff_changed: Notify,
    /// The time at which the last flow has to end, once the listener is closed.
    final_deadline: Cell<Option<Time>>,
    /// The senders of those that wait for the address. Declared after the socket: they are dropped, as a
    /// notification, when it is closed.
    address_waiters: RefCell<Vec<mpsc::Sender<()>>>,
}

/// Serves a listener's socket until that is closed and its flows have ended. `lent` are flows to resume here.
pub(crate) async fn serve(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    socket: UdpSocket,
    resumed: Vec<ResumableFlow>,
) {
    let socket = UdpListenSocket::new(socket, &listener.shared.address);
    let flows = RefCell::default();
    let (ended, handoff_changed) = (Notify::new(), Notify::new());
    let (handed_off, final_deadline, address_waiters) =
        (Cell::new(false), Cell::default(), RefCell::default());
    let evicted = Cell::default();
    let service = Rc::new(UdpService {
        core,
        listener,
        socket,
        flows,
        evicted,
        ended,
        handed_off,
        handoff_changed,
        final_deadline,
        address_waiters,
    });
    service.listener.services.borrow_mut().push(Rc::downgrade(&service));
    resumed.into_iter().for_each(|flow| service.resume_flow(flow));
    let mut closed = false;
    // Datagrams of a socket that continues in another process are left to that.
    while !(closed && (service.flows.borrow().is_empty() || service.listener.is_handed_off())) {
        let reads = !service.handed_off.get() && !service.listener.is_handed_off();
        tokio::select! {
            biased;
            () = service.listener.until_closed(), if !closed => closed = true,
            () = service.ended.notified(), if closed => {}
            () = service.handoff_changed.notified() => {}
            readable = service.socket.readable(), if reads => {
                if let Err(error) = readable {
                    return tracing::error!("{}: {error}", service.listener.shared.address);
                }
                if service.forward_datagrams() == DATAGRAMS_PER_TURN {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

impl UdpService {
    /// Forwards the waiting datagrams, at most a fair number, and returns how many.
    fn forward_datagrams(self: &Rc<Self>) -> usize {
        let now = self.core.tick();
        let core = Rc::clone(&self.core);
        self.evicted.set(0);
        core.with_buffers(|buffer, _| {
            for handled in 0..DATAGRAMS_PER_TURN {
                if self.evicted.get() == MAX_EVICTIONS {
                    return DATAGRAMS_PER_TURN;
                }
                // Any error but "nothing more" concerns one datagram only.
                match self.socket.receive(buffer) {
                    Ok((len, client, local)) => {
                        if let Some(flow) = self.find_or_begin_flow((client, local), now) {
                            flow.send(self, &buffer[..len], now);
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return handled,
                    Err(_) => {}
                }
            }
            DATAGRAMS_PER_TURN
        })
    }

    /// Returns the flow of a client, a new one if required and permitted.
    fn find_or_begin_flow(self: &Rc<Self>, key: FlowKey, now: Time) -> Option<Rc<UdpFlow>> {
        if let Some(flow) = self.flows.borrow().get(&key) {
            return Some(Rc::clone(flow));
        }
        // Once the listener is closed, new clients are left to the next listener.
        if self.listener.is_closed() {
            return None;
        }
        let open: u64 = self.listener.shared.counts.iter().map(|count| count.open.value()).sum();
        let full = open >= self.listener.settings().max_flows as u64;
        let eviction_key = if full { self.flows.borrow().eviction_candidate(&key) } else { None };
        if full && eviction_key.is_none() {
            self.listener.counters().refused.add(1);
            return None;
        }
        let flow = UdpFlow::begin(self, key, now)?;
        let evicted = eviction_key.and_then(|evicted_key| self.flows.borrow_mut().remove(&evicted_key));
        if let Some(evicted) = evicted {
            evicted.evict();
            self.evicted.set(self.evicted.get() + 1);
        }
        self.run_flow(key, &flow);
        Some(flow)
    }

    /// Forwards responses until the flow ends.
    fn run_flow(self: &Rc<Self>, key: FlowKey, flow: &Rc<UdpFlow>) {
        let guard = ConnectionGuard::enter_flow(&self.core, &self.listener);
        self.flows.borrow_mut().insert(key, Rc::clone(flow), flow.standing());
        let (service, task_flow) = (Rc::clone(self), Rc::clone(flow));
        tokio::task::spawn_local(async move {
            let _guard = guard;
            task_flow.forward_responses(&service).await;
            // A replaced flow is no longer in the table, and its client may have another one.
            if !task_flow.is_evicted() {
                service.flows.borrow_mut().remove(&key);
            }
            task_flow.end(&service);
            service.ended.notify_one();
        });
    }

    /// Returns the time at which a flow ends whose last datagram was at `last`, if none follows.
    fn flow_deadline(&self, last_activity: Time, standing: FlowStanding, now: Time) -> Time {
        let idle = self.listener.settings().timeouts.idle;
        let idle = if standing == FlowStanding::Unanswered { idle.min(UNANSWERED_IDLE) } else { idle };
        if !self.listener.is_closed() {
            return last_activity + idle;
        }
        let deadline = self.final_deadline.get().unwrap_or(now + MAX_CLOSING);
        self.final_deadline.set(Some(deadline));
        deadline.min(last_activity + idle.min(CLOSING_GRACE))
    }

    /// Returns the port of the listener.
    pub(crate) fn port(&self) -> u16 {
        self.listener.shared.address.port()
    }

    /// Ends the flows of a closed listener: another one needs its address, and dropping the sender shows that
    /// it is free.
    pub(crate) fn release_address(&self, waiter: mpsc::Sender<()>) {
        self.address_waiters.borrow_mut().push(waiter);
        self.final_deadline.set(Some(Time::default()));
        self.core.wheel.wake_all();
    }
}
