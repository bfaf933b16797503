//! The choice of the running program that a command is for. The control socket on this host is the first of
//! these that is given:
//!
//! 1. `--control`
//! 2. the environment's variable
//! 3. `control` of the file named by `--config`
//! 4. that of the usual file in this folder
//! 5. the usual socket
//!
//! `--control http://HOST:PORT` names a read-only listener instead: enough to look, not to act. Without an
//! explicit choice, a balancer whose control socket is missing, or not this user's to open, is asked over its
//! read-only listener. `--host` names control over TLS of other hosts, one or many.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_config::{
    AdminListen, AdminSection, DEFAULT_FILE, DEFAULT_LOTTERY_FILE, DEFAULT_SUPERVISE_CONTROL,
    DEFAULT_SUPERVISE_FILE, default_controls,
};

use super::{ControlEndpoint, ControlError, CredentialArgs, address_in_file, tls_client};

/// The options that name running balancers.
pub(crate) type BalancerSelector = ProgramSelector<BalancerKind>;
/// The options that name running Supervisors.
pub(crate) type SupervisorSelector = ProgramSelector<SupervisorKind>;
/// The options that name running daemons of a lottery.
pub(crate) type DaemonSelector = ProgramSelector<DaemonKind>;

/// The properties of one kind of controlled programs.
pub(crate) trait ProgramKind {
    /// Variables of the environment in place of `--control` and `--host`.
    const CONTROL: &str;
    const HOSTS: &str;
    /// The help texts of those options and of `--config`.
    const CONTROL_HELP: &str;
    const CONFIG_HELP: &str;
    const HOSTS_HELP: &str;
    /// The usual file, and the section with the address of control.
    const FILE: &str;
    const SECTION: &str;

    /// Returns the places to try without an explicit choice, the likeliest first.
    ///
    /// # Errors
    /// Fails if there is no usual place.
    fn default_endpoints() -> Result<Vec<ControlEndpoint>, ControlError>;

    /// Returns the address at which a program without its control socket can be looked at, by the file.
    fn read_only_address(_file: Option<&Path>) -> Option<String> {
        None
    }
}

/// Balancers: `plimsoll up`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BalancerKind;
/// Supervisors: `plimsoll supervise`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SupervisorKind;
/// Daemons of lotteries: `plimsoll lottery`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DaemonKind;

impl ProgramKind for BalancerKind {
    const CONTROL: &str = "PLIMSOLL_CONTROL";
    const HOSTS: &str = "PLIMSOLL_HOSTS";
    const CONTROL_HELP: &str =
        "Control socket of the balancer, unix:/PATH; or its admin listener, http://HOST:PORT, to look only";
    const CONFIG_HELP: &str =
        "Its configuration file, which says where the control socket is [default: plimsoll.toml]";
    const HOSTS_HELP: &str = "Ask the balancers of other hosts, by https://HOST:PORT of their control over \
         TLS: repeat it, or \
         separate them by commas; @FILE has one a line";
    const FILE: &str = DEFAULT_FILE;
    const SECTION: &str = "admin";

    fn default_endpoints() -> Result<Vec<ControlEndpoint>, ControlError> {
        Ok(default_controls().into_iter().map(ControlEndpoint::Unix).collect())
    }

    fn read_only_address(file: Option<&Path>) -> Option<String> {
        let listen = match file {
            Some(file) => address_in_file(file, Self::SECTION, "listen").ok()?,
            None => None,
        };
        let AdminListen(listen) = match listen {
            Some(text) => text.parse().ok()?,
            None => AdminSection::default().listen,
        };
        let mut address = listen.filter(|address| address.port() != 0)?;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        Some(address.to_string())
    }
}

