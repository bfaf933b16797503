//! A balancer that runs: the data plane, the file its configuration comes from, and what the admin plane sees
//! of both.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_admin::{Changed, Entry, Refused, Report, Subject};
use plimsoll_brain::Shed;
use plimsoll_brain::status::{GroupExplanation, Status};
use plimsoll_cluster::{self as cluster, Cluster};
use plimsoll_proxy::{Engine, Stamped};
use sd_notify::NotifyState;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

use crate::config::{self, AdminConfig, File, Machine, look_up};
use crate::limits;

/// The data plane and where its configuration comes from.
pub(crate) struct Running {
    engine: Engine,
    cluster: Cluster,
    /// What the cluster was last told to watch.
    watched: Mutex<Vec<cluster::GroupSettings>>,
    file: PathBuf,
    /// What the data plane was started with and a reload cannot change.
    machine: Machine,
    admin: AdminConfig,
    /// One reload at a time, so that what was read last is in force last.
    reloading: Mutex<()>,
    stop: Notify,
}

impl Running {
    /// `file` is read again by each reload.
    ///
    /// # Errors
    /// The system gives no thread for the monitors.
    pub(crate) fn new(
        engine: Engine,
        watched: Vec<cluster::GroupSettings>,
        file: &Path,
        machine: Machine,
        admin: AdminConfig,
    ) -> io::Result<Arc<Self>> {
        let cluster = Cluster::start(watched.clone(), Arc::new(Joint(engine.clone())))?;
        let (file, reloading, stop) = (file.to_owned(), Mutex::default(), Notify::new());
        let watched = Mutex::new(watched);
        Ok(Arc::new(Self { engine, cluster, watched, file, machine, admin, reloading, stop }))
    }

    /// The data plane.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns once the end was asked for.
    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    fn apply(&self) -> Result<Vec<String>, String> {
        let refuse = |why: String| {
            self.engine.reload_refused(&why);
            why
        };
        let file = config::read(&self.file).map_err(|error| refuse(error.headline()))?;
        warn(&file);
        limits::check_files(&file.config, limits::raise()).map_err(refuse)?;
        let settings =
            file.settings(self.machine, look_up).map_err(|problems| refuse(problems.headline()))?;
        let watched = file.watched(&settings);
        let mut beside = differences(&lock(&self.watched), &watched);
        if file.admin() != self.admin {
            let note = "[admin] differs: it takes effect when the process is started again";
            tracing::warn!("{note}");
            beside.push(format!("! {note}"));
        }
        let changes = self.engine.reload(settings, beside).map_err(|error| error.to_string())?;
        self.cluster.update(watched.clone());
        *lock(&self.watched) = watched;
        Ok(changes)
    }
}

impl Subject for Running {
    fn status(&self) -> Status {
        self.engine.status()
    }

    fn buckets(&self, group: &str) -> Vec<(f64, u64)> {
        self.engine.buckets(group)
    }

    fn events(&self, since: u64) -> Vec<Entry> {
        let entry = |stamped: &Stamped| Entry::new(stamped.seq, stamped.unix_ms, &stamped.event);
        self.engine.events().iter().filter(|stamped| stamped.seq > since).map(entry).collect()
    }

