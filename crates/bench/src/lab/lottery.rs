//! The lottery beside the members: a real daemon (`plimsoll lottery`) for each, on its host, with the keys
//! that the first one creates in the point's folder.
//!
//! A member reports its number of requests to its daemon (`plimsoll member --tell`). The daemon's load is
//! that number over the member's workers or cores, and its capacity is their number. The lab reads the
//! daemons' counters from their status, and their processor time from the kernel. A member that is killed
//! takes its daemon with it, like a host that loses power; both are started again at their old addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::child_process::{ChildProcess, POLL_INTERVAL, ProcessLauncher};
use super::experiment::{BalancerSettings, Experiment, HealthCheckKind, MemberGroup};
use super::network::{PointHost, PointNetwork};
use super::proxy_under_test::{GROUP, HEALTH_INTERVAL, http_request_within};
use super::{LabError, cpu_time, ports};
use crate::pick;

/// The time within which the daemons must refer to all members.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// The time-out for a daemon's counters.
const STATUS_TIMEOUT: Duration = Duration::from_millis(200);
/// The requests for each member in a round: a member that is drawn receives none of them with probability
/// e^-8.
const PICKS_PER_MEMBER: u64 = 8;
/// The name of the key file, then the multicast group of all daemons.
const KEYS_FILE: &str = "lottery.keys";
const MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 255, 74, 47);

/// All daemons. Dropping it ends them.
#[derive(Debug)]
pub(super) struct LotteryCluster {
    daemons: Vec<LotteryDaemon>,
    folder: PathBuf,
    multicast: Option<SocketAddr>,
    /// The way in which clients ask it: `referral`, `multicast` or `unicast`.
    query_mode: String,
}

#[derive(Debug)]
struct LotteryDaemon {
    /// `None` while it is dead.
    child: Option<ChildProcess>,
    address: SocketAddr,
    status: SocketAddr,
    /// Its file, without its address and those of its peers.
    config: Value,
    /// The counts of its earlier processes.
    earlier_counters: DaemonCounters,
}

/// The counters and the use of the daemons.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DaemonCounters {
    /// Answers that name a member, without repetitions.
    pub(super) answers: f64,
    /// Answers that another daemon gave as well.
    pub(super) duplicates: f64,
    /// The duration of commits in seconds: the maximum over the daemons; 0 if none measured it.
    pub(super) commit_delay: f64,
    /// Seconds of processor time.
    pub(super) cpu: f64,
}

/// Chooses the address at which the daemon beside a member takes reports and shows its status, before either
/// runs.
pub(super) fn choose_status_address(network: &PointNetwork, number: usize) -> Result<SocketAddr, LabError> {
    network.run_on(PointHost::Member(number), || ports::free_address(IpAddr::V4(Ipv4Addr::LOCALHOST)))
}

impl LotteryCluster {
    /// Starts a daemon beside each of these members; [`wait_until_ready`](Self::wait_until_ready) waits until
    /// all of them are drawn.
    pub(super) fn start(
        launcher: &ProcessLauncher,
        network: &PointNetwork,
        experiment: &Experiment,
        query_mode: &str,
        members: &[SocketAddr],
        statuses: &[SocketAddr],
        folder: &Path,
    ) -> Result<Self, LabError> {
        let multicast = if query_mode == "multicast" { Some(multicast_group()?) } else { None };
        let (folder, query_mode) = (folder.to_owned(), query_mode.to_owned());
        let mut cluster = Self { daemons: Vec::new(), folder, multicast, query_mode };
        for ((number, member), status) in (1..).zip(members).zip(statuses) {
            let mut config = daemon_config(
                number,
                *member,
                *status,
                experiment.members.group_of(number),
                &experiment.balancer,
            );
            if let Some(multicast) = cluster.multicast {
                config["multicast"] = multicast.to_string().into();
            }
            let listen = network.free_address(PointHost::Member(number))?;
            let daemon = LotteryDaemon {
                child: None,
                address: listen,
                status: *status,
                config,
                earlier_counters: DaemonCounters::default(),
            };
            cluster.daemons.push(daemon);
            cluster.start_daemon(launcher, network, number)?;
        }
        Ok(cluster)
    }

