//! Artificial curves for the tests of claims.

use std::collections::BTreeMap;

use crate::lab::column::Column;
use crate::lab::experiment::{Factor, Level};
use crate::lab::metric::Metric;
use crate::lab::model::Predicted;
use crate::lab::statistics::Estimate;
use crate::lab::table::{Levels, Table};

/// Creates curves of `metric` over the concurrency, one for each number of endpoints, all with the same half
/// width.
pub(super) fn curves(metric: Metric, half: f64, curves: &[(f64, &[(f64, f64)])]) -> Table {
    let mut table = Table::default();
    for (endpoints, points) in curves {
        for (x, mean) in *points {
            let levels = Levels::from([
                (Factor::Endpoints, Level::Number(*endpoints)),
                (Factor::Concurrency, Level::Number(*x)),
            ]);
            table.push(levels, BTreeMap::from([(metric, Estimate { mean: *mean, half, samples: 5 })]));
        }
    }
    table
}

/// Creates response times over the concurrency: measured values, and those of a column of the model.
pub(super) fn predicted(column: Column, points: &[(f64, f64, f64)]) -> Table {
    let mut table = Table::default();
    for (x, measured, said) in points {
        let levels = Levels::from([(Factor::Concurrency, Level::Number(*x))]);
        let estimate = Estimate { mean: *measured, half: 0.1, samples: 5 };
        table.push(levels, BTreeMap::from([(Metric::Response, estimate)]));
        let values = BTreeMap::from([(Metric::Response, (*said, 0.0))]);
        table.predict(column, Predicted { values, bottleneck: None });
    }
    table
}
