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
    pub(crate) fn set_task(&self, task: AbortHandle) {
        // The task is set only once.
        let _ = self.task.set(task);
    }

    fn is_evictable(&self) -> bool {
        !self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Evicts the connection and returns its slot.
    fn evict(&self) -> Option<OwnedSemaphorePermit> {
        if let Some(task) = self.task.get() {
            task.abort();
        }
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ConnectionSlots {
    /// Creates `places` slots. `is_open` means that clients need not authenticate.
    pub(crate) fn new(max_connections: u32, is_open: bool) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(max_connections as usize)),
            evictable: Mutex::default(),
            is_open,
        }
    }

    /// Returns a slot for a connection from an address; `None` if there is none.
    pub(crate) fn acquire(&self, from: &str) -> Option<Arc<ConnectionSlot>> {
        let source = from.parse::<SocketAddr>().ok().map(|from| source_network(from.ip()));
        let mut evictable = lock(&self.evictable);
        evictable.retain(|slot| slot.upgrade().is_some_and(|slot| slot.is_evictable()));
        let acquire_free = || self.slots.clone().try_acquire_owned().ok();
        let evicted =
            if self.is_open { None } else { evict_from(&mut evictable, source, MAX_UNAUTHENTICATED) };
        let permit = match evicted.or_else(acquire_free) {
            Some(permit) => permit,
            None => {
                let (crowded_source, count) = most_crowded_source(&evictable)?;
                let is_from_smaller =
                    || evictable.iter().filter(|slot| is_from(slot, source)).count() + 2 <= count;
                let position = if self.is_open && !is_from_smaller() {
                    // Only sources with at least as many connections: the new one's own, or a larger one.
                    let counts = count_by_source(&evictable);
                    let count_of =
                        |source: Option<IpAddr>| counts.get(&source).map_or(0, |(count, _)| *count);
                    longest_idle(&evictable, |slot| count_of(slot.source) >= count_of(source))
                } else if self.is_open {
                    // An idle connection of that source is preferred.
                    longest_idle(&evictable, |slot| slot.source == crowded_source)
                        .or_else(|| evictable.iter().position(|slot| is_from(slot, crowded_source)))
                } else {
                    evictable.iter().position(|slot| is_from(slot, crowded_source))
                };
                evictable.remove(position?)?.upgrade()?.evict()?
            }
        };
        let (is_authenticated, permit) = (AtomicBool::new(false), Mutex::new(Some(permit)));
        let (task, idle_since) = (OnceLock::new(), AtomicU64::new(0));
        let slot = Arc::new(ConnectionSlot { source, is_authenticated, permit, task, idle_since });
        evictable.push_back(Arc::downgrade(&slot));
        Some(slot)
    }
}

/// Returns the slot of a source's oldest unauthenticated connection, if the source has at least `many`.
fn evict_from(
    evictable: &mut VecDeque<Weak<ConnectionSlot>>,
    source: Option<IpAddr>,
    limit: usize,
) -> Option<OwnedSemaphorePermit> {
    if evictable.iter().filter(|slot| is_from(slot, source)).count() < limit {
        return None;
    }
    let first = evictable.iter().position(|slot| is_from(slot, source))?;
    evictable.remove(first)?.upgrade()?.evict()
}

/// Returns the index of the longest idle connection among those that count; `None` if none is idle.
fn longest_idle(
    evictable: &VecDeque<Weak<ConnectionSlot>>,
    is_candidate: impl Fn(&ConnectionSlot) -> bool,
) -> Option<usize> {
    let idle_since = |slot: &Weak<ConnectionSlot>| {
        let slot = slot.upgrade().filter(|slot| is_candidate(slot))?;
        Some(slot.idle_since.load(Ordering::Relaxed)).filter(|since| *since > 0)
    };
    let idle_slots =
        evictable.iter().enumerate().filter_map(|(index, slot)| Some((idle_since(slot)?, index)));
    idle_slots.min().map(|(_, index)| index)
}

fn is_from(slot: &Weak<ConnectionSlot>, source: Option<IpAddr>) -> bool {
    slot.upgrade().is_some_and(|slot| slot.source == source)
}

/// Returns the source with the most unauthenticated connections, and their number; the earliest one of
/// several.
fn most_crowded_source(evictable: &VecDeque<Weak<ConnectionSlot>>) -> Option<(Option<IpAddr>, usize)> {
    let crowded = count_by_source(evictable)
        .into_iter()
        .max_by_key(|(_, (count, first))| (*count, std::cmp::Reverse(*first)));
    crowded.map(|(source, (count, _))| (source, count))
}

