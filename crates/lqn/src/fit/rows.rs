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
pub(super) const SMALLEST: f64 = 1e-12;
/// The greatest absolute value; see [`SMALLEST`].
pub(super) const LARGEST: f64 = 1e12;

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
    let model = make(&[]).map_err(|why| row_error(1, why))?;
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
        let (make, free, known) = (self.make, self.free, &self.lines);
        let (mut settings, mut weight, mut numbers) = (Vec::new(), 1.0, Vec::new());
        let mut halves = Vec::new();
        for field in record {
            check_magnitude(field)?;
            match field_meaning(field, known, &self.model, make)? {
                FieldMeaning::Setting if free.contains(&field.name) => {
                    return Err(field.error(format!("`{}` is to be found, and is set here", field.name)));
                }
                FieldMeaning::Setting => settings.push((field.name.clone(), field.value)),
                FieldMeaning::Weight if field.value > 0.0 => weight = field.value,
                FieldMeaning::Weight => return Err(field.error("a weight is above 0")),
                FieldMeaning::Number(line) => numbers.push(reject_duplicate(&numbers, line, field)?),
                FieldMeaning::HalfWidth(line) => halves.push(reject_duplicate(&halves, line, field)?),
                FieldMeaning::SimulationOnly => dropped.simulation_only += 1,
            }
        }
        // Creating the model detects invalid values.
        let model = make(&settings).map_err(|why| {
            let own = record.iter().find(|field| why.contains(field.name.as_str())).unwrap_or(&record[0]);
            own.error(why)
        })?;
        let mut seen = Vec::new();
        for (line, field) in numbers {
            if field.value < 0.0 {
                return Err(field.error(format!("`{}` cannot be below 0", field.name)));
            }
            check_utilization(&model, &known[line], field)?;
            let half = halves.iter().find(|(own, _)| *own == line).map(|(_, field)| *field);
            if let Some(half) = half.filter(|half| half.value < 0.0) {
                return Err(half.error("half of an interval cannot be below 0"));
            }
            let half_width = half.map(|half| half.value).filter(|half| *half > 0.0);
            if field.value == 0.0 && half_width.is_none() {
                // Without an interval, the accuracy of a zero is unknown.
                dropped.zeros += 1;
                continue;
            }
            let ResultLine { kind, name, metric, .. } = &known[line];
            seen.push(MeasuredValue { kind, name: name.clone(), metric, value: field.value, half_width });
        }
        dropped.dependent += drop_dependent(&mut seen, &self.model, free);
        let line = record[0].line;
        Ok((!seen.is_empty()).then_some(MeasurementRow { line, settings, weight, measured: seen }))
    }
}

/// Refuses values beyond those that can be measured or set: their squares may overflow.
fn check_magnitude(field: &MeasuredField) -> Result<(), InputError> {
    let size = field.value.abs();
    if size == 0.0 || (SMALLEST..=LARGEST).contains(&size) {
        return Ok(());
    }
    let (than, what, bound) =
        if size > LARGEST { ("above", "large", LARGEST) } else { ("below", "small", SMALLEST) };
    Err(field.error(format!(
        "`{}` is {:e}: nothing that is measured is as {what} as that ({than} {bound:e}); are the units \
        right?",
        field.name, field.value
    )))
}

