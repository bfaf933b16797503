//! The flows of one core's socket, and the choice of the flow that a new one replaces.
//!
//! An attacker can forge the address of a datagram, so a flow's value depends on its client's behaviour.
//! Flows without a response from their member are replaced first. Next are flows whose client has sent
//! nothing since the first response, as a forged client never receives one. A flow whose client continued
//! after a response is proved, and makes no room for newcomers: clients in use are not disturbed.
//!
//! Among flows with the same standing, those idle for longest are replaced first, to a precision of a second.
//! Flows of a source that holds more than a quarter of the table precede all others. A source is an address,
//! for IPv6 a network of 64 bits. Such a source makes room for its new flows among its own unanswered ones,
//! and for other sources also with proved ones.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::FlowKey;
use crate::runtime::source_network::network;

/// Sources with more than one in this many flows make room for all others.
const SHARE: usize = 4;

/// The proof of a flow's client, in the order of replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FlowStanding {
    /// The member has not responded.
    Unanswered,
    /// The member has responded, and the client has sent nothing since.
    Answered,
    /// The client continued after a response: it receives datagrams at its address.
    Proved,
}

/// The rank of a flow in the order of replacement; the number grows with every change.
type FlowRank = (FlowStanding, u64);

/// The flows of one core's socket.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    flows: HashMap<FlowKey, RankedFlow<F>>,
    order: BTreeMap<FlowRank, FlowKey>,
    sources: HashMap<IpAddr, BTreeSet<FlowRank>>,
    /// The sources by their number of flows.
    sizes: BTreeSet<(usize, IpAddr)>,
    next_sequence: u64,
}

#[derive(Debug)]
struct RankedFlow<F> {
    flow: F,
    rank: FlowRank,
}

impl<F> Default for FlowTable<F> {
    fn default() -> Self {
        Self {
            flows: HashMap::default(),
            order: BTreeMap::default(),
            sources: HashMap::default(),
            sizes: BTreeSet::default(),
            next_sequence: 0,
        }
    }
}

impl<F> FlowTable<F> {
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(super) fn get(&self, key: &FlowKey) -> Option<&F> {
        self.flows.get(key).map(|ranked| &ranked.flow)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FlowKey, &F)> {
        self.flows.iter().map(|(key, ranked)| (key, &ranked.flow))
    }

    /// Adds a flow behind those with the same standing; it replaces one with the same key.
    pub(super) fn insert(&mut self, key: FlowKey, flow: F, standing: FlowStanding) {
        self.remove(&key);
        let rank = self.rank(&key, standing);
        self.flows.insert(key, RankedFlow { flow, rank });
    }

    /// Removes a flow and returns it.
    pub(super) fn remove(&mut self, key: &FlowKey) -> Option<F> {
        let ranked = self.flows.remove(key)?;
        self.unrank(key, ranked.rank);
        Some(ranked.flow)
    }

    /// Records that a flow was used, and its standing: all others with the same standing are replaced before
    /// it.
    pub(super) fn touch(&mut self, key: &FlowKey, standing: FlowStanding) {
        let Some(old_rank) = self.flows.get(key).map(|ranked| ranked.rank) else { return };
        self.unrank(key, old_rank);
        let rank = self.rank(key, standing);
        if let Some(ranked) = self.flows.get_mut(key) {
            ranked.rank = rank;
        }
    }

    /// Returns the flow that a new one replaces in a full table; `None` if there is none.
    pub(super) fn eviction_candidate(&self, newcomer: &FlowKey) -> Option<FlowKey> {
        let own_source = source(newcomer);
        let ranks = |source: &IpAddr| self.sources.get(source).and_then(BTreeSet::first).copied();
        let own_count = self.sources.get(&own_source).map_or(0, BTreeSet::len);
        let exceeds_share = |count: usize| count * SHARE > self.flows.len();
        let rank = if exceeds_share(own_count) {
            ranks(&own_source).filter(|(standing, _)| *standing == FlowStanding::Unanswered)
        } else {
            let (count, largest) = *self.sizes.last()?;
            // Not for a source that would then have as many.
            let largest_rank =
                if exceeds_share(count) && count >= own_count + 2 { ranks(&largest) } else { None };
            let oldest_rank =
                self.order.keys().next().copied().filter(|(standing, _)| *standing < FlowStanding::Proved);
            match (largest_rank, oldest_rank) {
                (Some(largest_flow), Some(oldest)) if oldest.0 < largest_flow.0 => Some(oldest),
                (Some(largest_flow), _) => Some(largest_flow),
                (None, oldest) => oldest,
            }
        };
        self.order.get(&rank?).copied()
    }

    fn rank(&mut self, key: &FlowKey, standing: FlowStanding) -> FlowRank {
        let rank = (standing, self.next_sequence);
        self.next_sequence += 1;
        self.order.insert(rank, *key);
        self.resize(source(key), |ranks| ranks.insert(rank));
        rank
    }

    fn unrank(&mut self, key: &FlowKey, rank: FlowRank) {
        self.order.remove(&rank);
        self.resize(source(key), |ranks| ranks.remove(&rank));
    }

    fn resize(&mut self, source: IpAddr, change: impl FnOnce(&mut BTreeSet<FlowRank>) -> bool) {
        let ranks = self.sources.entry(source).or_default();
        let old_count = ranks.len();
        change(ranks);
        let new_count = ranks.len();
        self.sizes.remove(&(old_count, source));
        if new_count == 0 {
            self.sources.remove(&source);
        } else {
            self.sizes.insert((new_count, source));
        }
    }
}

