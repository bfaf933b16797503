//! A running balancer: the data plane, the file of its configuration, and the admin plane's view of both.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use plimsoll_acme::Keeper;
use plimsoll_admin::{Collector, Rules};
use plimsoll_brain::MemberSpec;
use plimsoll_cluster::corba::Refusal;
use plimsoll_cluster::fleet::Fleet;
use plimsoll_cluster::store::Store;
use plimsoll_cluster::{self as cluster, Cluster};
use plimsoll_proxy::Engine;
use sd_notify::NotifyState;
use tokio::sync::{Notify, watch};

use crate::config::{self, AdminConfig, Config, File, Machine, look_up};
use crate::limits;
use crate::made::{Base, Force, Made};
use crate::succession::{Elder, Holder};
use balancing::Balancing;
use certificates::Window;
use discovered::Discovered;
use document::Document;
use joint::Joint;
use kept::{Again, Deeds};
use names::Names;
use scaled::Scaled;

mod balancing;
pub(crate) mod certificates;
pub(crate) mod discovered;
pub(crate) mod document;
mod fleet;
mod held;
mod joint;
pub(crate) mod kept;
mod lend;
pub(crate) mod names;
pub(crate) mod owner;
pub(crate) mod registered;
pub(crate) mod scaled;
pub(crate) mod stored;
mod subject;
mod succession;
mod suppose;

/// The data plane and the source of its configuration.
pub(crate) struct Running {
    engine: Engine,
    cluster: Cluster,
    /// The keeper of certificates from authorities.
    keeper: Keeper,
    /// The content of the file.
    base: Mutex<Base>,
    /// The changes of the load manager's clients.
    made: Mutex<Made>,
    /// The settings in force, made of both.
    force: Mutex<Arc<Force>>,
    file: PathBuf,
    /// The settings with which the data plane was started and that a reload cannot change.
    machine: Machine,
    admin: AdminConfig,
    /// The rights of clients, which a reload can change.
    rules: Arc<Rules>,
    /// The lock of reloads, one at a time, so that the last file read is the last in force.
    reloading: Mutex<()>,
    /// The groups with balancing switched off, and their balancing otherwise.
    off: Mutex<BTreeMap<String, Balancing>>,
    /// The upgrade to another process; set once it runs.
    elder: OnceLock<Elder>,
    /// The Supervisor, which holds copies of its sockets, if there is one.
    holder: OnceLock<Arc<Holder>>,
    /// The time since when a process before this one ends its connections; `None` when it has ended.
    predecessor: watch::Sender<Option<Instant>>,
    /// The answers of the sources of members.
    discovered: Discovered,
    /// The addresses of members' names.
    names: Names,
    /// The other balancers, if it acts together with any.
    fleet: Mutex<Option<Fleet>>,
    /// The store of state that outlives the process.
    store: Arc<dyn Store>,
    /// The groups and listeners of the store, as they were read last; `None` if those of the file are all. It
    /// is locked for a moment only.
    document: Mutex<Option<Document>>,
    /// The part of the store that is in force. A caller that locks both locks this before `reloading`.
    kept: Mutex<Deeds>,
    /// The file's balancing of groups that are balanced in another way.
    own: Mutex<BTreeMap<String, Balancing>>,
    /// The state of the scalers.
    scaled: Scaled,
    /// The collector of spans.
    collector: watch::Sender<Option<Collector>>,
    /// The signal that another file is in force.
    reloaded: Notify,
    stop: Notify,
}

