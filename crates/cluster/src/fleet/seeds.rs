//! Resolves seeds that are names repeatedly, so that balancers that start later are found.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The interval of lookups, and the time limit of one.
const LOOK: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximum number of addresses of one family to try.
const MOST: usize = 64;

/// Resolves the seeds forever; the family of `own` selects the usable addresses.
pub(super) async fn look(seeds: Vec<(String, u16)>, own: SocketAddr, found: watch::Sender<Vec<SocketAddr>>) {
    let names = seeds.iter().any(|(host, _)| host.parse::<std::net::IpAddr>().is_err());
    loop {
        let mut all = Vec::new();
        for (host, port) in &seeds {
            // A failed lookup may succeed later; the other seeds may suffice.
            if let Ok(Ok(some)) = timeout(PATIENCE, lookup_host((host.as_str(), *port))).await {
                all.extend(some.filter(|address| address.is_ipv4() == own.is_ipv4() && *address != own));
            }
        }
        all.sort_unstable();
        all.dedup();
        all.truncate(MOST);
        if found.send(all).is_err() || !names {
            return;
        }
        sleep(LOOK).await;
    }
}