impl ProgramKind for SupervisorKind {
    const CONTROL: &str = "PLIMSOLL_SUPERVISE";
    const HOSTS: &str = "PLIMSOLL_SUPERVISE_HOSTS";
    const CONTROL_HELP: &str =
        "Control socket of the Supervisor, unix:/PATH; or its listener, http://HOST:PORT, to look only";
    const CONFIG_HELP: &str = "Its file, which says where the control socket is [default: supervise.toml]";
    const HOSTS_HELP: &str = "Ask the Supervisors of other hosts, by https://HOST:PORT of their control over \
         TLS: repeat it, or \
         separate them by commas; @FILE has one a line";
    const FILE: &str = DEFAULT_SUPERVISE_FILE;
    const SECTION: &str = "supervise";

    fn default_endpoints() -> Result<Vec<ControlEndpoint>, ControlError> {
        Ok(vec![ControlEndpoint::parse(&format!("unix:{DEFAULT_SUPERVISE_CONTROL}"))?])
    }
}

impl ProgramKind for DaemonKind {
    const CONTROL: &str = "PLIMSOLL_LOTTERY";
    const HOSTS: &str = "PLIMSOLL_LOTTERY_HOSTS";
    const CONTROL_HELP: &str = "Control socket of the daemon, unix:/PATH";
    const CONFIG_HELP: &str = "Its file, which says where the control socket is [default: lottery.toml]";
    const HOSTS_HELP: &str = "Ask the daemons of other hosts, by https://HOST:PORT of their control over \
         TLS: repeat it, or \
         separate them by commas; @FILE has one a line";
    const FILE: &str = DEFAULT_LOTTERY_FILE;
    const SECTION: &str = "admin";

    fn default_endpoints() -> Result<Vec<ControlEndpoint>, ControlError> {
        let message = "it is not said which daemon: give --host https://HOST:PORT, --control unix:/PATH, \
             or -c FILE with \
             [admin] control";
        Err(ControlError::Refused(message.into()))
    }
}

/// Options of every command that talks to one that runs.
#[derive(clap::Args, Debug)]
pub(crate) struct ProgramSelector<K: ProgramKind> {
    #[arg(long, env = K::CONTROL, value_name = "ADDRESS", help = K::CONTROL_HELP)]
    control: Option<String>,

    #[arg(short, long, value_name = "FILE", help = K::CONFIG_HELP)]
    config: Option<PathBuf>,

    #[arg(
        long = "host",
        env = K::HOSTS,
        value_name = "URL|@FILE",
        value_delimiter = ',',
        help_heading = "Other hosts",
        help = K::HOSTS_HELP
    )]
    hosts: Vec<String>,

    #[command(flatten)]
    credentials: CredentialArgs,

    #[arg(skip)]
    kind: PhantomData<K>,
}

/// The programs that a command is for.
pub(crate) trait EndpointSelector {
    /// Returns the one of this host; nothing is sent yet.
    fn local_endpoint(&self) -> Result<ControlEndpoint, ControlError>;

    /// Returns those of other hosts, if any are named.
    fn remote_endpoints(&self) -> Result<Option<Vec<ControlEndpoint>>, ControlError>;
}

impl<K: ProgramKind> EndpointSelector for ProgramSelector<K> {
    fn local_endpoint(&self) -> Result<ControlEndpoint, ControlError> {
        // Shells use an empty variable for none.
        let control = self.control.as_deref().filter(|control| !control.is_empty());
        find_endpoint::<K>(control, self.config.as_deref())
    }

    fn remote_endpoints(&self) -> Result<Option<Vec<ControlEndpoint>>, ControlError> {
        let names = tls_client::parse_hosts(&self.hosts)?;
        if names.is_empty() {
            return Ok(None);
        }
        let credentials = Arc::new(tls_client::load_credentials(&self.credentials)?);
        Ok(Some(
            names.into_iter().map(|name| ControlEndpoint::Https(name, Arc::clone(&credentials))).collect(),
        ))
    }
}

