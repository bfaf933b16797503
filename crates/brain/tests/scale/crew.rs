//! Members that a scaler started: laws, and the handling of failures.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::autoscale::instances::{
    InstanceAction, InstanceEvent, InstanceObservation, InstanceSet, InstanceState, InstanceTimeouts,
};
use proptest::prelude::*;

const RULES: InstanceTimeouts = InstanceTimeouts {
    start_deadline: Duration::from_secs(10),
    drain_deadline: Duration::from_secs(20),
    first: Duration::from_secs(1),
    max_backoff: Duration::from_secs(8),
    settled_after: Duration::from_secs(5),
};

fn at(millis: u64) -> Time {
    Time(1) + Duration::from_millis(millis)
}

fn name(index: u32) -> Arc<str> {
    format!("m{index}").into()
}

fn orders(crew: &mut InstanceSet) -> Vec<InstanceAction> {
    std::iter::from_fn(|| crew.poll_action()).collect()
}

fn news(crew: &mut InstanceSet) -> Vec<InstanceEvent> {
    std::iter::from_fn(|| crew.poll_event()).collect()
}

fn start(crew: &mut InstanceSet, index: u32, millis: u64) {
    crew.record_start(index, Ok((format!("id{index}"), Some(name(index)))), 0, at(millis));
}

const UP: InstanceObservation = InstanceObservation { usable: true, in_flight: 0 };
const BUSY: InstanceObservation = InstanceObservation { usable: true, in_flight: 3 };

#[test]
fn a_member_comes_serves_ends_its_work_and_goes() {
    let mut crew = InstanceSet::new(RULES);
    assert_eq!(crew.request_starts(2, at(0)), 2);
    assert_eq!(orders(&mut crew), [InstanceAction::Start { index: 0 }, InstanceAction::Start { index: 1 }]);
    assert_eq!((crew.asked(), crew.members().count()), (2, 0));
    start(&mut crew, 1, 100);
    assert_eq!((orders(&mut crew), crew.members().count()), (vec![InstanceAction::ApplyMembers], 1));
    crew.tick(|_| Some(InstanceObservation { usable: false, in_flight: 0 }), 0, at(1000));
    assert_eq!(crew.instance(1).unwrap().state, InstanceState::Coming);
    crew.tick(|_| Some(UP), 0, at(2100));
    assert_eq!(news(&mut crew), [InstanceEvent::Serving(name(1), Duration::from_secs(2))]);
    start(&mut crew, 0, 2200);
    // A serving member is drained, another one is stopped.
    assert_eq!(crew.remove(["m0", "m1", "m7"], at(3000)), 2);
    let done = orders(&mut crew);
    assert_eq!(
        done,
        [
            InstanceAction::ApplyMembers,
            InstanceAction::ApplyMembers,
            InstanceAction::Stop { index: 0 },
            InstanceAction::Drain { index: 1 }
        ]
    );
    assert_eq!(crew.remove(["m1"], at(3000)), 0, "it is on its way");
    crew.tick(|_| Some(BUSY), 0, at(4000));
    crew.tick(|_| Some(UP), 0, at(5000));
    assert!(orders(&mut crew).is_empty(), "one look is not enough");
    crew.tick(|_| Some(UP), 0, at(5200));
    assert_eq!(orders(&mut crew), [InstanceAction::ApplyMembers, InstanceAction::Stop { index: 1 }]);
    assert_eq!(crew.members().count(), 0);
    crew.record_stop(0, Ok(()), 0, at(6000));
    crew.record_stop(1, Ok(()), 0, at(6000));
    assert!(crew.instances().is_empty() && !crew.is_busy());
}

#[test]
fn work_that_does_not_end_is_waited_for_so_long_and_no_longer() {
    let mut crew = InstanceSet::new(RULES);
    crew.request_starts(1, at(0));
    start(&mut crew, 0, 0);
    crew.tick(|_| Some(BUSY), 0, at(10));
    crew.remove(["m0"], at(1000));
    orders(&mut crew);
    crew.tick(|_| Some(BUSY), 0, at(20_999));
    assert!(orders(&mut crew).is_empty());
    crew.tick(|_| Some(BUSY), 0, at(21_000));
    assert_eq!(orders(&mut crew), [InstanceAction::ApplyMembers, InstanceAction::Stop { index: 0 }]);
}

