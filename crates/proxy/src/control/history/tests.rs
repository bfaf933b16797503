use super::*;

const MIDDLES: [f64; 3] = [0.01, 0.1, 1.0];

fn time(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// A member that completes `rate` requests per second, each in a tenth of a second; a tenth of them fail.
fn sample(id: u32, second: u64, rate: u64) -> MemberSample {
    let requests = second * rate;
    let counts = MemberTotals {
        sampled_at: time(second),
        requests,
        failures: requests / 10,
        moved: second,
        seconds: requests as f64 / 10.0,
    };
    let latencies = Some(vec![0, requests, 0]);
    MemberSample { id: MemberId(id), counts, in_flight: 3, load: Some(0.5), latencies }
}

fn second(history: &mut GroupHistory, second: u64, members: Vec<MemberSample>) {
    let ended: u64 = members.iter().map(|sample| sample.counts.requests).sum();
    let failures: u64 = members.iter().map(|sample| sample.counts.failures).sum();
    // The work in flight grows by two per second.
    let totals = GroupTotals {
        sampled_at: time(second),
        ended,
        failures,
        rejected: 5 * second,
        refused: 3 * second,
        in_flight: 2 * second,
    };
    history.add(totals, &[ended * 98 / 100, 0, ended * 2 / 100], members, MAX_CHARTED, &MIDDLES);
}

#[test]
fn a_second_is_what_came_in_it() {
    let mut history = GroupHistory::default();
    (1..=20).for_each(|now| second(&mut history, now, vec![sample(1, now, 100)]));
    let recent = history.recent(time(21));
    assert_eq!(recent.len(), 19, "the first look is the beginning of the first second");
    let last = recent.last().unwrap();
    let expected = RecentSecond {
        age_seconds: 1.0,
        offered: 107.0,
        completed: 90.0,
        failed: 15.0,
        refused: 3.0,
        p50: last.p50,
        p99: last.p99,
    };
    assert_eq!(*last, expected);
    assert!((last.p50.unwrap() - 0.01).abs() < 1e-6 && (last.p99.unwrap() - 1.0).abs() < 1e-6, "{last:?}");
    let member = history.member(MemberId(1), "a:1", &MIDDLES);
    let rates = (member.requests_per_second, member.failures_per_second, member.in_flight, member.moved);
    assert_eq!(rates, (100.0, 10.0, 10.0, 19));
    assert_eq!((member.p50, member.p99), (Some(0.1), Some(0.1)));
    assert_eq!(member.seconds.len(), recent.len());
}

#[test]
fn ten_minutes_are_kept_and_no_more() {
    let mut history = GroupHistory::default();
    for now in 1..=700 {
        let mut members = vec![sample(1, now, 10)];
        if now > 650 {
            members.push(sample(2, now, 10));
        }
        second(&mut history, now, members);
    }
    assert_eq!(history.recent(time(700)).len(), SECONDS);
    assert_eq!(history.recent(time(700))[0].age_seconds, 599.0);
    let [old, new] = [1, 2].map(|id| history.member(MemberId(id), "a:1", &MIDDLES).seconds);
    assert_eq!((old.len(), new.len()), (SECONDS, SECONDS));
    assert_eq!(old.iter().filter(|second| second.requests_per_second.is_none()).count(), 0);
    let present = new.iter().filter(|second| second.requests_per_second.is_some()).count();
    assert_eq!(present, 49, "it came later");
    // Members that have left are dropped.
    second(&mut history, 701, vec![sample(2, 701, 10)]);
    assert_eq!(history.members.len(), 1);
}

#[test]
fn many_members_have_no_lines_and_no_times() {
    let mut history = GroupHistory::default();
    for now in 1..=3 {
        let samples = (0..300).map(|id| MemberSample {
            latencies: ((id as usize) < MAX_TIMED).then(|| vec![now, 0, 0]),
            ..sample(id, now, 10)
        });
        second(&mut history, now, samples.collect());
    }
    let [first, last] = [0, 299].map(|id| history.member(MemberId(id), "a:1", &MIDDLES));
    assert!(!first.seconds.is_empty() && first.p50.is_some());
    assert!(last.seconds.is_empty() && last.p50.is_none());
    assert_eq!(last.requests_per_second, 10.0);
}

#[test]
fn what_comes_too_soon_is_left_out_and_old_times_fade() {
    let mut history = GroupHistory::default();
    second(&mut history, 1, vec![sample(1, 1, 10)]);
    second(&mut history, 1, vec![sample(1, 1, 10)]);
    assert!(history.recent(time(1)).is_empty());
    let mut histogram = DecayingHistogram::new(&[0, 0, 0]);
    histogram.add(&[100, 0, 0], 1.0);
    assert_eq!(histogram.quantile(0.5, &MIDDLES), Some(0.01));
    histogram.add(&[100, 0, 100], 60.0);
    assert_eq!(histogram.quantile(0.5, &MIDDLES), Some(1.0));
    assert_eq!(DecayingHistogram::new(&[7, 7, 7]).quantile(0.5, &MIDDLES), None);
}

#[test]
fn of_members_that_have_nothing_to_do_nothing_is_kept() {
    let mut history = GroupHistory::default();
    let idle = |id, now| MemberSample { in_flight: 0, load: None, latencies: None, ..sample(id, now, 0) };
    for now in 1..=10 {
        let idle_counts = MemberTotals { sampled_at: time(now), ..MemberTotals::default() };
        second(&mut history, now, vec![MemberSample { counts: idle_counts, ..idle(1, now) }]);
    }
    assert!(history.members.is_empty());
    let seconds = history.member(MemberId(1), "a:1", &MIDDLES).seconds;
    assert_eq!((seconds.len(), seconds[0].requests_per_second), (9, Some(0.0)));
    // The work of its first active second is shown, and that it did nothing before.
    let busy_sample = MemberSample {
        counts: MemberTotals { sampled_at: time(11), ..sample(1, 1, 20).counts },
        ..sample(1, 1, 20)
    };
    second(&mut history, 11, vec![busy_sample]);
    let recent = history.member(MemberId(1), "a:1", &MIDDLES);
    assert_eq!(recent.seconds.len(), 10);
    assert_eq!(recent.seconds[8].requests_per_second, Some(0.0));
    assert_eq!(recent.seconds[9].requests_per_second, Some(20.0));
}

#[test]
fn a_group_at_rest_has_seconds_in_which_nothing_happened() {
    let (mut idle_group, mut sampled_group) = (GroupHistory::default(), GroupHistory::default());
    for now in 1..=5 {
        second(&mut idle_group, now, vec![sample(1, now, 100)]);
        second(&mut sampled_group, now, vec![sample(1, now, 100)]);
    }
    let last_member = |history: &GroupHistory| history.member(MemberId(1), "a:1", &MIDDLES);
    for now in 6..=40 {
        idle_group.add_idle(&MIDDLES, time(now));
        let ended = MemberSample { in_flight: 0, load: None, ..sample(1, 5, 100) };
        let totals = GroupTotals { sampled_at: time(now), ..sampled_group.last_totals.unwrap() };
        let counts = MemberTotals { sampled_at: time(now), ..ended.counts };
        let latencies = sampled_group.latencies.back().unwrap().clone();
        sampled_group.add(totals, &latencies, vec![MemberSample { counts, ..ended }], MAX_CHARTED, &MIDDLES);
    }
    assert_eq!(last_member(&idle_group), last_member(&sampled_group));
    assert_eq!(idle_group.recent(time(40)), sampled_group.recent(time(40)));
    assert_eq!(last_member(&idle_group).requests_per_second, 0.0);
}

#[test]
fn a_pace_is_of_a_minute_and_rests_on_enough_answers() {
    let mut history = GroupHistory::default();
    for now in 1..=100 {
        // One response in five seconds.
        let few_counts = MemberTotals { requests: now / 5, ..sample(2, now, 0).counts };
        let few_sample =
            MemberSample { counts: few_counts, latencies: Some(vec![0, 0, now / 5]), ..sample(2, now, 0) };
        second(&mut history, now, vec![sample(1, now, 10), few_sample]);
    }
    let response_times = |id| history.response_times(MemberId(id), &MIDDLES);
    assert_eq!(response_times(1), (600, Some(0.1)));
    assert_eq!(response_times(2), (12, None));
    assert_eq!(response_times(3), (0, None), "nothing is known of it");
    assert_eq!(history.member(MemberId(2), "b:1", &MIDDLES).p50, Some(1.0), "which is shown all the same");
}
