//! The file of plimsoll.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::{GROUP, HEALTH_INTERVAL, ProxyWiring};
use crate::lab::LabError;
use crate::lab::experiment::{
    BalancerSettings, BalancerSpec, DurationValue, HealthCheckKind, LoadProtocol, ScalingPolicy,
};
use crate::lab::scaling::{ScaledMembers, ScalerSetup};
use crate::lab::shared_servers::SharedServers;

/// The key of the members' object (iiop), and its type.
pub(in crate::lab) const OBJECT_KEY: &str = "Latency";
const TYPE_ID: &str = "IDL:Test/Latency:1.0";

/// Returns the file.
pub(super) fn config(
    balancer: &BalancerSpec,
    settings: &BalancerSettings,
    wiring: &ProxyWiring,
    host: IpAddr,
    members: &[SocketAddr],
) -> Result<String, LabError> {
    let format_time = |duration: DurationValue| format!("{}us", duration.0.as_micros());
    let is_iiop = wiring.protocol == LoadProtocol::Iiop;
    let members: Vec<Value> = members
        .iter()
        .map(|address| match is_iiop {
            true => serde_json::json!({
                "address": address.to_string(),
                "key": wiring.object_key.unwrap_or(OBJECT_KEY),
            }),
            false => address.to_string().into(),
        })
        .collect();
    let interval = settings.health_interval.unwrap_or(DurationValue(HEALTH_INTERVAL));
    let mut group = match &wiring.lottery {
        Some(lottery) => serde_json::json!({
            "name": GROUP,
            "lottery": {
                "service": lottery.service,
                "daemons": lottery.daemons.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "keys": lottery.keys,
            },
        }),
        None => serde_json::json!({
            "name": GROUP,
            "strategy": match balancer.strategy_settings() {
                (name, parameters) if parameters.is_empty() => serde_json::json!(name),
                (name, parameters) => serde_json::json!({ name: parameters }),
            },
            "members": members,
        }),
    };
    let mut set_group_key = |key: &str, value: Option<Value>| {
        if let (Some(value), Some(group)) = (value, group.as_object_mut()) {
            group.insert(key.to_owned(), value);
        }
    };
    set_group_key(
        "health",
        match settings.health {
            HealthCheckKind::Http if is_iiop => {
                Some(serde_json::json!({ "iiop": true, "interval": format_time(interval) }))
            }
            HealthCheckKind::Http => {
                Some(serde_json::json!({ "http": "/healthz", "interval": format_time(interval) }))
            }
            HealthCheckKind::Tcp => {
                Some(serde_json::json!({ "tcp": true, "interval": format_time(interval) }))
            }
            HealthCheckKind::Off => None,
        },
    );
    set_group_key("max_idle_connections", settings.max_idle_connections.map(Into::into));
    set_group_key(
        "pool_idle_timeout",
        settings.pool_idle_timeout.map(|duration| format_time(duration).into()),
    );
    set_group_key("max_connections", settings.max_connections.map(Into::into));
    set_group_key("queue", settings.queue.map(Into::into));
    set_group_key("queue_timeout", settings.queue_timeout.map(|duration| format_time(duration).into()));
    set_group_key("retry", settings.retries.map(|count| serde_json::json!({ "attempts": count })));
    set_group_key("outlier", settings.ejection.map(Into::into));
    set_group_key("slow_start", settings.slow_start.map(|duration| format_time(duration).into()));
    set_group_key(
        "timeouts",
        settings.per_try.map(|duration| serde_json::json!({ "per_try": format_time(duration) })),
    );
    if let Some(poll_interval) = wiring.poll_interval {
        group["monitor"] = serde_json::json!({
            "source": "pull",
            "path": "/_plimsoll/count",
            "metric": "in_flight",
            "interval": format_time(DurationValue(poll_interval)),
        });
    }
    if let Some(scaler_setup) = &wiring.scaler {
        group["scaler"] = scaler_table(scaler_setup);
        group["monitor"] = serde_json::json!({
            "source": "pull",
            "path": "/_plimsoll/load",
            "metric": "cpu",
            "interval": format_time(scaler_setup.scaler.settings.interval),
        });
        if let Some(group) = group.as_object_mut() {
            group.remove("members");
        }
    }
    if is_iiop {
        group["iiop"] = serde_json::json!({ "type_id": TYPE_ID });
    }
    let address = wiring.listen.unwrap_or_else(|| SocketAddr::new(host, 0));
    let mut listener =
        serde_json::json!({ "address": address, "protocol": wiring.protocol.name(), "group": GROUP });
    for (section, custom_settings) in
        [(&mut listener, &settings.plimsoll.listener), (&mut group, &settings.plimsoll.group)]
    {
        for (key, value) in custom_settings {
            let value = serde_json::to_value(value)
                .map_err(|error| LabError::failed(format!("cannot write the configuration: {error}")))?;
            section[key.as_str()] = value;
        }
    }
    if let Some(binding) = balancer.binding {
        listener["binding"] = binding.name().into();
    }
    let (mut listeners, mut groups) = (vec![listener], vec![group]);
    if let Some(shared_servers) = &wiring.shared_servers {
        (listeners, groups) = group_tables(&listeners[0], &groups[0], shared_servers);
    }
    let mut file = serde_json::json!({
        "admin": { "listen": "127.0.0.1:0", "control": "off" },
        "listener": listeners,
        "group": groups,
    });
    if let Some(report_address) = wiring.report_address {
        file["admin"]["reports"] = report_address.to_string().into();
    }
    if let Some(peer) = &wiring.fleet_peer {
        file["fleet"] = peer.config_table();
    }
    if let Some(threads) = settings.threads {
        file["threads"] = threads.into();
    }
    toml::to_string(&file)
        .map_err(|error| LabError::failed(format!("cannot write the configuration: {error}")))
}

