//! The claim that the bottleneck of a model is the given one, at every point.

use serde::Deserialize;

use super::{Only, Verdict};
use crate::lab::column::Column;
use crate::lab::table::{Levels, Table, name};

/// A bottleneck.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// The kind: `software` or `hardware`.
    pub kind: Kind,
    /// The names in the model: all of them, in any order.
    pub of: Vec<String>,
    /// The column: formulas, or simulation.
    #[serde(default = "simulated")]
    pub by: Column,
    /// The conditions on the points.
    #[serde(default)]
    pub only: Vec<Only>,
}

/// The kind of a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The threads of a task.
    Software,
    /// A processor.
    Hardware,
}

const fn simulated() -> Column {
    Column::Simulated
}

impl Bottleneck {
    /// Returns `true` if the test evaluates points with these levels.
    pub(super) fn looks_at(&self, levels: &Levels) -> bool {
        self.only.iter().all(|only| only.keeps(levels))
    }

    pub(super) fn decide(&self, table: &Table) -> Verdict {
        let kind = match self.kind {
            Kind::Software => "software",
            Kind::Hardware => "hardware",
        };
        let mut wanted = self.of.clone();
        wanted.sort();
        let mut verdict = Verdict::new(true);
        for (levels, held) in table.held(self.by, |levels| self.looks_at(levels)) {
            let Some(held) = held else {
                verdict.pass = false;
                verdict.numbers.push(format!("not at {}: the model does not say", name(levels)));
                continue;
            };
            let mut of = held.of.clone();
            of.sort();
            let holds = held.limits && held.kind == kind && of == wanted;
            verdict.pass &= holds;
            verdict.numbers.push(format!(
                "{}{}: {} {}{}",
                if holds { "" } else { "not at " },
                name(levels),
                held.kind,
                held.of.join(", "),
                if held.limits { "" } else { ", which does not limit yet" }
            ));
        }
        if verdict.numbers.is_empty() { Verdict::nothing("no point") } else { verdict }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::lab::model::{Held, Predicted};

    #[test]
    fn kind_and_names_must_be_those() {
        let mut table = Table::default();
        table.push(Levels::new(), BTreeMap::new());
        let test = |kind, of: &[&str]| Bottleneck {
            kind,
            of: of.iter().map(|name| (*name).to_owned()).collect(),
            by: Column::Simulated,
            only: vec![],
        };
        assert!(!test(Kind::Software, &["a"]).decide(&table).pass, "nothing was said");
        let held =
            |limits| Held { kind: "software".to_owned(), of: vec!["b".to_owned(), "a".to_owned()], limits };
        let said = |limits| Predicted { bottleneck: Some(held(limits)), ..Predicted::default() };
        table.predict(Column::Simulated, said(true));
        assert!(test(Kind::Software, &["a", "b"]).decide(&table).pass);
        assert!(!test(Kind::Hardware, &["a", "b"]).decide(&table).pass);
        assert!(!test(Kind::Software, &["a"]).decide(&table).pass);
        table.predict(Column::Simulated, said(false));
        assert!(!test(Kind::Software, &["a", "b"]).decide(&table).pass);
        assert!(!test(Kind::Software, &["a"]).decide(&Table::default()).pass);
    }
}
