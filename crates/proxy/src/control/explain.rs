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
const EVENTS: usize = 10;

/// Implements [`Engine::explain`](crate::Engine::explain).
pub(crate) fn explain(inner: &EngineShared, group: &str) -> Option<GroupExplanation> {
    let control = lock(&inner.control);
    let ruled = control.groups.get(group)?;
    let now = inner.clock.now();
    let settings = Arc::clone(&ruled.settings);
    let spec = &settings.spec;
    let mut events = happenings(&control.event_log.history(), group);
    let published = ruled.group.published();
    let planned: BTreeMap<MemberId, &Member> =
        published.plan.members().iter().map(|member| (member.id, member)).collect();
    let members = ruled.analyzer.status(now).into_iter().zip(&settings.spec.members);
    let mut alerts: BTreeMap<MemberId, AlertExplanation> =
        ruled.analyzer.alerts().map(|alert| (alert.member, explain_alert(alert, now))).collect();
    let moved: BTreeMap<MemberId, u64> = ruled
        .analyzer
        .members()
        .filter_map(|(id, ..)| Some((id, status_report::moved_sessions(ruled.record(id)?))))
        .collect();
    let counted: BTreeMap<MemberId, f64> = ruled.analyzer.current_loads(now).collect();
    let verdict = ruled.analyzer.verdict();
    // The rest takes long with many members.
    drop(control);
    let knobs = spec.strategy.params.iter().zip(&published.plan.params().0);
    Some(GroupExplanation {
        schema: SCHEMA,
        name: spec.name.to_string(),
        strategy: spec.strategy.name.to_owned(),
        balancing_disabled: false,
        knobs: knobs.map(|(knob, value)| (knob.name.to_owned(), *value)).collect(),
        weight: None,
        verdict,
        monitor: None,
        members: members
            .map(|((id, status), spec)| MemberExplanation {
                events: events.remove(&Some(status.name.clone())).unwrap_or_default(),
                moved: moved.get(&id).copied().unwrap_or_default(),
                alert: alerts.remove(&id),
                limit: Some(spec.limit).filter(|limit| *limit < u32::MAX),
                ..member(status, planned.get(&id).copied(), counted.get(&id).copied(), &published.plan, now)
            })
            .collect(),
        events: events.remove(&None).unwrap_or_default(),
    })
}

/// Explains a member. `planned` is the member in the plan, if it is there; `counted` is its load as computed
/// from its reports.
fn member(
    status: MemberStatus,
    planned: Option<&Member>,
    counted: Option<f64>,
    plan: &Plan,
    now: Time,
) -> MemberExplanation {
    let counted = counted.map(|load| ("load_counted", load));
    let figures = planned.map_or_else(Vec::new, |member| plan.explain(member, now));
    let figures = counted.into_iter().chain(figures).filter(|(_, value)| value.is_finite());
    let refuses = planned.and_then(|member| plan.refusal_message(member, now));
    let why = match (planned, &refuses) {
        (_, Some(refuses)) => format!("{refuses}; {}", status.why),
        (Some(_), _) if !status.state.is_eligible() => {
            format!("{}; used all the same, because no member can be (when_all_down)", status.why)
        }
        _ => status.why,
    };
    MemberExplanation {
        name: status.name,
        address: status.address,
        state: status.state,
        eligible: planned.is_some() && refuses.is_none(),
        why,
        since_seconds: status.since_seconds,
        capacity: status.capacity,
        weight: planned.map_or(status.weight, |member| member.weight),
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
fn happenings(history: &[SequencedEvent], group: &str) -> BTreeMap<Option<String>, Vec<LoggedEvent>> {
    let mut all: BTreeMap<Option<String>, Vec<LoggedEvent>> = BTreeMap::new();
    for stamped in history.iter().rev().filter(|stamped| *stamped.event.group == *group) {
        let of = all.entry(stamped.event.member.as_deref().map(str::to_owned)).or_default();
        if of.len() < EVENTS {
            of.push(happening(stamped));
        }
    }
    all.values_mut().for_each(|events| events.reverse());
    all
}

fn happening(stamped: &SequencedEvent) -> LoggedEvent {
    let event = &stamped.event;
    // JSON cannot represent infinity.
    let inputs: BTreeMap<String, f64> =
        event.inputs.iter().filter(|(_, value)| value.is_finite()).cloned().collect();
    LoggedEvent {
        seq: stamped.seq,
        unix_ms: stamped.unix_ms,
        kind: event.kind,
        why: event.why.clone(),
        inputs,
    }
}

/// Returns a strategy with its settings, as written in a configuration file.
pub(crate) fn describe_strategy(strategy: &Strategy, knobs: &StrategyParams) -> String {
    let set: Vec<String> = strategy
        .params
        .iter()
        .zip(&knobs.0)
        .map(|(knob, value)| format!("{} = {value}", knob.name))
        .collect();
    match set.as_slice() {
        [] => strategy.name.into(),
        _ => format!("{} {{ {} }}", strategy.name, set.join(", ")),
    }
}
