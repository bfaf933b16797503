//! The law of what monitors answer: figures have names and finite values, there are not too many of them, and
//! they come back when they are written and read again. The fuzz target `monitor` tries it on invented bytes,
//! the test below on the committed corpus and on what is nearly in it.

use super::*;

/// Names that are wanted of a page, in order; of `done` its rate, too.
const WANTED: [&str; 5] = ["busy", "done", "done_per_second", "limit", "load"];

/// Panics if the law does not hold. Returns whether anything was told, by an agent or on a page.
pub(crate) fn check(input: &[u8]) -> bool {
    let told = agent(input).is_ok_and(|figures| !figures.is_empty() && agents(&figures));
    told | pages(input)
}

fn agents(figures: &[Figure]) -> bool {
    plain(figures);
    assert!(figures.iter().all(|figure| figure.grown == Grown::Said));
    let values: serde_json::Map<String, Value> = figures
        .iter()
        .map(|figure| {
            let value = serde_json::json!({"value": figure.value, "age_seconds": figure.age.as_secs_f64()});
            (figure.name.clone(), value)
        })
        .collect();
    assert_eq!(values.len(), figures.len(), "a name counts once");
    let written = serde_json::json!({ "values": values }).to_string();
    let again = agent(written.as_bytes()).expect("what was written can be read");
    assert_eq!(again.len(), figures.len(), "{written}");
    for figure in figures {
        let other = again.iter().find(|other| other.name == figure.name).expect("it is there again");
        // serde_json reads numbers to within a few units of the last place.
        let near = (other.value - figure.value).abs() <= figure.value.abs() * 1e-12;
        assert!(near && other.age.abs_diff(figure.age) <= Duration::from_nanos(1), "{other:?} {figure:?}");
    }
    true
}

fn pages(input: &[u8]) -> bool {
    let (wanted, mut seen) = (WANTED.map(str::to_owned), Seen::default());
    let Ok(first) = page(input, &wanted, &mut seen) else { return false };
    let second = page(input, &wanted, &mut seen).expect("it is the same page");
    for figures in [&first, &second] {
        plain(figures);
        assert!(figures.iter().all(|figure| WANTED.contains(&figure.name.as_str()) && figure.age.is_zero()));
    }
    let done = |figures: &[Figure]| figures.iter().find(|one| one.name == "done").map(|one| one.grown);
    if let Some(grown) = done(&first) {
        assert_eq!(grown, Grown::By(None), "of a first page nothing is known");
        let Some(Grown::By(grown)) = done(&second) else { panic!("{second:?}") };
        assert!(grown.is_none_or(|grown| grown.is_finite() && grown >= 0.0), "{grown:?}");
    }
    true
}

fn plain(figures: &[Figure]) {
    assert!(figures.len() <= LIMIT_NAMES);
    for figure in figures {
        assert!(is_name(&figure.name) && figure.value.is_finite() && figure.age <= LIMIT_AGE, "{figure:?}");
    }
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("monitor", b"\n\"{}[],:0123456789-+eE.N", 5_000, check);
}
