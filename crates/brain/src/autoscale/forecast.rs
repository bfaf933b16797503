//! The demand at the time when a member started now can be used.
//!
//! It is Holt's linear method (Holt 1957; Hyndman et al. 2008, *Forecasting with Exponential Smoothing*,
//! model ETS(A,A,N)) for unevenly spaced looks. With the time `d` since the previous look, a demand `y`, a
//! level `l` and a trend `b`:
//!
//! ```text
//! e  = y - (l + b d)              the forecast error
//! l' = l + b d + a e              a = 1 - 2^(-d / A)
//! b' = b + a c e / d              c = 1 - 2^(-d / B)
//! ahead = l' + b' h               h = the horizon: the start time of a member, and the time to the next look
//! ```
//!
//! There are two of them. A *steady* one (`A = h / 2`, `B = h`) follows days and nights. A *quick* one (`A =
//! h / 10`, `B = h / 4`) follows crowds. It counts only while it grows, and is above the steady one by more
//! than twice its random deviation. The variance `s` of the steady one's `e` is averaged over ten horizons,
//! each `e²` cut at nine times the variance, so that a crowd is no noise. The band `k = h / d` looks ahead is
//! that of the level, because the random part of a single look is over before a member could start:
//!
//! ```text
//! v = s (a / (2 - a) + (k - 1) (a² + a q k + q² k (2k - 1) / 6)),  q = a c
//! upper = max(l', ahead) + z sqrt(v)      z = 1.6: one in twenty lies above; 1 for the quick one
//! ```

use crate::Time;

/// The forecast of a demand over time.
#[derive(Clone, Debug)]
pub(super) struct DemandForecaster {
    /// The time ahead, seconds.
    horizon: f64,
    state: Option<ForecastState>,
}

#[derive(Clone, Copy, Debug)]
struct ForecastState {
    at: Time,
    steady: HoltTrend,
    quick: HoltTrend,
    /// The variance of the steady one's error.
    variance: f64,
    /// The mean seconds between looks.
    mean_interval: f64,
    observations: u32,
}

#[derive(Clone, Copy, Debug)]
struct HoltTrend {
    level: f64,
    /// The growth a second.
    trend: f64,
}

/// The weights of new information.
#[derive(Clone, Copy, Debug)]
struct SmoothingGain {
    level: f64,
    trend: f64,
}

impl SmoothingGain {
    /// Returns the weights after `d` seconds, with half lives as parts of the horizon.
    fn after(seconds: f64, horizon: f64, (level, trend): (f64, f64)) -> Self {
        Self { level: decay_weight(seconds, level * horizon), trend: decay_weight(seconds, trend * horizon) }
    }

    /// Returns the error of the level this number of looks ahead, over that of a look.
    fn spread(self, observations: f64) -> f64 {
        let (level_gain, trend_gain, observations) = (self.level, self.level * self.trend, observations);
        let trend_variance = (observations - 1.0)
            * (level_gain * level_gain
                + level_gain * trend_gain * observations
                + trend_gain * trend_gain * observations * (2.0 * observations - 1.0) / 6.0);
        libm::sqrt(level_gain / (2.0 - level_gain) + trend_variance)
    }
}

impl HoltTrend {
    /// Records the demand after `d` seconds; returns the forecast error.
    fn update(&mut self, demand: f64, seconds: f64, gain: SmoothingGain) -> f64 {
        let error = demand - (self.level + self.trend * seconds);
        self.level += self.trend * seconds + gain.level * error;
        self.trend += gain.level * gain.trend * error / seconds;
        error
    }

    fn predict(self, horizon: f64) -> f64 {
        (self.level + self.trend * horizon).max(0.0)
    }

    fn upper(self, horizon: f64, spread: f64) -> f64 {
        self.level.max(self.predict(horizon)) + spread
    }
}

/// A forecast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DemandForecast {
    /// The present demand, without its random part.
    pub(super) level: f64,
    /// The growth a second.
    pub(super) trend: f64,
    /// The future demand.
    pub(super) predicted: f64,
    /// The upper end of the band until then.
    pub(super) upper: f64,
    /// The seconds until then.
    pub(super) horizon: f64,
    /// Whether a crowd comes.
    pub(super) surge: bool,
}

impl DemandForecaster {
    pub(super) fn new(horizon: f64) -> Self {
        Self { horizon: horizon.max(MIN_HORIZON), state: None }
    }

    /// Sets the time ahead, seconds.
    pub(super) fn set_horizon(&mut self, horizon: f64) {
        self.horizon = horizon.max(MIN_HORIZON);
    }

    /// Restarts.
    pub(super) fn reset(&mut self) {
        self.state = None;
    }

    /// Records the present demand.
    pub(super) fn observe(&mut self, demand: f64, now: Time) -> DemandForecast {
        let Some(mut state) = self.state else {
            let trend = HoltTrend { level: demand, trend: 0.0 };
            let state = ForecastState {
                at: now,
                steady: trend,
                quick: trend,
                variance: 0.0,
                mean_interval: 1.0,
                observations: 0,
            };
            self.state = Some(state);
            return self.forecast(&state);
        };
        let seconds = now.since(state.at).as_secs_f64();
        if seconds < MIN_INTERVAL {
            return self.forecast(&state);
        }
        let horizon = self.horizon + seconds;
        let error =
            state.steady.update(demand, seconds, SmoothingGain::after(seconds, horizon, STEADY_HALF_LIVES));
        state.quick.update(demand, seconds, SmoothingGain::after(seconds, horizon, QUICK_HALF_LIVES));
        let square = if state.observations > MIN_OBSERVATIONS {
            (error * error).min(ERROR_CUTOFF * state.variance)
        } else {
            error * error
        };
        let weight = decay_weight(seconds, 10.0 * horizon).max(1.0 / f64::from(state.observations + 2));
        state.variance += (square - state.variance) * weight;
        state.mean_interval +=
            (seconds - state.mean_interval) * if state.observations == 0 { 1.0 } else { 0.1 };
        (state.at, state.observations) = (now, state.observations.saturating_add(1).min(1_000_000));
        self.state = Some(state);
        self.forecast(&state)
    }

