//! The balancer under test: its configuration, its process, and its readiness.

use std::io::{Read, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::LabError;
use super::child_process::{ChildProcess, POLL_INTERVAL, ProcessLauncher};
use super::experiment::{BalancerKind, BalancerSettings, BalancerSpec, LoadProtocol};
use super::fleet::FleetPeer;
use super::load_driver::LoadDestination;
use super::scaling::{ScaledMembers, ScalerSetup};
use super::shared_servers::SharedServers;
use crate::pick;

mod envoy;
mod haproxy;
mod nginx;
mod plimsoll;

pub(super) use plimsoll::OBJECT_KEY;

/// The time within which it must be ready to use every member.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum attempts with a port that was free shortly before and then was taken.
const MAX_PORT_TRIES: usize = 10;
/// The default time between two health checks.
pub(super) const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// The name of plimsoll's group, and the key of its object (iiop).
pub(super) const GROUP: &str = "lab";

/// The connections of a balancer to its environment.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyWiring {
    /// The protocol of clients and members.
    pub(super) protocol: LoadProtocol,
    /// The address on which plimsoll listens, if it must be known in advance.
    pub(super) listen: Option<SocketAddr>,
    /// The address at which it takes reports.
    pub(super) report_address: Option<SocketAddr>,
    /// The time between two reports.
    pub(super) report_interval: Option<Duration>,
    /// The lottery that plimsoll follows.
    pub(super) lottery: Option<pick::PickerSettings>,
    /// The key of the members' object, if not the usual one (iiop).
    pub(super) object_key: Option<&'static str>,
    /// The time between two of plimsoll's queries for the members' loads, if it queries them (http).
    pub(super) poll_interval: Option<Duration>,
    /// The balancer's place in a fleet.
    pub(super) fleet_peer: Option<FleetPeer>,
    /// The settings by which plimsoll starts members under autoscaling.
    pub(super) scaler: Option<ScalerSetup>,
    /// The addresses of the servers for further groups of plimsoll.
    pub(super) shared_servers: Option<SharedServers>,
}

/// A running balancer, or the member in its place.
#[derive(Debug)]
pub(super) struct ProxyUnderTest {
    child: Option<ChildProcess>,
    balancer: BalancerSpec,
    settings: BalancerSettings,
    wiring: ProxyWiring,
    /// The host on which it listens.
    host: IpAddr,
    folder: PathBuf,
    /// The addresses for clients: a listener for each group.
    addresses: Vec<SocketAddr>,
    /// The address of plimsoll's status, or of Envoy's statistics.
    admin: Option<SocketAddr>,
}

impl ProxyUnderTest {
    /// Starts it on `host` in front of `members`; [`wait_until_ready`](Self::wait_until_ready) waits until it
    /// may use all of them.
    pub(super) fn start(
        launcher: &ProcessLauncher,
        balancer: &BalancerSpec,
        settings: &BalancerSettings,
        wiring: ProxyWiring,
        members: &[SocketAddr],
        host: IpAddr,
        folder: &Path,
    ) -> Result<Self, LabError> {
        let (balancer, settings, folder) = (balancer.clone(), settings.clone(), folder.to_owned());
        let name = balancer.kind.name();
        Ok(match (balancer.kind, members) {
            (BalancerKind::None, [member, ..]) => {
                let addresses = vec![*member];
                return Ok(Self {
                    child: None,
                    balancer,
                    settings,
                    wiring,
                    host,
                    folder,
                    addresses,
                    admin: None,
                });
            }
            // The lottery's daemons are beside the members.
            (BalancerKind::Lottery, _) => {
                return Err(LabError::failed("nothing stands between with a lottery"));
            }
            (BalancerKind::None, []) => return Err(LabError::failed("no member to go to")),
            (BalancerKind::Plimsoll, _) => {
                let text = plimsoll::config(&balancer, &settings, &wiring, host, members)?;
                write(&folder.join("plimsoll.toml"), &text)?;
                let arguments = ["up", "-c", "plimsoll.toml"].map(str::to_owned);
                let mut child = ChildProcess::start(launcher, name, &launcher.program, &arguments, &folder)?;
                let groups = wiring.shared_servers.as_ref().map_or(1, SharedServers::group_count);
                let (admin, addresses) = (
                    child.address("admin")?,
                    child.addresses(listener_protocol(&settings, &wiring), groups)?,
                );
                let admin = Some(admin);
                Self { child: Some(child), balancer, settings, wiring, host, folder, addresses, admin }
            }
            (BalancerKind::Haproxy | BalancerKind::Nginx | BalancerKind::Envoy, _) => {
                let (child, address, admin) =
                    start_on_free_ports(launcher, &balancer, &settings, members, host, &folder)?;
                let admin = Some(admin).filter(|_| balancer.kind == BalancerKind::Envoy);
                let addresses = vec![address];
                Self { child: Some(child), balancer, settings, wiring, host, folder, addresses, admin }
            }
        })
    }

