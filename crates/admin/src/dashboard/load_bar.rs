//! The load bar of a member, with the load line drawn on it: a circle with a line through it, as on a ship's
//! hull. [`MemberLoad`] determines the positions, for both the dashboard and `plimsoll top`.

use plimsoll_brain::status::{MemberRecent, MemberStatus};
use serde::Serialize;

use super::format::{self, Severity, number, percent, rate};
use crate::member_table::{LoadScale, MemberLoad};

/// The width of the drawing.
const WIDTH: f64 = 160.0;

/// A drawn bar.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct LoadBar {
    /// The severity: `good`, `fair`, `bad`, `off`.
    pub(super) tone: Option<Severity>,
    /// The length of the filled part.
    pub(super) fill: f64,
    /// The position of the load line.
    pub(super) line: Option<f64>,
    /// The marks, from left to right.
    pub(super) marks: Vec<BarMark>,
    /// The label beside the bar.
    pub(super) label: String,
    /// The alternative text.
    pub(super) text: String,
}

/// A mark on the bar.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct BarMark {
    pub(super) at: f64,
    /// The kind: from `reject` on it gets no new work; from `critical` on it sheds.
    pub(super) kind: &'static str,
}

/// Draws the bar of one member.
pub(super) fn draw_load_bar(
    member: &MemberStatus,
    recent: Option<&MemberRecent>,
    scale: LoadScale,
) -> LoadBar {
    let load = MemberLoad::of(member, recent, scale);
    let unknown_bar = |label: &str, text: &str| LoadBar {
        label: label.into(),
        text: text.into(),
        tone: Some(load.tone),
        ..LoadBar::default()
    };
    let (label, text, format_value): (_, _, fn(f64) -> String) = match (scale, load.now) {
        (LoadScale::Capacity, None) => {
            return unknown_bar("not known yet", "what it can carry is not known yet");
        }
        (_, None) => return unknown_bar("no report", "no report that counts"),
        (LoadScale::Capacity, Some(used)) => {
            let (used, capacity) = (percent(used), rate(load.capacity.unwrap_or(0.0)));
            let text = format!("{used} of the {capacity} requests a second that it is predicted to carry");
            (format!("{used} of {capacity}/s"), text, percent)
        }
        (LoadScale::Load(_), Some(load)) => (number(load), format!("a load of {}", number(load)), number),
        (LoadScale::InFlight(_), Some(in_flight)) => {
            let label = match load.reject {
                Some(limit) => format!("{in_flight} of {limit} at once"),
                None => format!("{in_flight} at once"),
            };
            let text = format!("{} under way", format::count(u64::from(member.in_flight), "request"));
            (label, text, number)
        }
    };
    let mut bar = draw(&load, scale.maximum());
    (bar.label, bar.text, bar.tone) = (label, text, Some(load.tone));
    describe(&mut bar, &load, format_value);
    bar
}

fn draw(load: &MemberLoad, maximum: f64) -> LoadBar {
    let position = |value: f64| round_to_tenth((value / maximum).clamp(0.0, 1.0) * WIDTH);
    let is_inside = |value: &f64| value.is_finite() && (0.0..=maximum).contains(value);
    let bar_mark = |value: Option<f64>, kind| Some(BarMark { at: position(value.filter(is_inside)?), kind });
    let mut marks: Vec<BarMark> = [bar_mark(load.critical, "critical"), bar_mark(load.reject, "reject")]
        .into_iter()
        .flatten()
        .collect();
    marks.sort_by(|left, right| left.at.total_cmp(&right.at));
    LoadBar {
        fill: position(load.now.unwrap_or(0.0)),
        line: load.saturation.map(position),
        marks,
        ..LoadBar::default()
    }
}

fn describe(bar: &mut LoadBar, load: &MemberLoad, format_value: fn(f64) -> String) {
    if let Some(critical) = load.critical.filter(|mark| mark.is_finite()) {
        bar.text.push_str(&format!("; sheds from {}", format_value(critical)));
    }
    if let Some(reject) = load.reject.filter(|mark| mark.is_finite()) {
        bar.text.push_str(&format!("; gets nothing new from {}", format_value(reject)));
    }
}

