//! Clusters in virtual time: a network with loss and delay, and daemons that die, leave, return and are
//! suspended.

use std::collections::BTreeSet;

use super::*;

const MILLI: u64 = 1_000_000;

fn address(who: usize) -> SocketAddr {
    ([10, 0, (who >> 8) as u8, who as u8], 7447).into()
}

/// Pseudo-random numbers from a seed.
struct SeededRandom(u64);

impl SeededRandom {
    fn unit(&mut self) -> f64 {
        self.0 = plimsoll_brain::mix(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

struct GossipSimulation {
    now: u64,
    nodes: Vec<Option<SwimMembership>>,
    /// The time until which each daemon is suspended.
    stalled: Vec<u64>,
    news: Vec<(u64, usize, MembershipEvent)>,
    in_transit: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    bytes: u64,
    lost: u64,
    loss: f64,
    dice: SeededRandom,
    /// A partition: no datagrams pass between the daemons below this number and the others.
    cut: Option<usize>,
}

impl GossipSimulation {
    fn new(count: usize, loss: f64, seed: u64) -> Self {
        let mut world = Self {
            now: 0,
            nodes: Vec::new(),
            stalled: vec![0; count],
            news: Vec::new(),
            in_transit: BTreeMap::new(),
            sent: 0,
            bytes: 0,
            lost: 0,
            loss,
            dice: SeededRandom(seed),
            cut: None,
        };
        for who in 0..count {
            world.nodes.push(None);
            world.start(who, 1);
        }
        world
    }

    fn start(&mut self, who: usize, life: u32) {
        let own = NodeIdentity { member: who as u16 + 1, incarnation: life, address: address(who) };
        let seed = self.dice.0 ^ (who as u64) << 32 ^ u64::from(life);
        self.nodes[who] = Some(SwimMembership::new(own, seed, Time(self.now)));
    }

    /// The first daemon is the peer of all others, and the second is its peer.
    fn peer(who: usize) -> SocketAddr {
        address(usize::from(who == 0))
    }

    fn run(&mut self, millis: u64) {
        let end = self.now + millis * MILLI;
        loop {
            let flying = self.in_transit.first_key_value().map(|((at, _), _)| *at);
            let timers = self
                .nodes
                .iter()
                .enumerate()
                .filter_map(|(who, node)| Some(node.as_ref()?.next_due().0.max(self.stalled[who])));
            let next = timers.chain(flying).min().unwrap_or(end);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            while let Some(first) = self.in_transit.first_entry().filter(|first| first.key().0 <= self.now) {
                let (_, to, said) = first.remove();
                if self.stalled[to] > self.now {
                    let count = self.sent;
                    self.sent += 1;
                    // The datagram waits in the socket.
                    self.in_transit.insert((self.stalled[to], count), (0, to, said));
                } else if let Some(node) = &mut self.nodes[to] {
                    node.receive(Time(self.now), &said);
                }
            }
            for who in 0..self.nodes.len() {
                if self.stalled[who] > self.now {
                    continue;
                }
                let Some(node) = &mut self.nodes[who] else { continue };
                if node.next_due().0 <= self.now {
                    node.run_due(Time(self.now), std::iter::once(Self::peer(who)));
                }
                self.collect(who);
            }
        }
        self.now = end;
    }

    fn collect(&mut self, who: usize) {
        let Some(node) = &mut self.nodes[who] else { return };
        while let Some(news) = node.poll_event() {
            self.news.push((self.now, who, news));
        }
        while let Some((to, datagram)) = node.poll_transmit() {
            self.sent += 1;
            self.bytes += datagram.payload.len() as u64 + 48;
            let Some(to) = (0..self.stalled.len()).find(|other| address(*other) == to) else { continue };
            let apart = self.cut.is_some_and(|cut| (who < cut) != (to < cut));
            if self.dice.unit() < self.loss || apart {
                self.lost += 1;
            } else {
                let delay = (200_000.0 * (1.0 + 4.0 * self.dice.unit())) as u64;
                self.in_transit.insert((self.now + delay, self.sent), (who, to, datagram.payload));
            }
        }
    }

    /// Returns `true` if every running daemon sees every other.
    fn is_converged(&self) -> bool {
        let alive: BTreeSet<u16> = (0..self.nodes.len())
            .filter(|who| self.nodes[*who].is_some())
            .map(|who| who as u16 + 1)
            .collect();
        self.nodes.iter().enumerate().all(|(who, node)| {
            let Some(node) = node else { return true };
            let mut seen: BTreeSet<u16> = node.others().map(|other| other.member).collect();
            seen.insert(who as u16 + 1);
            seen == alive
        })
    }

    fn run_until_converged(&mut self, most: u64) {
        for _ in 0..most / 50 {
            if self.is_converged() {
                return;
            }
            self.run(50);
        }
        panic!("after {most} ms they do not all see one another");
    }

    fn downs(&self, since: u64) -> impl Iterator<Item = (u64, usize, NodeIdentity)> {
        let down = move |(at, who, news): &(u64, usize, MembershipEvent)| match news {
            MembershipEvent::Down(node) if *at >= since => Some((*at, *who, *node)),
            _ => None,
        };
        self.news.iter().filter_map(down)
    }
}

/// Kills one daemon. Returns the time until the last of the others detects it, in milliseconds.
fn detection(count: usize, loss: f64, seed: u64) -> u64 {
    let mut world = GossipSimulation::new(count, loss, seed);
    world.run_until_converged(20_000);
    world.run(2_000);
    let began = world.now;
    assert_eq!(world.downs(0).count(), 0, "{count} at {loss}, seed {seed}: nobody died yet");
    let (sent, bytes) = (world.sent, world.bytes);
    world.run(5_000);
    let (packets, bytes) = ((world.sent - sent) / 5 / count as u64, (world.bytes - bytes) / 5 / count as u64);
    assert!(packets < 100 && bytes < 25_000, "{packets} packets and {bytes} bytes a second each");
    let killed = world.now;
    world.nodes[count - 1] = None;
    world.run_until_converged(15_000);
    assert_eq!(world.lost > 0, loss > 0.0);
    let all: Vec<_> = world.downs(began).collect();
    assert!(
        all.iter().all(|(_, _, node)| usize::from(node.member) == count),
        "only who died is down: {all:?}"
    );
    all.iter().map(|(at, ..)| at - killed).max().unwrap_or_default() / MILLI
}

#[test]
fn a_crash_is_known_to_all_in_about_a_second() {
    for (count, loss, seeds) in [(2, 0.0, 8), (5, 0.0, 8), (5, 0.01, 8), (30, 0.01, 3), (100, 0.01, 1)] {
        let mut times: Vec<u64> = (0..seeds).map(|seed| detection(count, loss, seed)).collect();
        times.sort_unstable();
        eprintln!("{count} daemons, {} % loss: known to all after {times:?} ms", loss * 100.0);
        assert!(times[times.len() / 2] <= 1_600, "{count} at {loss}: {times:?}");
        // Occasionally the rumour of a suspicion is lost on the way to the daemons that are asked last.
        assert!(times.iter().all(|time| *time <= 7_000), "{count} at {loss}: {times:?}");
    }
}

#[test]
fn who_leaves_is_gone_at_once_and_may_come_back() {
    let mut world = GossipSimulation::new(5, 0.0, 1);
    world.run_until_converged(10_000);
    let since = world.now;
    world.nodes[3].as_mut().unwrap().leave(Time(since));
    world.collect(3);
    world.run(200);
    let heard: BTreeSet<usize> = world.downs(since).map(|(_, who, _)| who).collect();
    assert_eq!(heard, BTreeSet::from([0, 1, 2, 4]), "within gossip's time, not that of a suspicion");
    world.start(3, 2);
    world.run_until_converged(5_000);
}

#[test]
fn who_starts_anew_at_once_replaces_who_it_was() {
    let mut world = GossipSimulation::new(5, 0.0, 2);
    world.run_until_converged(10_000);
    world.start(2, 7);
    world.run(2_000);
    assert!(world.is_converged());
    for who in [0, 1, 3, 4] {
        let node = world.nodes[who].as_ref().unwrap().others().find(|other| other.member == 3).unwrap();
        assert_eq!(node.incarnation, 7);
    }
}

#[test]
fn who_is_alone_joins_when_its_peer_comes() {
    let mut world = GossipSimulation::new(3, 0.0, 3);
    world.nodes[0] = None;
    world.run(5_000);
    assert!(world.nodes[1].as_ref().unwrap().others().next().is_none(), "its only peer is not there");
    world.start(0, 9);
    world.run_until_converged(2_000);
}

#[test]
fn halves_that_took_each_other_for_dead_are_one_again() {
    let mut world = GossipSimulation::new(6, 0.01, 4);
    world.run_until_converged(10_000);
    world.cut = Some(3);
    world.run(5_000);
    for (who, node) in world.nodes.iter().enumerate() {
        let others: Vec<u16> = node.as_ref().unwrap().others().map(|other| other.member).collect();
        assert!(
            others.len() == 2 && others.iter().all(|other| (*other <= 3) == (who < 3)),
            "{who}: {others:?}"
        );
    }
    world.cut = None;
    world.run_until_converged(30_000);
}

#[test]
fn a_daemon_that_stood_still_takes_nobody_for_dead() {
    for seed in 0..4 {
        let mut world = GossipSimulation::new(5, 0.0, seed);
        world.run_until_converged(10_000);
        let since = world.now;
        world.stalled[2] = since + 1_500 * MILLI;
        world.run(10_000);
        // The others are right that it is gone, and it returns in a new incarnation.
        let wrong = world.downs(since).filter(|(_, who, node)| *who == 2 && node.member != 3).count();
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(world.downs(since).any(|(_, who, node)| who != 2 && node.member == 3));
        assert!(
            world.news.iter().any(|(_, who, news)| *who == 2 && matches!(news, MembershipEvent::Renewed(_)))
        );
        world.run_until_converged(10_000);
    }
}

#[test]
fn nothing_that_comes_panics() {
    let mut dice = SeededRandom(5);
    let mut node =
        SwimMembership::new(NodeIdentity { member: 1, incarnation: 1, address: address(0) }, 1, Time(0));
    for _ in 0..20_000 {
        let len = (dice.unit() * 90.0) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| (dice.unit() * 12.0) as u8).collect();
        node.receive(Time(1), &bytes);
    }
    assert!(node.runtime.datagrams.len() <= 20_000);
}
