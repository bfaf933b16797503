//! Charts of a run, from the table of estimates or from the timelines of its points.

use std::collections::BTreeMap;

use super::experiment::{Experiment, Factor, FactorLevel, FigureSettings, XAxis};
use super::metric::Metric;
use super::point::TimelineTick;
use super::result_source::ResultSource;
use super::statistics::Estimate;
use super::store::PointFile;
use super::table::{EstimateTable, format_levels};
use crate::plot::{Chart, ChartAxis, ChartPoint, ChartSeries, SeriesStyle};

/// Draws a chart.
pub(super) fn chart(
    figure: &FigureSettings,
    experiment: &Experiment,
    points: &[PointFile],
    table: &EstimateTable,
) -> Chart {
    let table = &table.filtered(&figure.only);
    let (label, series) = match figure.x.get_ref().factor() {
        Some(x_factor) => (x_factor.label(), factor_curves(figure, table, x_factor)),
        None => ("seconds since the load began", time_curves(figure, points)),
    };
    Chart {
        title: figure.title.clone(),
        x: ChartAxis { label: label.to_owned(), log: false, zero: true },
        y: ChartAxis { label: figure.y.label().to_owned(), log: figure.log, zero: !figure.log },
        series,
        notes: vec![experiment.members.description(), "whiskers: 95 % confidence intervals".to_owned()],
    }
}

fn factor_curves(figure: &FigureSettings, table: &EstimateTable, x_factor: Factor) -> Vec<ChartSeries> {
    let chart_series = |name: String, curve: Vec<(f64, Estimate)>, style| ChartSeries {
        name,
        points: curve.into_iter().map(|(x, estimate)| point(x, &estimate)).collect(),
        style,
    };
    let mut curves: Vec<ChartSeries> = Vec::new();
    // The measured curves, each followed by those of the model.
    for source in [ResultSource::Measured, ResultSource::Model, ResultSource::Simulated] {
        let (suffix, style) = match source {
            ResultSource::Measured => (String::new(), SeriesStyle::Line),
            ResultSource::Model => (format!(" ({})", source.name()), SeriesStyle::Dashed),
            ResultSource::Simulated => (format!(" ({})", source.name()), SeriesStyle::Dots),
        };
        let table = table.with_source(source);
        match &figure.series {
            None => {
                curves.extend(std::iter::once(figure.y).chain(figure.also.iter().copied()).map(|metric| {
                    chart_series(
                        format!("{}{suffix}", metric.name()),
                        table.curve(metric, x_factor, &[]),
                        style,
                    )
                }))
            }
            Some(series_factor) => {
                let series_factor = *series_factor.get_ref();
                let curve = |level: &FactorLevel| table.curve(figure.y, x_factor, &[(series_factor, level)]);
                let levels = table.levels(series_factor);
                curves.extend(
                    levels.iter().map(|level| {
                        chart_series(legend(series_factor, level) + &suffix, curve(level), style)
                    }),
                );
            }
        }
    }
    curves.retain(|series| !series.points.is_empty());
    let x_values = || curves.iter().flat_map(|series| &series.points).map(|point| point.x);
    // The value without any loss.
    let ideal: Option<fn(f64) -> f64> = match (figure.y, x_factor) {
        (Metric::Utilisation, Factor::Share) => Some(|x| x.min(1.0)),
        (Metric::Efficiency, _) => Some(|_| 1.0),
        _ => None,
    };
    if let Some(ideal) = ideal {
        let (min_x, max_x) = (x_values().fold(f64::INFINITY, f64::min), x_values().fold(0.0, f64::max));
        let corner = (x_factor == Factor::Share && min_x < 1.0 && max_x > 1.0).then_some(1.0);
        let x_positions = [Some(min_x), corner, Some(max_x)].into_iter().flatten();
        let points = x_positions.map(|x| ChartPoint::at(x, ideal(x))).collect();
        curves.push(ChartSeries { name: "ideal".to_owned(), points, style: SeriesStyle::Dashed });
    }
    curves
}