/// Returns several groups for one, each with a listener and its own members at the same servers.
fn group_tables(listener: &Value, group: &Value, shared_servers: &SharedServers) -> (Vec<Value>, Vec<Value>) {
    let group_table = |number: usize| {
        let (mut listener, mut group) = (listener.clone(), group.clone());
        if number > 0 {
            let name = format!("{GROUP}{}", number + 1);
            (listener["group"], group["name"]) = (name.as_str().into(), name.as_str().into());
        }
        group["members"] = shared_servers.members(number).into();
        (listener, group)
    };
    (0..shared_servers.group_count()).map(group_table).unzip()
}

/// Returns the `scaler` table of the group.
fn scaler_table(setup: &ScalerSetup) -> Value {
    let format_time = |DurationValue(time): DurationValue| format!("{}us", time.as_micros());
    let settings = &setup.scaler.settings;
    let target = match setup.scaler.policy {
        ScalingPolicy::Utilization => serde_json::json!({ "utilization": 1.0 - settings.headroom }),
        _ => serde_json::json!({ "headroom": settings.headroom }),
    };
    let mut table = serde_json::json!({
        "min": settings.min,
        "max": settings.max,
        "target": target,
        "interval": format_time(settings.interval),
        "start_time": format_time(settings.start),
        "stabilize": format_time(settings.stabilize),
        "cool_down": { "scale_out": "0s", "scale_in": format_time(settings.cool_down) },
        "step": { "scale_out": settings.step.scale_out, "scale_in": settings.step.scale_in },
        "process": { "command": setup.command, "log": "m{index}.log" },
    });
    if let Some(count) = setup.count {
        // An external scaler decides the number, which plimsoll applies at once.
        table["min"] = count.into();
        table["max"] = count.into();
        table["stabilize"] = "0s".into();
        table["cool_down"]["scale_in"] = "0s".into();
        table["step"] = serde_json::json!({ "scale_out": settings.max, "scale_in": settings.max });
    }
    table
}

/// Returns the numbers of autoscaled members in the first group of a status.
pub(super) fn scaled_members(status: &str) -> Option<ScaledMembers> {
    let status: Value = serde_json::from_str(status).ok()?;
    let group = &status["groups"][0];
    let existing = group["scaler"]["started"].as_array()?.len();
    let serving = group["members"].as_array()?.iter().filter(|member| member["state"] == "up").count();
    Some(ScaledMembers { existing: existing as u32, serving: serving as u32 })
}

/// Returns those that serve.
pub(super) fn serving_members(status: &str) -> Vec<SocketAddr> {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    let members = status["groups"][0]["members"].as_array().cloned().unwrap_or_default();
    let serving = members.iter().filter(|member| member["state"] == "up");
    serving.filter_map(|member| member["name"].as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_and_bound_as_the_level_says() {
        let balancer = "plimsoll:adaptive@on_demand+agents".parse().unwrap();
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let wiring = ProxyWiring {
            protocol: LoadProtocol::Iiop,
            listen: Some(loopback(4000)),
            report_address: Some(loopback(4001)),
            ..ProxyWiring::default()
        };
        let text =
            config(&balancer, &BalancerSettings::default(), &wiring, loopback(0).ip(), &[loopback(5001)])
                .unwrap();
        for expected in [
            "protocol = \"iiop\"",
            "binding = \"on_demand\"",
            "address = \"127.0.0.1:4000\"",
            "reports = \"127.0.0.1:4001\"",
            "key = \"Latency\"",
            "iiop = true",
            "type_id = \"IDL:Test/Latency:1.0\"",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let wiring = ProxyWiring { object_key: Some("Receive"), ..wiring };
        let text =
            config(&balancer, &BalancerSettings::default(), &wiring, loopback(0).ip(), &[loopback(5001)])
                .unwrap();
        assert!(text.contains("key = \"Receive\"") && !text.contains("monitor"), "{text}");
        let poll_interval = Some(std::time::Duration::from_secs(3));
        let wiring = ProxyWiring { protocol: LoadProtocol::Http, poll_interval, ..ProxyWiring::default() };
        let text =
            config(&balancer, &BalancerSettings::default(), &wiring, loopback(0).ip(), &[loopback(5001)])
                .unwrap();
        assert!(text.contains("source = \"pull\"") && text.contains("interval = \"3000000us\""), "{text}");
    }
}
