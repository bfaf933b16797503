//! Queue limits, timeouts and retries, which models of other tools do not have. They are pragmas, which those
//! tools ignore.
//!
//! They are written as `#pragma queue.TASK=10` and
//! `#pragma call.FROM.TO=timeout(0.5) retries(2) backoff(0.1)` on lines of their own. `FROM` is an entry, in
//! all of its phases or in one (`FROM.2`), or an activity. In LQNX they are attributes of the namespace
//! [`NAMESPACE`]: `queue-limit` of a task; `timeout`, `retries` and `backoff` of a synch-call.

use super::draft::{DraftActivity, ModelDraft};
use super::{InputError, ParameterScope, SourcePosition};
use crate::model::RetryPolicy;

/// The namespace of attributes in LQNX.
pub(crate) const NAMESPACE: &str = "urn:plimsoll:lqn";
/// The parameters of [`RetryPolicy`].
pub(super) const RETRY_SETTINGS: [&str; 3] = ["timeout", "retries", "backoff"];

/// Parses the limits in the lines of a text into a complete draft.
pub(super) fn parse_pragmas(
    source: &str,
    draft: &mut ModelDraft,
    scope: &ParameterScope<'_>,
) -> Result<(), InputError> {
    for (number, line) in source.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("#pragma") else { continue };
        let Some((name, value)) = rest.split_once('=') else { continue };
        let name = name.trim();
        // Returns the column of a part of the line, in characters.
        let column = |fragment: &str| {
            let bytes = (fragment.as_ptr() as usize).saturating_sub(line.as_ptr() as usize);
            line.get(..bytes).map_or(1, |before| before.chars().count() + 1)
        };
        let position_of = |fragment: &str| SourcePosition { line: number + 1, column: column(fragment) };
        if let Some(task) = name.strip_prefix("queue.") {
            let found_task = draft.tasks.iter_mut().find(|candidate| candidate.name.text == task);
            let draft_task =
                found_task.ok_or_else(|| position_of(task).error(format!("no task `{task}`")))?;
            if draft_task.queue_limit.is_some() {
                return Err(position_of(task).error(format!("the queue of `{task}` has a limit already")));
            }
            let limit = to_queue_limit(parse_number(value, position_of(value), scope)?, position_of(value))?;
            draft_task.queue_limit = Some((limit, position_of(task)));
        } else if let Some(call) = name.strip_prefix("call.") {
            let parts: Vec<&str> = call.split('.').collect();
            let (from, phase, to) = match parts.as_slice() {
                [from, to] => (*from, None, *to),
                [from, phase @ ("1" | "2" | "3"), to] => (*from, phase.parse::<usize>().ok(), *to),
                _ => return Err(position_of(call).error("expected `call.FROM.TO`, or `call.FROM.PHASE.TO`")),
            };
            let retry_policy = parse_retry_policy(value, position_of(value), scope)?;
            let mut is_matched = false;
            for activity in caller_activities(draft, from, phase) {
                for call in activity.calls.iter_mut().filter(|call| call.waits && call.to.text == to) {
                    call.retry_policy = Some(retry_policy);
                    is_matched = true;
                }
            }
            if !is_matched {
                return Err(position_of(call)
                    .error(format!("`{from}` makes no call to `{to}` whose answer it waits for")));
            }
        }
    }
    Ok(())
}

/// Returns the phases of an entry, or else the activity of this name.
fn caller_activities<'d>(
    draft: &'d mut ModelDraft,
    from: &str,
    phase: Option<usize>,
) -> Vec<&'d mut DraftActivity> {
    let entry =
        draft.entries.iter().position(|candidate| candidate.name.text == from && candidate.start.is_none());
    if let Some(index) = entry {
        let phases = draft.entries[index].phases.iter_mut().enumerate();
        return phases
            .filter(|(index, _)| phase.is_none_or(|phase| phase == index + 1))
            .map(|(_, activity)| activity)
            .collect();
    }
    let activities = draft.tasks.iter_mut().flat_map(|task| &mut task.activities);
    activities.filter(|activity| phase.is_none() && activity.name.text == from).collect()
}

