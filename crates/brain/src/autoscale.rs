//! The autoscaler: the number of members of a group, and the members to remove.
//!
//! It is a value driven from outside, about once a second. [`Scaler::observe`] takes the state of the group,
//! and returns the action of the moment, the desired number, and the reason. It starts and stops nothing; an
//! [`InstanceSet`](instances::InstanceSet) does.
//!
//! All quantities are *capacity*, of which a member has its configured amount (by default 1), so that unequal
//! members count by their size. Each look has four steps:
//!
//! 1. **Demand** (`demand`): the capacity that is fully in use, by the load line, by agents' processor
//!    utilization, or by response times. Arriving requests count, not served ones: a full group would
//!    otherwise look as if it had just enough.
//! 2. **Forecast** (`forecast`): Holt's level and trend of the demand, as far ahead as a member takes to
//!    start, with the upper end of the forecast's error band.
//! 3. **Want**: the greater of the demand now and ahead, over the part of the capacity that the target allows
//!    to be in use.
//! 4. **Bounds**: `min` and `max`, steps, cool-downs. A member is removed only if the rest would have been
//!    enough at every look of the last `stabilize`, by the want of the time.
//!
//! A started member that does not serve yet counts with its full capacity: it is not started twice. A member
//! that cannot be used counts as nothing, and is replaced. If no member can be used, or nothing is known, the
//! group keeps its members.
//!
//! The exception needs no model: requests are rejected for want of room, or wait for it at two looks in a
//! row. Then one more member is started, and the next one when that serves.
//!
//! `tests/scale` runs it for a simulated day.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::Time;
use demand::DemandEstimator;
use forecast::DemandForecaster;

mod demand;
mod explain;
mod forecast;
pub mod instances;
mod reason;
mod scale_in;

pub use reason::ScaleReason;

/// The target state of a group's members.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleTarget {
    /// The part of their capacity in use; above 0, below 1.
    Utilization(f64),
    /// The maximum time of 95 of 100 requests, seconds; above 0.
    ResponseTime(f64),
    /// The free part of their load line; above 0, below 1.
    HeadRoom(f64),
}

/// The settings of a scaler.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerSettings {
    /// The minimum number of members, including those that it cannot remove.
    pub min: u32,
    /// The maximum number of members; at least `min`.
    pub max: u32,
    /// The target.
    pub target: ScaleTarget,
    /// The capacity of a member that it starts; above 0.
    pub unit_capacity: f64,
    /// The time after a start before the next start.
    pub cool_up: Duration,
    /// The time after a start or a removal before a removal.
    pub cool_down: Duration,
    /// The maximum number of members started at once; at least 1.
    pub step_up: u32,
    /// The maximum number of members removed at once; at least 1.
    pub step_down: u32,
    /// The time for which the want of a look must be kept.
    pub stabilize: Duration,
    /// The time that a member takes to start, until it was measured.
    pub start_time: Duration,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaledMemberState {
    /// It can be chosen.
    Usable,
    /// It was started, and has not served yet.
    Starting,
    /// It exists, and cannot be chosen: down, ejected, disabled by an operator.
    Unavailable,
    /// It is being removed.
    Draining,
}

/// A member in a look.
#[derive(Clone, Copy, Debug)]
pub struct MemberObservation<'a> {
    /// The configured name.
    pub name: &'a str,
    /// The capacity relative to the others; above 0.
    pub capacity: f64,
    /// The state.
    pub state: ScaledMemberState,
    /// Whether the scaler can remove it.
    pub is_removable: bool,
    /// The requests in flight.
    pub in_flight: u32,
    /// The used part of its whole host's processors, if an agent reports it.
    pub utilization: Option<f64>,
    /// The requests a second that it can serve for all balancers of the fleet, by the load line, if known.
    /// Ignored unless [`GroupObservation::load_line_known`].
    pub line: Option<f64>,
    /// The group's part of its host's capacity, above 0 and at most 1: 1 without other groups there.
    pub share: f64,
}

