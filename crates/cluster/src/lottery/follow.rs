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

use plimsoll_brain::lottery::{Drum, Look, Message, Place, code};
use plimsoll_wire::rfs::{Encode as _, Keys, LONGEST};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::seed;

/// The service and the cluster to follow.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    /// The number of the service.
    pub service: u32,
    /// The initial daemons; those of the members are asked, too, once they are known.
    pub daemons: Vec<SocketAddr>,
    /// The current keys of the cluster.
    pub keys: watch::Receiver<Keys>,
}

/// A candidate of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Followed {
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
const LOOK: Duration = Duration::from_millis(250);

/// The time limit of a response.
const PATIENCE: Duration = Duration::from_millis(150);

/// The maximum number of daemons to ask in one interval.
const TRIES: usize = 4;

/// The maximum number of parts of a drum: more members than a cluster has.
const PARTS: u16 = 64;

/// The number of failed intervals until the failure is logged.
const SILENT: u32 = 8;

/// Follows forever. `name` is the group's name in the log.
///
/// # Errors
/// The system provides no socket.
pub async fn follow(
    name: &str,
    settings: FollowSettings,
    seen: &watch::Sender<Option<Vec<Followed>>>,
) -> io::Result<()> {
    let four = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.ok();
    let six = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await.ok();
    if four.is_none() && six.is_none() {
        return Err(io::Error::other("the system gives no socket"));
    }
    let FollowSettings { service, daemons: told, keys: mut ring } = settings;
    let keys = ring.borrow_and_update().clone();
    let mut eye = Eye { service, keys, four, six, daemons: told.clone(), known: 0, patience: PATIENCE };
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = 0;
    loop {
        tick.tick().await;
        // If the sender is gone the keys stay.
        if ring.has_changed().is_ok_and(|changed| changed) {
            eye.keys = ring.borrow_and_update().clone();
        }
        match eye.look().await {
            Some(places) => {
                if silent >= SILENT {
                    tracing::info!("group {name}: the lottery is there again");
                }
                silent = 0;
                eye.learn(&told, &places);
                let followed: Vec<Followed> = places.iter().map(of).collect();
                seen.send_if_modified(|seen| {
                    let news = seen.as_ref() != Some(&followed);
                    if news {
                        *seen = Some(followed);
                    }
                    news
                });
            }
            None => {
                silent += 1;
                if silent == SILENT {
                    tracing::warn!(
                        "group {name}: no daemon of the lottery answers, going on with the members known last; asked: {:?}",
                        eye.daemons
                    );
                }
            }
        }
    }
}

struct Eye {
    service: u32,
    keys: Keys,
    four: Option<UdpSocket>,
    six: Option<UdpSocket>,
    /// The current daemon comes first.
    daemons: Vec<SocketAddr>,
    /// The number of members in the last response.
    known: usize,
    /// The time limit of a response.
    patience: Duration,
}

impl Eye {
    /// Returns the candidates from the first daemon that responds; the larger response of two if the first is
    /// suspiciously small.
    async fn look(&mut self) -> Option<Vec<Place>> {
        let mut best: Option<(SocketAddr, Vec<Place>)> = None;
        for _ in 0..TRIES.min(self.daemons.len()) {
            let daemon = *self.daemons.first()?;
            if let Some(places) = self.ask(daemon).await {
                let second = best.is_some();
                let many = 2 * places.len() >= self.known.max(1);
                if best.as_ref().is_none_or(|(_, others)| places.len() > others.len()) {
                    best = Some((daemon, places));
                }
                if second || many {
                    break;
                }
            }
            self.daemons.rotate_left(1);
        }
        let (daemon, places) = best?;
        // The next query begins with this daemon.
        if let Some(at) = self.daemons.iter().position(|other| *other == daemon) {
            self.daemons.rotate_left(at);
        }
        self.known = places.len();
        Some(places)
    }

    /// Reads all parts of one daemon's drum.
    async fn ask(&self, daemon: SocketAddr) -> Option<Vec<Place>> {
        let (mut places, mut part, mut parts) = (Vec::new(), 0, 1);
        while part < parts {
            let drum = self.part(daemon, part).await?;
            places.extend(drum.places);
            (part, parts) = (part + 1, drum.parts.min(PARTS));
        }
        // If the drum changed between two parts, a member may be listed twice; a missing one appears in the
        // next query.
        places.sort_by_key(|place| place.member);
        places.dedup_by_key(|place| place.member);
        Some(places)
    }

