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
    pub(super) fn with_seeds(nodes: impl Iterator<Item = KnownNode>) -> Self {
        let seeds: Vec<KnownNode> = nodes.take(MAX_NODES).collect();
        Self { listed: seeds.clone(), seeds }
    }

    /// Sets the daemons of a table.
    pub(super) fn set_listed(&mut self, mut nodes: Vec<KnownNode>) {
        nodes.truncate(MAX_NODES);
        // A silent daemon stays so under its number.
        for node in &mut nodes {
            if let Some(previous) = self.entries(node.address).next() {
                (node.unanswered, node.avoided_until) = (previous.unanswered, previous.avoided_until);
            }
        }
        self.listed = nodes;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the addresses of all of them.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let is_listed = |seed: &&KnownNode| self.listed.iter().any(|node| node.address == seed.address);
        let seeds = self.seeds.iter().filter(move |seed| !is_listed(seed));
        self.listed.iter().chain(seeds).map(|node| node.address)
    }

    /// Returns `true` if it is known, and not avoided.
    pub(super) fn is_usable(&mut self, now: Time, address: SocketAddr) -> bool {
        self.entries(address).next().is_some_and(|node| node.avoided_until <= now)
    }

    /// Records that it answered.
    pub(super) fn record_answer(&mut self, now: Time, address: SocketAddr) {
        self.entries(address).for_each(|node| (node.unanswered, node.avoided_until) = (0, now));
    }

    /// Records that it did not answer; after `most` times in a row it is avoided until then.
    pub(super) fn record_silence(&mut self, address: SocketAddr, max_unanswered: u8, until: Time) {
        for node in self.entries(address) {
            node.unanswered = node.unanswered.saturating_add(1);
            if node.unanswered >= max_unanswered {
                node.avoided_until = until;
            }
        }
    }

    /// Returns a random one: not the one asked last, nor one that is silent or beside a failed member, if
    /// there is another.
    pub(super) fn draw_random(
        &self,
        now: Time,
        bits: u64,
        last_target: Option<SocketAddr>,
        is_avoided: impl Fn(&u16) -> bool,
    ) -> Option<SocketAddr> {
        let is_usable = |node: &&KnownNode| {
            Some(node.address) != last_target
                && node.avoided_until <= now
                && !node.member.as_ref().is_some_and(&is_avoided)
        };
        let draw = |node: Vec<&KnownNode>| {
            node.get((bits % node.len().max(1) as u64) as usize).map(|node| node.address)
        };
        draw(self.listed.iter().filter(is_usable).collect())
            .or_else(|| draw(self.seeds.iter().filter(is_usable).collect()))
            .or_else(|| draw(self.listed.iter().collect()))
    }

    /// Returns the entries of an address: two for an initial one in the table.
    fn entries(&mut self, address: SocketAddr) -> impl Iterator<Item = &mut KnownNode> {
        self.listed.iter_mut().chain(&mut self.seeds).filter(move |node| node.address == address)
    }
}
