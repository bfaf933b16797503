//! Control over TLS end to end: certificates of `plimsoll cert`, the commands with `--host`, curl, tokens,
//! the audit log.

use std::path::Path;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage::{Balancer, Folder, Member, Run, curl, groups, nobody, until};

/// The identities that the authority certifies.
const IDS: &[&str] = &["lb", "ops/alice", "view/bob", "else/eve"];

const ACCESS: &str = "[[grant]]\nidentity = \"spiffe://example.org/ops/*\"\nrole = \"operator\"\n\
    [[grant]]\nidentity = \"spiffe://example.org/view/*\"\nrole = \"viewer\"\n\
    [[grant]]\nidentity = \"jwt:groups=root\"\nrole = \"admin\"\n";

/// The files shared by all hosts and users of a test.
pub(crate) struct Domain {
    pub(crate) folder: Folder,
    signer: EncodingKey,
}

impl Domain {
    pub(crate) fn new() -> Self {
        let folder = Folder::new();
        let domain = |args: &[&str]| {
            let run = Run::plimsoll(args, folder.path());
            assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
        };
        domain(&["cert", "init", "--trust-domain", "example.org"]);
        for id in IDS {
            let server: &[&str] = if *id == "lb" { &["--server", "127.0.0.1,localhost"] } else { &[] };
            domain(&[&["cert", "issue", id], server].concat());
        }
        let pair = rcgen::KeyPair::generate().unwrap();
        let jwk = {
            use base64::Engine as _;
            let text = |bytes: &[u8]| base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes);
            let (x, y) = pair.public_key_raw()[1..].split_at(32);
            json!({"kty": "EC", "crv": "P-256", "x": text(x), "y": text(y)})
        };
        folder.write("jwks.json", json!({"keys": [jwk]}).to_string());
        folder.write("access.toml", ACCESS);
        let signer = EncodingKey::from_ec_der(&pair.serialize_der());
        Self { folder, signer }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Returns the part of a file that opens control over TLS to the identities in `access`, in `section`.
    pub(crate) fn doors(&self, section: &str, access: &str) -> String {
        format!(
            "[{section}.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\ntrust_domain = \
             \"example.org\"\n\
             [{section}.access]\nfile = \"{}\"\n",
            self.path("lb.pem"),
            self.path("lb.key"),
            self.path("ca/ca.pem"),
            self.path(access),
        )
    }

    /// Starts a balancer with one member, under control of the identities in `access.toml`.
    fn balancer(&self, member: &Member) -> Balancer {
        let folder = Folder::new();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{}\n[admin]\n\
             control = [\"unix:{}\", \"tls://127.0.0.1:0\"]\naudit = \"{}\"\n\
             tls = {{ certificate = \"{}\", key = \"{}\", client_ca = \"{}\", \
             trust_domain = \"example.org\" }}\n\
             jwt = {{ issuer = \"https://id\", audience = \"plimsoll\", jwks_file = \"{}\" }}\n\
             access = {{ file = \"{}\" }}\n",
            groups(&[("web", &[member.address])], ""),
            folder.join("control.sock").display(),
            folder.join("audit.log").display(),
            self.path("lb.pem"),
            self.path("lb.key"),
            self.path("ca/ca.pem"),
            self.path("jwks.json"),
            self.path("access.toml"),
        );
        Balancer::start_in(folder, &text)
    }

    /// Runs a command as the user `name`.
    pub(crate) fn by(&self, name: &str, args: &[&str]) -> Run {
        let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
        let who = ["--ca", "ca/ca.pem", "--certificate", &certificate, "--key", &key];
        Run::plimsoll(&[args, &who].concat(), self.folder.path())
    }

    fn token(&self, change: Value) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({"iss": "https://id", "aud": "plimsoll", "sub": "rita", "exp": now + 300});
        change.as_object().unwrap().iter().for_each(|(key, value)| claims[key] = value.clone());
        encode(&Header::new(Algorithm::ES256), &claims, &self.signer).unwrap()
    }
}

