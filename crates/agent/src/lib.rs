//! Know thyself: an agent beside a server reads how loaded it is and tells the balancers.
//!
//! What is known comes from sensors (the kernel, see `sensor.rs`), from a page in Prometheus' format, from programs
//! that report over HTTP, and from within the process by [`Told`]. It is *pushed* to every balancer each interval, and
//! at once when a number moves more than its own noise; and it is shown on a listener, where balancers that *pull* find
//! it. Sensors are read four times in an interval or more, so that a move is seen early, and tell means over the interval.
//!
//! ```text
//!  /proc, cgroup ─ sensors ┐                ┌ push ─ POST /v1/report → balancer
//!  Prometheus page ─ scrape ┼─ board ─ beat ┼ push ─ POST /v1/report → balancer
//!  programs ─ listener, Told ┘              └ listener: /load /metrics
//! ```
//!
//! A machine may have several servers, each with numbers of its own: then these are reported of each, under its own name, and
//! what the sensors read of the machine.
//!
//! One thread is enough. A balancer that hangs, a page that does not come and a file that cannot be read delay and stop
//! nothing else; each is told once.

mod alert;
mod board;
mod cgroup;
mod chance;
mod link;
mod metric;
mod name;
mod noise;
mod page;
mod push;
mod register;
mod report;
mod room;
mod scrape;
mod sensor;
mod serve;
mod shared;
mod subject;
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

pub use alert::Alert;
pub use board::{Source, Value};
pub use cgroup::Cgroup;
pub use link::Url;
pub use metric::Metric;
pub use page::Snapshot;
pub use register::{Registrar, Registration};
pub use scrape::Scrape;
pub use sensor::Unread;

use chance::Chance;
use scrape::Scraper;
use sensor::{Place, Sensors};
use shared::Shared;

/// Between two reports for the sake of a move that matters.
const GAP: Duration = Duration::from_millis(100);

/// What an agent is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Group of the server, for balancers that have its address in several.
    pub group: Option<String>,
    /// Address of the server as the balancers know it; needed if there is somebody to report to. With `servers` the
    /// host's, without a port, or none if balancers are told of the servers only.
    pub member: Option<String>,
    /// Several servers of this host, as the balancers know them, which have numbers of their own besides those of the host:
    /// see [`Agent::servers`].
    pub servers: Vec<String>,
    /// Balancers to push to, each with `/v1/report` if it has no path.
    pub report_to: Vec<Url>,
    /// Register the member, or the servers, with these balancers: see [`Agent::registrar`].
    pub register: Option<Registration>,
    /// Between two reports, give or take a tenth; and between two scrapes.
    pub interval: Duration,
    /// Where to listen; port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// A page to read.
    pub scrape: Option<Scrape>,
    /// The server's control group.
    pub cgroup: Cgroup,
    /// Port of the server's whose connections are counted.
    pub port: Option<u16>,
    /// Where the kernel tells of the host, usually /proc.
    pub proc: PathBuf,
}

impl Default for Config {
    /// Reads the sensors and tells nobody.
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

/// Why an agent did not start: one line that says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be had.
    #[error("cannot listen on {addr}: {why}; {hint}")]
    Listen {
        /// As configured.
        addr: SocketAddr,
        /// What the system said.
        why: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The control group cannot be read.
    #[error("cannot read the control group {}: {why}; name one as systemd-cgls shows it, or say off", folder.display())]
    Cgroup {
        /// As found.
        folder: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Whom are the reports about?
    #[error("reports need the member that they are about: give its address as the balancer knows it")]
    Member,
}

/// An agent, ready to run.
pub struct Agent {
    shared: Arc<Shared>,
    sensors: Sensors,
    targets: Vec<Url>,
    interval: Duration,
    registrar: Option<Registrar>,
    listener: Option<TcpListener>,
    scraper: Option<Scraper>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("member", &self.shared.whole.member).finish_non_exhaustive()
    }
}

/// By which a part of the same process tells numbers to its agent. Cheap to clone; may be used from any thread.
#[derive(Clone)]
pub struct Told {
    shared: Arc<Shared>,
    /// Of the subject that the numbers are of.
    place: usize,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Told")
    }
}

impl Told {
    /// Tells a number as of now. Meant for some ten times in a second and name, not for each request: it takes a
    /// lock. What matters is reported at once, the rest at the next beat.
    ///
    /// # Errors
    /// One sentence if the name or the value cannot be, or 40 names are told already.
    pub fn tell(&self, name: &str, value: f64) -> Result<(), String> {
        let subject = self.shared.subject(self.place).unwrap_or(&self.shared.whole);
        self.shared.write_of(subject, name, value, Source::Told, Duration::ZERO, false)
    }

    /// What is known now: what the sensors read of the machine, what programs told, and what this part did.
    pub fn known(&self) -> Snapshot {
        Snapshot::of_one(&self.shared, self.shared.subject(self.place).unwrap_or(&self.shared.whole))
    }
}

