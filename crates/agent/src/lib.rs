//! An agent beside a server: measures the server's load and reports it to the balancers.
//!
//! The values come from sensors (the kernel, see `sensor.rs`), from a page in Prometheus format, from
//! programs that report over HTTP, and from this process by [`ValueReporter`]. The agent *pushes* them to
//! every balancer at each interval, and at once when a value changes by more than its own noise. It also
//! serves them on a listener, for balancers that *pull*. Sensors are read every quarter of the interval (at
//! least 100 ms, at most 1 s) to detect changes early; they return means over the interval.
//!
//! ```text
//!  /proc, cgroup ─ sensors ─────────────┐                ┌ push ─ POST /v1/report → balancer
//!  Prometheus page ─ scrape ────────────┼─ metric store ─┼ push ─ POST /v1/report → balancer
//!  programs ─ listener, ValueReporter ──┘                └ listener: /load /metrics
//! ```
//!
//! A machine may have several servers with values of their own. The agent then reports each under its own
//! name, together with the sensors' values of the machine.
//!
//! The agent needs one thread. A balancer that hangs, a page that does not arrive and a file that cannot be
//! read delay nothing else, and each is logged once.

mod alert;
mod cgroup;
mod change_detector;
mod connection_slots;
mod endpoints;
mod http_client;
mod jitter;
mod metric;
mod metric_store;
mod name;
mod push;
mod registration;
mod report;
mod report_subject;
mod scrape;
mod sensor;
mod serve;
mod state;
mod window;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

pub use alert::ShedAlert;
pub use cgroup::Cgroup;
pub use endpoints::ValueSnapshot;
pub use http_client::ServerUrl;
pub use metric::ScrapeMetric;
pub use metric_store::{MetricValue, ValueSource};
pub use registration::{Registrar, Registration};
pub use scrape::ScrapeConfig;
pub use sensor::UnreadSource;

use jitter::JitterSource;
use scrape::Scraper;
use sensor::{SensorPaths, SensorSet};
use state::AgentState;

/// The least time between two reports caused by significant changes.
const MIN_REPORT_GAP: Duration = Duration::from_millis(100);

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The server's group, for balancers that have its address in several groups.
    pub group: Option<String>,
    /// The server's address in the balancers' configuration; required if `report_to` is not empty. With
    /// `servers` it is the host's, without a port, or `None` if only the servers are reported.
    pub member: Option<String>,
    /// The addresses of several servers on this host that have values of their own in addition to the host's:
    /// see [`Agent::servers`].
    pub servers: Vec<String>,
    /// The balancers to push to, each at `/v1/report` if its URL has no path.
    pub report_to: Vec<ServerUrl>,
    /// The registration of the member, or of the servers, with these balancers: see [`Agent::registrar`].
    pub register: Option<Registration>,
    /// The interval between two reports, with a jitter of ±10 %, and between two scrapes.
    pub interval: Duration,
    /// The address to listen on; port 0 selects a free one.
    pub listen: Option<SocketAddr>,
    /// The page to scrape.
    pub scrape: Option<ScrapeConfig>,
    /// The server's control group.
    pub cgroup: Cgroup,
    /// The server's port, whose connections are counted.
    pub port: Option<u16>,
    /// The path of procfs, usually /proc.
    pub proc: PathBuf,
}

impl Default for AgentConfig {
    /// Returns a configuration that reads the sensors and reports to no balancer.
    fn default() -> Self {
        Self {
            group: None,
            member: None,
            servers: Vec::new(),
            report_to: Vec::new(),
            register: None,
            interval: Duration::from_secs(1),
            listen: None,
            scrape: None,
            cgroup: Cgroup::Auto,
            port: None,
            proc: "/proc".into(),
        }
    }
}

/// The reason why an agent did not start: one line with the cause, the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The address cannot be bound.
    #[error("cannot listen on {addr}: {why}; {hint}")]
    Listen {
        /// The configured address.
        addr: SocketAddr,
        /// The system's error.
        why: io::Error,
        /// The remedy.
        hint: &'static str,
    },
    /// The control group cannot be read.
    #[error(
        "cannot read the control group {}: {why}; name one as systemd-cgls shows it, or say off",
        folder.display()
    )]
    Cgroup {
        /// The folder of the group.
        folder: PathBuf,
        /// The reason.
        why: String,
    },
    /// The member that the reports are about is missing.
    #[error("reports need the member that they are about: give its address as the balancer knows it")]
    Member,
}

