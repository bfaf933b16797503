//! Envoy: its program, its file, and its readiness to use every member.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::{HEALTH_INTERVAL, find_program, http_request};
use crate::lab::LabError;
use crate::lab::child_process::ProcessLauncher;
use crate::lab::experiment::{BalancerSettings, BalancerSpec, DurationValue, HealthCheckKind};

/// Returns the path: that of `scripts/install-bench-peers` (beside the folder of this program's build), or
/// from PATH.
pub(super) fn program(launcher: &ProcessLauncher) -> Result<PathBuf, LabError> {
    let build_folder = launcher.program.parent().and_then(std::path::Path::parent);
    let installed = build_folder.map(|folder| folder.join("peers/bin/envoy")).filter(|path| path.is_file());
    installed.or_else(|| find_program("envoy").ok()).ok_or_else(|| {
        let message = "envoy is not installed; scripts/install-bench-peers envoy gets it, or leave it out \
            of the levels";
        LabError::failed(message)
    })
}

/// Returns `true` if Envoy may use `members` members.
pub(super) fn is_ready(admin: SocketAddr, members: usize) -> bool {
    let expected_line = format!("cluster.lab.membership_healthy: {members}");
    let stats = http_request(admin, "GET", "/stats?filter=cluster.lab.membership_healthy");
    stats.is_ok_and(|text| text.lines().any(|line| line.trim() == expected_line))
}

/// Returns Envoy's file with the equivalents of the settings.
pub(super) fn config(
    balancer: &BalancerSpec,
    settings: &BalancerSettings,
    address: SocketAddr,
    admin: SocketAddr,
    members: &[SocketAddr],
) -> String {
    let extension_prefix = "type.googleapis.com/envoy.extensions";
    let mut route = json!({ "cluster": "lab", "timeout": "0s" });
    if let Some(retries) = settings.retries.filter(|retries| *retries > 0) {
        route["retry_policy"] = json!({
            "retry_on": "connect-failure,refused-stream,reset",
            "num_retries": retries,
            "retry_host_predicate": [{
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": format!(
                        "{extension_prefix}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    ),
                },
            }],
            "host_selection_retry_max_attempts": 5,
        });
    }
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": format!("{extension_prefix}.filters.http.router.v3.Router"),
            "suppress_envoy_headers": true,
        },
    });
    let connection_manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": format!(
                "{extension_prefix}.filters.network.http_connection_manager.v3.HttpConnectionManager"
            ),
            "stat_prefix": "lab",
            "codec_type": "HTTP1",
            "generate_request_id": false,
            "route_config": {
                "virtual_hosts": [{
                    "name": "lab",
                    "domains": ["*"],
                    "routes": [{ "match": { "prefix": "/" }, "route": route }],
                }],
            },
            "http_filters": [router],
        },
    });
    let file = json!({
        "admin": { "address": socket_address(admin) },
        "static_resources": {
            "listeners": [{
                "name": "lab",
                "address": socket_address(address),
                "filter_chains": [{ "filters": [connection_manager] }],
            }],
            "clusters": [cluster(balancer, settings, members)],
        },
    });
    format!("{file:#}\n")
}

