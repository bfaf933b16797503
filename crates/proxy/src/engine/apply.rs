//! Applies settings, at the start and at each reload: every step that may fail comes first, and no later step
//! can fail.

mod diff;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_brain::Time;
use socket2::Socket;

use diff::differences;

use crate::control::bind::{ListenerSockets, distribute};
use crate::control::engine_shared::EngineShared;
use crate::control::idle_backoff::IdleBackoff;
use crate::control::{ControlPlane, GroupState, ListenerState, group_names};
use crate::listener::ListenerShared;
use crate::runtime::sync::lock;
use crate::upstream::access_log::AccessLog;
use crate::upstream::trace;
use crate::worker::WorkerCommand;
use crate::{BindingMode, GroupSettings, ListenerSettings, Settings, StartError};

/// Applies `next` and returns the changes, one line each.
pub(crate) fn apply(inner: &EngineShared, next: Settings) -> Result<Vec<String>, StartError> {
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
    // Steps that may fail.
    let fresh = bind_new(&mut control, &next, &same)?;
    let log = match &next.access_log {
        Some(settings) => Some(
            AccessLog::open(settings, Arc::clone(&inner.access_dropped))
                .map_err(|source| StartError::AccessLog { path: settings.path.clone(), source })?,
        ),
        None => None,
    };
    // Steps that cannot fail.
    let now = inner.clock.now();
    inner.limits.max_open.store(next.max_connections, std::sync::atomic::Ordering::Relaxed);
    inner.limits.memory.resize(next.max_memory);
    inner.limits.max_descriptors.store(next.max_descriptors, std::sync::atomic::Ordering::Relaxed);
    let log_before = std::mem::replace(&mut *lock(&inner.access_log), log);
    let mut told = control.send_to_workers(|| {
        WorkerCommand::AccessLog(lock(&inner.access_log).as_ref().map(AccessLog::sender))
    });
    if let Some(log) = log_before {
        // The old log's writer ends when the last core has dropped its sender.
        std::thread::spawn(move || log.close());
    }
    let tracing = next.tracing.as_ref().map(|settings| trace::TraceSender {
        batches: inner.traces.clone(),
        dropped: Arc::clone(&inner.spans.dropped),
        sample: trace::sample_threshold(settings.sample),
    });
    told &= control.send_to_workers(|| WorkerCommand::Tracing(tracing.clone()));
    let others = apply_groups(&mut control, &next, now);
    told &= apply_listeners(&mut control, &next.listeners, &same, others, fresh);
    if others {
        let names: Arc<[Arc<str>]> = next.groups.iter().map(|group| Arc::clone(&group.spec.name)).collect();
        told &= control.send_to_workers(|| WorkerCommand::Groups(Arc::clone(&names)));
    }
    control.settings = next;
    control.publish_changes(now);
    lock(&inner.probes).update(&control);
    inner.version.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    drop(control);
    inner.wake.notify_one();
    if told { Ok(changes) } else { Err(StartError::Stuck) }
}

/// Returns the reason why an address cannot be bound; a listener of this process may be in the way.
fn bind_error(control: &ControlPlane, address: SocketAddr, source: io::Error) -> StartError {
    let open =
        control.listeners.iter().map(|open| open.shared.address).find(|open| open.port() == address.port());
    match open {
        Some(open) if source.kind() == io::ErrorKind::AddrInUse => StartError::Overlap { address, open },
        _ => StartError::Bind { address, source },
    }
}

/// A listener that is not open yet.
struct UnopenedListener {
    /// The index in the configuration.
    index: usize,
    opened: ListenerState,
    /// The sockets for each core; none before the engine is opened.
    core_sockets: Vec<Vec<Socket>>,
}

/// Binds the listeners that are not open yet, or takes the inherited sockets for them.
fn bind_new(
    control: &mut ControlPlane,
    next: &Settings,
    same: &[Option<usize>],
) -> Result<VecDeque<UnopenedListener>, StartError> {
    let mut fresh = VecDeque::new();
    // Inherited sockets are used once.
    let mut given: Vec<_> = std::mem::take(&mut control.inherited_sockets).into_iter().map(Some).collect();
    let mut id = control.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
    for (place, settings) in next.listeners.iter().enumerate() {
        if same[place].is_some() {
            continue;
        }
        let refuse = |source| bind_error(control, settings.address, source);
        let meant = |bound: &Option<ListenerSockets>| {
            let fits = |bound: &ListenerSockets| {
                // A file may by now name the port that the system chose.
                let same = bound.address == settings.address || bound.bound == settings.address;
                same && bound.datagrams == settings.protocol.is_datagram()
            };
            bound.as_ref().is_some_and(fits)
        };
        let given = given.iter_mut().find(|bound| meant(bound)).and_then(Option::take);
        let disabled = given.as_ref().is_some_and(|bound| bound.disabled);
        let (address, mut sockets) = match given {
            Some(given) => given.into_core_sockets().map_err(refuse)?,
            None => control.bind_listener(settings).map_err(refuse)?,
        };
        let hands = match control.held {
            true => Vec::new(),
            false => distribute(settings, address, &mut sockets, control.cores).map_err(refuse)?,
        };
        let opened =
            ListenerState { id, shared: ListenerShared::new(address, control.cores), disabled, sockets };
        fresh.push_back(UnopenedListener { index: place, opened, core_sockets: hands });
        id += 1;
    }
    Ok(fresh)
}

