//! Control over TLS: every verb, every role, every kind of credential; what is written down; what changes while it runs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use plimsoll_admin::{
    Access, Admin, Audit, By, Config, Grant, Jwt, KeySet, ROUTES, Role, Route, Rules, Secured, Takes, Tls,
    Verb, start,
};
use rcgen::KeyPair;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::pki::{Authority, Identity};
use crate::script::{Answer, Scratch, Script};

/// Verbs that change nothing.
pub(crate) const LOOK: &[&str] =
    &["index", "document", "health", "status", "metrics", "events", "explain", "capacity", "reference"];
/// What the built-in roles have, beside `LOOK`. Written out here, so that a change of the table shows.
pub(crate) const OPERATE: &[&str] = &["drain", "undrain", "disable", "enable", "set"];
pub(crate) const ADMINISTER: &[&str] = &["report", "reload", "stop"];
/// What the test's own role has, for the group `web`.
pub(crate) const OWN: &[&str] = &["status", "explain", "drain"];

const GRANTS: &str = "spiffe://example.org/view/* viewer\nspiffe://example.org/ops/* operator\n\
    spiffe://example.org/root/* admin\nspiffe://example.org/own/* own\nspiffe://example.org/agent/* agent\n\
    jwt:victor viewer\njwt:groups=ops operator\njwt:rita admin\njwt:owen own\njwt:sue switcher\njwt:lee looker\njwt:agent agent\n\
    krb5:victor@PLIMSOLL.TEST viewer\nkrb5:olga@PLIMSOLL.TEST operator\nkrb5:rita@PLIMSOLL.TEST admin\n\
    krb5:owen@PLIMSOLL.TEST own\nkrb5:agent@PLIMSOLL.TEST agent\n";

/// Lines of pattern and role.
fn rules(bytes: &[u8]) -> Result<Access, String> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let own = Role {
        name: "own".into(),
        verbs: OWN.iter().map(|name| name.parse().unwrap()).collect(),
        groups: Some(["web".to_owned()].into()),
    };
    let switcher = Role { name: "switcher".into(), verbs: [Verb::Disable].into(), ..own.clone() };
    let looker = Role {
        name: "looker".into(),
        verbs: [Verb::Lottery, Verb::Processes, Verb::Process, Verb::Household, Verb::ProcessRestart].into(),
        ..own.clone()
    };
    let agent = Role { name: "agent".into(), verbs: [Verb::Report].into(), groups: None };
    let mut grants = Vec::new();
    for line in text.lines() {
        let (pattern, role) = line.split_once(' ').ok_or("no role")?;
        grants.push(Grant { pattern: pattern.parse()?, role: role.into() });
    }
    Access::new(vec![own, switcher, looker, agent], grants)
        .map_err(|place| format!("line {place}: no such role"))
}

pub(crate) struct Stage {
    pub(crate) script: Arc<Script>,
    admin: Admin,
    pub(crate) ours: Authority,
    signer: EncodingKey,
    audit: PathBuf,
    scratch: Scratch,
}

impl Stage {
    pub(crate) fn open() -> Self {
        Self::with(None)
    }

    /// One at which tickets count, if there is a keytab.
    pub(crate) fn with(keytab: Option<PathBuf>) -> Self {
        let script = Script::new();
        Self::made(script.clone(), keytab, |config| start(config, script).unwrap())
    }

    /// The doors before whoever `open` puts there.
    pub(crate) fn before(script: Arc<Script>, open: impl FnOnce(Config) -> Admin) -> Self {
        Self::made(script, None, open)
    }

