//! Talk to a running Supervisor, as to a balancer. Its socket is the first of these that is given: `--control`, the
//! environment's `PLIMSOLL_SUPERVISE`, `[supervise] control` of the file named by `--config`, that of `./supervise.toml`,
//! `unix:/run/plimsoll-supervise.sock`. `--control http://HOST:PORT` names its listener: enough to look, not to act.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ACT, Balancer, Trouble, configured};
use crate::config::{DEFAULT_SUPERVISE_CONTROL, DEFAULT_SUPERVISE_FILE};

/// For a view of the host: the Supervisor asks others, who may not answer.
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
}

/// A running Supervisor, as far as we know.
pub(crate) struct Supervisor(Balancer);

impl Place {
    /// The Supervisor to talk to; nothing is sent yet.
    pub(crate) fn supervisor(&self) -> Result<Supervisor, Trouble> {
        if let Some(control) = self.control.as_deref().filter(|control| !control.is_empty()) {
            return Balancer::parse(control).map(Supervisor);
        }
        let default = || Some(Path::new(DEFAULT_SUPERVISE_FILE)).filter(|file| file.exists());
        let written = match self.config.as_deref().or_else(default) {
            Some(file) => configured(file, "supervise")?,
            None => None,
        };
        let control = written.unwrap_or_else(|| format!("unix:{DEFAULT_SUPERVISE_CONTROL}"));
        Balancer::parse(&control).map(Supervisor)
    }
}

impl Supervisor {
    /// Asks for what `target` shows.
    pub(crate) fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, Trouble> {
        let body = self.send("GET", target, VIEW)?;
        serde_json::from_slice(&body).map_err(|error| self.0.stranger(&error))
    }

    /// Has something done.
    pub(crate) fn post(&self, target: &str) -> Result<Value, Trouble> {
        if let Balancer::Http(_) = self.0 {
            return Err(Trouble::Refused(format!(
                "{} only shows: give --control unix:/path of the control socket to act",
                self.0
            )));
        }
        let body = self.send("POST", target, ACT)?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Is nobody there any more? In doubt somebody is.
    pub(crate) fn gone(&self) -> bool {
        self.0.gone()
    }

    fn send(&self, method: &str, target: &str, wait: Duration) -> Result<Vec<u8>, Trouble> {
        let socket = self.0.connect().map_err(|error| {
            let hint = match (&self.0, error.kind()) {
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
                (Balancer::Http(_) | Balancer::Https(..), _) => "see [supervise] listen of the Supervisor's file",
            };
            Trouble::Unreachable(format!("cannot reach {}: {error}; {hint}", self.0))
        })?;
        let answer = self.0.ask(socket, method, target, "", wait)?;
        answer.body().map_err(|error| self.0.lost(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_where() {
        let file = std::env::temp_dir().join(format!("plimsoll-supervise-{}.toml", std::process::id()));
        std::fs::write(&file, "[supervise]\ncontrol = \"unix:/x/y.sock\"\n[[process]]\nname = 5\n").unwrap();
        let place =
            |control: Option<&str>| Place { control: control.map(str::to_owned), config: Some(file.clone()) };
        let found = |place: Place| place.supervisor().map(|supervisor| supervisor.0.to_string());
        assert_eq!(found(place(None)).unwrap(), "unix:/x/y.sock");
        assert_eq!(found(place(Some(""))).unwrap(), "unix:/x/y.sock");
        assert_eq!(found(place(Some("http://[::1]:80"))).unwrap(), "http://[::1]:80");
        std::fs::write(&file, "").unwrap();
        assert_eq!(found(place(None)).unwrap(), "unix:/run/plimsoll-supervise.sock");
        std::fs::remove_file(&file).unwrap();
        let trouble = place(Some("http://127.0.0.1:1")).supervisor().unwrap().post("/v1/reload").unwrap_err();
        assert!(trouble.to_string().contains("only shows"), "{trouble}");
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let place = Place { control: Some("unix:/nowhere/plimsoll.sock".into()), config: None };
        let trouble = place.supervisor().unwrap().get::<Value>("/v1/processes").unwrap_err();
        assert!(
            matches!(&trouble, Trouble::Unreachable(why) if why.contains("plimsoll supervise")),
            "{trouble}"
        );
    }
}