    /// Returns the destinations of clients: one for each group.
    pub(super) fn destinations(&self) -> impl Iterator<Item = LoadDestination> {
        let key = match self.balancer.kind {
            BalancerKind::None => OBJECT_KEY,
            _ => GROUP,
        };
        self.addresses.iter().map(move |address| match self.wiring.protocol {
            LoadProtocol::Http => LoadDestination::Http(*address),
            LoadProtocol::Iiop => LoadDestination::Iiop(format!("iiop://{address}/{key}")),
        })
    }

    /// Returns the number of sessions moved to another member so far; `None` if the balancer does not report
    /// it.
    pub(super) fn moved_sessions(&self) -> Option<u64> {
        sum_moved_sessions(&self.status()?)
    }

    /// Returns its process, if it has one.
    pub(super) fn child(&self) -> Option<&ChildProcess> {
        self.child.as_ref()
    }

    /// Fails if the process has ended.
    pub(super) fn check_alive(&mut self) -> Result<(), LabError> {
        self.child.as_mut().map_or(Ok(()), ChildProcess::check_alive)
    }

    /// Returns plimsoll's status.
    pub(super) fn status(&self) -> Option<String> {
        let admin = self.admin.filter(|_| self.balancer.kind == BalancerKind::Plimsoll)?;
        http_request(admin, "GET", "/status").ok()
    }

    /// Makes it use these members from now on.
    pub(super) fn set_members(&mut self, members: &[SocketAddr]) -> Result<(), LabError> {
        let Some(child) = self.child.as_mut().filter(|_| self.balancer.kind == BalancerKind::Plimsoll) else {
            return Err(LabError::failed("members can only be added to plimsoll"));
        };
        let text = plimsoll::config(&self.balancer, &self.settings, &self.wiring, self.host, members)?;
        write(&self.folder.join("plimsoll.toml"), &text)?;
        child.signal(Signal::HUP)
    }

    /// Sets the number of autoscaled members.
    pub(super) fn set_member_count(&mut self, count: u32) -> Result<(), LabError> {
        if let Some(scaler_setup) = &mut self.wiring.scaler {
            scaler_setup.count = Some(count);
        }
        self.set_members(&[])
    }

    /// Returns the numbers of autoscaled members that exist and that serve; `None` if the balancer does not
    /// report them.
    pub(super) fn scaled_members(&self) -> Option<ScaledMembers> {
        plimsoll::scaled_members(&self.status()?)
    }

    /// Returns the autoscaled members that serve.
    pub(super) fn serving_members(&self) -> Vec<SocketAddr> {
        self.status().map_or_else(Vec::new, |status| plimsoll::serving_members(&status))
    }

