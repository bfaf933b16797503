//! Computes the waiting times at all stations from the flows.

use super::SolverState;
use super::network::{NO_HOLDER, QueueDiscipline, SolverNetwork, WorkOrigin};
use super::overtake::{OvertakingRows, OvertakingShare};
use super::queue::{self, RequestSource, StationMemory, StationParameters};

/// The use of each station by a request for an entry, at any level below. It is the number of visits, or the
/// work where waiting is in proportion to it. Only for entries of tasks with several threads.
pub(super) struct StationUse {
    overtakes: OvertakingRows,
    /// For each task with several threads: the stations and their use for each entry.
    pools: Vec<Vec<(usize, UseList)>>,
    /// For each entry: the tasks below and the number of calls to them; empty if the model is too large.
    below: Vec<UseList>,
}

/// A list of stations or tasks with their use.
type UseList = Vec<(usize, f64)>;

/// The largest product of entries and stations; beyond it, the threads of a task are taken to be independent.
const MOST: usize = 4_000_000;

impl StationUse {
    pub(super) fn new(net: &SolverNetwork<'_>) -> Self {
        let model = net.model;
        let (entries, stations) = (model.entries.len(), net.stations.len());
        if entries.saturating_mul(stations) > MOST {
            return Self {
                overtakes: OvertakingRows::new(net),
                pools: vec![Vec::new(); model.tasks.len()],
                below: Vec::new(),
            };
        }
        let mut all: Vec<Vec<f64>> = vec![Vec::new(); entries];
        for task in net.tasks.iter().rev() {
            for entry in &model.tasks[*task].entries {
                let mut own = vec![0.0; stations];
                for part in &net.visits[entry.0] {
                    let times = part.before + part.after;
                    let activity = &model.activities[part.activity];
                    let processor = model.tasks[activity.task.0].processor.0;
                    let pieces = 1.0 + activity.calls.iter().map(|call| call.count).sum::<f64>();
                    let station = model.tasks.len() + processor;
                    if activity.demand > 0.0 {
                        own[station] += times
                            * if net.stations[station].discipline == QueueDiscipline::ProcessorSharing {
                                activity.demand / model.processors[processor].speed
                            } else {
                                pieces
                            };
                    }
                    for call in activity.calls.iter().filter(|call| call.waits) {
                        let callee = model.entries[call.entry.0].task.0;
                        own[callee] += times * call.count;
                        for (own, other) in own.iter_mut().zip(&all[call.entry.0]) {
                            *own += times * call.count * other;
                        }
                        add_forwarded_use(net, call.entry.0, times * call.count, &all, &mut own, 0);
                    }
                }
                all[entry.0] = own;
            }
        }
        let pools = model.tasks.iter().enumerate().map(|(place, task)| {
            let servers = net.stations[place].servers;
            if task.is_client() || servers <= 1.0 || servers.is_infinite() {
                return Vec::new();
            }
            let sparse = |entry: usize| -> UseList {
                let own = all[entry].iter().enumerate();
                own.filter(|(_, much)| **much > 0.0).map(|(station, much)| (station, *much)).collect()
            };
            task.entries.iter().map(|entry| (entry.0, sparse(entry.0))).collect()
        });
        let tasks = model.tasks.len();
        let below = all.iter().map(|own| {
            let asked = own.iter().take(tasks).enumerate().filter(|(_, much)| **much > 0.0);
            asked.map(|(task, much)| (task, *much)).collect()
        });
        Self { overtakes: OvertakingRows::new(net), below: below.collect(), pools: pools.collect() }
    }
}

/// Adds the use by the targets that a call is forwarded to.
fn add_forwarded_use(
    net: &SolverNetwork<'_>,
    entry: usize,
    times: f64,
    all: &[Vec<f64>],
    own: &mut [f64],
    depth: usize,
) {
    if depth > 16 {
        return;
    }
    for (to, part) in &net.model.entries[entry].forwards {
        own[net.model.entries[to.0].task.0] += times * part;
        for (own, other) in own.iter_mut().zip(&all[to.0]) {
            *own += times * part * other;
        }
        add_forwarded_use(net, to.0, times * part, all, own, depth + 1);
    }
}

