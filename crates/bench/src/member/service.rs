//! Service times: the time for which a worker holds a request, drawn from a distribution with a known mean.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use super::workers::MAX_SLOW;
use crate::rng::SplitMix64;
use crate::units;

/// The maximum service time drawn, in seconds; it bounds heavy tails.
const MAX_SECONDS: f64 = 3600.0;

/// A distribution of service times.
///
/// | form | distribution |
/// |---|---|
/// | `none` | no time |
/// | `const:1ms` | constant |
/// | `exp:2ms` | exponential, by its mean |
/// | `uniform:1ms:3ms` | uniform |
/// | `pareto:ALPHA:MIN` | Pareto, by its tail index and minimum: `pareto:1.5:1ms` |
/// | `lognormal:MEAN:SIGMA[:CUT]` | lognormal: `lognormal:10ms:1.2:300ms` |
///
/// `MEAN` is the mean before the cut, `SIGMA` the standard deviation of the logarithm, `CUT` the maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServiceTime {
    /// No time, and no worker is held.
    None,
    /// A constant time.
    Const(Duration),
    /// An exponential time, by its mean.
    Exp(Duration),
    /// A uniform time between two values.
    Uniform(Duration, Duration),
    /// A heavy-tailed time: P(time > x) = (least / x)^alpha.
    Pareto {
        /// The tail index, above 0; at 1 or below the mean is infinite.
        alpha: f64,
        /// The minimum.
        least: Duration,
    },
    /// A time with a normal logarithm: many short ones and a few that are much longer.
    Lognormal {
        /// The mean before the cut.
        mean: Duration,
        /// The standard deviation of the logarithm, from 0 to 5.
        sigma: f64,
        /// The maximum; longer times count as this.
        cut: Option<Duration>,
    },
}

/// The maximum standard deviation of a logarithm: at 5, one time in a thousand is longer than 19 times the
/// mean.
const MAX_SIGMA: f64 = 5.0;

impl ServiceTime {
    /// Returns the mean; [`Duration::MAX`] where it is infinite.
    pub fn mean(&self) -> Duration {
        match *self {
            Self::None => Duration::ZERO,
            Self::Const(time) | Self::Exp(time) => time,
            Self::Uniform(low, high) => (low + high) / 2,
            Self::Pareto { alpha, least } if alpha > 1.0 => least.mul_f64(alpha / (alpha - 1.0)),
            Self::Pareto { .. } => Duration::MAX,
            Self::Lognormal { mean, cut: None, .. } => mean,
            Self::Lognormal { mean, sigma, cut: Some(cut) } => {
                Duration::from_secs_f64(lognormal_mean(mean.as_secs_f64(), sigma, cut.as_secs_f64()))
            }
        }
    }

    /// Draws a service time.
    pub fn draw(&self, rng: &mut SplitMix64) -> Duration {
        let seconds = match *self {
            Self::None => 0.0,
            Self::Const(time) => time.as_secs_f64(),
            Self::Exp(mean) => mean.as_secs_f64() * rng.exponential(),
            Self::Uniform(low, high) => {
                let low = low.as_secs_f64();
                low + (high.as_secs_f64() - low) * rng.uniform()
            }
            Self::Pareto { alpha, least } => least.as_secs_f64() * rng.uniform().powf(-1.0 / alpha),
            Self::Lognormal { mean, sigma, cut } => {
                let time = mean.as_secs_f64() * (sigma * rng.normal() - sigma * sigma / 2.0).exp();
                cut.map_or(time, |cut| time.min(cut.as_secs_f64()))
            }
        };
        Duration::from_secs_f64(seconds.min(MAX_SECONDS))
    }
}

/// Returns the mean of a lognormal time X that is cut at c, with m and s the mean and standard deviation of
/// ln X:
///
/// ```text
/// E[min(X, c)] = E[X] * P(Z < (ln c - m - s^2) / s) + c * P(X > c)
/// ```
fn lognormal_mean(mean: f64, sigma: f64, cutoff: f64) -> f64 {
    if mean == 0.0 || cutoff == 0.0 || sigma == 0.0 {
        return mean.min(cutoff);
    }
    let log_cutoff = ((cutoff / mean).ln() + sigma * sigma / 2.0) / sigma;
    mean * normal_cdf(log_cutoff - sigma) + cutoff * (1.0 - normal_cdf(log_cutoff))
}

/// Returns the probability that a standard normal variable is below `x`, by its series (Marsaglia,
/// "Evaluating the normal distribution", J. Stat. Software 11(4), 2004).
fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-17 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// Writes the form that is parsed, to the nanosecond.
impl Display for ServiceTime {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nanos = |time: &Duration| format!("{}ns", time.as_nanos());
        match self {
            Self::None => f.write_str("none"),
            Self::Const(time) => write!(f, "const:{}", nanos(time)),
            Self::Exp(mean) => write!(f, "exp:{}", nanos(mean)),
            Self::Uniform(low, high) => write!(f, "uniform:{}:{}", nanos(low), nanos(high)),
            Self::Pareto { alpha, least } => write!(f, "pareto:{alpha}:{}", nanos(least)),
            Self::Lognormal { mean, sigma, cut } => {
                write!(f, "lognormal:{}:{sigma}", nanos(mean))?;
                cut.map_or(Ok(()), |cut| write!(f, ":{}", nanos(&cut)))
            }
        }
    }
}

