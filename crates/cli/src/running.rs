//! A balancer that runs: the data plane, the file its configuration comes from, and what the admin plane sees
//! of both.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use plimsoll_acme::Keeper;
use plimsoll_admin::{
    Changed, Collector, Entry, Lease, Lessee, NoLease, Reference, Refused, Report, Rules, Subject, Switch,
    Wish,
};
use plimsoll_brain::status::{GroupExplanation, Status};
use plimsoll_brain::{MemberSpec, Shed};
use plimsoll_cluster::corba::Refusal;
use plimsoll_cluster::{self as cluster, Cluster};
use plimsoll_proxy::{Engine, Stamped};
use plimsoll_wire::giop::Corbaloc;
use sd_notify::NotifyState;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};

use crate::config::{self, AdminConfig, Config, File, Machine, look_up};
use crate::limits;
use crate::made::{Base, Force, Made};
use balancing::Balancing;
use certificates::Window;
use discovered::Discovered;
use joint::Joint;

mod balancing;
pub(crate) mod certificates;
pub(crate) mod discovered;
mod joint;
mod lend;

/// The data plane and where its configuration comes from.
pub(crate) struct Running {
    engine: Engine,
    cluster: Cluster,
    /// Of certificates that authorities give.
    keeper: Keeper,
    /// What the file says.
    base: Mutex<Base>,
    /// What clients of the load manager changed.
    made: Mutex<Made>,
    /// What both come to.
    force: Mutex<Arc<Force>>,
    file: PathBuf,
    /// What the data plane was started with and a reload cannot change.
    machine: Machine,
    admin: AdminConfig,
    /// Who may do what, which a reload can change.
    rules: Arc<Rules>,
    /// One reload at a time, so that what was read last is in force last.
    reloading: Mutex<()>,
    /// Groups whose balancing is switched off, and what they are balanced by otherwise.
    off: Mutex<BTreeMap<String, Balancing>>,
    /// What the sources of members said.
    discovered: Discovered,
    /// Where spans go.
    collector: watch::Sender<Option<Collector>>,
    /// Another file is in force.
    reloaded: Notify,
    stop: Notify,
}

