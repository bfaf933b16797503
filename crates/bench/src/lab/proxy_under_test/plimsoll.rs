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
const TYPE: &str = "IDL:Test/Latency:1.0";

/// Returns the file.
pub(super) fn config(
    balancer: &BalancerSpec,
    settings: &BalancerSettings,
    wiring: &ProxyWiring,
    host: IpAddr,
    members: &[SocketAddr],
) -> Result<String, LabError> {
    let time = |span: DurationValue| format!("{}us", span.0.as_micros());
    let iiop = wiring.protocol == LoadProtocol::Iiop;
    let members: Vec<Value> = members
        .iter()
        .map(|address| match iiop {
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
                (name, knobs) if knobs.is_empty() => serde_json::json!(name),
                (name, knobs) => serde_json::json!({ name: knobs }),
            },
            "members": members,
        }),
    };
    let mut set = |key: &str, value: Option<Value>| {
        if let (Some(value), Some(group)) = (value, group.as_object_mut()) {
            group.insert(key.to_owned(), value);
        }
    };
    set(
        "health",
        match settings.health {
            HealthCheckKind::Http if iiop => {
                Some(serde_json::json!({ "iiop": true, "interval": time(interval) }))
            }
            HealthCheckKind::Http => {
                Some(serde_json::json!({ "http": "/healthz", "interval": time(interval) }))
            }
            HealthCheckKind::Tcp => Some(serde_json::json!({ "tcp": true, "interval": time(interval) })),
            HealthCheckKind::Off => None,
        },
    );
    set("max_idle_connections", settings.max_idle_connections.map(Into::into));
    set("pool_idle_timeout", settings.pool_idle_timeout.map(|span| time(span).into()));
    set("max_connections", settings.max_connections.map(Into::into));
    set("queue", settings.queue.map(Into::into));
    set("queue_timeout", settings.queue_timeout.map(|span| time(span).into()));
    set("retry", settings.retries.map(|count| serde_json::json!({ "attempts": count })));
    set("outlier", settings.ejection.map(Into::into));
    set("slow_start", settings.slow_start.map(|span| time(span).into()));
    set("timeouts", settings.per_try.map(|span| serde_json::json!({ "per_try": time(span) })));
    if let Some(each) = wiring.poll_interval {
        group["monitor"] = serde_json::json!({
            "source": "pull",
            "path": "/_plimsoll/count",
            "metric": "in_flight",
            "interval": time(DurationValue(each)),
        });
    }
    if let Some(hire) = &wiring.scaler {
        group["scaler"] = scaler(hire);
        group["monitor"] = serde_json::json!({
            "source": "pull",
            "path": "/_plimsoll/load",
            "metric": "cpu",
            "interval": time(hire.scaler.settings.interval),
        });
        if let Some(group) = group.as_object_mut() {
            group.remove("members");
        }
    }
    if iiop {
        group["iiop"] = serde_json::json!({ "type_id": TYPE });
    }
    let address = wiring.listen.unwrap_or_else(|| SocketAddr::new(host, 0));
    let mut listener =
        serde_json::json!({ "address": address, "protocol": wiring.protocol.name(), "group": GROUP });
    for (section, own) in
        [(&mut listener, &settings.plimsoll.listener), (&mut group, &settings.plimsoll.group)]
    {
        for (key, value) in own {
            let value = serde_json::to_value(value)
                .map_err(|error| LabError::failed(format!("cannot write the configuration: {error}")))?;
            section[key.as_str()] = value;
        }
    }
    if let Some(binding) = balancer.binding {
        listener["binding"] = binding.name().into();
    }
    let (mut listeners, mut groups) = (vec![listener], vec![group]);
    if let Some(doors) = &wiring.shared_servers {
        (listeners, groups) = group_tables(&listeners[0], &groups[0], doors);
    }
    let mut file = serde_json::json!({
        "admin": { "listen": "127.0.0.1:0", "control": "off" },
        "listener": listeners,
        "group": groups,
    });
    if let Some(reports) = wiring.report_address {
        file["admin"]["reports"] = reports.to_string().into();
    }
    if let Some(fellow) = &wiring.fleet_peer {
        file["fleet"] = fellow.config_table();
    }
    if let Some(threads) = settings.threads {
        file["threads"] = threads.into();
    }
    toml::to_string(&file)
        .map_err(|error| LabError::failed(format!("cannot write the configuration: {error}")))
}

