//! The runner of an experiment's points, unattended: it uses one folder per point, leaves no process running,
//! and skips completed points on resumption.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::child_process::ProcessLauncher;
use super::experiment::{Experiment, Factor, RunLength};
use super::metric::Metric;
use super::point::PointOutcome;
use super::statistics::Estimate;
use super::store::{self, PointFile, RunFile};
use super::{
    Calibration, LabError, RunObserver, claim, load_driver, network, plan, point, proxy_under_test, side_car,
    table,
};

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct RunParameters {
    /// The name of the experiment.
    pub name: String,
    /// The text of its file.
    pub text: String,
    /// The parsed experiment.
    pub experiment: Experiment,
    /// The length.
    pub mode: RunLength,
    /// Whether to skip completed points.
    pub resume: bool,
    /// The output folder.
    pub folder: PathBuf,
    /// The command that starts processes.
    pub launcher: ProcessLauncher,
    /// The version of this program.
    pub program_version: String,
}

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub struct RunBudget {
    /// The points in all.
    pub points: usize,
    /// The number of those that are complete and will be skipped.
    pub done: usize,
    /// The estimated time of the others.
    pub time: Duration,
}

/// A run that has not begun.
#[derive(Debug)]
pub struct Runner {
    parameters: RunParameters,
    file: RunFile,
    points: Vec<plan::ExperimentPoint>,
    /// Whether each point is complete.
    done: Vec<bool>,
    /// The lock on the folder, held as long as this runner may write into it.
    _lock: File,
}

impl Runner {
    /// Reads the folder, if the run is to be resumed. Otherwise [`run`](Self::run) moves it aside.
    ///
    /// # Errors
    /// Fails if the binary cannot be read, another run writes into the folder, or the folder holds a
    /// different run.
    pub fn new(parameters: RunParameters) -> Result<Self, LabError> {
        let lock = lock(&parameters.folder)?;
        let points = plan::points(&parameters.experiment, parameters.mode);
        let mut file = RunFile {
            version: store::VERSION,
            name: parameters.name.clone(),
            mode: parameters.mode.name().to_owned(),
            experiment: parameters.text.clone(),
            experiment_sha256: store::sha256(parameters.text.as_bytes()),
            binary_sha256: store::file_sha256(&parameters.launcher.program)?,
            program: parameters.program_version.clone(),
            machine: describe_machine(),
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            points: points.len(),
            ..RunFile::default()
        };
        let mut done = vec![false; points.len()];
        if parameters.resume && parameters.folder.join("run.json").exists() {
            let previous = RunFile::read(&parameters.folder)?;
            let differences = differences(&previous, &file);
            if !differences.is_empty() {
                return Err(LabError::Refused(format!(
                    "the run in {} cannot be resumed: it was made with another {}; without --resume it is \
                     moved aside \
                     and a new one begins",
                    parameters.folder.display(),
                    differences.join(" and another ")
                )));
            }
            file = previous;
            for (index, point) in points.iter().enumerate() {
                let folder = store::point_folder(&parameters.folder, index, &point.levels);
                let has_same_fingerprint =
                    |point_file: &PointFile| point_file.fingerprint == file.fingerprint(&point.levels);
                // A point with a late load was invalid: it is repeated.
                let is_valid = |point_file: &PointFile| !point_file.outcome.is_late();
                done[index] = PointFile::read(&folder)
                    .is_ok_and(|point_file| has_same_fingerprint(&point_file) && is_valid(&point_file));
            }
        }
        Ok(Self { parameters, file, points, done, _lock: lock })
    }

    /// Returns the remaining work.
    pub fn budget(&self) -> RunBudget {
        let done_count = self.done.iter().filter(|done| **done).count();
        RunBudget {
            points: self.points.len(),
            done: done_count,
            time: self.estimated_time(|index| !self.done[index]),
        }
    }

