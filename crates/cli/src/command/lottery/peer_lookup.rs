//! The peers of a daemon are looked up again and again: at its start a name may not be known yet, and it may
//! get another address later.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plimsoll_config::{self as config, LotteryFile, MemberAddress};

/// The time between two look-ups.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the addresses of the peers, once they differ from the known ones.
pub(super) async fn changed_addresses(file: &LotteryFile, known: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let peers = file.lottery.peers.clone();
    if peers.iter().all(|peer| peer.host.parse::<IpAddr>().is_ok()) {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOKUP_INTERVAL).await;
        let peers = peers.clone();
        let Ok(found) = tokio::task::spawn_blocking(move || look_up(&peers)).await else { continue };
        let now = merged(found, &known);
        let (before, after): (BTreeSet<_>, BTreeSet<_>) =
            (known.iter().copied().collect(), now.iter().copied().collect());
        if before == after {
            continue;
        }
        for peer in after.difference(&before) {
            tracing::info!("another peer: {peer}");
        }
        for peer in before.difference(&after) {
            tracing::info!("no peer any more: {peer}");
        }
        return now;
    }
}

fn look_up(peers: &[MemberAddress]) -> Vec<Option<SocketAddr>> {
    peers.iter().map(|peer| config::look_up(peer).ok()).collect()
}

/// Merges the found addresses with the known ones. An unknown name may be known again later: as long as there
/// is one, no peer is given up.
fn merged(found: Vec<Option<SocketAddr>>, known: &[SocketAddr]) -> Vec<SocketAddr> {
    let whole = found.iter().all(Option::is_some);
    let mut now: Vec<SocketAddr> = found.into_iter().flatten().collect();
    if !whole {
        now.extend(known);
    }
    let mut seen = BTreeSet::new();
    now.retain(|peer| seen.insert(*peer));
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_given_up_while_a_name_is_not_known() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(merged(vec![Some(at(1)), Some(at(2))], &[at(1)]), [at(1), at(2)]);
        assert_eq!(merged(vec![Some(at(1)), Some(at(3))], &[at(1), at(2)]), [at(1), at(3)]);
        assert_eq!(merged(vec![Some(at(3)), None], &[at(1), at(2)]), [at(3), at(1), at(2)]);
    }
}