    async fn part(&self, daemon: SocketAddr, part: u16) -> Option<Drum> {
        let socket = if daemon.is_ipv4() { self.four.as_ref() } else { self.six.as_ref() }?;
        let look = Look { id: seed(), service: self.service, part };
        let mut bytes = Vec::with_capacity(LONGEST);
        look.encode(&self.keys, &mut bytes).ok()?;
        socket.send_to(&bytes, daemon).await.ok()?;
        let until = Instant::now() + self.patience;
        let mut buffer = [0; LONGEST + 1];
        loop {
            let (len, from) = timeout_at(until, socket.recv_from(&mut buffer)).await.ok()?.ok()?;
            let opened = self.keys.open_answer(&buffer[..len]).and_then(|opened| opened.message());
            if let Ok(Message::Drum(drum)) = opened
                && (from, drum.id, drum.service, drum.part) == (daemon, look.id, look.service, part)
            {
                return Some(drum);
            }
        }
    }

    /// Updates the list of daemons: the one that responds, the configured ones, those of the members.
    fn learn(&mut self, told: &[SocketAddr], places: &[Place]) {
        let first = self.daemons.first().copied();
        let others = told.iter().copied().chain(places.iter().map(|place| place.address));
        let mut daemons: Vec<SocketAddr> = first.into_iter().collect();
        for other in others {
            if !daemons.contains(&other) {
                daemons.push(other);
            }
        }
        self.daemons = daemons;
    }
}

fn of(place: &Place) -> Followed {
    let Place { member, capacity, weight, endpoint, .. } = *place;
    // In units of 2^-14.
    let weight = code::decode(weight) as f64 / f64::from(1 << 14);
    Followed { member, endpoint, capacity, weight }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::rfs::Key;

    use super::*;

    fn keys() -> Keys {
        Keys::new(Key::new(1, &[7; 32]))
    }

    /// Starts a daemon with these members in its drum.
    async fn daemon(members: &'static [u16]) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let place = move |member: &u16| Place {
            member: *member,
            capacity: 1,
            weight: 128,
            address,
            endpoint: address,
        };
        tokio::spawn(async move {
            let mut buffer = [0; LONGEST];
            loop {
                let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
                let Ok(Message::Look(Look { id, service, part })) =
                    keys().open(&buffer[..len]).and_then(|opened| opened.message())
                else {
                    continue;
                };
                let places = members.iter().map(place).collect();
                let mut bytes = Vec::new();
                Message::Drum(Drum { id, service, part, parts: 1, places })
                    .encode(&keys(), &mut bytes)
                    .unwrap();
                socket.send_to(&bytes, from).await.unwrap();
            }
        });
        address
    }

    async fn eye(daemons: Vec<SocketAddr>) -> Eye {
        let four = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.ok();
        let patience = Duration::from_secs(60);
        Eye { service: 1, keys: keys(), four, six: None, daemons, known: 0, patience }
    }

    fn members(places: Option<Vec<Place>>) -> Option<Vec<u16>> {
        Some(places?.iter().map(|place| place.member).collect())
    }

    #[tokio::test]
    async fn one_that_knows_nobody_is_not_believed_alone() {
        let (alone, none) = (daemon(&[]).await, daemon(&[]).await);
        let whole = daemon(&[1, 2, 3, 4, 5]).await;
        let mut eye = eye(vec![alone, whole]).await;
        for _ in 0..2 {
            assert_eq!(members(eye.look().await), Some(vec![1, 2, 3, 4, 5]));
            assert_eq!(eye.daemons[0], whole, "it stays with that one");
        }
        eye.daemons = vec![alone, none, whole];
        assert_eq!(members(eye.look().await), Some(vec![]), "two say so");
        eye.daemons = vec![alone];
        assert_eq!(members(eye.look().await), Some(vec![]), "nobody says anything else");
    }

    #[tokio::test]
    async fn nor_is_one_that_knows_less_than_half_of_those_before() {
        let (few, whole) = (daemon(&[9, 10]).await, daemon(&[1, 2, 3, 4, 5]).await);
        let mut eye = eye(vec![few, whole]).await;
        assert_eq!(members(eye.look().await), Some(vec![9, 10]), "nothing is known of others");
        eye.known = 5;
        assert_eq!(members(eye.look().await), Some(vec![1, 2, 3, 4, 5]));
        eye.daemons = vec![few];
        assert_eq!(members(eye.look().await), Some(vec![9, 10]));
    }
}
