//! The publication of a group by the slow path: the analyzer's plan, and its context.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_brain::{Analyzer, MemberId, Plan, Time};

use crate::GroupSettings;
use crate::group::{Published, Record};

/// Returns the analyzer's next plan with the records of its members.
pub(crate) fn publication(
    analyzer: &mut Analyzer,
    records: &mut BTreeMap<MemberId, Arc<Record>>,
    settings: &Arc<GroupSettings>,
    cores: usize,
    now: Time,
) -> Option<Published> {
    let plan = analyzer.plan(now)?;
    let chosen: BTreeSet<MemberId> = plan.members().iter().map(|member| member.id).collect();
    let (mut here, mut others) = (BTreeMap::new(), Vec::new());
    for (id, spec, vitals) in analyzer.members() {
        let record = records.remove(&id);
        let record = record.unwrap_or_else(|| Record::new(id, Arc::clone(vitals), cores));
        if !chosen.contains(&id) {
            others.push((Arc::clone(&spec.name), Arc::clone(&record)));
        }
        here.insert(id, record);
    }
    *records = here;
    let of_plan = plan.members().iter().filter_map(|member| records.get(&member.id).cloned()).collect();
    let kept = kept(analyzer, records, settings, &plan);
    let draining = analyzer.draining().collect();
    Some(Published { plan, records: of_plan, others, draining, kept, settings: Arc::clone(settings) })
}

/// Returns the members in no plan that keep their sessions: drained ones if the group is configured so, and
/// those outside of the aperture.
pub(crate) fn kept(
    analyzer: &Analyzer,
    records: &BTreeMap<MemberId, Arc<Record>>,
    settings: &Arc<GroupSettings>,
    plan: &Plan,
) -> Option<Arc<Published>> {
    let members = Some(analyzer.kept(settings.keeps_drained)).filter(|kept| !kept.is_empty())?;
    let records = members.iter().filter_map(|member| records.get(&member.id).cloned()).collect();
    let rules = (plan.strategy(), plan.knobs().clone());
    let (plan, settings) =
        (Plan::new(rules.0, rules.1, members).admitting(plan.admission()), Arc::clone(settings));
    Some(Arc::new(Published {
        plan,
        records,
        others: Vec::new(),
        draining: Vec::new(),
        kept: None,
        settings,
    }))
}