impl Running {
    /// Returns a running balancer; each reload reads `file` again.
    ///
    /// # Errors
    /// Fails if the system gives no thread for the monitors, or for the certificates.
    pub(crate) fn new(
        engine: Engine,
        (base, discovered, names): (Base, Discovered, Names),
        (store, document): (Arc<dyn Store>, Option<Document>),
        file: &Path,
        machine: Machine,
        admin: AdminConfig,
        rules: Arc<Rules>,
    ) -> io::Result<Arc<Self>> {
        let mut made = Made::default();
        made.count(&base);
        made.find(discovered.propose(None).found);
        let force = base.with(&made);
        let cluster = Cluster::start(force.watched.clone(), Arc::new(Joint(engine.clone())))?;
        let keeper = Keeper::start(base.certificates.clone(), Arc::new(Window(engine.clone())))?;
        let (file, reloading) = (file.to_owned(), Mutex::default());
        let collector = watch::Sender::new(base.collector.clone());
        let (reloaded, stop) = (Notify::new(), Notify::new());
        let (base, made, force) = (Mutex::new(base), Mutex::new(made), Mutex::new(Arc::new(force)));
        let (off, kept, own) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self {
            engine,
            cluster,
            keeper,
            base,
            made,
            force,
            file,
            machine,
            admin,
            rules,
            reloading,
            discovered,
            names,
            fleet: Mutex::default(),
            store,
            document: Mutex::new(document),
            kept,
            own,
            scaled: Scaled::default(),
            collector,
            reloaded,
            off,
            elder: OnceLock::new(),
            holder: OnceLock::new(),
            predecessor: watch::Sender::new(None),
            stop,
        }))
    }

    /// Returns the data plane.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Passes the load reports of answers to the cluster, for ever.
    pub(crate) async fn listen(&self) {
        let Some(mut said) = self.engine.said() else { return };
        while let Some(one) = said.recv().await {
            self.cluster.observe(&one.group, &one.member, &one.values, cluster::Source::Orca);
        }
    }

    /// Returns the collector of spans, and its changes.
    pub(crate) fn collector(&self) -> watch::Receiver<Option<Collector>> {
        self.collector.subscribe()
    }

    /// Returns once the end was requested.
    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// Writes the object references of the groups to the files that the configuration names for them.
    pub(crate) fn write_references(&self, config: &Config) {
        for group in &config.groups {
            let Some(path) = group.iiop.as_ref().and_then(|iiop| iiop.ior_file.as_ref()) else { continue };
            let Some(ior) = self.engine.reference(&group.name.0) else { continue };
            // The replacement is atomic: concurrent readers see the old reference.
            let beside = path.0.with_added_extension("new");
            let written = std::fs::write(&beside, format!("{ior}\n"));
            if let Err(error) = written.and_then(|()| std::fs::rename(&beside, &path.0)) {
                let _ = std::fs::remove_file(&beside);
                tracing::warn!("cannot write the reference of group {} to {path}: {error}", group.name);
            }
        }
    }

    fn apply(&self) -> Result<Vec<String>, String> {
        let refuse = |why: String| {
            self.engine.reload_refused(&why);
            why
        };
        let file = self.read_file().map_err(|error| refuse(error.headline()))?;
        warn(&file);
        let files = limits::raise();
        limits::check_files(&file.config, files, limits::OWN).map_err(refuse)?;
        // The files may be divided among other listeners now.
        let Machine { threads, max_memory, .. } = self.machine;
        let machine = Machine { threads, max_memory, ..Machine::here(&file.config, files) };
        let (settings, told) =
            names::settings(&self.names, &file, machine).map_err(|problems| refuse(problems.headline()))?;
        let rules = file.rules().map_err(refuse)?;
        let lotteries = file.lotteries(look_up).map_err(|problems| refuse(problems.headline()))?;
        let certificates = file.authorities().map_err(|problems| refuse(problems.headline()))?;
        certificates::preload(&certificates);
        let base = Base::new(&file, settings, lotteries, certificates);
        lock(&self.made).count(&base);
        let found = self.discovered.propose(Some(&base));
        let mut made = lock(&self.made).clone();
        made.find(found.found.clone());
        let force = base.with(&made);
        let mut beside = differences(&self.force().watched, &force.watched);
        beside.extend(sources(&lock(&self.base).discoveries, &base.discoveries));
        if file.admin() != self.admin {
            let note = "[admin] differs: it takes effect with `plimsoll upgrade` or a restart (its access rules do now)";
            tracing::warn!("{note}");
            beside.push(format!("! {note}"));
        }
        if file.config.fleet != lock(&self.base).fleet {
            let note = "[fleet] differs: it takes effect with `plimsoll upgrade` or a restart";
            tracing::warn!("{note}");
            beside.push(format!("! {note}"));
        }
        let changes = self.enforce(force, beside)?;
        if let Err(error) = self.keeper.update(base.certificates.clone()) {
            tracing::warn!("no thread for the certificates: {error}");
        }
        *lock(&self.made) = made;
        self.collector.send_if_modified(|collector| {
            let other = *collector != base.collector;
            collector.clone_from(&base.collector);
            other
        });
        *lock(&self.base) = base;
        let events = self.discovered.accept(found, Some(&lock(&self.base)));
        told.into_iter().chain(events).for_each(|event| self.engine.tell(event));
        self.rules.replace(rules);
        // The file's balancing applies again.
        lock(&self.off).clear();
        self.scaled.reloaded();
        self.reloaded.notify_one();
        self.write_references(&file.config);
        Ok(changes)
    }

    /// Puts settings in force; returns the changes. It runs one at a time.
    fn enforce(&self, force: Force, beside: Vec<String>) -> Result<Vec<String>, String> {
        self.hold_sockets_of(&force.settings.listeners);
        let reloaded = self.engine.reload(force.settings.clone(), beside);
        // The sockets are the present ones, whether the reload succeeded or not.
        self.hold_sockets();
        let changes = reloaded.map_err(|error| error.to_string())?;
        self.cluster.update(force.watched.clone());
        *lock(&self.force) = Arc::new(force);
        Ok(changes)
    }

    /// Returns the settings in force.
    pub(crate) fn force(&self) -> Arc<Force> {
        Arc::clone(&lock(&self.force))
    }

    /// Returns the groups whose members come from a lottery.
    pub(crate) fn lotteries(&self) -> Vec<config::Lottery> {
        lock(&self.base).lotteries.clone()
    }

    /// Returns once another file is in force.
    pub(crate) async fn reloaded(&self) {
        self.reloaded.notified().await;
    }

    /// Puts the members of a group from a lottery in force.
    ///
    /// # Errors
    /// Fails if they cannot be; nothing is changed then.
    pub(crate) fn drawn(
        &self,
        group: &Arc<str>,
        members: &[MemberSpec],
        weights: &[(Arc<str>, Option<f64>)],
    ) -> Result<(), String> {
        let mut changed = false;
        {
            let _one = lock(&self.reloading);
            let mut made = lock(&self.made).clone();
            if made.draw(group, members) {
                let force = lock(&self.base).with(&made);
                self.enforce(force, Vec::new())?;
                *lock(&self.made) = made;
                changed = true;
            }
        }
        if changed {
            self.keep(Again::Members);
        }
        self.engine.weights(group, weights);
        Ok(())
    }

    /// Returns the number by which clients of the load manager know a group.
    pub(crate) fn number(&self, group: &Arc<str>) -> u64 {
        lock(&self.made).number(group)
    }

    /// Applies a change of a client of the load manager, and puts it in force.
    ///
    /// # Errors
    /// Fails if it cannot be done; nothing is changed then.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Made, &Base, &Force, Machine) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let _one = lock(&self.reloading);
        let mut made = lock(&self.made).clone();
        let base = lock(&self.base).clone();
        let done = change(&mut made, &base, &self.force(), self.machine)?;
        self.enforce(base.with(&made), Vec::new()).map_err(Refusal::Impossible)?;
        *lock(&self.made) = made;
        Ok(done)
    }

    /// Takes loads of the members at a location, in every group.
    pub(crate) fn located(&self, location: &str, values: &[(String, f64)]) {
        for (group, member, at) in self.force().located() {
            if at.text() == location {
                let (group, member) = (Some(group.to_string()), member.name.to_string());
                let report = cluster::Report { group, member, values: values.to_vec(), age_seconds: None };
                if let Err(why) = self.cluster.report(&report) {
                    tracing::debug!("loads at {location} were not taken: {why}");
                }
            }
        }
    }
}