    /// Runs the remaining points. If this machine cannot have the experiment's network, it runs none and
    /// writes the reason to `run.json`.
    ///
    /// # Errors
    /// Fails if a process, a file or the load fails, or `watch` interrupts the run. Completed points are
    /// kept.
    pub fn run(mut self, observer: &mut dyn RunObserver) -> Result<(), LabError> {
        let start = Instant::now();
        let previous_seconds = self.file.took;
        let folder = self.parameters.folder.clone();
        self.file.skipped = network::missing_reason(&self.parameters.experiment.network);
        if !self.done.contains(&true) {
            // Files of an earlier run would be taken for those of this one.
            if let Some(old_folder) = move_aside(&folder)? {
                observer.on_calibration(&format!(
                    "what an earlier run measured is now in {}",
                    old_folder.display()
                ));
            }
            clear(&folder)?;
            create_folder(&folder)?;
            store::write_text(&folder.join("experiment.toml"), &self.parameters.text)?;
            if self.parameters.experiment.load.workload.is_some() {
                store::write_text(&folder.join("access.log"), &load_driver::replay_log())?;
            }
        }
        if self.file.skipped.is_some() {
            return self.file.write(&folder);
        }
        if !self.done.contains(&true) {
            let calibration_folder = folder.join("before");
            create_folder(&calibration_folder)?;
            let parameters = &self.parameters;
            self.file.before = Calibration::measure(
                &parameters.launcher,
                &parameters.experiment,
                &self.points,
                &calibration_folder,
                observer,
            )?;
            self.file.write(&folder)?;
        }
        let points_started_at = Instant::now();
        let initially_done = self.done.clone();
        let skipped = self.find_missing();
        for (name, reason) in &self.file.missing {
            observer.on_calibration(&format!(
                "SKIPPED: {name}: {reason}; what it is compared with stays undecided"
            ));
        }
        self.file.write(&folder)?;
        for group in self.run_groups() {
            // The estimate for the rest is scaled by the ratio of actual to planned time so far.
            let (done_time, remaining_time) = (
                self.estimated_time(|n| !initially_done[n] && self.done[n]),
                self.estimated_time(|n| !skipped[n] && !self.done[n]),
            );
            let slowdown = if done_time.is_zero() {
                1.0
            } else {
                points_started_at.elapsed().as_secs_f64() / done_time.as_secs_f64()
            };
            let done_count = self.done.iter().filter(|done| **done).count();
            observer.on_point_start(
                done_count,
                self.points.len(),
                remaining_time.mul_f64(slowdown),
                &self.group_name(&group),
            );
            for (index, file) in self.run_group(&group, observer)? {
                observer.on_point_end(&table::format_levels(&file.levels), &headline(&file));
                self.done[index] = true;
            }
            self.file.took = previous_seconds + start.elapsed().as_secs_f64();
            self.file.write(&folder)?;
        }
        Ok(())
    }

    /// Finds the balancers that this machine lacks; returns which points are skipped for that.
    fn find_missing(&mut self) -> Vec<bool> {
        self.file.missing.clear();
        for point in &self.points {
            let Some(level) = point.levels.get(&Factor::Balancer) else { continue };
            let launcher = &self.parameters.launcher;
            let side_car =
                || point.side_cars.then(|| side_car::missing_reason(launcher, point.protocol)).flatten();
            if let Some(reason) =
                proxy_under_test::missing_reason(launcher, &point.balancer).or_else(side_car)
            {
                self.file.missing.insert(level.to_string(), reason);
            }
        }
        self.points.iter().map(|point| self.file.skip_reason(&point.levels).is_some()).collect()
    }

