//! Formats numbers and states as text, so that templates contain only the layout.

use std::fmt::Write as _;

use plimsoll_brain::status::{GroupHealth, GroupStatus, LoadLine, MemberStatus, RecentSecond, SLOW};
use plimsoll_brain::{Event, EventKind, MemberState};
use time::OffsetDateTime;

pub(super) use crate::member_table::Severity;

/// Returns the glyph, word and severity of a state.
pub(super) fn state_words(state: MemberState) -> (&'static str, &'static str, Severity) {
    let (glyph, label) = state.glyph_and_label();
    let severity = match state {
        MemberState::Up => Severity::Good,
        MemberState::SlowStart | MemberState::Unchecked | MemberState::Draining => Severity::Fair,
        MemberState::Disabled => Severity::Off,
        MemberState::Ejected | MemberState::Down => Severity::Bad,
    };
    (glyph, label, severity)
}

/// Returns the glyph, word and severity of a member: that it is slow, if it is, or its state.
pub(super) fn member_words(member: &MemberStatus) -> (&'static str, &'static str, Severity) {
    match member.is_slow() {
        true => (SLOW.0, SLOW.1, Severity::Fair),
        false => state_words(member.state),
    }
}

/// Returns the glyph, words and severity of an event.
pub(super) fn event_words(kind: EventKind, reason: &str) -> (&'static str, String, Severity) {
    use EventKind as Kind;
    let (glyph, severity) = match kind {
        Kind::Down | Kind::AllDown => ("✘", Severity::Bad),
        Kind::Ejected => ("⊘", Severity::Bad),
        Kind::ReloadRefused
        | Kind::CertificateFailed
        | Kind::DiscoveryFailed
        | Kind::Flooded
        | Kind::NoReports
        | Kind::Shedding
        | Kind::Refused => ("‼", Severity::Bad),
        Kind::Up | Kind::Recovered | Kind::FullShare => ("●", Severity::Good),
        Kind::Readmitted if Event::is_still_out(kind, reason) => ("◌", Severity::Fair),
        Kind::Readmitted
        | Kind::Undrained
        | Kind::Enabled
        | Kind::AlertCleared
        | Kind::ShedEnded
        | Kind::SlowEnded
        | Kind::DiscoveryRecovered => ("✔", Severity::Good),
        Kind::AlertRaised | Kind::Slow => ("▲", Severity::Fair),
        Kind::Moved | Kind::HandedOver => ("→", Severity::Fair),
        Kind::SlowStart => ("◐", Severity::Fair),
        Kind::Draining => ("◌", Severity::Fair),
        Kind::Disabled => ("⊖", Severity::Fair),
        Kind::Stopping => ("■", Severity::Fair),
        _ => ("·", Severity::Off),
    };
    (glyph, kind_name(kind).replace('_', " "), severity)
}

/// Returns the name in JSON.
pub(super) fn kind_name(kind: EventKind) -> String {
    let name = serde_json::to_value(kind).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}

/// Formats requests per second, with three digits, which exceed the precision.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        ..0.005 => "0".into(),
        ..0.0995 => format!("{rate:.2}"),
        ..9.95 => format!("{rate:.1}"),
        ..999.5 => format!("{rate:.0}"),
        ..99_950.0 => format!("{:.1}k", rate / 1e3),
        ..999_500.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.1}M", rate / 1e6),
    }
}

/// Formats a duration in seconds.
pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        ..0.000_999_5 => format!("{:.0} µs", seconds * 1e6),
        ..0.009_995 => format!("{:.1} ms", seconds * 1e3),
        ..0.9995 => format!("{:.0} ms", seconds * 1e3),
        ..9.995 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Formats the time since an event, in seconds.
pub(super) fn ago(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    match seconds {
        ..9.95 => format!("{seconds:.1} s"),
        ..60.0 => format!("{seconds:.0} s"),
        ..3600.0 => format!("{:.0} min", (seconds / 60.0).floor()),
        ..172_800.0 => format!("{:.0} h", (seconds / 3600.0).floor()),
        _ => format!("{:.0} d", (seconds / 86_400.0).floor()),
    }
}

