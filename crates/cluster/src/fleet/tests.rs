//! Fleets in virtual time: a lossy network, and balancers that die, leave and return.

use std::collections::BTreeMap;

use plimsoll_brain::Vitals;
use plimsoll_brain::fleet::{FleetMember, FleetUpdateKind, PeerPresence};
use plimsoll_wire::rfs::DatagramKey;

use super::*;
use crate::lottery::socket::SendQueue;

const MILLI: u64 = 1_000_000;

fn address(index: usize) -> SocketAddr {
    ([10, 0, 0, index as u8 + 1], 7946).into()
}

fn settings(index: usize) -> FleetSettings {
    FleetSettings {
        name: format!("lb{}", index + 1),
        listen: address(index),
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
    updates: Vec<(usize, FleetUpdateKind, String)>,
    /// The percentage of lost datagrams.
    loss: u64,
    random_state: u64,
    in_transit: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    count: u64,
}

impl FleetSimulation {
    fn new(count: usize, loss: u64) -> Self {
        let mut simulation = Self {
            now: MILLI,
            nodes: (0..count).map(|_| None).collect(),
            changes: Vec::new(),
            updates: Vec::new(),
            loss,
            random_state: 7,
            in_transit: BTreeMap::new(),
            count: 0,
        };
        (0..count).for_each(|index| simulation.start(index, 1));
        simulation
    }

    fn start(&mut self, index: usize, incarnation: u32) {
        let mut node =
            FleetNode::new(&settings(index), address(index), incarnation, index as u64 + 1, Time(self.now));
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
        node.set_groups(vec![group], Time(self.now));
        self.nodes[index] = Some(SimulatedNode { node, vitals });
    }

    fn run(&mut self, millis: u64) {
        let end = self.now + millis * MILLI;
        while self.now < end {
            self.now += MILLI;
            while let Some(entry) = self.in_transit.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to, bytes) = entry.remove();
                if let Some(node) = &mut self.nodes[to] {
                    node.node.receive(Time(self.now), &bytes);
                }
            }
            for index in 0..self.nodes.len() {
                let Some(node) = &mut self.nodes[index] else { continue };
                let mut out = SendQueue::default();
                // The thread also replies to received datagrams before it waits.
                node.node.run_due(Time(self.now), &[address(0), address(1)], &mut out);
                self.collect_datagrams(index, out);
            }
        }
    }

    fn collect_datagrams(&mut self, index: usize, mut out: SendQueue) {
        let mut sent = Vec::new();
        out.drain(|to, bytes| sent.push((to, bytes.to_vec())));
        for (to, bytes) in sent {
            self.random_state = plimsoll_brain::mix(self.random_state);
            self.count += 1;
            if self.random_state % 100 >= self.loss
                && let Some(to) = (0..self.nodes.len()).find(|candidate| address(*candidate) == to)
            {
                self.in_transit.insert((self.now + MILLI, self.count), (to, bytes));
            }
        }
        let Some(node) = &mut self.nodes[index] else { return };
        while let Some((update, reporter)) = node.node.poll_update() {
            self.updates.push((index, update.kind, reporter));
        }
        self.changes.extend(
            node.node.take_changes().into_iter().map(|change| (index, change.transition, change.name)),
        );
    }

    fn leave(&mut self, index: usize) {
        let Some(mut node) = self.nodes[index].take() else { return };
        let mut out = SendQueue::default();
        node.node.leave(Time(self.now), &mut out);
        self.collect_datagrams(index, out);
    }

    fn states(&self, index: usize) -> Vec<(String, String)> {
        let status = self.nodes[index].as_ref().map(|node| node.node.status(Time(self.now)));
        status
            .into_iter()
            .flat_map(|status| status.balancers)
            .map(|balancer| (balancer.name, balancer.state))
            .collect()
    }

    fn begin(&self, index: usize, requests: usize) {
        for _ in 0..requests {
            self.vitals(index).begin();
        }
    }

    fn vitals(&self, index: usize) -> &Vitals {
        &self.nodes[index].as_ref().expect("it runs").vitals
    }
}

fn up(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), "up".to_owned())).collect()
}

