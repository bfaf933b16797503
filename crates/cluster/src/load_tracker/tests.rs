//! Tests of reports, loads and weights in virtual time.

use super::*;
use crate::{MemberSettings, MonitorSettings, MonitorTarget};

fn group(name: &str, source: MetricSource, metric: &str, weight: Option<&str>) -> GroupSettings {
    let member = |number: u8| MemberSettings {
        name: format!("app{number}:80").into(),
        address: ([10, 0, 0, number], 80).into(),
        capacity: f64::from(number),
        host: Some(format!("rack{}", number.min(2)).into()),
    };
    let expression = |text: &str| Expression::new(text).unwrap();
    GroupSettings {
        name: name.into(),
        members: [1, 2].map(member).to_vec(),
        monitor: Some(MonitorSettings {
            source,
            metric: expression(metric),
            interval: Duration::from_secs(1),
            target: MonitorTarget {
                host: None,
                port: None,
                path: "/load".into(),
                timeout: Duration::from_secs(1),
            },
        }),
        weight: weight.map(expression),
    }
}

fn tracker(groups: Vec<GroupSettings>, now: Instant) -> LoadTracker {
    let mut tracker = LoadTracker::default();
    tracker.update(groups, now);
    tracker
}

fn report(member: &str, values: &[(&str, f64)]) -> MetricReport {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    MetricReport { member: member.into(), values, ..MetricReport::default() }
}

fn load(group: &str, member: &str, value: f64, age: f64) -> LoadUpdate {
    let age = Duration::from_secs_f64(age);
    LoadUpdate::Load { group: group.into(), member: member.into(), value, age, of_host: false }
}

fn host_load(group: &str, member: &str, value: f64) -> LoadUpdate {
    LoadUpdate::Load { group: group.into(), member: member.into(), value, age: Duration::ZERO, of_host: true }
}

fn after(start: Instant, seconds: f64) -> Instant {
    start + Duration::from_secs_f64(seconds)
}

fn rejection_reason(outcome: Result<Vec<LoadUpdate>, TrackerRejection>) -> String {
    match outcome.unwrap_err() {
        TrackerRejection::Unknown(reason)
        | TrackerRejection::Invalid(reason)
        | TrackerRejection::RateLimited { why: reason, .. } => reason,
    }
}

fn problem(tracker: &LoadTracker, now: Instant) -> String {
    tracker.observations("web", now).unwrap().members[0].problem.clone().unwrap_or_default()
}

#[test]
fn a_report_makes_a_load_at_once() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu", None)], now);
    assert_eq!(
        tracker.record_report(&report("app1:80", &[("cpu", 0.4)]), now).unwrap(),
        [load("web", "app1:80", 0.4, 0.0)]
    );
    // By its address, in a named group, some time ago.
    let old_report = MetricReport {
        group: Some("web".into()),
        age_seconds: Some(3.0),
        ..report("10.0.0.2:80", &[("cpu", 0.7)])
    };
    assert_eq!(
        tracker.record_report(&old_report, after(now, 5.0)).unwrap(),
        [load("web", "app2:80", 0.7, 3.0)]
    );
    // A value that the metric does not read yields no load.
    assert_eq!(tracker.record_report(&report("app1:80", &[("disk", 0.4)]), now).unwrap(), []);
    let observations = tracker.observations("web", after(now, 2.0)).unwrap();
    let values: Vec<_> = observations.members[0]
        .observations
        .iter()
        .map(|observation| (&*observation.name, observation.value, observation.age_seconds))
        .collect();
    assert_eq!(values, [("cpu", 0.4, 2.0), ("disk", 0.4, 2.0)]);
    assert_eq!(observations.members[0].load.map(|load| (load.value, load.age_seconds)), Some((0.4, 2.0)));
}

