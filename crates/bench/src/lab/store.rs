//! The files of a run: `run.json`, and a folder for each point with `point.json`, logs and configurations.
//!
//! A point may be skipped on resumption only if a new run would be identical. `run.json` therefore keeps the
//! SHA-256 sums of the experiment file and the binary. Each point keeps those of its configurations, and one
//! of experiment, binary, length and levels together. Files are written aside and renamed, so that an
//! interruption leaves no partial file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::experiment::{Experiment, Factor, RunLength};
use super::metric::Metric;
use super::model::ModelPrediction;
use super::point::PointOutcome;
use super::result_source::ResultSource;
use super::statistics::Estimate;
use super::table::{EstimateTable, PointLevels};
use super::{Calibration, LabError};

/// The file of a run as a whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunFile {
    /// The version of this format.
    pub version: u32,
    /// The name of the experiment.
    pub name: String,
    /// The length: `quick` or `full`.
    pub mode: String,
    /// The text of the experiment file.
    pub experiment: String,
    /// The SHA-256 sum of that text.
    pub experiment_sha256: String,
    /// The SHA-256 sum of the binary that ran the experiment and its members.
    pub binary_sha256: String,
    /// The version of the binary.
    pub program: String,
    /// The machine.
    pub machine: String,
    /// The begin in seconds since 1970.
    pub began: u64,
    /// The duration in seconds, without interruptions.
    pub took: f64,
    /// The measurements before the first point.
    pub before: Calibration,
    /// The number of its points.
    pub points: usize,
    /// The balancers that this machine lacks, with the reasons. Their points were skipped.
    #[serde(default)]
    pub missing: BTreeMap<String, String>,
    /// The reason why nothing was run: this machine lacks what the experiment needs.
    #[serde(default)]
    pub skipped: Option<String>,
}

/// The file of one point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PointFile {
    /// The version of this format.
    pub version: u32,
    /// The levels.
    pub levels: PointLevels,
    /// The SHA-256 sum of experiment, binary, length and levels.
    pub fingerprint: String,
    /// The SHA-256 sums of the configurations of its processes, by file name.
    pub configurations: BTreeMap<String, String>,
    /// The means and half widths of 95 % intervals, by metric; no width for a single sample.
    pub estimates: BTreeMap<String, (f64, Option<f64>)>,
    /// The model's results.
    #[serde(default)]
    pub predicted: BTreeMap<ResultSource, ModelPrediction>,
    /// The results.
    pub outcome: PointOutcome,
}

/// The version of both formats.
pub(super) const VERSION: u32 = 1;

/// Returns the SHA-256 sum in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 sum of a file.
pub(super) fn file_sha256(path: &Path) -> Result<String, LabError> {
    fs::read(path).map(|bytes| sha256(&bytes)).map_err(|error| io_error("read", path, &error))
}

impl RunFile {
    /// Returns the sum that identifies identical runs of a point with these levels.
    pub(super) fn fingerprint(&self, levels: &PointLevels) -> String {
        let identity =
            [&self.experiment_sha256, &self.binary_sha256, &self.mode, &super::table::format_levels(levels)];
        sha256(identity.map(String::as_str).join("\n").as_bytes())
    }

    /// Reads `folder/run.json`.
    ///
    /// # Errors
    /// Fails if the file is missing or malformed.
    pub fn read(folder: &Path) -> Result<Self, LabError> {
        read_json(&folder.join("run.json"))
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), LabError> {
        write(&folder.join("run.json"), self)
    }

    /// Parses the stored experiment.
    ///
    /// # Errors
    /// Fails if a version of this program with another file format wrote it.
    pub fn experiment(&self) -> Result<Experiment, LabError> {
        Experiment::parse(&self.experiment).map_err(|errors| {
            let message = errors.first().map_or_else(String::new, |error| error.message.clone());
            LabError::failed(format!("the experiment in run.json of {} cannot be read: {message}", self.name))
        })
    }

    /// Returns the reason why a point with these levels was skipped.
    pub fn skip_reason(&self, levels: &PointLevels) -> Option<&str> {
        let balancer = levels.get(&Factor::Balancer)?.to_string();
        self.missing.get(&balancer).map(String::as_str)
    }

