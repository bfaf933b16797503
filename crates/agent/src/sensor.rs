//! Sensors: values that the kernel provides to unprivileged processes.
//!
//! A sensor is a file in this folder and a line in [`ALL`]. It reads files of /proc and of a control group,
//! and produces values by name. It skips a file that it cannot read, which is logged once with its name and
//! the reason. Where both the host and the control group have a limit, the tighter one decides: `cpu` and
//! `memory` are the greater of both shares.

mod cpu;
mod memory;
mod pressure;
mod queue;
mod sockets;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of bytes after which a file is cut: enough for a hundred thousand connections.
const MOST: u64 = 16 << 20;

/// All sensors.
pub(crate) const ALL: &[Sensor] = &[
    Sensor { name: "cpu", open: cpu::open },
    Sensor { name: "queue", open: queue::open },
    Sensor { name: "pressure", open: pressure::open },
    Sensor { name: "memory", open: memory::open },
    Sensor { name: "sockets", open: sockets::open },
];

/// A sensor that can be opened.
pub(crate) struct Sensor {
    /// The name in messages.
    pub(crate) name: &'static str,
    /// Opens the sensor. Its means are over the given time span.
    open: fn(&Place, Duration) -> Box<dyn Sense>,
}

/// An open sensor.
trait Sense: Send {
    /// Reads the current values. Rates of counters need two readings.
    fn look(&mut self, look: &mut Look<'_>);
}

/// The files to read.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The path of procfs, usually /proc.
    pub(crate) proc: PathBuf,
    /// The folder of a control group, version 2.
    pub(crate) cgroup: Option<PathBuf>,
    /// The local port whose established connections are counted.
    pub(crate) port: Option<u16>,
}

/// A value that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    /// Whether the value is a share from 0 to 1.
    pub(crate) share: bool,
}

/// A file or page that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unread {
    /// The name of the sensor.
    pub sensor: &'static str,
    /// The file or address.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// All sensors, open.
pub(crate) struct Sensors {
    place: Place,
    open: Vec<(&'static str, Box<dyn Sense>)>,
    text: String,
}

impl Sensors {
    /// Opens all sensors. Their means are over `span`.
    pub(crate) fn open(place: Place, span: Duration) -> Self {
        let open = ALL.iter().map(|sensor| (sensor.name, (sensor.open)(&place, span))).collect();
        Self { place, open, text: String::new() }
    }

    /// Reads all sensors. `at` is the time of any monotonic clock.
    pub(crate) fn look(&mut self, at: Duration) -> (Vec<Reading>, Vec<Unread>) {
        let (mut readings, mut unread) = (Vec::new(), Vec::new());
        for (sensor, sense) in &mut self.open {
            sense.look(&mut Look {
                sensor,
                place: &self.place,
                at,
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
struct Look<'a> {
    sensor: &'static str,
    place: &'a Place,
    at: Duration,
    text: &'a mut String,
    readings: &'a mut Vec<Reading>,
    unread: &'a mut Vec<Unread>,
}

impl Look<'_> {
    /// Reads and parses a file of the host; records a failure.
    fn host<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.file(&self.place.proc.join(file), parse)
    }

    /// Reads and parses a file of the control group; records a failure. Returns `None` if there is no control
    /// group.
    fn cgroup<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.file(&self.place.cgroup.as_ref()?.join(file), parse)
    }

    /// Reads and parses a file of the control group that may be missing; records other failures.
    fn cgroup_if_there<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let path = self.place.cgroup.as_ref()?.join(file);
        if path.exists() { self.file(&path, parse) } else { None }
    }

    fn file<T>(&mut self, path: &Path, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let why = match read(path, self.text) {
            Ok(()) => match parse(self.text) {
                Some(parsed) => return Some(parsed),
                None => "it is not in the form that Linux gives it".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        self.unread.push(Unread { sensor: self.sensor, what: path.display().to_string(), why });
        None
    }

    /// Records a share, clamped to 0 to 1.
    fn share(&mut self, name: &'static str, value: f64) {
        self.readings.push(Reading { name, value: value.clamp(0.0, 1.0), share: true });
    }

    /// Records a number, at least 0.
    fn number(&mut self, name: &'static str, value: f64) {
        self.readings.push(Reading { name, value: value.max(0.0), share: false });
    }
}

/// Reads at most `MOST` bytes of a text file.
fn read(path: &Path, text: &mut String) -> io::Result<()> {
    text.clear();
    File::open(path)?.take(MOST).read_to_string(text)?;
    Ok(())
}

/// Returns the number after `key` at the beginning of a line.
fn keyed(text: &str, key: &str) -> Option<f64> {
    let mut words = text.lines().map(str::split_whitespace);
    words
        .find_map(|mut words| {
            (words.next() == Some(key)).then(|| words.next()?.parse::<u64>().ok()).flatten()
        })
        .map(|number| number as f64)
}

#[cfg(test)]
mod tests;
