//! The problems of a file, with place and remedy: rendered with the line and a caret under it.

use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::pluralize;

/// A text and its name.
#[derive(Debug)]
pub struct SourceText {
    name: String,
    text: String,
    /// The offset at which each line begins; the first is 0.
    lines: Vec<usize>,
}

/// A position for people: both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TextPosition {
    pub line: usize,
    pub column: usize,
}

impl SourceText {
    /// Returns a source; `name` is its name in errors.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let lines =
            std::iter::once(0).chain(text.match_indices('\n').map(|(offset, _)| offset + 1)).collect();
        Self { name: name.into(), text, lines }
    }

    /// Returns its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all of its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the place of `offset`; offsets beyond the end are the end.
    pub fn position(&self, offset: usize) -> TextPosition {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.lines.partition_point(|start| *start <= offset) - 1;
        TextPosition { line: line + 1, column: self.text[self.lines[line]..offset].chars().count() + 1 }
    }

    /// Returns a line without its end.
    fn line(&self, number: usize) -> &str {
        let start = self.lines[number - 1];
        let end = self.lines.get(number).map_or(self.text.len(), |next_start| next_start - 1);
        let line = &self.text[start..end];
        line.strip_suffix('\r').unwrap_or(line)
    }
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but hardly does what was meant.
    Warning,
}

/// One problem of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigDiagnostic {
    /// Whether the file can be used nevertheless.
    pub severity: Severity,
    /// The bytes of the source.
    pub span: Range<usize>,
    /// One line: the mistake.
    pub message: String,
    /// One line: the remedy.
    pub hint: Option<String>,
    /// Another place that is part of the problem.
    pub related: Option<(Range<usize>, String)>,
}

impl ConfigDiagnostic {
    /// Returns an error.
    pub fn error(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, span, message: message.into(), hint: None, related: None }
    }

    /// Returns a warning.
    pub fn warning(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    /// Adds the remedy.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds another place.
    pub fn with_related(mut self, span: Range<usize>, label: impl Into<String>) -> Self {
        self.related = Some((span, label.into()));
        self
    }
}

/// All problems of one source, in the order of the text.
#[derive(Clone, Debug)]
pub struct ConfigDiagnostics {
    source: Arc<SourceText>,
    diagnostics: Vec<ConfigDiagnostic>,
    /// The number of problems found beyond those in the list.
    omitted_count: usize,
}

/// The maximum number of problems in the list: more help no reader.
const MAX_LISTED: usize = 50;

/// The longest stretch of a source line that is shown.
const MAX_WIDTH: usize = 100;

impl ConfigDiagnostics {
    /// Sorts `list`.
    pub fn new(source: Arc<SourceText>, mut diagnostics: Vec<ConfigDiagnostic>) -> Self {
        diagnostics.sort_by_key(|problem| (problem.severity, problem.span.start, problem.span.end));
        diagnostics.dedup();
        let omitted_count = diagnostics.len().saturating_sub(MAX_LISTED);
        diagnostics.truncate(MAX_LISTED);
        diagnostics.sort_by_key(|problem| (problem.span.start, problem.span.end));
        Self { source, diagnostics, omitted_count }
    }

    /// Returns these, and others of the same source.
    pub fn merge(self, other: Self) -> Self {
        let omitted_count = self.omitted_count + other.omitted_count;
        let mut merged = Self::new(self.source, [self.diagnostics, other.diagnostics].concat());
        merged.omitted_count += omitted_count;
        merged
    }

