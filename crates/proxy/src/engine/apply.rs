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
    let open_listeners = &control.settings.listeners;
    let reused_sockets = same_sockets(&next.listeners, open_listeners);
    let backlog_changed = |(index, reused): (usize, &Option<usize>)| {
        reused.is_some_and(|open_index| open_listeners[open_index].backlog != next.listeners[index].backlog)
    };
    if reused_sockets.iter().enumerate().any(backlog_changed) {
        return Err(StartError::Fixed("the backlog of an open listener"));
    }
    let changes = differences(&control.settings, &next, &reused_sockets);
    // Steps that may fail.
    let new_listeners = bind_new(&mut control, &next, &reused_sockets)?;
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
    let previous_log = std::mem::replace(&mut *lock(&inner.access_log), log);
    let mut all_sent = control.send_to_workers(|| {
        WorkerCommand::AccessLog(lock(&inner.access_log).as_ref().map(AccessLog::sender))
    });
    if let Some(old_log) = previous_log {
        // The old log's writer ends when the last core has dropped its sender.
        std::thread::spawn(move || old_log.close());
    }
    let tracing = next.tracing.as_ref().map(|settings| trace::TraceSender {
        batches: inner.traces.clone(),
        dropped: Arc::clone(&inner.spans.dropped),
        sample: trace::sample_threshold(settings.sample),
    });
    all_sent &= control.send_to_workers(|| WorkerCommand::Tracing(tracing.clone()));
    let groups_changed = apply_groups(&mut control, &next, now);
    all_sent &=
        apply_listeners(&mut control, &next.listeners, &reused_sockets, groups_changed, new_listeners);
    if groups_changed {
        let names: Arc<[Arc<str>]> = next.groups.iter().map(|group| Arc::clone(&group.spec.name)).collect();
        all_sent &= control.send_to_workers(|| WorkerCommand::Groups(Arc::clone(&names)));
    }
    control.settings = next;
    control.publish_changes(now);
    lock(&inner.probes).update(&control);
    inner.version.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    drop(control);
    inner.wake.notify_one();
    if all_sent { Ok(changes) } else { Err(StartError::Stuck) }
}

/// Returns the reason why an address cannot be bound; a listener of this process may be in the way.
fn bind_error(control: &ControlPlane, address: SocketAddr, source: io::Error) -> StartError {
    let open = control
        .listeners
        .iter()
        .map(|listener| listener.shared.address)
        .find(|open| open.port() == address.port());
    match open {
        Some(open_address) if source.kind() == io::ErrorKind::AddrInUse => {
            StartError::Overlap { address, open: open_address }
        }
        _ => StartError::Bind { address, source },
    }
}

/// A listener that is not open yet.
struct UnopenedListener {
    /// The index in the configuration.
    index: usize,
    listener: ListenerState,
    /// The sockets for each core; none before the engine is opened.
    core_sockets: Vec<Vec<Socket>>,
}

/// Binds the listeners that are not open yet, or takes the inherited sockets for them.
fn bind_new(
    control: &mut ControlPlane,
    next: &Settings,
    reused_sockets: &[Option<usize>],
) -> Result<VecDeque<UnopenedListener>, StartError> {
    let mut new_listeners = VecDeque::new();
    // Inherited sockets are used once.
    let mut inherited: Vec<_> =
        std::mem::take(&mut control.inherited_sockets).into_iter().map(Some).collect();
    let mut id = control.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
    for (index, settings) in next.listeners.iter().enumerate() {
        if reused_sockets[index].is_some() {
            continue;
        }
        let to_bind_error = |source| bind_error(control, settings.address, source);
        let is_for_listener = |sockets: &Option<ListenerSockets>| {
            let matches_settings = |sockets: &ListenerSockets| {
                // A file may by now name the port that the system chose.
                let address_matches =
                    sockets.address == settings.address || sockets.bound == settings.address;
                address_matches && sockets.datagrams == settings.protocol.is_datagram()
            };
            sockets.as_ref().is_some_and(matches_settings)
        };
        let listener_sockets =
            inherited.iter_mut().find(|candidate| is_for_listener(candidate)).and_then(Option::take);
        let disabled = listener_sockets.as_ref().is_some_and(|sockets| sockets.disabled);
        let (address, mut sockets) = match listener_sockets {
            Some(inherited_sockets) => inherited_sockets.into_core_sockets().map_err(to_bind_error)?,
            None => control.bind_listener(settings).map_err(to_bind_error)?,
        };
        let core_sockets = match control.held {
            true => Vec::new(),
            false => distribute(settings, address, &mut sockets, control.cores).map_err(to_bind_error)?,
        };
        let listener =
            ListenerState { id, shared: ListenerShared::new(address, control.cores), disabled, sockets };
        new_listeners.push_back(UnopenedListener { index, listener, core_sockets });
        id += 1;
    }
    Ok(new_listeners)
}