/// Parses a specification such as `timeout(0.5) retries(2)`.
fn parse_retry_policy(
    text: &str,
    position: SourcePosition,
    scope: &ParameterScope<'_>,
) -> Result<RetryPolicy, InputError> {
    let mut retry_policy = RetryPolicy::UNLIMITED;
    if text.trim().is_empty() {
        return Err(position.error("expected timeout(TIME), retries(NUMBER) or backoff(TIME)"));
    }
    let mut words: Vec<&str> = Vec::new();
    for setting_text in text.split_whitespace() {
        let bytes = (setting_text.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
        let column_offset = text.get(..bytes).map_or(0, |prefix| prefix.chars().count());
        let position = SourcePosition { column: position.column + column_offset, ..position };
        let inner = setting_text.strip_suffix(')').and_then(|part| part.split_once('('));
        let setting = inner
            .and_then(|(word, value)| Some((RETRY_SETTINGS.into_iter().find(|name| *name == word)?, value)));
        let (setting_name, value) = setting.ok_or_else(|| {
            position.error(format!(
                "expected timeout(TIME), retries(NUMBER) or backoff(TIME), not `{setting_text}`"
            ))
        })?;
        if words.contains(&setting_name) {
            return Err(position.error(format!("`{setting_name}` stands there twice")));
        }
        words.push(setting_name);
        set_retry_setting(&mut retry_policy, setting_name, parse_number(value, position, scope)?, position)?;
    }
    Ok(retry_policy)
}

/// Parses a number, or a parameter.
pub(super) fn parse_number(
    text: &str,
    position: SourcePosition,
    scope: &ParameterScope<'_>,
) -> Result<f64, InputError> {
    let text = text.trim();
    if let Some(parameter) = text.strip_prefix('$') {
        return scope.value(parameter, position);
    }
    let value = text.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| position.error(format!("expected a number, not `{text}`")))
}

/// Sets one of [`RETRY_SETTINGS`].
pub(super) fn set_retry_setting(
    retry_policy: &mut RetryPolicy,
    setting_name: &str,
    value: f64,
    position: SourcePosition,
) -> Result<(), InputError> {
    match setting_name {
        "timeout" if value > 0.0 && value.is_finite() => retry_policy.timeout = value,
        "timeout" => return Err(position.error(format!("a timeout is a time above 0, not {value}"))),
        "retries" if value.fract() == 0.0 && (0.0..=f64::from(RetryPolicy::MAX_RETRIES)).contains(&value) => {
            retry_policy.retries = value as u32;
        }
        "retries" => {
            return Err(position.error(format!(
                "retries are a whole number from 0 to {}, not {value}",
                RetryPolicy::MAX_RETRIES
            )));
        }
        _ if value >= 0.0 && value.is_finite() => retry_policy.backoff = value,
        _ => return Err(position.error(format!("a backoff is a time from 0 on, not {value}"))),
    }
    Ok(())
}

/// Converts a priority, any whole number.
pub(super) fn to_priority(value: f64, position: SourcePosition) -> Result<i32, InputError> {
    if value.fract() == 0.0 && value.abs() <= 1e9 {
        return Ok(value as i32);
    }
    Err(position.error(format!("a priority is a whole number, not {value}")))
}

/// Converts a quorum, the number of branches that a join waits for.
pub(super) fn to_quorum(value: f64, position: SourcePosition) -> Result<u32, InputError> {
    if value.fract() == 0.0 && (0.0..=1e6).contains(&value) {
        return Ok(value as u32);
    }
    Err(position.error(format!("a quorum is a whole number, not {value}")))
}

/// Converts a number of replicas.
pub(super) fn to_replicas(value: f64, position: SourcePosition) -> Result<u32, InputError> {
    if value.fract() == 0.0 && (1.0..=1e5).contains(&value) {
        return Ok(value as u32);
    }
    Err(position.error(format!("of replicas there is a whole number from 1 to 100000, not {value}")))
}

/// Converts a queue limit.
pub(super) fn to_queue_limit(value: f64, position: SourcePosition) -> Result<u32, InputError> {
    if value.fract() == 0.0 && (0.0..=1e6).contains(&value) {
        return Ok(value as u32);
    }
    Err(position.error(format!("a limit of a queue is a whole number from 0 to 1000000, not {value}")))
}
