//! The overall state of a group as one mark: the same on every screen.

use alloc::format;
use alloc::string::String;

use super::{GroupStatus, LoadLine, MemberStatus};
use crate::State;

/// The overall state of a group, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// All is as it should be.
    Well,
    /// It serves, and something deserves a look: a member that is out of use though it should not be, one
    /// that sheds or is slow, little room, a loss of requests.
    LookAtIt,
    /// It serves with problems: it is over its load line, loses requests, or uses members that are down for
    /// want of others.
    InTrouble,
    /// It serves some requests, and rejects others for want of room.
    Refusing,
    /// No member serves.
    Down,
}

/// The lost part of the requests that deserves a look.
const LOSS: f64 = 0.001;
/// The lost part of the requests that is a problem.
const MUCH: f64 = 0.01;
/// The part of the capacity that is to be free.
const ROOM: f64 = 0.1;

impl Standing {
    /// Returns the state of a group; `lost`: the part of its recent requests that failed or were rejected, 0
    /// to 1.
    pub fn of(group: &GroupStatus, lost: f64) -> Self {
        let members = group.members.iter().map(|member| (member.state, member.alert_share));
        let line = group.load_line.as_ref().map_or(Self::Well, Self::floating);
        let slow = group.members.iter().any(MemberStatus::is_slow);
        let line = line.max(if slow { Self::LookAtIt } else { Self::Well });
        let refusing = if group.shedding_seconds.is_some() { Self::Refusing } else { Self::Well };
        match Self::of_members(members, lost) {
            Self::Down if group.healthy => Self::InTrouble.max(refusing),
            standing => standing.max(line).max(refusing),
        }
    }

    /// Returns the state by the members' states, the parts of sessions to move, and losses alone.
    fn of_members(mut members: impl Iterator<Item = (State, f64)> + Clone, lost: f64) -> Self {
        if !members.clone().any(|(state, _)| state.eligible()) {
            return Self::Down;
        }
        let missing = |state| matches!(state, State::Down | State::Ejected | State::Unchecked);
        let part = members.any(|(state, shed)| missing(state) || shed > 0.0);
        match lost {
            lost if lost > MUCH => Self::InTrouble,
            lost if part || lost > LOSS => Self::LookAtIt,
            _ => Self::Well,
        }
    }

    /// Returns the state by the load line alone.
    pub fn floating(line: &LoadLine) -> Self {
        // An unreliable number is no reason for an alarm.
        let believed = matches!(&*line.verdict, "good" | "fair");
        match line.headroom {
            Some(over) if over < 0.0 && (believed || over < -ROOM) => Self::InTrouble,
            Some(free) if free < ROOM => Self::LookAtIt,
            _ => Self::Well,
        }
    }

    /// Returns a glyph and a label with the same meaning.
    pub fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Well => ("✔", "well"),
            Self::LookAtIt => ("▲", "look at it"),
            Self::InTrouble => ("‼", "in trouble"),
            Self::Refusing => ("✘", "refuses requests"),
            Self::Down => ("✘", "down"),
        }
    }
}

impl GroupStatus {
    /// Returns the reason why it cannot serve all requests, for display; `None` while it has a usable member
    /// and rejects nothing.
    pub fn unfit(&self) -> Option<String> {
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
        let of = |states: &[State]| Standing::of_members(states.iter().map(|state| (*state, 0.0)), 0.0);
        assert_eq!(of(&[State::Up, State::SlowStart]), Standing::Well);
        assert_eq!(
            of(&[State::Up, State::Disabled, State::Draining]),
            Standing::Well,
            "somebody wants it so"
        );
        for state in [State::Down, State::Ejected] {
            assert_eq!(of(&[State::Up, state]), Standing::LookAtIt, "{state:?}");
            assert_eq!(of(&[state, State::Disabled]), Standing::Down, "{state:?}");
        }
        assert_eq!(of(&[State::Up, State::Unchecked]), Standing::LookAtIt);
        assert_eq!(of(&[]), Standing::Down);
        assert_eq!(Standing::of_members([(State::Up, 0.1)].into_iter(), 0.0), Standing::LookAtIt);
    }

    #[test]
    fn losses_and_the_load_line_count_whichever_is_worse() {
        let lost = |lost| Standing::of_members([(State::Up, 0.0)].into_iter(), lost);
        let said = [lost(0.0), lost(0.002), lost(0.5)];
        assert_eq!(said, [Standing::Well, Standing::LookAtIt, Standing::InTrouble]);
        for (headroom, verdict, standing) in [
            (None, "unknown", Standing::Well),
            (Some(0.4), "good", Standing::Well),
            (Some(0.05), "good", Standing::LookAtIt),
            (Some(-0.01), "good", Standing::InTrouble),
            (Some(-0.01), "poor", Standing::LookAtIt),
            (Some(-0.5), "poor", Standing::InTrouble),
        ] {
            let line = LoadLine { headroom, verdict: verdict.into(), ..LoadLine::default() };
            assert_eq!(Standing::floating(&line), standing, "{headroom:?} {verdict}");
            // No member serves, however much room there is.
            let group = GroupStatus { load_line: Some(line), ..GroupStatus::default() };
            assert_eq!(Standing::of(&group, 0.0), Standing::Down);
            // Unless the group is to use them all the same.
            let usable = GroupStatus { healthy: true, ..group.clone() };
            assert_eq!(Standing::of(&usable, 0.0), Standing::InTrouble);
            // Rejected requests come before all else.
            let refusing = |group| Standing::of(&GroupStatus { shedding_seconds: Some(3.0), ..group }, 0.0);
            assert_eq!((refusing(usable), refusing(group)), (Standing::Refusing, Standing::Down));
        }
    }
}
