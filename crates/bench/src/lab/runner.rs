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
    pub fn new(order: RunParameters) -> Result<Self, LabError> {
        let lock = lock(&order.folder)?;
        let points = plan::points(&order.experiment, order.mode);
        let mut file = RunFile {
            version: store::VERSION,
            name: order.name.clone(),
            mode: order.mode.name().to_owned(),
            experiment: order.text.clone(),
            experiment_sha256: store::sha256(order.text.as_bytes()),
            binary_sha256: store::file_sha256(&order.launcher.program)?,
            program: order.program_version.clone(),
            machine: machine(),
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            points: points.len(),
            ..RunFile::default()
        };
        let mut done = vec![false; points.len()];
        if order.resume && order.folder.join("run.json").exists() {
            let old = RunFile::read(&order.folder)?;
            let differences = differences(&old, &file);
            if !differences.is_empty() {
                return Err(LabError::Refused(format!(
                    "the run in {} cannot be resumed: it was made with another {}; without --resume it is \
                     moved aside \
                     and a new one begins",
                    order.folder.display(),
                    differences.join(" and another ")
                )));
            }
            file = old;
            for (index, wanted) in points.iter().enumerate() {
                let folder = store::point_folder(&order.folder, index, &wanted.levels);
                let same = |old: &PointFile| old.fingerprint == file.fingerprint(&wanted.levels);
                // A point with a late load was invalid: it is repeated.
                let valid = |old: &PointFile| !old.outcome.is_late();
                done[index] = PointFile::read(&folder).is_ok_and(|old| same(&old) && valid(&old));
            }
        }
        Ok(Self { parameters: order, file, points, done, _lock: lock })
    }

    /// Returns the remaining work.
    pub fn budget(&self) -> RunBudget {
        let done = self.done.iter().filter(|done| **done).count();
        RunBudget { points: self.points.len(), done, time: self.planned(|index| !self.done[index]) }
    }

    /// Runs the remaining points. If this machine cannot have the experiment's network, it runs none and
    /// writes the reason to `run.json`.
    ///
    /// # Errors
    /// Fails if a process, a file or the load fails, or `watch` interrupts the run. Completed points are
    /// kept.
    pub fn run(mut self, watch: &mut dyn RunObserver) -> Result<(), LabError> {
        let start = Instant::now();
        let took = self.file.took;
        let folder = self.parameters.folder.clone();
        self.file.skipped = network::missing_reason(&self.parameters.experiment.network);
        if !self.done.contains(&true) {
            // Files of an earlier run would be taken for those of this one.
            if let Some(place) = move_aside(&folder)? {
                watch.on_calibration(&format!("what an earlier run measured is now in {}", place.display()));
            }
            clear(&folder)?;
            make(&folder)?;
            store::write_text(&folder.join("experiment.toml"), &self.parameters.text)?;
            if self.parameters.experiment.load.workload.is_some() {
                store::write_text(&folder.join("access.log"), &load_driver::replay_log())?;
            }
        }
        if self.file.skipped.is_some() {
            return self.file.write(&folder);
        }
        if !self.done.contains(&true) {
            let aside = folder.join("before");
            make(&aside)?;
            let order = &self.parameters;
            self.file.before =
                Calibration::measure(&order.launcher, &order.experiment, &self.points, &aside, watch)?;
            self.file.write(&folder)?;
        }
        let began = Instant::now();
        let first = self.done.clone();
        let skipped = self.find_missing();
        for (name, why) in &self.file.missing {
            watch
                .on_calibration(&format!("SKIPPED: {name}: {why}; what it is compared with stays undecided"));
        }
        self.file.write(&folder)?;
        for heat in self.run_groups() {
            // The estimate for the rest is scaled by the ratio of actual to planned time so far.
            let (so_far, rest) =
                (self.planned(|n| !first[n] && self.done[n]), self.planned(|n| !skipped[n] && !self.done[n]));
            let slower =
                if so_far.is_zero() { 1.0 } else { began.elapsed().as_secs_f64() / so_far.as_secs_f64() };
            let done = self.done.iter().filter(|done| **done).count();
            watch.on_point_start(done, self.points.len(), rest.mul_f64(slower), &self.heat_name(&heat));
            for (index, file) in self.run_group(&heat, watch)? {
                watch.on_point_end(&table::format_levels(&file.levels), &headline(&file));
                self.done[index] = true;
            }
            self.file.took = took + start.elapsed().as_secs_f64();
            self.file.write(&folder)?;
        }
        Ok(())
    }

    /// Finds the balancers that this machine lacks; returns which points are skipped for that.
    fn find_missing(&mut self) -> Vec<bool> {
        self.file.missing.clear();
        for point in &self.points {
            let Some(level) = point.levels.get(&Factor::Balancer) else { continue };
            let tie = &self.parameters.launcher;
            let side_car =
                || point.side_cars.then(|| side_car::missing_reason(tie, point.protocol)).flatten();
            if let Some(why) = proxy_under_test::missing_reason(tie, &point.balancer).or_else(side_car) {
                self.file.missing.insert(level.to_string(), why);
            }
        }
        self.points.iter().map(|point| self.file.skip_reason(&point.levels).is_some()).collect()
    }

    /// Returns the remaining points; those with interleaved repetitions are grouped.
    fn run_groups(&self) -> Vec<Vec<usize>> {
        let mut heats: Vec<Vec<usize>> = Vec::new();
        for (index, point) in self.points.iter().enumerate() {
            if self.done[index] || self.file.skip_reason(&point.levels).is_some() {
                continue;
            }
            let rival = |heat: &&mut Vec<usize>| {
                plan::differ_in_balancer(&self.points[heat[0]].levels, &point.levels)
            };
            let heat = heats.iter_mut().find(rival).filter(|_| self.parameters.experiment.plan.interleaved);
            match heat {
                Some(heat) => heat.push(index),
                None => heats.push(vec![index]),
            }
        }
        heats
    }

    fn heat_name(&self, heat: &[usize]) -> String {
        let levels = &self.points[heat[0]].levels;
        if heat.len() == 1 {
            return table::format_levels(levels);
        }
        let mut rest = levels.clone();
        rest.remove(&Factor::Balancer);
        format!("{} balancers in turn, {}", heat.len(), table::format_levels(&rest))
    }

    /// Returns the planned time of the points that `which` selects.
    fn planned(&self, which: impl Fn(usize) -> bool) -> Duration {
        let points =
            self.points.iter().enumerate().filter(|(index, _)| which(*index)).map(|(_, point)| point);
        plan::estimated_time(&self.parameters.experiment, self.parameters.mode, points)
    }

    /// Runs these points, interleaved by repetition; the order rotates each time.
    fn run_group(
        &self,
        heat: &[usize],
        watch: &mut dyn RunObserver,
    ) -> Result<Vec<(usize, PointFile)>, LabError> {
        let order = &self.parameters;
        let mut outcomes = Vec::new();
        for index in heat {
            clear(&self.folder(*index))?;
            make(&self.folder(*index))?;
            outcomes.push(PointOutcome::new());
        }
        for repetition in 1..=plan::repetitions(&order.experiment, order.mode) {
            for turn in 0..heat.len() {
                let turn = (turn + repetition - 1) % heat.len();
                outcomes[turn].merge(self.repetition(heat[turn], repetition, watch)?);
            }
        }
        let mut files = Vec::new();
        for (index, outcome) in heat.iter().zip(outcomes) {
            let (levels, folder) = (&self.points[*index].levels, self.folder(*index));
            let model = order.experiment.model.as_ref();
            let point = &self.points[*index];
            let wire = self.file.before.wires.get(point.protocol.name()).copied().unwrap_or_default();
            let predicted = model.map(|model| model.get_ref().predict(point, wire)).transpose();
            let predicted = predicted
                .map_err(|why| LabError::failed(format!("{}: {why}", table::format_levels(levels))))?;
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
        number: usize,
        watch: &mut dyn RunObserver,
    ) -> Result<PointOutcome, LabError> {
        let (order, point, folder) = (&self.parameters, &self.points[index], self.folder(index));
        let mut again = 0;
        loop {
            let mut outcome = PointOutcome { again, ..PointOutcome::new() };
            let before = &self.file.before;
            point::run_repetition(
                &order.launcher,
                &order.experiment,
                order.mode,
                point,
                number,
                before,
                &folder,
                &mut outcome,
                watch,
            )
            .map_err(|trouble| match trouble {
                LabError::Failed(why) => LabError::failed(format!(
                    "{}: {why}; logs are in {}",
                    table::format_levels(&point.levels),
                    folder.display()
                )),
                other => other,
            })?;
            if !outcome.is_late() || again == AGAIN {
                return Ok(outcome);
            }
            again += 1;
        }
    }

    fn folder(&self, index: usize) -> PathBuf {
        store::point_folder(&self.parameters.folder, index, &self.points[index].levels)
    }
}

