//! ORCA load reports in response headers: a server says with its answer how loaded it is.
//!
//! The message is `xds.data.orca.v3.OrcaLoadReport`. In the header `endpoint-load-metrics` it comes in three
//! forms, told apart by their first word:
//!
//! ```text
//! TEXT cpu_utilization=0.3, rps_fractional=10.0, named_metrics.queue=4
//! JSON {"cpu_utilization": 0.3, "rps_fractional": 10.0, "named_metrics": {"queue": 4}}
//! BIN CTMzMzMzM9M/…                         the serialised message in base64
//! ```
//!
//! Without the word a value is JSON if it begins with `{`, else text: so the header was sent before the words were
//! agreed on. gRPC sends the third form without its word as `endpoint-load-metrics-bin`. In text `:` may stand for
//! `=`, as in older servers.
//!
//! A report is told whole or not at all. Fields that are not known are passed over, as a newer peer would expect;
//! a number that is none, a name that comes twice and whatever is too long or too much is refused. Nothing is
//! allocated: what is found is kept on the stack until the end has been seen.

mod bin;
mod json;
mod stream;
mod text;

pub use stream::{STREAM, question};
pub use text::write_text;

/// The header, in lower case.
pub const HEADER: &str = "endpoint-load-metrics";
/// The header for the binary form alone, in lower case.
pub const HEADER_BIN: &str = "endpoint-load-metrics-bin";
/// Longest value of a header that is read, bytes: room for [`MAX_METRICS`] in text.
pub const MAX_LEN: usize = 8192;
/// Most metrics in a report.
pub const MAX_METRICS: usize = 64;
/// Longest name of a metric, bytes.
pub const MAX_NAME: usize = 64;

/// Where in a report a metric stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A field of its own: one of [`FIELDS`]. Not negative.
    Field,
    /// `named_metrics`: whatever the application says.
    Named,
    /// `utilization`: a share of some resource of the application's. Not negative.
    Utilization,
    /// `request_cost`: what the request of this response has cost.
    RequestCost,
}

/// The fields that have names of their own: shares of the processors, of the memory and of what the application
/// thinks is its limit (0 to 1, more when a soft limit is passed), requests and errors per second. `rps` is the
/// forerunner of `rps_fractional`.
pub const FIELDS: [&str; 6] =
    ["cpu_utilization", "mem_utilization", "application_utilization", "rps_fractional", "eps", "rps"];

impl Kind {
    /// The maps, by the name of the message's field.
    const MAPS: [(Self, &str, &str); 3] = [
        (Self::Named, "named_metrics", "namedMetrics"),
        (Self::Utilization, "utilization", "utilization"),
        (Self::RequestCost, "request_cost", "requestCost"),
    ];
}

/// One number of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric<'a> {
    /// Where it stands.
    pub kind: Kind,
    /// Of the field, or the key in the map: 1 to [`MAX_NAME`] visible ASCII characters, no comma, equals sign,
    /// quotation mark or backslash among them.
    pub name: &'a str,
    /// Finite.
    pub value: f64,
}

impl<'a> Metric<'a> {
    /// The field `name`, one of [`FIELDS`].
    pub fn field(name: &'a str, value: f64) -> Self {
        Self { kind: Kind::Field, name, value }
    }

    /// The named metric `name`.
    pub fn named(name: &'a str, value: f64) -> Self {
        Self { kind: Kind::Named, name, value }
    }

    /// What a figure out of it is called: a field by its own name, others with that of their map before it. What a single
    /// request has cost is no figure of its server.
    pub fn figure(&self) -> Option<String> {
        match self.kind {
            Kind::Field => Some(self.name.to_owned()),
            Kind::Named => Some(format!("named_metrics.{}", self.name)),
            Kind::Utilization => Some(format!("utilization.{}", self.name)),
            Kind::RequestCost => None,
        }
    }

    /// Can it be said, and be understood?
    fn check(&self) -> Result<(), Bad> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(Bad("a name is empty or too long"));
        }
        if !self.name.bytes().all(|byte| byte.is_ascii_graphic() && !b",=\"\\".contains(&byte)) {
            return Err(Bad("a name has a character that none may have"));
        }
        if !self.value.is_finite() {
            return Err(Bad("a value is not finite"));
        }
        if self.value < 0.0 && matches!(self.kind, Kind::Field | Kind::Utilization) {
            return Err(Bad("a share or rate is negative"));
        }
        Ok(())
    }
}

