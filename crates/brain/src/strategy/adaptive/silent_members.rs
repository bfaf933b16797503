//! The placement of a request among members without load reports.
//!
//! The request goes to the member with the least `(n + 1)^2 w`. Here `n` is the number of requests in flight
//! there from here per weight; with `[fleet]` it is the mean of all balancers. `w` is the member's recent
//! latency.
//!
//! The fewest requests in flight, with turns in inverse proportion to `w` among equals, would give all
//! members about the same number of requests (Little's law), whatever their processors. Small members and
//! those with a noisy neighbour would then be full while large ones have room, which is where the slowest
//! requests come from. With the square, a member that takes four times as long has half as many. (At nine
//! tenths of the capacity the 99th percentile is a quarter to a third lower, `small_members` in
//! `tests/adaptive.rs`.) With `n + 1` alone, `w` would have more influence than the mean of a few latencies
//! deserves.
//!
//! Observations age: the longer a member had no request and no answer, the less its latency counts. So a
//! member that was slow is tried again, and idle members have turns in inverse proportion to their latencies.
//! A slow member counts as at most [`WORST`] times as slow as usual; by then the others have four times as
//! many requests.
//!
//! Sessions (TCP, UDP) last as long as their clients want, and members named in DNS answers are not counted.
//! Both go to the fewest, in turns by weight among equals. A request that binds its client (`per_session`,
//! cookies) is only the first of many, so for it members are equally fast up to [`ALIKE`] times the usual
//! latency. Otherwise most of the connections that are opened one after the other and then stay idle would go
//! to the member whose first answer came soonest.
//!
//! Only an *aperture* of the members is used: a ring that begins elsewhere for each balancer and is twice as
//! wide as the requests in flight (Finagle's deterministic aperture, with the width from the load). With many
//! balancers, each then sees enough of few members instead of too little of all.
//!
//! With `[fleet]`, balancers share their requests in flight and there is no aperture: each sees enough of all
//! (see `fleet/peer_presence.rs`).

use crate::{Member, PickRequest, PickerState, Plan, Time};

/// Returns the index of a member; `None` if none is left.
pub(super) fn choose<L>(
    plan: &Plan,
    picker: &mut PickerState,
    request: &PickRequest,
    has_room: &L,
) -> Option<usize>
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let now = request.now;
    if plan.is_group_at_limit(now) && !request.ignores_learnt_limits {
        return None;
    }
    let members = plan.members();
    if let [only_member] = members {
        // There is nothing to compare.
        return has_room(only_member).then_some(0);
    }
    let count = members.len();
    let sample_size = match count {
        ..=MIN_SAMPLE => count,
        _ if plan.has_peers() => count,
        _ => (libm::ceil(2.0 * picker.mean_in_flight) as usize).clamp(MIN_SAMPLE, count),
    };
    let averages = GroupAverages::of(plan, picker, request);
    let mut index = ((u128::from(picker.seed) * count as u128) >> 64) as usize;
    let mut best: Option<(usize, f64, f64)> = None;
    let (mut candidates_seen, mut total_in_flight, mut total_streaming) = (0, 0_u64, 0_u64);
    let (mut speed_sum, mut measured_count, mut weight_sum) = (0.0, 0.0, 0.0);
    for _ in 0..count {
        // A member that cannot be used makes room for the next.
        if candidates_seen >= sample_size && best.is_some() {
            break;
        }
        let (member_index, member) = (index, &members[index]);
        index = if index + 1 < count { index + 1 } else { 0 };
        let in_flight = member.in_flight();
        total_in_flight += u64::from(in_flight);
        total_streaming += u64::from(member.vitals.streaming());
        if !has_room(member) {
            continue;
        }
        candidates_seen += 1;
        weight_sum += member.weight;
        let latency_and_age = member.vitals.latency_and_age(now);
        if let Some((latency, _)) = latency_and_age {
            speed_sum += 1.0 / f64::from(latency);
            measured_count += 1.0;
        }
        let (deadline, last_chosen) = picker.member_timing(member_index);
        let cost = averages.cost(member, latency_and_age, now.nanos_since(last_chosen), now);
        if best.is_none_or(|(_, best_cost, best_deadline)| {
            cost < best_cost || (cost == best_cost && deadline < best_deadline)
        }) {
            best = Some((member_index, cost, deadline));
        }
    }
    picker.mean_in_flight += (total_in_flight as i64 as f64 - picker.mean_in_flight) / AVERAGING_CHOICES;
    let (index, _, deadline) = best?;
    picker.weight = weight_sum / candidates_seen as i64 as f64;
    picker.streaming = total_streaming as i64 as f64 / count as i64 as f64;
    if measured_count > 0.0 {
        // A harmonic mean, which a few very slow members hardly change.
        picker.typical_latency = measured_count / speed_sum;
    }
    // Among members of equal cost, such as those without observations, the member whose turn it is gets the
    // request (self-clocked fair queueing, Golestani 1994, with latency for length).
    let member = &members[index];
    let mean_latency = member.vitals.mean_latency().filter(|_| !request.is_session);
    let latency = mean_latency
        .map_or(averages.latency, |latency| averages.effective_latency(f64::from(latency)))
        * 1e-9
        / (member.weight * averages.per_weight);
    picker.record_choice(index, deadline.max(picker.deadline - latency) + latency, now);
    picker.deadline = deadline;
    Some(index)
}

