//! Tests of alerts, of the moves of sessions, and of held alerts.

use super::*;
use crate::hash::unit;
use crate::mix;

const T: Duration = Duration::from_secs(3);

/// Runs rounds of simultaneous reports, each with every member's load.
fn group(rule: AlertRule, capacities: &[f64], rounds: &[&[f64]]) -> GroupAlerts {
    let mut alerts = GroupAlerts::new(rule);
    (1..).zip(rounds).for_each(|(round, loads)| record_round(&mut alerts, round, capacities, loads));
    alerts
}

/// Runs one round of reports.
fn record_round(alerts: &mut GroupAlerts, round: u32, capacities: &[f64], loads: &[f64]) {
    for ((id, load), capacity) in (0..).zip(loads).zip(capacities) {
        let at = Time(0) + T * round;
        let report = MemberReport { capacity: *capacity, load: *load, effective: *load, at, period: T };
        alerts.record_report(MemberId(id), &report);
    }
}

#[track_caller]
fn assert_close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 0.02 * expected, "{value}, not {expected}");
}

#[test]
fn a_surplus_goes_in_proportion() {
    let (even, step) = ([0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 1.0]);
    let capacities = [1.0, 1.0, 2.0, 4.0];
    assert_eq!(
        group(AlertRule::Surplus, &capacities, &[&even, &even, &step]).alerts().count(),
        0,
        "one report"
    );
    let alerts = group(AlertRule::Surplus, &capacities, &[&even, &even, &step, &step]);
    let fair = (0.5 * 4.0 + 1.0 * 4.0) / 8.0;
    let alert = alerts.alerts().next().expect("an alert");
    let input = |name| alert.inputs.iter().find(|(input_name, _)| *input_name == name).expect("an input").1;
    assert_close(input("load"), 1.0);
    assert_close(input("fair"), fair);
    assert_close(f64::from(alert.shed.share), 1.0 - fair);
    assert_eq!((alert.member, alert.since, alert.shed.period), (MemberId(3), Time(0) + 4 * T, T));
    // The part to move is the deficit of the others.
    let total_deficit: f64 = (0..4).map(|id| alerts.deficit(MemberId(id))).sum();
    assert_close(total_deficit, (1.0 - fair) * 4.0);
    assert_eq!(alerts.deficit(MemberId(3)), 0.0);
    assert_close(alerts.deficit(MemberId(2)), 2.0 * alerts.deficit(MemberId(0)));
}

#[test]
fn a_session_helps_that_is_less_than_the_gap() {
    let gap = |capacities: &[f64], last_loads: &[f64]| {
        let alerts = group(AlertRule::Surplus, capacities, &[last_loads, last_loads]);
        let shed = alerts.alerts().next().expect("an alert").shed;
        assert_close(f64::from(shed.load), 2.0);
        shed.gap
    };
    // Twice the move that makes both equal, less the noise.
    let gap_of_equals = gap(&[1.0; 3], &[2.0, 0.5, 0.5]);
    assert!((0.55..0.75).contains(&gap_of_equals), "{gap_of_equals}");
    assert!((gap(&[1.0; 3], &[0.5, 0.5, 2.0]) - gap_of_equals).abs() < 1e-6, "whoever reports last");
    // A move changes little at a member four times as large: it takes up to 1.6 times the difference.
    let large_gap = gap(&[1.0, 4.0, 4.0], &[2.0, 0.5, 0.5]);
    assert!(
        (1.5 * gap_of_equals..1.7 * gap_of_equals).contains(&large_gap),
        "{large_gap}: 1.6 times {gap_of_equals}"
    );
    // Sessions move to the greatest deficit: to the one that has a tenth.
    let uneven_gap = gap(&[1.0; 3], &[2.0, 0.5, 0.05]);
    assert!(uneven_gap > gap_of_equals + 0.05, "{uneven_gap}");
    // By the papers' rules all are to move.
    let alerts = group(AlertRule::Critical(0.8), &[1.0; 2], &[&[0.9, 0.5], &[0.9, 0.5]]);
    assert!(alerts.shed(MemberId(0)).gap.is_infinite() && ShedDecision::default().gap.is_infinite());
}

