//! A member's load on a bar, with its load line: where it gets nothing new, where it sheds, where it is predicted to be saturated.
//!
//! What the load is depends on what is known, the first of these that is there: the load by which a strategy with thresholds
//! goes, with them; requests in flight where the member has a limit or says its knee (the mark that `adaptive` sets itself);
//! the part of its capacity that is in use, by the load line; the load that it reported; requests in flight.

use plimsoll_brain::status::MemberStatus;
use serde::Serialize;

use super::look::Thresholds;
use crate::control::text::Tone;
use crate::screen::bar;

/// What a load is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// The group's metric.
    Load,
    /// Requests, sessions or flows.
    InFlight,
    /// The member's capacity, as predicted: 1 is all of it.
    Capacity,
}

/// A load and its load line, all in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Gauge {
    pub(super) unit: Unit,
    pub(super) now: f64,
    /// From here on it gets nothing new.
    pub(super) reject: Option<f64>,
    /// From here on it sheds.
    pub(super) critical: Option<f64>,
    /// Where it is predicted to be saturated.
    pub(super) saturation: Option<f64>,
}

/// Parts of a capacity below which no line is drawn through the origin: it would point anywhere.
const TOO_IDLE: f64 = 0.05;

/// Drawn where the marks are.
pub(super) const REJECT: char = '│';
pub(super) const CRITICAL: char = '┃';
pub(super) const SATURATION: char = '╎';

impl Gauge {
    pub(super) fn of(member: &MemberStatus, thresholds: Option<&Thresholds>) -> Self {
        let used = member.load_line.as_ref().and_then(|line| line.used);
        let load = member.load.map(|load| load.value);
        let bare = |unit, now| Self { unit, now, reject: None, critical: None, saturation: None };
        if let (Some(set), Some(load)) = (thresholds, load)
            && (set.reject.is_some() || set.critical.is_some())
        {
            // As far as the load grows with the work.
            let saturation = used.filter(|used| *used >= TOO_IDLE).map(|used| load / used);
            return Self { reject: set.reject, critical: set.critical, saturation, ..bare(Unit::Load, load) };
        }
        if member.knee.is_some() || member.limit.is_some() {
            let reject = member.limit.map(f64::from).or(member.knee);
            return Self { reject, ..bare(Unit::InFlight, f64::from(member.in_flight)) };
        }
        match (used, load) {
            (Some(used), _) => Self { saturation: Some(1.0), ..bare(Unit::Capacity, used) },
            (None, Some(load)) => bare(Unit::Load, load),
            (None, None) => bare(Unit::InFlight, f64::from(member.in_flight)),
        }
    }

    /// How far a bar has to reach so that everything is on it.
    pub(super) fn reach(&self) -> f64 {
        let marks = [self.reject, self.critical, self.saturation];
        let most = marks.into_iter().flatten().fold(self.now, f64::max);
        if marks.iter().any(Option::is_some) { most * 1.1 } else { most }
    }

    /// The load in a few characters.
    pub(super) fn text(&self) -> String {
        match self.unit {
            Unit::Capacity => format!("{:.0}%", self.now * 100.0),
            Unit::InFlight => match self.reject {
                Some(limit) => format!("{:.0}/{limit:.0}", self.now),
                None => format!("{:.0}", self.now),
            },
            Unit::Load => short(self.now),
        }
    }

    /// How bad it is.
    pub(super) fn tone(&self) -> Tone {
        let beyond = |mark: Option<f64>| mark.is_some_and(|mark| self.now >= mark);
        if beyond(self.critical) || beyond(self.saturation) {
            Tone::Bad
        } else if beyond(self.reject) || self.saturation.is_some_and(|most| self.now >= 0.8 * most) {
            Tone::Fair
        } else {
            Tone::Good
        }
    }

    /// The bar, in exactly so many columns, which stand for loads from 0 to `reach`.
    pub(super) fn bar(&self, reach: f64, columns: usize) -> String {
        let share = |load: f64| if reach > 0.0 { load / reach } else { 0.0 };
        let mut drawn: Vec<char> = format!("{:columns$}", bar(share(self.now), columns)).chars().collect();
        let marks = [(self.saturation, SATURATION), (self.reject, REJECT), (self.critical, CRITICAL)];
        for (mark, glyph) in marks {
            let Some(mark) = mark else { continue };
            let at = (share(mark).clamp(0.0, 1.0) * columns as f64) as usize;
            if let Some(place) = drawn.get_mut(at.min(columns.saturating_sub(1))) {
                *place = glyph;
            }
        }
        drawn.into_iter().collect()
    }
}

/// Three digits.
fn short(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        1e6.. => format!("{:.1}M", value / 1e6),
        1e4.. => format!("{:.1}k", value / 1e3),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::status::{LoadExplanation, MemberLoadLine};

    use super::*;
    use crate::control::sample;

    fn member() -> MemberStatus {
        sample().groups.remove(0).members.remove(0)
    }

    #[test]
    fn what_is_known_decides_what_the_load_is() {
        let mut member = member();
        assert_eq!(Gauge::of(&member, None).text(), "7");
        member.load = Some(LoadExplanation { value: 0.5, age_seconds: 0.1 });
        assert_eq!(Gauge::of(&member, None).text(), "0.50");
        member.load_line = Some(MemberLoadLine { used: Some(0.25), ..MemberLoadLine::default() });
        let used = Gauge::of(&member, None);
        assert_eq!((used.text(), used.saturation), ("25%".to_owned(), Some(1.0)));
        member.knee = Some(5.0);
        member.limit = Some(9);
        let knee = Gauge::of(&member, None);
        assert_eq!((knee.text(), knee.reject, knee.critical), ("7/9".to_owned(), Some(9.0), None));
        member.limit = None;
        assert_eq!(Gauge::of(&member, None).text(), "7/5");
        let set = Thresholds { reject: Some(0.6), critical: Some(0.9) };
        let load = Gauge::of(&member, Some(&set));
        assert_eq!((load.unit, load.saturation), (Unit::Load, Some(2.0)));
        member.load_line = Some(MemberLoadLine { used: Some(0.01), ..MemberLoadLine::default() });
        assert_eq!(Gauge::of(&member, Some(&set)).saturation, None);
        assert_eq!(Gauge::of(&member, Some(&Thresholds::default())).unit, Unit::InFlight);
    }

    #[test]
    fn the_load_line_is_on_the_bar() {
        let gauge = |now| Gauge {
            unit: Unit::Load,
            now,
            reject: Some(0.6),
            critical: Some(0.8),
            saturation: Some(0.95),
        };
        assert_eq!(gauge(0.5).bar(1.0, 20), "██████████  │   ┃  ╎");
        assert_eq!(gauge(0.7).bar(1.0, 20), "████████████│█  ┃  ╎");
        assert_eq!(gauge(3.0).bar(1.0, 5), "███│┃", "of marks at one place the worst is seen");
        assert_eq!(gauge(0.5).bar(0.0, 3), "┃  ");
        assert_eq!(gauge(f64::NAN).bar(1.0, 0), "");
        let tones = [0.5, 0.65, 0.8, 2.0].map(|now| gauge(now).tone());
        assert_eq!(tones, [Tone::Good, Tone::Fair, Tone::Bad, Tone::Bad]);
        assert!((gauge(0.1).reach() - 1.045).abs() < 1e-9);
    }

    #[test]
    fn loads_are_short() {
        let said = [0.0, 0.123, 12.34, 123.4, 12_345.0, 3e6, f64::INFINITY].map(short);
        assert_eq!(said, ["0.00", "0.12", "12.3", "123", "12.3k", "3.0M", "-"]);
    }
}
