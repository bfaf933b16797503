//! Talk to a running Supervisor or to a lottery's daemon, as to a balancer. The socket of this host's is the first of these that is
//! given: `--control`, the environment's `PLIMSOLL_SUPERVISE` or `PLIMSOLL_LOTTERY`, `control` of the file named by `--config`, that of
//! `./supervise.toml` or `./lottery.toml`; of a Supervisor also `unix:/run/plimsoll-supervise.sock`. `--control http://HOST:PORT` names
//! a listener: enough to look, not to act. `--host` names control over TLS of other hosts.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ACT, Balancer, Credentials, Target, Trouble, configured};
use crate::config::{DEFAULT_LOTTERY_FILE, DEFAULT_SUPERVISE_CONTROL, DEFAULT_SUPERVISE_FILE};

/// For a view of a host: whoever is asked asks others, who may not answer.
const VIEW: Duration = Duration::from_secs(30);

/// Options of every command that talks to a running Supervisor.
#[derive(clap::Args, Debug)]
pub(crate) struct Place {
    /// Control socket of the Supervisor, unix:/PATH; or its listener, http://HOST:PORT, to look only
    #[arg(long, env = "PLIMSOLL_SUPERVISE", value_name = "ADDRESS")]
    control: Option<String>,

    /// Its file, which says where the control socket is [default: supervise.toml]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Ask the Supervisors of other hosts, by https://HOST:PORT of their control over TLS: repeat it, or separate them by commas; @FILE has one a line
    #[arg(
        long = "host",
        env = "PLIMSOLL_SUPERVISE_HOSTS",
        value_name = "URL|@FILE",
        value_delimiter = ',',
        help_heading = "Other hosts"
    )]
    hosts: Vec<String>,

    #[command(flatten)]
    credentials: Credentials,
}

/// Options of every command that talks to a running daemon of a lottery.
#[derive(clap::Args, Debug)]
pub(crate) struct DaemonPlace {
    /// Control socket of the daemon, unix:/PATH
    #[arg(long, env = "PLIMSOLL_LOTTERY", value_name = "ADDRESS")]
    control: Option<String>,

    /// Its file, which says where the control socket is [default: lottery.toml]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Ask the daemons of other hosts, by https://HOST:PORT of their control over TLS: repeat it, or separate them by commas; @FILE has one a line
    #[arg(
        long = "host",
        env = "PLIMSOLL_LOTTERY_HOSTS",
        value_name = "URL|@FILE",
        value_delimiter = ',',
        help_heading = "Other hosts"
    )]
    hosts: Vec<String>,

    #[command(flatten)]
    credentials: Credentials,
}

impl Target for Place {
    fn named(&self) -> (&[String], &Credentials) {
        (&self.hosts, &self.credentials)
    }

    fn own(&self) -> Result<Balancer, Trouble> {
        let control = written(self.control.as_deref(), self.config.as_deref(), &SUPERVISE)?;
        Balancer::parse(&control.unwrap_or_else(|| format!("unix:{DEFAULT_SUPERVISE_CONTROL}")))
    }
}

impl Target for DaemonPlace {
    fn named(&self) -> (&[String], &Credentials) {
        (&self.hosts, &self.credentials)
    }

    fn own(&self) -> Result<Balancer, Trouble> {
        let control = written(self.control.as_deref(), self.config.as_deref(), &LOTTERY)?;
        Balancer::parse(&control.ok_or_else(|| {
            Trouble::Refused(
                "it is not said which daemon: give --host https://HOST:PORT, --control unix:/PATH, or -c FILE with \
                 [admin] control"
                    .into(),
            )
        })?)
    }
}

/// A file, and the section of it that says where control is.
type Written = (&'static str, &'static str);

const SUPERVISE: Written = (DEFAULT_SUPERVISE_FILE, "supervise");
const LOTTERY: Written = (DEFAULT_LOTTERY_FILE, "admin");

/// Where control is, by option or file.
fn written(
    control: Option<&str>,
    config: Option<&Path>,
    (file, section): &Written,
) -> Result<Option<String>, Trouble> {
    // An empty variable is how shells say that there is none.
    if let Some(control) = control.filter(|control| !control.is_empty()) {
        return Ok(Some(control.to_owned()));
    }
    let default = || Some(Path::new(file)).filter(|file| file.exists());
    config.or_else(default).map_or(Ok(None), |file| configured(file, section))
}

/// What somebody runs, as far as we know.
pub(crate) struct Peer<'b> {
    at: &'b Balancer,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Supervisor,
    Daemon,
}

impl<'b> Peer<'b> {
    /// A Supervisor.
    pub(crate) fn supervisor(at: &'b Balancer) -> Self {
        Self { at, kind: Kind::Supervisor }
    }

    /// A lottery's daemon.
    pub(crate) fn daemon(at: &'b Balancer) -> Self {
        Self { at, kind: Kind::Daemon }
    }

    /// Asks for what `target` shows.
    pub(crate) fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Trouble> {
        let body = self.send("GET", target, "", VIEW)?;
        serde_json::from_slice(&body).map_err(|error| self.at.stranger(&error))
    }

