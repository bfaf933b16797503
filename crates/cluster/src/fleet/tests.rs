//! Fleets in virtual time: a lossy network, and balancers that die, leave and return.

use std::collections::BTreeMap;

use plimsoll_brain::Vitals;
use plimsoll_brain::fleet::{FleetMember, FleetUpdateKind, PeerPresence};
use plimsoll_wire::rfs::DatagramKey;

use super::*;
use crate::lottery::socket::SendQueue;

const MILLI: u64 = 1_000_000;

fn address(who: usize) -> SocketAddr {
    ([10, 0, 0, who as u8 + 1], 7946).into()
}

fn settings(who: usize) -> FleetSettings {
    FleetSettings {
        name: format!("lb{}", who + 1),
        listen: address(who),
        address: None,
        seeds: Vec::new(),
        keys: KeyRing::new(DatagramKey::new(1, &[7; 32])),
        interval: Duration::from_millis(20),
        bytes_per_second: 1_000_000,
        probers: 1,
        forget_after: Duration::from_secs(60),
    }
}

struct SimulatedNode {
    node: FleetNode,
    vitals: Arc<Vitals>,
}

struct FleetSimulation {
    now: u64,
    nodes: Vec<Option<SimulatedNode>>,
    changes: Vec<(usize, PeerTransition, String)>,
    news: Vec<(usize, FleetUpdateKind, String)>,
    /// The percentage of lost datagrams.
    loss: u64,
    dice: u64,
    in_transit: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    count: u64,
}

impl FleetSimulation {
    fn new(count: usize, loss: u64) -> Self {
        let mut world = Self {
            now: MILLI,
            nodes: (0..count).map(|_| None).collect(),
            changes: Vec::new(),
            news: Vec::new(),
            loss,
            dice: 7,
            in_transit: BTreeMap::new(),
            count: 0,
        };
        (0..count).for_each(|who| world.start(who, 1));
        world
    }

    fn start(&mut self, who: usize, life: u32) {
        let mut desk = FleetNode::new(&settings(who), address(who), life, who as u64 + 1, Time(self.now));
        let vitals = Arc::<Vitals>::default();
        let member = FleetMember {
            name: "10.1.0.1:80".into(),
            vitals: Arc::clone(&vitals),
            limit: 30,
            health_checked: true,
        };
        let group = FleetGroup {
            name: "web".into(),
            presence: Arc::<PeerPresence>::default(),
            members: vec![member],
        };
        desk.set_groups(vec![group], Time(self.now));
        self.nodes[who] = Some(SimulatedNode { node: desk, vitals });
    }

    fn run(&mut self, millis: u64) {
        let end = self.now + millis * MILLI;
        while self.now < end {
            self.now += MILLI;
            while let Some(first) = self.in_transit.first_entry().filter(|first| first.key().0 <= self.now) {
                let (to, bytes) = first.remove();
                if let Some(node) = &mut self.nodes[to] {
                    node.node.receive(Time(self.now), &bytes);
                }
            }
            for who in 0..self.nodes.len() {
                let Some(node) = &mut self.nodes[who] else { continue };
                let mut out = SendQueue::default();
                // The thread also replies to received datagrams before it waits.
                node.node.run_due(Time(self.now), &[address(0), address(1)], &mut out);
                self.collect_datagrams(who, out);
            }
        }
    }

    fn collect_datagrams(&mut self, who: usize, mut out: SendQueue) {
        let mut sent = Vec::new();
        out.drain(|to, bytes| sent.push((to, bytes.to_vec())));
        for (to, bytes) in sent {
            self.dice = plimsoll_brain::mix(self.dice);
            self.count += 1;
            if self.dice % 100 >= self.loss
                && let Some(to) = (0..self.nodes.len()).find(|one| address(*one) == to)
            {
                self.in_transit.insert((self.now + MILLI, self.count), (to, bytes));
            }
        }
        let Some(node) = &mut self.nodes[who] else { return };
        while let Some((news, by)) = node.node.poll_news() {
            self.news.push((who, news.kind, by));
        }
        self.changes
            .extend(node.node.take_changes().into_iter().map(|change| (who, change.transition, change.name)));
    }

