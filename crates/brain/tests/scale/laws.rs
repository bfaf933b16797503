//! The laws of every decision, for any input.

use std::time::Duration;

use crate::dice::Dice;
use plimsoll_brain::Time;
use plimsoll_brain::autoscale::{
    GroupObservation, MemberObservation, ScaleDecision, ScaleReason, ScaleTarget, ScaledMemberState, Scaler,
    ScalerSettings,
};
use proptest::prelude::*;

/// The capacity, standing, whether it is ours, in flight, processors in use, load line, share of its host.
type Known = (f64, u8, bool, u32, Option<f64>, Option<f64>, f64);

#[derive(Clone, Debug)]
struct Look {
    members: Vec<Known>,
    rate: f64,
    waiting: f64,
    refused: f64,
    response: Option<f64>,
    after: u64,
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 0.0..1000.0_f64,
        1 => Just(0.0),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(1e300), Just(1e-300)],
    ]
}

fn looks() -> impl Strategy<Value = Vec<Look>> {
    let member = (
        0.01..8.0_f64,
        0..4_u8,
        any::<bool>(),
        0..100_u32,
        prop::option::of(number()),
        prop::option::of(number()),
        0.01..=1.0_f64,
    );
    let look = (
        prop::collection::vec(member, 0..12),
        number(),
        number(),
        number(),
        prop::option::of(number()),
        0..5_000_u64,
    );
    let look = look.prop_map(|(members, rate, waiting, refused, response, after)| Look {
        members,
        rate,
        waiting,
        refused,
        response,
        after,
    });
    prop::collection::vec(look, 1..40)
}

fn target() -> impl Strategy<Value = ScaleTarget> {
    prop_oneof![
        (0.05..0.95_f64).prop_map(ScaleTarget::Utilization),
        (0.001..10.0_f64).prop_map(ScaleTarget::ResponseTime),
        (0.05..0.95_f64).prop_map(ScaleTarget::HeadRoom),
    ]
}

fn rules() -> impl Strategy<Value = ScalerSettings> {
    let seconds = || (0..20_u64).prop_map(Duration::from_secs);
    (
        0..6_u32,
        0..10_u32,
        target(),
        0.1..4.0_f64,
        seconds(),
        seconds(),
        1..5_u32,
        1..3_u32,
        seconds(),
        seconds(),
    )
        .prop_map(
            |(min, more, target, unit, cool_up, cool_down, step_up, step_down, stabilize, start_time)| {
                ScalerSettings {
                    min,
                    max: min + more,
                    target,
                    unit_capacity: unit,
                    cool_up,
                    cool_down,
                    step_up,
                    step_down,
                    stabilize,
                    start_time,
                }
            },
        )
}

fn standing(number: u8) -> ScaledMemberState {
    [
        ScaledMemberState::Usable,
        ScaledMemberState::Starting,
        ScaledMemberState::Unavailable,
        ScaledMemberState::Draining,
    ][usize::from(number % 4)]
}