/// An agent, ready to run.
pub struct Agent {
    shared: Arc<AgentState>,
    sensors: SensorSet,
    targets: Vec<ServerUrl>,
    interval: Duration,
    registrar: Option<Registrar>,
    listener: Option<TcpListener>,
    scraper: Option<Scraper>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("member", &self.shared.machine.member).finish_non_exhaustive()
    }
}

/// A handle by which a part of the same process reports values to its agent. It is cheap to clone and usable
/// from any thread.
#[derive(Clone)]
pub struct ValueReporter {
    shared: Arc<AgentState>,
    /// The index of the subject that the values belong to.
    subject_index: usize,
}

impl std::fmt::Debug for ValueReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Told")
    }
}

impl ValueReporter {
    /// Reports a value as of now. Meant for about ten calls per second and name, not for each request: it
    /// takes a lock. A significant change is pushed at once, the rest at the next interval.
    ///
    /// # Errors
    /// Returns one sentence if the name or the value is invalid, or if there are already 40 names.
    pub fn report(&self, name: &str, value: f64) -> Result<(), String> {
        let subject = self.shared.subject(self.subject_index).unwrap_or(&self.shared.machine);
        self.shared.write_subject(subject, name, value, ValueSource::Reported, Duration::ZERO, false)
    }

    /// Returns the present values: those of the machine's sensors, of programs and of this handle's subject.
    pub fn snapshot(&self) -> ValueSnapshot {
        ValueSnapshot::of_server(
            &self.shared,
            self.shared.subject(self.subject_index).unwrap_or(&self.shared.machine),
        )
    }
}

impl Agent {
    /// Opens the sensors and the listener. Must be called within a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound or the control group cannot be read, or if the member
    /// is missing.
    pub async fn open(config: AgentConfig) -> Result<Self, AgentError> {
        if config.member.is_none() && config.servers.is_empty() && !config.report_to.is_empty() {
            return Err(AgentError::Member);
        }
        let cgroup = config.cgroup.folder(&config.proc)?;
        let listener = match config.listen {
            Some(addr) => Some(TcpListener::bind(addr).await.map_err(|error| {
                let hint = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        "stop what listens there, or choose another port (0 takes a free one)"
                    }
                    io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
                    io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
                    _ => "choose another address",
                };
                AgentError::Listen { addr, why: error, hint }
            })?),
            None => None,
        };
        let members = if config.servers.is_empty() { config.member.as_slice() } else { &config.servers };
        let registrar =
            config.register.map(|registration| Registrar::new(registration, members, &config.report_to));
        let targets: Vec<_> =
            config.report_to.into_iter().map(|url| url.with_default_path("/v1/report")).collect();
        let sensor_paths = SensorPaths { proc: config.proc, cgroup, port: config.port };
        Ok(Self {
            shared: Arc::new(AgentState::new(config.group, config.member, config.servers, &targets)),
            sensors: SensorSet::open(sensor_paths, config.interval),
            targets,
            interval: config.interval.max(MIN_REPORT_GAP),
            registrar,
            listener,
            scraper: config.scrape.map(Scraper::new),
        })
    }

    /// Returns the address that the listener is bound to.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Returns a handle for a part of this process that reports values of the machine.
    pub fn reporter(&self) -> ValueReporter {
        ValueReporter { shared: self.shared.clone(), subject_index: 0 }
    }

    /// Returns a handle for each of [`AgentConfig::servers`], with a receiver of that server's alerts.
    pub fn servers(&self) -> Vec<(ValueReporter, watch::Receiver<ShedAlert>)> {
        let servers = self.shared.servers.iter().enumerate();
        let reporter =
            |server_index| ValueReporter { shared: self.shared.clone(), subject_index: server_index + 1 };
        servers.map(|(server_index, server)| (reporter(server_index), server.alerts().subscribe())).collect()
    }

    /// Returns a receiver of the server's alerts, which balancers send in their answers to reports.
    pub fn alerts(&self) -> watch::Receiver<ShedAlert> {
        self.shared.machine.alerts().subscribe()
    }

    /// Returns the handle that deregisters the members; `None` if there is no registration.
    pub fn registrar(&self) -> Option<Registrar> {
        self.registrar.clone()
    }

    /// Measures, reports and serves until `stop` resolves, then cancels pending work.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { shared, sensors, targets, interval, registrar, listener, scraper } = self;
        let (tick_sender, _) = watch::channel(0);
        let mut tasks = JoinSet::new();
        for (subject_index, subject) in shared.subjects().enumerate() {
            // A machine without a member name is reported to no balancer.
            for (target_index, url) in targets.iter().enumerate().filter(|_| subject.member.is_some()) {
                tasks.spawn(push::run(
                    shared.clone(),
                    subject_index,
                    target_index,
                    url.clone(),
                    tick_sender.subscribe(),
                ));
            }
        }
        if let Some(listener) = listener {
            tasks.spawn(serve::run(listener, shared.clone()));
        }
        if let Some(registrar) = registrar {
            tasks.spawn(registrar.run());
        }
        if let Some(scraper) = scraper {
            tasks.spawn(scraper.run(shared.clone(), interval));
        }
        tokio::select! {
            () = run_ticks(&shared, sensors, interval, &tick_sender) => {}
            () = stop => {}
        }
        tasks.shutdown().await;
    }

    /// Measures for one interval, at most a second, and returns the values. Counters need two readings.
    pub async fn measure_once(mut self) -> ValueSnapshot {
        read_sensors(&self.shared, &mut self.sensors);
        if let Some(scraper) = &mut self.scraper {
            scraper.read(&self.shared).await;
        }
        sleep(self.interval.min(Duration::from_secs(1))).await;
        if let Some(scraper) = &mut self.scraper {
            scraper.read(&self.shared).await;
        }
        read_sensors(&self.shared, &mut self.sensors);
        ValueSnapshot::from_state(&self.shared)
    }
}