    /// Returns `true` if the file cannot be used.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Returns the number of problems of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.diagnostics.iter().filter(|problem| problem.severity == severity).count()
    }

    /// Returns the problems in the order of the text.
    pub fn list(&self) -> &[ConfigDiagnostic] {
        &self.diagnostics
    }

    /// Returns the first error alone, on one line: for logs and banners.
    pub fn headline(&self) -> String {
        let mut line = match self.diagnostics.iter().find(|problem| problem.severity == Severity::Error) {
            Some(first) => format!("{}: {}", self.locate(&first.span), first.message),
            None => format!("{}: ok", self.source.name),
        };
        let other_errors = self.count(Severity::Error).saturating_sub(1) + self.omitted_count;
        if other_errors > 0 {
            let _ = write!(line, " (and {other_errors} more)");
        }
        line
    }

    /// Returns the first error with its remedy and without its place, for a text that is not a file.
    pub fn first(&self) -> String {
        let first_problem = self.diagnostics.iter().find(|problem| problem.severity == Severity::Error);
        first_problem.map_or_else(String::new, |problem| match &problem.hint {
            Some(hint) => format!("{}: {}", problem.message, hint.replace("   ", "; ")),
            None => problem.message.clone(),
        })
    }

    /// Returns the place and the message of the first error, if it has no hint.
    pub fn first_without_hint(&self) -> Option<(usize, &str)> {
        let first = self.diagnostics.iter().find(|problem| problem.severity == Severity::Error);
        first.filter(|problem| problem.hint.is_none()).map(|problem| (problem.span.start, &*problem.message))
    }

    /// Returns each on one line, for logs.
    pub fn lines(&self) -> Vec<String> {
        self.diagnostics
            .iter()
            .map(|problem| format!("{}: {}", self.locate(&problem.span), problem.message))
            .collect()
    }

    /// Returns one object per problem, for programs.
    pub fn to_json(&self) -> Vec<DiagnosticRow> {
        let row = |problem: &ConfigDiagnostic| {
            let (start, end) =
                (self.source.position(problem.span.start), self.source.position(problem.span.end));
            DiagnosticRow {
                severity: problem.severity,
                line: start.line,
                column: start.column,
                end_line: end.line,
                end_column: end.column,
                message: problem.message.clone(),
                hint: problem.hint.clone(),
            }
        };
        self.diagnostics.iter().map(row).collect()
    }

    fn locate(&self, span: &Range<usize>) -> String {
        let position = self.source.position(span.start);
        format!("{}:{}:{}", self.source.name, position.line, position.column)
    }

    /// Writes the line of `at` with carets under it, and a label behind them.
    fn excerpt(&self, out: &mut fmt::Formatter<'_>, span: &Range<usize>, label: &str) -> fmt::Result {
        let position = self.source.position(span.start);
        let line: Vec<char> = masked_line(&self.source, position.line).chars().map(visible_char).collect();
        let end_position = self.source.position(span.end.max(span.start));
        let end = if end_position.line == position.line { end_position.column - 1 } else { line.len() };
        let start = (position.column - 1).min(line.len());
        let visible_start = if line.len() <= MAX_WIDTH { 0 } else { start.saturating_sub(MAX_WIDTH / 3) };
        let visible_end = line.len().min(visible_start + MAX_WIDTH);
        let carets = end.min(visible_end).saturating_sub(start).max(1);
        let (left_ellipsis, right_ellipsis) =
            (if visible_start > 0 { "…" } else { "" }, if visible_end < line.len() { "…" } else { "" });
        let text: String = line[visible_start..visible_end].iter().collect();
        writeln!(
            out,
            "{}",
            format!("{:>5} | {left_ellipsis}{text}{right_ellipsis}", position.line).trim_end()
        )?;
        let indent = start - visible_start + left_ellipsis.chars().count();
        let line = format!("      | {:indent$}{} {label}", "", "^".repeat(carets));
        writeln!(out, "{}", line.trim_end())
    }
}

/// Returns a line as it may be shown: values of `headers` in `[tracing]` are secrets, and stars stand for
/// them. The text may be invalid, so it is examined line by line.
fn masked_line(source: &SourceText, number: usize) -> String {
    let line = source.line(number);
    let is_header = |number: &usize| {
        let header_text = source.line(*number).trim_start().strip_prefix('[');
        header_text
            .is_some_and(|header_text| header_text.starts_with(|c: char| c == '[' || c.is_ascii_alphabetic()))
    };
    let header =
        (1..=number).rev().find(is_header).map(|line_index| source.line(line_index).trim().to_owned());
    // The list may go over several lines.
    let is_list_line = line.contains("headers") || line.trim_start().starts_with(['"', '\'', '[', ']']);
    let is_in_tracing = header.is_some_and(|header| header.starts_with("[tracing"));
    // `tracing = { … }`, and `tracing.headers`, stand before any table.
    let is_tracing_line = line.trim_start().starts_with("tracing");
    if (is_list_line && is_in_tracing) || is_tracing_line { masked_quotes(line) } else { line.to_owned() }
}

/// Returns a line with stars for text in quotes; the name of a field before its colon stays.
fn masked_quotes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(quote_start) = rest.find(['"', '\'']) {
        let quote = &rest[quote_start..=quote_start];
        let quoted_text = &rest[quote_start + 1..];
        let end = quoted_text.find(quote).unwrap_or(quoted_text.len());
        let name = quoted_text[..end].find(':').map_or(0, |colon| colon + 1);
        out.push_str(&rest[..=quote_start]);
        out.push_str(&quoted_text[..name]);
        out.extend(
            quoted_text[name..end]
                .chars()
                .map(|character| if character.is_whitespace() { character } else { '*' }),
        );
        rest = &quoted_text[end..];
        // The quote that closes.
        if !rest.is_empty() {
            out.push_str(quote);
            rest = &rest[1..];
        }
    }
    out + rest
}

/// One problem, for programs. Field names are a contract.
#[derive(Debug, Serialize)]
pub struct DiagnosticRow {
    severity: Severity,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    message: String,
    hint: Option<String>,
}

