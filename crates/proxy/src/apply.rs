//! Puts settings in force, the first and every later time alike: what may fail comes first, then nothing can.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_brain::{MemberSpec, Time};
use socket2::Socket;

use crate::access::AccessLog;
use crate::bind::{Bound, bind, deal};
use crate::control::{Control, Opened, Ruled, of_groups};
use crate::explain::described;
use crate::inner::{Inner, lock};
use crate::listener::Door;
use crate::rest::Rest;
use crate::trace;
use crate::worker::Order;
use crate::{Binding, GroupSettings, ListenerSettings, Settings, StartError};

/// Applies `next`; what it changes, one line each.
pub(crate) fn apply(inner: &Inner, next: Settings) -> Result<Vec<String>, StartError> {
    let mut control = lock(&inner.control);
    if next.threads != control.settings.threads {
        return Err(StartError::Fixed("threads"));
    }
    let before = &control.settings.listeners;
    let same = same_sockets(&next.listeners, before);
    let backlog = |(place, open): (usize, &Option<usize>)| {
        open.is_some_and(|open| before[open].backlog != next.listeners[place].backlog)
    };
    if same.iter().enumerate().any(backlog) {
        return Err(StartError::Fixed("the backlog of an open listener"));
    }
    let changes = differences(&control.settings, &next, &same);
    // What may fail.
    let fresh = bind_new(&mut control, &next, &same)?;
    let log = match &next.access_log {
        Some(settings) => Some(
            AccessLog::open(settings, Arc::clone(&inner.access_dropped))
                .map_err(|source| StartError::AccessLog { path: settings.path.clone(), source })?,
        ),
        None => None,
    };
    // What may not.
    let now = inner.clock.now();
    inner.census.most.store(next.max_connections, std::sync::atomic::Ordering::Relaxed);
    let log_before = std::mem::replace(&mut *lock(&inner.access), log);
    let mut told =
        control.order_all(|| Order::AccessLog(lock(&inner.access).as_ref().map(AccessLog::sender)));
    if let Some(log) = log_before {
        // Its writer ends when the last core has let go of it.
        std::thread::spawn(move || log.close());
    }
    let tracing = next.tracing.as_ref().map(|settings| trace::Sender {
        batches: inner.traces.clone(),
        dropped: Arc::clone(&inner.spans.dropped),
        sample: trace::share(settings.sample),
    });
    told &= control.order_all(|| Order::Tracing(tracing.clone()));
    let others = rule(&mut control, &next, now);
    told &= listen(&mut control, &next.listeners, &same, others, fresh);
    if others {
        let names: Arc<[Arc<str>]> = next.groups.iter().map(|group| Arc::clone(&group.spec.name)).collect();
        told &= control.order_all(|| Order::Groups(Arc::clone(&names)));
    }
    control.settings = next;
    control.settle(now);
    lock(&inner.probes).follow(&control);
    inner.version.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    drop(control);
    inner.wake.notify_one();
    if told { Ok(changes) } else { Err(StartError::Stuck) }
}

/// Why an address cannot be had: perhaps because one of our own stands in the way.
fn bind_error(control: &Control, address: SocketAddr, source: io::Error) -> StartError {
    let open =
        control.listeners.iter().map(|open| open.door.address).find(|open| open.port() == address.port());
    match open {
        Some(open) if source.kind() == io::ErrorKind::AddrInUse => StartError::Overlap { address, open },
        _ => StartError::Bind { address, source },
    }
}

/// A listener that is not open yet.
struct Fresh {
    /// In the configuration.
    place: usize,
    opened: Opened,
    /// For each core; none before the engine is opened.
    hands: Vec<Vec<Socket>>,
}

/// Binds the listeners that are not open yet, or takes the sockets that were given for them.
fn bind_new(
    control: &mut Control,
    next: &Settings,
    same: &[Option<usize>],
) -> Result<VecDeque<Fresh>, StartError> {
    let mut fresh = VecDeque::new();
    // They are given once.
    let mut given: Vec<_> = std::mem::take(&mut control.given).into_iter().map(Some).collect();
    let mut id = control.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
    for (place, settings) in next.listeners.iter().enumerate() {
        if same[place].is_some() {
            continue;
        }
        let refuse = |source| bind_error(control, settings.address, source);
        let meant = |bound: &Option<Bound>| {
            let fits = |bound: &Bound| {
                // A file may name the port by now that the system chose.
                let same = bound.address == settings.address || bound.bound == settings.address;
                same && bound.datagrams == settings.protocol.datagrams()
            };
            bound.as_ref().is_some_and(fits)
        };
        let given = given.iter_mut().find(|bound| meant(bound)).and_then(Option::take);
        let disabled = given.as_ref().is_some_and(|bound| bound.disabled);
        let (address, mut sockets) = match given {
            Some(given) => given.take().map_err(refuse)?,
            None => bind(settings, control.cores).map_err(refuse)?,
        };
        let hands = match control.held {
            true => Vec::new(),
            false => deal(settings, address, &mut sockets, control.cores).map_err(refuse)?,
        };
        let opened = Opened { id, door: Door::new(address, control.cores), disabled, sockets };
        fresh.push_back(Fresh { place, opened, hands });
        id += 1;
    }
    Ok(fresh)
}