    /// Returns the remaining points; those with interleaved repetitions are grouped.
    fn run_groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, point) in self.points.iter().enumerate() {
            if self.done[index] || self.file.skip_reason(&point.levels).is_some() {
                continue;
            }
            let is_rival_group = |group: &&mut Vec<usize>| {
                plan::differ_in_balancer(&self.points[group[0]].levels, &point.levels)
            };
            let rival_group = groups
                .iter_mut()
                .find(is_rival_group)
                .filter(|_| self.parameters.experiment.plan.interleaved);
            match rival_group {
                Some(group) => group.push(index),
                None => groups.push(vec![index]),
            }
        }
        groups
    }

    fn group_name(&self, group: &[usize]) -> String {
        let levels = &self.points[group[0]].levels;
        if group.len() == 1 {
            return table::format_levels(levels);
        }
        let mut common_levels = levels.clone();
        common_levels.remove(&Factor::Balancer);
        format!("{} balancers in turn, {}", group.len(), table::format_levels(&common_levels))
    }

    /// Returns the planned time of the points that `which` selects.
    fn estimated_time(&self, is_included: impl Fn(usize) -> bool) -> Duration {
        let points =
            self.points.iter().enumerate().filter(|(index, _)| is_included(*index)).map(|(_, point)| point);
        plan::estimated_time(&self.parameters.experiment, self.parameters.mode, points)
    }

    /// Runs these points, interleaved by repetition; the order rotates each time.
    fn run_group(
        &self,
        group: &[usize],
        observer: &mut dyn RunObserver,
    ) -> Result<Vec<(usize, PointFile)>, LabError> {
        let parameters = &self.parameters;
        let mut outcomes = Vec::new();
        for index in group {
            clear(&self.folder(*index))?;
            create_folder(&self.folder(*index))?;
            outcomes.push(PointOutcome::new());
        }
        for repetition in 1..=plan::repetitions(&parameters.experiment, parameters.mode) {
            for position in 0..group.len() {
                let position = (position + repetition - 1) % group.len();
                outcomes[position].merge(self.repetition(group[position], repetition, observer)?);
            }
        }
        let mut files = Vec::new();
        for (index, outcome) in group.iter().zip(outcomes) {
            let (levels, folder) = (&self.points[*index].levels, self.folder(*index));
            let model = parameters.experiment.model.as_ref();
            let point = &self.points[*index];
            let wire_times = self.file.before.wires.get(point.protocol.name()).copied().unwrap_or_default();
            let predicted = model.map(|model| model.get_ref().predict(point, wire_times)).transpose();
            let predicted = predicted
                .map_err(|reason| LabError::failed(format!("{}: {reason}", table::format_levels(levels))))?;
            let file = PointFile {
                version: store::VERSION,
                levels: levels.clone(),
                fingerprint: self.file.fingerprint(levels),
                configurations: store::configurations(&folder),
                estimates: store::estimates(&outcome.samples),
                predicted: predicted.unwrap_or_default(),
                outcome,
            };
            file.write(&folder)?;
            files.push((*index, file));
        }
        Ok(files)
    }

    /// Runs a repetition of a point, and repeats it if the generator was late: other activity of the machine
    /// is no property of a balancer.
    fn repetition(
        &self,
        index: usize,
        repetition: usize,
        observer: &mut dyn RunObserver,
    ) -> Result<PointOutcome, LabError> {
        let (parameters, point, folder) = (&self.parameters, &self.points[index], self.folder(index));
        let mut retries = 0;
        loop {
            let mut outcome = PointOutcome { again: retries, ..PointOutcome::new() };
            let calibration = &self.file.before;
            point::run_repetition(
                &parameters.launcher,
                &parameters.experiment,
                parameters.mode,
                point,
                repetition,
                calibration,
                &folder,
                &mut outcome,
                observer,
            )
            .map_err(|error| match error {
                LabError::Failed(reason) => LabError::failed(format!(
                    "{}: {reason}; logs are in {}",
                    table::format_levels(&point.levels),
                    folder.display()
                )),
                other => other,
            })?;
            if !outcome.is_late() || retries == MAX_RETRIES {
                return Ok(outcome);
            }
            retries += 1;
        }
    }

    fn folder(&self, index: usize) -> PathBuf {
        store::point_folder(&self.parameters.folder, index, &self.points[index].levels)
    }
}

/// The maximum number of repeats of a repetition.
const MAX_RETRIES: u32 = 2;

/// Returns the main numbers of a point in one line.
fn headline(file: &PointFile) -> String {
    let metrics = [Metric::Throughput, Metric::Response, Metric::Success, Metric::Surge];
    let measured = metrics.into_iter().filter_map(|metric| {
        let estimate = Estimate::of(file.outcome.samples.get(&metric)?)?;
        Some(format!("{} {}", metric.name(), claim::format_estimate(&estimate)))
    });
    let mut parts: Vec<String> = measured.collect();
    for (column, prediction) in &file.predicted {
        if let Some((mean, _)) = prediction.values.get(&Metric::Response) {
            parts.push(format!("{} {}", column.name(), claim::format_number(*mean)));
        }
    }
    match file.outcome.again {
        0 => {}
        1 => parts.push("one repetition run again: requests left late".to_owned()),
        count => parts.push(format!("{count} repetitions run again: requests left late")),
    }
    if file.outcome.is_late() {
        parts.push(format!("INVALID: only {:.1} % left on time", file.outcome.punctuality * 100.0));
    }
    parts.join(", ")
}

fn create_folder(folder: &Path) -> Result<(), LabError> {
    fs::create_dir_all(folder).map_err(|error| store::io_error("make", folder, &error))
}

/// Returns the differences that prevent one run from continuing another.
fn differences(previous: &RunFile, current: &RunFile) -> Vec<&'static str> {
    let pairs = [
        (previous.experiment_sha256 != current.experiment_sha256, "experiment file"),
        (previous.binary_sha256 != current.binary_sha256, "binary"),
        (previous.mode != current.mode, "length"),
        (previous.version != current.version, "version of the files"),
    ];
    pairs.into_iter().filter_map(|(differs, difference)| differs.then_some(difference)).collect()
}