impl fmt::Display for ConfigDiagnostics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.diagnostics {
            let severity = if problem.severity == Severity::Error { "error" } else { "warning" };
            writeln!(out, "{severity}: {}: {}", self.locate(&problem.span), problem.message)?;
            self.excerpt(out, &problem.span, problem.hint.as_deref().unwrap_or_default())?;
            if let Some((related_span, label)) = &problem.related {
                self.excerpt(out, related_span, label)?;
            }
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        let mut summary_parts = Vec::new();
        if errors > 0 {
            summary_parts.push(pluralize(errors, "error"));
        }
        if warnings > 0 {
            summary_parts.push(pluralize(warnings, "warning"));
        }
        if self.omitted_count > 0 {
            summary_parts.push(format!("{} more not shown", self.omitted_count));
        }
        if !summary_parts.is_empty() {
            writeln!(out, "{}", summary_parts.join(", "))?;
        }
        Ok(())
    }
}

/// Returns a word from the file as it may be used in a message: short, and without control characters for a
/// terminal.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut output: String = text.chars().take(LONGEST).map(visible_char).collect();
    if text.chars().nth(LONGEST).is_some() {
        output.push('…');
    }
    format!("`{output}`")
}

/// Replaces characters that would move the cursor, hide text or turn its direction.
fn visible_char(char: char) -> char {
    match char {
        '\t' => ' ',
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            '\u{fffd}'
        }
        _ if char.is_control() => '\u{fffd}',
        _ => char,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_from_one() {
        let source = SourceText::new("x", "a\nüb\r\n");
        assert_eq!(source.position(0), TextPosition { line: 1, column: 1 });
        assert_eq!(source.position(2), TextPosition { line: 2, column: 1 });
        assert_eq!(source.position(3), TextPosition { line: 2, column: 1 }, "inside a character");
        assert_eq!(source.position(4), TextPosition { line: 2, column: 2 });
        assert_eq!(source.position(99), TextPosition { line: 3, column: 1 });
        assert_eq!(source.line(2), "üb");
        assert_eq!(source.line(3), "");
    }

    #[test]
    fn long_lines_and_hostile_bytes_are_tamed() {
        let text = format!("{}= \"\u{1b}[2J\u{202e}\"", "k".repeat(300));
        let source = Arc::new(SourceText::new("x.toml", text));
        let problem =
            ConfigDiagnostic::error(300..301, format!("unknown key {}", quoted("\u{1b}[31m"))).hint("no");
        let rendered = ConfigDiagnostics::new(source, vec![problem]).to_string();
        assert!(!rendered.contains('\u{1b}') && !rendered.contains('\u{202e}'), "{rendered}");
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines[1].chars().count() < 120, "{rendered}");
        let caret = lines[2].chars().position(|char| char == '^').unwrap();
        assert_eq!(lines[1].chars().nth(caret), Some('='), "{rendered}");
    }

    #[test]
    fn values_of_header_fields_are_not_shown() {
        let text = "[tracing]\nheaders = [\n  \"authorization: Bearer SECRET\", 'x:SECRET' oops\n]\n[a]\nb = \
            \"c:SHOWN\" oops\n";
        let source = Arc::new(SourceText::new("x.toml", text));
        let span_of = |word: &str| text.find(word).map(|offset| offset..offset + 4).unwrap();
        let last_span = text.rfind("oops").map(|offset| offset..offset + 4).unwrap();
        let diagnostics =
            vec![ConfigDiagnostic::error(span_of("oops"), "no"), ConfigDiagnostic::error(last_span, "no")];
        let rendered = ConfigDiagnostics::new(source, diagnostics).to_string();
        assert!(!rendered.contains("SECRET") && rendered.contains("c:SHOWN"), "{rendered}");
        assert!(rendered.contains("\"authorization: ****** ******\", 'x:******' oops"), "{rendered}");
        // The caret is still at its place.
        let lines: Vec<&str> = rendered.lines().collect();
        assert_eq!(lines[1].find("oops"), lines[2].find('^'), "{rendered}");
    }

    #[test]
    fn errors_are_kept_before_warnings_when_there_are_too_many() {
        let source = Arc::new(SourceText::new("x", "abc"));
        let mut diagnostics: Vec<ConfigDiagnostic> =
            (0..MAX_LISTED + 9).map(|n| ConfigDiagnostic::warning(0..1, format!("{n}"))).collect();
        diagnostics.push(ConfigDiagnostic::error(2..3, "real"));
        let problems = ConfigDiagnostics::new(source, diagnostics);
        assert!(problems.has_errors());
        assert!(problems.to_string().contains("10 more not shown"));
        assert!(problems.headline().starts_with("x:1:3: real"), "{}", problems.headline());
    }
}
