//! The status of a running balancer, for the Supervisor's view of the host.

use plimsoll_admin::SelfStatus;
use plimsoll_config::pluralize;
use serde_json::{Value, json};

use super::Args;
use crate::control::{self, BalancerKind, ControlError};

pub(in crate::command) fn self_status(args: &Args) -> SelfStatus {
    query(args).unwrap_or_else(|error| SelfStatus {
        well: false,
        lines: vec![format!("it cannot be asked: {error}")],
        facts: Value::Null,
    })
}

fn query(args: &Args) -> Result<SelfStatus, ControlError> {
    let (_, status) = control::find_endpoint::<BalancerKind>(None, Some(&args.config))?.status()?;
    let mut lines: Vec<String> = Vec::new();
    for group in &status.groups {
        lines.push(format!("group {}: {}, {}", group.name, group.verdict, group.strategy));
    }
    let connections: u64 = status.listeners.iter().map(|listener| listener.connections).sum();
    let listeners = pluralize(status.listeners.len(), "listener");
    lines.push(format!(
        "{listeners}, {}",
        pluralize(usize::try_from(connections).unwrap_or(usize::MAX), "connection")
    ));
    let disabled = status.listeners.iter().filter(|listener| listener.disabled);
    lines.extend(disabled.map(|listener| format!("listener {} is disabled", listener.address)));
    if let Some(error) = &status.last_reload_error {
        lines.push(format!("the last reload was refused: {error}"));
    }
    let groups: Vec<Value> = status
        .groups
        .iter()
        .map(|group| {
            json!({
                "name": group.name,
                "strategy": group.strategy,
                "verdict": group.verdict,
                "healthy": group.healthy,
            })
        })
        .collect();
    Ok(SelfStatus {
        well: status.last_reload_successful && status.groups.iter().all(|group| group.healthy),
        lines,
        facts: json!({
            "groups": groups,
            "listeners": status.listeners.len(),
            "connections": connections,
            "stopping": status.stopping,
            "last_reload_successful": status.last_reload_successful,
        }),
    })
}
