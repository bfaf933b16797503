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
pub(super) fn choose<L>(plan: &Plan, hand: &mut PickerState, ask: &PickRequest, left: &L) -> Option<usize>
where
    L: Fn(&Member) -> bool + ?Sized,
{
    let now = ask.now;
    if plan.is_group_at_limit(now) && !ask.ignores_learnt_limits {
        return None;
    }
    let members = plan.members();
    if let [only] = members {
        // There is nothing to compare.
        return left(only).then_some(0);
    }
    let count = members.len();
    let width = match count {
        ..=LEAST => count,
        _ if plan.has_peers() => count,
        _ => (libm::ceil(2.0 * hand.mean_in_flight) as usize).clamp(LEAST, count),
    };
    let usual = GroupAverages::of(plan, hand, ask);
    let mut index = ((u128::from(hand.seed) * count as u128) >> 64) as usize;
    let mut best: Option<(usize, f64, f64)> = None;
    let (mut seen, mut busy, mut streaming) = (0, 0_u64, 0_u64);
    let (mut speeds, mut known, mut weights) = (0.0, 0.0, 0.0);
    for _ in 0..count {
        // A member that cannot be used makes room for the next.
        if seen >= width && best.is_some() {
            break;
        }
        let (at, member) = (index, &members[index]);
        index = if index + 1 < count { index + 1 } else { 0 };
        let in_flight = member.in_flight();
        busy += u64::from(in_flight);
        streaming += u64::from(member.vitals.streaming());
        if !left(member) {
            continue;
        }
        seen += 1;
        weights += member.weight;
        let lately = member.vitals.latency_and_age(now);
        if let Some((latency, _)) = lately {
            speeds += 1.0 / f64::from(latency);
            known += 1.0;
        }
        let (deadline, chosen) = hand.member_timing(at);
        let cost = usual.cost(member, lately, now.nanos_since(chosen), now);
        if best.is_none_or(|(_, least, first)| cost < least || (cost == least && deadline < first)) {
            best = Some((at, cost, deadline));
        }
    }
    hand.mean_in_flight += (busy as i64 as f64 - hand.mean_in_flight) / CHOICES;
    let (index, _, deadline) = best?;
    hand.weight = weights / seen as i64 as f64;
    hand.streaming = streaming as i64 as f64 / count as i64 as f64;
    if known > 0.0 {
        // A harmonic mean, which a few very slow members hardly change.
        hand.typical_latency = known / speeds;
    }
    // Among members of equal cost, such as those without observations, the member whose turn it is gets the
    // request (self-clocked fair queueing, Golestani 1994, with latency for length).
    let member = &members[index];
    let seen = member.vitals.mean_latency().filter(|_| !ask.is_session);
    let latency = seen.map_or(usual.latency, |latency| usual.effective_latency(f64::from(latency))) * 1e-9
        / (member.weight * usual.per_weight);
    hand.record_choice(index, deadline.max(hand.deadline - latency) + latency, now);
    hand.deadline = deadline;
    Some(index)
}

/// The averages of the members, as of the previous choice.
struct GroupAverages {
    /// The latency, nanoseconds.
    latency: f64,
    /// The inverse of the time after which the latency of an idle member counts for half, per nanosecond.
    fading: f64,
    /// The inverse of the mean weight; 1 if the mean is unknown.
    per_weight: f64,
    /// The count of one request of another balancer, so that others' requests are as many as this one's in
    /// the mean.
    peer_request_weight: f64,
    /// The mean number of streams of a member.
    streaming: f64,
    /// Whether latencies are meaningless for the request (a session).
    session: bool,
    /// Whether latencies predict little, because the request binds its client.
    binds: bool,
}

impl GroupAverages {
    fn of(plan: &Plan, hand: &PickerState, ask: &PickRequest) -> Self {
        let latency = hand.typical_latency.max(1.0);
        Self {
            latency,
            fading: (latency + NOISE) / (FRESH * latency * latency),
            per_weight: if hand.weight > 0.0 { 1.0 / hand.weight } else { 1.0 },
            peer_request_weight: 1.0 / plan.balancer_count(),
            streaming: hand.streaming,
            session: ask.is_session,
            binds: ask.binds_client,
        }
    }

    /// Returns the effective value of an observed latency.
    fn effective_latency(&self, latency: f64) -> f64 {
        if self.binds { (latency / ALIKE).max(self.latency) } else { latency }
    }

