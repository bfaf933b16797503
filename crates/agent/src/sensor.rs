//! Sensors: what the kernel tells anybody who asks, without privileges.
//!
//! A sensor is a file here and a line in [`ALL`]. It looks at files of /proc and of a control group and says numbers
//! by name; what it cannot read it leaves out, and that is told once by name and reason. Where the host and the
//! control group both tell, the tighter of the two is what a request will meet: `cpu` and `memory` are the greater of
//! both shares.

mod cpu;
mod memory;
mod pressure;
mod queue;
mod sockets;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest file that is read, bytes: a hundred thousand connections.
const MOST: u64 = 16 << 20;

/// Every sensor there is.
pub(crate) const ALL: &[Sensor] = &[
    Sensor { name: "cpu", open: cpu::open },
    Sensor { name: "queue", open: queue::open },
    Sensor { name: "pressure", open: pressure::open },
    Sensor { name: "memory", open: memory::open },
    Sensor { name: "sockets", open: sockets::open },
];

/// A sensor that can be opened.
pub(crate) struct Sensor {
    /// In messages.
    pub(crate) name: &'static str,
    /// Opens it on a place, to tell means over the span.
    open: fn(&Place, Duration) -> Box<dyn Sense>,
}

/// A sensor that is open.
trait Sense: Send {
    /// Says what there is to say now. What grows is told from the second look on.
    fn look(&mut self, look: &mut Look<'_>);
}

/// Where to look.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// /proc, usually.
    pub(crate) proc: PathBuf,
    /// Of a control group, version 2.
    pub(crate) cgroup: Option<PathBuf>,
    /// Established connections to this local port are counted.
    pub(crate) port: Option<u16>,
}

/// A number that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    /// Does it go from 0 to 1?
    pub(crate) share: bool,
}

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unread {
    /// Name of the sensor.
    pub sensor: &'static str,
    /// The file or address.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// All sensors, open.
pub(crate) struct Sensors {
    place: Place,
    open: Vec<(&'static str, Box<dyn Sense>)>,
    text: String,
}

impl Sensors {
    /// Opens all of them, to tell means over `span`.
    pub(crate) fn open(place: Place, span: Duration) -> Self {
        let open = ALL.iter().map(|sensor| (sensor.name, (sensor.open)(&place, span))).collect();
        Self { place, open, text: String::new() }
    }

    /// Reads all of them. `at` is any clock that does not go back.
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

/// One look of one sensor.
struct Look<'a> {
    sensor: &'static str,
    place: &'a Place,
    at: Duration,
    text: &'a mut String,
    readings: &'a mut Vec<Reading>,
    unread: &'a mut Vec<Unread>,
}

impl Look<'_> {
    /// A file of the host's, parsed; what cannot be had is noted.
    fn host<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.file(&self.place.proc.join(file), parse)
    }

    /// A file of the control group's; `None` without a word if there is no control group.
    fn cgroup<T>(&mut self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.file(&self.place.cgroup.as_ref()?.join(file), parse)
    }

    /// The same for a file that may be missing.
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

    /// Says a share, which is kept from 0 to 1.
    fn share(&mut self, name: &'static str, value: f64) {
        self.readings.push(Reading { name, value: value.clamp(0.0, 1.0), share: true });
    }

    /// Says a number from 0 on.
    fn number(&mut self, name: &'static str, value: f64) {
        self.readings.push(Reading { name, value: value.max(0.0), share: false });
    }
}

/// The file, as far as it is text and not too long.
fn read(path: &Path, text: &mut String) -> io::Result<()> {
    text.clear();
    File::open(path)?.take(MOST).read_to_string(text)?;
    Ok(())
}

/// The number after `key`, which begins a line.
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
