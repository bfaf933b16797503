//! Two daemons with one number: the others take them for one, and accept the reports of the later
//! incarnation.
//!
//! The two detect each other by the membership protocol, which identifies daemons by their addresses. A
//! daemon that died and was restarted at another address is not known to be dead at once, so they wait for
//! [`MOVE_TOLERANCE`]. Then the later one must end, and the earlier one begins a new incarnation, or the
//! others would not accept its reports. Other daemons see reports with one number from two addresses, and log
//! this.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::Time;

use super::gossip::NodeIdentity;

/// The time for which two daemons with one number may be a single one that moved.
const MOVE_TOLERANCE: Duration = Duration::from_secs(5);

/// The minimum interval between two log lines about one member.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The number of conflicting reports before a log line: a few may be late from an earlier incarnation.
const STRAYS_BEFORE_LOG: u32 = 8;

/// The state of a conflict with another daemon that has this daemon's number.
#[derive(Debug, Default)]
pub(super) struct DuplicateDetector {
    /// The other daemon, and since when it is known.
    other: Option<(NodeIdentity, Time)>,
    is_logged: bool,
    /// The number of reports of other members from two addresses, and the time of the last log line.
    strays: HashMap<u16, (u32, Option<std::time::Instant>)>,
}

/// The consequences for a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DuplicateVerdict {
    /// The daemon must end, as the one at this address was first.
    pub(super) by: Option<SocketAddr>,
    /// The other is gone: begin an incarnation after this one.
    pub(super) renew_after: Option<u32>,
}

impl DuplicateDetector {
    /// Checks the current membership.
    pub(super) fn check(
        &mut self,
        now: Time,
        own_identity: NodeIdentity,
        others: impl Iterator<Item = NodeIdentity>,
    ) -> DuplicateVerdict {
        let mut duplicates =
            others.filter(|node| node.member == own_identity.member && node.address != own_identity.address);
        let Some(node) = duplicates.next() else {
            let previous = self.other.take().filter(|_| std::mem::take(&mut self.is_logged));
            let is_stale = previous.filter(|(previous, _)| previous.incarnation >= own_identity.incarnation);
            return DuplicateVerdict {
                by: None,
                renew_after: is_stale.map(|(previous, _)| previous.incarnation),
            };
        };
        let duplicate_since = self
            .other
            .filter(|(before, _)| before.address == node.address)
            .map_or(now, |(_, duplicate_since)| duplicate_since);
        self.other = Some((node, duplicate_since));
        if now.since(duplicate_since) < MOVE_TOLERANCE {
            return DuplicateVerdict::default();
        }
        if !self.is_logged {
            self.is_logged = true;
            tracing::error!(
                "another daemon at {} is member {}, too: give each a number of its own",
                node.address,
                own_identity.member
            );
        }
        let is_later = (own_identity.incarnation, own_identity.address) > (node.incarnation, node.address);
        DuplicateVerdict { by: is_later.then_some(node.address), renew_after: None }
    }

    /// Notes an outdated report of another member from an address other than that of its newest one.
    pub(super) fn record_stray(&mut self, member: u16, known_address: SocketAddr, from: SocketAddr) {
        let (count, last_logged_at) = self.strays.entry(member).or_default();
        *count = count.saturating_add(1);
        if *count >= STRAYS_BEFORE_LOG
            && last_logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL)
        {
            (*count, *last_logged_at) = (0, Some(std::time::Instant::now()));
            tracing::warn!(
                "member {member} is at {known_address} and at {from}: there are two daemons of that \
                 number, or somebody sends again \
                 what was recorded"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(incarnation: u32, port: u16) -> NodeIdentity {
        NodeIdentity { member: 3, incarnation, address: ([127, 0, 0, 1], port).into() }
    }

    fn second(second: u64) -> Time {
        Time(second * 1_000_000_000)
    }

    #[test]
    fn the_later_one_ends_and_the_earlier_one_begins_anew() {
        let (early, late) = (node(7, 1), node(9, 2));
        let other = NodeIdentity { member: 4, ..node(9, 3) };
        let mut detector = DuplicateDetector::default();
        for seconds in 0..5 {
            assert_eq!(
                detector.check(second(seconds), late, [other, early].into_iter()),
                DuplicateVerdict::default(),
                "it may have moved"
            );
        }
        assert_eq!(detector.check(second(5), late, [early].into_iter()).by, Some(early.address));
        let mut detector = DuplicateDetector::default();
        for seconds in 0..9 {
            assert_eq!(
                detector.check(second(seconds), early, [late].into_iter()),
                DuplicateVerdict::default()
            );
        }
        assert_eq!(detector.check(second(9), early, [other].into_iter()).renew_after, Some(9));
        assert_eq!(
            detector.check(second(10), early, [other].into_iter()),
            DuplicateVerdict::default(),
            "once"
        );
        // The order is defined even for two that started in the same second.
        let (lower, higher) = (node(7, 1), node(7, 2));
        let duplicate_of = |own_identity, other: NodeIdentity| {
            let mut detector = DuplicateDetector::default();
            detector.check(second(0), own_identity, [other].into_iter());
            detector.check(second(5), own_identity, [other].into_iter()).by
        };
        assert_eq!((duplicate_of(lower, higher), duplicate_of(higher, lower)), (None, Some(lower.address)));
    }

    #[test]
    fn one_that_moved_is_no_other() {
        let mut detector = DuplicateDetector::default();
        assert_eq!(
            detector.check(second(0), node(9, 2), [node(7, 1)].into_iter()),
            DuplicateVerdict::default()
        );
        assert_eq!(detector.check(second(2), node(9, 2), std::iter::empty()), DuplicateVerdict::default());
        assert_eq!(
            detector.check(second(60), node(9, 2), [node(8, 1)].into_iter()),
            DuplicateVerdict::default()
        );
    }
}
