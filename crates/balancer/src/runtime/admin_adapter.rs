//! The admin plane's view of a running balancer, and the acts on it.

use std::net::IpAddr;
use std::time::SystemTime;

use plimsoll_admin::{
    BalancerBackend, ChangeFuture, CompletedUpgrade, EventEntry, Lease, LeaseError, LeaseHolder,
    LeaseRequest, LoadReport, ObjectReference, RegisteredMember, Registration, RegistrationError,
    ReportRejection, SwitchTarget, UpgradeRequest, WhatIfInput, WhatIfResult,
};
use plimsoll_brain::ShedDecision;
use plimsoll_brain::status::{GroupExplanation, GroupRecent, GroupStatus, StatusReport};
use plimsoll_cluster as cluster;
use plimsoll_proxy::SequencedEvent;
use plimsoll_wire::giop::Corbaloc;
use tokio::sync::broadcast::error::RecvError;

use super::operator_state::OperatorAction;
use super::{BalancerRuntime, certificates, lease_adapter, lock, what_if};

impl BalancerBackend for BalancerRuntime {
    fn status(&self) -> StatusReport {
        let mut status = self.engine.status();
        let disabled_balancing = lock(&self.disabled_balancing);
        status
            .groups
            .iter_mut()
            .for_each(|group| group.balancing_disabled = disabled_balancing.contains_key(&group.name));
        let settings = &self.effective_config().settings;
        status.certificates =
            certificates::statuses(settings, &self.certificate_keeper.states(), SystemTime::now());
        self.discovery.fill_status(&mut status.groups);
        status.fleet = self.fleet_status();
        status.store = self.store_status();
        self.scalers.fill_status(&mut status.groups);
        status
    }

    fn is_stopping(&self) -> bool {
        self.engine.is_stopping()
    }

    fn group(&self, name: &str) -> Option<GroupStatus> {
        let mut group = [self.engine.group_snapshot(name)?.status];
        group[0].balancing_disabled = lock(&self.disabled_balancing).contains_key(name);
        self.discovery.fill_status(&mut group);
        self.scalers.fill_status(&mut group);
        let [group] = group;
        Some(group)
    }

    fn buckets(&self, group: &str) -> Vec<(f64, u64)> {
        self.engine.latency_buckets(group)
    }

    fn events(&self, after_seq: u64) -> Vec<EventEntry> {
        let entry = |logged_event: &SequencedEvent| {
            EventEntry::new(logged_event.seq, logged_event.unix_ms, &logged_event.event)
        };
        self.engine.events().iter().filter(|logged_event| logged_event.seq > after_seq).map(entry).collect()
    }

