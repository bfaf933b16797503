//! The file of nginx.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::lab::experiment::{BalancerSettings, BalancerSpec};

/// Returns the file with the equivalents of the settings. (nginx has no active checks, queue or slow start.)
/// It runs as one process, because the children of a master would survive when the master is killed.
pub(super) fn config(
    balancer: &BalancerSpec,
    settings: &BalancerSettings,
    address: SocketAddr,
    members: &[SocketAddr],
) -> String {
    let method = match balancer.algorithm() {
        "" => String::new(),
        method => format!("{method};"),
    };
    let connection_limit = settings
        .max_connections
        .map_or_else(String::new, |max_connections| format!(" max_conns={max_connections}"));
    let failure_limit = match settings.ejection {
        None => "",
        Some(true) => " max_fails=5 fail_timeout=10s",
        Some(false) => " max_fails=0",
    };
    let retry_directive = match settings.retries {
        None => String::new(),
        Some(0) => "proxy_next_upstream off; ".to_owned(),
        Some(count) => format!("proxy_next_upstream_tries {}; ", count + 1),
    };
    let mut servers = String::new();
    for member in members {
        let _ = write!(servers, "server {member}{connection_limit}{failure_limit}; ");
    }
    // As root nginx would give up its privileges and then could not access the folder.
    let user_directive = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let max_idle_connections = settings.max_idle_connections.unwrap_or(128);
    let read_timeout = settings.per_try.map_or(60_000, |duration| duration.0.as_millis().max(1));
    let idle_seconds = settings.pool_idle_timeout.map_or(60, |duration| duration.0.as_secs().max(1));
    format!(
        "{user_directive}\ndaemon off; master_process off; pid nginx.pid; error_log stderr;\n\
         events {{ worker_connections 8192; }}\nhttp {{\n  access_log off;\n  client_body_temp_path .;\n  \
         proxy_temp_path .;\n  fastcgi_temp_path .; uwsgi_temp_path .; scgi_temp_path .;\n  \
         upstream lab {{ zone lab 64k; {method} {servers}keepalive {max_idle_connections}; \
         keepalive_timeout {idle_seconds}s; }}\n  \
         server {{ listen {address} backlog=4096;\n    location / {{ proxy_read_timeout {read_timeout}ms; \
         {retry_directive}proxy_pass http://lab; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; }}\n  }}\n}}\n"
    )
}
