//! Works through the points of an experiment, unattended: one folder a point, nothing left running, what is
//! done skipped on resumption.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::child::Tie;
use super::experiment::{Experiment, Mode};
use super::metric::Metric;
use super::statistics::Estimate;
use super::store::{self, PointFile, RunFile};
use super::{Before, Trouble, Watch, claim, plan, point, table};

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Order {
    /// Of the experiment.
    pub name: String,
    /// Its file's text.
    pub text: String,
    /// What it says.
    pub experiment: Experiment,
    /// How long.
    pub mode: Mode,
    /// Skip what has been done.
    pub resume: bool,
    /// Where everything goes.
    pub folder: PathBuf,
    /// How processes are started.
    pub tie: Tie,
    /// Version of this program.
    pub program: String,
}

/// How much is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Points in all.
    pub points: usize,
    /// Of those, points that are done and will be skipped.
    pub done: usize,
    /// About how long the others take.
    pub time: Duration,
}

/// A run that has not begun.
#[derive(Debug)]
pub struct Runner {
    order: Order,
    file: RunFile,
    points: Vec<plan::Point>,
    /// By point.
    done: Vec<bool>,
}

impl Runner {
    /// Looks at what is in the folder, if the run is to be resumed. Otherwise [`run`](Self::run) clears it.
    ///
    /// # Errors
    /// If the binary cannot be read.
    pub fn new(order: Order) -> Result<Self, Trouble> {
        let points = plan::points(&order.experiment, order.mode);
        let mut file = RunFile {
            version: store::VERSION,
            name: order.name.clone(),
            mode: order.mode.name().to_owned(),
            experiment: order.text.clone(),
            experiment_sha256: store::sum(order.text.as_bytes()),
            binary_sha256: store::sum_of(&order.tie.program)?,
            program: order.program.clone(),
            machine: machine(),
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            points: points.len(),
            ..RunFile::default()
        };
        let mut done = vec![false; points.len()];
        if order.resume
            && let Ok(old) = RunFile::read(&order.folder)
            && (&old.experiment_sha256, &old.binary_sha256, &old.mode)
                == (&file.experiment_sha256, &file.binary_sha256, &file.mode)
        {
            file = old;
            for (index, point) in points.iter().enumerate() {
                let folder = store::point_folder(&order.folder, index, &point.levels);
                let same = |old: PointFile| old.fingerprint == file.fingerprint(&point.levels);
                done[index] = PointFile::read(&folder).is_ok_and(same);
            }
        }
        Ok(Self { order, file, points, done })
    }

    /// How much is to be done.
    pub fn budget(&self) -> Budget {
        let done = self.done.iter().filter(|done| **done).count();
        Budget { points: self.points.len(), done, time: self.planned(|index| !self.done[index]) }
    }

    /// Runs what is left.
    ///
    /// # Errors
    /// If a process, a file or the load fails, or `watch` says to end. What is done is kept.
    pub fn run(mut self, watch: &mut dyn Watch) -> Result<(), Trouble> {
        let start = Instant::now();
        let took = self.file.took;
        let folder = self.order.folder.clone();
        if !self.done.contains(&true) {
            // What an earlier run left would be taken for this one's.
            clear(&folder)?;
            make(&folder)?;
            store::write_text(&folder.join("experiment.toml"), &self.order.text)?;
            let aside = folder.join("before");
            make(&aside)?;
            let order = &self.order;
            self.file.before = Before::measure(&order.tie, &order.experiment, &self.points, &aside, watch)?;
            self.file.write(&folder)?;
        }
        let began = Instant::now();
        let first = self.done.clone();
        for index in 0..self.points.len() {
            if first[index] {
                continue;
            }
            // What is left takes longer than planned by as much as what has been done did.
            let (so_far, rest) =
                (self.planned(|n| !first[n] && n < index), self.planned(|n| !first[n] && n >= index));
            let slower =
                if so_far.is_zero() { 1.0 } else { began.elapsed().as_secs_f64() / so_far.as_secs_f64() };
            let name = table::name(&self.points[index].levels);
            let done = self.done.iter().filter(|done| **done).count();
            watch.begins(done, self.points.len(), rest.mul_f64(slower), &name);
            let file = self.point(index, watch)?;
            watch.ended(&name, &headline(&file));
            self.done[index] = true;
            self.file.took = took + start.elapsed().as_secs_f64();
            self.file.write(&folder)?;
        }
        Ok(())
    }

    /// How long the points with these numbers are planned to take.
    fn planned(&self, which: impl Fn(usize) -> bool) -> Duration {
        let points =
            self.points.iter().enumerate().filter(|(index, _)| which(*index)).map(|(_, point)| point);
        plan::budget(&self.order.experiment, self.order.mode, points)
    }

    fn point(&self, index: usize, watch: &mut dyn Watch) -> Result<PointFile, Trouble> {
        let point = &self.points[index];
        let folder = store::point_folder(&self.order.folder, index, &point.levels);
        clear(&folder)?;
        make(&folder)?;
        let order = &self.order;
        let outcome =
            point::run(&order.tie, &order.experiment, order.mode, point, &self.file.before, &folder, watch)
                .map_err(|trouble| match trouble {
                Trouble::Failed(why) => Trouble::failed(format!(
                    "{}: {why}; logs are in {}",
                    table::name(&point.levels),
                    folder.display()
                )),
                Trouble::Interrupted => Trouble::Interrupted,
            })?;
        let file = PointFile {
            version: store::VERSION,
            levels: point.levels.clone(),
            fingerprint: self.file.fingerprint(&point.levels),
            configurations: store::configurations(&folder),
            estimates: store::estimates(&outcome.samples),
            outcome,
        };
        file.write(&folder)?;
        Ok(file)
    }
}

/// The numbers worth a line.
fn headline(file: &PointFile) -> String {
    let metrics = [Metric::Throughput, Metric::Response, Metric::Success, Metric::Surge];
    let parts = metrics.into_iter().filter_map(|metric| {
        let estimate = Estimate::of(file.outcome.samples.get(&metric)?)?;
        Some(format!("{} {}", metric.name(), claim::shown(&estimate)))
    });
    let mut parts: Vec<String> = parts.collect();
    if file.outcome.punctuality < point::PUNCTUAL {
        parts.push(format!("INVALID: only {:.1} % left on time", file.outcome.punctuality * 100.0));
    }
    parts.join(", ")
}

fn make(folder: &Path) -> Result<(), Trouble> {
    fs::create_dir_all(folder).map_err(|error| store::cannot("make", folder, &error))
}

/// Removes a folder that an earlier run made, and no other.
fn clear(folder: &Path) -> Result<(), Trouble> {
    let ours = folder.join("run.json").exists() || folder.join("experiment.toml").exists();
    let inside = folder.parent().is_some_and(|parent| parent.ends_with("points"));
    let empty = fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !ours && !inside && !empty {
        return Err(Trouble::failed(format!(
            "{} holds something else than a run; choose another folder with --out",
            folder.display()
        )));
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(store::cannot("clear", folder, &error))
        }
        _ => Ok(()),
    }
}

/// Processors, their name, and the kernel.
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
