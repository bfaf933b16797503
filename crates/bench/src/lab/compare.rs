//! The comparison of two runs: their common points, and those that differ by more than their intervals.

use std::path::Path;

use serde::Serialize;

use super::LabError;
use super::metric::Metric;
use super::statistics::Estimate;
use super::store::{self, RunFile};
use super::table::format_levels;

/// One number of one point in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedNumber {
    /// The name of the point.
    pub point: String,
    /// The name of the metric.
    pub metric: &'static str,
    /// The value in the first run: mean and half width of the 95 % interval.
    pub a: (f64, f64),
    /// The value in the second run.
    pub b: (f64, f64),
    /// The second over the first.
    pub ratio: f64,
    /// Whether the intervals do not overlap.
    pub apart: bool,
}

/// The compared metrics.
const METRICS: [Metric; 5] =
    [Metric::Throughput, Metric::Response, Metric::P99, Metric::Success, Metric::BalancerCpu];

/// Compares the runs in two folders.
///
/// # Errors
/// Fails if a folder cannot be read, the runs are of different experiments or lengths, or they have no point
/// in common.
pub fn compare(a: &Path, b: &Path) -> Result<Vec<ComparedNumber>, LabError> {
    let (first_run, second_run) = (RunFile::read(a)?, RunFile::read(b)?);
    check_comparable(&first_run, &second_run)?;
    let (first_table, second_table) =
        (store::build_table(&store::read_points(a)?), store::build_table(&store::read_points(b)?));
    let mut compared = Vec::new();
    for metric in METRICS {
        for (levels, first) in first_table.values(metric, |_| true) {
            let second = second_table.values(metric, |levels_in_second| levels_in_second == levels).next();
            if let Some((_, second)) = second {
                compared.push(compare_estimates(format_levels(levels), metric, &first, &second));
            }
        }
    }
    if compared.is_empty() {
        let (a, b) = (a.display(), b.display());
        return Err(LabError::failed(format!("the runs in {a} and {b} have no point in common")));
    }
    Ok(compared)
}

/// Checks that both runs are of the same experiment: others do not compare, even if their levels have the
/// same names.
fn check_comparable(a: &RunFile, b: &RunFile) -> Result<(), LabError> {
    let (first_name, second_name) = (format!("{} ({})", a.name, a.mode), format!("{} ({})", b.name, b.mode));
    if first_name != second_name {
        return Err(LabError::Refused(format!(
            "{first_name} and {second_name} are different experiments and do not compare"
        )));
    }
    if a.experiment_sha256 != b.experiment_sha256 {
        return Err(LabError::Refused(format!(
            "the experiment file of {first_name} is not the same in both runs"
        )));
    }
    Ok(())
}

fn compare_estimates(point: String, metric: Metric, a: &Estimate, b: &Estimate) -> ComparedNumber {
    let ratio = if a.mean == b.mean { 1.0 } else { b.mean / a.mean };
    let interval = |estimate: &Estimate| (estimate.mean, estimate.half_width);
    ComparedNumber {
        point,
        metric: metric.name(),
        a: interval(a),
        b: interval(b),
        ratio,
        apart: a.is_below(b) || b.is_below(a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_experiments_do_not_compare() {
        let run = |name: &str, sum: &str| RunFile {
            name: name.to_owned(),
            experiment_sha256: sum.to_owned(),
            ..RunFile::default()
        };
        assert!(check_comparable(&run("a", "1"), &run("a", "1")).is_ok());
        assert!(matches!(check_comparable(&run("a", "1"), &run("b", "1")), Err(LabError::Refused(_))));
        assert!(matches!(check_comparable(&run("a", "1"), &run("a", "2")), Err(LabError::Refused(_))));
    }
}
