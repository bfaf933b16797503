//! Operators' actions on members and listeners.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::{DrainInitiator, Event, EventKind};

use super::Engine;
use crate::control::listener_toggle;
use crate::runtime::sync::lock;

impl Engine {
    /// Drains a member for an operator: it gets no new work, and its work in flight ends. See
    /// [`Engine::drain_by`].
    ///
    /// # Errors
    /// There is no such member, or several groups have it and none is named.
    pub fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.drain_by(group, member, DrainInitiator::Operator)
    }

    /// Drains a member: it gets no new work, and its work in flight ends. `who` is named in events. If its
    /// group has a [`hand_over`](crate::GroupSettings::hand_over), this first notifies it and waits for the
    /// response, so it must not be called where blocking is not allowed.
    ///
    /// # Errors
    /// There is no such member, or several groups have it and none is named.
    pub fn drain_by(
        &self,
        group: Option<&str>,
        member: &str,
        initiator: DrainInitiator,
    ) -> Result<(), String> {
        let pending_hook = lock(&self.0.control).pending_drain_hook(group, member);
        if let Some(hook) = pending_hook {
            // No lock is held here.
            let outcome = hook.send();
            lock(&self.0.control).finish_hook(&hook, outcome, self.0.clock.now());
        }
        let now = self.0.clock.now();
        lock(&self.0.control).apply_operator_action(group, member, now, |analyzer| {
            analyzer.drain_by(member, initiator, now)
        })?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// Returns the group of a member: the named one, if it has the member, or the only one that has it.
    ///
    /// # Errors
    /// There is no such member, or several groups have it and none is named.
    pub fn group_of(&self, group: Option<&str>, member: &str) -> Result<Arc<str>, String> {
        let mut control = lock(&self.0.control);
        let group_name = control.group_of(group, member)?;
        let now = self.0.clock.now();
        control.apply_operator_action(Some(&group_name), member, now, |analyzer| {
            analyzer.ensure_exists(member)
        })?;
        Ok(group_name)
    }

    /// Returns a drained member to service.
    ///
    /// # Errors
    /// There is no such member, or several groups have it and none is named.
    pub fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        let now = self.0.clock.now();
        lock(&self.0.control)
            .apply_operator_action(group, member, now, |analyzer| analyzer.undrain(member, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// Takes a member out of use at once, without notification; its work in flight continues.
    ///
    /// # Errors
    /// There is no such member, or several groups have it and none is named.
    pub fn disable(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        let now = self.0.clock.now();
        lock(&self.0.control)
            .apply_operator_action(group, member, now, |analyzer| analyzer.disable(member, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// Puts a member back in use.
    ///
    /// # Errors
    /// There is no such member, or several groups have it and none is named.
    pub fn enable(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        let now = self.0.clock.now();
        lock(&self.0.control)
            .apply_operator_action(group, member, now, |analyzer| analyzer.enable(member, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// Returns a listener's full name, by protocol and address: `http:0.0.0.0:80`. If the system chose the
    /// port, the address is the bound one.
    ///
    /// # Errors
    /// There is no such listener, or more than one.
    pub fn listener(&self, listener: &str) -> Result<String, String> {
        lock(&self.0.control).listener_name(listener)
    }

    /// Returns the bound address of a listener's socket, and whether it takes datagrams. `listener` is as for
    /// [`Engine::close_listener`].
    ///
    /// # Errors
    /// There is no such listener, or more than one.
    pub fn socket_of(&self, listener: &str) -> Result<(SocketAddr, bool), String> {
        lock(&self.0.control).socket_of(listener)
    }

    /// Closes a listener, as if it were not configured, until it is opened again; returns `false` if it is
    /// already closed. `listener` is its address, as configured or as bound. If that is ambiguous, the
    /// protocol and a colon precede it.
    ///
    /// # Errors
    /// There is no such listener, or more than one.
    pub fn close_listener(&self, listener: &str) -> Result<bool, String> {
        lock(&self.0.control).close_listener(listener)
    }

    /// Opens a listener that was closed; returns `false` if it is open. May wait for the previous sockets to
    /// close, so it must not be called where blocking is not allowed.
    ///
    /// # Errors
    /// There is no such listener, or more than one, or its address cannot be bound.
    pub fn open_listener(&self, listener: &str) -> Result<bool, String> {
        if self.0.stopping.load(Relaxed) {
            return Err("the process is stopping".into());
        }
        listener_toggle::open(|| lock(&self.0.control).open_listener(listener))
    }

    /// Writes an event about an operator's action on a group.
    pub fn write_group_event(&self, kind: EventKind, group: &str, message: String) {
        let event = Event { kind, group: group.into(), member: None, why: message, inputs: Vec::new() };
        lock(&self.0.control).event_log.write(event);
    }
}
