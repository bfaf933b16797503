//! Computes the waiting times at all stations from the flows.

use super::SolverState;
use super::network::{NO_HOLDER, QueueDiscipline, SolverNetwork, WorkOrigin};
use super::overtake::{OvertakingRows, OvertakingShare};
use super::queue::{self, RequestSource, StationMemory, StationParameters};

/// The use of each station by a request for an entry, at any level below. It is the number of visits, or the
/// work where waiting is in proportion to it. Only for entries of tasks with several threads.
pub(super) struct StationUse {
    overtaking_rows: OvertakingRows,
    /// For each task with several threads: the stations and their use for each entry.
    pools: Vec<Vec<(usize, UseList)>>,
    /// For each entry: the tasks below and the number of calls to them; empty if the model is too large.
    below: Vec<UseList>,
}

/// A list of stations or tasks with their use.
type UseList = Vec<(usize, f64)>;

/// The largest product of entries and stations; beyond it, the threads of a task are taken to be independent.
const MAX_TABLE_SIZE: usize = 4_000_000;

impl StationUse {
    pub(super) fn new(net: &SolverNetwork<'_>) -> Self {
        let model = net.model;
        let (entries, stations) = (model.entries.len(), net.stations.len());
        if entries.saturating_mul(stations) > MAX_TABLE_SIZE {
            return Self {
                overtaking_rows: OvertakingRows::new(net),
                pools: vec![Vec::new(); model.tasks.len()],
                below: Vec::new(),
            };
        }
        let mut entry_uses: Vec<Vec<f64>> = vec![Vec::new(); entries];
        for task in net.tasks.iter().rev() {
            for entry in &model.tasks[*task].entries {
                let mut station_uses = vec![0.0; stations];
                for visit in &net.visits[entry.0] {
                    let executions = visit.before + visit.after;
                    let activity = &model.activities[visit.activity];
                    let processor = model.tasks[activity.task.0].processor.0;
                    let slice_count = 1.0 + activity.calls.iter().map(|call| call.count).sum::<f64>();
                    let station = model.tasks.len() + processor;
                    if activity.demand > 0.0 {
                        station_uses[station] += executions
                            * if net.stations[station].discipline == QueueDiscipline::ProcessorSharing {
                                activity.demand / model.processors[processor].speed
                            } else {
                                slice_count
                            };
                    }
                    for call in activity.calls.iter().filter(|call| call.waits) {
                        let callee = model.entries[call.entry.0].task.0;
                        station_uses[callee] += executions * call.count;
                        for (station_use, callee_use) in
                            station_uses.iter_mut().zip(&entry_uses[call.entry.0])
                        {
                            *station_use += executions * call.count * callee_use;
                        }
                        add_forwarded_use(
                            net,
                            call.entry.0,
                            executions * call.count,
                            &entry_uses,
                            &mut station_uses,
                            0,
                        );
                    }
                }
                entry_uses[entry.0] = station_uses;
            }
        }
        let pools = model.tasks.iter().enumerate().map(|(index, task)| {
            let servers = net.stations[index].servers;
            if task.is_client() || servers <= 1.0 || servers.is_infinite() {
                return Vec::new();
            }
            let nonzero_uses = |entry: usize| -> UseList {
                let uses = entry_uses[entry].iter().enumerate();
                uses.filter(|(_, amount)| **amount > 0.0)
                    .map(|(station, amount)| (station, *amount))
                    .collect()
            };
            task.entries.iter().map(|entry| (entry.0, nonzero_uses(entry.0))).collect()
        });
        let tasks = model.tasks.len();
        let below = entry_uses.iter().map(|uses| {
            let task_uses = uses.iter().take(tasks).enumerate().filter(|(_, amount)| **amount > 0.0);
            task_uses.map(|(task, amount)| (task, *amount)).collect()
        });
        Self { overtaking_rows: OvertakingRows::new(net), below: below.collect(), pools: pools.collect() }
    }
}

/// Adds the use by the targets that a call is forwarded to.
fn add_forwarded_use(
    net: &SolverNetwork<'_>,
    entry: usize,
    rate: f64,
    entry_uses: &[Vec<f64>],
    uses: &mut [f64],
    depth: usize,
) {
    if depth > 16 {
        return;
    }
    for (to, share) in &net.model.entries[entry].forwards {
        uses[net.model.entries[to.0].task.0] += rate * share;
        for (station_use, target_use) in uses.iter_mut().zip(&entry_uses[to.0]) {
            *station_use += rate * share * target_use;
        }
        add_forwarded_use(net, to.0, rate * share, entry_uses, uses, depth + 1);
    }
}

