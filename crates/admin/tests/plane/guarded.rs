//! Control over TLS of a lottery's daemon and of a Supervisor: the same rules, the same audit log, every verb for every role.

use std::sync::{Arc, Mutex};

use plimsoll_admin::{
    Admin, By, Config, Counts, Daemon, DaemonStatus, KeyRing, KeyStep, MemberSeen, OwnService, Part, ROUTES,
    Refused, Report, attend, supervise,
};
use serde_json::{Value, json};

use crate::script::Script;
use crate::stage::{Shows, Stage, bearer, certificate};
use crate::supervisor::Told;

/// A daemon that says what it was told.
#[derive(Default)]
struct Asked {
    calls: Mutex<Vec<String>>,
}

impl Asked {
    fn call(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }
}

fn ring() -> KeyRing {
    KeyRing { member: 1, sealing: 6, keys: vec![6, 7], client_keys: vec![3], others: vec![2] }
}

impl Daemon for Asked {
    fn stopping(&self) -> bool {
        false
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        let service = |name: &str, id| OwnService {
            name: name.into(),
            id,
            server: ([10, 0, 0, 1], 80).into(),
            capacity: 4,
            ready: true,
            load: Some(0.5),
            in_flight: 2,
            weight: 5.5,
        };
        let part = |service| Part { service, capacity: 4, weight: 2.0, load: None, in_flight: 0 };
        let other = MemberSeen {
            member: 2,
            address: ([10, 0, 0, 2], 7447).into(),
            state: "up".into(),
            suspect: false,
            differs: true,
            services: vec![part(1), part(2)],
        };
        Ok(DaemonStatus {
            schema: 1,
            version: "0.1.0".into(),
            pid: 7,
            started_unix_ms: 1_800_000_000_000,
            stopping: false,
            reload_error: Some("lottery.toml:1:1: secret = 5".into()),
            member: 1,
            address: ([10, 0, 0, 1], 7447).into(),
            state: "up".into(),
            services: vec![service("web", 1), service("mail", 2)],
            members: vec![other],
            pending: 3,
            queued: 4,
            sealing_key: 6,
            keys: vec![6, 7],
            client_keys: vec![3],
            counts: Counts { won: 200, duplicates: 1, ..Counts::default() },
            duplicate_share: 0.005,
            digest_disagreement: 1.0,
            commit_delay_seconds: Some(0.001),
            step_seconds: 0.02,
            lag_seconds: 0.0,
        })
    }

    fn drain(&self, drain: bool) -> Result<(), String> {
        self.call(format!("drain {drain}"));
        Ok(())
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        self.call("reload".into());
        Ok(vec!["~ ttl".into()])
    }

    fn stop(&self) {
        self.call("stop".into());
    }

    fn report(&self, report: Report) -> Result<(), Refused> {
        self.call(format!("report {:?}", report.values));
        Ok(())
    }

    fn keys(&self) -> Result<KeyRing, String> {
        Ok(ring())
    }

    fn key(&self, step: KeyStep) -> Result<KeyRing, String> {
        self.call(format!("{step:?}"));
        if step.id() == 13 { Err("there is no key with the number 13".into()) } else { Ok(ring()) }
    }
}

/// Doors, and how many times somebody behind them was told something.
struct Guarded {
    stage: Stage,
    calls: Box<dyn Fn() -> usize>,
}

fn daemon() -> (Guarded, Arc<Asked>) {
    let asked = Arc::new(Asked::default());
    let (open, count) = (asked.clone(), asked.clone());
    let stage = Stage::before(Script::new(), |config: Config| -> Admin { attend(config, open).unwrap() });
    (Guarded { stage, calls: Box::new(move || count.calls.lock().unwrap().len()) }, asked)
}

fn supervisor() -> (Guarded, Arc<Told>) {
    let told = Arc::new(Told::default());
    let (open, count) = (told.clone(), told.clone());
    let stage = Stage::before(Script::new(), |config: Config| -> Admin { supervise(config, open).unwrap() });
    (Guarded { stage, calls: Box::new(move || count.calls.lock().unwrap().len()) }, told)
}

/// Written out here, so that a change of the table shows: what viewers have, operators beside that, admins beside that.
const DAEMON: [&[&str]; 3] = [
    &["index", "document", "health", "metrics", "lottery", "keys", "dashboard"],
    &["drain", "undrain"],
    &["report", "reload", "stop", "key-accept", "key-seal", "key-retire"],
];
const SUPERVISOR: [&[&str]; 3] = [
    &["index", "document", "health", "metrics", "processes", "process", "household", "dashboard"],
    &["process-start", "process-stop", "process-restart", "process-reload"],
    &["reload", "shutdown"],
];

#[test]
fn every_verb_for_every_role_by_certificate_and_by_token() {
    for (by, Guarded { stage, calls }, [look, operate, administer]) in
        [(By::Lottery, daemon().0, DAEMON), (By::Supervisor, supervisor().0, SUPERVISOR)]
    {
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
        let routes = || ROUTES.iter().filter(|route| route.served(by));
        assert_eq!(routes().count(), look.len() + operate.len() + administer.len());
        for (who, shows, allowed) in &callers {
            for route in routes() {
                let before = calls();
                let answer = match route.name {
                    // A daemon is drained as a whole.
                    "drain" | "undrain" => stage.ask(shows, "POST", route.path, "").unwrap(),
                    _ => stage.do_route(shows, route).unwrap(),
                };
                let may = allowed.iter().any(|verbs| verbs.contains(&route.name));
                // The scripted Supervisor's process does not run.
                let given = match route.name {
                    "process-reload" => 422,
                    // Once somebody has shut it down.
                    "health" if by == By::Supervisor && answer.status == 503 => 503,
                    _ => route.gives.0,
                };
                assert_eq!(
                    answer.status,
                    if may { given } else { 403 },
                    "{who}: {}: {}",
                    route.name,
                    answer.body
                );
                assert_eq!(
                    calls() - before,
                    usize::from(may && route.method == "POST"),
                    "{who}: {}",
                    route.name
                );
            }
        }
        // Without a credential not even what there is is told.
        for route in routes() {
            let answer = stage.do_route(&Shows::default(), route).unwrap();
            assert_eq!(answer.status, 401, "{}: {}", route.name, answer.body);
        }
        let others = ROUTES.iter().filter(|route| !route.served(by) && !route.by.contains(&By::Balancer));
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
    let (Guarded { stage, .. }, asked) = daemon();
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
    let (Guarded { stage, .. }, _) = daemon();
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
fn groups_of_a_supervisor_are_its_processes() {
    let (Guarded { stage, .. }, told) = supervisor();
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
    let (Guarded { stage, .. }, _) = daemon();
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