#[test]
fn all_find_one_another_and_act_on_one_view() {
    // With more loss the membership sometimes takes live balancers for dead.
    for loss in [0, 4] {
        let mut simulation = FleetSimulation::new(3, loss);
        simulation.run(3_000);
        assert_eq!(simulation.states(0), up(&["lb2", "lb3"]), "{loss}");
        assert_eq!(simulation.states(2), up(&["lb1", "lb2"]), "{loss}");
        let joined = simulation
            .changes
            .iter()
            .filter(|(_, transition, _)| *transition == PeerTransition::Joined)
            .count();
        assert_eq!(joined, 6, "{:?}", simulation.changes);
        simulation.begin(1, 12);
        simulation.run(3_000);
        for index in [0, 2] {
            let others = simulation.vitals(index).peer_in_flight();
            assert!((11.0..=12.5).contains(&others), "{others}");
        }
        let shares: Vec<u32> = (0..3).filter_map(|index| simulation.vitals(index).part()).collect();
        assert_eq!(shares.iter().sum::<u32>(), 30, "{shares:?}");
        assert!(shares[1] >= 20, "{shares:?}");
        let loss_rate =
            simulation.nodes[0].as_ref().expect("it runs").node.status(Time(simulation.now)).balancers[0]
                .loss;
        assert!((loss_rate - loss as f64 / 100.0).abs() < 0.05, "{loss_rate}");
    }
}

#[test]
fn one_that_dies_takes_what_it_had_with_it_and_one_that_comes_back_is_heard() {
    let mut simulation = FleetSimulation::new(3, 0);
    simulation.run(2_000);
    simulation.begin(1, 12);
    simulation.run(2_000);
    simulation.nodes[1] = None;
    simulation.run(1_900);
    assert_eq!(simulation.vitals(0).peer_in_flight(), 0.0);
    assert_eq!(simulation.states(0)[0], ("lb2".to_owned(), "lost".to_owned()));
    let is_lost = |(_, transition, name): &&(usize, PeerTransition, String)| {
        *transition == PeerTransition::Lost && name == "lb2"
    };
    assert_eq!(simulation.changes.iter().filter(is_lost).count(), 2, "{:?}", simulation.changes);
    // Its share stays reserved: it may be alive.
    let share_sum: u32 = [0, 2].iter().filter_map(|index| simulation.vitals(*index).part()).sum();
    assert!(share_sum <= 20, "{share_sum}");
    simulation.start(1, 2);
    simulation.run(3_000);
    assert_eq!(simulation.states(0), up(&["lb2", "lb3"]));
    simulation.nodes[1] = None;
    simulation.run(64_000);
    assert_eq!(simulation.states(0), up(&["lb3"]), "it is forgotten");
    let share_sum: u32 = [0, 2].iter().filter_map(|index| simulation.vitals(*index).part()).sum();
    assert_eq!(share_sum, 30);
}

#[test]
fn one_that_leaves_says_so() {
    let mut simulation = FleetSimulation::new(3, 4);
    simulation.run(4_000);
    simulation.leave(2);
    simulation.run(50);
    assert_eq!(simulation.states(0), up(&["lb2"]));
    let share_sum: u32 = [0, 1].iter().filter_map(|index| simulation.vitals(*index).part()).sum();
    assert_eq!(share_sum, 30);
    simulation.run(3_000);
    let has_left = |(_, transition, name): &&(usize, PeerTransition, String)| {
        name == "lb3" && *transition == PeerTransition::Left
    };
    assert_eq!(simulation.changes.iter().filter(has_left).count(), 2, "{:?}", simulation.changes);
    assert!(!simulation.changes.iter().any(|(_, what, name)| name == "lb3" && *what == PeerTransition::Lost));
}

#[test]
fn checks_are_told_with_who_made_them() {
    let mut simulation = FleetSimulation::new(2, 0);
    simulation.run(2_000);
    let duties: Vec<usize> = simulation
        .updates
        .iter()
        .filter(|(_, kind, _)| *kind == FleetUpdateKind::ProbeDuty(false))
        .map(|(index, ..)| *index)
        .collect();
    let [idle_index] = duties[..] else { panic!("{:?}", simulation.updates) };
    let prober_index = 1 - idle_index;
    simulation.updates.clear();
    let notice = MemberNotice {
        group: "web".into(),
        member: "10.1.0.1:80".into(),
        action: MemberAction::HealthChecked(false),
    };
    let now = Time(simulation.now);
    simulation.nodes[prober_index].as_mut().expect("it runs").node.record_action(&notice, now);
    simulation.run(100);
    let [(index, FleetUpdateKind::HealthChecked { passed: false, age, .. }, reporter)] =
        &simulation.updates[..]
    else {
        panic!("{:?}", simulation.updates)
    };
    assert_eq!((*index, &**reporter), (idle_index, ["lb1", "lb2"][prober_index]));
    assert!(*age <= Duration::from_millis(40), "{age:?}");
}