/// Computes the waiting times of all stations and moves part of the way towards them. Returns the greatest
/// change relative to the time for which servers are held.
pub(super) fn update_waiting(
    net: &SolverNetwork<'_>,
    reach: &StationUse,
    state: &mut SolverState,
    step: f64,
) -> f64 {
    let mut most = 0.0_f64;
    let kin = request_ancestry(net, reach, state);
    let totals: Vec<StationTotals> =
        (0..net.stations.len()).map(|station| StationTotals::of(net, state, station)).collect();
    for station in 0..net.stations.len() {
        most = most.max(at(net, reach, &kin, state, &totals, station, step));
    }
    most
}

/// The totals of a station.
struct StationTotals {
    /// The rate of requests, or the work where waiting is in proportion to it.
    measure: f64,
    /// The number of waiting requests.
    waiting: f64,
    /// The number of busy servers.
    held: f64,
}

impl StationTotals {
    fn of(net: &SolverNetwork<'_>, state: &SolverState, station: usize) -> Self {
        let own = &net.stations[station];
        let mut total = Self { measure: 0.0, waiting: 0.0, held: 0.0 };
        for slot in &own.slots {
            let slot = &state.slots[*slot];
            total.measure +=
                if own.discipline == QueueDiscipline::ProcessorSharing { slot.held } else { slot.rate };
            total.waiting += slot.rate * slot.wait + slot.held * slot.stretch;
            total.held += slot.held;
        }
        total
    }
}

fn at(
    net: &SolverNetwork<'_>,
    reach: &StationUse,
    kin: &[Vec<f64>],
    state: &mut SolverState,
    totals: &[StationTotals],
    station: usize,
    step: f64,
) -> f64 {
    let own = &net.stations[station];
    let total = &totals[station];
    if own.servers.is_infinite() || total.held <= 0.0 {
        return 0.0;
    }
    let mut sources = Vec::with_capacity(own.slots.len());
    let backs = if own.is_task && own.has_second_phase && own.slots.len() <= 60 {
        reach.overtakes.overtaking(net, state, station)
    } else {
        vec![OvertakingShare::default(); own.slots.len()]
    };
    for (slot, back) in own.slots.iter().zip(backs) {
        let place = &mut state.slots[*slot];
        place.overtaking.share += step * (back.share - place.overtaking.share);
        place.overtaking.remaining += step * (back.remaining - place.overtaking.remaining);
        let each = |sum: f64| if place.rate > 0.0 { sum / place.rate } else { 0.0 };
        sources.push(RequestSource {
            rate: place.rate,
            mean: each(place.held),
            square: each(place.squares),
            limit: net.population(*slot).min(own.max_requests),
            holder: net.slots[*slot].holder,
            threads: net.max_requests_by(net.slots[*slot].holder),
            idle: idle(net, totals, bounding(net, net.slots[*slot].holder)),
            excess_requests: excess_requests(net, bounding(net, net.slots[*slot].holder)),
            held: place.rate * place.wait + place.held * place.stretch + place.first,
            overtaking: place.overtaking.share,
            overtaking_remaining: place.overtaking.remaining,
            ..RequestSource::default()
        });
    }
    let first: f64 = own.slots.iter().map(|slot| state.slots[*slot].first).sum();
    let rate: f64 = sources.iter().map(|source| source.rate).sum();
    // The number of possible requests here that wait elsewhere.
    let elsewhere: f64 = own.bounds.iter().map(|task| state.waiting[*task]).sum();
    let mut case = StationParameters {
        servers: own.servers.min(1e6) as usize,
        max_requests: own.max_requests,
        phases: [first / rate, (total.held - first).max(0.0) / rate],
        holding_alone: 0.0,
        holding_slope: 0.0,
        holding_min: 0.0,
        // Waiting while a thread of this task is held is not elsewhere.
        waiting: (elsewhere
            - total.waiting
            - waiting_below(net, reach, state, totals, station)
            - if own.is_task { state.waiting[station] } else { 0.0 })
        .max(0.0),
        fifo: own.discipline != QueueDiscipline::ProcessorSharing,
    };
    if own.is_task && own.servers > 1.0 {
        set_holding_growth(net, &reach.pools[station], state, totals, station, rate, &mut case);
    }
    let mut memory = state.memories[station];
    match own.discipline {
        QueueDiscipline::Fifo | QueueDiscipline::ProcessorSharing => {
            let met = meeting_shares(net, reach, kin, state, station, &sources);
            if met.iter().flatten().all(|part| *part >= 1.0) {
                queue::update_waiting_times(&case, &mut sources, &mut memory);
            } else {
                let mut each: Vec<StationMemory> =
                    own.slots.iter().map(|slot| state.slot_memories[*slot]).collect();
                seen_by_each(&case, &mut sources, &met, &mut each);
                memory.overloaded = each.iter().any(|memory| memory.overloaded);
                let crew = |place: usize| sources[place].rate * each[place].busy_as_seen;
                memory.busy_as_seen = (0..sources.len()).map(crew).sum::<f64>() / rate;
                for (slot, memory) in own.slots.iter().zip(each) {
                    let old = &mut state.slot_memories[*slot];
                    old.level += step * (memory.level - old.level);
                }
            }
        }
        QueueDiscipline::Preemptive | QueueDiscipline::HeadOfLine => {
            priority_waiting(net, station, &case, &mut sources, &mut memory)
        }
    }
    if let Some(relief) = net.policy_gains[station] {
        let part = relief.waiting_ratio(own.servers, total.held / own.servers);
        for source in &mut sources {
            (source.wait, source.variance) = (source.wait * part, source.variance * part * part);
        }
    }
    // The memory changes no faster than the other values.
    let old = state.memories[station];
    memory.level = old.level + step * (memory.level - old.level);
    memory.busy_as_seen = old.busy_as_seen + step * (memory.busy_as_seen - old.busy_as_seen);
    state.memories[station] = memory;
    let typical = total.held / rate;
    let mut most = 0.0_f64;
    for (slot, source) in own.slots.iter().zip(&sources) {
        let place = &mut state.slots[*slot];
        if own.discipline == QueueDiscipline::ProcessorSharing {
            let aim = source.wait / typical;
            most = most.max((aim - place.stretch).abs() / (1.0 + aim));
            place.stretch += step * (aim - place.stretch);
        } else {
            most = most.max((source.wait - place.wait).abs() / (typical + source.wait));
            place.wait += step * (source.wait - place.wait);
            place.wait_variance += step * (source.variance - place.wait_variance);
        }
    }
    most
}