    /// Starts the daemon of a member, at its address and with all current others as peers.
    fn start_daemon(
        &mut self,
        launcher: &ProcessLauncher,
        network: &PointNetwork,
        number: usize,
    ) -> Result<(), LabError> {
        let index = number.wrapping_sub(1);
        let other_daemons = self.daemons.iter().enumerate().filter(|(other_index, _)| *other_index != index);
        let peers: Vec<String> = other_daemons.map(|(_, daemon)| daemon.address.to_string()).collect();
        let Some(daemon) = self.daemons.get_mut(index) else {
            return Err(LabError::failed(format!("there is no daemon {number}")));
        };
        (daemon.config["listen"], daemon.config["peers"]) = (daemon.address.to_string().into(), peers.into());
        let (name, config_file) = (format!("d{number}"), format!("d{number}.toml"));
        let text = toml::to_string(&daemon.config)
            .map_err(|error| LabError::failed(format!("cannot write the configuration: {error}")))?;
        let path = self.folder.join(&config_file);
        std::fs::write(&path, text)
            .map_err(|error| LabError::failed(format!("cannot write {}: {error}", path.display())))?;
        let mut arguments = vec!["lottery".to_owned(), "-c".to_owned(), config_file];
        if !self.folder.join(KEYS_FILE).exists() {
            arguments.push("--new-keys".to_owned());
        }
        let start = || ChildProcess::start(launcher, &name, &launcher.program, &arguments, &self.folder);
        let mut child = network.run_on(PointHost::Member(number), start)?;
        // After a restart it is the same address.
        daemon.address = child.address("lottery")?;
        daemon.child = Some(child);
        Ok(())
    }

    /// Returns the picker settings of clients at this address.
    pub(super) fn picker_settings(&self, client: IpAddr) -> pick::PickerSettings {
        pick::PickerSettings {
            service: GROUP.to_owned(),
            daemons: self.daemons.iter().map(|daemon| daemon.address).collect(),
            keys: self.folder.join(KEYS_FILE),
            multicast: self.multicast,
            interface: match client {
                IpAddr::V4(client) => self.multicast.map(|_| client),
                IpAddr::V6(_) => None,
            },
            lottery: self.query_mode != "referral",
        }
    }

    /// Waits until every member is drawn.
    pub(super) fn wait_until_ready(
        &mut self,
        launcher: &ProcessLauncher,
        network: &PointNetwork,
        members: &[SocketAddr],
    ) -> Result<(), LabError> {
        let client = network.host(PointHost::Client)?;
        let mut picker = network.run_on(PointHost::Client, || {
            (launcher.open_picker)(&self.picker_settings(client))
                .map_err(|reason| LabError::failed(format!("cannot ask the lottery: {reason}")))
        })?;
        let deadline = Instant::now() + READY_TIMEOUT;
        let pick_count = PICKS_PER_MEMBER * members.len() as u64;
        loop {
            let (mut drawn_members, mut outstanding) = (BTreeSet::new(), 0);
            for tag in 0..pick_count {
                outstanding += u64::from(picker.request_pick(tag));
            }
            while outstanding > 0 && Instant::now() < deadline {
                picker.process();
                while let Some((_, picked)) = picker.next_pick() {
                    outstanding -= 1;
                    drawn_members.extend(picked.map(|picked| picked.address));
                }
                std::thread::sleep(POLL_INTERVAL / 5);
            }
            if members.iter().all(|member| drawn_members.contains(member)) {
                return Ok(());
            }
            self.check_alive()?;
            if Instant::now() > deadline {
                return Err(LabError::failed(format!(
                    "the lottery draws {} of {} members after {} s",
                    drawn_members.len(),
                    members.len(),
                    READY_TIMEOUT.as_secs()
                )));
            }
        }
    }

    /// Fails if a daemon has ended that no fault killed.
    pub(super) fn check_alive(&mut self) -> Result<(), LabError> {
        self.daemons
            .iter_mut()
            .filter_map(|daemon| daemon.child.as_mut())
            .try_for_each(ChildProcess::check_alive)
    }

    /// Returns the command lines.
    pub(super) fn commands(&self) -> impl Iterator<Item = String> {
        self.daemons.iter().filter_map(|daemon| Some(daemon.child.as_ref()?.command().to_owned()))
    }

    /// Kills the daemon of a member.
    pub(super) fn kill(&mut self, network: &PointNetwork, number: usize) {
        let Some(daemon) = self.daemons.get_mut(number.wrapping_sub(1)) else { return };
        daemon.earlier_counters = daemon.read_counters(network, number).unwrap_or(daemon.earlier_counters);
        if let Some(mut child) = daemon.child.take() {
            child.kill();
        }
    }

    /// Starts the daemon of a member again.
    pub(super) fn restart(
        &mut self,
        launcher: &ProcessLauncher,
        network: &PointNetwork,
        number: usize,
    ) -> Result<(), LabError> {
        self.start_daemon(launcher, network, number)
    }

    /// Returns the processor time of all daemons, in seconds.
    pub(super) fn cpu_time(&self) -> f64 {
        self.daemons.iter().map(LotteryDaemon::cpu_seconds).sum()
    }

    /// Returns the sum of all daemons' counters; `None` if one does not answer.
    pub(super) fn counters(&self, network: &PointNetwork) -> Option<DaemonCounters> {
        let mut sum = DaemonCounters::default();
        for (number, daemon) in (1..).zip(&self.daemons) {
            let counters = daemon.read_counters(network, number)?;
            sum.answers += counters.answers;
            sum.duplicates += counters.duplicates;
            sum.cpu += counters.cpu;
            sum.commit_delay = sum.commit_delay.max(counters.commit_delay);
        }
        Some(sum)
    }

