//! The daemons that a client can ask: those of the received table, and the initial ones, which are asked when
//! none of the others is left.

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::Time;

/// The maximum number of either.
const DAEMONS: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Daemons {
    listed: Vec<Known>,
    seeds: Vec<Known>,
}

/// A daemon that can be asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The member; `None` while only its address is known.
    member: Option<u16>,
    address: SocketAddr,
    /// The requests in a row without an answer, and the time until which it is avoided for that.
    silent: u8,
    until: Time,
}

impl Known {
    pub(super) fn new(member: Option<u16>, address: SocketAddr) -> Self {
        Self { member, address, silent: 0, until: Time(0) }
    }
}

impl Daemons {
    pub(super) fn begin(daemons: impl Iterator<Item = Known>) -> Self {
        let seeds: Vec<Known> = daemons.take(DAEMONS).collect();
        Self { listed: seeds.clone(), seeds }
    }

    /// Sets the daemons of a table.
    pub(super) fn told(&mut self, mut listed: Vec<Known>) {
        listed.truncate(DAEMONS);
        // A silent daemon stays so under its number.
        for known in &mut listed {
            if let Some(old) = self.at(known.address).next() {
                (known.silent, known.until) = (old.silent, old.until);
            }
        }
        self.listed = listed;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the addresses of all of them.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let listed = |seed: &&Known| self.listed.iter().any(|known| known.address == seed.address);
        let seeds = self.seeds.iter().filter(move |seed| !listed(seed));
        self.listed.iter().chain(seeds).map(|known| known.address)
    }

    /// Returns `true` if it is known, and not avoided.
    pub(super) fn bears(&mut self, now: Time, address: SocketAddr) -> bool {
        self.at(address).next().is_some_and(|known| known.until <= now)
    }

    /// Records that it answered.
    pub(super) fn heard(&mut self, now: Time, address: SocketAddr) {
        self.at(address).for_each(|known| (known.silent, known.until) = (0, now));
    }

    /// Records that it did not answer; after `most` times in a row it is avoided until then.
    pub(super) fn silent(&mut self, address: SocketAddr, most: u8, until: Time) {
        for known in self.at(address) {
            known.silent = known.silent.saturating_add(1);
            if known.silent >= most {
                known.until = until;
            }
        }
    }

    /// Returns a random one: not the one asked last, nor one that is silent or beside a failed member, if
    /// there is another.
    pub(super) fn draw(
        &self,
        now: Time,
        bits: u64,
        asked: Option<SocketAddr>,
        avoided: impl Fn(&u16) -> bool,
    ) -> Option<SocketAddr> {
        let good = |known: &&Known| {
            Some(known.address) != asked && known.until <= now && !known.member.as_ref().is_some_and(&avoided)
        };
        let drawn = |known: Vec<&Known>| {
            known.get((bits % known.len().max(1) as u64) as usize).map(|known| known.address)
        };
        drawn(self.listed.iter().filter(good).collect())
            .or_else(|| drawn(self.seeds.iter().filter(good).collect()))
            .or_else(|| drawn(self.listed.iter().collect()))
    }

    /// Returns the entries of an address: two for an initial one in the table.
    fn at(&mut self, address: SocketAddr) -> impl Iterator<Item = &mut Known> {
        self.listed.iter_mut().chain(&mut self.seeds).filter(move |known| known.address == address)
    }
}
