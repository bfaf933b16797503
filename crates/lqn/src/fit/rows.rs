//! Interprets observations by a model: decides which names are settings of the load and which are measured
//! numbers.

use super::records::{MeasuredField, MeasurementRecord};
use super::{ModelFactory, row_error};
use crate::analysis::metric::{METRICS, SIMULATED_ONLY};
use crate::analysis::parameter::{ModelParameter, SUFFIXES};
use crate::analysis::{ACTIVITY, ResultLine, result_lines};
use crate::model::Multiplicity;
use crate::read::InputError;
use crate::{Model, solve};

/// The measurements at one load.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasurementRow {
    /// The line of the row.
    pub line: usize,
    /// The parameters and numbers of the model that were set, with their values.
    pub settings: Vec<(String, f64)>,
    /// The weight relative to other rows; 1 by default.
    pub weight: f64,
    /// The measured numbers.
    pub measured: Vec<MeasuredValue>,
}

/// A measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredValue {
    /// The kind, as in [`crate::analysis::ResultLine::kind`].
    pub kind: &'static str,
    /// The name of the object.
    pub name: String,
    /// The metric, as in [`crate::analysis::ResultLine::metric`].
    pub metric: &'static str,
    /// The value.
    pub value: f64,
    /// Half the width of its 95 % interval, if known.
    pub half_width: Option<f64>,
}

impl MeasuredValue {
    pub(super) fn matches(&self, line: &ResultLine) -> bool {
        self.kind == line.kind && self.name == line.name && self.metric == line.metric
    }
}

/// The interpreted observations, and notes on those that were ignored.
#[derive(Debug)]
pub struct MeasurementRows {
    /// The rows, at least one, each with at least one number.
    pub rows: Vec<MeasurementRow>,
    /// The notes, one sentence each.
    pub notes: Vec<String>,
}

/// The least absolute value of a measured number, setting or parameter, except 0: a time of a picosecond.
pub(super) const MIN_VALUE: f64 = 1e-12;
/// The greatest absolute value; see [`SMALLEST`].
pub(super) const MAX_VALUE: f64 = 1e12;

/// Interprets records by their model. `free` are the names of the parameters to find, which no row may set.
///
/// # Errors
/// Returns an error for names that the model does not have, for invalid values, and if no row has a number.
pub fn interpret_records(
    records: &[MeasurementRecord],
    make: &ModelFactory<'_>,
    free: &[String],
) -> Result<MeasurementRows, InputError> {
    let mut rows = Vec::new();
    let mut dropped = DroppedCounts::default();
    let model = make(&[]).map_err(|error| row_error(1, error))?;
    let base = BaseModel { lines: result_lines(&model, &solve(&model).0), model, make, free };
    for record in records.iter().filter(|record| !record.is_empty()) {
        rows.extend(base.row(record, &mut dropped)?);
    }
    match (rows.is_empty(), records.iter().flatten().next()) {
        (true, Some(first)) => Err(first.error(dropped.reason_if_empty())),
        (true, None) => Err(row_error(1, "there are no measurements")),
        (false, _) => Ok(MeasurementRows { rows, notes: dropped.notes() }),
    }
}

/// The meaning of a field.
enum FieldMeaning {
    Setting,
    Weight,
    Number(usize),
    HalfWidth(usize),
    /// A number that only simulations provide.
    SimulationOnly,
}

/// The unchanged model, for its names.
struct BaseModel<'b> {
    model: Model,
    lines: Vec<ResultLine>,
    make: &'b ModelFactory<'b>,
    free: &'b [String],
}