/// Returns the number of unauthenticated connections of each source, and the index of the first.
fn count_by_source(evictable: &VecDeque<Weak<ConnectionSlot>>) -> HashMap<Option<IpAddr>, (usize, usize)> {
    let mut counts: HashMap<Option<IpAddr>, (usize, usize)> = HashMap::new();
    for (index, slot) in evictable.iter().enumerate() {
        if let Some(slot) = slot.upgrade() {
            counts.entry(slot.source).or_insert((0, index)).0 += 1;
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

fn lock(evictable: &Mutex<VecDeque<Weak<ConnectionSlot>>>) -> MutexGuard<'_, VecDeque<Weak<ConnectionSlot>>> {
    evictable.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection_slots(max_connections: u32) -> ConnectionSlots {
        ConnectionSlots::new(max_connections, false)
    }

    fn has_permit(slot: &ConnectionSlot) -> bool {
        slot.permit.lock().unwrap().is_some()
    }

    #[test]
    fn strangers_make_room_and_those_who_are_known_stay() {
        let slots = connection_slots(3);
        let [authenticated, first, second] =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2"].map(|from| slots.acquire(from).unwrap());
        authenticated.mark_authenticated();
        // The oldest connection of the largest source.
        let third = slots.acquire("10.0.0.3:1").unwrap();
        assert!(
            has_permit(&authenticated) && !has_permit(&first) && has_permit(&second) && has_permit(&third)
        );
        // One each: the oldest of all.
        let fourth = slots.acquire("10.0.0.4:1").unwrap();
        assert!(
            has_permit(&authenticated) && !has_permit(&second) && has_permit(&third) && has_permit(&fourth)
        );
        third.mark_authenticated();
        fourth.mark_authenticated();
        assert!(slots.acquire("10.0.0.5:1").is_none(), "nobody has to go");
        drop(authenticated);
        assert!(slots.acquire("10.0.0.5:1").is_some());
    }

    #[test]
    fn a_source_has_so_many_and_no_more() {
        let slots = connection_slots(256);
        let address = |port: usize| format!("[2001:db8::{port:x}]:{port}");
        let acquired: Vec<_> =
            (1..=MAX_UNAUTHENTICATED + 10).map(|port| slots.acquire(&address(port)).unwrap()).collect();
        let has_permits: Vec<bool> = acquired.iter().map(|slot| has_permit(slot)).collect();
        assert_eq!(has_permits.iter().filter(|held| **held).count(), MAX_UNAUTHENTICATED);
        assert!(has_permits[..10].iter().all(|held| !held), "the first of them went");
        assert_eq!(slots.slots.available_permits(), 256 - MAX_UNAUTHENTICATED);
        let other_source = slots.acquire("[2001:db8:0:1::1]:1").unwrap();
        assert!(has_permit(&other_source) && has_permit(&acquired[10]));
        drop((acquired, other_source));
        assert_eq!(slots.slots.available_permits(), 256);
    }

    #[test]
    fn where_all_are_welcome_one_source_cannot_keep_the_others_out() {
        let slots = ConnectionSlots::new(4, true);
        let acquire_flood = |port: u16| slots.acquire(&format!("10.0.0.9:{port}"));
        let flood_slots: Vec<_> = (1..=4).map(|port| acquire_flood(port).unwrap()).collect();
        assert!(acquire_flood(5).is_none(), "its own are not sent away for it");
        let first = slots.acquire("10.0.0.1:1").unwrap();
        let second = slots.acquire("10.0.0.2:1").unwrap();
        assert!(
            !has_permit(&flood_slots[0])
                && !has_permit(&flood_slots[1])
                && has_permit(&flood_slots[2])
                && has_permit(&flood_slots[3])
        );
        assert!(acquire_flood(6).is_none() && has_permit(&first) && has_permit(&second));
        let second_from_same = slots.acquire("10.0.0.1:2");
        assert!(second_from_same.is_none() && has_permit(&flood_slots[2]), "both would have two");
        drop(first);
        assert!(acquire_flood(7).is_some(), "what is free is for everybody");
    }

    #[test]
    fn whoever_is_waited_for_longest_goes_first_whoever_comes() {
        for from in ["10.0.0.9:9", "unix"] {
            let slots = ConnectionSlots::new(3, true);
            let [served, first, second] = [1, 2, 3].map(|_| slots.acquire(from).unwrap());
            first.mark_idle();
            served.mark_idle();
            second.mark_idle();
            served.mark_busy();
            let newcomer = slots.acquire(from).unwrap();
            assert!(
                has_permit(&served) && !has_permit(&first) && has_permit(&second) && has_permit(&newcomer)
            );
            first.mark_idle();
            let next = slots.acquire(from).unwrap();
            assert!(
                has_permit(&served) && !has_permit(&second) && has_permit(&newcomer) && has_permit(&next)
            );
            assert!(slots.acquire(from).is_none(), "something is being done for all of them");
        }
    }

    #[test]
    fn a_crowd_takes_no_place_of_those_who_are_fewer() {
        let slots = ConnectionSlots::new(3, true);
        let [other, first, second] =
            ["10.0.0.1:1", "10.0.0.9:1", "10.0.0.9:2"].map(|from| slots.acquire(from).unwrap());
        [&other, &first, &second].iter().for_each(|slot| slot.mark_idle());
        let third = slots.acquire("10.0.0.9:3").unwrap();
        assert!(has_permit(&other) && !has_permit(&first) && has_permit(&second) && has_permit(&third));
    }

    #[test]
    fn of_a_crowd_goes_who_has_nothing_to_say() {
        let slots = ConnectionSlots::new(3, true);
        let [busy, idle, other] = [1, 2, 3].map(|port| slots.acquire(&format!("10.0.0.9:{port}")).unwrap());
        idle.mark_idle();
        let newcomer = slots.acquire("10.0.0.1:1").unwrap();
        assert!(has_permit(&busy) && !has_permit(&idle) && has_permit(&other) && has_permit(&newcomer));
    }

    #[test]
    fn where_it_is_not_known_from_where_nobody_has_to_go() {
        let slots = ConnectionSlots::new(1, true);
        let slot = slots.acquire("unix").unwrap();
        assert!(slots.acquire("unix").is_none() && has_permit(&slot));
    }
}