/// Refuses a second value of a number in a row.
fn reject_duplicate<'f>(
    before: &[(usize, &'f MeasuredField)],
    line: usize,
    field: &'f MeasuredField,
) -> Result<(usize, &'f MeasuredField), InputError> {
    match before.iter().find(|(own, _)| *own == line) {
        Some((_, other)) if other.name == field.name => {
            Err(field.error(format!("`{}` stands twice among what was measured at one load", field.name)))
        }
        Some((_, other)) => {
            Err(field
                .error(format!("`{}` is the same number as `{}`: leave one out", field.name, other.name)))
        }
        None => Ok((line, field)),
    }
}

/// Refuses a utilization above the limit, apart from rounding.
fn check_utilization(model: &Model, line: &ResultLine, field: &MeasuredField) -> Result<(), InputError> {
    const ROUNDED: f64 = 1.0 + 1e-6;
    let task = || model.tasks.iter().find(|own| own.name == line.name).map(|own| (own.copies, "threads"));
    let processor =
        || model.processors.iter().find(|own| own.name == line.name).map(|own| (own.copies, "cores"));
    let own = if line.kind == "task" { task() } else { processor() };
    let Some((Multiplicity::Finite(count), what)) = own.filter(|_| line.kind != "entry") else {
        return Ok(());
    };
    match line.metric {
        "utilization" if field.value > ROUNDED => Err(field.error(format!(
            "`{}` cannot be above 1: it is the part of all {what} that is in use; how many are, `{}.busy` \
            says",
            field.name, line.name
        ))),
        "busy" if field.value > f64::from(count) * ROUNDED => Err(field.error(format!(
            "`{}` cannot be above {count}: `{}` has no more {what} here",
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
    known: &[ResultLine],
    base: &Model,
    make: &ModelFactory<'_>,
) -> Result<FieldMeaning, InputError> {
    let name = field.name.as_str();
    if name == "weight" {
        return Ok(FieldMeaning::Weight);
    }
    if let Some(of) = name.strip_suffix(".half_width") {
        return match number(of, known) {
            Some(line) => Ok(FieldMeaning::HalfWidth(line)),
            None if is_simulation_only(of) => Ok(FieldMeaning::SimulationOnly),
            None => Err(field.error(format!("no number `{of}` of which this could be half of the interval"))),
        };
    }
    if let Some(line) = number(name, known) {
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
        Err(why) if !name.contains('.') && !why.contains(&format!("no parameter `${name}`")) => {
            return Err(field.error(why));
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
fn number(name: &str, known: &[ResultLine]) -> Option<usize> {
    let (whose, metric) = name.rsplit_once('.')?;
    let metric = if metric == "utilisation" { "utilization" } else { metric };
    let find = |kind: &str, whose: &str| {
        known.iter().position(|line| line.kind == kind && line.name == whose && line.metric == metric)
    };
    let whole = whose.split_once('.').and_then(|(kind, whose)| find(kind, whose));
    whole.or_else(|| ["task", "processor", "entry", ACTIVITY].into_iter().find_map(|kind| find(kind, whose)))
}

/// Removes numbers that follow from others of the row and would count twice. These are `busy` if there is
/// `utilization`, and throughputs of servers if there are those of clients. Of a client's response time,
/// throughput and `busy` one is kept (Little's law), if the think time is known.
fn drop_dependent(seen: &mut Vec<MeasuredValue>, model: &Model, free: &[String]) -> usize {
    let before = seen.len();
    let all = seen.clone();
    let has = |kind: &str, name: &str, metric: &str| {
        all.iter().any(|own| own.kind == kind && own.name == name && own.metric == metric)
    };
    let is_client = |own: &MeasuredValue| {
        own.kind == "task" && model.tasks.iter().any(|task| task.name == own.name && task.is_client())
    };
    let clients = all.iter().any(|own| is_client(own) && matches!(own.metric, "throughput" | "response"));
    seen.retain(|own| {
        let thinks = free.contains(&format!("{}.think", own.name));
        let follows = match own.metric {
            "busy" if is_client(own) => {
                has("task", &own.name, "response") || has("task", &own.name, "throughput")
            }
            "busy" => has(own.kind, &own.name, "utilization"),
            "throughput" if is_client(own) => !thinks && has("task", &own.name, "response"),
            "throughput" => clients,
            _ => false,
        };
        !follows
    });
    before - seen.len()
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
        let mut note = |count: usize, why: &str| {
            if count > 0 {
                notes.push(format!("{count} numbers are left aside: {why}"));
            }
        };
        note(self.simulation_only, "formulas do not have them (percentiles, and what fails)");
        note(self.zeros, "a 0 without half of its interval says nothing");
        note(self.dependent, "they follow from others of their row and would count twice");
        notes
    }
}