/// Formats a share as a percentage.
pub(super) fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// Formats any number with as many digits as are useful.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".into();
    }
    if value == value.trunc() && magnitude < 1e9 {
        return format!("{value:.0}");
    }
    let text = match magnitude {
        ..0.001 | 1e9.. => return format!("{value:.3e}"),
        ..1.0 => format!("{value:.4}"),
        ..100.0 => format!("{value:.2}"),
        _ => return format!("{value:.0}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a number of bytes.
pub(super) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Formats a count with its noun: `1 member`, `3 members`.
pub(super) fn count(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

/// Formats the date and time of day, UTC.
pub(super) fn date(unix_ms: u64) -> String {
    let datetime = datetime(unix_ms);
    let (year, month, day) = datetime.to_calendar_date();
    format!("{year:04}-{:02}-{day:02} {}", u8::from(month), clock(unix_ms))
}

/// Formats the time of day, UTC.
pub(super) fn clock(unix_ms: u64) -> String {
    let (hour, minute, second) = datetime(unix_ms).to_hms();
    format!("{hour:02}:{minute:02}:{second:02}")
}

fn datetime(unix_ms: u64) -> OffsetDateTime {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(0);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A one-line summary of a group.
#[derive(Debug, PartialEq, serde::Serialize)]
pub(super) struct GroupSummary {
    pub(super) tone: Severity,
    pub(super) glyph: &'static str,
    /// The state in one word.
    pub(super) word: &'static str,
    /// The number of serving members, and the reasons why others do not serve.
    pub(super) serve: String,
    /// The 99th percentile of the response times of the last seconds.
    pub(super) p99: Option<String>,
    /// The position relative to the load line.
    pub(super) line: String,
    /// A text about shed sessions and lost requests; `None` if there are none.
    pub(super) shedding: Option<String>,
}

/// The number of seconds to check for lost requests, and the share from which they are mentioned.
const RECENT_SECONDS: usize = 5;
const LOSS_THRESHOLD: f64 = 0.001;

/// Returns the share of the requests of the last seconds that failed, or that the balancer rejected.
fn lost_share(seconds: &[RecentSecond]) -> f64 {
    let last_seconds = &seconds[seconds.len().saturating_sub(RECENT_SECONDS)..];
    let [failed, offered] = [
        last_seconds.iter().map(|second| second.failed).sum::<f64>(),
        last_seconds.iter().map(|second| second.offered).sum(),
    ];
    if failed > 0.0 { (failed / offered.max(failed)).min(1.0) } else { 0.0 }
}

/// Returns the share of requests that a group sheds for want of capacity, and the main reason; `None` if it
/// sheds none.
fn shed_share(group: &GroupStatus) -> Option<(Option<String>, String)> {
    group.shedding_seconds?;
    let share = match group.shedding_share {
        Some(share) if share >= 0.01 => Some(percent(share)),
        Some(share) if share > 0.0 => Some("less than 1 %".to_owned()),
        // Shed by a predecessor that this balancer has just replaced.
        _ => None,
    };
    let reason = group.shedding_reason.as_ref().map(|reason| format!(" ({reason})"));
    Some((share, reason.unwrap_or_default()))
}

/// The maximum number of groups in a warning.
const MAX_NAMED_GROUPS: usize = 8;

/// Returns the groups that shed requests for want of capacity, and their number; `None` if there are none.
pub(super) fn shedding_warning(groups: &[GroupStatus]) -> Option<String> {
    let describe = |group: &GroupStatus| {
        let (share, reason) = shed_share(group)?;
        let share = share.map(|share| format!(" {share}")).unwrap_or_default();
        Some(format!("{}{share}{reason}", group.name))
    };
    let mut descriptions: Vec<String> = groups.iter().filter_map(describe).collect();
    let hidden_count = descriptions.len().saturating_sub(MAX_NAMED_GROUPS);
    descriptions.truncate(MAX_NAMED_GROUPS);
    if hidden_count > 0 {
        descriptions.push(format!("{hidden_count} more"));
    }
    (!descriptions.is_empty())
        .then(|| format!("✘ Requests are refused for want of room: {}", descriptions.join(", ")))
}

impl GroupSummary {
    /// Summarizes a group; `seconds` are its last ones, oldest first.
    pub(super) fn of(group: &GroupStatus, seconds: &[RecentSecond]) -> Self {
        let member_count = group.members.len();
        let serving = group.members.iter().filter(|member| member.state.is_eligible()).count();
        let mut serving_text = match (serving, member_count) {
            (_, 0) => "it has no members".to_owned(),
            (0, 1) => "its member does not serve".to_owned(),
            (0, member_count) => format!("none of {member_count} members serves"),
            (1, 1) => "its 1 member serves".to_owned(),
            (1, member_count) => format!("1 of {member_count} members serves"),
            (serving, member_count) => format!("{serving} of {member_count} members serve"),
        };
        let mut state_counts: Vec<String> = Vec::new();
        for (state, label) in [
            (MemberState::Down, "down"),
            (MemberState::Ejected, "ejected"),
            (MemberState::Unchecked, "not checked yet"),
            (MemberState::Draining, "draining"),
            (MemberState::Disabled, "disabled"),
        ] {
            let state_count = group.members.iter().filter(|member| member.state == state).count();
            if state_count > 0 {
                state_counts.push(format!("{state_count} {label}"));
            }
        }
        if !state_counts.is_empty() {
            let _ = write!(serving_text, " ({})", state_counts.join(", "));
        }
        let line = load_line_words(group.load_line.as_ref());
        let shedding = group.members.iter().filter(|member| member.alert_share > 0.0).count();
        let lost_fraction = lost_share(seconds);
        let health = GroupHealth::of(group, lost_fraction);
        let severity = match health {
            GroupHealth::Healthy => Severity::Good,
            GroupHealth::Warning => Severity::Fair,
            GroupHealth::Degraded | GroupHealth::Shedding | GroupHealth::Down => Severity::Bad,
        };
        let (glyph, label) = health.glyph_and_label();
        let shedding = match shedding {
            0 => None,
            1 => Some("1 sheds sessions".to_owned()),
            shedding_count => Some(format!("{shedding_count} shed sessions")),
        };
        let loss_text = (lost_fraction > LOSS_THRESHOLD).then(|| match lost_fraction {
            ..0.01 => "less than 1 % of the requests fail or are refused".to_owned(),
            lost => format!("{} of the requests fail or are refused", percent(lost)),
        });
        let shed_text = shed_share(group).map(|(share, reason)| match share {
            Some(share) => format!("{share} are refused for want of room{reason}"),
            None => format!("requests are refused for want of room{reason}"),
        });
        let phrases: Vec<String> = [shedding, loss_text, shed_text].into_iter().flatten().collect();
        let shedding = (!phrases.is_empty()).then(|| phrases.join(", "));
        let recent_p99 = seconds.iter().rev().take(RECENT_SECONDS).find_map(|second| second.p99);
        Self {
            tone: severity,
            glyph,
            word: label,
            serve: serving_text,
            p99: recent_p99.map(|p99| format!("p99 {}", latency(p99))),
            line,
            shedding,
        }
    }

    /// Returns the whole summary, for a title.
    pub(super) fn sentence(&self) -> String {
        let phrases = [Some(&self.serve), self.shedding.as_ref(), self.p99.as_ref(), Some(&self.line)];
        phrases.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Describes the position relative to the load line.
fn load_line_words(load_line: Option<&LoadLine>) -> String {
    let Some(load_line) = load_line else { return "load line not known: it has only just begun".into() };
    if let Some((low, high)) = load_line.range() {
        return format!("load line between {} and {} a second", rate(low), rate(high));
    }
    let Some(headroom) = load_line.headroom else { return format!("load line not known: {}", load_line.why) };
    let limit_text = if load_line.limited_by == "balancer" { " of the balancer itself" } else { "" };
    if headroom < 0.0 {
        let distance =
            if headroom > -0.005 { "at".to_owned() } else { format!("{} over", percent(-headroom)) };
        return format!("{distance} the load line{limit_text}");
    }
    format!("{} below the load line{limit_text}", percent(headroom))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::test_data;

    #[test]
    fn numbers_are_short() {
        let formatted = [0.0, 0.05, 4.2, 41.0, 999.0, 1234.0, 123_456.0, 12_345_678.0].map(rate);
        assert_eq!(formatted, ["0", "0.05", "4.2", "41", "999", "1.2k", "123k", "12.3M"]);
        let formatted = [0.000_25, 0.0042, 0.124, 1.25, 75.0].map(latency);
        assert_eq!(formatted, ["250 µs", "4.2 ms", "124 ms", "1.25 s", "75 s"]);
        let formatted = [-1.0, 1.25, 42.0, 150.0, 7300.0, 200_000.0].map(ago);
        assert_eq!(formatted, ["0.0 s", "1.2 s", "42 s", "2 min", "2 h", "2 d"]);
        let formatted = [0.0, 3.0, 0.1234, 12.345, 12345.6, 1e-9, -2.5].map(number);
        assert_eq!(formatted, ["0", "3", "0.1234", "12.35", "12346", "1.000e-9", "-2.5"]);
        assert_eq!([0, 1023, 1536, 1 << 40].map(bytes), ["0 B", "1023 B", "1.5 KiB", "1.0 TiB"]);
        assert_eq!(date(1_763_866_366_500), "2025-11-23 02:52:46");
    }

    #[test]
    fn groups_that_refuse_are_named_with_how_much() {
        let group = |name: &str, seconds, share, reason: Option<&str>| GroupStatus {
            name: name.into(),
            shedding_seconds: seconds,
            shedding_share: share,
            shedding_reason: reason.map(str::to_owned),
            ..GroupStatus::default()
        };
        let healthy = group("well", None, None, None);
        assert_eq!(shedding_warning(std::slice::from_ref(&healthy)), None);
        let web = group("web", Some(3.0), Some(0.124), Some("shed"));
        let api = group("api", Some(1.0), Some(0.001), Some("queue_full"));
        let old = group("old", Some(0.0), Some(0.0), None);
        let warning =
            "✘ Requests are refused for want of room: web 12 % (shed), api less than 1 % (queue_full), old";
        assert_eq!(shedding_warning(&[web.clone(), healthy, api, old]).as_deref(), Some(warning));
        let many = shedding_warning(&vec![web; 11]).unwrap_or_default();
        assert!(many.ends_with("web 12 % (shed), 3 more"), "{many}");
    }

    #[test]
    fn a_group_is_a_line() {
        let mut group = test_data::status().groups.remove(0);
        let summary = GroupSummary::of(&group, &[]);
        assert_eq!(
            summary.sentence(),
            "2 of 3 members serve (1 down), 1 sheds sessions, 41 % below the load line"
        );
        assert_eq!((summary.tone, summary.glyph, summary.word), (Severity::Fair, "▲", "look at it"));
        group.members.remove(2);
        group.members[1].alert_share = 0.0;
        let summary = GroupSummary::of(&group, &[]);
        assert_eq!(summary.sentence(), "2 of 2 members serve, 41 % below the load line");
        assert_eq!(summary.tone, Severity::Good);
        if let Some(line) = &mut group.load_line {
            line.headroom = Some(-0.12);
        }
        let summary = GroupSummary::of(&group, &[]);
        assert_eq!((summary.line.as_str(), summary.glyph), ("12 % over the load line", "‼"));
        if let Some(line) = &mut group.load_line {
            (line.headroom, line.why) = (None, "too few requests so far".into());
            (line.capacity, line.capacity_high) = (None, None);
        }
        let summary = GroupSummary::of(&group, &[]);
        assert_eq!(
            (&*summary.line, summary.tone),
            ("load line not known: too few requests so far", Severity::Good)
        );
        if let Some(line) = &mut group.load_line {
            (line.capacity_low, line.capacity_high) = (Some(84.6), Some(512.0));
        }
        let summary = GroupSummary::of(&group, &[]);
        assert_eq!((&*summary.line, summary.tone), ("load line between 85 and 512 a second", Severity::Good));
        for member in &mut group.members {
            member.state = MemberState::Down;
        }
        group.healthy = false;
        let summary = GroupSummary::of(&group, &[]);
        assert_eq!((&*summary.serve, summary.glyph), ("none of 2 members serves (2 down)", "✘"));
        group.members.clear();
        assert_eq!(GroupSummary::of(&group, &[]).serve, "it has no members");
        let mut group = test_data::status().groups.remove(0);
        group.members.truncate(1);
        group.members[0].slow_seconds = Some(3.0);
        assert_eq!(member_words(&group.members[0]), ("▲", "slow", Severity::Fair));
        assert_eq!(GroupSummary::of(&group, &[]).tone, Severity::Fair, "worth a look");
        group.members[0].state = MemberState::Down;
        assert_eq!(member_words(&group.members[0]).1, "down");
        group.members[0].slow_seconds = None;
        group.members[0].state = MemberState::Up;
        let second =
            RecentSecond { offered: 300.0, failed: 100.0, p99: Some(0.038), ..RecentSecond::default() };
        let mut seconds = vec![second; 9];
        let summary = GroupSummary::of(&group, &seconds);
        assert_eq!(
            summary.sentence(),
            "its 1 member serves, 33 % of the requests fail or are refused, p99 38 ms, 41 % below the load \
             line"
        );
        assert_eq!((summary.tone, summary.glyph), (Severity::Bad, "‼"));
        (group.shedding_seconds, group.shedding_share) = (Some(3.0), Some(0.124));
        group.shedding_reason = Some("shed".into());
        let summary = GroupSummary::of(&group, &seconds);
        let lost_text = "33 % of the requests fail or are refused, 12 % are refused for want of room (shed)";
        assert_eq!((summary.shedding.as_deref(), summary.glyph), (Some(lost_text), "✘"));
        (group.shedding_seconds, group.shedding_share, group.shedding_reason) = (None, None, None);
        seconds.iter_mut().for_each(|one| one.failed = 1.0);
        assert_eq!(GroupSummary::of(&group, &seconds).tone, Severity::Fair);
        seconds.iter_mut().rev().take(RECENT_SECONDS).for_each(|one| one.failed = 0.0);
        assert_eq!(GroupSummary::of(&group, &seconds).tone, Severity::Good, "that was before");
    }
}
