//! The check of a parsed file against the JSON Schema, which thereby is not only documentation: unknown keys,
//! wrong types, missing keys, bounds and formats are checked here and nowhere else.
//!
//! serde stops at its first error. This walk finds all of them, leaves out the wrong values, and returns a
//! tree that serde can read. Checks across sections still run on the rest of the file.
//!
//! It supports the part of JSON Schema that Plimsoll's types use:
//!
//! - `$ref`, and `anyOf` and `oneOf` whose alternatives differ by type or `const`
//! - `type`, `const`, `format`
//! - `properties`, `required`, `additionalProperties` (`false`, or a schema for the values of a map),
//!   `minProperties`, `maxProperties`
//! - `items`, `minItems`, `minimum`, `maximum`
//! - `x-minimum`, `x-maximum` for durations
//! - `x-required`, which has names and for each the keys that make it optional

use plimsoll_brain::strategy::EXPRESSION;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ConfigDiagnostic, quoted};
use super::spans::SpanTree;
use super::{TimeSpan, renamed, suggest, text};

/// Returns the rest of `table` without its wrong values, the places of the rest, and the problems.
pub(super) fn check<'i>(
    schema: &Value,
    table: Spanned<DeTable<'i>>,
) -> (DeTable<'i>, SpanTree, Vec<ConfigDiagnostic>) {
    let mut schema_walk = SchemaWalk { root: schema, problems: Vec::new(), path: Vec::new() };
    let span = table.span();
    let root = Spanned::new(span.clone(), DeValue::Table(table.into_inner()));
    match schema_walk.value(schema, "file", root) {
        Some((value, span_tree)) => match value.into_inner() {
            DeValue::Table(table) => (table, span_tree, schema_walk.problems),
            _ => (DeTable::new(), span_tree, schema_walk.problems),
        },
        None => (DeTable::new(), SpanTree::new(span), schema_walk.problems),
    }
}

struct SchemaWalk<'s> {
    root: &'s Value,
    problems: Vec<ConfigDiagnostic>,
    /// The keys on the way to the current value.
    path: Vec<String>,
}

type CheckedNode<'i> = Option<(Spanned<DeValue<'i>>, SpanTree)>;

impl<'s> SchemaWalk<'s> {
    /// Checks one value; `None` if it is unusable. `key` is its name in messages.
    fn value<'i>(&mut self, schema: &'s Value, key: &str, value: Spanned<DeValue<'i>>) -> CheckedNode<'i> {
        let mut choices = Vec::new();
        self.choices(schema, &mut choices);
        let kind = kind(value.get_ref());
        let accepted: Vec<&Value> = choices.iter().copied().filter(|choice| accepts(choice, kind)).collect();
        let Some(&first) = accepted.first() else {
            let message =
                format!("{} must be {}, not {}", quoted(key), expected(&choices), with_article(kind));
            let mut problem = ConfigDiagnostic::error(value.span(), message);
            if let Some(list_example) = self.as_list(&choices, value.get_ref()) {
                problem = problem.hint(format!("write {list_example}"));
            } else if let Some(example) = example(&choices, value.get_ref()) {
                problem = problem.hint(format!("write {example}"));
            }
            self.problems.push(problem);
            return None;
        };
        let span = value.span();
        match value.get_ref() {
            DeValue::Table(_) => return self.table(first, key, value),
            DeValue::Array(_) => return self.array(first, key, value),
            DeValue::String(text) => {
                if let Some(problem) = check_text(&accepted, key, text, &span) {
                    self.problems.push(problem);
                    return None;
                }
            }
            DeValue::Integer(_) | DeValue::Float(_) => {
                if let Some(problem) = check_number(first, key, value.get_ref(), &span) {
                    self.problems.push(problem);
                    return None;
                }
            }
            DeValue::Boolean(_) | DeValue::Datetime(_) => {}
        }
        Some((value, SpanTree::new(span)))
    }

