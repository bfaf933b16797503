//! The law of load reports, whatever is sent as one: it is taken whole or refused in one short line, and what
//! is taken means the same after it is written as a form and read again. The fuzz target `report` tries it on
//! invented bytes, the test below on the committed corpus and on what is nearly in it.

use std::fmt::Write as _;

use super::*;

/// Names that mean something else in a form.
const RESERVED: [&str; 5] = ["group", "member", "name", "value", "age_seconds"];
/// Characters of a refusal, at most.
const LONGEST: usize = 1000;

/// Panics if the law does not hold. Returns whether it is a report that names a member.
pub(crate) fn check(input: &[u8]) -> bool {
    let (named, unnamed) = (read(input, true), read(input, false));
    if let Ok(report) = &unnamed {
        assert!(!report.values.is_empty(), "a report without a value");
        assert!(!report.age_seconds.is_some_and(|age| age < 0.0), "{:?}", report.age_seconds);
        again(report);
    }
    match (&named, &unnamed) {
        (Ok(report), Ok(other)) => {
            assert!(!report.member.is_empty());
            assert!(same(report, other));
        }
        (Ok(report), Err(why)) => panic!("{report:?} and {why}"),
        (Err(_), _) => {}
    }
    for why in [named.as_ref().err(), unnamed.as_ref().err()].into_iter().flatten() {
        assert!(!why.is_empty() && why.chars().count() <= LONGEST, "{} characters", why.len());
        assert!(!why.contains(char::is_control), "{why:?}");
    }
    named.is_ok()
}

/// Writes a report as a form, every byte of every word as an escape, and reads it again.
fn again(report: &Report) {
    if report.values.iter().any(|(name, _)| RESERVED.contains(&name.as_str())) {
        return;
    }
    let mut names: Vec<&String> = report.values.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() < report.values.len() {
        return;
    }
    let mut form = format!("member={}", escaped(&report.member));
    for (name, value) in &report.values {
        let _ = write!(form, "&{}={value}", escaped(name));
    }
    if let Some(group) = &report.group {
        let _ = write!(form, "&group={}", escaped(group));
    }
    if let Some(age) = report.age_seconds {
        let _ = write!(form, "&age_seconds={age}");
    }
    let read = read(form.as_bytes(), false).unwrap_or_else(|why| panic!("{form}: {why}"));
    assert!(same(&read, report), "{read:?} for {report:?}");
}

fn escaped(word: &str) -> String {
    word.bytes().fold(String::new(), |mut escaped, byte| {
        let _ = write!(escaped, "%{byte:02x}");
        escaped
    })
}

/// Compares reports. A number that is none is alike; the order of names does not matter.
fn same(one: &Report, other: &Report) -> bool {
    let number = |number: f64| if number.is_nan() { None } else { Some(number.to_bits()) };
    let values = |report: &Report| {
        let mut values: Vec<_> =
            report.values.iter().map(|(name, value)| (name.clone(), number(*value))).collect();
        values.sort_unstable();
        values
    };
    (&one.group, &one.member, one.age_seconds.map(number), values(one))
        == (&other.group, &other.member, other.age_seconds.map(number), values(other))
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("report", b"&=%+{}\"[],:0123456789-.eEN", 10_000, check);
}
