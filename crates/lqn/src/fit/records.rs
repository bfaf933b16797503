//! Parses measurements: rows of numbers by name, each with its position in the text.
//!
//! CSV (RFC 4180) has a header with the names and a row for each observation, as written by `sweep -o csv`.
//! Or it has the columns kind, name, metric and mean and a row for each number, as written by
//! `simulate -o csv`. JSON is a list of objects, or one object, with the same names. An empty field or `null`
//! was not measured.

use super::json;
use crate::read::InputError;

/// A number with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredField {
    /// The name: `clients`, `client.response`, `processor.core.utilization.half_width`.
    pub name: String,
    /// The number.
    pub value: f64,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl MeasuredField {
    pub(super) fn error(&self, message: impl Into<String>) -> InputError {
        InputError { line: self.line, column: self.column, message: message.into() }
    }
}

/// The numbers of one observation.
pub type MeasurementRecord = Vec<MeasuredField>;

/// Parses a text in either format.
///
/// # Errors
/// Returns the first error with its position, also if there is no number.
pub fn parse_records(source: &str) -> Result<Vec<MeasurementRecord>, InputError> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let records =
        if source.trim_start().starts_with(['[', '{']) { json::records(source)? } else { parse_csv(source)? };
    if records.iter().all(Vec::is_empty) {
        return Err(error_at(1, 1, "there are no measurements in it"));
    }
    Ok(records)
}

pub(super) fn error_at(line: usize, column: usize, message: impl Into<String>) -> InputError {
    InputError { line, column, message: message.into() }
}

fn parse_csv(source: &str) -> Result<Vec<MeasurementRecord>, InputError> {
    let mut lines = source.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((line_index, heading)) = lines.next() else { return Err(error_at(1, 1, "it is empty")) };
    let columns = fields(heading);
    for (index, (name, column)) in columns.iter().enumerate() {
        if name.is_empty() {
            return Err(error_at(line_index + 1, *column, "a column without a name"));
        }
        if columns[..index].iter().any(|(other_name, _)| other_name == name) {
            return Err(error_at(line_index + 1, *column, format!("there are two columns `{name}`")));
        }
    }
    let column_index = |name: &str| columns.iter().position(|(column_name, _)| column_name == name);
    let long_columns =
        [column_index("kind"), column_index("name"), column_index("metric"), column_index("mean")];
    let mut records: Vec<MeasurementRecord> = Vec::new();
    let mut settings: Option<MeasurementRecord> = None;
    for (line_index, line) in lines {
        let line_fields = fields(line);
        if line_fields.len() > columns.len() {
            let (_, column) = &line_fields[columns.len()];
            return Err(error_at(
                line_index + 1,
                *column,
                format!("more fields than the {} of the header", columns.len()),
            ));
        }
        let number = |index: usize| -> Result<Option<MeasuredField>, InputError> {
            let Some((text, column)) = line_fields.get(index) else { return Ok(None) };
            if text.is_empty() {
                return Ok(None);
            }
            let value = text.parse().ok().filter(|value: &f64| value.is_finite());
            let value =
                value.ok_or_else(|| error_at(line_index + 1, *column, format!("`{text}` is no number")))?;
            Ok(Some(MeasuredField {
                name: columns[index].0.clone(),
                value,
                line: line_index + 1,
                column: *column,
            }))
        };
        let [Some(kind), Some(name), Some(metric), Some(mean)] = long_columns else {
            let row_fields = (0..columns.len()).filter_map(|index| number(index).transpose());
            records.push(row_fields.collect::<Result<_, _>>()?);
            continue;
        };
        // One row per number: rows with the same settings are one observation.
        let half_width_column = column_index("half_width");
        let setting_columns = (0..columns.len()).filter(|column| {
            ![kind, name, metric, mean].contains(column) && Some(*column) != half_width_column
        });
        let line_settings: MeasurementRecord =
            setting_columns.filter_map(|index| number(index).transpose()).collect::<Result<_, _>>()?;
        let is_same = |previous: &MeasurementRecord| {
            previous.len() == line_settings.len()
                && previous
                    .iter()
                    .zip(&line_settings)
                    .all(|(left, right)| left.name == right.name && left.value == right.value)
        };
        if !settings.as_ref().is_some_and(is_same) {
            records.push(line_settings.clone());
            settings = Some(line_settings);
        }
        let text = |index: usize| line_fields.get(index).map_or("", |(text, _)| text.as_str());
        let metric_name = format!("{}.{}.{}", text(kind), text(name), text(metric));
        if let Some(row) = records.last_mut() {
            row.extend(number(mean)?.map(|field| MeasuredField { name: metric_name.clone(), ..field }));
            let half_width = half_width_column.map(number).transpose()?.flatten();
            row.extend(
                half_width.map(|field| MeasuredField { name: format!("{metric_name}.half_width"), ..field }),
            );
        }
    }
    Ok(records)
}