#[test]
fn an_expression_waits_for_all_it_needs_and_is_as_old_as_the_oldest() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu * 0.5 + memory", None)], now);
    assert_eq!(tracker.record_report(&report("app1:80", &[("cpu", 0.4)]), now).unwrap(), []);
    assert_eq!(problem(&tracker, now), "`memory` was never told");
    let later = after(now, 4.0);
    assert_eq!(
        tracker.record_report(&report("app1:80", &[("memory", 0.1)]), later).unwrap(),
        [load("web", "app1:80", 0.4 * 0.5 + 0.1, 4.0)]
    );
    assert_eq!(problem(&tracker, later), "");
    assert_eq!(problem(&tracker, after(now, 12.0)), "`cpu` was last told 12 s ago");
    assert_eq!(tracker.record_report(&report("app1:80", &[("memory", 0.1)]), after(now, 12.0)).unwrap(), []);
}

#[test]
fn what_cannot_be_taken_says_why() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu", None)], now);
    let mut rejection = |report: MetricReport| rejection_reason(tracker.record_report(&report, now));
    let reason = rejection(report("x:1", &[("cpu", 1.0)]));
    assert!(reason.contains("`x:1`") && reason.ends_with("app1:80, app2:80"), "{reason}");
    let reason =
        rejection(MetricReport { group: Some("wbe\n".into()), ..report("app1:80", &[("cpu", 1.0)]) });
    assert_eq!(reason, "no group `wbe\u{fffd}`; there are: web");
    let reason = rejection(MetricReport { group: Some("web".into()), ..report("x:1", &[("cpu", 1.0)]) });
    assert_eq!(reason, "group web has no member `x:1`; it has: app1:80, app2:80");
    assert_eq!(rejection(report("app1:80", &[("cpu", f64::NAN)])), "cpu is NaN: give a finite number");
    assert!(rejection(report("app1:80", &[("cpu", f64::INFINITY)])).contains("finite"));
    assert!(rejection(report("app1:80", &[("c p", 1.0)])).contains("not a name"));
    assert!(rejection(report("app1:80", &[])).contains("no values"));
    assert!(
        rejection(MetricReport { age_seconds: Some(f64::NAN), ..report("app1:80", &[("cpu", 1.0)]) })
            .contains("age")
    );
    let too_many: Vec<(String, f64)> = (0..65).map(|number| (format!("n{number}"), 1.0)).collect();
    assert!(rejection(MetricReport { values: too_many, ..report("app1:80", &[]) }).contains("at most 64"));
    assert_eq!(tracker.observations("web", now).unwrap().members[0].observations, []);
}

#[test]
fn names_beyond_the_limit_are_refused_and_the_others_go_on() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu", None)], now);
    let names: Vec<(String, f64)> = (0..63).map(|number| (format!("n{number}"), 1.0)).collect();
    tracker.record_report(&MetricReport { values: names, ..report("app1:80", &[]) }, now).unwrap();
    tracker.record_report(&report("app1:80", &[("cpu", 0.1)]), now).unwrap();
    assert!(
        rejection_reason(tracker.record_report(&report("app1:80", &[("more", 0.1)]), now))
            .contains("64 names")
    );
    assert_eq!(
        tracker.record_report(&report("app1:80", &[("cpu", 0.2)]), now).unwrap(),
        [load("web", "app1:80", 0.2, 0.0)]
    );
}

#[test]
fn a_flood_harms_nobody_but_its_member() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu", None)], now);
    let mut floods = 0;
    for _ in 0..200 {
        match tracker.record_report(&report("app1:80", &[("cpu", 0.4)]), now) {
            Err(TrackerRejection::RateLimited { updates, .. }) => floods += updates.len(),
            result => assert_eq!(result.unwrap().len(), 1),
        }
    }
    assert_eq!(floods, 1, "one event");
    assert_eq!(tracker.observations("web", now).unwrap().members[0].dropped, 150);
    assert_eq!(tracker.record_report(&report("app2:80", &[("cpu", 0.1)]), now).unwrap().len(), 1);
    assert_eq!(tracker.record_report(&report("app1:80", &[("cpu", 0.1)]), after(now, 1.0)).unwrap().len(), 1);
}

#[test]
fn without_a_group_all_that_have_the_member_are_told() {
    let now = Instant::now();
    let groups = ["api", "web"].map(|name| group(name, MetricSource::Push, "cpu", None));
    let mut tracker = tracker(groups.to_vec(), now);
    assert_eq!(
        tracker.record_report(&report("app1:80", &[("cpu", 0.3)]), now).unwrap(),
        [load("api", "app1:80", 0.3, 0.0), load("web", "app1:80", 0.3, 0.0)]
    );
}