    fn table<'i>(&mut self, schema: &'s Value, key: &str, value: Spanned<DeValue<'i>>) -> CheckedNode<'i> {
        let span = value.span();
        let DeValue::Table(table) = value.into_inner() else { return None };
        let mut spans = SpanTree::new(span.clone());
        let mut checked_table = DeTable::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        let allowed: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let noun = schema.get("x-noun").and_then(Value::as_str);
        let mut meant = Vec::new();
        let count = table.len();
        for (name, property_value) in table {
            let map_value = schema.get("additionalProperties").filter(|values| values.is_object());
            let named = properties.and_then(|properties_map| properties_map.get(name.get_ref().as_ref()));
            let Some(property) = named.or(map_value) else {
                spans.mark_broken(name.get_ref());
                if let Some(new_name) = renamed::new_name(&self.path, name.get_ref()) {
                    let message = format!("{} is called `{new_name}`", quoted(name.get_ref()));
                    self.problems.push(ConfigDiagnostic::error(name.span(), message));
                    // Its value is left out, so that nothing can be concluded from the new key either.
                    spans.mark_broken(new_name);
                    continue;
                }
                meant.extend(suggest::nearest(name.get_ref(), &allowed));
                self.problems.push(self.unknown(noun, name.get_ref(), name.span(), &allowed));
                continue;
            };
            let key = name.get_ref().clone();
            self.path.push(key.to_string());
            let checked_value = self.value(property, &key, property_value);
            self.path.pop();
            match checked_value {
                Some((property_value, inner_spans)) => {
                    if inner_spans.is_broken("") {
                        spans.mark_broken(&key);
                    }
                    spans.insert(&key, name.span(), inner_spans);
                    checked_table.insert(name, property_value);
                }
                None => spans.mark_broken(&key),
            }
        }
        // A misspelt key is not missing, and a wrong one was reported.
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required = required.filter_map(Value::as_str);
        // Another key may replace it.
        let required_unless = schema.get("x-required").and_then(Value::as_object).into_iter().flatten();
        let is_present = |other_key: &Value| {
            other_key.as_str().is_some_and(|other_key| spans.has_key(other_key) || spans.is_broken(other_key))
        };
        let required_unless = required_unless
            .filter(|(_, alternatives)| !alternatives.as_array().into_iter().flatten().any(is_present));
        let required_unless = required_unless.map(|(name, alternatives)| (name.as_str(), alternatives));
        let required: Vec<&str> = required.chain(required_unless.map(|(name, _)| name)).collect();
        let mut is_complete = true;
        for name in required.into_iter().filter(|name| !spans.has_key(name)) {
            is_complete = false;
            if !spans.is_broken(name) && !meant.contains(&name) {
                let message = format!("missing key `{name}` {}", self.section());
                let hint = properties
                    .and_then(|properties_map| properties_map.get(name))
                    .map(|property| self.example_line(name, property));
                let mut problem = ConfigDiagnostic::error(span.clone(), message);
                problem.hint = hint;
                self.problems.push(problem);
            }
        }
        let bound_of = |name: &str| schema.get(name).and_then(Value::as_u64);
        let too_many = bound_of("maxProperties").is_some_and(|max| count as u64 > max);
        let too_few = bound_of("minProperties").is_some_and(|min| (count as u64) < min);
        if too_many || too_few {
            let noun_text = noun.unwrap_or("key");
            let message = format!("{} must name exactly one {noun_text}, not {count}", quoted(key));
            self.problems.push(ConfigDiagnostic::error(span.clone(), message));
            is_complete = false;
        }
        is_complete &= noun.is_none() || checked_table.len() == count;
        is_complete.then(|| (Spanned::new(span, DeValue::Table(checked_table)), spans))
    }

    fn array<'i>(&mut self, schema: &'s Value, key: &str, value: Spanned<DeValue<'i>>) -> CheckedNode<'i> {
        let span = value.span();
        let DeValue::Array(array) = value.into_inner() else { return None };
        let mut spans = SpanTree::new(span.clone());
        if schema.get("minItems").and_then(Value::as_u64).is_some_and(|min| (array.len() as u64) < min) {
            self.problems.push(ConfigDiagnostic::error(span, format!("{} must not be empty", quoted(key))));
            return None;
        }
        let mut checked_items = toml::de::DeArray::new();
        for item in array {
            let checked_value = match schema.get("items") {
                Some(items) => self.value(items, key, item),
                None => None,
            };
            match checked_value {
                Some((item, inner_spans)) => {
                    checked_items.push(item);
                    spans.push(inner_spans);
                }
                // A mark that `table` reads: a part of this array has been left out.
                None => spans.mark_broken(""),
            }
        }
        Some((Spanned::new(span, DeValue::Array(checked_items)), spans))
    }