#[test]
fn a_command_that_is_wrong_starts_no_storm() {
    let mut crew = InstanceSet::new(RULES);
    let (mut now, mut tries) = (0, Vec::new());
    crew.request_starts(5, at(0));
    for _ in 0..1200 {
        for order in orders(&mut crew) {
            if let InstanceAction::Start { index } = order {
                tries.push(now);
                crew.record_start(index, Err("no such file".into()), 0, at(now));
            }
        }
        now += 100;
        crew.tick(|_| None, 0, at(now));
        crew.request_starts(5, at(now));
    }
    // Five at once, then one after 8 s each time (it is the fifth failure in a row).
    assert_eq!(&tries[..5], [0; 5]);
    assert!(tries[5..].windows(2).all(|pair| pair[1] - pair[0] >= 8000), "{tries:?}");
    assert!(tries.len() <= 5 + 120_000 / 8000 + 1, "{}", tries.len());
    let told = news(&mut crew);
    assert_eq!(told.len(), 1, "the same failure is told once: {told:?}");
    assert_eq!(crew.failures().1, Some("no such file"));
}

#[test]
fn one_that_does_not_come_up_goes_and_one_that_ends_is_told_of() {
    let mut crew = InstanceSet::new(RULES);
    crew.request_starts(1, at(0));
    start(&mut crew, 0, 0);
    orders(&mut crew);
    crew.tick(|_| None, 0, at(9_999));
    assert!(orders(&mut crew).is_empty());
    crew.tick(|_| None, 0, at(10_000));
    assert_eq!(orders(&mut crew), [InstanceAction::ApplyMembers, InstanceAction::Stop { index: 0 }]);
    assert!(
        matches!(&news(&mut crew)[..], [InstanceEvent::Failed(why, _)] if why.contains("within 10 s")),
        "late"
    );
    crew.record_stop(0, Ok(()), 0, at(10_000));
    // Only one that shows that the failure is over, and only after the pause.
    assert_eq!(crew.request_starts(3, at(10_500)), 0);
    assert_eq!(crew.request_starts(3, at(11_100)), 1);
    orders(&mut crew);
    start(&mut crew, 0, 11_100);
    crew.tick(|_| Some(UP), 0, at(11_200));
    crew.tick(|_| Some(UP), 0, at(17_000));
    assert!(news(&mut crew).contains(&InstanceEvent::Recovered(1)));
    assert_eq!(crew.request_starts(3, at(17_000)), 3);
    orders(&mut crew);
    crew.record_exit(0, "killed by signal 9".into(), 0, at(20_000));
    let told = news(&mut crew);
    assert!(matches!(&told[..], [InstanceEvent::Ended(member, _)] if **member == *"m0"), "{told:?}");
    assert_eq!(orders(&mut crew), [InstanceAction::ApplyMembers]);
    assert_eq!(crew.members().count(), 0);
    // It had worked for long enough: its end is no evidence against the next.
    assert_eq!(crew.failures(), (0, None));
    assert_eq!(crew.request_starts(1, at(20_000)), 1);
    // That one had not.
    orders(&mut crew);
    start(&mut crew, 0, 20_000);
    crew.tick(|_| Some(UP), 0, at(20_100));
    news(&mut crew);
    crew.record_exit(0, "killed by signal 9".into(), 0, at(21_000));
    assert!(matches!(&news(&mut crew)[..], [InstanceEvent::Ended(..), InstanceEvent::Failed(..)]));
}

#[test]
fn a_failure_of_long_ago_makes_nobody_slow() {
    let mut crew = InstanceSet::new(RULES);
    crew.request_starts(2, at(0));
    start(&mut crew, 0, 0);
    start(&mut crew, 1, 0);
    crew.tick(|_| Some(UP), 0, at(100));
    // It is not needed again.
    crew.record_exit(1, "killed by signal 9".into(), 0, at(200));
    let over = 1_200 + RULES.max_backoff.as_millis() as u64;
    crew.tick(|_| Some(UP), 0, at(over - 1));
    assert_eq!(crew.failures().0, 1);
    crew.tick(|_| Some(UP), 0, at(over));
    assert_eq!((crew.failures().0, crew.request_starts(3, at(over))), (0, 3), "all at once");
}

#[test]
fn one_that_cannot_be_stopped_is_tried_again() {
    let mut crew = InstanceSet::new(RULES);
    crew.request_starts(1, at(0));
    start(&mut crew, 0, 0);
    crew.remove(["m0"], at(100));
    orders(&mut crew);
    crew.record_stop(0, Err("it does not answer".into()), 0, at(200));
    crew.tick(|_| None, 0, at(1100));
    assert!(orders(&mut crew).is_empty());
    crew.tick(|_| None, 0, at(1200));
    assert_eq!(orders(&mut crew), [InstanceAction::Stop { index: 0 }]);
    crew.record_stop(0, Ok(()), 0, at(1300));
    assert!(crew.instances().is_empty());
    assert_eq!(crew.failures(), (0, None));
}