impl MemberObservation<'_> {
    /// Returns its capacity for this group: the capacity of a host counts once, however many groups are
    /// there.
    fn group_capacity(&self) -> f64 {
        self.capacity * self.share
    }

    fn has_state(&self, state: ScaledMemberState) -> bool {
        self.state == state
    }
}

/// The state of a group in a look.
#[derive(Clone, Copy, Debug)]
pub struct GroupObservation<'a> {
    /// All of its members.
    pub members: &'a [MemberObservation<'a>],
    /// `true` if the load line of the group is a number. While it is a range, known members show nothing
    /// about the others.
    pub load_line_known: bool,
    /// The requests a second that came since the last look, whatever their outcome, to all balancers of the
    /// fleet.
    pub rate: f64,
    /// The part of those that came to other balancers.
    pub peer_rate: f64,
    /// The requests that wait for a member.
    pub waiting: f64,
    /// The requests a second that were rejected for want of room since the last look.
    pub rejected: f64,
    /// The 95th percentile of the times of requests that ended since the last look, seconds; `None` if too
    /// few did.
    pub response_p95: Option<f64>,
}

/// The action, and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleDecision {
    /// The number of members that the target needs, within `min` and `max`.
    pub desired: u32,
    /// The number of members that are present or coming.
    pub present: u32,
    /// The number of members to start now.
    pub add: u32,
    /// The names of the members to remove now; they are drained first.
    pub remove: Vec<String>,
    /// Whether it differs from the desired number of the previous look.
    pub desired_changed: bool,
    /// A keyword for a counter.
    pub reason: ScaleReason,
    /// A sentence for display.
    pub explanation: String,
    /// The numbers behind the decision, by name; all finite.
    pub inputs: Vec<(String, f64)>,
}

/// The response to a lack of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CapacityShortage {
    /// One more is started.
    StartOne,
    /// One is coming already.
    AlreadyStarting,
    /// The maximum is reached.
    AtMaximum,
}

/// The scaler of one group.
#[derive(Clone, Debug)]
pub struct Scaler {
    settings: ScalerSettings,
    demand: DemandEstimator,
    forecast: DemandForecaster,
    /// The mean time that members took to start; seconds.
    start_seconds: f64,
    /// The time of its first look.
    first_observed: Option<Time>,
    /// The times of the last start and of the last removal.
    last_start: Option<Time>,
    last_removal: Option<Time>,
    /// The wants of the last `stabilize` with their times: those that no later one exceeds.
    recent_wants: VecDeque<(Time, f64)>,
    /// The last desired number.
    desired: Option<u32>,
    /// Whether requests waited at the previous look.
    was_waiting: bool,
    paused: bool,
}

impl Scaler {
    /// Returns a scaler without history.
    pub fn new(settings: ScalerSettings) -> Self {
        let start_seconds = settings.start_time.as_secs_f64();
        Self {
            demand: DemandEstimator::default(),
            forecast: DemandForecaster::new(start_seconds),
            start_seconds,
            settings,
            first_observed: None,
            last_start: None,
            last_removal: None,
            recent_wants: VecDeque::new(),
            desired: None,
            was_waiting: false,
            paused: false,
        }
    }

    /// Applies other settings and keeps the learnt state.
    pub fn apply_settings(&mut self, settings: ScalerSettings) {
        if settings.target != self.settings.target {
            self.recent_wants.clear();
        }
        self.settings = settings;
    }

    /// Returns the settings.
    pub fn settings(&self) -> &ScalerSettings {
        &self.settings
    }

    /// Sets whether it is paused. While paused, nothing is started or removed, except to reach `min`.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Returns `true` if it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Records the time of a member from its start until it could be used.
    pub fn record_start_time(&mut self, start_time: Duration) {
        let start_seconds = start_time.as_secs_f64().min(MAX_START_SECONDS);
        self.start_seconds += (start_seconds - self.start_seconds) * START_TIME_WEIGHT;
        self.forecast.set_horizon(self.start_seconds);
    }

    /// Returns the known time that members take to start; seconds.
    pub fn start_seconds(&self) -> f64 {
        self.start_seconds
    }