    /// Collects the alternatives of a schema, references followed.
    fn choices(&self, schema: &'s Value, flattened: &mut Vec<&'s Value>) {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(target) = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) {
                self.choices(target, flattened);
            }
            return;
        }
        match ["anyOf", "oneOf"].iter().find_map(|keyword| schema.get(keyword)?.as_array()) {
            Some(alternatives) => alternatives.iter().for_each(|choice| self.choices(choice, flattened)),
            None => flattened.push(schema),
        }
    }

    fn unknown(
        &self,
        noun: Option<&str>,
        name: &str,
        span: std::ops::Range<usize>,
        allowed: &[&str],
    ) -> ConfigDiagnostic {
        if let Some(noun) = noun {
            return ConfigDiagnostic::error(span, format!("unknown {noun} {}", quoted(name)))
                .hint(suggest::hint(name, allowed));
        }
        let hint = match self.path.last().filter(|_| allowed.is_empty()) {
            Some(table) => format!("{} has no settings: take it out", quoted(table)),
            None => suggest::hint(name, allowed),
        };
        ConfigDiagnostic::error(span, format!("unknown key {} {}", quoted(name), self.section())).hint(hint)
    }

    /// Returns the current table, as its header would be written.
    fn section(&self) -> String {
        match self.path.as_slice() {
            [] => "at the top level".into(),
            [name] if ["listener", "group", "process"].contains(&&**name) => format!("in [[{name}]]"),
            path => format!("in [{}]", path.join(".")),
        }
    }

    /// Returns the form of a single value where a list is expected.
    fn as_list(&self, choices: &[&'s Value], value: &DeValue<'_>) -> Option<String> {
        let items =
            choices.iter().find_map(|choice| choice.get("items").filter(|_| accepts(choice, "array")))?;
        let mut item_choices = Vec::new();
        self.choices(items, &mut item_choices);
        if !item_choices.iter().any(|choice| accepts(choice, kind(value))) {
            return None;
        }
        match value {
            DeValue::Table(_) => {
                Some(format!("[[{}]], with two brackets: there may be several", self.path.join(".")))
            }
            DeValue::String(text) => Some(format!("[{}]", Value::from(text.as_ref()))),
            _ => None,
        }
    }

    /// Returns an example of a key: `address = "0.0.0.0:8080"`
    fn example_line(&self, name: &str, schema: &'s Value) -> String {
        let mut choices = Vec::new();
        self.choices(schema, &mut choices);
        if let Some(items) = choices.first().and_then(|choice| choice.get("items")) {
            let mut item_choices = Vec::new();
            self.choices(items, &mut item_choices);
            return item_choices
                .first()
                .and_then(|choice| first_example(choice))
                .map_or_else(String::new, |text| format!("add {name} = [{text}]"));
        }
        choices
            .first()
            .and_then(|choice| first_example(choice))
            .map_or_else(String::new, |text| format!("add {name} = {text}"))
    }
}

/// Returns JSON Schema's word for the type of a value.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "string",
        DeValue::Integer(_) => "integer",
        DeValue::Float(_) => "number",
        DeValue::Boolean(_) => "boolean",
        DeValue::Datetime(_) => "datetime",
        DeValue::Array(_) => "array",
        DeValue::Table(_) => "object",
    }
}

fn accepts(schema: &Value, kind: &str) -> bool {
    let schema_type = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    schema_type == kind || (schema_type == "number" && kind == "integer")
}

fn with_article(kind: &str) -> &'static str {
    match kind {
        "string" => "a string",
        "integer" => "an integer",
        "number" => "a decimal number",
        "boolean" => "true or false",
        "array" => "an array",
        "object" => "a table",
        _ => "a date or time",
    }
}

/// Returns the allowed values in words.
fn expected(choices: &[&Value]) -> String {
    let mut allowed_texts: Vec<String> = Vec::new();
    let names: Vec<&str> = choices.iter().filter_map(|choice| choice.get("const")?.as_str()).collect();
    if !names.is_empty() {
        allowed_texts.push(format!("one of {}", quote_all(&names)));
    }
    for choice in choices.iter().filter(|choice| choice.get("const").is_none()) {
        let title = choice.get("format").and_then(|_| choice.get("title")).and_then(Value::as_str);
        allowed_texts.push(match (title, choice.get("type").and_then(Value::as_str).unwrap_or_default()) {
            (Some(title), _) => format!("{title} in quotes"),
            (_, "integer") => "a whole number".into(),
            (_, "number") => "a number".into(),
            (_, kind) => with_article(kind).into(),
        });
    }
    allowed_texts.join(" or ")
}

