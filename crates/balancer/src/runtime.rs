//! A running balancer: the data plane, the file of its configuration, and the admin plane's view of both.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use plimsoll_acme::CertificateKeeper;
use plimsoll_admin::{ActiveRules, OtlpCollector};
use plimsoll_brain::MemberSpec;
use plimsoll_cluster::corba::GroupError;
use plimsoll_cluster::fleet::FleetMembership;
use plimsoll_cluster::store::Store;
use plimsoll_cluster::{self as cluster, LoadObserver};
use plimsoll_config::limits;
use plimsoll_config::{self as config, AdminConfig, Config, ConfigFile, MachineDefaults, look_up};
use plimsoll_proxy::Engine;
use sd_notify::NotifyState;
use tokio::sync::{Notify, watch};

use crate::runtime_config::{ConfigOverlay, EffectiveConfig, FileConfig};
use crate::upgrade::{HandoffSource, SocketHolder};
use certificates::CertificateAdapter;
use discovery_state::DiscoveryState;
use group_balancing::GroupBalancing;
use monitor_adapter::MonitorAdapter;
use name_resolution::ResolvedNames;
use operator_state::{OperatorActions, Reapply};
use scaler_state::ScalerRegistry;
use shared_config::SharedConfig;

mod admin_adapter;
pub(crate) mod certificates;
pub(crate) mod discovery_state;
mod fleet_adapter;
mod group_balancing;
mod handoff;
mod lease_adapter;
mod monitor_adapter;
pub(crate) mod name_resolution;
pub(crate) mod operator_state;
pub(crate) mod registered;
pub(crate) mod scaler_leader;
pub(crate) mod scaler_state;
pub(crate) mod shared_config;
mod socket_holding;
pub(crate) mod store_health;
pub(crate) mod what_if;

/// The data plane and the source of its configuration.
pub(crate) struct BalancerRuntime {
    engine: Engine,
    cluster: LoadObserver,
    /// The keeper of certificates from authorities.
    certificate_keeper: CertificateKeeper,
    /// The content of the file.
    file_config: Mutex<FileConfig>,
    /// The changes of the load manager's clients.
    overlay: Mutex<ConfigOverlay>,
    /// The settings in force, made of both.
    effective_config: Mutex<Arc<EffectiveConfig>>,
    config_path: PathBuf,
    /// The settings with which the data plane was started and that a reload cannot change.
    machine: MachineDefaults,
    admin: AdminConfig,
    /// The rights of clients, which a reload can change.
    rules: Arc<ActiveRules>,
    /// The lock of reloads, one at a time, so that the last file read is the last in force.
    reloading: Mutex<()>,
    /// The groups with balancing switched off, and their balancing otherwise.
    unbalanced: Mutex<BTreeMap<String, GroupBalancing>>,
    /// The upgrade to another process; set once it runs.
    handoff_source: OnceLock<HandoffSource>,
    /// The Supervisor, which holds copies of its sockets, if there is one.
    holder: OnceLock<Arc<SocketHolder>>,
    /// The time since when a process before this one ends its connections; `None` when it has ended.
    predecessor: watch::Sender<Option<Instant>>,
    /// The answers of the sources of members.
    discovery: DiscoveryState,
    /// The addresses of members' names.
    resolved_names: ResolvedNames,
    /// The other balancers, if it acts together with any.
    fleet: Mutex<Option<FleetMembership>>,
    /// The store of state that outlives the process.
    store: Arc<dyn Store>,
    /// The groups and listeners of the store, as they were read last; `None` if those of the file are all. It
    /// is locked for a moment only.
    shared_config: Mutex<Option<SharedConfig>>,
    /// The part of the store that is in force. A caller that locks both locks this before `reloading`.
    operator_actions: Mutex<OperatorActions>,
    /// The file's balancing of groups that are balanced in another way.
    file_balancing: Mutex<BTreeMap<String, GroupBalancing>>,
    /// The state of the scalers.
    scalers: ScalerRegistry,
    /// The collector of spans.
    collector: watch::Sender<Option<OtlpCollector>>,
    /// The signal that another file is in force.
    reloaded: Notify,
    stop: Notify,
}

