//! Tickets at control over TLS, of a realm with a real KDC: who may do what by them, and what does not count.
//! Tokens are made by another program than ours.

use std::io::{Read as _, Write as _};
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_admin::{AccessRules, ActiveRules, Config, ProcessKind, SecuredConfig, TlsSettings, start};

use crate::behind::{Guarded, each};
use crate::pki::Authority;
use crate::realm::{Mint, REALM, Realm};
use crate::script::{Answer, Scratch, Script};
use crate::stage::{OWN, Shows, Stage, channel};

/// Returns the credentials of a client with a ticket. `change` receives the channel and returns the channel
/// that the token is bound to.
fn ticket(
    mint: &Rc<Mint>,
    cache: String,
    service: &'static str,
    mech: &'static str,
    change: impl Fn(&[u8; 32]) -> Option<[u8; 32]> + 'static,
) -> Shows {
    let mint = Rc::clone(mint);
    let make = move |channel: &[u8; 32]| {
        let bound = change(channel);
        format!("Negotiate {}", mint.token(&cache, service, bound.as_ref().map(<[_; 32]>::as_slice), mech))
    };
    Shows { ticket: Some(Box::new(make)), ..Shows::default() }
}

#[test]
fn every_verb_for_every_role_by_ticket() {
    let users = ["victor", "olga", "rita", "owen", "agent", "eve"];
    let realm = Realm::start(&users);
    let mint = Rc::new(Mint::open(&realm));
    for user in users {
        assert!(realm.kinit(user, user, "1h"));
    }
    for guarded in each(Some(&realm.path("services.keytab"))) {
        let [look, operate, administer] = guarded.verbs();
        // Nothing of what the test's own role has is of a single service, or of a Supervisor at all.
        let own: &[&[&str]] = if guarded.by == ProcessKind::Balancer { &[OWN] } else { &[] };
        let roles: [Vec<&[&str]>; 6] = [
            vec![look],
            vec![look, operate],
            vec![look, operate, administer],
            own.to_vec(),
            vec![&["report"]],
            vec![],
        ];
        let mut tried = 0;
        for (user, allowed) in users.into_iter().zip(&roles) {
            for mech in ["spnego", "krb5"] {
                let shows =
                    ticket(&mint, realm.cache(user), "HTTP@localhost", mech, |channel| Some(*channel));
                tried += guarded.holds(&format!("{user}, {mech}"), &shows, allowed);
            }
        }
        assert_eq!(tried, 12 * guarded.routes().count());
        let olga = format!("olga@{REALM}");
        let lines = guarded.stage.audited();
        let done = |verb: &str| {
            let by = |line: &&serde_json::Value| line["kind"] == "krb5" && line["who"] == olga.as_str();
            lines.iter().filter(by).filter(|line| line["verb"] == verb && line["result"] == "done").count()
        };
        assert_eq!((done(operate[0]), done("reload")), (2, 0), "{lines:?}");
    }
}

#[test]
fn what_does_not_count_gets_nowhere() {
    let realm = Realm::start(&["rita"]);
    each(Some(&realm.path("services.keytab"))).iter().for_each(|guarded| gets_nowhere(&realm, guarded));
}