#[test]
fn the_balancers_own_figures_need_no_report() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Passive, "in_flight / capacity", None)], now);
    let counters =
        |in_flight| vec![("app2:80".into(), TrafficCounters { in_flight, requests: 0, seconds: 0.0 })];
    assert_eq!(tracker.groups_with_counters().len(), 1);
    assert_eq!(tracker.record_counters("web", &counters(6), now), [load("web", "app2:80", 3.0, 0.0)]);
    assert_eq!(tracker.record_counters("web", &counters(8), after(now, 0.5)), [], "once per interval");
    assert_eq!(
        tracker.record_counters("web", &counters(8), after(now, 1.0)),
        [load("web", "app2:80", 4.0, 0.0)]
    );
    // A passive monitor ignores reports.
    assert_eq!(
        tracker.record_report(&report("app2:80", &[("in_flight", 100.0)]), after(now, 1.1)).unwrap(),
        [load("web", "app2:80", 4.0, 0.0)]
    );
}

#[test]
fn what_a_member_says_of_itself_comes_before_what_we_see() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "in_flight", None)], now);
    let counters = [("app1:80".into(), TrafficCounters { in_flight: 6, requests: 0, seconds: 0.0 })];
    assert_eq!(tracker.record_counters("web", &counters, now), [load("web", "app1:80", 6.0, 0.0)]);
    assert_eq!(
        tracker.record_report(&report("app1:80", &[("in_flight", 40.0)]), now).unwrap(),
        [load("web", "app1:80", 40.0, 0.0)]
    );
    // The capacity is the operator's decision, not the member's.
    let mut tracker = self::tracker(vec![group("web", MetricSource::Push, "capacity * cpu", None)], now);
    let both_values = report("app2:80", &[("capacity", 1e9), ("cpu", 1.0)]);
    assert_eq!(tracker.record_report(&both_values, now).unwrap(), [load("web", "app2:80", 2.0, 0.0)]);
}

#[test]
fn counters_have_rates() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "done_per_second", None)], now);
    assert_eq!(tracker.record_report(&report("app1:80", &[("done", 1e6)]), now).unwrap(), []);
    assert!(problem(&tracker, now).contains("once its counter is told again"));
    let mut record = |seconds, value| {
        tracker.record_report(&report("app1:80", &[("done", value)]), after(now, seconds)).unwrap()
    };
    assert_eq!(record(2.0, 1e6 + 100.0), [load("web", "app1:80", 50.0, 0.0)]);
    assert_eq!(record(4.0, 30.0), [load("web", "app1:80", 15.0, 0.0)], "a reset is no negative load");
}

#[test]
fn a_page_says_how_much_its_counters_have_grown() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Prometheus, "done_per_second", None)], now);
    let metric_names = ["done", "done_per_second"].map(str::to_owned);
    let mut history = crate::scrape_parser::CounterHistory::default();
    let mut record_page = |seconds, page: &str| {
        let result = crate::scrape_parser::parse_metrics_page(page.as_bytes(), &metric_names, &mut history);
        tracker.record_scrape("web", "app1:80", result, after(now, seconds))
    };
    assert_eq!(record_page(0.0, "done{w=\"a\"} 1e9\ndone{w=\"b\"} 5e8\n"), []);
    let growth_load = |rate| [load("web", "app1:80", rate, 0.0)];
    assert_eq!(record_page(2.0, "done{w=\"a\"} 1000000100\ndone{w=\"b\"} 500000100\n"), growth_load(100.0));
    assert_eq!(
        record_page(4.0, "done{w=\"a\"} 1000000200\ndone{w=\"b\"} 0\n"),
        growth_load(50.0),
        "one began again"
    );
    assert_eq!(
        record_page(6.0, "done{w=\"a\"} 1000000300\ndone{w=\"c\"} 9e9\n"),
        growth_load(50.0),
        "one is new"
    );
}

