//! Charts of the last ten minutes, drawn as SVG. A sentence and a table describe each chart for users who
//! cannot see it.

use serde::Serialize;

use super::load_bar::round_to_tenth;

/// The positions of the plot area in the drawing.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 352.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 108.0;
/// The time from left to right, in seconds.
const SPAN_SECONDS: f64 = 600.0;
/// The time that each point of a line covers, in seconds.
const BIN_SECONDS: f64 = 4.0;
/// The maximum number of lines.
pub(super) const MAX_LINES: usize = 8;

/// A line to draw.
pub(super) struct ChartLine<'a> {
    pub(super) name: &'a str,
    /// The age in seconds and the value then; oldest first.
    pub(super) points: Vec<(f64, Option<f64>)>,
}

/// A drawn chart.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// The ID in the page: letters and digits.
    pub(super) id: String,
    pub(super) title: &'static str,
    /// The description, in a sentence or two.
    pub(super) says: String,
    pub(super) lines: Vec<DrawnLine>,
    /// The positions and labels of the levels.
    pub(super) levels: Vec<ChartLevel>,
    /// A special level, and its meaning.
    pub(super) rule: Option<ChartLevel>,
    pub(super) rule_is: &'static str,
    /// The age in minutes, and the value of each line then.
    pub(super) rows: Vec<ChartRow>,
}

#[derive(Debug, Serialize)]
pub(super) struct DrawnLine {
    pub(super) name: String,
    /// The coordinates of its unbroken parts.
    pub(super) parts: Vec<String>,
    pub(super) now: String,
}

#[derive(Debug, Serialize)]
pub(super) struct ChartLevel {
    pub(super) y: f64,
    pub(super) label: String,
}

#[derive(Debug, Serialize)]
pub(super) struct ChartRow {
    pub(super) ago: String,
    pub(super) cells: Vec<String>,
}

