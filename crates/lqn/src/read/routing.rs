//! The policy by which an entry forwards. It is a pragma, which other tools ignore.
//!
//! It is written as `#pragma route.ENTRY=POLICY` or `POLICY(AGE)` on a line of its own; in LQNX as
//! `<pragma param="route.ENTRY" value="POLICY(AGE)"/>`. The age may be a parameter.

use super::draft::{ModelDraft, SourceName};
use super::{InputError, ParameterScope, SourcePosition, limits};
use crate::model::{Routing, RoutingPolicy};

/// Parses the routes in the lines of a text, after all its parameters.
pub(super) fn parse_pragmas(
    source: &str,
    draft: &mut ModelDraft,
    scope: &ParameterScope<'_>,
) -> Result<(), InputError> {
    for (number, line) in source.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("#pragma") else { continue };
        let Some((name, value)) = rest.split_once('=') else { continue };
        let Some(entry) = name.trim().strip_prefix("route.") else { continue };
        // The column of the entry's name, in characters.
        let column = line.find("route.").map_or(0, |byte_index| line[..byte_index].chars().count());
        let position = SourcePosition { line: number + 1, column: column + "route.".len() + 1 };
        draft.routes.push((
            SourceName { text: entry.to_owned(), at: position },
            parse_routing(value, position, scope)?,
        ));
    }
    Ok(())
}

/// Parses a policy such as `least_loaded(0.5)`.
pub(super) fn parse_routing(
    text: &str,
    position: SourcePosition,
    scope: &ParameterScope<'_>,
) -> Result<Routing, InputError> {
    let text = text.trim();
    let (word, age) = match text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        Some((word, age)) => (word, Some(age.trim())),
        None => (text, None),
    };
    let known_policy = RoutingPolicy::ALL.into_iter().find(|(name, _)| *name == word.trim());
    let names = || RoutingPolicy::ALL.map(|(name, _)| name).join(", ");
    let (_, policy) =
        known_policy.ok_or_else(|| position.error(format!("no policy `{word}`; there are {}", names())))?;
    let age = match age {
        None => 0.0,
        Some(text) => {
            let age = if text.starts_with('$') {
                Some(limits::parse_number(text, position, scope)?)
            } else {
                text.parse().ok()
            };
            let age = age.filter(|age: &f64| age.is_finite() && *age >= 0.0);
            age.ok_or_else(|| {
                position.error(format!("the age of loads is a number from 0 on, not `{text}`"))
            })?
        }
    };
    if age > 0.0 && !policy.uses_loads() {
        return Err(position.error(format!("`{word}` looks at no loads, which could have an age")));
    }
    Ok(Routing { policy, max_age: age })
}