#[test]
fn a_night_leaves_no_trace() {
    let decide_after = |rounds: u32| {
        let mut alerts = GroupAlerts::new(AlertRule::Surplus);
        let activity = |round: u32| if round < 20 { 1.0 } else { 0.0 };
        for round in 1..rounds {
            let load = |id: u64| activity(round) * (90.0 + 9.0 * unit(mix(u64::from(round) * 4 + id)));
            record_round(&mut alerts, round, &[1.0; 4], &[load(0), load(1), load(2), load(3)]);
        }
        // One has all, and another almost nothing.
        (0..2).for_each(|offset| {
            record_round(&mut alerts, rounds + offset, &[1.0; 4], &[360.0, 0.0, 1e-9, 0.0])
        });
        let alert = alerts.alerts().next().expect("an alert");
        let total_deficit: f64 = (0..4).map(|id| alerts.deficit(MemberId(id))).sum();
        (alert.member, alert.shed.share, total_deficit)
    };
    for rounds in [22, 40, 100, 10_000] {
        let (member, share, total_deficit) = decide_after(rounds);
        assert_eq!(member, MemberId(0));
        assert_close(f64::from(share), 0.75);
        assert_close(total_deficit, 270.0);
    }
}

#[test]
fn the_greatest_load_is_under_alert_whatever_was_before() {
    let random = |seed: u64| unit(mix(seed));
    for seed in 0..1_000_u64 {
        let members = 2 + (mix(seed) % 9) as usize;
        let capacities: Vec<f64> =
            (0..members as u64).map(|id| 1.0 + (mix(seed * 9 + id) % 4) as f64).collect();
        let load = |id: u64, salt: u64| {
            let scale = if random(seed + id * 7 + salt) < 0.3 {
                0.0
            } else {
                libm::pow(10.0, 2.0 * random(salt + id))
            };
            scale * random(seed * 1_000 + salt * 31 + id)
        };
        let mut alerts = GroupAlerts::new(AlertRule::Surplus);
        for round in 1..12 {
            let loads: Vec<f64> = (0..members as u64).map(|id| load(id, u64::from(round))).collect();
            record_round(&mut alerts, round, &capacities, &loads);
        }
        // Two have some load, the first of them at least twice as much.
        let mut last_loads = vec![0.0; members];
        (last_loads[0], last_loads[members - 1]) = (100.0 + 100.0 * random(seed), 50.0 * random(seed + 1));
        let mut raised = false;
        for round in 12..150 {
            record_round(&mut alerts, round, &capacities, &last_loads);
            raised |= alerts.shed(MemberId(0)).share > 0.1;
        }
        assert!(raised, "{seed}");
        assert!((1..members as u32).any(|id| alerts.deficit(MemberId(id)) > 0.0), "{seed}");
    }
}

#[test]
fn one_that_says_anything_hides_no_other() {
    for reported_load in [1e3, 1e9, f64::MAX] {
        let loads: &[f64] = &[reported_load, 3.0, 1.0, 1.0];
        let alerts = group(AlertRule::Surplus, &[1.0; 4], &[loads, loads]);
        assert_eq!(
            alerts.alerts().map(|alert| alert.member.0).collect::<Vec<_>>(),
            [0, 1],
            "{reported_load}"
        );
        // Its load counts for twice that of the judged one.
        assert_close(f64::from(alerts.shed(MemberId(1)).share), 1.0 - (6.0 + 3.0 + 1.0 + 1.0) / 4.0 / 3.0);
    }
}

#[test]
fn a_round_waits_for_all_but_not_for_long() {
    let mut alerts = GroupAlerts::new(AlertRule::Surplus);
    let mut compared = Vec::new();
    for second in 1..40_u64 {
        // The last one does not report for ten seconds.
        for id in (0..3).filter(|id| *id < 2 || !(20..30).contains(&second)) {
            let at = Time(0) + Duration::from_secs(second);
            let report = MemberReport {
                capacity: 1.0,
                load: 10.0,
                effective: 10.0,
                at,
                period: Duration::from_secs(1),
            };
            if alerts.record_report(MemberId(id), &report).compared {
                compared.push(second);
            }
        }
    }
    let expected: Vec<u64> = (2..20).chain([23, 26]).chain(30..40).collect();
    assert_eq!(compared, expected);
}

#[test]
fn the_one_that_has_nearly_all_is_under_alert_at_once() {
    // A hundred times the other's load, give or take a tenth: its noise is more than the other's whole load.
    let rounds: Vec<[f64; 2]> = (0..6).map(|round| [500.0 + 50.0 * unit(mix(round)), 5.0]).collect();
    let rounds: Vec<&[f64]> = rounds.iter().map(|round| &round[..]).collect();
    let group_alerts = group(AlertRule::Surplus, &[1.0, 1.0], &rounds);
    let alerts: Vec<&LoadAlert> = group_alerts.alerts().collect();
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0].member, MemberId(0));
}