    fn made(script: Arc<Script>, keytab: Option<PathBuf>, open: impl FnOnce(Config) -> Admin) -> Self {
        let scratch = Scratch::new();
        let ours = Authority::new("ours");
        let folder = scratch.path("");
        let (certificate, key) = ours.issue(&["spiffe://example.org/plimsoll"], 1).write(&folder, "server");
        let client_ca = scratch.path("ca.pem");
        std::fs::write(&client_ca, ours.pem()).unwrap();
        let pair = KeyPair::generate().unwrap();
        let (x, y) = pair.public_key_raw()[1..].split_at(32);
        let jwks_file = scratch.path("jwks.json");
        let jwk = json!({"kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y)});
        std::fs::write(&jwks_file, json!({"keys": [jwk]}).to_string()).unwrap();
        std::fs::write(scratch.path("access"), GRANTS).unwrap();
        let tls = Tls {
            address: ([127, 0, 0, 1], 0).into(),
            certificate,
            key,
            client_ca: Some(client_ca),
            trust_domain: Some("example.org".into()),
        };
        let jwt = Jwt {
            issuer: "https://id".into(),
            audience: vec!["plimsoll".into()],
            keys: KeySet::File(jwks_file),
        };
        let rules = Arc::new(Rules::file(scratch.path("access"), rules).unwrap());
        let audit = scratch.path("audit.log");
        let config = Config {
            secured: Some(Secured { tls, jwt: Some(jwt), keytab, rules }),
            audit: Some(Arc::new(Audit::open(&audit).unwrap())),
            ..Config::default()
        };
        let admin = open(config);
        let signer = EncodingKey::from_ec_der(pair.serialized_der());
        Self { script, admin, ours, signer, audit, scratch }
    }

    pub(crate) fn token(&self, subject: &str, change: Value) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({"iss": "https://id", "aud": "plimsoll", "sub": subject, "exp": now + 60});
        for (key, value) in change.as_object().unwrap() {
            claims[key] = match value.as_i64() {
                Some(seconds) if key == "exp" || key == "nbf" => (now as i64 + seconds).into(),
                _ => value.clone(),
            };
        }
        encode(&Header::new(Algorithm::ES256), &claims, &self.signer).unwrap()
    }

    pub(crate) fn connect(&self, client: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
        let stream = crate::script::tcp(self.admin.secured().unwrap());
        let name = "127.0.0.1".try_into().unwrap();
        StreamOwned::new(ClientConnection::new(client.clone(), name).unwrap(), stream)
    }

    /// Asks as somebody; `None` if no connection came about.
    pub(crate) fn ask(&self, shows: &Shows, method: &str, path: &str, body: &str) -> Option<Answer> {
        let mut stream = self.connect(&self.ours.client(shows.identity.as_ref()));
        let token = match &shows.ticket {
            Some(make) => Some(make(&channel(&mut stream)?)),
            None => shows.token.clone(),
        };
        let token = token.map_or_else(String::new, |it| format!("Authorization: {it}\r\n"));
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{token}Content-Length: {length}\r\n\r\n{body}"
        );
        let _ = stream.write_all(request.as_bytes());
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        (!text.is_empty()).then(|| Answer::read(&*text))
    }

    pub(crate) fn do_route(&self, shows: &Shows, route: &Route) -> Option<Answer> {
        let path = match route.takes {
            Takes::Since => format!("{}?follow=0", route.path),
            _ => route.path.replace("{group}", "web").replace("{process}", "web"),
        };
        let body = match route.takes {
            Takes::Secret => {
                r#"{"id":7,"secret":"5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"}"#
            }
            Takes::KeyId => r#"{"id":7}"#,
            Takes::Member => r#"{"group":"web","member":"10.0.0.1:80"}"#,
            Takes::Switch => r#"{"balancing":"web"}"#,
            Takes::Setting => r#"{"group":"web","key":"strategy","value":"random"}"#,
            Takes::Report => r#"{"group":"web","member":"10.0.0.1:80","values":{"cpu":1}}"#,
            Takes::Nothing | Takes::Since | Takes::Children => "",
        };
        self.ask(shows, route.method, &path, body)
    }