/// Rounds to a tenth: drawings are sent repeatedly.
pub(super) fn round_to_tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::MemberState;
    use plimsoll_brain::status::MemberLoadLine;

    use super::*;
    use crate::dashboard::test_data;

    fn member() -> MemberStatus {
        test_data::status().groups.remove(0).members.remove(0)
    }

    #[test]
    fn the_load_line_stands_where_a_member_is_full() {
        let member = member();
        let recent = MemberRecent { in_flight: 2.0, ..MemberRecent::default() };
        let bar = draw_load_bar(&member, Some(&recent), LoadScale::Capacity);
        assert_eq!((bar.line, bar.fill), (Some(128.0), round_to_tenth(0.59 / 1.25 * 160.0)));
        assert_eq!(bar.label, "59 % of 100/s");
        // With 2 in flight it is at 59 %, so 3 in flight are 88 %.
        assert_eq!(bar.marks, [BarMark { at: round_to_tenth(0.59 * 1.5 / 1.25 * 160.0), kind: "reject" }]);
        assert_eq!(
            bar.text,
            "59 % of the 100 requests a second that it is predicted to carry; gets nothing new from 88 %"
        );
        assert_eq!(bar.tone, Some(Severity::Good));
    }

    #[test]
    fn marks_of_reported_loads_stand_on_the_same_bar() {
        let mut member = member();
        member.load_effective = Some(0.5);
        let recent =
            MemberRecent { alert_above: Some(0.6), reject_above: Some(0.8), ..MemberRecent::default() };
        let bar_of = |member: &MemberStatus, scale| draw_load_bar(member, Some(&recent), scale);
        let bar = bar_of(&member, LoadScale::Capacity);
        let kinds: Vec<_> = bar.marks.iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds, ["critical", "reject"]);
        assert_eq!(bar.marks[0].at, round_to_tenth(0.59 * 0.6 / 0.5 / 1.25 * 160.0));
        assert!(bar.text.ends_with("sheds from 71 %; gets nothing new from 94 %"), "{}", bar.text);
        member.load_line = None;
        let bar = bar_of(&member, LoadScale::Load(1.0));
        assert_eq!((bar.fill, bar.line, bar.marks[1].at), (80.0, None, 128.0));
        member.load_effective = Some(0.7);
        assert_eq!(bar_of(&member, LoadScale::Load(1.0)).tone, Some(Severity::Fair));
        member.load_effective = Some(0.9);
        assert_eq!(bar_of(&member, LoadScale::Load(1.0)).tone, Some(Severity::Bad));
        member.state = MemberState::Down;
        assert_eq!(bar_of(&member, LoadScale::Load(1.0)).tone, Some(Severity::Off));
    }

    #[test]
    fn a_bar_never_leaves_its_drawing() {
        let mut member = member();
        for used in [0.0, 1.0, 1.3, 1e9, f64::INFINITY, f64::NAN] {
            member.load_line =
                Some(MemberLoadLine { used: Some(used), capacity: Some(10.0), ..MemberLoadLine::default() });
            let bar = draw_load_bar(&member, None, LoadScale::Capacity);
            assert!((0.0..=WIDTH).contains(&bar.fill) || used.is_nan(), "{used} {bar:?}");
        }
    }

    #[test]
    fn a_group_has_one_scale() {
        let mut group = test_data::status().groups.remove(0);
        assert_eq!(LoadScale::of(&group, &[]), LoadScale::Capacity);
        group.members.iter_mut().for_each(|member| member.load_line = None);
        group.members[0].load_effective = Some(0.5);
        let distant_marks =
            MemberRecent { alert_above: Some(100.0), reject_above: Some(0.8), ..MemberRecent::default() };
        assert_eq!(LoadScale::of(&group, &[distant_marks]), LoadScale::Load(0.8 * 1.15));
        group.members.iter_mut().for_each(|member| member.load_effective = None);
        assert_eq!(LoadScale::of(&group, &[]), LoadScale::InFlight(3.0 * 1.15));
    }
}
