//! The admin plane's view of a running balancer, and the acts on it.

use std::net::IpAddr;
use std::time::SystemTime;

use plimsoll_admin::{
    Changed, Entry, Lease, Lessee, NoLease, Reference, Refused, Registered, Registration, Report, Subject,
    Supposed, Supposition, Switch, Unregistered, UpgradeWish, Upgraded, Wish,
};
use plimsoll_brain::Shed;
use plimsoll_brain::status::{GroupExplanation, GroupStatus, Recent, Status};
use plimsoll_cluster as cluster;
use plimsoll_proxy::Stamped;
use plimsoll_wire::giop::Corbaloc;
use tokio::sync::broadcast::error::RecvError;

use super::kept::Deed;
use super::{Running, certificates, lend, lock, suppose};

impl Subject for Running {
    fn status(&self) -> Status {
        let mut status = self.engine.status();
        let off = lock(&self.off);
        status.groups.iter_mut().for_each(|group| group.balancing_disabled = off.contains_key(&group.name));
        let settings = &self.force().settings;
        status.certificates = certificates::statuses(settings, &self.keeper.states(), SystemTime::now());
        self.discovered.show(&mut status.groups);
        status.fleet = self.fleet_status();
        status.store = self.store_status();
        self.scaled.show(&mut status.groups);
        status
    }

    fn stopping(&self) -> bool {
        self.engine.stopping()
    }

    fn group(&self, name: &str) -> Option<GroupStatus> {
        let mut group = [self.engine.look(name)?.status];
        group[0].balancing_disabled = lock(&self.off).contains_key(name);
        self.discovered.show(&mut group);
        self.scaled.show(&mut group);
        let [group] = group;
        Some(group)
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
            // To have missed some is a change as well.
            if let Err(RecvError::Closed) = news.recv().await {
                std::future::pending().await
            }
        })
    }

    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.mark(group, member, Deed::Drained, true)
    }

    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.mark(group, member, Deed::Drained, false)
    }

    fn switch(&self, what: &Switch, on: bool) -> Result<Vec<String>, String> {
        let word = if on { "enabled" } else { "disabled" };
        match what {
            Switch::Member { group, name } => {
                self.mark(group.as_deref(), name, Deed::Disabled, !on)?;
                Ok(vec![format!("~ member {name}: {word}")])
            }
            Switch::Listener(address) => {
                let address = address.trim();
                let news = self.close(address, on)?;
                Ok(news.then(|| format!("~ listener {address}: {word}")).into_iter().collect())
            }
            Switch::Balancing(group) => self.switch_balancing(group, on),
        }
    }

    /// Reloads the file; it may take as long as looking names up does.
    fn reload(&self) -> Result<Vec<String>, String> {
        self.read_again(true)
    }

    fn upgrade(&self, wish: &UpgradeWish) -> Result<Upgraded, String> {
        self.hand_over(wish)
    }

    fn stop(&self) {
        self.stop.notify_one();
    }

    fn explain(&self, group: &str) -> Option<GroupExplanation> {
        let mut explanation = self.engine.explain(group)?;
        explanation.balancing_disabled = lock(&self.off).contains_key(group);
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

    fn recent(&self, group: &str) -> Option<Recent> {
        self.engine.recent(group)
    }

    fn suppose(&self, ask: &Supposed) -> Result<Supposition, String> {
        let status = self.engine.status();
        let group = status.groups.iter().find(|group| group.name == ask.group);
        let group = group.ok_or_else(|| format!("there is no group {}", ask.group))?;
        let monitor = self.cluster.known(&ask.group).and_then(|known| known.monitor);
        let interval = monitor.map_or(0.0, |monitor| monitor.interval_seconds);
        suppose::Known::of(group, status.threads, interval).suppose(ask)
    }

    fn reference(&self, group: &str) -> Option<Reference> {
        let ior = self.engine.reference(group)?;
        let corbaloc = Corbaloc::of(&ior).map(|corbaloc| corbaloc.to_string()).unwrap_or_default();
        let type_id = String::from_utf8_lossy(&ior.type_id).into_owned();
        Some(Reference { group: group.into(), type_id, ior: ior.to_string(), corbaloc })
    }

    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        if let Some(key) = key.strip_prefix("scaler.") {
            return self.set_scaler(group, key, value);
        }
        if key != "strategy" {
            return Err(format!(
                "{key} cannot be changed while it runs: strategy, scaler.min, scaler.max and scaler.pause can; change the file and reload"
            ));
        }
        self.set_strategy(group, value)
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
        self.in_charge().map_err(NoLease::Nobody)?;
        self.engine.bind(group, &lend::wish(wish)).map(lend::lease).map_err(lend::refused)
    }

    fn renew(&self, group: &str, lease: &str, wish: &Wish) -> Result<Lease, NoLease> {
        self.in_charge().map_err(NoLease::Nobody)?;
        self.engine.renew(group, lease, &lend::wish(wish)).map(lend::lease).map_err(lend::refused)
    }

    fn release(&self, group: &str, lease: &str) -> Result<(), NoLease> {
        self.engine.release(group, lease).map_err(lend::refused)
    }

    fn leases(&self, group: &str) -> Option<Vec<Lessee>> {
        Some(self.engine.leases(group).ok()?.into_iter().map(lend::lessee).collect())
    }

    fn end_leases(&self, group: &str, member: Option<&str>, from: Option<IpAddr>) -> Result<usize, String> {
        self.in_charge()?;
        self.engine.end_leases(group, member, from).map_err(lend::line)
    }

    fn renewed(
        &self,
        group: &str,
        member: &str,
        asked: &Registration,
    ) -> Option<Result<Registered, Unregistered>> {
        self.renew_member(group, member, asked)
    }

    fn register(&self, group: &str, member: &str, asked: &Registration) -> Result<Registered, Unregistered> {
        self.register_member(group, member, asked)
    }

    fn deregister(&self, group: &str, member: &str) -> Result<(), Unregistered> {
        self.deregister_member(group, member)
    }
}