/// The maximum number of repeats of a repetition.
const AGAIN: u32 = 2;

/// Returns the main numbers of a point in one line.
fn headline(file: &PointFile) -> String {
    let metrics = [Metric::Throughput, Metric::Response, Metric::Success, Metric::Surge];
    let parts = metrics.into_iter().filter_map(|metric| {
        let estimate = Estimate::of(file.outcome.samples.get(&metric)?)?;
        Some(format!("{} {}", metric.name(), claim::format_estimate(&estimate)))
    });
    let mut parts: Vec<String> = parts.collect();
    for (column, said) in &file.predicted {
        if let Some((mean, _)) = said.values.get(&Metric::Response) {
            parts.push(format!("{} {}", column.name(), claim::format_number(*mean)));
        }
    }
    match file.outcome.again {
        0 => {}
        1 => parts.push("one repetition run again: requests left late".to_owned()),
        many => parts.push(format!("{many} repetitions run again: requests left late")),
    }
    if file.outcome.is_late() {
        parts.push(format!("INVALID: only {:.1} % left on time", file.outcome.punctuality * 100.0));
    }
    parts.join(", ")
}

fn make(folder: &Path) -> Result<(), LabError> {
    fs::create_dir_all(folder).map_err(|error| store::io_error("make", folder, &error))
}