/// Returns for each listener the index in `others` of the one with the same socket. Several listeners whose
/// ports the system chooses are matched in order.
fn same_sockets(of: &[ListenerSettings], others: &[ListenerSettings]) -> Vec<Option<usize>> {
    let socket = |listener: &ListenerSettings| (listener.address, listener.protocol.is_datagram());
    let mut places: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (place, other) in others.iter().enumerate() {
        places.entry(socket(other)).or_default().push_back(place);
    }
    of.iter().map(|listener| places.get_mut(&socket(listener))?.pop_front()).collect()
}

/// Brings the groups in line with the settings, and returns `true` if groups were added or removed. Unchanged
/// groups are skipped: of a thousand groups, most change rarely.
fn apply_groups(control: &mut ControlPlane, next: &Settings, now: Time) -> bool {
    let names: HashSet<&Arc<str>> = next.groups.iter().map(|group| &group.spec.name).collect();
    let ControlPlane {
        groups,
        host_sharing: sharing,
        cores,
        channels: wires,
        host_meter: host,
        lease_table: desk,
        ..
    } = &mut *control;
    let count = groups.len();
    groups.retain(|name, ruled| {
        let stays = names.contains(name);
        if !stays {
            sharing.remove(&ruled.hosts);
        }
        stays
    });
    let mut others = groups.len() < count;
    let moves = |listener: &&ListenerSettings| {
        matches!(listener.binding, BindingMode::OnDemand(_)) || listener.affinity.is_some()
    };
    let on_demand = group_names(next.listeners.iter().filter(moves));
    for (nth, settings) in next.groups.iter().enumerate() {
        let name = &settings.spec.name;
        match groups.get_mut(name) {
            Some(ruled) if same(&ruled.given, settings) => ruled.given = Arc::clone(settings),
            Some(ruled) => {
                sharing.remove(&ruled.hosts);
                ruled.update(Arc::clone(settings), *cores, now);
                sharing.add(&ruled.hosts);
            }
            None => {
                let rest = IdleBackoff::new(nth);
                let ruled = GroupState::new(Arc::clone(settings), *cores, wires.clone(), host, rest, now);
                sharing.add(&ruled.hosts);
                groups.insert(Arc::clone(name), ruled);
                others = true;
            }
        }
        let lent = desk.group_count(name) > 0;
        if let Some(ruled) = groups.get_mut(name) {
            ruled.on_demand = on_demand.contains(&**name);
            ruled.update_alerting(lent, now);
        }
    }
    control.end_removed_groups();
    others
}

fn same(one: &Arc<GroupSettings>, other: &Arc<GroupSettings>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// Brings the listeners in line with the settings. Returns `false` if a worker cannot be reached. `others` is
/// `true` if groups were added or removed.
fn apply_listeners(
    control: &mut ControlPlane,
    next: &[ListenerSettings],
    same: &[Option<usize>],
    others: bool,
    mut fresh: VecDeque<UnopenedListener>,
) -> bool {
    let mut told = true;
    let mut listeners = Vec::new();
    let mut before: Vec<_> = std::mem::take(&mut control.listeners).into_iter().map(Some).collect();
    for (place, settings) in next.iter().enumerate() {
        let Some(groups) = control.groups_of(settings) else { continue };
        // The order is the configuration's here, too.
        if let Some(UnopenedListener { opened, core_sockets: hands, .. }) =
            fresh.pop_front_if(|fresh| fresh.index == place)
        {
            told &= control.start_listener(&opened, settings, &groups, hands, Vec::new());
            listeners.push(opened);
        } else if let Some(at) = same[place]
            && let Some(open) = before.get_mut(at).and_then(Option::take)
        {
            if others || control.settings.listeners[at] != *settings {
                told &= control.send_to_workers(|| WorkerCommand::Update {
                    id: open.id,
                    settings: settings.clone(),
                    groups: groups.clone(),
                });
            }
            // A disabled listener has no worker to notify, and stays disabled.
            listeners.push(open);
        }
    }
    control.listeners = listeners;
    // The control thread's copies are closed first. Workers serve the waiting clients, and closing the last
    // copy rejects the rest.
    let gone: Vec<u64> = before.into_iter().flatten().map(|open| open.id).collect();
    for id in gone {
        told &= control.send_to_workers(|| WorkerCommand::Close { id });
    }
    told
}
