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
//! - `properties`, `required`, `additionalProperties: false`, `minProperties`, `maxProperties`
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
    let mut walk = SchemaWalk { root: schema, problems: Vec::new(), path: Vec::new() };
    let span = table.span();
    let root = Spanned::new(span.clone(), DeValue::Table(table.into_inner()));
    match walk.value(schema, "file", root) {
        Some((value, spot)) => match value.into_inner() {
            DeValue::Table(table) => (table, spot, walk.problems),
            _ => (DeTable::new(), spot, walk.problems),
        },
        None => (DeTable::new(), SpanTree::new(span), walk.problems),
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
        let fitting: Vec<&Value> = choices.iter().copied().filter(|choice| accepts(choice, kind)).collect();
        let Some(&first) = fitting.first() else {
            let message =
                format!("{} must be {}, not {}", quoted(key), expected(&choices), with_article(kind));
            let mut problem = ConfigDiagnostic::error(value.span(), message);
            if let Some(list) = self.as_list(&choices, value.get_ref()) {
                problem = problem.hint(format!("write {list}"));
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
                if let Some(problem) = wrong_text(&fitting, key, text, &span) {
                    self.problems.push(problem);
                    return None;
                }
            }
            DeValue::Integer(_) | DeValue::Float(_) => {
                if let Some(problem) = wrong_number(first, key, value.get_ref(), &span) {
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
        let mut spot = SpanTree::new(span.clone());
        let mut kept = DeTable::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        let allowed: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let noun = schema.get("x-noun").and_then(Value::as_str);
        let mut meant = Vec::new();
        let count = table.len();
        for (name, inner) in table {
            let Some(property) = properties.and_then(|all| all.get(name.get_ref().as_ref())) else {
                spot.mark_broken(name.get_ref());
                if let Some(new) = renamed::new_name(&self.path, name.get_ref()) {
                    let message = format!("{} is called `{new}`", quoted(name.get_ref()));
                    self.problems.push(ConfigDiagnostic::error(name.span(), message));
                    // Its value is left out, so that nothing can be concluded from the new key either.
                    spot.mark_broken(new);
                    continue;
                }
                meant.extend(suggest::nearest(name.get_ref(), &allowed));
                self.problems.push(self.unknown(noun, name.get_ref(), name.span(), &allowed));
                continue;
            };
            let key = name.get_ref().clone();
            self.path.push(key.to_string());
            let checked = self.value(property, &key, inner);
            self.path.pop();
            match checked {
                Some((inner, below)) => {
                    if below.is_broken("") {
                        spot.mark_broken(&key);
                    }
                    spot.insert(&key, name.span(), below);
                    kept.insert(name, inner);
                }
                None => spot.mark_broken(&key),
            }
        }
        // A misspelt key is not missing, and a wrong one was reported.
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required = required.filter_map(Value::as_str);
        // Another key may replace it.
        let unless = schema.get("x-required").and_then(Value::as_object).into_iter().flatten();
        let there =
            |other: &Value| other.as_str().is_some_and(|other| spot.has_key(other) || spot.is_broken(other));
        let unless = unless.filter(|(_, others)| !others.as_array().into_iter().flatten().any(there));
        let unless = unless.map(|(name, others)| (name.as_str(), others));
        let required: Vec<&str> = required.chain(unless.map(|(name, _)| name)).collect();
        let mut whole = true;
        for name in required.into_iter().filter(|name| !spot.has_key(name)) {
            whole = false;
            if !spot.is_broken(name) && !meant.contains(&name) {
                let message = format!("missing key `{name}` {}", self.section());
                let hint = properties
                    .and_then(|all| all.get(name))
                    .map(|property| self.example_line(name, property));
                let mut problem = ConfigDiagnostic::error(span.clone(), message);
                problem.hint = hint;
                self.problems.push(problem);
            }
        }
        let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
        let too_many = bound("maxProperties").is_some_and(|most| count as u64 > most);
        let too_few = bound("minProperties").is_some_and(|least| (count as u64) < least);
        if too_many || too_few {
            let what = noun.unwrap_or("key");
            let message = format!("{} must name exactly one {what}, not {count}", quoted(key));
            self.problems.push(ConfigDiagnostic::error(span.clone(), message));
            whole = false;
        }
        whole &= noun.is_none() || kept.len() == count;
        whole.then(|| (Spanned::new(span, DeValue::Table(kept)), spot))
    }

    fn array<'i>(&mut self, schema: &'s Value, key: &str, value: Spanned<DeValue<'i>>) -> CheckedNode<'i> {
        let span = value.span();
        let DeValue::Array(array) = value.into_inner() else { return None };
        let mut spot = SpanTree::new(span.clone());
        if schema.get("minItems").and_then(Value::as_u64).is_some_and(|least| (array.len() as u64) < least) {
            self.problems.push(ConfigDiagnostic::error(span, format!("{} must not be empty", quoted(key))));
            return None;
        }
        let mut kept = toml::de::DeArray::new();
        for inner in array {
            let checked = match schema.get("items") {
                Some(items) => self.value(items, key, inner),
                None => None,
            };
            match checked {
                Some((inner, below)) => {
                    kept.push(inner);
                    spot.push(below);
                }
                // A mark that `table` reads: a part of this array has been left out.
                None => spot.mark_broken(""),
            }
        }
        Some((Spanned::new(span, DeValue::Array(kept)), spot))
    }

    /// Collects the alternatives of a schema, references followed.
    fn choices(&self, schema: &'s Value, into: &mut Vec<&'s Value>) {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(target) = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) {
                self.choices(target, into);
            }
            return;
        }
        match ["anyOf", "oneOf"].iter().find_map(|word| schema.get(word)?.as_array()) {
            Some(list) => list.iter().for_each(|choice| self.choices(choice, into)),
            None => into.push(schema),
        }
    }

    fn unknown(
        &self,
        noun: Option<&str>,
        name: &str,
        at: std::ops::Range<usize>,
        allowed: &[&str],
    ) -> ConfigDiagnostic {
        if let Some(noun) = noun {
            return ConfigDiagnostic::error(at, format!("unknown {noun} {}", quoted(name)))
                .hint(suggest::hint(name, allowed));
        }
        let hint = match self.path.last().filter(|_| allowed.is_empty()) {
            Some(table) => format!("{} has no settings: take it out", quoted(table)),
            None => suggest::hint(name, allowed),
        };
        ConfigDiagnostic::error(at, format!("unknown key {} {}", quoted(name), self.section())).hint(hint)
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
        let mut inner = Vec::new();
        self.choices(items, &mut inner);
        if !inner.iter().any(|choice| accepts(choice, kind(value))) {
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
            let mut inner = Vec::new();
            self.choices(items, &mut inner);
            return inner
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
    let wanted = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    wanted == kind || (wanted == "number" && kind == "integer")
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
    let mut words: Vec<String> = Vec::new();
    let names: Vec<&str> = choices.iter().filter_map(|choice| choice.get("const")?.as_str()).collect();
    if !names.is_empty() {
        words.push(format!("one of {}", quote_all(&names)));
    }
    for choice in choices.iter().filter(|choice| choice.get("const").is_none()) {
        let title = choice.get("format").and_then(|_| choice.get("title")).and_then(Value::as_str);
        words.push(match (title, choice.get("type").and_then(Value::as_str).unwrap_or_default()) {
            (Some(title), _) => format!("{title} in quotes"),
            (_, "integer") => "a whole number".into(),
            (_, "number") => "a number".into(),
            (_, kind) => with_article(kind).into(),
        });
    }
    words.join(" or ")
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

fn wrong_text(
    fitting: &[&Value],
    key: &str,
    text: &str,
    span: &std::ops::Range<usize>,
) -> Option<ConfigDiagnostic> {
    let names: Vec<&str> = fitting.iter().filter_map(|choice| choice.get("const")?.as_str()).collect();
    if names.contains(&text) {
        return None;
    }
    let Some(free) = fitting.iter().find(|choice| choice.get("const").is_none()) else {
        let noun = fitting.iter().find_map(|choice| choice.get("x-noun")?.as_str()).unwrap_or(key);
        // The strategy `expression` exists, too, though its name alone does not suffice.
        let tabled = Some(EXPRESSION.name).filter(|_| noun == "strategy");
        let names: Vec<&str> = names.into_iter().chain(tabled).collect();
        let message = format!("unknown {noun} {}", quoted(text));
        return Some(ConfigDiagnostic::error(span.clone(), message).hint(suggest::hint(text, &names)));
    };
    let format = free.get("format").and_then(Value::as_str).unwrap_or_default();
    if let Err(why) = text::check(format, text) {
        let shown = if text::is_secret(format) { "the value".to_owned() } else { quoted(text).to_string() };
        let problem = ConfigDiagnostic::error(span.clone(), format!("{}: {shown} {why}", quoted(key)));
        let hint = match (free.get("title").and_then(Value::as_str), first_example(free)) {
            (Some(title), Some(example)) => format!("{title}, such as {example}"),
            _ => String::new(),
        };
        return Some(problem.hint(hint));
    }
    wrong_span(free, key, text, span)
}

/// Returns the problem of a duration outside its bounds.
fn wrong_span(
    schema: &Value,
    key: &str,
    text: &str,
    at: &std::ops::Range<usize>,
) -> Option<ConfigDiagnostic> {
    let bound = |name: &str| schema.get(name)?.as_str()?.parse::<TimeSpan>().ok();
    let span = text.parse::<TimeSpan>().ok();
    let (least, most) = (bound("x-minimum"), bound("x-maximum"));
    if let (Some(span), Some(least)) = (span, least)
        && span < least
    {
        return Some(ConfigDiagnostic::error(
            at.clone(),
            format!("{} must be at least {least}", quoted(key)),
        ));
    }
    if let (Some(span), Some(most)) = (span, most)
        && span > most
    {
        return Some(ConfigDiagnostic::error(at.clone(), format!("{} must be at most {most}", quoted(key))));
    }
    None
}

fn wrong_number(
    schema: &Value,
    key: &str,
    value: &DeValue<'_>,
    span: &std::ops::Range<usize>,
) -> Option<ConfigDiagnostic> {
    let error = |what: String| Some(ConfigDiagnostic::error(span.clone(), format!("{} {what}", quoted(key))));
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
    let bound = |name: &str| schema.get(name).filter(|bound| bound.is_number());
    if let Some(least) = bound("minimum")
        && least.as_f64().is_some_and(|least| number < least)
    {
        return error(format!("must be at least {least}"));
    }
    if let Some(most) = bound("maximum")
        && most.as_f64().is_some_and(|most| number > most)
    {
        return error(format!("must be at most {most}"));
    }
    None
}
