//! The reload of a daemon's file and keys while it runs. A mistake in them changes nothing.

use std::collections::BTreeSet;
use std::fmt::Debug;

use plimsoll_cluster::lottery::{DaemonSettings, LotteryService};
use plimsoll_config::{self as config, ControlConfig, LotteryFile, LotteryService as FileService, Severity};
use plimsoll_wire::rfs::{KeyRing, KeyRole};

use super::{Args, key_file};

/// Reads the file and the keys; returns their content, and their differences, one line each.
///
/// # Errors
/// Fails with the mistake on one line.
pub(super) fn read_settings(
    args: &Args,
    old_file: &LotteryFile,
    active_settings: &DaemonSettings,
) -> Result<(LotteryFile, DaemonSettings, Vec<String>), String> {
    let file = match &args.config {
        Some(path) => config::read_lottery(path).map_err(|error| error.headline())?,
        None => args.read_config().map_err(|failure| failure.one_line().to_owned())?,
    };
    if file.warnings.count(Severity::Warning) > 0 {
        file.warnings.lines().iter().for_each(|line| tracing::warn!("{line}"));
    }
    let keys = key_file::read(&file.keys()).map_err(|failure| failure.one_line().to_owned())?;
    let settings = file.settings(keys, config::look_up).map_err(|problems| problems.headline())?;
    let mut changes = differences(active_settings, &settings);
    let (old_lottery, new_lottery) = (&old_file.lottery, &file.lottery);
    let fixed = [
        ("member", old_lottery.member != new_lottery.member),
        ("listen", old_lottery.listen != new_lottery.listen),
        ("address", old_lottery.address != new_lottery.address),
        ("multicast", old_lottery.multicast != new_lottery.multicast),
        ("status", old_lottery.status != new_lottery.status),
    ];
    let without_access =
        |table: &ControlConfig| ControlConfig { access: Default::default(), ..table.clone() };
    if without_access(&old_lottery.admin) != without_access(&new_lottery.admin) {
        changes.push(
            "! admin differs: it takes effect when the daemon is started again (its access rules do now)"
                .into(),
        );
    } else if old_lottery.admin.access != new_lottery.admin.access {
        changes.push("~ access".into());
    }
    for (key, _) in fixed.iter().filter(|(_, differs)| *differs) {
        changes.push(format!("! {key} differs: it takes effect when the daemon is started again"));
    }
    for service in &new_lottery.services {
        let old_service = old_lottery.services.iter().find(|old| old.number() == service.number());
        if old_service.is_some_and(|old| old.load != service.load) {
            changes.push(format!("~ service {}: load", service.name));
        }
        let sensor_config = |service: &FileService| {
            (service.scrape.clone(), service.metrics.clone(), service.cgroup.clone(), service.port)
        };
        if old_service.is_some_and(|old| sensor_config(old) != sensor_config(service)) {
            changes.push(format!("~ service {}: what is read of it", service.name));
        }
    }
    Ok((file, settings, changes))
}

/// Logs the differences.
pub(super) fn log_changes(changes: &[String]) {
    if changes.is_empty() {
        tracing::info!("reloaded: nothing has changed");
    }
    changes.iter().for_each(|change| tracing::info!("reloaded: {change}"));
}

/// Returns the differences of settings, one line each.
pub(super) fn differences(before: &DaemonSettings, after: &DaemonSettings) -> Vec<String> {
    let mut changes = Vec::new();
    for (label, role) in [("keys", KeyRole::Daemon), ("keys for clients", KeyRole::Client)] {
        let [before, after] = [before, after].map(|settings| key_ids(&settings.keys, role));
        if before != after {
            changes.push(format!("~ {label}: {before} -> {after}"));
        }
    }
    for service in &after.services {
        match before.services.iter().find(|old| old.id == service.id) {
            None => changes.push(format!("+ service {}: server {}", service.name, service.server)),
            Some(old) => service_differences(old, service, &mut changes),
        }
    }
    for service in &before.services {
        if after.services.iter().all(|new| new.id != service.id) {
            changes.push(format!("- service {}", service.name));
        }
    }
    let old_peers: BTreeSet<_> = before.peers.iter().collect();
    let new_peers: BTreeSet<_> = after.peers.iter().collect();
    changes.extend(new_peers.difference(&old_peers).map(|peer| format!("+ peer {peer}")));
    changes.extend(old_peers.difference(&new_peers).map(|peer| format!("- peer {peer}")));
    let mut add_difference = |label: &str, before: &dyn Debug, after: &dyn Debug| {
        let (before, after) = (format!("{before:?}"), format!("{after:?}"));
        if before != after {
            changes.push(format!("~ {label}: {before} -> {after}"));
        }
    };
    add_difference("ttl", &before.ttl, &after.ttl);
    add_difference("slow_start", &before.slow_start, &after.slow_start);
    add_difference("rate", &before.rate, &after.rate);
    changes
}

fn service_differences(before: &LotteryService, after: &LotteryService, changes: &mut Vec<String>) {
    let name = &after.name;
    if before.server != after.server {
        changes.push(format!("~ service {name}: server {} -> {}", before.server, after.server));
    }
    if before.capacity != after.capacity {
        changes.push(format!("~ service {name}: capacity {} -> {}", before.capacity, after.capacity));
    }
    if before.info != after.info {
        changes.push(format!("~ service {name}: info"));
    }
    if format!("{:?}", before.check) != format!("{:?}", after.check) {
        changes.push(format!("~ service {name}: health"));
    }
}

/// Returns the numbers of keys, that of the sealing one first.
fn key_ids(keys: &KeyRing, role: KeyRole) -> String {
    let ids: Vec<String> = keys.ids_for_role(role).map(|id| id.to_string()).collect();
    if ids.is_empty() { "none".into() } else { ids.join(", ") }
}
