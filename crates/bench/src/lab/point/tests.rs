//! Samples of a batch, from its record.

use super::*;

/// Returns the samples of a batch of a second with this record.
fn samples(load_loop: LoadLoop, record: &RunRecord) -> BTreeMap<Metric, Vec<f64>> {
    samples_over(1.0, load_loop, record)
}

/// Returns the samples of a batch of `seconds`. The time-out of answers is five seconds.
fn samples_over(seconds: f64, load_loop: LoadLoop, record: &RunRecord) -> BTreeMap<Metric, Vec<f64>> {
    let mut outcome = PointOutcome::default();
    let measurements = SideMeasurements { seconds, balancer_cpu: 0.0, host_cpu: None, daemon_counters: None };
    add_samples(
        &mut outcome,
        load_loop,
        None,
        Duration::from_secs(5),
        record,
        &RunRecord::new(),
        &measurements,
    );
    outcome.samples
}

#[test]
fn the_processor_time_of_the_balancer_is_for_each_request_that_ended() {
    let mut record = RunRecord::new();
    record.due = 250;
    record.ok = 150;
    record.failed.insert(Failure::Status, 50);
    let mut tail = RunRecord::new();
    tail.ok = 40;
    tail.cut = 10;
    let mut outcome = PointOutcome::default();
    let measurements =
        SideMeasurements { seconds: 1.0, balancer_cpu: 0.05, host_cpu: None, daemon_counters: None };
    add_samples(
        &mut outcome,
        LoadLoop::Open(250.0),
        None,
        Duration::from_secs(5),
        &record,
        &tail,
        &measurements,
    );
    // 50 ms for 250 requests, in microseconds.
    assert!((outcome.samples[&Metric::BalancerCpu][0] - 200.0).abs() < 1e-9, "{outcome:?}");
}

#[test]
fn what_daemons_counted_is_for_each_of_their_answers() {
    let mut record = RunRecord::new();
    (record.due, record.ok) = (100, 90);
    record.failed.insert(Failure::NoPick, 10);
    (0..50).for_each(|_| record.record_pick(Duration::from_millis(2)));
    record.duplicate_picks = 1;
    let before = DaemonCounters { answers: 1000.0, duplicates: 7.0, commit_delay: 0.0, cpu: 3.0 };
    let after = DaemonCounters { answers: 1200.0, duplicates: 8.0, commit_delay: 0.0005, cpu: 3.01 };
    let mut outcome = PointOutcome::default();
    let measurements = SideMeasurements {
        seconds: 2.0,
        balancer_cpu: 0.0,
        host_cpu: None,
        daemon_counters: Some((before, after)),
    };
    add_samples(
        &mut outcome,
        LoadLoop::Open(50.0),
        None,
        Duration::from_secs(5),
        &record,
        &RunRecord::new(),
        &measurements,
    );
    let sample = |metric| outcome.samples[&metric][0];
    let assert_near =
        |metric, value: f64| assert!((sample(metric) - value).abs() < value / 100.0, "{outcome:?}");
    assert_near(Metric::Duplicates, 0.005);
    assert_near(Metric::DaemonCpu, 50.0);
    assert_near(Metric::DaemonBusy, 0.005);
    assert_near(Metric::CommitDelay, 0.0005);
    assert_near(Metric::Unpicked, 0.1);
    assert_near(Metric::Pick, 0.002);
    assert_near(Metric::TwoMembers, 0.02);
    assert!(!samples(LoadLoop::Open(100.0), &RunRecord::new()).contains_key(&Metric::Unpicked));
}

#[test]
fn what_was_shed_was_refused_too() {
    let mut record = RunRecord::new();
    (record.due, record.ok) = (100, 80);
    record.failed.insert(Failure::Status, 5);
    record.failed.insert(Failure::Shed, 15);
    let samples = samples(LoadLoop::Open(100.0), &record);
    assert_eq!((&samples[&Metric::Refused], &samples[&Metric::Shed]), (&vec![0.2], &vec![0.15]));
    assert_eq!(samples[&Metric::Success], [0.8]);
}

#[test]
fn a_batch_in_which_nothing_ended_is_a_bad_sample_and_not_none() {
    let mut hung = RunRecord::new();
    hung.due = 10;
    let batch = samples(LoadLoop::Open(10.0), &hung);
    assert_eq!((&batch[&Metric::Success], &batch[&Metric::P99]), (&vec![0.0], &vec![5.0]));
    // Requests that were cut off were due and not answered.
    hung.cut = 10;
    assert_eq!(samples(LoadLoop::Open(10.0), &hung)[&Metric::Success], [0.0]);
    // With nothing due there is no sample.
    assert!(!samples(LoadLoop::Open(10.0), &RunRecord::new()).contains_key(&Metric::Success));
    // A client that waits for an answer for longer than a batch has not failed.
    assert!(!samples(LoadLoop::Closed(1), &RunRecord::new()).contains_key(&Metric::Success));
    assert_eq!(samples_over(5.0, LoadLoop::Closed(1), &RunRecord::new())[&Metric::Success], [0.0]);
}

#[test]
fn batches_are_as_long_as_two_cycles_within_bounds() {
    let seconds = Duration::from_secs;
    assert_eq!(batch_length(seconds(4), seconds(7)), seconds(14));
    assert_eq!(batch_length(seconds(4), seconds(1)), seconds(4));
    assert_eq!(batch_length(seconds(4), seconds(60)), seconds(40));
    assert_eq!(batch_length(seconds(4), Duration::ZERO), seconds(4), "an open loop");
}
