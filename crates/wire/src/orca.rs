//! ORCA load reports in response headers: a server reports its load with a response.
//!
//! The message is `xds.data.orca.v3.OrcaLoadReport`. The header `endpoint-load-metrics` carries it in one of
//! three forms, which a prefix identifies:
//!
//! ```text
//! TEXT cpu_utilization=0.3, rps_fractional=10.0, named_metrics.queue=4
//! JSON {"cpu_utilization": 0.3, "rps_fractional": 10.0, "named_metrics": {"queue": 4}}
//! BIN CTMzMzMzM9M/…                         the serialised message in base64
//! ```
//!
//! A value without a prefix is JSON if it begins with `{`, else text. Servers that predate the prefixes send
//! such values. gRPC sends the binary form without its prefix as `endpoint-load-metrics-bin`. In text `:` may
//! replace `=`, as in older servers.
//!
//! A report is accepted as a whole or rejected. Unknown fields are ignored for forward compatibility. A
//! malformed number, a repeated name, or anything over a limit rejects the report. Parsing allocates no
//! memory: metrics stay on the stack until the end of the report.

mod bin;
mod json;
mod stream;
mod text;

pub use stream::{STREAM_PATH, stream_request};
pub use text::write_text;

/// The header, in lower case.
pub const HEADER: &str = "endpoint-load-metrics";
/// The header for the binary form alone, in lower case.
pub const HEADER_BIN: &str = "endpoint-load-metrics-bin";
/// The maximum length of a header value, in bytes: enough for [`MAX_METRICS`] in text.
pub const MAX_LEN: usize = 8192;
/// The maximum number of metrics in a report.
pub const MAX_METRICS: usize = 64;
/// The maximum length of a metric's name, in bytes.
pub const MAX_NAME: usize = 64;

/// The part of a report that a metric belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// A field of its own: one of [`FIELDS`]. Not negative.
    Field,
    /// `named_metrics`: metrics that the application defines.
    Named,
    /// `utilization`: the utilization of a resource that the application defines. Not negative.
    Utilization,
    /// `request_cost`: a cost of the request of this response.
    RequestCost,
}

/// The fields with their own names. The first three are the utilization of processors, of memory and of the
/// application's own limit: 0 to 1, more when a soft limit is exceeded. Then come requests and errors per
/// second. `rps` is the predecessor of `rps_fractional`.
pub const FIELDS: [&str; 6] =
    ["cpu_utilization", "mem_utilization", "application_utilization", "rps_fractional", "eps", "rps"];

impl MetricKind {
    /// The maps, with their field names in the message and in JSON.
    const MAPS: [(Self, &str, &str); 3] = [
        (Self::Named, "named_metrics", "namedMetrics"),
        (Self::Utilization, "utilization", "utilization"),
        (Self::RequestCost, "request_cost", "requestCost"),
    ];
}

/// One metric of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrcaMetric<'a> {
    /// The part of the report.
    pub kind: MetricKind,
    /// The name of the field, or the key in the map: 1 to [`MAX_NAME`] visible ASCII characters without
    /// commas, equals signs, quotation marks and backslashes.
    pub name: &'a str,
    /// The value, finite.
    pub value: f64,
}

impl<'a> OrcaMetric<'a> {
    /// Creates a metric for the field `name`, one of [`FIELDS`].
    pub fn field(name: &'a str, value: f64) -> Self {
        Self { kind: MetricKind::Field, name, value }
    }

    /// Creates the named metric `name`.
    pub fn named(name: &'a str, value: f64) -> Self {
        Self { kind: MetricKind::Named, name, value }
    }

    /// Returns the metric's qualified name: a field's own name, or the map's name and the key. Returns `None`
    /// for the cost of a single request, which does not describe the server.
    pub fn figure(&self) -> Option<String> {
        match self.kind {
            MetricKind::Field => Some(self.name.to_owned()),
            MetricKind::Named => Some(format!("named_metrics.{}", self.name)),
            MetricKind::Utilization => Some(format!("utilization.{}", self.name)),
            MetricKind::RequestCost => None,
        }
    }

    /// Checks that the metric can be serialised and read.
    fn check(&self) -> Result<(), OrcaError> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(OrcaError("a name is empty or too long"));
        }
        if !self.name.bytes().all(|byte| byte.is_ascii_graphic() && !b",=\"\\".contains(&byte)) {
            return Err(OrcaError("a name has a character that none may have"));
        }
        if !self.value.is_finite() {
            return Err(OrcaError("a value is not finite"));
        }
        if self.value < 0.0 && matches!(self.kind, MetricKind::Field | MetricKind::Utilization) {
            return Err(OrcaError("a share or rate is negative"));
        }
        Ok(())
    }
}

