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
        self.only.iter().all(|filter| filter.matches(levels))
    }

    pub(super) fn decide(&self, table: &EstimateTable) -> Verdict {
        let kind = match self.kind {
            BottleneckKind::Software => "software",
            BottleneckKind::Hardware => "hardware",
        };
        let mut expected = self.of.clone();
        expected.sort();
        let mut verdict = Verdict::new(true);
        for (levels, bottleneck) in table.bottlenecks(self.by, |levels| self.uses_point(levels)) {
            let Some(bottleneck) = bottleneck else {
                verdict.pass = false;
                verdict.numbers.push(format!("not at {}: the model does not say", format_levels(levels)));
                continue;
            };
            let mut resources = bottleneck.of.clone();
            resources.sort();
            let holds = bottleneck.limits && bottleneck.kind == kind && resources == expected;
            verdict.pass &= holds;
            verdict.numbers.push(format!(
                "{}{}: {} {}{}",
                if holds { "" } else { "not at " },
                format_levels(levels),
                bottleneck.kind,
                bottleneck.of.join(", "),
                if bottleneck.limits { "" } else { ", which does not limit yet" }
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
        let test = |kind, resources: &[&str]| BottleneckClaim {
            kind,
            of: resources.iter().map(|name| (*name).to_owned()).collect(),
            by: ResultSource::Simulated,
            only: vec![],
        };
        assert!(!test(BottleneckKind::Software, &["a"]).decide(&table).pass, "nothing was said");
        let bottleneck = |limits| ModelBottleneck {
            kind: "software".to_owned(),
            of: vec!["b".to_owned(), "a".to_owned()],
            limits,
        };
        let prediction =
            |limits| ModelPrediction { bottleneck: Some(bottleneck(limits)), ..ModelPrediction::default() };
        table.push_prediction(ResultSource::Simulated, prediction(true));
        assert!(test(BottleneckKind::Software, &["a", "b"]).decide(&table).pass);
        assert!(!test(BottleneckKind::Hardware, &["a", "b"]).decide(&table).pass);
        assert!(!test(BottleneckKind::Software, &["a"]).decide(&table).pass);
        table.push_prediction(ResultSource::Simulated, prediction(false));
        assert!(!test(BottleneckKind::Software, &["a", "b"]).decide(&table).pass);
        assert!(!test(BottleneckKind::Software, &["a"]).decide(&EstimateTable::default()).pass);
    }
}
