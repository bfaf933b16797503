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
    compared: u64,
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
    pub(super) fn check(&mut self, window: &LoadWindow, shape: &ServiceDistribution, most: f64, now: Time) {
        let (rate, at_once) = (window.rate(), window.request_seconds / window.seconds.max(1e-9));
        self.predictions.retain(|past| now.since(past.at) < OLD);
        let (mut errors, mut count) = (0.0, 0.0);
        for past in self.predictions.iter_mut().filter(|past| rate >= FARTHER * past.load) {
            let predicted = curve::throughput(&past.stations, at_once, shape).min(past.balancer_capacity);
            errors += (predicted / rate - 1.0).abs();
            count += 1.0;
            self.checked += u64::from(!past.checked);
            past.checked = true;
        }
        if count == 0.0 {
            return;
        }
        self.compared += 1;
        let weight = (1.0 / self.compared as f64).max(NEW);
        let error = errors / count;
        self.error = Some(self.error.map_or(error, |known| known + (error - known) * weight));
        self.up_to = self.up_to.max((rate / most).min(1.0));
    }

    /// Keeps a prediction in place of the last one at about the same load.
    pub(super) fn keep_prediction(&mut self, load: f64, stations: &[Station], most: f64, now: Time) {
        let alike = |past: &PastPrediction| (past.load / load - 1.0).abs() < ALIKE;
        self.predictions.retain(|past| !alike(past));
        if self.predictions.len() == KEPT {
            self.predictions.pop_front();
        }
        let stations = stations.to_vec();
        self.predictions.push_back(PastPrediction {
            at: now,
            load,
            stations,
            balancer_capacity: most,
            checked: false,
        });
    }
}

/// The maximum number of predictions.
const KEPT: usize = 24;

/// The maximum age of a prediction.
const OLD: Duration = Duration::from_secs(3600);

/// The multiple of its load at which a prediction is checked.
const FARTHER: f64 = 1.2;

/// The relative difference below which loads are alike.
const ALIKE: f64 = 0.1;

/// The weight of a new error.
const NEW: f64 = 0.125;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(rate: f64, at_once: f64) -> LoadWindow {
        let mut window = LoadWindow::default();
        window.add(rate * 5.0, at_once * 5.0, 5.0, true);
        window
    }

    #[test]
    fn a_prediction_is_held_against_another_load() {
        let shape = ServiceDistribution::exponential();
        let station =
            |capacity| [Station { capacity, servers: 2.0, base: 2.0 / capacity, shared: true, part: 1.0 }];
        let mut record = PredictionAccuracy::default();
        record.keep_prediction(40.0, &station(110.0), 1e9, Time(0));
        record.check(&window(45.0, 1.0), &shape, 110.0, Time(1));
        assert_eq!((record.error, record.checked), (None, 0), "about the same load");
        record.check(&window(100.0, 200.0), &shape, 110.0, Time(2));
        let error = record.error.unwrap();
        assert!((error - 0.1).abs() < 0.02 && record.checked == 1, "{error}");
        assert!((record.up_to - 0.909).abs() < 0.01);
        record.check(&window(100.0, 200.0), &shape, 110.0, Time(3));
        assert_eq!(record.checked, 1, "the same prediction");
        record.keep_prediction(41.0, &station(100.0), 1e9, Time(4));
        record.check(&window(100.0, 200.0), &shape, 100.0, Time(5));
        assert!(record.checked == 2 && record.error.unwrap() < error);
        record.keep_prediction(40.0, &station(100.0), 50.0, Time(6));
        record.check(&window(100.0, 200.0), &shape, 100.0, Time(7));
        assert!(record.error.unwrap() > 0.1, "the balancer was to be the limit");
        record.forget();
        record.keep_prediction(40.0, &station(100.0), 1e9, Time(8));
        record.check(&window(100.0, 200.0), &shape, 100.0, Time(8) + OLD);
        assert_eq!(record.checked, 3, "too old");
    }
}
