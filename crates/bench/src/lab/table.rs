//! The estimates of all points by their levels, for claims and figures.

use std::collections::BTreeMap;

use super::claim::PointFilter;
use super::experiment::{Factor, FactorLevel};
use super::metric::Metric;
use super::model::{ModelBottleneck, ModelPrediction};
use super::result_source::ResultSource;
use super::statistics::Estimate;

/// The level of each factor.
pub type PointLevels = BTreeMap<Factor, FactorLevel>;

/// Estimates by levels.
#[derive(Clone, Debug, Default)]
pub struct EstimateTable {
    rows: Vec<TableRow>,
    /// The skipped points, with the reasons.
    absent: Vec<(PointLevels, String)>,
}

#[derive(Clone, Debug)]
struct TableRow {
    levels: PointLevels,
    values: BTreeMap<Metric, Estimate>,
    /// The model's results.
    predicted: BTreeMap<ResultSource, ModelPrediction>,
}

impl TableRow {
    fn value(&self, column: ResultSource, metric: Metric) -> Option<Estimate> {
        let (mean, half) = *self.predicted.get(&column)?.values.get(&metric)?;
        Some(Estimate { mean, half_width: half, samples: 1 })
    }
}

/// A point with a measured and a modelled value.
pub type ModelledPair<'a> = (&'a PointLevels, Option<Estimate>, Option<Estimate>);

/// A condition on rows: all of these levels.
pub type FixedLevels<'a> = [(Factor, &'a FactorLevel)];

impl EstimateTable {
    /// Adds a point.
    pub fn push(&mut self, levels: PointLevels, values: BTreeMap<Metric, Estimate>) {
        self.rows.push(TableRow { levels, values, predicted: BTreeMap::new() });
    }

    /// Adds a column of the model's results to the point that was added last.
    pub fn push_prediction(&mut self, column: ResultSource, predicted: ModelPrediction) {
        if let Some(last) = self.rows.last_mut() {
            last.predicted.insert(column, predicted);
        }
    }

    /// Returns the same points with the values of a column in place of the measured ones.
    pub fn with_source(&self, column: ResultSource) -> Self {
        if column == ResultSource::Measured {
            return self.clone();
        }
        let mut rows = self.rows.clone();
        for row in &mut rows {
            let metrics =
                row.predicted.get(&column).map(|said| said.values.keys().copied().collect::<Vec<_>>());
            let metrics = metrics.unwrap_or_default();
            row.values =
                metrics.into_iter().filter_map(|metric| Some((metric, row.value(column, metric)?))).collect();
        }
        Self { rows, absent: self.absent.clone() }
    }