fn gets_nowhere(realm: &Realm, guarded: &Guarded) {
    let stage = &guarded.stage;
    let mint = Rc::new(Mint::open(realm));
    assert!(realm.kinit("rita", "rita", "1h"));
    let rita = |service, change: fn(&[u8; 32]) -> Option<[u8; 32]>| {
        ticket(&mint, realm.cache("rita"), service, "spnego", change)
    };
    let text = |text: &str| Shows { token: Some(text.into()), ..Shows::default() };
    // A token on the connection that it is bound to, shown a second time there.
    let client = stage.ours.client(None);
    let mut stream = stage.connect(&client);
    let bound = channel(&mut stream).unwrap();
    let token = mint.token(&realm.cache("rita"), "HTTP@localhost", Some(&bound), "spnego");
    let mut ask = |last: bool| {
        let close = if last { "Connection: close\r\n" } else { "" };
        let request =
            format!("GET /healthz HTTP/1.1\r\nHost: a\r\n{close}Authorization: Negotiate {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        if last {
            stream.read_to_end(&mut text).unwrap();
        } else {
            while !text.ends_with(b"\r\n\r\nok\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                text.push(byte[0]);
            }
        }
        String::from_utf8(text).unwrap()
    };
    let first = ask(false);
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let reply = first.lines().find_map(|line| line.strip_prefix("www-authenticate: Negotiate ")).unwrap();
    assert!(mint.proved(reply), "the server proves that it has the key");
    let again = Answer::read(ask(true).as_bytes());
    assert!(again.status == 401 && again.error().contains("replay"), "{}", again.body);

    let elsewhere = format!("Negotiate {token}");
    for (who, shows, why) in [
        (
            "bound to another connection",
            rita("HTTP@localhost", |_| Some([7; 32])),
            "bound to another connection",
        ),
        ("taken from another connection", text(&elsewhere), "does not count"),
        ("bound to none", rita("HTTP@localhost", |_| None), "not bound to this connection"),
        ("for another service", rita("host@localhost", |channel| Some(*channel)), "not for HTTP"),
        ("no token", text("Negotiate "), "does not count here"),
        ("not base64", text("Negotiate !"), "base64"),
        ("not a token", text("Negotiate YWJjZGVmZ2g="), "does not count"),
        ("as a token of people", text(&format!("Bearer {token}")), "token"),
    ] {
        for route in guarded.routes() {
            let answer = stage.do_route(&shows, route).unwrap();
            assert_eq!(answer.status, 401, "{who}: {}: {}", route.name, answer.body);
            // The dashboard says it on a page.
            assert!(answer.body.contains(why), "{who}: {}", answer.body);
            assert!(answer.head.contains("www-authenticate: negotiate\r\n"), "{}", answer.head);
        }
    }
    assert_eq!((guarded.calls)(), 0);
    let log = stage.audited().iter().map(ToString::to_string).collect::<String>();
    assert!(log.contains("bound to another connection") && !log.contains(&token[..40]), "{log}");
}

/// Keys of a balancer's tickets, while it runs.
#[test]
fn a_keytab_is_read_with_each_ticket() {
    let realm = Realm::start(&["rita"]);
    let mint = Rc::new(Mint::open(&realm));
    assert!(realm.kinit("rita", "rita", "1h"));
    let rita = |service, change: fn(&[u8; 32]) -> Option<[u8; 32]>| {
        ticket(&mint, realm.cache("rita"), service, "spnego", change)
    };
    // A keytab with keys that count no more: the tickets are as good as before, and nobody can read them.
    let old = Stage::with(Some(realm.path("old.keytab")));
    let answer = old.ask(&rita("HTTP@localhost", |channel| Some(*channel)), "GET", "/healthz", "").unwrap();
    assert!(answer.status == 401 && answer.error().contains("does not count"), "{}", answer.body);
    // Keys are read again: those of today make the next ticket count.
    std::fs::copy(realm.path("services.keytab"), realm.path("new.keytab")).unwrap();
    std::fs::rename(realm.path("new.keytab"), realm.path("old.keytab")).unwrap();
    let answer = old.ask(&rita("HTTP@localhost", |channel| Some(*channel)), "GET", "/healthz", "").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    // Without [admin.kerberos] no ticket counts.
    let closed = Stage::with(None);
    let answer =
        closed.ask(&rita("HTTP@localhost", |channel| Some(*channel)), "GET", "/healthz", "").unwrap();
    assert!(answer.status == 401 && answer.error().contains("no [admin.kerberos]"), "{}", answer.body);
}

#[test]
fn without_a_keytab_it_does_not_start() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("empty.keytab"), b"\x05\x02").unwrap();
    std::fs::write(scratch.path("no.keytab"), b"no keytab").unwrap();
    for name in ["none.keytab", "empty.keytab", "no.keytab"] {
        let ours = Authority::new("ours");
        let folder = scratch.path("");
        let (certificate, key) = ours.issue(&["spiffe://example.org/lb"], 1).write(&folder, "lb");
        let tls = TlsSettings {
            address: ([127, 0, 0, 1], 0).into(),
            certificate,
            key,
            client_ca: None,
            trust_domain: None,
        };
        let rules = Arc::new(ActiveRules::fixed(AccessRules::default()));
        let secured = SecuredConfig { tls, jwt: None, keytab: Some(scratch.path(name)), rules };
        let config = Config { secured: Some(secured), ..Config::default() };
        let error = start(config, Script::new()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("[admin.kerberos]"), "{error}");
    }
}
