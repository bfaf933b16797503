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
const LOSS: f64 = 0.001;
/// The lost part of the requests that is a problem.
const MUCH: f64 = 0.01;
/// The part of the capacity that is to be free.
const ROOM: f64 = 0.1;

impl GroupHealth {
    /// Returns the state of a group; `lost`: the part of its recent requests that failed or were rejected, 0
    /// to 1.
    pub fn of(group: &GroupStatus, lost: f64) -> Self {
        let members = group.members.iter().map(|member| (member.state, member.alert_share));
        let line = group.load_line.as_ref().map_or(Self::Healthy, Self::from_load_line);
        let slow = group.members.iter().any(MemberStatus::is_slow);
        let line = line.max(if slow { Self::Warning } else { Self::Healthy });
        let refusing = if group.shedding_seconds.is_some() { Self::Shedding } else { Self::Healthy };
        match Self::of_members(members, lost) {
            Self::Down if group.healthy => Self::Degraded.max(refusing),
            standing => standing.max(line).max(refusing),
        }
    }

    /// Returns the state by the members' states, the parts of sessions to move, and losses alone.
    fn of_members(mut members: impl Iterator<Item = (MemberState, f64)> + Clone, lost: f64) -> Self {
        if !members.clone().any(|(state, _)| state.is_eligible()) {
            return Self::Down;
        }
        let missing =
            |state| matches!(state, MemberState::Down | MemberState::Ejected | MemberState::Unchecked);
        let part = members.any(|(state, shed)| missing(state) || shed > 0.0);
        match lost {
            lost if lost > MUCH => Self::Degraded,
            lost if part || lost > LOSS => Self::Warning,
            _ => Self::Healthy,
        }
    }

    /// Returns the state by the load line alone.
    pub fn from_load_line(line: &LoadLine) -> Self {
        // An unreliable number is no reason for an alarm.
        let believed = matches!(&*line.verdict, "good" | "fair");
        match line.headroom {
            Some(over) if over < 0.0 && (believed || over < -ROOM) => Self::Degraded,
            Some(free) if free < ROOM => Self::Warning,
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
        let of =
            |states: &[MemberState]| GroupHealth::of_members(states.iter().map(|state| (*state, 0.0)), 0.0);
        assert_eq!(of(&[MemberState::Up, MemberState::SlowStart]), GroupHealth::Healthy);
        assert_eq!(
            of(&[MemberState::Up, MemberState::Disabled, MemberState::Draining]),
            GroupHealth::Healthy,
            "somebody wants it so"
        );
        for state in [MemberState::Down, MemberState::Ejected] {
            assert_eq!(of(&[MemberState::Up, state]), GroupHealth::Warning, "{state:?}");
            assert_eq!(of(&[state, MemberState::Disabled]), GroupHealth::Down, "{state:?}");
        }
        assert_eq!(of(&[MemberState::Up, MemberState::Unchecked]), GroupHealth::Warning);
        assert_eq!(of(&[]), GroupHealth::Down);
        assert_eq!(GroupHealth::of_members([(MemberState::Up, 0.1)].into_iter(), 0.0), GroupHealth::Warning);
    }

    #[test]
    fn losses_and_the_load_line_count_whichever_is_worse() {
        let lost = |lost| GroupHealth::of_members([(MemberState::Up, 0.0)].into_iter(), lost);
        let said = [lost(0.0), lost(0.002), lost(0.5)];
        assert_eq!(said, [GroupHealth::Healthy, GroupHealth::Warning, GroupHealth::Degraded]);
        for (headroom, verdict, standing) in [
            (None, "unknown", GroupHealth::Healthy),
            (Some(0.4), "good", GroupHealth::Healthy),
            (Some(0.05), "good", GroupHealth::Warning),
            (Some(-0.01), "good", GroupHealth::Degraded),
            (Some(-0.01), "poor", GroupHealth::Warning),
            (Some(-0.5), "poor", GroupHealth::Degraded),
        ] {
            let line = LoadLine { headroom, verdict: verdict.into(), ..LoadLine::default() };
            assert_eq!(GroupHealth::from_load_line(&line), standing, "{headroom:?} {verdict}");
            // No member serves, however much room there is.
            let group = GroupStatus { load_line: Some(line), ..GroupStatus::default() };
            assert_eq!(GroupHealth::of(&group, 0.0), GroupHealth::Down);
            // Unless the group is to use them all the same.
            let usable = GroupStatus { healthy: true, ..group.clone() };
            assert_eq!(GroupHealth::of(&usable, 0.0), GroupHealth::Degraded);
            // Rejected requests come before all else.
            let refusing =
                |group| GroupHealth::of(&GroupStatus { shedding_seconds: Some(3.0), ..group }, 0.0);
            assert_eq!((refusing(usable), refusing(group)), (GroupHealth::Shedding, GroupHealth::Down));
        }
    }
}
