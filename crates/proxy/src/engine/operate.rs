//! What operators do with members and listeners.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::{Drainer, Event, EventKind};

use super::Engine;
use crate::inner::lock;
use crate::switch;

impl Engine {
    /// Lets a member's work end and gives it nothing new, as an operator says: [`Engine::drain_by`].
    ///
    /// # Errors
    /// There is no such member, or more than one group has it and none is named.
    pub fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.drain_by(group, member, Drainer::Operator)
    }

    /// Lets a member's work end and gives it nothing new, as somebody says who is named in what is told of it. If its group has
    /// [`hand_over`](crate::GroupSettings::hand_over) that is told first, and this waits for the answer: not to be called
    /// where waiting is not allowed.
    ///
    /// # Errors
    /// There is no such member, or more than one group has it and none is named.
    pub fn drain_by(&self, group: Option<&str>, member: &str, who: Drainer) -> Result<(), String> {
        let due = lock(&self.0.control).hand_over_of_drain(group, member);
        if let Some(due) = due {
            // Behind no lock.
            let outcome = due.tell();
            lock(&self.0.control).handed_over(&due, outcome, self.0.clock.now());
        }
        let now = self.0.clock.now();
        lock(&self.0.control).operate(group, member, now, |analyzer| analyzer.drain_by(member, who, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// The group of a member: the one that is named, if it has the member, or the only one that has it.
    ///
    /// # Errors
    /// There is no such member, or more than one group has it and none is named.
    pub fn group_of(&self, group: Option<&str>, member: &str) -> Result<Arc<str>, String> {
        let mut control = lock(&self.0.control);
        let found = control.group_of(group, member)?;
        let now = self.0.clock.now();
        control.operate(Some(&found), member, now, |analyzer| analyzer.has(member))?;
        Ok(found)
    }

    /// Takes a drained member back.
    ///
    /// # Errors
    /// There is no such member, or more than one group has it and none is named.
    pub fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        let now = self.0.clock.now();
        lock(&self.0.control).operate(group, member, now, |analyzer| analyzer.undrain(member, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// Takes a member out of use, at once and without telling anybody; it keeps the work it has.
    ///
    /// # Errors
    /// There is no such member, or more than one group has it and none is named.
    pub fn disable(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        let now = self.0.clock.now();
        lock(&self.0.control).operate(group, member, now, |analyzer| analyzer.disable(member, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// Puts a member back in use.
    ///
    /// # Errors
    /// There is no such member, or more than one group has it and none is named.
    pub fn enable(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        let now = self.0.clock.now();
        lock(&self.0.control).operate(group, member, now, |analyzer| analyzer.enable(member, now))?;
        self.0.wake.notify_one();
        Ok(())
    }

    /// The listener that somebody means, by protocol and address: `http:0.0.0.0:80`; as bound where the system was to choose a port.
    ///
    /// # Errors
    /// There is no such listener, or more than one.
    pub fn listener(&self, listener: &str) -> Result<String, String> {
        lock(&self.0.control).name_of_listener(listener)
    }

    /// Returns where a listener's socket is bound, and whether it takes datagrams. `listener` is as for [`Engine::close_listener`].
    ///
    /// # Errors
    /// There is no such listener, or more than one.
    pub fn socket_of(&self, listener: &str) -> Result<(SocketAddr, bool), String> {
        lock(&self.0.control).socket_of(listener)
    }

    /// Closes a listener, as if the configuration had it no more, until it is opened again; false if it is closed already.
    /// `listener` is its address, as configured or as bound, after the protocol and a colon if it takes that to tell it from
    /// another.
    ///
    /// # Errors
    /// There is no such listener, or more than one.
    pub fn close_listener(&self, listener: &str) -> Result<bool, String> {
        lock(&self.0.control).close_listener(listener)
    }

    /// Opens a listener that was closed; false if it is open. May wait for the sockets of before to go: not to be called where
    /// waiting is not allowed.
    ///
    /// # Errors
    /// There is no such listener, or more than one, or its address cannot be had.
    pub fn open_listener(&self, listener: &str) -> Result<bool, String> {
        if self.0.stopping.load(Relaxed) {
            return Err("the process is stopping".into());
        }
        switch::open(|| lock(&self.0.control).open_listener(listener))
    }

    /// Writes down something that an operator did with a group.
    pub fn note(&self, kind: EventKind, group: &str, why: String) {
        let event = Event { kind, group: group.into(), member: None, why, inputs: Vec::new() };
        lock(&self.0.control).journal.write(event);
    }
}
