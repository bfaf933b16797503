//! Parsers of models: the `.lqn` grammar, LQNX (the XML format of the same tools), and a short TOML format of
//! this crate (`balancer`).
//!
//! Each parser creates a draft, in which every object has a name and a position in the text. Then `resolve`
//! resolves the names into a consistent [`Model`], or reports the error and its position.

use std::collections::BTreeMap;

use crate::Model;

mod balancer;
mod draft;
mod expression;
mod limits;
mod lqnx_schema;
mod resolve;
mod results;
mod routing;
mod text;
mod tokenizer;
mod xml;

pub(crate) use limits::NAMESPACE;
pub use results::{MeasuredResult, read_results};

/// The result of parsing a text.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedModel {
    /// The model, with the first or the given value of each parameter.
    pub model: Model,
    /// The parameters (SPEX variables that are set to numbers) with all their values, in the order of
    /// declaration.
    pub parameters: Vec<(String, Vec<f64>)>,
    /// Notes on parts that were ignored because they change no number of the model.
    pub notes: Vec<String>,
}

/// The reason why there is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct InputError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The error and a remedy.
    pub message: String,
}

/// A position in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SourcePosition {
    line: usize,
    column: usize,
}

impl SourcePosition {
    fn error(self, message: impl Into<String>) -> InputError {
        InputError { line: self.line, column: self.column, message: message.into() }
    }
}

/// The parameters and their values.
#[derive(Default)]
struct ParameterScope<'g> {
    overrides: Option<&'g BTreeMap<String, f64>>,
    values: BTreeMap<String, f64>,
    declared: Vec<(String, Vec<f64>)>,
}

impl ParameterScope<'_> {
    /// Records a declaration.
    fn declare(&mut self, name: &str, values: Vec<f64>) {
        let default = values.first().copied().unwrap_or_default();
        let value = self.overrides.and_then(|overrides| overrides.get(name)).copied().unwrap_or(default);
        self.values.insert(name.to_owned(), value);
        self.declared.push((name.to_owned(), values));
    }

    fn value(&self, name: &str, position: SourcePosition) -> Result<f64, InputError> {
        let value = self.values.get(name).copied();
        value.ok_or_else(|| {
            position.error(format!("`${name}` has no value; set it before the model: `${name} = 1`"))
        })
    }
}

/// Parses a model in any format. Values in `given` replace those of parameters.
///
/// # Errors
/// Returns the first error or unsupported part of the text, or a parameter that the text does not declare.
pub fn read(source: &str, overrides: &BTreeMap<String, f64>) -> Result<ParsedModel, InputError> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let mut scope = ParameterScope { overrides: Some(overrides), ..ParameterScope::default() };
    let draft = if source.trim_start().starts_with('<') {
        xml::draft(source, &mut scope)?
    } else if balancer::is_balancer_format(source) {
        balancer::draft(source)?
    } else {
        text::draft(source, &mut scope)?
    };
    if let Some(name) = overrides.keys().find(|name| !scope.values.contains_key(*name)) {
        let names: Vec<String> = scope.declared.iter().map(|(name, _)| format!("${name}")).collect();
        let known_names = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
        return Err(SourcePosition { line: 1, column: 1 }
            .error(format!("the model has no parameter `${name}`; its parameters: {known_names}")));
    }
    let mut notes = draft.notes.clone();
    notes.extend(draft.unused_priority_notes());
    Ok(ParsedModel { model: resolve::resolve_draft(draft)?, parameters: scope.declared, notes })
}
