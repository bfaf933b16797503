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
        for source in ResultSource::OF_MODEL {
            let _ = write!(out, "<th>{}</th><th>error</th>", source.name());
        }
        out += "</tr>\n";
        for point in points {
            let _ = write!(out, "<tr><td class=\"text\">{}</td>", escape(&format_levels(&point.levels)));
            for (index, source) in ResultSource::OF_MODEL.into_iter().enumerate() {
                let mut pairs = table.modelled_pairs(metric, source, |levels| *levels == point.levels);
                let (measured, predicted) =
                    pairs.next().map_or((None, None), |(_, measured, predicted)| (measured, predicted));
                if index == 0 {
                    let _ = write!(
                        out,
                        "<td>{}</td>",
                        measured.map_or_else(String::new, |estimate| format_estimate(&estimate))
                    );
                }
                let error = measured
                    .zip(predicted)
                    .map(|(measured, predicted)| (predicted.mean / measured.mean - 1.0) * 100.0);
                let error = error.filter(|error| error.is_finite());
                let _ = write!(
                    out,
                    "<td>{}</td><td>{}</td>",
                    predicted.map_or_else(String::new, |estimate| format_number(estimate.mean)),
                    error.map_or_else(String::new, |error| format!("{error:+.1} %"))
                );
            }
            out += "</tr>\n";
        }
        out += "</table></div></details>\n";
    }
    let bottleneck_lines: Vec<String> = ResultSource::OF_MODEL
        .into_iter()
        .flat_map(|source| {
            table.bottlenecks(source, |_| true).map(move |(levels, bottleneck)| (source, levels, bottleneck))
        })
        .filter_map(|(source, levels, bottleneck)| {
            let bottleneck = bottleneck.filter(|saturated| saturated.limits)?;
            Some(format!(
                "{} ({}): {} {}",
                format_levels(levels),
                source.name(),
                bottleneck.kind,
                bottleneck.of.join(", ")
            ))
        })
        .collect();
    if !bottleneck_lines.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>What holds the model back, where something \
             does</summary>\n<p>{}</p></details>",
            bottleneck_lines.iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br>")
        );
    }
    out
}