/// The averages of the members, as of the previous choice.
struct GroupAverages {
    /// The latency, nanoseconds.
    latency: f64,
    /// The inverse of the time after which the latency of an idle member counts for half, per nanosecond.
    fading_rate: f64,
    /// The inverse of the mean weight; 1 if the mean is unknown.
    per_weight: f64,
    /// The count of one request of another balancer, so that others' requests are as many as this one's in
    /// the mean.
    peer_request_weight: f64,
    /// The mean number of streams of a member.
    streaming: f64,
    /// Whether latencies are meaningless for the request (a session).
    is_session: bool,
    /// Whether latencies predict little, because the request binds its client.
    binds_client: bool,
}

impl GroupAverages {
    fn of(plan: &Plan, picker: &PickerState, request: &PickRequest) -> Self {
        let latency = picker.typical_latency.max(1.0);
        Self {
            latency,
            fading_rate: (latency + LATENCY_NOISE_NANOS) / (FRESH_LATENCY_MULTIPLE * latency * latency),
            per_weight: if picker.weight > 0.0 { 1.0 / picker.weight } else { 1.0 },
            peer_request_weight: 1.0 / plan.balancer_count(),
            streaming: picker.streaming,
            is_session: request.is_session,
            binds_client: request.binds_client,
        }
    }

    /// Returns the effective value of an observed latency.
    fn effective_latency(&self, latency: f64) -> f64 {
        if self.binds_client { (latency / SIMILAR_LATENCY_MULTIPLE).max(self.latency) } else { latency }
    }

    /// Returns the cost of this member. `lately` is its observed latency and age; `unchosen` is the time
    /// since it was last chosen from here. Times are in nanoseconds.
    fn cost(
        &self,
        member: &Member,
        latency_and_age: Option<(f32, u64)>,
        nanos_since_chosen: u64,
        now: Time,
    ) -> f64 {
        // The member's weight as a multiple of the mean.
        let weight_share = member.weight * self.per_weight;
        let awaiting = if self.is_session { member.in_flight() } else { member.vitals.awaiting() };
        let load = f64::from(awaiting) + member.vitals.peer_in_flight() * self.peer_request_weight;
        if self.is_session {
            return load / weight_share + 1.0;
        }
        let queue_factor = (load + self.streaming_load(member)) / weight_share + 1.0;
        let idle = awaiting == 0;
        let silence = || member.vitals.excess_silence(self.latency, now);
        let Some((latency, age)) = latency_and_age else {
            return match member.vitals.streak() {
                // A new member is tried, and then counts like the others until it has answered.
                0 if idle => 0.0,
                0 => queue_factor * queue_factor * self.latency.max(silence()),
                // All its requests failed: it is tried again, but not first.
                failures => {
                    queue_factor * queue_factor * self.latency * f64::from(1 + failures.min(3))
                        / self.fading_factor(nanos_since_chosen)
                }
            };
        };
        let latency = self.effective_latency(f64::from(latency));
        let latency = if latency < MAX_LATENCY_MULTIPLE * self.latency {
            latency
        } else {
            MAX_LATENCY_MULTIPLE * self.latency
        };
        if idle {
            // Ages are exact to the millisecond; below that the time of the last choice decides.
            return (1.0 + self.streaming_load(member)) * latency
                / (weight_share
                    * self.fading_factor(age.max(nanos_since_chosen.min(CLOCK_RESOLUTION_NANOS))));
        }
        // Many requests take a few times the mean. A request that is late beyond that is known now, and does
        // not age.
        let overdue_after = OVERDUE_MULTIPLE * latency;
        let overdue = if age as i64 as f64 > overdue_after { silence() } else { 0.0 };
        let overdue = if overdue > overdue_after { overdue } else { 0.0 };
        queue_factor * queue_factor * (latency / self.fading_factor(age.min(nanos_since_chosen))).max(overdue)
    }