fn run(
    rules: &ScalerSettings,
    looks: &[Look],
    dry: bool,
    mut each: impl FnMut(&Look, &[MemberObservation<'_>], &ScaleDecision, Time),
) {
    let mut scaler = Scaler::new(rules.clone());
    let mut now = Time(1);
    let names: Vec<String> = (0..12).map(|place| format!("m{place}")).collect();
    for look in looks {
        now = now + Duration::from_millis(look.after);
        let members: Vec<MemberObservation<'_>> = look
            .members
            .iter()
            .zip(&names)
            .map(|((capacity, number, ours, in_flight, utilization, line, share), name)| MemberObservation {
                name,
                capacity: *capacity,
                state: standing(*number),
                is_removable: *ours,
                in_flight: *in_flight,
                utilization: *utilization,
                line: *line,
                share: *share,
            })
            .collect();
        let seen = GroupObservation {
            members: &members,
            load_line_known: true,
            peer_rate: 0.0,
            rate: look.rate,
            waiting: look.waiting,
            rejected: look.refused,
            response_p95: look.response,
        };
        let decision = scaler.observe(&seen, dry, now);
        each(look, &members, &decision, now);
    }
}

proptest! {
    #[test]
    fn bounds_hold_and_nothing_is_done_twice(rules in rules(), looks in looks()) {
        let (mut last_up, mut last_down) = (None::<Time>, None::<Time>);
        let mut failed = Ok(());
        run(&rules, &looks, false, |_, members, decision, now| {
            if failed.is_err() {
                return;
            }
            failed = (|| {
                let there = |member: &&MemberObservation<'_>| {
                    matches!(member.state, ScaledMemberState::Usable | ScaledMemberState::Starting)
                };
                let have = members.iter().filter(there).count() as u32;
                prop_assert_eq!(decision.present, have);
                prop_assert!((rules.min..=rules.max).contains(&decision.desired), "{:?}", decision);
                prop_assert!(decision.add == 0 || decision.remove.is_empty(), "{:?}", decision);
                prop_assert!(have + decision.add <= rules.max.max(have), "{:?}", decision);
                let missing = rules.min.saturating_sub(have);
                prop_assert!(decision.add <= rules.step_up.max(missing));
                prop_assert!(decision.add >= missing, "what is missing below the least is started at once");
                prop_assert!(decision.remove.len() as u32 <= rules.step_down);
                prop_assert!(have - decision.remove.len() as u32 >= rules.min.min(have));
                for name in &decision.remove {
                    let member = members.iter().find(|member| member.name == name.as_str()).unwrap();
                    prop_assert!(member.is_removable && there(&member), "{:?}", member);
                }
                let mut names = decision.remove.clone();
                names.dedup();
                prop_assert_eq!(names.len(), decision.remove.len());
                prop_assert!(decision.inputs.iter().all(|(_, value)| value.is_finite()));
                prop_assert!(!decision.explanation.is_empty() && decision.explanation.len() < 2000);
                if decision.add > missing {
                    prop_assert!(last_up.is_none_or(|last| now.since(last) >= rules.cool_up));
                }
                if !decision.remove.is_empty() {
                    let last = last_up.max(last_down);
                    prop_assert!(last.is_none_or(|last| now.since(last) >= rules.cool_down));
                    last_down = Some(now);
                }
                if decision.add > 0 {
                    last_up = Some(now);
                }
                Ok(())
            })();
        });
        failed?;
    }

    #[test]
    fn what_would_be_done_is_the_same_when_it_is_not(rules in rules(), looks in looks()) {
        let rules = ScalerSettings { cool_up: Duration::ZERO, cool_down: Duration::ZERO, ..rules };
        let collect = |dry| {
            let mut all = Vec::new();
            run(&rules, &looks, dry, |_, _, decision, _| all.push(decision.clone()));
            all
        };
        prop_assert_eq!(collect(true), collect(false));
    }

    #[test]
    fn more_traffic_never_wants_fewer(rate in 1.0..500.0_f64, more in 1.0..3.0_f64, count in 1..10_usize) {
        let desired = |rate: f64| {
            let rules = ScalerSettings {
                min: 1,
                max: 1000,
                target: ScaleTarget::HeadRoom(0.3),
                unit_capacity: 1.0,
                cool_up: Duration::ZERO,
                cool_down: Duration::ZERO,
                step_up: 1000,
                step_down: 1000,
                stabilize: Duration::ZERO,
                start_time: Duration::from_secs(5),
            };
            let member = (1.0, 0, true, 1, None, Some(10.0), 1.0);
            let members = vec![member; count];
            let look = Look { members, rate, waiting: 0.0, refused: 0.0, response: None, after: 1000 };
            let mut last = 0;
            run(&rules, &vec![look; 20], true, |_, _, decision, _| last = decision.desired);
            last
        };
        let (some, others) = (desired(rate), desired(rate * more));
        prop_assert!(others >= some, "{} at {}, {} at {}", some, rate, others, rate * more);
        prop_assert_eq!(some, ((1.03 * rate / 10.0 / 0.7 - 1e-3).ceil() as u32).max(1));
    }
}

fn seen<'a>(members: &'a [MemberObservation<'a>], rate: f64) -> GroupObservation<'a> {
    GroupObservation {
        members,
        load_line_known: true,
        rate,
        peer_rate: 0.0,
        waiting: 0.0,
        rejected: 0.0,
        response_p95: None,
    }
}

fn member(name: &str, capacity: f64, line: f64) -> MemberObservation<'_> {
    MemberObservation {
        name,
        capacity,
        state: ScaledMemberState::Usable,
        is_removable: true,
        in_flight: 5,
        utilization: None,
        line: Some(line),
        share: 1.0,
    }
}

fn plain(target: ScaleTarget) -> ScalerSettings {
    ScalerSettings {
        min: 1,
        max: 100,
        target,
        unit_capacity: 1.0,
        cool_up: Duration::ZERO,
        cool_down: Duration::ZERO,
        step_up: 100,
        step_down: 100,
        stabilize: Duration::from_secs(5),
        start_time: Duration::from_secs(1),
    }
}

/// Repeats a look, a second apart; returns the last decision.
fn settle(scaler: &mut Scaler, of: &GroupObservation<'_>, from: u64) -> ScaleDecision {
    let look = |second| scaler.observe(of, true, Time(1) + Duration::from_secs(second));
    (from..from + 400).map(look).last().unwrap()
}

/// Checks two balancers that see half of the traffic each, and the whole of it together.
#[test]
fn what_comes_to_other_balancers_counts_and_is_said() {
    let members = [member("a", 1.0, 100.0)];
    let here = settle(&mut Scaler::new(plain(ScaleTarget::HeadRoom(0.5))), &seen(&members, 40.0), 0);
    let both = GroupObservation { peer_rate: 40.0, ..seen(&members, 80.0) };
    let both = settle(&mut Scaler::new(plain(ScaleTarget::HeadRoom(0.5))), &both, 0);
    assert_eq!((here.desired, both.desired), (1, 2), "{both:?} {here:?}");
    assert!(
        both.explanation.contains("80.0 requests a second (40.0 of them to other balancers)"),
        "{}",
        both.explanation
    );
    assert!(both.inputs.contains(&("requests_per_second_elsewhere".to_owned(), 40.0)), "{both:?}");
    assert!(!here.inputs.iter().any(|(name, _)| name.ends_with("elsewhere")), "{here:?}");
}

#[test]
fn each_decision_has_a_reason_in_one_word() {
    let two = [member("a", 1.0, 100.0), member("b", 1.0, 100.0)];
    let aim = ScaleTarget::HeadRoom(0.5);
    let settled =
        |rules: ScalerSettings, rate: f64| settle(&mut Scaler::new(rules), &seen(&two, rate), 0).reason;
    assert_eq!(settled(plain(aim), 90.0), ScaleReason::Enough);
    assert_eq!(settled(plain(aim), 180.0), ScaleReason::Demand);
    assert_eq!(settled(plain(aim), 20.0), ScaleReason::Spare);
    assert_eq!(settled(ScalerSettings { max: 2, ..plain(aim) }, 180.0), ScaleReason::Most);
    assert_eq!(settled(ScalerSettings { min: 3, ..plain(aim) }, 20.0), ScaleReason::Least);
    assert_eq!(
        settled(ScalerSettings { stabilize: Duration::from_secs(1000), ..plain(aim) }, 20.0),
        ScaleReason::CoolDown
    );
    let mut paused = Scaler::new(plain(aim));
    paused.set_paused(true);
    assert_eq!(settle(&mut paused, &seen(&two, 20.0), 0).reason, ScaleReason::Paused);
    let blind = [MemberObservation { line: None, ..member("a", 1.0, 0.0) }];
    let mut scaler = Scaler::new(plain(aim));
    assert_eq!(scaler.observe(&seen(&blind, 50.0), false, Time(1)).reason, ScaleReason::Unknown);
    let refused = GroupObservation { rejected: 2.0, ..seen(&blind, 50.0) };
    assert_eq!(scaler.observe(&refused, false, Time(1) + Duration::from_secs(1)).reason, ScaleReason::NoRoom);
    // The present demand has room, and grows: it will have none when a member could be ready.
    let mut scaler = Scaler::new(ScalerSettings { start_time: Duration::from_secs(60), ..plain(aim) });
    let grows = |scaler: &mut Scaler, second: u64| {
        scaler.observe(&seen(&two, 40.0 + second as f64 / 2.0), true, Time(1) + Duration::from_secs(second))
    };
    let decision = (0..90).map(|second| grows(&mut scaler, second)).last().unwrap();
    assert_eq!((decision.reason, decision.desired > 2), (ScaleReason::Forecast, true), "{decision:?}");
    let names: std::collections::BTreeSet<&str> =
        ScaleReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), ScaleReason::ALL.len());
}