impl BaseModel<'_> {
    fn row(
        &self,
        record: &MeasurementRecord,
        dropped: &mut DroppedCounts,
    ) -> Result<Option<MeasurementRow>, InputError> {
        let (make, free, known_lines) = (self.make, self.free, &self.lines);
        let (mut settings, mut weight, mut numbers) = (Vec::new(), 1.0, Vec::new());
        let mut half_widths = Vec::new();
        for field in record {
            check_magnitude(field)?;
            match field_meaning(field, known_lines, &self.model, make)? {
                FieldMeaning::Setting if free.contains(&field.name) => {
                    return Err(field.error(format!("`{}` is to be found, and is set here", field.name)));
                }
                FieldMeaning::Setting => settings.push((field.name.clone(), field.value)),
                FieldMeaning::Weight if field.value > 0.0 => weight = field.value,
                FieldMeaning::Weight => return Err(field.error("a weight is above 0")),
                FieldMeaning::Number(line) => numbers.push(reject_duplicate(&numbers, line, field)?),
                FieldMeaning::HalfWidth(line) => {
                    half_widths.push(reject_duplicate(&half_widths, line, field)?)
                }
                FieldMeaning::SimulationOnly => dropped.simulation_only += 1,
            }
        }
        // Creating the model detects invalid values.
        let model = make(&settings).map_err(|error| {
            let field_at_fault =
                record.iter().find(|field| error.contains(field.name.as_str())).unwrap_or(&record[0]);
            field_at_fault.error(error)
        })?;
        let mut measured = Vec::new();
        for (line, field) in numbers {
            if field.value < 0.0 {
                return Err(field.error(format!("`{}` cannot be below 0", field.name)));
            }
            check_utilization(&model, &known_lines[line], field)?;
            let half_width_field =
                half_widths.iter().find(|(line_index, _)| *line_index == line).map(|(_, field)| *field);
            if let Some(negative) = half_width_field.filter(|field| field.value < 0.0) {
                return Err(negative.error("half of an interval cannot be below 0"));
            }
            let half_width = half_width_field.map(|field| field.value).filter(|width| *width > 0.0);
            if field.value == 0.0 && half_width.is_none() {
                // Without an interval, the accuracy of a zero is unknown.
                dropped.zeros += 1;
                continue;
            }
            let ResultLine { kind, name, metric, .. } = &known_lines[line];
            measured.push(MeasuredValue { kind, name: name.clone(), metric, value: field.value, half_width });
        }
        dropped.dependent += drop_dependent(&mut measured, &self.model, free);
        let line = record[0].line;
        Ok((!measured.is_empty()).then_some(MeasurementRow { line, settings, weight, measured }))
    }
}

/// Refuses values beyond those that can be measured or set: their squares may overflow.
fn check_magnitude(field: &MeasuredField) -> Result<(), InputError> {
    let magnitude = field.value.abs();
    if magnitude == 0.0 || (MIN_VALUE..=MAX_VALUE).contains(&magnitude) {
        return Ok(());
    }
    let (direction, adjective, bound) =
        if magnitude > MAX_VALUE { ("above", "large", MAX_VALUE) } else { ("below", "small", MIN_VALUE) };
    Err(field.error(format!(
        "`{}` is {:e}: nothing that is measured is as {adjective} as that ({direction} {bound:e}); are the \
         units right?",
        field.name, field.value
    )))
}

/// Refuses a second value of a number in a row.
fn reject_duplicate<'f>(
    previous: &[(usize, &'f MeasuredField)],
    line: usize,
    field: &'f MeasuredField,
) -> Result<(usize, &'f MeasuredField), InputError> {
    match previous.iter().find(|(previous_line, _)| *previous_line == line) {
        Some((_, duplicate)) if duplicate.name == field.name => {
            Err(field.error(format!("`{}` stands twice among what was measured at one load", field.name)))
        }
        Some((_, duplicate)) => Err(field
            .error(format!("`{}` is the same number as `{}`: leave one out", field.name, duplicate.name))),
        None => Ok((line, field)),
    }
}

/// Refuses a utilization above the limit, apart from rounding.
fn check_utilization(model: &Model, line: &ResultLine, field: &MeasuredField) -> Result<(), InputError> {
    const ROUNDED: f64 = 1.0 + 1e-6;
    let task = || model.tasks.iter().find(|task| task.name == line.name).map(|task| (task.copies, "threads"));
    let processor = || {
        model
            .processors
            .iter()
            .find(|processor| processor.name == line.name)
            .map(|processor| (processor.copies, "cores"))
    };
    let counted = if line.kind == "task" { task() } else { processor() };
    let Some((Multiplicity::Finite(count), unit)) = counted.filter(|_| line.kind != "entry") else {
        return Ok(());
    };
    match line.metric {
        "utilization" if field.value > ROUNDED => Err(field.error(format!(
            "`{}` cannot be above 1: it is the part of all {unit} that is in use; how many are, `{}.busy` \
            says",
            field.name, line.name
        ))),
        "busy" if field.value > f64::from(count) * ROUNDED => Err(field.error(format!(
            "`{}` cannot be above {count}: `{}` has no more {unit} here",
            field.name, line.name
        ))),
        _ => Ok(()),
    }
}

/// Returns `true` for a number that the analytic solution does not provide.
fn is_simulation_only(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, word)| SIMULATED_ONLY.contains(&word))
}