fn cluster(balancer: &BalancerSpec, settings: &BalancerSettings, members: &[SocketAddr]) -> Value {
    let endpoints: Vec<Value> =
        members.iter().map(|member| json!({ "endpoint": { "address": socket_address(*member) } })).collect();
    // By default Envoy bounds a group as a whole, so low that a load test reaches the bound.
    let mut limits = json!({
        "thresholds": [{
            "max_connections": 100_000,
            "max_pending_requests": settings.queue.unwrap_or(100_000),
            "max_requests": 100_000,
            "max_retries": 100_000,
        }],
    });
    if let Some(max_connections) = settings.max_connections {
        limits["per_host_thresholds"] = json!([{ "max_connections": max_connections }]);
    }
    let mut cluster = json!({
        "name": "lab",
        "type": "STATIC",
        "connect_timeout": "0.9s",
        "lb_policy": balancer.algorithm(),
        "circuit_breakers": limits,
        "load_assignment": { "cluster_name": "lab", "endpoints": [{ "lb_endpoints": endpoints }] },
    });
    if let Some(slow_start) = settings.slow_start.filter(|duration| !duration.0.is_zero()) {
        let policy = match balancer.algorithm() {
            "ROUND_ROBIN" => Some("round_robin_lb_config"),
            "LEAST_REQUEST" => Some("least_request_lb_config"),
            _ => None,
        };
        if let Some(policy) = policy {
            cluster[policy] = json!({ "slow_start_config": { "slow_start_window": seconds(slow_start.0) } });
        }
    }
    let check = match settings.health {
        HealthCheckKind::Http => Some(("http_health_check", json!({ "path": "/healthz" }))),
        HealthCheckKind::Tcp => Some(("tcp_health_check", json!({}))),
        HealthCheckKind::Off => None,
    };
    if let Some((kind, check)) = check {
        let interval = seconds(settings.health_interval.map_or(HEALTH_INTERVAL, |duration| duration.0));
        cluster["health_checks"] = json!([{
            "timeout": "1s",
            "interval": interval,
            "no_traffic_interval": interval,
            "unhealthy_threshold": 3,
            "healthy_threshold": 2,
            kind: check,
        }]);
    }
    if settings.ejection == Some(true) {
        cluster["outlier_detection"] = json!({
            "consecutive_5xx": 5,
            "base_ejection_time": "10s",
            "max_ejection_percent": 50,
            // Only failures in a row eject a member: success rates would be compared across the group.
            "enforcing_success_rate": 0,
            // An accepted connection does not show that the member does its work.
            "successful_active_health_check_uneject_host": false,
            "interval": "1s",
        });
    }
    if let Some(DurationValue(idle_timeout)) = settings.pool_idle_timeout {
        let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        cluster["typed_extension_protocol_options"] = json!({
            options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": { "http_protocol_options": {} },
                "common_http_protocol_options": { "idle_timeout": seconds(idle_timeout) },
            },
        });
    }
    cluster
}

fn socket_address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip(), "port_value": address.port() } })
}

/// Formats a duration as in Envoy's files.
fn seconds(time: Duration) -> String {
    format!("{:.6}s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_written_as_envoy_has_them() {
        let settings = BalancerSettings {
            max_connections: Some(7),
            slow_start: Some(DurationValue(Duration::from_millis(1500))),
            retries: Some(2),
            ejection: Some(true),
            health: HealthCheckKind::Tcp,
            pool_idle_timeout: Some(DurationValue(Duration::from_secs(30))),
            ..BalancerSettings::default()
        };
        let balancer: BalancerSpec = "envoy:LEAST_REQUEST".parse().unwrap();
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text =
            config(&balancer, &settings, loopback(4000), loopback(4001), &[loopback(5001), loopback(5002)]);
        let file: Value = serde_json::from_str(&text).unwrap();
        let cluster = &file["static_resources"]["clusters"][0];
        assert_eq!(cluster["lb_policy"], "LEAST_REQUEST");
        assert_eq!(cluster["least_request_lb_config"]["slow_start_config"]["slow_start_window"], "1.500000s");
        assert_eq!(cluster["circuit_breakers"]["per_host_thresholds"][0]["max_connections"], 7);
        assert_eq!(cluster["outlier_detection"]["consecutive_5xx"], 5);
        assert_eq!(cluster["health_checks"][0]["interval"], "1.000000s");
        for expected in
            ["\"port_value\": 5002", "\"num_retries\": 2", "tcp_health_check", "\"idle_timeout\": \"30.0"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let default_config = config(
            &balancer,
            &BalancerSettings::default(),
            loopback(4000),
            loopback(4001),
            &[loopback(5001)],
        );
        assert!(
            !default_config.contains("retry_policy")
                && !default_config.contains("outlier")
                && default_config.contains("/healthz")
        );
    }
}
