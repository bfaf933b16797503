//! Reads, which both endpoints answer.

use plimsoll_brain::status::{GroupStatus, StatusReport};

use crate::script::{Answer, open};

#[test]
fn healthz_follows_the_process() {
    let open = open();
    let answer = open.show("/healthz");
    assert_eq!((answer.status, &*answer.body), (200, "ok\n"));
    open.script.status.lock().unwrap().stopping = true;
    let answer = open.show("/healthz");
    assert_eq!((answer.status, &*answer.body), (503, "stopping\n"));
}

#[test]
fn healthz_of_groups_follows_the_groups() {
    let open = open();
    let said = |target: &str| {
        let answer = open.show(target);
        (answer.status, answer.body)
    };
    let with = |change: &dyn Fn(&mut GroupStatus)| {
        change(&mut open.script.status.lock().unwrap().groups[0]);
    };
    let ok = (200, "ok\n".to_owned());
    assert_eq!(said("/healthz?group=web"), ok);
    assert_eq!(said("/v1/healthz?x=1&group=web&group=web"), ok);
    assert_eq!(said("/healthz?group=web&group=mail").0, 404, "an unknown group is never well");
    let answer = open.show("/healthz?group=mail");
    assert_eq!((answer.status, answer.error().as_str()), (404, "there is no group mail"));
    with(&|web| web.shedding_seconds = Some(3.2));
    let refuses = (503, "web: refuses requests for want of room, for 3 s\n".to_owned());
    assert_eq!(said("/healthz?group=web"), refuses);
    assert_eq!(open.act("GET", "/v1/healthz?group=web", "").status, 503);
    assert_eq!(said("/healthz"), ok, "of the process alone");
    with(&|web| web.healthy = false);
    open.script.status.lock().unwrap().groups[1].name = "api".into();
    let nobody = (503, "web: no usable member\n".to_owned());
    assert_eq!(said("/healthz?group=api&group=web"), nobody);
    assert_eq!(said("/healthz?group=api"), ok);
    open.script.status.lock().unwrap().stopping = true;
    assert_eq!(said("/healthz?group=web"), (503, "stopping\n".to_owned()));
}

#[test]
fn status_is_the_whole_read_model_at_both_doors() {
    let open = open();
    let said = open.script.status.lock().unwrap().clone();
    for answer in [open.show("/status"), open.act("GET", "/status", "")] {
        assert_eq!(answer.status, 200);
        assert!(answer.head.contains("cache-control: no-store"));
        assert_eq!(serde_json::from_value::<StatusReport>(answer.json()).unwrap(), said);
    }
}

#[test]
fn the_index_names_what_is_there() {
    let open = open();
    let (shown, control) = (open.show("/"), open.act("GET", "/", ""));
    for path in ["/healthz", "/status", "/metrics", "/events"] {
        assert!(shown.body.contains(path), "{path}");
        assert_eq!(open.show(&format!("{path}?follow=0")).status, 200, "{path}");
    }
    assert!(!shown.body.contains("POST") && control.body.contains("/v1/drain"));
}

#[test]
fn head_has_no_body() {
    let open = open();
    for path in ["/", "/status", "/metrics", "/events"] {
        let answer = open.ask("HEAD", path, "");
        assert_eq!((answer.status, &*answer.body), (200, ""), "{path}");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let answer = open().show("/statuss");
    assert_eq!(answer.status, 404);
    assert!(answer.error().contains("/statuss"));
}

#[test]
fn a_connection_serves_more_than_one_request() {
    use std::io::Write;
    let open = open();
    let mut stream = crate::script::tcp(open.addr());
    stream
        .write_all(
            b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n\
              GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
    let both = Answer::read(stream);
    assert!(both.body.starts_with("ok\nHTTP/1.1 200 OK\r\n"), "{}", both.body);
}
