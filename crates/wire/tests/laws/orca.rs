//! A load report: accepted as a whole or rejected, within its limits; its metrics survive the text form.

use plimsoll_wire::orca::{self, FIELDS, MAX_LEN, MAX_METRICS, MAX_NAME, MetricKind, OrcaMetric};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let input = &input[..input.len().min(MAX_LEN + 64)];
    obeys(input, |value, each| orca::read_bin(value, each));
    obeys(input, |value, each| orca::read(value, each))
}

type Read = fn(&[u8], &mut dyn FnMut(OrcaMetric<'_>)) -> Result<(), orca::OrcaError>;

fn obeys(input: &[u8], read: Read) -> Verdict {
    let mut told: Vec<(MetricKind, String, f64)> = Vec::new();
    if read(input, &mut |metric| told.push((metric.kind, metric.name.to_owned(), metric.value))).is_err() {
        assert!(told.is_empty(), "refused, and yet told something: {}", show(input));
        return Verdict::Refused;
    }
    assert!(told.len() <= MAX_METRICS, "too many in {}", show(input));
    for (at, (kind, name, value)) in told.iter().enumerate() {
        assert!(value.is_finite(), "{name}={value} in {}", show(input));
        assert!((1..=MAX_NAME).contains(&name.len()), "{name:?} in {}", show(input));
        assert!(*kind != MetricKind::Field || FIELDS.contains(&name.as_str()), "{name} in {}", show(input));
        let twice = told[..at].iter().any(|before| (before.0, &before.1) == (*kind, name));
        assert!(!twice, "{name} twice in {}", show(input));
    }
    let mut out = Vec::new();
    orca::write_text(
        &mut out,
        told.iter().map(|(kind, name, value)| OrcaMetric { kind: *kind, name, value: *value }),
    );
    assert!(out.len() <= MAX_LEN, "{} bytes for {}", out.len(), show(input));
    let mut again = Vec::new();
    let read = orca::read(&out, |metric| again.push((metric.kind, metric.name.to_owned(), metric.value)));
    assert_eq!(read, Ok(()), "{}", show(&out));
    assert_eq!(again, told, "{}", show(input));
    Verdict::Accepted
}
