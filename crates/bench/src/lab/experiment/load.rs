//! `[load]`: the load.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{ByteSize, DurationValue, value};
use crate::pace::{ArrivalProcess, RateShape};
use crate::replay::ReplayWorkload;

/// The load. It is an open loop by `rate`, `share` or the rates of `clients`, and a closed loop by
/// `concurrency` or `clients` without rates.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSettings {
    /// The protocol of clients, balancer and members, where `protocol` is no factor.
    #[serde(default)]
    pub protocol: Option<Spanned<LoadProtocol>>,
    /// The requests per second.
    #[serde(default)]
    pub rate: Option<f64>,
    /// The requests per second as a share of the capacity measured before the run.
    #[serde(default)]
    pub share: Option<f64>,
    /// The curve of the rate: pairs of a part of the measured time, from 0 to 1 and in order, and the rate
    /// there as a part of `rate`; linear in between. The warm-up has the rate of the beginning.
    #[serde(default)]
    pub curve: Vec<(f64, f64)>,
    /// The number of clients that each send their next request when the last has been answered.
    #[serde(default)]
    pub concurrency: Option<usize>,
    /// Groups of clients that each keep one connection: sessions. Their sizes are given by `count`, or as
    /// shares of `concurrency`.
    #[serde(default)]
    pub clients: Vec<Spanned<ClientGroup>>,
    /// The arrival process of an open loop.
    #[serde(default = "super::poisson", deserialize_with = "value::arrival")]
    pub arrival: ArrivalProcess,
    /// Whether to keep connections, or to open one for each request.
    #[serde(default = "super::yes")]
    pub keep_alive: bool,
    /// The maximum time from when a request is due to the end of its answer.
    #[serde(default = "super::five_seconds")]
    pub timeout: DurationValue,
    /// The pages of an access log to request in order, rather than always the same page. The log is of a site
    /// like that of the AGS report: `all` (its workload A) or `static` (its workload B).
    #[serde(default, deserialize_with = "value::workload")]
    pub workload: Option<ReplayWorkload>,
    /// The length of a request's body; with one the method is POST.
    #[serde(default)]
    pub body: Option<ByteSize>,
}

/// The duration of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadDuration {
    /// The time until the measurement begins.
    pub warmup: Duration,
    /// The whole time.
    pub total: Duration,
}

/// The protocol of clients, balancer and members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// CORBA: calls of the papers' object, a primality test.
    Iiop,
}

impl LoadProtocol {
    /// Returns the protocol of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Http, Self::Iiop].into_iter().find(|protocol| protocol.name() == name)
    }

    /// Returns the name as in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Iiop => "iiop",
        }
    }
}

/// Clients that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientGroup {
    /// The number of clients.
    #[serde(default)]
    pub count: Option<usize>,
    /// The part of the `concurrency`, in the load or as a factor.
    #[serde(default)]
    pub share: Option<f64>,
    /// The requests per second of each. A request that is due before the last answer waits for it. Without a
    /// rate each client sends its next request when the last has been answered.
    #[serde(default)]
    pub rate: Option<f64>,
    /// The think time after that answer, where there is no rate.
    #[serde(default)]
    pub think: Option<DurationValue>,
}

impl LoadSettings {
    /// Returns the rate at this part of the measured time, as a part of `rate`.
    pub fn curve_at(&self, fraction: f64) -> f64 {
        let next_index = self.curve.partition_point(|(position, _)| *position <= fraction);
        match (next_index.checked_sub(1).and_then(|index| self.curve.get(index)), self.curve.get(next_index))
        {
            (Some((start, start_factor)), Some((end, end_factor))) => {
                start_factor + (end_factor - start_factor) * (fraction - start) / (end - start)
            }
            (Some((_, factor)), None) | (None, Some((_, factor))) => *factor,
            (None, None) => 1.0,
        }
    }

