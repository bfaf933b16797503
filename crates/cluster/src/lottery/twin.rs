//! Two daemons with one number: the others take them for one, and accept the reports of the later
//! incarnation.
//!
//! The two detect each other by the membership protocol, which identifies daemons by their addresses. A
//! daemon that died and was restarted at another address is not known to be dead at once, so they wait for
//! [`PATIENCE`]. Then the later one must end, and the earlier one begins a new incarnation, or the others
//! would not accept its reports. Other daemons see reports with one number from two addresses, and log this.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::Time;

use super::gossip::Node;

/// The time for which two daemons with one number may be a single one that moved.
const PATIENCE: Duration = Duration::from_secs(5);

/// The minimum interval between two log lines about one member.
const COMPLAINT: Duration = Duration::from_secs(60);

/// The number of conflicting reports before a log line: a few may be late from an earlier incarnation.
const STRAYS: u32 = 8;

/// The state of a conflict with another daemon that has this daemon's number.
#[derive(Debug, Default)]
pub(super) struct Twin {
    /// The other daemon, and since when it is known.
    other: Option<(Node, Time)>,
    said: bool,
    /// The number of reports of other members from two addresses, and the time of the last log line.
    strays: HashMap<u16, (u32, Option<std::time::Instant>)>,
}

/// The consequences for a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The daemon must end, as the one at this address was first.
    pub(super) by: Option<SocketAddr>,
    /// The other is gone: begin an incarnation after this one.
    pub(super) renew: Option<u32>,
}

impl Twin {
    /// Checks the current membership.
    pub(super) fn look(&mut self, now: Time, own: Node, others: impl Iterator<Item = Node>) -> Verdict {
        let mut same = others.filter(|node| node.member == own.member && node.address != own.address);
        let Some(node) = same.next() else {
            let gone = self.other.take().filter(|_| std::mem::take(&mut self.said));
            let later = gone.filter(|(gone, _)| gone.life >= own.life);
            return Verdict { by: None, renew: later.map(|(gone, _)| gone.life) };
        };
        let since =
            self.other.filter(|(before, _)| before.address == node.address).map_or(now, |(_, since)| since);
        self.other = Some((node, since));
        if now.since(since) < PATIENCE {
            return Verdict::default();
        }
        if !self.said {
            self.said = true;
            tracing::error!(
                "another daemon at {} is member {}, too: give each a number of its own",
                node.address,
                own.member
            );
        }
        let later = (own.life, own.address) > (node.life, node.address);
        Verdict { by: later.then_some(node.address), renew: None }
    }

    /// Notes an outdated report of another member from an address other than that of its newest one.
    pub(super) fn stray(&mut self, member: u16, home: SocketAddr, from: SocketAddr) {
        let (count, said) = self.strays.entry(member).or_default();
        *count = count.saturating_add(1);
        if *count >= STRAYS && said.is_none_or(|said| said.elapsed() >= COMPLAINT) {
            (*count, *said) = (0, Some(std::time::Instant::now()));
            tracing::warn!(
                "member {member} is at {home} and at {from}: there are two daemons of that number, or somebody sends again \
                 what was recorded"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(life: u32, port: u16) -> Node {
        Node { member: 3, life, address: ([127, 0, 0, 1], port).into() }
    }

    fn second(second: u64) -> Time {
        Time(second * 1_000_000_000)
    }

    #[test]
    fn the_later_one_ends_and_the_earlier_one_begins_anew() {
        let (early, late) = (node(7, 1), node(9, 2));
        let other = Node { member: 4, ..node(9, 3) };
        let mut twin = Twin::default();
        for at in 0..5 {
            assert_eq!(
                twin.look(second(at), late, [other, early].into_iter()),
                Verdict::default(),
                "it may have moved"
            );
        }
        assert_eq!(twin.look(second(5), late, [early].into_iter()).by, Some(early.address));
        let mut twin = Twin::default();
        for at in 0..9 {
            assert_eq!(twin.look(second(at), early, [late].into_iter()), Verdict::default());
        }
        assert_eq!(twin.look(second(9), early, [other].into_iter()).renew, Some(9));
        assert_eq!(twin.look(second(10), early, [other].into_iter()), Verdict::default(), "once");
        // The order is defined even for two that started in the same second.
        let (one, two) = (node(7, 1), node(7, 2));
        let by = |own, other: Node| {
            let mut twin = Twin::default();
            twin.look(second(0), own, [other].into_iter());
            twin.look(second(5), own, [other].into_iter()).by
        };
        assert_eq!((by(one, two), by(two, one)), (None, Some(one.address)));
    }

    #[test]
    fn one_that_moved_is_no_other() {
        let mut twin = Twin::default();
        assert_eq!(twin.look(second(0), node(9, 2), [node(7, 1)].into_iter()), Verdict::default());
        assert_eq!(twin.look(second(2), node(9, 2), std::iter::empty()), Verdict::default());
        assert_eq!(twin.look(second(60), node(9, 2), [node(8, 1)].into_iter()), Verdict::default());
    }
}
