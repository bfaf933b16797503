//! The limit of requests of one source: a rate per second, and a burst.
//!
//! It is a generic cell rate: for each source the time at which its requests are paid for. The table has a
//! fixed size, with four places in a row. In a full row the source with the least to pay is replaced.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use super::siphash::SipHashKey;
use crate::Time;

const WAYS: usize = 4;

/// The number of rows: 1024 sources in all. A source that has paid needs no place.
const ROWS: usize = 256;

/// The recent requests of sources.
#[derive(Clone, Debug)]
pub struct SourceLimits {
    rows: Vec<[(u64, Time); WAYS]>,
    key: SipHashKey,
    /// The cost of one request.
    cost: Duration,
    /// The maximum lead of a source.
    credit: Duration,
}

/// Returns the cost of one request, and the maximum lead of a source.
fn cost_and_credit(rate: u32, burst: u32) -> (Duration, Duration) {
    let cost = Duration::from_secs(1).checked_div(rate).unwrap_or_default();
    (cost, cost * burst)
}

impl SourceLimits {
    /// Returns the limits for `rate` requests per second, and `burst` at once. A rate of 0 means no limit.
    /// Sources that displace others could be chosen with the key.
    pub fn new(key: SipHashKey, rate: u32, burst: u32) -> Self {
        let (cost, credit) = cost_and_credit(rate, burst);
        Self { rows: vec![[(0, Time(0)); WAYS]; ROWS], key, cost, credit }
    }

    /// Applies another rate and burst.
    pub(super) fn set_rate(&mut self, rate: u32, burst: u32) {
        (self.cost, self.credit) = cost_and_credit(rate, burst);
    }

    /// Returns `true` if `source` may send a request that costs as much as `count`. An IPv6 source is its
    /// network of 64 bits.
    pub fn admit(&mut self, now: Time, source: IpAddr, count: u32) -> bool {
        if self.cost.is_zero() {
            return true;
        }
        let hash = match source {
            IpAddr::V4(address) => self.key.hash(&address.octets()),
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(address) => self.key.hash(&address.octets()),
                None => self.key.hash(&address.octets()[..8]),
            },
        };
        let row = &mut self.rows[hash as usize % ROWS];
        let slot = row.iter().position(|entry| entry.0 == hash);
        let slot = slot.or_else(|| (0..WAYS).min_by_key(|slot| row[*slot].1)).unwrap_or(0);
        let entry = &mut row[slot];
        if entry.0 != hash {
            *entry = (hash, now);
        }
        let paid_until = entry.1.max(now) + self.cost * count;
        let is_within_credit = paid_until <= now + self.credit;
        if is_within_credit {
            entry.1 = paid_until;
        }
        is_within_credit
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_source_gets_its_rate_and_a_burst_whatever_others_do() {
        let mut sources = SourceLimits::new(SipHashKey::new([1; 16]), 100, 20);
        let source = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!((0..50).filter(|_| sources.admit(Time(0), source, 1)).count(), 20);
        let mut admitted = 0;
        for millis in 0..10_000_u64 {
            let now = Time(millis * 1_000_000);
            admitted += u32::from(sources.admit(now, source, 1));
            let other_source = IpAddr::V4(Ipv4Addr::from(0x0b00_0000 + millis as u32 % 500));
            assert!(sources.admit(now, other_source, 1), "2 per second");
        }
        assert!((995..=1001).contains(&admitted), "{admitted}");
    }

    #[test]
    fn neighbours_in_a_network_are_one_source() {
        let mut sources = SourceLimits::new(SipHashKey::new([1; 16]), 10, 10);
        let admitted = (0..100_u16).filter(|host| {
            let address = core::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, *host, 0, 0, 1);
            sources.admit(Time(0), IpAddr::V6(address), 1)
        });
        assert_eq!(admitted.count(), 10);
        let mut unlimited = SourceLimits::new(SipHashKey::new([1; 16]), 0, 0);
        assert!((0..1000).all(|_| unlimited.admit(Time(0), IpAddr::V4(Ipv4Addr::LOCALHOST), 1)));
    }
}