    fn leave(&mut self, who: usize) {
        let Some(mut node) = self.nodes[who].take() else { return };
        let mut out = SendQueue::default();
        node.node.leave(Time(self.now), &mut out);
        self.collect_datagrams(who, out);
    }

    fn states(&self, who: usize) -> Vec<(String, String)> {
        let status = self.nodes[who].as_ref().map(|node| node.node.status(Time(self.now)));
        status.into_iter().flat_map(|status| status.balancers).map(|one| (one.name, one.state)).collect()
    }

    fn begin(&self, who: usize, requests: usize) {
        for _ in 0..requests {
            self.vitals(who).begin();
        }
    }

    fn vitals(&self, who: usize) -> &Vitals {
        &self.nodes[who].as_ref().expect("it runs").vitals
    }
}

fn up(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), "up".to_owned())).collect()
}

#[test]
fn all_find_one_another_and_act_on_one_view() {
    // With more loss the membership sometimes takes live balancers for dead.
    for loss in [0, 4] {
        let mut world = FleetSimulation::new(3, loss);
        world.run(3_000);
        assert_eq!(world.states(0), up(&["lb2", "lb3"]), "{loss}");
        assert_eq!(world.states(2), up(&["lb1", "lb2"]), "{loss}");
        let joined = world.changes.iter().filter(|(_, what, _)| *what == PeerTransition::Joined).count();
        assert_eq!(joined, 6, "{:?}", world.changes);
        world.begin(1, 12);
        world.run(3_000);
        for who in [0, 2] {
            let others = world.vitals(who).peer_in_flight();
            assert!((11.0..=12.5).contains(&others), "{others}");
        }
        let parts: Vec<u32> = (0..3).filter_map(|who| world.vitals(who).part()).collect();
        assert_eq!(parts.iter().sum::<u32>(), 30, "{parts:?}");
        assert!(parts[1] >= 20, "{parts:?}");
        let lost = world.nodes[0].as_ref().expect("it runs").node.status(Time(world.now)).balancers[0].loss;
        assert!((lost - loss as f64 / 100.0).abs() < 0.05, "{lost}");
    }
}

#[test]
fn one_that_dies_takes_what_it_had_with_it_and_one_that_comes_back_is_heard() {
    let mut world = FleetSimulation::new(3, 0);
    world.run(2_000);
    world.begin(1, 12);
    world.run(2_000);
    world.nodes[1] = None;
    world.run(1_900);
    assert_eq!(world.vitals(0).peer_in_flight(), 0.0);
    assert_eq!(world.states(0)[0], ("lb2".to_owned(), "lost".to_owned()));
    let lost =
        |(_, what, name): &&(usize, PeerTransition, String)| *what == PeerTransition::Lost && name == "lb2";
    assert_eq!(world.changes.iter().filter(lost).count(), 2, "{:?}", world.changes);
    // Its share stays reserved: it may be alive.
    let parts: u32 = [0, 2].iter().filter_map(|who| world.vitals(*who).part()).sum();
    assert!(parts <= 20, "{parts}");
    world.start(1, 2);
    world.run(3_000);
    assert_eq!(world.states(0), up(&["lb2", "lb3"]));
    world.nodes[1] = None;
    world.run(64_000);
    assert_eq!(world.states(0), up(&["lb3"]), "it is forgotten");
    let parts: u32 = [0, 2].iter().filter_map(|who| world.vitals(*who).part()).sum();
    assert_eq!(parts, 30);
}

#[test]
fn one_that_leaves_says_so() {
    let mut world = FleetSimulation::new(3, 4);
    world.run(4_000);
    world.leave(2);
    world.run(50);
    assert_eq!(world.states(0), up(&["lb2"]));
    let parts: u32 = [0, 1].iter().filter_map(|who| world.vitals(*who).part()).sum();
    assert_eq!(parts, 30);
    world.run(3_000);
    let left =
        |(_, what, name): &&(usize, PeerTransition, String)| name == "lb3" && *what == PeerTransition::Left;
    assert_eq!(world.changes.iter().filter(left).count(), 2, "{:?}", world.changes);
    assert!(!world.changes.iter().any(|(_, what, name)| name == "lb3" && *what == PeerTransition::Lost));
}

