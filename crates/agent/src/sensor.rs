//! Sensors: values that the kernel provides to unprivileged processes.
//!
//! A sensor is a file in this folder and a line in [`ALL`]. It reads files of /proc and of a control group,
//! and produces values by name. It skips a file that it cannot read, which is logged once with its name and
//! the reason. Where both the host and the control group have a limit, the tighter one decides: `cpu` and
//! `memory` are the greater of both shares.

mod cpu;
mod memory;
mod pressure;
mod run_queue;
mod sockets;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of bytes after which a file is cut: enough for a hundred thousand connections.
const MAX_FILE: u64 = 16 << 20;

/// All sensors.
pub(crate) const ALL: &[Sensor] = &[
    Sensor { name: "cpu", open: cpu::open },
    Sensor { name: "queue", open: run_queue::open },
    Sensor { name: "pressure", open: pressure::open },
    Sensor { name: "memory", open: memory::open },
    Sensor { name: "sockets", open: sockets::open },
];

/// A sensor that can be opened.
pub(crate) struct Sensor {
    /// The name in messages.
    pub(crate) name: &'static str,
    /// Opens the sensor. Its means are over the given time span.
    open: fn(&SensorPaths, Duration) -> Box<dyn SensorReader>,
}

/// An open sensor.
trait SensorReader: Send {
    /// Reads the current values. Rates of counters need two readings.
    fn read_values(&mut self, context: &mut SensorContext<'_>);
}

/// The files to read.
#[derive(Clone, Debug)]
pub(crate) struct SensorPaths {
    /// The path of procfs, usually /proc.
    pub(crate) proc: PathBuf,
    /// The folder of a control group, version 2.
    pub(crate) cgroup: Option<PathBuf>,
    /// The local port whose established connections are counted.
    pub(crate) port: Option<u16>,
}

/// A value that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SensorReading {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    /// Whether the value is a share from 0 to 1.
    pub(crate) is_share: bool,
}

/// A file or page that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnreadSource {
    /// The name of the sensor.
    pub sensor: &'static str,
    /// The file or address.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// All sensors, open.
pub(crate) struct SensorSet {
    paths: SensorPaths,
    readers: Vec<(&'static str, Box<dyn SensorReader>)>,
    text: String,
}

impl SensorSet {
    /// Opens all sensors. Their means are over `span`.
    pub(crate) fn open(paths: SensorPaths, window: Duration) -> Self {
        let readers = ALL.iter().map(|sensor| (sensor.name, (sensor.open)(&paths, window))).collect();
        Self { paths, readers, text: String::new() }
    }

    /// Reads all sensors. `at` is the time of any monotonic clock.
    pub(crate) fn read_all(&mut self, at: Duration) -> (Vec<SensorReading>, Vec<UnreadSource>) {
        let (mut readings, mut unread) = (Vec::new(), Vec::new());
        for (sensor, reader) in &mut self.readers {
            reader.read_values(&mut SensorContext {
                sensor,
                paths: &self.paths,
                now: at,
                text: &mut self.text,
                readings: &mut readings,
                unread: &mut unread,
            });
        }
        readings.retain(|reading| reading.value.is_finite());
        (readings, unread)
    }
}

/// The context of one reading of a sensor.
struct SensorContext<'a> {
    sensor: &'static str,
    paths: &'a SensorPaths,
    now: Duration,
    text: &'a mut String,
    readings: &'a mut Vec<SensorReading>,
    unread: &'a mut Vec<UnreadSource>,
}

impl SensorContext<'_> {
    /// Reads and parses a file of the host; records a failure.
    fn read_host<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.read_file(&self.paths.proc.join(file), parse)
    }

    /// Reads and parses a file of the control group; records a failure. Returns `None` if there is no control
    /// group.
    fn read_cgroup<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.read_file(&self.paths.cgroup.as_ref()?.join(file), parse)
    }

    /// Reads and parses a file of the control group that may be missing; records other failures.
    fn read_optional_cgroup<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let path = self.paths.cgroup.as_ref()?.join(file);
        if path.exists() { self.read_file(&path, parse) } else { None }
    }

    fn read_file<T>(&mut self, path: &Path, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let reason = match read(path, self.text) {
            Ok(()) => match parse(self.text) {
                Some(value) => return Some(value),
                None => "it is not in the form that Linux gives it".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        self.unread.push(UnreadSource { sensor: self.sensor, what: path.display().to_string(), why: reason });
        None
    }

    /// Records a share, clamped to 0 to 1.
    fn record_share(&mut self, name: &'static str, value: f64) {
        self.readings.push(SensorReading { name, value: value.clamp(0.0, 1.0), is_share: true });
    }

    /// Records a number, at least 0.
    fn record_number(&mut self, name: &'static str, value: f64) {
        self.readings.push(SensorReading { name, value: value.max(0.0), is_share: false });
    }
}

/// Reads at most [`MAX_FILE`] bytes of a text file.
fn read(path: &Path, text: &mut String) -> io::Result<()> {
    text.clear();
    File::open(path)?.take(MAX_FILE).read_to_string(text)?;
    Ok(())
}

/// Returns the number after `key` at the beginning of a line.
fn value_of_key(text: &str, key: &str) -> Option<f64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines
        .find_map(|mut words| {
            (words.next() == Some(key)).then(|| words.next()?.parse::<u64>().ok()).flatten()
        })
        .map(|number| number as f64)
}

#[cfg(test)]
mod tests;
