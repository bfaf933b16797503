//! Certificates from an ACME authority: Pebble issues them, curl verifies them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::Value;
use time::OffsetDateTime;

use crate::stage::{
    Authority, Balancer, Curled, Folder, Member, Pebble, Run, Wish, curl, found, free_port, groups, nobody,
    part, until,
};

const NAME: &str = "one.test";
const QUARTER: u32 = 90 * 86_400;

/// A balancer with an https listener and an http one, in front of an echo. The certificate is from a file at
/// first.
struct Stage {
    balancer: Balancer,
    member: Member,
    /// The port of the http listener: a reload identifies listeners by their addresses in the file.
    http: u16,
}

impl Stage {
    #[track_caller]
    fn start() -> Self {
        let member = Member::start(&["--echo", "http"]);
        let folder = Folder::new();
        Authority::new(&folder, "ca").issue(&folder, "one", &["other.test"]);
        let http = free_port();
        let balancer = Balancer::start_in(folder, &text(FROM_FILE, http, &member));
        Self { balancer, member, http }
    }

    /// Returns the file with these settings in the https listener's tls.
    fn with(&self, tls: &str) -> String {
        text(tls, self.http, &self.member)
    }

    fn wish(&self) -> Wish<'static> {
        Wish { tls: self.balancer.address().port(), http: self.http, life: QUARTER, accounts: &[] }
    }

    fn get(&self, name: &str, root: &str, more: &[&str]) -> Curled {
        get(&self.balancer, name, root, more)
    }

    /// Waits until curl, which trusts only `root`, accepts the certificate for `name`.
    #[track_caller]
    fn trusted(&self, name: &str, root: &str) {
        until("curl takes the certificate", || self.get(name, root, &[]).code == Some(0));
    }
}

const FROM_FILE: &str = "certificates = [{ certificate = \"one.pem\", key = \"one.key\" }]";

fn text(tls: &str, http: u16, member: &Member) -> String {
    let listener = |port| format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\ngroup = \"web\"\n");
    let groups = groups(&[("web", &[member.address])], "");
    format!("{}protocol = \"https\"\ntls = {{ {tls} }}\n{}{groups}", listener(0), listener(http))
}

fn get(balancer: &Balancer, name: &str, root: &str, more: &[&str]) -> Curled {
    let port = balancer.address().port();
    let resolve = format!("{name}:{port}:127.0.0.1");
    let url = format!("https://{name}:{port}/some/where");
    curl(&[&["--resolve", &resolve, "--cacert", root, "-v", &url], more].concat(), b"")
}

/// Returns the reasons of the events of a kind, oldest first.
fn events(balancer: &Balancer, kind: &str) -> Vec<String> {
    let run = balancer.run(&["events", "-o", "json"]);
    let event = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let wanted = |event: &Value| event["kind"] == kind;
    let why = |event: Value| event["why"].as_str().unwrap().to_owned();
    run.out.lines().map(event).filter(wanted).map(why).collect()
}

#[track_caller]
fn failure(balancer: &Balancer, text: &str) -> String {
    found(&format!("a failure with {text:?}"), || {
        events(balancer, "certificate_failed").into_iter().find(|why| why.contains(text))
    })
}

