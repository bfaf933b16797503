//! The state of other balancers that a group's choices use, readable by all cores.
//!
//! A request knows the exact requests in flight from here, but those of others are some milliseconds old. If
//! both counted the same, all balancers would see nearly the same member as the emptiest for that long, and
//! choose it: a herd. So each of this balancer's own requests counts as many times as there are balancers, as
//! if every other had sent one as well. Each of them is about to do so. The known requests of others are
//! added.
//!
//! They decide between members with as many requests from here. A member that is slow for all, or has many
//! requests of others, is avoided in time. Without reports each balancer decides alone.
//!
//! In simulations this was the nearest to one balancer that sees everything, at every age of the reports
//! (`tests/together`). The alternatives were the sum, draws of a few members, and pouring the unseen requests
//! over all members (Goren, Vargaftik and Moses, Stochastic coordination in heterogeneous load balancing
//! systems, PODC 2021).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// State that one thread writes and each choice reads, without a lock.
#[derive(Debug, Default)]
pub struct PeerPresence {
    /// The number of other balancers with recent reports; 0 without others.
    peers: AtomicU32,
    /// Whether others, or the previous process, received a load report from a member.
    relayed_reports: AtomicU32,
}

impl PeerPresence {
    /// Sets the number of other balancers that serve the group and send reports.
    pub fn set_peers(&self, peer_count: usize) {
        let peer_count = u32::try_from(peer_count).unwrap_or(u32::MAX).min(MAX_PEERS);
        if self.peers.load(Relaxed) != peer_count {
            self.peers.store(peer_count, Relaxed);
        }
    }

    /// Returns the count of one own request: the number of balancers.
    #[inline]
    pub fn own_request_weight(&self) -> f64 {
        f64::from(self.peers.load(Relaxed)) + 1.0
    }

    /// Records that another balancer, or the previous process, passed on a load report of a member.
    pub(crate) fn record_relayed_report(&self) {
        if self.relayed_reports.load(Relaxed) == 0 {
            self.relayed_reports.store(1, Relaxed);
        }
    }

    /// Returns `true` if a load report was ever passed on.
    pub(crate) fn has_relayed_reports(&self) -> bool {
        self.relayed_reports.load(Relaxed) != 0
    }
}

/// The maximum number of others: with more, a balancer's own requests decide anyway.
const MAX_PEERS: u32 = 63;
