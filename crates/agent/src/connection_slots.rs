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
    pub(crate) fn acquire(room: &Arc<Self>, address: IpAddr, near: bool) -> Option<ConnectionSlot> {
        let mut taken = room.0.lock().unwrap_or_else(PoisonError::into_inner);
        if near {
            if taken.local >= MAX_LOCAL {
                return None;
            }
            taken.local += 1;
            return Some(ConnectionSlot { slots: Arc::clone(room), remote: None });
        }
        if taken.remote >= MAX_REMOTE {
            return None;
        }
        let address = network(address);
        let own = taken.by_address.entry(address).or_default();
        if *own >= MAX_PER_ADDRESS {
            return None;
        }
        *own += 1;
        taken.remote += 1;
        Some(ConnectionSlot { slots: Arc::clone(room), remote: Some(address) })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(address) = self.remote else {
            taken.local -= 1;
            return;
        };
        taken.remote -= 1;
        if let Some(own) = taken.by_address.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64)).into(),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_takes_all_keeps_nobody_else_out() {
        let room = Arc::new(ConnectionSlots::default());
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let enter = |text: &str| ConnectionSlots::acquire(&room, at(text), false);
        let mut all: Vec<ConnectionSlot> = (0..100).filter_map(|_| enter("10.0.0.1")).collect();
        assert_eq!(all.len(), MAX_PER_ADDRESS);
        assert!(enter("::ffff:10.0.0.1").is_none(), "the same");
        all.extend((0..100).filter_map(|host| enter(&format!("2001:db8::{host:x}"))));
        assert_eq!(all.len(), 2 * MAX_PER_ADDRESS, "all of one network");
        all.extend((0..=255).filter_map(|host| enter(&format!("10.0.1.{host}"))));
        assert_eq!(all.len(), MAX_REMOTE);
        assert!(enter("10.0.2.1").is_none());
        assert!(
            ConnectionSlots::acquire(&room, at("127.0.0.1"), true).is_some(),
            "for this machine there are others"
        );
        all.clear();
        assert!(enter("10.0.2.1").is_some());
        assert!(room.0.lock().unwrap().by_address.is_empty());
    }
}
