//! Pebble, Let's Encrypt's small certificate authority for tests of ACME, and a name server that leads it to
//! this host.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Authority, Balancer, Folder, Process, curl, free_port, listens, part, until};

/// Returns a program that `scripts/install-go-tools` built.
///
/// # Panics
/// Panics if it is not there.
#[track_caller]
fn go_part(name: &str) -> PathBuf {
    // The path is TARGET/debug/deps/e2e-…
    let test = std::env::current_exe().unwrap();
    let file = test.ancestors().nth(3).unwrap().join("go/bin").join(name);
    assert!(file.is_file(), "{} is not there: run scripts/install-go-tools {name}", file.display());
    file
}

/// The properties of a wanted authority.
pub(crate) struct Wish<'a> {
    /// The port to which the names lead by TLS; `http` is that of plain HTTP.
    pub(crate) tls: u16,
    pub(crate) http: u16,
    /// The lifetime of certificates, in seconds.
    pub(crate) life: u32,
    /// The accounts, to one of which each client must belong: id and key, base64url.
    pub(crate) accounts: &'a [(&'a str, &'a str)],
}

/// A running authority. Its directory is at `https://127.0.0.1:PORT/dir`, its own certificate leads to
/// `pebble-ca.pem` in the folder.
pub(crate) struct Pebble {
    process: Process,
    folder: Folder,
    address: SocketAddr,
    management: SocketAddr,
    /// The name server that leads it to this host.
    _names: Balancer,
    dns: u16,
}

impl Pebble {
    /// Starts an authority that finds the name, and `127-0-0-1.` below it, at 127.0.0.1.
    #[track_caller]
    pub(crate) fn start(name: &str, wish: &Wish<'_>) -> Self {
        let folder = Folder::new();
        let authority = Authority::new(&folder, "pebble-ca");
        authority.issue(&folder, "pebble", &["127.0.0.1"]);
        let (dns, server) = names_server(name);
        let at = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        for _ in 0..20 {
            let (address, management) = (at(), at());
            folder.write("pebble.json", config(address, management, wish));
            let mut process = run(&folder, dns);
            until("pebble listens, or has ended", || {
                process.ended() || (listens(address) && listens(management))
            });
            if !process.ended() {
                return Self { process, folder, address, management, _names: server, dns };
            }
            assert!(process.lines().join("\n").contains("in use"), "{process}");
        }
        panic!("no port is free for pebble");
    }

    /// Kills the authority, with all its state.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at its address. It has new certificates of its own and knows no accounts.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.process = run(&self.folder, self.dns);
        until("pebble listens again", || listens(self.address) && listens(self.management));
    }

    /// Returns the beginning of a table `acme` for these domains, its cache in the folder `acme` of the
    /// balancer.
    pub(crate) fn table(&self, domains: &[&str], more: &str) -> String {
        let root = self.folder.join("pebble-ca.pem");
        format!(
            "acme = {{ domains = {domains:?}, directory = \"https://{}/dir\", root = \"{}\", terms_agreed = \
             true, \
             cache = \"acme\", contact = [\"mailto:ops@one.test\"]{more} }}",
            self.address,
            root.display()
        )
    }

    /// Writes the root certificate of all certificates that it issues.
    #[track_caller]
    pub(crate) fn root(&self, folder: &Folder) -> PathBuf {
        let ca = self.folder.join("pebble-ca.pem");
        let url = format!("https://{}/roots/0", self.management);
        let got = curl(&["--cacert", ca.to_str().unwrap(), &url], b"");
        assert_eq!(got.code, Some(0), "{}", got.talk);
        folder.write("root.pem", got.body)
    }
}

/// Starts a Plimsoll that serves names by DNS.
#[track_caller]
fn names_server(zone: &str) -> (u16, Balancer) {
    let port = free_port();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"dns\"\ndomain = \"{zone}\"\ngroup = \
         \"web\"\n\
         [[group]]\nname = \"web\"\nmembers = [\"127.0.0.1:9\"]\n"
    );
    (port, Balancer::start(&text))
}

#[track_caller]
fn run(folder: &Folder, dns: u16) -> Process {
    // Pebble logs to its standard output, and by default refuses one good nonce in twenty.
    let script = "PEBBLE_VA_NOSLEEP=1 PEBBLE_AUTHZREUSE=0 PEBBLE_WFE_NONCEREJECT=0 exec \"$0\" -config \
        pebble.json -dnsserver \"$1\" >&2";
    let program = go_part("pebble");
    let args = ["-c", script, program.to_str().unwrap(), &format!("127.0.0.1:{dns}")];
    Process::start(&part("sh"), &args, folder.path())
}

fn config(address: SocketAddr, management: SocketAddr, wish: &Wish<'_>) -> String {
    let keys =
        wish.accounts.iter().map(|(id, key)| format!("\"{id}\": \"{key}\"")).collect::<Vec<_>>().join(", ");
    format!(
        "{{ \"pebble\": {{ \"listenAddress\": \"{address}\", \"managementListenAddress\": \"{management}\",\n\
         \"certificate\": \"pebble.pem\", \"privateKey\": \"pebble.key\", \"httpPort\": {}, \"tlsPort\": \
         {},\n\
         \"externalAccountBindingRequired\": {}, \"externalAccountMACKeys\": {{ {keys} }},\n\
         \"retryAfter\": {{ \"authz\": 1, \"order\": 1 }}, \"keyAlgorithm\": \"ecdsa\",\n\
         \"profiles\": {{ \"default\": {{ \"description\": \"usual\", \"validityPeriod\": {} }} }} }} }}\n",
        wish.http,
        wish.tls,
        !wish.accounts.is_empty(),
        wish.life,
    )
}
