//! Control over TLS of a lottery's daemon and of a Supervisor: the same rules, the same audit log, every verb
//! for every role.

use plimsoll_admin::{ProcessKind, ROUTES};
use serde_json::{Value, json};

use crate::behind::{Guarded, daemon, supervisor};
use crate::stage::{Shows, bearer, certificate};

#[test]
fn every_verb_for_every_role_by_certificate_and_by_token() {
    for guarded in [daemon(None).0, supervisor(None).0] {
        let Guarded { by, ref stage, .. } = guarded;
        let [look, operate, administer] = guarded.verbs();
        let path =
            |path: &str| certificate(stage.ours.issue(&[&format!("spiffe://example.org/{path}/a")], 1));
        let told = |subject: &str| bearer(&stage.token(subject, json!({})));
        let ops = bearer(&stage.token("olga", json!({"groups": ["ops"]})));
        let callers: [(&str, Shows, Vec<&[&str]>); 9] = [
            ("viewer by certificate", path("view"), vec![look]),
            ("viewer by token", told("victor"), vec![look]),
            ("operator by certificate", path("ops"), vec![look, operate]),
            ("operator by token", ops, vec![look, operate]),
            ("admin by certificate", path("root"), vec![look, operate, administer]),
            ("admin by token", told("rita"), vec![look, operate, administer]),
            ("agent by token", told("agent"), vec![&["report"]]),
            ("no grant by certificate", path("else"), vec![]),
            ("no grant by token", told("eve"), vec![]),
        ];
        let routes = || guarded.routes();
        assert_eq!(routes().count(), look.len() + operate.len() + administer.len());
        for (who, shows, allowed) in &callers {
            guarded.holds(who, shows, allowed);
        }
        // Without a credential not even what there is is told.
        for route in routes() {
            let answer = stage.do_route(&Shows::default(), route).unwrap();
            assert_eq!(answer.status, 401, "{}: {}", route.name, answer.body);
        }
        let others = ROUTES
            .iter()
            .filter(|route| !route.is_served_by(by) && !route.served_by.contains(&ProcessKind::Balancer));
        for route in others {
            let answer = stage.do_route(&told("rita"), route).unwrap();
            assert_eq!(answer.status, 404, "{}: {}", route.name, answer.body);
        }
        let document = stage.ask(&told("rita"), "GET", "/v1/openapi.json", "").unwrap().json();
        for route in routes() {
            let method = route.method.to_ascii_lowercase();
            assert_eq!(document["paths"][route.path][method]["x-verb"], route.name);
        }
    }
}

#[test]
fn keys_are_in_no_log() {
    let (Guarded { stage, .. }, asked) = daemon(None);
    let root = bearer(&stage.token("rita", json!({})));
    let secret = "6b".repeat(32);
    let post = |path: &str, body: String| stage.ask(&root, "POST", path, &body).unwrap();
    let body = json!({"id": 9, "secret": secret}).to_string();
    let done = post("/v1/keys/accept", body);
    assert_eq!(
        (done.status, done.json()),
        (200, json!({"member": 1, "sealing": 6, "keys": [6, 7], "client_keys": [3], "others": [2]}))
    );
    for (path, body) in [
        ("/v1/keys/accept", json!({"id": 9, "secret": format!("{secret}0")})),
        ("/v1/keys/accept", json!({"id": secret})),
        ("/v1/keys/seal", json!({"id": 9, "secret": secret})),
    ] {
        let refused = post(path, body.to_string());
        assert!(refused.status == 400 && !refused.body.contains("6b6b"), "{}", refused.body);
    }
    assert_eq!(post("/v1/keys/seal", json!({"id": 9}).to_string()).status, 200);
    assert_eq!(post("/v1/keys/retire", json!({"id": 13}).to_string()).status, 422);
    let lines = stage.audited();
    let told =
        |line: &Value| format!("{} {} {}", line["verb"], line["target"], line["result"]).replace('"', "");
    assert_eq!(
        lines.iter().map(told).collect::<Vec<_>>(),
        [
            "key-accept key 9 begun",
            "key-accept key 9 done",
            "key-seal key 9 begun",
            "key-seal key 9 done",
            "key-retire key 13 begun",
            "key-retire key 13 failed"
        ]
    );
    assert!(!lines.iter().any(|line| line.to_string().contains("6b6b")));
    assert_eq!(*asked.calls.lock().unwrap(), ["Accept(9)", "Seal(9)", "Retire(13)"]);
}

#[test]
fn groups_of_a_daemon_are_its_services() {
    let (Guarded { stage, .. }, _) = daemon(None);
    let lee = bearer(&stage.token("lee", json!({})));
    let seen = stage.ask(&lee, "GET", "/v1/lottery", "").unwrap();
    assert_eq!(seen.status, 200, "{}", seen.body);
    let seen = seen.json();
    assert_eq!(seen["services"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&seen["services"][0]["name"], &seen["members"][0]["services"]),
        (
            &json!("web"),
            &json!([{
                "service": 1, "capacity": 4, "weight": 2.0, "load": null, "in_flight": 0
            }])
        )
    );
    assert_eq!(seen["reload_error"], "refused");
    // What is of the whole daemon is not for a role of some services.
    let owen = bearer(&stage.token("owen", json!({})));
    let refused = stage.ask(&owen, "POST", "/v1/drain", "").unwrap();
    assert!(refused.status == 403 && refused.error().contains("a daemon is of none"), "{}", refused.body);
    let lee = stage.ask(&lee, "GET", "/v1/keys", "").unwrap();
    assert_eq!(lee.status, 403, "{}", lee.body);
}

