//! Connection slots: a limit for clients on this machine, one for all other clients together, and one for
//! each remote address. A client that takes all slots of its address does not lock out others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The limit for clients on this machine.
const MAX_LOCAL: usize = 64;
/// The limit for all other clients together.
const MAX_REMOTE: usize = 256;
/// The limit for one remote address. IPv6 addresses count by their /64 network, since a host usually has a
/// whole one.
const MAX_PER_ADDRESS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct ConnectionSlots(Mutex<SlotCounts>);

#[derive(Debug, Default)]
struct SlotCounts {
    local: usize,
    remote: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A slot, held until it is dropped, with the remote address that it counts for (`None` for this machine).
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    remote: Option<IpAddr>,
}

impl ConnectionSlots {
    /// Takes a slot for a client on this machine (`near`) or elsewhere; `None` if there is none left.
    pub(crate) fn acquire(slots: &Arc<Self>, address: IpAddr, is_local: bool) -> Option<ConnectionSlot> {
        let mut counts = slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_local {
            if counts.local >= MAX_LOCAL {
                return None;
            }
            counts.local += 1;
            return Some(ConnectionSlot { slots: Arc::clone(slots), remote: None });
        }
        if counts.remote >= MAX_REMOTE {
            return None;
        }
        let address = network(address);
        let address_count = counts.by_address.entry(address).or_default();
        if *address_count >= MAX_PER_ADDRESS {
            return None;
        }
        *address_count += 1;
        counts.remote += 1;
        Some(ConnectionSlot { slots: Arc::clone(slots), remote: Some(address) })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut counts = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(address) = self.remote else {
            counts.local -= 1;
            return;
        };
        counts.remote -= 1;
        if let Some(address_count) = counts.by_address.get_mut(&address) {
            *address_count -= 1;
            if *address_count == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ipv6) => Ipv6Addr::from_bits(ipv6.to_bits() & (u128::MAX << 64)).into(),
        other_address => other_address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_takes_all_keeps_nobody_else_out() {
        let slots = Arc::new(ConnectionSlots::default());
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let acquire = |text: &str| ConnectionSlots::acquire(&slots, address(text), false);
        let mut held_slots: Vec<ConnectionSlot> = (0..100).filter_map(|_| acquire("10.0.0.1")).collect();
        assert_eq!(held_slots.len(), MAX_PER_ADDRESS);
        assert!(acquire("::ffff:10.0.0.1").is_none(), "the same");
        held_slots.extend((0..100).filter_map(|host| acquire(&format!("2001:db8::{host:x}"))));
        assert_eq!(held_slots.len(), 2 * MAX_PER_ADDRESS, "all of one network");
        held_slots.extend((0..=255).filter_map(|host| acquire(&format!("10.0.1.{host}"))));
        assert_eq!(held_slots.len(), MAX_REMOTE);
        assert!(acquire("10.0.2.1").is_none());
        assert!(
            ConnectionSlots::acquire(&slots, address("127.0.0.1"), true).is_some(),
            "for this machine there are others"
        );
        held_slots.clear();
        assert!(acquire("10.0.2.1").is_some());
        assert!(slots.0.lock().unwrap().by_address.is_empty());
    }
}