/// Computes the waiting times of all stations and moves part of the way towards them. Returns the greatest
/// change relative to the time for which servers are held.
pub(super) fn update_waiting(
    net: &SolverNetwork<'_>,
    station_use: &StationUse,
    state: &mut SolverState,
    step: f64,
) -> f64 {
    let mut max_change = 0.0_f64;
    let ancestry = request_ancestry(net, station_use, state);
    let totals: Vec<StationTotals> =
        (0..net.stations.len()).map(|station| StationTotals::of(net, state, station)).collect();
    for station in 0..net.stations.len() {
        max_change =
            max_change.max(update_station(net, station_use, &ancestry, state, &totals, station, step));
    }
    max_change
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
        let queue_station = &net.stations[station];
        let mut total = Self { measure: 0.0, waiting: 0.0, held: 0.0 };
        for slot in &queue_station.slots {
            let slot = &state.slots[*slot];
            total.measure += if queue_station.discipline == QueueDiscipline::ProcessorSharing {
                slot.held
            } else {
                slot.rate
            };
            total.waiting += slot.rate * slot.wait + slot.held * slot.stretch;
            total.held += slot.held;
        }
        total
    }
}

fn update_station(
    net: &SolverNetwork<'_>,
    station_use: &StationUse,
    ancestry: &[Vec<f64>],
    state: &mut SolverState,
    totals: &[StationTotals],
    station: usize,
    step: f64,
) -> f64 {
    let queue_station = &net.stations[station];
    let total = &totals[station];
    if queue_station.servers.is_infinite() || total.held <= 0.0 {
        return 0.0;
    }
    let mut sources = Vec::with_capacity(queue_station.slots.len());
    let overtaking_shares =
        if queue_station.is_task && queue_station.has_second_phase && queue_station.slots.len() <= 60 {
            station_use.overtaking_rows.overtaking(net, state, station)
        } else {
            vec![OvertakingShare::default(); queue_station.slots.len()]
        };
    for (slot, overtaking_share) in queue_station.slots.iter().zip(overtaking_shares) {
        let slot_state = &mut state.slots[*slot];
        slot_state.overtaking.share += step * (overtaking_share.share - slot_state.overtaking.share);
        slot_state.overtaking.remaining +=
            step * (overtaking_share.remaining - slot_state.overtaking.remaining);
        let per_request = |sum: f64| if slot_state.rate > 0.0 { sum / slot_state.rate } else { 0.0 };
        sources.push(RequestSource {
            rate: slot_state.rate,
            mean: per_request(slot_state.held),
            square: per_request(slot_state.squares),
            limit: net.population(*slot).min(queue_station.max_requests),
            holder: net.slots[*slot].holder,
            threads: net.max_requests_by(net.slots[*slot].holder),
            idle: idle(net, totals, bounding_task(net, net.slots[*slot].holder)),
            excess_requests: excess_requests(net, bounding_task(net, net.slots[*slot].holder)),
            held: slot_state.rate * slot_state.wait + slot_state.held * slot_state.stretch + slot_state.first,
            overtaking: slot_state.overtaking.share,
            overtaking_remaining: slot_state.overtaking.remaining,
            ..RequestSource::default()
        });
    }
    let first_phase_work: f64 = queue_station.slots.iter().map(|slot| state.slots[*slot].first).sum();
    let rate: f64 = sources.iter().map(|source| source.rate).sum();
    // The number of possible requests here that wait elsewhere.
    let elsewhere: f64 = queue_station.bounds.iter().map(|task| state.waiting[*task]).sum();
    let mut parameters = StationParameters {
        servers: queue_station.servers.min(1e6) as usize,
        max_requests: queue_station.max_requests,
        phases: [first_phase_work / rate, (total.held - first_phase_work).max(0.0) / rate],
        holding_alone: 0.0,
        holding_slope: 0.0,
        holding_min: 0.0,
        // Waiting while a thread of this task is held is not elsewhere.
        waiting: (elsewhere
            - total.waiting
            - waiting_below(net, station_use, state, totals, station)
            - if queue_station.is_task { state.waiting[station] } else { 0.0 })
        .max(0.0),
        fifo: queue_station.discipline != QueueDiscipline::ProcessorSharing,
    };
    if queue_station.is_task && queue_station.servers > 1.0 {
        set_holding_growth(net, &station_use.pools[station], state, totals, station, rate, &mut parameters);
    }
    let mut memory = state.memories[station];
    match queue_station.discipline {
        QueueDiscipline::Fifo | QueueDiscipline::ProcessorSharing => {
            let meetings = meeting_shares(net, station_use, ancestry, state, station, &sources);
            if meetings.iter().flatten().all(|share| *share >= 1.0) {
                queue::update_waiting_times(&parameters, &mut sources, &mut memory);
            } else {
                let mut slot_memories: Vec<StationMemory> =
                    queue_station.slots.iter().map(|slot| state.slot_memories[*slot]).collect();
                update_slots_separately(&parameters, &mut sources, &meetings, &mut slot_memories);
                memory.overloaded = slot_memories.iter().any(|memory| memory.overloaded);
                let weighted_busy = |index: usize| sources[index].rate * slot_memories[index].busy_as_seen;
                memory.busy_as_seen = (0..sources.len()).map(weighted_busy).sum::<f64>() / rate;
                for (slot, memory) in queue_station.slots.iter().zip(slot_memories) {
                    let slot_memory = &mut state.slot_memories[*slot];
                    slot_memory.level += step * (memory.level - slot_memory.level);
                }
            }
        }
        QueueDiscipline::Preemptive | QueueDiscipline::HeadOfLine => {
            priority_waiting(net, station, &parameters, &mut sources, &mut memory)
        }
    }
    if let Some(policy_gain) = net.policy_gains[station] {
        let ratio = policy_gain.waiting_ratio(queue_station.servers, total.held / queue_station.servers);
        for source in &mut sources {
            (source.wait, source.variance) = (source.wait * ratio, source.variance * ratio * ratio);
        }
    }
    // The memory changes no faster than the other values.
    let previous = state.memories[station];
    memory.level = previous.level + step * (memory.level - previous.level);
    memory.busy_as_seen = previous.busy_as_seen + step * (memory.busy_as_seen - previous.busy_as_seen);
    state.memories[station] = memory;
    let mean_holding = total.held / rate;
    let mut max_change = 0.0_f64;
    for (slot, source) in queue_station.slots.iter().zip(&sources) {
        let slot_state = &mut state.slots[*slot];
        if queue_station.discipline == QueueDiscipline::ProcessorSharing {
            let target = source.wait / mean_holding;
            max_change = max_change.max((target - slot_state.stretch).abs() / (1.0 + target));
            slot_state.stretch += step * (target - slot_state.stretch);
        } else {
            max_change = max_change.max((source.wait - slot_state.wait).abs() / (mean_holding + source.wait));
            slot_state.wait += step * (source.wait - slot_state.wait);
            slot_state.wait_variance += step * (source.variance - slot_state.wait_variance);
        }
    }
    max_change
}