#[test]
fn a_daemon_is_set_and_disabled_service_by_service() {
    let (Guarded { stage, .. }, asked) = daemon(None);
    let sue = bearer(&stage.token("sue", json!({})));
    let ops = bearer(&stage.token("olga", json!({"groups": ["ops"]})));
    let post = |shows: &Shows, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        stage.ask(shows, "POST", path, &body).unwrap()
    };
    // Whoever may switch one service may switch neither another nor all.
    assert_eq!(
        post(&sue, "/v1/disable", json!({"balancing": "web"})).json(),
        json!({"changes": ["~ service web: false"]})
    );
    for body in [json!({"balancing": "mail"}), Value::Null, json!({})] {
        assert_eq!(post(&sue, "/v1/disable", body.clone()).status, 403, "{body}");
    }
    for (path, body, status) in [
        ("/v1/enable", json!({"balancing": "web"}), 200),
        ("/v1/disable", Value::Null, 200),
        ("/v1/enable", json!({}), 200),
        ("/v1/disable", json!({"member": "10.0.0.1:80"}), 400),
        ("/v1/set", json!({"key": "ttl", "value": "1s"}), 200),
        ("/v1/set", json!({"group": "web", "key": "capacity", "value": "9"}), 200),
        ("/v1/set", json!({"key": "member", "value": "9"}), 422),
        ("/v1/set", json!({"key": "ttl"}), 400),
    ] {
        let answer = post(&ops, path, body.clone());
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    }
    let calls = [
        "switch web false",
        "switch web true",
        "drain true",
        "drain false",
        "set None ttl 1s",
        "set Some(\"web\") capacity 9",
        "set None member 9",
    ];
    assert_eq!(*asked.calls.lock().unwrap(), calls);
    let lines = stage.audited();
    let ended = lines.iter().filter(|line| !["begun", "refused"].contains(&line["result"].as_str().unwrap()));
    let told: Vec<String> = ended
        .map(|line| format!("{} {} {}", line["verb"], line["target"], line["arguments"]).replace('"', ""))
        .collect();
    assert_eq!(
        told,
        [
            "disable web null",
            "enable web null",
            "disable null null",
            "enable null null",
            "set null {key:ttl,value:1s}",
            "set web {key:capacity,value:9}",
            "set null {key:member,value:9}",
        ]
    );
}

#[test]
fn groups_of_a_supervisor_are_its_processes() {
    let (Guarded { stage, .. }, told) = supervisor(None);
    let lee = bearer(&stage.token("lee", json!({})));
    let ask = |method: &str, path: &str| stage.ask(&lee, method, path, "").unwrap();
    let names = |path: &str| -> Vec<Value> {
        let seen = ask("GET", path).json();
        seen["processes"].as_array().unwrap().iter().map(|process| process["name"].clone()).collect()
    };
    assert_eq!((names("/v1/processes"), names("/v1/status")), (vec![json!("web")], vec![json!("web")]));
    assert_eq!((ask("GET", "/v1/processes/web").status, ask("GET", "/v1/processes/mail").status), (200, 403));
    assert_eq!(ask("POST", "/v1/processes/web/restart").status, 200);
    assert_eq!(ask("POST", "/v1/processes/mail/restart").status, 403);
    assert_eq!(ask("POST", "/v1/shutdown").status, 403);
    assert_eq!(*told.calls.lock().unwrap(), ["Restart web"]);
    // Who may not start it is not told what it was started with.
    let shown = ask("GET", "/v1/processes/web").body;
    assert!(!shown.contains("/secret/"), "{shown}");
    let ops = certificate(stage.ours.issue(&["spiffe://example.org/ops/a"], 1));
    assert!(stage.ask(&ops, "GET", "/v1/processes/web", "").unwrap().body.contains("/secret/place.toml"));
    let lines = stage.audited();
    let line = lines.iter().find(|line| line["result"] == "begun").unwrap();
    assert_eq!(
        (&line["verb"], &line["target"], &line["result"]),
        (&json!("process-restart"), &json!("web"), &json!("begun"))
    );
    assert!(stage.ask(&ops, "GET", "/metrics", "").unwrap().body.contains("process=\"mail\""));
}

#[test]
fn a_daemon_on_a_page_of_metrics() {
    let (Guarded { stage, .. }, _) = daemon(None);
    let page = stage.ask(&bearer(&stage.token("victor", json!({}))), "GET", "/metrics", "").unwrap().body;
    for sample in [
        "plimsoll_lottery_duplicates_total 1\n",
        "plimsoll_lottery_digest_disagreement 1\n",
        "plimsoll_lottery_commit_delay_seconds 0.001\n",
        "plimsoll_lottery_pending 3\n",
        "plimsoll_lottery_service_load{service=\"web\"} 0.5\n",
        "plimsoll_lottery_draining 0\n",
        "process_resident_memory_bytes ",
    ] {
        assert!(page.contains(sample), "{sample} in {page}");
    }
}
