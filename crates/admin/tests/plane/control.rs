//! The control socket: who may, what is done, what becomes of the file.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use plimsoll_admin::{Config, start};

use crate::script::{Script, open};

#[test]
fn acts_reach_the_subject() {
    let open = open();
    let drained = open.act("POST", "/v1/drain", r#"{"group":"web","member":"10.0.0.1:80"}"#);
    assert_eq!((drained.status, drained.json()["draining"].as_str()), (200, Some("10.0.0.1:80")));
    assert_eq!(open.act("POST", "/v1/undrain", r#"{"member":"10.0.0.1:80"}"#).status, 200);
    let reloaded = open.act("POST", "/v1/reload", "");
    assert_eq!((reloaded.status, reloaded.json()["changes"][0].as_str()), (200, Some("+ a")));
    assert_eq!(open.act("POST", "/v1/stop", "").status, 202);
    let calls = open.script.calls.lock().unwrap();
    assert_eq!(*calls, [r#"drain Some("web") 10.0.0.1:80"#, "undrain None 10.0.0.1:80", "reload", "stop"]);
}

#[test]
fn one_thing_is_switched_at_a_time() {
    let open = open();
    let done = open.act("POST", "/v1/disable", r#"{"listener":"[::]:80"}"#);
    assert_eq!((done.status, done.json()["changes"][0].as_str()), (200, Some("~ a")));
    assert_eq!(open.act("POST", "/v1/enable", r#"{"member":"a:1","group":"web"}"#).status, 200);
    assert_eq!(open.act("POST", "/v1/disable", r#"{"balancing":"web"}"#).status, 200);
    let refused = open.act("POST", "/v1/enable", r#"{"listener":"nowhere:1"}"#);
    assert_eq!((refused.status, refused.error()), (422, "there is no listener nowhere:1".into()));
    for body in
        ["{}", r#"{"member":"a:1","listener":"b"}"#, r#"{"listener":"b","group":"web"}"#, r#"{"what":1}"#]
    {
        let refused = open.act("POST", "/v1/disable", body);
        assert!(refused.status == 400 && refused.error().contains("\"balancing\": …"), "{body}");
    }
    let calls = open.script.calls.lock().unwrap();
    assert_eq!(calls.len(), 4);
    assert_eq!(calls[1], r#"enable Member { group: Some("web"), name: "a:1" }"#);
}

#[test]
fn a_refusal_says_why() {
    let open = open();
    let refused = open.act("POST", "/v1/drain", r#"{"member":"nobody:1"}"#);
    assert_eq!((refused.status, refused.error()), (422, "no group has a member nobody:1".into()));
    open.script.status.lock().unwrap().stopping = true;
    assert_eq!(open.act("POST", "/v1/reload", "").error(), "it stops");
    for body in ["", "{", r#"{"group":"web"}"#, r#"{"member":"a:1","wait":true}"#] {
        let refused = open.act("POST", "/v1/drain", body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.error().contains("\"member\": …"), "{}", refused.error());
    }
    let long = format!(r#"{{"member":"{}"}}"#, "m".repeat(100_000));
    assert_eq!(open.act("POST", "/v1/drain", &long).status, 413);
    assert_eq!(open.script.calls.lock().unwrap().len(), 2);
}

#[test]
fn the_listener_only_shows() {
    let open = open();
    for path in [
        "/v1/drain",
        "/v1/undrain",
        "/v1/disable",
        "/v1/enable",
        "/v1/reload",
        "/v1/stop",
        "/v1/set",
        "/v1/report",
        "/status",
        "/",
    ] {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
            let answer = open.ask(method, path, "");
            assert_eq!(answer.status, 405, "{method} {path}");
            assert!(answer.head.contains("allow: get, head"), "{method} {path}");
        }
    }
    assert_eq!(open.show("/v1/stop").status, 404);
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn an_act_is_never_a_get() {
    let open = open();
    let answer = open.act("GET", "/v1/stop", "");
    assert_eq!(answer.status, 405);
    assert!(answer.head.contains("allow: post"));
    assert_eq!(open.act("POST", "/status", "").status, 405);
    assert!(open.script.calls.lock().unwrap().is_empty());
}

#[test]
fn only_its_owner_may_use_it() {
    let open = open();
    let file = std::fs::metadata(&open.control).unwrap();
    assert_eq!(file.permissions().mode() & 0o7777, 0o600);
}

#[test]
fn a_socket_of_the_dead_is_replaced() {
    let open = open();
    let path = open.scratch.path("left.sock");
    drop(UnixListener::bind(&path).unwrap());
    let config = Config { control: Some(path.clone()), ..Config::default() };
    let admin = start(config, Script::new()).unwrap();
    assert_eq!(admin.addr(), None);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    crate::script::unix(&path);
    drop(admin);
    assert!(!path.exists(), "the file goes with the process");
}

#[test]
fn one_of_the_living_is_not() {
    let open = open();
    let config = Config { control: Some(open.control.clone()), ..Config::default() };
    let error = start(config, Script::new()).unwrap_err().to_string();
    assert!(error.contains("a running process answers there; stop it"), "{error}");
    assert!(error.contains(open.control.to_str().unwrap()), "{error}");
    assert_eq!(open.act("GET", "/healthz", "").status, 200, "the first one is unharmed");
}

#[test]
fn of_many_that_start_at_once_one_wins() {
    let open = open();
    let path = open.scratch.path("race.sock");
    drop(UnixListener::bind(&path).unwrap());
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let config = Config { control: Some(path.clone()), ..Config::default() };
            std::thread::spawn(move || start(config, Script::new()))
        })
        .collect();
    let admins: Vec<_> = starts.into_iter().filter_map(|start| start.join().unwrap().ok()).collect();
    assert_eq!(admins.len(), 1);
    crate::script::unix(&path);
}

#[test]
fn nothing_but_a_socket_is_removed() {
    let open = open();
    let path = open.scratch.path("notes.txt");
    std::fs::write(&path, "precious").unwrap();
    let error =
        start(Config { control: Some(path.clone()), ..Config::default() }, Script::new()).unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_bind_error_says_what_to_do() {
    let open = open();
    let start = |config| start(config, Script::new()).unwrap_err().to_string();
    let taken = start(Config { listen: Some(open.addr()), ..Config::default() });
    assert!(taken.contains(&open.addr().to_string()) && taken.contains("set [admin] listen"), "{taken}");
    let nowhere = open.scratch.path("no/such/place.sock");
    let nowhere = start(Config { control: Some(nowhere), ..Config::default() });
    assert!(nowhere.contains("place.sock") && nowhere.contains("create its directory"), "{nowhere}");
    let long = open.scratch.path(&"x".repeat(120));
    let long = start(Config { control: Some(long), ..Config::default() });
    assert!(long.contains("at most 107 bytes"), "{long}");
    for error in [taken, nowhere, long] {
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