    /// Returns the load of an open loop at this rate.
    pub fn rate_shape(&self, rate: f64, load_duration: LoadDuration) -> RateShape {
        if self.curve.is_empty() {
            return RateShape::Steady(rate);
        }
        let measured = load_duration.total.saturating_sub(load_duration.warmup);
        let rate_point = |(position, factor): &(f64, f64)| {
            (load_duration.warmup + measured.mul_f64(*position), rate * factor)
        };
        RateShape::PiecewiseLinear(self.curve.iter().map(rate_point).collect())
    }

    /// Returns the groups of clients.
    pub fn groups(&self) -> impl Iterator<Item = &ClientGroup> {
        self.clients.iter().map(Spanned::get_ref)
    }

    /// Returns `true` if the groups are given by shares of the concurrency.
    pub fn is_by_share(&self) -> bool {
        self.groups().any(|group| group.share.is_some())
    }

    /// Returns `true` if the groups are a closed loop, rather than having rates.
    pub fn is_closed_loop(&self) -> bool {
        !self.clients.is_empty() && self.groups().all(|group| group.rate.is_none())
    }

    /// Returns the group of each client, in turn from group to group; shares refer to `concurrency`. Rounding
    /// loses no client: each group ends at the rounded sum of the shares so far.
    pub fn client_groups(&self, concurrency: usize) -> Vec<ClientGroup> {
        let mut sums = (0.0, 0);
        let mut counts: Vec<(ClientGroup, usize)> = Vec::new();
        for group in self.groups() {
            let count = group.count.unwrap_or_else(|| {
                sums.0 += group.share.unwrap_or(0.0);
                let cumulative_count = (sums.0 * concurrency as f64).round() as usize;
                let count = cumulative_count.saturating_sub(sums.1);
                sums.1 = cumulative_count;
                count
            });
            counts.push((*group, count));
        }
        let max_count = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let groups_in_round =
            |round| counts.iter().filter(move |(_, count)| round < *count).map(|(group, _)| *group);
        (0..max_count).flat_map(groups_in_round).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_linear_between_its_places_and_begins_after_the_warm_up() {
        let load: LoadSettings = toml::from_str("rate = 100\ncurve = [[0, 0.5], [0.5, 1], [1, 0]]").unwrap();
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|fraction| load.curve_at(fraction)),
            [0.5, 0.75, 1.0, 0.5, 0.0]
        );
        let load_duration = LoadDuration { warmup: Duration::from_secs(10), total: Duration::from_secs(30) };
        let seconds_after = |seconds| Duration::from_secs(seconds);
        let points = vec![(seconds_after(10), 50.0), (seconds_after(20), 100.0), (seconds_after(30), 0.0)];
        assert_eq!(load.rate_shape(100.0, load_duration), RateShape::PiecewiseLinear(points));
        let steady: LoadSettings = toml::from_str("rate = 100").unwrap();
        assert_eq!(
            (steady.curve_at(0.3), steady.rate_shape(7.0, load_duration)),
            (1.0, RateShape::Steady(7.0))
        );
    }

    #[test]
    fn clients_come_in_turn_and_none_is_lost() {
        let kinds = |text: &str, clients| {
            let load: LoadSettings = toml::from_str(text).unwrap();
            let groups = load.client_groups(clients);
            groups.iter().map(|group| group.rate.map_or('b', |_| 'a')).collect::<String>()
        };
        let halves = "[[clients]]\nshare = 0.5\nrate = 1\n[[clients]]\nshare = 0.5\n";
        assert_eq!(kinds(halves, 4), "abab");
        assert_eq!(kinds(halves, 3).len(), 3);
        let third = halves.replacen("0.5", "0.25", 1).replacen("0.5", "0.75", 1);
        assert_eq!((kinds(&third, 8), kinds(&third, 2).len()), ("ababbbbb".to_owned(), 2));
        let counts = "[[clients]]\ncount = 1\n[[clients]]\ncount = 3\nrate = 5\n";
        assert_eq!(kinds(counts, 0), "baaa");
    }
}