    /// Takes a look, and decides. `dry`: the action is not performed, so no cool-down begins.
    pub fn observe(&mut self, observation: &GroupObservation<'_>, dry_run: bool, now: Time) -> ScaleDecision {
        self.first_observed.get_or_insert(now);
        let is_counted = |member: &&MemberObservation<'_>| {
            matches!(member.state, ScaledMemberState::Usable | ScaledMemberState::Starting)
        };
        let staying_members = || observation.members.iter().filter(is_counted);
        let present = staying_members().count() as u32;
        let capacity: f64 = staying_members().map(MemberObservation::group_capacity).sum();
        let mut candidates = scale_in::RemovalCandidates::from_observation(observation);
        let shortage = self.shortage(observation, present);
        let extra = u32::from(shortage == Some(CapacityShortage::StartOne));
        let Some(demand) = self.demand.observe(observation, self.settings.target) else {
            // Bounds hold even if nothing is known.
            self.forecast.reset();
            let desired = present.saturating_add(extra).clamp(self.settings.min, self.settings.max);
            let inputs = explain::unknown_load_inputs(observation, present);
            let explanation = explain::unknown_load_explanation(observation, self.settings.target, shortage);
            let reason = match shortage {
                Some(_) => ScaleReason::NoRoom,
                None if desired > present => ScaleReason::Least,
                None if desired < present => ScaleReason::Most,
                None => ScaleReason::Unknown,
            };
            return self.decide(desired, present, candidates, (reason, explanation, inputs), dry_run, now);
        };
        let forecast = self.forecast.observe(demand.demand, now);
        let wanted_capacity = forecast.upper * CAPACITY_MARGIN / demand.allowed_utilization;
        let unit_capacity = self.settings.unit_capacity.max(MIN_CAPACITY);
        // A number that proved too small is not returned to at the next look.
        let min_wanted = shortage
            .map_or(wanted_capacity, |_| wanted_capacity.max(capacity + unit_capacity * f64::from(extra)));
        self.record_want(min_wanted, now);
        let floor = self.recent_wants.front().map_or(wanted_capacity, |(_, max_wanted)| *max_wanted);
        let additions = members_for(wanted_capacity - capacity, unit_capacity).max(extra);
        let removals =
            candidates.spare(capacity, floor - unit_capacity * ROUNDING_TOLERANCE, present).len() as u32;
        let needed = present.saturating_add(additions).saturating_sub(removals);
        let desired = needed.clamp(self.settings.min, self.settings.max);
        let decision_inputs = explain::DecisionInputs {
            observation,
            demand: &demand,
            forecast: &forecast,
            wanted_capacity,
            floor,
            capacity,
            present,
            desired,
        };
        let (mut explanation, inputs) = (
            decision_inputs.explanation(&self.settings, self.start_seconds),
            decision_inputs.inputs(self.start_seconds),
        );
        if let Some(shortage) = shortage {
            explain::append_shortage(&mut explanation, observation, shortage);
        }
        let reason_inputs = reason::ReasonInputs {
            shortage: shortage.is_some(),
            present,
            needed,
            desired,
            demand_exceeds_capacity: demand.demand * CAPACITY_MARGIN / demand.allowed_utilization - capacity
                > unit_capacity * ROUNDING_TOLERANCE,
        };
        self.decide(desired, present, candidates, (reason_inputs.reason(), explanation, inputs), dry_run, now)
    }

    /// Returns the response to a lack of room, whatever the known load: requests are rejected for it, or
    /// still wait. If no member can be used, room is not the problem.
    fn shortage(&mut self, observation: &GroupObservation<'_>, present: u32) -> Option<CapacityShortage> {
        let is_waiting = observation.waiting > 0.0;
        let was_waiting = core::mem::replace(&mut self.was_waiting, is_waiting);
        let has_member_in = |state| observation.members.iter().any(|member| member.has_state(state));
        if !has_member_in(ScaledMemberState::Usable)
            || !(observation.rejected > 0.0 || is_waiting && was_waiting)
        {
            return None;
        }
        Some(match has_member_in(ScaledMemberState::Starting) {
            true => CapacityShortage::AlreadyStarting,
            false if present >= self.settings.max => CapacityShortage::AtMaximum,
            false => CapacityShortage::StartOne,
        })
    }

    /// Returns the action for the desired number.
    fn decide(
        &mut self,
        desired: u32,
        present: u32,
        mut candidates: scale_in::RemovalCandidates<'_>,
        (mut reason, mut why, inputs): (ScaleReason, String, Vec<(String, f64)>),
        dry_run: bool,
        now: Time,
    ) -> ScaleDecision {
        let desired_changed = self.desired != Some(desired);
        self.desired = Some(desired);
        let (mut add, mut remove) = (0, Vec::new());
        let remaining_cooldown = |since: Option<Time>, cooldown: Duration| {
            since
                .map(|since| cooldown.saturating_sub(now.since(since)))
                .filter(|remaining| !remaining.is_zero())
        };
        // Members missing below the minimum ignore cool-downs.
        let missing_members = self.settings.min.saturating_sub(present);
        if desired > present {
            let remaining_cooldown_up = remaining_cooldown(self.last_start, self.settings.cool_up);
            add = match remaining_cooldown_up {
                _ if self.paused => missing_members,
                Some(_) => missing_members,
                None => (desired - present).min(self.settings.step_up.max(1)).max(missing_members),
            };
            if let (Some(remaining), true) = (remaining_cooldown_up, add < desired - present) {
                explain::append_cooldown(&mut why, remaining);
                reason = ScaleReason::CoolDown;
            }
        } else if desired < present && !self.paused {
            // The wants before its first look are unknown.
            let unobserved_remaining = remaining_cooldown(self.first_observed, self.settings.stabilize);
            let remaining_wait = unobserved_remaining
                .max(remaining_cooldown(self.last_start.max(self.last_removal), self.settings.cool_down));
            match remaining_wait {
                Some(remaining) => {
                    explain::append_cooldown(&mut why, remaining);
                    reason = ScaleReason::CoolDown;
                }
                None => {
                    remove = candidates
                        .first_names((present - desired).min(self.settings.step_down.max(1)) as usize)
                }
            }
        }
        if self.paused {
            explain::append_pause(&mut why);
            reason = ScaleReason::Paused;
        }
        if !dry_run {
            if add > 0 {
                self.last_start = Some(now);
            }
            if !remove.is_empty() {
                self.last_removal = Some(now);
            }
        }
        ScaleDecision { desired, present, add, remove, desired_changed, reason, explanation: why, inputs }
    }

    /// Records a want; the greatest of the last `stabilize` is at the front.
    fn record_want(&mut self, want: f64, now: Time) {
        while self.recent_wants.back().is_some_and(|(_, previous_want)| *previous_want <= want) {
            self.recent_wants.pop_back();
        }
        self.recent_wants.push_back((now, want));
        let stabilize = self.settings.stabilize;
        while self.recent_wants.front().is_some_and(|(recorded_at, _)| now.since(*recorded_at) > stabilize) {
            self.recent_wants.pop_front();
        }
        // Looks in quick succession must not fill the memory.
        while self.recent_wants.len() > MAX_RECENT_WANTS {
            let second = self.recent_wants.remove(1);
            if second.is_none() {
                break;
            }
        }
    }
}

/// Returns the number of members of one size for the missing capacity.
fn members_for(missing: f64, unit_capacity: f64) -> u32 {
    if missing <= unit_capacity * ROUNDING_TOLERANCE {
        return 0;
    }
    libm::ceil(missing / unit_capacity - ROUNDING_TOLERANCE).min(f64::from(u32::MAX / 2)) as u32
}

/// The margin for the usual error of load lines and agents.
const CAPACITY_MARGIN: f64 = 1.03;

/// The minimum of a capacity.
const MIN_CAPACITY: f64 = 1e-6;

/// The missing part of a member that starts no other: rounding is no need.
const ROUNDING_TOLERANCE: f64 = 1e-3;

/// The weight of a new start time among earlier ones.
const START_TIME_WEIGHT: f64 = 0.3;

/// The maximum of a start time, seconds.
const MAX_START_SECONDS: f64 = 3600.0;

/// The maximum number of remembered wants.
const MAX_RECENT_WANTS: usize = 4096;