/// Returns the changes in the watched settings, one line each; those of members are reported elsewhere.
fn differences(before: &[Arc<cluster::GroupSettings>], after: &[Arc<cluster::GroupSettings>]) -> Vec<String> {
    let mut changes = Vec::new();
    let before: BTreeMap<&Arc<str>, &Arc<cluster::GroupSettings>> =
        before.iter().map(|group| (&group.name, group)).collect();
    for group in after {
        let name = &group.name;
        let Some(old) = before.get(name) else { continue };
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

/// Returns the groups with other sources of members, one line each.
fn sources(before: &[config::Discovery], after: &[config::Discovery]) -> Vec<String> {
    let of = |all: &[config::Discovery], name: &Arc<str>| {
        let one = all.iter().find(|one| one.group == *name);
        one.map_or_else(Vec::new, |one| one.sources.clone())
    };
    let mut names: Vec<&Arc<str>> = before.iter().chain(after).map(|one| &one.group).collect();
    names.sort_unstable();
    names.dedup();
    let other = names.into_iter().filter(|name| of(before, name) != of(after, name));
    other.map(|name| format!("~ group {name}: discover")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs the warnings of a file, and the settings that the kernel will not grant.
pub(crate) fn warn(file: &File) {
    for line in file.warnings.lines().into_iter().chain(limits::check_backlog(&file.config)) {
        tracing::warn!("{line}");
    }
}

/// Notifies systemd, if it asked for that.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