    /// Has something done.
    pub(crate) fn post(&self, target: &str, body: &Value) -> Result<Value, Trouble> {
        if let Balancer::Http(_) = self.at {
            return Err(Trouble::Refused(format!(
                "{} only shows: give --control unix:/path of the control socket to act",
                self.at
            )));
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let body = self.send("POST", target, &body, ACT)?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Is nobody there any more? In doubt somebody is.
    pub(crate) fn gone(&self) -> bool {
        self.at.gone()
    }

    fn send(&self, method: &str, target: &str, body: &str, wait: Duration) -> Result<Vec<u8>, Trouble> {
        let socket = self.at.connect().map_err(|error| {
            let hint = match self.kind {
                Kind::Supervisor => supervisor_hint(self.at, error.kind()),
                Kind::Daemon => daemon_hint(self.at, error.kind()),
            };
            Trouble::Unreachable(format!("cannot reach {}: {error}; {hint}", self.at))
        })?;
        let answer = self.at.ask(socket, method, target, body, wait)?;
        answer.body().map_err(|error| self.at.lost(&error))
    }
}

fn supervisor_hint(at: &Balancer, error: ErrorKind) -> &'static str {
    match (at, error) {
        (Balancer::Unix(_), ErrorKind::NotFound) => {
            "no Supervisor made it; start one (plimsoll supervise), or say where it is: --control unix:/path, \
             or -c supervise.toml"
        }
        (Balancer::Unix(_), ErrorKind::ConnectionRefused) => {
            "the Supervisor that made it is gone; start one (plimsoll supervise): it finds its processes"
        }
        (Balancer::Unix(_), ErrorKind::PermissionDenied) => {
            "use it as the user who started the Supervisor, or as root"
        }
        (Balancer::Unix(_), _) => "is it the control socket of a Supervisor?",
        (Balancer::Http(_), _) => "see [supervise] listen of the Supervisor's file",
        (Balancer::Https(..), _) => "see [supervise] control of the Supervisor's file",
    }
}

fn daemon_hint(at: &Balancer, error: ErrorKind) -> &'static str {
    match (at, error) {
        (Balancer::Unix(_), ErrorKind::NotFound) => {
            "no daemon made it; start one (plimsoll lottery), or say where it is: --control unix:/path, or \
             -c lottery.toml"
        }
        (Balancer::Unix(_), ErrorKind::ConnectionRefused) => {
            "the daemon that made it is gone; start one (plimsoll lottery)"
        }
        (Balancer::Unix(_), ErrorKind::PermissionDenied) => {
            "use it as the user who started the daemon, or as root"
        }
        (Balancer::Unix(_), _) => "is it the control socket of a lottery's daemon?",
        _ => "see [admin] control of the daemon's file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_where() {
        let file = std::env::temp_dir().join(format!("plimsoll-peer-{}.toml", std::process::id()));
        std::fs::write(&file, "[supervise]\ncontrol = \"unix:/x/y.sock\"\n[[process]]\nname = 5\n").unwrap();
        let place = |control: Option<&str>| Place {
            control: control.map(str::to_owned),
            config: Some(file.clone()),
            hosts: Vec::new(),
            credentials: Credentials::default(),
        };
        let found = |place: Place| place.own().map(|at| at.to_string());
        assert_eq!(found(place(None)).unwrap(), "unix:/x/y.sock");
        assert_eq!(found(place(Some(""))).unwrap(), "unix:/x/y.sock");
        assert_eq!(found(place(Some("http://[::1]:80"))).unwrap(), "http://[::1]:80");
        std::fs::write(&file, "").unwrap();
        assert_eq!(found(place(None)).unwrap(), "unix:/run/plimsoll-supervise.sock");
        let daemon = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let (control, config) = (None, Some(file.clone()));
            let (hosts, credentials) = (Vec::new(), Credentials::default());
            let place = DaemonPlace { control, config, hosts, credentials };
            place.own().map(|at| at.to_string()).map_err(|why| why.to_string())
        };
        assert_eq!(daemon("member = 0\n[admin]\ncontrol = \"unix:/l.sock\"\n").unwrap(), "unix:/l.sock");
        assert!(daemon("member = 1\n").unwrap_err().contains("which daemon"));
        std::fs::remove_file(&file).unwrap();
        let at = place(Some("http://127.0.0.1:1")).own().unwrap();
        let trouble = Peer::supervisor(&at).post("/v1/reload", &Value::Null).unwrap_err();
        assert!(trouble.to_string().contains("only shows"), "{trouble}");
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let at = Balancer::Unix("/nowhere/plimsoll.sock".into());
        for (peer, what) in
            [(Peer::supervisor(&at), "plimsoll supervise"), (Peer::daemon(&at), "plimsoll lottery")]
        {
            let trouble = peer.get::<Value>("/v1/processes").unwrap_err();
            assert!(matches!(&trouble, Trouble::Unreachable(why) if why.contains(what)), "{trouble}");
        }
    }
}
