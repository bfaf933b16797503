//! The publication of a group by the slow path: the analyzer's plan, and its context.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_brain::{Analyzer, MemberId, Plan, Time};

use crate::GroupSettings;
use crate::upstream::group::{MemberRecord, PublishedPlan};

/// Returns the analyzer's next plan with the records of its members.
pub(crate) fn publication(
    analyzer: &mut Analyzer,
    records: &mut BTreeMap<MemberId, Arc<MemberRecord>>,
    settings: &Arc<GroupSettings>,
    cores: usize,
    now: Time,
) -> Option<PublishedPlan> {
    let plan = analyzer.plan(now)?;
    let plan_ids: BTreeSet<MemberId> = plan.members().iter().map(|member| member.id).collect();
    let (mut member_records, mut others) = (BTreeMap::new(), Vec::new());
    for (id, spec, vitals) in analyzer.members() {
        let record = records.remove(&id);
        let record = record.unwrap_or_else(|| MemberRecord::new(id, Arc::clone(vitals), cores));
        if !plan_ids.contains(&id) {
            others.push((Arc::clone(&spec.name), Arc::clone(&record)));
        }
        member_records.insert(id, record);
    }
    *records = member_records;
    let plan_records = plan.members().iter().filter_map(|member| records.get(&member.id).cloned()).collect();
    let reserve_plan = draining_plan(analyzer, records, settings, &plan);
    let draining = analyzer.draining_members().collect();
    Some(PublishedPlan {
        plan,
        records: plan_records,
        others,
        draining,
        draining_plan: reserve_plan,
        settings: Arc::clone(settings),
    })
}

/// Returns the members in no plan that keep their sessions: drained ones if the group is configured so, and
/// those outside of the aperture.
pub(crate) fn draining_plan(
    analyzer: &Analyzer,
    records: &BTreeMap<MemberId, Arc<MemberRecord>>,
    settings: &Arc<GroupSettings>,
    plan: &Plan,
) -> Option<Arc<PublishedPlan>> {
    let members =
        Some(analyzer.reserve_members(settings.keeps_drained)).filter(|reserve| !reserve.is_empty())?;
    let records = members.iter().filter_map(|member| records.get(&member.id).cloned()).collect();
    let strategy_and_params = (plan.strategy(), plan.params().clone());
    let (plan, settings) = (
        Plan::new(strategy_and_params.0, strategy_and_params.1, members).with_admission(plan.has_admission()),
        Arc::clone(settings),
    );
    Some(Arc::new(PublishedPlan {
        plan,
        records,
        others: Vec::new(),
        draining: Vec::new(),
        draining_plan: None,
        settings,
    }))
}