#[test]
fn one_that_stays_unusable_is_replaced() {
    let mut crew = InstanceSet::new(RULES);
    crew.request_starts(1, at(0));
    start(&mut crew, 0, 0);
    crew.tick(|_| Some(UP), 0, at(100));
    orders(&mut crew);
    let down = InstanceObservation { usable: false, in_flight: 0 };
    crew.tick(|_| Some(down), 0, at(1_000));
    crew.tick(|_| Some(UP), 0, at(10_000));
    crew.tick(|_| Some(down), 0, at(11_000));
    crew.tick(|_| Some(down), 0, at(20_900));
    assert!(orders(&mut crew).is_empty(), "it came back meanwhile");
    crew.tick(|_| Some(down), 0, at(21_000));
    assert_eq!(orders(&mut crew), [InstanceAction::ApplyMembers, InstanceAction::Stop { index: 0 }]);
}

#[derive(Clone, Debug)]
enum Deed {
    Add(u32),
    Remove(u32),
    Started(u32, bool),
    Ended(u32),
    Stopped(u32, bool),
    Tick(bool, u32),
    Pass(u64),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let index = || 0..6_u32;
    let deed = prop_oneof![
        (0..5_u32).prop_map(Deed::Add),
        index().prop_map(Deed::Remove),
        (index(), any::<bool>()).prop_map(|(index, well)| Deed::Started(index, well)),
        index().prop_map(Deed::Ended),
        (index(), any::<bool>()).prop_map(|(index, well)| Deed::Stopped(index, well)),
        (any::<bool>(), 0..2_u32).prop_map(|(usable, busy)| Deed::Tick(usable, busy)),
        (0..6_000_u64).prop_map(Deed::Pass),
    ];
    prop::collection::vec(deed, 0..120)
}

proptest! {
    #[test]
    fn whatever_happens_numbers_are_unique_and_nobody_is_stopped_at_work(
        deeds in deeds(),
        chance in any::<u64>(),
    ) {
        let mut crew = InstanceSet::new(RULES);
        let mut millis = 0;
        // The members of the group at the last `Tell`, and the drained ones.
        let (mut told, mut drained) = (BTreeSet::new(), BTreeSet::new());
        for deed in deeds {
            let now = at(millis);
            let paused = !crew.start_backoff(now).is_zero();
            match deed {
                Deed::Add(count) => {
                    let done = crew.request_starts(count, now);
                    prop_assert!(done <= count && (!paused || done == 0));
                }
                Deed::Remove(index) => drop(crew.remove([&*name(index)], now)),
                Deed::Started(index, true) => start(&mut crew, index, millis),
                Deed::Started(index, false) => crew.record_start(index, Err("no".into()), chance, now),
                Deed::Ended(index) => crew.record_exit(index, "gone".into(), chance, now),
                Deed::Stopped(index, well) => {
                    let stopping =
                        crew.instance(index).is_some_and(|hand| hand.state == InstanceState::Stopping);
                    if stopping {
                        crew.record_stop(index, if well { Ok(()) } else { Err("no".into()) }, chance, now);
                    }
                }
                Deed::Tick(usable, in_flight) => {
                    crew.tick(|_| Some(InstanceObservation { usable, in_flight }), chance, now);
                }
                Deed::Pass(more) => millis += more,
            }
            prop_assert!(crew.start_backoff(now) <= RULES.max_backoff);
            let mut indices: Vec<u32> = crew.instances().iter().map(|hand| hand.index).collect();
            let count = indices.len();
            indices.dedup();
            prop_assert_eq!(indices.len(), count);
            prop_assert!(indices.is_sorted());
            for order in orders(&mut crew) {
                match order {
                    InstanceAction::ApplyMembers => told = crew.members().cloned().collect(),
                    InstanceAction::Drain { index } => drop(drained.insert(index)),
                    InstanceAction::Start { index } => {
                        drained.remove(&index);
                    }
                    InstanceAction::Stop { index } => {
                        prop_assert!(!told.contains(&name(index)), "it is stopped while requests are sent \
                            there");
                    }
                }
            }
        }
    }
}