#[test]
fn what_was_recorded_and_what_others_made_is_refused() {
    let mut simulation = FleetSimulation::new(2, 0);
    simulation.run(2_000);
    let mut recorded: Vec<Vec<u8>> = Vec::new();
    for _ in 0..100 {
        simulation.run(1);
        recorded.extend(
            simulation.in_transit.values().filter(|(to, _)| *to == 0).map(|(_, bytes)| bytes.clone()),
        );
    }
    simulation.run(2_000);
    assert!(!recorded.is_empty());
    let node = simulation.nodes[0].as_mut().expect("it runs");
    let refused_count = |node: &FleetNode| node.status(Time(simulation.now)).refused;
    let refused_before = refused_count(&node.node);
    recorded.iter().for_each(|bytes| node.node.receive(Time(simulation.now), bytes));
    node.node.receive(Time(simulation.now), b"PF and nothing else");
    assert_eq!(refused_count(&node.node) - refused_before, recorded.len() as u64 + 1);
}

#[test]
fn whatever_one_who_has_the_key_says_nothing_breaks() {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::test_runner::{Config, TestRunner};

    let mut simulation = FleetSimulation::new(2, 0);
    simulation.run(2_000);
    assert_eq!(simulation.states(0), up(&["lb2"]), "the other is known, and what it says is heard");
    let simulation = std::cell::RefCell::new(simulation);
    // Datagrams from the other balancer in any incarnation, or from an unknown one, of any kind, with random
    // contents.
    let strategy = (0_u8..3, 1_u32..4, 0_u8..5, vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..40));
    let mut runner = TestRunner::new(Config::with_cases(2_000));
    let result = runner.run(&strategy, |(index, incarnation, kind, body, extra)| {
        let mut simulation = simulation.borrow_mut();
        simulation.now += MILLI;
        simulation.count += 1;
        let (now, count) = (Time(simulation.now), 1_000_000 + simulation.count as u32);
        let mut bytes = vec![0x50, 0x46, 1, kind];
        bytes.extend_from_slice(&incarnation.to_be_bytes());
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(&[4, 0x1f, 0x0a, 10, 0, 0, index + 1]);
        if kind == 2 {
            // A name, and a section of an existing group: its entries reach deepest into the decoder.
            bytes.extend_from_slice(&[1, b'x']);
            bytes.extend_from_slice(&extra);
        }
        bytes.extend_from_slice(&body);
        settings(0).keys.seal(0, &mut bytes);
        let node = simulation.nodes[0].as_mut().expect("it runs");
        node.node.receive(now, &bytes);
        let mut out = SendQueue::default();
        node.node.run_due(now, &[], &mut out);
        let status = node.node.status(now);
        proptest::prop_assert!(status.refused <= status.received, "{status:?}");
        Ok(())
    });
    result.unwrap();
}

