//! The load bar of a member, with the load line drawn on it.
//!
//! Where it is known how many requests a second a member can do, the bar goes from nothing to five quarters of that, and the load line (a
//! circle with a line through it, as on a ship's hull) stands where it would be full. The marks that strategies set by themselves or
//! are given stand on the same bar: loads are taken to grow with the requests, and a limit of requests at once is, by Little's law, so
//! many requests a second at the response times of now. Where it is not known the bar is of reported loads, or of requests at once, on one scale for the whole group.

use plimsoll_brain::status::{GroupStatus, MemberRecent, MemberStatus};
use serde::Serialize;

use super::words::{self, Tone, number, percent, rate};

/// Width of the drawing.
const WIDTH: f64 = 160.0;
/// How far beyond the load line a bar goes.
const BEYOND: f64 = 1.25;
/// So much of the room below and beside is not a load: marks are not computed from less.
const LEAST: f64 = 0.02;

/// A bar, drawn.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Bar {
    /// `good`, `fair`, `bad`, `off`.
    pub(super) tone: Option<Tone>,
    /// Length of what is filled.
    pub(super) fill: f64,
    /// Where the load line stands.
    pub(super) line: Option<f64>,
    /// From left to right.
    pub(super) marks: Vec<Mark>,
    /// Beside the bar.
    pub(super) label: String,
    /// Instead of the bar.
    pub(super) text: String,
}

/// A mark on it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Mark {
    pub(super) at: f64,
    /// `reject`: from here on it gets nothing new; `critical`: from here on it sheds.
    pub(super) kind: &'static str,
}

/// What the bars of a group are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// Parts of what each can do.
    Capacity,
    /// Reported loads, up to so much.
    Load(f64),
    /// Requests at once, up to so many.
    Flight(f64),
}

impl Scale {
    /// The one that fits most members that can be used.
    pub(super) fn of(group: &GroupStatus, recent: &[MemberRecent]) -> Self {
        let usable: Vec<&MemberStatus> =
            group.members.iter().filter(|member| member.state.eligible()).collect();
        let known = usable.iter().filter(|member| used(member).is_some()).count();
        if known > 0 && 2 * known >= usable.len() {
            return Self::Capacity;
        }
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max) * 1.15;
        let loads = most(&mut group.members.iter().filter_map(|member| member.load_effective));
        if loads > 0.0 {
            let marks = recent.iter().flat_map(|member| [member.alert_above, member.reject_above]);
            // A mark far away would make bars of nothing.
            let marks = most(&mut marks.flatten().filter(|mark| *mark <= 5.0 * loads));
            return Self::Load(loads.max(marks));
        }
        let flights = group.members.iter().map(|member| f64::from(member.in_flight));
        let limits = group.members.iter().filter_map(|member| Some(f64::from(member.limit?)));
        let flights = most(&mut flights.chain(std::iter::once(1.0)));
        let limits = most(&mut limits.filter(|limit| *limit <= 50.0 * flights));
        Self::Flight(flights.max(limits))
    }

    /// For the heading of the column.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Capacity => "load now as a part of what the member is predicted to carry",
            Self::Load(_) => "load that the member reports; what it can carry is not known yet",
            Self::Flight(_) => "requests under way at once; what the member can carry is not known yet",
        }
    }
}

fn used(member: &MemberStatus) -> Option<(f64, f64)> {
    let line = member.load_line.as_ref()?;
    Some((line.used?, line.capacity?))
}

/// The bar of one member.
pub(super) fn bar(member: &MemberStatus, recent: Option<&MemberRecent>, scale: Scale) -> Bar {
    let load = member.load_effective;
    let [reject, critical] = match recent {
        Some(recent) => [recent.reject_above, recent.alert_above],
        None => [None, None],
    };
    let flight = recent.map_or(0.0, |recent| recent.in_flight);
    match (scale, used(member), load) {
        (Scale::Capacity, Some((used, capacity)), _) => {
            let of_load = |mark: f64| {
                let load = load.filter(|load| *load > 0.0 && used > LEAST)?;
                Some(used * mark / load)
            };
            let of_limit = || {
                let limit = f64::from(member.limit?);
                (flight > LEAST && used > LEAST).then(|| used * limit / flight)
            };
            let reject = reject.and_then(of_load).or_else(of_limit);
            let critical = critical.and_then(of_load);
            let mut bar = drawn(used, BEYOND, [reject, critical], Some(1.0));
            bar.label = format!("{} of {}/s", percent(used), rate(capacity));
            bar.text = format!(
                "{} of the {} requests a second that it is predicted to carry",
                percent(used),
                rate(capacity)
            );
            say(&mut bar, [reject, critical], percent);
            bar.tone = Some(tone(member, used, [reject, critical], Some(1.0)));
            bar
        }
        (Scale::Capacity, None, _) => {
            let mut bar = Bar { label: "not known yet".into(), ..Bar::default() };
            bar.text = "what it can carry is not known yet".into();
            bar.tone = Some(Tone::Off);
            bar
        }
        (Scale::Load(most), _, Some(load)) => {
            let mut bar = drawn(load, most, [reject, critical], None);
            bar.label = number(load);
            bar.text = format!("a load of {}", number(load));
            say(&mut bar, [reject, critical], number);
            bar.tone = Some(tone(member, load, [reject, critical], None));
            bar
        }
        (Scale::Load(_), _, None) => Bar {
            label: "no report".into(),
            text: "no report that counts".into(),
            tone: Some(Tone::Off),
            ..Bar::default()
        },
        (Scale::Flight(most), ..) => {
            let now = f64::from(member.in_flight);
            let limit = member.limit.map(f64::from);
            let mut bar = drawn(now, most, [limit, None], None);
            bar.label = match member.limit {
                Some(limit) => format!("{now} of {limit} at once"),
                None => format!("{now} at once"),
            };
            bar.text = format!("{} under way", words::count(u64::from(member.in_flight), "request"));
            say(&mut bar, [limit, None], number);
            bar.tone = Some(tone(member, now, [limit, None], None));
            bar
        }
    }
}