#[test]
fn checks_are_told_with_who_made_them() {
    let mut world = FleetSimulation::new(2, 0);
    world.run(2_000);
    let duties: Vec<usize> = world
        .news
        .iter()
        .filter(|(_, what, _)| *what == FleetUpdateKind::ProbeDuty(false))
        .map(|(who, ..)| *who)
        .collect();
    let [rests] = duties[..] else { panic!("{:?}", world.news) };
    let checks = 1 - rests;
    world.news.clear();
    let notice = MemberNotice {
        group: "web".into(),
        member: "10.1.0.1:80".into(),
        action: MemberAction::HealthChecked(false),
    };
    let now = Time(world.now);
    world.nodes[checks].as_mut().expect("it runs").node.record_action(&notice, now);
    world.run(100);
    let [(who, FleetUpdateKind::HealthChecked { passed: false, age, .. }, by)] = &world.news[..] else {
        panic!("{:?}", world.news)
    };
    assert_eq!((*who, &**by), (rests, ["lb1", "lb2"][checks]));
    assert!(*age <= Duration::from_millis(40), "{age:?}");
}

#[test]
fn what_was_recorded_and_what_others_made_is_refused() {
    let mut world = FleetSimulation::new(2, 0);
    world.run(2_000);
    let mut recorded: Vec<Vec<u8>> = Vec::new();
    for _ in 0..100 {
        world.run(1);
        recorded.extend(world.in_transit.values().filter(|(to, _)| *to == 0).map(|(_, bytes)| bytes.clone()));
    }
    world.run(2_000);
    assert!(!recorded.is_empty());
    let node = world.nodes[0].as_mut().expect("it runs");
    let refused = |desk: &FleetNode| desk.status(Time(world.now)).refused;
    let before = refused(&node.node);
    recorded.iter().for_each(|bytes| node.node.receive(Time(world.now), bytes));
    node.node.receive(Time(world.now), b"PF and nothing else");
    assert_eq!(refused(&node.node) - before, recorded.len() as u64 + 1);
}

#[test]
fn whatever_one_who_has_the_key_says_nothing_breaks() {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::test_runner::{Config, TestRunner};

    let mut world = FleetSimulation::new(2, 0);
    world.run(2_000);
    assert_eq!(world.states(0), up(&["lb2"]), "the other is known, and what it says is heard");
    let world = std::cell::RefCell::new(world);
    // Datagrams from the other balancer in any incarnation, or from an unknown one, of any kind, with random
    // contents.
    let said = (0_u8..3, 1_u32..4, 0_u8..5, vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..40));
    let mut runner = TestRunner::new(Config::with_cases(2_000));
    let done = runner.run(&said, |(who, life, kind, body, more)| {
        let mut world = world.borrow_mut();
        world.now += MILLI;
        world.count += 1;
        let (now, count) = (Time(world.now), 1_000_000 + world.count as u32);
        let mut bytes = vec![0x50, 0x46, 1, kind];
        bytes.extend_from_slice(&life.to_be_bytes());
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(&[4, 0x1f, 0x0a, 10, 0, 0, who + 1]);
        if kind == 2 {
            // A name, and a section of an existing group: its entries reach deepest into the decoder.
            bytes.extend_from_slice(&[1, b'x']);
            bytes.extend_from_slice(&more);
        }
        bytes.extend_from_slice(&body);
        settings(0).keys.seal(0, &mut bytes);
        let node = world.nodes[0].as_mut().expect("it runs");
        node.node.receive(now, &bytes);
        let mut out = SendQueue::default();
        node.node.run_due(now, &[], &mut out);
        let status = node.node.status(now);
        proptest::prop_assert!(status.refused <= status.received, "{status:?}");
        Ok(())
    });
    done.unwrap();
}