    /// Returns the cost of this member. `lately` is its observed latency and age; `unchosen` is the time
    /// since it was last chosen from here. Times are in nanoseconds.
    fn cost(&self, member: &Member, lately: Option<(f32, u64)>, unchosen: u64, now: Time) -> f64 {
        // The member's weight as a multiple of the mean.
        let part = member.weight * self.per_weight;
        let awaiting = if self.session { member.in_flight() } else { member.vitals.awaiting() };
        let load = f64::from(awaiting) + member.vitals.peer_in_flight() * self.peer_request_weight;
        if self.session {
            return load / part + 1.0;
        }
        let crowd = (load + self.streams(member)) / part + 1.0;
        let idle = awaiting == 0;
        let unanswered = || member.vitals.excess_silence(self.latency, now);
        let Some((latency, age)) = lately else {
            return match member.vitals.streak() {
                // A new member is tried, and then counts like the others until it has answered.
                0 if idle => 0.0,
                0 => crowd * crowd * self.latency.max(unanswered()),
                // All its requests failed: it is tried again, but not first.
                failures => {
                    crowd * crowd * self.latency * f64::from(1 + failures.min(3)) / self.faded(unchosen)
                }
            };
        };
        let latency = self.effective_latency(f64::from(latency));
        let latency = if latency < WORST * self.latency { latency } else { WORST * self.latency };
        if idle {
            // Ages are exact to the millisecond; below that the time of the last choice decides.
            return (1.0 + self.streams(member)) * latency
                / (part * self.faded(age.max(unchosen.min(TICKS))));
        }
        // Many requests take a few times the mean. A request that is late beyond that is known now, and does
        // not age.
        let late = OVERDUE_MULTIPLE * latency;
        let owed = if age as i64 as f64 > late { unanswered() } else { 0.0 };
        let owed = if owed > late { owed } else { 0.0 };
        crowd * crowd * (latency / self.faded(age.min(unchosen))).max(owed)
    }

    /// Returns the count of a member's streams: half a request if it has at least twice as many as the
    /// others.
    fn streams(&self, member: &Member) -> f64 {
        let streaming = member.vitals.streaming();
        if streaming == 0 {
            return 0.0;
        }
        0.25 * (f64::from(streaming) / (1.0 + self.streaming)).min(2.0)
    }

    /// Returns the factor by which an observation of this age counts less.
    fn faded(&self, age: u64) -> f64 {
        1.0 + age as i64 as f64 * self.fading
    }
}

/// The minimum number of members in the aperture.
const LEAST: usize = 10;

/// The number of choices over which the requests in flight are averaged.
const CHOICES: f64 = 64.0;

/// The maximum slowness of a member, as a multiple of the usual latency.
const WORST: f64 = 16.0;

/// The multiple of the recent latency after which a missing answer counts: one exponential length in 55 is as
/// long.
pub(super) const OVERDUE_MULTIPLE: f64 = 4.0;

/// The multiple of the usual latency up to which a member is as good as others for requests that bind. The
/// longest of a few requests of random (exponential) length takes three times the mean.
const ALIKE: f64 = 4.0;

/// The multiple of a request's usual latency for which an observation counts in full, or nearly so; it is
/// less if requests are very short.
const FRESH: f64 = 16.0;

/// The difference of latencies without meaning, nanoseconds. Of two members that answer in a fraction of
/// that, neither must get nearly all requests because it once was faster.
const NOISE: f64 = 4e6;

