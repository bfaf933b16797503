//! The overall state of a group as one mark: the same on every screen.

use alloc::format;
use alloc::string::String;

use super::{GroupStatus, LoadLine, MemberStatus};
use crate::MemberState;

/// The overall state of a group, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupHealth {
    /// All is as it should be.
    Healthy,
    /// It serves, and something deserves a look: a member that is out of use though it should not be, one
    /// that sheds or is slow, little room, a loss of requests.
    Warning,
    /// It serves with problems: it is over its load line, loses requests, or uses members that are down for
    /// want of others.
    Degraded,
    /// It serves some requests, and rejects others for want of room.
    Shedding,
    /// No member serves.
    Down,
}

/// The lost part of the requests that deserves a look.
const MIN_LOSS: f64 = 0.001;
/// The lost part of the requests that is a problem.
const DEGRADED_LOSS: f64 = 0.01;
/// The part of the capacity that is to be free.
const MIN_HEADROOM: f64 = 0.1;

impl GroupHealth {
    /// Returns the state of a group; `lost`: the part of its recent requests that failed or were rejected, 0
    /// to 1.
    pub fn of(group: &GroupStatus, loss_share: f64) -> Self {
        let members = group.members.iter().map(|member| (member.state, member.alert_share));
        let load_line_health = group.load_line.as_ref().map_or(Self::Healthy, Self::from_load_line);
        let any_slow = group.members.iter().any(MemberStatus::is_slow);
        let load_line_health = load_line_health.max(if any_slow { Self::Warning } else { Self::Healthy });
        let shedding_health = if group.shedding_seconds.is_some() { Self::Shedding } else { Self::Healthy };
        match Self::of_members(members, loss_share) {
            Self::Down if group.healthy => Self::Degraded.max(shedding_health),
            member_health => member_health.max(load_line_health).max(shedding_health),
        }
    }

    /// Returns the state by the members' states, the parts of sessions to move, and losses alone.
    fn of_members(mut members: impl Iterator<Item = (MemberState, f64)> + Clone, loss_share: f64) -> Self {
        if !members.clone().any(|(state, _)| state.is_eligible()) {
            return Self::Down;
        }
        let is_missing =
            |state| matches!(state, MemberState::Down | MemberState::Ejected | MemberState::Unchecked);
        let any_impaired = members.any(|(state, alert_share)| is_missing(state) || alert_share > 0.0);
        match loss_share {
            loss if loss > DEGRADED_LOSS => Self::Degraded,
            loss if any_impaired || loss > MIN_LOSS => Self::Warning,
            _ => Self::Healthy,
        }
    }

    /// Returns the state by the load line alone.
    pub fn from_load_line(load_line: &LoadLine) -> Self {
        // An unreliable number is no reason for an alarm.
        let is_reliable = matches!(&*load_line.verdict, "good" | "fair");
        match load_line.headroom {
            Some(headroom) if headroom < 0.0 && (is_reliable || headroom < -MIN_HEADROOM) => Self::Degraded,
            Some(headroom) if headroom < MIN_HEADROOM => Self::Warning,
            _ => Self::Healthy,
        }
    }

    /// Returns a glyph and a label with the same meaning.
    pub fn glyph_and_label(self) -> (&'static str, &'static str) {
        match self {
            Self::Healthy => ("✔", "well"),
            Self::Warning => ("▲", "look at it"),
            Self::Degraded => ("‼", "in trouble"),
            Self::Shedding => ("✘", "refuses requests"),
            Self::Down => ("✘", "down"),
        }
    }
}

impl GroupStatus {
    /// Returns the reason why it cannot serve all requests, for display; `None` while it has a usable member
    /// and rejects nothing.
    pub fn unavailable_reason(&self) -> Option<String> {
        if !self.healthy {
            return Some("no usable member".into());
        }
        self.shedding_seconds.map(|since| format!("refuses requests for want of room, for {since:.0} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_should_serve_and_do_not_are_worth_a_look() {
        let health_of =
            |states: &[MemberState]| GroupHealth::of_members(states.iter().map(|state| (*state, 0.0)), 0.0);
        assert_eq!(health_of(&[MemberState::Up, MemberState::SlowStart]), GroupHealth::Healthy);
        assert_eq!(
            health_of(&[MemberState::Up, MemberState::Disabled, MemberState::Draining]),
            GroupHealth::Healthy,
            "somebody wants it so"
        );
        for state in [MemberState::Down, MemberState::Ejected] {
            assert_eq!(health_of(&[MemberState::Up, state]), GroupHealth::Warning, "{state:?}");
            assert_eq!(health_of(&[state, MemberState::Disabled]), GroupHealth::Down, "{state:?}");
        }
        assert_eq!(health_of(&[MemberState::Up, MemberState::Unchecked]), GroupHealth::Warning);
        assert_eq!(health_of(&[]), GroupHealth::Down);
        assert_eq!(GroupHealth::of_members([(MemberState::Up, 0.1)].into_iter(), 0.0), GroupHealth::Warning);
    }

    #[test]
    fn losses_and_the_load_line_count_whichever_is_worse() {
        let health_at_loss =
            |loss_share| GroupHealth::of_members([(MemberState::Up, 0.0)].into_iter(), loss_share);
        let healths = [health_at_loss(0.0), health_at_loss(0.002), health_at_loss(0.5)];
        assert_eq!(healths, [GroupHealth::Healthy, GroupHealth::Warning, GroupHealth::Degraded]);
        for (headroom, verdict, expected) in [
            (None, "unknown", GroupHealth::Healthy),
            (Some(0.4), "good", GroupHealth::Healthy),
            (Some(0.05), "good", GroupHealth::Warning),
            (Some(-0.01), "good", GroupHealth::Degraded),
            (Some(-0.01), "poor", GroupHealth::Warning),
            (Some(-0.5), "poor", GroupHealth::Degraded),
        ] {
            let load_line = LoadLine { headroom, verdict: verdict.into(), ..LoadLine::default() };
            assert_eq!(GroupHealth::from_load_line(&load_line), expected, "{headroom:?} {verdict}");
            // No member serves, however much room there is.
            let group = GroupStatus { load_line: Some(load_line), ..GroupStatus::default() };
            assert_eq!(GroupHealth::of(&group, 0.0), GroupHealth::Down);
            // Unless the group is to use them all the same.
            let usable = GroupStatus { healthy: true, ..group.clone() };
            assert_eq!(GroupHealth::of(&usable, 0.0), GroupHealth::Degraded);
            // Rejected requests come before all else.
            let health_when_shedding =
                |group| GroupHealth::of(&GroupStatus { shedding_seconds: Some(3.0), ..group }, 0.0);
            assert_eq!(
                (health_when_shedding(usable), health_when_shedding(group)),
                (GroupHealth::Shedding, GroupHealth::Down)
            );
        }
    }
}
