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
    has_health_checks: bool,
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
    fn new(member: &NamedMember, now: Instant) -> Self {
        Self {
            host: member.address.clone(),
            has_health_checks: member.has_health_checks,
            addresses: None,
            address: proxy::NO_ADDRESS,
            is_verified: false,
            failures: 0,
            next_lookup: now,
        }
    }

    /// Takes the result of a look-up; returns its event.
    fn record_lookup(&mut self, result: LookupResult, now: Instant) -> Option<(EventKind, String)> {
        let host = self.host.host.clone();
        let looked_up = match result {
            Ok(looked_up) => looked_up,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                self.next_lookup =
                    now + (RETRY_DELAY * (1 << (self.failures - 1).min(8))).min(LOOKUP_INTERVAL);
                let consequence = match self.addresses {
                    Some(_) => format!("it stays at {}", self.address),
                    None => "it is down until the name has an address".to_owned(),
                };
                let reason = format!("cannot look up `{host}`: {error}; {consequence}");
                return (self.failures == 1).then_some((EventKind::DiscoveryFailed, reason));
            }
        };
        self.next_lookup = now + LOOKUP_INTERVAL;
        let had_failed = std::mem::take(&mut self.failures) > 0;
        let previous_address = self.address;
        let current_address = self.addresses.as_ref().map(|addresses| addresses.best());
        // An address that works stays until another one has passed its check.
        let kept_address = current_address
            .filter(|current_address| looked_up.contains(current_address) || self.has_health_checks);
        let new_addresses = proxy::MemberAddresses::new(&looked_up, kept_address).map(Arc::new);
        if new_addresses != self.addresses {
            self.addresses = new_addresses;
        }
        self.switch_address();
        let best_address = self.address;
        if had_failed {
            return Some((
                EventKind::DiscoveryRecovered,
                format!("`{host}` is looked up again: it is at {best_address}"),
            ));
        }
        let has_moved = previous_address != best_address && previous_address != proxy::NO_ADDRESS;
        has_moved.then(|| {
            (
                EventKind::MembersDiscovered,
                format!("`{host}` is at {best_address} now, and was at {previous_address}"),
            )
        })
    }

    /// Switches to the address that works; returns `true` if it differs from that in force.
    fn switch_address(&mut self) -> bool {
        let Some(current_address) = self.addresses.as_ref().map(|addresses| addresses.best()) else {
            return false;
        };
        if current_address == self.address {
            return false;
        }
        // It is the first of all, or one that was connected to or checked.
        self.is_verified = self.address != proxy::NO_ADDRESS;
        self.address = current_address;
        true
    }
}