    /// Waits until all members may be used: by the status of plimsoll and Envoy, for the others until a
    /// request has been answered. (Those consider members up from the start.)
    pub(super) fn wait_until_ready(&mut self, members: usize) -> Result<(), LabError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let ready = match self.balancer.kind {
                BalancerKind::Plimsoll => self.status().is_some_and(|status| match &self.wiring.scaler {
                    Some(scaler_setup) => plimsoll::scaled_members(&status)
                        .is_some_and(|counts| counts.serving >= scaler_setup.min_members()),
                    None => all_up(&status, members),
                }),
                BalancerKind::None => true,
                BalancerKind::Envoy => self.admin.is_some_and(|admin| envoy::is_ready(admin, members)),
                _ => self.addresses.iter().all(|address| http_request(*address, "GET", "/healthz").is_ok()),
            };
            if ready {
                return Ok(());
            }
            self.check_alive()?;
            if Instant::now() > deadline {
                let name = self.balancer.kind.name();
                return Err(LabError::failed(format!(
                    "{name} is not ready after {} s",
                    READY_TIMEOUT.as_secs()
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns the protocol of plimsoll's listener.
fn listener_protocol<'a>(settings: &'a BalancerSettings, wiring: &ProxyWiring) -> &'a str {
    let configured = settings.plimsoll.listener.get("protocol").and_then(toml::Value::as_str);
    configured.unwrap_or_else(|| wiring.protocol.name())
}

/// Returns the number of sessions that have left a member of the first group.
fn sum_moved_sessions(status: &str) -> Option<u64> {
    let status: serde_json::Value = serde_json::from_str(status).ok()?;
    let members = status["groups"][0]["members"].as_array()?;
    members.iter().map(|member| member["moved"].as_u64()).sum()
}

/// Returns the reason why a balancer cannot be run on this machine; `None` if it can.
pub(super) fn missing_reason(launcher: &ProcessLauncher, balancer: &BalancerSpec) -> Option<String> {
    program_path(launcher, balancer.kind).err().map(|error| error.to_string())
}

fn program_path(launcher: &ProcessLauncher, kind: BalancerKind) -> Result<PathBuf, LabError> {
    match kind {
        BalancerKind::None | BalancerKind::Plimsoll | BalancerKind::Lottery => Ok(launcher.program.clone()),
        BalancerKind::Haproxy | BalancerKind::Nginx => find_program(kind.name()),
        BalancerKind::Envoy => envoy::program(launcher),
    }
}

/// Returns `true` if each group has `members` members and all of them are up.
fn all_up(status: &str, members: usize) -> bool {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    let all_members_up = |group: &serde_json::Value| {
        let group_members = group["members"].as_array();
        group_members.is_some_and(|group_members| {
            group_members.len() == members && group_members.iter().all(|member| member["state"] == "up")
        })
    };
    status["groups"].as_array().is_some_and(|groups| !groups.is_empty() && groups.iter().all(all_members_up))
}

/// Sends an HTTP request; returns the body if the status is 200.
pub(super) fn http_request(address: SocketAddr, method: &str, path: &str) -> std::io::Result<String> {
    http_request_within(super::child_process::STARTUP_TIMEOUT, address, method, path)
}

/// Sends an HTTP request like [`http_request`], with a time-out for connecting and for each part of the
/// answer.
pub(super) fn http_request_within(
    timeout: Duration,
    address: SocketAddr,
    method: &str,
    path: &str,
) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let length = if method == "POST" { "content-length: 0\r\n" } else { "" };
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n{length}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(1 << 20).read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(answer.lines().next().unwrap_or("no answer").to_owned())),
    }
}