impl Agent {
    /// Opens the sensors and the listener. To be called in a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// The address or the control group cannot be had, or there is somebody to report to but no member.
    pub async fn open(config: Config) -> Result<Self, Error> {
        if config.member.is_none() && config.servers.is_empty() && !config.report_to.is_empty() {
            return Err(Error::Member);
        }
        let cgroup = config.cgroup.folder(&config.proc)?;
        let listener = match config.listen {
            Some(addr) => Some(TcpListener::bind(addr).await.map_err(|why| {
                let hint = match why.kind() {
                    io::ErrorKind::AddrInUse => {
                        "stop what listens there, or choose another port (0 takes a free one)"
                    }
                    io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
                    io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
                    _ => "choose another address",
                };
                Error::Listen { addr, why, hint }
            })?),
            None => None,
        };
        let members = if config.servers.is_empty() { config.member.as_slice() } else { &config.servers };
        let registrar =
            config.register.map(|registration| Registrar::new(registration, members, &config.report_to));
        let targets: Vec<_> = config.report_to.into_iter().map(|url| url.or_path("/v1/report")).collect();
        let place = Place { proc: config.proc, cgroup, port: config.port };
        Ok(Self {
            shared: Arc::new(Shared::new(config.group, config.member, config.servers, &targets)),
            sensors: Sensors::open(place, config.interval),
            targets,
            interval: config.interval.max(GAP),
            registrar,
            listener,
            scraper: config.scrape.map(Scraper::new),
        })
    }

    /// Where it listens, as bound.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// For a part of this process that has something to tell of the machine.
    pub fn told(&self) -> Told {
        Told { shared: self.shared.clone(), place: 0 }
    }

    /// The same for each of [`Config::servers`], with what balancers want that server to do.
    pub fn servers(&self) -> Vec<(Told, watch::Receiver<Alert>)> {
        let servers = self.shared.servers.iter().enumerate();
        let told = |place| Told { shared: self.shared.clone(), place: place + 1 };
        servers.map(|(place, server)| (told(place), server.alerts().subscribe())).collect()
    }

    /// What balancers want the server to do, as it changes: they say so in their answers to reports.
    pub fn alerts(&self) -> watch::Receiver<Alert> {
        self.shared.whole.alerts().subscribe()
    }

    /// By which it leaves the groups that it was registered in; `None` if it was not.
    pub fn registrar(&self) -> Option<Registrar> {
        self.registrar.clone()
    }

    /// Measures, reports and shows until `stop` comes true; what is under way then is cut.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { shared, sensors, targets, interval, registrar, listener, scraper } = self;
        let (beats, _) = watch::channel(0);
        let mut parts = JoinSet::new();
        for (place, subject) in shared.subjects().enumerate() {
            // Of a machine without a name that balancers know there is nobody to tell.
            for (number, url) in targets.iter().enumerate().filter(|_| subject.member.is_some()) {
                parts.spawn(push::run(shared.clone(), place, number, url.clone(), beats.subscribe()));
            }
        }
        if let Some(listener) = listener {
            parts.spawn(serve::run(listener, shared.clone()));
        }
        if let Some(registrar) = registrar {
            parts.spawn(registrar.keep());
        }
        if let Some(scraper) = scraper {
            parts.spawn(scraper.run(shared.clone(), interval));
        }
        tokio::select! {
            () = beat(&shared, sensors, interval, &beats) => {}
            () = stop => {}
        }
        parts.shutdown().await;
    }

    /// Measures for an interval, a second at the most, and says what is known then; what grows needs two looks.
    pub async fn once(mut self) -> Snapshot {
        look(&self.shared, &mut self.sensors);
        if let Some(scraper) = &mut self.scraper {
            scraper.read(&self.shared).await;
        }
        sleep(self.interval.min(Duration::from_secs(1))).await;
        if let Some(scraper) = &mut self.scraper {
            scraper.read(&self.shared).await;
        }
        look(&self.shared, &mut self.sensors);
        Snapshot::of(&self.shared)
    }
}

/// Reads the sensors, and says when the balancers are to be told.
async fn beat(shared: &Shared, mut sensors: Sensors, interval: Duration, beats: &watch::Sender<u64>) {
    let mut chance = Chance::new();
    let pause = (interval / 4).clamp(GAP, Duration::from_secs(1));
    look(shared, &mut sensors);
    let mut last = Instant::now();
    // The first report has what takes two looks in it.
    let (mut next_look, mut due, mut stirred) = (last + pause, last + pause, false);
    loop {
        let soon = if stirred { due.min(last + GAP) } else { due };
        tokio::select! {
            () = sleep_until(soon.min(next_look)) => {}
            () = shared.stirred.notified(), if !stirred => stirred = true,
        }
        let now = Instant::now();
        if now >= next_look || now >= due {
            look(shared, &mut sensors);
            // A machine that slept does not catch up.
            next_look = now + pause;
        }
        if now >= due || (stirred && now >= last + GAP) {
            for subject in shared.subjects() {
                subject.silent(shared.now());
                subject.board().tell();
            }
            beats.send_modify(|beats| *beats += 1);
            (last, stirred, due) = (now, false, now + chance.about(interval, 0.9, 1.1));
        }
    }
}

fn look(shared: &Shared, sensors: &mut Sensors) {
    let (readings, unread) = sensors.look(shared.now());
    for reading in readings {
        // Sensors have room of their own, and what they say is finite.
        let _ = shared.write(reading.name, reading.value, Source::Sensed, Duration::ZERO, reading.share);
    }
    shared.unread_by_sensors(unread);
}

#[cfg(test)]
mod tests;
