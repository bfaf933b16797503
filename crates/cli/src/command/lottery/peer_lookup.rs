//! The peers of a daemon are looked up again and again: at its start a name may not be known yet, and it may
//! get another address later.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plimsoll_config::{self as config, LotteryFile, MemberAddress};

/// The time between two look-ups.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the addresses of the peers, once they differ from the known ones.
pub(super) async fn changed_addresses(file: &LotteryFile, current: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let peers = file.lottery.peers.clone();
    if peers.iter().all(|peer| peer.host.parse::<IpAddr>().is_ok()) {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOKUP_INTERVAL).await;
        let peers = peers.clone();
        let Ok(resolved) = tokio::task::spawn_blocking(move || look_up(&peers)).await else { continue };
        let addresses = merged(resolved, &current);
        let (before, after): (BTreeSet<_>, BTreeSet<_>) =
            (current.iter().copied().collect(), addresses.iter().copied().collect());
        if before == after {
            continue;
        }
        for peer in after.difference(&before) {
            tracing::info!("another peer: {peer}");
        }
        for peer in before.difference(&after) {
            tracing::info!("no peer any more: {peer}");
        }
        return addresses;
    }
}

fn look_up(peers: &[MemberAddress]) -> Vec<Option<SocketAddr>> {
    peers.iter().map(|peer| config::look_up(peer).ok()).collect()
}

/// Merges the found addresses with the known ones. An unknown name may be known again later: as long as there
/// is one, no peer is given up.
fn merged(resolved: Vec<Option<SocketAddr>>, current: &[SocketAddr]) -> Vec<SocketAddr> {
    let all_resolved = resolved.iter().all(Option::is_some);
    let mut addresses: Vec<SocketAddr> = resolved.into_iter().flatten().collect();
    if !all_resolved {
        addresses.extend(current);
    }
    let mut seen = BTreeSet::new();
    addresses.retain(|peer| seen.insert(*peer));
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_given_up_while_a_name_is_not_known() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(merged(vec![Some(address(1)), Some(address(2))], &[address(1)]), [address(1), address(2)]);
        assert_eq!(
            merged(vec![Some(address(1)), Some(address(3))], &[address(1), address(2)]),
            [address(1), address(3)]
        );
        assert_eq!(
            merged(vec![Some(address(3)), None], &[address(1), address(2)]),
            [address(3), address(1), address(2)]
        );
    }
}