    /// Returns the count of a member's streams: half a request if it has at least twice as many as the
    /// others.
    fn streaming_load(&self, member: &Member) -> f64 {
        let streaming = member.vitals.streaming();
        if streaming == 0 {
            return 0.0;
        }
        0.25 * (f64::from(streaming) / (1.0 + self.streaming)).min(2.0)
    }

    /// Returns the factor by which an observation of this age counts less.
    fn fading_factor(&self, age: u64) -> f64 {
        1.0 + age as i64 as f64 * self.fading_rate
    }
}

/// The minimum number of members in the aperture.
const MIN_SAMPLE: usize = 10;

/// The number of choices over which the requests in flight are averaged.
const AVERAGING_CHOICES: f64 = 64.0;

/// The maximum slowness of a member, as a multiple of the usual latency.
const MAX_LATENCY_MULTIPLE: f64 = 16.0;

/// The multiple of the recent latency after which a missing answer counts: one exponential length in 55 is as
/// long.
pub(super) const OVERDUE_MULTIPLE: f64 = 4.0;

/// The multiple of the usual latency up to which a member is as good as others for requests that bind. The
/// longest of a few requests of random (exponential) length takes three times the mean.
const SIMILAR_LATENCY_MULTIPLE: f64 = 4.0;

/// The multiple of a request's usual latency for which an observation counts in full, or nearly so; it is
/// less if requests are very short.
const FRESH_LATENCY_MULTIPLE: f64 = 16.0;

/// The difference of latencies without meaning, nanoseconds. Of two members that answer in a fraction of
/// that, neither must get nearly all requests because it once was faster.
const LATENCY_NOISE_NANOS: f64 = 4e6;

