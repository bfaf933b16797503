//! Members that are registered: what is asked and answered, and through which endpoints.

use plimsoll_admin::{Config, start};

use crate::script::{Answer, Scratch, Script, open, tcp};

const PATH: &str = "/v1/groups/web/members/10.0.0.7:80";

#[test]
fn a_member_joins_and_leaves_over_control() {
    let open = open();
    let joined = open.act("PUT", PATH, r#"{"capacity":2,"ttl_seconds":9}"#);
    assert_eq!(joined.status, 200, "{}", joined.body);
    let said = joined.json();
    assert!(
        said["group"] == "web" && said["member"] == "10.0.0.7:80" && said["ttl_seconds"] == 9.0,
        "{said}"
    );
    let left = open.act("DELETE", PATH, "");
    assert!(left.status == 200 && left.json()["deregistered"] == "10.0.0.7:80", "{}", left.body);
    let calls = open.script.calls.lock().unwrap();
    assert!(calls[0].starts_with("register web 10.0.0.7:80 Registration { capacity: 2.0,"), "{calls:?}");
    assert_eq!(calls[1], "deregister web 10.0.0.7:80");
}

#[test]
fn what_is_wrong_reaches_nobody() {
    let open = open();
    for (method, body, status) in
        [("PUT", "[]", 400), ("PUT", r#"{"ttl_seconds":1}"#, 400), ("DELETE", "{}", 400), ("POST", "", 405)]
    {
        let answer = open.act(method, PATH, body);
        assert_eq!(answer.status, status, "{method} {body}: {}", answer.body);
    }
    let allowed = open.act("POST", PATH, "");
    assert!(allowed.head.to_lowercase().contains("allow: put, delete"), "{}", allowed.head);
    // The read-only endpoint takes no registration; the one for reports does only if it is configured to.
    let shown = Answer::to(tcp(open.admin.addr().unwrap()), "PUT", PATH, "", "");
    assert_eq!((shown.status, open.tell("PUT", PATH, "").status), (405, 404));
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn the_door_for_reports_takes_members_if_it_is_told_to() {
    let (script, scratch) = (Script::new(), Scratch::new());
    let config = Config {
        control: Some(scratch.path("control.sock")),
        reports: Some(([127, 0, 0, 1], 0).into()),
        register: true,
        ..Config::default()
    };
    let admin = start(config, script.clone()).unwrap();
    let ask = |method, path| Answer::to(tcp(admin.reports().unwrap()), method, path, "", "");
    assert_eq!((ask("PUT", PATH).status, ask("DELETE", PATH).status), (200, 200));
    assert_eq!(script.calls.lock().unwrap().len(), 2);
    let nothing = ask("GET", "/status");
    assert!(nothing.error().contains("PUT /v1/groups/NAME/members/MEMBER"), "{}", nothing.body);
}
