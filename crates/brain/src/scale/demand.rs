//! How much capacity is in use, and how much of it may be.
//!
//! Sources, in the order that suits the target: the load line of the members (requests a
//! second that each can do: [`crate::load_line`]; ignored while that of the group is a range), what agents
//! tell of their processors, and, for a target in seconds only, response times themselves. Where times double
//! at half of the load, as they do wherever requests share something in turn, `R = S / (1 - u)` (M/M/1 and
//! processor sharing; Little 1961, Kleinrock 1975), so `u = 1 - S / R` is in use and `1 - S / goal` may be;
//! `S`, what a request takes alone, is learnt, or is the shortest time seen.
//!
//! What requests cost (capacity for a second each) is remembered, so that those that wait or are refused count as well: a group that is
//! full serves no more than it can, whatever comes.

use super::{MemberSeen, Seen, Standing, Target};

/// What is remembered of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// Capacity for a second that one takes.
    work: Option<f64>,
    /// Seconds that 95 of 100 take where nothing else is going on.
    alone: Option<f64>,
    /// Seconds that 95 of 100 take, over some looks: the least of what single ones say would be that of luck.
    calm: Option<f64>,
}

/// What a look comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// Capacity that is in use, or would be if there were enough.
    pub(super) demand: f64,
    /// Part of the capacity that may be; above 0, below 1.
    pub(super) allowed: f64,
    /// Part that is, of what can be used.
    pub(super) used: f64,
    /// Where that is known from.
    pub(super) source: &'static str,
    /// Requests a second that one unit of capacity can do, if known.
    pub(super) pace: Option<f64>,
}

impl Demand {
    /// `None` where nothing is known.
    pub(super) fn observe(&mut self, seen: &Seen<'_>, target: Target) -> Option<Sight> {
        let usable = || seen.members.iter().filter(|member| member.is(Standing::Usable));
        let worth: f64 = usable().map(MemberSeen::worth).sum();
        let rate = sound(seen.rate)?;
        let waiting = sound(seen.waiting).unwrap_or(0.0);
        if worth <= 0.0 {
            return None;
        }
        let line = told(usable().map(|member| (member, fair(member))), worth).filter(|_| seen.proven);
        let busy = |member: &MemberSeen<'_>| Some(member.utilization? * member.worth());
        let told = told(usable().map(|member| (member, busy(member))), worth);
        // As parts of the capacity.
        let line = line.filter(|line| *line > 0.0).map(|line| (worth / line, "load line"));
        let told = told.map(|busy| ((busy / worth).clamp(0.0, 1.0), "processors"));
        let by_line = line.map(|(work, source)| (rate * work / worth, source));
        let known = match target {
            Target::Utilization(_) => told.or(by_line),
            Target::HeadRoom(_) | Target::ResponseTime(_) => by_line.or(told),
        };
        let response = seen.response.and_then(sound).filter(|seconds| *seconds > 0.0);
        self.learn_alone(response, known.map(|(used, _)| used));
        let allowed = match target {
            Target::Utilization(part) => part,
            Target::HeadRoom(part) => 1.0 - part,
            Target::ResponseTime(goal) => self.alone.map_or(USUAL, |alone| 1.0 - alone / goal),
        };
        let allowed = allowed.clamp(LEAST_USED, MOST_USED);
        let times = |response: Option<f64>, alone: Option<f64>| {
            let (response, alone) = (response?, alone?);
            matches!(target, Target::ResponseTime(_)).then(|| ((1.0 - alone / response).max(0.0), TIMES))
        };
        let idle = rate == 0.0 && waiting == 0.0 && usable().all(|member| member.in_flight == 0);
        let known = match known.or_else(|| times(response, self.alone)) {
            _ if idle && told.is_none() => Some((0.0, "nothing comes")),
            None => self.work.map(|work| (rate * work / worth, "what requests cost before")),
            known => known,
        };
        let (used, source) = known?;
        match line {
            Some((work, _)) => self.learn_work(work),
            // What is full says no more than that.
            None if rate >= FEW && used < FULL => self.learn_work(used * worth / rate),
            None => {}
        }
        let came = self.work.map_or(0.0, |work| (rate + waiting / CATCH_UP) * work);
        let measured = used * worth;
        let demand = match source {
            _ if used >= FULL || waiting > 0.0 => measured.max(came),
            // Those of one look are as much luck as load: what a request costs is known from many.
            "load line" | TIMES => came,
            _ => measured,
        };
        let pace = self.work.filter(|work| *work > 0.0).map(|work| 1.0 / work);
        Some(Sight { demand, allowed, used, source, pace })
    }

    fn learn_work(&mut self, work: f64) {
        if let Some(work) = sound(work) {
            self.work = Some(self.work.map_or(work, |known| known + (work - known) * NEW));
        }
    }

    /// What was measured, less what is waited for; where nobody knows how much that is, the shortest of late.
    fn learn_alone(&mut self, response: Option<f64>, used: Option<f64>) {
        let Some(response) = response else { return };
        let calm = self.calm.map_or(response, |known| known + (response - known) * CALM);
        self.calm = Some(calm);
        self.alone = Some(match (self.alone, used) {
            (known, Some(used)) if used < FULL => {
                let alone = response * (1.0 - used);
                known.map_or(alone, |known| known + (alone - known) * NEW)
            }
            (Some(known), _) => (known * FORGET).min(calm),
            (None, _) => calm,
        });
    }
}

/// A sum over all members, where at least half of what they can do is known: the others are like those.
fn told<'a>(of: impl Iterator<Item = (&'a MemberSeen<'a>, Option<f64>)>, worth: f64) -> Option<f64> {
    let (mut sum, mut known) = (0.0, 0.0);
    for (member, value) in of {
        if let Some(value) = value.and_then(sound) {
            sum += value;
            known += member.worth();
        }
    }
    (known > 0.0 && 2.0 * known >= worth).then(|| sum * worth / known)
}

/// Requests a second that are the group's at a member. Its load line says what fits beside what others do on that host, so two
/// groups would both count what is free; here each has its part of the whole: `line / (1 - others)` is what an empty host could do for
/// this group, and `share` of that is its own.
fn fair(member: &MemberSeen<'_>) -> Option<f64> {
    let line = member.line?;
    let others = member.utilization.map_or(0.0, |used| used.clamp(0.0, 1.0) * (1.0 - member.share));
    Some(line * member.share / (1.0 - others).max(MOST_SHARED))
}

fn sound(number: f64) -> Option<f64> {
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// What is in use is known from how long requests take.
const TIMES: &str = "response times";

/// Seconds within which what waits is to be served, beside what comes.
const CATCH_UP: f64 = 5.0;

/// Above this nobody can tell how much more would come.
const FULL: f64 = 0.9;

/// Weight of a look among those before, and what a shortest time grows by at each.
const NEW: f64 = 0.1;
const FORGET: f64 = 1.001;

/// Weight of a look's times among those before, where the shortest is looked for.
const CALM: f64 = 0.25;

/// Requests a second below which what one costs is not learnt.
const FEW: f64 = 5.0;

/// What others leave of a host counts as at least so much.
const MOST_SHARED: f64 = 0.05;

/// A target in seconds lets be used so much, until it is known what a request takes alone; and bounds on any.
const USUAL: f64 = 0.5;
const LEAST_USED: f64 = 0.05;
const MOST_USED: f64 = 0.95;
