//! Puts settings in force, the first and every later time alike: what may fail comes first, then nothing can.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_brain::Time;
use socket2::Socket;

use crate::access::AccessLog;
use crate::bind::bind;
use crate::control::{Control, Opened, Ruled, described};
use crate::inner::{Inner, lock};
use crate::listener::Door;
use crate::trace;
use crate::worker::Order;
use crate::{Binding, GroupSettings, ListenerSettings, Settings, StartError};

/// Applies `next`; what it changes, one line each.
pub(crate) fn apply(inner: &Inner, next: Settings) -> Result<Vec<String>, StartError> {
    let mut control = lock(&inner.control);
    if next.threads != control.settings.threads {
        return Err(StartError::Fixed("threads"));
    }
    let backlog = |listener: &ListenerSettings| {
        control
            .settings
            .listeners
            .iter()
            .any(|open| same_socket(open, listener) && open.backlog != listener.backlog)
    };
    if next.listeners.iter().any(backlog) {
        return Err(StartError::Fixed("the backlog of an open listener"));
    }
    let changes = differences(&control.settings, &next);
    // What may fail.
    let fresh = bind_new(&control, &next)?;
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
    rule(&mut control, &next, now);
    told &= listen(&mut control, &next.listeners, fresh);
    let names: Arc<[Arc<str>]> = next.groups.iter().map(|group| Arc::clone(&group.spec.name)).collect();
    told &= control.order_all(|| Order::Groups(Arc::clone(&names)));
    control.settings = next;
    control.settle(now);
    lock(&inner.probes).follow(&control);
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

type Fresh = Vec<(usize, Arc<Door>, Vec<Socket>)>;

/// Binds the listeners that are not open yet; each with its place in the configuration.
fn bind_new(control: &Control, next: &Settings) -> Result<Fresh, StartError> {
    let mut fresh = Vec::new();
    for (place, settings) in next.listeners.iter().enumerate() {
        if open_as(control, settings).is_some() {
            continue;
        }
        let (address, sockets) =
            bind(settings, control.cores).map_err(|source| bind_error(control, settings.address, source))?;
        fresh.push((place, Door::new(address, control.cores), sockets));
    }
    Ok(fresh)
}

/// The place of the open listener that these settings are of.
fn open_as(control: &Control, settings: &ListenerSettings) -> Option<usize> {
    control.settings.listeners.iter().position(|open| same_socket(open, settings))
}

fn same_socket(one: &ListenerSettings, other: &ListenerSettings) -> bool {
    let transport = |settings: &ListenerSettings| settings.protocol.datagrams();
    one.address == other.address && transport(one) == transport(other)
}

/// Brings the groups to what the settings say.
fn rule(control: &mut Control, next: &Settings, now: Time) {
    control.groups.retain(|name, _| next.groups.iter().any(|group| group.spec.name == *name));
    for settings in &next.groups {
        match control.groups.get_mut(&settings.spec.name) {
            Some(ruled) => ruled.update(settings.clone(), control.cores, now),
            None => {
                let (wires, host) = (control.wires.clone(), &control.host);
                let ruled = Ruled::new(settings.clone(), control.cores, wires, host, now);
                control.groups.insert(Arc::clone(&settings.spec.name), ruled);
            }
        }
        let name = &settings.spec.name;
        let on_demand = |listener: &ListenerSettings| {
            let moves = matches!(listener.binding, Binding::OnDemand(_)) || listener.affinity.is_some();
            listener.leads_to(name) && moves
        };
        let lent = control.desk.lent(name) > 0;
        if let Some(ruled) = control.groups.get_mut(name) {
            ruled.on_demand = next.listeners.iter().any(on_demand);
            ruled.watch_loads(lent, now);
        }
    }
    control.end_gone();
}

/// Brings the listeners to what the settings say; false if a worker cannot be told.
fn listen(control: &mut Control, next: &[ListenerSettings], mut fresh: Fresh) -> bool {
    let mut told = true;
    let mut listeners = Vec::new();
    let mut id = control.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
    for (place, settings) in next.iter().enumerate() {
        let Some(groups) = control.groups_of(settings) else { continue };
        if let Some(index) = fresh.iter().position(|(of, ..)| *of == place) {
            let (_, door, sockets) = fresh.swap_remove(index);
            for (worker, socket) in control.workers.iter().zip(sockets) {
                let (door, settings, groups) = (Arc::clone(&door), settings.clone(), groups.clone());
                told &= worker.order(Order::Listen { id, door, socket, settings, groups });
            }
            listeners.push(Opened { id, door, disabled: false });
            id += 1;
        } else if let Some(before) = open_as(control, settings) {
            let open = &control.listeners[before];
            told &= control.order_all(|| Order::Retune {
                id: open.id,
                settings: settings.clone(),
                groups: groups.clone(),
            });
            // One that is disabled has nobody to tell, and stays so.
            listeners.push(Opened { id: open.id, door: Arc::clone(&open.door), disabled: open.disabled });
        }
    }
    for open in &control.listeners {
        if listeners.iter().all(|listener| listener.id != open.id) {
            told &= control.order_all(|| Order::Close { id: open.id });
        }
    }
    control.listeners = listeners;
    told
}

/// What changes from one configuration to another, one line each, in the order of the new one.
fn differences(before: &Settings, after: &Settings) -> Vec<String> {
    let mut changes = Vec::new();
    let name = |listener: &ListenerSettings| format!("listener {} {}", listener.label(), listener.address);
    for listener in &after.listeners {
        match before.listeners.iter().find(|open| same_socket(open, listener)) {
            None => changes.push(format!("+ {} -> {}", name(listener), listener.group)),
            Some(open) if open.group != listener.group => {
                changes.push(format!("~ {}: {} -> {}", name(listener), open.group, listener.group));
            }
            Some(open) if open != listener => changes.push(format!("~ {}: settings", name(listener))),
            Some(_) => {}
        }
    }
    for open in &before.listeners {
        if !after.listeners.iter().any(|listener| same_socket(open, listener)) {
            changes.push(format!("- {}", name(open)));
        }
    }
    for group in &after.groups {
        match before.groups.iter().find(|other| other.spec.name == group.spec.name) {
            None => {
                changes.push(format!("+ group {} ({} members)", group.spec.name, group.spec.members.len()))
            }
            Some(other) => group_differences(other, group, &mut changes),
        }
    }
    for group in &before.groups {
        if !after.groups.iter().any(|other| other.spec.name == group.spec.name) {
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
    for member in &after.spec.members {
        match before.spec.members.iter().find(|other| other.name == member.name) {
            None => changes.push(format!("+ group {name}: member {}", member.name)),
            Some(other) if other.capacity != member.capacity => changes.push(format!(
                "~ group {name}: member {}: capacity {} -> {}",
                member.name, other.capacity, member.capacity
            )),
            Some(other) if other != member => changes.push(format!("~ group {name}: member {}", member.name)),
            Some(_) => {}
        }
    }
    for member in &before.spec.members {
        if !after.spec.members.iter().any(|other| other.name == member.name) {
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
    let rest = |group: &GroupSettings| {
        let mut group = group.clone();
        group.spec.members.clear();
        group.spec.strategy = after.spec.strategy;
        group.spec.knobs = after.spec.knobs.clone();
        format!("{group:?}")
    };
    if rest(before) != rest(after) {
        changes.push(format!("~ group {name}: settings"));
    }
}
