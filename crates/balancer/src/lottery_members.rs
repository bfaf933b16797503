//! Groups whose members come from a lottery: each follows the lottery's daemons, and puts their answers in
//! force.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::MemberSpec;
use plimsoll_client::{KeySource, ReloadableKeys};
use plimsoll_cluster::lottery::{self, LotteryCandidate, SubscriberSettings};
use plimsoll_config::LotteryGroup;
use plimsoll_wire::rfs::KeyRing;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use crate::runtime::BalancerRuntime;

/// Follows for all groups that are in force, for ever.
pub(super) async fn follow_all(balancer: Arc<BalancerRuntime>) {
    loop {
        let mut groups = JoinSet::new();
        for lottery in balancer.lotteries() {
            groups.spawn(follow_group(Arc::clone(&balancer), lottery));
        }
        balancer.reloaded().await;
        // Their members stay until others are known.
        groups.shutdown().await;
    }
}

async fn follow_group(balancer: Arc<BalancerRuntime>, lottery: LotteryGroup) {
    let LotteryGroup { group, limit, service, daemons, keys: (keys, file) } = lottery;
    let (key_sender, keys) = watch::channel(keys);
    let subscriber_settings = SubscriberSettings { service, daemons, keys };
    let (candidate_sender, mut candidate_updates) = watch::channel(None);
    let name = Arc::clone(&group);
    let subscription = async {
        if let Err(error) = lottery::subscribe(&name, subscriber_settings, &candidate_sender).await {
            tracing::error!("group {name} cannot follow the lottery: {error}");
        }
    };
    let apply_updates = async {
        while candidate_updates.changed().await.is_ok() {
            let Some(candidates) = candidate_updates.borrow_and_update().clone() else { continue };
            let (balancer, group) = (Arc::clone(&balancer), Arc::clone(&group));
            // The task waits for a lock, as a reload does.
            let result = spawn_blocking(move || {
                let (members, weights) = member_specs(&candidates, limit);
                if let Err(error) = balancer.set_lottery_members(&group, &members, &weights) {
                    tracing::error!("group {group}: the lottery's members cannot be applied: {error}");
                }
            });
            // A panic has been reported.
            let _ = result.await;
        }
    };
    tokio::join!(subscription, apply_updates, watch_key_file(&group, file, key_sender));
}

/// Watches a file of keys for ever: after a change daemons are asked with its new keys.
async fn watch_key_file(group: &str, file: PathBuf, keys: watch::Sender<KeyRing>) {
    let mut tick = interval(KEY_FILE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ring = None;
    loop {
        tick.tick().await;
        let (path, previous) = (file.clone(), ring.take());
        // The file may be on a network.
        let reload = spawn_blocking(move || match previous {
            Some(mut ring) => {
                let has_changed = ReloadableKeys::reload_if_changed(&mut ring, Instant::now());
                Some((ring, has_changed))
            }
            // The file was read before this began, and may have changed since.
            None => ReloadableKeys::open(KeySource::File(path), Instant::now()).ok().map(|ring| (ring, true)),
        });
        let Ok(Some((reloaded, changed))) = reload.await else { continue };
        let ids = |keys: &KeyRing| keys.ids().collect::<Vec<_>>();
        if changed && ids(reloaded.keys()) != ids(&keys.borrow()) {
            tracing::info!(
                "group {group}: the keys of the lottery were read again: {:?}",
                ids(reloaded.keys())
            );
        }
        if changed {
            keys.send_replace(reloaded.keys().clone());
        }
        ring = Some(reloaded);
    }
}

/// The time between two looks at a file of keys.
const KEY_FILE_INTERVAL: Duration = Duration::from_secs(1);

type MemberWeights = Vec<(Arc<str>, Option<f64>)>;

/// Returns one member for each server's address: one server may have two numbers.
fn member_specs(candidates: &[LotteryCandidate], limit: u32) -> (Vec<MemberSpec>, MemberWeights) {
    let mut endpoints = BTreeMap::new();
    for candidate in candidates {
        let (capacity, weight) = endpoints.entry(candidate.endpoint).or_insert((0.0, 0.0));
        *capacity += f64::from(candidate.capacity.max(1));
        *weight += candidate.weight;
    }
    let name = |endpoint: &std::net::SocketAddr| Arc::<str>::from(endpoint.to_string());
    let member = |(endpoint, (capacity, _)): (&std::net::SocketAddr, &(f64, f64))| MemberSpec {
        name: name(endpoint),
        address: *endpoint,
        capacity: *capacity,
        limit,
        leaving: false,
        checked: false,
    };
    let weights = endpoints.iter().map(|(endpoint, (_, weight))| (name(endpoint), Some(*weight))).collect();
    (endpoints.iter().map(member).collect(), weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_where_they_serve() {
        let candidate = |member, port, capacity, weight| LotteryCandidate {
            member,
            endpoint: ([127, 0, 0, 1], port).into(),
            capacity,
            weight,
        };
        let (members, weights) =
            member_specs(&[candidate(1, 82, 4, 2.0), candidate(2, 81, 2, 8.0), candidate(3, 82, 1, 0.5)], 9);
        let facts: Vec<_> =
            members.iter().map(|member| (&*member.name, member.capacity, member.limit)).collect();
        assert_eq!(facts, [("127.0.0.1:81", 2.0, 9), ("127.0.0.1:82", 5.0, 9)]);
        let weights: Vec<_> = weights.iter().map(|(name, weight)| (&**name, *weight)).collect();
        assert_eq!(weights, [("127.0.0.1:81", Some(8.0)), ("127.0.0.1:82", Some(2.5))]);
    }
}
