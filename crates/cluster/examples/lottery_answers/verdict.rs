//! The targets and the results; the figures go to a file beside those of the other measurements.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::Phase;
use crate::background::Beside;

/// The minimum number of answers per second and core, by the processor time of an answer at full load.
const ANSWERS: f64 = 150_000.0;
/// The maximum increase of the 99th percentile at half load, in milliseconds.
const ADDED: f64 = 1.0;

/// The results of the measurement.
pub(crate) struct Found {
    pub(crate) members: u16,
    pub(crate) seconds: u64,
    /// The share of a core that housekeeping takes.
    pub(crate) quiet: f64,
    pub(crate) full: Phase,
    pub(crate) half: Phase,
    pub(crate) echo: Phase,
    pub(crate) beside: Beside,
}

impl Found {
    fn per_core(&self) -> f64 {
        1.0 / self.full.cpu_per_answer
    }

    fn added(&self) -> f64 {
        (self.half.p99 - self.echo.p99).max(0.0)
    }

    /// Returns each target with its result, and whether it is met.
    fn verdicts(&self) -> [(String, bool); 2] {
        let (answers, added) = (self.per_core(), self.added());
        [
            (format!("{answers:.0} answers a second of a core; at least {ANSWERS:.0}"), answers >= ANSWERS),
            (
                format!(
                    "{added:.3} ms added to the 99th percentile at half of what is answered, to what a \
                     server takes that only \
                     sends back; at most {ADDED} ms"
                ),
                added <= ADDED,
            ),
        ]
    }

    fn json(&self) -> Value {
        let phase = |phase: &Phase| {
            json!({
                "answers_per_second": phase.answers, "cpu_us_per_answer": phase.cpu_per_answer * 1e6,
                "p50_ms": phase.p50, "p99_ms": phase.p99, "p999_ms": phase.p999, "lost": phase.lost,
            })
        };
        let verdicts = self.verdicts().map(|(says, met)| json!({"says": says, "met": met}));
        json!({
            "version": concat!("plimsoll ", env!("CARGO_PKG_VERSION")),
            "members": self.members, "seconds": self.seconds, "housekeeping_share_of_core": self.quiet,
            "full": phase(&self.full), "half": phase(&self.half), "echo": phase(&self.echo),
            "beside": self.beside.json(), "answers_per_second_and_core": self.per_core(),
            "p99_added_ms": self.added(), "verdicts": verdicts,
        })
    }
}

/// Prints the results, and writes them to the file if there is one.
pub(crate) fn say(found: &Found, out: Option<&Path>) -> ExitCode {
    let verdicts = found.verdicts();
    for (says, met) in &verdicts {
        println!("{says}: {}", if *met { "met" } else { "missed" });
    }
    if let Some(out) = out {
        std::fs::write(out, format!("{:#}\n", found.json())).unwrap();
    }
    if verdicts.iter().all(|(_, met)| *met) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
