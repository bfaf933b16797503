//! Made-up curves for the tests of claims.

use std::collections::BTreeMap;

use crate::lab::experiment::{Factor, Level};
use crate::lab::metric::Metric;
use crate::lab::statistics::Estimate;
use crate::lab::table::{Levels, Table};

/// Curves of `metric` over the concurrency, one for each number of endpoints, all with the same half width.
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
