//! The capacity in use, and the part that may be in use.
//!
//! The sources are, in the order that suits the target: the load line of the members (requests a second that
//! each can serve: [`crate::load_line`]; ignored while that of the group is a range); agents' processor
//! utilization; and, only for a target in seconds, the response times themselves.
//!
//! Response times double at half of the load wherever requests share a resource in turn: `R = S / (1 - u)`
//! (M/M/1 and processor sharing; Little 1961, Kleinrock 1975). So `u = 1 - S / R` is in use and `1 - S /
//! goal` may be. `S`, the time of a request alone, is learnt, or is the shortest time seen.
//!
//! The cost of requests (capacity for a second each) is remembered, so that waiting and rejected ones count
//! as well: a full group serves no more than it can, whatever the demand.

use super::{GroupObservation, MemberObservation, ScaleTarget, ScaledMemberState};

/// The learnt figures of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct DemandEstimator {
    /// The capacity for a second that one takes.
    work: Option<f64>,
    /// The seconds that 95 of 100 take without other load.
    unloaded_time: Option<f64>,
    /// The seconds that 95 of 100 take, smoothed over some looks: the least of single looks would be luck.
    smoothed_time: Option<f64>,
}

/// The result of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandSample {
    /// The capacity in use, or the capacity that would be if there were enough.
    pub(super) demand: f64,
    /// The part of the capacity that may be in use; above 0, below 1.
    pub(super) allowed_utilization: f64,
    /// The used part of the usable capacity.
    pub(super) utilization: f64,
    /// The source of the figure.
    pub(super) source: &'static str,
    /// The requests a second that one unit of capacity can serve, if known.
    pub(super) unit_rate: Option<f64>,
}

impl DemandEstimator {
    /// Records a look and returns its result; `None` if nothing is known.
    pub(super) fn observe(
        &mut self,
        observation: &GroupObservation<'_>,
        target: ScaleTarget,
    ) -> Option<DemandSample> {
        let usable =
            || observation.members.iter().filter(|member| member.has_state(ScaledMemberState::Usable));
        let capacity: f64 = usable().map(MemberObservation::group_capacity).sum();
        let rate = non_negative(observation.rate)?;
        let waiting = non_negative(observation.waiting).unwrap_or(0.0);
        if capacity <= 0.0 {
            return None;
        }
        let load_line = extrapolated_sum(usable().map(|member| (member, fair_rate(member))), capacity)
            .filter(|_| observation.load_line_known);
        let busy_capacity =
            |member: &MemberObservation<'_>| Some(member.utilization? * member.group_capacity());
        let reported = extrapolated_sum(usable().map(|member| (member, busy_capacity(member))), capacity);
        // As parts of the capacity.
        let load_line = load_line
            .filter(|line_rate| *line_rate > 0.0)
            .map(|line_rate| (capacity / line_rate, "load line"));
        let reported =
            reported.map(|busy_capacity| ((busy_capacity / capacity).clamp(0.0, 1.0), "processors"));
        let by_load_line = load_line.map(|(work, source)| (rate * work / capacity, source));
        let measured = match target {
            ScaleTarget::Utilization(_) => reported.or(by_load_line),
            ScaleTarget::HeadRoom(_) | ScaleTarget::ResponseTime(_) => by_load_line.or(reported),
        };
        let response = observation.response_p95.and_then(non_negative).filter(|seconds| *seconds > 0.0);
        self.learn_unloaded_time(response, measured.map(|(utilization, _)| utilization));
        let allowed_utilization = match target {
            ScaleTarget::Utilization(utilization) => utilization,
            ScaleTarget::HeadRoom(headroom) => 1.0 - headroom,
            ScaleTarget::ResponseTime(seconds) => {
                self.unloaded_time.map_or(DEFAULT_UTILIZATION, |unloaded| 1.0 - unloaded / seconds)
            }
        };
        let allowed_utilization = allowed_utilization.clamp(MIN_UTILIZATION, MAX_UTILIZATION);
        let by_response_time = |response: Option<f64>, unloaded: Option<f64>| {
            let (response, unloaded) = (response?, unloaded?);
            matches!(target, ScaleTarget::ResponseTime(_))
                .then(|| ((1.0 - unloaded / response).max(0.0), RESPONSE_TIMES))
        };
        let is_idle = rate == 0.0 && waiting == 0.0 && usable().all(|member| member.in_flight == 0);
        let sample = match measured.or_else(|| by_response_time(response, self.unloaded_time)) {
            _ if is_idle && reported.is_none() => Some((0.0, "nothing comes")),
            None => self.work.map(|work| (rate * work / capacity, "what requests cost before")),
            measured => measured,
        };
        let (utilization, source) = sample?;
        match load_line {
            Some((work, _)) => self.learn_work(work),
            // A full group shows no more than that.
            None if rate >= MIN_LEARNING_RATE && utilization < SATURATED_UTILIZATION => {
                self.learn_work(utilization * capacity / rate)
            }
            None => {}
        }
        let arriving_demand = self.work.map_or(0.0, |work| (rate + waiting / CATCH_UP_SECONDS) * work);
        let used_capacity = utilization * capacity;
        let demand = match source {
            _ if utilization >= SATURATED_UTILIZATION || waiting > 0.0 => used_capacity.max(arriving_demand),
            // The times of one look are as much luck as load; the cost of a request is known from many.
            "load line" | RESPONSE_TIMES => arriving_demand,
            _ => used_capacity,
        };
        let unit_rate = self.work.filter(|work| *work > 0.0).map(|work| 1.0 / work);
        Some(DemandSample { demand, allowed_utilization, utilization, source, unit_rate })
    }