#[test]
fn no_report_makes_nonsense() {
    let mut alerts = GroupAlerts::new(AlertRule::Surplus);
    let random = |count: u64| unit(mix(count));
    for count in 0..20_000_u64 {
        let id = mix(count) % 50;
        let scale = [1.0, 1.0, 1.0, 0.0, 1e12, f64::MAX][(mix(count + 7) % 6) as usize];
        let report = MemberReport {
            capacity: 1.0 + id as f64,
            load: random(count) * scale,
            effective: random(count),
            at: Time(count * 10_000_000),
            period: T,
        };
        alerts.record_report(MemberId(id as u32), &report);
        if count % 1_000 == 999 {
            alerts.forget(MemberId((count / 1_000) as u32));
        }
        assert!(alerts.alerts().count() < alerts.tracks.len());
        for (id, track) in &alerts.tracks {
            let ShedDecision { share, gap, load, .. } = alerts.shed(*id);
            assert!((0.0..=1.0).contains(&share) && gap >= 0.0 && load >= 0.0, "{share} {gap} {load}");
            assert!(track.load.is_finite() && alerts.deficit(*id) >= 0.0 && alerts.deficit(*id).is_finite());
        }
    }
}

#[test]
fn one_member_alone_is_never_under_alert() {
    let rounds: Vec<[f64; 1]> = (0..50).map(|count| [unit(mix(count)) * 10.0]).collect();
    let rounds: Vec<&[f64]> = rounds.iter().map(|round| &round[..]).collect();
    assert_eq!(group(AlertRule::Surplus, &[1.0], &rounds).alerts().count(), 0);
    assert_eq!(group(AlertRule::Mean(1.25), &[1.0], &rounds).alerts().count(), 0);
    assert_eq!(group(AlertRule::Least(1.4), &[1.0], &rounds).alerts().count(), 0);
}

#[test]
fn the_least_loaded_stays_open_however_low_the_threshold() {
    for rule in [AlertRule::Critical(0.1), AlertRule::Mean(0.1), AlertRule::Least(0.1)] {
        let mut alerts = GroupAlerts::new(rule);
        for count in 0..4_000_u64 {
            let id = MemberId((mix(count) % 4) as u32);
            let load = 0.5 + unit(mix(count));
            let at = Time(0) + T * count as u32;
            alerts.record_report(id, &MemberReport { capacity: 1.0, load, effective: load, at, period: T });
            let alert_count = alerts.alerts().count();
            assert!(alert_count < alerts.tracks.len(), "{rule:?}: all {alert_count} after {count} reports");
        }
    }
    // After two reports of each, the least loaded is exempt, and of equals the first.
    let alerted_members = |loads: &[f64]| -> Vec<u32> {
        let alerts = group(AlertRule::Critical(0.1), &[1.0, 1.0, 1.0], &[loads, loads]);
        alerts.alerts().map(|alert| alert.member.0).collect()
    };
    assert_eq!(alerted_members(&[0.9, 0.8, 0.7]), [0, 1]);
    assert_eq!(alerted_members(&[0.7, 0.8, 0.9]), [1, 2]);
    assert_eq!(alerted_members(&[0.8, 0.8, 0.8]), [1, 2]);
    assert_eq!(alerted_members(&[0.05, 0.8, 0.8]), [1, 2]);
    assert_eq!(alerted_members(&[0.05, 0.08, 0.8]), [2]);
}

#[test]
fn what_the_last_alert_was_decided_on_outlives_it() {
    let high: &[f64] = &[0.9, 0.5];
    let alerts = group(AlertRule::Critical(0.8), &[1.0, 1.0], &[high, high]);
    let last_decision = alerts.alerts().next().expect("an alert").clone();
    assert_eq!(alerts.last_alert(MemberId(0)), Some(&last_decision));
    let alerts = group(AlertRule::Critical(0.8), &[1.0, 1.0], &[high, high, &[0.5, 0.5]]);
    assert_eq!(alerts.alerts().count(), 0);
    assert_eq!(alerts.last_alert(MemberId(0)), Some(&last_decision));
    assert_eq!((alerts.last_alert(MemberId(1)), alerts.last_alert(MemberId(7))), (None, None));
}