/// Reads the sensors, and triggers the reports.
async fn run_ticks(
    shared: &AgentState,
    mut sensors: SensorSet,
    interval: Duration,
    tick_sender: &watch::Sender<u64>,
) {
    let mut jitter = JitterSource::new();
    let sense_interval = (interval / 4).clamp(MIN_REPORT_GAP, Duration::from_secs(1));
    read_sensors(shared, &mut sensors);
    let mut last_report = Instant::now();
    // The first report is sent after the second reading, when counters have a rate.
    let (mut next_reading, mut report_due, mut has_changed) =
        (last_report + sense_interval, last_report + sense_interval, false);
    loop {
        let next_report = if has_changed { report_due.min(last_report + MIN_REPORT_GAP) } else { report_due };
        tokio::select! {
            () = sleep_until(next_report.min(next_reading)) => {}
            () = shared.changed.notified(), if !has_changed => has_changed = true,
        }
        let now = Instant::now();
        if now >= next_reading || now >= report_due {
            read_sensors(shared, &mut sensors);
            // After a suspend of the machine, missed readings are not made up.
            next_reading = now + sense_interval;
        }
        if now >= report_due || (has_changed && now >= last_report + MIN_REPORT_GAP) {
            for subject in shared.subjects() {
                subject.expire_alert(shared.now());
                subject.metrics().mark_reported();
            }
            tick_sender.send_modify(|tick_count| *tick_count += 1);
            (last_report, has_changed, report_due) = (now, false, now + jitter.scale(interval, 0.9, 1.1));
        }
    }
}

fn read_sensors(shared: &AgentState, sensors: &mut SensorSet) {
    let (readings, unread) = sensors.read_all(shared.now());
    for reading in readings {
        // Sensors' values are finite and do not count against the limit of names.
        let _ =
            shared.write(reading.name, reading.value, ValueSource::Sensor, Duration::ZERO, reading.is_share);
    }
    shared.set_unread_sensors(unread);
}

#[cfg(test)]
mod tests;