    fn learn_work(&mut self, work: f64) {
        if let Some(work) = non_negative(work) {
            self.work = Some(self.work.map_or(work, |previous| previous + (work - previous) * SAMPLE_WEIGHT));
        }
    }

    /// Learns the measured time less the waiting part; if that part is unknown, the shortest recent time.
    fn learn_unloaded_time(&mut self, response: Option<f64>, utilization: Option<f64>) {
        let Some(response) = response else { return };
        let smoothed = self
            .smoothed_time
            .map_or(response, |previous| previous + (response - previous) * SMOOTHING_WEIGHT);
        self.smoothed_time = Some(smoothed);
        self.unloaded_time = Some(match (self.unloaded_time, utilization) {
            (unloaded, Some(utilization)) if utilization < SATURATED_UTILIZATION => {
                let sample = response * (1.0 - utilization);
                unloaded.map_or(sample, |previous| previous + (sample - previous) * SAMPLE_WEIGHT)
            }
            (Some(unloaded), _) => (unloaded * BASELINE_GROWTH).min(smoothed),
            (None, _) => smoothed,
        });
    }
}

/// Returns the sum over all members if at least half of their capacity is known: the others are assumed to be
/// alike.
fn extrapolated_sum<'a>(
    values: impl Iterator<Item = (&'a MemberObservation<'a>, Option<f64>)>,
    capacity: f64,
) -> Option<f64> {
    let (mut sum, mut known_capacity) = (0.0, 0.0);
    for (member, value) in values {
        if let Some(value) = value.and_then(non_negative) {
            sum += value;
            known_capacity += member.group_capacity();
        }
    }
    (known_capacity > 0.0 && 2.0 * known_capacity >= capacity).then(|| sum * capacity / known_capacity)
}

/// Returns the group's requests a second at a member.
///
/// Its load line contains what fits beside the others' load on that host, so two groups would both count the
/// free part. Here each has its part of the whole: an empty host could serve `line / (1 - others)` for this
/// group, and `share` of that is its own.
fn fair_rate(member: &MemberObservation<'_>) -> Option<f64> {
    let load_line = member.line?;
    let other_share =
        member.utilization.map_or(0.0, |utilization| utilization.clamp(0.0, 1.0) * (1.0 - member.share));
    Some(load_line * member.share / (1.0 - other_share).max(MIN_HOST_REMAINDER))
}

fn non_negative(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// The source of a figure from response times.
const RESPONSE_TIMES: &str = "response times";

/// The seconds within which waiting requests are to be served, beside arriving ones.
const CATCH_UP_SECONDS: f64 = 5.0;

/// The utilization above which the remaining demand is unknown.
const SATURATED_UTILIZATION: f64 = 0.9;

/// The weight of a look among earlier ones, and the growth of a shortest time at each look.
const SAMPLE_WEIGHT: f64 = 0.1;
const BASELINE_GROWTH: f64 = 1.001;

/// The weight of a look's times among earlier ones, in the search for the shortest.
const SMOOTHING_WEIGHT: f64 = 0.25;

/// The requests a second below which the cost of one is not learnt.
const MIN_LEARNING_RATE: f64 = 5.0;

/// The minimum part of a host that others leave.
const MIN_HOST_REMAINDER: f64 = 0.05;

/// The allowed utilization for a target in seconds while `S` is unknown, and the bounds for any target.
const DEFAULT_UTILIZATION: f64 = 0.5;
const MIN_UTILIZATION: f64 = 0.05;
const MAX_UTILIZATION: f64 = 0.95;