/// Returns several groups for one, each with a listener and its own members at the same servers.
fn group_tables(listener: &Value, group: &Value, doors: &SharedServers) -> (Vec<Value>, Vec<Value>) {
    let each = |number: usize| {
        let (mut listener, mut group) = (listener.clone(), group.clone());
        if number > 0 {
            let name = format!("{GROUP}{}", number + 1);
            (listener["group"], group["name"]) = (name.as_str().into(), name.as_str().into());
        }
        group["members"] = doors.members(number).into();
        (listener, group)
    };
    (0..doors.group_count()).map(each).unzip()
}

/// Returns the `scaler` table of the group.
fn scaler(hire: &ScalerSetup) -> Value {
    let time = |DurationValue(time): DurationValue| format!("{}us", time.as_micros());
    let rules = &hire.scaler.settings;
    let target = match hire.scaler.policy {
        ScalingPolicy::Utilization => serde_json::json!({ "utilization": 1.0 - rules.headroom }),
        _ => serde_json::json!({ "headroom": rules.headroom }),
    };
    let mut table = serde_json::json!({
        "min": rules.min,
        "max": rules.max,
        "target": target,
        "interval": time(rules.interval),
        "start_time": time(rules.start),
        "stabilize": time(rules.stabilize),
        "cool_down": { "scale_out": "0s", "scale_in": time(rules.cool_down) },
        "step": { "scale_out": rules.step.scale_out, "scale_in": rules.step.scale_in },
        "process": { "command": hire.command, "log": "m{index}.log" },
    });
    if let Some(count) = hire.count {
        // An external scaler decides the number, which plimsoll applies at once.
        table["min"] = count.into();
        table["max"] = count.into();
        table["stabilize"] = "0s".into();
        table["cool_down"]["scale_in"] = "0s".into();
        table["step"] = serde_json::json!({ "scale_out": rules.max, "scale_in": rules.max });
    }
    table
}

/// Returns the numbers of autoscaled members in the first group of a status.
pub(super) fn scaled_members(status: &str) -> Option<ScaledMembers> {
    let status: Value = serde_json::from_str(status).ok()?;
    let group = &status["groups"][0];
    let there = group["scaler"]["started"].as_array()?.len();
    let serving = group["members"].as_array()?.iter().filter(|member| member["state"] == "up").count();
    Some(ScaledMembers { existing: there as u32, serving: serving as u32 })
}

/// Returns those that serve.
pub(super) fn serving_members(status: &str) -> Vec<SocketAddr> {
    let status: Value = serde_json::from_str(status).unwrap_or_default();
    let members = status["groups"][0]["members"].as_array().cloned().unwrap_or_default();
    let up = members.iter().filter(|member| member["state"] == "up");
    up.filter_map(|member| member["name"].as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_and_bound_as_the_level_says() {
        let balancer = "plimsoll:adaptive@on_demand+agents".parse().unwrap();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let wiring = ProxyWiring {
            protocol: LoadProtocol::Iiop,
            listen: Some(at(4000)),
            report_address: Some(at(4001)),
            ..ProxyWiring::default()
        };
        let text = config(&balancer, &BalancerSettings::default(), &wiring, at(0).ip(), &[at(5001)]).unwrap();
        for part in [
            "protocol = \"iiop\"",
            "binding = \"on_demand\"",
            "address = \"127.0.0.1:4000\"",
            "reports = \"127.0.0.1:4001\"",
            "key = \"Latency\"",
            "iiop = true",
            "type_id = \"IDL:Test/Latency:1.0\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let wiring = ProxyWiring { object_key: Some("Receive"), ..wiring };
        let text = config(&balancer, &BalancerSettings::default(), &wiring, at(0).ip(), &[at(5001)]).unwrap();
        assert!(text.contains("key = \"Receive\"") && !text.contains("monitor"), "{text}");
        let asks = Some(std::time::Duration::from_secs(3));
        let wiring =
            ProxyWiring { protocol: LoadProtocol::Http, poll_interval: asks, ..ProxyWiring::default() };
        let text = config(&balancer, &BalancerSettings::default(), &wiring, at(0).ip(), &[at(5001)]).unwrap();
        assert!(text.contains("source = \"pull\"") && text.contains("interval = \"3000000us\""), "{text}");
    }
}
