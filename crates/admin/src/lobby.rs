//! Places at a door, and who has to give his up for others.
//!
//! Where TLS is spoken anybody can come and be silent. A stranger holds a place until he has shown a credential that counts, which
//! takes an honest client some milliseconds. So when no place is free the stranger goes who came first from the source (an address; of
//! IPv6 a network of 64 bits) that has most of them, and of one source no more than [`STRANGERS`] are in at once. Who has proved who he
//! is stays. At the other doors whoever has a place keeps it.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Strangers of one source at once.
pub(crate) const STRANGERS: usize = 64;

/// The places of one door.
#[derive(Debug)]
pub(crate) struct Lobby {
    pub(crate) slots: Arc<Semaphore>,
    /// Those who may be strangers, in the order in which they came; none where strangers are welcome.
    strangers: Option<Mutex<VecDeque<Weak<Guest>>>>,
}

/// Somebody who has come in.
#[derive(Debug)]
pub(crate) struct Guest {
    source: Option<IpAddr>,
    proved: AtomicBool,
    place: Mutex<Option<OwnedSemaphorePermit>>,
    visit: OnceLock<AbortHandle>,
}

impl Guest {
    /// It is known who it is.
    pub(crate) fn prove(&self) {
        self.proved.store(true, Ordering::Relaxed);
    }

    /// What ends if the guest has to go.
    pub(crate) fn visits(&self, visit: AbortHandle) {
        // It is said once.
        let _ = self.visit.set(visit);
    }

    fn strange(&self) -> bool {
        !self.proved.load(Ordering::Relaxed)
    }

    /// Sends the guest away; his place.
    fn leave(&self) -> Option<OwnedSemaphorePermit> {
        if let Some(visit) = self.visit.get() {
            visit.abort();
        }
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Lobby {
    /// With so many places. `known`: does everybody keep his, whether or not it is known who he is?
    pub(crate) fn new(places: u32, known: bool) -> Self {
        Self { slots: Arc::new(Semaphore::new(places as usize)), strangers: (!known).then(Mutex::default) }
    }

    /// A place for somebody who comes from an address; `None` if there is none.
    pub(crate) fn enter(&self, from: &str) -> Option<Arc<Guest>> {
        let source = from.parse::<SocketAddr>().ok().map(|from| source(from.ip()));
        let free = || self.slots.clone().try_acquire_owned().ok();
        let place = match &self.strangers {
            None => free()?,
            Some(strangers) => {
                let mut strangers = lock(strangers);
                strangers.retain(|guest| guest.upgrade().is_some_and(|guest| guest.strange()));
                match take(&mut strangers, source, STRANGERS) {
                    Some(place) => place,
                    None => match free() {
                        Some(place) => place,
                        None => {
                            let most = crowd(&strangers)?;
                            take(&mut strangers, most, 1)?
                        }
                    },
                }
            }
        };
        let (proved, place) = (AtomicBool::new(false), Mutex::new(Some(place)));
        let guest = Arc::new(Guest { source, proved, place, visit: OnceLock::new() });
        if let Some(strangers) = &self.strangers {
            lock(strangers).push_back(Arc::downgrade(&guest));
        }
        Some(guest)
    }
}

/// The place of the first stranger of a source, if there are so many of it.
fn take(
    strangers: &mut VecDeque<Weak<Guest>>,
    source: Option<IpAddr>,
    many: usize,
) -> Option<OwnedSemaphorePermit> {
    let of = |guest: &Weak<Guest>| guest.upgrade().is_some_and(|guest| guest.source == source);
    if strangers.iter().filter(|guest| of(guest)).count() < many {
        return None;
    }
    let first = strangers.iter().position(of)?;
    strangers.remove(first)?.upgrade()?.leave()
}

/// The source of most strangers; of several the one that was there first.
fn crowd(strangers: &VecDeque<Weak<Guest>>) -> Option<Option<IpAddr>> {
    let mut counts: HashMap<Option<IpAddr>, (usize, usize)> = HashMap::new();
    for (place, guest) in strangers.iter().enumerate() {
        if let Some(guest) = guest.upgrade() {
            counts.entry(guest.source).or_insert((0, place)).0 += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, (count, first))| (*count, std::cmp::Reverse(*first)));
    most.map(|(source, _)| source)
}

/// What counts as one source: whoever has an address of IPv6 has a network of them.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        address => address,
    }
}

fn lock(strangers: &Mutex<VecDeque<Weak<Guest>>>) -> MutexGuard<'_, VecDeque<Weak<Guest>>> {
    strangers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lobby(places: u32) -> Lobby {
        Lobby::new(places, false)
    }

    fn inside(guest: &Guest) -> bool {
        guest.place.lock().unwrap().is_some()
    }

    #[test]
    fn strangers_make_room_and_those_who_are_known_stay() {
        let lobby = lobby(3);
        let [known, one, two] =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2"].map(|from| lobby.enter(from).unwrap());
        known.prove();
        // The first of those who are most.
        let three = lobby.enter("10.0.0.3:1").unwrap();
        assert!(inside(&known) && !inside(&one) && inside(&two) && inside(&three));
        // One each: the first of all.
        let four = lobby.enter("10.0.0.4:1").unwrap();
        assert!(inside(&known) && !inside(&two) && inside(&three) && inside(&four));
        three.prove();
        four.prove();
        assert!(lobby.enter("10.0.0.5:1").is_none(), "nobody has to go");
        drop(known);
        assert!(lobby.enter("10.0.0.5:1").is_some());
    }

    #[test]
    fn a_source_has_so_many_and_no_more() {
        let lobby = lobby(256);
        let address = |port: usize| format!("[2001:db8::{port:x}]:{port}");
        let guests: Vec<_> = (1..=STRANGERS + 10).map(|port| lobby.enter(&address(port)).unwrap()).collect();
        let held: Vec<bool> = guests.iter().map(|guest| inside(guest)).collect();
        assert_eq!(held.iter().filter(|held| **held).count(), STRANGERS);
        assert!(held[..10].iter().all(|held| !held), "the first of them went");
        assert_eq!(lobby.slots.available_permits(), 256 - STRANGERS);
        let other = lobby.enter("[2001:db8:0:1::1]:1").unwrap();
        assert!(inside(&other) && inside(&guests[10]));
        drop((guests, other));
        assert_eq!(lobby.slots.available_permits(), 256);
    }

    #[test]
    fn where_all_are_welcome_nobody_has_to_go() {
        let lobby = Lobby::new(1, true);
        let guest = lobby.enter("unix").unwrap();
        assert!(lobby.enter("unix").is_none() && inside(&guest));
    }
}
