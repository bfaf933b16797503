//! The properties of `prequal`: hot members are avoided, of the others the fastest is taken, and results age.
//! In a simulated fleet with load reports it is about as good as with the probes of its paper.

#[expect(dead_code, reason = "other tests use the rest of it")]
mod farm;
mod fleet;

use std::time::Duration;

use farm::ours::Ours;
use farm::peers::Prequal;
use farm::{Outcome, Policy, Setting, run};
use fleet::{Dice, members};
use plimsoll_brain::meter::Reading;
use plimsoll_brain::{Choice, PickRequest, PickerState, Plan, StrategyParams, Time, strategy};

const MS: Duration = Duration::from_millis(1);

fn plan(weights: &[f64]) -> Plan {
    let strategy = strategy::find("prequal").expect("a strategy of this name");
    Plan::new(strategy, StrategyParams::defaults(strategy), members(weights))
}

fn at(seconds: f64) -> Time {
    Time(1) + Duration::from_secs_f64(seconds)
}

fn says(in_flight: u32, sojourn: f32) -> Reading {
    Reading {
        in_flight,
        knee: 4.0,
        work: 0.001,
        mean_in_flight: in_flight as f32,
        sojourn,
        ..Reading::default()
    }
}

/// Returns how many of 1000 requests, each ended at once, go to each member from `now` on, one every `step`.
fn shares(plan: &Plan, hand: &mut PickerState, now: Time, step: Duration) -> Vec<u32> {
    let mut counts = vec![0; plan.members().len()];
    let mut dice = Dice(9);
    let mut now = now;
    for turn in 0..1000 {
        let ask = PickRequest { turn, random_bits: dice.bits(), now, ..PickRequest::default() };
        if let Choice::Member(index) = plan.choose(hand, &ask, &[]) {
            counts[index] += 1;
        }
        now = now + step;
    }
    counts
}

#[test]
fn of_cold_members_the_fastest_is_taken() {
    let plan = plan(&[1.0; 8]);
    let mut hand = PickerState::default();
    for (index, member) in plan.members().iter().enumerate() {
        let latency = if index == 5 { 2 * MS } else { 20 * MS };
        plan.observe(&mut hand, &member.vitals, latency, false, at(0.0));
    }
    let counts = shares(&plan, &mut hand, at(0.1), Duration::ZERO);
    assert!(counts[5] > 600, "{counts:?}");
}

#[test]
fn a_hot_member_is_left_alone_however_fast_it_is() {
    let plan = plan(&[1.0; 8]);
    let mut hand = PickerState::default();
    for index in 0..8 {
        // The fastest of them reports a crowd.
        let (crowd, sojourn) = if index == 5 { (50, 0.001) } else { (1 + index as u32 % 2, 0.02) };
        plan.record_report(&mut hand, index, &says(crowd, sojourn), at(0.0));
    }
    let counts = shares(&plan, &mut hand, at(0.1), Duration::ZERO);
    assert!(counts[5] < 20, "{counts:?}");
}

#[test]
fn where_all_are_hot_the_one_with_the_fewest_is_taken() {
    let strategy = strategy::find("prequal").expect("a strategy of this name");
    let knobs = StrategyParams(vec![0.0]);
    let plan = Plan::new(strategy, knobs, members(&[1.0; 4]));
    let mut hand = PickerState::default();
    for index in 0..4 {
        plan.record_report(&mut hand, index, &says(10 + index as u32, 0.001 * (5 - index) as f32), at(0.0));
    }
    let counts = shares(&plan, &mut hand, at(0.1), Duration::ZERO);
    assert!(counts[0] > 900, "{counts:?}");
}

#[test]
fn what_was_said_is_forgotten() {
    let plan = plan(&[1.0; 2]);
    let mut hand = PickerState::default();
    plan.record_report(&mut hand, 0, &says(50, 0.5), at(0.0));
    plan.record_report(&mut hand, 1, &says(0, 0.001), at(0.0));
    assert_eq!(shares(&plan, &mut hand, at(0.1), Duration::ZERO)[0], 0);
    // A second later the first one's results have expired: it has its turns again.
    assert!(shares(&plan, &mut hand, at(1.5), MS)[0] > 0);
}

#[test]
fn what_is_sent_since_a_word_counts() {
    let plan = plan(&[1.0; 4]);
    let mut hand = PickerState::default();
    for index in 0..4 {
        plan.record_report(&mut hand, index, &says(0, if index == 2 { 0.001 } else { 0.002 }), at(0.0));
    }
    let mut counts = [0; 4];
    let mut dice = Dice(3);
    for turn in 0..40 {
        let ask = PickRequest { turn, random_bits: dice.bits(), now: at(0.001), ..PickRequest::default() };
        let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else { panic!("nobody") };
        // None of them ends.
        plan.members()[index].vitals.begin();
        counts[index] += 1;
    }
    assert!(counts.iter().all(|count| (5..=20).contains(count)), "no herd: {counts:?}");
}

#[test]
fn a_member_that_fails_fast_draws_nothing_in() {
    let plan = plan(&[1.0; 6]);
    let mut hand = PickerState::default();
    for turn in 0..60 {
        for (index, member) in plan.members().iter().enumerate() {
            let (latency, failed) = if index == 3 { (MS / 2, true) } else { (10 * MS, false) };
            plan.observe(&mut hand, &member.vitals, latency, failed, at(0.01 * f64::from(turn)));
        }
    }
    let counts = shares(&plan, &mut hand, at(1.0), Duration::ZERO);
    assert!(counts[3] < 20, "{counts:?}");
}

/// Returns the 99th percentile at 90 % load, with `silent` of ten members without load reports; mean over two
/// seeds, milliseconds.
fn p99(silent: usize, policy: impl Fn(&Setting) -> Box<dyn Policy>) -> f64 {
    let of = |seed| {
        let setting = Setting { warmup: 8.0, measured: 6.0, silent, ..Setting::at(0.9, seed) };
        let outcome: Outcome = run(&setting, &mut *policy(&setting));
        outcome.quantile(0.99)
    };
    (of(1) + of(2)) / 2.0
}

#[test]
fn words_with_answers_do_what_probes_do() {
    let ours = |name| {
        move |setting: &Setting| -> Box<dyn Policy> {
            Box::new(Ours::new(name, setting.balancers, setting.members, setting.seed))
        }
    };
    let paper = |setting: &Setting| -> Box<dyn Policy> {
        Box::new(Prequal::new(3, 0.84, setting.balancers, setting.seed))
    };
    let peak = p99(0, ours("peak_ewma"));
    let speaking = p99(0, ours("prequal"));
    assert!(speaking < 0.6 * peak && speaking < p99(0, paper), "{speaking} ms, {peak} ms");
    let half = p99(5, ours("prequal"));
    assert!(half < 0.9 * peak, "{half} ms, {peak} ms");
    let silent = p99(10, ours("prequal"));
    assert!(silent < 0.7 * peak, "{silent} ms, {peak} ms");
}
