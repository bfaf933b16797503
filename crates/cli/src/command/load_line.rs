//! Load lines in words: the capacities of groups and members, for `status` and `members`.

use plimsoll_brain::status::{GroupStatus, LoadLine, MemberStatus, WhatIf};
use plimsoll_config::pluralize;

use crate::control::format::{TableCell, TextStyle, latency};

/// Returns a line for each group that has a load line: its capacity, the free part of that, and the error of
/// the prediction.
pub(super) fn capacity_rows<'s>(groups: impl IntoIterator<Item = &'s GroupStatus>) -> Vec<Vec<TableCell>> {
    let with_lines = groups.into_iter().filter_map(|group| Some((group, group.load_line.as_ref()?)));
    with_lines.map(|(group, line)| capacity_row(group, line)).collect()
}

fn capacity_row(group: &GroupStatus, line: &LoadLine) -> Vec<TableCell> {
    let name = TableCell::text(&group.name).style(TextStyle::Strong);
    if let Some((low, high)) = line.range() {
        let range = format!("load line {} to {}/s", format_rate(low), format_rate(high));
        let reason = TableCell::text(&format!("range: {}", line.why)).style(TextStyle::Faint);
        return vec![name, TableCell::text(&range), reason];
    }
    let (Some(capacity), Some(headroom)) = (line.capacity, line.headroom) else {
        let reason = format!("load line not known: {}", line.why);
        return vec![name, TableCell::text(&reason).style(TextStyle::Faint)];
    };
    let range_text = match (line.capacity_low, line.capacity_high) {
        (Some(low), Some(high)) => format!(" ({} to {})", format_rate(low), format_rate(high)),
        _ => String::new(),
    };
    let limited_by = if line.limited_by == "balancer" { ", by the balancer itself" } else { "" };
    let headroom_text = match headroom {
        excess if excess < 0.0 => format!("{:.0}% over it", -excess * 100.0),
        share => format!("{:.0}% below it", share * 100.0),
    };
    let style = match headroom {
        ..0.05 => TextStyle::Bad,
        0.05..0.2 => TextStyle::Fair,
        _ => TextStyle::Good,
    };
    vec![
        name,
        TableCell::text(&format!("load line {}/s{range_text}{limited_by}", format_rate(capacity))),
        TableCell::text(&headroom_text).style(style),
        TableCell::text(&prediction_error(line)).style(if line.verdict == "poor" {
            TextStyle::Bad
        } else {
            TextStyle::Faint
        }),
    ]
}

/// Returns the error of the prediction in words.
fn prediction_error(line: &LoadLine) -> String {
    match line.error {
        Some(error) => {
            let checked_count = pluralize(line.predictions_checked as usize, "prediction");
            format!("{}: {checked_count} checked, off by {:.0}%", line.verdict, error * 100.0)
        }
        None => format!("{}: no prediction checked yet", line.verdict),
    }
}

/// Returns the predictions of a group: times at other loads, the effect of changes.
pub(super) fn prediction_rows(group: &GroupStatus) -> Vec<Vec<TableCell>> {
    let Some(line) = &group.load_line else { return Vec::new() };
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), latency);
    let mut rows = Vec::new();
    for (index, prediction) in line.predicted.iter().enumerate() {
        let mut row = vec![
            TableCell::text(&group.name),
            TableCell::text(&format!("at {:.0}%", prediction.load * 100.0)),
            TableCell::number(format!("{}/s", format_rate(prediction.requests_per_second))),
            TableCell::text(&format!("p50 {}  p99 {}", time(prediction.p50), time(prediction.p99))),
        ];
        // All of it has the same age.
        if index == 0 && line.age_seconds >= 0.5 {
            row.push(TableCell::text(&format!("{:.0}s ago", line.age_seconds)).style(TextStyle::Faint));
        }
        rows.push(row);
    }
    for change in &line.what_if {
        rows.push(vec![
            TableCell::text(&group.name),
            TableCell::text(&change.about),
            TableCell::number(
                change
                    .capacity
                    .map_or_else(|| "-".to_owned(), |capacity| format!("{}/s", format_rate(capacity))),
            ),
            effect_cell(change),
        ]);
    }
    rows
}

fn effect_cell(change: &WhatIf) -> TableCell {
    let outcome = match (change.over, change.headroom) {
        (Some(true), _) if change.capacity == Some(0.0) => {
            return TableCell::text("no member is left").style(TextStyle::Bad);
        }
        (Some(true), _) => return TableCell::text("over the load line").style(TextStyle::Bad),
        (Some(false), Some(headroom)) => format!("{:.0}% free", headroom * 100.0),
        (Some(false), None) => "below the load line".to_owned(),
        (None, _) => return TableCell::text("unknown").style(TextStyle::Faint),
    };
    let p99 = change.p99.map_or(String::new(), |p99| format!("  p99 {}", latency(p99)));
    TableCell::text(&format!("{outcome}{p99}"))
}

/// Returns the capacity of a member, in requests a second.
pub(super) fn capacity(member: &MemberStatus) -> Option<f64> {
    member.load_line.as_ref()?.capacity
}

pub(super) fn format_capacity(member: &MemberStatus) -> String {
    capacity(member).map_or_else(|| "-".to_owned(), |capacity| format!("{}/s", format_rate(capacity)))
}