/// What is not a load report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad ORCA load report: {0}")]
pub struct Bad(pub &'static str);

/// Reads the value of the header [`HEADER`] and tells each metric in it, in the order in which they stand.
///
/// # Errors
/// It is malformed, too long, or one of its metrics is not allowed; then nothing has been told.
///
/// ```
/// use plimsoll_wire::orca::{self, Kind};
///
/// let mut cpu = None;
/// orca::read(b"TEXT cpu_utilization=0.3, named_metrics.queue=4", |metric| {
///     if (metric.kind, metric.name) == (Kind::Field, "cpu_utilization") {
///         cpu = Some(metric.value);
///     }
/// })?;
/// assert_eq!(cpu, Some(0.3));
/// # Ok::<(), orca::Bad>(())
/// ```
pub fn read(value: &[u8], each: impl FnMut(Metric<'_>)) -> Result<(), Bad> {
    let value = value.trim_ascii();
    if let Some(rest) = after(b"BIN", value) {
        return read_bin(rest, each);
    }
    let value = limited(value)?;
    let mut found = Found::new();
    if let Some(rest) = after(b"JSON", value) {
        json::read(rest, &mut found)?;
    } else if let Some(rest) = after(b"TEXT", value) {
        text::read(rest, &mut found)?;
    } else if value.starts_with(b"{") {
        json::read(value, &mut found)?;
    } else {
        text::read(value, &mut found)?;
    }
    found.tell(each);
    Ok(())
}

/// Reads the value of the header [`HEADER_BIN`]: the serialised message in base64, padded or not.
///
/// # Errors
/// As [`read`].
pub fn read_bin(value: &[u8], each: impl FnMut(Metric<'_>)) -> Result<(), Bad> {
    let mut room = [0; bin::ROOM];
    let message = bin::decode(limited(value)?.trim_ascii(), &mut room)?;
    let mut found = Found::new();
    bin::read(message, &mut found)?;
    found.tell(each);
    Ok(())
}

/// Reads the message itself, as a stream of reports carries it.
///
/// # Errors
/// As [`read`].
pub fn read_message(message: &[u8], each: impl FnMut(Metric<'_>)) -> Result<(), Bad> {
    let mut found = Found::new();
    bin::read(limited(message)?, &mut found)?;
    found.tell(each);
    Ok(())
}

/// What follows a first word.
fn after<'a>(word: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    value.strip_prefix(word).filter(|rest| rest.first().is_none_or(|byte| *byte == b' '))
}

fn limited(value: &[u8]) -> Result<&[u8], Bad> {
    if value.len() > MAX_LEN { Err(Bad("it is too long")) } else { Ok(value) }
}

/// The metrics of a report that is not yet at its end.
struct Found<'a> {
    metrics: [Metric<'a>; MAX_METRICS],
    len: usize,
}

impl<'a> Found<'a> {
    fn new() -> Self {
        Self { metrics: [Metric { kind: Kind::Field, name: "", value: 0.0 }; MAX_METRICS], len: 0 }
    }

    /// One more; a name that is there already is refused.
    fn add(&mut self, metric: Metric<'a>) -> Result<(), Bad> {
        if self.at(&metric).is_some() {
            return Err(Bad("a metric comes twice"));
        }
        self.put(metric)
    }

    /// One more; it takes the place of one with its name.
    fn put(&mut self, metric: Metric<'a>) -> Result<(), Bad> {
        metric.check()?;
        if let Some(at) = self.at(&metric) {
            self.metrics[at] = metric;
            return Ok(());
        }
        let room = self.metrics.get_mut(self.len).ok_or(Bad("it has too many metrics"))?;
        *room = metric;
        self.len += 1;
        Ok(())
    }

    fn at(&self, metric: &Metric<'_>) -> Option<usize> {
        let same = |known: &Metric<'_>| known.kind == metric.kind && known.name == metric.name;
        self.metrics[..self.len].iter().position(same)
    }

    fn tell(&self, mut each: impl FnMut(Metric<'_>)) {
        self.metrics[..self.len].iter().for_each(|metric| each(*metric));
    }
}

/// A name as text; whether its characters may stand in one is checked with the metric.
fn name(bytes: &[u8]) -> Result<&str, Bad> {
    std::str::from_utf8(bytes).map_err(|_| Bad("a name is not text"))
}

/// A decimal number: what `f64` reads, without its words for what is not finite.
fn number(bytes: &[u8]) -> Result<f64, Bad> {
    let plain = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.as_bytes().iter().all(plain));
    text.and_then(|text| text.parse().ok()).ok_or(Bad("a value is not a number"))
}

#[cfg(test)]
mod tests;
