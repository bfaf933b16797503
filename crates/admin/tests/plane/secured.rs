//! Control over TLS: every verb, every role, every kind of credential; what is written down; what changes
//! while it runs.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use plimsoll_admin::{ActiveRules, Config, SecuredConfig, TlsSettings, start};
use serde_json::{Value, json};

use crate::behind::{Guarded, balancer, each};
use crate::pki::Authority;
use crate::script::Script;
use crate::stage::{ADMINISTER, GRANTS, LOOK, OPERATE, OWN, Shows, Stage, bearer, certificate, rules};

#[test]
fn every_verb_for_every_role_by_certificate_and_by_token() {
    let guarded = balancer(None);
    let stage = &guarded.stage;
    let by = |path: &str| certificate(stage.ours.issue(&[&format!("spiffe://example.org/{path}/a")], 1));
    let told = |subject: &str, change: Value| bearer(&stage.token(subject, change));
    let callers: [(&str, Shows, Vec<&[&str]>); 12] = [
        ("viewer by certificate", by("view"), vec![LOOK]),
        ("viewer by token", told("victor", json!({})), vec![LOOK]),
        ("operator by certificate", by("ops"), vec![LOOK, OPERATE]),
        ("operator by token", told("olga", json!({"groups": ["x", "ops"]})), vec![LOOK, OPERATE]),
        ("admin by certificate", by("root"), vec![LOOK, OPERATE, ADMINISTER]),
        ("admin by token", told("rita", json!({})), vec![LOOK, OPERATE, ADMINISTER]),
        ("own role by certificate", by("own"), vec![OWN]),
        ("own role by token", told("owen", json!({})), vec![OWN]),
        ("agent by certificate", by("agent"), vec![&["report"]]),
        ("agent by token", told("agent", json!({})), vec![&["report"]]),
        ("no grant by certificate", by("else"), vec![]),
        ("no grant by token", told("eve", json!({"groups": "opsx", "sub": "eve"})), vec![]),
    ];
    let tried: usize = callers.iter().map(|(who, shows, allowed)| guarded.holds(who, shows, allowed)).sum();
    assert_eq!(tried, 12 * guarded.routes().count());
}

#[test]
fn what_does_not_count_gets_nowhere() {
    each(None).iter().for_each(gets_nowhere);
}

fn gets_nowhere(guarded: &Guarded) {
    let stage = &guarded.stage;
    let routes = || guarded.routes();
    let theirs = Authority::new("theirs");
    let root = "spiffe://example.org/root/a";
    let good = stage.token("rita", json!({}));
    // These do not even get a connection, or no word over it. What the audit log is asked for comes first: it
    // has so many lines of those who are refused in a second and no more.
    for (who, identity) in [
        ("foreign trust domain", stage.ours.issue(&["spiffe://example.com/root/a"], 1)),
        ("foreign authority", theirs.issue(&[root], 1)),
        ("expired", stage.ours.issue(&[root], -1)),
        ("no id", stage.ours.issue(&[], 1)),
        ("two ids", stage.ours.issue(&[root, "spiffe://example.org/view/a"], 1)),
        ("no spiffe id", stage.ours.issue(&["https://example.org/root/a"], 1)),
        ("malformed id", stage.ours.issue(&["spiffe://example.org/root/../root/a"], 1)),
    ] {
        let mut shows = certificate(identity);
        // A good token does not mend a bad certificate.
        shows.token = Some(format!("Bearer {good}"));
        for route in routes() {
            assert!(stage.do_route(&shows, route).is_none(), "{who}: {}", route.name);
        }
    }
    // These get one, and 401 for whatever they ask.
    let stolen = format!("{}x", &good[..good.len() - 1]);
    let mut with_certificate = certificate(stage.ours.issue(&[root], 1));
    with_certificate.token = Some(format!("Bearer {stolen}"));
    let expired = stage.token("rita", json!({"exp": -60}));
    let early = stage.token("rita", json!({"nbf": 3000}));
    let foreign = stage.token("rita", json!({"iss": "https://other"}));
    let elsewhere = stage.token("rita", json!({"aud": "another"}));
    for (who, shows) in [
        ("nobody", Shows::default()),
        ("expired token", bearer(&expired)),
        ("token of tomorrow", bearer(&early)),
        ("token of another issuer", bearer(&foreign)),
        ("token for another", bearer(&elsewhere)),
        ("altered token", bearer(&stolen)),
        ("no token", bearer("")),
        ("password", Shows { token: Some("Basic cml0YTpyaXRh".into()), ..Shows::default() }),
        ("a good certificate with a bad token", with_certificate),
        (
            "two tokens",
            Shows {
                token: Some(format!("Bearer {good}\r\nAuthorization: Bearer {good}")),
                ..Shows::default()
            },
        ),
    ] {
        for route in routes() {
            let answer = stage.do_route(&shows, route).unwrap();
            assert_eq!(answer.status, 401, "{who}: {}: {}", route.name, answer.body);
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
            assert!(!answer.head.contains("negotiate"), "tickets do not count here: {}", answer.head);
        }
        let unknown = stage.ask(&shows, "GET", "/no/such/path", "").unwrap();
        assert_eq!(unknown.status, 401, "{who}: even what there is is not told");
    }
    assert_eq!((guarded.calls)(), 0);
    assert_eq!(stage.ask(&bearer(&good), "GET", "/no/such/path", "").unwrap().status, 404);
    assert_eq!(stage.ask(&bearer(&good), "GET", "/v1/reload", "").unwrap().status, 405);

    let log = std::fs::read_to_string(&stage.audit).unwrap();
    for secret in [&good, &expired, &early, &stolen, "cml0YTpyaXRh"] {
        let secret = secret.rsplit('.').next().unwrap();
        assert!(!log.contains(secret), "a credential is in the log");
    }
    assert!(log.contains("another trust domain: spiffe://example.com/root/a"), "{log}");
    let all = stage.audited();
    assert!(
        all.iter().all(|line| line["result"] == "refused" && line["from"].as_str().unwrap().contains(':'))
    );
}