    /// A connection over which nothing is said.
    pub(crate) fn silent(&self) -> TcpStream {
        crate::script::tcp(self.admin.secured().unwrap())
    }

    pub(crate) fn audited(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn calls(&self) -> usize {
        self.script.calls.lock().unwrap().len()
    }
}

/// What somebody shows.
#[derive(Default)]
pub(crate) struct Shows {
    pub(crate) identity: Option<Identity>,
    pub(crate) token: Option<String>,
    /// What is shown is made for the connection, of what binds it to that.
    pub(crate) ticket: Option<Ticket>,
}

type Ticket = Box<dyn Fn(&[u8; 32]) -> String>;

/// What a balancer serves.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| route.served(By::Balancer))
}

pub(crate) fn certificate(identity: Identity) -> Shows {
    Shows { identity: Some(identity), ..Shows::default() }
}

pub(crate) fn bearer(token: &str) -> Shows {
    Shows { token: Some(format!("Bearer {token}")), ..Shows::default() }
}

/// Shakes hands; what only the two ends know then (RFC 9266). `None` if that fails.
pub(crate) fn channel(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> Option<[u8; 32]> {
    // What is sent behind the handshake's end does not wait for its acknowledgement.
    stream.sock.set_nodelay(true).unwrap();
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).ok()?;
    }
    stream.conn.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", None).ok()
}

#[test]
fn every_verb_for_every_role_by_certificate_and_by_token() {
    let stage = Stage::open();
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
    let mut tried = 0;
    for (who, shows, allowed) in &callers {
        for route in routes() {
            let before = stage.calls();
            let answer = stage.do_route(shows, route).unwrap();
            let may = allowed.iter().any(|verbs| verbs.contains(&route.name));
            let expected = if may { route.gives.0 } else { 403 };
            assert_eq!(answer.status, expected, "{who}: {}: {}", route.name, answer.body);
            let acted = usize::from(may && route.method == "POST");
            assert_eq!(stage.calls() - before, acted, "{who}: {}", route.name);
            if !may {
                assert!(answer.error().contains("no grant"), "{}", answer.body);
            }
            tried += 1;
        }
    }
    assert_eq!(tried, 12 * routes().count());
}

#[test]
fn what_does_not_count_gets_nowhere() {
    let stage = Stage::open();
    let theirs = Authority::new("theirs");
    let root = "spiffe://example.org/root/a";
    let good = stage.token("rita", json!({}));
    // These do not even get a connection, or no word over it.
    for (who, identity) in [
        ("foreign authority", theirs.issue(&[root], 1)),
        ("expired", stage.ours.issue(&[root], -1)),
        ("foreign trust domain", stage.ours.issue(&["spiffe://example.com/root/a"], 1)),
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
    let early = stage.token("rita", json!({"nbf": 120}));
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
    assert_eq!(stage.calls(), 0);
    assert_eq!(stage.ask(&bearer(&good), "GET", "/no/such/path", "").unwrap().status, 404);
    assert_eq!(stage.ask(&bearer(&good), "GET", "/v1/stop", "").unwrap().status, 405);

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
    let tls = Tls {
        address: ([127, 0, 0, 1], 0).into(),
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
        client_ca: Some(folder.join("ca.pem")),
        trust_domain: Some("example.org".into()),
    };
    let rules = Arc::new(Rules::file(folder.join("access"), rules).unwrap());
    let config = |tls: Tls| Config {
        secured: Some(Secured { tls, jwt: None, keytab: None, rules: rules.clone() }),
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
        (Tls { key: folder.join("ca.pem"), ..tls.clone() }, "ca.pem: no private key"),
        (Tls { certificate: folder.join("server.key"), ..tls.clone() }, "no certificate in PEM form"),
        (Tls { client_ca: Some(folder.join("none")), ..tls.clone() }, "none: No such file"),
    ] {
        let error = start(config(wrong), Script::new()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("[admin.tls]"), "{error}");
    }
}