/// Returns the number of requests that wait for a thread of a task below because that thread is here. When no
/// request is here, they do not wait.
fn waiting_below(
    net: &SolverNetwork<'_>,
    station_use: &StationUse,
    state: &SolverState,
    totals: &[StationTotals],
    station: usize,
) -> f64 {
    let queue_station = &net.stations[station];
    if queue_station.is_task || station_use.below.is_empty() {
        return 0.0;
    }
    let slot_bound = |slot: &usize| bounding_task(net, net.slots[*slot].holder);
    let holders = queue_station.slots.iter().map(slot_bound);
    let mut seen_holders = Vec::new();
    let mut waiting = 0.0;
    for holder in holders.filter(|holder| *holder != NO_HOLDER) {
        if seen_holders.contains(&holder) || net.model.tasks[holder].is_client() || totals[holder].held <= 0.0
        {
            continue;
        }
        seen_holders.push(holder);
        let present: f64 = queue_station
            .slots
            .iter()
            .filter(|slot| slot_bound(slot) == holder)
            .map(|slot| &state.slots[*slot])
            .map(|slot| slot.rate * slot.wait + slot.held * (1.0 + slot.stretch))
            .sum();
        waiting += totals[holder].waiting * (present / totals[holder].held).min(1.0);
    }
    waiting
}

