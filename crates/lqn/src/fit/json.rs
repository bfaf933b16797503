//! Parses JSON of one form, a list of objects whose values are numbers, and records the position of each
//! number.

use super::records::{MeasuredField, MeasurementRecord, error_at};
use crate::read::InputError;

/// The largest number of rows.
const MAX_ROWS: usize = 100_000;

pub(super) fn records(source: &str) -> Result<Vec<MeasurementRecord>, InputError> {
    let mut reader = JsonReader { rest: source, line: 1, column: 1 };
    let mut records = Vec::new();
    if reader.accept('[') {
        loop {
            records.push(reader.object()?);
            if records.len() > MAX_ROWS {
                return Err(reader.error(format!("more than {MAX_ROWS} rows")));
            }
            if reader.accept(']') {
                break;
            }
            if !reader.accept(',') {
                return Err(reader.error("expected `,` or `]`"));
            }
        }
    } else {
        records.push(reader.object()?);
    }
    reader.skip();
    if reader.rest.is_empty() { Ok(records) } else { Err(reader.error("more after the end")) }
}

struct JsonReader<'s> {
    rest: &'s str,
    line: usize,
    column: usize,
}

impl<'s> JsonReader<'s> {
    fn error(&self, message: impl Into<String>) -> InputError {
        error_at(self.line, self.column, message)
    }

    /// Consumes this number of bytes, which are whole characters.
    fn advance(&mut self, bytes: usize) -> &'s str {
        let (consumed, rest) = self.rest.split_at(bytes);
        for c in consumed.chars() {
            (self.line, self.column) =
                if c == '\n' { (self.line + 1, 1) } else { (self.line, self.column + 1) };
        }
        self.rest = rest;
        consumed
    }

    fn skip(&mut self) {
        let space = self.rest.len() - self.rest.trim_start().len();
        self.advance(space);
    }

    fn accept(&mut self, symbol: char) -> bool {
        self.skip();
        let is_next = self.rest.starts_with(symbol);
        if is_next {
            self.advance(symbol.len_utf8());
        }
        is_next
    }

    fn object(&mut self) -> Result<MeasurementRecord, InputError> {
        if !self.accept('{') {
            return Err(
                self.error("expected `{`: measurements are a list of objects with a number for each name")
            );
        }
        let mut record: MeasurementRecord = Vec::new();
        if self.accept('}') {
            return Ok(record);
        }
        loop {
            self.skip();
            let (line, column) = (self.line, self.column);
            let name = self.text()?;
            if record.iter().any(|field| field.name == name) {
                return Err(error_at(line, column, format!("`{name}` stands there twice")));
            }
            if !self.accept(':') {
                return Err(self.error("expected `:`"));
            }
            record.extend(self.number(name)?);
            if self.accept('}') {
                return Ok(record);
            }
            if !self.accept(',') {
                return Err(self.error("expected `,` or `}`"));
            }
        }
    }

    fn text(&mut self) -> Result<String, InputError> {
        let closing_quote = |text: &str| {
            let mut escaped = false;
            text.char_indices().skip(1).find_map(|(index, c)| {
                let is_closing = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                is_closing.then_some(index)
            })
        };
        if !self.rest.starts_with('"') {
            return Err(self.error("expected a name between quotes"));
        }
        let Some(end) = closing_quote(self.rest) else { return Err(self.error("a text that does not end")) };
        let (line, column) = (self.line, self.column);
        let inner = &self.advance(end + 1)[1..end];
        let mut text = String::new();
        let mut rest = inner.chars();
        while let Some(c) = rest.next() {
            match (c, if c == '\\' { rest.next() } else { None }) {
                ('\\', Some(escaped @ ('"' | '\\' | '/'))) => text.push(escaped),
                ('\\', _) => return Err(error_at(line, column, "names have no escapes but \\\" and \\\\")),
                (c, _) => text.push(c),
            }
        }
        Ok(text)
    }

    /// Parses a number; `None` for `null`.
    fn number(&mut self, name: String) -> Result<Option<MeasuredField>, InputError> {
        self.skip();
        let (line, column) = (self.line, self.column);
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        if end == 0 {
            return Err(self.error(format!("expected a number for `{name}`")));
        }
        let text = self.advance(end);
        if text == "null" {
            return Ok(None);
        }
        let value = text.parse().ok().filter(|value: &f64| value.is_finite());
        let value = value.ok_or_else(|| error_at(line, column, format!("`{text}` is no number")))?;
        Ok(Some(MeasuredField { name, value, line, column }))
    }
}