#[test]
fn weights_are_made_at_each_look() {
    let now = Instant::now();
    let mut tracker =
        tracker(vec![group("web", MetricSource::Push, "cpu", Some("capacity / (1 + cpu)"))], now);
    tracker.record_report(&report("app2:80", &[("cpu", 1.0)]), now).unwrap();
    let weights = |first, second| {
        [LoadUpdate::Weights {
            group: "web".into(),
            weights: vec![("app1:80".into(), first), ("app2:80".into(), second)],
        }]
    };
    assert_eq!(tracker.record_counters("web", &[], now), weights(None, Some(1.0)));
    tracker.record_report(&report("app1:80", &[("cpu", 0.0)]), after(now, 9.0)).unwrap();
    assert_eq!(
        tracker.record_counters("web", &[], after(now, 11.0)),
        weights(Some(1.0), None),
        "what is too old is not known"
    );
    tracker.set_weight_expression("web", None);
    assert_eq!(tracker.record_counters("web", &[], after(now, 11.0)), []);
}

#[test]
fn a_load_is_never_negative() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu - 1", None)], now);
    assert_eq!(tracker.record_report(&report("app1:80", &[("cpu", 0.4)]), now).unwrap(), []);
    assert!(problem(&tracker, now).contains("a load is not negative"), "{}", problem(&tracker, now));
}

#[test]
fn monitors_that_do_not_answer_say_why() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Pull, "cpu", None)], now);
    assert_eq!(tracker.record_scrape("web", "app1:80", Err("refused".into()), now), []);
    assert_eq!(problem(&tracker, now), "its monitor: refused; `cpu` was never told");
    let values = vec![MetricSample::new("cpu".to_owned(), 0.5, Duration::from_secs(2))];
    assert_eq!(tracker.record_scrape("web", "app1:80", Ok(values), now), [load("web", "app1:80", 0.5, 2.0)]);
    assert_eq!(problem(&tracker, now), "");
    // A member that is no longer polled, or has left, is ignored.
    assert_eq!(tracker.record_scrape("web", "gone:80", Err("x".into()), now), []);
    assert_eq!(tracker.record_scrape("gone", "app1:80", Err("x".into()), now), []);
}

#[test]
fn members_that_stay_keep_what_is_known_of_them() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu", None)], now);
    tracker.record_report(&report("app2:80", &[("cpu", 0.4)]), now).unwrap();
    let mut next_group = group("web", MetricSource::Push, "cpu", None);
    next_group.members.remove(0);
    assert_eq!(tracker.update(vec![next_group.clone()], now), []);
    let observations = tracker.observations("web", now).unwrap();
    assert_eq!((observations.members.len(), observations.members[0].observations.len()), (1, 1));
    assert!(observations.members[0].load.is_some());
    // The last load of another metric is meaningless.
    next_group.monitor = group("web", MetricSource::Push, "memory", None).monitor;
    assert_eq!(tracker.update(vec![next_group], now), [LoadUpdate::MetricChanged { group: "web".into() }]);
    let observations = tracker.observations("web", now).unwrap();
    assert_eq!((observations.members[0].observations.len(), observations.members[0].load), (1, None));
    tracker.update(Vec::<GroupSettings>::new(), now);
    assert_eq!(tracker.observations("web", now), None);
}

#[test]
fn what_answers_carry_counts_as_far_as_it_can_be_used() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Orca, "cpu", None)], now);
    let values =
        [("cpu", 0.6), ("bad name", 1.0), ("rps", f64::NAN)].map(|(name, value)| (name.to_owned(), value));
    let mut observe = |member: &str| tracker.observe("web", member, &values, MetricSource::Orca, now);
    assert_eq!(observe("app1:80"), [load("web", "app1:80", 0.6, 0.0)]);
    assert_eq!(observe("gone:80"), []);
    let observations = &tracker.observations("web", now).unwrap().members[0].observations;
    assert_eq!((observations.len(), &*observations[0].source), (1, "orca"));
}

