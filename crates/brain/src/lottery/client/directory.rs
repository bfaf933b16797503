//! The daemons that a client can ask: those of the received table, and the initial ones, which are asked when
//! none of the others is left.

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::Time;

/// The maximum number of either.
const MAX_NODES: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct NodeDirectory {
    listed: Vec<KnownNode>,
    seeds: Vec<KnownNode>,
}

/// A daemon that can be asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownNode {
    /// The member; `None` while only its address is known.
    member: Option<u16>,
    address: SocketAddr,
    /// The requests in a row without an answer, and the time until which it is avoided for that.
    unanswered: u8,
    avoided_until: Time,
}

impl KnownNode {
    pub(super) fn new(member: Option<u16>, address: SocketAddr) -> Self {
        Self { member, address, unanswered: 0, avoided_until: Time(0) }
    }
}

impl NodeDirectory {
    pub(super) fn with_seeds(daemons: impl Iterator<Item = KnownNode>) -> Self {
        let seeds: Vec<KnownNode> = daemons.take(MAX_NODES).collect();
        Self { listed: seeds.clone(), seeds }
    }

    /// Sets the daemons of a table.
    pub(super) fn set_listed(&mut self, mut listed: Vec<KnownNode>) {
        listed.truncate(MAX_NODES);
        // A silent daemon stays so under its number.
        for known in &mut listed {
            if let Some(old) = self.entries(known.address).next() {
                (known.unanswered, known.avoided_until) = (old.unanswered, old.avoided_until);
            }
        }
        self.listed = listed;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the addresses of all of them.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let listed = |seed: &&KnownNode| self.listed.iter().any(|known| known.address == seed.address);
        let seeds = self.seeds.iter().filter(move |seed| !listed(seed));
        self.listed.iter().chain(seeds).map(|known| known.address)
    }

    /// Returns `true` if it is known, and not avoided.
    pub(super) fn is_usable(&mut self, now: Time, address: SocketAddr) -> bool {
        self.entries(address).next().is_some_and(|known| known.avoided_until <= now)
    }

    /// Records that it answered.
    pub(super) fn record_answer(&mut self, now: Time, address: SocketAddr) {
        self.entries(address).for_each(|known| (known.unanswered, known.avoided_until) = (0, now));
    }

    /// Records that it did not answer; after `most` times in a row it is avoided until then.
    pub(super) fn record_silence(&mut self, address: SocketAddr, most: u8, until: Time) {
        for known in self.entries(address) {
            known.unanswered = known.unanswered.saturating_add(1);
            if known.unanswered >= most {
                known.avoided_until = until;
            }
        }
    }

    /// Returns a random one: not the one asked last, nor one that is silent or beside a failed member, if
    /// there is another.
    pub(super) fn draw_random(
        &self,
        now: Time,
        bits: u64,
        asked: Option<SocketAddr>,
        avoided: impl Fn(&u16) -> bool,
    ) -> Option<SocketAddr> {
        let good = |known: &&KnownNode| {
            Some(known.address) != asked
                && known.avoided_until <= now
                && !known.member.as_ref().is_some_and(&avoided)
        };
        let drawn = |known: Vec<&KnownNode>| {
            known.get((bits % known.len().max(1) as u64) as usize).map(|known| known.address)
        };
        drawn(self.listed.iter().filter(good).collect())
            .or_else(|| drawn(self.seeds.iter().filter(good).collect()))
            .or_else(|| drawn(self.listed.iter().collect()))
    }

    /// Returns the entries of an address: two for an initial one in the table.
    fn entries(&mut self, address: SocketAddr) -> impl Iterator<Item = &mut KnownNode> {
        self.listed.iter_mut().chain(&mut self.seeds).filter(move |known| known.address == address)
    }
}
