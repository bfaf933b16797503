//! Control by Kerberos tickets end to end: a realm with a real KDC, `plimsoll up` with a keytab, commands
//! with `--negotiate`. Cargo's own binary is tested, whatever `PLIMSOLL_BIN` names: it has Kerberos built in,
//! as this test has.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::realm::Realm;
use crate::stage::{Folder, Member, Process, Run, groups};

const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

const USERS: &[&str] = &["alice", "bob", "eve"];

/// A realm, an authority for the host's certificate, and a member.
struct Site {
    realm: Realm,
    folder: Folder,
    member: Member,
}

/// A balancer of the site.
struct Host {
    process: Process,
    folder: Folder,
    url: String,
}

/// Returns the command line that gives a program an environment of its own.
fn environment(realm: &Realm, conf: &str, cache: &str) -> Vec<String> {
    let conf = realm.path(conf);
    vec![
        format!("KRB5_CONFIG={}", conf.display()),
        format!("KRB5CCNAME={}", realm.cache(cache)),
        BINARY.into(),
    ]
}

fn strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

impl Site {
    fn new() -> Self {
        let (realm, folder) = (Realm::start(USERS), Folder::new());
        for args in [
            &["cert", "init", "--trust-domain", "example.org"][..],
            &["cert", "issue", "lb", "--server", "localhost,127.0.0.1"],
        ] {
            let run = Run::of(Path::new(BINARY), args, folder.path());
            assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
        }
        Self { realm, folder, member: Member::start(&[]) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts a host whose Kerberos configuration is `conf`.
    fn host(&self, conf: &str, keytab: &str) -> Host {
        let folder = Folder::new();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{}\n[admin]\nlisten = \"off\"\n\
             control = [\"unix:{}\", \"tls://127.0.0.1:0\"]\naudit = \"{}\"\n\
             tls = {{ certificate = \"{}\", key = \"{}\" }}\nkerberos = {{ keytab = \"{}\" }}\n\
             [[admin.access.grant]]\nidentity = \"krb5:alice@PLIMSOLL.TEST\"\nrole = \"operator\"\n\
             [[admin.access.grant]]\nidentity = \"krb5:bob@PLIMSOLL.TEST\"\nrole = \"viewer\"\n",
            groups(&[("web", &[self.member.address])], ""),
            folder.join("control.sock").display(),
            folder.join("audit.log").display(),
            self.path("lb.pem").display(),
            self.path("lb.key").display(),
            self.realm.path(keytab).display(),
        );
        folder.write("plimsoll.toml", &text);
        let args = [environment(&self.realm, conf, "none"), vec!["up".into()]].concat();
        let process = Process::start(Path::new("/usr/bin/env"), &strs(&args), folder.path());
        let line = process.line("listening control tls://127.0.0.1:");
        let port = line.split("tls://127.0.0.1:").nth(1).unwrap().split([':', ' ']).next().unwrap();
        let url = format!("https://localhost:{port}");
        Host { process, folder, url }
    }

    /// Runs a command with the tickets of a cache.
    fn by(&self, cache: &str, host: &Host, args: &[&str]) -> Run {
        self.by_url(cache, &host.url, args)
    }

    fn by_url(&self, cache: &str, url: &str, args: &[&str]) -> Run {
        let ca = self.path("ca/ca.pem").display().to_string();
        let at = ["--host", url, "--ca", &ca, "--negotiate"];
        let environment = environment(&self.realm, "krb5.conf", cache);
        Run::of(Path::new("/usr/bin/env"), &[&strs(&environment), args, &at].concat(), self.folder.path())
    }

    fn ticket(&self, user: &str) {
        assert!(self.realm.kinit(user, user, "5m"));
    }
}

impl Host {
    fn audited(&self) -> Vec<Value> {
        self.folder.read("audit.log").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn commands_by_ticket() {
    let site = Site::new();
    let host = site.host("krb5.conf", "services.keytab");
    USERS.iter().for_each(|user| site.ticket(user));
    let target = site.member.address.to_string();
    let run = site.by("bob", &host, &["members", "web", "-o", "json"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert_eq!(run.json()[0]["result"]["groups"][0]["members"][0]["address"], target.as_str());
    let run = site.by("alice", &host, &["drain", &target]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    for (user, may_not) in
        [("bob", &["undrain", target.as_str()][..]), ("eve", &["status"]), ("alice", &["reload"])]
    {
        let run = site.by(user, &host, may_not);
        assert_eq!(run.code, Some(1), "{user}: {}{}", run.out, run.err);
        assert!(run.err.contains(&format!("krb5:{user}@PLIMSOLL.TEST may not")), "{user}: {}", run.err);
    }
    // The cases: no ticket, none for such a host, and one that has expired.
    let run = site.by("none", &host, &["status"]);
    assert!(run.code == Some(1) && run.err.contains("kinit"), "{:?} {}", run.code, run.err);
    let elsewhere = host.url.replace("localhost", "127.0.0.1");
    let run = site.by_url("alice", &elsewhere, &["status"]);
    assert!(run.code == Some(1) && run.err.contains("no Kerberos ticket for HTTP/127.0.0.1"), "{}", run.err);

    let lines = host.audited();
    let by = |who: &str, verb: &str, result: &str| {
        let who = format!("{who}@PLIMSOLL.TEST");
        lines.iter().any(|line| {
            line["kind"] == "krb5"
                && line["who"] == who.as_str()
                && line["verb"] == verb
                && line["result"] == result
        })
    };
    assert!(
        by("alice", "drain", "done") && by("bob", "undrain", "refused") && by("eve", "status", "refused"),
        "{lines:?}"
    );
    let log = host.process.lines().join("\n") + &host.folder.read("audit.log");
    assert!(!log.contains("Negotiate "), "{log}");
}

#[test]
fn a_server_without_the_key_and_a_ticket_whose_time_is_over_are_refused() {
    let site = Site::new();
    let old = site.host("krb5.conf", "old.keytab");
    site.ticket("bob");
    let run = site.by("bob", &old, &["status"]);
    assert!(run.code == Some(1) && run.err.contains("the ticket does not count"), "{}", run.err);

    // The client ignores that its ticket has expired: the end that it has noted is a later one.
    // The client must get the next ticket within this time.
    assert!(site.realm.kinit("alice", "alice", "5s"));
    site.realm.get_service("alice");
    let ended = postpone(&site.realm.path("alice.cache"));
    let strict = site.host("strict.conf", "services.keytab");
    let kind = site.host("krb5.conf", "services.keytab");
    crate::stage::until("a ticket whose time is over", || now() > ended + 2);
    let run = site.by("alice", &kind, &["status"]);
    assert_eq!(run.code, Some(0), "clocks may differ by five minutes: {}", run.err);
    let run = site.by("alice", &strict, &["status"]);
    assert!(run.code == Some(1) && run.err.to_lowercase().contains("expired"), "{}{}", run.out, run.err);
    assert!(strict.audited().iter().all(|line| line["result"] == "refused"), "{:?}", strict.audited());
    let run = site.by("alice", &kind, &["drain", &site.member.address.to_string()]);
    assert_eq!(run.code, Some(0), "{}", run.err);
}

fn now() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u32::try_from(now.as_secs()).unwrap()
}

/// Writes a later end into all tickets of a credential cache, where the client looks; the end that counts is
/// sealed in the ticket. Returns the end that they had, in seconds since 1970.
fn postpone(cache: &Path) -> u32 {
    let mut bytes = std::fs::read(cache).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (now, mut ended) = (now(), 0);
    for at in 0..bytes.len() - 12 {
        // The times of the issue, the beginning and the end.
        let [given, begins, ends] = [0, 4, 8].map(|more| word(&bytes, at + more));
        let recent = |time: u32| now.abs_diff(time) < 60;
        if recent(given) && (recent(begins) || begins == 0) && recent(ends) && ends > given {
            bytes[at + 8..at + 12].copy_from_slice(&(ends + 3600).to_be_bytes());
            ended = ended.max(ends);
        }
    }
    assert!(ended > 0, "no ticket in {}", cache.display());
    std::fs::write(cache, bytes).unwrap();
    ended
}