impl Running {
    /// `file` is read again by each reload.
    ///
    /// # Errors
    /// The system gives no thread for the monitors, or for the certificates.
    pub(crate) fn new(
        engine: Engine,
        (base, discovered): (Base, Discovered),
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
        let off = Mutex::default();
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
            collector,
            reloaded,
            off,
            stop,
        }))
    }

    /// The data plane.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Takes what members say with their answers to those who make loads of it, for ever.
    pub(crate) async fn listen(&self) {
        let Some(mut said) = self.engine.said() else { return };
        while let Some(one) = said.recv().await {
            self.cluster.observe(&one.group, &one.member, &one.values, cluster::Source::Orca);
        }
    }

    /// Where spans go, and when that changes.
    pub(crate) fn collector(&self) -> watch::Receiver<Option<Collector>> {
        self.collector.subscribe()
    }

    /// Returns once the end was asked for.
    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// Writes the object references of the groups to the files that the configuration names for them.
    pub(crate) fn write_references(&self, config: &Config) {
        for group in &config.groups {
            let Some(path) = group.iiop.as_ref().and_then(|iiop| iiop.ior_file.as_ref()) else { continue };
            let Some(ior) = self.engine.reference(&group.name.0) else { continue };
            // Whoever reads it meanwhile reads the one before.
            let beside = path.0.with_added_extension("new");
            let written = std::fs::write(&beside, format!("{ior}\n"));
            if let Err(error) = written.and_then(|()| std::fs::rename(&beside, &path.0)) {
                tracing::warn!("cannot write the reference of group {} to {path}: {error}", group.name);
            }
        }
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
        if file.admin() != self.admin {
            let note = "[admin] differs: it takes effect when the process is started again (its access rules do now)";
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
        events.into_iter().for_each(|event| self.engine.tell(event));
        self.rules.replace(rules);
        // The file says by what there is balancing.
        lock(&self.off).clear();
        self.reloaded.notify_one();
        self.write_references(&file.config);
        Ok(changes)
    }

    /// Puts settings in force; what that changes. One at a time.
    fn enforce(&self, force: Force, beside: Vec<String>) -> Result<Vec<String>, String> {
        let changes =
            self.engine.reload(force.settings.clone(), beside).map_err(|error| error.to_string())?;
        self.cluster.update(force.watched.clone());
        *lock(&self.force) = Arc::new(force);
        Ok(changes)
    }

    /// What is in force.
    pub(crate) fn force(&self) -> Arc<Force> {
        Arc::clone(&lock(&self.force))
    }

    /// The groups whose members a lottery draws.
    pub(crate) fn lotteries(&self) -> Vec<config::Lottery> {
        lock(&self.base).lotteries.clone()
    }

    /// Returns once another file is in force.
    pub(crate) async fn reloaded(&self) {
        self.reloaded.notified().await;
    }

    /// Puts those in force whom a lottery draws for a group.
    ///
    /// # Errors
    /// They cannot be; nothing is changed then.
    pub(crate) fn drawn(
        &self,
        group: &Arc<str>,
        members: &[MemberSpec],
        weights: &[(Arc<str>, Option<f64>)],
    ) -> Result<(), String> {
        {
            let _one = lock(&self.reloading);
            let mut made = lock(&self.made).clone();
            if made.draw(group, members) {
                let force = lock(&self.base).with(&made);
                self.enforce(force, Vec::new())?;
                *lock(&self.made) = made;
            }
        }
        self.engine.weights(group, weights);
        Ok(())
    }

    /// The number by which a group is known to clients of the load manager.
    pub(crate) fn number(&self, group: &Arc<str>) -> u64 {
        lock(&self.made).number(group)
    }

    /// Has a client of the load manager change something, and puts that in force.
    ///
    /// # Errors
    /// It cannot be done; nothing is changed then.
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

impl Subject for Running {
    fn status(&self) -> Status {
        let mut status = self.engine.status();
        let off = lock(&self.off);
        status.groups.iter_mut().for_each(|group| group.balancing_disabled = off.contains_key(&group.name));
        let settings = &self.force().settings;
        status.certificates = certificates::statuses(settings, &self.keeper.states(), SystemTime::now());
        self.discovered.show(&mut status.groups);
        status
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

    fn switch(&self, what: &Switch, on: bool) -> Result<Vec<String>, String> {
        let word = if on { "enabled" } else { "disabled" };
        match what {
            Switch::Member { group, name } => {
                let (engine, group) = (&self.engine, group.as_deref());
                if on { engine.enable(group, name) } else { engine.disable(group, name) }?;
                Ok(vec![format!("~ member {name}: {word}")])
            }
            Switch::Listener(address) => {
                let (engine, address) = (&self.engine, address.trim());
                let news = if on { engine.open_listener(address) } else { engine.close_listener(address) }?;
                Ok(news.then(|| format!("~ listener {address}: {word}")).into_iter().collect())
            }
            Switch::Balancing(group) => self.balance(group, on),
        }
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

    fn reference(&self, group: &str) -> Option<Reference> {
        let ior = self.engine.reference(group)?;
        let corbaloc = Corbaloc::of(&ior).map(|corbaloc| corbaloc.to_string()).unwrap_or_default();
        let type_id = String::from_utf8_lossy(&ior.type_id).into_owned();
        Some(Reference { group: group.into(), type_id, ior: ior.to_string(), corbaloc })
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
        let before = self.choose(group, &Balancing { strategy, knobs, weight }, value.trim())?;
        lock(&self.off).remove(group);
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

    fn bind(&self, group: &str, wish: &Wish) -> Result<Lease, NoLease> {
        self.engine.bind(group, &lend::wish(wish)).map(lend::lease).map_err(lend::refused)
    }

    fn renew(&self, group: &str, lease: &str, wish: &Wish) -> Result<Lease, NoLease> {
        self.engine.renew(group, lease, &lend::wish(wish)).map(lend::lease).map_err(lend::refused)
    }

    fn release(&self, group: &str, lease: &str) -> Result<(), NoLease> {
        self.engine.release(group, lease).map_err(lend::refused)
    }

    fn leases(&self, group: &str) -> Option<Vec<Lessee>> {
        Some(self.engine.leases(group).ok()?.into_iter().map(lend::lessee).collect())
    }

    fn end_leases(&self, group: &str, member: Option<&str>, from: Option<IpAddr>) -> Result<usize, String> {
        self.engine.end_leases(group, member, from).map_err(lend::line)
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
