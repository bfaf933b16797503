//! The rate of requests and its course: `5000`, `100..2000`, `100@10s,500@20s`, bursts `1s/4s`.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use plimsoll_bench::pace::RateShape;
use plimsoll_bench::units;

/// The rate over time.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RequestRate {
    /// A constant rate.
    Steady(f64),
    /// A rate that changes from one to another, over the duration.
    Ramp(f64, f64),
    /// One rate after another.
    Steps(Vec<(f64, Duration)>),
}

/// Phases with and without requests, in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BurstPattern {
    on: Duration,
    off: Duration,
}

impl RequestRate {
    /// Returns its own duration, if it has one.
    pub(super) fn duration(&self) -> Option<Duration> {
        match self {
            Self::Steps(steps) => Some(steps.iter().map(|(_, duration)| *duration).sum()),
            Self::Steady(_) | Self::Ramp(..) => None,
        }
    }

    /// Returns the shape for the pacer.
    pub(super) fn shape(&self, bursts: Option<BurstPattern>) -> Result<RateShape, &'static str> {
        Ok(match (self, bursts) {
            (Self::Steady(rate), Some(BurstPattern { on, off })) => {
                RateShape::Bursts { rate: *rate, on, off }
            }
            (_, Some(_)) => return Err("--bursts needs one steady --rate"),
            (Self::Steady(rate), None) => RateShape::Steady(*rate),
            (Self::Ramp(from, to), None) => RateShape::Ramp { from: *from, to: *to },
            (Self::Steps(steps), None) => RateShape::Steps(steps.clone()),
        })
    }
}

impl FromStr for RequestRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((from, to)) = text.split_once("..") {
            return Ok(Self::Ramp(parse_rate(from)?, parse_rate(to)?));
        }
        if text.contains('@') {
            let step = |item: &str| {
                let (rate, time) = item
                    .split_once('@')
                    .ok_or_else(|| format!("`{item}` is not a step: expected RATE@TIME, such as 100@10s"))?;
                Ok((parse_rate(rate)?, units::parse_duration(time)?))
            };
            return text.split(',').map(step).collect::<Result<_, String>>().map(Self::Steps);
        }
        let rate = parse_rate(text)?;
        if rate > 0.0 { Ok(Self::Steady(rate)) } else { Err("expected more than 0".to_owned()) }
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let expected = || {
        format!(
            "`{text}` is not a rate: expected requests per second from 0 to 10000000, such as 5000, \
                 100..2000 or 100@10s,500@20s"
        )
    };
    text.parse().ok().filter(|rate| (0.0..=1e7).contains(rate)).ok_or_else(expected)
}

impl Display for RequestRate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steady(rate) => write!(f, "{rate}/s"),
            Self::Ramp(from, to) => write!(f, "{from}/s to {to}/s"),
            Self::Steps(steps) => {
                let steps: Vec<_> = steps
                    .iter()
                    .map(|(rate, time)| format!("{rate}/s for {}", units::format_duration(*time)))
                    .collect();
                f.write_str(&steps.join(", "))
            }
        }
    }
}

impl FromStr for BurstPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (on, off) =
            text.split_once('/').ok_or_else(|| format!("`{text}`: expected ON/OFF, such as 1s/4s"))?;
        let (on, off) = (units::parse_duration(on)?, units::parse_duration(off)?);
        if on.is_zero() {
            Err("nothing is ever sent: expected more than 0 before the /".to_owned())
        } else {
            Ok(Self { on, off })
        }
    }
}

impl Display for BurstPattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} on, {} off", units::format_duration(self.on), units::format_duration(self.off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let second = Duration::from_secs(1);
        assert_eq!("5000".parse(), Ok(RequestRate::Steady(5000.0)));
        assert_eq!("0..2e3".parse(), Ok(RequestRate::Ramp(0.0, 2000.0)));
        assert_eq!(
            "100@10s,0.5@1s".parse(),
            Ok(RequestRate::Steps(vec![(100.0, 10 * second), (0.5, second)]))
        );
        assert_eq!("1s/4s".parse(), Ok(BurstPattern { on: second, off: 4 * second }));
        let steps: RequestRate = "1@2s,3@4s".parse().unwrap();
        assert_eq!(steps.duration(), Some(6 * second));
        assert_eq!(steps.to_string(), "1/s for 2.00 s, 3/s for 4.00 s");
        assert!(steps.shape(Some(BurstPattern { on: second, off: second })).is_err());
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["", "0", "-1", "x", "nan", "inf", "1..", "..2", "1@", "1@2s,", "1@x", "1e99"] {
            assert!(text.parse::<RequestRate>().is_err(), "{text}");
        }
        for text in ["", "1s", "0/1s", "x/y", "/"] {
            assert!(text.parse::<BurstPattern>().is_err(), "{text}");
        }
    }
}