#[test]
fn unequal_members_count_as_what_they_are() {
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.5)));
    // 4 and 1 can do 50 a second together: 19 a second want 39 of that.
    let members = [member("big", 4.0, 40.0), member("small", 1.0, 10.0)];
    let decision = settle(&mut scaler, &seen(&members, 19.0), 0);
    assert_eq!((decision.desired, &decision.remove[..]), (1, &["small".to_owned()][..]), "{decision:?}");
    // The big one could not be spared.
    let members =
        [member("big", 4.0, 40.0), MemberObservation { in_flight: 0, ..member("small", 1.0, 10.0) }];
    let decision = settle(&mut scaler, &seen(&members, 22.0), 500);
    assert_eq!((decision.desired, decision.remove.len()), (2, 0), "{decision:?}");
}

/// Checks a known weak member beside an unknown strong one: the capacity of both is not twice that of the
/// weak one.
#[test]
fn nothing_is_started_or_taken_away_by_a_range() {
    let members = [member("weak", 1.0, 25.0), MemberObservation { line: None, ..member("strong", 1.0, 0.0) }];
    for rate in [60.0, 2.0] {
        let number = seen(&members, rate);
        let changes = |decision: &ScaleDecision| decision.add > 0 || !decision.remove.is_empty();
        let range = GroupObservation { load_line_known: false, ..number };
        for target in [ScaleTarget::HeadRoom(0.3), ScaleTarget::Utilization(0.7)] {
            assert!(changes(&settle(&mut Scaler::new(plain(target)), &number, 0)), "{rate}");
            let decision = settle(&mut Scaler::new(plain(target)), &range, 0);
            assert_eq!((changes(&decision), decision.desired), (false, 2), "{rate}: {decision:?}");
            assert_eq!(decision.reason, ScaleReason::Unknown, "{rate}: {decision:?}");
        }
    }
    // Times count nevertheless.
    let range = GroupObservation { load_line_known: false, ..seen(&members, 60.0) };
    let mut scaler = Scaler::new(plain(ScaleTarget::ResponseTime(1.0)));
    settle(&mut scaler, &GroupObservation { response_p95: Some(0.3), ..range }, 0);
    let decision = settle(&mut scaler, &GroupObservation { response_p95: Some(3.0), ..range }, 500);
    assert!(decision.add > 0, "{decision:?}");
    // The cost of requests from when it was a number is remembered.
    let members = ["a", "b"].map(|name| member(name, 1.0, 50.0));
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.3)));
    settle(&mut scaler, &seen(&members, 60.0), 0);
    let more =
        settle(&mut scaler, &GroupObservation { load_line_known: false, ..seen(&members, 120.0) }, 500);
    assert!(more.desired > 2, "{more:?}");
}