    fn next_change(&self) -> ChangeFuture {
        let mut changes = self.engine.subscribe();
        Box::pin(async move {
            // To have missed some is a change as well.
            if let Err(RecvError::Closed) = changes.recv().await {
                std::future::pending().await
            }
        })
    }

    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.set_member_state(group, member, OperatorAction::Drained, true)
    }

    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.set_member_state(group, member, OperatorAction::Drained, false)
    }

    fn set_enabled(&self, target: &SwitchTarget, enabled: bool) -> Result<Vec<String>, String> {
        let state = if enabled { "enabled" } else { "disabled" };
        match target {
            SwitchTarget::Member { group, name } => {
                self.set_member_state(group.as_deref(), name, OperatorAction::Disabled, !enabled)?;
                Ok(vec![format!("~ member {name}: {state}")])
            }
            SwitchTarget::Listener(address) => {
                let address = address.trim();
                let changed = self.set_listener_closed(address, enabled)?;
                Ok(changed.then(|| format!("~ listener {address}: {state}")).into_iter().collect())
            }
            SwitchTarget::Balancing(group) => self.switch_balancing(group, enabled),
        }
    }

    /// Reloads the file; it may take as long as looking names up does.
    fn reload(&self) -> Result<Vec<String>, String> {
        self.reload_file(true)
    }

    fn upgrade(&self, request: &UpgradeRequest) -> Result<CompletedUpgrade, String> {
        self.hand_over(request)
    }

    fn stop(&self) -> Result<(), String> {
        if let Some(pid) = self.handoff_source().and_then(|handoff_source| handoff_source.successor_pid()) {
            return Err(format!("process {pid} has taken over: try again"));
        }
        self.stop.notify_one();
        Ok(())
    }

    fn explain(&self, group: &str) -> Option<GroupExplanation> {
        let mut explanation = self.engine.explain(group)?;
        explanation.balancing_disabled = lock(&self.disabled_balancing).contains_key(group);
        if let Some(observations) = self.cluster.observations(group) {
            (explanation.monitor, explanation.weight) = (observations.monitor, observations.weight);
            for member_observations in observations.members {
                let member =
                    explanation.members.iter_mut().find(|member| *member.name == *member_observations.name);
                if let Some(member) = member {
                    (member.facts, member.load) =
                        (member_observations.observations, member_observations.load);
                    (member.trouble, member.dropped) =
                        (member_observations.problem, member_observations.dropped);
                }
            }
        }
        Some(explanation)
    }

    fn recent(&self, group: &str) -> Option<GroupRecent> {
        self.engine.recent(group)
    }

    fn what_if(&self, query: &WhatIfInput) -> Result<WhatIfResult, String> {
        let status = self.engine.status();
        let group = status.groups.iter().find(|group| group.name == query.group);
        let group = group.ok_or_else(|| format!("there is no group {}", query.group))?;
        let monitor = self.cluster.observations(&query.group).and_then(|observations| observations.monitor);
        let interval = monitor.map_or(0.0, |monitor| monitor.interval_seconds);
        what_if::WhatIfModel::of(group, status.threads, interval).evaluate(query)
    }

    fn reference(&self, group: &str) -> Option<ObjectReference> {
        let ior = self.engine.reference(group)?;
        let corbaloc = Corbaloc::from_ior(&ior).map(|corbaloc| corbaloc.to_string()).unwrap_or_default();
        let type_id = String::from_utf8_lossy(&ior.type_id).into_owned();
        Some(ObjectReference { group: group.into(), type_id, ior: ior.to_string(), corbaloc })
    }

    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        if let Some(key) = key.strip_prefix("scaler.") {
            return self.set_scaler(group, key, value);
        }
        if key != "strategy" {
            return Err(format!(
                "{key} cannot be changed while it runs: strategy, scaler.min, scaler.max and scaler.pause \
                 can; change the file and reload"
            ));
        }
        self.set_strategy(group, value)
    }

    fn report(&self, report: LoadReport) -> Result<Option<ShedDecision>, ReportRejection> {
        let LoadReport { group, member, values, age_seconds } = report;
        let report = cluster::MetricReport { group, member, values, age_seconds };
        match self.cluster.report(&report) {
            Ok(()) => Ok(self.engine.requested_shed(report.group.as_deref(), &report.member)),
            Err(cluster::ReportRejection::Unknown(error)) => Err(ReportRejection::Unknown(error)),
            Err(cluster::ReportRejection::Invalid(error)) => Err(ReportRejection::Invalid(error)),
            Err(cluster::ReportRejection::RateLimited(error)) => Err(ReportRejection::RateLimited(error)),
        }
    }

    fn grant_lease(&self, group: &str, request: &LeaseRequest) -> Result<Lease, LeaseError> {
        self.check_in_charge().map_err(LeaseError::NoMember)?;
        self.engine
            .bind(group, &lease_adapter::lease_request(request))
            .map(lease_adapter::lease)
            .map_err(lease_adapter::refusal)
    }

    fn renew_lease(&self, group: &str, lease: &str, request: &LeaseRequest) -> Result<Lease, LeaseError> {
        self.check_in_charge().map_err(LeaseError::NoMember)?;
        self.engine
            .renew_lease(group, lease, &lease_adapter::lease_request(request))
            .map(lease_adapter::lease)
            .map_err(lease_adapter::refusal)
    }

    fn release_lease(&self, group: &str, lease: &str) -> Result<(), LeaseError> {
        self.engine.release_lease(group, lease).map_err(lease_adapter::refusal)
    }

    fn leases(&self, group: &str) -> Option<Vec<LeaseHolder>> {
        Some(self.engine.leases(group).ok()?.into_iter().map(lease_adapter::lease_holder).collect())
    }

    fn end_leases(
        &self,
        group: &str,
        member: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<usize, String> {
        self.check_in_charge()?;
        self.engine.end_leases(group, member, address).map_err(lease_adapter::refusal_line)
    }

    fn renew_registration(
        &self,
        group: &str,
        member: &str,
        registration: &Registration,
    ) -> Option<Result<RegisteredMember, RegistrationError>> {
        self.renew_member(group, member, registration)
    }

    fn register(
        &self,
        group: &str,
        member: &str,
        registration: &Registration,
    ) -> Result<RegisteredMember, RegistrationError> {
        self.register_member(group, member, registration)
    }

    fn deregister(&self, group: &str, member: &str) -> Result<(), RegistrationError> {
        self.deregister_member(group, member)
    }
}