#[test]
fn another_process_goes_on_as_the_same_balancer() {
    let mut world = FleetSimulation::new(3, 0);
    world.run(3_000);
    world.begin(1, 12);
    world.run(1_000);
    let changes = world.changes.len();
    let past = world.nodes[1].as_ref().expect("it runs").node.handoff_state(Time(world.now));
    assert_eq!(past.others.len(), 2);
    // Datagrams that arrive meanwhile wait in the socket; here they are lost.
    world.nodes[1] = None;
    world.run(100);
    world.start(1, past.life);
    let now = Time(world.now);
    world.nodes[1].as_mut().expect("it runs").node.restore(past.clone(), now);
    world.begin(1, 12);
    world.run(1_000);
    assert!(
        (11.0..=12.5).contains(&world.vitals(0).peer_in_flight()),
        "{}",
        world.vitals(0).peer_in_flight()
    );
    world.run(8_000);
    assert_eq!(world.changes.len(), changes, "{:?}", &world.changes[changes..]);
    for who in 0..3 {
        assert_eq!(world.states(who).iter().filter(|(_, state)| state == "up").count(), 2, "{who}");
        let refused = world.nodes[who].as_ref().expect("it runs").node.status(Time(world.now)).refused;
        assert_eq!(refused, 0, "{who}");
    }
    // A balancer that died during the handoff was known only to the previous process: it is lost.
    let past = world.nodes[1].as_ref().expect("it runs").node.handoff_state(Time(world.now));
    world.nodes[1] = None;
    world.nodes[2] = None;
    world.start(1, past.life);
    let now = Time(world.now);
    world.nodes[1].as_mut().expect("it runs").node.restore(past, now);
    world.run(6_000);
    let lost = |(who, what, name): &&(usize, PeerTransition, String)| {
        *who == 1 && *what == PeerTransition::Lost && name == "lb3"
    };
    assert_eq!(world.changes.iter().filter(lost).count(), 1, "{:?}", &world.changes[changes..]);
}

#[test]
fn one_whose_numbers_end_begins_another_life_and_is_heard_on() {
    let mut world = FleetSimulation::new(3, 0);
    world.run(3_000);
    let now = Time(world.now);
    let desk = &mut world.nodes[1].as_mut().expect("it runs").node;
    let past = desk.handoff_state(now);
    let nearly = 0xf000_0000 - 30;
    desk.restore(
        FleetHandoff { seqs: (nearly, nearly), others: Vec::new(), lost: Vec::new(), ..past.clone() },
        now,
    );
    world.run(5_000);
    world.begin(1, 12);
    world.run(1_000);
    let then = world.nodes[1].as_ref().expect("it runs").node.handoff_state(Time(world.now));
    assert!(then.life > past.life && then.seqs.0 < 10_000 && then.seqs.1 < 10_000, "{then:?}");
    for who in [0, 2] {
        assert!(
            (11.0..=12.5).contains(&world.vitals(who).peer_in_flight()),
            "{}",
            world.vitals(who).peer_in_flight()
        );
        assert!(world.states(who).iter().all(|(_, state)| state == "up"), "{:?}", world.states(who));
    }
}

#[test]
fn one_that_was_lost_keeps_its_part_beyond_another_process() {
    let mut world = FleetSimulation::new(3, 0);
    world.run(3_000);
    let part = |world: &FleetSimulation| world.vitals(1).part();
    assert_eq!(part(&world), Some(10));
    world.nodes[2] = None;
    world.run(10_000);
    assert_eq!((world.states(1).len(), part(&world)), (2, Some(10)));
    let upgrade = |world: &mut FleetSimulation| {
        let desk = &world.nodes[1].as_ref().expect("it runs").node;
        let written = serde_json::to_string(&desk.handoff_state(Time(world.now))).unwrap();
        let past: FleetHandoff = serde_json::from_str(&written).unwrap();
        world.start(1, past.life);
        world.nodes[1].as_mut().expect("it runs").node.restore(past, Time(world.now));
    };
    let before = world.changes.len();
    // Two handoffs: the next process also receives inherited state.
    upgrade(&mut world);
    world.run(10_000);
    upgrade(&mut world);
    world.run(10_000);
    assert_eq!(world.changes[before..], [], "nobody came or went");
    assert!(world.states(1).contains(&("lb3".to_owned(), "lost".to_owned())), "{:?}", world.states(1));
    assert_eq!(part(&world), Some(10));
    // For the rest of its time, and no longer.
    world.run(31_000);
    assert_eq!((world.states(1), part(&world)), (up(&["lb1"]), Some(15)));
    let old: FleetHandoff = serde_json::from_str("{\"life\":1,\"seqs\":[1,2],\"others\":[]}").unwrap();
    assert_eq!(old.lost, []);
}
