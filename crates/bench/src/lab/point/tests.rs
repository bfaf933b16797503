//! Samples of a batch, from its record.

use super::*;

/// Returns the samples of a batch of a second with this record.
fn samples(drive: LoadLoop, part: &RunRecord) -> BTreeMap<Metric, Vec<f64>> {
    lasting(1.0, drive, part)
}

/// Returns the samples of a batch of `seconds`. The time-out of answers is five seconds.
fn lasting(seconds: f64, drive: LoadLoop, part: &RunRecord) -> BTreeMap<Metric, Vec<f64>> {
    let mut outcome = PointOutcome::default();
    let seen = SideMeasurements { seconds, balancer: 0.0, host: None, daemon_counters: None };
    add_samples(&mut outcome, drive, None, Duration::from_secs(5), part, &RunRecord::new(), &seen);
    outcome.samples
}

#[test]
fn the_processor_time_of_the_balancer_is_for_each_request_that_ended() {
    let mut part = RunRecord::new();
    part.due = 250;
    part.ok = 150;
    part.failed.insert(Failure::Status, 50);
    let mut tail = RunRecord::new();
    tail.ok = 40;
    tail.cut = 10;
    let mut outcome = PointOutcome::default();
    let seen = SideMeasurements { seconds: 1.0, balancer: 0.05, host: None, daemon_counters: None };
    add_samples(&mut outcome, LoadLoop::Open(250.0), None, Duration::from_secs(5), &part, &tail, &seen);
    // 50 ms for 250 requests, in microseconds.
    assert!((outcome.samples[&Metric::BalancerCpu][0] - 200.0).abs() < 1e-9, "{outcome:?}");
}

#[test]
fn what_daemons_counted_is_for_each_of_their_answers() {
    let mut part = RunRecord::new();
    (part.due, part.ok) = (100, 90);
    part.failed.insert(Failure::NoPick, 10);
    (0..50).for_each(|_| part.record_pick(Duration::from_millis(2)));
    part.duplicate_picks = 1;
    let before = DaemonCounters { answers: 1000.0, duplicates: 7.0, commit_delay: 0.0, cpu: 3.0 };
    let after = DaemonCounters { answers: 1200.0, duplicates: 8.0, commit_delay: 0.0005, cpu: 3.01 };
    let mut outcome = PointOutcome::default();
    let seen =
        SideMeasurements { seconds: 2.0, balancer: 0.0, host: None, daemon_counters: Some((before, after)) };
    add_samples(
        &mut outcome,
        LoadLoop::Open(50.0),
        None,
        Duration::from_secs(5),
        &part,
        &RunRecord::new(),
        &seen,
    );
    let of = |metric| outcome.samples[&metric][0];
    let near = |metric, value: f64| assert!((of(metric) - value).abs() < value / 100.0, "{outcome:?}");
    near(Metric::Duplicates, 0.005);
    near(Metric::DaemonCpu, 50.0);
    near(Metric::DaemonBusy, 0.005);
    near(Metric::CommitDelay, 0.0005);
    near(Metric::Unpicked, 0.1);
    near(Metric::Pick, 0.002);
    near(Metric::TwoMembers, 0.02);
    assert!(!samples(LoadLoop::Open(100.0), &RunRecord::new()).contains_key(&Metric::Unpicked));
}

#[test]
fn what_was_shed_was_refused_too() {
    let mut part = RunRecord::new();
    (part.due, part.ok) = (100, 80);
    part.failed.insert(Failure::Status, 5);
    part.failed.insert(Failure::Shed, 15);
    let seen = samples(LoadLoop::Open(100.0), &part);
    assert_eq!((&seen[&Metric::Refused], &seen[&Metric::Shed]), (&vec![0.2], &vec![0.15]));
    assert_eq!(seen[&Metric::Success], [0.8]);
}

#[test]
fn a_batch_in_which_nothing_ended_is_a_bad_sample_and_not_none() {
    let mut hung = RunRecord::new();
    hung.due = 10;
    let seen = samples(LoadLoop::Open(10.0), &hung);
    assert_eq!((&seen[&Metric::Success], &seen[&Metric::P99]), (&vec![0.0], &vec![5.0]));
    // Requests that were cut off were due and not answered.
    hung.cut = 10;
    assert_eq!(samples(LoadLoop::Open(10.0), &hung)[&Metric::Success], [0.0]);
    // With nothing due there is no sample.
    assert!(!samples(LoadLoop::Open(10.0), &RunRecord::new()).contains_key(&Metric::Success));
    // A client that waits for an answer for longer than a batch has not failed.
    assert!(!samples(LoadLoop::Closed(1), &RunRecord::new()).contains_key(&Metric::Success));
    assert_eq!(lasting(5.0, LoadLoop::Closed(1), &RunRecord::new())[&Metric::Success], [0.0]);
}

#[test]
fn batches_are_as_long_as_two_cycles_within_bounds() {
    let seconds = Duration::from_secs;
    assert_eq!(batch_length(seconds(4), seconds(7)), seconds(14));
    assert_eq!(batch_length(seconds(4), seconds(1)), seconds(4));
    assert_eq!(batch_length(seconds(4), seconds(60)), seconds(40));
    assert_eq!(batch_length(seconds(4), Duration::ZERO), seconds(4), "an open loop");
}
