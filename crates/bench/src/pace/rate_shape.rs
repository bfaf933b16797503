//! The rate as a function of time, and the inverse of its integral.
//!
//! A shape is a sequence of pieces with a linear rate, once or periodic. Request n of constant arrivals is
//! due where the integral of the rate reaches n. A Poisson process of changing rate is one of rate 1
//! transformed by the same inverse (time rescaling; Çinlar, "Introduction to Stochastic Processes", 1975).
//! Each due time is computed from the start of its piece, never from the one before, so that rounding errors
//! do not add up.

use std::time::Duration;

/// The rate as a function of time. A rate that is negative or no finite number counts as 0.
#[derive(Clone, Debug, PartialEq)]
pub enum RateShape {
    /// A constant rate, in requests per second.
    Steady(f64),
    /// A linear rate over the duration of the run.
    Ramp {
        /// The requests per second at the beginning.
        from: f64,
        /// The requests per second at the end.
        to: f64,
    },
    /// A sequence of rates with their durations; nothing after the last.
    Steps(Vec<(f64, Duration)>),
    /// A piecewise linear rate through these points, by time since the start in ascending order and requests
    /// per second. Before the first and after the last point the rate is constant.
    PiecewiseLinear(Vec<(Duration, f64)>),
    /// A periodic alternation of on and off, beginning with on.
    Bursts {
        /// The requests per second while on.
        rate: f64,
        /// The length of the on time.
        on: Duration,
        /// The length of the off time, in which nothing is due.
        off: Duration,
    },
}

impl RateShape {
    /// Returns the length of a shape that has one: the sum of steps. The others have no end.
    pub fn length(&self) -> Option<Duration> {
        match self {
            Self::Steps(steps) => {
                Some(steps.iter().fold(Duration::ZERO, |sum, (_, length)| sum.saturating_add(*length)))
            }
            _ => None,
        }
    }
}

/// An interval of time with a linear rate.
#[derive(Clone, Copy, Debug)]
struct RatePiece {
    /// The start in seconds since the start of the shape, or of its period.
    start: f64,
    /// The length in seconds, above 0.
    length: f64,
    /// The requests per second at its beginning, followed by their growth per second.
    rate: f64,
    slope: f64,
    /// The integral of the rate up to its start, followed by that over it.
    area_before: f64,
    area: f64,
}

impl RatePiece {
    /// Returns the seconds since its start after which the integral of the rate over it reaches `area`.
    fn time_to_area(&self, area: f64) -> f64 {
        // The root of rate x + slope x² / 2 = area, in the form that does not cancel.
        let end_rate = (self.rate * self.rate + 2.0 * self.slope * area).max(0.0).sqrt();
        let rate_sum = self.rate + end_rate;
        if rate_sum > 0.0 { (2.0 * area / rate_sum).min(self.length) } else { 0.0 }
    }
}

/// The inverse of the integral of a shape's rate; levels must not decrease.
#[derive(Clone, Debug)]
pub(super) struct RateIntegral {
    pieces: Vec<RatePiece>,
    /// The seconds of a period and the integral over it, if the shape is periodic.
    period: Option<(f64, f64)>,
    /// The number of completed periods.
    completed_periods: f64,
    /// The index of the last level's piece.
    current_piece: usize,
}

impl RateIntegral {
    /// Creates the integral of `shape` over `duration`.
    pub(super) fn new(shape: &RateShape, duration: Duration) -> Self {
        let total_seconds = duration.as_secs_f64();
        let mut integral =
            Self { pieces: Vec::new(), period: None, completed_periods: 0.0, current_piece: 0 };
        match shape {
            RateShape::Steady(rate) => integral.push(total_seconds, *rate, *rate),
            RateShape::Ramp { from, to } => integral.push(total_seconds, *from, *to),
            RateShape::Steps(steps) => {
                for (rate, length) in steps {
                    integral.push(length.as_secs_f64(), *rate, *rate);
                }
            }
            RateShape::PiecewiseLinear(points) => {
                let mut previous = points.first().map_or((0.0, 0.0), |(_, rate)| (0.0, *rate));
                for (time, rate) in points {
                    let seconds = time.as_secs_f64();
                    integral.push(seconds - previous.0, previous.1, *rate);
                    previous = (previous.0.max(seconds), *rate);
                }
                integral.push(total_seconds - previous.0, previous.1, previous.1);
            }
            RateShape::Bursts { rate, on, off } => {
                integral.push(on.as_secs_f64(), *rate, *rate);
                let area: f64 = integral.pieces.iter().map(|piece| piece.area).sum();
                integral.period = (area > 0.0).then(|| (on.saturating_add(*off).as_secs_f64(), area));
            }
        }
        integral
    }

    fn push(&mut self, length: f64, from: f64, to: f64) {
        let clamp_rate = |rate: f64| if rate.is_finite() { rate.max(0.0) } else { 0.0 };
        let (from, to) = (clamp_rate(from), clamp_rate(to));
        let (start, area_before) = self
            .pieces
            .last()
            .map_or((0.0, 0.0), |last| (last.start + last.length, last.area_before + last.area));
        if length > 0.0 {
            let (slope, area) = ((to - from) / length, (from + to) / 2.0 * length);
            self.pieces.push(RatePiece { start, length, rate: from, slope, area_before, area });
        }
    }

    /// Returns the seconds since the start until which the integral is at most `level`; `None` if it never
    /// exceeds it. A level at the end of a piece belongs to the beginning of the next. A burst therefore
    /// begins with a request, and a pause has none.
    pub(super) fn time_at(&mut self, level: f64) -> Option<f64> {
        // Levels are sums and products: one that falls short of an edge by rounding is on it.
        let tolerance = 1e-9 * level.max(1.0);
        let mut level = level;
        let mut offset = 0.0;
        if let Some((period_seconds, period_area)) = self.period {
            let periods = ((level + tolerance) / period_area).floor();
            if periods > self.completed_periods {
                self.completed_periods = periods;
                self.current_piece = 0;
            }
            level = (level - self.completed_periods * period_area).max(0.0);
            offset = self.completed_periods * period_seconds;
        }
        loop {
            let Some(piece) = self.pieces.get(self.current_piece) else {
                // By rounding at the very end of a period: it belongs to the next.
                let (period_seconds, _) = self.period?;
                self.current_piece = 0;
                return Some(offset + period_seconds);
            };
            let remaining_area = (level - piece.area_before).max(0.0);
            if remaining_area + tolerance < piece.area {
                return Some(offset + piece.start + piece.time_to_area(remaining_area));
            }
            self.current_piece += 1;
        }
    }
}
