//! The file of HAProxy.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::HEALTH_INTERVAL;
use crate::lab::experiment::{BalancerSettings, BalancerSpec, HealthCheckKind};

/// Returns the file with the equivalents of the settings.
pub(super) fn config(
    balancer: &BalancerSpec,
    settings: &BalancerSettings,
    address: SocketAddr,
    members: &[SocketAddr],
) -> String {
    let algorithm = balancer.algorithm();
    let retries = settings.retries.unwrap_or(3);
    let thread_lines = settings.threads.map_or_else(String::new, |count| format!("  nbthread {count}\n"));
    let queue_timeout = settings.queue_timeout.map_or(5000, |duration| duration.0.as_millis());
    let server_timeout = settings.per_try.map_or(60_000, |duration| duration.0.as_millis().max(1));
    let mut text = format!(
        "global\n  maxconn 8000\n{thread_lines}defaults\n  mode http\n  timeout connect 900ms\n  timeout \
         client 60s\n  \
         timeout server {server_timeout}ms\n  timeout queue {queue_timeout}ms\n  option redispatch\n  option \
         abortonclose\n  retries {retries}\n  http-reuse always\n\
         frontend lab\n  bind {address}\n  default_backend lab\nbackend lab\n  balance {algorithm}\n  \
         retry-on conn-failure empty-response response-timeout\n"
    );
    if settings.health == HealthCheckKind::Http {
        text += "  option httpchk GET /healthz\n";
    }
    let interval = settings.health_interval.map_or(HEALTH_INTERVAL, |duration| duration.0).as_millis();
    for (index, member) in members.iter().enumerate() {
        let _ = write!(text, "  server m{} {member}", index + 1);
        if settings.health != HealthCheckKind::Off {
            let _ = write!(text, " check inter {interval}ms");
            if settings.ejection == Some(true) {
                // A member that is marked down returns by its checks: this number of them takes ten seconds.
                let rise = 10_000u128.div_ceil(interval.max(1));
                let _ = write!(text, " rise {rise} observe layer7 error-limit 5 on-error mark-down");
            }
        }
        if let Some(max_connections) = settings.max_connections {
            let _ = write!(text, " maxconn {max_connections}");
            let queue_share =
                settings.queue.map(|queue| (queue as usize).div_ceil(members.len().max(1)).max(1));
            let _ = queue_share.map_or(Ok(()), |queue| write!(text, " maxqueue {queue}"));
        }
        if let Some(pool) = settings.max_idle_connections {
            let _ = write!(text, " pool-max-conn {pool}");
        }
        if let Some(slow_start) = settings.slow_start.filter(|duration| !duration.0.is_zero()) {
            let _ = write!(text, " slowstart {}ms", slow_start.0.as_millis());
        }
        text.push('\n');
    }
    text
}
