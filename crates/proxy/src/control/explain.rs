//! Explains a group's behaviour: for each member its state, the strategy's result for it, and recent events.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_brain::status::{
    AlertExplanation, GroupExplanation, LoggedEvent, MemberExplanation, MemberStatus, StrategyFigure,
};
use plimsoll_brain::{LoadAlert, Member, MemberId, Plan, Strategy, StrategyParams, Time};

use crate::control::SequencedEvent;
use crate::control::engine_shared::EngineShared;
use crate::control::status_report;
use crate::runtime::sync::lock;

/// The version of the shape of [`GroupExplanation`].
const SCHEMA: u32 = 1;
/// The maximum number of events of a member, and of the group as a whole.
const MAX_EVENTS: usize = 10;

/// Implements [`Engine::explain`](crate::Engine::explain).
pub(crate) fn explain(inner: &EngineShared, group: &str) -> Option<GroupExplanation> {
    let control = lock(&inner.control);
    let group_state = control.groups.get(group)?;
    let now = inner.clock.now();
    let settings = Arc::clone(&group_state.settings);
    let spec = &settings.spec;
    let mut events = recent_events(&control.event_log.history(), group);
    let published = group_state.group.published();
    let planned_members: BTreeMap<MemberId, &Member> =
        published.plan.members().iter().map(|member| (member.id, member)).collect();
    let members = group_state.analyzer.status(now).into_iter().zip(&settings.spec.members);
    let mut alerts: BTreeMap<MemberId, AlertExplanation> =
        group_state.analyzer.alerts().map(|alert| (alert.member, explain_alert(alert, now))).collect();
    let moved: BTreeMap<MemberId, u64> = group_state
        .analyzer
        .members()
        .filter_map(|(id, ..)| Some((id, status_report::moved_sessions(group_state.record(id)?))))
        .collect();
    let counted_loads: BTreeMap<MemberId, f64> = group_state.analyzer.current_loads(now).collect();
    let verdict = group_state.analyzer.verdict();
    // The rest takes long with many members.
    drop(control);
    let strategy_params = spec.strategy.params.iter().zip(&published.plan.params().0);
    Some(GroupExplanation {
        schema: SCHEMA,
        name: spec.name.to_string(),
        strategy: spec.strategy.name.to_owned(),
        balancing_disabled: false,
        knobs: strategy_params.map(|(param, value)| (param.name.to_owned(), *value)).collect(),
        weight: None,
        verdict,
        monitor: None,
        members: members
            .map(|((id, status), spec)| MemberExplanation {
                events: events.remove(&Some(status.name.clone())).unwrap_or_default(),
                moved: moved.get(&id).copied().unwrap_or_default(),
                alert: alerts.remove(&id),
                limit: Some(spec.limit).filter(|limit| *limit < u32::MAX),
                ..member(
                    status,
                    planned_members.get(&id).copied(),
                    counted_loads.get(&id).copied(),
                    &published.plan,
                    now,
                )
            })
            .collect(),
        events: events.remove(&None).unwrap_or_default(),
    })
}

/// Explains a member. `planned` is the member in the plan, if it is there; `counted` is its load as computed
/// from its reports.
fn member(
    status: MemberStatus,
    plan_member: Option<&Member>,
    counted_load: Option<f64>,
    plan: &Plan,
    now: Time,
) -> MemberExplanation {
    let load_figure = counted_load.map(|load| ("load_counted", load));
    let figures = plan_member.map_or_else(Vec::new, |member| plan.explain(member, now));
    let figures = load_figure.into_iter().chain(figures).filter(|(_, value)| value.is_finite());
    let refusal = plan_member.and_then(|member| plan.refusal_message(member, now));
    let reason = match (plan_member, &refusal) {
        (_, Some(refusal)) => format!("{refusal}; {}", status.why),
        (Some(_), _) if !status.state.is_eligible() => {
            format!("{}; used all the same, because no member can be (when_all_down)", status.why)
        }
        _ => status.why,
    };
    MemberExplanation {
        name: status.name,
        address: status.address,
        state: status.state,
        eligible: plan_member.is_some() && refusal.is_none(),
        why: reason,
        since_seconds: status.since_seconds,
        capacity: status.capacity,
        weight: plan_member.map_or(status.weight, |member| member.weight),
        in_flight: status.in_flight,
        moved: 0,
        alert: None,
        limit: None,
        load: None,
        trouble: None,
        facts: Vec::new(),
        dropped: 0,
        figures: figures.map(|(name, value)| StrategyFigure { name: name.to_owned(), value }).collect(),
        events: Vec::new(),
    }
}

fn explain_alert(alert: &LoadAlert, now: Time) -> AlertExplanation {
    let inputs = alert.inputs.iter().filter(|(_, value)| value.is_finite());
    AlertExplanation {
        share: f64::from(alert.shed.share),
        epoch: alert.shed.epoch,
        held: alert.held.is_some(),
        since_seconds: now.since(alert.since).as_secs_f64(),
        inputs: inputs.map(|(name, value)| ((*name).to_owned(), *value)).collect(),
    }
}

/// Returns the last events of each member of a group, and of the group as a whole, oldest first.
fn recent_events(history: &[SequencedEvent], group: &str) -> BTreeMap<Option<String>, Vec<LoggedEvent>> {
    let mut by_member: BTreeMap<Option<String>, Vec<LoggedEvent>> = BTreeMap::new();
    for sequenced in history.iter().rev().filter(|sequenced| *sequenced.event.group == *group) {
        let member_events =
            by_member.entry(sequenced.event.member.as_deref().map(str::to_owned)).or_default();
        if member_events.len() < MAX_EVENTS {
            member_events.push(logged_event(sequenced));
        }
    }
    by_member.values_mut().for_each(|events| events.reverse());
    by_member
}

fn logged_event(sequenced: &SequencedEvent) -> LoggedEvent {
    let event = &sequenced.event;
    // JSON cannot represent infinity.
    let inputs: BTreeMap<String, f64> =
        event.inputs.iter().filter(|(_, value)| value.is_finite()).cloned().collect();
    LoggedEvent {
        seq: sequenced.seq,
        unix_ms: sequenced.unix_ms,
        kind: event.kind,
        why: event.why.clone(),
        inputs,
    }
}

/// Returns a strategy with its settings, as written in a configuration file.
pub(crate) fn describe_strategy(strategy: &Strategy, params: &StrategyParams) -> String {
    let settings: Vec<String> = strategy
        .params
        .iter()
        .zip(&params.0)
        .map(|(param, value)| format!("{} = {value}", param.name))
        .collect();
    match settings.as_slice() {
        [] => strategy.name.into(),
        _ => format!("{} {{ {} }}", strategy.name, settings.join(", ")),
    }
}