/// Returns the number of requests that wait for a thread of a task below because that thread is here. When no
/// request is here, they do not wait.
fn waiting_below(
    net: &SolverNetwork<'_>,
    reach: &StationUse,
    state: &SolverState,
    totals: &[StationTotals],
    station: usize,
) -> f64 {
    let own = &net.stations[station];
    if own.is_task || reach.below.is_empty() {
        return 0.0;
    }
    let bounding = |slot: &usize| bounding(net, net.slots[*slot].holder);
    let holders = own.slots.iter().map(bounding);
    let mut seen = Vec::new();
    let mut behind = 0.0;
    for holder in holders.filter(|holder| *holder != NO_HOLDER) {
        if seen.contains(&holder) || net.model.tasks[holder].is_client() || totals[holder].held <= 0.0 {
            continue;
        }
        seen.push(holder);
        let here: f64 = own
            .slots
            .iter()
            .filter(|slot| bounding(slot) == holder)
            .map(|slot| &state.slots[*slot])
            .map(|slot| slot.rate * slot.wait + slot.held * (1.0 + slot.stretch))
            .sum();
        behind += totals[holder].waiting * (here / totals[holder].held).min(1.0);
    }
    behind
}

/// Returns the task whose threads bound the callers of a task: itself, or the one above for which it does all
/// its work.
fn bounding(net: &SolverNetwork<'_>, holder: usize) -> usize {
    if holder == NO_HOLDER || net.model.tasks[holder].is_client() {
        return holder;
    }
    let own = &net.stations[holder];
    match own.bounds[..] {
        [above] if !own.has_second_phase && own.max_requests <= own.servers => above,
        _ => holder,
    }
}

/// Returns the number of idle threads of a task.
fn idle(net: &SolverNetwork<'_>, totals: &[StationTotals], holder: usize) -> f64 {
    if holder == NO_HOLDER
        || net.model.tasks[holder].is_client()
        || net.stations[holder].servers.is_infinite()
    {
        return 0.0;
    }
    (net.active_threads[holder] - totals[holder].held).max(0.0)
}

/// Returns the number of possible requests for a thread of a task beyond the number of threads.
fn excess_requests(net: &SolverNetwork<'_>, holder: usize) -> f64 {
    if holder == NO_HOLDER || net.model.tasks[holder].is_client() {
        return 0.0;
    }
    (net.stations[holder].max_requests - net.active_threads[holder]).clamp(0.0, 1e6)
}