#[test]
fn a_role_of_some_groups_sees_and_reaches_no_others() {
    let stage = Stage::open();
    let own = bearer(&stage.token("owen", json!({})));
    let switcher = bearer(&stage.token("sue", json!({})));
    stage.script.status.lock().unwrap().listeners[0].group = "mail".into();
    let status = stage.ask(&own, "GET", "/status", "").unwrap().json();
    let names: Vec<_> = status["groups"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["web"]);
    assert!(status["listeners"].as_array().unwrap().is_empty());
    let drain = |body: &str| stage.ask(&own, "POST", "/v1/drain", body).unwrap();
    assert_eq!(drain(r#"{"group":"web","member":"a:1"}"#).status, 200);
    let other = drain(r#"{"group":"mail","member":"a:1"}"#);
    assert_eq!(other.status, 403);
    assert!(other.error().contains("may not drain in group mail"), "{}", other.body);
    let switch = |body: &str| stage.ask(&switcher, "POST", "/v1/disable", body).unwrap();
    let listener = switch(r#"{"listener":"127.0.0.1:80"}"#);
    assert!(listener.status == 403 && !listener.error().contains("name the group"), "{}", listener.body);
    assert!(listener.error().contains("a listener is of none"), "{}", listener.body);
    let any = drain(r#"{"member":"a:1"}"#);
    assert!(any.status == 403 && any.error().contains("name the group"), "{}", any.body);
    assert_eq!(stage.ask(&own, "GET", "/v1/groups/mail/explain", "").unwrap().status, 403);
    assert_eq!(*stage.script.calls.lock().unwrap(), [r#"drain Some("web") a:1"#]);
}

#[test]
fn what_is_done_and_what_is_refused_is_written_down() {
    let stage = Stage::open();
    let ops = certificate(stage.ours.issue(&["spiffe://example.org/ops/a"], 1));
    let target = r#"{"group":"web","member":"10.0.0.1:80"}"#;
    stage.ask(&ops, "POST", "/v1/drain", target).unwrap();
    stage.ask(&ops, "POST", "/v1/drain", r#"{"member":"nobody:1"}"#).unwrap();
    stage.ask(&ops, "POST", "/v1/set", r#"{"group":"web","key":"strategy","value":"random"}"#).unwrap();
    stage.ask(&ops, "POST", "/v1/stop", "").unwrap();
    stage.ask(&ops, "GET", "/status", "").unwrap();
    let told: Vec<String> = stage
        .audited()
        .iter()
        .map(|line| {
            format!("{} {} {} {}", line["id"], line["verb"], line["target"], line["result"]).replace('"', "")
        })
        .collect();
    assert_eq!(
        told,
        [
            "1 drain web 10.0.0.1:80 begun",
            "1 drain web 10.0.0.1:80 done",
            "2 drain nobody:1 begun",
            "2 drain nobody:1 failed",
            "3 set web begun",
            "3 set web done",
            "null stop null refused",
        ]
    );
    let lines = stage.audited();
    assert_eq!(lines[4]["arguments"], json!({"key": "strategy", "value": "random"}));
    assert_eq!(
        (&lines[0]["kind"], &lines[0]["who"]),
        (&json!("spiffe"), &json!("spiffe://example.org/ops/a"))
    );
    assert_eq!(lines[3]["why"], "no group has a member nobody:1");
}

#[test]
fn a_log_that_cannot_be_written_refuses_changes() {
    let stage = Stage::open();
    let ops = certificate(stage.ours.issue(&["spiffe://example.org/ops/a"], 1));
    let target = r#"{"group":"web","member":"10.0.0.1:80"}"#;
    // Nothing can be appended to a folder.
    std::fs::remove_file(&stage.audit).unwrap();
    std::fs::create_dir(&stage.audit).unwrap();
    let answer = stage.ask(&ops, "POST", "/v1/drain", target).unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.error().contains("nothing was changed"), "{}", answer.body);
    assert_eq!(stage.calls(), 0);
    assert_eq!(stage.ask(&ops, "GET", "/status", "").unwrap().status, 200, "looking goes on");
    std::fs::remove_dir(&stage.audit).unwrap();
    assert_eq!(stage.ask(&ops, "POST", "/v1/drain", target).unwrap().status, 200);
}

#[test]
fn a_grant_that_is_taken_away_ends_at_once_even_on_an_open_connection() {
    let stage = Stage::open();
    let identity = stage.ours.issue(&["spiffe://example.org/ops/a"], 1);
    let mut stream = stage.connect(&stage.ours.client(Some(&identity)));
    let mut ask = |last: bool| {
        let close = if last { "Connection: close\r\n" } else { "" };
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: a\r\n{close}\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        let mut rest = Vec::new();
        if last {
            stream.read_to_end(&mut rest).unwrap();
        } else {
            while !rest.ends_with(b"ok\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                rest.push(byte[0]);
            }
        }
        String::from_utf8_lossy(&head[9..]).into_owned()
    };
    assert_eq!(ask(false), "200");
    let access = stage.scratch.path("access");
    std::fs::write(&access, "spiffe://example.org/ops/* nonsense\n").unwrap();
    assert_eq!(ask(false), "200", "a file that is wrong changes nothing");
    std::fs::write(&access, GRANTS.replace("ops/*", "ops/b")).unwrap();
    assert_eq!(ask(true), "403");
    let lines = stage.audited();
    let access: Vec<_> =
        lines.iter().filter(|line| line["verb"] == "access").map(|it| &it["result"]).collect();
    assert_eq!(access, ["refused", "done"]);
}

#[test]
fn certificates_are_replaced_while_it_runs() {
    let stage = Stage::open();
    let folder = stage.scratch.path("");
    let serves = |authority: &Authority| {
        let mut stream = stage.connect(&authority.client(None));
        let _ = stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n");
        let mut text = Vec::new();
        stream.read_to_end(&mut text).is_ok() && text.starts_with(b"HTTP/1.")
    };
    let next = Authority::new("next");
    assert!(serves(&stage.ours) && !serves(&next));
    let fresh = next.issue(&["spiffe://example.org/plimsoll"], 1);
    let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
    let old_key = std::fs::read(&key).unwrap();
    fresh.write(&folder, "server");
    std::fs::write(&key, old_key).unwrap();
    assert!(serves(&stage.ours), "a certificate without its key changes nothing");
    std::fs::remove_file(&certificate).unwrap();
    assert!(serves(&stage.ours), "nor does one that is gone");
    fresh.write(&folder, "server");
    assert!(serves(&next) && !serves(&stage.ours));
}

#[test]
fn without_tokens_nobody_comes_in_without_a_certificate() {
    let stage = Stage::open();
    let folder = stage.scratch.path("");
    let tls = TlsSettings {
        address: ([127, 0, 0, 1], 0).into(),
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
        client_ca: Some(folder.join("ca.pem")),
        trust_domain: Some("example.org".into()),
    };
    let rules = Arc::new(ActiveRules::file(folder.join("access"), rules).unwrap());
    let config = |tls: TlsSettings| Config {
        secured: Some(SecuredConfig { tls, jwt: None, keytab: None, rules: rules.clone() }),
        ..Config::default()
    };
    let stage = Stage { admin: start(config(tls.clone()), stage.script.clone()).unwrap(), ..stage };
    assert!(stage.ask(&Shows::default(), "GET", "/healthz", "").is_none());
    let view = || certificate(stage.ours.issue(&["spiffe://example.org/view/a"], 1));
    assert_eq!(stage.ask(&view(), "GET", "/healthz", "").unwrap().status, 200);
    let mut both = view();
    both.token = Some(format!("Bearer {}", stage.token("rita", json!({}))));
    assert_eq!(stage.ask(&both, "GET", "/healthz", "").unwrap().status, 401, "tokens do not count here");

    for (wrong, why) in [
        (TlsSettings { key: folder.join("ca.pem"), ..tls.clone() }, "ca.pem: no private key"),
        (TlsSettings { certificate: folder.join("server.key"), ..tls.clone() }, "no certificate in PEM form"),
        (TlsSettings { client_ca: Some(folder.join("none")), ..tls.clone() }, "none: No such file"),
    ] {
        let error = start(config(wrong), Script::new()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("[admin.tls]"), "{error}");
    }
}
