//! The estimates of all points by their levels, for claims and figures.

use std::collections::BTreeMap;

use super::claim::Only;
use super::column::Column;
use super::experiment::{Factor, Level};
use super::metric::Metric;
use super::model::{Held, Predicted};
use super::statistics::Estimate;

/// The level of each factor.
pub type Levels = BTreeMap<Factor, Level>;

/// Estimates by levels.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    /// The skipped points, with the reasons.
    absent: Vec<(Levels, String)>,
}

#[derive(Clone, Debug)]
struct Row {
    levels: Levels,
    values: BTreeMap<Metric, Estimate>,
    /// The model's results.
    predicted: BTreeMap<Column, Predicted>,
}

impl Row {
    fn said(&self, column: Column, metric: Metric) -> Option<Estimate> {
        let (mean, half) = *self.predicted.get(&column)?.values.get(&metric)?;
        Some(Estimate { mean, half, samples: 1 })
    }
}

/// A point with a measured and a modelled value.
pub type Pair<'a> = (&'a Levels, Option<Estimate>, Option<Estimate>);

/// A condition on rows: all of these levels.
pub type Fixed<'a> = [(Factor, &'a Level)];

impl Table {
    /// Adds a point.
    pub fn push(&mut self, levels: Levels, values: BTreeMap<Metric, Estimate>) {
        self.rows.push(Row { levels, values, predicted: BTreeMap::new() });
    }

    /// Adds a column of the model's results to the point that was added last.
    pub fn predict(&mut self, column: Column, predicted: Predicted) {
        if let Some(last) = self.rows.last_mut() {
            last.predicted.insert(column, predicted);
        }
    }

    /// Returns the same points with the values of a column in place of the measured ones.
    pub fn column(&self, column: Column) -> Self {
        if column == Column::Measured {
            return self.clone();
        }
        let mut rows = self.rows.clone();
        for row in &mut rows {
            let metrics =
                row.predicted.get(&column).map(|said| said.values.keys().copied().collect::<Vec<_>>());
            let metrics = metrics.unwrap_or_default();
            row.values =
                metrics.into_iter().filter_map(|metric| Some((metric, row.said(column, metric)?))).collect();
        }
        Self { rows, absent: self.absent.clone() }
    }

    /// Returns measured and modelled values, at all points that `keep` selects.
    pub fn pairs<'a>(
        &'a self,
        metric: Metric,
        column: Column,
        keep: impl Fn(&Levels) -> bool + 'a,
    ) -> impl Iterator<Item = Pair<'a>> {
        let kept = self.rows.iter().filter(move |row| keep(&row.levels));
        kept.map(move |row| (&row.levels, row.values.get(&metric).copied(), row.said(column, metric)))
    }

    /// Returns the model's bottleneck at all points that `keep` selects.
    pub fn held<'a>(
        &'a self,
        column: Column,
        keep: impl Fn(&Levels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a Levels, Option<&'a Held>)> {
        let kept = self.rows.iter().filter(move |row| keep(&row.levels));
        kept.map(move |row| {
            (&row.levels, row.predicted.get(&column).and_then(|said| said.bottleneck.as_ref()))
        })
    }

    /// Returns the metrics of the model.
    pub fn modelled(&self) -> Vec<Metric> {
        let all = self.rows.iter().flat_map(|row| row.predicted.values()).flat_map(|said| said.values.keys());
        let mut all: Vec<Metric> = all.copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Adds a point that was skipped because this machine lacks something.
    pub fn leave_out(&mut self, levels: Levels, why: &str) {
        self.absent.push((levels, why.to_owned()));
    }

    /// Returns the skipped points that `keep` selects, with the reasons.
    pub fn absent(&self, keep: impl Fn(&Levels) -> bool) -> Vec<(&Levels, &str)> {
        let absent = self.absent.iter().filter(|(levels, _)| keep(levels));
        absent.map(|(levels, why)| (levels, why.as_str())).collect()
    }

    /// Returns the part of the table with the points that meet all conditions.
    pub fn only(&self, only: &[Only]) -> Self {
        let keeps = |levels: &Levels| only.iter().all(|only| only.keeps(levels));
        let rows = self.rows.iter().filter(|row| keeps(&row.levels)).cloned().collect();
        let absent = self.absent.iter().filter(|(levels, _)| keeps(levels)).cloned().collect();
        Self { rows, absent }
    }

    /// Computes the spread of response times. Computes speed-up and efficiency where there is a point with
    /// the same other levels and no balancer.
    pub fn derive(&mut self) {
        for row in &mut self.rows {
            if let Some(response) =
                row.values.get(&Metric::Response).filter(|response| response.half.is_finite())
            {
                let spread =
                    Estimate { mean: response.half / response.mean, half: 0.0, samples: response.samples };
                row.values.insert(Metric::Spread, spread);
            }
        }
        let endpoints = |row: &Row| row.levels.get(&Factor::Endpoints).and_then(Level::number);
        let bases: Vec<Row> = self.rows.iter().filter(|row| endpoints(row) == Some(0.0)).cloned().collect();
        for row in &mut self.rows {
            let Some(count) = endpoints(row).filter(|count| *count > 0.0) else { continue };
            let alike = |base: &&Row| {
                row.levels.iter().all(|(factor, level)| {
                    matches!(factor, Factor::Endpoints | Factor::Balancer)
                        || base.levels.get(factor) == Some(level)
                })
            };
            let base = bases.iter().find(alike).and_then(|base| base.values.get(&Metric::Response));
            if let (Some(base), Some(own)) = (base, row.values.get(&Metric::Response)) {
                let speedup = base.over(own);
                row.values.insert(Metric::Speedup, speedup);
                row.values.insert(Metric::Efficiency, speedup.times(1.0 / count));
            }
        }
    }

    /// Returns the levels of a factor that occur, in the order of the points.
    pub fn levels(&self, factor: Factor) -> Vec<Level> {
        let mut found: Vec<Level> = Vec::new();
        for level in self.rows.iter().filter_map(|row| row.levels.get(&factor)) {
            if !found.contains(level) {
                found.push(level.clone());
            }
        }
        found
    }

    /// Returns the metric over a factor with numeric levels, from left to right.
    pub fn curve(&self, metric: Metric, along: Factor, fixed: &Fixed<'_>) -> Vec<(f64, Estimate)> {
        let mut curve: Vec<(f64, Estimate)> = self
            .rows_with(fixed)
            .filter_map(|row| Some((row.levels.get(&along)?.number()?, *row.values.get(&metric)?)))
            .collect();
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
        curve
    }

    /// Returns the metric at all points that `keep` selects, with their levels.
    pub fn all<'a>(
        &'a self,
        metric: Metric,
        keep: impl Fn(&Levels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a Levels, Estimate)> {
        let kept = self.rows.iter().filter(move |row| keep(&row.levels));
        kept.filter_map(move |row| Some((&row.levels, *row.values.get(&metric)?)))
    }

    /// Returns the points that `keep` selects and that lack the metric.
    pub fn lacking(&self, metric: Metric, keep: impl Fn(&Levels) -> bool) -> Vec<&Levels> {
        let lacks = |row: &&Row| keep(&row.levels) && !row.values.contains_key(&metric);
        self.rows.iter().filter(lacks).map(|row| &row.levels).collect()
    }

    fn rows_with<'a>(&'a self, fixed: &'a Fixed<'_>) -> impl Iterator<Item = &'a Row> {
        self.rows
            .iter()
            .filter(|row| fixed.iter().all(|(factor, level)| row.levels.get(factor) == Some(*level)))
    }
}

