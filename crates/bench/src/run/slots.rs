//! Connections, each in a slot, and the idle ones by route.
//!
//! The serial of a slot increases with every request and every connection, so that events and deadlines of
//! earlier ones are recognised.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{self, SendFlags};

use crate::chance::Chance;

/// A slot and its serial: identifies one request, or one connection while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) slot: u32,
    pub(super) serial: u32,
}

impl From<Key> for u64 {
    fn from(key: Key) -> Self {
        Self::from(key.slot) << 32 | Self::from(key.serial)
    }
}

impl From<u64> for Key {
    fn from(data: u64) -> Self {
        Self { slot: (data >> 32) as u32, serial: data as u32 }
    }
}

/// A connection, or a socket that has a peer.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) socket: OwnedFd,
    /// The index of its requests' intended address.
    pub(super) route: usize,
    /// The index of its peer's address, which differs if its session was redirected.
    pub(super) place: usize,
    /// Whether the peer will send no more after the bytes in the socket.
    pub(super) half_closed: bool,
    /// Whether it is in the list of connections with more to read.
    pub(super) unread: bool,
    /// The position among the idle connections of its route; undefined while it has a job.
    rank: usize,
    pub(super) job: Option<Job<S>>,
}

impl<S> Connection<S> {
    pub(super) fn new(socket: OwnedFd, route: usize, place: usize, job: Job<S>) -> Self {
        Self { socket, route, place, half_closed: false, unread: false, rank: 0, job: Some(job) }
    }
}

/// A request on its connection.
#[derive(Debug)]
pub(super) struct Job<S> {
    /// Whether its connection is not established yet.
    pub(super) connecting: bool,
    pub(super) due: Instant,
    pub(super) left: Instant,
    /// The number of members that it could not be sent to before.
    pub(super) tries: u8,
    pub(super) bytes: Arc<[u8]>,
    pub(super) written: usize,
    pub(super) state: S,
}

impl<S> Job<S> {
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
struct Slot<S> {
    serial: u32,
    /// The serial with which the connection was registered for events.
    registered: u32,
    connection: Option<Connection<S>>,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Slots<S> {
    all: Vec<Slot<S>>,
    /// The slots without a connection.
    free: Vec<u32>,
    /// The slots of idle connections by route, the last used on top: few stay in use and the others may
    /// close.
    idle: Vec<Vec<u32>>,
    /// The generator for the choice of the next session.
    chance: Chance,
}

impl<S> Slots<S> {
    /// Creates the slots for `routes` routes.
    pub(super) fn new(routes: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            idle: (0..routes).map(|_| Vec::new()).collect(),
            chance: Chance::new(1),
        }
    }

    /// Adds a route.
    pub(super) fn add_route(&mut self) {
        self.idle.push(Vec::new());
    }

    /// Returns the number of connections, idle or not.
    pub(super) fn open(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Puts a connection into a slot. The key identifies its events and, until its next use, its job.
    pub(super) fn insert(&mut self, connection: Connection<S>) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.all.push(Slot { serial: 0, registered: 0, connection: None });
            self.all.len() as u32 - 1
        });
        let place = &mut self.all[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        place.registered = place.serial;
        place.connection = Some(connection);
        Key { slot, serial: place.serial }
    }

    /// Takes the connection out of a slot; dropping it closes it.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Connection<S>> {
        let place = &mut self.all[slot as usize];
        let connection = place.connection.take()?;
        place.serial = place.serial.wrapping_add(1);
        self.free.push(slot);
        if connection.job.is_none() {
            // If the slot is not at its rank, the caller has already taken it from the idle ones.
            if self.idle[connection.route].get(connection.rank) == Some(&slot) {
                self.take_idle(connection.route, connection.rank);
            }
        }
        Some(connection)
    }

    /// Returns the connection in a slot.
    pub(super) fn connection(&mut self, slot: u32) -> Option<&mut Connection<S>> {
        self.all[slot as usize].connection.as_mut()
    }

    /// Returns the connection with events of this key.
    pub(super) fn registered(&mut self, key: Key) -> Option<&mut Connection<S>> {
        let place = self.all.get_mut(key.slot as usize)?;
        place.connection.as_mut().filter(|_| place.registered == key.serial)
    }

    /// Returns the request of `key`, unless it has ended.
    pub(super) fn job(&self, key: Key) -> Option<&Job<S>> {
        let place = self.all.get(key.slot as usize).filter(|place| place.serial == key.serial)?;
        place.connection.as_ref()?.job.as_ref()
    }

    /// Returns all requests that have not ended.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job<S>> {
        self.all.iter().filter_map(|place| place.connection.as_ref()?.job.as_ref())
    }

    /// Assigns a request to an idle connection.
    pub(super) fn employ(&mut self, slot: u32, job: Job<S>) -> Key {
        let place = &mut self.all[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        if let Some(connection) = &mut place.connection {
            connection.job = Some(job);
        }
        Key { slot, serial: place.serial }
    }

    /// Adds a connection without a request to the idle ones.
    pub(super) fn rest(&mut self, slot: u32) {
        let Some(connection) = &mut self.all[slot as usize].connection else { return };
        let idle = &mut self.idle[connection.route];
        connection.rank = idle.len();
        idle.push(slot);
    }

    /// Returns `true` if there is an idle connection of any route.
    pub(super) fn has_idle(&self) -> bool {
        self.idle.iter().any(|idle| !idle.is_empty())
    }

    /// Takes the idle connection of a route that was used last.
    pub(super) fn wake(&mut self, route: usize) -> Option<u32> {
        self.idle[route].pop()
    }

    /// Takes a random idle connection of a route, with uniform probability.
    pub(super) fn wake_by_chance(&mut self, route: usize) -> Option<u32> {
        let drawn = self.chance.bits() as usize;
        let rank = drawn.checked_rem(self.idle[route].len())?;
        Some(self.take_idle(route, rank))
    }

    /// Removes the idle connection of a rank; the last one takes its place.
    fn take_idle(&mut self, route: usize, rank: usize) -> u32 {
        let idle = &mut self.idle[route];
        let slot = idle.swap_remove(rank);
        if let Some(moved) = idle.get(rank)
            && let Some(moved) = &mut self.all[*moved as usize].connection
        {
            moved.rank = rank;
        }
        slot
    }

    /// Takes an idle connection of any route.
    pub(super) fn wake_any(&mut self) -> Option<u32> {
        self.idle.iter_mut().find_map(Vec::pop)
    }
}
