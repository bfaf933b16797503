//! Datagrams: a choice per flow, which is a client's address and the address of ours that it sends to.
//!
//! The kernel gives all datagrams of a flow to the same core (`SO_REUSEPORT` hashes both addresses), so each
//! core has a table of its own. A flow owns a socket connected to its member, which is how answers find their
//! client and how the kernel tells that a member's port is closed; it counts as one piece of work of the
//! member, so every strategy that looks at load works for datagrams, too.
//!
//! A flow ends when neither side has sent anything for the idle time. It moves to another member at its next
//! datagram when its member failed, is no longer in the plan (unless it is drained), or moved itself; where clients
//! are bound on demand also after a quiet second, when its member is under alert and it is the flow's turn.
//!
//! Once the listener is closed flows end when they are quiet for a moment, or busy for a few; at once if somebody wants the
//! address (`Service::vacate`).
//!
//! A flow that its member has never answered ends after two quiet seconds. In a full table a new flow takes the place of one that is
//! worth less (`table`): clients that are served are not disturbed by newcomers, who may well be a flood of forged addresses, and such
//! a flood keeps no client out. Where none makes room the new flow is refused, and counted. Datagrams for which there is no member are
//! dropped and counted as rejected. Where a socket's buffer is full, datagrams are lost, as they are in any queue on their way.

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

/// Datagrams that are passed on before other tasks get their turn.
const TURN: usize = 64;
/// Flows that make room in one turn, whose sockets are closed after it: no more files are open than there are flows, and these.
const EVICTIONS: usize = 8;
/// How long a flow that was never answered may be quiet: a forged client sends once.
const UNANSWERED: Duration = Duration::from_secs(2);
/// How long flows may be quiet once their listener is closed: long enough for an answer that is awaited.
const GRACE: Duration = Duration::from_secs(1);
/// How long they may go on then if they are never quiet: the address is to come free, and the process to end.
const LAST: Duration = Duration::from_secs(5);

/// Whose flow it is: the client, and which of our addresses it sends to where we listen on several.
type Key = (SocketAddr, Option<IpAddr>);

/// One core's side of a socket of a listener.
pub(crate) struct Service {
    core: Rc<Core>,
    listener: Rc<Listener>,
    socket: Socket,
    flows: RefCell<FlowTable<Rc<Flow>>>,
    /// Flows that have made room in this turn.
    evicted: Cell<usize>,
    /// Told when a flow ends.
    ended: Notify,
    /// Do the flows go on in another process?
    lent: Cell<bool>,
    /// Told when that changes.
    turn: Notify,
    /// When the last flow is to end, once the listener is closed.
    last: Cell<Option<Time>>,
    /// Who waits for the address. After the socket: they are told, by its end, when that is closed.
    heirs: RefCell<Vec<mpsc::Sender<()>>>,
}

/// Serves a socket of a listener until that is closed and its flows have ended. `lent` are flows that go on here.
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
    // Datagrams of a socket that goes on in another process are for that.
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
    /// Passes on what has come, but no more than is fair; how many datagrams.
    fn take_in(self: &Rc<Self>) -> usize {
        let now = self.core.tick();
        let core = Rc::clone(&self.core);
        self.evicted.set(0);
        core.lend(|buffer, _| {
            for taken in 0..TURN {
                if self.evicted.get() == EVICTIONS {
                    return TURN;
                }
                // Anything but "nothing more" concerns one datagram only.
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

    /// The flow of a client, new if need be and if there may be another one.
    fn flow(self: &Rc<Self>, key: Key, now: Time) -> Option<Rc<Flow>> {
        if let Some(flow) = self.flows.borrow().get(&key) {
            return Some(Rc::clone(flow));
        }
        // Once the listener is closed, new clients are for whoever listens next.
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

    /// Passes on what comes back until the flow ends.
    fn keep(self: &Rc<Self>, key: Key, flow: &Rc<Flow>) {
        let visit = Visit::flow(&self.core, &self.listener);
        self.flows.borrow_mut().insert(key, Rc::clone(flow), flow.standing());
        let (service, own) = (Rc::clone(self), Rc::clone(flow));
        tokio::task::spawn_local(async move {
            let _visit = visit;
            own.answers(&service).await;
            // One that made room is in the table no more, and its client may have another.
            if !own.evicted() {
                service.flows.borrow_mut().remove(&key);
            }
            own.end(&service);
            service.ended.notify_one();
        });
    }

    /// Returns when a flow ends in which a datagram last went at `last`, if none goes until then.
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

    /// The port that it has.
    pub(crate) fn port(&self) -> u16 {
        self.listener.door.address.port()
    }

    /// Ends the flows of a listener that is closed: somebody wants its address, and learns that it is free by the end of `heir`.
    pub(crate) fn vacate(&self, heir: mpsc::Sender<()>) {
        self.heirs.borrow_mut().push(heir);
        self.last.set(Some(Time::default()));
        self.core.wheel.wake_all();
    }
}
