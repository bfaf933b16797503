//! Resolves seeds that are names repeatedly, so that balancers that start later are found.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The interval of lookups, and the time limit of one.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(15);
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of addresses of one family to try.
const MAX_ADDRESSES: usize = 64;

/// Resolves the seeds forever; the family of `own` selects the usable addresses.
pub(super) async fn resolve_seeds(
    seeds: Vec<(String, u16)>,
    own: SocketAddr,
    found: watch::Sender<Vec<SocketAddr>>,
) {
    let names = seeds.iter().any(|(host, _)| host.parse::<std::net::IpAddr>().is_err());
    loop {
        let mut all = Vec::new();
        for (host, port) in &seeds {
            // A failed lookup may succeed later; the other seeds may suffice.
            if let Ok(Ok(some)) = timeout(LOOKUP_TIMEOUT, lookup_host((host.as_str(), *port))).await {
                all.extend(some.filter(|address| address.is_ipv4() == own.is_ipv4() && *address != own));
            }
        }
        all.sort_unstable();
        all.dedup();
        all.truncate(MAX_ADDRESSES);
        if found.send(all).is_err() || !names {
            return;
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}