/// Sets the growth of the time for which a thread is held with the number of busy threads. It is caused by
/// waiting for one another at stations below.
fn set_holding_growth(
    net: &SolverNetwork<'_>,
    entries: &[(usize, UseList)],
    state: &SolverState,
    totals: &[StationTotals],
    station: usize,
    rate: f64,
    case: &mut StationParameters,
) {
    let mut much = std::collections::BTreeMap::<usize, f64>::new();
    for (entry, stations) in entries {
        for (station, each) in stations {
            *much.entry(*station).or_default() += state.entries[*entry] * each;
        }
    }
    let mut hindered = 0.0;
    let mut floor = 0.0_f64;
    for (below, measure) in much {
        let total = &totals[below];
        let servers = net.stations[below].servers;
        if total.measure <= 0.0 || servers.is_infinite() {
            continue;
        }
        let share = (measure / total.measure).min(1.0);
        hindered += total.waiting * share * share;
        let left = (servers - total.held * (1.0 - share)).max(0.1 * servers);
        floor = floor.max(total.held * share / left / rate);
    }
    let mean = totals[station].held / rate;
    let hindered = (hindered / rate).min(0.98 * mean);
    let others = (state.memories[station].busy_as_seen - 1.0).max(0.05);
    case.holding_min = floor;
    case.holding_slope = (hindered / others).min(mean);
    case.holding_alone = (mean - case.holding_slope * others).max(0.02 * mean);
}

/// Returns the share of each task's requests that come, directly or indirectly, from each task's threads.
fn request_ancestry(net: &SolverNetwork<'_>, reach: &StationUse, state: &SolverState) -> Vec<Vec<f64>> {
    let tasks = net.model.tasks.len();
    if reach.below.is_empty() || tasks > 200 {
        return Vec::new();
    }
    let mut flows = vec![0.0; tasks];
    let mut kin = vec![vec![0.0; tasks]; tasks];
    for (entry, rate) in net.model.entries.iter().zip(&state.entries) {
        flows[entry.task.0] += rate;
    }
    for (entry, (rate, below)) in net.model.entries.iter().zip(state.entries.iter().zip(&reach.below)) {
        for (task, times) in below {
            if flows[*task] > 0.0 {
                kin[*task][entry.task.0] += rate * times / flows[*task];
            }
        }
    }
    for (task, own) in kin.iter_mut().enumerate() {
        own.iter_mut().for_each(|part| *part = part.min(1.0));
        own[task] = 1.0;
    }
    kin
}

/// The share of requests below which an effect is ignored.
const LITTLE: f64 = 0.03;

/// Returns, for each source, the share of each other's requests that it can meet. It does not meet those of
/// the thread or client on whose behalf it works.
fn meeting_shares(
    net: &SolverNetwork<'_>,
    reach: &StationUse,
    kin: &[Vec<f64>],
    state: &SolverState,
    station: usize,
    sources: &[RequestSource],
) -> Vec<Vec<f64>> {
    let slots = &net.stations[station].slots;
    if kin.is_empty() || slots.len() < 2 || slots.len() > 30 {
        return Vec::new();
    }
    let part = |slot: usize, task: usize| {
        let slot = &net.slots[slot];
        match net.origins[slot.origin] {
            _ if slot.holder == NO_HOLDER => 0.0,
            _ if slot.holder == task => 1.0,
            // Work after a reply is on behalf of no task further up.
            WorkOrigin::SecondPhase(after) => f64::from(u8::from(after == task)),
            _ => kin[slot.holder][task],
        }
    };
    let mut met = vec![vec![1.0; slots.len()]; slots.len()];
    for one in 0..slots.len() {
        for other in 0..one {
            let holders = [one, other].map(|place| net.slots[slots[place]].holder);
            let rates = [one, other].map(|place| sources[place].rate);
            // The requests of one task's threads are limited by their number.
            if holders[0] == holders[1] || holders.contains(&NO_HOLDER) || rates.contains(&0.0) {
                continue;
            }
            let mut same = 0.0_f64;
            for task in 0..net.model.tasks.len() {
                let parts = part(slots[one], task) * part(slots[other], task);
                if parts > 0.0 {
                    same = same.max(parts / net.active_threads[task].max(1.0));
                }
            }
            // Small shares are ignored continuously, without a step.
            let part = 1.0 - ((same - LITTLE) / (1.0 - LITTLE)).max(0.0);
            (met[one][other], met[other][one]) = (part, part);
        }
    }
    // The thread that got the reply runs before the server continues, so it precedes the server's second
    // phase.
    if !net.stations[station].is_task && net.stations[station].servers == 1.0 {
        for (one, slot) in slots.iter().enumerate() {
            let holder = net.slots[*slot].holder;
            for (other, behind) in slots.iter().enumerate() {
                let behind = net.slots[*behind];
                if holder != NO_HOLDER
                    && behind.holder != holder
                    && net.origins[behind.origin] == WorkOrigin::SecondPhase(behind.holder)
                {
                    let same = kin[behind.holder][holder] / net.active_threads[holder].max(1.0);
                    met[one][other] *= 1.0
                        - same.min(1.0) * reach.overtakes.share_after_reply(net, state, *slot, behind.holder);
                }
            }
        }
    }
    met
}

