use super::*;

const DECAY: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

fn at_seconds(seconds: f64) -> Time {
    Time(0) + Duration::from_secs_f64(seconds)
}

#[track_caller]
fn assert_latency(vitals: &Vitals, now: Time, milliseconds: f32) {
    let latency = vitals.latency(now, DECAY).expect("an estimate") / 1e6;
    assert!((latency / milliseconds - 1.0).abs() < 0.01, "{latency} ms, not {milliseconds} ms");
}

#[test]
fn peaks_count_at_once_and_lower_ones_by_and_by() {
    let vitals = Vitals::default();
    assert_eq!(vitals.latency(at_seconds(1.0), DECAY), None);
    vitals.record_latency(10 * MS, at_seconds(1.0), DECAY);
    assert_latency(&vitals, at_seconds(1.0), 10.0);
    vitals.record_latency(200 * MS, at_seconds(1.0), DECAY);
    assert_latency(&vitals, at_seconds(1.0), 200.0);
    // After one decay time the new value weighs 1 - 1/e.
    vitals.record_latency(100 * MS, at_seconds(11.0), DECAY);
    assert_latency(
        &vitals,
        at_seconds(11.0),
        200.0 / core::f32::consts::E + 100.0 * (1.0 - 1.0 / core::f32::consts::E),
    );
}

#[test]
fn many_small_steps_equal_one_large_one() {
    let vitals = Vitals::default();
    vitals.record_latency(1000 * MS, at_seconds(0.0), DECAY);
    for step in 1..=100_000 {
        vitals.record_latency(MS, at_seconds(f64::from(step) / 10_000.0), DECAY);
    }
    assert_latency(
        &vitals,
        at_seconds(10.0),
        1000.0 / core::f32::consts::E + 1.0 - 1.0 / core::f32::consts::E,
    );
}

#[test]
fn an_estimate_fades_and_ends() {
    let vitals = Vitals::default();
    vitals.record_latency(100 * MS, at_seconds(5.0), DECAY);
    assert_latency(&vitals, at_seconds(15.0), 100.0 / core::f32::consts::E);
    assert!(vitals.latency(at_seconds(104.0), DECAY).is_some());
    assert_eq!(vitals.latency(at_seconds(106.0), DECAY), None);
    // 30 days later, when a signed difference of ticks has long been negative.
    assert_eq!(vitals.latency(at_seconds(30.0 * 86_400.0), DECAY), None);
}

#[test]
fn times_from_the_future_have_no_age() {
    let vitals = Vitals::default();
    vitals.record_latency(100 * MS, at_seconds(5.0), DECAY);
    assert_latency(&vitals, at_seconds(4.9), 100.0);
    vitals.record_latency(Duration::ZERO, at_seconds(4.9), Duration::ZERO);
    assert!(vitals.latency(at_seconds(0.0), Duration::ZERO).is_some());
}

#[test]
fn what_was_begun_is_counted_beside_what_is_in_flight() {
    let vitals = Vitals::with_in_flight(3);
    for _ in 0..5 {
        vitals.begin();
        vitals.end();
    }
    assert_eq!((vitals.begin(), vitals.in_flight(), vitals.begun()), (4, 4, 6));
}

#[test]
fn what_clients_tell_comes_and_goes() {
    let vitals = Vitals::with_in_flight(2);
    assert!(vitals.record_direct_work(0, 7) && vitals.record_direct_work(7, 3));
    assert_eq!((vitals.in_flight(), vitals.begun()), (5, 0));
    assert!(!vitals.record_direct_work(3, u32::MAX));
    assert!(vitals.record_direct_work(3, 0));
    let copy = vitals.copy();
    copy.begin();
    assert_eq!((vitals.in_flight(), copy.in_flight()), (2, 3));
}

#[test]
fn what_clients_have_themselves_is_in_flight_but_not_from_here() {
    let vitals = Vitals::default();
    vitals.set_concurrency_limit(2);
    for _ in 0..3 {
        vitals.begin();
        vitals.mark_leased();
    }
    assert!(vitals.record_direct_work(0, 7));
    vitals.begin();
    assert_eq!((vitals.in_flight(), vitals.in_flight_here()), (11, 1));
    assert_eq!((vitals.begun(), vitals.begun_here()), (4, 1));
    assert!(!vitals.is_at_learnt_limit());
    vitals.begin();
    assert!(vitals.is_at_learnt_limit(), "two from here");
    vitals.end();
    (0..3).for_each(|_| vitals.end_lease());
    assert!(vitals.record_direct_work(7, 0));
    assert_eq!((vitals.in_flight(), vitals.in_flight_here(), vitals.begun_here()), (1, 1, 2));
}

#[test]
fn counts_wrap_instead_of_failing() {
    let vitals = Vitals { work: AtomicU64::new(u64::from(u32::MAX) << 32), ..Vitals::default() };
    assert_eq!((vitals.begin(), vitals.begun()), (1, 0));
    vitals.end();
    assert_eq!((vitals.in_flight(), vitals.begun()), (0, 0));
}

#[test]
fn what_is_told_late_makes_nothing_newer_or_older() {
    let (vitals, at_second) = (Vitals::default(), |seconds: u64| Time(seconds * 1_000_000_000));
    vitals.blend(1e6, 8.0, at_second(100));
    // As when a tunnel ends that began long before.
    vitals.blend(1e6, 8.0, at_second(10));
    let (_, age) = vitals.latency_and_age(at_second(101)).expect("it is known");
    assert!(age < 1_100_000_000, "{age}");
}