#[test]
fn a_certificate_is_obtained_over_tls_and_outlives_the_process() {
    let stage = Stage::start();
    let mut pebble = Pebble::start(NAME, &stage.wish());
    let root = pebble.root(stage.balancer.folder());
    let root = root.to_str().unwrap();
    // A listener that requires client certificates cannot use tls-alpn-01.
    let tls = pebble.table(&[NAME], "") + ", client_ca = \"ca.pem\", client_certificate = \"required\"";
    stage.balancer.reload(&stage.with(&tls));
    until("it is obtained", || events(&stage.balancer, "certificate_obtained").len() == 1);
    let file = stage.with(&pebble.table(&[NAME], ", challenge = \"tls-alpn-01\""));
    stage.balancer.reload(&file);
    let got = stage.get(NAME, root, &[]);
    assert_eq!(got.code, Some(0), "{}", got.talk);
    assert!(String::from_utf8_lossy(&got.body).starts_with("GET /some/where "), "{}", got.talk);
    let why = events(&stage.balancer, "certificate_obtained").remove(0);
    assert!(why.contains("certificate for one.test obtained from 127.0.0.1: good for 89d"), "{why}");
    let status = stage.balancer.status()["certificates"][0].clone();
    assert_eq!((&status["name"], &status["acme"]), (&NAME.into(), &true.into()), "{status}");
    let source = status["source"].as_str().unwrap().to_owned();
    let left = stage.balancer.metric(&format!(
        "plimsoll_certificate_expiry_seconds{{certificate=\"{NAME}\",source=\"{source}\"}}"
    ));
    assert!((7_700_000.0..7_776_000.0).contains(&left), "{left}");
    // A client that connects like an authority gets no certificate when no challenge is pending.
    let port = stage.balancer.address().to_string();
    let args = ["s_client", "-connect", &port, "-servername", NAME, "-alpn", "acme-tls/1"];
    let run = Run::of(&part("openssl"), &args, stage.balancer.folder().path());
    assert!((run.out + &run.err).contains("alert no application protocol"));
    // Other users of this host cannot read the keys.
    let folder = stage.balancer.folder().join("acme");
    let mut kept = Vec::new();
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        kept.push(file.file_name().into_string().unwrap());
    }
    kept.sort();
    assert!(kept[0].starts_with("account-127.0.0.1-") && kept[1] == "lock", "{kept:?}");
    assert!(kept[2].starts_with("one.test-") && kept[2].ends_with(".pem") && kept.len() == 3, "{kept:?}");
    // Another process with the same folder, and no authority.
    pebble.kill();
    let other = Folder::new();
    Authority::new(&other, "ca").issue(&other, "one", &["other.test"]);
    let file = file.replace("cache = \"acme\"", &format!("cache = \"{}\"", folder.display()));
    let file = file.replace(&format!("127.0.0.1:{}\"", stage.http), &format!("127.0.0.1:{}\"", free_port()));
    let again = Balancer::start_in(other, &file);
    let got = get(&again, NAME, root, &[]);
    assert_eq!(got.code, Some(0), "at once: {}", got.talk);
    assert_eq!(events(&again, "certificate_obtained"), Vec::<String>::new());
}

#[test]
fn certificates_are_obtained_over_http_and_nothing_else_is_answered_there() {
    let stage = Stage::start();
    let pebble = Pebble::start(NAME, &stage.wish());
    let root = pebble.root(stage.balancer.folder());
    let root = root.to_str().unwrap();
    let names = [NAME, "127-0-0-1.one.test"];
    let more = ", challenge = \"http-01\", separate = true, key_type = \"rsa-2048\"";
    stage.balancer.reload(&stage.with(&format!("{FROM_FILE}, {}", pebble.table(&names, more))));
    until("both are obtained", || events(&stage.balancer, "certificate_obtained").len() == 2);
    for name in names {
        let got = stage.get(name, root, &[]);
        assert_eq!(got.code, Some(0), "{}", got.talk);
    }
    // Other names still get the certificate of the file.
    let ca = stage.balancer.folder().join("ca.pem");
    assert_eq!(stage.get("other.test", ca.to_str().unwrap(), &[]).code, Some(0));
    // The member answers requests for a token that is not pending.
    let http = stage.balancer.addresses()[1];
    let answer = crate::stage::get(http, "/.well-known/acme-challenge/abc");
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("GET /.well-known/acme-challenge/abc "), "{}", answer.text());
}