fn drawn(now: f64, most: f64, [reject, critical]: [Option<f64>; 2], line: Option<f64>) -> Bar {
    let place = |value: f64| tenth((value / most).clamp(0.0, 1.0) * WIDTH);
    let inside = |value: &f64| value.is_finite() && (0.0..=most).contains(value);
    let mark = |value: Option<f64>, kind| Some(Mark { at: place(value.filter(inside)?), kind });
    let mut marks: Vec<Mark> =
        [mark(critical, "critical"), mark(reject, "reject")].into_iter().flatten().collect();
    marks.sort_by(|one, other| one.at.total_cmp(&other.at));
    Bar { fill: place(now), line: line.map(place), marks, ..Bar::default() }
}

fn say(bar: &mut Bar, [reject, critical]: [Option<f64>; 2], form: fn(f64) -> String) {
    if let Some(critical) = critical.filter(|mark| mark.is_finite()) {
        bar.text.push_str(&format!("; sheds from {}", form(critical)));
    }
    if let Some(reject) = reject.filter(|mark| mark.is_finite()) {
        bar.text.push_str(&format!("; gets nothing new from {}", form(reject)));
    }
}

fn tone(member: &MemberStatus, now: f64, [reject, critical]: [Option<f64>; 2], line: Option<f64>) -> Tone {
    if !member.state.eligible() {
        return Tone::Off;
    }
    let over = |mark: Option<f64>, part: f64| mark.is_some_and(|mark| now >= mark * part);
    if over(line, 1.0) || over(reject, 1.0) {
        Tone::Bad
    } else if over(line, 0.8) || over(critical, 1.0) {
        Tone::Fair
    } else {
        Tone::Good
    }
}

/// To a tenth: drawings are sent again and again.
pub(super) fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::State;
    use plimsoll_brain::status::MemberLoadLine;

    use super::*;
    use crate::dashboard::sample;

    fn member() -> MemberStatus {
        sample::status().groups.remove(0).members.remove(0)
    }

    #[test]
    fn the_load_line_stands_where_a_member_is_full() {
        let member = member();
        let recent = MemberRecent { in_flight: 2.0, ..MemberRecent::default() };
        let bar = bar(&member, Some(&recent), Scale::Capacity);
        assert_eq!((bar.line, bar.fill), (Some(128.0), tenth(0.59 / 1.25 * 160.0)));
        assert_eq!(bar.label, "59 % of 100/s");
        // At 2 at once it does 59 %, so 3 at once are 88 %.
        assert_eq!(bar.marks, [Mark { at: tenth(0.59 * 1.5 / 1.25 * 160.0), kind: "reject" }]);
        assert_eq!(
            bar.text,
            "59 % of the 100 requests a second that it is predicted to carry; gets nothing new from 88 %"
        );
        assert_eq!(bar.tone, Some(Tone::Good));
    }

    #[test]
    fn marks_of_reported_loads_stand_on_the_same_bar() {
        let mut member = member();
        member.load_effective = Some(0.5);
        let recent =
            MemberRecent { alert_above: Some(0.6), reject_above: Some(0.8), ..MemberRecent::default() };
        let of = |member: &MemberStatus, scale| bar(member, Some(&recent), scale);
        let on = of(&member, Scale::Capacity);
        let kinds: Vec<_> = on.marks.iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds, ["critical", "reject"]);
        assert_eq!(on.marks[0].at, tenth(0.59 * 0.6 / 0.5 / 1.25 * 160.0));
        assert!(on.text.ends_with("sheds from 71 %; gets nothing new from 94 %"), "{}", on.text);
        member.load_line = None;
        let on = of(&member, Scale::Load(1.0));
        assert_eq!((on.fill, on.line, on.marks[1].at), (80.0, None, 128.0));
        member.load_effective = Some(0.7);
        assert_eq!(of(&member, Scale::Load(1.0)).tone, Some(Tone::Fair));
        member.load_effective = Some(0.9);
        assert_eq!(of(&member, Scale::Load(1.0)).tone, Some(Tone::Bad));
        member.state = State::Down;
        assert_eq!(of(&member, Scale::Load(1.0)).tone, Some(Tone::Off));
    }

    #[test]
    fn a_bar_never_leaves_its_drawing() {
        let mut member = member();
        for used in [0.0, 1.0, 1.3, 1e9, f64::INFINITY, f64::NAN] {
            member.load_line =
                Some(MemberLoadLine { used: Some(used), capacity: Some(10.0), ..MemberLoadLine::default() });
            let bar = bar(&member, None, Scale::Capacity);
            assert!((0.0..=WIDTH).contains(&bar.fill) || used.is_nan(), "{used} {bar:?}");
        }
    }

    #[test]
    fn a_group_has_one_scale() {
        let mut group = sample::status().groups.remove(0);
        assert_eq!(Scale::of(&group, &[]), Scale::Capacity);
        group.members.iter_mut().for_each(|member| member.load_line = None);
        group.members[0].load_effective = Some(0.5);
        let far =
            MemberRecent { alert_above: Some(100.0), reject_above: Some(0.8), ..MemberRecent::default() };
        assert_eq!(Scale::of(&group, &[far]), Scale::Load(0.8 * 1.15));
        group.members.iter_mut().for_each(|member| member.load_effective = None);
        assert_eq!(Scale::of(&group, &[]), Scale::Flight(3.0 * 1.15));
    }
}
