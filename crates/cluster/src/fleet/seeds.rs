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
    own_address: SocketAddr,
    address_sender: watch::Sender<Vec<SocketAddr>>,
) {
    let has_names = seeds.iter().any(|(host, _)| host.parse::<std::net::IpAddr>().is_err());
    loop {
        let mut addresses = Vec::new();
        for (host, port) in &seeds {
            // A failed lookup may succeed later; the other seeds may suffice.
            if let Ok(Ok(resolved)) = timeout(LOOKUP_TIMEOUT, lookup_host((host.as_str(), *port))).await {
                addresses.extend(
                    resolved.filter(|address| {
                        address.is_ipv4() == own_address.is_ipv4() && *address != own_address
                    }),
                );
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MAX_ADDRESSES);
        if address_sender.send(addresses).is_err() || !has_names {
            return;
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}
