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
        Some(along) => (along.label(), curves(figure, table, along)),
        None => ("seconds since the load began", times(figure, points)),
    };
    Chart {
        title: figure.title.clone(),
        x: ChartAxis { label: label.to_owned(), log: false, zero: true },
        y: ChartAxis { label: figure.y.label().to_owned(), log: figure.log, zero: !figure.log },
        series,
        notes: vec![experiment.members.description(), "whiskers: 95 % confidence intervals".to_owned()],
    }
}

fn curves(figure: &FigureSettings, table: &EstimateTable, along: Factor) -> Vec<ChartSeries> {
    let series = |name: String, curve: Vec<(f64, Estimate)>, style| ChartSeries {
        name,
        points: curve.into_iter().map(|(x, estimate)| point(x, &estimate)).collect(),
        style,
    };
    let mut all: Vec<ChartSeries> = Vec::new();
    // The measured curves, each followed by those of the model.
    for column in [ResultSource::Measured, ResultSource::Model, ResultSource::Simulated] {
        let (of, style) = match column {
            ResultSource::Measured => (String::new(), SeriesStyle::Line),
            ResultSource::Model => (format!(" ({})", column.name()), SeriesStyle::Dashed),
            ResultSource::Simulated => (format!(" ({})", column.name()), SeriesStyle::Dots),
        };
        let table = table.with_source(column);
        match &figure.series {
            None => all.extend(std::iter::once(figure.y).chain(figure.also.iter().copied()).map(|metric| {
                series(format!("{}{of}", metric.name()), table.curve(metric, along, &[]), style)
            })),
            Some(by) => {
                let by = *by.get_ref();
                let curve = |level: &FactorLevel| table.curve(figure.y, along, &[(by, level)]);
                let levels = table.levels(by);
                all.extend(levels.iter().map(|level| series(legend(by, level) + &of, curve(level), style)));
            }
        }
    }
    all.retain(|series| !series.points.is_empty());
    let ends = || all.iter().flat_map(|series| &series.points).map(|point| point.x);
    // The value without any loss.
    let ideal: Option<fn(f64) -> f64> = match (figure.y, along) {
        (Metric::Utilisation, Factor::Share) => Some(|x| x.min(1.0)),
        (Metric::Efficiency, _) => Some(|_| 1.0),
        _ => None,
    };
    if let Some(ideal) = ideal {
        let (least, most) = (ends().fold(f64::INFINITY, f64::min), ends().fold(0.0, f64::max));
        let corner = (along == Factor::Share && least < 1.0 && most > 1.0).then_some(1.0);
        let places = [Some(least), corner, Some(most)].into_iter().flatten();
        let points = places.map(|x| ChartPoint::at(x, ideal(x))).collect();
        all.push(ChartSeries { name: "ideal".to_owned(), points, style: SeriesStyle::Dashed });
    }
    all
}

/// Returns the lines over time: one for each member, or for each level.
fn times(figure: &FigureSettings, points: &[PointFile]) -> Vec<ChartSeries> {
    let mut all = Vec::new();
    let keeps = |file: &&PointFile| figure.only.iter().all(|only| only.matches(&file.levels));
    for file in points.iter().filter(keeps) {
        let of = if points.len() == 1 { String::new() } else { format!("{} ", format_levels(&file.levels)) };
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
                all.push((format!("{of}{member}"), by_tick(&file.outcome.timelines, value)));
            }
        } else {
            for (number, y) in std::iter::once(figure.y).chain(figure.also.iter().copied()).enumerate() {
                let value = |tick: &TimelineTick| match y {
                    Metric::Throughput => tick.ok as f64 / tick.seconds,
                    Metric::Success => tick.ok as f64 / (tick.ok + tick.failed) as f64,
                    Metric::P99 => tick.p99,
                    Metric::Members => tick.roll.map_or(f64::NAN, |roll| roll.there),
                    Metric::Needed => tick.roll.map_or(f64::NAN, |roll| f64::from(roll.needed)),
                    _ => tick.response,
                };
                let label = match (y, points.len(), number) {
                    // The needed number is the same at all points.
                    (Metric::Needed, ..) => y.name().to_owned(),
                    (_, 1, _) => y.name().to_owned(),
                    (_, _, 0) => of.trim_end().to_owned(),
                    _ => format!("{of}{}", y.name()),
                };
                if y != Metric::Needed || all.iter().all(|(known, _)| *known != label) {
                    all.push((label, by_tick(&file.outcome.timelines, value)));
                }
            }
        }
    }
    all.into_iter().map(|(name, points)| ChartSeries { name, points, style: SeriesStyle::Line }).collect()
}

/// Returns the mean over the repetitions, tick by tick.
fn by_tick(timelines: &[Vec<TimelineTick>], value: impl Fn(&TimelineTick) -> f64) -> Vec<ChartPoint> {
    let mut ticks: BTreeMap<usize, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for timeline in timelines {
        for (index, tick) in timeline.iter().enumerate() {
            let (at, values) = ticks.entry(index).or_default();
            at.push(tick.at - tick.seconds / 2.0);
            values.push(value(tick));
        }
    }
    let mean = |at: &[f64]| at.iter().sum::<f64>() / at.len() as f64;
    ticks.values().filter_map(|(at, values)| Some(point(mean(at), &Estimate::of(values)?))).collect()
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
