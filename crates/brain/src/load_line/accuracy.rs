//! Past predictions, and their errors.
//!
//! Every window a prediction is kept with the load at which it was made. When a later window has at least 1.2
//! times that load, its requests in flight are put into the predicted curve, and the resulting throughput is
//! compared with the measured one. (Near saturation a tiny error of the load changes the response time
//! without bound. The throughput at a given concurrency tests as much, and its error is one of the capacity.)
//! Errors are averaged, a new one with weight 1/8.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::curve::{self, ServiceDistribution, Station};
use super::member_estimate::LoadWindow;
use crate::Time;

/// The predictions of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct PredictionAccuracy {
    predictions: VecDeque<PastPrediction>,
    /// The mean error.
    pub(super) error: Option<f64>,
    /// The number of predictions that met another load.
    pub(super) checked: u64,
    /// The number of comparisons.
    check_count: u64,
    /// The greatest utilization of a comparison.
    pub(super) up_to: f64,
}

#[derive(Clone, Debug)]
struct PastPrediction {
    at: Time,
    load: f64,
    stations: Vec<Station>,
    /// The capacity of the balancer itself.
    balancer_capacity: f64,
    checked: bool,
}

impl PredictionAccuracy {
    /// Discards the predictions, because the members have changed.
    pub(super) fn forget(&mut self) {
        self.predictions.clear();
    }

    /// Compares the predictions with a steady window. `most` is the present capacity.
    pub(super) fn check(
        &mut self,
        window: &LoadWindow,
        shape: &ServiceDistribution,
        max_rate: f64,
        now: Time,
    ) {
        let (rate, concurrency) = (window.rate(), window.request_seconds / window.seconds.max(1e-9));
        self.predictions.retain(|prediction| now.since(prediction.at) < MAX_PREDICTION_AGE);
        let (mut errors, mut count) = (0.0, 0.0);
        for prediction in
            self.predictions.iter_mut().filter(|prediction| rate >= MIN_LOAD_RATIO * prediction.load)
        {
            let predicted =
                curve::throughput(&prediction.stations, concurrency, shape).min(prediction.balancer_capacity);
            errors += (predicted / rate - 1.0).abs();
            count += 1.0;
            self.checked += u64::from(!prediction.checked);
            prediction.checked = true;
        }
        if count == 0.0 {
            return;
        }
        self.check_count += 1;
        let weight = (1.0 / self.check_count as f64).max(MIN_ERROR_WEIGHT);
        let error = errors / count;
        self.error = Some(self.error.map_or(error, |mean_error| mean_error + (error - mean_error) * weight));
        self.up_to = self.up_to.max((rate / max_rate).min(1.0));
    }

    /// Keeps a prediction in place of the last one at about the same load.
    pub(super) fn keep_prediction(
        &mut self,
        load: f64,
        stations: &[Station],
        balancer_capacity: f64,
        now: Time,
    ) {
        let is_similar =
            |prediction: &PastPrediction| (prediction.load / load - 1.0).abs() < SIMILAR_LOAD_TOLERANCE;
        self.predictions.retain(|prediction| !is_similar(prediction));
        if self.predictions.len() == MAX_PREDICTIONS {
            self.predictions.pop_front();
        }
        let stations = stations.to_vec();
        self.predictions.push_back(PastPrediction {
            at: now,
            load,
            stations,
            balancer_capacity,
            checked: false,
        });
    }
}

/// The maximum number of predictions.
const MAX_PREDICTIONS: usize = 24;

/// The maximum age of a prediction.
const MAX_PREDICTION_AGE: Duration = Duration::from_secs(3600);

/// The multiple of its load at which a prediction is checked.
const MIN_LOAD_RATIO: f64 = 1.2;

/// The relative difference below which loads are alike.
const SIMILAR_LOAD_TOLERANCE: f64 = 0.1;

/// The weight of a new error.
const MIN_ERROR_WEIGHT: f64 = 0.125;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(rate: f64, concurrency: f64) -> LoadWindow {
        let mut window = LoadWindow::default();
        window.add(rate * 5.0, concurrency * 5.0, 5.0, true);
        window
    }

    #[test]
    fn a_prediction_is_held_against_another_load() {
        let shape = ServiceDistribution::exponential();
        let station =
            |capacity| [Station { capacity, servers: 2.0, base: 2.0 / capacity, shared: true, part: 1.0 }];
        let mut accuracy = PredictionAccuracy::default();
        accuracy.keep_prediction(40.0, &station(110.0), 1e9, Time(0));
        accuracy.check(&window(45.0, 1.0), &shape, 110.0, Time(1));
        assert_eq!((accuracy.error, accuracy.checked), (None, 0), "about the same load");
        accuracy.check(&window(100.0, 200.0), &shape, 110.0, Time(2));
        let error = accuracy.error.unwrap();
        assert!((error - 0.1).abs() < 0.02 && accuracy.checked == 1, "{error}");
        assert!((accuracy.up_to - 0.909).abs() < 0.01);
        accuracy.check(&window(100.0, 200.0), &shape, 110.0, Time(3));
        assert_eq!(accuracy.checked, 1, "the same prediction");
        accuracy.keep_prediction(41.0, &station(100.0), 1e9, Time(4));
        accuracy.check(&window(100.0, 200.0), &shape, 100.0, Time(5));
        assert!(accuracy.checked == 2 && accuracy.error.unwrap() < error);
        accuracy.keep_prediction(40.0, &station(100.0), 50.0, Time(6));
        accuracy.check(&window(100.0, 200.0), &shape, 100.0, Time(7));
        assert!(accuracy.error.unwrap() > 0.1, "the balancer was to be the limit");
        accuracy.forget();
        accuracy.keep_prediction(40.0, &station(100.0), 1e9, Time(8));
        accuracy.check(&window(100.0, 200.0), &shape, 100.0, Time(8) + MAX_PREDICTION_AGE);
        assert_eq!(accuracy.checked, 3, "too old");
    }
}
