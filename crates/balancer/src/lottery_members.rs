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
pub(super) async fn follow_all(running: Arc<BalancerRuntime>) {
    loop {
        let mut groups = JoinSet::new();
        for lottery in running.lotteries() {
            groups.spawn(follow_group(Arc::clone(&running), lottery));
        }
        running.reloaded().await;
        // Their members stay until others are known.
        groups.shutdown().await;
    }
}

async fn follow_group(running: Arc<BalancerRuntime>, lottery: LotteryGroup) {
    let LotteryGroup { group, limit, service, daemons, keys: (keys, file) } = lottery;
    let (ring, keys) = watch::channel(keys);
    let follow = SubscriberSettings { service, daemons, keys };
    let (seen, mut news) = watch::channel(None);
    let name = Arc::clone(&group);
    let follower = async {
        if let Err(error) = lottery::subscribe(&name, follow, &seen).await {
            tracing::error!("group {name} cannot follow the lottery: {error}");
        }
    };
    let taker = async {
        while news.changed().await.is_ok() {
            let Some(followed) = news.borrow_and_update().clone() else { continue };
            let (running, group) = (Arc::clone(&running), Arc::clone(&group));
            // The task waits for a lock, as a reload does.
            let done = spawn_blocking(move || {
                let (members, weights) = members(&followed, limit);
                if let Err(why) = running.set_lottery_members(&group, &members, &weights) {
                    tracing::error!("group {group}: what the lottery says cannot be put in force: {why}");
                }
            });
            // A panic has been reported.
            let _ = done.await;
        }
    };
    tokio::join!(follower, taker, watch_key_file(&group, file, ring));
}

/// Watches a file of keys for ever: after a change daemons are asked with its new keys.
async fn watch_key_file(group: &str, file: PathBuf, keys: watch::Sender<KeyRing>) {
    let mut tick = interval(KEY_FILE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ring = None;
    loop {
        tick.tick().await;
        let (path, before) = (file.clone(), ring.take());
        // The file may be on a network.
        let look = spawn_blocking(move || match before {
            Some(mut ring) => {
                let again = ReloadableKeys::reload_if_changed(&mut ring, Instant::now());
                Some((ring, again))
            }
            // The file was read before this began, and may have changed since.
            None => ReloadableKeys::open(KeySource::File(path), Instant::now()).ok().map(|ring| (ring, true)),
        });
        let Ok(Some((looked, changed))) = look.await else { continue };
        let ids = |keys: &KeyRing| keys.ids().collect::<Vec<_>>();
        if changed && ids(looked.keys()) != ids(&keys.borrow()) {
            tracing::info!(
                "group {group}: the keys of the lottery were read again: {:?}",
                ids(looked.keys())
            );
        }
        if changed {
            keys.send_replace(looked.keys().clone());
        }
        ring = Some(looked);
    }
}

/// The time between two looks at a file of keys.
const KEY_FILE_INTERVAL: Duration = Duration::from_secs(1);

type MemberWeights = Vec<(Arc<str>, Option<f64>)>;

/// Returns one member for each server's address: one server may have two numbers.
fn members(followed: &[LotteryCandidate], limit: u32) -> (Vec<MemberSpec>, MemberWeights) {
    let mut places = BTreeMap::new();
    for one in followed {
        let (capacity, weight) = places.entry(one.endpoint).or_insert((0.0, 0.0));
        *capacity += f64::from(one.capacity.max(1));
        *weight += one.weight;
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
    let weights = places.iter().map(|(endpoint, (_, weight))| (name(endpoint), Some(*weight))).collect();
    (places.iter().map(member).collect(), weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_where_they_serve() {
        let one = |member, port, capacity, weight| LotteryCandidate {
            member,
            endpoint: ([127, 0, 0, 1], port).into(),
            capacity,
            weight,
        };
        let (members, weights) = members(&[one(1, 82, 4, 2.0), one(2, 81, 2, 8.0), one(3, 82, 1, 0.5)], 9);
        let shown: Vec<_> = members.iter().map(|one| (&*one.name, one.capacity, one.limit)).collect();
        assert_eq!(shown, [("127.0.0.1:81", 2.0, 9), ("127.0.0.1:82", 5.0, 9)]);
        let weights: Vec<_> = weights.iter().map(|(name, weight)| (&**name, *weight)).collect();
        assert_eq!(weights, [("127.0.0.1:81", Some(8.0)), ("127.0.0.1:82", Some(2.5))]);
    }
}