    /// Returns the length of the run.
    pub fn mode(&self) -> RunLength {
        if self.mode == RunLength::Full.name() { RunLength::Full } else { RunLength::Quick }
    }
}

impl PointFile {
    /// Reads `folder/point.json`.
    ///
    /// # Errors
    /// Fails if the file is missing or malformed.
    pub fn read(folder: &Path) -> Result<Self, LabError> {
        read_json(&folder.join("point.json"))
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), LabError> {
        write(&folder.join("point.json"), self)
    }
}

/// Returns the folder of point number `index`, from 0 on.
pub(super) fn point_folder(run: &Path, index: usize, levels: &PointLevels) -> PathBuf {
    let name: String = super::table::format_levels(levels)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "=.-_".contains(c) { c } else { '-' })
        .collect();
    run.join("points").join(format!("{:03}-{name}", index + 1))
}

/// Returns all existing points of a run, in order.
///
/// # Errors
/// Fails if the folder cannot be read, or one of its points is damaged.
pub fn read_points(run: &Path) -> Result<Vec<PointFile>, LabError> {
    let folder = run.join("points");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("read", &folder, &error)),
    };
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    folders
        .iter()
        .filter(|folder| folder.join("point.json").exists())
        .map(|folder| PointFile::read(folder))
        .collect()
}

/// Returns means and half widths by metric. JSON has no infinity, the width for a single sample.
pub(super) fn estimates(samples: &BTreeMap<Metric, Vec<f64>>) -> BTreeMap<String, (f64, Option<f64>)> {
    let estimate = |(metric, samples): (&Metric, &Vec<f64>)| {
        let estimate = Estimate::of(samples)?;
        let half_width = Some(estimate.half_width).filter(|finite| finite.is_finite());
        Some((metric.name().to_owned(), (estimate.mean, half_width)))
    };
    samples.iter().filter_map(estimate).collect()
}

/// Returns the estimates of all points, speed-ups included.
pub fn build_table(points: &[PointFile]) -> EstimateTable {
    let mut table = EstimateTable::default();
    for point in points {
        let samples = &point.outcome.samples;
        let values = samples.iter().filter_map(|(metric, samples)| Some((*metric, Estimate::of(samples)?)));
        table.push(point.levels.clone(), values.collect());
        for (column, predicted) in &point.predicted {
            table.push_prediction(*column, predicted.clone());
        }
    }
    table.add_derived();
    table
}

/// Returns the SHA-256 sums of the configurations below a folder.
pub(super) fn configurations(folder: &Path) -> BTreeMap<String, String> {
    let mut checksums = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next_folder) = folders.pop() {
        for path in
            fs::read_dir(next_folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
        {
            let has_extension =
                |expected: &str| path.extension().is_some_and(|extension| extension == expected);
            if path.is_dir() {
                folders.push(path);
            } else if ["toml", "cfg", "conf", "yaml"].into_iter().any(has_extension) {
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                if let Ok(checksum) = file_sha256(&path) {
                    checksums.insert(name, checksum);
                }
            }
        }
    }
    checksums
}

pub(super) fn write_text(path: &Path, text: &str) -> Result<(), LabError> {
    let temporary_path = path.with_extension("part");
    fs::write(&temporary_path, text)
        .and_then(|()| fs::rename(&temporary_path, path))
        .map_err(|error| io_error("write", path, &error))
}

pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| LabError::failed(format!("cannot write {}: {error}", path.display())))?;
    write_text(path, &(text + "\n"))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, LabError> {
    let text = fs::read(path).map_err(|error| io_error("read", path, &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| LabError::failed(format!("{} is damaged: {error}; run it again", path.display())))
}

pub(super) fn io_error(action: &str, path: &Path, error: &io::Error) -> LabError {
    LabError::failed(format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_with_a_single_sample_can_be_read_again() {
        let folder = std::env::temp_dir().join(format!("plimsoll-lab-store-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut file = PointFile::default();
        file.outcome.samples.insert(Metric::Surge, vec![1.5]);
        file.estimates = estimates(&file.outcome.samples);
        file.write(&folder).unwrap();
        let read = PointFile::read(&folder).unwrap();
        assert_eq!(read.estimates["surge"], (1.5, None));
        fs::remove_dir_all(&folder).unwrap();
    }
}
