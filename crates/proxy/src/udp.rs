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
//! A full table refuses new flows, and counts them: clients that are served are not disturbed by newcomers,
//! who may well be a flood of forged addresses. Datagrams for which there is no member are dropped and counted
//! as rejected. Where a socket's buffer is full, datagrams are lost, as they are in any queue on their way.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::Notify;

use crate::core::Core;
use crate::listener::{Listener, Visit};
use flow::Flow;
pub(crate) use socket::{Socket, prepare};

mod flow;
mod lent;
mod socket;

pub(crate) use lent::Lent;
pub use lent::{FlowAbout, LentFlow};

/// Datagrams that are passed on before other tasks get their turn.
const TURN: usize = 64;
/// How long flows may be quiet once their listener is closed: long enough for an answer that is awaited.
const GRACE: Duration = Duration::from_secs(1);

/// Whose flow it is: the client, and which of our addresses it sends to where we listen on several.
type Key = (SocketAddr, Option<IpAddr>);

/// One core's side of a socket of a listener.
pub(crate) struct Service {
    core: Rc<Core>,
    listener: Rc<Listener>,
    socket: Socket,
    flows: RefCell<HashMap<Key, Rc<Flow>>>,
    /// Told when a flow ends.
    ended: Notify,
    /// Do the flows go on in another process?
    lent: Cell<bool>,
    /// Told when that changes.
    turn: Notify,
}

/// Serves a socket of a listener until that is closed and its flows have ended. `lent` are flows that go on here.
pub(crate) async fn serve(core: Rc<Core>, listener: Rc<Listener>, socket: UdpSocket, lent: Vec<Lent>) {
    let socket = Socket::new(socket, &listener.door.address);
    let flows = RefCell::default();
    let (ended, turn) = (Notify::new(), Notify::new());
    let service = Rc::new(Service { core, listener, socket, flows, ended, lent: Cell::new(false), turn });
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
        core.lend(|buffer, _| {
            for taken in 0..TURN {
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
    fn flow(self: &Rc<Self>, key: Key, now: plimsoll_brain::Time) -> Option<Rc<Flow>> {
        if let Some(flow) = self.flows.borrow().get(&key) {
            return Some(Rc::clone(flow));
        }
        // Once the listener is closed, new clients are for whoever listens next.
        if self.listener.closed() {
            return None;
        }
        let open: u64 = self.listener.door.counts.iter().map(|count| count.open.value()).sum();
        if open >= self.listener.settings().max_flows as u64 {
            self.listener.count().refused.add(1);
            return None;
        }
        let flow = Flow::begin(self, key, now)?;
        let visit = Visit::enter(&self.core, &self.listener)?;
        self.keep(key, &flow, visit);
        Some(flow)
    }

    /// Passes on what comes back until the flow ends.
    fn keep(self: &Rc<Self>, key: Key, flow: &Rc<Flow>, visit: Visit) {
        self.flows.borrow_mut().insert(key, Rc::clone(flow));
        let (service, own) = (Rc::clone(self), Rc::clone(flow));
        tokio::task::spawn_local(async move {
            let _visit = visit;
            own.answers(&service).await;
            service.flows.borrow_mut().remove(&key);
            own.end(&service);
            service.ended.notify_one();
        });
    }

    /// How long a flow may be quiet.
    fn idle(&self) -> Duration {
        let idle = self.listener.settings().timeouts.idle;
        if self.listener.closed() { idle.min(GRACE) } else { idle }
    }
}
