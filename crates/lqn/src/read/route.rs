//! The policy by which an entry forwards. It is a pragma, which other tools ignore.
//!
//! It is written as `#pragma route.ENTRY=POLICY` or `POLICY(AGE)` on a line of its own; in LQNX as
//! `<pragma param="route.ENTRY" value="POLICY(AGE)"/>`. The age may be a parameter.

use super::draft::{Draft, Name};
use super::{At, Scope, Trouble, limits};
use crate::model::{Policy, Routing};

/// Parses the routes in the lines of a text, after all its parameters.
pub(super) fn lines(source: &str, draft: &mut Draft, scope: &Scope<'_>) -> Result<(), Trouble> {
    for (number, line) in source.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("#pragma") else { continue };
        let Some((name, value)) = rest.split_once('=') else { continue };
        let Some(entry) = name.trim().strip_prefix("route.") else { continue };
        // The column of the entry's name, in characters.
        let at = line.find("route.").map_or(0, |place| line[..place].chars().count());
        let at = At { line: number + 1, column: at + "route.".len() + 1 };
        draft.routes.push((Name { text: entry.to_owned(), at }, routing(value, at, scope)?));
    }
    Ok(())
}

/// Parses a policy such as `least_loaded(0.5)`.
pub(super) fn routing(text: &str, at: At, scope: &Scope<'_>) -> Result<Routing, Trouble> {
    let text = text.trim();
    let (word, age) = match text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        Some((word, age)) => (word, Some(age.trim())),
        None => (text, None),
    };
    let found = Policy::ALL.into_iter().find(|(name, _)| *name == word.trim());
    let names = || Policy::ALL.map(|(name, _)| name).join(", ");
    let (_, policy) = found.ok_or_else(|| at.says(format!("no policy `{word}`; there are {}", names())))?;
    let age = match age {
        None => 0.0,
        Some(text) => {
            let age = if text.starts_with('$') {
                Some(limits::number(text, at, scope)?)
            } else {
                text.parse().ok()
            };
            let age = age.filter(|age: &f64| age.is_finite() && *age >= 0.0);
            age.ok_or_else(|| at.says(format!("the age of loads is a number from 0 on, not `{text}`")))?
        }
    };
    if age > 0.0 && !policy.looks_at_loads() {
        return Err(at.says(format!("`{word}` looks at no loads, which could have an age")));
    }
    Ok(Routing { policy, age })
}