/// For each listener where in `others` its socket is. Several whose port the system chooses are told apart by their order.
fn same_sockets(of: &[ListenerSettings], others: &[ListenerSettings]) -> Vec<Option<usize>> {
    let socket = |listener: &ListenerSettings| (listener.address, listener.protocol.datagrams());
    let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (place, other) in others.iter().enumerate() {
        places.entry(socket(other)).or_default().push_back(place);
    }
    of.iter().map(|listener| places.get_mut(&socket(listener))?.pop_front()).collect()
}

/// Brings the groups to what the settings say; have groups come or gone? One whose settings are as before is left alone: of a
/// thousand groups most change hands rarely.
fn rule(control: &mut Control, next: &Settings, now: Time) -> bool {
    let names: HashSet<&Arc<str>> = next.groups.iter().map(|group| &group.spec.name).collect();
    let Control { groups, sharing, cores, wires, host, desk, .. } = &mut *control;
    let count = groups.len();
    groups.retain(|name, ruled| {
        let stays = names.contains(name);
        if !stays {
            sharing.go(&ruled.hosts);
        }
        stays
    });
    let mut others = groups.len() < count;
    let moves = |listener: &&ListenerSettings| {
        matches!(listener.binding, Binding::OnDemand(_)) || listener.affinity.is_some()
    };
    let on_demand = of_groups(next.listeners.iter().filter(moves));
    for (nth, settings) in next.groups.iter().enumerate() {
        let name = &settings.spec.name;
        match groups.get_mut(name) {
            Some(ruled) if same(&ruled.given, settings) => ruled.given = Arc::clone(settings),
            Some(ruled) => {
                sharing.go(&ruled.hosts);
                ruled.update(Arc::clone(settings), *cores, now);
                sharing.come(&ruled.hosts);
            }
            None => {
                let rest = Rest::new(nth);
                let ruled = Ruled::new(Arc::clone(settings), *cores, wires.clone(), host, rest, now);
                sharing.come(&ruled.hosts);
                groups.insert(Arc::clone(name), ruled);
                others = true;
            }
        }
        let lent = desk.lent(name) > 0;
        if let Some(ruled) = groups.get_mut(name) {
            ruled.on_demand = on_demand.contains(&**name);
            ruled.watch_loads(lent, now);
        }
    }
    control.end_gone();
    others
}