/// Usage as in gRPC's proposal A58: requests per second and utilization, from any source.
#[test]
fn rates_and_utilization_make_a_usage() {
    let now = Instant::now();
    let mut tracker = tracker(vec![group("web", MetricSource::Orca, "utilization.queue", None)], now);
    let mut observe = |values: &[(&str, f64)], seconds: f64| {
        let values: Vec<_> = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        tracker.observe("web", "app1:80", &values, MetricSource::Orca, after(now, seconds))
    };
    let usage = |rps: f64, utilization: f64, eps: f64, age: f64| LoadUpdate::Usage {
        group: "web".into(),
        member: "app1:80".into(),
        usage: MemberUsage { rps, utilization, eps },
        age: Duration::from_secs_f64(age),
    };
    assert_eq!(observe(&[("cpu_utilization", 0.5)], 0.0), [], "of how many requests?");
    assert_eq!(
        observe(&[("rps_fractional", 80.0), ("cpu_utilization", 0.5)], 1.0),
        [usage(80.0, 0.5, 0.0, 0.0)]
    );
    // The application's own utilization takes precedence over its processors', and a load is computed from
    // the metric.
    let all_values = [("application_utilization", 0.9), ("eps", 4.0), ("utilization.queue", 0.25)];
    assert_eq!(observe(&all_values, 3.0), [load("web", "app1:80", 0.25, 0.0), usage(80.0, 0.9, 4.0, 2.0)]);
    assert_eq!(observe(&[("named_metrics.x", 1.0)], 4.0), []);
    assert_eq!(observe(&[("cpu_utilization", 0.5)], 60.0), [], "the rate is forgotten");
}

/// A host's load is reported once and counts for every member there, in every group.
#[test]
fn a_host_is_all_its_members() {
    let now = Instant::now();
    let mut other_group = group("api", MetricSource::Push, "cpu", None);
    for (member, number) in other_group.members.iter_mut().zip([1_u8, 9]) {
        member.name = format!("10.0.0.{number}:81").into();
        member.address = ([10, 0, 0, number], 81).into();
    }
    let mut tracker = tracker(vec![other_group, group("web", MetricSource::Push, "cpu", None)], now);
    let mut report_load =
        |member: &str, value: f64| tracker.record_report(&report(member, &[("cpu", value)]), now);
    let both_loads =
        |value: f64| vec![host_load("api", "10.0.0.1:81", value), host_load("web", "app1:80", value)];
    assert_eq!(report_load("10.0.0.1", 0.5).unwrap(), both_loads(0.5));
    assert_eq!(report_load("::ffff:10.0.0.1", 0.75).unwrap(), both_loads(0.75));
    assert_eq!(
        report_load("APP1", 0.25).unwrap(),
        [host_load("web", "app1:80", 0.25)],
        "by its name as configured"
    );
    assert_eq!(
        report_load("10.0.0.1:81", 0.5).unwrap(),
        [load("api", "10.0.0.1:81", 0.5, 0.0)],
        "one of them"
    );
    assert!(rejection_reason(report_load("10.0.0.7", 0.5)).contains("no group has a member `10.0.0.7`"));
    let group_report = MetricReport { group: Some("web".into()), ..report("10.0.0.1", &[("cpu", 1.0)]) };
    assert_eq!(tracker.record_report(&group_report, now).unwrap(), [host_load("web", "app1:80", 1.0)]);
}

/// A member's values concern the member alone, unless their names stand for the host in agents' reports.
#[test]
fn some_figures_are_of_the_host_by_their_names() {
    let now = Instant::now();
    let record = |metric: &str, values: &[(&str, f64)]| {
        let mut tracker = tracker(vec![group("web", MetricSource::Push, metric, None)], now);
        let updates = tracker.record_report(&report("app1:80", values), now).unwrap();
        let is_of_host = |updates: &LoadUpdate| matches!(updates, LoadUpdate::Load { of_host: true, .. });
        (updates.len(), updates.iter().any(is_of_host))
    };
    assert_eq!(record("cpu", &[("cpu", 0.5)]), (1, false));
    assert_eq!(record("cpu", &[("cpu_host", 0.5), ("cpu", 0.5)]), (1, true));
    assert_eq!(record("cpu", &[("cpu_host", 0.5), ("cpu_cgroup", 0.7), ("cpu", 0.7)]), (1, false));
    assert_eq!(record("host_in_flight / 8", &[("host_in_flight", 4.0)]), (1, true));
    assert_eq!(record("queue / capacity", &[("queue", 4.0)]), (1, false));
}

