//! A Kerberos realm of a test's own: MIT's KDC on a free port of 127.0.0.1, run by an ordinary user. Its
//! programs come from Debian by `scripts/install-test-deps`. Nothing of the machine's own Kerberos is read or
//! written, except the replay cache, which has one file for each user.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ports::free_port;

/// The realm of all principals.
pub(crate) const REALM: &str = "PLIMSOLL.TEST";

/// The user that runs the KDC if the test is root: nobody.
const NOBODY: u32 = 65_534;

/// The bound of every wait, longer than any operation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A realm with its KDC.
pub(crate) struct Realm {
    folder: PathBuf,
    kdc: Option<Child>,
}

impl Realm {
    /// Starts a realm with these users and the services `HTTP/localhost` and `host/localhost`.
    pub(crate) fn start(users: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimsoll-realm-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut realm = Self { folder, kdc: None };
        realm.configure(0);
        realm.make(users);
        let end = Instant::now() + PATIENCE;
        while !realm.serves(users[0]) {
            assert!(Instant::now() < end, "no KDC in {PATIENCE:?}");
        }
        realm
    }

    /// Makes the database, and keytabs: `users.keytab`, `services.keytab`, and `old.keytab` with keys of
    /// `HTTP/localhost` that are no longer valid.
    fn make(&self, users: &[&str]) {
        let made = self.tool("kdb5_util").args(["create", "-s", "-P", "master"]).output().unwrap();
        assert!(made.status.success(), "kdb5_util: {}", String::from_utf8_lossy(&made.stderr));
        let mut script = String::new();
        for principal in users.iter().chain(&["HTTP/localhost", "host/localhost"]) {
            script += &format!("addprinc -randkey {principal}\n");
        }
        let keytab = |name: &str, principals: &[&str]| {
            format!("ktadd -k {} {}\n", self.path(name).display(), principals.join(" "))
        };
        script += &keytab("users.keytab", users);
        script += &keytab("old.keytab", &["HTTP/localhost"]);
        script += &keytab("services.keytab", &["HTTP/localhost", "host/localhost"]);
        let mut kadmin = self.tool("kadmin.local");
        let mut kadmin =
            kadmin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        kadmin.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let said = kadmin.wait_with_output().unwrap();
        assert!(self.path("services.keytab").exists(), "kadmin.local: {said:?}");
    }

    /// Starts the KDC; returns `true` if it answers.
    fn serves(&mut self, user: &str) -> bool {
        self.stop();
        self.configure(free_port());
        let log = std::fs::File::create(self.path("kdc.out")).unwrap();
        let mut kdc = self.tool("krb5kdc");
        kdc.arg("-n").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.kdc = Some(kdc.spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && self.kdc.as_mut().unwrap().try_wait().unwrap().is_none() {
            if self.kinit(user, "ready", "5m") {
                return true;
            }
            // sleeps: polls
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn configure(&self, port: u16) {
        let folder = self.folder.display();
        let client = |skew: u32| {
            format!(
                "[libdefaults]\n default_realm = {REALM}\n dns_lookup_realm = false\n dns_lookup_kdc = \
                 false\n \
                 dns_canonicalize_hostname = false\n rdns = false\n clockskew = {skew}\n\
                 [realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n[domain_realm]\n localhost = \
                 {REALM}\n"
            )
        };
        std::fs::write(self.path("krb5.conf"), client(300)).unwrap();
        std::fs::write(self.path("strict.conf"), client(1)).unwrap();
        let kdc = format!(
            "[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n {REALM} = \
             {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n  \
             max_life = 1h\n }}\n[logging]\n kdc = FILE:{folder}/kdc.log\n"
        );
        std::fs::write(self.path("kdc.conf"), kdc).unwrap();
    }

    /// Gets a ticket of the realm for `life` (`5m`) into a credential cache of this name.
    pub(crate) fn kinit(&self, user: &str, cache: &str, life: &str) -> bool {
        let (keytab, cache) = (self.path("users.keytab"), self.cache(cache));
        let got = self
            .tool("kinit")
            .arg("-k")
            .arg("-t")
            .arg(keytab)
            .args(["-c", &cache, "-l", life, user])
            .output();
        got.unwrap().status.success()
    }

    /// Gets a ticket for `HTTP/localhost` into that cache, too.
    pub(crate) fn get_service(&self, cache: &str) {
        let got = self.tool("kvno").args(["-c", &self.cache(cache), "HTTP/localhost"]).output().unwrap();
        assert!(got.status.success(), "kvno: {}", String::from_utf8_lossy(&got.stderr));
    }

    /// Returns the value of `KRB5CCNAME` for it.
    pub(crate) fn cache(&self, name: &str) -> String {
        format!("FILE:{}", self.path(&format!("{name}.cache")).display())
    }

    /// Returns the path of a file of the realm.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the command of a Kerberos program, as an ordinary user.
    fn tool(&self, name: &str) -> Command {
        let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
        let program = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
        let program = program.unwrap_or_else(|| panic!("no {name}: run scripts/install-test-deps"));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if rustix::process::geteuid().is_root() {
            let user = NOBODY.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        }
        command.arg("--").arg(program);
        command.env("KRB5_CONFIG", self.path("krb5.conf")).env("KRB5_KDC_PROFILE", self.path("kdc.conf"));
        command
    }

    fn stop(&mut self) {
        if let Some(mut kdc) = self.kdc.take() {
            let _ = kdc.kill();
            let _ = kdc.wait();
        }
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A maker of tokens out of tickets: Python's GSSAPI.
pub(crate) struct Mint {
    child: Child,
    ends: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Mint {
    pub(crate) fn open(realm: &Realm) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/realm/mint.py");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "/usr/bin/python3", "-B", script]);
        command.env("KRB5_CONFIG", realm.path("krb5.conf"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let ends = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, ends: Mutex::new(ends) }
    }

    /// Returns a token of the ticket in `cache` (as `KRB5CCNAME` has it) for a service such as
    /// `HTTP@localhost`, bound to a channel.
    pub(crate) fn token(&self, cache: &str, service: &str, channel: Option<&[u8]>, mech: &str) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let asked = json!({"ccache": cache, "service": service, "channel": channel.map(hex), "mech": mech});
        let said = self.ask(&asked);
        said["token"].as_str().unwrap_or_else(|| panic!("{asked}: {said}")).to_owned()
    }

    /// Returns `true` if the server's answer to the last token proves its identity.
    pub(crate) fn proved(&self, reply: &str) -> bool {
        self.ask(&json!({"reply": reply}))["proved"] == true
    }

    fn ask(&self, asked: &Value) -> Value {
        let (writer, reader) = &mut *self.ends.lock().unwrap();
        writeln!(writer, "{asked}").unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "mint.py ended: is python3-gssapi there? scripts/install-test-deps");
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Mint {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