#[test]
fn who_is_taken_away_has_least_to_lose() {
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.5)));
    let members = [
        member("a", 1.0, 10.0),
        MemberObservation { in_flight: 1, ..member("b", 1.0, 10.0) },
        MemberObservation { is_removable: false, in_flight: 0, ..member("fixed", 1.0, 10.0) },
        MemberObservation { state: ScaledMemberState::Starting, ..member("c", 1.0, 10.0) },
    ];
    let decision = settle(&mut scaler, &seen(&members, 4.0), 0);
    assert_eq!(decision.remove, ["c", "b", "a"], "{decision:?}");
}

#[test]
fn a_member_that_cannot_be_used_is_replaced_and_one_that_starts_is_not_started_twice() {
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.5)));
    let lost = MemberObservation { state: ScaledMemberState::Unavailable, ..member("b", 1.0, 10.0) };
    let decision = settle(&mut scaler, &seen(&[member("a", 1.0, 10.0), lost], 9.0), 0);
    assert_eq!((decision.present, decision.add), (1, 1), "{decision:?}");
    let coming = MemberObservation { state: ScaledMemberState::Starting, ..member("b", 1.0, 10.0) };
    let decision = settle(&mut scaler, &seen(&[member("a", 1.0, 10.0), coming], 9.0), 500);
    assert_eq!((decision.present, decision.add), (2, 0), "{decision:?}");
}

