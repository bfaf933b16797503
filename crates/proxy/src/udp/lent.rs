//! Flows that go on in another process. It gets their sockets to members, so neither side notices: members see the address that
//! they saw before, and what is on its way arrives.
//!
//! While flows are lent nothing is read from clients here: what comes waits in the socket that both processes have. Answers
//! of members are passed on by whoever finds them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;

use super::Service;
use super::flow::Flow;

/// A flow, for another process.
#[derive(Debug)]
pub struct LentFlow {
    /// What it is.
    pub about: FlowAbout,
    /// Connected to its member.
    pub socket: OwnedFd,
}

/// Which flow it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowAbout {
    /// As one process calls it to another.
    pub listener: String,
    /// Which of its sockets the kernel gives the client's datagrams to.
    pub place: usize,
    /// Who sends them.
    pub client: SocketAddr,
    /// Where to, if the listener is on all addresses.
    pub local: Option<IpAddr>,
    /// As configured.
    pub member: String,
}

/// The same as a core knows it.
pub(crate) struct Lent {
    pub(crate) client: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) member: String,
    pub(crate) socket: OwnedFd,
}

impl Service {
    /// Lends all flows, and reads nothing until they are taken back or gone.
    pub(crate) fn lend(&self) -> Vec<Lent> {
        self.lent.set(true);
        self.turn.notify_one();
        self.flows.borrow().iter().filter_map(|((client, local), flow)| flow.lent(*client, *local)).collect()
    }

    /// Goes on with them.
    pub(crate) fn take_back(&self) {
        self.lent.set(false);
        self.turn.notify_one();
    }

    /// Goes on with a flow of another process, if its member can be used; else the client's next datagram begins a new one.
    pub(super) fn take_over(self: &Rc<Self>, lent: Lent) {
        let now = self.core.tick();
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(lent.socket));
        let flow = socket
            .ok()
            .and_then(|socket| Flow::resume(self, (lent.client, lent.local), &lent.member, socket, now));
        if let Some(flow) = flow {
            self.keep((lent.client, lent.local), &flow);
            // It was accepted elsewhere.
            self.listener.count().accepted.sub(1);
        }
    }
}

/// A copy of a socket; none if there are no more files.
pub(super) fn copy(socket: &UdpSocket) -> Option<OwnedFd> {
    socket.as_fd().try_clone_to_owned().ok()
}
