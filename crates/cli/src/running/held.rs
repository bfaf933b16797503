//! The Supervisor holds copies of the sockets that clients connect to. It is told whenever there are others, and before one of them is
//! closed on purpose: whoever connected to a copy of one that nobody serves would wait for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_proxy::{Bound, ListenerSettings};

use super::Running;
use crate::succession::{Holder, SocketSet};

impl Running {
    /// From now on the Supervisor, if there is one, holds the sockets of this process.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn be_held(self: &Arc<Self>) -> io::Result<()> {
        let own = Arc::downgrade(self);
        let holder = Holder::start(move || own.upgrade()?.sockets(&|_| true))?;
        if let Some(holder) = holder {
            // Nobody else sets it.
            let _ = self.holder.set(holder);
        }
        Ok(())
    }

    /// The Supervisor is to hold the sockets that are open now.
    pub(super) fn hold_sockets(&self) {
        self.hold_where(&|_| true);
    }

    /// The Supervisor is to close its copies of the sockets that no listener of these is for.
    pub(super) fn hold_sockets_of(&self, listeners: &[ListenerSettings]) {
        self.hold_where(&|bound| {
            let of = |listener: &ListenerSettings| {
                listener.address == bound.address && listener.protocol.datagrams() == bound.datagrams
            };
            listeners.iter().any(of)
        });
    }

    /// Closes a listener: the Supervisor's copies first.
    pub(super) fn close_listener(&self, listener: &str) -> Result<bool, String> {
        let (address, datagrams): (SocketAddr, bool) = self.engine.socket_of(listener)?;
        self.hold_where(&|bound| (bound.bound, bound.datagrams) != (address, datagrams));
        self.engine.close_listener(listener)
    }

    /// Opens a listener that was closed.
    pub(super) fn open_listener(&self, listener: &str) -> Result<bool, String> {
        let opened = self.engine.open_listener(listener)?;
        self.hold_sockets();
        Ok(opened)
    }

    /// The Supervisor is to hold nothing any more: this process stops. May wait for a second.
    pub(crate) fn release_sockets(&self) {
        if let Some(holder) = self.holder.get() {
            holder.release();
        }
    }

    fn hold_where(&self, stays: &dyn Fn(&Bound) -> bool) {
        if let Some(holder) = self.holder.get() {
            holder.hold(|| self.sockets(stays));
        }
    }

    /// Returns copies of the sockets that clients connect to; nothing once another process has taken over.
    fn sockets(&self, stays: &dyn Fn(&Bound) -> bool) -> Option<SocketSet> {
        let elder = self.elder().filter(|elder| elder.heir().is_none())?;
        let copied = elder.listening(&self.engine, stays);
        copied
            .inspect_err(|error| tracing::warn!("the Supervisor cannot be given copies of sockets: {error}"))
            .ok()
    }
}