/// Computes the waiting time of each source with the rates of the others that it can meet.
fn seen_by_each(
    case: &StationParameters,
    sources: &mut [RequestSource],
    met: &[Vec<f64>],
    memories: &mut [StationMemory],
) {
    let mut found = Vec::with_capacity(sources.len());
    for (place, (own, memory)) in met.iter().zip(memories).enumerate() {
        let mut those = sources.to_vec();
        for (source, part) in those.iter_mut().zip(own) {
            source.rate *= part;
            source.held *= part;
        }
        queue::update_waiting_times(case, &mut those, memory);
        found.push((those[place].wait, those[place].variance));
    }
    for (source, (wait, variance)) in sources.iter_mut().zip(found) {
        (source.wait, source.variance) = (wait, variance);
    }
}

/// Computes the waiting times with priorities. Requests of a priority and above wait as if there were no
/// others, except for one that is served to the end without preemption (Cobham's formula, 1954). The total
/// waiting, weighted by work, does not depend on the order (Kleinrock's conservation law, 1965).
fn priority_waiting(
    net: &SolverNetwork<'_>,
    station: usize,
    case: &StationParameters,
    sources: &mut [RequestSource],
    memory: &mut StationMemory,
) {
    let own = &net.stations[station];
    let priorities: Vec<i32> = own.slots.iter().map(|slot| net.slots[*slot].priority).collect();
    let mut levels = priorities.clone();
    levels.sort_unstable_by(|one, other| other.cmp(one));
    levels.dedup();
    let whole: f64 = sources.iter().map(|source| source.rate * source.mean).sum();
    // A least weight, so that requests without work get a waiting time, too.
    let least = 1e-6 * whole / sources.iter().map(|source| source.rate).sum::<f64>();
    let weight = |source: &RequestSource| source.rate * source.mean.max(least);
    let mut above = 0.0;
    for level in levels {
        let places: Vec<usize> = (0..sources.len()).filter(|place| priorities[*place] >= level).collect();
        let mut those: Vec<RequestSource> = places.iter().map(|place| sources[*place]).collect();
        queue::update_waiting_times(case, &mut those, memory);
        let mut all: f64 = those.iter().map(|source| weight(source) * source.wait).sum();
        if own.discipline == QueueDiscipline::HeadOfLine {
            let work: f64 = those.iter().map(weight).sum();
            let busy = work / own.servers;
            let others = sources.iter().zip(&priorities).filter(|(_, priority)| **priority < level);
            // Half of the square divided by the mean: the mean remaining service seen by an arrival.
            let left: f64 = others.map(|(source, _)| source.rate * source.square / 2.0).sum();
            let met = left / own.servers.powi(2) * (whole / own.servers).min(1.0).powf(own.servers - 1.0);
            all += work * met / (1.0 - busy.min(0.9));
        }
        let mine: f64 = places
            .iter()
            .filter(|place| priorities[**place] == level)
            .map(|place| weight(&sources[*place]))
            .sum();
        let wait = if mine > 0.0 { (all - above).max(0.0) / mine } else { 0.0 };
        for (place, found) in places.iter().zip(&those) {
            if priorities[*place] == level {
                sources[*place].wait = wait;
                sources[*place].variance = found.variance;
            }
        }
        above = all.max(above);
    }
}