/// Returns the differences that prevent one run from continuing another.
fn differences(old: &RunFile, new: &RunFile) -> Vec<&'static str> {
    let pairs = [
        (old.experiment_sha256 != new.experiment_sha256, "experiment file"),
        (old.binary_sha256 != new.binary_sha256, "binary"),
        (old.mode != new.mode, "length"),
        (old.version != new.version, "version of the files"),
    ];
    pairs.into_iter().filter_map(|(differs, what)| differs.then_some(what)).collect()
}

/// Locks a file beside the folder, which itself may be moved.
fn lock(folder: &Path) -> Result<File, LabError> {
    let path = sibling_path(folder, "lock");
    if let Some(parent) = path.parent() {
        make(parent)?;
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
fn sibling_path(folder: &Path, ending: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(format!(".{ending}"));
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
    let mut place = sibling_path(folder, "1");
    while place.exists() {
        number += 1;
        place = sibling_path(folder, &number.to_string());
    }
    fs::rename(folder, &place).map_err(|error| store::io_error("move", folder, &error))?;
    Ok(Some(place))
}

/// Removes a folder that an earlier run created, and no other.
fn clear(folder: &Path) -> Result<(), LabError> {
    let ours = folder.join("run.json").exists() || folder.join("experiment.toml").exists();
    let inside = folder.parent().is_some_and(|parent| parent.ends_with("points"));
    let empty = fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !ours && !inside && !empty {
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
fn machine() -> String {
    let first = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned));
        line.unwrap_or_default().trim_start_matches([' ', '\t', ':']).to_owned()
    };
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = first("/proc/meminfo", "MemTotal:");
    let model = first("/proc/cpuinfo", "model name");
    format!("{count} processors ({model}), {memory} of memory, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{TEXT, experiment};

    fn order(folder: &Path, resume: bool) -> RunParameters {
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
    fn place(name: &str) -> PathBuf {
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
        let folder = place("resume");
        let point = folder.join("points/001-all");
        let runner = Runner::new(order(&folder, true)).unwrap();
        fs::create_dir_all(&point).unwrap();
        runner.file.write(&folder).unwrap();
        PointFile::default().write(&point).unwrap();
        drop(runner);
        assert!(Runner::new(order(&folder, true)).is_ok());
        let mut other = order(&folder, true);
        other.text += "# changed";
        let trouble = Runner::new(other).unwrap_err();
        assert!(
            matches!(&trouble, LabError::Refused(why) if why.contains("another experiment file;")),
            "{trouble}"
        );
        assert!(point.join("point.json").exists());
        let aside = move_aside(&folder).unwrap().unwrap();
        assert!(aside.ends_with("test-quick.1") && aside.join("points/001-all/point.json").exists());
        assert_eq!(move_aside(&folder).unwrap(), None);
        remove(&folder);
    }

    #[test]
    fn two_runs_do_not_share_a_folder() {
        let folder = place("lock");
        let first = Runner::new(order(&folder, false)).unwrap();
        assert!(matches!(Runner::new(order(&folder, false)), Err(LabError::Refused(_))));
        drop(first);
        assert!(Runner::new(order(&folder, false)).is_ok());
        remove(&folder);
    }
}
