//! A balancer that follows the lottery. Four times a second it asks one daemon for the candidates of a
//! service and their weights (LOOK and DRUM of `docs/rfs2.md`), and then sends its clients there itself. No
//! request waits for the lottery, no daemon knows the balancer, and balancers share no state but the daemons'
//! responses.
//!
//! It stays with one daemon while that responds, so that it does not alternate between two views; otherwise
//! it asks another one at once. If none responds, the last candidates stay in force, as servers may well
//! continue without their daemons.
//!
//! A daemon without members, or with less than half of the previous number, may be isolated or may have
//! started alone. Its response is accepted only after another daemon was asked, and the larger of the two
//! responses counts.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use plimsoll_brain::lottery::{CandidateEntry, CandidateQuery, CandidateSet, LotteryMessage, weight_codec};
use plimsoll_wire::rfs::{EncodeDatagram as _, KeyRing, MAX_DATAGRAM_LEN};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::random_seed;

/// The service and the cluster to follow.
#[derive(Clone, Debug)]
pub struct SubscriberSettings {
    /// The number of the service.
    pub service: u32,
    /// The initial daemons; those of the members are asked, too, once they are known.
    pub daemons: Vec<SocketAddr>,
    /// The current keys of the cluster.
    pub keys: watch::Receiver<KeyRing>,
}

/// A candidate of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LotteryCandidate {
    /// The member's number.
    pub member: u16,
    /// The address of its server.
    pub endpoint: SocketAddr,
    /// The capacity relative to the others.
    pub capacity: u16,
    /// The weight in the draw, in the same unit; 0 for never.
    pub weight: f64,
}

/// The interval of queries.
const QUERY_INTERVAL: Duration = Duration::from_millis(250);

/// The time limit of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(150);

/// The maximum number of daemons to ask in one interval.
const MAX_DAEMONS_ASKED: usize = 4;

/// The maximum number of parts of a candidate set: more members than a cluster has.
const MAX_PARTS: u16 = 64;

/// The number of failed intervals until the failure is logged.
const LOG_AFTER_FAILURES: u32 = 8;

