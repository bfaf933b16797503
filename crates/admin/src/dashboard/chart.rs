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
const SPAN: f64 = 600.0;
/// The time that each point of a line covers, in seconds.
const STEP: f64 = 4.0;
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
    peaks: bool,
    form: fn(f64) -> String,
) -> Chart {
    let lines = &lines[..lines.len().min(MAX_LINES)];
    let thinned: Vec<Vec<(f64, Option<f64>)>> =
        lines.iter().map(|line| downsample(&line.points, peaks)).collect();
    let values = thinned.iter().flatten().filter_map(|(_, value)| *value);
    let most = values.fold(0.0, f64::max);
    let rule = rule.filter(|rule| rule.is_finite() && *rule > 0.0 && *rule <= 4.0 * most);
    let top = round_up(most.max(rule.unwrap_or(0.0)) * 1.05);
    let y = |value: f64| round_to_tenth(BOTTOM - (value / top).clamp(0.0, 1.0) * (BOTTOM - TOP));
    let x = |ago: f64| round_to_tenth(RIGHT - (ago / SPAN).clamp(0.0, 1.0) * (RIGHT - LEFT));
    let drawn = lines.iter().zip(&thinned).map(|(line, points)| DrawnLine {
        name: line.name.to_owned(),
        parts: line_segments(points, x, y),
        now: last_value(&line.points).map_or_else(|| "–".to_owned(), form),
    });
    let level = |value: f64| ChartLevel { y: y(value), label: form(value) };
    let levels = if most > 0.0 { vec![level(0.0), level(top / 2.0), level(top)] } else { Vec::new() };
    Chart {
        id,
        title,
        says: sentence(lines, form),
        lines: drawn.collect(),
        levels,
        rule: rule.map(level),
        rule_is: "load line",
        rows: rows(lines, form),
    }
}

/// Reduces the points to one for each few seconds.
fn downsample(points: &[(f64, Option<f64>)], peaks: bool) -> Vec<(f64, Option<f64>)> {
    let mut thinned: Vec<(f64, Option<f64>)> = Vec::new();
    let mut bin: Option<(i64, Vec<Option<f64>>, f64)> = None;
    let end = |(_, values, ago): (i64, Vec<Option<f64>>, f64)| {
        let there: Vec<f64> = values.into_iter().flatten().filter(|value| value.is_finite()).collect();
        let value = match (there.len(), peaks) {
            (0, _) => None,
            (_, true) => there.iter().copied().reduce(f64::max),
            (many, false) => Some(there.iter().sum::<f64>() / many as f64),
        };
        (ago, value)
    };
    for (ago, value) in points.iter().filter(|(ago, _)| *ago <= SPAN) {
        let place = (ago / STEP).floor() as i64;
        match &mut bin {
            Some((own, values, at)) if *own == place => {
                values.push(*value);
                *at = *ago;
            }
            _ => {
                thinned.extend(bin.take().map(end));
                bin = Some((place, vec![*value], *ago));
            }
        }
    }
    thinned.extend(bin.map(end));
    thinned
}

fn line_segments(
    points: &[(f64, Option<f64>)],
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut many = 0;
    for (ago, value) in points {
        match value {
            Some(value) => {
                let gap = if part.is_empty() { "" } else { " " };
                part.push_str(&format!("{gap}{},{}", x(*ago), y(*value)));
                many += 1;
            }
            None => {
                if many > 1 {
                    parts.push(std::mem::take(&mut part));
                }
                part.clear();
                many = 0;
            }
        }
    }
    if many > 1 {
        parts.push(part);
    }
    parts
}

fn last_value(points: &[(f64, Option<f64>)]) -> Option<f64> {
    points.iter().rev().take(3).find_map(|(_, value)| *value)
}

fn sentence(lines: &[ChartLine<'_>], form: fn(f64) -> String) -> String {
    let each = lines.iter().map(|line| {
        let values: Vec<f64> = line.points.iter().filter_map(|(_, value)| *value).collect();
        let (Some(now), Some(least), Some(most)) = (
            last_value(&line.points),
            values.iter().copied().reduce(f64::min),
            values.iter().copied().reduce(f64::max),
        ) else {
            return format!("{}: nothing yet", line.name);
        };
        format!("{}: {} now, between {} and {}", line.name, form(now), form(least), form(most))
    });
    let said: Vec<String> = each.collect();
    if said.is_empty() { "nothing yet.".into() } else { format!("{}.", said.join("; ")) }
}

/// Returns the means of minutes.
fn rows(lines: &[ChartLine<'_>], form: fn(f64) -> String) -> Vec<ChartRow> {
    let mean = |line: &ChartLine<'_>, from: f64| {
        let within = line.points.iter().filter(|(ago, _)| (from..from + 60.0).contains(ago));
        let values: Vec<f64> = within.filter_map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let row = |minute: u32| {
        let from = f64::from(minute) * 60.0;
        let values: Vec<Option<f64>> = lines.iter().map(|line| mean(line, from)).collect();
        values.iter().any(Option::is_some).then(|| ChartRow {
            ago: if minute == 0 {
                "last minute".into()
            } else {
                format!("{minute} to {} min ago", minute + 1)
            },
            cells: values.into_iter().map(|value| value.map_or_else(|| "–".to_owned(), form)).collect(),
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
        let many = values.len();
        let points = values.iter().enumerate().map(|(place, value)| ((many - place) as f64, *value));
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
        for part in &chart.lines[0].parts {
            for point in part.split(' ') {
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
        let of = |peaks| {
            let chart = draw_chart("a".into(), "a", &[line("p99", &values)], None, peaks, rate);
            (chart.lines[0].parts[0].split(' ').count(), chart.levels[2].label.clone())
        };
        assert_eq!(of(true), (151, "10".to_owned()));
        let (points, top) = of(false);
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
            let found = round_up(value);
            assert!((found / round - 1.0_f64).abs() < 1e-9, "{value} {found}");
        }
    }
}