    /// Returns the status of each daemon, by its name.
    pub(super) fn statuses(&self, network: &PointNetwork) -> String {
        let daemon_loads = (1..).zip(&self.daemons).map(|(number, daemon)| {
            (format!("d{number}"), daemon.read_load(network, number, READY_TIMEOUT).unwrap_or(Value::Null))
        });
        json!({ "daemons": daemon_loads.collect::<serde_json::Map<_, _>>() }).to_string()
    }
}

impl LotteryDaemon {
    fn read_load(&self, network: &PointNetwork, number: usize, timeout: Duration) -> Option<Value> {
        // The query runs on the daemon's own host, which works even while that is cut off.
        let fetch_load = || Ok(http_request_within(timeout, self.status, "GET", "/load").ok());
        let text = network.run_on(PointHost::Member(number), fetch_load).ok()??;
        serde_json::from_str(&text).ok()
    }

    fn read_counters(&self, network: &PointNetwork, number: usize) -> Option<DaemonCounters> {
        if self.child.is_none() {
            return Some(self.earlier_counters);
        }
        let load = self.read_load(network, number, STATUS_TIMEOUT)?;
        let value = |name: &str| load["values"][name]["value"].as_f64();
        Some(DaemonCounters {
            answers: self.earlier_counters.answers + value("lottery_referred")? + value("lottery_won")?,
            duplicates: self.earlier_counters.duplicates + value("lottery_duplicates")?,
            commit_delay: value("lottery_commit_delay_seconds").unwrap_or(0.0),
            cpu: self.cpu_seconds(),
        })
    }

    fn cpu_seconds(&self) -> f64 {
        let running_time = self.child.as_ref().and_then(|child| cpu_time::of_threads(child.pid()));
        self.earlier_counters.cpu + running_time.unwrap_or(0.0)
    }
}

/// Returns the multicast group with a port that is free now.
fn multicast_group() -> Result<SocketAddr, LabError> {
    let port = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| socket.local_addr());
    let port = port.map_err(|error| LabError::failed(format!("no port is free: {error}")))?.port();
    Ok(SocketAddr::from((MULTICAST, port)))
}

/// Returns the file of a daemon.
fn daemon_config(
    number: usize,
    server: SocketAddr,
    status: SocketAddr,
    members: &MemberGroup,
    settings: &BalancerSettings,
) -> Value {
    let parallelism =
        members.cores.map_or(members.workers as f64, |cores| cores * members.speed.unwrap_or(1.0));
    let mut service = json!({
        "name": GROUP,
        "server": server.to_string(),
        // Two decimal places of a fractional capacity.
        "capacity": (parallelism * 100.0).round().clamp(1.0, f64::from(u16::MAX)) as u16,
        "load": format!("in_flight / {parallelism}"),
    });
    let interval = settings.health_interval.map_or(HEALTH_INTERVAL, |span| span.0).as_micros();
    let interval = format!("{interval}us");
    match settings.health {
        HealthCheckKind::Http => service["health"] = json!({ "http": "/healthz", "interval": interval }),
        HealthCheckKind::Tcp => service["health"] = json!({ "tcp": true, "interval": interval }),
        HealthCheckKind::Off => {}
    }
    let mut config = json!({
        "member": number,
        "keys": KEYS_FILE,
        "status": status.to_string(),
        // All requests come from one client.
        "rate": 0,
        "service": [service],
    });
    if let Some(slow_start) = settings.slow_start {
        config["slow_start"] = format!("{}us", slow_start.0.as_micros()).into();
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::DurationValue;
    use crate::lab::fixture;

    #[test]
    fn a_daemon_is_told_what_its_member_can_do_and_how_to_know_its_load() {
        let experiment = fixture::experiment();
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut settings = BalancerSettings {
            slow_start: Some(DurationValue(Duration::from_secs(3))),
            ..BalancerSettings::default()
        };
        let members = MemberGroup { workers: 2, ..experiment.members.first().clone() };
        let config = daemon_config(2, loopback(5001), loopback(5002), &members, &settings);
        let text = toml::to_string(&config).unwrap();
        for expected in [
            "member = 2",
            "status = \"127.0.0.1:5002\"",
            "slow_start = \"3000000us\"",
            "server = \"127.0.0.1:5001\"",
            "capacity = 200",
            "load = \"in_flight / 2\"",
            "http = \"/healthz\"",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        settings.health = HealthCheckKind::Tcp;
        let with_cores = MemberGroup { cores: Some(1.5), speed: Some(2.0), ..members };
        let text =
            toml::to_string(&daemon_config(1, loopback(1), loopback(2), &with_cores, &settings)).unwrap();
        assert!(
            text.contains("capacity = 300") && text.contains("in_flight / 3") && text.contains("tcp = true"),
            "{text}"
        );
    }
}