    fn changed(&self) -> Changed {
        let mut news = self.engine.subscribe();
        Box::pin(async move {
            // To have missed some is news as well.
            if let Err(RecvError::Closed) = news.recv().await {
                std::future::pending().await
            }
        })
    }

    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.engine.drain(group, member)
    }

    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.engine.undrain(group, member)
    }

    /// May take as long as looking names up does.
    fn reload(&self) -> Result<Vec<String>, String> {
        let _one = lock(&self.reloading);
        let mut states = vec![NotifyState::Reloading];
        states.extend(NotifyState::monotonic_usec_now().ok());
        notify(&states);
        let outcome = self.apply();
        let status = match &outcome {
            Ok(_) => format!("running {}", self.file.display()),
            Err(why) => format!("the last reload was refused: {why}"),
        };
        notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        outcome
    }

    fn stop(&self) {
        self.stop.notify_one();
    }

    fn explain(&self, group: &str) -> Option<GroupExplanation> {
        let mut explanation = self.engine.explain(group)?;
        if let Some(known) = self.cluster.known(group) {
            (explanation.monitor, explanation.weight) = (known.monitor, known.weight);
            for known in known.members {
                let member = explanation.members.iter_mut().find(|member| *member.name == *known.name);
                if let Some(member) = member {
                    (member.facts, member.load) = (known.facts, known.load);
                    (member.trouble, member.dropped) = (known.trouble, known.dropped);
                }
            }
        }
        Some(explanation)
    }

    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        if key != "strategy" {
            return Err(format!(
                "{key} cannot be changed while it runs: strategy can; change the file and reload"
            ));
        }
        let wanted = config::strategy(value)?;
        let (strategy, knobs) = wanted.find().ok_or_else(|| format!("{value} is not a strategy"))?;
        let weight = wanted.weight().and_then(|weight| cluster::Expression::new(&weight.0).ok());
        // Not between the two halves of a reload.
        let _one = lock(&self.reloading);
        let before = self.engine.choose_by(group, strategy, knobs, value.trim())?;
        self.cluster.weigh(group, weight.clone());
        if let Some(watched) = lock(&self.watched).iter_mut().find(|watched| *watched.name == *group) {
            watched.weight = weight;
        }
        Ok(vec![format!("~ group {group}: strategy {before} -> {}", value.trim())])
    }

    fn report(&self, report: Report) -> Result<Option<Shed>, Refused> {
        let Report { group, member, values, age_seconds } = report;
        let report = cluster::Report { group, member, values, age_seconds };
        match self.cluster.report(&report) {
            Ok(()) => Ok(self.engine.asked_to_shed(report.group.as_deref(), &report.member)),
            Err(cluster::Refused::Unknown(why)) => Err(Refused::Unknown(why)),
            Err(cluster::Refused::Wrong(why)) => Err(Refused::Wrong(why)),
            Err(cluster::Refused::TooFast(why)) => Err(Refused::TooFast(why)),
        }
    }
}

/// The data plane as what watches members sees it.
struct Joint(Engine);

impl cluster::Balancer for Joint {
    fn counters(&self, group: &str) -> Vec<(Arc<str>, cluster::Counters)> {
        let counters = self.0.counters(group).into_iter().map(|member| {
            let (in_flight, requests, seconds) = (member.in_flight, member.requests, member.seconds);
            (member.name, cluster::Counters { in_flight, requests, seconds })
        });
        counters.collect()
    }

    fn load(&self, group: &str, member: &str, value: f64, age: Duration) {
        self.0.load(group, member, value, age);
    }

    fn weights(&self, group: &str, weights: &[(Arc<str>, Option<f64>)]) {
        self.0.weights(group, weights);
    }

    fn flooded(&self, group: &str, member: &str) {
        self.0.flooded(group, member);
    }
}

/// What changes in what is watched, one line each; members are told of elsewhere.
fn differences(before: &[cluster::GroupSettings], after: &[cluster::GroupSettings]) -> Vec<String> {
    let mut changes = Vec::new();
    for group in after {
        let name = &group.name;
        let Some(old) = before.iter().find(|old| old.name == *name) else { continue };
        if old.monitor != group.monitor {
            changes.push(format!("~ group {name}: monitor"));
        }
        if let (Some(old), Some(new)) = (&old.weight, &group.weight)
            && old != new
        {
            changes.push(format!("~ group {name}: weight {} -> {}", old.text(), new.text()));
        }
    }
    changes
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs what a file is warned of, and what the kernel will not do for it.
pub(crate) fn warn(file: &File) {
    for line in file.warnings.lines().into_iter().chain(limits::check_backlog(&file.config)) {
        tracing::warn!("{line}");
    }
}

/// Tells systemd, if it asked to be told.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
