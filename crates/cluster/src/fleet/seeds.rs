//! Seeds that are names are looked up, again and again: who comes later may be found under one.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Between two looks, and for one.
const LOOK: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(5);

/// Addresses of one family that are tried, at most.
const MOST: usize = 64;

/// Looks for ever; `family` decides which addresses are of use.
pub(super) async fn look(seeds: Vec<(String, u16)>, own: SocketAddr, found: watch::Sender<Vec<SocketAddr>>) {
    let names = seeds.iter().any(|(host, _)| host.parse::<std::net::IpAddr>().is_err());
    loop {
        let mut all = Vec::new();
        for (host, port) in &seeds {
            // One that cannot be looked up now can be later; the others may do.
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