fn field_meaning(
    field: &MeasuredField,
    known_lines: &[ResultLine],
    base: &Model,
    make: &ModelFactory<'_>,
) -> Result<FieldMeaning, InputError> {
    let name = field.name.as_str();
    if name == "weight" {
        return Ok(FieldMeaning::Weight);
    }
    if let Some(measured_name) = name.strip_suffix(".half_width") {
        return match line_index(measured_name, known_lines) {
            Some(line) => Ok(FieldMeaning::HalfWidth(line)),
            None if is_simulation_only(measured_name) => Ok(FieldMeaning::SimulationOnly),
            None => Err(field
                .error(format!("no number `{measured_name}` of which this could be half of the interval"))),
        };
    }
    if let Some(line) = line_index(name, known_lines) {
        return Ok(FieldMeaning::Number(line));
    }
    if is_simulation_only(name) {
        return Ok(FieldMeaning::SimulationOnly);
    }
    if ModelParameter::find(base, name).is_ok() {
        return Ok(FieldMeaning::Setting);
    }
    match make(&[(name.to_owned(), field.value)]) {
        Ok(_) => return Ok(FieldMeaning::Setting),
        // The parameter exists, and cannot have this value.
        Err(error) if !name.contains('.') && !error.contains(&format!("no parameter `${name}`")) => {
            return Err(field.error(error));
        }
        Err(_) => {}
    }
    let words = SUFFIXES.map(|(word, _)| word).join(", ");
    Err(field.error(format!(
        "`{name}` is no parameter of the model, no number of it (NAME.{words}) and nothing that could be \
         measured \
         (NAME.{})",
        METRICS.join(", ")
    )))
}

/// Finds the line that a name refers to. The name is `task.client.response`, or `client.response`, which is
/// looked up among tasks, processors, entries, and phases and activities, in this order.
fn line_index(name: &str, known_lines: &[ResultLine]) -> Option<usize> {
    let (subject, metric) = name.rsplit_once('.')?;
    let metric = if metric == "utilisation" { "utilization" } else { metric };
    let find_line = |kind: &str, subject_name: &str| {
        known_lines
            .iter()
            .position(|line| line.kind == kind && line.name == subject_name && line.metric == metric)
    };
    let qualified = subject.split_once('.').and_then(|(kind, subject_name)| find_line(kind, subject_name));
    qualified.or_else(|| {
        ["task", "processor", "entry", ACTIVITY].into_iter().find_map(|kind| find_line(kind, subject))
    })
}

/// Removes numbers that follow from others of the row and would count twice. These are `busy` if there is
/// `utilization`, and throughputs of servers if there are those of clients. Of a client's response time,
/// throughput and `busy` one is kept (Little's law), if the think time is known.
fn drop_dependent(measured: &mut Vec<MeasuredValue>, model: &Model, free: &[String]) -> usize {
    let initial_count = measured.len();
    let all_measured = measured.clone();
    let has_measured = |kind: &str, name: &str, metric: &str| {
        all_measured.iter().any(|value| value.kind == kind && value.name == name && value.metric == metric)
    };
    let is_client = |value: &MeasuredValue| {
        value.kind == "task" && model.tasks.iter().any(|task| task.name == value.name && task.is_client())
    };
    let has_client_rates = all_measured
        .iter()
        .any(|value| is_client(value) && matches!(value.metric, "throughput" | "response"));
    measured.retain(|value| {
        let think_is_free = free.contains(&format!("{}.think", value.name));
        let is_dependent = match value.metric {
            "busy" if is_client(value) => {
                has_measured("task", &value.name, "response")
                    || has_measured("task", &value.name, "throughput")
            }
            "busy" => has_measured(value.kind, &value.name, "utilization"),
            "throughput" if is_client(value) => {
                !think_is_free && has_measured("task", &value.name, "response")
            }
            "throughput" => has_client_rates,
            _ => false,
        };
        !is_dependent
    });
    initial_count - measured.len()
}

#[derive(Default)]
struct DroppedCounts {
    simulation_only: usize,
    zeros: usize,
    dependent: usize,
}

impl DroppedCounts {
    /// Returns the reason why no measurement is left.
    fn reason_if_empty(&self) -> &'static str {
        match self {
            Self { simulation_only: 0, zeros: 0, .. } => "nothing was measured: these are settings only",
            Self { simulation_only: 0, .. } => {
                "nothing was measured that tells: a 0 without half of its interval says nothing"
            }
            _ => {
                "a model is not fitted to percentiles, nor to what fails: formulas do not have them; measure \
                 response \
                 times, throughputs, waiting, service or utilizations, too"
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |count: usize, error: &str| {
            if count > 0 {
                notes.push(format!("{count} numbers are left aside: {error}"));
            }
        };
        note(self.simulation_only, "formulas do not have them (percentiles, and what fails)");
        note(self.zeros, "a 0 without half of its interval says nothing");
        note(self.dependent, "they follow from others of their row and would count twice");
        notes
    }
}
