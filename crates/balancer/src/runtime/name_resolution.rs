//! Members of the file whose hosts are names: the addresses of each name, which is looked up again and again.
//!
//! A name that cannot be looked up stops neither a start nor a reload: its member is down, or stays at its
//! address. The system's resolver does not report the lifetime of an answer, so names are looked up every
//! [`LOOKUP_INTERVAL`], and with a back-off while they fail.
//!
//! In a group with health checks a member stays at its address until another one has passed. The data plane
//! finds out which of several addresses works ([`proxy::MemberAddresses`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_brain::{Event, EventKind};
use plimsoll_config::{self as config, MemberAddress, NamedMember, look_up_all};
use plimsoll_proxy as proxy;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::{BalancerRuntime, lock};
use crate::runtime_config::FileConfig;

/// The time between two look-ups of a name that was found.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// The delay after the first failure; it doubles with each more, up to [`LOOKUP_INTERVAL`].
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The time between two looks at the names that are due, and at the address of each that works.
const TICK: Duration = Duration::from_millis(500);
/// The timeout for all names of a file; those that take longer count as not found, and are looked up again.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of names that are looked up at once.
const MAX_CONCURRENT: usize = 32;

type LookupResult = Result<Vec<SocketAddr>, String>;

/// The addresses of the names.
#[derive(Debug, Default)]
pub(crate) struct ResolvedNames(Mutex<NameTable>);

/// The names by group and member.
type NameTable = BTreeMap<(String, String), ResolvedMember>;

/// The addresses of one member's name.
#[derive(Clone, Debug)]
struct ResolvedMember {
    host: MemberAddress,
    /// Whether its group has health checks.
    checked: bool,
    /// The addresses; `None` before the name was found for the first time.
    addresses: Option<Arc<proxy::MemberAddresses>>,
    /// The address in force.
    address: SocketAddr,
    /// Whether that address was found to work.
    is_verified: bool,
    failures: u32,
    next_lookup: Instant,
}

impl ResolvedMember {
    fn new(one: &NamedMember, now: Instant) -> Self {
        Self {
            host: one.address.clone(),
            checked: one.checked,
            addresses: None,
            address: proxy::NO_ADDRESS,
            is_verified: false,
            failures: 0,
            next_lookup: now,
        }
    }

    /// Takes the result of a look-up; returns its event.
    fn record_lookup(&mut self, found: LookupResult, now: Instant) -> Option<(EventKind, String)> {
        let host = self.host.host.clone();
        let named = match found {
            Ok(named) => named,
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                self.next_lookup =
                    now + (RETRY_DELAY * (1 << (self.failures - 1).min(8))).min(LOOKUP_INTERVAL);
                let then = match self.addresses {
                    Some(_) => format!("it stays at {}", self.address),
                    None => "it is down until the name has an address".to_owned(),
                };
                let why = format!("cannot look up `{host}`: {why}; {then}");
                return (self.failures == 1).then_some((EventKind::DiscoveryFailed, why));
            }
        };
        self.next_lookup = now + LOOKUP_INTERVAL;
        let failed = std::mem::take(&mut self.failures) > 0;
        let before = self.address;
        let works = self.addresses.as_ref().map(|addresses| addresses.best());
        // An address that works stays until another one has passed its check.
        let stays = works.filter(|works| named.contains(works) || self.checked);
        let after = proxy::MemberAddresses::new(&named, stays).map(Arc::new);
        if after != self.addresses {
            self.addresses = after;
        }
        self.switch_address();
        let at = self.address;
        if failed {
            return Some((
                EventKind::DiscoveryRecovered,
                format!("`{host}` is looked up again: it is at {at}"),
            ));
        }
        let moved = before != at && before != proxy::NO_ADDRESS;
        moved.then(|| (EventKind::MembersDiscovered, format!("`{host}` is at {at} now, and was at {before}")))
    }

    /// Switches to the address that works; returns `true` if it differs from that in force.
    fn switch_address(&mut self) -> bool {
        let Some(works) = self.addresses.as_ref().map(|addresses| addresses.best()) else { return false };
        if works == self.address {
            return false;
        }
        // It is the first of all, or one that was connected to or checked.
        self.is_verified = self.address != proxy::NO_ADDRESS;
        self.address = works;
        true
    }
}

