//! The connection slots of an endpoint, and the eviction of connections when none is free.
//!
//! At an endpoint with TLS any host can connect and stay silent. A connection is unauthenticated until it has
//! shown a valid credential, which takes an honest client some milliseconds. If no slot is free, the oldest
//! unauthenticated connection of the source with the most of them is evicted. A source is an address; in IPv6
//! a network of 64 bits. One source has at most [`STRANGERS`] unauthenticated connections. Authenticated
//! connections are never evicted.
//!
//! At the other endpoints clients do not authenticate, and a connection keeps its slot unless others need it
//! more. A source that occupies all slots without sending requests must not block the members of others. If
//! no slot is free, a connection of the source with the most of them is evicted, provided that the new
//! connection's source has at least two fewer. Otherwise only idle connections are evicted: those without a
//! complete request, and those whose client does not read its response. Among the sources with at least as
//! many as the new connection's, the longest idle one is evicted. A silent crowd therefore delays no other
//! client, not even one at the same address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// The maximum number of unauthenticated connections of one source.
pub(crate) const STRANGERS: usize = 64;

/// The slots of one endpoint.
#[derive(Debug)]
pub(crate) struct Lobby {
    pub(crate) slots: Arc<Semaphore>,
    /// The connections that may be evicted, oldest first.
    strangers: Mutex<VecDeque<Weak<Guest>>>,
    /// Whether clients need not authenticate.
    open: bool,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Guest {
    source: Option<IpAddr>,
    proved: AtomicBool,
    place: Mutex<Option<OwnedSemaphorePermit>>,
    visit: OnceLock<AbortHandle>,
    /// The tick since which the connection is idle; 0 while its request is in progress.
    waits: AtomicU64,
}

/// The logical clock of idle times.
static TURNS: AtomicU64 = AtomicU64::new(1);

impl Guest {
    /// Notes that the connection is idle: the server waits for a request, or for the client to read.
    pub(crate) fn waits(&self) {
        self.waits.store(TURNS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Notes that a request is in progress.
    pub(crate) fn works(&self) {
        self.waits.store(0, Ordering::Relaxed);
    }

    /// Notes that the client has authenticated.
    pub(crate) fn prove(&self) {
        self.proved.store(true, Ordering::Relaxed);
    }

    /// Sets the task that an eviction aborts.
    pub(crate) fn visits(&self, visit: AbortHandle) {
        // The task is set only once.
        let _ = self.visit.set(visit);
    }

    fn strange(&self) -> bool {
        !self.proved.load(Ordering::Relaxed)
    }

    /// Evicts the connection and returns its slot.
    fn leave(&self) -> Option<OwnedSemaphorePermit> {
        if let Some(visit) = self.visit.get() {
            visit.abort();
        }
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Lobby {
    /// Creates `places` slots. `open` means that clients need not authenticate.
    pub(crate) fn new(places: u32, open: bool) -> Self {
        Self { slots: Arc::new(Semaphore::new(places as usize)), strangers: Mutex::default(), open }
    }

    /// Returns a slot for a connection from an address; `None` if there is none.
    pub(crate) fn enter(&self, from: &str) -> Option<Arc<Guest>> {
        let source = from.parse::<SocketAddr>().ok().map(|from| source(from.ip()));
        let mut strangers = lock(&self.strangers);
        strangers.retain(|guest| guest.upgrade().is_some_and(|guest| guest.strange()));
        let free = || self.slots.clone().try_acquire_owned().ok();
        let own = if self.open { None } else { take(&mut strangers, source, STRANGERS) };
        let place = match own.or_else(free) {
            Some(place) => place,
            None => {
                let (most, count) = crowd(&strangers)?;
                let fewer = || strangers.iter().filter(|guest| is_from(guest, source)).count() + 2 <= count;
                let place = if self.open && !fewer() {
                    // Only sources with at least as many connections: the new one's own, or a larger one.
                    let counts = counts(&strangers);
                    let of = |source: Option<IpAddr>| counts.get(&source).map_or(0, |(count, _)| *count);
                    longest(&strangers, |guest| of(guest.source) >= of(source))
                } else if self.open {
                    // An idle connection of that source is preferred.
                    longest(&strangers, |guest| guest.source == most)
                        .or_else(|| strangers.iter().position(|guest| is_from(guest, most)))
                } else {
                    strangers.iter().position(|guest| is_from(guest, most))
                };
                strangers.remove(place?)?.upgrade()?.leave()?
            }
        };
        let (proved, place) = (AtomicBool::new(false), Mutex::new(Some(place)));
        let (visit, waits) = (OnceLock::new(), AtomicU64::new(0));
        let guest = Arc::new(Guest { source, proved, place, visit, waits });
        strangers.push_back(Arc::downgrade(&guest));
        Some(guest)
    }
}

/// Returns the slot of a source's oldest unauthenticated connection, if the source has at least `many`.
fn take(
    strangers: &mut VecDeque<Weak<Guest>>,
    source: Option<IpAddr>,
    many: usize,
) -> Option<OwnedSemaphorePermit> {
    if strangers.iter().filter(|guest| is_from(guest, source)).count() < many {
        return None;
    }
    let first = strangers.iter().position(|guest| is_from(guest, source))?;
    strangers.remove(first)?.upgrade()?.leave()
}

/// Returns the index of the longest idle connection among those that count; `None` if none is idle.
fn longest(strangers: &VecDeque<Weak<Guest>>, counts: impl Fn(&Guest) -> bool) -> Option<usize> {
    let since = |guest: &Weak<Guest>| {
        let guest = guest.upgrade().filter(|guest| counts(guest))?;
        Some(guest.waits.load(Ordering::Relaxed)).filter(|since| *since > 0)
    };
    let waiting = strangers.iter().enumerate().filter_map(|(place, guest)| Some((since(guest)?, place)));
    waiting.min().map(|(_, place)| place)
}

fn is_from(guest: &Weak<Guest>, source: Option<IpAddr>) -> bool {
    guest.upgrade().is_some_and(|guest| guest.source == source)
}

/// Returns the source with the most unauthenticated connections, and their number; the earliest one of
/// several.
fn crowd(strangers: &VecDeque<Weak<Guest>>) -> Option<(Option<IpAddr>, usize)> {
    let most =
        counts(strangers).into_iter().max_by_key(|(_, (count, first))| (*count, std::cmp::Reverse(*first)));
    most.map(|(source, (count, _))| (source, count))
}

/// Returns the number of unauthenticated connections of each source, and the index of the first.
fn counts(strangers: &VecDeque<Weak<Guest>>) -> HashMap<Option<IpAddr>, (usize, usize)> {
    let mut counts: HashMap<Option<IpAddr>, (usize, usize)> = HashMap::new();
    for (place, guest) in strangers.iter().enumerate() {
        if let Some(guest) = guest.upgrade() {
            counts.entry(guest.source).or_insert((0, place)).0 += 1;
        }
    }
    counts
}

/// Returns the source of an address: an IPv6 client has a whole network of addresses.
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
        // The oldest connection of the largest source.
        let three = lobby.enter("10.0.0.3:1").unwrap();
        assert!(inside(&known) && !inside(&one) && inside(&two) && inside(&three));
        // One each: the oldest of all.
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
    fn where_all_are_welcome_one_source_cannot_keep_the_others_out() {
        let lobby = Lobby::new(4, true);
        let flood = |port: u16| lobby.enter(&format!("10.0.0.9:{port}"));
        let guests: Vec<_> = (1..=4).map(|port| flood(port).unwrap()).collect();
        assert!(flood(5).is_none(), "its own are not sent away for it");
        let one = lobby.enter("10.0.0.1:1").unwrap();
        let two = lobby.enter("10.0.0.2:1").unwrap();
        assert!(!inside(&guests[0]) && !inside(&guests[1]) && inside(&guests[2]) && inside(&guests[3]));
        assert!(flood(6).is_none() && inside(&one) && inside(&two));
        let again = lobby.enter("10.0.0.1:2");
        assert!(again.is_none() && inside(&guests[2]), "both would have two");
        drop(one);
        assert!(flood(7).is_some(), "what is free is for everybody");
    }

    #[test]
    fn whoever_is_waited_for_longest_goes_first_whoever_comes() {
        for from in ["10.0.0.9:9", "unix"] {
            let lobby = Lobby::new(3, true);
            let [served, first, second] = [1, 2, 3].map(|_| lobby.enter(from).unwrap());
            first.waits();
            served.waits();
            second.waits();
            served.works();
            let scrape = lobby.enter(from).unwrap();
            assert!(inside(&served) && !inside(&first) && inside(&second) && inside(&scrape));
            first.waits();
            let next = lobby.enter(from).unwrap();
            assert!(inside(&served) && !inside(&second) && inside(&scrape) && inside(&next));
            assert!(lobby.enter(from).is_none(), "something is being done for all of them");
        }
    }

    #[test]
    fn a_crowd_takes_no_place_of_those_who_are_fewer() {
        let lobby = Lobby::new(3, true);
        let [other, first, second] =
            ["10.0.0.1:1", "10.0.0.9:1", "10.0.0.9:2"].map(|from| lobby.enter(from).unwrap());
        [&other, &first, &second].iter().for_each(|guest| guest.waits());
        let third = lobby.enter("10.0.0.9:3").unwrap();
        assert!(inside(&other) && !inside(&first) && inside(&second) && inside(&third));
    }

    #[test]
    fn of_a_crowd_goes_who_has_nothing_to_say() {
        let lobby = Lobby::new(3, true);
        let [follows, silent, other] =
            [1, 2, 3].map(|port| lobby.enter(&format!("10.0.0.9:{port}")).unwrap());
        silent.waits();
        let newcomer = lobby.enter("10.0.0.1:1").unwrap();
        assert!(inside(&follows) && !inside(&silent) && inside(&other) && inside(&newcomer));
    }

    #[test]
    fn where_it_is_not_known_from_where_nobody_has_to_go() {
        let lobby = Lobby::new(1, true);
        let guest = lobby.enter("unix").unwrap();
        assert!(lobby.enter("unix").is_none() && inside(&guest));
    }
}