impl BalancerRuntime {
    /// Returns a running balancer; each reload reads `file` again.
    ///
    /// # Errors
    /// Fails if the system gives no thread for the monitors, or for the certificates.
    pub(crate) fn new(
        engine: Engine,
        (base, discovered, names): (FileConfig, DiscoveryState, ResolvedNames),
        (store, document): (Arc<dyn Store>, Option<SharedConfig>),
        file: &Path,
        machine: MachineDefaults,
        admin: AdminConfig,
        rules: Arc<ActiveRules>,
    ) -> io::Result<Arc<Self>> {
        let mut made = ConfigOverlay::default();
        made.assign_numbers(&base);
        made.set_discovered(discovered.propose(None).members);
        let force = base.with_overlay(&made);
        let cluster = LoadObserver::start(force.watched.clone(), Arc::new(MonitorAdapter(engine.clone())))?;
        let keeper = CertificateKeeper::start(
            base.certificates.clone(),
            Arc::new(CertificateAdapter(engine.clone())),
        )?;
        let (file, reloading) = (file.to_owned(), Mutex::default());
        let collector = watch::Sender::new(base.collector.clone());
        let (reloaded, stop) = (Notify::new(), Notify::new());
        let (base, made, force) = (Mutex::new(base), Mutex::new(made), Mutex::new(Arc::new(force)));
        let (off, kept, own) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self {
            engine,
            cluster,
            certificate_keeper: keeper,
            file_config: base,
            overlay: made,
            effective_config: force,
            config_path: file,
            machine,
            admin,
            rules,
            reloading,
            discovery: discovered,
            resolved_names: names,
            fleet: Mutex::default(),
            store,
            shared_config: Mutex::new(document),
            operator_actions: kept,
            file_balancing: own,
            scalers: ScalerRegistry::default(),
            collector,
            reloaded,
            unbalanced: off,
            handoff_source: OnceLock::new(),
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
    pub(crate) async fn forward_load_reports(&self) {
        let Some(mut said) = self.engine.report_samples() else { return };
        while let Some(one) = said.recv().await {
            self.cluster.observe(&one.group, &one.member, &one.values, cluster::MetricSource::Orca);
        }
    }

    /// Returns the collector of spans, and its changes.
    pub(crate) fn collector(&self) -> watch::Receiver<Option<OtlpCollector>> {
        self.collector.subscribe()
    }

    /// Returns once the end was requested.
    pub(crate) async fn stop_requested(&self) {
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
            self.engine.record_rejected_reload(&why);
            why
        };
        let file = self.read_file().map_err(|error| refuse(error.headline()))?;
        log_warnings(&file);
        let files = limits::raise();
        limits::check_files(&file.config, files, limits::THIS_PROCESS).map_err(refuse)?;
        // The files may be divided among other listeners now.
        let MachineDefaults { threads, max_memory, .. } = self.machine;
        let machine = MachineDefaults { threads, max_memory, ..MachineDefaults::detect(&file.config, files) };
        let (settings, told) = name_resolution::settings(&self.resolved_names, &file, machine)
            .map_err(|problems| refuse(problems.headline()))?;
        let rules = file.rules().map_err(refuse)?;
        let lotteries = file.lotteries(look_up).map_err(|problems| refuse(problems.headline()))?;
        let certificates = file.authorities().map_err(|problems| refuse(problems.headline()))?;
        certificates::preload(&certificates);
        let base = FileConfig::new(&file, settings, lotteries, certificates);
        lock(&self.overlay).assign_numbers(&base);
        let found = self.discovery.propose(Some(&base));
        let mut made = lock(&self.overlay).clone();
        made.set_discovered(found.members.clone());
        let force = base.with_overlay(&made);
        let mut beside = watched_changes(&self.effective_config().watched, &force.watched);
        beside.extend(source_changes(&lock(&self.file_config).discoveries, &base.discoveries));
        if file.admin() != self.admin {
            let note = "[admin] differs: it takes effect with `plimsoll upgrade` or a restart (its access \
                rules do now)";
            tracing::warn!("{note}");
            beside.push(format!("! {note}"));
        }
        if file.config.fleet != lock(&self.file_config).fleet {
            let note = "[fleet] differs: it takes effect with `plimsoll upgrade` or a restart";
            tracing::warn!("{note}");
            beside.push(format!("! {note}"));
        }
        let changes = self.apply_config(force, beside)?;
        if let Err(error) = self.certificate_keeper.update(base.certificates.clone()) {
            tracing::warn!("no thread for the certificates: {error}");
        }
        *lock(&self.overlay) = made;
        self.collector.send_if_modified(|collector| {
            let other = *collector != base.collector;
            collector.clone_from(&base.collector);
            other
        });
        *lock(&self.file_config) = base;
        let events = self.discovery.accept(found, Some(&lock(&self.file_config)));
        told.into_iter().chain(events).for_each(|event| self.engine.write_event(event));
        self.rules.replace(rules);
        // The file's balancing applies again.
        lock(&self.unbalanced).clear();
        self.scalers.reloaded();
        self.reloaded.notify_one();
        self.write_references(&file.config);
        Ok(changes)
    }

    /// Puts settings in force; returns the changes. It runs one at a time.
    fn apply_config(&self, force: EffectiveConfig, beside: Vec<String>) -> Result<Vec<String>, String> {
        self.hold_sockets_of(&force.settings.listeners);
        let reloaded = self.engine.reload(force.settings.clone(), beside);
        // The sockets are the present ones, whether the reload succeeded or not.
        self.hold_sockets();
        let changes = reloaded.map_err(|error| error.to_string())?;
        self.cluster.update(force.watched.clone());
        *lock(&self.effective_config) = Arc::new(force);
        Ok(changes)
    }

    /// Returns the settings in force.
    pub(crate) fn effective_config(&self) -> Arc<EffectiveConfig> {
        Arc::clone(&lock(&self.effective_config))
    }

    /// Returns the groups whose members come from a lottery.
    pub(crate) fn lotteries(&self) -> Vec<config::LotteryGroup> {
        lock(&self.file_config).lotteries.clone()
    }

    /// Returns once another file is in force.
    pub(crate) async fn reloaded(&self) {
        self.reloaded.notified().await;
    }

    /// Puts the members of a group from a lottery in force.
    ///
    /// # Errors
    /// Fails if they cannot be; nothing is changed then.
    pub(crate) fn set_lottery_members(
        &self,
        group: &Arc<str>,
        members: &[MemberSpec],
        weights: &[(Arc<str>, Option<f64>)],
    ) -> Result<(), String> {
        let mut changed = false;
        {
            let _one = lock(&self.reloading);
            let mut made = lock(&self.overlay).clone();
            if made.set_lottery_members(group, members) {
                let force = lock(&self.file_config).with_overlay(&made);
                self.apply_config(force, Vec::new())?;
                *lock(&self.overlay) = made;
                changed = true;
            }
        }
        if changed {
            self.reapply_actions(Reapply::Members);
        }
        self.engine.set_weights(group, weights);
        Ok(())
    }

    /// Returns the number by which clients of the load manager know a group.
    pub(crate) fn group_number(&self, group: &Arc<str>) -> u64 {
        lock(&self.overlay).number(group)
    }

    /// Applies a change of a client of the load manager, and puts it in force.
    ///
    /// # Errors
    /// Fails if it cannot be done; nothing is changed then.
    pub(crate) fn change_overlay<T>(
        &self,
        change: impl FnOnce(
            &mut ConfigOverlay,
            &FileConfig,
            &EffectiveConfig,
            MachineDefaults,
        ) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let _one = lock(&self.reloading);
        let mut made = lock(&self.overlay).clone();
        let base = lock(&self.file_config).clone();
        let done = change(&mut made, &base, &self.effective_config(), self.machine)?;
        self.apply_config(base.with_overlay(&made), Vec::new()).map_err(GroupError::Impossible)?;
        *lock(&self.overlay) = made;
        Ok(done)
    }

    /// Takes loads of the members at a location, in every group.
    pub(crate) fn record_location_loads(&self, location: &str, values: &[(String, f64)]) {
        for (group, member, at) in self.effective_config().member_locations() {
            if at.text() == location {
                let (group, member) = (Some(group.to_string()), member.name.to_string());
                let report =
                    cluster::MetricReport { group, member, values: values.to_vec(), age_seconds: None };
                if let Err(why) = self.cluster.report(&report) {
                    tracing::debug!("loads at {location} were not taken: {why}");
                }
            }
        }
    }
}

/// Returns the changes in the watched settings, one line each; those of members are reported elsewhere.
fn watched_changes(
    before: &[Arc<cluster::GroupSettings>],
    after: &[Arc<cluster::GroupSettings>],
) -> Vec<String> {
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
fn source_changes(before: &[config::GroupDiscovery], after: &[config::GroupDiscovery]) -> Vec<String> {
    let of = |all: &[config::GroupDiscovery], name: &Arc<str>| {
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
pub(crate) fn log_warnings(file: &ConfigFile) {
    for line in file.warnings.lines().into_iter().chain(limits::check_backlog(&file.config)) {
        tracing::warn!("{line}");
    }
}

/// Notifies systemd, if it asked for that.
pub fn notify_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