/// Looks names up at once, each by the system's resolver, and takes the results within [`LOOKUP_TIMEOUT`].
fn look_up(hosts: Vec<MemberAddress>) -> BTreeMap<MemberAddress, LookupResult> {
    let late = || Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs()));
    let mut found: BTreeMap<MemberAddress, LookupResult> =
        hosts.into_iter().map(|host| (host, late())).collect();
    let left = Arc::new(Mutex::new(found.keys().cloned().collect::<Vec<_>>()));
    let (tell, told) = channel();
    for _ in 0..found.len().min(MAX_CONCURRENT) {
        let (left, tell) = (Arc::clone(&left), tell.clone());
        // A resolver that hangs blocks only its own thread.
        let work = move || {
            while let Some(host) = { lock(&left).pop() } {
                let answer = look_up_all(&host).map_err(|error| error.to_string());
                if tell.send((host, answer)).is_err() {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("names".into()).spawn(work) {
            tracing::warn!("no thread to look names up: {error}");
        }
    }
    drop(tell);
    let end = Instant::now() + LOOKUP_TIMEOUT;
    while let Ok((host, answer)) = told.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found.insert(host, answer);
    }
    found
}

impl ResolvedNames {
    /// Looks up the names of a file, and forgets all others; returns the events.
    pub(crate) fn resolve_all(&self, members: &[NamedMember]) -> Vec<Event> {
        let now = Instant::now();
        {
            let mut known = lock(&self.0);
            let mut before = std::mem::take(&mut *known);
            for one in members {
                let key = (one.group.clone(), one.member.clone());
                let fresh = || ResolvedMember::new(one, now);
                let kept = before.remove(&key).filter(|kept| kept.host == one.address);
                let named = kept.map_or_else(fresh, |kept| ResolvedMember {
                    checked: one.checked,
                    next_lookup: now,
                    ..kept
                });
                known.insert(key, named);
            }
        }
        self.look_up_due(now)
    }

    /// Looks up the names that are due; returns the events.
    fn look_up_due(&self, now: Instant) -> Vec<Event> {
        let due = |named: &&ResolvedMember| named.next_lookup <= now;
        let mut hosts: Vec<MemberAddress> =
            lock(&self.0).values().filter(due).map(|named| named.host.clone()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.is_empty() {
            return Vec::new();
        }
        let found = look_up(hosts);
        let mut events = Vec::new();
        for ((group, member), named) in lock(&self.0).iter_mut() {
            let Some(found) = found.get(&named.host) else { continue };
            let told = named.record_lookup(found.clone(), Instant::now());
            let event = |(kind, why): (EventKind, String)| {
                if kind == EventKind::DiscoveryFailed {
                    tracing::warn!("group {group}: member {member}: {why}");
                }
                let (group, member) = (group.as_str().into(), Some(member.as_str().into()));
                Event { kind, group, member, why, inputs: Vec::new() }
            };
            events.extend(told.map(event));
        }
        events
    }

    /// Returns `true` if a name is due.
    fn is_due(&self, now: Instant) -> bool {
        lock(&self.0).values().any(|named| named.next_lookup <= now)
    }

    /// Switches to the addresses that work.
    fn switch_addresses(&self) {
        lock(&self.0).values_mut().for_each(|named| _ = named.switch_address());
    }

    /// Returns the address of a member until [`apply_addresses`](Self::apply_addresses) sets it: the written
    /// one, or none.
    pub(crate) fn literal(address: &MemberAddress) -> SocketAddr {
        address.host.parse::<IpAddr>().map_or(proxy::NO_ADDRESS, |ip| (ip, address.port).into())
    }

    /// Puts the addresses in force into settings; returns `true` if they have changed.
    pub(crate) fn apply_addresses(&self, settings: &mut proxy::Settings) -> bool {
        let known = lock(&self.0);
        let mut changed = false;
        for group in &mut settings.groups {
            let other =
                known.iter().filter(|((of, _), _)| *of == *group.spec.name).any(|((_, name), named)| {
                    let member = group.spec.members.iter().find(|member| *member.name == **name);
                    member.is_some_and(|member| !named.is_in(group, member))
                });
            if !other {
                continue;
            }
            changed = true;
            let group = Arc::make_mut(group);
            for member in &mut group.spec.members {
                let key = (group.spec.name.to_string(), member.name.to_string());
                let Some(named) = known.get(&key) else { continue };
                (member.address, member.checked) = (named.address, named.is_verified);
                match named.all_addresses() {
                    Some(addresses) => drop(group.addresses.insert(Arc::clone(&member.name), addresses)),
                    None => drop(group.addresses.remove(&member.name)),
                }
            }
        }
        changed
    }
}

impl ResolvedMember {
    /// Returns all addresses, if there are several.
    fn all_addresses(&self) -> Option<Arc<proxy::MemberAddresses>> {
        let addresses = self.addresses.as_ref()?;
        (addresses.resolved() != [self.address]).then(|| Arc::clone(addresses))
    }

    fn is_in(&self, group: &proxy::GroupSettings, member: &plimsoll_brain::MemberSpec) -> bool {
        member.address == self.address
            && member.checked == self.is_verified
            && group.addresses.get(&member.name).map(Arc::as_ptr)
                == self.all_addresses().as_ref().map(Arc::as_ptr)
    }
}

impl BalancerRuntime {
    /// Puts the present addresses of the names in force.
    fn apply_names(&self, events: Vec<Event>) {
        let one = lock(&self.reloading);
        let mut base: FileConfig = lock(&self.file_config).clone();
        if self.resolved_names.apply_addresses(&mut base.settings) {
            base.follow_addresses();
            let force = base.with_overlay(&lock(&self.overlay));
            match self.engine.apply_discovered(force.settings.clone()) {
                Ok(()) => {
                    self.cluster.update(force.watched.clone());
                    *lock(&self.effective_config) = Arc::new(force);
                    *lock(&self.file_config) = base;
                }
                Err(error) => tracing::warn!("other addresses of members cannot be put in force: {error}"),
            }
        }
        drop(one);
        events.into_iter().for_each(|event| self.engine.write_event(event));
    }
}

/// Looks names up again, and switches to the addresses that work, for ever.
pub(crate) async fn run_lookups(running: Arc<BalancerRuntime>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let own = Arc::clone(&running);
        let step = move || {
            let now = Instant::now();
            let events =
                if own.resolved_names.is_due(now) { own.resolved_names.look_up_due(now) } else { Vec::new() };
            own.resolved_names.switch_addresses();
            own.apply_names(events);
        };
        // The task waits for resolvers and for a lock.
        drop(spawn_blocking(step).await);
    }
}

/// Looks up the names of a file and makes settings of it; returns the events of the names, too.
///
/// # Errors
/// Fails with the mistakes of the file.
pub(crate) fn settings(
    names: &ResolvedNames,
    file: &config::ConfigFile,
    machine: config::MachineDefaults,
) -> Result<(proxy::Settings, Vec<Event>), config::ConfigDiagnostics> {
    let events = names.resolve_all(&file.named_members());
    let mut settings = file.settings(machine, |address| Ok(ResolvedNames::literal(address)))?;
    names.apply_addresses(&mut settings);
    Ok((settings, events))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(checked: bool) -> ResolvedMember {
        let address = "web.example:80".parse().unwrap();
        let one = NamedMember { group: "web".into(), member: "web.example:80".into(), address, checked };
        ResolvedMember::new(&one, Instant::now())
    }

    fn at(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 80).into()
    }

    #[test]
    fn a_name_that_is_not_found_is_nowhere_and_looked_up_ever_later() {
        let mut named = named(false);
        let now = Instant::now();
        let told = named.record_lookup(Err("not known".into()), now).expect("the first failure");
        assert_eq!(told.0, EventKind::DiscoveryFailed);
        assert!(told.1.contains("cannot look up `web.example`: not known; it is down"), "{}", told.1);
        assert_eq!((named.address, named.next_lookup), (proxy::NO_ADDRESS, now + RETRY_DELAY));
        let waits: Vec<u64> = (0..7)
            .map(|_| {
                assert_eq!(named.record_lookup(Err("not known".into()), now), None, "it is told once");
                (named.next_lookup - now).as_secs()
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(named.record_lookup(Ok(vec![at(1)]), now).unwrap().0, EventKind::DiscoveryRecovered);
        assert_eq!((named.address, named.is_verified), (at(1), false));
        // The member stays at its address while the name cannot be looked up.
        assert!(
            named.record_lookup(Err("no answer".into()), now).unwrap().1.contains("it stays at 10.0.0.1:80")
        );
        assert_eq!(named.address, at(1));
    }

    #[test]
    fn another_address_is_believed_at_once_only_where_nothing_is_checked() {
        let now = Instant::now();
        let mut free = named(false);
        free.record_lookup(Ok(vec![at(1)]), now);
        let told = free.record_lookup(Ok(vec![at(2)]), now).unwrap();
        assert_eq!((free.address, told.0), (at(2), EventKind::MembersDiscovered));
        let mut checked = named(true);
        checked.record_lookup(Ok(vec![at(1)]), now);
        assert_eq!(checked.record_lookup(Ok(vec![at(2)]), now), None);
        assert_eq!(checked.address, at(1));
        let addresses = checked.all_addresses().expect("both are tried");
        assert_eq!((addresses.resolved(), addresses.best()), (&[at(2)][..], at(1)));
        // The same answer is no other list: the results of the data plane stay known.
        checked.record_lookup(Ok(vec![at(2)]), now);
        assert!(Arc::ptr_eq(&addresses, &checked.all_addresses().unwrap()));
        // An address that is still there stays, whichever is the first.
        free.record_lookup(Ok(vec![at(3), at(2)]), now);
        assert_eq!(free.address, at(2));
    }
}