/// Starts a program that cannot choose free ports itself, and retries with others until it can bind them.
/// Returns the addresses for clients and for operators.
fn start_on_free_ports(
    launcher: &ProcessLauncher,
    balancer: &BalancerSpec,
    settings: &BalancerSettings,
    members: &[SocketAddr],
    host: IpAddr,
    folder: &Path,
) -> Result<(ChildProcess, SocketAddr, SocketAddr), LabError> {
    let name = balancer.kind.name();
    let program = program_path(launcher, balancer.kind)?;
    let mut failure = LabError::failed("no port is free");
    for _ in 0..MAX_PORT_TRIES {
        let ports = [TcpListener::bind((host, 0)), TcpListener::bind(("127.0.0.1", 0))];
        let [address, admin] = ports.map(|port| {
            let port = port.and_then(|listener| listener.local_addr());
            port.map_err(|error| LabError::failed(format!("no port is free: {error}")))
        });
        let (address, admin) = (address?, admin?);
        let arguments: Vec<String> = match balancer.kind {
            BalancerKind::Haproxy => {
                write(&folder.join("haproxy.cfg"), &haproxy::config(balancer, settings, address, members))?;
                ["-db", "-f", "haproxy.cfg"].map(str::to_owned).to_vec()
            }
            BalancerKind::Envoy => {
                let text = envoy::config(balancer, settings, address, admin, members);
                write(&folder.join("envoy.yaml"), &text)?;
                let threads = settings.threads.unwrap_or(1).to_string();
                let flags = ["--disable-hot-restart", "--log-level", "error", "--concurrency", &threads];
                ["-c", "envoy.yaml"].iter().chain(&flags).map(|flag| (*flag).to_owned()).collect()
            }
            _ => {
                write(&folder.join("nginx.conf"), &nginx::config(balancer, settings, address, members))?;
                let prefix = format!("{}/", folder.display());
                ["-p", &prefix, "-e", "stderr", "-c", "nginx.conf"].map(str::to_owned).to_vec()
            }
        };
        let mut child = ChildProcess::start(launcher, name, &program, &arguments, folder)?;
        let deadline = Instant::now() + READY_TIMEOUT;
        while Instant::now() < deadline {
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok((child, address, admin));
            }
            if let Err(exit_error) = child.check_alive() {
                failure = exit_error;
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Err(failure)
}

/// Returns the path of a program, from PATH and from folders that users' paths lack.
pub(super) fn find_program(name: &str) -> Result<PathBuf, LabError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|candidate| candidate.is_file()).ok_or_else(|| {
        LabError::failed(format!("{name} is not installed; install it, or leave it out of the levels"))
    })
}

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text)
        .map_err(|error| LabError::failed(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::DurationValue;

    #[test]
    fn settings_reach_every_balancer() {
        let settings = BalancerSettings {
            max_connections: Some(7),
            slow_start: Some(DurationValue(Duration::from_secs(3))),
            queue_timeout: Some(DurationValue(Duration::from_millis(250))),
            queue: Some(10),
            retries: Some(1),
            plimsoll: toml::from_str("group.key = \"path\"\nlistener.accept_proxy = true").unwrap(),
            ejection: Some(true),
            per_try: Some(DurationValue(Duration::from_millis(1500))),
            ..BalancerSettings::default()
        };
        let members = [SocketAddr::from(([127, 0, 0, 1], 4001)), SocketAddr::from(([127, 0, 0, 1], 4002))];
        let round_robin: BalancerSpec = "plimsoll:round_robin".parse().unwrap();
        let host = IpAddr::from([198, 18, 0, 2]);
        let plimsoll = |balancer: &BalancerSpec| {
            plimsoll::config(balancer, &settings, &ProxyWiring::default(), host, &members).unwrap()
        };
        let tuned_config = plimsoll(&"plimsoll:least_request(choices=3)".parse().unwrap());
        assert!(tuned_config.contains("least_request]\nchoices = 3"), "{tuned_config}");
        let text = plimsoll(&round_robin);
        for expected in [
            "strategy = \"round_robin\"",
            "max_connections = 7",
            "slow_start = \"3000000us\"",
            "address = \"198.18.0.2:0\"",
            "per_try = \"1500000us\"",
            "attempts = 1",
            "outlier = true",
            "key = \"path\"",
            "accept_proxy = true",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let text = haproxy::config(&"haproxy".parse().unwrap(), &settings, members[0], &members);
        for expected in [
            "balance leastconn",
            "m2 127.0.0.1:4002",
            "maxconn 7 maxqueue 5",
            "slowstart 3000ms",
            "queue 250ms",
            "retries 1\n",
            "rise 10 observe layer7 error-limit 5",
            "server 1500ms",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let text = nginx::config(&"nginx:round_robin".parse().unwrap(), &settings, members[0], &members);
        assert!(
            text.contains("server 127.0.0.1:4002 max_conns=7 max_fails=5 fail_timeout=10s;")
                && text.contains("proxy_next_upstream_tries 2;")
                && !text.contains("least_conn"),
            "{text}"
        );
    }

    #[test]
    fn moves_are_added_up() {
        let status = |first: u64| {
            serde_json::json!({ "groups": [{ "members": [{ "moved": first }, { "moved": 4 }] }] }).to_string()
        };
        assert_eq!(
            (sum_moved_sessions(&status(3)), sum_moved_sessions("{}"), sum_moved_sessions("no")),
            (Some(7), None, None)
        );
    }

    #[test]
    fn ready_means_every_member_is_up() {
        let status = |first, second| {
            let member = |state| serde_json::json!({ "state": state });
            serde_json::json!({ "groups": [{ "members": [member(first), member(second)] }] }).to_string()
        };
        assert!(all_up(&status("up", "up"), 2));
        let two_groups = |second| {
            let groups = [status("up", "up"), status("up", second)];
            let groups = groups.map(|group_status| {
                serde_json::from_str::<serde_json::Value>(&group_status).unwrap()["groups"][0].take()
            });
            serde_json::json!({ "groups": groups }).to_string()
        };
        assert!(all_up(&two_groups("up"), 2) && !all_up(&two_groups("down"), 2));
        assert!(
            !all_up(&status("up", "unchecked"), 2) && !all_up(&status("up", "up"), 3) && !all_up("no", 0)
        );
    }
}