    fn forecast(&self, state: &ForecastState) -> DemandForecast {
        // A decision of now can be changed at the next look.
        let horizon = self.horizon + state.mean_interval;
        let observations = (horizon / state.mean_interval.max(MIN_INTERVAL)).max(1.0);
        let deviation = libm::sqrt(state.variance);
        let ForecastState { steady, quick, .. } = *state;
        let (steady_gain, quick_gain) = (
            SmoothingGain::after(state.mean_interval, horizon, STEADY_HALF_LIVES),
            SmoothingGain::after(state.mean_interval, horizon, QUICK_HALF_LIVES),
        );
        let quick_deviation = deviation * libm::sqrt(quick_gain.level / (2.0 - quick_gain.level));
        let is_surge = state.observations > MIN_OBSERVATIONS
            && quick.trend > 0.0
            && quick.level - steady.level > SURGE_SIGMAS * quick_deviation;
        let steady_upper = steady.upper(horizon, SIGMAS * deviation * steady_gain.spread(observations));
        let (trend, upper) = match is_surge {
            true => {
                (quick, steady_upper.max(quick.upper(horizon, deviation * quick_gain.spread(observations))))
            }
            false => (steady, steady_upper),
        };
        DemandForecast {
            level: trend.level.max(0.0),
            trend: trend.trend,
            predicted: trend.predict(horizon),
            upper,
            horizon,
            surge: is_surge,
        }
    }
}

/// Returns the weight of new information after `d` seconds, if the old one halves in `half`.
fn decay_weight(seconds: f64, half_life: f64) -> f64 {
    1.0 - libm::exp2(-seconds / half_life.max(1e-9))
}

/// The half lives of level and trend, as parts of the horizon.
const STEADY_HALF_LIVES: (f64, f64) = (0.5, 1.0);
const QUICK_HALF_LIVES: (f64, f64) = (0.1, 0.25);

/// The quantile of the normal distribution above which one in twenty lies.
const SIGMAS: f64 = 1.6;

/// The standard deviations of chance by which the quick one must be above the steady one.
const SURGE_SIGMAS: f64 = 2.0;

/// The square of the three standard deviations at which an error is cut, and the looks after which that
/// begins.
const ERROR_CUTOFF: f64 = 9.0;
const MIN_OBSERVATIONS: u32 = 5;

/// The minimum seconds between looks that count, and the minimum horizon.
const MIN_INTERVAL: f64 = 0.01;
const MIN_HORIZON: f64 = 0.1;

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn run(demand: impl Fn(f64) -> f64, seconds: u32, horizon: f64) -> DemandForecast {
        let mut forecast = DemandForecaster::new(horizon);
        let time_of = |second: u32| Time(1) + Duration::from_secs(u64::from(second));
        (0..=seconds)
            .map(|second| forecast.observe(demand(f64::from(second)), time_of(second)))
            .last()
            .unwrap()
    }

    #[test]
    fn what_stays_is_foreseen_without_a_band() {
        let forecast = run(|_| 7.0, 100, 10.0);
        assert!((forecast.upper - 7.0).abs() < 1e-9 && forecast.trend.abs() < 1e-9, "{forecast:?}");
    }

    #[test]
    fn a_line_is_foreseen_as_far_as_a_start_takes() {
        let forecast = run(|second| 2.0 + 0.5 * second, 200, 10.0);
        let expected = 2.0 + 0.5 * (200.0 + forecast.horizon);
        assert!((forecast.predicted / expected - 1.0).abs() < 0.01, "{forecast:?} for {expected}");
        let falling = run(|second| 200.0 - second, 150, 10.0);
        assert!(falling.predicted < falling.level && falling.upper >= falling.level, "{falling:?}");
        assert!(run(|second| (100.0 - second).max(0.0), 120, 30.0).predicted >= 0.0);
    }

    #[test]
    fn what_chance_adds_makes_the_band() {
        let noisy = |second: f64| 10.0 + if (second as u64).is_multiple_of(2) { 1.0 } else { -1.0 };
        let forecast = run(noisy, 300, 5.0);
        assert!(
            forecast.upper > forecast.level.max(forecast.predicted) + 0.1
                && forecast.upper < 13.0
                && !forecast.surge,
            "{forecast:?}"
        );
    }

    #[test]
    fn a_crowd_is_seen_in_the_seconds_in_which_it_comes_and_noise_is_none() {
        let noisy = |second: f64| 10.0 + if (second as u64).is_multiple_of(2) { 0.5 } else { -0.5 };
        let surge = |second: f64| noisy(second) + (second - 100.0).max(0.0);
        assert!(!run(surge, 100, 4.0).surge);
        let forecast = run(surge, 104, 4.0);
        assert!(forecast.surge && forecast.upper > 17.0, "{forecast:?}");
    }

    #[test]
    fn looks_at_once_say_nothing_more() {
        let mut forecast = DemandForecaster::new(5.0);
        forecast.observe(3.0, Time(5));
        assert_eq!(forecast.observe(1e9, Time(5)).level, 3.0);
        forecast.reset();
        assert_eq!(forecast.observe(4.0, Time(4)).upper, 4.0);
    }
}
