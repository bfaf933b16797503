//! The text form: `name=value`, separated by commas.

use std::io::Write as _;

use super::{FIELDS, MAX_METRICS, MetricKind, MetricList, OrcaError, OrcaMetric, name, number};

/// Reads the value after `TEXT `.
pub(super) fn read<'a>(value: &'a [u8], metrics: &mut MetricList<'a>) -> Result<(), OrcaError> {
    for entry in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
        // A name may contain a colon, so the equals sign takes precedence.
        let separator =
            [b'=', b':'].iter().find_map(|separator| entry.iter().position(|byte| byte == separator));
        let separator = separator.ok_or(OrcaError("a metric has no value"))?;
        let value = number(entry[separator + 1..].trim_ascii())?;
        let full_name = name(entry[..separator].trim_ascii())?;
        if full_name.is_empty() {
            return Err(OrcaError("a metric has no name"));
        }
        if FIELDS.contains(&full_name) {
            metrics.add(OrcaMetric { kind: MetricKind::Field, name: full_name, value })?;
        }
        for (kind, map, _) in MetricKind::MAPS {
            if let Some(key) = full_name.strip_prefix(map).and_then(|rest| rest.strip_prefix('.')) {
                metrics.add(OrcaMetric { kind, name: key, value })?;
            }
        }
    }
    Ok(())
}

/// Appends a header value in text form with its prefix. Metrics that no reader would accept are skipped: not
/// finite, with an invalid name, or a negative utilization. Metrics beyond [`MAX_METRICS`] are skipped, too.
pub fn write_text<'a>(out: &mut Vec<u8>, metrics: impl IntoIterator<Item = OrcaMetric<'a>>) {
    out.extend_from_slice(b"TEXT ");
    let is_valid = |metric: &OrcaMetric<'_>| {
        metric.check().is_ok() && (metric.kind != MetricKind::Field || FIELDS.contains(&metric.name))
    };
    for (index, metric) in metrics.into_iter().filter(is_valid).take(MAX_METRICS).enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        if let Some((_, map, _)) = MetricKind::MAPS.iter().find(|(kind, ..)| *kind == metric.kind) {
            out.extend_from_slice(map.as_bytes());
            out.push(b'.');
        }
        let OrcaMetric { name, value, .. } = metric;
        let magnitude = value.abs();
        // Writing to a vector cannot fail. Without an exponent the extremes would take hundreds of digits.
        let _ = if magnitude == 0.0 || (1e-5..1e15).contains(&magnitude) {
            write!(out, "{name}={value}")
        } else {
            write!(out, "{name}={value:e}")
        };
    }
}
