//! The copies of client sockets at the Supervisor. It is notified of all changes, and before one of them is
//! closed on purpose: a client that connected to the copy of an unserved socket would wait for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_proxy::{ListenerSettings, ListenerSockets};

use super::BalancerRuntime;
use crate::upgrade::{SocketHolder, SocketSet};

impl BalancerRuntime {
    /// Lets the Supervisor, if there is one, hold the sockets of this process from now on.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub(crate) fn start_holding(self: &Arc<Self>) -> io::Result<()> {
        let runtime = Arc::downgrade(self);
        let holder = SocketHolder::start(move || runtime.upgrade()?.sockets(&|_| true))?;
        if let Some(holder) = holder {
            // The holder is set only here.
            let _ = self.holder.set(holder);
        }
        Ok(())
    }

    /// Lets the Supervisor hold the sockets that are open now.
    pub(super) fn hold_sockets(&self) {
        self.hold_matching_sockets(&|_| true);
    }

    /// Lets the Supervisor close its copies of the sockets without a listener among these.
    pub(super) fn hold_sockets_of(&self, listeners: &[ListenerSettings]) {
        self.hold_matching_sockets(&|sockets_entry| {
            let is_same_socket = |listener: &ListenerSettings| {
                listener.address == sockets_entry.address
                    && listener.protocol.is_datagram() == sockets_entry.datagrams
            };
            listeners.iter().any(is_same_socket)
        });
    }

    /// Closes a listener: the Supervisor's copies first.
    pub(super) fn close_listener(&self, listener: &str) -> Result<bool, String> {
        let (address, datagrams): (SocketAddr, bool) = self.engine.socket_of(listener)?;
        self.hold_matching_sockets(&|sockets_entry| {
            (sockets_entry.bound, sockets_entry.datagrams) != (address, datagrams)
        });
        self.engine.close_listener(listener)
    }

    /// Opens a listener that was closed.
    pub(super) fn open_listener(&self, listener: &str) -> Result<bool, String> {
        let was_opened = self.engine.open_listener(listener)?;
        self.hold_sockets();
        Ok(was_opened)
    }

    /// Lets the Supervisor close all copies, because this process stops. It may wait for a second.
    pub(crate) fn release_sockets(&self) {
        if let Some(holder) = self.holder.get() {
            holder.release();
        }
    }

    fn hold_matching_sockets(&self, is_kept: &dyn Fn(&ListenerSockets) -> bool) {
        if let Some(holder) = self.holder.get() {
            holder.hold(|| self.sockets(is_kept));
        }
    }

    /// Returns copies of the sockets that clients connect to; `None` once another process has taken over.
    fn sockets(&self, is_kept: &dyn Fn(&ListenerSockets) -> bool) -> Option<SocketSet> {
        let handoff_source =
            self.handoff_source().filter(|handoff_source| handoff_source.successor_pid().is_none())?;
        let result = handoff_source.listening_sockets(&self.engine, is_kept);
        result
            .inspect_err(|error| tracing::warn!("the Supervisor cannot be given copies of sockets: {error}"))
            .ok()
    }
}