/// The resolution of an observation's age, nanoseconds.
const CLOCK_RESOLUTION_NANOS: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use crate::plan::tests::members;
    use crate::{Choice, PickRequest, PickerState, Plan, StrategyParams, Time, strategy};
    use core::time::Duration;

    const MILLISECOND: u64 = 1_000_000;

    fn plan(weights: &[f64]) -> Plan {
        let adaptive = strategy::find("adaptive").expect("it is there");
        Plan::new(adaptive, StrategyParams::defaults(adaptive), members(weights))
    }

    /// Sends a request every `every` milliseconds, each as long as its member takes. Returns the requests of
    /// each member.
    fn drive(
        plan: &Plan,
        picker: &mut PickerState,
        interval: u64,
        latencies: &[u64],
        from: u64,
        requests: u64,
    ) -> Vec<u32> {
        let mut in_flight: VecDeque<(u64, u64, usize)> = VecDeque::new();
        for turn in 0..requests {
            let now = from + turn * interval;
            in_flight.retain(|(end, latency, index)| {
                let vitals = &plan.members()[*index].vitals;
                if *end <= now {
                    vitals.end();
                    plan.observe(
                        picker,
                        vitals,
                        Duration::from_millis(*latency),
                        false,
                        Time(end * MILLISECOND),
                    );
                }
                *end > now
            });
            let request = PickRequest {
                turn,
                random_bits: turn,
                now: Time(now * MILLISECOND),
                ..PickRequest::default()
            };
            let Choice::Member(index) = plan.choose(picker, &request, &[]) else { panic!("there is room") };
            plan.members()[index].vitals.begin();
            in_flight.push_back((now + latencies[index], latencies[index], index));
        }
        let begun = plan.members().iter().map(|member| member.vitals.begun()).collect();
        in_flight.iter().for_each(|(_, _, index)| plan.members()[*index].vitals.end());
        begun
    }

    #[test]
    fn members_of_which_nothing_is_known_have_turns() {
        let (plan, mut picker) = (plan(&[1.0; 4]), PickerState::default());
        // No latency is observed, because every request outlasts the test.
        assert_eq!(drive(&plan, &mut picker, 1, &[1_000; 4], 0, 40), [10; 4]);
        for turn in 0..40 {
            let request = PickRequest { turn, random_bits: turn, now: Time(1), ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut picker, &request, &[]) else {
                panic!("there is room")
            };
            plan.members()[index].vitals.begin();
            plan.members()[index].vitals.end();
        }
        let begun: Vec<u32> = plan.members().iter().map(|member| member.vitals.begun()).collect();
        assert_eq!(begun, [20; 4], "of what ends and is not seen, such as sessions");
    }

    #[test]
    fn sessions_go_where_there_are_fewest_however_long_they_last() {
        let (plan, mut picker) = (plan(&[1.0, 1.0, 2.0]), PickerState::default());
        for (turn, latencies) in (0..50).zip([[100, 400, 400], [400, 100, 100]].into_iter().cycle()) {
            drive(&plan, &mut picker, 5, &latencies, 10_000 * turn, 60);
        }
        // Sixty at once: none ends meanwhile.
        for turn in 0..60 {
            let request = PickRequest {
                turn,
                random_bits: turn,
                now: Time(1),
                is_session: true,
                ..PickRequest::default()
            };
            let Choice::Member(index) = plan.choose(&mut picker, &request, &[]) else {
                panic!("there is room")
            };
            plan.members()[index].vitals.begin();
        }
        let in_flight: Vec<u32> = plan.members().iter().map(|member| member.vitals.in_flight()).collect();
        assert_eq!(in_flight.iter().sum::<u32>(), 60);
        for (count, fair_share) in in_flight.into_iter().zip([15, 15, 30]) {
            assert!(count.abs_diff(fair_share) <= 1, "{count}, not {fair_share}");
        }
    }

    #[test]
    fn who_is_told_to_clients_and_not_counted_has_turns() {
        let (plan, mut picker) = (plan(&[1.0, 1.0, 2.0]), PickerState::default());
        drive(&plan, &mut picker, 20, &[10, 20, 40], 1_000, 400);
        let mut chosen = [0_u32; 3];
        for turn in 0..100 {
            let now = Time((9_000 + 5 * turn) * MILLISECOND);
            let request =
                PickRequest { turn, random_bits: turn, now, is_session: true, ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut picker, &request, &[]) else {
                panic!("there is room")
            };
            chosen[index] += 1;
        }
        for (chosen, fair_share) in chosen.into_iter().zip([25, 25, 50]) {
            assert!(chosen.abs_diff(fair_share) <= 20, "{chosen}, not {fair_share}");
        }
    }

    #[test]
    fn those_that_bind_their_clients_go_evenly_to_idle_members_unless_one_is_far_slower() {
        let begun = |latencies: [u64; 3], binds_client: bool| {
            let (plan, mut picker) = (plan(&[1.0; 3]), PickerState::default());
            for turn in 0..60 {
                let now = Time((9_000 + 200 * turn) * MILLISECOND);
                let request =
                    PickRequest { turn, random_bits: turn, now, binds_client, ..PickRequest::default() };
                let Choice::Member(index) = plan.choose(&mut picker, &request, &[]) else {
                    panic!("there is room")
                };
                let vitals = &plan.members()[index].vitals;
                vitals.begin();
                let latency = Duration::from_millis(latencies[index]);
                plan.observe(&mut picker, vitals, latency, false, now + latency);
                vitals.end();
            }
            let begun: Vec<u32> = plan.members().iter().map(|member| member.vitals.begun()).collect();
            begun
        };
        let even = begun([10, 25, 30], true);
        assert!(even.iter().all(|begun| begun.abs_diff(20) <= 1), "{even:?}");
        assert!(begun([10, 25, 30], false)[0] >= 26);
        assert!(begun([10, 10, 150], true)[2] <= 15);
    }

    #[test]
    fn idle_members_have_turns_by_their_latencies() {
        let (plan, mut picker) = (plan(&[1.0; 3]), PickerState::default());
        let begun = drive(&plan, &mut picker, 4_000, &[10, 20, 40], 1_000, 700);
        for (begun, fair_share) in begun.into_iter().zip([400, 200, 100]) {
            assert!(begun.abs_diff(fair_share) <= fair_share / 5, "{begun}, not {fair_share}");
        }
    }

    #[test]
    fn members_that_hardly_take_any_time_have_turns() {
        let (plan, mut picker) = (plan(&[1.0; 3]), PickerState::default());
        for turn in 0..300_u64 {
            let now = 1_000_000_000 + turn * 300_000;
            let request = PickRequest { turn, random_bits: turn, now: Time(now), ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut picker, &request, &[]) else {
                panic!("there is room")
            };
            let vitals = &plan.members()[index].vitals;
            vitals.begin();
            vitals.end();
            // The first request to each member makes a connection, which takes three times as long at the
            // first member.
            let latency = if vitals.begun() > 1 { 200_000 } else { [900_000, 300_000, 300_000][index] };
            plan.observe(&mut picker, vitals, Duration::from_nanos(latency), false, Time(now + latency));
        }
        for member in plan.members() {
            let begun = member.vitals.begun();
            assert!((60..150).contains(&begun), "{begun} of 300");
        }
    }

    #[test]
    fn who_was_slow_is_tried_again() {
        for interval in [5, 50, 1_000] {
            let (plan, mut picker) = (plan(&[1.0; 3]), PickerState::default());
            drive(&plan, &mut picker, interval, &[10, 10, 100], 1_000, 400);
            let previous_begun = plan.members()[2].vitals.begun();
            drive(&plan, &mut picker, interval, &[10; 3], 2_000_000, 4_000);
            let begun = plan.members()[2].vitals.begun() - previous_begun;
            assert!(begun > 800, "every {interval} ms: {begun} of 4000");
        }
    }

    #[test]
    fn who_was_slow_is_tried_again_though_it_is_never_idle() {
        let (plan, mut picker) = (plan(&[1.0; 3]), PickerState::default());
        // One lasting request at each member, such as a tunnel.
        plan.members().iter().for_each(|member| _ = member.vitals.begin());
        drive(&plan, &mut picker, 5, &[10; 3], 1_000, 200);
        for _ in 0..5 {
            let vitals = &plan.members()[0].vitals;
            plan.observe(&mut picker, vitals, Duration::from_secs(5), false, Time(2_000 * MILLISECOND));
        }
        // A slow member is tried again the sooner the busier the others are.
        for (interval, from, min_begun) in
            [(5, 2_000, 1), (5, 12_000, 150), (5, 22_000, 500), (1, 80_000, 600)]
        {
            if interval == 1 {
                let vitals = &plan.members()[0].vitals;
                (0..5).for_each(|_| {
                    _ = plan.observe(
                        &mut picker,
                        vitals,
                        Duration::from_secs(5),
                        false,
                        Time(from * MILLISECOND),
                    )
                });
            }
            let previous_begun = plan.members()[0].vitals.begun();
            drive(&plan, &mut picker, interval, &[10; 3], from, 10_000 / interval);
            let begun = plan.members()[0].vitals.begun() - previous_begun;
            assert!(begun >= min_begun, "{begun} in ten seconds, every {interval} ms");
        }
        let previous_begun = plan.members()[0].vitals.begun();
        drive(&plan, &mut picker, 5, &[1_000_000, 10, 10], 100_000, 4_000);
        let begun = plan.members()[0].vitals.begun() - previous_begun;
        assert!(begun < 80, "{begun} of 4000 to one that does not answer");
    }

    #[test]
    fn one_long_answer_is_no_slow_member() {
        let (plan, mut picker) = (plan(&[1.0; 4]), PickerState::default());
        drive(&plan, &mut picker, 5, &[10; 4], 1_000, 400);
        let vitals = &plan.members()[3].vitals;
        plan.observe(&mut picker, vitals, Duration::from_secs(3_600), false, Time(3_000 * MILLISECOND));
        for (from, min_begun) in [(3_000, 25), (5_000, 75)] {
            let previous_begun = vitals.begun();
            drive(&plan, &mut picker, 5, &[10; 4], from, 400);
            let begun = vitals.begun() - previous_begun;
            assert!(begun >= min_begun, "{begun} of 400");
        }
    }

    #[test]
    fn who_has_only_failed_is_not_tried_first() {
        let (plan, mut picker) = (plan(&[1.0; 3]), PickerState::default());
        let mut begun = 0;
        for turn in 0..300 {
            let now = Time((1_000 + 5 * turn) * MILLISECOND);
            let request = PickRequest { turn, random_bits: turn, now, ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut picker, &request, &[]) else {
                panic!("there is room")
            };
            let vitals = &plan.members()[index].vitals;
            vitals.begin();
            vitals.end();
            begun += i32::from(index == 0);
            if index == 0 {
                vitals.record_failure();
            } else {
                vitals.record_success();
            }
            plan.observe(&mut picker, vitals, Duration::from_millis(10), index == 0, now);
        }
        assert!((3..75).contains(&begun), "{begun} of 300");
    }

    #[test]
    fn whatever_the_unit_of_the_weights_a_small_one_has_less() {
        for unit in [1e-3, 1.0, 1e3] {
            for (interval, weight_ratio) in [(4, 0.1), (4, 0.5), (200, 0.1), (200, 0.5)] {
                let (plan, mut picker) =
                    (plan(&[unit, unit, unit, unit * weight_ratio]), PickerState::default());
                let begun = drive(&plan, &mut picker, interval, &[20; 4], 1_000, 2_000);
                let fair_share = weight_ratio / (3.0 + weight_ratio) * 2_000.0;
                let begun = f64::from(begun[3]);
                assert!(
                    begun > fair_share / 5.0 && begun < 2.0 * fair_share,
                    "{weight_ratio} of {unit} every {interval} ms: {begun}, not {fair_share}"
                );
            }
        }
    }
}