/// Returns the part of it that is in use.
pub(super) fn format_used_share(member: &MemberStatus) -> String {
    let used = member.load_line.as_ref().and_then(|line| line.used);
    used.map_or_else(|| "-".to_owned(), |used| format!("{:.0}%", used * 100.0))
}

/// Returns a rate with three digits, which is more than its accuracy.
fn format_rate(rate: f64) -> String {
    match rate {
        ..9.95 => format!("{rate:.1}"),
        ..999.5 => format!("{rate:.0}"),
        ..99_950.0 => format!("{:.1}k", rate / 1e3),
        _ => format!("{:.0}k", rate / 1e3),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use plimsoll_brain::status::{MemberLoadLine, PredictedLatency};

    use super::*;
    use crate::control::format::table;
    use crate::control::sample_status;

    pub(in crate::command) fn line() -> LoadLine {
        let what_if = |change: &str, about: &str, capacity: f64, load: f64, p99| WhatIf {
            change: change.into(),
            about: about.into(),
            capacity: Some(capacity),
            headroom: Some(1.0 - load / capacity),
            over: Some(load >= capacity),
            p99,
        };
        LoadLine {
            requests_per_second: 120.0,
            capacity: Some(200.0),
            capacity_low: Some(190.0),
            capacity_high: Some(1212.0),
            headroom: Some(0.4),
            verdict: "good".into(),
            error: Some(0.034),
            predictions_checked: 3,
            predicted: vec![PredictedLatency {
                load: 0.8,
                requests_per_second: 160.0,
                p50: Some(0.02),
                p99: Some(0.31),
            }],
            what_if: vec![
                what_if("plus_one", "with one more like the median member", 300.0, 120.0, Some(0.1)),
                what_if("double", "with twice the traffic", 200.0, 240.0, None),
                what_if("minus_one", "without its only usable member", 0.0, 120.0, None),
            ],
            age_seconds: 2.6,
            ..LoadLine::default()
        }
    }

    #[test]
    fn a_load_line_is_a_line() {
        let mut groups = sample_status().groups;
        groups[0].load_line = Some(line());
        let unknown = LoadLine { why: "too few requests so far".into(), ..LoadLine::default() };
        groups[1].load_line = Some(unknown);
        assert_eq!(
            table(&capacity_rows(&groups), false),
            "web           load line 200/s (190 to 1.2k)                 40% below it  good: 3 predictions \
             checked, \
             off by 3%\ngame servers  load line not known: too few requests so far\n"
        );
        let balancer = LoadLine {
            limited_by: "balancer".into(),
            headroom: Some(-0.1),
            error: None,
            verdict: "unproven".into(),
            ..line()
        };
        groups[0].load_line = Some(balancer);
        groups.pop();
        assert_eq!(
            table(&capacity_rows(&groups), false),
            "web  load line 200/s (190 to 1.2k), by the balancer itself  10% over it  unproven: no \
             prediction checked yet\n"
        );
        groups[0].load_line = None;
        assert!(capacity_rows(&groups).is_empty());
    }

    #[test]
    fn what_is_predicted_is_a_table() {
        let mut group = sample_status().groups.remove(0);
        assert!(prediction_rows(&group).is_empty());
        group.load_line = Some(line());
        assert_eq!(
            table(&prediction_rows(&group), false),
            "web  at 80%                                160/s  p50 20.0ms  p99 310ms  3s ago\n\
             web  with one more like the median member  300/s  60% free  p99 100ms\n\
             web  with twice the traffic                200/s  over the load line\n\
             web  without its only usable member        0.0/s  no member is left\n"
        );
    }

    #[test]
    fn a_range_has_no_percentage() {
        let mut group = sample_status().groups.remove(0);
        let what_if = |about: &str, over| WhatIf { about: about.into(), over, ..WhatIf::default() };
        group.load_line = Some(LoadLine {
            requests_per_second: 60.0,
            capacity_low: Some(84.6),
            capacity_high: Some(512.0),
            verdict: "range".into(),
            why: "1 of 2 members never had enough to do".into(),
            what_if: vec![
                what_if("without the member that can do most", Some(true)),
                what_if("with one more like the median member", Some(false)),
                what_if("with twice the traffic", None),
            ],
            ..LoadLine::default()
        });
        assert_eq!(
            table(&capacity_rows([&group]), false),
            "web  load line 85 to 512/s  range: 1 of 2 members never had enough to do\n"
        );
        assert_eq!(
            table(&prediction_rows(&group), false),
            "web  without the member that can do most   -  over the load line\n\
             web  with one more like the median member  -  below the load line\n\
             web  with twice the traffic                -  unknown\n"
        );
    }

    #[test]
    fn members_have_shares_of_what_they_can_do() {
        let mut member = sample_status().groups.remove(0).members.remove(0);
        assert_eq!((format_capacity(&member), format_used_share(&member)), ("-".into(), "-".into()));
        member.load_line =
            Some(MemberLoadLine { capacity: Some(9.94), used: Some(0.412), ..MemberLoadLine::default() });
        assert_eq!((format_capacity(&member), format_used_share(&member)), ("9.9/s".into(), "41%".into()));
        let formatted = [10.0, 999.0, 1234.0, 123_456.0].map(format_rate);
        assert_eq!(formatted, ["10", "999", "1.2k", "123k"]);
    }
}
