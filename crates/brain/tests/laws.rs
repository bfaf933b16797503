//! The laws of every strategy, checked over the whole list: a new one needs no addition here.

mod fleet;

use std::collections::VecDeque;
use std::time::Duration;

use fleet::{Dice, member, members};
use plimsoll_brain::meter::Reading;
use plimsoll_brain::{
    Choice, EffectiveLoad, Member, MemberId, MemberState, PickRequest, PickerState, Plan, Strategy,
    StrategyParams, Time, strategy,
};
use proptest::prelude::*;

fn plan(strategy: &'static Strategy, members: Vec<Member>) -> Plan {
    Plan::new(strategy, StrategyParams::defaults(strategy), members)
}

fn named(name: &str) -> &'static Strategy {
    strategy::find(name).expect("a strategy of this name")
}

fn ask(turn: u64, dice: &mut Dice) -> PickRequest {
    PickRequest {
        turn,
        random_bits: dice.bits(),
        key: dice.bits(),
        now: Time(turn * 100_000),
        ..PickRequest::default()
    }
}

fn chosen(plan: &Plan, ask: &PickRequest, tried: &[MemberId]) -> usize {
    match plan.choose(&mut PickerState::default(), ask, tried) {
        Choice::Member(index) => index,
        none => panic!("{}: {none:?}", plan.strategy().name),
    }
}

#[test]
fn the_list_is_sound() {
    assert_eq!(strategy::ALL[0].name, "adaptive", "the default comes first");
    for strategy in strategy::ALL {
        assert!(std::ptr::eq(named(strategy.name), *strategy), "{} is there twice", strategy.name);
        assert!(!strategy.about.ends_with('.') && !strategy.about.is_empty());
        for knob in strategy.params {
            assert!(knob.min <= knob.default && knob.default <= knob.max, "{}.{}", strategy.name, knob.name);
        }
    }
}

