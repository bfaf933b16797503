//! The connection slots of an endpoint, and the eviction of connections when none is free.
//!
//! At an endpoint with TLS any host can connect and stay silent. A connection is unauthenticated until it has
//! shown a valid credential, which takes an honest client some milliseconds. If no slot is free, the oldest
//! unauthenticated connection of the source with the most of them is evicted. A source is an address; in IPv6
//! a network of 64 bits. One source has at most [`MAX_UNAUTHENTICATED`] unauthenticated connections.
//! Authenticated connections are never evicted.
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
pub(crate) const MAX_UNAUTHENTICATED: usize = 64;

/// The slots of one endpoint.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    pub(crate) slots: Arc<Semaphore>,
    /// The connections that may be evicted, oldest first.
    evictable: Mutex<VecDeque<Weak<ConnectionSlot>>>,
    /// Whether clients need not authenticate.
    is_open: bool,
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    source: Option<IpAddr>,
    is_authenticated: AtomicBool,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    task: OnceLock<AbortHandle>,
    /// The tick since which the connection is idle; 0 while its request is in progress.
    idle_since: AtomicU64,
}

/// The logical clock of idle times.
static IDLE_CLOCK: AtomicU64 = AtomicU64::new(1);

impl ConnectionSlot {
    /// Notes that the connection is idle: the server waits for a request, or for the client to read.
    pub(crate) fn mark_idle(&self) {
        self.idle_since.store(IDLE_CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Notes that a request is in progress.
    pub(crate) fn mark_busy(&self) {
        self.idle_since.store(0, Ordering::Relaxed);
    }

    /// Notes that the client has authenticated.
    pub(crate) fn mark_authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
    }

    /// Sets the task that an eviction aborts.
    pub(crate) fn set_task(&self, visit: AbortHandle) {
        // The task is set only once.
        let _ = self.task.set(visit);
    }

    fn is_evictable(&self) -> bool {
        !self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Evicts the connection and returns its slot.
    fn evict(&self) -> Option<OwnedSemaphorePermit> {
        if let Some(visit) = self.task.get() {
            visit.abort();
        }
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ConnectionSlots {
    /// Creates `places` slots. `is_open` means that clients need not authenticate.
    pub(crate) fn new(places: u32, is_open: bool) -> Self {
        Self { slots: Arc::new(Semaphore::new(places as usize)), evictable: Mutex::default(), is_open }
    }

    /// Returns a slot for a connection from an address; `None` if there is none.
    pub(crate) fn acquire(&self, from: &str) -> Option<Arc<ConnectionSlot>> {
        let source = from.parse::<SocketAddr>().ok().map(|from| source_network(from.ip()));
        let mut strangers = lock(&self.evictable);
        strangers.retain(|guest| guest.upgrade().is_some_and(|guest| guest.is_evictable()));
        let free = || self.slots.clone().try_acquire_owned().ok();
        let own = if self.is_open { None } else { evict_from(&mut strangers, source, MAX_UNAUTHENTICATED) };
        let place = match own.or_else(free) {
            Some(place) => place,
            None => {
                let (most, count) = most_crowded_source(&strangers)?;
                let fewer = || strangers.iter().filter(|guest| is_from(guest, source)).count() + 2 <= count;
                let place = if self.is_open && !fewer() {
                    // Only sources with at least as many connections: the new one's own, or a larger one.
                    let counts = count_by_source(&strangers);
                    let of = |source: Option<IpAddr>| counts.get(&source).map_or(0, |(count, _)| *count);
                    longest_idle(&strangers, |guest| of(guest.source) >= of(source))
                } else if self.is_open {
                    // An idle connection of that source is preferred.
                    longest_idle(&strangers, |guest| guest.source == most)
                        .or_else(|| strangers.iter().position(|guest| is_from(guest, most)))
                } else {
                    strangers.iter().position(|guest| is_from(guest, most))
                };
                strangers.remove(place?)?.upgrade()?.evict()?
            }
        };
        let (proved, place) = (AtomicBool::new(false), Mutex::new(Some(place)));
        let (visit, waits) = (OnceLock::new(), AtomicU64::new(0));
        let guest = Arc::new(ConnectionSlot {
            source,
            is_authenticated: proved,
            permit: place,
            task: visit,
            idle_since: waits,
        });
        strangers.push_back(Arc::downgrade(&guest));
        Some(guest)
    }
}

/// Returns the slot of a source's oldest unauthenticated connection, if the source has at least `many`.
fn evict_from(
    strangers: &mut VecDeque<Weak<ConnectionSlot>>,
    source: Option<IpAddr>,
    many: usize,
) -> Option<OwnedSemaphorePermit> {
    if strangers.iter().filter(|guest| is_from(guest, source)).count() < many {
        return None;
    }
    let first = strangers.iter().position(|guest| is_from(guest, source))?;
    strangers.remove(first)?.upgrade()?.evict()
}

/// Returns the index of the longest idle connection among those that count; `None` if none is idle.
fn longest_idle(
    strangers: &VecDeque<Weak<ConnectionSlot>>,
    counts: impl Fn(&ConnectionSlot) -> bool,
) -> Option<usize> {
    let since = |guest: &Weak<ConnectionSlot>| {
        let guest = guest.upgrade().filter(|guest| counts(guest))?;
        Some(guest.idle_since.load(Ordering::Relaxed)).filter(|since| *since > 0)
    };
    let waiting = strangers.iter().enumerate().filter_map(|(place, guest)| Some((since(guest)?, place)));
    waiting.min().map(|(_, place)| place)
}

fn is_from(guest: &Weak<ConnectionSlot>, source: Option<IpAddr>) -> bool {
    guest.upgrade().is_some_and(|guest| guest.source == source)
}

/// Returns the source with the most unauthenticated connections, and their number; the earliest one of
/// several.
fn most_crowded_source(strangers: &VecDeque<Weak<ConnectionSlot>>) -> Option<(Option<IpAddr>, usize)> {
    let most = count_by_source(strangers)
        .into_iter()
        .max_by_key(|(_, (count, first))| (*count, std::cmp::Reverse(*first)));
    most.map(|(source, (count, _))| (source, count))
}

/// Returns the number of unauthenticated connections of each source, and the index of the first.
fn count_by_source(strangers: &VecDeque<Weak<ConnectionSlot>>) -> HashMap<Option<IpAddr>, (usize, usize)> {
    let mut counts: HashMap<Option<IpAddr>, (usize, usize)> = HashMap::new();
    for (place, guest) in strangers.iter().enumerate() {
        if let Some(guest) = guest.upgrade() {
            counts.entry(guest.source).or_insert((0, place)).0 += 1;
        }
    }
    counts
}

/// Returns the source of an address: an IPv6 client has a whole network of addresses.
fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        address => address,
    }
}

fn lock(strangers: &Mutex<VecDeque<Weak<ConnectionSlot>>>) -> MutexGuard<'_, VecDeque<Weak<ConnectionSlot>>> {
    strangers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lobby(places: u32) -> ConnectionSlots {
        ConnectionSlots::new(places, false)
    }

    fn inside(guest: &ConnectionSlot) -> bool {
        guest.permit.lock().unwrap().is_some()
    }

    #[test]
    fn strangers_make_room_and_those_who_are_known_stay() {
        let lobby = lobby(3);
        let [known, one, two] =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2"].map(|from| lobby.acquire(from).unwrap());
        known.mark_authenticated();
        // The oldest connection of the largest source.
        let three = lobby.acquire("10.0.0.3:1").unwrap();
        assert!(inside(&known) && !inside(&one) && inside(&two) && inside(&three));
        // One each: the oldest of all.
        let four = lobby.acquire("10.0.0.4:1").unwrap();
        assert!(inside(&known) && !inside(&two) && inside(&three) && inside(&four));
        three.mark_authenticated();
        four.mark_authenticated();
        assert!(lobby.acquire("10.0.0.5:1").is_none(), "nobody has to go");
        drop(known);
        assert!(lobby.acquire("10.0.0.5:1").is_some());
    }

    #[test]
    fn a_source_has_so_many_and_no_more() {
        let lobby = lobby(256);
        let address = |port: usize| format!("[2001:db8::{port:x}]:{port}");
        let guests: Vec<_> =
            (1..=MAX_UNAUTHENTICATED + 10).map(|port| lobby.acquire(&address(port)).unwrap()).collect();
        let held: Vec<bool> = guests.iter().map(|guest| inside(guest)).collect();
        assert_eq!(held.iter().filter(|held| **held).count(), MAX_UNAUTHENTICATED);
        assert!(held[..10].iter().all(|held| !held), "the first of them went");
        assert_eq!(lobby.slots.available_permits(), 256 - MAX_UNAUTHENTICATED);
        let other = lobby.acquire("[2001:db8:0:1::1]:1").unwrap();
        assert!(inside(&other) && inside(&guests[10]));
        drop((guests, other));
        assert_eq!(lobby.slots.available_permits(), 256);
    }

    #[test]
    fn where_all_are_welcome_one_source_cannot_keep_the_others_out() {
        let lobby = ConnectionSlots::new(4, true);
        let flood = |port: u16| lobby.acquire(&format!("10.0.0.9:{port}"));
        let guests: Vec<_> = (1..=4).map(|port| flood(port).unwrap()).collect();
        assert!(flood(5).is_none(), "its own are not sent away for it");
        let one = lobby.acquire("10.0.0.1:1").unwrap();
        let two = lobby.acquire("10.0.0.2:1").unwrap();
        assert!(!inside(&guests[0]) && !inside(&guests[1]) && inside(&guests[2]) && inside(&guests[3]));
        assert!(flood(6).is_none() && inside(&one) && inside(&two));
        let again = lobby.acquire("10.0.0.1:2");
        assert!(again.is_none() && inside(&guests[2]), "both would have two");
        drop(one);
        assert!(flood(7).is_some(), "what is free is for everybody");
    }

    #[test]
    fn whoever_is_waited_for_longest_goes_first_whoever_comes() {
        for from in ["10.0.0.9:9", "unix"] {
            let lobby = ConnectionSlots::new(3, true);
            let [served, first, second] = [1, 2, 3].map(|_| lobby.acquire(from).unwrap());
            first.mark_idle();
            served.mark_idle();
            second.mark_idle();
            served.mark_busy();
            let scrape = lobby.acquire(from).unwrap();
            assert!(inside(&served) && !inside(&first) && inside(&second) && inside(&scrape));
            first.mark_idle();
            let next = lobby.acquire(from).unwrap();
            assert!(inside(&served) && !inside(&second) && inside(&scrape) && inside(&next));
            assert!(lobby.acquire(from).is_none(), "something is being done for all of them");
        }
    }

    #[test]
    fn a_crowd_takes_no_place_of_those_who_are_fewer() {
        let lobby = ConnectionSlots::new(3, true);
        let [other, first, second] =
            ["10.0.0.1:1", "10.0.0.9:1", "10.0.0.9:2"].map(|from| lobby.acquire(from).unwrap());
        [&other, &first, &second].iter().for_each(|guest| guest.mark_idle());
        let third = lobby.acquire("10.0.0.9:3").unwrap();
        assert!(inside(&other) && !inside(&first) && inside(&second) && inside(&third));
    }

    #[test]
    fn of_a_crowd_goes_who_has_nothing_to_say() {
        let lobby = ConnectionSlots::new(3, true);
        let [follows, silent, other] =
            [1, 2, 3].map(|port| lobby.acquire(&format!("10.0.0.9:{port}")).unwrap());
        silent.mark_idle();
        let newcomer = lobby.acquire("10.0.0.1:1").unwrap();
        assert!(inside(&follows) && !inside(&silent) && inside(&other) && inside(&newcomer));
    }

    #[test]
    fn where_it_is_not_known_from_where_nobody_has_to_go() {
        let lobby = ConnectionSlots::new(1, true);
        let guest = lobby.acquire("unix").unwrap();
        assert!(lobby.acquire("unix").is_none() && inside(&guest));
    }
}