#[test]
fn who_is_forgotten_ends_its_alert() {
    let mut alerts = group(AlertRule::Critical(0.8), &[1.0, 1.0], &[&[0.9, 0.5], &[0.9, 0.5]]);
    assert_eq!(
        alerts.shed(MemberId(0)),
        ShedDecision { share: 1.0, load: 0.9, epoch: 1, ..ShedDecision::default() }
    );
    assert_eq!(alerts.shed(MemberId(1)), ShedDecision::default());
    assert!(alerts.forget(MemberId(0)).is_some_and(|change| !change.raised));
    assert_eq!(alerts.forget(MemberId(0)), None);
    assert_eq!((alerts.alerts().count(), alerts.shed(MemberId(0))), (0, ShedDecision::default()));
    assert!(alerts.forget(MemberId(1)).is_none());
    assert_eq!(alerts.deficit(MemberId(1)), 0.0);
}

/// Returns four members whose alerts are held; the last one has twice the load of the others in rounds 3
/// to 5.
fn held_alert() -> (GroupAlerts, LoadAlert) {
    let mut alerts = GroupAlerts::new(AlertRule::Surplus);
    alerts.set_holds(true);
    for (round, load) in [(1, 0.5), (2, 0.5), (3, 1.0), (4, 1.0), (5, 1.0)] {
        record_round(&mut alerts, round, &[1.0; 4], &[0.5, 0.5, 0.5, load]);
    }
    let alert = alerts.alert(LAST).expect("an alert").clone();
    (alerts, alert)
}

const LAST: MemberId = MemberId(3);

#[test]
fn an_alert_that_is_held_asks_nobody() {
    let (mut alerts, alert) = held_alert();
    let held_epoch = alert.held.expect("it is held");
    assert!(alert.shed.share > 0.1 && alert.since == Time(0) + 4 * T, "{alert:?}");
    assert!(alert.shed.epoch > held_epoch, "what is to go is decided with each round, by one alert");
    assert_eq!(alerts.shed(LAST), ShedDecision::default());
    let total_deficit: f64 = (0..4).map(|id| alerts.deficit(MemberId(id))).sum();
    assert_close(total_deficit, 1.0 - 2.5 / 4.0);
    let release_time = Time(0) + T * 11 / 2;
    assert!(
        !alerts.release(LAST, held_epoch + 1, release_time)
            && !alerts.release(MemberId(0), held_epoch, release_time)
    );
    assert_eq!(alerts.shed(LAST), ShedDecision::default());
    assert!(
        alerts.release(LAST, held_epoch, release_time) && !alerts.release(LAST, held_epoch, release_time),
        "once"
    );
    let shed = alerts.shed(LAST);
    assert!(shed.epoch > alert.shed.epoch && shed.period == T);
    assert_close(f64::from(shed.share), f64::from(alert.shed.share));
    assert!(alerts.tracks.values().all(|track| !track.is_settled()), "all are measured anew");
    // It continues as every other alert does.
    (7..10).for_each(|round| record_round(&mut alerts, round, &[1.0; 4], &[0.5, 0.5, 0.5, 1.0]));
    assert!(alerts.alert(LAST).is_some_and(|alert| alert.held.is_none() && alert.since == Time(0) + 4 * T));
    assert!(alerts.shed(LAST).share > 0.1 && alerts.shed(LAST).epoch > shed.epoch);
}

#[test]
fn what_is_over_by_then_moves_nobody() {
    let (mut alerts, alert) = held_alert();
    let held_epoch = alert.held.expect("it is held");
    // All have as much by now, and its own report has not come.
    for (round, id) in [6, 7].into_iter().flat_map(|round| (0..3).map(move |id| (round, id))) {
        let report =
            MemberReport { capacity: 1.0, load: 2.0, effective: 2.0, at: Time(0) + T * round, period: T };
        alerts.record_report(MemberId(id), &report);
    }
    assert!(alerts.release(LAST, held_epoch, Time(0) + T * 7));
    assert_eq!(alerts.shed(LAST).share, 0.0);
    // It is cleared, and raised again as another one.
    let (mut alerts, alert) = held_alert();
    (6..15).for_each(|round| record_round(&mut alerts, round, &[1.0; 4], &[0.5; 4]));
    assert_eq!(alerts.alert(LAST), None);
    assert!(!alerts.release(LAST, held_epoch, Time(0) + T * 14));
    (15..17).for_each(|round| record_round(&mut alerts, round, &[1.0; 4], &[0.5, 0.5, 0.5, 3.0]));
    let held_again = alerts.alert(LAST).expect("an alert").held;
    assert!(held_again.is_some() && held_again != alert.held);
    // Alerts are no longer held.
    alerts.set_holds(false);
    record_round(&mut alerts, 17, &[1.0; 4], &[0.5, 0.5, 0.5, 3.0]);
    assert!(alerts.shed(LAST).share > 0.0);
}