/// The resolution of an observation's age, nanoseconds.
const TICKS: u64 = 2_000_000;

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
        hand: &mut PickerState,
        every: u64,
        takes: &[u64],
        from: u64,
        requests: u64,
    ) -> Vec<u32> {
        let mut under_way: VecDeque<(u64, u64, usize)> = VecDeque::new();
        for turn in 0..requests {
            let now = from + turn * every;
            under_way.retain(|(end, took, index)| {
                let vitals = &plan.members()[*index].vitals;
                if *end <= now {
                    vitals.end();
                    plan.observe(hand, vitals, Duration::from_millis(*took), false, Time(end * MILLISECOND));
                }
                *end > now
            });
            let ask = PickRequest {
                turn,
                random_bits: turn,
                now: Time(now * MILLISECOND),
                ..PickRequest::default()
            };
            let Choice::Member(index) = plan.choose(hand, &ask, &[]) else { panic!("there is room") };
            plan.members()[index].vitals.begin();
            under_way.push_back((now + takes[index], takes[index], index));
        }
        let got = plan.members().iter().map(|member| member.vitals.begun()).collect();
        under_way.iter().for_each(|(_, _, index)| plan.members()[*index].vitals.end());
        got
    }

    #[test]
    fn members_of_which_nothing_is_known_have_turns() {
        let (plan, mut hand) = (plan(&[1.0; 4]), PickerState::default());
        // No latency is observed, because every request outlasts the test.
        assert_eq!(drive(&plan, &mut hand, 1, &[1_000; 4], 0, 40), [10; 4]);
        for turn in 0..40 {
            let ask = PickRequest { turn, random_bits: turn, now: Time(1), ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else { panic!("there is room") };
            plan.members()[index].vitals.begin();
            plan.members()[index].vitals.end();
        }
        let got: Vec<u32> = plan.members().iter().map(|member| member.vitals.begun()).collect();
        assert_eq!(got, [20; 4], "of what ends and is not seen, such as sessions");
    }

    #[test]
    fn sessions_go_where_there_are_fewest_however_long_they_last() {
        let (plan, mut hand) = (plan(&[1.0, 1.0, 2.0]), PickerState::default());
        for (turn, takes) in (0..50).zip([[100, 400, 400], [400, 100, 100]].into_iter().cycle()) {
            drive(&plan, &mut hand, 5, &takes, 10_000 * turn, 60);
        }
        // Sixty at once: none ends meanwhile.
        for turn in 0..60 {
            let ask = PickRequest {
                turn,
                random_bits: turn,
                now: Time(1),
                is_session: true,
                ..PickRequest::default()
            };
            let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else { panic!("there is room") };
            plan.members()[index].vitals.begin();
        }
        let has: Vec<u32> = plan.members().iter().map(|member| member.vitals.in_flight()).collect();
        assert_eq!(has.iter().sum::<u32>(), 60);
        for (has, fair) in has.into_iter().zip([15, 15, 30]) {
            assert!(has.abs_diff(fair) <= 1, "{has}, not {fair}");
        }
    }

    #[test]
    fn who_is_told_to_clients_and_not_counted_has_turns() {
        let (plan, mut hand) = (plan(&[1.0, 1.0, 2.0]), PickerState::default());
        drive(&plan, &mut hand, 20, &[10, 20, 40], 1_000, 400);
        let mut told = [0_u32; 3];
        for turn in 0..100 {
            let now = Time((9_000 + 5 * turn) * MILLISECOND);
            let ask =
                PickRequest { turn, random_bits: turn, now, is_session: true, ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else { panic!("there is room") };
            told[index] += 1;
        }
        for (told, fair) in told.into_iter().zip([25, 25, 50]) {
            assert!(told.abs_diff(fair) <= 20, "{told}, not {fair}");
        }
    }

    #[test]
    fn those_that_bind_their_clients_go_evenly_to_idle_members_unless_one_is_far_slower() {
        let got = |takes: [u64; 3], binds: bool| {
            let (plan, mut hand) = (plan(&[1.0; 3]), PickerState::default());
            for turn in 0..60 {
                let now = Time((9_000 + 200 * turn) * MILLISECOND);
                let ask = PickRequest {
                    turn,
                    random_bits: turn,
                    now,
                    binds_client: binds,
                    ..PickRequest::default()
                };
                let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else {
                    panic!("there is room")
                };
                let vitals = &plan.members()[index].vitals;
                vitals.begin();
                let took = Duration::from_millis(takes[index]);
                plan.observe(&mut hand, vitals, took, false, now + took);
                vitals.end();
            }
            let got: Vec<u32> = plan.members().iter().map(|member| member.vitals.begun()).collect();
            got
        };
        let even = got([10, 25, 30], true);
        assert!(even.iter().all(|got| got.abs_diff(20) <= 1), "{even:?}");
        assert!(got([10, 25, 30], false)[0] >= 26);
        assert!(got([10, 10, 150], true)[2] <= 15);
    }

    #[test]
    fn idle_members_have_turns_by_their_latencies() {
        let (plan, mut hand) = (plan(&[1.0; 3]), PickerState::default());
        let got = drive(&plan, &mut hand, 4_000, &[10, 20, 40], 1_000, 700);
        for (got, fair) in got.into_iter().zip([400, 200, 100]) {
            assert!(got.abs_diff(fair) <= fair / 5, "{got}, not {fair}");
        }
    }

    #[test]
    fn members_that_hardly_take_any_time_have_turns() {
        let (plan, mut hand) = (plan(&[1.0; 3]), PickerState::default());
        for turn in 0..300_u64 {
            let now = 1_000_000_000 + turn * 300_000;
            let ask = PickRequest { turn, random_bits: turn, now: Time(now), ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else { panic!("there is room") };
            let vitals = &plan.members()[index].vitals;
            vitals.begin();
            vitals.end();
            // The first request to each member makes a connection, which takes three times as long at the
            // first member.
            let takes = if vitals.begun() > 1 { 200_000 } else { [900_000, 300_000, 300_000][index] };
            plan.observe(&mut hand, vitals, Duration::from_nanos(takes), false, Time(now + takes));
        }
        for member in plan.members() {
            let got = member.vitals.begun();
            assert!((60..150).contains(&got), "{got} of 300");
        }
    }

    #[test]
    fn who_was_slow_is_tried_again() {
        for every in [5, 50, 1_000] {
            let (plan, mut hand) = (plan(&[1.0; 3]), PickerState::default());
            drive(&plan, &mut hand, every, &[10, 10, 100], 1_000, 400);
            let before = plan.members()[2].vitals.begun();
            drive(&plan, &mut hand, every, &[10; 3], 2_000_000, 4_000);
            let got = plan.members()[2].vitals.begun() - before;
            assert!(got > 800, "every {every} ms: {got} of 4000");
        }
    }

    #[test]
    fn who_was_slow_is_tried_again_though_it_is_never_idle() {
        let (plan, mut hand) = (plan(&[1.0; 3]), PickerState::default());
        // One lasting request at each member, such as a tunnel.
        plan.members().iter().for_each(|member| _ = member.vitals.begin());
        drive(&plan, &mut hand, 5, &[10; 3], 1_000, 200);
        for _ in 0..5 {
            let vitals = &plan.members()[0].vitals;
            plan.observe(&mut hand, vitals, Duration::from_secs(5), false, Time(2_000 * MILLISECOND));
        }
        // A slow member is tried again the sooner the busier the others are.
        for (every, from, least) in [(5, 2_000, 1), (5, 12_000, 150), (5, 22_000, 500), (1, 80_000, 600)] {
            if every == 1 {
                let vitals = &plan.members()[0].vitals;
                (0..5).for_each(|_| {
                    _ = plan.observe(
                        &mut hand,
                        vitals,
                        Duration::from_secs(5),
                        false,
                        Time(from * MILLISECOND),
                    )
                });
            }
            let before = plan.members()[0].vitals.begun();
            drive(&plan, &mut hand, every, &[10; 3], from, 10_000 / every);
            let got = plan.members()[0].vitals.begun() - before;
            assert!(got >= least, "{got} in ten seconds, every {every} ms");
        }
        let silent = plan.members()[0].vitals.begun();
        drive(&plan, &mut hand, 5, &[1_000_000, 10, 10], 100_000, 4_000);
        let got = plan.members()[0].vitals.begun() - silent;
        assert!(got < 80, "{got} of 4000 to one that does not answer");
    }

    #[test]
    fn one_long_answer_is_no_slow_member() {
        let (plan, mut hand) = (plan(&[1.0; 4]), PickerState::default());
        drive(&plan, &mut hand, 5, &[10; 4], 1_000, 400);
        let vitals = &plan.members()[3].vitals;
        plan.observe(&mut hand, vitals, Duration::from_secs(3_600), false, Time(3_000 * MILLISECOND));
        for (from, least) in [(3_000, 25), (5_000, 75)] {
            let before = vitals.begun();
            drive(&plan, &mut hand, 5, &[10; 4], from, 400);
            let got = vitals.begun() - before;
            assert!(got >= least, "{got} of 400");
        }
    }

    #[test]
    fn who_has_only_failed_is_not_tried_first() {
        let (plan, mut hand) = (plan(&[1.0; 3]), PickerState::default());
        let mut got = 0;
        for turn in 0..300 {
            let now = Time((1_000 + 5 * turn) * MILLISECOND);
            let ask = PickRequest { turn, random_bits: turn, now, ..PickRequest::default() };
            let Choice::Member(index) = plan.choose(&mut hand, &ask, &[]) else { panic!("there is room") };
            let vitals = &plan.members()[index].vitals;
            vitals.begin();
            vitals.end();
            got += i32::from(index == 0);
            if index == 0 {
                vitals.record_failure();
            } else {
                vitals.record_success();
            }
            plan.observe(&mut hand, vitals, Duration::from_millis(10), index == 0, now);
        }
        assert!((3..75).contains(&got), "{got} of 300");
    }

    #[test]
    fn whatever_the_unit_of_the_weights_a_small_one_has_less() {
        for unit in [1e-3, 1.0, 1e3] {
            for (every, part) in [(4, 0.1), (4, 0.5), (200, 0.1), (200, 0.5)] {
                let (plan, mut hand) = (plan(&[unit, unit, unit, unit * part]), PickerState::default());
                let got = drive(&plan, &mut hand, every, &[20; 4], 1_000, 2_000);
                let fair = part / (3.0 + part) * 2_000.0;
                let got = f64::from(got[3]);
                assert!(
                    got > fair / 5.0 && got < 2.0 * fair,
                    "{part} of {unit} every {every} ms: {got}, not {fair}"
                );
            }
        }
    }
}
