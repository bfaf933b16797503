//! Response rate limiting for UDP, as in BIND and Knot DNS: limits the answers to each client network.
//!
//! An attacker who forges a client's address directs the answers to that client. An answer is longer than its
//! query, so a name server without a limit amplifies the attack. The forged addresses of one victim are many
//! and close to each other, so each network (/24, /56) is counted as one.
//!
//! The generic cell rate algorithm (ITU-T I.371) keeps one number for each network: the time at which all of
//! its answers would have been sent at the permitted rate. The networks share a table of fixed size by a
//! keyed hash; all cores use it without a lock. Two networks with the same entry share a rate, and outsiders
//! cannot find such pairs.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use plimsoll_brain::{Time, lottery};

use crate::runtime::source_network::network;

/// The table's entries; 256 KiB for each listener.
const ENTRIES: usize = 1 << 15;
/// The permitted burst: the answers of this many nanoseconds.
const BURST: u64 = 1_000_000_000;

/// The answers that each client network has received from one listener.
#[derive(Debug)]
pub(crate) struct AnswerRates {
    key: Option<lottery::SipHashKey>,
    /// For each entry, the time at which its answers would have been sent, in nanoseconds.
    due: Box<[AtomicU64]>,
}

impl AnswerRates {
    /// Creates an empty table. `key` is secret; without one, outsiders can find networks that share an entry.
    pub(crate) fn new(key: Option<lottery::SipHashKey>) -> Self {
        Self { key, due: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns `true` and counts an answer to a client, if its network may have one more at `per_second`.
    pub(super) fn admits(&self, client: IpAddr, per_second: u32, now: Time) -> bool {
        let interval = BURST / u64::from(per_second.max(1));
        let slot = self.due.get(self.entry_index(client));
        slot.is_none_or(|due| {
            let next = |due: u64| {
                let next_due = due.max(now.0).saturating_add(interval);
                (next_due <= now.0.saturating_add(BURST)).then_some(next_due)
            };
            due.fetch_update(Relaxed, Relaxed, next).is_ok()
        })
    }

    fn entry_index(&self, client: IpAddr) -> usize {
        let hash = |bytes: &[u8]| match &self.key {
            Some(key) => key.hash(bytes),
            None => plimsoll_brain::hash(bytes),
        };
        let hash = match network(client, 24, 56) {
            IpAddr::V4(network) => hash(&network.octets()),
            IpAddr::V6(network) => hash(&network.octets()),
        };
        hash as usize % ENTRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    fn client(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_its_rate_and_others_have_theirs() {
        let rates = AnswerRates::new(Some(lottery::SipHashKey::new([7; 16])));
        let admitted_count =
            |text: &str, now| (0..30).filter(|_| rates.admits(client(text), 10, now)).count();
        assert_eq!(admitted_count("192.0.2.1", at(1000)), 10, "those of a second at once");
        assert_eq!(admitted_count("192.0.2.250", at(1000)), 0, "of the same network");
        assert_eq!(admitted_count("2001:db8::1", at(1000)), 10);
        assert_eq!(admitted_count("2001:db8:0:ff::1", at(1000)), 0, "of the same /56");
        assert_eq!(admitted_count("192.0.2.9", at(1500)), 5, "in proportion to the time");
        assert_eq!(admitted_count("192.0.2.9", at(60_000)), 10, "and no more for a long rest");
    }
}
