//! The aperture: each balancer uses a part of its own of a large group, whatever the strategy.

use std::collections::BTreeSet;
use std::time::Duration;

use plimsoll_brain::{
    Analyzer, Choice, EventKind, GroupSpec, HealthSpec, MemberId, MemberSpec, PickRequest, PickerState, Plan,
    Strategy, StrategyParams, Time, WhenAllDown, mix, strategy,
};

const MEMBERS: u32 = 40;
const LEAST: u32 = 12;

fn group(strategy: &'static Strategy, seed: u64) -> Analyzer {
    let member = |index: u32| MemberSpec {
        name: format!("10.0.0.{index}:80").into(),
        address: ([10, 0, 0, index as u8], 80).into(),
        capacity: 1.0,
        limit: u32::MAX,
        leaving: false,
        checked: false,
    };
    let spec = GroupSpec {
        name: "web".into(),
        strategy,
        params: StrategyParams::defaults(strategy),
        members: (0..MEMBERS).map(member).collect(),
        health: None,
        outlier: None,
        slow_start: Duration::ZERO,
        when_all_down: WhenAllDown::Reject,
        admission: Some(false),
        objective: None,
        aperture: Some(LEAST),
    };
    let mut analyzer = Analyzer::new(spec, Time(0));
    analyzer.set_balancer_seed(seed);
    analyzer
}

fn used(plan: &Plan) -> BTreeSet<u32> {
    plan.members().iter().map(|member| member.id.0).collect()
}

fn plan(analyzer: &mut Analyzer, now: Time) -> Plan {
    analyzer.plan(now).expect("something has changed")
}

fn seconds(seconds: f64) -> Time {
    Time(0) + Duration::from_secs_f64(seconds)
}

/// Returns the members chosen over many requests that end at once.
fn chosen(plan: &Plan) -> BTreeSet<u32> {
    let mut hand = PickerState::default();
    let ask = |turn: u64| PickRequest {
        turn,
        random_bits: mix(turn),
        key: mix(!turn),
        now: Time(turn),
        ..PickRequest::default()
    };
    let one = |turn| match plan.choose(&mut hand, &ask(turn), &[]) {
        Choice::Member(index) => plan.members()[index].id.0,
        none => panic!("{}: {none:?}", plan.strategy().name),
    };
    (0..2_000).map(one).collect()
}

#[test]
fn every_strategy_uses_its_part_and_no_more() {
    for strategy in strategy::ALL.iter().copied().chain([strategy::EXPRESSION]) {
        let mut all = vec![0; MEMBERS as usize];
        for balancer in 0..40 {
            let first = plan(&mut group(strategy, mix(balancer)), Time(0));
            let part = used(&first);
            assert_eq!(part.len(), LEAST as usize, "{}", strategy.name);
            assert_eq!(part, used(&plan(&mut group(strategy, mix(balancer)), Time(0))), "it is drawn once");
            assert!(chosen(&first).is_subset(&part));
            part.iter().for_each(|member| all[*member as usize] += 1);
        }
        // Drawn 40 times with a probability of 0.3: 12 in the mean, 3 the deviation.
        assert!(all.iter().all(|count| (3..=23).contains(count)), "not all are used alike: {all:?}");
    }
}

#[test]
fn what_cannot_be_used_makes_room_for_the_next_and_changes_nothing_else() {
    for strategy in strategy::ALL {
        let mut group = group(strategy, 7);
        let before = used(&plan(&mut group, Time(0)));
        let out: Vec<u32> = before.iter().copied().step_by(3).collect();
        for member in &out {
            group.disable(&format!("10.0.0.{member}:80"), Time(1)).unwrap();
        }
        let after = used(&plan(&mut group, Time(1)));
        assert_eq!(after.len(), LEAST as usize, "{}", strategy.name);
        assert!(before.iter().all(|member| out.contains(member) != after.contains(member)), "{after:?}");
        // All but five are out: those are used.
        for member in (0..MEMBERS).filter(|member| *member >= 5) {
            group.disable(&format!("10.0.0.{member}:80"), Time(2)).unwrap();
        }
        assert!(plan(&mut group, Time(2)).members().len() <= 5);
    }
}

#[test]
fn it_widens_at_once_and_narrows_when_it_has_been_too_wide_for_long() {
    for strategy in strategy::ALL {
        let mut group = group(strategy, 3);
        let first = plan(&mut group, Time(0));
        let vitals: Vec<_> = group.members().map(|(_, _, vitals)| vitals.clone()).collect();
        let look = |group: &mut Analyzer, now: f64| {
            group.watch(true, seconds(now));
            group.plan(seconds(now)).map(|plan| used(&plan))
        };
        look(&mut group, 0.1);
        // Ten in flight need twenty members, and get a quarter more.
        first.members().iter().take(10).for_each(|member| {
            member.vitals.begin();
        });
        let mut wide = None;
        for step in 2..12 {
            wide = look(&mut group, f64::from(step) / 10.0).or(wide);
        }
        let wide = wide.expect("it is to widen within a second");
        assert!((20..=26).contains(&wide.len()) && wide.is_superset(&used(&first)), "{}", wide.len());
        let event = std::iter::from_fn(|| group.poll_event()).find(|event| event.kind == EventKind::Aperture);
        let event = event.expect("it is told");
        assert!(
            event.why.starts_with("uses ") && event.why.ends_with(" of 40 members, 12 before"),
            "{}",
            event.why
        );
        // A dip makes no plan.
        first.members().iter().take(10).for_each(|member| {
            member.vitals.end();
        });
        for step in 12..212 {
            assert_eq!(
                look(&mut group, f64::from(step) / 10.0),
                None,
                "{}: it is to stay for a while",
                strategy.name
            );
        }
        let narrow = (212..500).find_map(|step| look(&mut group, f64::from(step) / 10.0));
        assert_eq!(narrow, Some(used(&first)), "as it was before");
        // A growing load needs more members, up to all.
        vitals.iter().for_each(|vitals| {
            vitals.begin();
        });
        let mut all = None;
        for step in 500..520 {
            all = look(&mut group, f64::from(step) / 10.0).or(all);
        }
        assert_eq!(all.map(|all| all.len()), Some(MEMBERS as usize));
    }
}

#[test]
fn whoever_is_bound_outside_may_come_to_its_member() {
    let mut group = group(strategy::ALL[0], 9);
    let inside = used(&plan(&mut group, Time(0)));
    let kept: BTreeSet<u32> = group.reserve_members(false).iter().map(|member| member.id.0).collect();
    assert_eq!(kept.len() + inside.len(), MEMBERS as usize);
    assert!(kept.is_disjoint(&inside) && kept.iter().all(|member| group.is_outside(MemberId(*member))));
    let why = |group: &Analyzer, member: u32| group.status(Time(0))[member as usize].1.why.clone();
    let out = *kept.first().unwrap();
    assert!(
        why(&group, out).starts_with("outside the aperture: this balancer uses 12 of 40 members"),
        "{}",
        why(&group, out)
    );
    assert!(!why(&group, *inside.first().unwrap()).contains("aperture"));
    // Without an aperture all are used, and a member that is down is in none.
    let spec =
        GroupSpec { aperture: None, health: Some(HealthSpec { rise: 1, fall: 1 }), ..group.spec().clone() };
    group.update(spec, Time(1));
    assert_eq!(used(&plan(&mut group, Time(1))).len(), MEMBERS as usize);
    assert!(group.reserve_members(false).is_empty());
}
