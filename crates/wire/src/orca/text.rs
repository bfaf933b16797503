//! The text form: `name=value` between commas.

use std::io::Write as _;

use super::{Bad, FIELDS, Found, Kind, MAX_METRICS, Metric, name, number};

/// Reads what follows `TEXT `.
pub(super) fn read<'a>(value: &'a [u8], found: &mut Found<'a>) -> Result<(), Bad> {
    for entry in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
        // A name may have a colon in it, so that the equals sign goes first.
        let sign = [b'=', b':'].iter().find_map(|sign| entry.iter().position(|byte| byte == sign));
        let sign = sign.ok_or(Bad("a metric has no value"))?;
        let value = number(entry[sign + 1..].trim_ascii())?;
        let full = name(entry[..sign].trim_ascii())?;
        if full.is_empty() {
            return Err(Bad("a metric has no name"));
        }
        if FIELDS.contains(&full) {
            found.add(Metric { kind: Kind::Field, name: full, value })?;
        }
        for (kind, map, _) in Kind::MAPS {
            if let Some(key) = full.strip_prefix(map).and_then(|rest| rest.strip_prefix('.')) {
                found.add(Metric { kind, name: key, value })?;
            }
        }
    }
    Ok(())
}

/// Appends the value of a header in text form, its first word included. A metric that no reader would take (not
/// finite, a name that none may have, a negative share) is left out, and so are those beyond [`MAX_METRICS`].
pub fn write_text<'a>(out: &mut Vec<u8>, metrics: impl IntoIterator<Item = Metric<'a>>) {
    out.extend_from_slice(b"TEXT ");
    let sayable = |metric: &Metric<'_>| {
        metric.check().is_ok() && (metric.kind != Kind::Field || FIELDS.contains(&metric.name))
    };
    for (at, metric) in metrics.into_iter().filter(sayable).take(MAX_METRICS).enumerate() {
        if at > 0 {
            out.extend_from_slice(b", ");
        }
        if let Some((_, map, _)) = Kind::MAPS.iter().find(|(kind, ..)| *kind == metric.kind) {
            out.extend_from_slice(map.as_bytes());
            out.push(b'.');
        }
        let Metric { name, value, .. } = metric;
        let size = value.abs();
        // Writing to a vector cannot fail. Without an exponent the extremes would take hundreds of digits.
        let _ = if size == 0.0 || (1e-5..1e15).contains(&size) {
            write!(out, "{name}={value}")
        } else {
            write!(out, "{name}={value:e}")
        };
    }
}