/// Returns for each listener the index in `others` of the one with the same socket. Several listeners whose
/// ports the system chooses are matched in order.
fn same_sockets(listeners: &[ListenerSettings], other_listeners: &[ListenerSettings]) -> Vec<Option<usize>> {
    let socket_key = |listener: &ListenerSettings| (listener.address, listener.protocol.is_datagram());
    let mut indices_by_key: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (index, other) in other_listeners.iter().enumerate() {
        indices_by_key.entry(socket_key(other)).or_default().push_back(index);
    }
    listeners.iter().map(|listener| indices_by_key.get_mut(&socket_key(listener))?.pop_front()).collect()
}

/// Brings the groups in line with the settings, and returns `true` if groups were added or removed. Unchanged
/// groups are skipped: of a thousand groups, most change rarely.
fn apply_groups(control: &mut ControlPlane, next: &Settings, now: Time) -> bool {
    let names: HashSet<&Arc<str>> = next.groups.iter().map(|group| &group.spec.name).collect();
    let ControlPlane { groups, host_sharing, cores, channels, host_meter, lease_table, .. } = &mut *control;
    let count = groups.len();
    groups.retain(|name, group_state| {
        let is_kept = names.contains(name);
        if !is_kept {
            host_sharing.remove(&group_state.hosts);
        }
        is_kept
    });
    let mut groups_changed = groups.len() < count;
    let rebinds_sessions = |listener: &&ListenerSettings| {
        matches!(listener.binding, BindingMode::OnDemand(_)) || listener.affinity.is_some()
    };
    let on_demand = group_names(next.listeners.iter().filter(rebinds_sessions));
    for (index, settings) in next.groups.iter().enumerate() {
        let name = &settings.spec.name;
        match groups.get_mut(name) {
            Some(group_state) if same_settings(&group_state.configured, settings) => {
                group_state.configured = Arc::clone(settings)
            }
            Some(group_state) => {
                host_sharing.remove(&group_state.hosts);
                group_state.update(Arc::clone(settings), *cores, now);
                host_sharing.add(&group_state.hosts);
            }
            None => {
                let backoff = IdleBackoff::new(index);
                let group_state =
                    GroupState::new(Arc::clone(settings), *cores, channels.clone(), host_meter, backoff, now);
                host_sharing.add(&group_state.hosts);
                groups.insert(Arc::clone(name), group_state);
                groups_changed = true;
            }
        }
        let has_leases = lease_table.group_count(name) > 0;
        if let Some(group_state) = groups.get_mut(name) {
            group_state.on_demand = on_demand.contains(&**name);
            group_state.update_alerting(has_leases, now);
        }
    }
    control.end_removed_groups();
    groups_changed
}

fn same_settings(left: &Arc<GroupSettings>, right: &Arc<GroupSettings>) -> bool {
    Arc::ptr_eq(left, right) || left == right
}

/// Brings the listeners in line with the settings. Returns `false` if a worker cannot be reached. `others` is
/// `true` if groups were added or removed.
fn apply_listeners(
    control: &mut ControlPlane,
    next: &[ListenerSettings],
    reused_sockets: &[Option<usize>],
    groups_changed: bool,
    mut new_listeners: VecDeque<UnopenedListener>,
) -> bool {
    let mut all_sent = true;
    let mut listeners = Vec::new();
    let mut previous_listeners: Vec<_> =
        std::mem::take(&mut control.listeners).into_iter().map(Some).collect();
    for (index, settings) in next.iter().enumerate() {
        let Some(groups) = control.groups_of(settings) else { continue };
        // The order is the configuration's here, too.
        if let Some(UnopenedListener { listener, core_sockets, .. }) =
            new_listeners.pop_front_if(|candidate| candidate.index == index)
        {
            all_sent &= control.start_listener(&listener, settings, &groups, core_sockets, Vec::new());
            listeners.push(listener);
        } else if let Some(previous_index) = reused_sockets[index]
            && let Some(listener) = previous_listeners.get_mut(previous_index).and_then(Option::take)
        {
            if groups_changed || control.settings.listeners[previous_index] != *settings {
                all_sent &= control.send_to_workers(|| WorkerCommand::Update {
                    id: listener.id,
                    settings: settings.clone(),
                    groups: groups.clone(),
                });
            }
            // A disabled listener has no worker to notify, and stays disabled.
            listeners.push(listener);
        }
    }
    control.listeners = listeners;
    // The control thread's copies are closed first. Workers serve the waiting clients, and closing the last
    // copy rejects the rest.
    let closed_ids: Vec<u64> = previous_listeners.into_iter().flatten().map(|listener| listener.id).collect();
    for id in closed_ids {
        all_sent &= control.send_to_workers(|| WorkerCommand::Close { id });
    }
    all_sent
}