/// Draws a chart. `form` formats a value; `rule` is a level to draw unless it is too far away. With `peaks`
/// the maximum of some seconds stands for them, else their mean.
pub(super) fn draw_chart(
    id: String,
    title: &'static str,
    lines: &[ChartLine<'_>],
    rule: Option<f64>,
    keeps_peaks: bool,
    format_value: fn(f64) -> String,
) -> Chart {
    let lines = &lines[..lines.len().min(MAX_LINES)];
    let downsampled: Vec<Vec<(f64, Option<f64>)>> =
        lines.iter().map(|line| downsample(&line.points, keeps_peaks)).collect();
    let values = downsampled.iter().flatten().filter_map(|(_, value)| *value);
    let max_value = values.fold(0.0, f64::max);
    let rule = rule.filter(|rule| rule.is_finite() && *rule > 0.0 && *rule <= 4.0 * max_value);
    let top = round_up(max_value.max(rule.unwrap_or(0.0)) * 1.05);
    let y = |value: f64| round_to_tenth(BOTTOM - (value / top).clamp(0.0, 1.0) * (BOTTOM - TOP));
    let x = |ago: f64| round_to_tenth(RIGHT - (ago / SPAN_SECONDS).clamp(0.0, 1.0) * (RIGHT - LEFT));
    let drawn_lines = lines.iter().zip(&downsampled).map(|(line, points)| DrawnLine {
        name: line.name.to_owned(),
        parts: line_segments(points, x, y),
        now: last_value(&line.points).map_or_else(|| "–".to_owned(), format_value),
    });
    let level = |value: f64| ChartLevel { y: y(value), label: format_value(value) };
    let levels = if max_value > 0.0 { vec![level(0.0), level(top / 2.0), level(top)] } else { Vec::new() };
    Chart {
        id,
        title,
        says: sentence(lines, format_value),
        lines: drawn_lines.collect(),
        levels,
        rule: rule.map(level),
        rule_is: "load line",
        rows: rows(lines, format_value),
    }
}

/// Reduces the points to one for each few seconds.
fn downsample(points: &[(f64, Option<f64>)], keeps_peaks: bool) -> Vec<(f64, Option<f64>)> {
    let mut downsampled: Vec<(f64, Option<f64>)> = Vec::new();
    let mut bin: Option<(i64, Vec<Option<f64>>, f64)> = None;
    let close_bin = |(_, values, ago): (i64, Vec<Option<f64>>, f64)| {
        let present_values: Vec<f64> =
            values.into_iter().flatten().filter(|value| value.is_finite()).collect();
        let value = match (present_values.len(), keeps_peaks) {
            (0, _) => None,
            (_, true) => present_values.iter().copied().reduce(f64::max),
            (value_count, false) => Some(present_values.iter().sum::<f64>() / value_count as f64),
        };
        (ago, value)
    };
    for (ago, value) in points.iter().filter(|(ago, _)| *ago <= SPAN_SECONDS) {
        let bin_index = (ago / BIN_SECONDS).floor() as i64;
        match &mut bin {
            Some((current_bin, values, bin_ago)) if *current_bin == bin_index => {
                values.push(*value);
                *bin_ago = *ago;
            }
            _ => {
                downsampled.extend(bin.take().map(close_bin));
                bin = Some((bin_index, vec![*value], *ago));
            }
        }
    }
    downsampled.extend(bin.map(close_bin));
    downsampled
}

fn line_segments(
    points: &[(f64, Option<f64>)],
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> Vec<String> {
    let mut segments = Vec::new();
    let mut segment = String::new();
    let mut point_count = 0;
    for (ago, value) in points {
        match value {
            Some(value) => {
                let separator = if segment.is_empty() { "" } else { " " };
                segment.push_str(&format!("{separator}{},{}", x(*ago), y(*value)));
                point_count += 1;
            }
            None => {
                if point_count > 1 {
                    segments.push(std::mem::take(&mut segment));
                }
                segment.clear();
                point_count = 0;
            }
        }
    }
    if point_count > 1 {
        segments.push(segment);
    }
    segments
}

fn last_value(points: &[(f64, Option<f64>)]) -> Option<f64> {
    points.iter().rev().take(3).find_map(|(_, value)| *value)
}

fn sentence(lines: &[ChartLine<'_>], format_value: fn(f64) -> String) -> String {
    let line_summaries = lines.iter().map(|line| {
        let values: Vec<f64> = line.points.iter().filter_map(|(_, value)| *value).collect();
        let (Some(now), Some(min_value), Some(max_value)) = (
            last_value(&line.points),
            values.iter().copied().reduce(f64::min),
            values.iter().copied().reduce(f64::max),
        ) else {
            return format!("{}: nothing yet", line.name);
        };
        format!(
            "{}: {} now, between {} and {}",
            line.name,
            format_value(now),
            format_value(min_value),
            format_value(max_value)
        )
    });
    let summaries: Vec<String> = line_summaries.collect();
    if summaries.is_empty() { "nothing yet.".into() } else { format!("{}.", summaries.join("; ")) }
}

/// Returns the means of minutes.
fn rows(lines: &[ChartLine<'_>], format_value: fn(f64) -> String) -> Vec<ChartRow> {
    let mean_in_minute = |line: &ChartLine<'_>, from_seconds: f64| {
        let points_in_minute =
            line.points.iter().filter(|(ago, _)| (from_seconds..from_seconds + 60.0).contains(ago));
        let values: Vec<f64> = points_in_minute.filter_map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let row = |minute: u32| {
        let from_seconds = f64::from(minute) * 60.0;
        let values: Vec<Option<f64>> = lines.iter().map(|line| mean_in_minute(line, from_seconds)).collect();
        values.iter().any(Option::is_some).then(|| ChartRow {
            ago: if minute == 0 {
                "last minute".into()
            } else {
                format!("{minute} to {} min ago", minute + 1)
            },
            cells: values
                .into_iter()
                .map(|value| value.map_or_else(|| "–".to_owned(), format_value))
                .collect(),
        })
    };
    (0..10).filter_map(row).collect()
}

/// Rounds up to a number that is easy to read.
fn round_up(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    let unit = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * unit).find(|round| *round >= value).unwrap_or(10.0 * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::format::rate;

    fn line<'a>(name: &'a str, values: &[Option<f64>]) -> ChartLine<'a> {
        let value_count = values.len();
        let points = values.iter().enumerate().map(|(index, value)| ((value_count - index) as f64, *value));
        ChartLine { name, points: points.collect() }
    }

    #[test]
    fn lines_break_where_nothing_is_known() {
        let mut values = vec![Some(10.0); 30];
        values.extend(vec![None; 20]);
        values.extend(vec![Some(30.0); 30]);
        let chart =
            draw_chart("web-rate".into(), "rate", &[line("offered", &values)], Some(50.0), false, rate);
        assert_eq!(chart.lines[0].parts.len(), 2, "{chart:?}");
        assert_eq!(chart.says, "offered: 30 now, between 10 and 30.");
        assert_eq!(chart.levels.iter().map(|level| &*level.label).collect::<Vec<_>>(), ["0", "30", "60"]);
        assert_eq!(chart.rule.as_ref().map(|rule| &*rule.label), Some("50"));
        assert_eq!(chart.rows.len(), 2);
        for segment in &chart.lines[0].parts {
            for point in segment.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{point}");
            }
        }
    }

    #[test]
    fn ten_minutes_are_few_points_and_peaks_stay() {
        let mut values = vec![Some(1.0); 600];
        values[301] = Some(9.0);
        let peak_chart = |keeps_peaks| {
            let chart = draw_chart("a".into(), "a", &[line("p99", &values)], None, keeps_peaks, rate);
            (chart.lines[0].parts[0].split(' ').count(), chart.levels[2].label.clone())
        };
        assert_eq!(peak_chart(true), (151, "10".to_owned()));
        let (points, top) = peak_chart(false);
        assert!(points <= 151, "{points}");
        assert_eq!(top, "4.0");
    }

    #[test]
    fn nothing_is_a_chart_as_well() {
        let empty = draw_chart("a".into(), "a", &[line("p99", &[])], Some(3.0), true, rate);
        assert!(empty.lines[0].parts.is_empty() && empty.rule.is_none() && empty.levels.is_empty());
        assert_eq!((&*empty.says, &*empty.lines[0].now), ("p99: nothing yet.", "–"));
        assert_eq!(draw_chart("a".into(), "a", &[], None, true, rate).says, "nothing yet.");
    }

    #[test]
    fn levels_are_easy_to_read() {
        for (value, round) in
            [(0.0, 1.0), (0.9, 1.0), (1.2, 1.5), (41.0, 50.0), (990.0, 1000.0), (f64::NAN, 1.0)]
        {
            let rounded = round_up(value);
            assert!((rounded / round - 1.0_f64).abs() < 1e-9, "{value} {rounded}");
        }
    }
}