/// Returns the lines over time: one for each member, or for each level.
fn time_curves(figure: &FigureSettings, points: &[PointFile]) -> Vec<ChartSeries> {
    let mut curves = Vec::new();
    let is_shown = |file: &&PointFile| figure.only.iter().all(|filter| filter.matches(&file.levels));
    for file in points.iter().filter(is_shown) {
        let prefix =
            if points.len() == 1 { String::new() } else { format!("{} ", format_levels(&file.levels)) };
        if figure.y == Metric::Arrivals {
            let ticks = file.outcome.timelines.iter().flatten();
            let mut members: Vec<&String> = ticks.flat_map(|tick| tick.arrived.keys()).collect();
            members.sort_unstable();
            members.dedup();
            for member in members {
                // A tick without the member's count is left out.
                let value = |tick: &TimelineTick| {
                    tick.arrived.get(member).map_or(f64::NAN, |count| *count as f64 / tick.seconds)
                };
                curves.push((format!("{prefix}{member}"), mean_by_tick(&file.outcome.timelines, value)));
            }
        } else {
            for (index, metric) in std::iter::once(figure.y).chain(figure.also.iter().copied()).enumerate() {
                let value = |tick: &TimelineTick| match metric {
                    Metric::Throughput => tick.ok as f64 / tick.seconds,
                    Metric::Success => tick.ok as f64 / (tick.ok + tick.failed) as f64,
                    Metric::P99 => tick.p99,
                    Metric::Members => tick.roll.map_or(f64::NAN, |counts| counts.there),
                    Metric::Needed => tick.roll.map_or(f64::NAN, |counts| f64::from(counts.needed)),
                    _ => tick.response,
                };
                let label = match (metric, points.len(), index) {
                    // The needed number is the same at all points.
                    (Metric::Needed, ..) => metric.name().to_owned(),
                    (_, 1, _) => metric.name().to_owned(),
                    (_, _, 0) => prefix.trim_end().to_owned(),
                    _ => format!("{prefix}{}", metric.name()),
                };
                if metric != Metric::Needed || curves.iter().all(|(existing, _)| *existing != label) {
                    curves.push((label, mean_by_tick(&file.outcome.timelines, value)));
                }
            }
        }
    }
    curves.into_iter().map(|(name, points)| ChartSeries { name, points, style: SeriesStyle::Line }).collect()
}

/// Returns the mean over the repetitions, tick by tick.
fn mean_by_tick(timelines: &[Vec<TimelineTick>], value: impl Fn(&TimelineTick) -> f64) -> Vec<ChartPoint> {
    let mut ticks: BTreeMap<usize, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for timeline in timelines {
        for (index, tick) in timeline.iter().enumerate() {
            let (tick_times, values) = ticks.entry(index).or_default();
            tick_times.push(tick.at - tick.seconds / 2.0);
            values.push(value(tick));
        }
    }
    let mean_time = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    ticks
        .values()
        .filter_map(|(times, values)| Some(point(mean_time(times), &Estimate::of(values)?)))
        .collect()
}

fn point(x: f64, estimate: &Estimate) -> ChartPoint {
    let range = estimate.half_width.is_finite().then(|| (estimate.low(), estimate.high()));
    ChartPoint { x, y: estimate.mean, range }
}

fn legend(factor: Factor, level: &FactorLevel) -> String {
    match (factor, level.number()) {
        (Factor::Endpoints, Some(0.0)) => "no balancer".to_owned(),
        (Factor::Endpoints, Some(1.0)) => "1 endpoint".to_owned(),
        (Factor::Endpoints, Some(count)) => format!("{count} endpoints"),
        (Factor::Balancer, _) => level.to_string(),
        _ => format!("{} {level}", factor.name()),
    }
}

/// Returns `true` if the horizontal axis of the figure is time.
pub(super) fn is_over_time(figure: &FigureSettings) -> bool {
    *figure.x.get_ref() == XAxis::Seconds
}