fn source((client, _): &FlowKey) -> IpAddr {
    network(client.ip(), 32, 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use FlowStanding::{Answered, Proved, Unanswered};

    fn key(client: &str) -> FlowKey {
        (client.parse().unwrap(), None)
    }

    /// Returns a table of flows, inserted in this order.
    fn table(flows: &[(&str, FlowStanding)]) -> FlowTable<()> {
        let mut table = FlowTable::default();
        flows.iter().for_each(|(client, standing)| table.insert(key(client), (), *standing));
        table
    }

    #[track_caller]
    fn assert_eviction(table: &FlowTable<()>, newcomer: &str, expected: Option<&str>) {
        assert_eq!(table.eviction_candidate(&key(newcomer)), expected.map(key), "for {newcomer}");
    }

    #[test]
    fn the_unanswered_go_first_and_the_proved_stay() {
        let mut table = table(&[
            ("10.0.0.1:1", Proved),
            ("10.0.0.2:1", Answered),
            ("10.0.0.3:1", Unanswered),
            ("10.0.0.4:1", Unanswered),
            ("10.0.0.5:1", Answered),
        ]);
        for expected in ["10.0.0.3:1", "10.0.0.4:1", "10.0.0.2:1", "10.0.0.5:1"] {
            assert_eviction(&table, "10.0.1.1:1", Some(expected));
            assert!(table.remove(&key(expected)).is_some());
            // An active client takes its place.
            table.insert((expected.replace("10.0.0", "10.0.9").parse().unwrap(), None), (), Proved);
        }
        assert_eviction(&table, "10.0.1.1:1", None);
    }

    #[test]
    fn a_flow_that_is_used_goes_after_those_that_are_quiet() {
        let mut table = table(&[
            ("10.0.0.1:1", Unanswered),
            ("10.0.0.2:1", Unanswered),
            ("10.0.0.3:1", Unanswered),
            ("10.0.0.4:1", Unanswered),
        ]);
        table.touch(&key("10.0.0.1:1"), Unanswered);
        assert_eviction(&table, "10.0.1.1:1", Some("10.0.0.2:1"));
        table.touch(&key("10.0.0.2:1"), Answered);
        assert_eviction(&table, "10.0.1.1:1", Some("10.0.0.3:1"));
    }

    #[test]
    fn a_source_above_its_share_makes_room_for_all_others() {
        let mut table = table(&[
            ("10.0.0.1:1", Unanswered),
            ("10.0.0.9:1", Unanswered),
            ("10.0.0.9:2", Unanswered),
            ("10.0.0.2:1", Proved),
        ]);
        assert_eviction(&table, "10.0.1.1:1", Some("10.0.0.9:1"));
        // Its own newcomers, too, take only its own places.
        assert_eviction(&table, "10.0.0.9:3", Some("10.0.0.9:1"));
        table.touch(&key("10.0.0.9:2"), Proved);
        table.touch(&key("10.0.0.9:1"), Proved);
        assert_eviction(&table, "10.0.0.9:3", None);
        assert_eviction(&table, "10.0.1.1:1", Some("10.0.0.1:1"));
        // Where no other flow makes room, its proved flow with the longest idle time does; those of small
        // sources never do.
        table.touch(&key("10.0.0.1:1"), Proved);
        assert_eviction(&table, "10.0.1.1:1", Some("10.0.0.9:2"));
        assert_eviction(&table, "10.0.0.1:2", None);
    }

    #[test]
    fn in_a_small_table_sources_that_have_as_many_keep_what_they_have() {
        let table = table(&[("10.0.0.1:1", Proved), ("10.0.0.2:1", Proved), ("10.0.0.3:1", Proved)]);
        assert_eviction(&table, "10.0.0.4:1", None);
    }

    #[test]
    fn a_source_that_is_all_there_is_keeps_what_is_answered() {
        let table = table(&[("10.0.0.1:1", Answered), ("10.0.0.1:2", Proved)]);
        assert_eviction(&table, "10.0.0.1:3", None);
        assert_eviction(&table, "10.0.0.2:1", Some("10.0.0.1:1"));
    }

    #[test]
    fn a_network_of_64_bits_is_one_source_of_ipv6() {
        let table = table(&[
            ("[2001:db8::1]:1", Proved),
            ("[2001:db8::2]:1", Proved),
            ("[2001:db8:0:1::1]:1", Proved),
            ("[2001:db8:0:2::1]:1", Proved),
        ]);
        assert_eviction(&table, "[2001:db8:0:3::1]:1", Some("[2001:db8::1]:1"));
        assert_eviction(&table, "[2001:db8::3]:1", None);
    }

    #[test]
    fn nothing_is_left_of_flows_that_are_over() {
        let mut table =
            table(&[("10.0.0.1:1", Unanswered), ("10.0.0.1:1", Answered), ("10.0.0.2:1", Proved)]);
        assert_eq!((table.iter().count(), table.order.len(), table.sizes.len()), (2, 2, 2));
        table.touch(&key("10.0.0.3:1"), Proved);
        for client in ["10.0.0.1:1", "10.0.0.2:1"] {
            assert!(table.remove(&key(client)).is_some() && table.remove(&key(client)).is_none());
        }
        assert!(table.is_empty() && table.order.is_empty() && table.sizes.is_empty());
        assert!(table.sources.is_empty());
    }
}
