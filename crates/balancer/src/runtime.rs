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
    reload_lock: Mutex<()>,
    /// The groups with balancing switched off, and their balancing otherwise.
    disabled_balancing: Mutex<BTreeMap<String, GroupBalancing>>,
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
        (file_config, discovery, names): (FileConfig, DiscoveryState, ResolvedNames),
        (store, document): (Arc<dyn Store>, Option<SharedConfig>),
        file: &Path,
        machine: MachineDefaults,
        admin: AdminConfig,
        rules: Arc<ActiveRules>,
    ) -> io::Result<Arc<Self>> {
        let mut overlay = ConfigOverlay::default();
        overlay.assign_numbers(&file_config);
        overlay.set_discovered(discovery.propose(None).members);
        let effective_config = file_config.with_overlay(&overlay);
        let cluster = LoadObserver::start(
            effective_config.cluster_groups.clone(),
            Arc::new(MonitorAdapter(engine.clone())),
        )?;
        let certificate_keeper = CertificateKeeper::start(
            file_config.certificates.clone(),
            Arc::new(CertificateAdapter(engine.clone())),
        )?;
        let (file, reload_lock) = (file.to_owned(), Mutex::default());
        let collector = watch::Sender::new(file_config.collector.clone());
        let (reload_notify, stop) = (Notify::new(), Notify::new());
        let (file_config, overlay, effective_config) =
            (Mutex::new(file_config), Mutex::new(overlay), Mutex::new(Arc::new(effective_config)));
        let (disabled_balancing, shared_config, operator_actions) =
            (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self {
            engine,
            cluster,
            certificate_keeper,
            file_config,
            overlay,
            effective_config,
            config_path: file,
            machine,
            admin,
            rules,
            reload_lock,
            discovery,
            resolved_names: names,
            fleet: Mutex::default(),
            store,
            shared_config: Mutex::new(document),
            operator_actions: shared_config,
            file_balancing: operator_actions,
            scalers: ScalerRegistry::default(),
            collector,
            reloaded: reload_notify,
            disabled_balancing,
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
        let Some(mut samples) = self.engine.report_samples() else { return };
        while let Some(sample) = samples.recv().await {
            self.cluster.observe(&sample.group, &sample.member, &sample.values, cluster::MetricSource::Orca);
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
            let temporary_path = path.0.with_added_extension("new");
            let result = std::fs::write(&temporary_path, format!("{ior}\n"));
            if let Err(error) = result.and_then(|()| std::fs::rename(&temporary_path, &path.0)) {
                let _ = std::fs::remove_file(&temporary_path);
                tracing::warn!("cannot write the reference of group {} to {path}: {error}", group.name);
            }
        }
    }

    fn apply(&self) -> Result<Vec<String>, String> {
        let reject = |reason: String| {
            self.engine.record_rejected_reload(&reason);
            reason
        };
        let file = self.read_file().map_err(|error| reject(error.headline()))?;
        log_warnings(&file);
        let files = limits::raise();
        limits::check_files(&file.config, files, limits::THIS_PROCESS).map_err(reject)?;
        // The files may be divided among other listeners now.
        let MachineDefaults { threads, max_memory, .. } = self.machine;
        let machine = MachineDefaults { threads, max_memory, ..MachineDefaults::detect(&file.config, files) };
        let (settings, lookup_events) = name_resolution::settings(&self.resolved_names, &file, machine)
            .map_err(|problems| reject(problems.headline()))?;
        let rules = file.rules().map_err(reject)?;
        let lotteries = file.lotteries(look_up).map_err(|problems| reject(problems.headline()))?;
        let certificates = file.authorities().map_err(|problems| reject(problems.headline()))?;
        certificates::preload(&certificates);
        let file_config = FileConfig::new(&file, settings, lotteries, certificates);
        lock(&self.overlay).assign_numbers(&file_config);
        let proposal = self.discovery.propose(Some(&file_config));
        let mut overlay = lock(&self.overlay).clone();
        overlay.set_discovered(proposal.members.clone());
        let effective_config = file_config.with_overlay(&overlay);
        let mut extra_changes =
            watched_changes(&self.effective_config().cluster_groups, &effective_config.cluster_groups);
        extra_changes.extend(source_changes(&lock(&self.file_config).discoveries, &file_config.discoveries));
        if file.admin() != self.admin {
            let warning = "[admin] differs: it takes effect with `plimsoll upgrade` or a restart (its access \
                rules do now)";
            tracing::warn!("{warning}");
            extra_changes.push(format!("! {warning}"));
        }
        if file.config.fleet != lock(&self.file_config).fleet {
            let warning = "[fleet] differs: it takes effect with `plimsoll upgrade` or a restart";
            tracing::warn!("{warning}");
            extra_changes.push(format!("! {warning}"));
        }
        let changes = self.apply_config(effective_config, extra_changes)?;
        if let Err(error) = self.certificate_keeper.update(file_config.certificates.clone()) {
            tracing::warn!("no thread for the certificates: {error}");
        }
        *lock(&self.overlay) = overlay;
        self.collector.send_if_modified(|collector| {
            let collector_changed = *collector != file_config.collector;
            collector.clone_from(&file_config.collector);
            collector_changed
        });
        *lock(&self.file_config) = file_config;
        let events = self.discovery.accept(proposal, Some(&lock(&self.file_config)));
        lookup_events.into_iter().chain(events).for_each(|event| self.engine.write_event(event));
        self.rules.replace(rules);
        // The file's balancing applies again.
        lock(&self.disabled_balancing).clear();
        self.scalers.reloaded();
        self.reloaded.notify_one();
        self.write_references(&file.config);
        Ok(changes)
    }

    /// Puts settings in force; returns the changes. It runs one at a time.
    fn apply_config(
        &self,
        effective_config: EffectiveConfig,
        extra_changes: Vec<String>,
    ) -> Result<Vec<String>, String> {
        self.hold_sockets_of(&effective_config.settings.listeners);
        let reload_result = self.engine.reload(effective_config.settings.clone(), extra_changes);
        // The sockets are the present ones, whether the reload succeeded or not.
        self.hold_sockets();
        let changes = reload_result.map_err(|error| error.to_string())?;
        self.cluster.update(effective_config.cluster_groups.clone());
        *lock(&self.effective_config) = Arc::new(effective_config);
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
        let mut changes_made = false;
        {
            let _reload_guard = lock(&self.reload_lock);
            let mut overlay = lock(&self.overlay).clone();
            if overlay.set_lottery_members(group, members) {
                let effective_config = lock(&self.file_config).with_overlay(&overlay);
                self.apply_config(effective_config, Vec::new())?;
                *lock(&self.overlay) = overlay;
                changes_made = true;
            }
        }
        if changes_made {
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
        let _reload_guard = lock(&self.reload_lock);
        let mut overlay = lock(&self.overlay).clone();
        let file_config = lock(&self.file_config).clone();
        let result = change(&mut overlay, &file_config, &self.effective_config(), self.machine)?;
        self.apply_config(file_config.with_overlay(&overlay), Vec::new()).map_err(GroupError::Impossible)?;
        *lock(&self.overlay) = overlay;
        Ok(result)
    }

    /// Takes loads of the members at a location, in every group.
    pub(crate) fn record_location_loads(&self, location: &str, values: &[(String, f64)]) {
        for (group, member, address) in self.effective_config().member_locations() {
            if address.text() == location {
                let (group, member) = (Some(group.to_string()), member.name.to_string());
                let report =
                    cluster::MetricReport { group, member, values: values.to_vec(), age_seconds: None };
                if let Err(error) = self.cluster.report(&report) {
                    tracing::debug!("loads at {location} were not taken: {error}");
                }
            }
        }
    }
}

/// Returns the changes in the watched settings, one line each; those of members are reported elsewhere.
fn watched_changes(
    previous: &[Arc<cluster::GroupSettings>],
    current: &[Arc<cluster::GroupSettings>],
) -> Vec<String> {
    let mut changes = Vec::new();
    let previous_groups: BTreeMap<&Arc<str>, &Arc<cluster::GroupSettings>> =
        previous.iter().map(|group| (&group.name, group)).collect();
    for group in current {
        let name = &group.name;
        let Some(previous_group) = previous_groups.get(name) else { continue };
        if previous_group.monitor != group.monitor {
            changes.push(format!("~ group {name}: monitor"));
        }
        if let (Some(previous_weight), Some(current_weight)) = (&previous_group.weight, &group.weight)
            && previous_weight != current_weight
        {
            changes.push(format!(
                "~ group {name}: weight {} -> {}",
                previous_weight.text(),
                current_weight.text()
            ));
        }
    }
    changes
}

/// Returns the groups with other sources of members, one line each.
fn source_changes(previous: &[config::GroupDiscovery], current: &[config::GroupDiscovery]) -> Vec<String> {
    let sources_of = |discoveries: &[config::GroupDiscovery], name: &Arc<str>| {
        let discovery = discoveries.iter().find(|discovery| discovery.group == *name);
        discovery.map_or_else(Vec::new, |discovery| discovery.sources.clone())
    };
    let mut names: Vec<&Arc<str>> =
        previous.iter().chain(current).map(|discovery| &discovery.group).collect();
    names.sort_unstable();
    names.dedup();
    let changed_names =
        names.into_iter().filter(|name| sources_of(previous, name) != sources_of(current, name));
    changed_names.map(|name| format!("~ group {name}: discover")).collect()
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
