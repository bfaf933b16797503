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
        let column = |part: &str| {
            let bytes = (part.as_ptr() as usize).saturating_sub(line.as_ptr() as usize);
            line.get(..bytes).map_or(1, |before| before.chars().count() + 1)
        };
        let at = |part: &str| SourcePosition { line: number + 1, column: column(part) };
        if let Some(task) = name.strip_prefix("queue.") {
            let own = draft.tasks.iter_mut().find(|own| own.name.text == task);
            let own = own.ok_or_else(|| at(task).error(format!("no task `{task}`")))?;
            if own.queue_limit.is_some() {
                return Err(at(task).error(format!("the queue of `{task}` has a limit already")));
            }
            let limit = to_queue_limit(parse_number(value, at(value), scope)?, at(value))?;
            own.queue_limit = Some((limit, at(task)));
        } else if let Some(call) = name.strip_prefix("call.") {
            let parts: Vec<&str> = call.split('.').collect();
            let (from, phase, to) = match parts.as_slice() {
                [from, to] => (*from, None, *to),
                [from, phase @ ("1" | "2" | "3"), to] => (*from, phase.parse::<usize>().ok(), *to),
                _ => return Err(at(call).error("expected `call.FROM.TO`, or `call.FROM.PHASE.TO`")),
            };
            let patience = parse_retry_policy(value, at(value), scope)?;
            let mut found = false;
            for own in bodies(draft, from, phase) {
                for call in own.calls.iter_mut().filter(|call| call.waits && call.to.text == to) {
                    call.retry_policy = Some(patience);
                    found = true;
                }
            }
            if !found {
                return Err(
                    at(call).error(format!("`{from}` makes no call to `{to}` whose answer it waits for"))
                );
            }
        }
    }
    Ok(())
}

/// Returns the phases of an entry, or else the activity of this name.
fn bodies<'d>(draft: &'d mut ModelDraft, from: &str, phase: Option<usize>) -> Vec<&'d mut DraftActivity> {
    let entry = draft.entries.iter().position(|own| own.name.text == from && own.start.is_none());
    if let Some(place) = entry {
        let phases = draft.entries[place].phases.iter_mut().enumerate();
        return phases
            .filter(|(at, _)| phase.is_none_or(|phase| phase == at + 1))
            .map(|(_, own)| own)
            .collect();
    }
    let all = draft.tasks.iter_mut().flat_map(|task| &mut task.activities);
    all.filter(|own| phase.is_none() && own.name.text == from).collect()
}

/// Parses a specification such as `timeout(0.5) retries(2)`.
fn parse_retry_policy(
    text: &str,
    at: SourcePosition,
    scope: &ParameterScope<'_>,
) -> Result<RetryPolicy, InputError> {
    let mut patience = RetryPolicy::UNLIMITED;
    if text.trim().is_empty() {
        return Err(at.error("expected timeout(TIME), retries(NUMBER) or backoff(TIME)"));
    }
    let mut given: Vec<&str> = Vec::new();
    for part in text.split_whitespace() {
        let bytes = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
        let before = text.get(..bytes).map_or(0, |before| before.chars().count());
        let at = SourcePosition { column: at.column + before, ..at };
        let inner = part.strip_suffix(')').and_then(|part| part.split_once('('));
        let known = inner
            .and_then(|(word, value)| Some((RETRY_SETTINGS.into_iter().find(|own| *own == word)?, value)));
        let (word, value) = known.ok_or_else(|| {
            at.error(format!("expected timeout(TIME), retries(NUMBER) or backoff(TIME), not `{part}`"))
        })?;
        if given.contains(&word) {
            return Err(at.error(format!("`{word}` stands there twice")));
        }
        given.push(word);
        set_retry_setting(&mut patience, word, parse_number(value, at, scope)?, at)?;
    }
    Ok(patience)
}

/// Parses a number, or a parameter.
pub(super) fn parse_number(
    text: &str,
    at: SourcePosition,
    scope: &ParameterScope<'_>,
) -> Result<f64, InputError> {
    let text = text.trim();
    if let Some(parameter) = text.strip_prefix('$') {
        return scope.value(parameter, at);
    }
    let value = text.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| at.error(format!("expected a number, not `{text}`")))
}

/// Sets one of [`RETRY_SETTINGS`].
pub(super) fn set_retry_setting(
    patience: &mut RetryPolicy,
    word: &str,
    value: f64,
    at: SourcePosition,
) -> Result<(), InputError> {
    match word {
        "timeout" if value > 0.0 && value.is_finite() => patience.timeout = value,
        "timeout" => return Err(at.error(format!("a timeout is a time above 0, not {value}"))),
        "retries" if value.fract() == 0.0 && (0.0..=f64::from(RetryPolicy::MAX_RETRIES)).contains(&value) => {
            patience.retries = value as u32;
        }
        "retries" => {
            return Err(at.error(format!(
                "retries are a whole number from 0 to {}, not {value}",
                RetryPolicy::MAX_RETRIES
            )));
        }
        _ if value >= 0.0 && value.is_finite() => patience.backoff = value,
        _ => return Err(at.error(format!("a backoff is a time from 0 on, not {value}"))),
    }
    Ok(())
}

/// Converts a priority, any whole number.
pub(super) fn to_priority(value: f64, at: SourcePosition) -> Result<i32, InputError> {
    if value.fract() == 0.0 && value.abs() <= 1e9 {
        return Ok(value as i32);
    }
    Err(at.error(format!("a priority is a whole number, not {value}")))
}

/// Converts a quorum, the number of branches that a join waits for.
pub(super) fn to_quorum(value: f64, at: SourcePosition) -> Result<u32, InputError> {
    if value.fract() == 0.0 && (0.0..=1e6).contains(&value) {
        return Ok(value as u32);
    }
    Err(at.error(format!("a quorum is a whole number, not {value}")))
}

/// Converts a number of replicas.
pub(super) fn to_replicas(value: f64, at: SourcePosition) -> Result<u32, InputError> {
    if value.fract() == 0.0 && (1.0..=1e5).contains(&value) {
        return Ok(value as u32);
    }
    Err(at.error(format!("of replicas there is a whole number from 1 to 100000, not {value}")))
}

/// Converts a queue limit.
pub(super) fn to_queue_limit(value: f64, at: SourcePosition) -> Result<u32, InputError> {
    if value.fract() == 0.0 && (0.0..=1e6).contains(&value) {
        return Ok(value as u32);
    }
    Err(at.error(format!("a limit of a queue is a whole number from 0 to 1000000, not {value}")))
}
