//! Leases of members: what is asked and answered, and through which endpoints.

use crate::script::{Answer, open, tcp};

#[test]
fn a_member_is_lent_renewed_and_released_through_both_doors() {
    let open = open();
    let lent =
        open.tell("POST", "/v1/groups/web/bind", r#"{"key":"me","lease_seconds":9,"exclude":["a:1"]}"#);
    assert_eq!(lent.status, 200, "{}", lent.body);
    let lease = lent.json();
    assert!(lease["member"] == "10.0.0.1:80" && lease["lease"] == "0a" && lease["moved"] == false, "{lease}");
    assert!(lent.head.contains("connection: close"), "{}", lent.head);
    let renewed = open.act("POST", "/v1/groups/web/bind/0a", "");
    assert!(renewed.status == 200 && renewed.json()["moved"] == true, "{}", renewed.body);
    let released = open.tell("DELETE", "/v1/groups/web/bind/0a", "");
    assert_eq!((released.status, &*released.body), (204, ""));
    assert_eq!(
        *open.script.calls.lock().unwrap(),
        [r#"bind web Some("me") Some(9.0) ["a:1"] from 127.0.0.1"#, "renew web 0a []", "release web 0a"]
    );
    // Over the unix socket it is from nowhere, and nobody says by himself where he is.
    assert_eq!(open.act("POST", "/v1/groups/web/bind", "").status, 200);
    assert_eq!(open.act("POST", "/v1/groups/web/bind", r#"{"from":"10.0.0.7"}"#).status, 400);
    assert_eq!(open.script.calls.lock().unwrap()[3], "bind web None None []");
}

#[test]
fn operators_see_who_has_leases_and_end_them() {
    let open = open();
    let shown = Answer::to(tcp(open.admin.addr().unwrap()), "GET", "/v1/groups/web/leases", "", "");
    for list in [open.act("GET", "/v1/groups/web/leases", ""), shown] {
        assert_eq!(list.status, 200, "{}", list.body);
        let list = list.json();
        assert!(list["group"] == "web" && list["leases"] == 11, "{list}");
        let first = &list["lessees"][0];
        assert!(first["member"] == "10.0.0.1:80" && first["from"] == "10.0.0.7", "{list}");
        assert!(first["leases"] == 9 && first["left_seconds"] == 4.5, "{list}");
    }
    assert_eq!(open.act("GET", "/v1/groups/none/leases", "").status, 404);
    for body in ["", r#"{"member":"a:1","from":"10.0.0.7"}"#] {
        let ended = open.act("DELETE", "/v1/groups/web/leases", body);
        assert!(ended.status == 200 && ended.json()["ended"] == 9, "{}", ended.body);
    }
    assert_eq!(open.act("DELETE", "/v1/groups/web/leases", "{\"from\":7}").status, 400);
    let wrong = open.act("POST", "/v1/groups/web/leases", "");
    assert!(
        wrong.status == 405 && wrong.head.to_lowercase().contains("allow: get, head, delete"),
        "{}",
        wrong.head
    );
    // Who only lends, or only shows, ends nothing.
    assert_eq!(open.tell("GET", "/v1/groups/web/leases", "").status, 404);
    assert_eq!(open.tell("DELETE", "/v1/groups/web/leases", "").status, 404);
    let shown = Answer::to(tcp(open.admin.addr().unwrap()), "DELETE", "/v1/groups/web/leases", "", "");
    assert_eq!(shown.status, 405);
    assert_eq!(
        *open.script.calls.lock().unwrap(),
        ["end-leases web None None", r#"end-leases web Some("a:1") Some(10.0.0.7)"#]
    );
}

#[test]
fn who_gets_none_is_told_why_and_when_to_come_again() {
    let open = open();
    let empty = open.tell("POST", "/v1/groups/empty/bind", "");
    assert_eq!((empty.status, empty.error()), (503, "nobody is there".into()));
    let full = open.tell("POST", "/v1/groups/full/bind", "{}");
    assert_eq!((full.status, full.error()), (429, "all are full".into()));
    for answer in [empty, full] {
        assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    }
    assert_eq!(open.tell("POST", "/v1/groups/none/bind", "").status, 404);
    assert_eq!(open.tell("POST", "/v1/groups/web/bind/0b", "").status, 404);
    assert_eq!(open.tell("DELETE", "/v1/groups/web/bind/0b", "").status, 404);
    assert_eq!(open.tell("POST", "/v1/groups/web/bind", "me").status, 400);
    assert_eq!(open.tell("DELETE", "/v1/groups/web/bind/0a", "{}").status, 400);
}

#[test]
fn other_methods_and_the_door_that_only_shows_lend_nothing() {
    let open = open();
    for (method, path, allow) in [
        ("GET", "/v1/groups/web/bind", "allow: post"),
        ("DELETE", "/v1/groups/web/bind", "allow: post"),
        ("GET", "/v1/groups/web/bind/0a", "allow: post, delete"),
        ("PUT", "/v1/groups/web/bind/0a", "allow: post, delete"),
    ] {
        let refused = open.tell(method, path, "");
        assert_eq!(refused.status, 405, "{method} {path}");
        assert!(refused.head.to_lowercase().contains(allow), "{}", refused.head);
    }
    let shown = Answer::to(tcp(open.admin.addr().unwrap()), "POST", "/v1/groups/web/bind", "", "");
    assert_eq!(shown.status, 405, "{}", shown.body);
    let page = Answer::to(
        tcp(open.admin.reports().unwrap()),
        "POST",
        "/v1/groups/web/bind",
        "Origin: http://example.org\r\n",
        "",
    );
    assert_eq!((page.status, page.error()), (403, "web pages may not bind".into()));
    assert!(open.script.calls.lock().unwrap().is_empty());
}
