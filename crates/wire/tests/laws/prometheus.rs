//! A page of metrics: each line is parsed independently of the others, and a sample survives writing and
//! parsing.

use plimsoll_wire::prometheus::{MetricSample, is_name, samples};

use super::Verdict;

/// Checks the law; panics if it is broken. A page with invalid lines is partial.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let Ok(page) = std::str::from_utf8(input) else { return Verdict::Refused };
    let whole: Vec<MetricSample<'_>> = samples(page).collect();
    let lines: Vec<MetricSample<'_>> = page.lines().flat_map(samples).collect();
    assert_eq!(whole.len(), lines.len(), "{page:?}");
    assert!(whole.iter().zip(&lines).all(|(one, other)| same(one, other)), "{page:?}");
    for sample in &whole {
        assert!(is_name(sample.name) && page.contains(sample.labels), "{sample:?} of {page:?}");
        let value = match sample.value {
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            value => format!("{value:?}"),
        };
        let line = format!("{}{{{}}} {value} 1395066363000", sample.name, sample.labels);
        let again: Vec<MetricSample<'_>> = samples(&line).collect();
        assert!(again.len() == 1 && same(&again[0], sample), "{sample:?} was written as {line:?}: {again:?}");
    }
    let meant = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    match page.lines().filter(meant).count() {
        lines if lines == whole.len() => Verdict::Accepted,
        _ if whole.is_empty() => Verdict::Refused,
        _ => Verdict::Partial,
    }
}

/// Compares samples, with NaN equal to NaN.
fn same(one: &MetricSample<'_>, other: &MetricSample<'_>) -> bool {
    let value = one.value.to_bits() == other.value.to_bits() || (one.value.is_nan() && other.value.is_nan());
    (one.name, one.labels) == (other.name, other.labels) && value
}