#[test]
fn another_process_goes_on_as_the_same_balancer() {
    let mut simulation = FleetSimulation::new(3, 0);
    simulation.run(3_000);
    simulation.begin(1, 12);
    simulation.run(1_000);
    let changes = simulation.changes.len();
    let handoff = simulation.nodes[1].as_ref().expect("it runs").node.handoff_state(Time(simulation.now));
    assert_eq!(handoff.others.len(), 2);
    // Datagrams that arrive meanwhile wait in the socket; here they are lost.
    simulation.nodes[1] = None;
    simulation.run(100);
    simulation.start(1, handoff.life);
    let now = Time(simulation.now);
    simulation.nodes[1].as_mut().expect("it runs").node.restore(handoff.clone(), now);
    simulation.begin(1, 12);
    simulation.run(1_000);
    assert!(
        (11.0..=12.5).contains(&simulation.vitals(0).peer_in_flight()),
        "{}",
        simulation.vitals(0).peer_in_flight()
    );
    simulation.run(8_000);
    assert_eq!(simulation.changes.len(), changes, "{:?}", &simulation.changes[changes..]);
    for index in 0..3 {
        assert_eq!(simulation.states(index).iter().filter(|(_, state)| state == "up").count(), 2, "{index}");
        let refused =
            simulation.nodes[index].as_ref().expect("it runs").node.status(Time(simulation.now)).refused;
        assert_eq!(refused, 0, "{index}");
    }
    // A balancer that died during the handoff was known only to the previous process: it is lost.
    let handoff = simulation.nodes[1].as_ref().expect("it runs").node.handoff_state(Time(simulation.now));
    simulation.nodes[1] = None;
    simulation.nodes[2] = None;
    simulation.start(1, handoff.life);
    let now = Time(simulation.now);
    simulation.nodes[1].as_mut().expect("it runs").node.restore(handoff, now);
    simulation.run(6_000);
    let is_lost = |(index, transition, name): &&(usize, PeerTransition, String)| {
        *index == 1 && *transition == PeerTransition::Lost && name == "lb3"
    };
    assert_eq!(simulation.changes.iter().filter(is_lost).count(), 1, "{:?}", &simulation.changes[changes..]);
}

#[test]
fn one_whose_numbers_end_begins_another_life_and_is_heard_on() {
    let mut simulation = FleetSimulation::new(3, 0);
    simulation.run(3_000);
    let now = Time(simulation.now);
    let node = &mut simulation.nodes[1].as_mut().expect("it runs").node;
    let handoff = node.handoff_state(now);
    let near_limit = 0xf000_0000 - 30;
    node.restore(
        FleetHandoff {
            seqs: (near_limit, near_limit),
            others: Vec::new(),
            lost: Vec::new(),
            ..handoff.clone()
        },
        now,
    );
    simulation.run(5_000);
    simulation.begin(1, 12);
    simulation.run(1_000);
    let later_handoff =
        simulation.nodes[1].as_ref().expect("it runs").node.handoff_state(Time(simulation.now));
    assert!(
        later_handoff.life > handoff.life && later_handoff.seqs.0 < 10_000 && later_handoff.seqs.1 < 10_000,
        "{later_handoff:?}"
    );
    for index in [0, 2] {
        assert!(
            (11.0..=12.5).contains(&simulation.vitals(index).peer_in_flight()),
            "{}",
            simulation.vitals(index).peer_in_flight()
        );
        assert!(
            simulation.states(index).iter().all(|(_, state)| state == "up"),
            "{:?}",
            simulation.states(index)
        );
    }
}

#[test]
fn one_that_was_lost_keeps_its_part_beyond_another_process() {
    let mut simulation = FleetSimulation::new(3, 0);
    simulation.run(3_000);
    let share = |simulation: &FleetSimulation| simulation.vitals(1).part();
    assert_eq!(share(&simulation), Some(10));
    simulation.nodes[2] = None;
    simulation.run(10_000);
    assert_eq!((simulation.states(1).len(), share(&simulation)), (2, Some(10)));
    let upgrade = |simulation: &mut FleetSimulation| {
        let node = &simulation.nodes[1].as_ref().expect("it runs").node;
        let json = serde_json::to_string(&node.handoff_state(Time(simulation.now))).unwrap();
        let handoff: FleetHandoff = serde_json::from_str(&json).unwrap();
        simulation.start(1, handoff.life);
        simulation.nodes[1].as_mut().expect("it runs").node.restore(handoff, Time(simulation.now));
    };
    let changes_before = simulation.changes.len();
    // Two handoffs: the next process also receives inherited state.
    upgrade(&mut simulation);
    simulation.run(10_000);
    upgrade(&mut simulation);
    simulation.run(10_000);
    assert_eq!(simulation.changes[changes_before..], [], "nobody came or went");
    assert!(
        simulation.states(1).contains(&("lb3".to_owned(), "lost".to_owned())),
        "{:?}",
        simulation.states(1)
    );
    assert_eq!(share(&simulation), Some(10));
    // For the rest of its time, and no longer.
    simulation.run(31_000);
    assert_eq!((simulation.states(1), share(&simulation)), (up(&["lb1"]), Some(15)));
    let old_handoff: FleetHandoff =
        serde_json::from_str("{\"life\":1,\"seqs\":[1,2],\"others\":[]}").unwrap();
    assert_eq!(old_handoff.lost, []);
}
