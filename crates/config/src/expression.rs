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
    fn part_span(&self, range: Range<usize>, spans: &SpanTree, text: &str) -> Range<usize> {
        let whole_span = spans.value_span();
        let source_text = text.get(whole_span.clone()).unwrap_or_default();
        let quotes = if source_text.starts_with("\"\"\"") || source_text.starts_with("'''") { 3 } else { 1 };
        let Some(quoted_text) = source_text.get(quotes..) else { return whole_span };
        // A line that ends with the quotes is not of the text.
        let without_newline = ["\r\n", "\n"]
            .into_iter()
            .filter(|_| quotes == 3)
            .find_map(|newline| quoted_text.strip_prefix(newline));
        let quoted_text = without_newline.unwrap_or(quoted_text);
        if !quoted_text.starts_with(&self.0) {
            return whole_span;
        }
        let start = whole_span.end - quoted_text.len();
        start + range.start..start + range.end
    }

    /// Returns the place of a name in it.
    fn find(&self, name: &str) -> Range<usize> {
        let is_name_byte = |byte: Option<&u8>| {
            byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_.:".contains(byte))
        };
        let bytes = self.0.as_bytes();
        let stands_alone = |(offset, _): &(usize, &str)| {
            let previous_byte = offset.checked_sub(1).and_then(|previous_byte| bytes.get(previous_byte));
            !is_name_byte(previous_byte) && !is_name_byte(bytes.get(offset + name.len()))
        };
        let occurrence = self.0.match_indices(name).find(stands_alone);
        occurrence.map_or(0..self.0.len(), |(offset, _)| offset..offset + name.len())
    }
}

/// Returns the parsed expression, if it is valid.
pub(super) fn check(
    formula: &ExpressionText,
    spans: &SpanTree,
    text: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<Expression> {
    match Expression::new(&formula.0) {
        Ok(expression) => Some(expression),
        Err(parse_error) => {
            let message = format!("{} is not an expression: {}", formula.line(), parse_error.why);
            let problem = ConfigDiagnostic::error(formula.part_span(parse_error.span, spans, text), message);
            diagnostics.push(problem.hint("such as cpu * 0.7 + in_flight / 100"));
            None
        }
    }
}

/// Checks that a metric is a load whose source can know it.
pub(super) fn check_metric(
    monitor: &MonitorConfig,
    spans: &SpanTree,
    text: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let (metric, metric_spans) = (&monitor.metric, spans.key("metric"));
    let Some(expression) = check(metric, metric_spans, text, diagnostics) else { return };
    if expression.names().is_empty() {
        let message = format!("{} is the same for all members: no load can be told by it", metric.line());
        let hint = "name what members differ in, such as cpu * 0.7 + in_flight / 100";
        diagnostics.push(ConfigDiagnostic::error(metric_spans.value_span(), message).hint(hint));
    }
    if spans.is_broken("source") || !monitor.source.is_passive() {
        return;
    }
    if let Some(name) = expression.names().iter().find(|name| !cluster::is_local_metric(name)) {
        let has_metric = spans.has_key("metric");
        let span = if has_metric {
            metric.part_span(metric.find(name), metric_spans, text)
        } else {
            spans.key("source").value_span()
        };
        diagnostics.push(unknown(name, span));
    }
}

/// Checks that members can have a weight by the expression.
pub(super) fn check_weight(
    group: &GroupConfig,
    spans: &SpanTree,
    text: &str,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let Some(weight) = group.strategy.weight() else { return };
    let weight_spans = spans.key("strategy").key("expression").key("weight");
    let Some(expression) = check(&weight, weight_spans, text, diagnostics) else { return };
    let is_passive = group.monitor.as_ref().is_some_and(|monitor| monitor.source.is_passive());
    if !is_passive || spans.key("monitor").is_broken("source") {
        return;
    }
    // An unknown name does no harm if the expression has a substitute for it.
    let is_local = |value: f64| expression.eval(|name| cluster::is_local_metric(name).then_some(value));
    let unknown_name = expression.names().iter().find(|name| !cluster::is_local_metric(name));
    if let Some(name) =
        unknown_name.filter(|_| [0.5, 1.0, 3.0].into_iter().all(|value| is_local(value).is_err()))
    {
        diagnostics.push(unknown(name, weight.part_span(weight.find(name), weight_spans, text)));
    }
}

/// Returns the error for a name without a source.
fn unknown(name: &str, span: Range<usize>) -> ConfigDiagnostic {
    let problem =
        ConfigDiagnostic::error(span, format!("{} is not known: the source is `passive`", quoted(name)));
    problem.hint(format!("the balancer's own figures: {}", cluster::LOCAL_METRIC_NAMES.join(", ")))
}