/// An authority of the test itself, with certificates of a chosen lifetime.
struct Own(Issuer<'static, KeyPair>);

impl Own {
    /// Creates an authority; its root certificate is written as `FILE`, behind `root`.
    fn new(file: &Path, root: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "own");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let own = pem("CERTIFICATE", params.self_signed(&key).unwrap().der());
        std::fs::write(file, std::fs::read_to_string(root).unwrap() + &own).unwrap();
        Self(Issuer::new(params, key))
    }

    /// Puts a certificate of five minutes for the name, with `left` seconds left, in place of the one in
    /// `file`.
    fn put(&self, file: &Path, left: u64) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        params.not_after = OffsetDateTime::now_utc() + Duration::from_secs(left);
        params.not_before = params.not_after - Duration::from_secs(300);
        let certificate = pem("CERTIFICATE", params.signed_by(&key, &self.0).unwrap().der());
        let half = file.with_extension("half");
        std::fs::write(&half, pem("PRIVATE KEY", &key.serialize_der()) + &certificate).unwrap();
        std::fs::rename(half, file).unwrap();
    }
}

/// Encodes a certificate or key in lines that openssl reads.
fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[test]
fn a_renewed_certificate_comes_without_a_failed_request() {
    let stage = Stage::start();
    let pebble = Pebble::start(NAME, &stage.wish());
    let root = pebble.root(stage.balancer.folder());
    stage.balancer.reload(&stage.with(&pebble.table(&[NAME], "")));
    stage.trusted(NAME, root.to_str().unwrap());
    let roots = stage.balancer.folder().join("roots.pem");
    let own = Own::new(&roots, root.to_str().unwrap());
    let roots = roots.to_str().unwrap();
    let kept = std::fs::read_dir(stage.balancer.folder().join("acme")).unwrap();
    let mut kept = kept.map(|entry| entry.unwrap().path());
    let kept = kept.find(|path| path.extension().is_some_and(|end| end == "pem")).unwrap();
    // Handshakes failed before there was a certificate.
    let (over, failed) = (AtomicBool::new(false), stage.balancer.rejected("handshake"));
    let obtained = || events(&stage.balancer, "certificate_obtained");
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let port = stage.balancer.address().port();
                    // Several requests on one connection, and then another connection.
                    let more = format!("https://{NAME}:{port}/more");
                    while !over.load(Relaxed) {
                        let got = stage.get(NAME, roots, &["--fail", &more, &more]);
                        assert_eq!(got.code, Some(0), "{}", got.talk);
                        served.fetch_add(3, Relaxed);
                    }
                })
            })
            .collect();
        let ended = || clients.iter().any(|one| one.is_finished());
        let some_more = || {
            let before = served.load(Relaxed);
            until("some more are served", || served.load(Relaxed) >= before + 12 || ended());
        };
        some_more();
        let before = obtained().len();
        // Renewal is due with a third of the lifetime left. The first certificate has less, the second
        // reaches that point within some seconds. Either remains valid for longer than any step of the test.
        // A change of the settings makes the balancer read the folder.
        for (more, (left, profile)) in [(90, ", profile = \"default\""), (116, "")].into_iter().enumerate() {
            own.put(&kept, left);
            stage.balancer.reload(&stage.with(&pebble.table(&[NAME], profile)));
            until("it is renewed", || obtained().len() > before + more || ended());
            some_more();
        }
        over.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    let renewed = obtained().iter().filter(|why| why.contains("renewed")).count();
    assert_eq!(renewed, 2, "{:?}", obtained());
    assert_eq!(events(&stage.balancer, "certificate_failed"), Vec::<String>::new());
    assert_eq!(stage.balancer.rejected("handshake"), failed);
}

