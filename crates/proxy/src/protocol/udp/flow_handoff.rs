//! Flows that continue in another process, by handoff. It gets their sockets to members, so neither side
//! notices: members see the same address, and datagrams in transit arrive.
//!
//! While flows are lent, nothing is read from clients here: datagrams wait in the socket that both processes
//! share. Either process forwards members' responses.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;

use super::UdpService;
use super::flow::UdpFlow;

/// A flow, for another process.
#[derive(Debug)]
pub struct HandoffFlow {
    /// The description.
    pub description: FlowDescription,
    /// The socket, connected to its member.
    pub socket: OwnedFd,
}

/// The description of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowDescription {
    /// The listener's name in messages between processes.
    pub listener: String,
    /// The index of the listener's socket to which the kernel delivers the client's datagrams.
    pub place: usize,
    /// The client.
    pub client: SocketAddr,
    /// The local address, if the listener is on all addresses.
    pub local: Option<IpAddr>,
    /// The member, as configured.
    pub member: String,
}

/// A flow in the form of a core.
pub(crate) struct ResumableFlow {
    pub(crate) client: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) member: String,
    pub(crate) socket: OwnedFd,
}

impl UdpService {
    /// Lends all flows, and reads nothing until they are taken back or gone.
    pub(crate) fn hand_off_flows(&self) -> Vec<ResumableFlow> {
        self.handed_off.set(true);
        self.handoff_changed.notify_one();
        self.flows
            .borrow()
            .iter()
            .filter_map(|((client, local), flow)| flow.to_handoff(*client, *local))
            .collect()
    }

    /// Resumes the lent flows.
    pub(crate) fn resume_flows(&self) {
        self.handed_off.set(false);
        self.handoff_changed.notify_one();
    }

    /// Resumes a flow of another process, if its member is usable; otherwise the client's next datagram
    /// begins a new one.
    pub(super) fn resume_flow(self: &Rc<Self>, resumable: ResumableFlow) {
        let now = self.core.tick();
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(resumable.socket));
        let flow = socket.ok().and_then(|socket| {
            UdpFlow::resume(self, (resumable.client, resumable.local), &resumable.member, socket, now)
        });
        if let Some(flow) = flow {
            self.run_flow((resumable.client, resumable.local), &flow);
            // The other process has counted it as accepted.
            self.listener.counters().accepted.sub(1);
        }
    }
}

/// Returns a copy of a socket; `None` if the process has no more file descriptors.
pub(super) fn duplicate_socket(socket: &UdpSocket) -> Option<OwnedFd> {
    socket.as_fd().try_clone_to_owned().ok()
}