/// The error of a value that is not a load report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad ORCA load report: {0}")]
pub struct OrcaError(pub &'static str);

/// Reads the value of the header [`HEADER`] and passes each metric to `each`, in the order of the report.
///
/// # Errors
/// The value is malformed or too long, or one of its metrics is invalid. Then no metric has been passed to
/// `each`.
///
/// ```
/// use plimsoll_wire::orca::{self, MetricKind};
///
/// let mut cpu = None;
/// orca::read(b"TEXT cpu_utilization=0.3, named_metrics.queue=4", |metric| {
///     if (metric.kind, metric.name) == (MetricKind::Field, "cpu_utilization") {
///         cpu = Some(metric.value);
///     }
/// })?;
/// assert_eq!(cpu, Some(0.3));
/// # Ok::<(), orca::OrcaError>(())
/// ```
pub fn read(value: &[u8], on_metric: impl FnMut(OrcaMetric<'_>)) -> Result<(), OrcaError> {
    let value = value.trim_ascii();
    if let Some(rest) = strip_word(b"BIN", value) {
        return read_bin(rest, on_metric);
    }
    let value = check_len(value)?;
    let mut metrics = MetricList::new();
    if let Some(rest) = strip_word(b"JSON", value) {
        json::read(rest, &mut metrics)?;
    } else if let Some(rest) = strip_word(b"TEXT", value) {
        text::read(rest, &mut metrics)?;
    } else if value.starts_with(b"{") {
        json::read(value, &mut metrics)?;
    } else {
        text::read(value, &mut metrics)?;
    }
    metrics.for_each(on_metric);
    Ok(())
}

/// Reads the value of the header [`HEADER_BIN`]: the serialised message in base64, padded or not.
///
/// # Errors
/// The same as those of [`read`].
pub fn read_bin(value: &[u8], on_metric: impl FnMut(OrcaMetric<'_>)) -> Result<(), OrcaError> {
    let mut buffer = [0; bin::MAX_DECODED];
    let message = bin::decode(check_len(value)?.trim_ascii(), &mut buffer)?;
    let mut metrics = MetricList::new();
    bin::read(message, &mut metrics)?;
    metrics.for_each(on_metric);
    Ok(())
}

/// Reads the serialised message, as a stream of reports carries it.
///
/// # Errors
/// The same as those of [`read`].
pub fn read_message(message: &[u8], on_metric: impl FnMut(OrcaMetric<'_>)) -> Result<(), OrcaError> {
    let mut metrics = MetricList::new();
    bin::read(check_len(message)?, &mut metrics)?;
    metrics.for_each(on_metric);
    Ok(())
}

/// Returns the bytes after the prefix `word`, if `value` has it.
fn strip_word<'a>(word: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    value.strip_prefix(word).filter(|rest| rest.first().is_none_or(|byte| *byte == b' '))
}

fn check_len(value: &[u8]) -> Result<&[u8], OrcaError> {
    if value.len() > MAX_LEN { Err(OrcaError("it is too long")) } else { Ok(value) }
}

/// The metrics of a report that is still being parsed.
struct MetricList<'a> {
    metrics: [OrcaMetric<'a>; MAX_METRICS],
    len: usize,
}

impl<'a> MetricList<'a> {
    fn new() -> Self {
        Self { metrics: [OrcaMetric { kind: MetricKind::Field, name: "", value: 0.0 }; MAX_METRICS], len: 0 }
    }

    /// Adds a metric; a repeated name is an error.
    fn add(&mut self, metric: OrcaMetric<'a>) -> Result<(), OrcaError> {
        if self.position(&metric).is_some() {
            return Err(OrcaError("a metric comes twice"));
        }
        self.upsert(metric)
    }

    /// Adds a metric, or replaces the one with the same name.
    fn upsert(&mut self, metric: OrcaMetric<'a>) -> Result<(), OrcaError> {
        metric.check()?;
        if let Some(index) = self.position(&metric) {
            self.metrics[index] = metric;
            return Ok(());
        }
        let slot = self.metrics.get_mut(self.len).ok_or(OrcaError("it has too many metrics"))?;
        *slot = metric;
        self.len += 1;
        Ok(())
    }

    fn position(&self, metric: &OrcaMetric<'_>) -> Option<usize> {
        let same = |existing: &OrcaMetric<'_>| existing.kind == metric.kind && existing.name == metric.name;
        self.metrics[..self.len].iter().position(same)
    }

    fn for_each(&self, mut on_metric: impl FnMut(OrcaMetric<'_>)) {
        self.metrics[..self.len].iter().for_each(|metric| on_metric(*metric));
    }
}

/// Converts a name to text. `OrcaMetric::check` validates its characters.
fn name(bytes: &[u8]) -> Result<&str, OrcaError> {
    std::str::from_utf8(bytes).map_err(|_| OrcaError("a name is not text"))
}

/// Parses a decimal number: the `f64` notation without the literals for infinities and NaN.
fn number(bytes: &[u8]) -> Result<f64, OrcaError> {
    let is_numeric = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.as_bytes().iter().all(is_numeric));
    text.and_then(|text| text.parse().ok()).ok_or(OrcaError("a value is not a number"))
}

#[cfg(test)]
mod tests;