/// Splits a line of CSV into fields (without line breaks in quotes), each with its first column.
fn fields(line: &str) -> Vec<(String, usize)> {
    let mut fields = vec![(String::new(), 1)];
    let mut quoted = false;
    let mut rest = line.chars().enumerate().peekable();
    while let Some((index, c)) = rest.next() {
        match c {
            '"' if quoted && rest.peek().is_some_and(|(_, next)| *next == '"') => {
                rest.next();
                fields.last_mut().into_iter().for_each(|(field, _)| field.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push((String::new(), index + 2)),
            c => fields.last_mut().into_iter().for_each(|(field, _)| field.push(c)),
        }
    }
    for (text, column) in &mut fields {
        *column += text.chars().take_while(|c| c.is_whitespace()).count();
        *text = text.trim().to_owned();
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short(source: &str) -> Vec<Vec<(String, f64)>> {
        let records = parse_records(source).unwrap_or_else(|error| panic!("{error}"));
        records
            .into_iter()
            .map(|row| row.into_iter().map(|field| (field.name, field.value)).collect())
            .collect()
    }

    #[test]
    fn the_same_measurements_in_each_format() {
        let row = |clients: f64, response: f64| {
            vec![("clients".to_owned(), clients), ("task.client.response".to_owned(), response)]
        };
        let expected = vec![row(1.0, 0.5), row(20.0, 2.5)];
        assert_eq!(short("clients,task.client.response\n1, 0.5\n\n20,2.5\n"), expected);
        assert_eq!(
            short("kind,name,metric,mean,clients\ntask,client,response,0.5,1\ntask,client,response,2.5,20\n"),
            expected
        );
        let json = r#"[{"clients": 1, "task.client.response": 5e-1, "x": null},
                       {"clients": 20, "task.client.response": 2.5}]"#;
        assert_eq!(short(json), expected);
        assert_eq!(short("a,\"b,\"\"c\"\n,2\n"), [[("b,\"c".to_owned(), 2.0)]]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_with_a_place_in_it(text in "[\\[\\]{}\",:.a-c0-9e\\\\ \n-]{0,60}") {
            match parse_records(&text) {
                Ok(records) => prop_assert!(records.iter().flatten().all(|field| field.value.is_finite())),
                Err(error) => prop_assert!(error.line <= text.matches('\n').count() + 1, "{error}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_has_a_place() {
        for (text, expected) in [
            ("", "1:1: it is empty"),
            ("a\n", "1:1: there are no measurements"),
            ("a,b\n1,  x\n", "2:5: `x` is no number"),
            ("a,b\n1,2,3\n", "2:5: more fields than the 2"),
            ("a,a\n1,2\n", "1:3: there are two columns `a`"),
            ("a,,b\n1,2\n", "1:3: a column without a name"),
            ("a\ninf\n", "2:1: `inf` is no number"),
            ("[{\"a\": 1},\n {\"a\": \"x\"}]", "2:8: expected a number"),
            ("[{\"a\": 1}\n {\"a\": 2}]", "2:2: expected `,` or `]`"),
            ("{\"a\": 1e999}", "1:7: `1e999` is no number"),
            ("{\"a\": 1, \"a\": 2}", "1:10: `a` stands there twice"),
            ("[", "1:2: expected `{`"),
            ("{\"a", "1:2: a text that does not end"),
            ("{\"a\": 1} x", "1:10: more after the end"),
        ] {
            let error = parse_records(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
