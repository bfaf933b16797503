//! The use of an old load report by `adaptive`, and of observations.

mod fleet;

use std::time::Duration;

use fleet::{Dice, members};
use plimsoll_brain::meter::Reading;
use plimsoll_brain::{Choice, PickRequest, PickerState, Plan, StrategyParams, Time, strategy};

const MS: Duration = Duration::from_millis(1);

fn at(millis: u32) -> Time {
    Time(1) + millis * MS
}

/// A request takes 10 ms at low concurrency, four fit at once, and six are there.
const WORD: Reading = Reading {
    in_flight: 6,
    knee: 4.0,
    work: 0.01,
    mean_in_flight: 6.0,
    sojourn: 0.002,
    slot: false,
    open: false,
};

/// Returns two members with a report of [`WORD`] and `here` requests from here. The answers of the second
/// have taken 50 ms, those of the first 20.
fn fleet(here: u32) -> (Plan, PickerState) {
    let strategy = strategy::find("adaptive").expect("a strategy of this name");
    let plan = Plan::new(strategy, StrategyParams::defaults(strategy), members(&[1.0, 1.0]));
    let mut hand = PickerState::default();
    for (index, member) in plan.members().iter().enumerate() {
        for _ in 0..here {
            member.vitals.begin();
        }
        for turn in 0..200 {
            let now = at(5 * turn);
            member.vitals.begin();
            plan.record_report(&mut hand, index, &WORD, now);
            member.vitals.end();
            let took = if index == 0 { 20 } else { 50 };
            plan.observe(&mut hand, &member.vitals, took * MS, false, now);
        }
    }
    (plan, hand)
}

/// Returns how many of 1000 requests, each ended at once, go to the second this many milliseconds after its
/// last report.
fn second(here: u32, later: u32) -> u32 {
    let (plan, mut hand) = fleet(here);
    let mut dice = Dice(7);
    let now = at(5 * 199 + later);
    (0..1000)
        .map(|turn| PickRequest { turn, random_bits: dice.bits(), now, ..PickRequest::default() })
        .fold(0, |count, ask| count + u32::from(plan.choose(&mut hand, &ask, &[]) == Choice::Member(1)))
}

#[test]
fn a_fresh_word_is_believed() {
    assert!((400..600).contains(&second(0, 0)), "{}", second(0, 0));
}

#[test]
fn of_an_old_one_what_is_seen_takes_the_place() {
    assert_eq!(second(0, 100), 0);
}

/// Checks that a balancer that sends all of a member's requests knows their number.
#[test]
fn not_where_all_requests_are_ones_own() {
    assert!((400..600).contains(&second(6, 100)), "{}", second(6, 100));
}

/// Checks that the observations of an unused member age, too.
#[test]
fn a_member_that_was_slow_is_tried_again() {
    let (before, after) = (second(0, 100), second(0, 9000));
    assert!(before == 0 && after > 100, "{before}, {after}");
}

/// Checks that it is tried again once its report is forgotten, beside one with reports.
#[test]
fn nor_is_it_slow_for_ever_once_its_word_is_forgotten() {
    let (plan, mut hand) = fleet(0);
    let share = |hand: &mut PickerState, now: Time| {
        plan.record_report(hand, 0, &WORD, now);
        let mut dice = Dice(7);
        (0..1000)
            .map(|turn| PickRequest { turn, random_bits: dice.bits(), now, ..PickRequest::default() })
            .fold(0, |count, ask| count + u32::from(plan.choose(hand, &ask, &[]) == Choice::Member(1)))
    };
    let after = share(&mut hand, at(11_100));
    assert!(after > 100, "{after}");
}
