//! Measurements beside the model's results.

use std::fmt::Write as _;

use super::super::claim::{digits, shown};
use super::super::column::Column;
use super::super::store::PointFile;
use super::super::table::{Table, name};
use crate::plot::escape;

/// Returns a table of all points for each metric of the model; empty without a model.
pub(super) fn section(table: &Table, points: &[PointFile]) -> String {
    let metrics = table.modelled();
    if metrics.is_empty() {
        return String::new();
    }
    let mut out = "<h2>Measured and modelled</h2>\n".to_owned();
    for metric in metrics {
        let label = escape(metric.label());
        let _ = write!(
            out,
            "<details open><summary>{label}</summary>\n<div class=\"scroll\"><table>\n<tr><th class=\"text\">point</th>\
             <th>measured</th>"
        );
        for column in Column::OF_MODEL {
            let _ = write!(out, "<th>{}</th><th>error</th>", column.name());
        }
        out += "</tr>\n";
        for point in points {
            let _ = write!(out, "<tr><td class=\"text\">{}</td>", escape(&name(&point.levels)));
            for (index, column) in Column::OF_MODEL.into_iter().enumerate() {
                let mut pairs = table.pairs(metric, column, |levels| *levels == point.levels);
                let (measured, said) =
                    pairs.next().map_or((None, None), |(_, measured, said)| (measured, said));
                if index == 0 {
                    let _ = write!(out, "<td>{}</td>", measured.map_or_else(String::new, |own| shown(&own)));
                }
                let error =
                    measured.zip(said).map(|(measured, said)| (said.mean / measured.mean - 1.0) * 100.0);
                let error = error.filter(|error| error.is_finite());
                let _ = write!(
                    out,
                    "<td>{}</td><td>{}</td>",
                    said.map_or_else(String::new, |own| digits(own.mean)),
                    error.map_or_else(String::new, |error| format!("{error:+.1} %"))
                );
            }
            out += "</tr>\n";
        }
        out += "</table></div></details>\n";
    }
    let held: Vec<String> = Column::OF_MODEL
        .into_iter()
        .flat_map(|column| table.held(column, |_| true).map(move |(levels, held)| (column, levels, held)))
        .filter_map(|(column, levels, held)| {
            let held = held.filter(|held| held.limits)?;
            Some(format!("{} ({}): {} {}", name(levels), column.name(), held.kind, held.of.join(", ")))
        })
        .collect();
    if !held.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>What holds the model back, where something does</summary>\n<p>{}</p></details>",
            held.iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br>")
        );
    }
    out
}