#[test]
fn where_nothing_is_known_nothing_is_done() {
    let mut scaler = Scaler::new(plain(ScaleTarget::Utilization(0.5)));
    let blind = MemberObservation { line: None, ..member("a", 1.0, 0.0) };
    let decision = settle(&mut scaler, &seen(&[blind, blind], 50.0), 0);
    assert_eq!((decision.desired, decision.add, decision.remove.len()), (2, 0, 0));
    assert!(decision.explanation.contains("no agent tells"), "{}", decision.explanation);
    let down = MemberObservation { state: ScaledMemberState::Unavailable, ..blind };
    let decision = settle(&mut scaler, &seen(&[down, down], 50.0), 500);
    assert_eq!((decision.desired, decision.add), (1, 1), "the least is there whatever is known");
}

#[test]
fn where_there_is_no_room_one_more_is_started_whatever_is_known() {
    let mut scaler = Scaler::new(ScalerSettings { max: 3, ..plain(ScaleTarget::HeadRoom(0.3)) });
    let at = |second| Time(1) + Duration::from_secs(second);
    let blind = |name| MemberObservation { line: None, ..member(name, 1.0, 0.0) };
    let one = [blind("a")];
    // A short wait is no want of room, and an unusable member has none to give.
    let calm = scaler.observe(&GroupObservation { waiting: 3.0, ..seen(&one, 50.0) }, false, at(0));
    assert_eq!((calm.add, calm.desired), (0, 1), "{calm:?}");
    let waits = scaler.observe(&GroupObservation { waiting: 2.0, ..seen(&one, 50.0) }, false, at(1));
    assert_eq!((waits.add, waits.desired), (1, 2), "{waits:?}");
    let why = "there is no load line yet, and no agent tells how busy its members' processors are; requests \
               wait for room, 2 \
               now: one more, whatever is known of the load";
    assert_eq!(waits.explanation, why);
    // It is not started twice.
    let coming = [blind("a"), MemberObservation { state: ScaledMemberState::Starting, ..blind("b") }];
    let refuses = |members| GroupObservation { rejected: 4.0, ..seen(members, 50.0) };
    let wait = scaler.observe(&refuses(&coming), false, at(2));
    assert_eq!((wait.add, wait.desired), (0, 2), "{wait:?}");
    assert!(
        wait.explanation
            .ends_with("4.0 requests a second are refused for want of room: what is coming is waited for"),
        "{}",
        wait.explanation
    );
    assert!(wait.inputs.contains(&("refused_per_second".to_owned(), 4.0)), "{:?}", wait.inputs);
    let two = [blind("a"), blind("b")];
    assert_eq!(scaler.observe(&refuses(&two), false, at(3)).add, 1);
    let three = [blind("a"), blind("b"), blind("c")];
    let most = scaler.observe(&refuses(&three), false, at(4));
    assert!(most.add == 0 && most.explanation.ends_with("there are as many as there may be"), "{most:?}");
    let down = [MemberObservation { state: ScaledMemberState::Unavailable, ..blind("a") }];
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.3)));
    let lost = scaler.observe(&refuses(&[down[0], down[0]]), false, at(0));
    assert_eq!((lost.present, lost.desired), (0, 1), "the least, and no more: {lost:?}");
}

#[test]
fn a_load_line_that_says_enough_is_not_believed_while_requests_are_refused() {
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.3)));
    let members = [member("a", 1.0, 100.0), member("b", 1.0, 100.0)];
    let at = |second| Time(1) + Duration::from_secs(second);
    settle(&mut scaler, &seen(&members[..1], 10.0), 0);
    let more =
        scaler.observe(&GroupObservation { rejected: 1.0, ..seen(&members[..1], 10.0) }, false, at(400));
    assert_eq!(more.add, 1, "{more:?}");
    assert!(
        more.explanation.starts_with("1 more: ")
            && more.explanation.contains("1.0 requests a second are refused"),
        "{}",
        more.explanation
    );
    // It is kept for a while, and then is one too many.
    assert_eq!(scaler.observe(&seen(&members, 10.0), false, at(403)).desired, 2);
    assert_eq!(scaler.observe(&seen(&members, 10.0), false, at(420)).remove.len(), 1);
}

