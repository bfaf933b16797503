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
    skipped: Vec<(PointLevels, String)>,
}

#[derive(Clone, Debug)]
struct TableRow {
    levels: PointLevels,
    values: BTreeMap<Metric, Estimate>,
    /// The model's results.
    predicted: BTreeMap<ResultSource, ModelPrediction>,
}

impl TableRow {
    fn value(&self, source: ResultSource, metric: Metric) -> Option<Estimate> {
        let (mean, half_width) = *self.predicted.get(&source)?.values.get(&metric)?;
        Some(Estimate { mean, half_width, samples: 1 })
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
    pub fn push_prediction(&mut self, source: ResultSource, prediction: ModelPrediction) {
        if let Some(last_row) = self.rows.last_mut() {
            last_row.predicted.insert(source, prediction);
        }
    }

    /// Returns the same points with the values of a column in place of the measured ones.
    pub fn with_source(&self, source: ResultSource) -> Self {
        if source == ResultSource::Measured {
            return self.clone();
        }
        let mut rows = self.rows.clone();
        for row in &mut rows {
            let metrics = row
                .predicted
                .get(&source)
                .map(|prediction| prediction.values.keys().copied().collect::<Vec<_>>());
            let metrics = metrics.unwrap_or_default();
            row.values =
                metrics.into_iter().filter_map(|metric| Some((metric, row.value(source, metric)?))).collect();
        }
        Self { rows, skipped: self.skipped.clone() }
    }

    /// Returns measured and modelled values, at all points that `keep` selects.
    pub fn modelled_pairs<'a>(
        &'a self,
        metric: Metric,
        source: ResultSource,
        predicate: impl Fn(&PointLevels) -> bool + 'a,
    ) -> impl Iterator<Item = ModelledPair<'a>> {
        let rows = self.rows.iter().filter(move |row| predicate(&row.levels));
        rows.map(move |row| (&row.levels, row.values.get(&metric).copied(), row.value(source, metric)))
    }

    /// Returns the model's bottleneck at all points that `keep` selects.
    pub fn bottlenecks<'a>(
        &'a self,
        source: ResultSource,
        predicate: impl Fn(&PointLevels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a PointLevels, Option<&'a ModelBottleneck>)> {
        let rows = self.rows.iter().filter(move |row| predicate(&row.levels));
        rows.map(move |row| {
            (&row.levels, row.predicted.get(&source).and_then(|prediction| prediction.bottleneck.as_ref()))
        })
    }

    /// Returns the metrics of the model.
    pub fn modelled_metrics(&self) -> Vec<Metric> {
        let metrics = self
            .rows
            .iter()
            .flat_map(|row| row.predicted.values())
            .flat_map(|prediction| prediction.values.keys());
        let mut metrics: Vec<Metric> = metrics.copied().collect();
        metrics.sort_unstable();
        metrics.dedup();
        metrics
    }

    /// Adds a point that was skipped because this machine lacks something.
    pub fn push_skipped(&mut self, levels: PointLevels, reason: &str) {
        self.skipped.push((levels, reason.to_owned()));
    }

    /// Returns the skipped points that `keep` selects, with the reasons.
    pub fn skipped(&self, predicate: impl Fn(&PointLevels) -> bool) -> Vec<(&PointLevels, &str)> {
        let skipped = self.skipped.iter().filter(|(levels, _)| predicate(levels));
        skipped.map(|(levels, reason)| (levels, reason.as_str())).collect()
    }

    /// Returns the part of the table with the points that meet all conditions.
    pub fn filtered(&self, filters: &[PointFilter]) -> Self {
        let is_kept = |levels: &PointLevels| filters.iter().all(|filter| filter.matches(levels));
        let rows = self.rows.iter().filter(|row| is_kept(&row.levels)).cloned().collect();
        let skipped = self.skipped.iter().filter(|(levels, _)| is_kept(levels)).cloned().collect();
        Self { rows, skipped }
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
        let baseline_rows: Vec<TableRow> =
            self.rows.iter().filter(|row| endpoints(row) == Some(0.0)).cloned().collect();
        for row in &mut self.rows {
            let Some(count) = endpoints(row).filter(|count| *count > 0.0) else { continue };
            let is_baseline = |baseline: &&TableRow| {
                row.levels.iter().all(|(factor, level)| {
                    matches!(factor, Factor::Endpoints | Factor::Balancer)
                        || baseline.levels.get(factor) == Some(level)
                })
            };
            let baseline =
                baseline_rows.iter().find(is_baseline).and_then(|base| base.values.get(&Metric::Response));
            if let (Some(baseline), Some(response)) = (baseline, row.values.get(&Metric::Response)) {
                let speedup = baseline.ratio_to(response);
                row.values.insert(Metric::Speedup, speedup);
                row.values.insert(Metric::Efficiency, speedup.scaled(1.0 / count));
            }
        }
    }

    /// Returns the levels of a factor that occur, in the order of the points.
    pub fn levels(&self, factor: Factor) -> Vec<FactorLevel> {
        let mut levels: Vec<FactorLevel> = Vec::new();
        for level in self.rows.iter().filter_map(|row| row.levels.get(&factor)) {
            if !levels.contains(level) {
                levels.push(level.clone());
            }
        }
        levels
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
        predicate: impl Fn(&PointLevels) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a PointLevels, Estimate)> {
        let rows = self.rows.iter().filter(move |row| predicate(&row.levels));
        rows.filter_map(move |row| Some((&row.levels, *row.values.get(&metric)?)))
    }

    /// Returns the points that `keep` selects and that lack the metric.
    pub fn points_without(
        &self,
        metric: Metric,
        predicate: impl Fn(&PointLevels) -> bool,
    ) -> Vec<&PointLevels> {
        let lacks_metric = |row: &&TableRow| predicate(&row.levels) && !row.values.contains_key(&metric);
        self.rows.iter().filter(lacks_metric).map(|row| &row.levels).collect()
    }

    fn rows_with<'a>(&'a self, fixed: &'a FixedLevels<'_>) -> impl Iterator<Item = &'a TableRow> {
        self.rows
            .iter()
            .filter(|row| fixed.iter().all(|(factor, level)| row.levels.get(factor) == Some(*level)))
    }
}

/// Formats levels like `endpoints=2 concurrency=400`.
pub fn format_levels(levels: &PointLevels) -> String {
    let assignments: Vec<String> =
        levels.iter().map(|(factor, level)| format!("{}={level}", factor.name())).collect();
    if assignments.is_empty() { "all".to_owned() } else { assignments.join(" ") }
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
        let with_endpoints = |count: f64| PointFilter {
            factor: Factor::Endpoints,
            from: None,
            to: None,
            among: Some(vec![FactorLevel::Number(count)]),
        };
        let filtered = table.filtered(&[with_endpoints(2.0)]);
        assert_eq!(
            (filtered.levels(Factor::Endpoints), filtered.skipped(|_| true).len()),
            (vec![FactorLevel::Number(2.0)], 0)
        );
        assert_eq!(table.filtered(&[with_endpoints(4.0)]).skipped(|_| true).len(), 1);
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
