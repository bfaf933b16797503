//! The composition of the requests at a station by their groups.
//!
//! The sources whose requests come by the threads of one task are a group, of which at most as many are here
//! as there are threads. If each group came at its own rate and all were served alike, their numbers would
//! have a product form. Given their sum, they are those of binomial distributions with the odds of each group
//! to be here (Baskett and others, 1975). So a group of one that is nearly always here is nearly never
//! elsewhere, even if few requests are here.

use super::queue::RequestSource;

/// A group of sources with a common limit.
pub(super) struct SourceGroup {
    /// The largest number of requests.
    pub(super) limit: f64,
    pub(super) held: f64,
    pub(super) elsewhere: f64,
    rate: f64,
    work: f64,
    /// The mean number elsewhere, by the number of all that are here.
    table: Vec<f64>,
    share: f64,
    /// The share of those elsewhere that is idle, and the number of requests for a thread beyond the number
    /// of threads.
    idle: f64,
    beyond: f64,
}

impl SourceGroup {
    /// Returns the factor by which the requests elsewhere come faster than in proportion to their number. An
    /// idle thread gets work at a rate that depends on the number of requests for it and not on the number of
    /// idle threads.
    pub(super) fn arrival_speedup(&self, away: f64) -> f64 {
        if self.idle <= 0.0 || self.beyond <= 0.0 || away <= 0.0 {
            return 1.0;
        }
        let relative_rate = |away: f64| (away + self.beyond * away.min(1.0)) / away;
        1.0 - self.idle + self.idle * relative_rate(away) / relative_rate(self.elsewhere)
    }
}

/// The composition of a station's requests.
pub(super) struct PopulationMix {
    pub(super) groups: Vec<SourceGroup>,
    /// The group of each source; `None` for those from outside.
    pub(super) group_of: Vec<Option<usize>>,
}

/// The largest product of the number of groups and the square of the number of requests that is computed
/// exactly. Beyond it, each group has a constant share of the requests here.
const MAX_TABLE_WORK: f64 = 40_000.0;

impl PopulationMix {
    /// Creates the groups of the sources. `wait` is the mean waiting time.
    pub(super) fn new(sources: &[RequestSource], wait: f64) -> Self {
        let mut mix = Self { groups: Vec::new(), group_of: Vec::with_capacity(sources.len()) };
        let mut holders: Vec<(usize, usize)> = Vec::new();
        for source in sources {
            if source.limit.is_infinite() {
                mix.group_of.push(None);
                continue;
            }
            let others = sources
                .iter()
                .filter(|candidate| candidate.holder == source.holder && candidate.limit.is_finite());
            let shared = others.map(|candidate| candidate.limit).sum::<f64>() > source.threads;
            let existing = holders
                .iter()
                .find(|(holder, _)| *holder == source.holder && shared)
                .map(|(_, group)| *group);
            let group = existing.unwrap_or_else(|| {
                let limit = if shared { source.threads } else { source.limit };
                let group = SourceGroup {
                    limit,
                    held: 0.0,
                    elsewhere: 0.0,
                    rate: 0.0,
                    work: 0.0,
                    table: Vec::new(),
                    share: 0.0,
                    idle: source.idle,
                    beyond: source.excess_requests,
                };
                mix.groups.push(group);
                if shared {
                    holders.push((source.holder, mix.groups.len() - 1));
                }
                mix.groups.len() - 1
            });
            mix.group_of.push(Some(group));
            let source_group = &mut mix.groups[group];
            source_group.held += source.held;
            source_group.rate += source.rate;
            source_group.work += source.rate * (source.mean + wait);
        }
        let total_held: f64 = mix.groups.iter().map(|group| group.held).sum();
        let rate: f64 = mix.groups.iter().map(|group| group.rate).sum();
        for group in &mut mix.groups {
            group.held = group.held.min(0.999 * group.limit);
            group.elsewhere = (group.limit - group.held).max(1e-9);
            group.idle = (group.idle / group.elsewhere).clamp(0.0, 1.0);
            group.share = if total_held > 0.0 {
                group.held / total_held
            } else if rate > 0.0 {
                group.rate / rate
            } else {
                1.0
            };
        }
        mix
    }

    /// Returns the number of a group's requests elsewhere if `here` are at the station.
    pub(super) fn requests_elsewhere(&self, group: usize, present: f64) -> f64 {
        let source_group = &self.groups[group];
        if source_group.table.is_empty() {
            return (source_group.limit - present * source_group.share).max(0.0);
        }
        let last = source_group.table.len() - 1;
        let below = (present as usize).min(last);
        let (lower, upper) = (source_group.table[below], source_group.table[(below + 1).min(last)]);
        lower + (upper - lower) * (present - below as f64).clamp(0.0, 1.0)
    }

    /// Tabulates the mean numbers, if there are several groups and not too many requests.
    pub(super) fn tabulate(&mut self, closed: f64) {
        let total_limit: f64 = self.groups.iter().map(|group| group.limit).sum();
        if self.groups.len() < 2 || self.groups.len() as f64 * total_limit * total_limit > MAX_TABLE_WORK {
            return;
        }
        let max_count = (closed.ceil() as usize).max(1);
        let odds: Vec<f64> = self.groups.iter().map(|group| group.work / group.elsewhere).collect();
        let max_odds = odds.iter().copied().fold(0.0, f64::max);
        if max_odds.is_nan() || max_odds <= 0.0 || max_odds.is_infinite() {
            return;
        }
        let odds: Vec<f64> = odds.into_iter().map(|group_odds| (group_odds / max_odds).max(1e-12)).collect();
        // The weights of the total number, as the product of the groups' weights: of those before each group,
        // and of those after it.
        let distributions: Vec<Vec<f64>> =
            self.groups.iter().zip(&odds).map(|(group, odds)| binomial(group.limit, *odds)).collect();
        let mut prefix_products = vec![vec![1.0]];
        for (index, distribution) in distributions.iter().enumerate() {
            prefix_products.push(product(&prefix_products[index], distribution, max_count));
        }
        let mut suffix_product = vec![1.0];
        for (index, group) in self.groups.iter_mut().enumerate().rev() {
            let others = product(&prefix_products[index], &suffix_product, max_count);
            // One source of the group is certainly elsewhere.
            let without_one = product(&others, &binomial(group.limit - 1.0, odds[index]), max_count);
            let full_product = &prefix_products[prefix_products.len() - 1];
            let table = full_product.iter().enumerate().map(|(n, weight)| {
                let reduced = without_one.get(n).copied().unwrap_or_default();
                if *weight > 0.0 { (group.limit * reduced / weight).min(group.limit) } else { 0.0 }
            });
            group.table = table.collect();
            suffix_product = product(&suffix_product, &distributions[index], max_count);
        }
    }
}

/// Returns the coefficients of `(1 + odds z)` to the power `limit`.
fn binomial(limit: f64, odds: f64) -> Vec<f64> {
    let mut coefficients = vec![1.0];
    let mut term = 1.0;
    let count = limit.ceil() as usize;
    for n in 0..count {
        term *= (limit.ceil() - n as f64) / (n as f64 + 1.0) * odds;
        coefficients.push(term);
    }
    coefficients
}

fn product(left: &[f64], right: &[f64], max_count: usize) -> Vec<f64> {
    let mut coefficients = vec![0.0; (left.len() + right.len() - 1).min(max_count + 1)];
    for (index, coefficient) in left.iter().enumerate() {
        for (sum, factor) in coefficients.iter_mut().skip(index).zip(right) {
            *sum += coefficient * factor;
        }
    }
    coefficients
}
