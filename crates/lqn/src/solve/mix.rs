//! Of so many that are at a station, who they are.
//!
//! Those that come by the threads of one task are a group, of which no more can be here than there are threads. If each
//! came at its own rate and were served alike, the numbers of the groups would have a product form: given their sum, that
//! of binomial distributions with the odds of each group to be here (Baskett and others, 1975). So a group of one that is
//! nearly always here is nearly never among those elsewhere, however few are here.

use super::queue::Source;

/// Sources that bound one another.
pub(super) struct Group {
    /// How many there can be.
    pub(super) limit: f64,
    pub(super) held: f64,
    pub(super) away: f64,
    rate: f64,
    work: f64,
    /// Mean number elsewhere by the number of all that are here.
    table: Vec<f64>,
    part: f64,
    /// Of those elsewhere, the part that has nothing to do, and how many more ask for it than there are threads.
    idle: f64,
    beyond: f64,
}

impl Group {
    /// A thread that has nothing to do gets something at a rate that does not depend on how many like it there are, but
    /// on how many may ask for one: by what factor those elsewhere come faster than in proportion to their number.
    pub(super) fn eager(&self, away: f64) -> f64 {
        if self.idle <= 0.0 || self.beyond <= 0.0 || away <= 0.0 {
            return 1.0;
        }
        let each = |away: f64| (away + self.beyond * away.min(1.0)) / away;
        1.0 - self.idle + self.idle * each(away) / each(self.away)
    }
}

/// Who is here.
pub(super) struct Mix {
    pub(super) groups: Vec<Group>,
    /// Group of each source; none for those from outside.
    pub(super) of: Vec<Option<usize>>,
}

/// Groups times the square of requests at most for which it is worked out; beyond, groups have a constant part of those
/// here.
const MOST: f64 = 40_000.0;

impl Mix {
    /// `wait` is what each waits in the mean.
    pub(super) fn new(sources: &[Source], wait: f64) -> Self {
        let mut mix = Self { groups: Vec::new(), of: Vec::with_capacity(sources.len()) };
        let mut holders: Vec<(usize, usize)> = Vec::new();
        for source in sources {
            if source.limit.is_infinite() {
                mix.of.push(None);
                continue;
            }
            let others =
                sources.iter().filter(|other| other.holder == source.holder && other.limit.is_finite());
            let shared = others.map(|other| other.limit).sum::<f64>() > source.threads;
            let known = holders
                .iter()
                .find(|(holder, _)| *holder == source.holder && shared)
                .map(|(_, group)| *group);
            let group = known.unwrap_or_else(|| {
                let limit = if shared { source.threads } else { source.limit };
                let group = Group {
                    limit,
                    held: 0.0,
                    away: 0.0,
                    rate: 0.0,
                    work: 0.0,
                    table: Vec::new(),
                    part: 0.0,
                    idle: source.idle,
                    beyond: source.beyond,
                };
                mix.groups.push(group);
                if shared {
                    holders.push((source.holder, mix.groups.len() - 1));
                }
                mix.groups.len() - 1
            });
            mix.of.push(Some(group));
            let own = &mut mix.groups[group];
            own.held += source.held;
            own.rate += source.rate;
            own.work += source.rate * (source.mean + wait);
        }
        let held: f64 = mix.groups.iter().map(|group| group.held).sum();
        let rate: f64 = mix.groups.iter().map(|group| group.rate).sum();
        for group in &mut mix.groups {
            group.held = group.held.min(0.999 * group.limit);
            group.away = (group.limit - group.held).max(1e-9);
            group.idle = (group.idle / group.away).clamp(0.0, 1.0);
            group.part = if held > 0.0 {
                group.held / held
            } else if rate > 0.0 {
                group.rate / rate
            } else {
                1.0
            };
        }
        mix
    }

    /// How many of a group are elsewhere when so many are here.
    pub(super) fn away(&self, group: usize, here: f64) -> f64 {
        let own = &self.groups[group];
        if own.table.is_empty() {
            return (own.limit - here * own.part).max(0.0);
        }
        let last = own.table.len() - 1;
        let below = (here as usize).min(last);
        let (one, other) = (own.table[below], own.table[(below + 1).min(last)]);
        one + (other - one) * (here - below as f64).clamp(0.0, 1.0)
    }

    /// Works the mean numbers out, where there are several groups and not too many requests.
    pub(super) fn tabulate(&mut self, closed: f64) {
        let all: f64 = self.groups.iter().map(|group| group.limit).sum();
        if self.groups.len() < 2 || self.groups.len() as f64 * all * all > MOST {
            return;
        }
        let most = (closed.ceil() as usize).max(1);
        let odds: Vec<f64> = self.groups.iter().map(|group| group.work / group.away).collect();
        let typical = odds.iter().copied().fold(0.0, f64::max);
        if typical.is_nan() || typical <= 0.0 || typical.is_infinite() {
            return;
        }
        let odds: Vec<f64> = odds.into_iter().map(|own| (own / typical).max(1e-12)).collect();
        // Weights of the number of all, as the product of each group's: of those before each, and of those after.
        let own: Vec<Vec<f64>> =
            self.groups.iter().zip(&odds).map(|(group, odds)| binomial(group.limit, *odds)).collect();
        let mut before = vec![vec![1.0]];
        for (place, own) in own.iter().enumerate() {
            before.push(product(&before[place], own, most));
        }
        let mut after = vec![1.0];
        for (place, group) in self.groups.iter_mut().enumerate().rev() {
            let others = product(&before[place], &after, most);
            // With one source of the group elsewhere for certain.
            let without = product(&others, &binomial(group.limit - 1.0, odds[place]), most);
            let all = &before[before.len() - 1];
            let table = all.iter().enumerate().map(|(n, all)| {
                let without = without.get(n).copied().unwrap_or_default();
                if *all > 0.0 { (group.limit * without / all).min(group.limit) } else { 0.0 }
            });
            group.table = table.collect();
            after = product(&after, &own[place], most);
        }
    }
}

/// Coefficients of (1 + odds z) to the power of the limit.
fn binomial(limit: f64, odds: f64) -> Vec<f64> {
    let mut all = vec![1.0];
    let mut term = 1.0;
    let count = limit.ceil() as usize;
    for n in 0..count {
        term *= (limit.ceil() - n as f64) / (n as f64 + 1.0) * odds;
        all.push(term);
    }
    all
}

fn product(one: &[f64], other: &[f64], most: usize) -> Vec<f64> {
    let mut all = vec![0.0; (one.len() + other.len() - 1).min(most + 1)];
    for (place, own) in one.iter().enumerate() {
        for (sum, factor) in all.iter_mut().skip(place).zip(other) {
            *sum += own * factor;
        }
    }
    all
}