impl FromStr for ServiceTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!(
                "`{text}` is not a service time: expected `none`, `const:1ms`, `exp:2ms`, `uniform:1ms:3ms`, \
                 `pareto:1.5:1ms` or `lognormal:10ms:1.2:300ms`"
            )
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["none"] => Ok(Self::None),
            ["const", time] => Ok(Self::Const(units::parse_duration(time)?)),
            ["exp", mean] => Ok(Self::Exp(units::parse_duration(mean)?)),
            ["uniform", low, high] => {
                let (low, high) = (units::parse_duration(low)?, units::parse_duration(high)?);
                if low > high {
                    return Err(format!("`{text}`: {high:?} is below {low:?}; write the lower one first"));
                }
                Ok(Self::Uniform(low, high))
            }
            ["pareto", alpha, least] => {
                let alpha: f64 = alpha.parse().map_err(|_| error())?;
                if !(alpha.is_finite() && alpha > 0.0) {
                    return Err(format!("`{text}`: the tail index must be above 0"));
                }
                Ok(Self::Pareto { alpha, least: units::parse_duration(least)? })
            }
            ["lognormal", mean, sigma, ref cutoff @ ..] if cutoff.len() <= 1 => {
                let sigma: f64 = sigma.parse().map_err(|_| error())?;
                if !(0.0..=MAX_SIGMA).contains(&sigma) {
                    return Err(format!(
                        "`{text}`: the standard deviation of the logarithm is from 0 to {MAX_SIGMA}"
                    ));
                }
                let cutoff = cutoff.first().map(|value| units::parse_duration(value)).transpose()?;
                Ok(Self::Lognormal { mean: units::parse_duration(mean)?, sigma, cut: cutoff })
            }
            _ => Err(error()),
        }
    }
}

/// A slowdown of a member. Written `10s` (ten times slower after 10 s) or `10s:4` (four times).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// The time from the start to the slowdown.
    pub after: Duration,
    /// The factor of the service times; from 0 to a million.
    pub factor: f64,
}

impl FromStr for Slowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (after, factor) = text.split_once(':').unwrap_or((text, "10"));
        let after = units::parse_duration(after)?;
        let factor = factor.strip_suffix('x').unwrap_or(factor).parse().ok();
        let factor = factor.filter(|factor| (0.0..=MAX_SLOW).contains(factor));
        let error =
            || format!("`{text}`: expected a time and a factor from 0 to {MAX_SLOW}, such as `10s:10`");
        Ok(Self { after, factor: factor.ok_or_else(error)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(text: &str) -> f64 {
        let service: ServiceTime = text.parse().unwrap();
        let mut rng = SplitMix64::new(3);
        let n = 200_000;
        (0..n).map(|_| service.draw(&mut rng).as_secs_f64()).sum::<f64>() / f64::from(n) * 1e3
    }

    #[test]
    fn means_are_those_of_the_distributions() {
        assert_eq!(mean("none"), 0.0);
        assert!((mean("const:1ms") - 1.0).abs() < 1e-6);
        assert!((mean("exp:2ms") - 2.0).abs() < 0.03);
        assert!((mean("uniform:1ms:3ms") - 2.0).abs() < 0.01);
        // alpha / (alpha - 1) times the minimum.
        assert!((mean("pareto:3:1ms") - 1.5).abs() < 0.03);
        assert!((mean("lognormal:10ms:1.2") - 10.0).abs() < 0.2);
    }

    #[test]
    fn the_mean_of_what_is_cut_is_known() {
        for text in ["lognormal:10ms:1.2:300ms", "lognormal:10ms:1.2:20ms", "lognormal:10ms:0.5:5ms"] {
            let expected_mean = text.parse::<ServiceTime>().unwrap().mean().as_secs_f64() * 1e3;
            assert!(
                (mean(text) / expected_mean - 1.0).abs() < 0.015,
                "{text}: {} and {expected_mean}",
                mean(text)
            );
        }
        assert!((normal_cdf(1.959_963_985) - 0.975).abs() < 1e-9);
        assert!((normal_cdf(-9.0), normal_cdf(0.0), normal_cdf(9.0)) == (0.0, 0.5, 1.0));
    }

    #[test]
    fn what_is_printed_is_parsed_again() {
        for text in [
            "none",
            "const:1ms",
            "exp:2.5ms",
            "uniform:1us:3ms",
            "pareto:1.5:1ms",
            "lognormal:1ms:1.2",
            "lognormal:1ms:0:3ms",
        ] {
            let service: ServiceTime = text.parse().unwrap();
            assert_eq!(service.to_string().parse(), Ok(service), "{text}");
        }
    }

    #[test]
    fn a_tail_without_bound_is_bounded() {
        let service: ServiceTime = "pareto:0.01:1s".parse().unwrap();
        let mut rng = SplitMix64::new(3);
        assert!((0..1000).all(|_| service.draw(&mut rng) <= Duration::from_secs_f64(MAX_SECONDS)));
    }

    #[test]
    fn slowdowns() {
        let slowdown = |after, factor| Ok(Slowdown { after: Duration::from_secs(after), factor });
        assert_eq!("10s".parse(), slowdown(10, 10.0));
        assert_eq!("1m:2.5x".parse(), slowdown(60, 2.5));
        for text in ["", "10", "10s:", "10s:-1", "10s:nan", "10s:inf", "x:2"] {
            assert!(text.parse::<Slowdown>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_service_time_is_refused_with_the_forms_there_are() {
        for text in [
            "",
            "exp",
            "exp:2",
            "exp:2ms:3",
            "const:-1ms",
            "pareto:0:1ms",
            "pareto:nan:1ms",
            "zipf:1ms",
            "lognormal:1ms",
            "lognormal:1ms:6",
            "lognormal:1ms:nan",
            "lognormal:1ms:1:2",
            "lognormal:1ms:1:2ms:3",
        ] {
            assert!(text.parse::<ServiceTime>().is_err(), "{text}");
        }
        assert!("uniform:3ms:1ms".parse::<ServiceTime>().unwrap_err().contains("lower one first"));
    }
}
