//! The metrics page, read as strictly as any scraper would.

use crate::exposition::{Page, parse};
use crate::script::open;

fn page() -> Page {
    let answer = open().show("/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"));
    parse(&answer.body).unwrap_or_else(|error| panic!("{error}\n{}", answer.body))
}

#[test]
fn the_page_is_valid_and_complete() {
    let page = page();
    let value = |series: &str| page.value(series);
    assert_eq!(value(r#"plimsoll_build_info{version="0.1.0"}"#), 1.0);
    assert_eq!(value("plimsoll_config_last_reload_successful"), 1.0);
    assert_eq!(value(r#"plimsoll_requests_total{code_class="2xx",group="web",member="10.0.0.1:80"}"#), 6.0);
    assert_eq!(value(r#"plimsoll_requests_total{code_class="none",group="web",member="10.0.0.3:80"}"#), 0.0);
    assert_eq!(value(r#"plimsoll_rejected_total{group="web",reason="no_member"}"#), 2.0);
    assert_eq!(value(r#"plimsoll_retries_total{group="web"}"#), 0.0);
    assert_eq!(value(r#"plimsoll_member_in_flight{group="web",member="10.0.0.1:80"}"#), 3.0);
    assert_eq!(value(r#"plimsoll_member_weight{group="web",member="10.0.0.1:80"}"#), 0.5);
    assert_eq!(
        value(r#"plimsoll_member_sent_bytes_total{group="web",member="10.0.0.1:80"}"#),
        1_099_511_627_776.0
    );
    assert_eq!(value(r#"plimsoll_connections{group="",listener="[::]:80",protocol=""}"#), 0.0);
    for (name, expected) in [
        ("load", 0.75),
        ("report_age_seconds", 2.5),
        ("said_age_seconds", 3.5),
        ("load_effective", 0.5),
        ("knee", 5.5),
        ("limit", 12.0),
        ("alert_share", 0.25),
    ] {
        let series = format!(r#"plimsoll_member_{name}{{group="web",member="10.0.0.1:80"}}"#);
        assert_eq!(value(&series), expected, "{series}");
    }
    assert_eq!(value(r#"plimsoll_group_load{group="web"}"#), 0.625);
    assert_eq!(value(r#"plimsoll_group_refused_ratio{group="web"}"#), 0.125);
    assert_eq!(value("plimsoll_group_refused_ratio{group=\"odd \"\\\n one\"}"), 0.0);
    assert!(value("process_resident_memory_bytes") > 0.0);
}

#[test]
fn a_member_is_in_exactly_one_state() {
    let page = page();
    for member in ["10.0.0.1:80", "10.0.0.3:80"] {
        let states = ["up", "slow_start", "unchecked", "down", "ejected", "draining"].map(|state| {
            page.value(&format!(r#"plimsoll_member_state{{group="web",member="{member}",state="{state}"}}"#))
        });
        assert_eq!(states.iter().sum::<f64>(), 1.0, "{member}");
        assert_eq!(states[if member == "10.0.0.1:80" { 0 } else { 4 }], 1.0, "{member}");
    }
}

#[test]
fn a_histogram_agrees_with_itself_under_traffic() {
    // The parser has checked that the buckets rise and the last equals the count.
    let page = page();
    let count =
        |group: &str| page.value(&format!(r#"plimsoll_request_duration_seconds_count{{group="{group}"}}"#));
    assert_eq!((count("web"), count("odd \"\\\n one")), (12.0, 11.0));
    assert_eq!(page.value(r#"plimsoll_request_duration_seconds_bucket{group="web",le="0.01"}"#), 9.0);
}

#[test]
fn odd_names_survive() {
    let odd = "plimsoll_member_in_flight{group=\"odd \"\\\n one\",member=\"a\"b\\c\nd\"}";
    assert_eq!(page().value(odd), 3.0);
}

#[test]
fn what_came_of_urgent_requests_is_told() {
    let page = page();
    for (outcome, count) in [("served", 13.0), ("refused", 14.0)] {
        let series =
            format!(r#"plimsoll_urgency_waits_total{{group="web",outcome="{outcome}",urgency="1"}}"#);
        assert_eq!(page.value(&series), count);
    }
}

#[test]
fn load_lines_are_told_as_far_as_they_are_known() {
    let answer = open().show("/metrics");
    let page = parse(&answer.body).unwrap();
    for (series, expected) in [
        (r#"plimsoll_group_capacity_requests_per_second{group="web"}"#, 200.0),
        (r#"plimsoll_group_headroom_ratio{group="web"}"#, 0.75),
        (r#"plimsoll_group_prediction_error_ratio{group="web"}"#, 0.125),
        (r#"plimsoll_group_predictions_checked_total{group="web"}"#, 3.0),
        (r#"plimsoll_group_prediction_age_seconds{group="web"}"#, 2.5),
        (r#"plimsoll_group_capacity_bound_requests_per_second{bound="low",group="web"}"#, 190.0),
        (r#"plimsoll_group_predicted_latency_seconds{group="web",load="0.95",percentile="50"}"#, 0.02),
        (r#"plimsoll_group_what_if_capacity_requests_per_second{change="double",group="web"}"#, 200.0),
        (r#"plimsoll_group_what_if_headroom_ratio{change="minus_one",group="web"}"#, 0.25),
        (r#"plimsoll_group_what_if_latency_seconds{change="minus_one",group="web"}"#, 0.5),
        (r#"plimsoll_member_capacity_requests_per_second{group="web",member="10.0.0.1:80"}"#, 100.0),
        (r#"plimsoll_member_clients_left_total{group="web",member="10.0.0.1:80"}"#, 3.0),
        (r#"plimsoll_member_refused_total{group="web",member="10.0.0.1:80",reason="limit"}"#, 41.0),
    ] {
        assert_eq!(page.value(series), expected, "{series}");
    }
    // What is not known has no sample.
    for part in [
        r#"group="web",bound="high""#,
        r#"load="0.95",percentile="99""#,
        r#"what_if_latency_seconds{group="web",change="double""#,
    ] {
        assert!(!answer.body.contains(part), "{part}");
    }
    // Nor has what lies somewhere in a range, but for its ends.
    let bound = "plimsoll_group_capacity_bound_requests_per_second{group=\"odd ";
    let ends: Vec<&str> = answer.body.lines().filter(|line| line.starts_with(bound)).collect();
    assert!(ends.len() == 2 && ends[0].ends_with(" 85") && ends[1].ends_with(" 512"), "{ends:?}");
    for part in [r#"capacity_requests_per_second{group="odd"#, r#"headroom_ratio{group="odd"#] {
        assert!(!answer.body.contains(part), "{part}: {}", answer.body);
    }
}

#[test]
fn the_capacity_of_a_group_has_a_path_of_its_own() {
    let open = open();
    let web = open.show("/v1/groups/web/capacity").json();
    assert_eq!((web["capacity"].as_f64(), web["verdict"].as_str()), (Some(200.0), Some("fair")));
    let unknown = open.show("/v1/groups/wbe/capacity");
    assert!(unknown.status == 404 && unknown.body.contains("there are: web"), "{}", unknown.body);
}

#[test]
fn how_many_members_there_are_to_be_is_told_with_the_reason() {
    let open = open();
    let web = open.show("/v1/groups/web/scale").json();
    assert_eq!((web["desired"].as_u64(), web["why"].as_str()), (Some(3), Some("1 more")));
    assert_eq!(web["started"][0]["stage"], "serving");
    let none = open.show("/v1/groups/odd%20%22%5C%0A%20one/scale");
    assert_eq!(none.status, 404, "{}", none.body);
    let page = parse(&open.show("/metrics").body).unwrap();
    for (series, expected) in [
        (r#"plimsoll_scaler_desired_members{group="web"}"#, 3.0),
        (r#"plimsoll_scaler_members{group="web"}"#, 2.0),
        (r#"plimsoll_scaler_coming_members{group="web"}"#, 1.0),
        (r#"plimsoll_scaler_max_members{group="web"}"#, 9.0),
        (r#"plimsoll_scaler_demand{group="web"}"#, 1.5),
        (r#"plimsoll_scaler_forecast{group="web"}"#, 2.25),
        (r#"plimsoll_scaler_reason{group="web",reason="forecast"}"#, 1.0),
        (r#"plimsoll_scaler_reason{group="web",reason="demand"}"#, 0.0),
    ] {
        assert_eq!(page.value(series), expected, "{series}");
    }
}
