//! Measurements beside the model's results.

use std::fmt::Write as _;

use super::super::claim::{format_estimate, format_number};
use super::super::result_source::ResultSource;
use super::super::store::PointFile;
use super::super::table::{EstimateTable, format_levels};
use crate::plot::escape;

/// Returns a table of all points for each metric of the model; empty without a model.
pub(super) fn section(table: &EstimateTable, points: &[PointFile]) -> String {
    let metrics = table.modelled_metrics();
    if metrics.is_empty() {
        return String::new();
    }
    let mut out = "<h2>Measured and modelled</h2>\n".to_owned();
    for metric in metrics {
        let label = escape(metric.label());
        let _ = write!(
            out,
            "<details open><summary>{label}</summary>\n<div class=\"scroll\"><table>\n<tr><th \
             class=\"text\">point</th>\
             <th>measured</th>"
        );
        for column in ResultSource::OF_MODEL {
            let _ = write!(out, "<th>{}</th><th>error</th>", column.name());
        }
        out += "</tr>\n";
        for point in points {
            let _ = write!(out, "<tr><td class=\"text\">{}</td>", escape(&format_levels(&point.levels)));
            for (index, column) in ResultSource::OF_MODEL.into_iter().enumerate() {
                let mut pairs = table.modelled_pairs(metric, column, |levels| *levels == point.levels);
                let (measured, said) =
                    pairs.next().map_or((None, None), |(_, measured, said)| (measured, said));
                if index == 0 {
                    let _ = write!(
                        out,
                        "<td>{}</td>",
                        measured.map_or_else(String::new, |own| format_estimate(&own))
                    );
                }
                let error =
                    measured.zip(said).map(|(measured, said)| (said.mean / measured.mean - 1.0) * 100.0);
                let error = error.filter(|error| error.is_finite());
                let _ = write!(
                    out,
                    "<td>{}</td><td>{}</td>",
                    said.map_or_else(String::new, |own| format_number(own.mean)),
                    error.map_or_else(String::new, |error| format!("{error:+.1} %"))
                );
            }
            out += "</tr>\n";
        }
        out += "</table></div></details>\n";
    }
    let held: Vec<String> = ResultSource::OF_MODEL
        .into_iter()
        .flat_map(|column| {
            table.bottlenecks(column, |_| true).map(move |(levels, held)| (column, levels, held))
        })
        .filter_map(|(column, levels, held)| {
            let held = held.filter(|held| held.limits)?;
            Some(format!(
                "{} ({}): {} {}",
                format_levels(levels),
                column.name(),
                held.kind,
                held.of.join(", ")
            ))
        })
        .collect();
    if !held.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>What holds the model back, where something \
             does</summary>\n<p>{}</p></details>",
            held.iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br>")
        );
    }
    out
}
