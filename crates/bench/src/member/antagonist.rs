//! An antagonist: a neighbour that takes a part of the machine from time to time.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use crate::rng::SplitMix64;
use crate::units;

/// A neighbour that is active and inactive for exponential times. At each begin of activity it draws the
/// share of the speed that it leaves. Written `on:3s,off:10s,low:0.3,high:0.8`: the means of both times, and
/// the bounds of the share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Antagonist {
    /// The mean time of activity; at least a millisecond.
    pub on: Duration,
    /// The mean time of inactivity; at least a millisecond.
    pub off: Duration,
    /// The minimum share of the speed that it leaves, above 0.
    pub low: f64,
    /// The maximum share, up to 1.
    pub high: f64,
}

/// The minimum of a mean time.
const MIN_PERIOD: Duration = Duration::from_millis(1);

impl Antagonist {
    /// Returns the mean share of the speed that it leaves.
    pub fn mean(&self) -> f64 {
        let (on, off) = (self.on.as_secs_f64(), self.off.as_secs_f64());
        (off + on * (self.low + self.high) / 2.0) / (on + off)
    }
}

impl Display for Antagonist {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { on, off, low, high } = self;
        write!(f, "on:{}ns,off:{}ns,low:{low},high:{high}", on.as_nanos(), off.as_nanos())
    }
}

impl FromStr for Antagonist {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!("`{text}` is not an antagonist: expected a form like `on:3s,off:10s,low:0.3,high:0.8`")
        };
        let (mut on, mut off, mut low, mut high) = (None, None, None, None);
        for pair in text.split(',') {
            let (key, value) = pair.split_once(':').ok_or_else(error)?;
            let number = || value.parse::<f64>().map_err(|_| error());
            match key {
                "on" => on = Some(units::parse_duration(value)?),
                "off" => off = Some(units::parse_duration(value)?),
                "low" => low = Some(number()?),
                "high" => high = Some(number()?),
                _ => return Err(error()),
            }
        }
        let (Some(on), Some(off), Some(low), Some(high)) = (on, off, low, high) else {
            return Err(error());
        };
        if on < MIN_PERIOD || off < MIN_PERIOD {
            return Err(format!("`{text}`: `on` and `off` are at least 1ms"));
        }
        if !(low > 0.0 && low <= high && high <= 1.0) {
            return Err(format!(
                "`{text}`: `low` and `high` are shares above 0 and up to 1, the lower one first"
            ));
        }
        Ok(Self { on, off, low, high })
    }
}

/// The antagonist of one member, in operation.
#[derive(Debug)]
pub(super) struct ActiveAntagonist {
    antagonist: Antagonist,
    rng: SplitMix64,
    /// The share of the speed that it leaves now.
    pub(super) remaining_share: f64,
    is_active: bool,
    /// The time of the next change, in seconds since the member began.
    pub(super) next_change: f64,
}

impl ActiveAntagonist {
    /// Creates the antagonist in its stationary state: active with probability on / (on + off).
    pub(super) fn new(antagonist: Antagonist, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let (on, off) = (antagonist.on.as_secs_f64(), antagonist.off.as_secs_f64());
        let starts_active = rng.bernoulli(on / (on + off));
        let mut active =
            Self { antagonist, rng, remaining_share: 1.0, is_active: !starts_active, next_change: 0.0 };
        active.toggle();
        active
    }

    /// Starts or ends a time of activity.
    pub(super) fn toggle(&mut self) {
        let Antagonist { on, off, low, high } = self.antagonist;
        self.is_active = !self.is_active;
        let (mean, remaining_share) =
            if self.is_active { (on, low + (high - low) * self.rng.uniform()) } else { (off, 1.0) };
        self.remaining_share = remaining_share;
        self.next_change += mean.as_secs_f64() * self.rng.exponential();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_leaves_on_average_is_known() {
        let antagonist: Antagonist = "on:3s,off:10s,low:0.3,high:0.8".parse().unwrap();
        let mut active_antagonist = ActiveAntagonist::new(antagonist, 5);
        let (mut remaining_integral, mut now) = (0.0, 0.0);
        while now < 1e6 {
            remaining_integral += active_antagonist.remaining_share * (active_antagonist.next_change - now);
            now = active_antagonist.next_change;
            active_antagonist.toggle();
        }
        assert!(
            (remaining_integral / now - antagonist.mean()).abs() < 0.003,
            "{} {}",
            remaining_integral / now,
            antagonist.mean()
        );
        assert!((antagonist.mean() - (10.0 + 3.0 * 0.55) / 13.0).abs() < 1e-12);
        let is_active = |seed| ActiveAntagonist::new(antagonist, seed).is_active;
        let count = (0..10_000).filter(|seed| is_active(*seed)).count();
        assert!((2100..2500).contains(&count), "{count}");
    }

    #[test]
    fn forms() {
        let antagonist: Antagonist = "off:10s,on:1.5s,high:0.8,low:0.3".parse().unwrap();
        assert_eq!(antagonist.to_string().parse(), Ok(antagonist));
        for text in [
            "",
            "on:3s",
            "on:0,off:1s,low:0.1,high:0.2",
            "on:3s,off:10s,low:0,high:0.8",
            "on:3s,off:10s,low:0.9,high:0.8",
            "on:3s,off:10s,low:0.3,high:1.1",
            "on:3s,off:10s,low:nan,high:0.8",
            "on:3s,off:10s,low:0.3,high:0.8,more:1",
        ] {
            assert!(text.parse::<Antagonist>().is_err(), "{text}");
        }
    }
}
