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
//! end at once if another listener needs the address (`Service::vacate`).
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

use crate::core::Core;
use crate::listener::{Listener, Visit};
use flow::Flow;
pub(crate) use socket::{Socket, prepare};
use table::{FlowTable, Standing};

mod flow;
mod lent;
mod socket;
mod table;

pub(crate) use lent::Lent;
pub use lent::{FlowAbout, LentFlow};

/// The number of datagrams forwarded before other tasks run.
const TURN: usize = 64;
/// The maximum number of flows replaced in one turn, whose sockets are closed after it. So there are at most
/// this many more open sockets than flows.
const EVICTIONS: usize = 8;
/// The idle time of a flow without any response: a forged client sends once.
const UNANSWERED: Duration = Duration::from_secs(2);
/// The idle time of flows once their listener is closed: long enough for an awaited response.
const GRACE: Duration = Duration::from_secs(1);
/// The maximum time for which busy flows continue then: the address has to become free, and the process to
/// end.
const LAST: Duration = Duration::from_secs(5);

/// The key of a flow: the client, and the local address if the listener has several.
type Key = (SocketAddr, Option<IpAddr>);

/// One core's side of a listener's socket.
pub(crate) struct Service {
    core: Rc<Core>,
    listener: Rc<Listener>,
    socket: Socket,
    flows: RefCell<FlowTable<Rc<Flow>>>,
    /// The number of flows replaced in this turn.
    evicted: Cell<usize>,
    /// Notified when a flow ends.
    ended: Notify,
    /// Whether the flows continue in another process.
    lent: Cell<bool>,
    /// Notified when that changes.
    turn: Notify,
    /// The time at which the last flow has to end, once the listener is closed.
    last: Cell<Option<Time>>,
    /// The senders of those that wait for the address. Declared after the socket: they are dropped, as a
    /// notification, when it is closed.
    heirs: RefCell<Vec<mpsc::Sender<()>>>,
}

/// Serves a listener's socket until that is closed and its flows have ended. `lent` are flows to resume here.
pub(crate) async fn serve(core: Rc<Core>, listener: Rc<Listener>, socket: UdpSocket, lent: Vec<Lent>) {
    let socket = Socket::new(socket, &listener.door.address);
    let flows = RefCell::default();
    let (ended, turn) = (Notify::new(), Notify::new());
    let (lent_here, last, heirs) = (Cell::new(false), Cell::default(), RefCell::default());
    let evicted = Cell::default();
    let service = Rc::new(Service {
        core,
        listener,
        socket,
        flows,
        evicted,
        ended,
        lent: lent_here,
        turn,
        last,
        heirs,
    });
    service.listener.services.borrow_mut().push(Rc::downgrade(&service));
    lent.into_iter().for_each(|lent| service.take_over(lent));
    let mut closed = false;
    // Datagrams of a socket that continues in another process are left to that.
    while !(closed && (service.flows.borrow().is_empty() || service.listener.left())) {
        let reads = !service.lent.get() && !service.listener.left();
        tokio::select! {
            biased;
            () = service.listener.until_closed(), if !closed => closed = true,
            () = service.ended.notified(), if closed => {}
            () = service.turn.notified() => {}
            readable = service.socket.readable(), if reads => {
                if let Err(error) = readable {
                    return tracing::error!("{}: {error}", service.listener.door.address);
                }
                if service.take_in() == TURN {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

impl Service {
    /// Forwards the waiting datagrams, at most a fair number, and returns how many.
    fn take_in(self: &Rc<Self>) -> usize {
        let now = self.core.tick();
        let core = Rc::clone(&self.core);
        self.evicted.set(0);
        core.lend(|buffer, _| {
            for taken in 0..TURN {
                if self.evicted.get() == EVICTIONS {
                    return TURN;
                }
                // Any error but "nothing more" concerns one datagram only.
                match self.socket.receive(buffer) {
                    Ok((len, client, local)) => {
                        if let Some(flow) = self.flow((client, local), now) {
                            flow.send(self, &buffer[..len], now);
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return taken,
                    Err(_) => {}
                }
            }
            TURN
        })
    }

    /// Returns the flow of a client, a new one if required and permitted.
    fn flow(self: &Rc<Self>, key: Key, now: Time) -> Option<Rc<Flow>> {
        if let Some(flow) = self.flows.borrow().get(&key) {
            return Some(Rc::clone(flow));
        }
        // Once the listener is closed, new clients are left to the next listener.
        if self.listener.closed() {
            return None;
        }
        let open: u64 = self.listener.door.counts.iter().map(|count| count.open.value()).sum();
        let full = open >= self.listener.settings().max_flows as u64;
        let gives_way = if full { self.flows.borrow().gives_way(&key) } else { None };
        if full && gives_way.is_none() {
            self.listener.count().refused.add(1);
            return None;
        }
        let flow = Flow::begin(self, key, now)?;
        let evicted = gives_way.and_then(|gives_way| self.flows.borrow_mut().remove(&gives_way));
        if let Some(evicted) = evicted {
            evicted.evict();
            self.evicted.set(self.evicted.get() + 1);
        }
        self.keep(key, &flow);
        Some(flow)
    }

    /// Forwards responses until the flow ends.
    fn keep(self: &Rc<Self>, key: Key, flow: &Rc<Flow>) {
        let visit = Visit::flow(&self.core, &self.listener);
        self.flows.borrow_mut().insert(key, Rc::clone(flow), flow.standing());
        let (service, own) = (Rc::clone(self), Rc::clone(flow));
        tokio::task::spawn_local(async move {
            let _visit = visit;
            own.answers(&service).await;
            // A replaced flow is no longer in the table, and its client may have another one.
            if !own.evicted() {
                service.flows.borrow_mut().remove(&key);
            }
            own.end(&service);
            service.ended.notify_one();
        });
    }

    /// Returns the time at which a flow ends whose last datagram was at `last`, if none follows.
    fn until(&self, last: Time, standing: Standing, now: Time) -> Time {
        let idle = self.listener.settings().timeouts.idle;
        let idle = if standing == Standing::Unanswered { idle.min(UNANSWERED) } else { idle };
        if !self.listener.closed() {
            return last + idle;
        }
        let end = self.last.get().unwrap_or(now + LAST);
        self.last.set(Some(end));
        end.min(last + idle.min(GRACE))
    }

    /// Returns the port of the listener.
    pub(crate) fn port(&self) -> u16 {
        self.listener.door.address.port()
    }

    /// Ends the flows of a closed listener: another one needs its address, and dropping `heir` shows that it
    /// is free.
    pub(crate) fn vacate(&self, heir: mpsc::Sender<()>) {
        self.heirs.borrow_mut().push(heir);
        self.last.set(Some(Time::default()));
        self.core.wheel.wake_all();
    }
}
