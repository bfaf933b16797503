//! Expressions of the file: a member's load, and its weight. Each is checked against the language, and
//! against the known figures of members. An error has its place inside the text, on the line of the file.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use plimsoll_cluster::{self as cluster, Expression};

use super::diagnostic::{ConfigDiagnostic, quoted};
use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{GroupConfig, MonitorConfig};

/// An expression as written. It is checked with the rest of the file, where its place is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionText(pub String);

text! {
    ExpressionText,
    format: "plimsoll-expression",
    what: "a name or an expression",
    example: "cpu * 0.7 + in_flight / 100",
}

impl FromStr for ExpressionText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.len() {
            _ if text.trim().is_empty() => Err("is empty".into()),
            ..=cluster::MAX_EXPRESSION_LENGTH => Ok(Self(text.into())),
            _ => Err(format!("is too long: at most {} characters", cluster::MAX_EXPRESSION_LENGTH)),
        }
    }
}

impl fmt::Display for ExpressionText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl ExpressionText {
    /// Returns the expression on one line, for messages.
    fn line(&self) -> String {
        quoted(&self.0.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Returns the place of a part of it in the file; that of all of it if the file writes it with escapes.
    fn part_span(&self, part: Range<usize>, spot: &SpanTree, text: &str) -> Range<usize> {
        let whole = spot.value_span();
        let written = text.get(whole.clone()).unwrap_or_default();
        let quotes = if written.starts_with("\"\"\"") || written.starts_with("'''") { 3 } else { 1 };
        let Some(inside) = written.get(quotes..) else { return whole };
        // A line that ends with the quotes is not of the text.
        let ended =
            ["\r\n", "\n"].into_iter().filter(|_| quotes == 3).find_map(|end| inside.strip_prefix(end));
        let inside = ended.unwrap_or(inside);
        if !inside.starts_with(&self.0) {
            return whole;
        }
        let start = whole.end - inside.len();
        start + part.start..start + part.end
    }

    /// Returns the place of a name in it.
    fn find(&self, name: &str) -> Range<usize> {
        let part = |byte: Option<&u8>| {
            byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_.:".contains(byte))
        };
        let bytes = self.0.as_bytes();
        let alone = |(at, _): &(usize, &str)| {
            let before = at.checked_sub(1).and_then(|before| bytes.get(before));
            !part(before) && !part(bytes.get(at + name.len()))
        };
        let found = self.0.match_indices(name).find(alone);
        found.map_or(0..self.0.len(), |(at, _)| at..at + name.len())
    }
}

/// Returns the parsed expression, if it is valid.
pub(super) fn check(
    formula: &ExpressionText,
    spot: &SpanTree,
    text: &str,
    found: &mut Vec<ConfigDiagnostic>,
) -> Option<Expression> {
    match Expression::new(&formula.0) {
        Ok(expression) => Some(expression),
        Err(fault) => {
            let message = format!("{} is not an expression: {}", formula.line(), fault.why);
            let problem = ConfigDiagnostic::error(formula.part_span(fault.span, spot, text), message);
            found.push(problem.hint("such as cpu * 0.7 + in_flight / 100"));
            None
        }
    }
}

/// Checks that a metric is a load whose source can know it.
pub(super) fn check_metric(
    monitor: &MonitorConfig,
    spot: &SpanTree,
    text: &str,
    found: &mut Vec<ConfigDiagnostic>,
) {
    let (metric, at) = (&monitor.metric, spot.key("metric"));
    let Some(expression) = check(metric, at, text, found) else { return };
    if expression.names().is_empty() {
        let message = format!("{} is the same for all members: no load can be told by it", metric.line());
        let hint = "name what members differ in, such as cpu * 0.7 + in_flight / 100";
        found.push(ConfigDiagnostic::error(at.value_span(), message).hint(hint));
    }
    if spot.is_broken("source") || !monitor.source.is_passive() {
        return;
    }
    if let Some(name) = expression.names().iter().find(|name| !cluster::is_local_metric(name)) {
        let written = spot.has_key("metric");
        let at = if written {
            metric.part_span(metric.find(name), at, text)
        } else {
            spot.key("source").value_span()
        };
        found.push(unknown(name, at));
    }
}

/// Checks that members can have a weight by the expression.
pub(super) fn check_weight(
    group: &GroupConfig,
    spot: &SpanTree,
    text: &str,
    found: &mut Vec<ConfigDiagnostic>,
) {
    let Some(weight) = group.strategy.weight() else { return };
    let at = spot.key("strategy").key("expression").key("weight");
    let Some(expression) = check(&weight, at, text, found) else { return };
    let passive = group.monitor.as_ref().is_some_and(|monitor| monitor.source.is_passive());
    if !passive || spot.key("monitor").is_broken("source") {
        return;
    }
    // An unknown name does no harm if the expression has a substitute for it.
    let known = |value: f64| expression.eval(|name| cluster::is_local_metric(name).then_some(value));
    let strange = expression.names().iter().find(|name| !cluster::is_local_metric(name));
    if let Some(name) = strange.filter(|_| [0.5, 1.0, 3.0].into_iter().all(|value| known(value).is_err())) {
        found.push(unknown(name, weight.part_span(weight.find(name), at, text)));
    }
}

/// Returns the error for a name without a source.
fn unknown(name: &str, at: Range<usize>) -> ConfigDiagnostic {
    let problem =
        ConfigDiagnostic::error(at, format!("{} is not known: the source is `passive`", quoted(name)));
    problem.hint(format!("the balancer's own figures: {}", cluster::LOCAL_METRIC_NAMES.join(", ")))
}
