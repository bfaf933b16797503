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
        seen: &GroupObservation<'_>,
        target: ScaleTarget,
    ) -> Option<DemandSample> {
        let usable = || seen.members.iter().filter(|member| member.has_state(ScaledMemberState::Usable));
        let worth: f64 = usable().map(MemberObservation::group_capacity).sum();
        let rate = sound(seen.rate)?;
        let waiting = sound(seen.waiting).unwrap_or(0.0);
        if worth <= 0.0 {
            return None;
        }
        let line = extrapolated_sum(usable().map(|member| (member, fair_rate(member))), worth)
            .filter(|_| seen.load_line_known);
        let busy = |member: &MemberObservation<'_>| Some(member.utilization? * member.group_capacity());
        let told = extrapolated_sum(usable().map(|member| (member, busy(member))), worth);
        // As parts of the capacity.
        let line = line.filter(|line| *line > 0.0).map(|line| (worth / line, "load line"));
        let told = told.map(|busy| ((busy / worth).clamp(0.0, 1.0), "processors"));
        let by_line = line.map(|(work, source)| (rate * work / worth, source));
        let known = match target {
            ScaleTarget::Utilization(_) => told.or(by_line),
            ScaleTarget::HeadRoom(_) | ScaleTarget::ResponseTime(_) => by_line.or(told),
        };
        let response = seen.response_p95.and_then(sound).filter(|seconds| *seconds > 0.0);
        self.learn_unloaded_time(response, known.map(|(used, _)| used));
        let allowed = match target {
            ScaleTarget::Utilization(part) => part,
            ScaleTarget::HeadRoom(part) => 1.0 - part,
            ScaleTarget::ResponseTime(goal) => {
                self.unloaded_time.map_or(DEFAULT_UTILIZATION, |alone| 1.0 - alone / goal)
            }
        };
        let allowed = allowed.clamp(MIN_UTILIZATION, MAX_UTILIZATION);
        let times = |response: Option<f64>, alone: Option<f64>| {
            let (response, alone) = (response?, alone?);
            matches!(target, ScaleTarget::ResponseTime(_)).then(|| ((1.0 - alone / response).max(0.0), TIMES))
        };
        let idle = rate == 0.0 && waiting == 0.0 && usable().all(|member| member.in_flight == 0);
        let known = match known.or_else(|| times(response, self.unloaded_time)) {
            _ if idle && told.is_none() => Some((0.0, "nothing comes")),
            None => self.work.map(|work| (rate * work / worth, "what requests cost before")),
            known => known,
        };
        let (used, source) = known?;
        match line {
            Some((work, _)) => self.learn_work(work),
            // A full group shows no more than that.
            None if rate >= MIN_LEARNING_RATE && used < SATURATED => self.learn_work(used * worth / rate),
            None => {}
        }
        let came = self.work.map_or(0.0, |work| (rate + waiting / CATCH_UP) * work);
        let measured = used * worth;
        let demand = match source {
            _ if used >= SATURATED || waiting > 0.0 => measured.max(came),
            // The times of one look are as much luck as load; the cost of a request is known from many.
            "load line" | TIMES => came,
            _ => measured,
        };
        let pace = self.work.filter(|work| *work > 0.0).map(|work| 1.0 / work);
        Some(DemandSample {
            demand,
            allowed_utilization: allowed,
            utilization: used,
            source,
            unit_rate: pace,
        })
    }

    fn learn_work(&mut self, work: f64) {
        if let Some(work) = sound(work) {
            self.work = Some(self.work.map_or(work, |known| known + (work - known) * LOOK_WEIGHT));
        }
    }

    /// Learns the measured time less the waiting part; if that part is unknown, the shortest recent time.
    fn learn_unloaded_time(&mut self, response: Option<f64>, used: Option<f64>) {
        let Some(response) = response else { return };
        let calm = self.smoothed_time.map_or(response, |known| known + (response - known) * SMOOTHING_WEIGHT);
        self.smoothed_time = Some(calm);
        self.unloaded_time = Some(match (self.unloaded_time, used) {
            (known, Some(used)) if used < SATURATED => {
                let alone = response * (1.0 - used);
                known.map_or(alone, |known| known + (alone - known) * LOOK_WEIGHT)
            }
            (Some(known), _) => (known * BASELINE_GROWTH).min(calm),
            (None, _) => calm,
        });
    }
}

/// Returns the sum over all members if at least half of their capacity is known: the others are assumed to be
/// alike.
fn extrapolated_sum<'a>(
    of: impl Iterator<Item = (&'a MemberObservation<'a>, Option<f64>)>,
    worth: f64,
) -> Option<f64> {
    let (mut sum, mut known) = (0.0, 0.0);
    for (member, value) in of {
        if let Some(value) = value.and_then(sound) {
            sum += value;
            known += member.group_capacity();
        }
    }
    (known > 0.0 && 2.0 * known >= worth).then(|| sum * worth / known)
}

/// Returns the group's requests a second at a member.
///
/// Its load line contains what fits beside the others' load on that host, so two groups would both count the
/// free part. Here each has its part of the whole: an empty host could serve `line / (1 - others)` for this
/// group, and `share` of that is its own.
fn fair_rate(member: &MemberObservation<'_>) -> Option<f64> {
    let line = member.line?;
    let others = member.utilization.map_or(0.0, |used| used.clamp(0.0, 1.0) * (1.0 - member.share));
    Some(line * member.share / (1.0 - others).max(MIN_HOST_REMAINDER))
}

fn sound(number: f64) -> Option<f64> {
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// The source of a figure from response times.
const TIMES: &str = "response times";

/// The seconds within which waiting requests are to be served, beside arriving ones.
const CATCH_UP: f64 = 5.0;

/// The utilization above which the remaining demand is unknown.
const SATURATED: f64 = 0.9;

/// The weight of a look among earlier ones, and the growth of a shortest time at each look.
const LOOK_WEIGHT: f64 = 0.1;
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