/// Locks a file beside the folder, which itself may be moved.
fn lock(folder: &Path) -> Result<File, LabError> {
    let path = sibling_path(folder, "lock");
    if let Some(parent) = path.parent() {
        create_folder(parent)?;
    }
    let file = File::create(&path).map_err(|error| store::io_error("write", &path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LabError::Refused(format!(
            "another run is writing into {}; wait for it, or choose another folder with --out",
            folder.display()
        ))),
        Err(TryLockError::Error(error)) => Err(store::io_error("lock", &path, &error)),
    }
}

/// Returns `folder.ending`.
fn sibling_path(folder: &Path, suffix: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(format!(".{suffix}"));
    path.into()
}

/// Renames the folder of a run with results; returns its new path.
fn move_aside(folder: &Path) -> Result<Option<PathBuf>, LabError> {
    let points = fs::read_dir(folder.join("points")).into_iter().flatten();
    let measured = points.flatten().any(|point| point.path().join("point.json").exists());
    if !measured || !folder.join("run.json").exists() {
        return Ok(None);
    }
    let mut number = 1;
    let mut aside = sibling_path(folder, "1");
    while aside.exists() {
        number += 1;
        aside = sibling_path(folder, &number.to_string());
    }
    fs::rename(folder, &aside).map_err(|error| store::io_error("move", folder, &error))?;
    Ok(Some(aside))
}

/// Removes a folder that an earlier run created, and no other.
fn clear(folder: &Path) -> Result<(), LabError> {
    let is_run_folder = folder.join("run.json").exists() || folder.join("experiment.toml").exists();
    let is_point_folder = folder.parent().is_some_and(|parent| parent.ends_with("points"));
    let is_empty = fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !is_run_folder && !is_point_folder && !is_empty {
        return Err(LabError::failed(format!(
            "{} holds something else than a run; choose another folder with --out",
            folder.display()
        )));
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(store::io_error("clear", folder, &error))
        }
        _ => Ok(()),
    }
}

/// Describes the machine: processors, their name, memory and the kernel.
fn describe_machine() -> String {
    let first_value = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned));
        line.unwrap_or_default().trim_start_matches([' ', '\t', ':']).to_owned()
    };
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = first_value("/proc/meminfo", "MemTotal:");
    let model = first_value("/proc/cpuinfo", "model name");
    format!("{count} processors ({model}), {memory} of memory, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{TEXT, experiment};

    fn parameters(folder: &Path, resume: bool) -> RunParameters {
        RunParameters {
            name: "test".to_owned(),
            text: TEXT.to_owned(),
            experiment: experiment(),
            mode: RunLength::Quick,
            resume,
            folder: folder.to_owned(),
            launcher: ProcessLauncher {
                program: std::env::current_exe().unwrap(),
                arguments: vec![],
                open_picker: |_| Err("not here".to_owned()),
            },
            program_version: "0".to_owned(),
        }
    }

    /// Returns the name of a new folder for a run.
    fn run_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("plimsoll-lab-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder.join("test-quick")
    }

    fn remove(folder: &Path) {
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_was_made_with_something_else_is_not_resumed_and_not_deleted() {
        let folder = run_folder("resume");
        let point = folder.join("points/001-all");
        let runner = Runner::new(parameters(&folder, true)).unwrap();
        fs::create_dir_all(&point).unwrap();
        runner.file.write(&folder).unwrap();
        PointFile::default().write(&point).unwrap();
        drop(runner);
        assert!(Runner::new(parameters(&folder, true)).is_ok());
        let mut other = parameters(&folder, true);
        other.text += "# changed";
        let error = Runner::new(other).unwrap_err();
        assert!(
            matches!(&error, LabError::Refused(message) if message.contains("another experiment file;")),
            "{error}"
        );
        assert!(point.join("point.json").exists());
        let aside = move_aside(&folder).unwrap().unwrap();
        assert!(aside.ends_with("test-quick.1") && aside.join("points/001-all/point.json").exists());
        assert_eq!(move_aside(&folder).unwrap(), None);
        remove(&folder);
    }

    #[test]
    fn two_runs_do_not_share_a_folder() {
        let folder = run_folder("lock");
        let first = Runner::new(parameters(&folder, false)).unwrap();
        assert!(matches!(Runner::new(parameters(&folder, false)), Err(LabError::Refused(_))));
        drop(first);
        assert!(Runner::new(parameters(&folder, false)).is_ok());
        remove(&folder);
    }
}
