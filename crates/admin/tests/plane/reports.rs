//! Reports: what they may look like, what is answered, what their endpoint is for.

use std::io::{Read, Write};

use crate::script::{Answer, open, tcp};

const ONE: &str = "member=a:1&name=cpu&value=0.4";

#[test]
fn a_report_reaches_the_subject_through_both_doors() {
    let open = open();
    let told = open.tell("POST", "/v1/report", ONE);
    assert_eq!((told.status, &*told.body), (204, ""), "{}", told.head);
    assert!(told.head.contains("connection: close"), "{}", told.head);
    let json = r#"{"group": "web", "member": "a:1", "values": {"cpu": 1}}"#;
    assert_eq!(open.act("POST", "/v1/report", json).status, 204);
    let calls = open.script.calls.lock().unwrap();
    assert_eq!(*calls, [r#"report None a:1 [("cpu", 0.4)]"#, r#"report Some("web") a:1 [("cpu", 1.0)]"#]);
}

#[test]
fn a_member_under_alert_is_told_with_the_answer() {
    let open = open();
    let told = open.tell("POST", "/v1/report", &ONE.replace("a:1", "busy:1"));
    assert_eq!((told.status, &*told.json().to_string()), (200, r#"{"shed":{"epoch":7,"share":0.25}}"#));
}

#[test]
fn what_is_not_taken_says_why() {
    let open = open();
    let told = |member: &str| {
        let answer = open.tell("POST", "/v1/report", &ONE.replace("a:1", member));
        (answer.status, answer.error())
    };
    assert_eq!(told("nobody:1"), (404, "no member nobody:1".into()));
    assert_eq!(told("fast:1"), (429, "too fast".into()));
    assert_eq!(told("wrong:1"), (422, "not a number".into()));
    let broken = open.tell("POST", "/v1/report", "cpu");
    assert!(broken.status == 400 && broken.error().contains("member=HOST:PORT"), "{}", broken.body);
    assert_eq!(open.tell("POST", "/v1/report", &"x".repeat(100_000)).status, 413);
    let old = open.tell("POST", "/v1/report", &format!("{ONE}&age_seconds=-5"));
    assert!(old.status == 400 && old.error().contains("age_seconds is -5"), "{}", old.body);
    assert_eq!(open.tell("GET", "/v1/report", "").status, 405);
    // At the address that only shows somebody looks for the one for reports.
    let shown = Answer::to(tcp(open.addr()), "POST", "/v1/report", "", ONE);
    assert!(shown.status == 405 && shown.error().contains("[admin] reports"), "{}", shown.body);
}

#[test]
fn a_body_that_is_said_to_be_too_long_is_refused_before_it_comes() {
    let open = open();
    let mut stream = tcp(open.admin.reports().unwrap());
    // The body never comes: a server that waited for it would time out and answer otherwise.
    stream.write_all(b"POST /v1/report HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\nx").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
}

#[test]
fn web_pages_may_not_report() {
    let open = open();
    let stream = tcp(open.admin.reports().unwrap());
    let answer = Answer::to(stream, "POST", "/v1/report", "Origin: http://example.org\r\n", ONE);
    assert_eq!((answer.status, answer.error()), (403, "web pages may not report".into()));
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn the_door_for_reports_takes_nothing_else_and_shows_nothing() {
    let open = open();
    for path in ["/", "/status", "/metrics", "/events", "/v1/groups/web/explain"] {
        assert_eq!(open.tell("GET", path, "").status, 404, "{path}");
    }
    for path in ["/v1/stop", "/v1/reload", "/v1/set", "/v1/drain"] {
        assert_eq!(open.tell("POST", path, "").status, 404, "{path}");
    }
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn a_group_is_explained_or_the_groups_are_named() {
    let open = open();
    assert_eq!(open.show("/v1/groups/web/explain").json()["name"], "web");
    let unknown = open.show("/v1/groups/wbe/explain");
    assert_eq!(unknown.status, 404);
    assert!(unknown.error().starts_with("there is no group wbe; there are: web, "), "{}", unknown.body);
    assert_eq!(open.show("/v1/groups/a/b/explain").status, 404);
}

#[test]
fn settings_are_changed_over_the_control_socket() {
    let open = open();
    let set = open.act("POST", "/v1/set", r#"{"group": "web", "key": "strategy", "value": "random"}"#);
    assert_eq!((set.status, set.json()["changes"][0].as_str()), (200, Some("~ a")));
    let refused = open.act("POST", "/v1/set", r#"{"group": "web", "key": "name", "value": "x"}"#);
    assert_eq!((refused.status, refused.error()), (422, "name cannot be set".into()));
    assert_eq!(open.act("POST", "/v1/set", r#"{"group": "web"}"#).status, 400);
}