impl BalancerSelector {
    /// Returns the configuration that is named.
    pub(crate) fn config_path(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Returns `true` if an option names the balancer itself, and not a file.
    pub(crate) fn names_balancer(&self) -> bool {
        self.control.as_ref().is_some_and(|control| !control.is_empty()) || !self.hosts.is_empty()
    }

    /// Returns the balancer to ask; nothing is sent yet.
    pub(crate) fn endpoint(&self) -> Result<ControlEndpoint, ControlError> {
        if let Some(hosts) = self.remote_endpoints()? {
            return <[ControlEndpoint; 1]>::try_from(hosts).map(|[host]| host).map_err(|hosts| {
                let count = hosts.len();
                ControlError::Refused(format!("this is asked of one balancer, and --host names {count}"))
            });
        }
        self.local_endpoint()
    }
}

/// Returns the balancer that `--control` (or the environment) or else a file names.
pub(crate) fn find_endpoint<K: ProgramKind>(
    control: Option<&str>,
    config: Option<&Path>,
) -> Result<ControlEndpoint, ControlError> {
    if let Some(control) = control {
        return ControlEndpoint::parse(control);
    }
    let file = config.or_else(|| Some(Path::new(K::FILE)).filter(|file| file.exists()));
    let control = match file {
        Some(file) => address_in_file(file, K::SECTION, "control")?.map(|control| (file, control)),
        None => None,
    };
    let endpoints = match control {
        None => K::default_endpoints()?,
        Some((file, control)) => match ControlEndpoint::parse(&control) {
            Ok(balancer) => vec![balancer],
            Err(error) => {
                let reason = format!("{}: [{}] control: {error}", file.display(), K::SECTION);
                return read_only_endpoint::<K>(Some(file), &reason).ok_or(ControlError::Refused(reason));
            }
        },
    };
    first_reachable::<K>(endpoints, file)
}

/// Returns the first place where a process accepts. Without any it is the read-only listener; if that does
/// not answer either, it is the place where the socket should have been: a request there fails with the
/// reason.
fn first_reachable<K: ProgramKind>(
    endpoints: Vec<ControlEndpoint>,
    file: Option<&Path>,
) -> Result<ControlEndpoint, ControlError> {
    let mut first_failure = None;
    for endpoint in endpoints {
        match endpoint.probe() {
            Ok(()) => return Ok(endpoint),
            Err(error) => {
                first_failure.get_or_insert_with(|| (endpoint.unreachable(&error).to_string(), endpoint));
            }
        }
    }
    match first_failure {
        Some((reason, endpoint)) => Ok(read_only_endpoint::<K>(file, &reason).unwrap_or(endpoint)),
        None => Err(ControlError::Refused("it is not said where it is: give --control unix:/PATH".into())),
    }
}

/// Returns the read-only listener, in place of a control socket that cannot be used, if a Plimsoll answers
/// there.
fn read_only_endpoint<K: ProgramKind>(file: Option<&Path>, reason: &str) -> Option<ControlEndpoint> {
    let endpoint = ControlEndpoint::ReadOnly(K::read_only_address(file)?, reason.to_owned());
    endpoint.status().is_ok().then_some(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balancer(control: Option<&str>, config: Option<&Path>) -> Result<ControlEndpoint, ControlError> {
        find_endpoint::<BalancerKind>(control, config)
    }

    fn refused(result: Result<ControlEndpoint, ControlError>) -> String {
        match result {
            Err(ControlError::Refused(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_flag_comes_first() {
        let endpoint = balancer(Some("unix:/tmp/a.sock"), Some(Path::new("/nowhere.toml"))).unwrap();
        assert_eq!(endpoint, ControlEndpoint::Unix("/tmp/a.sock".into()));
        let endpoint = balancer(Some("http://[::1]:9900/"), None).unwrap();
        assert_eq!(endpoint, ControlEndpoint::Http("[::1]:9900".into()));
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        for (text, expected) in [
            ("/run/a.sock", "give unix:/path"),
            ("https://a:1", "give unix:/path"),
            ("unix:", "no path"),
            ("http://", "no host"),
            ("http://a", "no port"),
            ("http://a:x", "no port"),
            ("http://a:1/status", "no more than"),
            ("http://a\r\nb:1", "no more than"),
            ("off", "switched off"),
        ] {
            let message = refused(balancer(Some(text), None));
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn the_file_says_where_even_if_it_is_wrong_elsewhere() {
        let file = std::env::temp_dir().join(format!("plimsoll-control-{}.toml", std::process::id()));
        let find = |text: &str| {
            std::fs::write(&file, text).unwrap();
            balancer(None, Some(&file))
        };
        let endpoint = find("nonsense = 1\n[admin]\ncontrol = \"unix:/x.sock\"\n").unwrap();
        assert_eq!(endpoint, ControlEndpoint::Unix("/x.sock".into()));
        let endpoint =
            find("[admin]\ncontrol = \"unix:/y.sock\"\n[[group]]\nname = \"half\nmembers =").unwrap();
        assert_eq!(endpoint, ControlEndpoint::Unix("/y.sock".into()));
        let endpoint = find("[admin]\ncontrol = [\"tls://[::]:9905\", \"unix:/z.sock\"]\n").unwrap();
        assert_eq!(endpoint, ControlEndpoint::Unix("/z.sock".into()));
        let tls = refused(find("admin.control = \"tls://[::]:9905\""));
        assert!(tls.contains("--host https://"), "{tls}");
        assert!(default_controls().contains(&match find("").unwrap() {
            ControlEndpoint::Unix(path) => path,
            other => panic!("{other}"),
        }));
        let syntax = refused(find("[admin]\n\ncontrol = \n"));
        assert!(syntax.contains("line 3: ") && syntax.contains("--control"), "{syntax}");
        let off = refused(find("admin.control = \"off\""));
        assert!(off.contains("[admin] control") && off.contains("switched off"), "{off}");
        assert!(refused(find("admin.control = 5")).contains("not a text"));
        std::fs::remove_file(&file).unwrap();
        assert!(refused(balancer(None, Some(&file))).contains("No such file"));
    }

    #[test]
    fn other_kinds_have_their_own_files_and_places() {
        let file = std::env::temp_dir().join(format!("plimsoll-place-{}.toml", std::process::id()));
        fn local_address<K: ProgramKind>(control: Option<&str>, file: &Path) -> Result<String, String> {
            let selector = ProgramSelector::<K> {
                control: control.map(str::to_owned),
                config: Some(file.to_owned()),
                hosts: Vec::new(),
                credentials: CredentialArgs::default(),
                kind: PhantomData,
            };
            selector.local_endpoint().map(|endpoint| endpoint.to_string()).map_err(|error| error.to_string())
        }
        std::fs::write(&file, "[supervise]\ncontrol = \"unix:/x/y.sock\"\n[[process]]\nname = 5\n").unwrap();
        assert_eq!(local_address::<SupervisorKind>(None, &file).unwrap(), "unix:/x/y.sock");
        assert_eq!(local_address::<SupervisorKind>(Some(""), &file).unwrap(), "unix:/x/y.sock");
        assert_eq!(
            local_address::<SupervisorKind>(Some("http://[::1]:80"), &file).unwrap(),
            "http://[::1]:80"
        );
        std::fs::write(&file, "").unwrap();
        assert_eq!(
            local_address::<SupervisorKind>(None, &file).unwrap(),
            "unix:/run/plimsoll-supervise.sock"
        );
        std::fs::write(&file, "member = 0\n[admin]\ncontrol = \"unix:/l.sock\"\n").unwrap();
        assert_eq!(local_address::<DaemonKind>(None, &file).unwrap(), "unix:/l.sock");
        std::fs::write(&file, "member = 1\n").unwrap();
        assert!(local_address::<DaemonKind>(None, &file).unwrap_err().contains("which daemon"));
        std::fs::remove_file(&file).unwrap();
    }
}
