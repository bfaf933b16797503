//! The claim that the bottleneck of a model is the given one, at every point.

use serde::Deserialize;

use super::{PointFilter, Verdict};
use crate::lab::result_source::ResultSource;
use crate::lab::table::{EstimateTable, PointLevels, format_levels};

/// A bottleneck.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BottleneckClaim {
    /// The kind: `software` or `hardware`.
    pub kind: BottleneckKind,
    /// The names in the model: all of them, in any order.
    pub of: Vec<String>,
    /// The column: formulas, or simulation.
    #[serde(default = "simulated")]
    pub by: ResultSource,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<PointFilter>,
}

/// The kind of a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// The threads of a task.
    Software,
    /// A processor.
    Hardware,
}

const fn simulated() -> ResultSource {
    ResultSource::Simulated
}

impl BottleneckClaim {
    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn uses_point(&self, levels: &PointLevels) -> bool {
        self.only.iter().all(|only| only.matches(levels))
    }

    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let kind = match self.kind {
            BottleneckKind::Software => "software",
            BottleneckKind::Hardware => "hardware",
        };
        let mut wanted = self.of.clone();
        wanted.sort();
        let mut verdict = Verdict::new(true);
        for (levels, held) in table.bottlenecks(self.by, |levels| self.uses_point(levels)) {
            let Some(held) = held else {
                verdict.pass = false;
                verdict.numbers.push(format!("not at {}: the model does not say", format_levels(levels)));
                continue;
            };
            let mut of = held.of.clone();
            of.sort();
            let holds = held.limits && held.kind == kind && of == wanted;
            verdict.pass &= holds;
            verdict.numbers.push(format!(
                "{}{}: {} {}{}",
                if holds { "" } else { "not at " },
                format_levels(levels),
                held.kind,
                held.of.join(", "),
                if held.limits { "" } else { ", which does not limit yet" }
            ));
        }
        if verdict.numbers.is_empty() { Verdict::missing_points("no point") } else { verdict }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::lab::model::{ModelBottleneck, ModelPrediction};

    #[test]
    fn kind_and_names_must_be_those() {
        let mut table = EstimateTable::default();
        table.push(PointLevels::new(), BTreeMap::new());
        let test = |kind, of: &[&str]| BottleneckClaim {
            kind,
            of: of.iter().map(|name| (*name).to_owned()).collect(),
            by: ResultSource::Simulated,
            only: vec![],
        };
        assert!(!test(BottleneckKind::Software, &["a"]).decide(&table).pass, "nothing was said");
        let held = |limits| ModelBottleneck {
            kind: "software".to_owned(),
            of: vec!["b".to_owned(), "a".to_owned()],
            limits,
        };
        let said = |limits| ModelPrediction { bottleneck: Some(held(limits)), ..ModelPrediction::default() };
        table.push_prediction(ResultSource::Simulated, said(true));
        assert!(test(BottleneckKind::Software, &["a", "b"]).decide(&table).pass);
        assert!(!test(BottleneckKind::Hardware, &["a", "b"]).decide(&table).pass);
        assert!(!test(BottleneckKind::Software, &["a"]).decide(&table).pass);
        table.push_prediction(ResultSource::Simulated, said(false));
        assert!(!test(BottleneckKind::Software, &["a", "b"]).decide(&table).pass);
        assert!(!test(BottleneckKind::Software, &["a"]).decide(&EstimateTable::default()).pass);
    }
}