fn same(one: &Arc<GroupSettings>, other: &Arc<GroupSettings>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// Brings the listeners to what the settings say; false if a worker cannot be told. `others`: are there other groups than before?
fn listen(
    control: &mut Control,
    next: &[ListenerSettings],
    same: &[Option<usize>],
    others: bool,
    mut fresh: VecDeque<Fresh>,
) -> bool {
    let mut told = true;
    let mut listeners = Vec::new();
    let mut before: Vec<_> = std::mem::take(&mut control.listeners).into_iter().map(Some).collect();
    for (place, settings) in next.iter().enumerate() {
        let Some(groups) = control.groups_of(settings) else { continue };
        // In the order of the configuration, too.
        if let Some(Fresh { opened, hands, .. }) = fresh.pop_front_if(|fresh| fresh.place == place) {
            told &= control.listen(&opened, settings, &groups, hands, Vec::new());
            listeners.push(opened);
        } else if let Some(at) = same[place]
            && let Some(open) = before.get_mut(at).and_then(Option::take)
        {
            if others || control.settings.listeners[at] != *settings {
                told &= control.order_all(|| Order::Retune {
                    id: open.id,
                    settings: settings.clone(),
                    groups: groups.clone(),
                });
            }
            // One that is disabled has nobody to tell, and stays so.
            listeners.push(open);
        }
    }
    control.listeners = listeners;
    // Our own copies first: workers serve those who wait, and the last copy that is closed turns away who is left.
    let gone: Vec<u64> = before.into_iter().flatten().map(|open| open.id).collect();
    for id in gone {
        told &= control.order_all(|| Order::Close { id });
    }
    told
}

/// What changes from one configuration to another, one line each, in the order of the new one.
fn differences(before: &Settings, after: &Settings, same: &[Option<usize>]) -> Vec<String> {
    let mut changes = Vec::new();
    let name = |listener: &ListenerSettings| format!("listener {} {}", listener.label(), listener.address);
    for (place, listener) in after.listeners.iter().enumerate() {
        match same[place].map(|open| &before.listeners[open]) {
            None => changes.push(format!("+ {} -> {}", name(listener), listener.group)),
            Some(open) if open.group != listener.group => {
                changes.push(format!("~ {}: {} -> {}", name(listener), open.group, listener.group));
            }
            Some(open) if open != listener => changes.push(format!("~ {}: settings", name(listener))),
            Some(_) => {}
        }
    }
    let stay: HashSet<usize> = same.iter().flatten().copied().collect();
    for (place, open) in before.listeners.iter().enumerate() {
        if !stay.contains(&place) {
            changes.push(format!("- {}", name(open)));
        }
    }
    let named = |settings: &'_ Settings| -> HashMap<Arc<str>, Arc<GroupSettings>> {
        settings.groups.iter().map(|group| (Arc::clone(&group.spec.name), Arc::clone(group))).collect()
    };
    let (old, new) = (named(before), named(after));
    for group in &after.groups {
        match old.get(&group.spec.name) {
            None => {
                let members = match group.spec.members.len() {
                    1 => "1 member".to_owned(),
                    many => format!("{many} members"),
                };
                changes.push(format!("+ group {} ({members})", group.spec.name));
            }
            Some(other) if self::same(other, group) => {}
            Some(other) => group_differences(other, group, &mut changes),
        }
    }
    for group in &before.groups {
        if !new.contains_key(&group.spec.name) {
            changes.push(format!("- group {}", group.spec.name));
        }
    }
    let log = |settings: &Settings| settings.access_log.as_ref().map(|log| log.path.display().to_string());
    if before.access_log != after.access_log {
        changes.push(format!("~ access log: {}", log(after).unwrap_or_else(|| "off".into())));
    }
    if before.tracing != after.tracing {
        let said = after.tracing.as_ref().map(|tracing| format!("on, {} of new traces", tracing.sample));
        changes.push(format!("~ tracing: {}", said.unwrap_or_else(|| "off".into())));
    }
    if before.max_connections != after.max_connections {
        changes.push(format!("~ max_connections: {} -> {}", before.max_connections, after.max_connections));
    }
    changes
}

fn group_differences(before: &GroupSettings, after: &GroupSettings, changes: &mut Vec<String>) {
    let name = &after.spec.name;
    let named = |group: &GroupSettings| -> HashMap<Arc<str>, MemberSpec> {
        group.spec.members.iter().map(|member| (Arc::clone(&member.name), member.clone())).collect()
    };
    let (old, new) = (named(before), named(after));
    for member in &after.spec.members {
        match old.get(&member.name) {
            None => changes.push(format!("+ group {name}: member {}", member.name)),
            Some(other) if other.capacity != member.capacity => changes.push(format!(
                "~ group {name}: member {}: capacity {} -> {}",
                member.name, other.capacity, member.capacity
            )),
            Some(other) if *other != *member => {
                changes.push(format!("~ group {name}: member {}", member.name))
            }
            Some(_) => {}
        }
    }
    for member in &before.spec.members {
        if !new.contains_key(&member.name) {
            changes.push(format!("- group {name}: member {}", member.name));
        }
    }
    let strategy = |group: &GroupSettings| (group.spec.strategy.name, group.spec.knobs.clone());
    if strategy(before) != strategy(after) {
        let said = |group: &GroupSettings| described(group.spec.strategy, &group.spec.knobs);
        // The settings of both only where they tell one from the other.
        let (old, new) = match before.spec.strategy.name == after.spec.strategy.name {
            true => (said(before), said(after)),
            false => (before.spec.strategy.name.to_owned(), after.spec.strategy.name.to_owned()),
        };
        changes.push(format!("~ group {name}: strategy {old} -> {new}"));
    }
    let mut rest = before.clone();
    rest.spec.members.clone_from(&after.spec.members);
    rest.spec.strategy = after.spec.strategy;
    rest.spec.knobs = after.spec.knobs.clone();
    if rest != *after {
        changes.push(format!("~ group {name}: settings"));
    }
}