#[test]
fn an_authority_that_fails_leaves_what_there_is() {
    let stage = Stage::start();
    let mut pebble = Pebble::start(NAME, &stage.wish());
    let root = pebble.root(stage.balancer.folder());
    let root = root.to_str().unwrap();
    stage.balancer.reload(&stage.with(&pebble.table(&[NAME], "")));
    stage.trusted(NAME, root);
    // An additional name needs another certificate, and the authority is down.
    pebble.kill();
    let both = stage.with(&pebble.table(&[NAME, "127-0-0-1.one.test"], ""));
    stage.balancer.reload(&both);
    let why = failure(&stage.balancer, "cannot reach 127.0.0.1:");
    assert!(why.contains("next try in ") && why.contains("the one before is good for 89d"), "{why}");
    let got = stage.get(NAME, root, &[]);
    assert_eq!(got.code, Some(0), "{}", got.talk);
    let status = stage.balancer.run(&["status"]);
    assert!(status.out.contains("the certificate for one.test could not be renewed: "), "{}", status.out);
    assert_eq!(status.code, Some(0), "it is still good");
    let source = stage.balancer.status()["certificates"][0]["source"].as_str().unwrap().to_owned();
    let failing = format!("plimsoll_certificate_failing{{certificate=\"{NAME}\",source=\"{source}\"}}");
    assert_eq!(stage.balancer.metric(&failing), 1.0);
    // The authority returns without any account or certificate. A reload makes the balancer ask at once.
    pebble.restart();
    let fresh = Folder::new();
    let root = pebble.root(&fresh);
    stage.balancer.reload(&both);
    stage.trusted("127-0-0-1.one.test", root.to_str().unwrap());
    stage.trusted(NAME, root.to_str().unwrap());
    assert_eq!(stage.balancer.metric(&failing), 0.0);
}

#[test]
fn until_there_is_a_certificate_handshakes_fail_and_it_is_told_why() {
    let stage = Stage::start();
    let (_socket, elsewhere) = nobody();
    let pebble = Pebble::start(NAME, &Wish { http: elsewhere.port(), ..stage.wish() });
    stage.balancer.reload(&stage.with(&pebble.table(&[NAME], ", challenge = \"http-01\"")));
    let why = failure(&stage.balancer, "no certificate for one.test");
    assert!(why.contains("one.test: ") && why.contains("connection"), "{why}");
    assert!(why.contains("there is none"), "{why}");
    let got = stage.get(NAME, "/dev/null", &["-k"]);
    assert_ne!(got.code, Some(0));
    assert!(got.talk.contains("alert access denied"), "{}", got.talk);
    let status = stage.balancer.run(&["status"]);
    assert_eq!(status.code, Some(1), "{}", status.out);
    assert!(status.out.contains("there is no certificate for one.test yet: one.test: "), "{}", status.out);
}

#[test]
fn accounts_belong_to_those_that_the_authority_knows() {
    let stage = Stage::start();
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let pebble = Pebble::start(NAME, &Wish { accounts: &[("kid-1", key)], ..stage.wish() });
    let root = pebble.root(stage.balancer.folder());
    stage.balancer.reload(&stage.with(&pebble.table(&[NAME], "")));
    let why = failure(&stage.balancer, "externalAccountRequired");
    assert!(why.contains("it wants external_account = { id, key_file }"), "{why}");
    let with = |id: &str, key: &str| {
        stage.balancer.folder().write("eab.key", key);
        let account = format!(", external_account = {{ id = \"{id}\", key_file = \"eab.key\" }}");
        stage.with(&pebble.table(&[NAME], &account))
    };
    stage.balancer.reload(&with("kid-2", key));
    failure(&stage.balancer, "no account: the field 'kid' references a key that is not known");
    stage.balancer.reload(&with("kid-1", "b10lLJs8l1GPIzsLP0s6pMt8O0XVGnfTaCeROxQM0BIt2XrJMDHJZBM5NuQmQJQH"));
    failure(&stage.balancer, "external account binding JWS verification error");
    stage.balancer.write(&with("kid-1", "no key!"));
    let run = stage.balancer.run(&["config", "check"]);
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(run.err.contains("cannot read eab.key: it has no key in base64url"), "{}", run.err);
    stage.balancer.reload(&with("kid-1", key));
    stage.trusted(NAME, root.to_str().unwrap());
}