/// Looks names up at once, each by the system's resolver, and takes the results within [`LOOKUP_TIMEOUT`].
fn look_up(hosts: Vec<MemberAddress>) -> BTreeMap<MemberAddress, LookupResult> {
    let timed_out = || Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs()));
    let mut results: BTreeMap<MemberAddress, LookupResult> =
        hosts.into_iter().map(|host| (host, timed_out())).collect();
    let remaining_hosts = Arc::new(Mutex::new(results.keys().cloned().collect::<Vec<_>>()));
    let (sender, receiver) = channel();
    for _ in 0..results.len().min(MAX_CONCURRENT) {
        let (remaining_hosts, sender) = (Arc::clone(&remaining_hosts), sender.clone());
        // A resolver that hangs blocks only its own thread.
        let worker = move || {
            while let Some(host) = { lock(&remaining_hosts).pop() } {
                let lookup_result = look_up_all(&host).map_err(|error| error.to_string());
                if sender.send((host, lookup_result)).is_err() {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("names".into()).spawn(worker) {
            tracing::warn!("no thread to look names up: {error}");
        }
    }
    drop(sender);
    let deadline = Instant::now() + LOOKUP_TIMEOUT;
    while let Ok((host, lookup_result)) =
        receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        results.insert(host, lookup_result);
    }
    results
}

impl ResolvedNames {
    /// Looks up the names of a file, and forgets all others; returns the events.
    pub(crate) fn resolve_all(&self, members: &[NamedMember]) -> Vec<Event> {
        let now = Instant::now();
        {
            let mut resolved = lock(&self.0);
            let mut previous = std::mem::take(&mut *resolved);
            for member in members {
                let key = (member.group.clone(), member.member.clone());
                let new_member = || ResolvedMember::new(member, now);
                let previous_member =
                    previous.remove(&key).filter(|previous_member| previous_member.host == member.address);
                let resolved_member =
                    previous_member.map_or_else(new_member, |previous_member| ResolvedMember {
                        has_health_checks: member.has_health_checks,
                        next_lookup: now,
                        ..previous_member
                    });
                resolved.insert(key, resolved_member);
            }
        }
        self.look_up_due(now)
    }

    /// Looks up the names that are due; returns the events.
    fn look_up_due(&self, now: Instant) -> Vec<Event> {
        let is_due = |candidate: &&ResolvedMember| candidate.next_lookup <= now;
        let mut hosts: Vec<MemberAddress> = lock(&self.0)
            .values()
            .filter(is_due)
            .map(|resolved_member| resolved_member.host.clone())
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.is_empty() {
            return Vec::new();
        }
        let results = look_up(hosts);
        let mut events = Vec::new();
        for ((group, member), resolved_member) in lock(&self.0).iter_mut() {
            let Some(result) = results.get(&resolved_member.host) else { continue };
            let change = resolved_member.record_lookup(result.clone(), Instant::now());
            let event = |(kind, reason): (EventKind, String)| {
                if kind == EventKind::DiscoveryFailed {
                    tracing::warn!("group {group}: member {member}: {reason}");
                }
                let (group, member) = (group.as_str().into(), Some(member.as_str().into()));
                Event { kind, group, member, why: reason, inputs: Vec::new() }
            };
            events.extend(change.map(event));
        }
        events
    }

    /// Returns `true` if a name is due.
    fn is_due(&self, now: Instant) -> bool {
        lock(&self.0).values().any(|resolved_member| resolved_member.next_lookup <= now)
    }

    /// Switches to the addresses that work.
    fn switch_addresses(&self) {
        lock(&self.0).values_mut().for_each(|resolved_member| _ = resolved_member.switch_address());
    }

    /// Returns the address of a member until [`apply_addresses`](Self::apply_addresses) sets it: the written
    /// one, or none.
    pub(crate) fn literal(address: &MemberAddress) -> SocketAddr {
        address.host.parse::<IpAddr>().map_or(proxy::NO_ADDRESS, |ip| (ip, address.port).into())
    }

    /// Puts the addresses in force into settings; returns `true` if they have changed.
    pub(crate) fn apply_addresses(&self, settings: &mut proxy::Settings) -> bool {
        let resolved = lock(&self.0);
        let mut addresses_changed = false;
        for group in &mut settings.groups {
            let has_changes = resolved
                .iter()
                .filter(|((group_name, _), _)| *group_name == *group.spec.name)
                .any(|((_, name), resolved_member)| {
                    let member = group.spec.members.iter().find(|member| *member.name == **name);
                    member.is_some_and(|member| !resolved_member.is_in(group, member))
                });
            if !has_changes {
                continue;
            }
            addresses_changed = true;
            let group = Arc::make_mut(group);
            for member in &mut group.spec.members {
                let key = (group.spec.name.to_string(), member.name.to_string());
                let Some(resolved_member) = resolved.get(&key) else { continue };
                (member.address, member.checked) = (resolved_member.address, resolved_member.is_verified);
                match resolved_member.all_addresses() {
                    Some(addresses) => drop(group.addresses.insert(Arc::clone(&member.name), addresses)),
                    None => drop(group.addresses.remove(&member.name)),
                }
            }
        }
        addresses_changed
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
        let reload_guard = lock(&self.reload_lock);
        let mut file_config: FileConfig = lock(&self.file_config).clone();
        if self.resolved_names.apply_addresses(&mut file_config.settings) {
            file_config.follow_addresses();
            let effective_config = file_config.with_overlay(&lock(&self.overlay));
            match self.engine.apply_discovered(effective_config.settings.clone()) {
                Ok(()) => {
                    self.cluster.update(effective_config.cluster_groups.clone());
                    *lock(&self.effective_config) = Arc::new(effective_config);
                    *lock(&self.file_config) = file_config;
                }
                Err(error) => tracing::warn!("other addresses of members cannot be put in force: {error}"),
            }
        }
        drop(reload_guard);
        events.into_iter().for_each(|event| self.engine.write_event(event));
    }
}

/// Looks names up again, and switches to the addresses that work, for ever.
pub(crate) async fn run_lookups(runtime: Arc<BalancerRuntime>) {
    let mut ticker = interval(TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        let runtime_handle = Arc::clone(&runtime);
        let step = move || {
            let now = Instant::now();
            let events = if runtime_handle.resolved_names.is_due(now) {
                runtime_handle.resolved_names.look_up_due(now)
            } else {
                Vec::new()
            };
            runtime_handle.resolved_names.switch_addresses();
            runtime_handle.apply_names(events);
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

    fn test_member(is_checked: bool) -> ResolvedMember {
        let address = "web.example:80".parse().unwrap();
        let named_member = NamedMember {
            group: "web".into(),
            member: "web.example:80".into(),
            address,
            has_health_checks: is_checked,
        };
        ResolvedMember::new(&named_member, Instant::now())
    }

    fn socket_address(octet: u8) -> SocketAddr {
        ([10, 0, 0, octet], 80).into()
    }

    #[test]
    fn a_name_that_is_not_found_is_nowhere_and_looked_up_ever_later() {
        let mut member = test_member(false);
        let now = Instant::now();
        let change = member.record_lookup(Err("not known".into()), now).expect("the first failure");
        assert_eq!(change.0, EventKind::DiscoveryFailed);
        assert!(change.1.contains("cannot look up `web.example`: not known; it is down"), "{}", change.1);
        assert_eq!((member.address, member.next_lookup), (proxy::NO_ADDRESS, now + RETRY_DELAY));
        let delays: Vec<u64> = (0..7)
            .map(|_| {
                assert_eq!(
                    member.record_lookup(Err("not known".into()), now),
                    None,
                    "the failure is reported once"
                );
                (member.next_lookup - now).as_secs()
            })
            .collect();
        assert_eq!(delays, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(
            member.record_lookup(Ok(vec![socket_address(1)]), now).unwrap().0,
            EventKind::DiscoveryRecovered
        );
        assert_eq!((member.address, member.is_verified), (socket_address(1), false));
        // The member stays at its address while the name cannot be looked up.
        assert!(
            member.record_lookup(Err("no answer".into()), now).unwrap().1.contains("it stays at 10.0.0.1:80")
        );
        assert_eq!(member.address, socket_address(1));
    }

    #[test]
    fn another_address_is_believed_at_once_only_where_nothing_is_checked() {
        let now = Instant::now();
        let mut unchecked = test_member(false);
        unchecked.record_lookup(Ok(vec![socket_address(1)]), now);
        let change = unchecked.record_lookup(Ok(vec![socket_address(2)]), now).unwrap();
        assert_eq!((unchecked.address, change.0), (socket_address(2), EventKind::MembersDiscovered));
        let mut checked_member = test_member(true);
        checked_member.record_lookup(Ok(vec![socket_address(1)]), now);
        assert_eq!(checked_member.record_lookup(Ok(vec![socket_address(2)]), now), None);
        assert_eq!(checked_member.address, socket_address(1));
        let addresses = checked_member.all_addresses().expect("both are tried");
        assert_eq!((addresses.resolved(), addresses.best()), (&[socket_address(2)][..], socket_address(1)));
        // The same answer is no other list: the results of the data plane stay known.
        checked_member.record_lookup(Ok(vec![socket_address(2)]), now);
        assert!(Arc::ptr_eq(&addresses, &checked_member.all_addresses().unwrap()));
        // An address that is still there stays, whichever is the first.
        unchecked.record_lookup(Ok(vec![socket_address(3), socket_address(2)]), now);
        assert_eq!(unchecked.address, socket_address(2));
    }
}
