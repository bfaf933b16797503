//! What a run leaves on the disk: `run.json`, and a folder for each point with `point.json`, logs and
//! configurations.
//!
//! A point may be skipped on resumption only if the very same would be done again: `run.json` keeps SHA-256
//! sums of the experiment file and the binary, each point those of its configurations and of all three
//! together with its levels. Files are written aside and renamed, so that an interruption leaves none half
//! written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::column::Column;
use super::experiment::{Experiment, Factor, Mode};
use super::metric::Metric;
use super::model::Predicted;
use super::point::Outcome;
use super::statistics::Estimate;
use super::table::{Levels, Table};
use super::{Before, Trouble};

/// What is known of a run as a whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunFile {
    /// Of this shape.
    pub version: u32,
    /// Of the experiment.
    pub name: String,
    /// `quick` or `full`.
    pub mode: String,
    /// The experiment file, as it was.
    pub experiment: String,
    /// SHA-256 of it.
    pub experiment_sha256: String,
    /// SHA-256 of the binary that ran it and its members.
    pub binary_sha256: String,
    /// Version of the binary.
    pub program: String,
    /// The machine.
    pub machine: String,
    /// Seconds since 1970 at which it began.
    pub began: u64,
    /// Seconds that it took, interruptions left out.
    pub took: f64,
    /// What was measured before the first point.
    pub before: Before,
    /// Points that belong to it.
    pub points: usize,
    /// Balancers that are not on this machine, and why not. Their points were left out.
    #[serde(default)]
    pub missing: BTreeMap<String, String>,
    /// Why nothing was run: what the experiment needs cannot be had on this machine.
    #[serde(default)]
    pub skipped: Option<String>,
}

/// One point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PointFile {
    /// Of this shape.
    pub version: u32,
    /// The levels.
    pub levels: Levels,
    /// SHA-256 of experiment, length, binary and levels.
    pub fingerprint: String,
    /// SHA-256 of the configurations of its processes, by file name.
    pub configurations: BTreeMap<String, String>,
    /// Means and half widths of 95 % intervals, by metric; no width for a single sample.
    pub estimates: BTreeMap<String, (f64, Option<f64>)>,
    /// What the model says of it.
    #[serde(default)]
    pub predicted: BTreeMap<Column, Predicted>,
    /// What came of it.
    pub outcome: Outcome,
}

/// Of both shapes.
pub(super) const VERSION: u32 = 1;

/// SHA-256 in hexadecimal.
pub(super) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a file.
pub(super) fn sum_of(path: &Path) -> Result<String, Trouble> {
    fs::read(path).map(|bytes| sum(&bytes)).map_err(|error| cannot("read", path, &error))
}

impl RunFile {
    /// What a point with these levels would be the same as.
    pub(super) fn fingerprint(&self, levels: &Levels) -> String {
        let parts = [&self.experiment_sha256, &self.binary_sha256, &self.mode, &super::table::name(levels)];
        sum(parts.map(String::as_str).join("\n").as_bytes())
    }

    /// Reads `folder/run.json`.
    ///
    /// # Errors
    /// If it is not there or not one.
    pub fn read(folder: &Path) -> Result<Self, Trouble> {
        read(&folder.join("run.json"))
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), Trouble> {
        write(&folder.join("run.json"), self)
    }

    /// The experiment as it was run.
    ///
    /// # Errors
    /// If it was written by a version of this program that read other files.
    pub fn experiment(&self) -> Result<Experiment, Trouble> {
        Experiment::parse(&self.experiment).map_err(|wrong| {
            let why = wrong.first().map_or_else(String::new, |wrong| wrong.message.clone());
            Trouble::failed(format!("the experiment in run.json of {} cannot be read: {why}", self.name))
        })
    }

    /// Why a point with these levels was left out.
    pub fn lacks(&self, levels: &Levels) -> Option<&str> {
        let balancer = levels.get(&Factor::Balancer)?.to_string();
        self.missing.get(&balancer).map(String::as_str)
    }

    /// How long a run it was.
    pub fn mode(&self) -> Mode {
        if self.mode == Mode::Full.name() { Mode::Full } else { Mode::Quick }
    }
}

impl PointFile {
    /// Reads `folder/point.json`.
    ///
    /// # Errors
    /// If it is not there or not one.
    pub fn read(folder: &Path) -> Result<Self, Trouble> {
        read(&folder.join("point.json"))
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), Trouble> {
        write(&folder.join("point.json"), self)
    }
}

/// The folder of point number `index`, from 0 on.
pub(super) fn point_folder(run: &Path, index: usize, levels: &Levels) -> PathBuf {
    let name: String = super::table::name(levels)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "=.-_".contains(c) { c } else { '-' })
        .collect();
    run.join("points").join(format!("{:03}-{name}", index + 1))
}

/// All points of a run that are there, in order.
///
/// # Errors
/// If the folder cannot be read, or one of its points is damaged.
pub fn points(run: &Path) -> Result<Vec<PointFile>, Trouble> {
    let folder = run.join("points");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot("read", &folder, &error)),
    };
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    folders
        .iter()
        .filter(|folder| folder.join("point.json").exists())
        .map(|folder| PointFile::read(folder))
        .collect()
}

/// Means and half widths by metric. JSON has no infinity, which is the width for a single sample.
pub(super) fn estimates(samples: &BTreeMap<Metric, Vec<f64>>) -> BTreeMap<String, (f64, Option<f64>)> {
    let estimate = |(metric, samples): (&Metric, &Vec<f64>)| {
        let estimate = Estimate::of(samples)?;
        let half = Some(estimate.half).filter(|half| half.is_finite());
        Some((metric.name().to_owned(), (estimate.mean, half)))
    };
    samples.iter().filter_map(estimate).collect()
}

/// The estimates of all points, speed-ups included.
pub fn table(points: &[PointFile]) -> Table {
    let mut table = Table::default();
    for point in points {
        let samples = &point.outcome.samples;
        let values = samples.iter().filter_map(|(metric, samples)| Some((*metric, Estimate::of(samples)?)));
        table.push(point.levels.clone(), values.collect());
        for (column, predicted) in &point.predicted {
            table.predict(*column, predicted.clone());
        }
    }
    table.derive();
    table
}

/// SHA-256 of the configurations below a folder.
pub(super) fn configurations(folder: &Path) -> BTreeMap<String, String> {
    let mut sums = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())) {
            let is = |ending: &str| path.extension().is_some_and(|extension| extension == ending);
            if path.is_dir() {
                folders.push(path);
            } else if ["toml", "cfg", "conf", "yaml"].into_iter().any(is) {
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                if let Ok(sum) = sum_of(&path) {
                    sums.insert(name, sum);
                }
            }
        }
    }
    sums
}

pub(super) fn write_text(path: &Path, text: &str) -> Result<(), Trouble> {
    let aside = path.with_extension("part");
    fs::write(&aside, text)
        .and_then(|()| fs::rename(&aside, path))
        .map_err(|error| cannot("write", path, &error))
}

pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<(), Trouble> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Trouble::failed(format!("cannot write {}: {error}", path.display())))?;
    write_text(path, &(text + "\n"))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Trouble> {
    let text = fs::read(path).map_err(|error| cannot("read", path, &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Trouble::failed(format!("{} is damaged: {error}; run it again", path.display())))
}

pub(super) fn cannot(what: &str, path: &Path, error: &io::Error) -> Trouble {
    Trouble::failed(format!("cannot {what} {}: {error}", path.display()))
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
