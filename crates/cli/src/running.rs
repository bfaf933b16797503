//! A balancer that runs: the data plane, the file its configuration comes from, and what the admin plane sees
//! of both.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_admin::{Changed, Entry, Subject};
use plimsoll_brain::status::Status;
use plimsoll_proxy::{Engine, Stamped};
use sd_notify::NotifyState;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

use crate::config::{self, AdminConfig, File, Machine, look_up};
use crate::limits;

/// The data plane and where its configuration comes from.
pub(crate) struct Running {
    engine: Engine,
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
    pub(crate) fn new(engine: Engine, file: &Path, machine: Machine, admin: AdminConfig) -> Arc<Self> {
        let (file, reloading, stop) = (file.to_owned(), Mutex::default(), Notify::new());
        Arc::new(Self { engine, file, machine, admin, reloading, stop })
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
        let mut changes = self.engine.reload(settings).map_err(|error| error.to_string())?;
        if file.admin() != self.admin {
            let note = "[admin] differs: it takes effect when the process is started again";
            tracing::warn!("{note}");
            changes.push(format!("! {note}"));
        }
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
        let _one = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
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