/// Returns the task whose threads bound the callers of a task: itself, or the one above for which it does all
/// its work.
fn bounding_task(net: &SolverNetwork<'_>, holder: usize) -> usize {
    if holder == NO_HOLDER || net.model.tasks[holder].is_client() {
        return holder;
    }
    let queue_station = &net.stations[holder];
    match queue_station.bounds[..] {
        [caller]
            if !queue_station.has_second_phase && queue_station.max_requests <= queue_station.servers =>
        {
            caller
        }
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
    parameters: &mut StationParameters,
) {
    let mut station_uses = std::collections::BTreeMap::<usize, f64>::new();
    for (entry, stations) in entries {
        for (station, amount) in stations {
            *station_uses.entry(*station).or_default() += state.entries[*entry] * amount;
        }
    }
    let mut hindrance = 0.0;
    let mut floor = 0.0_f64;
    for (used_station, measure) in station_uses {
        let total = &totals[used_station];
        let servers = net.stations[used_station].servers;
        if total.measure <= 0.0 || servers.is_infinite() {
            continue;
        }
        let share = (measure / total.measure).min(1.0);
        hindrance += total.waiting * share * share;
        let available = (servers - total.held * (1.0 - share)).max(0.1 * servers);
        floor = floor.max(total.held * share / available / rate);
    }
    let mean = totals[station].held / rate;
    let mean_hindrance = (hindrance / rate).min(0.98 * mean);
    let other_threads = (state.memories[station].busy_as_seen - 1.0).max(0.05);
    parameters.holding_min = floor;
    parameters.holding_slope = (mean_hindrance / other_threads).min(mean);
    parameters.holding_alone = (mean - parameters.holding_slope * other_threads).max(0.02 * mean);
}

/// Returns the share of each task's requests that come, directly or indirectly, from each task's threads.
fn request_ancestry(net: &SolverNetwork<'_>, station_use: &StationUse, state: &SolverState) -> Vec<Vec<f64>> {
    let tasks = net.model.tasks.len();
    if station_use.below.is_empty() || tasks > 200 {
        return Vec::new();
    }
    let mut flows = vec![0.0; tasks];
    let mut ancestry = vec![vec![0.0; tasks]; tasks];
    for (entry, rate) in net.model.entries.iter().zip(&state.entries) {
        flows[entry.task.0] += rate;
    }
    for (entry, (rate, called_tasks)) in
        net.model.entries.iter().zip(state.entries.iter().zip(&station_use.below))
    {
        for (task, calls) in called_tasks {
            if flows[*task] > 0.0 {
                ancestry[*task][entry.task.0] += rate * calls / flows[*task];
            }
        }
    }
    for (task, ancestors) in ancestry.iter_mut().enumerate() {
        ancestors.iter_mut().for_each(|probability| *probability = probability.min(1.0));
        ancestors[task] = 1.0;
    }
    ancestry
}

/// The share of requests below which an effect is ignored.
const NEGLIGIBLE_KINSHIP: f64 = 0.03;

/// Returns, for each source, the share of each other's requests that it can meet. It does not meet those of
/// the thread or client on whose behalf it works.
fn meeting_shares(
    net: &SolverNetwork<'_>,
    station_use: &StationUse,
    ancestry: &[Vec<f64>],
    state: &SolverState,
    station: usize,
    sources: &[RequestSource],
) -> Vec<Vec<f64>> {
    let slots = &net.stations[station].slots;
    if ancestry.is_empty() || slots.len() < 2 || slots.len() > 30 {
        return Vec::new();
    }
    let ancestry_share = |slot: usize, task: usize| {
        let slot = &net.slots[slot];
        match net.origins[slot.origin] {
            _ if slot.holder == NO_HOLDER => 0.0,
            _ if slot.holder == task => 1.0,
            // Work after a reply is on behalf of no task further up.
            WorkOrigin::SecondPhase(second_task) => f64::from(u8::from(second_task == task)),
            _ => ancestry[slot.holder][task],
        }
    };
    let mut meetings = vec![vec![1.0; slots.len()]; slots.len()];
    for first in 0..slots.len() {
        for second in 0..first {
            let holders = [first, second].map(|index| net.slots[slots[index]].holder);
            let rates = [first, second].map(|index| sources[index].rate);
            // The requests of one task's threads are limited by their number.
            if holders[0] == holders[1] || holders.contains(&NO_HOLDER) || rates.contains(&0.0) {
                continue;
            }
            let mut common = 0.0_f64;
            for task in 0..net.model.tasks.len() {
                let joint_share = ancestry_share(slots[first], task) * ancestry_share(slots[second], task);
                if joint_share > 0.0 {
                    common = common.max(joint_share / net.active_threads[task].max(1.0));
                }
            }
            // Small shares are ignored continuously, without a step.
            let meeting_share = 1.0 - ((common - NEGLIGIBLE_KINSHIP) / (1.0 - NEGLIGIBLE_KINSHIP)).max(0.0);
            (meetings[first][second], meetings[second][first]) = (meeting_share, meeting_share);
        }
    }
    // The thread that got the reply runs before the server continues, so it precedes the server's second
    // phase.
    if !net.stations[station].is_task && net.stations[station].servers == 1.0 {
        for (first, slot) in slots.iter().enumerate() {
            let holder = net.slots[*slot].holder;
            for (second, second_slot) in slots.iter().enumerate() {
                let other_slot = net.slots[*second_slot];
                if holder != NO_HOLDER
                    && other_slot.holder != holder
                    && net.origins[other_slot.origin] == WorkOrigin::SecondPhase(other_slot.holder)
                {
                    let common = ancestry[other_slot.holder][holder] / net.active_threads[holder].max(1.0);
                    meetings[first][second] *= 1.0
                        - common.min(1.0)
                            * station_use.overtaking_rows.share_after_reply(
                                net,
                                state,
                                *slot,
                                other_slot.holder,
                            );
                }
            }
        }
    }
    meetings
}

/// Computes the waiting time of each source with the rates of the others that it can meet.
fn update_slots_separately(
    parameters: &StationParameters,
    sources: &mut [RequestSource],
    meetings: &[Vec<f64>],
    memories: &mut [StationMemory],
) {
    let mut waiting_times = Vec::with_capacity(sources.len());
    for (index, (shares, memory)) in meetings.iter().zip(memories).enumerate() {
        let mut seen_sources = sources.to_vec();
        for (source, share) in seen_sources.iter_mut().zip(shares) {
            source.rate *= share;
            source.held *= share;
        }
        queue::update_waiting_times(parameters, &mut seen_sources, memory);
        waiting_times.push((seen_sources[index].wait, seen_sources[index].variance));
    }
    for (source, (wait, variance)) in sources.iter_mut().zip(waiting_times) {
        (source.wait, source.variance) = (wait, variance);
    }
}

/// Computes the waiting times with priorities. Requests of a priority and above wait as if there were no
/// others, except for one that is served to the end without preemption (Cobham's formula, 1954). The total
/// waiting, weighted by work, does not depend on the order (Kleinrock's conservation law, 1965).
fn priority_waiting(
    net: &SolverNetwork<'_>,
    station: usize,
    parameters: &StationParameters,
    sources: &mut [RequestSource],
    memory: &mut StationMemory,
) {
    let queue_station = &net.stations[station];
    let priorities: Vec<i32> = queue_station.slots.iter().map(|slot| net.slots[*slot].priority).collect();
    let mut levels = priorities.clone();
    levels.sort_unstable_by(|left, right| right.cmp(left));
    levels.dedup();
    let total_work: f64 = sources.iter().map(|source| source.rate * source.mean).sum();
    // A least weight, so that requests without work get a waiting time, too.
    let min_mean = 1e-6 * total_work / sources.iter().map(|source| source.rate).sum::<f64>();
    let weight = |source: &RequestSource| source.rate * source.mean.max(min_mean);
    let mut work_above = 0.0;
    for level in levels {
        let members: Vec<usize> = (0..sources.len()).filter(|index| priorities[*index] >= level).collect();
        let mut level_sources: Vec<RequestSource> = members.iter().map(|index| sources[*index]).collect();
        queue::update_waiting_times(parameters, &mut level_sources, memory);
        let mut waiting_work: f64 = level_sources.iter().map(|source| weight(source) * source.wait).sum();
        if queue_station.discipline == QueueDiscipline::HeadOfLine {
            let work: f64 = level_sources.iter().map(weight).sum();
            let utilization = work / queue_station.servers;
            let others = sources.iter().zip(&priorities).filter(|(_, priority)| **priority < level);
            // Half of the square divided by the mean: the mean remaining service seen by an arrival.
            let residual_work: f64 = others.map(|(source, _)| source.rate * source.square / 2.0).sum();
            let met_work = residual_work / queue_station.servers.powi(2)
                * (total_work / queue_station.servers).min(1.0).powf(queue_station.servers - 1.0);
            waiting_work += work * met_work / (1.0 - utilization.min(0.9));
        }
        let level_work: f64 = members
            .iter()
            .filter(|index| priorities[**index] == level)
            .map(|index| weight(&sources[*index]))
            .sum();
        let wait = if level_work > 0.0 { (waiting_work - work_above).max(0.0) / level_work } else { 0.0 };
        for (index, solved_source) in members.iter().zip(&level_sources) {
            if priorities[*index] == level {
                sources[*index].wait = wait;
                sources[*index].variance = solved_source.variance;
            }
        }
        work_above = waiting_work.max(work_above);
    }
}