fn quote_all(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns the probable duration for a number without a unit, or else an example.
fn example(choices: &[&Value], value: &DeValue<'_>) -> Option<String> {
    let duration =
        choices.iter().any(|choice| choice.get("format").is_some_and(|name| *name == "plimsoll-duration"));
    match value {
        DeValue::Integer(number) if duration => {
            let number = number.as_str().replace('_', "");
            number.parse::<u64>().ok().map(|number| format!("\"{number}s\" or \"{number}ms\""))
        }
        _ => choices.iter().find_map(|choice| first_example(choice)),
    }
}

fn first_example(schema: &Value) -> Option<String> {
    Some(schema.get("examples")?.get(0)?.to_string())
}

fn check_text(
    accepted: &[&Value],
    key: &str,
    text: &str,
    span: &std::ops::Range<usize>,
) -> Option<ConfigDiagnostic> {
    let names: Vec<&str> = accepted.iter().filter_map(|choice| choice.get("const")?.as_str()).collect();
    if names.contains(&text) {
        return None;
    }
    let Some(free_choice) = accepted.iter().find(|choice| choice.get("const").is_none()) else {
        let noun = accepted.iter().find_map(|choice| choice.get("x-noun")?.as_str()).unwrap_or(key);
        // The strategy `expression` exists, too, though its name alone does not suffice.
        let table_form = Some(EXPRESSION.name).filter(|_| noun == "strategy");
        let names: Vec<&str> = names.into_iter().chain(table_form).collect();
        let message = format!("unknown {noun} {}", quoted(text));
        return Some(ConfigDiagnostic::error(span.clone(), message).hint(suggest::hint(text, &names)));
    };
    let format = free_choice.get("format").and_then(Value::as_str).unwrap_or_default();
    if let Err(error) = text::check(format, text) {
        let displayed =
            if text::is_secret(format) { "the value".to_owned() } else { quoted(text).to_string() };
        let problem = ConfigDiagnostic::error(span.clone(), format!("{}: {displayed} {error}", quoted(key)));
        let hint = match (free_choice.get("title").and_then(Value::as_str), first_example(free_choice)) {
            (Some(title), Some(example)) => format!("{title}, such as {example}"),
            _ => String::new(),
        };
        return Some(problem.hint(hint));
    }
    check_time_span(free_choice, key, text, span)
}

/// Returns the problem of a duration outside its bounds.
fn check_time_span(
    schema: &Value,
    key: &str,
    text: &str,
    text_span: &std::ops::Range<usize>,
) -> Option<ConfigDiagnostic> {
    let bound_of = |name: &str| schema.get(name)?.as_str()?.parse::<TimeSpan>().ok();
    let span = text.parse::<TimeSpan>().ok();
    let (min, max) = (bound_of("x-minimum"), bound_of("x-maximum"));
    if let (Some(span), Some(min)) = (span, min)
        && span < min
    {
        return Some(ConfigDiagnostic::error(
            text_span.clone(),
            format!("{} must be at least {min}", quoted(key)),
        ));
    }
    if let (Some(span), Some(max)) = (span, max)
        && span > max
    {
        return Some(ConfigDiagnostic::error(
            text_span.clone(),
            format!("{} must be at most {max}", quoted(key)),
        ));
    }
    None
}

fn check_number(
    schema: &Value,
    key: &str,
    value: &DeValue<'_>,
    span: &std::ops::Range<usize>,
) -> Option<ConfigDiagnostic> {
    let error =
        |message: String| Some(ConfigDiagnostic::error(span.clone(), format!("{} {message}", quoted(key))));
    let number = match value {
        DeValue::Integer(digits) => {
            match i64::from_str_radix(&digits.as_str().replace('_', ""), digits.radix()) {
                Ok(number) => number as f64,
                Err(_) => return error("is a number that is too large".into()),
            }
        }
        DeValue::Float(digits) => digits.as_str().replace('_', "").parse::<f64>().unwrap_or(f64::NAN),
        _ => return None,
    };
    if !number.is_finite() {
        return error("must be a finite number".into());
    }
    let bound_of = |name: &str| schema.get(name).filter(|limit| limit.is_number());
    if let Some(min) = bound_of("minimum")
        && min.as_f64().is_some_and(|min| number < min)
    {
        return error(format!("must be at least {min}"));
    }
    if let Some(max) = bound_of("maximum")
        && max.as_f64().is_some_and(|max| number > max)
    {
        return error(format!("must be at most {max}"));
    }
    None
}
