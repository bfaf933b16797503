//! Connections, each in a slot, and the idle ones by route.
//!
//! The serial of a slot increases with every request and every connection, so that events and deadlines of
//! earlier ones are recognised.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{self, SendFlags};

use crate::rng::SplitMix64;

/// A slot and its serial: identifies one request, or one connection while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKey {
    pub(super) slot: u32,
    pub(super) serial: u32,
}

impl From<SlotKey> for u64 {
    fn from(key: SlotKey) -> Self {
        Self::from(key.slot) << 32 | Self::from(key.serial)
    }
}

impl From<u64> for SlotKey {
    fn from(key: u64) -> Self {
        Self { slot: (key >> 32) as u32, serial: key as u32 }
    }
}

/// A connection, or a socket that has a peer.
#[derive(Debug)]
pub(super) struct ClientConnection<S> {
    pub(super) socket: OwnedFd,
    /// The index of its requests' intended address.
    pub(super) route: usize,
    /// The index of its peer's address, which differs if its session was redirected.
    pub(super) address_index: usize,
    /// Whether the peer will send no more after the bytes in the socket.
    pub(super) half_closed: bool,
    /// Whether it is in the list of connections with more to read.
    pub(super) unread: bool,
    /// The position among the idle connections of its route; undefined while it has a job.
    idle_position: usize,
    pub(super) request: Option<ActiveRequest<S>>,
}

impl<S> ClientConnection<S> {
    pub(super) fn new(
        socket: OwnedFd,
        route: usize,
        address_index: usize,
        request: ActiveRequest<S>,
    ) -> Self {
        Self {
            socket,
            route,
            address_index,
            half_closed: false,
            unread: false,
            idle_position: 0,
            request: Some(request),
        }
    }
}

/// A request on its connection.
#[derive(Debug)]
pub(super) struct ActiveRequest<S> {
    /// Whether its connection is not established yet.
    pub(super) is_connecting: bool,
    pub(super) due: Instant,
    pub(super) sent_at: Instant,
    /// The number of members that it could not be sent to before.
    pub(super) failed_picks: u8,
    pub(super) bytes: Arc<[u8]>,
    pub(super) written: usize,
    pub(super) state: S,
}

impl<S> ActiveRequest<S> {
    /// Writes the rest of the request; returns `false` if the connection will never accept more.
    pub(super) fn write(&mut self, socket: &OwnedFd) -> bool {
        while self.written < self.bytes.len() {
            match net::send(socket, &self.bytes[self.written..], SendFlags::NOSIGNAL) {
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns `true` if the whole request has been written.
    pub(super) fn is_sent(&self) -> bool {
        self.written == self.bytes.len()
    }
}

#[derive(Debug)]
struct ConnectionSlot<S> {
    serial: u32,
    /// The serial with which the connection was registered for events.
    registered_serial: u32,
    connection: Option<ClientConnection<S>>,
}

/// All connections.
#[derive(Debug)]
pub(super) struct ConnectionSlots<S> {
    slots: Vec<ConnectionSlot<S>>,
    /// The slots without a connection.
    free: Vec<u32>,
    /// The slots of idle connections by route, the last used on top: few stay in use and the others may
    /// close.
    idle: Vec<Vec<u32>>,
    /// The generator for the choice of the next session.
    rng: SplitMix64,
}

impl<S> ConnectionSlots<S> {
    /// Creates the slots for `routes` routes.
    pub(super) fn new(routes: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            idle: (0..routes).map(|_| Vec::new()).collect(),
            rng: SplitMix64::new(1),
        }
    }

    /// Adds a route.
    pub(super) fn add_route(&mut self) {
        self.idle.push(Vec::new());
    }

    /// Returns the number of connections, idle or not.
    pub(super) fn connection_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a connection into a slot. The key identifies its events and, until its next use, its job.
    pub(super) fn insert(&mut self, connection: ClientConnection<S>) -> SlotKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot { serial: 0, registered_serial: 0, connection: None });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.serial = entry.serial.wrapping_add(1);
        entry.registered_serial = entry.serial;
        entry.connection = Some(connection);
        SlotKey { slot, serial: entry.serial }
    }