    /// Returns measured and modelled values, at all points that `keep` selects.
    pub fn modelled_pairs<'a>(
        &'a self,
        metric: Metric,
        column: ResultSource,
        keep: impl Fn(&PointLevels) -> bool + 'a,
    ) -> impl Iterator<Item = ModelledPair<'a>> {
        let kept = self.rows.iter().filter(move |row| keep(&row.levels));
        kept.map(move |row| (&row.levels, row.values.get(&metric).copied(), row.value(column, metric)))
    }

    /// Returns the model's bottleneck at all points that `keep` selects.
    pub fn bottlenecks<'a>(
        &'a self,
        column: ResultSource,
        keep: impl Fn(&PointLevels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a PointLevels, Option<&'a ModelBottleneck>)> {
        let kept = self.rows.iter().filter(move |row| keep(&row.levels));
        kept.map(move |row| {
            (&row.levels, row.predicted.get(&column).and_then(|said| said.bottleneck.as_ref()))
        })
    }

    /// Returns the metrics of the model.
    pub fn modelled_metrics(&self) -> Vec<Metric> {
        let all = self.rows.iter().flat_map(|row| row.predicted.values()).flat_map(|said| said.values.keys());
        let mut all: Vec<Metric> = all.copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Adds a point that was skipped because this machine lacks something.
    pub fn push_skipped(&mut self, levels: PointLevels, why: &str) {
        self.absent.push((levels, why.to_owned()));
    }

    /// Returns the skipped points that `keep` selects, with the reasons.
    pub fn skipped(&self, keep: impl Fn(&PointLevels) -> bool) -> Vec<(&PointLevels, &str)> {
        let absent = self.absent.iter().filter(|(levels, _)| keep(levels));
        absent.map(|(levels, why)| (levels, why.as_str())).collect()
    }

    /// Returns the part of the table with the points that meet all conditions.
    pub fn filtered(&self, only: &[PointFilter]) -> Self {
        let keeps = |levels: &PointLevels| only.iter().all(|only| only.matches(levels));
        let rows = self.rows.iter().filter(|row| keeps(&row.levels)).cloned().collect();
        let absent = self.absent.iter().filter(|(levels, _)| keeps(levels)).cloned().collect();
        Self { rows, absent }
    }

    /// Computes the spread of response times. Computes speed-up and efficiency where there is a point with
    /// the same other levels and no balancer.
    pub fn add_derived(&mut self) {
        for row in &mut self.rows {
            if let Some(response) =
                row.values.get(&Metric::Response).filter(|response| response.half_width.is_finite())
            {
                let spread = Estimate {
                    mean: response.half_width / response.mean,
                    half_width: 0.0,
                    samples: response.samples,
                };
                row.values.insert(Metric::Spread, spread);
            }
        }
        let endpoints = |row: &TableRow| row.levels.get(&Factor::Endpoints).and_then(FactorLevel::number);
        let bases: Vec<TableRow> =
            self.rows.iter().filter(|row| endpoints(row) == Some(0.0)).cloned().collect();
        for row in &mut self.rows {
            let Some(count) = endpoints(row).filter(|count| *count > 0.0) else { continue };
            let alike = |base: &&TableRow| {
                row.levels.iter().all(|(factor, level)| {
                    matches!(factor, Factor::Endpoints | Factor::Balancer)
                        || base.levels.get(factor) == Some(level)
                })
            };
            let base = bases.iter().find(alike).and_then(|base| base.values.get(&Metric::Response));
            if let (Some(base), Some(own)) = (base, row.values.get(&Metric::Response)) {
                let speedup = base.ratio_to(own);
                row.values.insert(Metric::Speedup, speedup);
                row.values.insert(Metric::Efficiency, speedup.scaled(1.0 / count));
            }
        }
    }

    /// Returns the levels of a factor that occur, in the order of the points.
    pub fn levels(&self, factor: Factor) -> Vec<FactorLevel> {
        let mut found: Vec<FactorLevel> = Vec::new();
        for level in self.rows.iter().filter_map(|row| row.levels.get(&factor)) {
            if !found.contains(level) {
                found.push(level.clone());
            }
        }
        found
    }

    /// Returns the metric over a factor with numeric levels, from left to right.
    pub fn curve(&self, metric: Metric, along: Factor, fixed: &FixedLevels<'_>) -> Vec<(f64, Estimate)> {
        let mut curve: Vec<(f64, Estimate)> = self
            .rows_with(fixed)
            .filter_map(|row| Some((row.levels.get(&along)?.number()?, *row.values.get(&metric)?)))
            .collect();
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
        curve
    }

    /// Returns the metric at all points that `keep` selects, with their levels.
    pub fn values<'a>(
        &'a self,
        metric: Metric,
        keep: impl Fn(&PointLevels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a PointLevels, Estimate)> {
        let kept = self.rows.iter().filter(move |row| keep(&row.levels));
        kept.filter_map(move |row| Some((&row.levels, *row.values.get(&metric)?)))
    }

    /// Returns the points that `keep` selects and that lack the metric.
    pub fn points_without(&self, metric: Metric, keep: impl Fn(&PointLevels) -> bool) -> Vec<&PointLevels> {
        let lacks = |row: &&TableRow| keep(&row.levels) && !row.values.contains_key(&metric);
        self.rows.iter().filter(lacks).map(|row| &row.levels).collect()
    }

    fn rows_with<'a>(&'a self, fixed: &'a FixedLevels<'_>) -> impl Iterator<Item = &'a TableRow> {
        self.rows
            .iter()
            .filter(|row| fixed.iter().all(|(factor, level)| row.levels.get(factor) == Some(*level)))
    }
}

/// Formats levels like `endpoints=2 concurrency=400`.
pub fn format_levels(levels: &PointLevels) -> String {
    let parts: Vec<String> =
        levels.iter().map(|(factor, level)| format!("{}={level}", factor.name())).collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(endpoints: f64, clients: f64) -> PointLevels {
        PointLevels::from([
            (Factor::Endpoints, FactorLevel::Number(endpoints)),
            (Factor::Concurrency, FactorLevel::Number(clients)),
        ])
    }

    fn response(mean: f64) -> BTreeMap<Metric, Estimate> {
        BTreeMap::from([(Metric::Response, Estimate { mean, half_width: 0.0, samples: 5 })])
    }

    #[test]
    fn a_part_has_the_points_that_are_wanted() {
        let mut table = EstimateTable::default();
        table.push(at(1.0, 50.0), response(1.0));
        table.push(at(2.0, 50.0), response(2.0));
        table.push_skipped(at(4.0, 50.0), "not here");
        let among = |count: f64| PointFilter {
            factor: Factor::Endpoints,
            from: None,
            to: None,
            among: Some(vec![FactorLevel::Number(count)]),
        };
        let two = table.filtered(&[among(2.0)]);
        assert_eq!(
            (two.levels(Factor::Endpoints), two.skipped(|_| true).len()),
            (vec![FactorLevel::Number(2.0)], 0)
        );
        assert_eq!(table.filtered(&[among(4.0)]).skipped(|_| true).len(), 1);
    }

    #[test]
    fn speedups_are_against_the_same_load_without_a_balancer() {
        let mut table = EstimateTable::default();
        table.push(at(0.0, 100.0), response(12.0));
        table.push(at(0.0, 50.0), response(3.0));
        table.push(at(2.0, 100.0), response(4.0));
        table.push(at(2.0, 50.0), response(1.0));
        table.push(at(2.0, 25.0), response(1.0));
        table.add_derived();
        let two = FactorLevel::Number(2.0);
        let curve = |metric| table.curve(metric, Factor::Concurrency, &[(Factor::Endpoints, &two)]);
        let means = |metric| curve(metric).iter().map(|(x, y)| (*x, y.mean)).collect::<Vec<_>>();
        assert_eq!(means(Metric::Speedup), [(50.0, 3.0), (100.0, 3.0)]);
        assert_eq!(means(Metric::Efficiency), [(50.0, 1.5), (100.0, 1.5)]);
        assert_eq!(table.levels(Factor::Endpoints), [FactorLevel::Number(0.0), two.clone()]);
    }
}
