//! The state that this process hands to the one that takes over from it, and the inheritance of such a
//! process.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_admin::{CompletedUpgrade, UpgradeRequest};
use plimsoll_cluster as cluster;
use plimsoll_cluster::fleet::FleetHandoff;

use super::discovery_state::SourceAnswers;
use super::{BalancerRuntime, lock};
use crate::upgrade::{
    FinalHandoff, HandoffParticipant, HandoffSource, READY_TIMEOUT, ReportedValue, SharedStoreView,
    StoreContent, UpgradeResult,
};

/// The time for a process to send its last counts.
const FINAL_COUNTS_TIMEOUT: Duration = Duration::from_secs(2);

/// The age that is added to reports that are repeated.
const REPEATED_REPORT_AGE: Duration = Duration::from_millis(20);

impl BalancerRuntime {
    /// Makes it possible for another process to take over.
    pub(crate) fn enable_upgrade(&self, handoff_source: HandoffSource) {
        // The handoff source is set only here.
        let _ = self.handoff_source.set(handoff_source);
    }

    /// Returns the upgrade to another process.
    pub(crate) fn handoff_source(&self) -> Option<&HandoffSource> {
        self.handoff_source.get()
    }

    /// Starts another process that takes over.
    ///
    /// # Errors
    /// Fails with the reason; this one goes on then.
    pub(crate) fn hand_over(&self, request: &UpgradeRequest) -> Result<CompletedUpgrade, String> {
        let handoff_source = self.handoff_source().ok_or("it has not begun to serve yet")?;
        let binary = request.binary.as_deref().map(Path::new);
        if let Some(relative_path) = binary.filter(|binary| !binary.is_absolute()) {
            return Err(format!("{} is not an absolute path", relative_path.display()));
        }
        let timeout = request.timeout_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let result =
            handoff_source.hand_over(&self.engine, self, binary, timeout.unwrap_or(READY_TIMEOUT))?;
        let UpgradeResult { pid, version, connections } = result;
        Ok(CompletedUpgrade { pid, version, connections })
    }

    /// Notes that a process before this one ends its connections from now on, or has ended.
    pub(crate) fn set_predecessor(&self, is_alive: bool) {
        self.predecessor.send_replace(is_alive.then(Instant::now));
    }

    /// Returns once the process before this one has sent the counts of its usual work: it has ended, or only
    /// such connections are left there as may last for ever.
    pub(crate) async fn predecessor_reported(&self) {
        let Some(started_at) = *self.predecessor.borrow() else { return };
        let drain_time = {
            let settings = &self.effective_config().settings;
            settings.drain_deadline.min(settings.upgrade_deadline) / 2
        };
        let mut alive_receiver = self.predecessor.subscribe();
        let report_deadline = tokio::time::Instant::from_std(started_at) + drain_time + FINAL_COUNTS_TIMEOUT;
        let _ = tokio::time::timeout_at(report_deadline, alive_receiver.wait_for(Option::is_none)).await;
    }

    /// Checks that changes are possible here: not while another process takes over, or once it has, as they
    /// would be lost.
    pub(super) fn check_in_charge(&self) -> Result<(), String> {
        match self.handoff_source.get() {
            Some(handoff_source) => handoff_source.check_in_charge(),
            None => Ok(()),
        }
    }

    /// Takes over the state of a process before this one. Parts that cannot be applied are reported, and left
    /// out.
    pub(crate) fn inherit(&self, handoff: FinalHandoff) {
        // The members come before any report of them.
        handoff.crews.into_iter().for_each(|group_instances| self.inherit_instances(group_instances));
        self.engine.resume(handoff.engine);
        // Values of one age came together, as a rule, and are reported together: the number of reports of a
        // member in a second is limited.
        let mut reports = BTreeMap::<(String, String, u64), cluster::MetricReport>::new();
        for ReportedValue { group, member, name, value, age_seconds } in handoff.facts {
            let report = reports
                .entry((group.clone(), member.clone(), age_seconds.to_bits()))
                .or_insert_with(|| cluster::MetricReport {
                    group: Some(group),
                    member,
                    values: Vec::new(),
                    age_seconds: Some(age_seconds),
                });
            report.values.push((name, value));
        }
        // The oldest come first.
        let mut reports: Vec<_> = reports.into_values().collect();
        reports.sort_by(|left, right| {
            right.age_seconds.unwrap_or(0.0).total_cmp(&left.age_seconds.unwrap_or(0.0))
        });
        for mut report in reports {
            // The data plane knows the results of these reports already. With a newer time each would be a
            // report of its own, and members would seem to report so often that they are silent by now.
            let time_passed =
                handoff.facts_at.map_or(Duration::ZERO, |facts_at| self.engine.now().since(facts_at))
                    + REPEATED_REPORT_AGE;
            report.age_seconds = report.age_seconds.map(|age| age + time_passed.as_secs_f64());
            if let Err(error) = self.cluster.report(&report) {
                tracing::debug!("what was told of {} is lost: {error:?}", report.member);
            }
        }
    }
}

impl HandoffParticipant for BalancerRuntime {
    fn halt_changes(&self) -> Result<(), String> {
        self.halt_scalers()
    }

    fn store_content(&self) -> StoreContent {
        // A change that has begun is finished, or is refused.
        let _actions_guard = lock(&self.operator_actions);
        StoreContent::of(&*self.store)
    }

    fn store_view(&self) -> SharedStoreView {
        SharedStoreView::of(&*self.store)
    }

    fn source_answers(&self) -> Vec<SourceAnswers> {
        self.discovery.last_answers()
    }

    fn final_handoff(&self) -> FinalHandoff {
        let instances = self.yield_instances();
        // The process that takes over writes from now on, and removes expired entries.
        self.store.close();
        let _reload_guard = lock(&self.reload_lock);
        let (mut facts, facts_at) = (Vec::new(), Some(self.engine.now()));
        let groups: Vec<_> =
            self.effective_config().settings.groups.iter().map(|group| group.spec.name.clone()).collect();
        for group in groups {
            for member in
                self.cluster.observations(&group).into_iter().flat_map(|observations| observations.members)
            {
                facts.extend(member.observations.into_iter().map(|fact| ReportedValue {
                    group: group.to_string(),
                    member: member.name.to_string(),
                    name: fact.name,
                    value: fact.value,
                    age_seconds: fact.age_seconds,
                }));
            }
        }
        FinalHandoff {
            engine: self.engine.handoff_state(),
            crews: instances,
            facts,
            facts_at,
            ..FinalHandoff::default()
        }
    }

    fn pause(&self) -> Option<FleetHandoff> {
        self.pause_fleet()
    }

    fn resume(&self) {
        self.store.reopen();
        self.resume_fleet();
        self.resume_scalers();
    }

    fn catch_up(&self) {
        // Others may have changed the document meanwhile.
        self.apply_shared_config();
    }

    fn leave(&self, fleet: bool) {
        if fleet {
            self.leave_fleet_silently();
        } else {
            self.leave_fleet();
        }
    }
}
