//! Models out of text: the `.lqn` grammar and LQNX, the XML of the same tools, and a short TOML of our own (`balancer`).
//!
//! All readers make a draft, in which everything has a name and a place in the text; `join` makes a [`Model`] of it
//! that holds together, or says what does not, and where.

use std::collections::BTreeMap;

use crate::Model;

mod balancer;
mod draft;
mod expression;
mod join;
mod known;
mod limits;
mod results;
mod route;
mod scan;
mod text;
mod xml;

pub(crate) use limits::NAMESPACE;
pub use results::{Measured, results};

/// What a text says.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// The model, with the first value of each parameter, or the one that was given for it.
    pub model: Model,
    /// Parameters (SPEX variables that are set to numbers) with all their values, in the order in which they are declared.
    pub parameters: Vec<(String, Vec<f64>)>,
    /// What was left aside because it changes no number of the model.
    pub notes: Vec<String>,
}

/// Why there is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct Trouble {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong and what to do.
    pub message: String,
}

/// A place in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct At {
    line: usize,
    column: usize,
}

impl At {
    fn says(self, message: impl Into<String>) -> Trouble {
        Trouble { line: self.line, column: self.column, message: message.into() }
    }
}

/// Parameters and what they are.
#[derive(Default)]
struct Scope<'g> {
    given: Option<&'g BTreeMap<String, f64>>,
    values: BTreeMap<String, f64>,
    declared: Vec<(String, Vec<f64>)>,
}

impl Scope<'_> {
    /// Takes a declaration in.
    fn declare(&mut self, name: &str, values: Vec<f64>) {
        let own = values.first().copied().unwrap_or_default();
        let value = self.given.and_then(|given| given.get(name)).copied().unwrap_or(own);
        self.values.insert(name.to_owned(), value);
        self.declared.push((name.to_owned(), values));
    }

    fn value(&self, name: &str, at: At) -> Result<f64, Trouble> {
        let known = self.values.get(name).copied();
        known
            .ok_or_else(|| at.says(format!("`${name}` has no value; set it before the model: `${name} = 1`")))
    }
}

/// Reads a model in any format, with these values of parameters instead of their own.
///
/// # Errors
/// The first thing in the text that is wrong or that we cannot do, or a parameter that the text does not declare.
pub fn read(source: &str, given: &BTreeMap<String, f64>) -> Result<Read, Trouble> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let mut scope = Scope { given: Some(given), ..Scope::default() };
    let draft = if source.trim_start().starts_with('<') {
        xml::draft(source, &mut scope)?
    } else if balancer::is_it(source) {
        balancer::draft(source)?
    } else {
        text::draft(source, &mut scope)?
    };
    if let Some(name) = given.keys().find(|name| !scope.values.contains_key(*name)) {
        let names: Vec<String> = scope.declared.iter().map(|(name, _)| format!("${name}")).collect();
        let known = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
        return Err(At { line: 1, column: 1 }
            .says(format!("the model has no parameter `${name}`; its parameters: {known}")));
    }
    let mut notes = draft.notes.clone();
    notes.extend(draft.idle_priorities());
    Ok(Read { model: join::model(draft)?, parameters: scope.declared, notes })
}