#[test]
fn what_is_refused_or_waits_counts() {
    let mut scaler = Scaler::new(plain(ScaleTarget::Utilization(0.5)));
    let busy = |used| MemberObservation { utilization: Some(used), line: None, ..member("a", 1.0, 0.0) };
    // It learns that 20 a second would fill it.
    let decision = settle(&mut scaler, &seen(&[busy(0.45)], 9.0), 0);
    assert_eq!(decision.desired, 1, "{decision:?}");
    // With 55 a second its processors only show that it is full.
    let decision = settle(&mut scaler, &seen(&[busy(1.0)], 55.0), 500);
    assert_eq!(decision.desired, 6, "{decision:?}");
}

#[test]
fn a_few_requests_are_not_taken_for_many() {
    // Requests of 40 ms in the mean, at a third of a member's capacity: half of the looks have seen fifty of
    // them.
    let (mut rest, mut looks) = (0, 0);
    for seed in 0..20 {
        let mut dice = Dice::new(seed, 1);
        let mut scaler = Scaler::new(plain(ScaleTarget::ResponseTime(0.8)));
        let members = ["a", "b"].map(|name| MemberObservation { line: None, ..member(name, 1.0, 0.0) });
        for second in 0..300 {
            let mut times: Vec<f64> = (0..50).map(|_| dice.exp(0.04 / (1.0 - 0.16))).collect();
            times.sort_by(f64::total_cmp);
            let response = (second % 2 == 0).then_some(times[47]);
            let seen = GroupObservation { response_p95: response, ..seen(&members, 8.0) };
            let decision = scaler.observe(&seen, true, Time(1) + Duration::from_secs(second));
            if second >= 100 {
                looks += 1;
                rest += u32::from(decision.desired > 1);
            }
        }
    }
    assert!(rest * 20 < looks, "one too many at {rest} of {looks} looks");
}

#[test]
fn a_shared_host_counts_once() {
    // Two groups have a half of a host each, which is used to 0.67: both have just enough at 0.7.
    let mut scaler = Scaler::new(plain(ScaleTarget::Utilization(0.7)));
    let shared =
        MemberObservation { utilization: Some(0.67), line: None, share: 0.5, ..member("a", 1.0, 0.0) };
    let members = [shared, MemberObservation { name: "b", ..shared }];
    let decision = settle(&mut scaler, &seen(&members, 10.0), 0);
    assert_eq!(decision.desired, 2, "{decision:?}");
    // The same by load lines: each contains the rest that others leave for this group alone.
    let mut scaler = Scaler::new(plain(ScaleTarget::HeadRoom(0.3)));
    let shared =
        MemberObservation { utilization: Some(0.7), line: Some(6.5), share: 0.5, ..member("a", 1.0, 0.0) };
    let members = [shared, MemberObservation { name: "b", ..shared }];
    let decision = settle(&mut scaler, &seen(&members, 6.7), 0);
    assert_eq!(decision.desired, 2, "{decision:?}");
    let decision = settle(&mut scaler, &seen(&members, 7.5), 500);
    assert_eq!(decision.desired, 3, "{decision:?}");
}

#[test]
fn while_paused_only_the_least_is_kept() {
    let mut scaler = Scaler::new(ScalerSettings { min: 3, ..plain(ScaleTarget::HeadRoom(0.3)) });
    scaler.set_paused(true);
    let members = [member("a", 1.0, 10.0), member("b", 1.0, 10.0)];
    let decision = settle(&mut scaler, &seen(&members, 100.0), 0);
    assert_eq!((decision.desired, decision.add), (15, 1), "{decision:?}");
    assert!(decision.explanation.ends_with("paused: nothing is done"), "{}", decision.explanation);
}
