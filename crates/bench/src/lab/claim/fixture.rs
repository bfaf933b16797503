//! Artificial curves for the tests of claims.

use std::collections::BTreeMap;

use crate::lab::experiment::{Factor, FactorLevel};
use crate::lab::metric::Metric;
use crate::lab::model::ModelPrediction;
use crate::lab::result_source::ResultSource;
use crate::lab::statistics::Estimate;
use crate::lab::table::{EstimateTable, PointLevels};

/// Creates curves of `metric` over the concurrency, one for each number of endpoints, all with the same half
/// width.
pub(super) fn curves(metric: Metric, half_width: f64, curves: &[(f64, &[(f64, f64)])]) -> EstimateTable {
    let mut table = EstimateTable::default();
    for (endpoints, points) in curves {
        for (x, mean) in *points {
            let levels = PointLevels::from([
                (Factor::Endpoints, FactorLevel::Number(*endpoints)),
                (Factor::Concurrency, FactorLevel::Number(*x)),
            ]);
            table.push(levels, BTreeMap::from([(metric, Estimate { mean: *mean, half_width, samples: 5 })]));
        }
    }
    table
}

/// Creates response times over the concurrency: measured values, and those of a column of the model.
pub(super) fn predicted(source: ResultSource, points: &[(f64, f64, f64)]) -> EstimateTable {
    let mut table = EstimateTable::default();
    for (x, measured, predicted) in points {
        let levels = PointLevels::from([(Factor::Concurrency, FactorLevel::Number(*x))]);
        let estimate = Estimate { mean: *measured, half_width: 0.1, samples: 5 };
        table.push(levels, BTreeMap::from([(Metric::Response, estimate)]));
        let values = BTreeMap::from([(Metric::Response, (*predicted, 0.0))]);
        table.push_prediction(source, ModelPrediction { values, bottleneck: None });
    }
    table
}