/// Returns the complete lines of the audit log.
fn audited(balancer: &Balancer) -> Vec<Value> {
    let text = balancer.folder().read("audit.log");
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn several_hosts_are_looked_at_and_told_at_once() {
    let domain = Domain::new();
    let member = Member::start(&[]);
    let (one, two) = (domain.balancer(&member), domain.balancer(&member));
    let (first, second) = (one.host(), two.host());
    let both = format!("{first},{second}");

    let run = domain.by("bob", &["status", "--host", &both]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    for host in [&first, &second] {
        let lines: Vec<_> = run.out.lines().filter(|line| line.starts_with(host.as_str())).collect();
        assert!(lines.len() >= 3 && lines.iter().any(|line| line.contains("✔  web")), "{}", run.out);
    }
    let run = domain.by("bob", &["members", "web", "--host", &first, "--host", &second, "-o", "json"]);
    let said = run.json();
    for (place, host) in [&first, &second].into_iter().enumerate() {
        assert_eq!((&said[place]["host"], &said[place]["ok"]), (&json!(host), &json!(true)));
        assert_eq!(said[place]["result"]["groups"][0]["members"][0]["address"], member.address.to_string());
    }

    let target = member.address.to_string();
    let refused = domain.by("bob", &["drain", &target, "--host", &both]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert_eq!(refused.err.matches("may not drain").count(), 2, "{}", refused.err);
    let run = domain.by("alice", &["drain", &target, "--wait", "--host", &both]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    for balancer in [&one, &two] {
        assert_eq!(balancer.member(member.address)["state"], "draining");
    }
    domain.folder.write("hosts", format!("# ours\n{first}\n{second}\n"));
    let run = domain.by("alice", &["undrain", &target, "--host", "@hosts", "-o", "json"]);
    assert_eq!((run.code, &run.json()[1]["result"]), (Some(0), &json!({"undrained": target})));
    let run = domain.by("bob", &["events", "--host", &both, "-o", "json"]).json();
    let drained = |host: &Value| {
        host["result"].as_array().unwrap().iter().filter(|event| event["kind"] == "draining").count()
    };
    assert_eq!((drained(&run[0]), drained(&run[1])), (1, 1));
    let set = domain.by("alice", &["set", "group", "web.strategy=random", "--host", &both]);
    assert!(set.code == Some(0) && set.err.matches("-> random").count() == 2, "{}", set.err);

    let (_kept, nobody) = nobody();
    let nobody = format!("https://{nobody}");
    let run = domain.by("bob", &["status", "--host", &first, "--host", &nobody, "-o", "json"]);
    assert_eq!(run.code, Some(1));
    assert_eq!((&run.json()[0]["ok"], &run.json()[1]["ok"]), (&json!(true), &json!(false)));
    assert!(run.json()[1]["error"].as_str().unwrap().contains("cannot reach"), "{}", run.out);
    assert_eq!(domain.by("bob", &["status", "--host", &nobody]).code, Some(3));
    let one_only = domain.by("bob", &["events", "--follow", "--host", &both]);
    assert!(one_only.code == Some(2) && one_only.err.contains("one balancer"), "{}", one_only.err);
}

#[test]
fn whoever_cannot_prove_it_is_told_why() {
    let domain = Domain::new();
    let member = Member::start(&[]);
    let balancer = domain.balancer(&member);
    let host = balancer.host();
    let plain =
        |args: &[&str]| Run::plimsoll(&[&["status", "--host", &host], args].concat(), domain.folder.path());
    for (run, why) in [
        (plain(&[]), "needs --ca"),
        (plain(&["--ca", "ca/ca.pem"]), "no credential"),
        (plain(&["--ca", "lb.key"]), "no certificate"),
        (plain(&["--ca", "ca/ca.pem", "--token", "nonsense"]), "token"),
        (domain.by("eve", &["status", "--host", &host]), "no grant"),
    ] {
        assert!(matches!(run.code, Some(1 | 2)), "{:?} {}", run.code, run.err);
        assert!(run.err.contains(why), "{why}: {}", run.err);
    }
    // Another authority of the same name.
    let strange = Domain::new();
    let run = strange.by("alice", &["status", "--host", &host]);
    assert!(run.code == Some(1) && run.err.contains("not of an authority in --ca"), "{}", run.err);
    let ours = domain.path("ca/ca.pem");
    let run = Run::plimsoll(
        &["status", "--host", &host, "--ca", &ours, "--certificate", "alice.pem", "--key", "alice.key"],
        strange.folder.path(),
    );
    assert!(run.code == Some(1) && run.err.contains("not of an authority that it trusts"), "{}", run.err);
    let other_name = host.replace("127.0.0.1", "127.0.0.2");
    let run = domain.by("bob", &["status", "--host", &other_name]);
    assert!(matches!(run.code, Some(1 | 3)), "{}", run.err);

    // A handshake is logged after the client has received its error.
    until("all that was refused is in the audit log", || {
        let lines = audited(&balancer);
        let refused = |why: &str| lines.iter().any(|line| line["why"].as_str().unwrap_or("").contains(why));
        refused("no credential") && refused("no grant") && refused("UnknownIssuer")
    });
}

#[test]
fn tokens_and_curl() {
    let domain = Domain::new();
    let member = Member::start(&[]);
    let balancer = domain.balancer(&member);
    let host = balancer.host();
    let ca = domain.path("ca/ca.pem");
    let (root, other) = (domain.token(json!({"groups": ["root"]})), domain.token(json!({"aud": "x"})));

    domain.folder.write("token", &root);
    let reload = ["reload", "--host", &host, "--ca", "ca/ca.pem", "--token", "@token"];
    let run = Run::plimsoll(&reload, domain.folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let authorization = |token: &str| format!("Authorization: Bearer {token}");
    let status = |token: &str| {
        let url = format!("{host}/status");
        let field = authorization(token);
        crate::stage::curl_status(&["--cacert", &ca, "-H", &field, &url], b"")
    };
    assert_eq!((status(&root), status(&other), status("x")), (200, 401, 401));
    let (certificate, key) = (domain.path("alice.pem"), domain.path("alice.key"));
    let by_certificate =
        ["--cacert", &ca, "--cert", &certificate, "--key", &key, &format!("{host}/v1/openapi.json")];
    let document: Value = serde_json::from_slice(&curl(&by_certificate, b"").body).unwrap();
    assert_eq!(document["paths"]["/v1/drain"]["post"]["x-verb"], "drain");
    let localhost = host.replace("127.0.0.1", "localhost");
    let by_name = ["--cacert", &ca, "--cert", &certificate, "--key", &key, &format!("{localhost}/healthz")];
    assert_eq!(curl(&by_name, b"").body, b"ok\n");
    // Old TLS versions are refused.
    let old = [&["--tls-max", "1.2"][..], &by_certificate].concat();
    assert_ne!(curl(&old, b"").code, Some(0));

    balancer.process.signal(Signal::HUP);
    until("the signal is in the audit log", || {
        audited(&balancer).iter().any(|line| line["kind"] == "signal")
    });
    let run = balancer.run(&["drain", &member.address.to_string()]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let lines = audited(&balancer);
    let of = |kind: &str, verb: &str| {
        lines.iter().filter(|line| line["kind"] == kind && line["verb"] == verb).count()
    };
    assert_eq!((of("jwt", "reload"), of("unix", "drain"), of("signal", "reload")), (2, 2, 1), "{lines:?}");
    let uid = rustix::process::getuid().as_raw().to_string();
    assert!(lines.iter().any(|line| line["kind"] == "unix" && line["who"] == uid));

    let log = balancer.process.lines().join("\n") + &balancer.folder().read("audit.log");
    for secret in [&root, &other] {
        let signature = secret.rsplit('.').next().unwrap();
        assert!(!log.contains(signature), "a token is in a log");
    }
    assert!(!log.contains("PRIVATE"), "{log}");
}

#[test]
fn rules_change_without_a_reload_and_the_configuration_is_checked() {
    let domain = Domain::new();
    let member = Member::start(&[]);
    let balancer = domain.balancer(&member);
    let host = balancer.host();
    let drain = || domain.by("alice", &["drain", &member.address.to_string(), "--host", &host]).code;
    assert_eq!(drain(), Some(0));
    let check = || Run::plimsoll(&["config", "check"], balancer.folder().path());
    assert_eq!(check().code, Some(0), "{}", check().err);
    domain.folder.write("access.toml", ACCESS.replace("\"operator\"", "\"operater\""));
    assert_eq!(drain(), Some(0), "rules that are wrong change nothing");
    let said = check();
    assert!(said.code == Some(2) && said.err.contains("access.toml:3:8"), "{}", said.err);
    assert!(said.err.contains("did you mean `operator`?"), "{}", said.err);
    assert_eq!(balancer.run(&["reload"]).code, Some(2), "nor are they taken by a reload");
    domain.folder.write("access.toml", ACCESS.replace("\"operator\"", "\"viewer\""));
    assert_eq!(drain(), Some(1));
}

#[test]
fn rules_of_the_configuration_change_with_a_reload() {
    let domain = Domain::new();
    let member = Member::start(&[]);
    let folder = Folder::new();
    let (control, key) = (folder.join("control.sock"), folder.join("open.key"));
    std::fs::copy(domain.folder.join("lb.key"), &key).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let text = |role: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{}\n[admin]\n\
             control = [\"unix:{}\", \"tls://127.0.0.1:0\"]\n\
             tls = {{ certificate = \"{}\", key = \"{}\", client_ca = \"{}\", \
             trust_domain = \"example.org\" }}\n\
             access = {{ grant = [{{ identity = \"spiffe://example.org/ops/alice\", \
             role = \"{role}\" }}] }}\n",
            groups(&[("web", &[member.address])], ""),
            control.display(),
            domain.path("lb.pem"),
            key.display(),
            domain.path("ca/ca.pem"),
        )
    };
    let balancer = Balancer::start_in(folder, &text("operator"));
    balancer.process.line("anyone on this host may use the private key");
    balancer.process.line("what others do over TLS is written down nowhere: set [admin] audit");
    let host = balancer.host();
    let drain = || domain.by("alice", &["drain", &member.address.to_string(), "--host", &host]).code;
    assert_eq!(drain(), Some(0));
    let said = balancer.reload(&text("viewer"));
    assert!(!said.contains("[admin] differs"), "{said}");
    assert_eq!(drain(), Some(1));
    assert_eq!(domain.by("alice", &["members", "--host", &host]).code, Some(0));
    balancer.reload(&text("admin"));
    assert_eq!(domain.by("alice", &["reload", "--host", &host]).code, Some(0));
}

#[test]
fn keys_are_changed_without_a_gap() {
    let domain = Domain::new();
    let member = Member::start(&[]);
    let balancer = domain.balancer(&member);
    let host = balancer.host();
    let folder = domain.folder.path();
    let looks = |step: &str| {
        let run = domain.by("bob", &["status", "--host", &host]);
        assert_eq!(run.code, Some(0), "{step}: {}", run.err);
    };
    let cert = |args: &[&str]| {
        let run = Run::plimsoll(&[&["cert"], args].concat(), folder);
        assert_eq!(run.code, Some(0), "{args:?}: {}", run.err);
    };
    looks("before");
    let old = domain.folder.read("ca/ca.pem");
    cert(&["rotate"]);
    looks("the balancer has read both authorities");
    cert(&["issue", "view/bob"]);
    let both = domain.folder.read("ca/ca.pem");
    domain.folder.write("ca/ca.pem", &old);
    looks("a new certificate where only the old authority is known");
    cert_as_before(&domain, &both);
    cert(&["issue", "lb", "--server", "127.0.0.1,localhost"]);
    looks("a new certificate of the balancer");
    cert(&["rotate", "--finish"]);
    looks("after");
    let shown =
        Run::plimsoll(&["cert", "show", "lb.pem", "bob.pem", "ca/ca.pem", "-o", "json"], folder).json();
    assert!(shown.as_array().unwrap().iter().all(|one| one["state"] == "valid"), "{shown}");
    let gone = domain.by("alice", &["status", "--host", &host]);
    assert_eq!(gone.code, Some(1), "issued before the change: {}{}", gone.out, gone.err);
}

fn cert_as_before(domain: &Domain, bundle: &str) {
    domain.folder.write("ca/ca.pem", bundle);
}

#[test]
fn certificates_are_shown_and_mistakes_are_said() {
    let domain = Domain::new();
    let folder = domain.folder.path();
    let cert = |args: &[&str]| Run::plimsoll(&[&["cert"], args].concat(), folder);
    let shown = cert(&["show", "alice.pem", "lb.pem"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.out.contains("spiffe://example.org/ops/alice"), "{}", shown.out);
    assert!(shown.out.contains("127.0.0.1, localhost") || shown.out.contains("localhost"), "{}", shown.out);
    for (args, why) in [
        (&["init", "--trust-domain", "example.org"][..], "there already"),
        (&["init", "--trust-domain", "Example", "--dir", "x"], "not a trust domain"),
        (&["issue", "ops/../x"], "malformed path"),
        (&["issue", "else/bob"], "not a certificate of spiffe://example.org/else/bob"),
        (&["issue", "ops/z", "--server", "a b"], "DNS name"),
        (&["issue", "ops/z", "--dir", "nowhere"], "plimsoll cert init"),
        (&["rotate", "--finish"], "no former authority"),
        (&["show", "alice.key"], "no certificate"),
    ] {
        let run = cert(args);
        assert!(run.code == Some(2) && run.err.contains(why), "{args:?}: {:?} {}", run.code, run.err);
    }
    let renewed = cert(&["issue", "spiffe://example.org/ops/alice", "--days", "2", "-o", "json"]).json();
    assert_eq!(renewed["id"], "spiffe://example.org/ops/alice");
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(Path::new(folder).join(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("alice.key"), mode("ca/ca.key"), mode("ca")), (0o600, 0o600, 0o700));
}