/// Formats levels like `endpoints=2 concurrency=400`.
pub fn name(levels: &Levels) -> String {
    let parts: Vec<String> =
        levels.iter().map(|(factor, level)| format!("{}={level}", factor.name())).collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(endpoints: f64, clients: f64) -> Levels {
        Levels::from([
            (Factor::Endpoints, Level::Number(endpoints)),
            (Factor::Concurrency, Level::Number(clients)),
        ])
    }

    fn response(mean: f64) -> BTreeMap<Metric, Estimate> {
        BTreeMap::from([(Metric::Response, Estimate { mean, half: 0.0, samples: 5 })])
    }

    #[test]
    fn a_part_has_the_points_that_are_wanted() {
        let mut table = Table::default();
        table.push(at(1.0, 50.0), response(1.0));
        table.push(at(2.0, 50.0), response(2.0));
        table.leave_out(at(4.0, 50.0), "not here");
        let among = |count: f64| Only {
            factor: Factor::Endpoints,
            from: None,
            to: None,
            among: Some(vec![Level::Number(count)]),
        };
        let two = table.only(&[among(2.0)]);
        assert_eq!(
            (two.levels(Factor::Endpoints), two.absent(|_| true).len()),
            (vec![Level::Number(2.0)], 0)
        );
        assert_eq!(table.only(&[among(4.0)]).absent(|_| true).len(), 1);
    }

    #[test]
    fn speedups_are_against_the_same_load_without_a_balancer() {
        let mut table = Table::default();
        table.push(at(0.0, 100.0), response(12.0));
        table.push(at(0.0, 50.0), response(3.0));
        table.push(at(2.0, 100.0), response(4.0));
        table.push(at(2.0, 50.0), response(1.0));
        table.push(at(2.0, 25.0), response(1.0));
        table.derive();
        let two = Level::Number(2.0);
        let curve = |metric| table.curve(metric, Factor::Concurrency, &[(Factor::Endpoints, &two)]);
        let means = |metric| curve(metric).iter().map(|(x, y)| (*x, y.mean)).collect::<Vec<_>>();
        assert_eq!(means(Metric::Speedup), [(50.0, 3.0), (100.0, 3.0)]);
        assert_eq!(means(Metric::Efficiency), [(50.0, 1.5), (100.0, 1.5)]);
        assert_eq!(table.levels(Factor::Endpoints), [Level::Number(0.0), two.clone()]);
    }
}