/// Checks that each member's share of the requests approaches its share of the weights, whether requests end
/// at once, never, or after some others.
#[test]
fn shares_converge_to_capacities() {
    const REQUESTS: usize = 40_000;
    let groups: [&[f64]; 6] = [
        &[1.0],
        &[1.0, 1.0, 1.0, 1.0],
        &[1.0, 2.0, 5.0],
        &[0.5, 1.0, 1.0, 2.5, 0.25],
        &[std::f64::consts::PI, std::f64::consts::E, 1.0],
        &[10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ];
    for strategy in strategy::ALL.iter().filter(|strategy| strategy.shares) {
        for weights in groups {
            for held in [0, 50, usize::MAX] {
                // Every knob at its least: no bound on a member's load, which moves requests on purpose.
                let least = StrategyParams(strategy.params.iter().map(|knob| knob.min).collect());
                let plan = Plan::new(strategy, least, members(weights));
                let mut dice = Dice(REQUESTS as u64);
                let mut counts = vec![0_usize; weights.len()];
                let mut flying = VecDeque::new();
                for turn in 0..REQUESTS {
                    let index = chosen(&plan, &ask(turn as u64, &mut dice), &[]);
                    plan.members()[index].vitals.begin();
                    counts[index] += 1;
                    flying.push_back(index);
                    if flying.len() > held {
                        plan.members()[flying.pop_front().unwrap()].vitals.end();
                    }
                }
                let sum: f64 = weights.iter().sum();
                for (count, weight) in counts.iter().zip(weights) {
                    let share = weight / sum;
                    // Five deviations of independent draws, the worst of any strategy; and with few in
                    // flight, a member of a small share has one or none.
                    let noise = 5.0 * (share * (1.0 - share) / REQUESTS as f64).sqrt();
                    let grain = if held == 50 { 0.02 } else { 0.0 };
                    let off = *count as f64 / REQUESTS as f64 - share;
                    assert!(
                        off.abs() <= noise + grain + 2.0 / REQUESTS as f64,
                        "{} of {weights:?}, held {held}: {counts:?}",
                        strategy.name
                    );
                }
            }
        }
    }
}

/// Checks the same for a group of the maximum size.
#[test]
fn shares_converge_in_large_groups() {
    let weights: Vec<f64> = (0..10_000).map(|index| f64::from(1 + index % 4)).collect();
    for strategy in strategy::ALL.iter().filter(|strategy| strategy.shares && !strategy.reads_key) {
        let plan = plan(strategy, members(&weights));
        let mut dice = Dice(1);
        let mut counts = [0_u32; 4];
        for turn in 0..100_000 {
            counts[chosen(&plan, &ask(turn, &mut dice), &[]) % 4] += 1;
        }
        for (count, weight) in counts.into_iter().zip(1..) {
            let expected = f64::from(10_000 * weight);
            assert!((f64::from(count) / expected - 1.0).abs() < 0.05, "{}: {counts:?}", strategy.name);
        }
    }
}

#[test]
fn round_robin_goes_round() {
    let plan = plan(named("round_robin"), members(&[9.0, 1.0, 1.0]));
    let turns: Vec<usize> =
        (0..6).map(|turn| chosen(&plan, &PickRequest { turn, ..PickRequest::default() }, &[])).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

/// Checks that no neighbour of a busy member gets that member's turns on top of its own.
#[test]
fn idle_members_share_the_turns_of_a_busy_one() {
    for weights in [&[1.0; 5][..], &[1.0; 30], &[2.0, 1.0, 1.0, 1.0, 2.0]] {
        let plan = plan(named("least_connections"), members(weights));
        plan.members()[2].vitals.begin();
        let mut counts = vec![0_u32; weights.len()];
        let mut dice = Dice(3);
        for turn in 0..30_000 {
            counts[chosen(&plan, &ask(turn, &mut dice), &[])] += 1;
        }
        assert_eq!(counts[2], 0);
        let idle: f64 = weights.iter().sum::<f64>() - weights[2];
        for (index, weight) in weights.iter().enumerate().filter(|(index, _)| *index != 2) {
            let expected = 30_000.0 * weight / idle;
            assert!((f64::from(counts[index]) / expected - 1.0).abs() < 0.15, "{weights:?}: {counts:?}");
        }
    }
}

#[test]
fn first_available_fills_one_after_the_other() {
    let plan = plan(named("first_available"), (0..3).map(|id| member(id, 1.0, 0, 2)).collect());
    let mut filled = Vec::new();
    while let Choice::Member(index) = plan.choose(&mut PickerState::default(), &PickRequest::default(), &[]) {
        plan.members()[index].vitals.begin();
        filled.push(index);
    }
    assert_eq!(filled, [0, 0, 1, 1, 2, 2]);
    plan.members()[0].vitals.end();
    assert_eq!(
        plan.choose(&mut PickerState::default(), &PickRequest::default(), &[MemberId(0)]),
        Choice::Full
    );
    assert_eq!(plan.choose(&mut PickerState::default(), &PickRequest::default(), &[]), Choice::Member(0));
    assert_eq!(
        plan.choose(&mut PickerState::default(), &PickRequest::default(), &[0, 1, 2].map(MemberId)),
        Choice::NoMember
    );
}

/// Checks that one hot key fills its member up to the bound and then the others, the same ones in the same
/// order.
#[test]
fn a_hot_key_is_bounded() {
    for (factor, weights) in
        [(1.25, vec![1.0; 10]), (1.0, vec![1.0, 2.0, 3.0]), (3.0, vec![1.0, 1.0, 0.5, 4.0])]
    {
        let plan = Plan::new(named("rendezvous"), StrategyParams(vec![factor]), members(&weights));
        let sum: f64 = weights.iter().sum();
        for busy in 1..=1000 {
            let index = chosen(&plan, &PickRequest { key: 77, ..PickRequest::default() }, &[]);
            let own = plan.members()[index].vitals.begin();
            let bound = (factor * f64::from(busy) * weights[index] / sum).ceil();
            assert!(f64::from(own) <= bound, "{own} of {busy} in flight at one of {weights:?}");
        }
        let unbounded = Plan::new(named("rendezvous"), StrategyParams(vec![0.0]), plan.members().to_vec());
        let owner = chosen(&unbounded, &PickRequest { key: 77, ..PickRequest::default() }, &[]);
        let share = f64::from(plan.members()[owner].in_flight()) / 1000.0;
        assert!(
            share > 0.99 * factor * weights[owner] / sum,
            "its own member has as much as it may: {share}"
        );
    }
}

/// Checks `maglev` and `lottery` with a key: the same member for the same key, whatever the random bits, and
/// the same second one when that is gone.
#[test]
fn a_key_has_one_member() {
    for (name, count) in [("maglev", 2), ("maglev", 40), ("lottery", 2), ("lottery", 40)] {
        let plan = plan(named(name), members(&vec![1.5; count]));
        let mut dice = Dice(count as u64);
        for _ in 0..200 {
            let key = dice.bits();
            let [one, two] =
                [1, 2].map(|chance| PickRequest { key, random_bits: chance, ..PickRequest::default() });
            let first = chosen(&plan, &one, &[]);
            assert_eq!(first, chosen(&plan, &two, &[]));
            let tried = [plan.members()[first].id];
            assert_eq!(chosen(&plan, &one, &tried), chosen(&plan, &two, &tried));
        }
    }
}

/// Checks that nothing is recorded for strategies that read nothing, and that failures do not count as fast
/// for one that reads latency.
#[test]
fn observations_reach_those_who_read_them() {
    let second = Duration::from_secs(1);
    for strategy in strategy::ALL {
        let plan = plan(strategy, members(&[1.0]));
        let vitals = &plan.members()[0].vitals;
        let hand = &mut PickerState::default();
        plan.observe(hand, vitals, second / 1000, true, Time(0));
        assert!(vitals.latency(Time(0), second).is_none_or(|latency| latency >= 5e9), "{}", strategy.name);
        plan.observe(hand, vitals, second, false, Time(0));
        assert_eq!(vitals.latency(Time(0), second).is_some(), strategy.reads_latency, "{}", strategy.name);
    }
}

/// Returns a plan over members that have reported their knees, and the picker state that recorded them.
fn spoken(strategy: &'static Strategy, admission: bool, knees: &[f32]) -> (Plan, PickerState) {
    let plan = plan(strategy, members(&vec![1.0; knees.len()])).with_admission(admission);
    let mut hand = PickerState::default();
    for (index, knee) in knees.iter().enumerate() {
        let reading = Reading { knee: *knee, work: 0.01, sojourn: 0.01, ..Reading::default() };
        plan.record_report(&mut hand, index, &reading, Time(1));
    }
    (plan, hand)
}

/// Checks that with admission each member gets as many requests as its knee and twice its square root, and
/// further ones are shed; without admission none is.
#[test]
fn no_member_gets_more_than_it_can_work_on() {
    let (knees, limits) = ([1.0, 2.0, 4.0, 4.0, 9.0], [3, 5, 8, 8, 15]);
    for strategy in strategy::ALL.iter().copied().chain([strategy::EXPRESSION]) {
        let (plan, mut hand) = spoken(strategy, true, &knees);
        let mut dice = Dice(7);
        let mut ask = |turn| PickRequest { now: Time(1), ..ask(turn, &mut dice) };
        for turn in 0..limits.iter().sum::<u64>() {
            match plan.choose(&mut hand, &ask(turn), &[]) {
                Choice::Member(index) => plan.members()[index].vitals.begin(),
                none => panic!("{}, after {turn}: {none:?}", strategy.name),
            };
        }
        let got: Vec<u64> = plan.members().iter().map(|member| member.in_flight().into()).collect();
        assert_eq!(got, limits, "{}", strategy.name);
        assert_eq!(plan.choose(&mut hand, &ask(99), &[]), Choice::Shed, "{}", strategy.name);
        assert!((0..5).all(|index| plan.is_at_limit(index, Time(1))), "{}", strategy.name);
        let said = plan.refusal_message(&plan.members()[2], Time(1)).expect("it is at its limit");
        assert_eq!(said, "has 8 requests, its concurrency limit by its load reports");
        assert!(plan.explain(&plan.members()[2], Time(1)).contains(&("limit", 8.0)), "{}", strategy.name);
        // A load report with an answer makes room.
        plan.members()[3].vitals.end();
        let reading = Reading { in_flight: 7, knee: 4.0, work: 0.01, sojourn: 0.01, ..Reading::default() };
        plan.record_report(&mut hand, 3, &reading, Time(1));
        assert_eq!(plan.choose(&mut hand, &ask(100), &[]), Choice::Member(3), "{}", strategy.name);
        let (open, mut hand) = spoken(strategy, false, &knees);
        for turn in 0..200 {
            match open.choose(&mut hand, &ask(turn), &[]) {
                Choice::Member(index) => open.members()[index].vitals.begin(),
                none => panic!("{} without admission: {none:?}", strategy.name),
            };
        }
        assert!(!(0..5).any(|index| open.is_at_limit(index, Time(1))));
        assert_eq!(open.refusal_message(&open.members()[2], Time(1)), None);
        assert!(open.explain(&open.members()[2], Time(1)).iter().all(|(name, _)| *name != "limit"));
    }
}

/// Checks that strategies by turns and ranks give a member in slow start its part of them, and no other
/// member more than the rest.
#[test]
fn a_member_in_slow_start_has_a_part_of_its_turns() {
    let parts = |name: &str, slow: &[usize]| {
        let mut members = members(&[8.0, 1.0, 2.0, 1.0]);
        for index in slow {
            (members[*index].state, members[*index].weight) =
                (MemberState::SlowStart, 0.25 * members[*index].capacity);
        }
        let plan = plan(named(name), members);
        let (mut dice, mut counts) = (Dice(11), [0.0; 4]);
        for turn in 0..40_000 {
            counts[chosen(&plan, &ask(turn, &mut dice), &[])] += 1.0 / 40_000.0;
        }
        counts
    };
    let near = |got: [f64; 4], wanted: [f64; 4]| {
        assert!(got.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() < 0.01), "{got:?}");
    };
    let quarter = 0.25;
    near(parts("round_robin", &[2]), [0.3125, 0.3125, 0.0625, 0.3125]);
    near(parts("round_robin", &[0, 1, 2, 3]), [quarter; 4]);
    near(parts("first_available", &[0]), [0.25, 0.75, 0.0, 0.0]);
    near(parts("first_available", &[3]), [1.0, 0.0, 0.0, 0.0]);
    let all = parts("first_available", &[0, 1, 2, 3]);
    assert!(all[0] > 0.5 && all.iter().all(|part| *part > 0.05), "{all:?}");
}

#[test]
fn an_empty_plan_has_nobody() {
    for strategy in strategy::ALL {
        let plan = plan(strategy, Vec::new());
        assert_eq!(
            plan.choose(&mut PickerState::default(), &PickRequest::default(), &[]),
            Choice::NoMember,
            "{}",
            strategy.name
        );
    }
}

fn any_weight() -> impl Strategy_<Value = f64> {
    prop_oneof![
        4 => (1_u32..10).prop_map(f64::from),
        2 => 0.01_f64..100.0,
        1 => (-300_i32..300).prop_map(|power| 10_f64.powi(power)),
        1 => Just(f64::MIN_POSITIVE),
        1 => Just(f64::MAX),
    ]
}

fn any_count() -> impl Strategy_<Value = u32> {
    prop_oneof![3 => 0_u32..4, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

/// Returns any plan: strategy, knobs, 1 to 200 members in any condition.
fn any_plan() -> impl Strategy_<Value = Plan> {
    let any_member =
        (any_weight(), any_count(), prop_oneof![2 => Just(u32::MAX), 1 => any_count()], any::<u64>());
    let knobs = prop::collection::vec(0.0_f64..=1.0, 4);
    (prop::sample::select(strategy::ALL), knobs, prop::collection::vec(any_member, 1..=200)).prop_map(
        |(strategy, knobs, specs)| {
            let members = specs.iter().enumerate().map(|(id, (weight, in_flight, limit, nanos))| {
                let mut member = member(id as u32, *weight, *in_flight, *limit);
                if nanos % 5 > 1 {
                    let begun = *nanos as u32;
                    member.effective = Some(EffectiveLoad { value: (nanos >> 40) as f64 / 1e3, begun });
                }
                if nanos % 3 > 0 {
                    let latency = Duration::from_nanos(nanos >> 20);
                    member.vitals.record_latency(latency, Time(nanos % 100_000_000_000), latency);
                }
                member
            });
            let within =
                |(knob, part): (&strategy::StrategyParam, &f64)| knob.min + part * (knob.max - knob.min);
            let knobs = strategy.params.iter().zip(&knobs).map(within).collect();
            Plan::new(strategy, StrategyParams(knobs), members.collect())
        },
    )
}

fn any_ask() -> impl Strategy_<Value = PickRequest> {
    (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(turn, chance, key, now)| {
        PickRequest {
            turn,
            random_bits: chance,
            key,
            now: Time(now),
            single_attempt: turn % 2 == 0,
            is_session: key % 2 == 0,
            binds_client: key % 3 == 0,
            may_try_stale: chance % 2 == 0,
            ignores_learnt_limits: false,
        }
    })
}

// The name has two meanings.
use proptest::strategy::Strategy as Strategy_;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// Checks that a choice is allowed, and the same when repeated, for any plan.
    #[test]
    fn a_choice_is_sound(
        plan in any_plan(), asks in prop::collection::vec(any_ask(), 8), share in 0_u32..=4,
    ) {
        let member = |index: usize| &plan.members()[index];
        for ask in &asks {
            let tried: Vec<MemberId> = (0..plan.members().len() as u32)
                .filter(|id| (ask.random_bits >> (id % 64)) as u32 % 4 < share)
                .map(MemberId)
                .collect();
            let mut hand = PickerState::default();
            let choice = plan.choose(&mut hand.clone(), ask, &tried);
            prop_assert_eq!(choice, plan.choose(&mut hand, ask, &tried));
            // Only a threshold, or members that are all full, keep a strategy from a choice.
            let reject = plan.params().get(plan.strategy(), "reject").is_some_and(|reject| reject > 0.0);
            let first = (plan.strategy().choose)(&plan, &mut hand, ask);
            prop_assert!(
                first < plan.members().len() || reject || plan.members().iter().all(Member::is_full)
            );
            let mut left = plan.members().iter().filter(|member| !tried.contains(&member.id));
            match choice {
                Choice::Member(index) => {
                    prop_assert!(!member(index).is_full() && !tried.contains(&member(index).id));
                }
                Choice::Shed => prop_assert!(reject || plan.strategy().name == "adaptive"),
                Choice::Full => {
                    let rejected = |member: &Member| reject && member.effective.is_some();
                    prop_assert!(left.clone().next().is_some());
                    prop_assert!(reject || left.all(Member::is_full));
                    prop_assert!(!reject || plan.members().iter().any(rejected) || left.all(Member::is_full));
                }
                Choice::NoMember => prop_assert!(left.next().is_none()),
            }
        }
    }

    /// Checks that `least_connections` is exact.
    #[test]
    fn the_least_loaded_is_the_least_loaded(
        specs in prop::collection::vec((1_u32..100, any_count()), 1..=50),
        ask in any_ask(),
        tried in 0_u32..50,
    ) {
        let members = specs.iter().enumerate();
        let members: Vec<Member> = members
            .map(|(id, (weight, busy))| member(id as u32, f64::from(*weight), *busy, u32::MAX))
            .collect();
        let plan = plan(named("least_connections"), members);
        let tried = [MemberId(tried)];
        let load = |member: &Member| f64::from(member.in_flight()) / member.weight;
        let left = plan.members().iter().filter(|member| !member.is_full() && !tried.contains(&member.id));
        let least = left.map(load).fold(f64::INFINITY, f64::min);
        if let Choice::Member(index) = plan.choose(&mut PickerState::default(), &ask, &tried) {
            prop_assert!(load(&plan.members()[index]) <= least * (1.0 + 1e-9));
        }
    }

    /// Checks that one round of `weighted_round_robin` is exact.
    #[test]
    fn a_round_gives_each_its_share(
        weights in prop::collection::vec(1_u32..20, 1..40),
        start in any::<u32>(),
    ) {
        let scaled: Vec<_> = weights.iter().map(|weight| f64::from(*weight) * 0.7).collect();
        let plan = plan(named("weighted_round_robin"), members(&scaled));
        let least = f64::from(*weights.iter().min().unwrap());
        let round: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let mut counts = vec![0_u32; weights.len()];
        // As long as any common measure of the weights makes the round.
        for turn in 0..round as u64 {
            let request = PickRequest { turn: u64::from(start) + turn, ..PickRequest::default() };
            counts[chosen(&plan, &request, &[])] += 1;
        }
        for (count, weight) in counts.iter().zip(&weights) {
            prop_assert!(count == weight, "{:?} for {:?}, least {}", counts, weights, least);
        }
    }

    /// Checks `rendezvous`: the loss of a member moves only its own keys, and a new member takes keys only
    /// for itself. A key's second choice is the one it gets when the first is gone.
    #[test]
    fn only_the_keys_move_that_must(
        weights in prop::collection::vec(any_weight(), 2..40),
        gone in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let all = plan(named("rendezvous"), members(&weights));
        let gone = gone.index(weights.len());
        let mut rest = all.members().to_vec();
        rest.remove(gone);
        let rest = plan(named("rendezvous"), rest);
        let mut dice = Dice(seed);
        for _ in 0..100 {
            let ask = ask(0, &mut dice);
            let before = all.members()[chosen(&all, &ask, &[])].id;
            let after = rest.members()[chosen(&rest, &ask, &[])].id;
            if before == MemberId(gone as u32) {
                prop_assert_eq!(all.members()[chosen(&all, &ask, &[before])].id, after);
            } else {
                prop_assert_eq!(before, after);
            }
        }
    }

    /// Checks `rendezvous`: a member whose weight grows (slow start) takes keys and gives none.
    #[test]
    fn a_growing_member_only_takes(
        weights in prop::collection::vec(0.1_f64..10.0, 2..40),
        which in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let before = plan(named("rendezvous"), members(&weights));
        let which = which.index(weights.len());
        let mut grown = weights;
        grown[which] *= 1.5;
        let after = plan(named("rendezvous"), members(&grown));
        let mut dice = Dice(seed);
        for _ in 0..100 {
            let ask = ask(0, &mut dice);
            let (old, new) = (chosen(&before, &ask, &[]), chosen(&after, &ask, &[]));
            prop_assert!(old == new || new == which);
        }
    }
}

#[test]
fn clients_that_give_up_make_no_member_faster_and_none_fail() {
    let latency = |plan: &Plan, now: Time| {
        let figures = plan.explain(&plan.members()[0], now);
        figures.iter().find(|(name, _)| name.contains("latency")).map(|(_, value)| *value)
    };
    for name in ["adaptive", "peak_ewma"] {
        let plan = plan(named(name), members(&[1.0]));
        let (mut hand, vitals) = (PickerState::default(), plan.members()[0].vitals.clone());
        let (usual, now) = (Duration::from_millis(50), Time(1_000_000_000));
        plan.observe(&mut hand, &vitals, usual, false, now);
        let before = latency(&plan, now).expect("a latency");
        plan.client_left(&mut hand, &vitals, Duration::from_millis(1), now);
        assert_eq!(latency(&plan, now), Some(before), "{name}: who leaves at once has seen nothing");
        plan.client_left(&mut hand, &vitals, Duration::from_secs(1), now);
        let after = latency(&plan, now).expect("a latency");
        assert!(after > 1.5 * before, "{name}: {before} to {after}");
        assert_eq!(vitals.streak(), 0);
    }
}