    /// Takes the connection out of a slot; dropping it closes it.
    pub(super) fn remove(&mut self, slot: u32) -> Option<ClientConnection<S>> {
        let entry = &mut self.slots[slot as usize];
        let connection = entry.connection.take()?;
        entry.serial = entry.serial.wrapping_add(1);
        self.free.push(slot);
        if connection.request.is_none() {
            // If the slot is not at its rank, the caller has already taken it from the idle ones.
            if self.idle[connection.route].get(connection.idle_position) == Some(&slot) {
                self.take_idle(connection.route, connection.idle_position);
            }
        }
        Some(connection)
    }

    /// Returns the connection in a slot.
    pub(super) fn connection(&mut self, slot: u32) -> Option<&mut ClientConnection<S>> {
        self.slots[slot as usize].connection.as_mut()
    }

    /// Returns the connection with events of this key.
    pub(super) fn registered(&mut self, key: SlotKey) -> Option<&mut ClientConnection<S>> {
        let entry = self.slots.get_mut(key.slot as usize)?;
        entry.connection.as_mut().filter(|_| entry.registered_serial == key.serial)
    }

    /// Returns the request of `key`, unless it has ended.
    pub(super) fn request(&self, key: SlotKey) -> Option<&ActiveRequest<S>> {
        let entry = self.slots.get(key.slot as usize).filter(|entry| entry.serial == key.serial)?;
        entry.connection.as_ref()?.request.as_ref()
    }

    /// Returns all requests that have not ended.
    pub(super) fn requests(&self) -> impl Iterator<Item = &ActiveRequest<S>> {
        self.slots.iter().filter_map(|entry| entry.connection.as_ref()?.request.as_ref())
    }

    /// Assigns a request to an idle connection.
    pub(super) fn assign(&mut self, slot: u32, request: ActiveRequest<S>) -> SlotKey {
        let entry = &mut self.slots[slot as usize];
        entry.serial = entry.serial.wrapping_add(1);
        if let Some(connection) = &mut entry.connection {
            connection.request = Some(request);
        }
        SlotKey { slot, serial: entry.serial }
    }

    /// Adds a connection without a request to the idle ones.
    pub(super) fn release(&mut self, slot: u32) {
        let Some(connection) = &mut self.slots[slot as usize].connection else { return };
        let idle = &mut self.idle[connection.route];
        connection.idle_position = idle.len();
        idle.push(slot);
    }

    /// Returns `true` if there is an idle connection of any route.
    pub(super) fn has_idle(&self) -> bool {
        self.idle.iter().any(|idle| !idle.is_empty())
    }

    /// Takes the idle connection of a route that was used last.
    pub(super) fn take_last_idle(&mut self, route: usize) -> Option<u32> {
        self.idle[route].pop()
    }

    /// Takes a random idle connection of a route, with uniform probability.
    pub(super) fn take_random_idle(&mut self, route: usize) -> Option<u32> {
        let random_bits = self.rng.bits() as usize;
        let position = random_bits.checked_rem(self.idle[route].len())?;
        Some(self.take_idle(route, position))
    }

    /// Removes the idle connection of a rank; the last one takes its place.
    fn take_idle(&mut self, route: usize, position: usize) -> u32 {
        let idle = &mut self.idle[route];
        let slot = idle.swap_remove(position);
        if let Some(moved_slot) = idle.get(position)
            && let Some(moved_connection) = &mut self.slots[*moved_slot as usize].connection
        {
            moved_connection.idle_position = position;
        }
        slot
    }

    /// Takes an idle connection of any route.
    pub(super) fn take_any_idle(&mut self) -> Option<u32> {
        self.idle.iter_mut().find_map(Vec::pop)
    }
}