#[test]
fn how_busy_processors_are_is_passed_on_with_how_many_there_are() {
    let now = Instant::now();
    let record = |tracker: &mut LoadTracker, values: &[(&str, f64)]| {
        tracker.record_report(&report("app1:80", values), now).unwrap()
    };
    let mut load_tracker = tracker(vec![group("web", MetricSource::Push, "jobs", None)], now);
    assert_eq!(record(&mut load_tracker, &[("cpu", 0.4)]), [], "of how many?");
    let expected_update = |utilization: f64| LoadUpdate::CpuUtilization {
        group: "web".into(),
        member: "app1:80".into(),
        sensed: CpuUtilization { utilization, processors: 2.0, covers_host: false },
        age: Duration::ZERO,
    };
    assert_eq!(record(&mut load_tracker, &[("cpu", 0.5), ("cpus", 2.0)]), [expected_update(0.5)]);
    assert_eq!(
        record(&mut load_tracker, &[("cpu", 0.6)]),
        [expected_update(0.6)],
        "how many there are stays"
    );
    assert_eq!(record(&mut load_tracker, &[("cpus", 2.0)]), [], "nothing new");
    let whole_host = |utilization: f64| {
        let sensed = CpuUtilization { utilization, processors: 2.0, covers_host: true };
        LoadUpdate::CpuUtilization {
            group: "web".into(),
            member: "app1:80".into(),
            sensed,
            age: Duration::ZERO,
        }
    };
    assert_eq!(
        record(&mut load_tracker, &[("cpu", 0.7), ("cpu_host", 0.7)]),
        [whole_host(0.7)],
        "of all that runs there"
    );
    let both_values = [("cpu", 0.8), ("cpu_cgroup", 0.8), ("cpu_host", 0.7)];
    assert_eq!(record(&mut load_tracker, &both_values), [expected_update(0.8)], "a control group's");
    assert_eq!(
        record(&mut load_tracker, &[("cpu", 0.2), ("cpu_host", 0.7)]),
        [expected_update(0.2)],
        "a program's word"
    );
    let mut passive_tracker = tracker(vec![group("web", MetricSource::Passive, "in_flight", None)], now);
    assert_eq!(record(&mut passive_tracker, &[("cpu", 0.5), ("cpus", 2.0)]), [], "nobody's word counts");
}

#[test]
fn what_is_told_of_a_label_counts_in_every_group_that_is_there() {
    let now = Instant::now();
    let groups = ["web", "mail"].map(|name| group(name, MetricSource::Push, "cpu", None));
    let mut tracker = tracker(groups.to_vec(), now);
    let updates = tracker.record_report(&report("rack2", &[("cpu", 0.5)]), now).unwrap();
    assert_eq!(updates, [host_load("mail", "app2:80", 0.5), host_load("web", "app2:80", 0.5)]);
}

#[test]
fn the_balancers_own_figures_are_known_where_they_are_read() {
    let now = Instant::now();
    let observed_values = |tracker: &LoadTracker, now| {
        let observations = tracker.observations("web", now).unwrap().members[0].observations.clone();
        observations
            .into_iter()
            .map(|observation| (observation.name, observation.value, observation.source))
            .collect::<Vec<_>>()
    };
    let weight = Some("capacity / (1 + in_flight + cpu)");
    let mut tracker = tracker(vec![group("web", MetricSource::Push, "cpu", weight)], now);
    let counters = TrafficCounters { in_flight: 3, requests: 9, seconds: 1.0 };
    tracker.record_counters("web", &[("app1:80".into(), counters)], now);
    assert_eq!(observed_values(&tracker, now), [("in_flight".into(), 3.0, "passive".into())]);
    tracker.record_report(&report("app1:80", &[("in_flight", 5.0)]), now).unwrap();
    assert_eq!(
        observed_values(&tracker, now),
        [("in_flight".into(), 5.0, "push".into())],
        "its own word counts"
    );
}
