//! A member's load on a bar, with its load line: the marks where it gets nothing new, where it sheds, and
//! where it is predicted to be saturated. The dashboard shows the same load and marks: [`MemberLoad`].

use plimsoll_admin::member_table::{self, LoadScale, MemberLoad};
use serde::Serialize;

use crate::control::format::TextStyle;
use crate::terminal::bar;

/// The unit of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LoadUnit {
    /// The group's metric.
    Load,
    /// Requests, sessions or flows.
    InFlight,
    /// The member's capacity, as predicted: 1 is all of it.
    Capacity,
}

/// A load and its load line, all in one unit, which is that of its whole group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct LoadBar {
    pub(super) unit: LoadUnit,
    /// The load at the end of the bar.
    #[serde(skip)]
    maximum: f64,
    #[serde(flatten)]
    pub(super) load: MemberLoad,
}

/// The characters of the marks.
pub(super) const REJECT_MARK: char = '│';
pub(super) const CRITICAL_MARK: char = '┃';
pub(super) const SATURATION_MARK: char = '╎';

impl LoadBar {
    pub(super) fn new(load: MemberLoad, scale: LoadScale) -> Self {
        let unit = match scale {
            LoadScale::Capacity => LoadUnit::Capacity,
            LoadScale::Load(_) => LoadUnit::Load,
            LoadScale::InFlight(_) => LoadUnit::InFlight,
        };
        Self { unit, maximum: scale.maximum(), load }
    }

    /// Returns the load in a few characters.
    pub(super) fn text(&self) -> String {
        let Some(current) = self.load.now else { return "-".to_owned() };
        match self.unit {
            LoadUnit::Capacity => {
                format!("{:.0}% of {}/s", current * 100.0, format_short(self.load.capacity.unwrap_or(0.0)))
            }
            LoadUnit::InFlight => match self.load.reject {
                Some(limit) => format!("{current:.0} of {limit:.0}"),
                None => format!("{current:.0}"),
            },
            LoadUnit::Load => format_short(current),
        }
    }

    /// Returns the tone of the load.
    pub(super) fn style(&self) -> TextStyle {
        match self.load.tone {
            member_table::Severity::Good => TextStyle::Good,
            member_table::Severity::Off => TextStyle::Faint,
            member_table::Severity::Fair => TextStyle::Fair,
            member_table::Severity::Bad => TextStyle::Bad,
        }
    }

    /// Returns the part of its bar that is filled.
    pub(super) fn share(&self) -> f64 {
        self.load.now.map_or(-1.0, |current| if self.maximum > 0.0 { current / self.maximum } else { 0.0 })
    }

    /// Returns the bar, in exactly so many columns.
    pub(super) fn bar(&self, columns: usize) -> String {
        let share_of = |load: f64| if self.maximum > 0.0 { load / self.maximum } else { 0.0 };
        let filled = bar(self.share().max(0.0), columns);
        let mut cells: Vec<char> = format!("{filled:columns$}").chars().collect();
        let marks = [
            (self.load.saturation, SATURATION_MARK),
            (self.load.reject, REJECT_MARK),
            (self.load.critical, CRITICAL_MARK),
        ];
        for (mark, glyph) in marks {
            // A mark far beyond the bar would seem to stand at its end.
            let Some(mark) = mark.map(share_of).filter(|share| (0.0..=1.0).contains(share)) else { continue };
            let index = (mark * columns as f64) as usize;
            if let Some(cell) = cells.get_mut(index.min(columns.saturating_sub(1))) {
                *cell = glyph;
            }
        }
        cells.into_iter().collect()
    }
}

/// Returns a number with three digits.
fn format_short(value: f64) -> String {
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
    use super::*;

    fn gauge(now: f64) -> LoadBar {
        let load = MemberLoad {
            now: Some(now),
            reject: Some(0.6),
            critical: Some(0.8),
            saturation: Some(0.95),
            capacity: Some(100.0),
            tone: member_table::Severity::Good,
        };
        LoadBar { unit: LoadUnit::Load, maximum: 1.0, load }
    }

    #[test]
    fn the_load_line_is_on_the_bar() {
        assert_eq!(gauge(0.5).bar(20), "██████████  │   ┃  ╎");
        assert_eq!(gauge(0.7).bar(20), "████████████│█  ┃  ╎");
        assert_eq!(gauge(3.0).bar(5), "███│┃", "of marks at one place the worst is seen");
        assert_eq!(LoadBar { maximum: 0.5, ..gauge(0.1) }.bar(4), "▊   ", "what is beyond it is not on it");
        assert_eq!(gauge(f64::NAN).bar(0), "");
    }

    #[test]
    fn a_load_is_a_few_characters() {
        assert_eq!(gauge(0.5).text(), "0.50");
        assert_eq!(LoadBar { unit: LoadUnit::Capacity, ..gauge(0.59) }.text(), "59% of 100/s");
        let mut in_flight_bar = LoadBar { unit: LoadUnit::InFlight, ..gauge(4.0) };
        in_flight_bar.load.reject = Some(9.0);
        assert_eq!(in_flight_bar.text(), "4 of 9");
        (in_flight_bar.load.reject, in_flight_bar.load.now) = (None, Some(7.0));
        assert_eq!(in_flight_bar.text(), "7");
        in_flight_bar.load.now = None;
        assert_eq!((in_flight_bar.text(), in_flight_bar.share()), ("-".to_owned(), -1.0));
        let formatted = [0.0, 0.123, 12.34, 123.4, 12_345.0, 3e6, f64::INFINITY].map(format_short);
        assert_eq!(formatted, ["0.00", "0.12", "12.3", "123", "12.3k", "3.0M", "-"]);
    }
}
