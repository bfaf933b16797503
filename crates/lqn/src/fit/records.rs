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
    let found =
        if source.trim_start().starts_with(['[', '{']) { json::records(source)? } else { csv(source)? };
    if found.iter().all(Vec::is_empty) {
        return Err(error_at(1, 1, "there are no measurements in it"));
    }
    Ok(found)
}

pub(super) fn error_at(line: usize, column: usize, message: impl Into<String>) -> InputError {
    InputError { line, column, message: message.into() }
}

fn csv(source: &str) -> Result<Vec<MeasurementRecord>, InputError> {
    let mut lines = source.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((at, head)) = lines.next() else { return Err(error_at(1, 1, "it is empty")) };
    let head = fields(head);
    for (place, (name, column)) in head.iter().enumerate() {
        if name.is_empty() {
            return Err(error_at(at + 1, *column, "a column without a name"));
        }
        if head[..place].iter().any(|(own, _)| own == name) {
            return Err(error_at(at + 1, *column, format!("there are two columns `{name}`")));
        }
    }
    let place = |name: &str| head.iter().position(|(own, _)| own == name);
    let long = [place("kind"), place("name"), place("metric"), place("mean")];
    let mut all: Vec<MeasurementRecord> = Vec::new();
    let mut settings: Option<MeasurementRecord> = None;
    for (at, line) in lines {
        let own = fields(line);
        if own.len() > head.len() {
            let (_, column) = &own[head.len()];
            return Err(error_at(
                at + 1,
                *column,
                format!("more fields than the {} of the header", head.len()),
            ));
        }
        let number = |place: usize| -> Result<Option<MeasuredField>, InputError> {
            let Some((text, column)) = own.get(place) else { return Ok(None) };
            if text.is_empty() {
                return Ok(None);
            }
            let value = text.parse().ok().filter(|value: &f64| value.is_finite());
            let value = value.ok_or_else(|| error_at(at + 1, *column, format!("`{text}` is no number")))?;
            Ok(Some(MeasuredField { name: head[place].0.clone(), value, line: at + 1, column: *column }))
        };
        let [Some(kind), Some(name), Some(metric), Some(mean)] = long else {
            let row = (0..head.len()).filter_map(|place| number(place).transpose());
            all.push(row.collect::<Result<_, _>>()?);
            continue;
        };
        // One row per number: rows with the same settings are one observation.
        let half = place("half_width");
        let others =
            (0..head.len()).filter(|at| ![kind, name, metric, mean].contains(at) && Some(*at) != half);
        let set: MeasurementRecord =
            others.filter_map(|place| number(place).transpose()).collect::<Result<_, _>>()?;
        let same = |old: &MeasurementRecord| {
            old.len() == set.len()
                && old.iter().zip(&set).all(|(one, other)| one.name == other.name && one.value == other.value)
        };
        if !settings.as_ref().is_some_and(same) {
            all.push(set.clone());
            settings = Some(set);
        }
        let text = |place: usize| own.get(place).map_or("", |(text, _)| text.as_str());
        let whole = format!("{}.{}.{}", text(kind), text(name), text(metric));
        if let Some(row) = all.last_mut() {
            row.extend(number(mean)?.map(|own| MeasuredField { name: whole.clone(), ..own }));
            let half = half.map(number).transpose()?.flatten();
            row.extend(half.map(|own| MeasuredField { name: format!("{whole}.half_width"), ..own }));
        }
    }
    Ok(all)
}

/// Splits a line of CSV into fields (without line breaks in quotes), each with its first column.
fn fields(line: &str) -> Vec<(String, usize)> {
    let mut all = vec![(String::new(), 1)];
    let mut quoted = false;
    let mut rest = line.chars().enumerate().peekable();
    while let Some((place, c)) = rest.next() {
        match c {
            '"' if quoted && rest.peek().is_some_and(|(_, next)| *next == '"') => {
                rest.next();
                all.last_mut().into_iter().for_each(|(own, _)| own.push('"'));
            }
            '"' => quoted = !quoted,
            ',' if !quoted => all.push((String::new(), place + 2)),
            c => all.last_mut().into_iter().for_each(|(own, _)| own.push(c)),
        }
    }
    for (text, column) in &mut all {
        *column += text.chars().take_while(|c| c.is_whitespace()).count();
        *text = text.trim().to_owned();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short(source: &str) -> Vec<Vec<(String, f64)>> {
        let found = parse_records(source).unwrap_or_else(|why| panic!("{why}"));
        found.into_iter().map(|row| row.into_iter().map(|own| (own.name, own.value)).collect()).collect()
    }

    #[test]
    fn the_same_measurements_in_each_format() {
        let row = |clients: f64, response: f64| {
            vec![("clients".to_owned(), clients), ("task.client.response".to_owned(), response)]
        };
        let wanted = vec![row(1.0, 0.5), row(20.0, 2.5)];
        assert_eq!(short("clients,task.client.response\n1, 0.5\n\n20,2.5\n"), wanted);
        assert_eq!(
            short("kind,name,metric,mean,clients\ntask,client,response,0.5,1\ntask,client,response,2.5,20\n"),
            wanted
        );
        let json = r#"[{"clients": 1, "task.client.response": 5e-1, "x": null},
                       {"clients": 20, "task.client.response": 2.5}]"#;
        assert_eq!(short(json), wanted);
        assert_eq!(short("a,\"b,\"\"c\"\n,2\n"), [[("b,\"c".to_owned(), 2.0)]]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_with_a_place_in_it(text in "[\\[\\]{}\",:.a-c0-9e\\\\ \n-]{0,60}") {
            match parse_records(&text) {
                Ok(all) => prop_assert!(all.iter().flatten().all(|own| own.value.is_finite())),
                Err(why) => prop_assert!(why.line <= text.matches('\n').count() + 1, "{why}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_has_a_place() {
        for (text, why) in [
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
            let found = parse_records(text).unwrap_err().to_string();
            assert!(found.starts_with(why), "{text:?}: {found}");
        }
    }
}
