//! The repetition of a failed run: the printed command, and its use by tests.

use std::ops::Range;

/// A guard that prints the command to repeat a run if the test fails while it exists.
pub(crate) struct Again {
    daemons: usize,
    seeds: Range<u64>,
    what: String,
}

impl Again {
    pub(crate) fn of(daemons: usize, seeds: Range<u64>, what: String) -> Self {
        Self { daemons, seeds, what }
    }

    /// Returns the arguments that run it alone, in the test where they are printed: its length and its
    /// troubles depend on the test.
    fn words(&self, test: &str) -> (String, String, String) {
        let Range { start, end } = self.seeds;
        let seeds = if end == start + 1 { start.to_string() } else { format!("{start}..{end}") };
        (seeds, self.daemons.to_string(), test.to_owned())
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let (seeds, daemons, test) = self.words(thread.name().unwrap_or_default());
            println!(
                "{}\nto see it again: PLIMSOLL_SEED={seeds} PLIMSOLL_DAEMONS={daemons} \\\n  cargo test -p \
                 plimsoll-brain \
                 --test lottery -- --include-ignored --exact {test}",
                self.what
            );
        }
    }
}

/// Returns the seeds of a test, or the requested ones: one, or `1..9`.
pub(crate) fn seeds(range: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("PLIMSOLL_SEED") else { return range };
    let number = |text: &str| text.parse().expect("PLIMSOLL_SEED is a number, or two with .. between");
    match asked.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&asked)..number(&asked) + 1,
    }
}

fn asked_size() -> Option<usize> {
    let asked = std::env::var("PLIMSOLL_DAEMONS").ok()?;
    Some(asked.parse().expect("PLIMSOLL_DAEMONS is a number"))
}

/// Returns the number of daemons, or the requested one.
pub(crate) fn size(daemons: usize) -> usize {
    asked_size().unwrap_or(daemons)
}

/// Returns whether no other number of daemons was requested.
pub(crate) fn of_size(daemons: usize) -> bool {
    asked_size().is_none_or(|asked| asked == daemons)
}

/// Returns all of several sizes, or the requested one.
pub(crate) fn sizes<T, const N: usize>(all: [(usize, T); N]) -> impl Iterator<Item = (usize, T)> {
    all.into_iter().filter(|(daemons, _)| of_size(*daemons))
}

/// Checks that the printed command of each kind of run repeats it, to the last number of its line.
#[test]
fn what_is_printed_runs_the_same_again() {
    let small = super::crowd(3, 12);
    for (test, daemons, seeds, line) in [
        ("whatever_goes_wrong_among_many_the_rules_hold", 20, 1..2, super::chaos(20, 9.0, 1).line()),
        ("whatever_goes_wrong_the_rules_hold", small, 3..4, super::chaos(small, 16.0, 3).line()),
        (
            "a_member_that_comes_back_is_not_overrun",
            3,
            1..9,
            super::comes_back(3, super::AnswerMode::Referral, true, 0.7, 1..9),
        ),
    ] {
        let again = Again::of(daemons, seeds, String::new());
        let (seeds, daemons, test) = again.words(test);
        let output = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--include-ignored", "--nocapture", "--test-threads", "2", "--exact", &test])
            .env("PLIMSOLL_SEED", &seeds)
            .env("PLIMSOLL_DAEMONS", &daemons)
            .output()
            .expect("it runs");
        let said = String::from_utf8(output.stdout).expect("text");
        assert!(said.contains(&line), "{test}: {line} is not in\n{said}");
        let of_runs = |line: &&str| line.contains(" req  dup ");
        let sized = |line: &str| line[11..].trim_start().starts_with(&format!("{daemons} "));
        assert!(said.lines().filter(of_runs).all(sized), "of {daemons} daemons alone: {said}");
    }
}