/// Follows forever. `name` is the group's name in the log.
///
/// # Errors
/// The system provides no socket.
pub async fn subscribe(
    name: &str,
    settings: SubscriberSettings,
    candidate_sender: &watch::Sender<Option<Vec<LotteryCandidate>>>,
) -> io::Result<()> {
    let socket_v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.ok();
    let socket_v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await.ok();
    if socket_v4.is_none() && socket_v6.is_none() {
        return Err(io::Error::other("the system gives no socket"));
    }
    let SubscriberSettings { service, daemons: configured_daemons, keys: mut key_receiver } = settings;
    let keys = key_receiver.borrow_and_update().clone();
    let mut subscriber = LotterySubscriber {
        service,
        keys,
        socket_v4,
        socket_v6,
        daemons: configured_daemons.clone(),
        member_count: 0,
        response_timeout: RESPONSE_TIMEOUT,
    };
    let mut tick = interval(QUERY_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0;
    loop {
        tick.tick().await;
        // If the sender is gone the keys stay.
        if key_receiver.has_changed().is_ok_and(|changed| changed) {
            subscriber.keys = key_receiver.borrow_and_update().clone();
        }
        match subscriber.query_candidates().await {
            Some(entries) => {
                if failures >= LOG_AFTER_FAILURES {
                    tracing::info!("group {name}: the lottery is there again");
                }
                failures = 0;
                subscriber.update_daemons(&configured_daemons, &entries);
                let candidates: Vec<LotteryCandidate> = entries.iter().map(to_candidate).collect();
                candidate_sender.send_if_modified(|current| {
                    let changed = current.as_ref() != Some(&candidates);
                    if changed {
                        *current = Some(candidates);
                    }
                    changed
                });
            }
            None => {
                failures += 1;
                if failures == LOG_AFTER_FAILURES {
                    tracing::warn!(
                        "group {name}: no daemon of the lottery answers, going on with the members known \
                         last; asked: {:?}",
                        subscriber.daemons
                    );
                }
            }
        }
    }
}

struct LotterySubscriber {
    service: u32,
    keys: KeyRing,
    socket_v4: Option<UdpSocket>,
    socket_v6: Option<UdpSocket>,
    /// The current daemon comes first.
    daemons: Vec<SocketAddr>,
    /// The number of members in the last response.
    member_count: usize,
    /// The time limit of a response.
    response_timeout: Duration,
}

impl LotterySubscriber {
    /// Returns the candidates from the first daemon that responds; the larger response of two if the first is
    /// suspiciously small.
    async fn query_candidates(&mut self) -> Option<Vec<CandidateEntry>> {
        let mut best: Option<(SocketAddr, Vec<CandidateEntry>)> = None;
        for _ in 0..MAX_DAEMONS_ASKED.min(self.daemons.len()) {
            let daemon = *self.daemons.first()?;
            if let Some(entries) = self.read_candidates(daemon).await {
                let is_second = best.is_some();
                let is_plausible = 2 * entries.len() >= self.member_count.max(1);
                if best.as_ref().is_none_or(|(_, others)| entries.len() > others.len()) {
                    best = Some((daemon, entries));
                }
                if is_second || is_plausible {
                    break;
                }
            }
            self.daemons.rotate_left(1);
        }
        let (daemon, entries) = best?;
        // The next query begins with this daemon.
        if let Some(index) = self.daemons.iter().position(|other| *other == daemon) {
            self.daemons.rotate_left(index);
        }
        self.member_count = entries.len();
        Some(entries)
    }

    /// Reads all parts of one daemon's candidate set.
    async fn read_candidates(&self, daemon: SocketAddr) -> Option<Vec<CandidateEntry>> {
        let (mut entries, mut part, mut parts) = (Vec::new(), 0, 1);
        while part < parts {
            let candidate_set = self.read_part(daemon, part).await?;
            entries.extend(candidate_set.candidates);
            (part, parts) = (part + 1, candidate_set.parts.min(MAX_PARTS));
        }
        // If the candidate set changed between two parts, a member may be listed twice; a missing one appears
        // in the next query.
        entries.sort_by_key(|entry| entry.member);
        entries.dedup_by_key(|entry| entry.member);
        Some(entries)
    }

    async fn read_part(&self, daemon: SocketAddr, part: u16) -> Option<CandidateSet> {
        let socket = if daemon.is_ipv4() { self.socket_v4.as_ref() } else { self.socket_v6.as_ref() }?;
        let query = CandidateQuery { id: random_seed(), service: self.service, part };
        let mut bytes = Vec::with_capacity(MAX_DATAGRAM_LEN);
        query.encode(&self.keys, &mut bytes).ok()?;
        socket.send_to(&bytes, daemon).await.ok()?;
        let deadline = Instant::now() + self.response_timeout;
        let mut buffer = [0; MAX_DATAGRAM_LEN + 1];
        loop {
            let (len, from) = timeout_at(deadline, socket.recv_from(&mut buffer)).await.ok()?.ok()?;
            let message = self.keys.open_answer(&buffer[..len]).and_then(|message| message.message());
            if let Ok(LotteryMessage::CandidateSet(candidate_set)) = message
                && (from, candidate_set.id, candidate_set.service, candidate_set.part)
                    == (daemon, query.id, query.service, part)
            {
                return Some(candidate_set);
            }
        }
    }

    /// Updates the list of daemons: the one that responds, the configured ones, those of the members.
    fn update_daemons(&mut self, configured_daemons: &[SocketAddr], entries: &[CandidateEntry]) {
        let first = self.daemons.first().copied();
        let others = configured_daemons.iter().copied().chain(entries.iter().map(|entry| entry.address));
        let mut daemons: Vec<SocketAddr> = first.into_iter().collect();
        for other in others {
            if !daemons.contains(&other) {
                daemons.push(other);
            }
        }
        self.daemons = daemons;
    }
}

fn to_candidate(entry: &CandidateEntry) -> LotteryCandidate {
    let CandidateEntry { member, capacity, weight, endpoint, .. } = *entry;
    // In units of 2^-14.
    let weight = weight_codec::decode(weight) as f64 / f64::from(1 << 14);
    LotteryCandidate { member, endpoint, capacity, weight }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::rfs::DatagramKey;

    use super::*;

    fn keys() -> KeyRing {
        KeyRing::new(DatagramKey::new(1, &[7; 32]))
    }

    /// Starts a daemon with these members in its candidate set.
    async fn daemon(members: &'static [u16]) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let entry = move |member: &u16| CandidateEntry {
            member: *member,
            capacity: 1,
            weight: 128,
            address,
            endpoint: address,
        };
        tokio::spawn(async move {
            let mut buffer = [0; MAX_DATAGRAM_LEN];
            loop {
                let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
                let Ok(LotteryMessage::CandidateQuery(CandidateQuery { id, service, part })) =
                    keys().open(&buffer[..len]).and_then(|message| message.message())
                else {
                    continue;
                };
                let entries = members.iter().map(entry).collect();
                let mut bytes = Vec::new();
                LotteryMessage::CandidateSet(CandidateSet {
                    id,
                    service,
                    part,
                    parts: 1,
                    candidates: entries,
                })
                .encode(&keys(), &mut bytes)
                .unwrap();
                socket.send_to(&bytes, from).await.unwrap();
            }
        });
        address
    }

    async fn subscriber(daemons: Vec<SocketAddr>) -> LotterySubscriber {
        let socket_v4 = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.ok();
        let response_timeout = Duration::from_secs(60);
        LotterySubscriber {
            service: 1,
            keys: keys(),
            socket_v4,
            socket_v6: None,
            daemons,
            member_count: 0,
            response_timeout,
        }
    }

    fn members(entries: Option<Vec<CandidateEntry>>) -> Option<Vec<u16>> {
        Some(entries?.iter().map(|entry| entry.member).collect())
    }

    #[tokio::test]
    async fn one_that_knows_nobody_is_not_believed_alone() {
        let (alone, none) = (daemon(&[]).await, daemon(&[]).await);
        let complete = daemon(&[1, 2, 3, 4, 5]).await;
        let mut subscriber = subscriber(vec![alone, complete]).await;
        for _ in 0..2 {
            assert_eq!(members(subscriber.query_candidates().await), Some(vec![1, 2, 3, 4, 5]));
            assert_eq!(subscriber.daemons[0], complete, "it stays with that one");
        }
        subscriber.daemons = vec![alone, none, complete];
        assert_eq!(members(subscriber.query_candidates().await), Some(vec![]), "two say so");
        subscriber.daemons = vec![alone];
        assert_eq!(members(subscriber.query_candidates().await), Some(vec![]), "nobody says anything else");
    }

    #[tokio::test]
    async fn nor_is_one_that_knows_less_than_half_of_those_before() {
        let (few, complete) = (daemon(&[9, 10]).await, daemon(&[1, 2, 3, 4, 5]).await);
        let mut subscriber = subscriber(vec![few, complete]).await;
        assert_eq!(
            members(subscriber.query_candidates().await),
            Some(vec![9, 10]),
            "nothing is known of others"
        );
        subscriber.member_count = 5;
        assert_eq!(members(subscriber.query_candidates().await), Some(vec![1, 2, 3, 4, 5]));
        subscriber.daemons = vec![few];
        assert_eq!(members(subscriber.query_candidates().await), Some(vec![9, 10]));
    }
}
