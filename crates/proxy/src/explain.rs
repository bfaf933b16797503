//! Why a group does what it does: for each member its state, what the strategy makes of it, what happened lately.

use std::collections::BTreeMap;

use plimsoll_brain::Time;
use plimsoll_brain::status::{Figure, GroupExplanation, Happening, MemberExplanation, MemberStatus};

use crate::control::{Ruled, Stamped};
use crate::group::Published;
use crate::inner::{Inner, lock};

/// Version of the shape of [`GroupExplanation`].
const SCHEMA: u32 = 1;
/// Events of a member, and of the group as a whole, at most.
const EVENTS: usize = 10;

/// See [`Engine::explain`](crate::Engine::explain).
pub(crate) fn explain(inner: &Inner, group: &str) -> Option<GroupExplanation> {
    let control = lock(&inner.control);
    let ruled = control.groups.get(group)?;
    let now = inner.clock.now();
    let spec = &ruled.settings.spec;
    let history = control.journal.history();
    let published = ruled.group.published();
    let members = ruled.analyzer.status(now).into_iter().zip(&spec.members);
    let knobs = spec.strategy.knobs.iter().zip(&published.plan.knobs().0);
    Some(GroupExplanation {
        schema: SCHEMA,
        name: spec.name.to_string(),
        strategy: spec.strategy.name.to_owned(),
        knobs: knobs.map(|(knob, value)| (knob.name.to_owned(), *value)).collect(),
        weight: None,
        verdict: ruled.analyzer.verdict(),
        monitor: None,
        members: members
            .map(|((_, status), spec)| MemberExplanation {
                events: happenings(&history, group, Some(&status.name)),
                limit: Some(spec.limit).filter(|limit| *limit < u32::MAX),
                ..member(status, ruled, &published, now)
            })
            .collect(),
        events: happenings(&history, group, None),
    })
}

fn member(status: MemberStatus, ruled: &Ruled, published: &Published, now: Time) -> MemberExplanation {
    let planned = published.plan.members().iter().find(|member| *member.name == *status.name);
    let figures = planned.map_or_else(Vec::new, |member| published.plan.explain(member, now));
    let figures = figures.into_iter().filter(|(_, value)| value.is_finite());
    let full = planned.is_some_and(|member| member.full());
    let why = match planned {
        Some(member) if full => format!("at its limit of {} at once; {}", member.limit, status.why),
        Some(_) if !status.state.eligible() => {
            let group = &ruled.settings.spec.name;
            format!("{}, but used all the same: no member of {group} can be used (when_all_down)", status.why)
        }
        _ => status.why,
    };
    MemberExplanation {
        name: status.name,
        address: status.address,
        state: status.state,
        eligible: planned.is_some() && !full,
        why,
        since_seconds: status.since_seconds,
        capacity: status.capacity,
        weight: planned.map_or(status.weight, |member| member.weight),
        in_flight: status.in_flight,
        limit: None,
        load: None,
        trouble: None,
        facts: Vec::new(),
        dropped: 0,
        figures: figures.map(|(name, value)| Figure { name: name.to_owned(), value }).collect(),
        events: Vec::new(),
    }
}

/// The last events of a member, or of the group as a whole; oldest first.
fn happenings(history: &[Stamped], group: &str, member: Option<&str>) -> Vec<Happening> {
    let concerns =
        |stamped: &&Stamped| *stamped.event.group == *group && stamped.event.member.as_deref() == member;
    let mut last: Vec<Happening> =
        history.iter().rev().filter(concerns).take(EVENTS).map(happening).collect();
    last.reverse();
    last
}

fn happening(stamped: &Stamped) -> Happening {
    let event = &stamped.event;
    // JSON has no word for infinity.
    let inputs: BTreeMap<String, f64> =
        event.inputs.iter().filter(|(_, value)| value.is_finite()).cloned().collect();
    Happening { seq: stamped.seq, unix_ms: stamped.unix_ms, kind: event.kind, why: event.why.clone(), inputs }
}
